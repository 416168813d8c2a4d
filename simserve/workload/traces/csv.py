"""Traces as plain CSV: arrival_time, prompt_tokens, output_tokens, and max_tokens, session or media if any."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from simserve.workload.traces.media import MEDIA_COLUMNS, read_media
from simserve.workload.traces.table import read_table
from simserve.workload.traces.trace import Trace, numbered


def read_csv(path: Path) -> Trace:
    """Return the trace in a file of the format; other columns are ignored.

    Arrival times are seconds from the start of the run and stay as they are: a first one of 5 arrives at 5.

    Raises:
        TraceError: The file cannot be read, or a row breaks a rule; with the row's line in the file.
    """
    columns = ("arrival_time", "prompt_tokens", "output_tokens")
    table = read_table(path, required=columns, optional=("max_tokens", "session", *MEDIA_COLUMNS))
    arrival_time = table.seconds("arrival_time")
    table.require_ascending("arrival_time", arrival_time)
    output_tokens = table.whole_numbers("output_tokens")
    max_tokens = None
    if "max_tokens" in table.columns:
        max_tokens = table.whole_numbers("max_tokens")
        exceeding = np.flatnonzero(output_tokens > max_tokens)
        if len(exceeding):
            index = int(exceeding[0])
            raise table.error(index, "output_tokens", f"is above the row's max_tokens {max_tokens[index]}")
    images, audio = read_media(
        {what: table.columns[what] for what in MEDIA_COLUMNS if what in table.columns}, table.error, 1.0
    )
    return Trace(
        arrival_time=arrival_time,
        prompt_tokens=table.whole_numbers("prompt_tokens"),
        output_tokens=output_tokens,
        max_tokens=max_tokens,
        images=images,
        audio=audio,
        session=numbered([cell.strip() or None for cell in table.columns.get("session", ())]),
    )
