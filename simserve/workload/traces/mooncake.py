"""Traces with Mooncake's fields: Mooncake's own (FAST'25), Alibaba's Bailian (Qwen), and vLLM's timed traces."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from simserve.errors import TraceError
from simserve.workload.traces.records import Records, read_records
from simserve.workload.traces.trace import PrefixBlocks, Trace, numbered

MOONCAKE_BLOCK_TOKENS = 512
"""Tokens of a block of the published traces (Mooncake repository, FAST25-release)."""
SESSION_FIELD = "session_id"
"""What AIPerf adds to the rows of a conversation."""
_MILLISECOND = 1e-3
BAILIAN_BLOCK_TOKENS = 16
"""Tokens of a block of the published traces (alibaba-edu/qwen-bailian-usagetraces-anon)."""
_NO_PARENT = -1
TIMED_BLOCK_TOKENS = 16
"""Tokens of a block where the command line says nothing (`--timed-trace-chunk-hash-size`)."""


def read_mooncake(path: Path) -> Trace:
    """Return the trace in a file of the format; other fields are ignored.

    Timestamps are milliseconds from the start. Without ``hash_ids`` nothing is known of shared prefixes.

    Raises:
        TraceError: The file cannot be read, or a row breaks a rule; with the row's line in the file.
    """
    records = read_records(path)
    return Trace(
        arrival_time=records.seconds("timestamp", _MILLISECOND),
        prompt_tokens=records.whole_numbers("input_length"),
        output_tokens=records.whole_numbers("output_length"),
        prefix_blocks=prefix_blocks(records, MOONCAKE_BLOCK_TOKENS) if "hash_ids" in records.rows[0] else None,
        session=numbered([row.get(SESSION_FIELD) for row in records.rows]),
    )


def prefix_blocks(records: Records, block_tokens: int) -> PrefixBlocks:
    """Return the blocks that the field ``hash_ids`` names.

    Raises:
        TraceError: It is missing somewhere, or is not a list of whole numbers.
    """
    lists = records.lists("hash_ids")
    return PrefixBlocks(
        block_tokens=block_tokens,
        ids=np.array([each for ids in lists for each in ids], dtype=np.int64),
        counts=np.array([len(ids) for ids in lists], dtype=np.int64),
    )


def read_bailian(path: Path) -> Trace:
    """Return the trace in a file of the format; other fields are ignored.

    A request belongs to the conversation of its ``parent_chat_id``; -1 begins one.

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


def read_vllm_timed(path: Path) -> Trace:
    """Return the trace in a file of the format; other fields are ignored.

    Timestamps are seconds from the start. Without ``hash_ids`` nothing is known of shared prefixes.

    Raises:
        TraceError: The file cannot be read, or a row breaks a rule; with the row's line in the file.
    """
    records = read_records(path)
    return Trace(
        arrival_time=records.seconds("timestamp"),
        prompt_tokens=records.whole_numbers("input_length"),
        output_tokens=records.whole_numbers("output_length"),
        prefix_blocks=prefix_blocks(records, TIMED_BLOCK_TOKENS) if "hash_ids" in records.rows[0] else None,
        session=numbered([row.get(SESSION_FIELD) for row in records.rows]),
    )
