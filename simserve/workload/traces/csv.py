"""Traces as CSV of fixed columns: plain ones, those of the Azure public dataset, and BurstGPT's."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simserve.errors import TraceError
from simserve.workload.traces.media import MEDIA_COLUMNS, RecordedMedia, read_media
from simserve.workload.traces.table import Table, read_table
from simserve.workload.traces.trace import Trace, numbered

IMAGES = "NumImages"
_AZURE_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d{1,9})?)(?:Z|[+]00:00)?", re.ASCII)
_BURSTGPT_SESSION = "Session ID"
"""A column that newer files have."""


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


def read_azure(path: Path) -> Trace:
    """Return the trace in a file of the format; the first request arrives at 0, other columns are ignored.

    The multimodal trace of 2025 has NumImages; its ContextTokens count the tokens of images too
    (AzureLMMInferenceDataset2025.md of Azure/AzurePublicDataset).

    The 2023 traces hold no request without tokens. One that has none (0 generated: nothing was served) is
    refused, neither dropped nor rounded up to one token.

    Raises:
        TraceError: The file cannot be read, or a row breaks a rule; with the row's line in the file.
    """
    table = read_table(path, required=("TIMESTAMP", "ContextTokens", "GeneratedTokens"), optional=(IMAGES,))
    has_images = IMAGES in table.columns
    return Trace(
        arrival_time=_azure_seconds(table, "TIMESTAMP"),
        prompt_tokens=table.whole_numbers("ContextTokens"),
        output_tokens=table.whole_numbers("GeneratedTokens"),
        images=RecordedMedia(table.whole_numbers(IMAGES, minimum=0)) if has_images else None,
        counts_media=has_images,
    )


def _azure_seconds(table: Table, column: str) -> NDArray[np.float64]:
    instants = []
    for index, cell in enumerate(table.columns[column]):
        match = _AZURE_TIMESTAMP.fullmatch(cell.strip())
        if match is None:
            rule = "is not a timestamp in UTC"
            raise table.error(index, column, rule, "write for example 2023-11-16 18:17:03.9799600")
        instants.append(match[1])
    try:
        clock = np.array(instants, dtype="datetime64[ns]").astype(np.int64)
    except ValueError:
        raise table.error(_first_impossible(instants), column, "is not a date and time that exists") from None
    table.require_ascending(column, clock)
    return np.asarray((clock - clock[0]) / 1e9)


def _first_impossible(instants: list[str]) -> int:
    for index, instant in enumerate(instants):
        try:
            np.datetime64(instant, "ns")
        except ValueError:
            return index
    return 0


def read_burstgpt(path: Path) -> Trace:
    """Return the trace in a file of the format; other columns are ignored.

    A response of 0 tokens is a request that failed: it is left out and counted. Times stay as they are.

    Raises:
        TraceError: The file cannot be read, or a row breaks a rule; with the row's line in the file.
    """
    table = read_table(path, required=("Timestamp", "Request tokens", "Response tokens"), optional=(_BURSTGPT_SESSION,))
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
    cells = table.columns.get(_BURSTGPT_SESSION, ())
    names = [cell.strip() or None for cell, served in zip(cells, is_served, strict=False) if served]
    return Trace(
        arrival_time=arrival_time[is_served],
        prompt_tokens=prompt_tokens[is_served],
        output_tokens=output_tokens[is_served],
        session=numbered(names),
        num_unserved=int((~is_served).sum()),
    )
