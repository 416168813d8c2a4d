"""Traces of Mooncake (FAST'25): JSON lines with timestamp (ms), input_length, output_length, hash_ids."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from simserve.workload.traces.records import Records, read_records
from simserve.workload.traces.trace import PrefixBlocks, Trace, numbered

BLOCK_TOKENS = 512
"""Tokens of a block of the published traces (Mooncake repository, FAST25-release)."""
SESSION_FIELD = "session_id"
"""What AIPerf adds to the rows of a conversation."""
_MILLISECOND = 1e-3


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
        prefix_blocks=prefix_blocks(records, BLOCK_TOKENS) if "hash_ids" in records.rows[0] else None,
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
