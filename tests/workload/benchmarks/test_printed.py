"""Texts that vllm bench serve and sglang.bench_serving print."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simserve.errors import TraceError
from simserve.workload.benchmarks.reading import read_results
from simserve.workload.benchmarks.result import BenchResult

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


def read(folder: Path, text: str) -> list[BenchResult]:
    """Return the runs of what was pasted."""
    file = folder / "run 1.log"
    file.write_text(text, encoding="utf-8")
    return read_results([file])


@pytest.mark.parametrize(
    ("before", "sent", "arrivals"),
    [
        (NAMESPACE.format("inf", "max_concurrency=None"), "", {"process": "all_at_once"}),
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
    (result,) = read(tmp_path, before + TABLE.format(sent=sent))

    assert (result.model, result.arrivals, result.num_requests) == ("Qwen/Qwen3-8B", arrivals, 40)
    assert (result.prompt_tokens.tolist(), result.output_tokens.tolist()) == ([100.0], [50.0])


def test_the_figures_of_the_table_are_measured(tmp_path: Path) -> None:
    """In seconds, under the names that every tool's figures have; a load that is not said is noted."""
    (result,) = read(tmp_path, TABLE.format(sent=""))

    assert result.measured == pytest.approx(
        {
            "request_throughput": 0.49,
            "output_throughput": 24.62,
            "mean_ttft": 0.09462,
            "p90_ttft": 0.099,
            "p99_ttft": 0.21237,
            "mean_tpot": 0.02638,
            "mean_e2e": 1.4005,
        }
    )
    assert (result.duration, result.num_failed) == (81.22, 0)
    assert result.notes == ["the result does not say how requests were sent: all at once is taken"]


@pytest.mark.parametrize(
    ("rate", "clients", "arrivals"),
    [
        ("inf", "4", {"process": "closed_loop", "concurrency": 4}),
        ("inf", "not set", {"process": "all_at_once"}),
        ("8.0", "not set", {"process": "poisson", "rate": 8.0}),
    ],
)
def test_sglangs_text_names_its_engine(tmp_path: Path, rate: str, clients: str, arrivals: dict[str, Any]) -> None:
    """Its table says the rate and the clients itself."""
    (result,) = read(tmp_path, SGLANG.format(rate=rate, clients=clients))

    assert (result.tool, result.engine, result.arrivals) == ("SGLang bench_serving", "sglang", arrivals)
    assert (result.measured["mean_e2e"], result.measured["output_throughput"]) == (1.98, 100.0)


def test_gaps_between_chunks_of_several_tokens_are_no_itl(tmp_path: Path) -> None:
    """SGLang prints how many tokens a step accepted."""
    text = SGLANG.format(rate="1.0", clients="not set") + "Mean ITL (ms): 20.0\n"

    (plain,), (speculating,) = read(tmp_path, text), read(tmp_path, text + "Accept length: 2.50\n")
    assert plain.measured["mean_itl"] == 0.02
    assert "mean_itl" not in speculating.measured


def test_several_tables_are_several_runs(tmp_path: Path) -> None:
    """Of a loop over rates: each has the options printed before it."""
    text = "".join(NAMESPACE.format(rate, "burstiness=1.0") + TABLE.format(sent="") for rate in ("1.0", "2.0"))

    first, second = read(tmp_path, text)
    assert (first.load, second.load) == ("1/s", "2/s")
    assert second.label == "run 1.log table 2"


@pytest.mark.parametrize(
    ("backend", "engine"),
    [("vllm", "vllm"), ("openai-chat", ""), ("sglang-native", "sglang"), ("trt", "tensorrt-llm"), ("None", "")],
)
def test_the_backend_is_the_engine(tmp_path: Path, backend: str, engine: str) -> None:
    """A client of the OpenAI protocol says nothing of the server."""
    (result,) = read(tmp_path, f"backend='{backend}'\n" + TABLE.format(sent=""))

    assert result.engine == engine


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            TABLE.replace("Successful requests:                     40", "Successful requests: XX"),
            "completed: is missing: a whole number is expected",
        ),
        (SGLANG.format(rate="trace", clients="4"), "request_rate: 'trace' holds no rate"),
        ("Serving Benchmark Result\n", "is not a result of a known tool"),
    ],
)
def test_a_text_that_is_no_result_is_refused(tmp_path: Path, text: str, message: str) -> None:
    """With the file and what is wrong."""
    with pytest.raises(TraceError, match=message):
        read(tmp_path, text)


def test_figures_that_are_no_numbers_are_left_out(tmp_path: Path) -> None:
    """A run without answers has nan."""
    (result,) = read(tmp_path, TABLE.replace("94.62", "nan").format(sent=""))

    assert "mean_ttft" not in result.measured
