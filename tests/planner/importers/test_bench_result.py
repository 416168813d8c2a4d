"""Texts that vllm bench serve and sglang.bench_serving print, and SGLang's JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simserve.errors import TraceError
from simserve.planner.importers.bench import BenchImport, import_bench
from simserve.planner.importers.bench_result import engine_of, read_result
from simserve.scenario.load import from_mapping
from simserve.scenario.run import run

TABLE = """\
============ Serving Benchmark Result ============
Successful requests:                     40
Failed requests:                         0
{sent}Benchmark duration (s):                  81.22
Total input tokens:                      4000
Total generated tokens:                  2000
Request throughput (req/s):              0.49
Output token throughput (tok/s):         24.62
Peak output token throughput (tok/s):    99.00
Total Token throughput (tok/s):          73.87
---------------Time to First Token----------------
Mean TTFT (ms):                          94.62
P90 TTFT (ms):                           99.00
P99 TTFT (ms):                           212.37
-----Time per Output Token (excl. 1st token)------
Mean TPOT (ms):                          26.38
----------------End-to-end Latency----------------
Mean E2EL (ms):                          1400.50
==================================================
"""
NAMESPACE = "Namespace(backend='vllm', model='Qwen/Qwen3-8B/', served_model_name=None, request_rate={}, {})\n"
SGLANG = """\
#Input tokens: 4000
============ Serving Benchmark Result ============
Backend:                                 sglang-oai
Traffic request rate:                    {rate}
Max reqeuest concurrency:                {clients}
Successful requests:                     40
Benchmark duration (s):                  20.00
Total input tokens:                      4000
Total generated tokens:                  2000
Total generated tokens (retokenized):    1999
Input token throughput (tok/s):          200.00
Output token throughput (tok/s):         100.00
Concurrency:                             3.97
----------------End-to-End Latency----------------
Mean E2E Latency (ms):                   1980.00
"""


def imported(folder: Path, text: str, **options: Any) -> BenchImport:
    """Write what was pasted and import it."""
    file = folder / "run 1.log"
    file.write_text(text, encoding="utf-8")
    return import_bench(file, **{"hardware": "h100-sxm-80gb", "version": None, **options})


@pytest.mark.parametrize(
    ("before", "sent", "arrivals"),
    [
        (NAMESPACE.format("inf", "max_concurrency=None"), "", {"process": "closed_loop", "concurrency": 40}),
        (NAMESPACE.format("inf", "max_concurrency=8"), "", {"process": "closed_loop", "concurrency": 8}),
        (
            "$ vllm bench serve --model=Qwen/Qwen3-8B --tokenizer x\nTraffic request rate: inf\n",
            "Maximum request concurrency:             16\n",
            {"process": "closed_loop", "concurrency": 16},
        ),
        (
            "vllm bench serve --model $MODEL\nvllm serve --model 'Qwen/Qwen3-8B'\nBurstiness factor: 0.25 (Gamma)\n",
            "Request rate configured (RPS):           4.00\n",
            {"process": "gamma", "rate": 4.0, "cv": 2.0},
        ),
        (NAMESPACE.format("2.5", "burstiness=1.0"), "", {"process": "poisson", "rate": 2.5}),
    ],
)
def test_the_text_around_the_table_says_model_and_arrivals(
    tmp_path: Path, before: str, sent: str, arrivals: dict[str, Any]
) -> None:
    """Of the command, of the options that old versions print, or of the table."""
    mapping = imported(tmp_path, before + TABLE.format(sent=sent)).draft.mapping

    assert (mapping["name"], mapping["model"]) == ("run-1", "qwen3-8b")
    assert mapping["deployment"]["engine"] == {"name": "vllm"}
    assert mapping["workload"] == {
        "arrivals": arrivals,
        "prompt_tokens": {"distribution": "fixed", "value": 100},
        "output_tokens": {"distribution": "fixed", "value": 50},
        "num_requests": 40,
    }


def test_the_figures_of_the_table_are_measured(tmp_path: Path) -> None:
    """By vLLM's keys; percentiles that simserve's results do not have are left."""
    found = imported(tmp_path, TABLE.format(sent=""), model="qwen3-8b")

    assert found.measured == {
        "duration": 81.22,
        "completed": 40,
        "failed": 0,
        "request_throughput": 0.49,
        "output_throughput": 24.62,
        "total_token_throughput": 73.87,
        "mean_ttft_ms": 94.62,
        "p99_ttft_ms": 212.37,
        "mean_tpot_ms": 26.38,
        "mean_e2el_ms": 1400.5,
    }
    assert any("does not say how requests were sent" in note for note in found.draft.notes)


@pytest.mark.parametrize(
    ("rate", "clients", "arrivals"),
    [
        ("inf", "4", {"process": "closed_loop", "concurrency": 4}),
        ("inf", "not set", {"process": "closed_loop", "concurrency": 40}),
        ("8.0", "not set", {"process": "poisson", "rate": 8.0}),
    ],
)
def test_sglangs_text_names_its_engine(tmp_path: Path, rate: str, clients: str, arrivals: dict[str, Any]) -> None:
    """And it runs; its table says the rate and the clients itself."""
    found = imported(tmp_path, SGLANG.format(rate=rate, clients=clients), model="llama-3.1-8b")

    assert found.draft.mapping["deployment"]["engine"] == {"name": "sglang"}
    assert found.draft.mapping["workload"]["arrivals"] == arrivals
    assert (found.measured["mean_e2el_ms"], found.measured["output_throughput"]) == (1980.0, 100.0)
    result = run(from_mapping(found.draft.mapping, folder=tmp_path))
    assert result.summary["completed"] == 40


def test_sglangs_json_has_vllms_keys(tmp_path: Path) -> None:
    """Its latency has another name, and it names no model."""
    file = tmp_path / "sglang.jsonl"
    result = {"backend": "sglang", "completed": 4, "total_input_tokens": 8, "total_output_tokens": 8}
    file.write_text(json.dumps({**result, "request_rate": "inf", "mean_e2e_latency_ms": 5.0}), encoding="utf-8")

    found = import_bench(file, model="llama-3.1-8b")
    assert found.measured == {"completed": 4.0, "mean_e2el_ms": 5.0}
    assert found.draft.scenario.deployment.engine.name == "sglang"
    assert found.draft.mapping["name"] == "sglang"


@pytest.mark.parametrize(
    ("backend", "engine"),
    [("vllm", "vllm"), ("openai-chat", "vllm"), ("sglang-native", "sglang"), ("trt", "tensorrt-llm"), (None, "vllm")],
)
def test_the_backend_is_the_engine(backend: str | None, engine: str) -> None:
    """A client of the OpenAI protocol says nothing of the server."""
    assert engine_of({"backend": backend}) == engine


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TABLE.format(sent="") * 2, "holds 2 results; keep the text of one run"),
        (TABLE.format(sent=""), "model_id: is missing; say which with --model"),
        (
            TABLE.replace("Successful requests:                     40", "Successful requests: XX"),
            "completed: is missing",
        ),
        (SGLANG.format(rate="trace", clients="4"), "request_rate: 'trace' is not a number"),
    ],
)
def test_a_text_that_is_no_one_result_is_refused(tmp_path: Path, text: str, message: str) -> None:
    """With the file and what is wrong."""
    model = None if "--model" in message else "llama-3.1-8b"
    with pytest.raises(TraceError) as caught:
        imported(tmp_path, text, model=model)

    assert message in str(caught.value)


def test_figures_that_are_no_numbers_are_left_out(tmp_path: Path) -> None:
    """A run without answers has nan."""
    file = tmp_path / "nan.txt"
    file.write_text(TABLE.replace("94.62", "nan").format(sent=""), encoding="utf-8")

    assert "mean_ttft_ms" not in read_result(file)
