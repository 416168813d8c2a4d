"""Every tool's result reads as the same run, by definition; a malformed or mislabelled one is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from simserve.errors import TraceError
from simserve.workload.benchmarks.reading import read_results
from simserve.workload.benchmarks.result import BenchResult
from tests.workload.benchmarks import documents
from tests.workload.benchmarks.documents import E2E, NTPOT, TPOT, TTFT

ONE_RUN: dict[str, Callable[[], dict[str, Any]]] = {
    "vllm": documents.vllm,
    "vllm-detailed": documents.vllm_detailed,
    "vllm-old": documents.vllm_old,
    "sglang": documents.sglang,
    "aiperf": documents.aiperf,
    "inference-perf": documents.inference_perf,
    "llm-d": documents.llm_d,
}


def write(folder: Path, document: Any, name: str = "result.json") -> Path:
    """Write a document as JSON, or a list as JSON lines."""
    file = folder / name
    lines = document if isinstance(document, list) else [document]
    file.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    return file


def read(folder: Path, document: Any, name: str = "result.json") -> list[BenchResult]:
    """Return the runs of a document."""
    return read_results([write(folder, document, name)])


@pytest.mark.parametrize("tool", ONE_RUN)
def test_every_tool_tells_of_the_same_run(tool: str, tmp_path: Path) -> None:
    """TTFT, TPOT, E2E, throughput and lengths come out alike, whatever the tool calls them."""
    (result,) = read(tmp_path, ONE_RUN[tool]())

    assert result.num_requests == 4
    assert result.prompt_tokens.mean() == 100
    assert result.output_tokens.mean() == 11
    assert result.measured["mean_ttft"] == pytest.approx(TTFT)
    assert result.measured["mean_tpot"] == pytest.approx(TPOT)
    assert result.measured["median_tpot"] == pytest.approx(TPOT)
    assert result.measured["output_throughput"] == pytest.approx(22.0)
    assert result.measured.get("mean_e2e", E2E) == pytest.approx(E2E)
    assert result.measured.get("mean_ntpot", NTPOT) == pytest.approx(NTPOT)
    assert {name.split("_")[-1] for name in result.measured} <= {*result.definitions, "throughput"}


@pytest.mark.parametrize(
    ("tool", "arrivals"),
    [
        ("vllm", {"process": "poisson", "rate": 2.0}),
        ("vllm-old", {"process": "closed_loop", "concurrency": 4}),
        ("sglang", {"process": "closed_loop", "concurrency": 4}),
        ("aiperf", {"process": "closed_loop", "concurrency": 4}),
        ("inference-perf", {"rate": 2.0}),
        ("llm-d", {"rate": 2.0}),
    ],
)
def test_the_load_is_the_file_s_own(tool: str, arrivals: dict[str, Any], tmp_path: Path) -> None:
    """Rate, burstiness or number of clients; a rate alone where the tool does not say the process."""
    (result,) = read(tmp_path, ONE_RUN[tool]())

    assert result.arrivals == arrivals


def test_bursty_arrivals_of_vllm_are_gamma(tmp_path: Path) -> None:
    """Burstiness is the shape of the gamma distribution: cv is its inverse root."""
    (result,) = read(tmp_path, documents.vllm() | {"burstiness": 0.25})

    assert result.arrivals == {"process": "gamma", "rate": 2.0, "cv": 2.0}


@pytest.mark.parametrize("tool", ["vllm", "sglang"])
def test_a_bound_beside_a_rate_is_said(tool: str, tmp_path: Path) -> None:
    """The rate is simulated, the bound is not, and the reader is told."""
    (result,) = read(tmp_path, ONE_RUN[tool]() | {"request_rate": 2.0, "max_concurrency": 8})

    assert result.arrivals == {"process": "poisson", "rate": 2.0}
    assert result.notes == ["at most 8 requests were in flight; the simulation sends at the rate without that bound"]


def test_all_at_once_is_neither_rate_nor_clients(tmp_path: Path) -> None:
    """A rate of infinity without a limit sends everything at once."""
    (result,) = read(tmp_path, documents.vllm() | {"request_rate": "inf"})

    assert result.arrivals == {"process": "all_at_once"}
    assert result.load == "all at once"


def test_a_detailed_result_gives_every_request(tmp_path: Path) -> None:
    """Arrivals from the first one on, lengths, and E2E that the summary lacks."""
    (result,) = read(tmp_path, documents.vllm_detailed())

    assert result.arrival_time is not None
    assert result.arrival_time.tolist() == [0.0, 0.5, 1.0, 1.5]
    assert len(result.prompt_tokens) == len(result.output_tokens) == 4
    assert result.measured["p99_e2e"] == pytest.approx(E2E)
    assert result.measured["mean_itl"] == pytest.approx(TPOT)


def test_chunks_of_several_tokens_are_no_itl(tmp_path: Path) -> None:
    """Five chunks for ten tokens: TPOT holds, gaps between chunks are not gaps between tokens."""
    document = documents.vllm_detailed() | {"itls": [[2 * TPOT] * 5 for _ in range(4)]}

    (result,) = read(tmp_path, document)

    assert result.measured["mean_tpot"] == pytest.approx(TPOT)
    assert "mean_itl" not in result.measured
    assert "chunks" in result.notes[0]


def test_sglang_with_speculation_has_no_itl(tmp_path: Path) -> None:
    """More than one token a step: ITL is left out, TPOT stays."""
    (result,) = read(tmp_path, documents.sglang() | {"accept_length": 2.5})

    assert "mean_itl" not in result.measured
    assert result.measured["mean_tpot"] == pytest.approx(TPOT)


@pytest.mark.parametrize("key", ["config", "args"])
def test_guidellm_names_its_model_once_for_all_benchmarks(tmp_path: Path, key: str) -> None:
    """Under ``config`` from 0.7 on, before that under ``args``; a benchmark's own back end says it first."""
    document = documents.guidellm() | {key: {"model": "Qwen/Qwen3-8B"}}
    document["benchmarks"][1]["config"]["backend"] = {"model": "Qwen/Qwen3-4B"}

    constant, concurrent = read(tmp_path, document)

    assert (constant.model, concurrent.model) == ("Qwen/Qwen3-8B", "Qwen/Qwen3-4B")


def test_guidellm_s_tpot_is_its_inter_token_latency(tmp_path: Path) -> None:
    """Its time per output token holds the first one, and is NTPOT; each benchmark is a run with its own load."""
    constant, concurrent = read(tmp_path, documents.guidellm())

    assert constant.measured["mean_tpot"] == pytest.approx(TPOT)
    assert constant.measured["mean_ntpot"] == pytest.approx(NTPOT)
    assert constant.measured["mean_e2e"] == pytest.approx(E2E)
    assert "mean_itl" not in constant.measured
    assert constant.arrivals == {"process": "constant", "rate": 2.0}
    assert concurrent.arrivals == {"process": "closed_loop", "concurrency": 4}


def test_aiperf_s_records_are_the_profiled_ones_that_were_served(tmp_path: Path) -> None:
    """Warm-up and errors are left out, arrivals sorted, TPOT taken by definition."""
    (result,) = read(tmp_path, documents.aiperf_records(), "profile_export.jsonl")

    assert result.num_requests == 4
    assert result.arrival_time is not None
    assert result.arrival_time.tolist() == pytest.approx([0.0, 0.5, 1.0, 1.5])
    assert result.measured["mean_tpot"] == pytest.approx(TPOT)
    assert result.measured["output_throughput"] == pytest.approx(44 / 1.8)


@pytest.mark.parametrize(
    ("phase", "arrivals"),
    [
        ({"type": "concurrency", "concurrency": 4}, {"process": "closed_loop", "concurrency": 4}),
        ({"type": "poisson", "rate": 2.0}, {"process": "poisson", "rate": 2.0}),
        ({"type": "constant", "rate": 2.0, "concurrency": 8}, {"process": "constant", "rate": 2.0}),
        ({"type": "gamma", "rate": 2.0, "smoothness": 0.25}, {"process": "gamma", "rate": 2.0, "cv": 2.0}),
        ({"type": "gamma", "rate": 2.0}, {"process": "gamma", "rate": 2.0, "cv": 1.0}),
        ({"type": "user_centric", "rate": 2.0}, {"rate": 2.0}),
    ],
)
def test_aiperf_s_listed_phases_say_the_load(phase: dict[str, Any], arrivals: dict[str, Any], tmp_path: Path) -> None:
    """Schema 1.5: the phase that was profiled, not the one that warmed up."""
    warm = {"name": "warmup", "kind": "warmup", "type": "concurrency", "concurrency": 99}
    config = {"phases": [warm, {"name": "steady", "kind": "profiling", **phase}]}

    (result,) = read(tmp_path, documents.aiperf() | {"schema_version": "1.5", "input_config": config})

    assert result.arrivals == arrivals
    is_bounded = "rate" in phase and "concurrency" in phase
    assert any("at most 8 requests were in flight" in note for note in result.notes) == is_bounded


def test_inference_perf_s_client_that_fell_behind_is_simulated_at_its_own_rate(tmp_path: Path) -> None:
    """What was asked for never reached the server, and that is said."""
    load = {"requested_rate": 80.88, "achieved_rate": 39.07}

    (result,) = read(tmp_path, documents.inference_perf() | {"load_summary": load})

    assert result.arrivals == {"rate": 39.07}
    assert result.notes == ["the client sent 39.07 requests/s of the 80.88 asked for: simulated at what it sent"]


def test_inference_perf_s_percentiles_may_stand_apart(tmp_path: Path) -> None:
    """As in its own schema of native reports, where the median is p50."""
    document = documents.inference_perf()
    for block in document["successes"]["latency"].values():
        block["percentiles"] = {"p50": block.pop("median"), "p90": block.pop("p90"), "p99": block.pop("p99")}

    (result,) = read(tmp_path, document)

    assert result.measured["median_tpot"] == pytest.approx(TPOT)
    assert result.measured["p99_ttft"] == pytest.approx(TTFT)
    assert result.measured["p95_ttft"] == pytest.approx(TTFT)


def test_inference_perf_s_process_stands_beside_it(tmp_path: Path) -> None:
    """The report says a rate; its config.yaml says how it was drawn."""
    (tmp_path / "config.yaml").write_text("load: {type: poisson}\n", encoding="utf-8")

    (result,) = read(tmp_path, documents.inference_perf(), "stage_0_lifecycle_metrics.json")

    assert result.arrivals == {"process": "poisson", "rate": 2.0}


def test_llm_d_as_yaml_counts_what_was_served(tmp_path: Path) -> None:
    """The report is YAML as a rule; failures are no answers."""
    file = tmp_path / "report.yaml"
    file.write_text(yaml.safe_dump(documents.llm_d()), encoding="utf-8")

    (result,) = read_results([file])

    assert result.num_requests == 4
    assert result.measured["mean_tpot"] == pytest.approx(TPOT)


def test_several_lines_are_several_runs(tmp_path: Path) -> None:
    """``--append-result`` of vLLM, and every file of SGLang."""
    results = read(tmp_path, [documents.vllm(), documents.vllm_old(), documents.sglang()], "runs.jsonl")

    assert [result.label for result in results] == ["runs.jsonl line 1", "runs.jsonl line 2", "runs.jsonl line 3"]


def test_a_csv_holds_one_run_a_row(tmp_path: Path) -> None:
    """Empty fields were not measured; a row says a rate or clients."""
    file = tmp_path / "runs.csv"
    file.write_text(documents.CSV, encoding="utf-8")

    slow, full = read_results([file])

    assert slow.arrivals == {"process": "poisson", "rate": 2.0}
    assert full.arrivals == {"process": "closed_loop", "concurrency": 4}
    assert (slow.load, full.load) == ("2/s", "4 clients")
    assert slow.measured["median_tpot"] == pytest.approx(TPOT)
    assert "median_tpot" not in full.measured


def without(document: dict[str, Any], *path: str) -> dict[str, Any]:
    """Return a document without one key."""
    copy: dict[str, Any] = json.loads(json.dumps(document))
    place = copy
    for key in path[:-1]:
        place = place[key]
    del place[path[-1]]
    return copy


def with_value(document: dict[str, Any], value: Any, *path: str) -> dict[str, Any]:
    """Return a document with another value at one place."""
    copy: dict[str, Any] = json.loads(json.dumps(document))
    place = copy
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return copy


AGGREGATE = ("results", "request_performance", "aggregate")
MALFORMED = {
    "vllm without totals": (without(documents.vllm(), "total_output_tokens"), "total_output_tokens: is missing"),
    "vllm that served nothing": (documents.vllm() | {"completed": 0}, "completed: 0 must be a whole number >= 1"),
    "vllm with text": (documents.vllm() | {"mean_ttft_ms": "100 ms"}, "mean_ttft_ms: '100 ms' is not a number of ms"),
    "vllm with a rate of nothing": (documents.vllm() | {"request_rate": 0}, "request_rate: 0 must be > 0"),
    "vllm with lists of two runs": (documents.vllm_detailed() | {"ttfts": [0.1]}, "hold 1, 4 and 4 requests"),
    "vllm that contradicts itself": (
        documents.vllm_detailed() | {"mean_tpot_ms": 27.3},
        "mean_tpot_ms: 27.3 contradicts the lists",
    ),
    "vllm whose TPOT holds the first token": (
        documents.vllm() | {"mean_tpot_ms": NTPOT * 1e3, "mean_e2el_ms": E2E * 1e3},
        "mean TPOT: '27.27 ms' is E2E over output tokens",
    ),
    "sglang of a trace": (documents.sglang() | {"request_rate": "trace"}, "request_rate: 'trace' holds no rate"),
    "sglang without lengths": (without(documents.sglang(), "total_input_tokens"), "total_input_tokens: is missing"),
    "guidellm without its TPOT": (
        with_value(
            documents.guidellm(),
            [without(documents.guidellm()["benchmarks"][0], "metrics", "inter_token_latency_ms")],
            "benchmarks",
        ),
        "inter_token_latency_ms: is missing: time_per_output_token_ms holds the first token",
    ),
    "guidellm without a load": (
        with_value(documents.guidellm(), {}, "benchmarks", 0, "config"),  # type: ignore[arg-type]
        r"benchmarks\[0\].config.strategy: is missing",
    ),
    "aiperf that was cancelled": (documents.aiperf() | {"was_cancelled": True}, "part of a run is no result"),
    "aiperf in an unknown unit": (
        with_value(documents.aiperf(), "fortnights", "time_to_first_token", "unit"),
        "time_to_first_token.unit: 'fortnights' must be a unit of time",
    ),
    "aiperf of several profiled phases": (
        documents.aiperf() | {"input_config": {"phases": [{"name": name, "kind": "profiling"} for name in "ab"]}},
        "input_config.phases: holds 2 profiled phases",
    ),
    "aiperf with a gamma of nothing": (
        documents.aiperf()
        | {"input_config": {"loadgen": {"request_rate": 2, "arrival_pattern": "gamma", "arrival_smoothness": 0}}},
        "arrival_smoothness: 0 must be > 0",
    ),
    "inference-perf without latencies": (
        without(documents.inference_perf(), "successes", "latency"),
        "successes.latency: is missing: a mapping is expected",
    ),
    "llm-d of an unknown tool": (documents.llm_d("nop"), "scenario.load.standardized.tool: 'nop' defines TPOT and ITL"),
    "llm-d of GuideLLM with TPOT": (documents.llm_d("guidellm"), "time_per_output_token: .* holds the first token"),
    "llm-d 0.1": (documents.llm_d() | {"version": "0.1"}, "version: '0.1' must be 0.2 or 0.2.1"),
    "llm-d without units": (
        without(documents.llm_d(), *AGGREGATE, "latency", "request_latency", "units"),
        "request_latency.units: must be a unit of time",
    ),
    "nothing known": ({"hello": 1}, "is not a result of a known tool: vllm bench serve, SGLang"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_file_fails_with_file_key_and_expectation(case: str, tmp_path: Path) -> None:
    """One line that names the file, the key and what belongs there."""
    document, message = MALFORMED[case]

    with pytest.raises(TraceError, match=message) as failure:
        read(tmp_path, document)

    assert failure.value.file == str(tmp_path / "result.json")
    assert failure.value.exit_code == 104


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tpot\n1\n", "tpot: is not a documented column"),
        ("request_rate,num_requests,input_len\n1,1,1\n", "output_len: is missing: a column is expected"),
        ("num_requests,input_len,output_len\n1,1,1\n", "request_rate or max_concurrency: is missing"),
        ("request_rate,num_requests,input_len,output_len,mean_tpot_ms\n1,4,100,11,fast\n", "row 2, mean_tpot_ms"),
        ("request_rate,max_concurrency,num_requests,input_len,output_len\n1,1,4,9,9\n", "one of both is expected"),
        ("request_rate,num_requests,input_len,output_len\n", "holds no row"),
        ("request_rate,num_requests,input_len,output_len\n1,4,9,9\n", "holds no latency and no throughput"),
    ],
)
def test_a_malformed_csv_fails_with_row_and_column(text: str, message: str, tmp_path: Path) -> None:
    """Columns without a definition are refused, not guessed."""
    file = tmp_path / "runs.csv"
    file.write_text(text, encoding="utf-8")

    with pytest.raises(TraceError, match=message):
        read_results([file])


def test_a_csv_s_tpot_with_the_first_token_is_refused(tmp_path: Path) -> None:
    """Where E2E is there too, the figure shows what it is."""
    file = tmp_path / "runs.csv"
    header = "max_concurrency,num_requests,input_len,output_len,mean_ttft_ms,mean_tpot_ms,mean_e2el_ms\n"
    file.write_text(header + "4,4,100,11,100,27.3,300\n", encoding="utf-8")

    with pytest.raises(TraceError, match="name it ntpot"):
        read_results([file])


WRITTEN = Path(__file__).parent / "written"
"""What AIPerf 0.13.0, GuideLLM 0.8.1 and inference-perf 0.7.0 wrote of a small server, cut to what is
read: 30 ms before the first token, 5 ms between two."""


@pytest.mark.parametrize(
    ("name", "tool", "arrivals", "num_requests", "lengths"),
    [
        ("profile_export_aiperf.json", "AIPerf", {"process": "closed_loop", "concurrency": 2}, 8, (60.0, 13.0)),
        ("profile_export.jsonl", "AIPerf", {"process": "closed_loop", "concurrency": 2}, 8, (60.0, 13.0)),
        ("benchmarks.json", "GuideLLM", {"process": "closed_loop", "concurrency": 2}, 8, (31.0, 12.0)),
        (
            "stage_0_lifecycle_metrics.json",
            "inference-perf",
            {"process": "constant", "rate": 4.0},
            16,
            (14.25, 12.3125),
        ),
    ],
)
def test_what_the_tools_themselves_write_is_read(
    name: str, tool: str, arrivals: dict[str, Any], num_requests: int, lengths: tuple[float, float]
) -> None:
    """The load of the run, what was served, and how long it took; AIPerf's records take theirs from the summary."""
    (result,) = read_results([WRITTEN / name])

    assert (result.tool, result.model, result.arrivals) == (tool, "tiny", arrivals)
    assert result.num_requests == num_requests
    assert (result.prompt_tokens.mean(), result.output_tokens.mean()) == pytest.approx(lengths, rel=0.01)
    assert 0.03 <= result.measured["mean_ttft"] < 0.08
    assert 0.002 <= result.measured["mean_tpot"] < 0.007


def test_answers_that_aiperf_did_not_stream_have_no_first_token(tmp_path: Path) -> None:
    """The summary and the records are read without it, and say so."""
    records = documents.aiperf_records()
    for row in records:
        del row["metrics"]["time_to_first_token"]
    summary = {
        key: value
        for key, value in documents.aiperf().items()
        if key not in ("time_to_first_token", "inter_token_latency")
    }

    (listed,) = read(tmp_path, records, "profile_export.jsonl")
    (told,) = read(tmp_path, summary, "profile_export_aiperf.json")

    assert "mean_ttft" not in listed.measured
    assert listed.measured["mean_e2e"] == pytest.approx(E2E)
    assert any("not streamed" in note for note in told.notes)


def test_folders_and_lists_of_requests_name_the_file_to_read(tmp_path: Path) -> None:
    """Of a folder what is in it; of inference-perf's requests and its summary of several stages the stages' files."""
    row = {"start_time": 1.0, "end_time": 2.0, "request": "{}", "response": "", "info": {}, "error": None}
    summary = documents.inference_perf() | {"load_summary": {"count": 4}}

    with pytest.raises(
        TraceError, match=r"is a folder, not a file; name a file in it: profile_export_aiperf.json, ben"
    ):
        read_results([WRITTEN])
    with pytest.raises(TraceError, match=r"without their latencies; read stage_0_lifecycle_metrics.json"):
        read(tmp_path, [row], "per_request_lifecycle_metrics.json")
    (tmp_path / "config.yaml").write_text((WRITTEN / "config.yaml").read_text())
    with pytest.raises(TraceError, match=r"mixes 2 stages of different loads; read stage_0_lifecycle_metrics.json"):
        read(tmp_path, summary, "summary_lifecycle_metrics.json")


def test_the_result_of_a_simulation_is_no_measurement(tmp_path: Path) -> None:
    """`result.json` has the figures of ``vllm bench serve`` under its names, and was taken for all requests at once."""
    simulated = {"completed": 9, "total_input_tokens": 90, "total_output_tokens": 90, "simserve": {"version": "0.2.0"}}

    with pytest.raises(TraceError, match="is the result of a simulation, and no measurement of a server"):
        read(tmp_path, simulated)
