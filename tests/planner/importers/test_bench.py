"""Results of benchmark tools: the workload that was measured, the figures, and what stands in for what they lack."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simserve.errors import ScenarioError, TraceError
from simserve.planner.importers.bench import import_bench
from simserve.planner.importers.draft import Imported
from simserve.scenario.load import from_mapping, load
from simserve.scenario.run import run
from simserve.scenario.schema import Scenario
from tests.scenario.builders import make_scenario
from tests.workload.benchmarks import documents

PLAIN: dict[str, Any] = {
    "date": "20260101-000000",
    "backend": "vllm",
    "model_id": "meta-llama/Llama-3.2-1B",
    "num_prompts": 4,
    "request_rate": 2.0,
    "burstiness": 1.0,
    "max_concurrency": None,
    "duration": 4.5,
    "completed": 4,
    "total_input_tokens": 602,
    "total_output_tokens": 300,
    "request_throughput": 0.9,
    "request_goodput:": None,
    "mean_ttft_ms": 31.5,
    "p99_ttft_ms": 35.0,
}
DETAILS = {
    "input_lens": [100, 200, 300],
    "output_lens": [90, 100, 110],
    "start_times": [1000.5, 1000.2, 1002.0],
}


def imported(folder: Path, result: dict[str, Any], **options: Any) -> Imported:
    """Write a result and import it."""
    file = folder / "result.json"
    file.write_text(json.dumps(result), encoding="utf-8")
    return import_bench(file, **{"hardware": "h100-sxm-80gb", "version": "0.12", **options})


@pytest.mark.parametrize(
    ("sent", "arrivals"),
    [
        ({"request_rate": 2.0}, {"process": "poisson", "rate": 2.0}),
        ({"request_rate": 2.0, "burstiness": 0.25}, {"process": "gamma", "rate": 2.0, "cv": 2.0}),
        ({"request_rate": "inf", "max_concurrency": 8}, {"process": "closed_loop", "concurrency": 8}),
        ({"request_rate": "inf"}, {"process": "closed_loop", "concurrency": 4}),
    ],
)
def test_arrivals_are_as_they_were_sent(tmp_path: Path, sent: dict[str, Any], arrivals: dict[str, Any]) -> None:
    """At a rate or by clients; requests sent at once are as many clients of a server, no batch in its process."""
    found = imported(tmp_path, {**PLAIN, **sent})

    assert found.draft.mapping["workload"]["arrivals"] == arrivals
    assert found.draft.scenario.workload.num_requests == 4


def test_a_plain_result_has_mean_lengths_and_says_so(tmp_path: Path) -> None:
    """Rounded to whole tokens."""
    found = imported(tmp_path, PLAIN)

    workload = found.draft.mapping["workload"]
    assert workload["prompt_tokens"] == {"distribution": "fixed", "value": 150}
    assert workload["output_tokens"] == {"distribution": "fixed", "value": 75}
    assert any("Every request has the file's mean lengths." in note for note in found.draft.notes)


def test_what_was_measured_is_kept_by_name(tmp_path: Path) -> None:
    """The names are those of simserve's own results."""
    found = imported(tmp_path, PLAIN)

    assert found.measured == {
        "duration": 4.5,
        "completed": 4.0,
        "request_throughput": 0.9,
        "total_token_throughput": pytest.approx(902 / 4.5),
        "mean_ttft_ms": 31.5,
        "p99_ttft_ms": 35.0,
    }
    assert "mean_ttft_ms 31.5" in found.draft.notes[-1]


def test_throughput_of_all_tokens_follows_from_that_of_outputs(tmp_path: Path) -> None:
    """Two prompt tokens for each token of an answer: three times as many in all, whatever the duration."""
    totals = {"total_input_tokens": 600, "total_output_tokens": 300, "output_throughput": 70.0}
    found = imported(tmp_path, {**PLAIN, **totals})

    assert found.measured["total_token_throughput"] == pytest.approx(210.0)


def test_requests_without_an_answer_are_left_out(tmp_path: Path) -> None:
    """GuideLLM lists one with no token: nothing was served, and no request of a trace may be empty."""
    report = documents.guidellm()
    lengths = [(100, 9), (100, 0), (0, 9), (120, 8)]
    rows = [
        {"request_start_time": 10.0 + place, "prompt_tokens": prompt, "output_tokens": output}
        for place, (prompt, output) in enumerate(lengths)
    ]
    report["benchmarks"][0]["requests"] = {"successful": rows}
    file = tmp_path / "report.json"
    file.write_text(json.dumps(report), encoding="utf-8")

    found = import_bench(file, run=1, model="llama-3.2-1b", hardware="h100-sxm-80gb")

    assert found.files["report.requests.csv"].splitlines()[1:] == ["0.000000,100,9", "3.000000,120,8"]
    assert any("2 requests without tokens are left out" in note for note in found.draft.notes)


def test_a_detailed_result_is_replayed(tmp_path: Path) -> None:
    """Its requests at their times, and it runs."""
    found = imported(tmp_path, {**PLAIN, **DETAILS})
    for name, text in found.files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")

    result = run(from_mapping(found.draft.mapping, folder=tmp_path))
    assert found.files["result.requests.csv"].splitlines()[1] == "0.000000,200,100"
    assert "arrivals" not in found.draft.mapping["workload"]
    assert (result.summary["completed"], result.summary["total_input_tokens"]) == (3, 600)
    assert set(found.measured) <= set(result.summary)


def test_a_detailed_closed_loop_keeps_its_clients(tmp_path: Path) -> None:
    """Start times of a closed loop depend on the server: the lengths are kept, the times are not."""
    found = imported(tmp_path, {**PLAIN, **DETAILS, "request_rate": "inf", "max_concurrency": 2})

    workload = found.draft.scenario.workload
    assert workload.arrivals is not None
    assert workload.arrivals.process == "closed_loop"
    assert workload.trace is not None


def test_details_without_times_are_drawn(tmp_path: Path) -> None:
    """As vLLM wrote them before 0.17."""
    details = {key: value for key, value in DETAILS.items() if key != "start_times"}
    found = imported(tmp_path, {**PLAIN, **details})

    assert found.draft.mapping["workload"]["arrivals"] == {"process": "poisson", "rate": 2.0}
    assert any("no start times" in note for note in found.draft.notes)


def test_what_the_result_does_not_say_is_a_note(tmp_path: Path) -> None:
    """GPU, version, and a model that was found by its name."""
    found = imported(tmp_path, {**PLAIN, "model_id": "org/Llama-3.2-1B-Instruct-FP8"}, hardware=None, version=None)

    notes = " ".join(found.draft.notes)
    assert "h100-sxm-80gb is assumed" in notes
    assert "the newest known is assumed" in notes
    assert "architecture of llama-3.2-1b and fp8 weights, by its name" in notes
    assert found.draft.scenario.model == "org/Llama-3.2-1B-Instruct-FP8"
    assert "At most 9 requests" in " ".join(imported(tmp_path, {**PLAIN, "max_concurrency": 9}).draft.notes)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ({"a": 1}, "is not a result of a known tool: vllm bench serve, SGLang"),
        ({**PLAIN, "completed": 0}, "completed: 0 must be a whole number >= 1; nothing was served"),
        ({**PLAIN, "total_input_tokens": None}, "total_input_tokens: is missing"),
        ({**PLAIN, "model_id": None}, "does not say its model; say which with --model, or name what served it"),
        ({**PLAIN, "request_rate": "fast"}, "request_rate: 'fast' is not requests/s"),
    ],
)
def test_another_file_is_refused(tmp_path: Path, result: dict[str, Any], message: str) -> None:
    """With the file and the key."""
    with pytest.raises(TraceError) as caught:
        imported(tmp_path, result)

    assert message in str(caught.value)


def test_a_model_without_a_profile_is_named(tmp_path: Path) -> None:
    """With the option that says which, and a result of a bad burstiness is one too."""
    with pytest.raises(ScenarioError, match=r"result\.json: model: 'org/unheard' is no model that has a profile"):
        imported(tmp_path, {**PLAIN, "model_id": "org/unheard"})
    with pytest.raises(TraceError, match=r"burstiness: 0 must be > 0"):
        imported(tmp_path, {**PLAIN, "burstiness": 0})
    assert imported(tmp_path, {**PLAIN, "model_id": "org/unheard"}, model="llama-3.2-1b").draft.scenario.model


def test_a_result_without_a_model_names_its_file_once(tmp_path: Path) -> None:
    """The file holds one run, which is called like it."""
    with pytest.raises(TraceError, match=r"^[^:]*result\.json: does not say its model; say which with --model"):
        imported(tmp_path, {key: value for key, value in PLAIN.items() if key != "model_id"})


def test_a_named_profile_keeps_the_format_that_the_file_names(tmp_path: Path) -> None:
    """As in a command line: the profile stands for the architecture, the name for what was loaded."""
    result = {**PLAIN, "model_id": "org/unheard-FP8"}

    deployment = imported(tmp_path, result, model="llama-3.2-1b").draft.mapping["deployment"]
    assert deployment["quantization"] == "fp8"


TOOLS: dict[str, tuple[Any, str]] = {
    "vllm": (documents.vllm(), "result.json"),
    "sglang": (documents.sglang(), "result.jsonl"),
    "aiperf": (documents.aiperf(), "profile_export_aiperf.json"),
    "aiperf-records": (documents.aiperf_records(), "profile_export.jsonl"),
    "guidellm": (documents.guidellm(), "benchmarks.json"),
    "inference-perf": (documents.inference_perf(), "stage_0_lifecycle_metrics.json"),
    "llm-d": (documents.llm_d(), "report.json"),
    "csv": (documents.CSV, "runs.csv"),
}


def written(folder: Path, document: Any, name: str) -> Path:
    """Write a tool's file: text as it is, a list as JSON lines."""
    file = folder / name
    lines = document if isinstance(document, list) else [document]
    file.write_text(document if isinstance(document, str) else "\n".join(map(json.dumps, lines)), encoding="utf-8")
    return file


def of_tool(place: Path, tool: str, scenario: Scenario | None = None, **options: Any) -> Imported:
    """Import the first run of a tool's file, and write the trace that it makes."""
    document, name = TOOLS[tool]
    first = 1 if tool in ("guidellm", "csv") else None
    found = import_bench(written(place, document, name), scenario=scenario, **{"run": first, **options})
    for file, text in found.files.items():
        (place / file).write_text(text, encoding="utf-8")
    return found


@pytest.mark.parametrize("tool", TOOLS)
def test_every_tool_makes_a_scenario_that_runs(tool: str, tmp_path: Path) -> None:
    """The same four requests of 100 tokens in and 11 out, whatever wrote them down."""
    found = of_tool(tmp_path, tool, model="llama-3.2-1b", hardware="h100-sxm-80gb")

    summary = run(from_mapping(found.draft.mapping, folder=tmp_path)).summary
    assert (summary["completed"], summary["total_input_tokens"], summary["total_output_tokens"]) == (4, 400, 44)
    assert found.measured["mean_ttft_ms"] == pytest.approx(100)
    assert found.measured["mean_tpot_ms"] == pytest.approx(20)
    assert set(found.measured) <= set(summary)


@pytest.mark.parametrize("tool", TOOLS)
def test_a_scenario_says_what_served_it(tool: str, tmp_path: Path) -> None:
    """Its model, deployment and targets stay; its traffic is the benchmark's."""
    served = make_scenario(
        ["deployment.tensor_parallel_size=2", "deployment.engine.max_num_seqs=7", "slo={ttft: 1 s}", "run.seed=5"]
    )

    found = of_tool(tmp_path, tool, served)

    made = from_mapping(found.draft.mapping, folder=tmp_path)
    assert (made.model, made.deployment, made.slo, made.run) == (
        served.model,
        served.deployment,
        served.slo,
        served.run,
    )
    summary = run(made).summary
    assert (summary["completed"], summary["total_input_tokens"]) == (4, 400)


@pytest.mark.parametrize(
    ("document", "path", "model"),
    [
        ("aiperf", ("input_config", "models"), {"items": [{"name": "Qwen/Qwen3-8B"}]}),
        ("aiperf", ("input_config", "endpoint"), {"model_names": ["Qwen/Qwen3-8B"]}),
        ("guidellm", ("benchmarks", 0, "config", "backend"), {"model": "Qwen/Qwen3-8B"}),
        ("llm-d", ("scenario", "stack"), [{"standardized": {"tool": "sglang", "model": {"name": "Qwen/Qwen3-8B"}}}]),
    ],
)
def test_the_model_is_where_the_tool_keeps_it(document: str, path: tuple[Any, ...], model: Any, tmp_path: Path) -> None:
    """By version of the tool; the engine is read where a report names it."""
    content, name = TOOLS[document]
    changed = json.loads(json.dumps(content))
    place = changed
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = model

    found = import_bench(written(tmp_path, changed, name), run=1)
    assert found.draft.mapping["model"] == "qwen3-8b"
    assert found.draft.mapping["deployment"]["engine"]["name"] == ("sglang" if document == "llm-d" else "vllm")


def test_inference_perf_names_its_server_beside_the_report(tmp_path: Path) -> None:
    """Model, engine and process stand in its config.yaml."""
    (tmp_path / "config.yaml").write_text(
        "server: {type: sglang, model_name: Qwen/Qwen3-8B}\nload: {type: constant}\n", encoding="utf-8"
    )

    mapping = of_tool(tmp_path, "inference-perf").draft.mapping
    assert (mapping["model"], mapping["deployment"]["engine"]["name"]) == ("qwen3-8b", "sglang")
    assert mapping["workload"]["arrivals"] == {"process": "constant", "rate": 2.0}


WITHOUT_INPUT = {
    "summary": (
        {key: value for key, value in documents.aiperf().items() if key != "input_sequence_length"},
        "profile_export_aiperf.json",
    ),
    "records": (
        [
            {**row, "metrics": {key: value for key, value in row["metrics"].items() if key != "input_sequence_length"}}
            for row in documents.aiperf_records()
        ],
        "profile_export.jsonl",
    ),
}


@pytest.mark.parametrize("kind", WITHOUT_INPUT)
def test_a_scenario_stands_in_for_lengths_that_a_file_lacks(kind: str, tmp_path: Path) -> None:
    """AIPerf counts no input where it has no tokenizer; the answer says what was taken, and outputs stay the file's."""
    file = written(tmp_path, *WITHOUT_INPUT[kind])
    served = make_scenario(
        [
            "workload.prompt_tokens={distribution: fixed, value: 321}",
            "workload.output_tokens={distribution: fixed, value: 99}",
        ]
    )

    found = import_bench(file, scenario=served)
    for name, text in found.files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    summary = run(from_mapping(found.draft.mapping, folder=tmp_path)).summary
    assert (summary["total_input_tokens"], summary["total_output_tokens"]) == (4 * 321, 44)
    assert "The file holds no prompt lengths: the scenario's are taken." in found.draft.notes
    with pytest.raises(TraceError, match="holds no prompt lengths; name a scenario that has them: --scenario FILE"):
        import_bench(file, model="llama-3.2-1b")


def test_lengths_near_the_scenario_s_are_drawn_as_it_says(tmp_path: Path) -> None:
    """A mean is no distribution: the scenario's is kept where its means are the file's."""
    served = make_scenario(
        [
            "workload.prompt_tokens={distribution: uniform, min: 99, max: 101}",
            "workload.output_tokens={distribution: fixed, value: 11}",
        ]
    )

    workload = of_tool(tmp_path, "aiperf", served).draft.mapping["workload"]
    assert workload["prompt_tokens"]["distribution"] == "uniform"
    assert workload["arrivals"] == {"process": "closed_loop", "concurrency": 4}


def test_one_run_of_several_is_named(tmp_path: Path) -> None:
    """A sweep holds one run a load."""
    file = written(tmp_path, *TOOLS["guidellm"])

    second = import_bench(file, run=2, model="llama-3.2-1b")
    assert second.draft.mapping["workload"]["arrivals"] == {"process": "closed_loop", "concurrency": 4}
    with pytest.raises(TraceError, match=r"holds 2 runs; say which with --run \(1: 2/s, 2: 4 clients\)"):
        import_bench(file, model="llama-3.2-1b")
    with pytest.raises(TraceError, match="--run: 3 must be a run of the file, 1 to 2"):
        import_bench(file, run=3, model="llama-3.2-1b")


def test_paths_of_the_scenario_are_seen_from_the_new_one(tmp_path: Path) -> None:
    """A profile beside the scenario is still found from another folder."""
    profile = Path("hardware_profiles/h100-sxm-80gb.yaml").resolve()
    (tmp_path / "mine").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "mine" / "gpu.yaml").write_text(
        profile.read_text(encoding="utf-8").replace("name: h100-sxm-80gb", "name: gpu"), encoding="utf-8"
    )
    (tmp_path / "mine" / "s.yaml").write_text(
        "name: s\nmodel: llama-3.2-1b\ndeployment: {hardware: gpu.yaml}\n"
        "workload: {arrivals: {process: poisson, rate: 1.0}, prompt_tokens: {distribution: fixed, value: 9}, "
        "output_tokens: {distribution: fixed, value: 9}, num_requests: 2}\n",
        encoding="utf-8",
    )

    found = of_tool(tmp_path, "aiperf", load(tmp_path / "mine" / "s.yaml"), folder=tmp_path / "out")
    assert found.draft.mapping["deployment"]["hardware"] == "../mine/gpu.yaml"
    assert run(from_mapping(found.draft.mapping, folder=tmp_path / "out")).summary["completed"] == 4
