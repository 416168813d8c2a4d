"""Traces of Alibaba's Bailian (Qwen): JSON lines with conversations, timestamp (s), lengths, 16-token hash_ids."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from simserve.errors import TraceError
from simserve.workload.traces.mooncake import prefix_blocks
from simserve.workload.traces.records import Records, read_records
from simserve.workload.traces.trace import Trace

BLOCK_TOKENS = 16
"""Tokens of a block of the published traces (alibaba-edu/qwen-bailian-usagetraces-anon)."""
_NO_PARENT = -1


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
        prefix_blocks=prefix_blocks(records, BLOCK_TOKENS),
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
