"""Timed traces of `vllm bench serve` (`--dataset-name timed_trace`): Mooncake's fields, in seconds and blocks of 16."""

from __future__ import annotations

from pathlib import Path

from simserve.workload.traces.mooncake import SESSION_FIELD, prefix_blocks
from simserve.workload.traces.records import read_records
from simserve.workload.traces.trace import Trace, numbered

BLOCK_TOKENS = 16
"""Tokens of a block where the command line says nothing (`--timed-trace-chunk-hash-size`)."""


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
        prefix_blocks=prefix_blocks(records, BLOCK_TOKENS) if "hash_ids" in records.rows[0] else None,
        session=numbered([row.get(SESSION_FIELD) for row in records.rows]),
    )
