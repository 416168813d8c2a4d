"""Mooncake's fields with dependencies (`agentic_mooncake` of Dynamo's replay), and AIPerf's sessions of such rows.

Documented in Dynamo's "DynoSim Replay CLI Reference" (docs.nvidia.com/dynamo) and AIPerf's "Trace Replay with Mooncake
Traces" (ai-dynamo/aiperf, docs/benchmark-modes/trace-replay.md).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from simserve.workload.dependencies import dependencies_of
from simserve.workload.traces.agentic_graph import SCHEMA, read_agentic_graph
from simserve.workload.traces.mooncake import BLOCK_TOKENS, SESSION_FIELD, prefix_blocks
from simserve.workload.traces.records import Records, read_records
from simserve.workload.traces.table import is_number
from simserve.workload.traces.tasks import RecordedTasks
from simserve.workload.traces.trace import Trace

WAIT_FIELD = "wait_for"
_REQUEST_FIELD = "request_id"
DELAY_FIELDS = ("delay_ms", "delay")
_TOOL_FIELD = "tool_wait_ms"
_MILLISECOND = 1e-3


def read_agentic_mooncake(path: Path) -> Trace:
    """Return the rows of a trace in order of their time; times and pauses are milliseconds.

    A row with ``wait_for`` is sent when all of those requests, which stand above it, are answered, after its ``delay``
    and ``tool_wait_ms``; so is a further row of a session, which waits for the one before it, where no ``delay`` is
    given as much later as their timestamps are apart. Rows that hang together are a task. Where no row has a timestamp
    (AIPerf's sessions for a closed loop), nothing says when tasks begin.

    Raises:
        TraceError: The file cannot be read, or a row breaks a rule; with the row's line in the file.
    """
    records = read_records(path)
    if records.rows[0].get("schema") == SCHEMA:
        return read_agentic_graph(records)
    return trace_of_rows(records, BLOCK_TOKENS)[0]


def trace_of_rows(records: Records, block_tokens: int) -> tuple[Trace, np.ndarray]:
    """Return the trace of some rows, and these in its order.

    Args:
        records: The rows, with the fields of the format.
        block_tokens: Tokens of a block that ``hash_ids`` name.

    Raises:
        TraceError: A row breaks a rule; with its line in the file.
    """
    parents = _parents(records)
    has_times = any(row.get("timestamp") is not None for row in records.rows)
    times, pauses = _times(records, parents, has_times=has_times)
    order = np.argsort(times, kind="stable") if has_times else np.arange(len(times))
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    sorted_rows = Records(records.file, [records.rows[row] for row in order], [records.lines[row] for row in order])
    own = [sorted(int(place[each]) for each in parents[row]) for row in order]
    task, agent = _tasks(own, [row.get(SESSION_FIELD) for row in sorted_rows.rows])
    begins = np.full(len(order), np.inf)
    np.minimum.at(begins, task, times[order])
    trace = Trace(
        arrival_time=times[order] - times[order[0]] if has_times else np.full(len(order), np.nan),
        prompt_tokens=sorted_rows.whole_numbers("input_length"),
        output_tokens=sorted_rows.whole_numbers("output_length"),
        prefix_blocks=prefix_blocks(sorted_rows, block_tokens) if "hash_ids" in sorted_rows.rows[0] else None,
        session=task,
        tasks=RecordedTasks(
            task=task,
            agent=agent,
            dependencies=dependencies_of(own),
            tool_time=pauses[order],
            offset=times[order] - begins[task],
        ),
    )
    return trace, order


def _parents(records: Records) -> list[list[int]]:
    """Return the rows that each row waits for."""
    known: dict[str, int] = {}
    last: dict[str, int] = {}
    found = []
    for row, fields in enumerate(records.rows):
        waits, session = fields.get(WAIT_FIELD), fields.get(SESSION_FIELD)
        own: list[int] = []
        if waits:
            if not isinstance(waits, list):
                raise records.error(row, WAIT_FIELD, "is not a list of request ids")
            for each in waits:
                if str(each) not in known:
                    rule = f"names {each!r}, which no row above has as its request_id"
                    raise records.error(row, WAIT_FIELD, rule, "put requests above those that wait for them")
                own.append(known[str(each)])
        elif session is not None and str(session) in last:
            own = [last[str(session)]]
        found.append(sorted(set(own)))
        if fields.get(_REQUEST_FIELD) is not None:
            known[str(fields[_REQUEST_FIELD])] = row
        if session is not None:
            last[str(session)] = row
    return found


def _times(records: Records, parents: list[list[int]], *, has_times: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return when each row is sent at the earliest, and its pause after what it waits for, seconds."""
    times, pauses = np.zeros(len(parents)), np.zeros(len(parents))
    for row, own in enumerate(parents):
        fields = records.rows[row]
        sent = _milliseconds(records, row, "timestamp")
        if not own:
            if sent is None and has_times:
                raise records.error(row, "timestamp", "is missing, and the row waits for no other")
            times[row] = (sent or 0.0) * _MILLISECOND
            continue
        delay = next((_milliseconds(records, row, name) for name in DELAY_FIELDS if fields.get(name) is not None), None)
        if delay is None and sent is not None and not fields.get(WAIT_FIELD):
            delay = max(sent - times[own[0]] / _MILLISECOND, 0.0)
        tool = _milliseconds(records, row, _TOOL_FIELD) or 0.0
        pauses[row] = ((delay or 0.0) + tool) * _MILLISECOND
        earliest = max(times[each] for each in own) + pauses[row]
        times[row] = max(earliest, (sent or 0.0) * _MILLISECOND)
    return times, pauses


def _milliseconds(records: Records, row: int, name: str) -> float | None:
    value = records.rows[row].get(name)
    if value is None:
        return None
    if not is_number(value, 0):
        raise records.error(row, name, "is not a number of milliseconds >= 0")
    return float(value)


def _tasks(parents: list[list[int]], sessions: list[object]) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of each row's task and of its agent.

    Rows that hang together by what they wait for are a task. Rows of a session are an agent's; without one, of the
    calls that wait for another the first goes on for its agent, and the others are other agents' first.
    """
    root = list(range(len(parents)))

    def find(row: int) -> int:
        while root[row] != row:
            root[row] = root[root[row]]
            row = root[row]
        return row

    agent: list[int] = []
    last: dict[int, int] = {}
    of_session: dict[str, int] = {}
    for row, own in enumerate(parents):
        for each in own:
            root[find(row)] = find(each)
        if sessions[row] is None:
            continued = next((agent[each] for each in own if last[agent[each]] == each), row)
        else:
            continued = of_session.setdefault(str(sessions[row]), row)
        agent.append(continued)
        last[continued] = row
    numbers: dict[int, int] = {}
    task = [numbers.setdefault(find(row), len(numbers)) for row in range(len(parents))]
    return np.array(task, dtype=np.int64), np.array(agent, dtype=np.int64)
