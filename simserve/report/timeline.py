"""`timeline.json`: a run as a Chrome trace for Perfetto: steps, counters, requests with their phases.

A process is a replica (with data-parallel attention a rank of it). Its thread ``engine steps`` holds one slice per
step, ``requests`` one asynchronous span per request with ``queue``, ``prefill`` and ``decode`` inside, and inside those
``preempted`` and ``recompute`` if it lost its KV cache. A request with a KV transfer has its span at the decode
replica, and between ``prefill`` and ``decode`` the phases ``link queue``, ``transfer`` and ``seat queue``. Times are
microseconds from the start of the run, in whole nanoseconds, so that adjacent spans do not overlap. The same run gives
the same bytes.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.engine.state import EVICTED, LEAP_FIELDS, READMITTED, RECOMPUTED, RETURNED, Replica
from simserve.errors import InvariantError
from simserve.metrics.result import RunResult
from simserve.sim.records import STATUSES, UNFINISHED, RequestRecords
from simserve.sim.step_log import StepLog, Steps

TIMELINE_FILE = "timeline.json"
MAX_STEPS = 200_000
"""Most steps of all replicas in a timeline, which shows the beginning of a longer run. About 40 MB of JSON."""
GZIP_BYTES = 32_000_000  # From this size on the file is compressed; Perfetto reads it directly.
_ENGINE_THREAD = 1
_KV_TRANSFER = ("link queue", "transfer", "seat queue")
"""Phases between the end of a prefill and the first token at the decode replica."""
_NANOSECONDS = 1e9

Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Timeline:
    """A run as trace events."""

    events: list[Event]  # In the order in which they are written.
    until: float  # Seconds of the run that it covers; infinite: all of it.
    num_steps: int  # Steps shown.
    num_steps_of_run: int  # Steps of the whole run.


def timeline(result: RunResult, max_steps: int = MAX_STEPS) -> Timeline:
    """Return the timeline of a run that kept its steps; with several replications that of the first.

    Args:
        result: Of `simserve.scenario.run.run` with ``keep_steps``.
        max_steps: The most steps; later ones are left out, and the spans of requests end there.

    Raises:
        InvariantError: The run did not keep its steps.
    """
    log = result.simulation.steps
    if not isinstance(log, StepLog):
        raise InvariantError("a timeline needs a run that kept its steps")
    until, total = _limit(log, max_steps)
    events = [_named("process_name", -1, "requests that no replica served")] if _lost(result).any() else []
    shown = 0
    names = process_names(log.replicas)
    for number, replica in enumerate(log.replicas):
        steps = log.steps(replica, until)
        shown += len(steps)
        events.append(_named("process_name", number, names[number]))
        events.append({**_named("process_sort_index", number, ""), "args": {"sort_index": number}})
        events.append(_named("thread_name", number, "engine steps", _ENGINE_THREAD))
        events += _step_events(number, steps)
        events += _kv_events(number, log.step_runs(replica), until)
    end_time = min(result.simulation.end_time, until)
    events += [event for life in lives(result, log, until) for event in _spans(life, end_time)]
    events += _count_events(result, log, until)
    return Timeline(events, until, shown, total)


def _limit(log: StepLog, max_steps: int) -> tuple[float, int]:
    """Return the time up to which all replicas together take at most ``max_steps`` steps, and all steps."""
    rows = np.concatenate([log.step_runs(replica) for replica in log.replicas], axis=1)
    rows = rows[:, np.argsort(rows[0], kind="stable")]
    counted = np.cumsum(rows[LEAP_FIELDS.index("num_steps")])
    total = int(counted[-1]) if len(counted) else 0
    if total <= max_steps:
        return math.inf, total
    return float(rows[0, int(np.searchsorted(counted, max_steps, side="right"))]), total


def process_names(replicas: Sequence[Replica]) -> list[str]:
    """Return the name of each scheduler."""
    ranks: dict[int, int] = {}
    names = []
    for replica in replicas:
        rank = ranks[replica.identity] = ranks.get(replica.identity, -1) + 1
        is_one = sum(other.identity == replica.identity for other in replicas) == 1
        names.append(f"replica {replica.identity}" if is_one else f"replica {replica.identity}, rank {rank}")
    return names


def _named(what: str, process: int, name: str, thread: int = 0) -> Event:
    return {"ph": "M", "pid": process, "tid": thread, "name": what, "args": {"name": name}}


def _step_events(process: int, steps: Steps) -> Iterator[Event]:
    begin, end = _nanoseconds(steps.start_time), _nanoseconds(steps.end_time)
    begin[1:] = np.maximum(begin[1:], end[:-1])
    columns = (begin, end, steps.num_decoding, steps.num_prefilling, steps.prefill_tokens, steps.context_tokens)
    for first, last, decoding, prefilling, tokens, context in zip(*(each.tolist() for each in columns), strict=True):
        name = "decode" if not prefilling else "prefill and decode" if decoding else "prefill"
        times = {"ts": first / 1000, "dur": (max(last, first) - first) / 1000}
        args = {"decoding": decoding, "prefilling": prefilling, "prefill_tokens": tokens, "context_tokens": context}
        yield {"ph": "X", "pid": process, "tid": _ENGINE_THREAD, "name": name, **times, "args": args}


def _kv_events(process: int, step_runs: NDArray[np.float64], until: float) -> Iterator[Event]:
    """Yield the KV tokens reserved, once per leap: at its end, as of its last step."""
    rows = dict(zip(LEAP_FIELDS, step_runs, strict=True))
    kept = rows["start_time"] < until
    last = -1
    for start, used in zip(_nanoseconds(rows["start_time"][kept]).tolist(), rows["used_after"][kept], strict=True):
        if int(used) != last:
            last = int(used)
            yield _counter(process, "KV tokens reserved", start, {"tokens": last})


def _counter(process: int, name: str, nanoseconds: int, values: dict[str, int]) -> Event:
    return {"ph": "C", "pid": process, "name": name, "ts": nanoseconds / 1000, "args": values}


def _lost(result: RunResult) -> NDArray[np.bool_]:
    records = result.simulation.records
    return np.asarray(np.isfinite(records.arrival_time) & (records.replica_id < 0) & (records.status != UNFINISHED))


def _processes(log: StepLog) -> dict[int, int]:
    """Return the process of each replica; spans of a replica with ranks are shown at its first rank."""
    found: dict[int, int] = {}
    for number, replica in enumerate(log.replicas):
        found.setdefault(replica.identity, number)
    return found


def _evictions(log: StepLog) -> dict[int, list[tuple[float, int]]]:
    found: dict[int, list[tuple[float, int]]] = {}
    for replica in log.replicas:
        for index, seconds, what in log.evictions(replica):
            found.setdefault(int(index), []).append((seconds, int(what)))
    return found


def lives(result: RunResult, log: StepLog, until: float, since: float = -math.inf) -> Iterator[Life]:
    """Yield the lifecycle of every request that arrived before ``until`` and had not left at ``since``, in order."""
    records, end_time = result.simulation.records, min(result.simulation.end_time, until)
    processes, evictions, lost = _processes(log), _evictions(log), _lost(result)
    for index in np.flatnonzero(np.isfinite(records.arrival_time)).tolist():
        arrival = float(records.arrival_time[index])
        finish = _or(float(records.finish_time[index]), end_time)
        if arrival >= until or finish < since:
            continue
        if lost[index]:
            finish = arrival
        scheduled = _or(float(records.scheduled_time[index]), finish)
        first = _or(float(records.first_token_time[index]), finish)
        phases = [("queue", arrival, scheduled)]
        if math.isfinite(records.scheduled_time[index]):
            phases += _on_the_way(records, index, scheduled, first)
        if math.isfinite(records.first_token_time[index]) and finish > first:
            phases.append(("decode", first, finish))
        status = STATUSES[int(records.status[index])]
        about = {
            "request": index,
            "status": status,
            "prompt_tokens": int(records.prompt_tokens[index]),
            "output_tokens": int(records.output_tokens[index]),
            "num_preemptions": int(records.num_preemptions[index]),
        }
        process = sender = processes.get(int(records.replica_id[index]), -1)
        if records.prefill_replica_id is not None and _kv_transfer(records, index):
            sender = processes.get(int(records.prefill_replica_id[index]), process)
        yield Life(
            process=process,
            sender=sender,
            about=about,
            arrival=arrival,
            finish=finish,
            phases=phases,
            evictions=evictions.get(index, ()),
        )


def _on_the_way(records: RequestRecords, index: int, scheduled: float, first: float) -> list[tuple[str, float, float]]:
    """Return the phases between a request's first step and its first token: its prefill and its KV transfer."""
    edges = _kv_transfer(records, index)
    if not edges:
        return [("prefill", scheduled, first)]
    ends = [min(_or(edge, first), first) for edge in edges]
    return [
        ("prefill", scheduled, ends[0]),
        *(
            (name, start, end)
            for name, start, end in zip(_KV_TRANSFER, ends, (*ends[1:], first), strict=True)
            if end > start
        ),
    ]


def _kv_transfer(records: RequestRecords, index: int) -> tuple[float, ...]:
    """Return when the prompt was computed and when its KV transfer started and ended; empty without a transfer."""
    prefill, start, end = records.prefill_end_time, records.transfer_start_time, records.transfer_end_time
    if prefill is None or start is None or end is None or not math.isfinite(prefill[index]):
        return ()
    return float(prefill[index]), float(start[index]), float(end[index])


def _or(value: float, other: float) -> float:
    return value if math.isfinite(value) else other


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """A request on the timeline; times in seconds."""

    process: int  # Of the replica that answered it; -1 if none did.
    sender: int  # Of the replica that computed its prompt; differs from ``process`` after a KV transfer.
    about: dict[str, Any]  # What a click on it shows; its number is ``request``.
    arrival: float  # When it arrived.
    finish: float  # When it was answered or given up.
    phases: Sequence[tuple[str, float, float]]  # Name, start and end of each, in order.
    evictions: Sequence[tuple[float, int]]  # When it lost its KV cache, was admitted again, and had recomputed it.


def _spans(life: Life, end_time: float) -> Iterator[Event]:
    """Yield a request, its phases and what interrupted them, up to the end of the timeline."""
    common = {"cat": "request", "id": life.about["request"], "pid": life.process, "tid": 0}

    def edge(kind: str, name: str, seconds: float, **more: Any) -> Event:
        return {"ph": kind, **common, "name": name, "ts": round(min(seconds, end_time) * _NANOSECONDS) / 1000, **more}

    yield edge("b", "request", life.arrival, args=life.about)
    for name, start, end in life.phases:
        if start >= end_time and name != "queue":
            continue
        yield edge("b", name, start)
        for inner, since, to in interruptions(life.evictions, start, end):
            if since < end_time:
                yield edge("b", inner, since)
                yield edge("e", inner, to)
        yield edge("e", name, end)
    yield edge("e", "request", life.finish)


def interruptions(
    evictions: Sequence[tuple[float, int]], start: float, end: float
) -> Iterator[tuple[str, float, float]]:
    """Yield ``preempted`` (waiting without a KV cache) and ``recompute`` (prefilling again) within a phase."""
    inside = [(seconds, what) for seconds, what in evictions if start <= seconds < end]
    for position, (seconds, what) in enumerate(inside):
        following = inside[position + 1][0] if position + 1 < len(inside) else end
        if what == EVICTED:
            yield "preempted", seconds, following
        elif what == READMITTED:
            yield "recompute", seconds, following
        else:
            assert what in (RECOMPUTED, RETURNED)


def _count_events(result: RunResult, log: StepLog, until: float) -> Iterator[Event]:
    """Yield running and waiting requests of each replica, at every change."""
    records, evictions = result.simulation.records, _evictions(log)
    changes: dict[int, list[tuple[float, int, int]]] = {identity: [] for identity in _processes(log)}
    for index in np.flatnonzero(records.replica_id >= 0).tolist():
        at = changes[int(records.replica_id[index])]
        first_token, finish = float(records.first_token_time[index]), float(records.finish_time[index])
        edges, sender = _kv_transfer(records, index), -1
        if edges and records.prefill_replica_id is not None:
            sender = int(records.prefill_replica_id[index])
        prefills = changes.get(sender, at)
        prefills.append((float(records.admitted_time[index]), 0, 1))
        prefills.append((float(records.scheduled_time[index]), 1, -1))
        at += [
            (seconds, *((-1, 1) if what == EVICTED else (1, -1)))
            for seconds, what in evictions.get(index, ())
            if what != RECOMPUTED
        ]
        if edges:
            prefills.append((edges[0], -1, 0))
            if math.isfinite(edges[2]):
                at += [(edges[2], 0, 1), (first_token, 1, -1)]
        at.append((finish, -1, 0))
    for identity, process in _processes(log).items():
        yield from _counts(process, changes[identity], until)


def _counts(process: int, changes: list[tuple[float, int, int]], until: float) -> Iterator[Event]:
    running = waiting = 0
    known = sorted(change for change in changes if change[0] < until)
    for position, (seconds, started, queued) in enumerate(known):
        running, waiting = running + started, waiting + queued
        if position + 1 == len(known) or known[position + 1][0] > seconds:
            at = round(seconds * _NANOSECONDS)
            yield _counter(process, "requests", at, {"running": running, "waiting": waiting})


def _nanoseconds(seconds: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.round(seconds * _NANOSECONDS).astype(np.int64)


def write_timeline(result: RunResult, folder: Path) -> Path:
    """Write ``timeline.json``, or ``timeline.json.gz`` if it is large, into ``folder`` and return its path.

    Raises:
        OSError: The file cannot be written.
    """
    text = timeline_text(timeline(result))
    content = text.encode()
    path = folder / TIMELINE_FILE
    if len(content) >= GZIP_BYTES:
        path = path.with_suffix(".json.gz")
        content = gzip.compress(content, compresslevel=6, mtime=0)
    path.write_bytes(content)
    return path


def timeline_text(shown: Timeline) -> str:
    """Return a timeline as JSON, one event a line."""
    whole = math.isinf(shown.until)
    about = {
        "steps": shown.num_steps,
        "steps_of_run": shown.num_steps_of_run,
        "until_s": None if whole else shown.until,
    }
    lines = ",\n".join(json.dumps(event, separators=(",", ":")) for event in shown.events)
    return f'{{"displayTimeUnit":"ms","otherData":{json.dumps(about)},"traceEvents":[\n{lines}\n]}}\n'
