"""Request traces of NVIDIA Dynamo (`dynamo.request.trace.v1`): JSON lines of ended requests, with their agents.

The record is documented in Dynamo's "Request Replay Tracing" and "Agent Tracing" pages (docs.nvidia.com/dynamo).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simserve.errors import TraceError
from simserve.workload.fields import Fields
from simserve.workload.traces.records import Records, read_records
from simserve.workload.traces.tasks import RecordedCall
from simserve.workload.traces.trace import Trace, trace_of_calls

SCHEMA = "dynamo.request.trace.v1"
_REQUEST = "request_end"
_MILLISECOND = 1e-3


def read_dynamo(path: Path) -> Trace:
    """Return the requests of a trace; tool events are left out, since their time lies between the requests.

    A task is a session without a parent and all sessions below it; each of them is an agent. Requests without an
    ``agent_context`` stand alone. Requests without output tokens are left out and counted.

    Raises:
        TraceError: The file cannot be read, or a request breaks a rule; with the row's line in the file.
    """
    wrapped = read_records(path)
    records = Records(path, [unwrapped(row) for row in wrapped.rows], wrapped.lines)
    rows = [row for row in records.each() if row.values.get("event_type") == _REQUEST]
    if not rows:
        raise TraceError(f"holds no record of event_type {_REQUEST}", file=path, remedy="set DYN_REQUEST_TRACE_RECORDS")
    parent_of = _parents(rows)
    known: dict[int, int] = {}
    sizes: set[int] = set()
    calls, num_unserved = [], 0
    for row in rows:
        request = row.mapping("request")
        if not request.values.get("output_tokens"):
            num_unserved += 1
            continue
        replay = request.mapping("replay", may_lack=True)
        size = replay.values.get("trace_block_size") or 0
        if type(size) is not int or size < 0:
            raise replay.error("trace_block_size", "is not a whole number >= 1")
        hashes = replay.integers("input_sequence_hashes") if "input_sequence_hashes" in replay else []
        sizes.add(size)
        start, end = _times(row, request)
        agent, started_by, task = _names(row.values, parent_of)
        length = replay.tokens("input_length") if "input_length" in replay else request.tokens("input_tokens")
        calls.append(
            RecordedCall(
                task=task,
                agent=agent,
                started_by=started_by,
                start=start,
                end=end,
                prompt_tokens=length,
                output_tokens=request.tokens("output_tokens"),
                blocks=[known.setdefault(each, len(known)) for each in hashes],
            )
        )
    if not calls:
        raise TraceError("holds no request with output tokens", file=path)
    if len(sizes) > 1:
        raise TraceError("has requests of several sizes", file=path, key="trace_block_size", value=sorted(sizes))
    return trace_of_calls(calls, sizes.pop() or None, num_unserved=num_unserved, has_arrival_times=True)


def unwrapped(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a record without the wrapper that a sink of Dynamo adds: ``{timestamp, event: RECORD}``."""
    event = row.get("event")
    return event if "schema" not in row and isinstance(event, Mapping) else row


def _parents(rows: list[Fields]) -> dict[str, str]:
    found = {}
    for row in rows:
        context = row.mapping("agent_context", may_lack=True).values
        own, parent = context.get("session_id"), context.get("parent_session_id")
        if own is not None and parent is not None and own != parent:
            found[str(own)] = str(parent)
    return found


def _names(row: Mapping[str, Any], parent_of: Mapping[str, str]) -> tuple[str | None, str | None, str | None]:
    """Return the names of a request's agent, of the one that started it, and of its task."""
    context = row.get("agent_context") or {}
    session = context.get("session_id")
    if session is None:
        return None, None, None
    if context.get("trajectory_id") is not None:  # Dynamo 1.1 and 1.2
        started_by = context.get("parent_trajectory_id")
        return str(context["trajectory_id"]), None if started_by is None else str(started_by), str(session)
    root, seen = str(session), {str(session)}
    while root in parent_of and parent_of[root] not in seen:
        root = parent_of[root]
        seen.add(root)
    return str(session), parent_of.get(str(session)), root


def _times(row: Fields, request: Fields) -> tuple[float, float]:
    """Return when a request was received and when it ended, seconds."""
    start = request.number("request_received_ms")
    total = request.optional("total_time_ms")
    end = row.number("event_time_unix_ms") if total is None else start + total
    return start * _MILLISECOND, max(end, start) * _MILLISECOND
