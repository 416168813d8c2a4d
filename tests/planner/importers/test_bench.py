"""Results of `vllm bench serve`: the workload that was measured, and the figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simserve.errors import ScenarioError, TraceError
from simserve.planner.importers.bench import BenchImport, import_bench
from simserve.scenario.load import from_mapping
from simserve.scenario.run import run

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


def imported(folder: Path, result: dict[str, Any], **options: Any) -> BenchImport:
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
    assert any("every one has the mean" in note for note in found.draft.notes)


def test_what_was_measured_is_kept_by_name(tmp_path: Path) -> None:
    """The names are those of simserve's own results."""
    found = imported(tmp_path, PLAIN)

    assert found.measured == {
        "duration": 4.5,
        "completed": 4.0,
        "request_throughput": 0.9,
        "mean_ttft_ms": 31.5,
        "p99_ttft_ms": 35.0,
    }
    assert "mean_ttft_ms 31.5" in found.draft.notes[-1]


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
    assert "architecture of llama-3.2-1b, by its name" in notes
    assert found.draft.scenario.deployment.quantization == "fp8"
    assert "At most 9 requests" in " ".join(imported(tmp_path, {**PLAIN, "max_concurrency": 9}).draft.notes)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ({"a": 1}, "completed: is missing: this is no result of vllm bench serve"),
        ({**PLAIN, "completed": 0}, "completed: 0.0 must be >= 1: nothing was served"),
        ({**PLAIN, "total_input_tokens": None}, "total_input_tokens: is missing"),
        ({**PLAIN, "model_id": None}, "model_id: is missing; say which with --model"),
        ({**PLAIN, "request_rate": "fast"}, "request_rate: 'fast' is not a number"),
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
    with pytest.raises(ScenarioError, match=r"burstiness: 0\.0 must be > 0"):
        imported(tmp_path, {**PLAIN, "burstiness": 0})
    assert imported(tmp_path, {**PLAIN, "model_id": "org/unheard"}, model="llama-3.2-1b").draft.scenario.model
