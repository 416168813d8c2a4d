"""Traces of BurstGPT: CSV with Timestamp (s), Model, Request tokens, Response tokens, Total tokens, Log Type."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from simserve.errors import TraceError
from simserve.workload.traces.table import read_table
from simserve.workload.traces.trace import Trace, numbered

_SESSION = "Session ID"
"""A column that newer files have."""


def read_burstgpt(path: Path) -> Trace:
    """Return the trace in a file of the format; other columns are ignored.

    A response of 0 tokens is a request that failed: it is left out and counted. Times stay as they are.

    Raises:
        TraceError: The file cannot be read, or a row breaks a rule; with the row's line in the file.
    """
    table = read_table(path, required=("Timestamp", "Request tokens", "Response tokens"), optional=(_SESSION,))
    arrival_time = table.seconds("Timestamp")
    table.require_ascending("Timestamp", arrival_time)
    output_tokens = table.whole_numbers("Response tokens", minimum=0)
    is_served = output_tokens > 0
    if not is_served.any():
        raise TraceError("holds no request that was served", file=path, key="Response tokens", value=0)
    prompt_tokens = table.whole_numbers("Request tokens", minimum=0)
    is_empty = np.flatnonzero(is_served & (prompt_tokens == 0))
    if len(is_empty):
        raise table.error(int(is_empty[0]), "Request tokens", "must be >= 1 where a response came")
    cells = table.columns.get(_SESSION, ())
    names = [cell.strip() or None for cell, served in zip(cells, is_served, strict=False) if served]
    return Trace(
        arrival_time=arrival_time[is_served],
        prompt_tokens=prompt_tokens[is_served],
        output_tokens=output_tokens[is_served],
        session=numbered(names),
        num_unserved=int((~is_served).sum()),
    )
