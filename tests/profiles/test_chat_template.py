"""What the API server does for one request after another, and where it parses the template of every chat anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from simserve.api import run
from simserve.profiles.engine_profile import load_engine
from simserve.scenario.load import load
from simserve.scenario.resolve import resolve

PROFILES = Path(__file__).parents[2] / "engine_profiles"


def seconds(version: str, *overrides: str, model: str = "llama-3.1-8b") -> float:
    """Return what a request of the chat endpoint adds to the work of the API server of vLLM, ms."""
    engine = f"deployment.engine={{name: vllm, version: '{version}', endpoint: chat}}"
    scenario = resolve(load("chatbot", [f"model={model}", engine, *overrides]))
    return round(1e3 * scenario.engine.frontend_seconds_per_request, 3)


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.6.0", 0.0),
        ("0.6.6", 8.75),
        ("0.9.1", 8.75),
        ("0.9.2", 1.75),
        ("0.10.2", 1.75),
        ("0.11.0", 13.75),
        ("0.11.1", 1.75),
    ],
)
def test_releases_that_parse_the_template_for_every_chat(version: str, expected: float) -> None:
    """Not before 0.6.4, kept from 0.9.2 on, parsed again by 0.11.0 alone; each chat is work without it too."""
    assert seconds(version) == expected


def test_a_file_of_when_chats_alone_paid_is_read(tmp_path: Path) -> None:
    """A calibrated engine written before November 2026 has the API server's time under that name."""
    shipped = (PROFILES / "vllm.yaml").read_text(encoding="utf-8").replace("name: vllm", "name: old", 1)
    old = tmp_path / "old.yaml"
    old.write_text(
        shipped.replace("api_server_seconds_per_request: 1.75 ms", "chat_seconds_per_request: 2.5 ms"), "utf-8"
    )

    versions = {each.version: each.host.api_server_seconds_per_request for each in load_engine(str(old)).versions}

    assert (versions["0.6.0"], versions["0.12"]) == (0.0, 2.5e-3)


def test_completions_have_no_template() -> None:
    """What benchmarks call by default passes the same API server, which parses nothing for it."""
    assert seconds("0.11.0", "deployment.engine.endpoint=completions") == 1.75


def test_a_batch_in_the_engines_process_passes_no_api_server() -> None:
    """Nobody serves it; chats that are all there at once are sent to a server."""
    at_once = "workload.arrivals={process: all_at_once}"

    assert seconds("0.12", at_once, "deployment.engine.endpoint=completions") == 0.0
    assert seconds("0.12", at_once) == 1.75


def test_a_burst_of_completions_waits_for_its_api_server() -> None:
    """64 clients at once: each first token comes 63 x 1.75 ms later than if all took 6.75 ms by themselves."""
    burst = [
        *("model=llama-3.1-8b", "deployment.engine={name: vllm, version: '0.12'}", "workload.num_requests=64"),
        "workload.arrivals={process: closed_loop, concurrency: 64}",
        *(f"workload.{each}={{distribution: fixed, value: 16}}" for each in ("prompt_tokens", "output_tokens")),
    ]
    tokenizing_ms = 16 * 3e-3

    serial, alone = (
        run(load("chatbot", [*burst, *more])).summary["median_ttft_ms"]
        for more in ([], ["deployment.engine.frontend_latency=6.75 ms"])
    )

    assert serial - alone == pytest.approx(63 * 1.75 + tokenizing_ms)


@pytest.mark.parametrize(
    ("version", "override", "expected"),
    [
        ("0.9.2", "", 4.0),
        ("0.10.0", "", 6.0),
        ("0.23.0", "", 5.0),
        ("0.24.0", "", 3.0),
        ("0.23.0", "deployment.engine.endpoint=chat", 5.0),
        ("0.23.0", "deployment.engine.host_slowdown=2", 8.0),
        ("0.23.0", "deployment.engine.frontend_latency=9 ms", 9.0),
        ("0.23.0", "workload.arrivals={process: all_at_once}", 3.0),
    ],
)
def test_the_tokeniser_of_some_releases_waits_for_more_prompts(version: str, override: str, expected: float) -> None:
    """vLLM 0.10.0 to 0.23.0 wait 2 ms, by a timer that no CPU quickens; batches in the engine's process do not."""
    engine = f"deployment.engine={{name: vllm, version: '{version}'}}"
    overrides = ["model=llama-3.1-8b", engine, *filter(None, [override])]

    found = resolve(load("chatbot", overrides)).engine.frontend_latency

    assert 1e3 * found == pytest.approx(expected)


def test_a_latency_that_is_set_contains_the_wait_of_the_tokeniser() -> None:
    """A batch in the engine's process takes nothing off it."""
    overrides = ["deployment.engine.frontend_latency=9 ms", "workload.arrivals={process: all_at_once}"]
    engine = resolve(load("chatbot", ["model=llama-3.1-8b", "deployment.engine.version=0.23.0", *overrides])).engine

    assert engine.frontend_latency == pytest.approx(0.009)


def test_gpt_oss_is_formatted_in_code() -> None:
    """Its chats never meet a template."""
    assert seconds("0.11.0", model="gpt-oss-20b") == 1.75


def test_a_slow_host_parses_as_much_longer() -> None:
    """It is work of the CPU."""
    assert seconds("0.11.0", "deployment.engine.host_slowdown=2") == 27.5


def test_a_latency_that_is_set_is_all_of_it() -> None:
    """Whoever states the latency to the scheduler has measured this along with it."""
    assert seconds("0.11.0", "deployment.engine.frontend_latency=9 ms") == 0.0


@pytest.mark.parametrize(("engine", "version"), [("sglang", "0.4"), ("sglang", "0.5.9"), ("tensorrt-llm", "1.2")])
def test_other_engines_take_chats_one_after_another_too(engine: str, version: str) -> None:
    """Their API servers are one process as well."""
    chosen = f"deployment.engine={{name: {engine}, version: '{version}', endpoint: chat}}"
    scenario = resolve(load("chatbot", ["model=llama-3.1-8b", chosen]))

    assert scenario.engine.frontend_seconds_per_request == pytest.approx(1.75e-3)
