"""Agentic coding traces of Weka's KV cache tester, which AgentX replays: one JSON object a task, calls with block ids.

The fields are documented in AIPerf's "Replaying Agentic Coding Sessions with Weka Traces" (ai-dynamo/aiperf,
docs/tutorials/weka-trace.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from simserve.errors import TraceError
from simserve.workload.traces.calls import trace_of_calls
from simserve.workload.traces.records import read_records
from simserve.workload.traces.table import MAX_TOKENS, is_number
from simserve.workload.traces.tasks import RecordedCall
from simserve.workload.traces.trace import Trace

SUBAGENT = "subagent"
_MOST_NESTED = 50
"""Sub-agents within each other; captures have one or two."""
_Entry = tuple[Mapping[str, Any], str, str | None, str]
"""A call, its agent, the agent that started that one, and its place in the file, for messages."""


def read_weka(path: Path) -> Trace:
    """Return the calls of the tasks, task by task; each begins at a time of its own, which nothing says.

    A ``subagent`` entry is an agent that the one around it starts. Sub-agents that a capture has flattened into the
    main agent's calls stay calls of that agent, side by side where they overlap. Block ids hold within a task.

    Raises:
        TraceError: The file cannot be read, or a call breaks a rule; with its place in the file.
    """
    records = read_records(path)
    calls: list[RecordedCall] = []
    known: dict[tuple[int, int], int] = {}
    sizes: set[str] = set()
    num_unserved = 0
    for number, (row, line) in enumerate(zip(records.rows, records.lines, strict=True)):
        sizes.add(str(row.get("block_size")))
        entries = list(_entries(row.get("requests"), f"row {line}", "", None, path))
        entries.sort(key=lambda entry: _number(entry, "t", path))
        for entry in entries:
            if not entry[0].get("out"):
                num_unserved += 1
                continue
            calls.append(_call(entry, number, known, path))
    if not calls:
        raise TraceError("holds no call with output tokens", file=path)
    size = sizes.pop() if len(sizes) == 1 else ""
    if not (size.isdecimal() and 1 <= int(size) <= MAX_TOKENS):
        raise TraceError("must be one whole number >= 1 in all tasks", file=path, key="block_size", value=size or None)
    return trace_of_calls(calls, int(size), num_unserved=num_unserved, has_arrival_times=False)


def _entries(requests: object, place: str, agent: str, started_by: str | None, path: Path) -> Iterator[_Entry]:
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
            yield from _entries(request.get("requests"), own, f"{agent}/{position}", agent, path)
        else:
            yield request, agent, started_by, own


def _call(entry: _Entry, number: int, known: dict[tuple[int, int], int], path: Path) -> RecordedCall:
    request, agent, started_by, place = entry
    start = _number(entry, "t", path)
    seconds = _number(entry, "api_time", path) if request.get("api_time") is not None else 0.0
    ids = request.get("hash_ids")
    if ids is not None and not (isinstance(ids, list) and all(type(each) is int for each in ids)):
        raise TraceError("is not a list of whole numbers", file=path, key=f"{place}, hash_ids")
    return RecordedCall(
        task=number,
        agent=agent,
        started_by=started_by,
        start=start,
        end=start + max(seconds, 0.0),
        prompt_tokens=_tokens(entry, "in", path),
        output_tokens=_tokens(entry, "out", path),
        blocks=None if ids is None else [known.setdefault((number, each), len(known)) for each in ids],
    )


def _number(entry: _Entry, name: str, path: Path) -> float:
    value = entry[0].get(name)
    if not is_number(value):
        rule = "is missing" if value is None else "is not a number of seconds"
        raise TraceError(rule, file=path, key=f"{entry[3]}, {name}", value=value)
    return float(value)


def _tokens(entry: _Entry, name: str, path: Path) -> int:
    value = entry[0].get(name)
    if type(value) is not int or not 1 <= value <= MAX_TOKENS:
        raise TraceError(
            f"is not a whole number from 1 to {MAX_TOKENS}", file=path, key=f"{entry[3]}, {name}", value=value
        )
    return value
