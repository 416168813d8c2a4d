"""The second version of agentic Mooncake rows: graphs of calls whose ``dependencies`` say what each waits for, and how.

The first row names the schema, as `dynamo.agentic_mooncake` of Dynamo's replay and AISimulate does
(``loadgen/types.rs``, `AgenticMooncakeHeader` and `AgenticMooncakeRow`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from simserve.errors import TraceError
from simserve.workload.dependencies import dependencies_of
from simserve.workload.traces.mooncake import SESSION_FIELD
from simserve.workload.traces.records import Records
from simserve.workload.traces.table import LATEST, MAX_TOKENS, is_number
from simserve.workload.traces.tasks import RecordedTasks
from simserve.workload.traces.trace import PrefixBlocks, Trace

SCHEMA = "dynamo.agentic_mooncake"
_VERSION = 2
_PLAY, _REQUEST, _WAITS, _EARLIEST = "play_id", "request_id", "dependencies", "not_before_ms"
_MILLISECOND = 1e-3


def read_agentic_graph(records: Records) -> Trace:
    """Return the calls of a file of this version, task by task; a ``play_id`` is a task, a ``session_id`` an agent.

    A call is sent no sooner than ``not_before_ms`` after its task has begun, and than ``delay_ms`` after each call that
    it names was answered (``completion``) or sent (``dispatch``). Where the pauses after several answers differ, the
    longest is taken after the last of them: an estimate from above. Block ids hold within a task.

    Args:
        records: The rows, the header first.

    Raises:
        TraceError: A row breaks a rule; with its line in the file.
    """
    header = records.rows[0]
    if header.get("version") != _VERSION:
        raise records.error(0, "version", f"must be {_VERSION}")
    size = header.get("block_size")
    if type(size) is not int or not 1 <= size <= MAX_TOKENS:
        raise records.error(0, "block_size", "must be a whole number >= 1")
    rows = Records(records.file, _renamed(records.rows[1:]), records.lines[1:])
    if not rows.rows:
        raise TraceError("holds no calls behind its header", file=records.file)
    waits = _waits(rows)
    order = _in_order(rows, waits)
    play = _numbers(rows, (_PLAY,))
    order.sort(key=lambda row: int(play[row]))
    rank = {row: position for position, row in enumerate(order)}
    ordered = Records(rows.file, [rows.rows[row] for row in order], [rows.lines[row] for row in order])
    tasks, agents = (_numbers(ordered, fields) for fields in ((_PLAY,), (_PLAY, SESSION_FIELD)))
    earliest = np.array([_milliseconds(ordered, row, _EARLIEST) for row in range(len(order))]) * _MILLISECOND
    begins = np.full(len(order), np.inf)
    np.minimum.at(begins, tasks, earliest)
    parents, pauses, offset = _parents([waits[row] for row in order], rank, earliest - begins[tasks])
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


def _renamed(rows: Any) -> list[Mapping[str, Any]]:
    other = {"input_tokens": "input_length", "output_tokens": "output_length"}
    return [{other.get(name, name): value for name, value in row.items()} for row in rows]


def _waits(rows: Records) -> list[list[tuple[int, bool, float]]]:
    """Return what each row waits for: a row, whether for its answer, and seconds."""
    place: dict[str, int] = {}
    for row, fields in enumerate(rows.rows):
        for name in (_REQUEST, _PLAY):
            if not isinstance(fields.get(name), str) or not fields[name]:
                raise rows.error(row, name, "is missing" if fields.get(name) is None else "is not a name")
        if fields[_REQUEST] in place:
            raise rows.error(row, _REQUEST, "stands in a row above too")
        place[fields[_REQUEST]] = row
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
    """Return the rows, those that others wait for before these, else as they stand."""
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


def _parents(
    waits: list[list[tuple[int, bool, float]]], rank: Mapping[int, int], offset: np.ndarray
) -> tuple[list[list[int]], np.ndarray, np.ndarray]:
    """Return whose answers each call waits for, its pause behind them, and the time of its task that it waits for.

    What is sent so long after another is sent waits for what that one waits for, and so much longer.
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
    """Return a number for what some fields of each row say together."""
    known: dict[tuple[str, ...], int] = {}
    names = [tuple(str(row.get(field)) for field in fields) for row in rows.rows]
    return np.array([known.setdefault(name, len(known)) for name in names], dtype=np.int64)


def _milliseconds(rows: Records, row: int, name: str) -> float:
    value = rows.rows[row].get(name, 0.0)
    if not is_number(value, 0, LATEST / _MILLISECOND):
        raise rows.error(row, name, "is not a number of milliseconds >= 0")
    return float(value)


def _blocks(rows: Records, size: int) -> PrefixBlocks | None:
    """Return the blocks that the rows name, told apart by task; None where some do not."""
    if any(row.get("hash_ids") is None for row in rows.rows):
        return None
    lists, known = rows.lists("hash_ids"), dict[tuple[str, int], int]()
    ids = [
        known.setdefault((row[_PLAY], each), len(known))
        for row, own in zip(rows.rows, lists, strict=True)
        for each in own
    ]
    return PrefixBlocks(
        block_tokens=size,
        ids=np.array(ids, dtype=np.int64),
        counts=np.array([len(each) for each in lists], dtype=np.int64),
    )
