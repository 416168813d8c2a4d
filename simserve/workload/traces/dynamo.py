"""Request traces of NVIDIA Dynamo (`dynamo.request.trace.v1`): JSON lines of ended requests, with their agents.

The record is documented in Dynamo's "Request Replay Tracing" and "Agent Tracing" pages (docs.nvidia.com/dynamo).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simserve.errors import TraceError
from simserve.workload.traces.records import Records, read_records
from simserve.workload.traces.table import MAX_TOKENS, is_number
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
    rows = [index for index, row in enumerate(records.rows) if row.get("event_type") == _REQUEST]
    if not rows:
        raise TraceError(f"holds no record of event_type {_REQUEST}", file=path, remedy="set DYN_REQUEST_TRACE_RECORDS")
    parent_of = _parents(records, rows)
    known: dict[int, int] = {}
    sizes: set[int] = set()
    calls, num_unserved = [], 0
    for index in rows:
        request = _object(records, index, records.rows[index].get("request"), "request")
        if not request.get("output_tokens"):
            num_unserved += 1
            continue
        replay = _object(records, index, request.get("replay") or {}, "replay")
        size, hashes = replay.get("trace_block_size") or 0, replay.get("input_sequence_hashes") or ()
        if type(size) is not int or size < 0:
            raise _error(records, index, "trace_block_size", "is not a whole number >= 1", size)
        if hashes and not (isinstance(hashes, list) and all(type(each) is int for each in hashes)):
            raise _error(records, index, "input_sequence_hashes", "is not a list of whole numbers", None)
        sizes.add(size)
        start, end = _times(records, index, request)
        agent, started_by, task = _names(records.rows[index], parent_of)
        calls.append(
            RecordedCall(
                task=task,
                agent=agent,
                started_by=started_by,
                start=start,
                end=end,
                prompt_tokens=_tokens(records, index, replay.get("input_length", request.get("input_tokens"))),
                output_tokens=_tokens(records, index, request["output_tokens"]),
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


def _parents(records: Records, rows: list[int]) -> dict[str, str]:
    found = {}
    for index in rows:
        context = _object(records, index, records.rows[index].get("agent_context") or {}, "agent_context")
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


def _times(records: Records, index: int, request: Mapping[str, Any]) -> tuple[float, float]:
    """Return when a request was received and when it ended, seconds."""
    start = _number(records, index, "request_received_ms", request.get("request_received_ms"))
    if request.get("total_time_ms") is not None:
        end = start + _number(records, index, "total_time_ms", request["total_time_ms"])
    else:
        end = _number(records, index, "event_time_unix_ms", records.rows[index].get("event_time_unix_ms"))
    return start * _MILLISECOND, max(end, start) * _MILLISECOND


def _object(records: Records, index: int, value: object, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise _error(records, index, name, "is missing" if value is None else "is not an object", value)
    return value


def _number(records: Records, index: int, name: str, value: object) -> float:
    if not is_number(value):
        raise _error(records, index, name, "is missing" if value is None else "is not a number", value)
    return float(value)


def _tokens(records: Records, index: int, value: object) -> int:
    if type(value) is not int or not 1 <= value <= MAX_TOKENS:
        rule = f"is not a whole number from 1 to {MAX_TOKENS}"
        raise _error(records, index, "input_length or output_tokens", rule, value)
    return value


def _error(records: Records, index: int, name: str, rule: str, value: object) -> TraceError:
    return TraceError(rule, file=records.file, key=f"row {records.lines[index]}, {name}", value=value)
