"""Traces with Mooncake's fields: Mooncake's own (FAST'25), Alibaba's Bailian (Qwen), and vLLM's timed traces.

Also Mooncake's rows with dependencies: sessions (`agentic_mooncake` of Dynamo's replay, AIPerf) and graphs of calls.
Sessions are documented in Dynamo's "DynoSim Replay CLI Reference" (docs.nvidia.com/dynamo) and AIPerf's "Trace Replay
with Mooncake Traces" (ai-dynamo/aiperf, docs/benchmark-modes/trace-replay.md). Graphs are the second version of these
rows: ``dependencies`` say what each call waits for, and how; the first row names the schema, as in
`dynamo.agentic_mooncake` of Dynamo's replay and AISimulate (``loadgen/types.rs``, `AgenticMooncakeHeader` and
`AgenticMooncakeRow`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from simserve.errors import TraceError
from simserve.workload.dependencies import dependencies_of
from simserve.workload.fields import Fields
from simserve.workload.traces.records import Records, read_records
from simserve.workload.traces.table import LATEST, MAX_TOKENS, is_number
from simserve.workload.traces.tasks import RecordedTasks
from simserve.workload.traces.trace import PrefixBlocks, Trace, numbered

MOONCAKE_BLOCK_TOKENS = 512  # Tokens per block in the published traces (Mooncake repository, FAST25-release).
SESSION_FIELD = "session_id"  # Field that AIPerf adds to the rows of a conversation.
_MILLISECOND = 1e-3
BAILIAN_BLOCK_TOKENS = 16  # Tokens per block in the published traces (alibaba-edu/qwen-bailian-usagetraces-anon).
_NO_PARENT = -1
TIMED_BLOCK_TOKENS = 16  # Tokens per block by default (`--timed-trace-chunk-hash-size`).
WAIT_FIELD = "wait_for"
_REQUEST_FIELD = "request_id"
DELAY_FIELDS = ("delay_ms", "delay")
_TOOL_FIELD = "tool_wait_ms"
SCHEMA = "dynamo.agentic_mooncake"
_VERSION = 2
_PLAY, _WAITS, _EARLIEST = "play_id", "dependencies", "not_before_ms"


def read_mooncake(path: Path, unit: float = _MILLISECOND, block_tokens: int = MOONCAKE_BLOCK_TOKENS) -> Trace:
    """Return the trace in a file of the format; other fields are ignored.

    Without ``hash_ids``, shared prefixes are unknown.

    Args:
        unit: Seconds per unit of the timestamps, which count from the start.
        block_tokens: Tokens per block of ``hash_ids``.

    Raises:
        TraceError: The file cannot be read, or a row breaks a rule; with the row's line in the file.
    """
    records = read_records(path)
    return Trace(
        arrival_time=records.seconds("timestamp", unit),
        prompt_tokens=records.whole_numbers("input_length"),
        output_tokens=records.whole_numbers("output_length"),
        prefix_blocks=prefix_blocks(records, block_tokens) if "hash_ids" in records.rows[0] else None,
        session=numbered([row.get(SESSION_FIELD) for row in records.rows]),
    )


def prefix_blocks(records: Records, block_tokens: int) -> PrefixBlocks:
    """Return the blocks named in the field ``hash_ids``.

    Raises:
        TraceError: It is missing in a row, or is not a list of whole numbers.
    """
    return PrefixBlocks.of(block_tokens, records.lists("hash_ids"))


def read_bailian(path: Path) -> Trace:
    """Return the trace in a file of the format; other fields are ignored.

    A request belongs to the conversation of its ``parent_chat_id``; -1 begins a conversation.

    Raises:
        TraceError: The file cannot be read, or a row breaks a rule; with the row's line in the file.
    """
    records = read_records(path)
    return Trace(
        arrival_time=records.seconds("timestamp"),
        prompt_tokens=records.whole_numbers("input_length"),
        output_tokens=records.whole_numbers("output_length"),
        prefix_blocks=prefix_blocks(records, BAILIAN_BLOCK_TOKENS),
        session=np.array(_sessions(records), dtype=np.int64),
    )


def _sessions(records: Records) -> list[int]:
    """Return the number of each request's conversation; a parent outside the trace begins one."""
    session_of: dict[object, int] = {}
    found: list[int] = []
    for index, row in enumerate(records.rows):
        own, parent = row.get("chat_id"), row.get("parent_chat_id", _NO_PARENT)
        if not isinstance(own, int | str):
            raise records.error(index, "chat_id", "is missing" if own is None else "is not a number or a text")
        if not isinstance(parent, int | str):
            raise TraceError("is not a number or a text", file=records.file, key=f"row {records.lines[index]}")
        session = session_of.get(parent, index) if parent != _NO_PARENT else index
        session_of[own] = session
        found.append(session)
    return found


read_vllm_timed = partial(read_mooncake, unit=1.0, block_tokens=TIMED_BLOCK_TOKENS)
"""Reads vLLM's timed traces, which have the fields of Mooncake's; their timestamps are seconds."""


def read_agentic_mooncake(path: Path) -> Trace:
    """Return the rows of a trace in order of their times; the file's times and pauses are milliseconds.

    A row with ``wait_for`` is sent ``delay`` plus ``tool_wait_ms`` after all of those requests, which are above it, are
    answered. A later row of a session waits for the one before it in the same way; if it has no ``delay``, the
    difference of their timestamps takes its place. Rows connected by waits are a task. If no row has a timestamp
    (AIPerf's sessions for a closed loop), the start times of tasks are unknown.

    Raises:
        TraceError: The file cannot be read, or a row breaks a rule; with the row's line in the file.
    """
    records = read_records(path)
    if records.rows[0].get("schema") == SCHEMA:
        return _read_agentic_graph(records)
    return trace_of_rows(records, MOONCAKE_BLOCK_TOKENS)[0]


def trace_of_rows(records: Records, block_tokens: int) -> tuple[Trace, np.ndarray]:
    """Return the trace of some rows, and the indices of the rows in its order.

    Args:
        records: The rows, with the fields of the format.
        block_tokens: Tokens per block of ``hash_ids``.

    Raises:
        TraceError: A row breaks a rule; with its line in the file.
    """
    parents = _parents(records)
    has_times = any(row.get("timestamp") is not None for row in records.rows)
    times, pauses = _times(records, parents, has_times=has_times)
    order = np.argsort(times, kind="stable") if has_times else np.arange(len(times))
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    sorted_rows = records.in_order(order)
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
    """Return the earliest time at which each row is sent, and its pause after the rows it waits for, seconds."""
    times, pauses = np.zeros(len(parents)), np.zeros(len(parents))
    for row, own in enumerate(parents):
        given = records.row(row)
        sent, fields = _milliseconds(given, "timestamp"), given.values
        if not own:
            if sent is None and has_times:
                raise given.error("timestamp", "is missing, and the row waits for no other")
            times[row] = (sent or 0.0) * _MILLISECOND
            continue
        delay = next((_milliseconds(given, name) for name in DELAY_FIELDS if fields.get(name) is not None), None)
        if delay is None and sent is not None and not fields.get(WAIT_FIELD):
            delay = max(sent - times[own[0]] / _MILLISECOND, 0.0)
        tool = _milliseconds(given, _TOOL_FIELD) or 0.0
        pauses[row] = ((delay or 0.0) + tool) * _MILLISECOND
        earliest = max(times[each] for each in own) + pauses[row]
        times[row] = max(earliest, (sent or 0.0) * _MILLISECOND)
    return times, pauses


def _milliseconds(row: Fields, name: str) -> float | None:
    return row.optional(name, "a number of milliseconds >= 0", 0, LATEST / _MILLISECOND)


def _tasks(parents: list[list[int]], sessions: list[object]) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of each row's task and agent.

    Rows connected by what they wait for are a task. Rows of a session belong to one agent. Without a session, the first
    of the calls that wait for a call continues that call's agent, and each other one begins a new agent.
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


def _read_agentic_graph(records: Records) -> Trace:
    """Return the calls of a file of this version, task by task; a ``play_id`` is a task, a ``session_id`` an agent.

    A call is sent no earlier than ``not_before_ms`` after its task began, and no earlier than ``delay_ms`` after each
    call that it names was answered (``completion``) or sent (``dispatch``). If the pauses after several answers differ,
    the longest is applied after the last answer: an upper estimate. Block ids are valid within a task.

    Args:
        records: The rows, the header first.
    """
    header = records.rows[0]
    if header.get("version") != _VERSION:
        raise records.error(0, "version", f"must be {_VERSION}")
    size = header.get("block_size")
    if type(size) is not int or not 1 <= size <= MAX_TOKENS:
        raise records.error(0, "block_size", "must be a whole number >= 1")
    other = {"input_tokens": "input_length", "output_tokens": "output_length"}
    renamed = [{other.get(name, name): value for name, value in row.items()} for row in records.rows[1:]]
    rows = Records(records.file, renamed, records.lines[1:])
    if not rows.rows:
        raise TraceError("holds no calls behind its header", file=records.file)
    waits = _waits(rows)
    order = _in_order(rows, waits)
    play = _numbers(rows, (_PLAY,))
    order.sort(key=lambda row: int(play[row]))
    rank = {row: position for position, row in enumerate(order)}
    ordered = rows.in_order(order)
    tasks, agents = (_numbers(ordered, fields) for fields in ((_PLAY,), (_PLAY, SESSION_FIELD)))
    earliest = np.array([_milliseconds(row, _EARLIEST) or 0.0 for row in ordered.each()]) * _MILLISECOND
    begins = np.full(len(order), np.inf)
    np.minimum.at(begins, tasks, earliest)
    parents, pauses, offset = _graph_parents([waits[row] for row in order], rank, earliest - begins[tasks])
    return Trace(
        arrival_time=np.full(len(order), np.nan),
        prompt_tokens=ordered.whole_numbers("input_length"),
        output_tokens=ordered.whole_numbers("output_length"),
        prefix_blocks=_blocks(ordered, size),
        session=tasks,
        tasks=RecordedTasks(
            task=tasks,
            agent=agents,
            dependencies=dependencies_of(parents),
            tool_time=np.where([bool(own) for own in parents], pauses, 0.0),
            offset=offset,
            earliest=offset,
        ),
    )


def _waits(rows: Records) -> list[list[tuple[int, bool, float]]]:
    """Return what each row waits for, as (row, whether for its answer, seconds)."""
    place: dict[str, int] = {}
    for row, fields in enumerate(rows.rows):
        for name in (_REQUEST_FIELD, _PLAY):
            if not isinstance(fields.get(name), str) or not fields[name]:
                raise rows.error(row, name, "is missing" if fields.get(name) is None else "is not a name")
        if fields[_REQUEST_FIELD] in place:
            raise rows.error(row, _REQUEST_FIELD, "is already used by an earlier row")
        place[fields[_REQUEST_FIELD]] = row
    waits = []
    for row, fields in enumerate(rows.rows):
        listed = fields.get(_WAITS) or []
        if not isinstance(listed, list) or not all(isinstance(each, Mapping) for each in listed):
            raise rows.error(row, _WAITS, "is not a list of objects")
        waits.append([_wait(rows, row, each, place) for each in listed])
    return waits


def _wait(rows: Records, row: int, given: Mapping[str, Any], place: Mapping[str, int]) -> tuple[int, bool, float]:
    known = place.get(str(given.get("request_id")))
    if known is None or rows.rows[known][_PLAY] != rows.rows[row][_PLAY]:
        raise rows.error(row, _WAITS, f"names {given.get('request_id')!r}, which is no request_id of its play_id")
    if given.get("trigger") not in ("completion", "dispatch"):
        raise rows.error(row, _WAITS, f"has the trigger {given.get('trigger')!r}; it is completion or dispatch")
    delay = given.get("delay_ms", 0.0)
    if not is_number(delay, 0, LATEST / _MILLISECOND):
        raise rows.error(row, _WAITS, f"has a delay_ms of {delay!r}; it is a number of milliseconds >= 0")
    return known, given["trigger"] == "completion", float(delay) * _MILLISECOND


def _in_order(rows: Records, waits: list[list[tuple[int, bool, float]]]) -> list[int]:
    """Return the rows so that each comes after those it waits for, otherwise in file order."""
    left = [len(each) for each in waits]
    children: list[list[int]] = [[] for _ in waits]
    for row, own in enumerate(waits):
        for parent, _, _ in own:
            children[parent].append(row)
    order = [row for row, count in enumerate(left) if not count]
    for row in order:
        for child in children[row]:
            left[child] -= 1
            if not left[child]:
                order.append(child)
    if len(order) < len(waits):
        row = next(row for row, count in enumerate(left) if count)
        raise rows.error(row, _WAITS, "waits for itself, by way of those that it names or directly")
    return order


def _graph_parents(
    waits: list[list[tuple[int, bool, float]]], rank: Mapping[int, int], offset: np.ndarray
) -> tuple[list[list[int]], np.ndarray, np.ndarray]:
    """Return the calls whose answers each call waits for, its pause after them, and its earliest time in its task.

    A call that is sent some time after another is sent waits for the same answers as that one, with a longer pause.
    """
    parents: list[list[int]] = []
    pauses, offset = np.zeros(len(waits)), offset.copy()
    for row, own in enumerate(waits):
        found: set[int] = set()
        for parent, is_answer, delay in own:
            known = rank[parent]
            found.update([known] if is_answer else parents[known])
            pauses[row] = max(pauses[row], delay if is_answer else pauses[known] + delay)
            if not is_answer:
                offset[row] = max(offset[row], offset[known] + delay)
        parents.append(sorted(found))
    return parents, pauses, offset


def _numbers(rows: Records, fields: tuple[str, ...]) -> np.ndarray:
    """Return a number for the combined values of some fields of each row."""
    known: dict[tuple[str, ...], int] = {}
    names = [tuple(str(row.get(field)) for field in fields) for row in rows.rows]
    return np.array([known.setdefault(name, len(known)) for name in names], dtype=np.int64)


def _blocks(rows: Records, size: int) -> PrefixBlocks | None:
    """Return the blocks that the rows name, with separate ids for each task; None if a row names none."""
    if any(row.get("hash_ids") is None for row in rows.rows):
        return None
    lists, known = rows.lists("hash_ids"), dict[tuple[str, int], int]()
    plays = (row[_PLAY] for row in rows.rows)
    ids = [[known.setdefault((play, each), len(known)) for each in own] for play, own in zip(plays, lists, strict=True)]
    return PrefixBlocks.of(size, ids)
