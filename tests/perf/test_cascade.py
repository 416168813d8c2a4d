"""Cascade attention: what all requests of a step share is read once."""

from __future__ import annotations

from typing import Any

import pytest

from simserve.api import run
from simserve.perf.tables import price
from simserve.reference.steps import mixed_seconds
from simserve.scenario.combinations import without_effect
from simserve.scenario.resolve import ResolvedScenario, resolve
from tests.scenario.builders import make_scenario

SHARED = {"num_groups": 1, "tokens": 8000}


def served(version: str = "0.12.0", hardware: str = "a100-sxm-80gb", **more: Any) -> ResolvedScenario:
    """Return a server resolved."""
    return resolve(scenario_of(version, hardware, **more))


def scenario_of(version: str = "0.12.0", hardware: str = "a100-sxm-80gb", **more: Any) -> Any:
    """Return 32 clients of a vLLM server, all of whose prompts begin alike; ``more`` changes it."""
    engine = {"name": "vllm", "version": version, **more.pop("engine", {})}
    model = more.pop("model", "llama-3.1-8b")
    load = {
        "arrivals": {"process": "closed_loop", "concurrency": 32},
        "prompt_tokens": {"distribution": "fixed", "value": 100},
        "output_tokens": {"distribution": "fixed", "value": 100},
        "num_requests": 96,
        "shared_prefix": SHARED,
        **more,
    }
    asked = [f"model={model}", f"deployment.hardware={hardware}", f"deployment.engine={engine}"]
    return make_scenario(asked, workload=load)


def step(resolved: ResolvedScenario, requests: int, context: float) -> float:
    """Return the seconds of a step of decodes with contexts of one length."""
    return mixed_seconds(price(resolved.shape).step_times, [context] * requests, [], 1)


def test_thirty_two_requests_read_a_shared_prompt_once() -> None:
    """At the mean context: the keys of 31 prompts fewer; no more than the arithmetic of padded tiles is added."""
    with_cascade, without = served(), served(engine={"disable_cascade_attn": True})
    context = 8150.0  # 8,000 and 100 tokens of prompt, and half of the answer
    slope = price(without.shape).step_times.decode_slope[32]

    saved = step(without, 32, context) - step(with_cascade, 32, context)

    assert 0.7 * 31 * 8000 * slope < saved < 31 * 8000 * slope


def test_few_requests_and_short_prefixes_are_read_by_each() -> None:
    """vLLM's thresholds: eight requests, 256 tokens; and more tiles by FlashDecoding than by a cascade."""
    with_cascade, without = served(), served(engine={"disable_cascade_attn": True})
    slopes = [price(each.shape).step_times.decode_slope for each in (with_cascade, without)]

    assert slopes[0][7] == slopes[1][7]
    assert slopes[0][32] < 0.3 * slopes[1][32]
    short = [
        price(served(shared_prefix={"num_groups": 1, "tokens": 255}, engine=engine).shape).step_times.decode_slope[32]
        for engine in ({}, {"disable_cascade_attn": True})
    ]
    assert short[0] == short[1]


@pytest.mark.parametrize(
    ("changes", "is_used"),
    [
        ({}, True),
        ({"version": "0.8.5"}, True),
        ({"version": "0.7.3"}, False),
        ({"version": "0.17.0"}, True),
        ({"version": "0.18.0"}, False),
        ({"version": "0.20.2", "engine": {"disable_cascade_attn": False}}, True),
        ({"engine": {"enable_prefix_caching": False}}, False),
        ({"shared_prefix": {"num_groups": 2, "tokens": 8000}}, False),
        ({"model": "gpt-oss-20b"}, False),
        ({"model": "qwen3.5-9b", "version": "0.17.0"}, False),
        ({"hardware": "b200-sxm-180gb"}, False),
        ({"hardware": "h100-sxm-80gb"}, True),
        ({"hardware": "mi300x-192gb"}, False),
    ],
)
def test_who_reads_a_shared_prompt_once(changes: dict[str, Any], is_used: bool) -> None:
    """vLLM 0.8 to 0.17 and who asks for it later, by FlashAttention alone, without windows and states."""
    assert (served(**changes).shape.common_prefix_tokens == SHARED["tokens"]) is is_used


def test_answers_to_one_system_prompt_come_sooner_with_cascades() -> None:
    """32 clients, 8,000 shared tokens; the kernel and the reference read the same tables."""
    found = [run(scenario_of(engine={"disable_cascade_attn": each})).requests for each in (False, True)]

    assert found[0]["tpot_ms"].mean() < 0.6 * found[1]["tpot_ms"].mean()


def test_the_switch_says_where_it_has_no_effect() -> None:
    """Without a prefix that all requests share."""
    asked = {"engine": {"disable_cascade_attn": True}}

    told = [without_effect(scenario_of(**asked, **more), None) for more in ({}, {"shared_prefix": None})]

    assert [any("disable_cascade_attn" in each for each in notes) for notes in told] == [False, True]
