"""`timeline.json`: every step and request of the run, in a form that Perfetto takes without dropping anything."""

from __future__ import annotations

import gzip
import json
import math
from collections import defaultdict
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from simserve import api
from simserve.engine.state import LEAP_FIELDS
from simserve.errors import InvariantError
from simserve.metrics.result import RunResult
from simserve.report import timeline as module
from simserve.report.timeline import _limit, timeline, timeline_text, write_timeline
from simserve.scenario.run import run

_CASES: dict[str, tuple[str, ...]] = {
    "two replicas": ("chatbot", "workload.num_requests=300", "deployment.replicas=2"),
    "preemptions": ("batch-size-sweet-spot", "workload.num_requests=200", "deployment.engine.max_num_seqs=64"),
    "static": ("static-vs-continuous", "workload.num_requests=100"),
    "prefill first": ("chatbot", "workload.num_requests=200", "deployment.engine={name: sglang}"),
    "closed loop": ("chatbot", "workload.num_requests=200", "workload.arrivals={process: closed_loop, concurrency: 9}"),
    "ranks": (
        "chatbot",
        "model=qwen3-30b-a3b",
        "workload.num_requests=150",
        "deployment.quantization=none",
        "deployment.tensor_parallel_size=1",
        "deployment.data_parallel_size=2",
    ),
    "two pools": ("disaggregation", "workload.num_requests=60"),
    "lost": (
        "chatbot",
        "workload.num_requests=50",
        "workload.prompt_tokens={distribution: uniform, min: 1, max: 30000}",
    ),
}  # fmt: skip


@cache
def shown(case: str) -> tuple[RunResult, dict[str, Any]]:
    """Return a run that kept its steps, and its timeline as it is read back."""
    name, *overrides = _CASES[case]
    result = run(api.load(name, overrides), keep_steps=True)
    return result, json.loads(timeline_text(timeline(result)))


@pytest.fixture(params=_CASES)
def case(request: pytest.FixtureRequest) -> str:
    """Return one kind of run."""
    return str(request.param)


def events(case: str, *kinds: str) -> list[dict[str, Any]]:
    """Return the events of some phases."""
    return [event for event in shown(case)[1]["traceEvents"] if event["ph"] in kinds]


def test_every_step_is_a_slice_of_its_length(case: str) -> None:
    """As many as the run counts, together as long as it was busy, to a nanosecond each."""
    result, _ = shown(case)
    totals, slices = result.simulation.totals, events(case, "X")

    assert len(slices) == totals.num_steps
    assert 1e-6 * sum(each["dur"] for each in slices) == pytest.approx(totals.busy_seconds, abs=1e-9 * len(slices))
    sequences = sum(each["args"]["decoding"] + each["args"]["prefilling"] for each in slices)
    assert sequences == totals.sequence_steps


def test_slices_of_a_thread_do_not_overlap(case: str) -> None:
    """Perfetto drops slices that overlap without lying inside each other."""
    by_thread = defaultdict(list)
    for each in events(case, "X"):
        by_thread[each["pid"], each["tid"]].append((round(1e3 * each["ts"]), round(1e3 * each["dur"])))

    for spans in by_thread.values():
        assert all(start + length <= following for (start, length), (following, _) in pairwise(spans))


def test_every_request_is_a_span_with_its_phases_inside(case: str) -> None:
    """Opened and closed in turn, in order of time, as long as the records say."""
    result, _ = shown(case)
    records = result.simulation.records
    open_names: dict[int, list[tuple[str, float]]] = defaultdict(list)
    spans: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    last: dict[int, float] = {}
    for each in events(case, "b", "e"):
        index = each["id"]
        assert each["ts"] >= last.get(index, 0.0)
        last[index] = each["ts"]
        if each["ph"] == "b":
            open_names[index].append((each["name"], each["ts"]))
        else:
            name, start = open_names[index].pop()
            assert name == each["name"]
            spans[name][index].append(1e-6 * (each["ts"] - start))

    assert not any(open_names.values())
    served = np.isfinite(records.finish_time) & (records.replica_id >= 0)
    phases = {
        "request": records.finish_time - records.arrival_time,
        "queue": records.scheduled_time - records.arrival_time,
        "prefill": records.first_token_time - records.scheduled_time,
        "decode": records.finish_time - records.first_token_time,
    }
    if records.prefill_end_time is not None:
        assert records.transfer_start_time is not None
        assert records.transfer_end_time is not None
        sent = np.isfinite(records.prefill_end_time)
        phases["prefill"] = np.where(sent, records.prefill_end_time - records.scheduled_time, phases["prefill"])
        phases["link queue"] = records.transfer_start_time - records.prefill_end_time
        phases["transfer"] = records.transfer_end_time - records.transfer_start_time
        phases["seat queue"] = records.first_token_time - records.transfer_end_time
    assert set(spans["request"]) == set(np.flatnonzero(np.isfinite(records.arrival_time)).tolist())
    for name, seconds in phases.items():
        for index in np.flatnonzero(served & (seconds > 0)).tolist():
            assert spans[name][index] == [pytest.approx(seconds[index], abs=3e-9)], (name, index)


def test_a_preempted_request_shows_when_it_had_no_kv_cache() -> None:
    """As often as it was preempted: waiting, then computing again, each within its phase."""
    result, _ = shown("preemptions")
    begun = events("preemptions", "b")

    lost = [each["id"] for each in begun if each["name"] == "preempted"]
    assert result.simulation.records.num_preemptions.sum() > 20
    assert np.array_equal(np.bincount(lost, minlength=200), result.simulation.records.num_preemptions)
    assert sum(each["name"] == "recompute" for each in begun) == len(lost)


def test_handed_over_requests_wait_from_landing_to_their_first_step() -> None:
    """Who is counted as waiting, over time, adds up to the waits: for the prefill, then at the decode replica."""
    result, _ = shown("two pools")
    records = result.simulation.records
    assert records.transfer_end_time is not None
    waits = np.nansum(records.scheduled_time - records.admitted_time)
    waits += np.nansum(records.first_token_time - records.transfer_end_time)

    counted = 0.0
    for process in {each["pid"] for each in events("two pools", "C")}:
        counts = [each for each in events("two pools", "C") if each["pid"] == process and each["name"] == "requests"]
        counted += sum(one["args"]["waiting"] * (other["ts"] - one["ts"]) for one, other in pairwise(counts))
        assert not counts or counts[-1]["args"] == {"running": 0, "waiting": 0}

    assert counted == pytest.approx(1e6 * waits, rel=1e-6)


def test_a_handed_over_request_shows_its_transfer() -> None:
    """Between prefill and decode, as often as there were transfers, each as long as its bytes take on the link."""
    result, _ = shown("two pools")
    records = result.simulation.records
    begun = events("two pools", "b")

    names = [each["name"] for each in begun if each["id"] == 7]
    assert [name for name in names if "queue" not in name] == ["request", "prefill", "transfer", "decode"]
    assert names.index("queue") < names.index("prefill")
    transfers = result.summary["simserve"]["transfers"]
    assert sum(each["name"] == "transfer" for each in begun) == transfers["count"] == 60
    assert {each["pid"] for each in begun if each["name"] == "transfer"} <= set(records.replica_id.tolist())


def test_the_file_keeps_to_the_trace_event_format(case: str) -> None:
    """Phases, ids, categories, numbers and order that Perfetto's importer and Chrome's own take without a complaint."""
    document = shown(case)[1]
    processes = {
        each["pid"] for each in document["traceEvents"] if each["ph"] == "M" and each["name"] == "process_name"
    }
    pids: dict[int, int] = {}

    assert document["displayTimeUnit"] == "ms"
    for each in document["traceEvents"]:
        assert each["ph"] in ("M", "X", "C", "b", "e")
        assert each["pid"] in processes
        if each["ph"] == "M":
            continue
        assert each["ts"] >= 0
        assert round(1000 * each["ts"]) == pytest.approx(1000 * each["ts"], abs=1e-3)  # whole nanoseconds
        if each["ph"] == "X":
            assert each["dur"] >= 0
        elif each["ph"] == "C":
            assert all(isinstance(value, int) and value >= 0 for value in each["args"].values())
        else:
            assert (each["cat"], isinstance(each["id"], int)) == ("request", True)
            assert pids.setdefault(each["id"], each["pid"]) == each["pid"]


def test_counters_are_those_of_the_records(case: str) -> None:
    """Nobody is left at the end; the mean number running is that of the time series (Little)."""
    result, _ = shown(case)
    counters = [each for each in events(case, "C") if each["name"] == "requests"]
    by_replica = defaultdict(list)
    for each in counters:
        by_replica[each["pid"]].append((1e-6 * each["ts"], each["args"]["running"], each["args"]["waiting"]))

    seconds = 0.0
    for points in by_replica.values():
        assert all(running >= 0 and waiting >= 0 for _, running, waiting in points)
        assert points[-1][1:] == (0, 0)
        seconds += sum((b[0] - a[0]) * a[1] for a, b in pairwise(points))
    records = result.simulation.records
    stayed = np.nansum(records.finish_time - records.scheduled_time)
    if records.prefill_end_time is not None:
        away = np.nan_to_num(records.first_token_time - records.prefill_end_time)
        assert (away > 0).sum() > 50
        stayed -= away.sum()
    if records.num_preemptions.sum():
        assert seconds < stayed
    else:
        assert seconds == pytest.approx(stayed)


def test_kv_counters_peak_where_the_run_does() -> None:
    """In tokens."""
    result, _ = shown("preemptions")
    totals = result.simulation.totals

    most = max(each["args"]["tokens"] for each in events("preemptions", "C") if "KV" in each["name"])

    assert most == pytest.approx(totals.kv_peak_share * totals.kv_capacity_tokens)


def test_processes_are_named() -> None:
    """Replicas, ranks of them, and those whom nobody served."""
    names = {
        case: {each["args"]["name"] for each in events(case, "M") if each["name"] == "process_name"} for case in _CASES
    }

    assert names["two replicas"] == {"replica 0", "replica 1"}
    assert names["ranks"] == {"replica 0, rank 0", "replica 0, rank 1"}
    assert names["lost"] == {"replica 0", "requests that no replica served"}


def test_a_long_run_shows_its_beginning() -> None:
    """At most so many steps, and it says how many there were."""
    result, whole = shown("two replicas")

    part = json.loads(timeline_text(timeline(result, max_steps=500)))

    slices = [each for each in part["traceEvents"] if each["ph"] == "X"]
    until = part["otherData"]["until_s"]
    assert 300 < len(slices) <= 500
    assert part["otherData"] == {
        "steps": len(slices),
        "steps_of_run": result.simulation.totals.num_steps,
        "until_s": until,
    }
    assert whole["otherData"]["until_s"] is None
    assert all(each.get("ts", 0) <= 1e6 * until + 1e-3 for each in part["traceEvents"])
    begun = sum(each["ph"] == "b" for each in part["traceEvents"])
    assert begun == sum(each["ph"] == "e" for each in part["traceEvents"]) > 0


def test_keeping_steps_changes_nothing(case: str) -> None:
    """The same figures as without."""
    name, *overrides = _CASES[case]

    assert run(api.load(name, overrides)).summary == shown(case)[0].summary


def test_a_run_keeps_no_steps_unasked() -> None:
    """And then there is nothing to show."""
    result = run(api.load("chatbot", ["workload.num_requests=20"]))

    assert result.simulation.steps is None
    with pytest.raises(InvariantError, match="kept its steps"):
        timeline(result)


def test_a_large_file_is_compressed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bytes each time."""
    result, whole = shown("static")
    plain = write_timeline(result, tmp_path)
    monkeypatch.setattr(module, "GZIP_BYTES", 1000)

    packed = write_timeline(result, tmp_path)

    assert (plain.name, packed.name) == ("timeline.json", "timeline.json.gz")
    assert json.loads(gzip.decompress(packed.read_bytes())) == json.loads(plain.read_text()) == whole
    assert packed.read_bytes() == write_timeline(result, tmp_path).read_bytes()


@pytest.mark.parametrize(("most", "until"), [(15, math.inf), (14, 20.0), (10, 20.0), (9, 10.0), (4, 0.0)])
def test_a_timeline_ends_before_the_leap_that_has_a_step_too_many(most: int, until: float) -> None:
    """Three leaps of five steps, from 0, 10 and 20 s, on two replicas."""
    rows = np.zeros((2, len(LEAP_FIELDS), 2))
    rows[0, 0], rows[1, 0] = [0.0, 20.0], [10.0, 30.0]
    rows[0, LEAP_FIELDS.index("num_steps")], rows[1, LEAP_FIELDS.index("num_steps")] = [5, 5], [5, 0]
    log: Any = SimpleNamespace(replicas=[0, 1], step_runs=lambda replica: rows[replica])

    assert _limit(log, most) == (until, 15)
