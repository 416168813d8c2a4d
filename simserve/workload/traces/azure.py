"""Traces of the Azure public dataset: TIMESTAMP (wall clock), ContextTokens, GeneratedTokens, and NumImages if any."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simserve.workload.traces.media import RecordedMedia
from simserve.workload.traces.table import Table, read_table
from simserve.workload.traces.trace import Trace

IMAGES = "NumImages"
_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d{1,9})?)(?:Z|[+]00:00)?", re.ASCII)


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
        arrival_time=_seconds(table, "TIMESTAMP"),
        prompt_tokens=table.whole_numbers("ContextTokens"),
        output_tokens=table.whole_numbers("GeneratedTokens"),
        images=RecordedMedia(table.whole_numbers(IMAGES, minimum=0)) if has_images else None,
        counts_media=has_images,
    )


def _seconds(table: Table, column: str) -> NDArray[np.float64]:
    instants = []
    for index, cell in enumerate(table.columns[column]):
        match = _TIMESTAMP.fullmatch(cell.strip())
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
