"""Agentic coding traces of Weka's KV cache tester, which AgentX replays: one JSON object a task, calls with block ids.

The fields are documented in AIPerf's "Replaying Agentic Coding Sessions with Weka Traces" (ai-dynamo/aiperf,
docs/tutorials/weka-trace.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simserve.errors import TraceError
from simserve.workload.traces.calls import trace_of_calls
from simserve.workload.traces.flattened import told_apart
from simserve.workload.traces.records import read_records
from simserve.workload.traces.table import MAX_TOKENS, is_number
from simserve.workload.traces.tasks import RecordedCall
from simserve.workload.traces.trace import Trace

SUBAGENT = "subagent"
_MOST_NESTED = 50
"""Sub-agents within each other; captures have one or two."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """A call, and where it lies.

    Attributes:
        request: It.
        agent: Its agent.
        started_by: The agent that started that one.
        place: Its place in the file, for messages.
        markers: Seconds of the sub-agents that it lies in, the outermost first.
    """

    request: Mapping[str, Any]
    agent: str
    started_by: str | None
    place: str
    markers: tuple[float, ...] = ()


def read_weka(path: Path) -> Trace:
    """Return the calls of the tasks, task by task; each begins at a time of its own, which nothing says.

    A ``subagent`` entry is an agent that the one around it starts. Agents whose calls a capture has written among those
    of another are told apart by the blocks of their prompts (`told_apart`). Block ids hold within a task. Calls of
    sub-agents have their times from the entry's on in traces of kv-cache-tester, from the task's on in those of
    AgentX: from the entry's on in all tasks where one lies before its entry otherwise (AISimulate's rule).

    Raises:
        TraceError: The file cannot be read, or a call breaks a rule; with its place in the file.
    """
    records = read_records(path)
    tasks = [
        list(_entries(row.get("requests"), f"row {line}", "", None, (), path))
        for row, line in zip(records.rows, records.lines, strict=True)
    ]
    is_relative = any(
        entry.markers and _number(entry, "t", path) < entry.markers[-1] for entries in tasks for entry in entries
    )
    calls: list[RecordedCall] = []
    models: list[str] = []
    known: dict[tuple[int, int], int] = {}
    sizes = {str(row.get("block_size")) for row in records.rows}
    num_unserved = 0
    for number, entries in enumerate(tasks):
        timed = [(_number(each, "t", path) + (sum(each.markers) if is_relative else 0.0), each) for each in entries]
        for start, entry in sorted(timed, key=lambda one: one[0]):
            if not entry.request.get("out"):
                num_unserved += 1
                continue
            calls.append(_call(entry, start, number, known, path))
            models.append(str(entry.request.get("model")))
    if not calls:
        raise TraceError("holds no call with output tokens", file=path)
    size = sizes.pop() if len(sizes) == 1 else ""
    if not (size.isdecimal() and 1 <= int(size) <= MAX_TOKENS):
        raise TraceError("must be one whole number >= 1 in all tasks", file=path, key="block_size", value=size or None)
    calls = told_apart(calls, models)
    return trace_of_calls(calls, int(size), num_unserved=num_unserved, has_arrival_times=False)


def _entries(
    requests: object, place: str, agent: str, started_by: str | None, markers: tuple[float, ...], path: Path
) -> Iterator[_Entry]:
    """Yield the calls of an agent, and those of the sub-agents that it starts."""
    if not isinstance(requests, Sequence) or isinstance(requests, str):
        raise TraceError("is not a list of calls", file=path, key=f"{place}, requests")
    for position, request in enumerate(requests):
        own = f"{place}, requests[{position}]"
        if not isinstance(request, Mapping):
            raise TraceError("is not an object", file=path, key=own)
        if request.get("type") == SUBAGENT:
            if agent.count("/") >= _MOST_NESTED:
                raise TraceError(
                    f"lies in more than {_MOST_NESTED} other sub-agents", file=path, key=f"row of {place[:30]}"
                )
            at = request.get("t")
            inner = (*markers, float(at) if is_number(at) else 0.0)
            yield from _entries(request.get("requests"), own, f"{agent}/{position}", agent, inner, path)
        else:
            yield _Entry(request, agent, started_by, own, markers)


def _call(entry: _Entry, start: float, number: int, known: dict[tuple[int, int], int], path: Path) -> RecordedCall:
    request, place = entry.request, entry.place
    seconds = _number(entry, "api_time", path) if request.get("api_time") is not None else 0.0
    ids = request.get("hash_ids")
    if ids is not None and not (isinstance(ids, list) and all(type(each) is int for each in ids)):
        raise TraceError("is not a list of whole numbers", file=path, key=f"{place}, hash_ids")
    return RecordedCall(
        task=number,
        agent=entry.agent,
        started_by=entry.started_by,
        start=start,
        end=start + max(seconds, 0.0),
        prompt_tokens=_tokens(entry, "in", path),
        output_tokens=_tokens(entry, "out", path),
        blocks=None if ids is None else [known.setdefault((number, each), len(known)) for each in ids],
    )


def _number(entry: _Entry, name: str, path: Path) -> float:
    value = entry.request.get(name)
    if not is_number(value):
        rule = "is missing" if value is None else "is not a number of seconds"
        raise TraceError(rule, file=path, key=f"{entry.place}, {name}", value=value)
    return float(value)


def _tokens(entry: _Entry, name: str, path: Path) -> int:
    value = entry.request.get(name)
    if type(value) is not int or not 1 <= value <= MAX_TOKENS:
        raise TraceError(
            f"is not a whole number from 1 to {MAX_TOKENS}", file=path, key=f"{entry.place}, {name}", value=value
        )
    return value
