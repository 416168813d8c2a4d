"""The formats of traces by name, and detection of a format from the first row."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from simserve.errors import TraceError, UsageError, nearest
from simserve.workload.traces.aiperf import TEXT_FIELDS, read_aiperf_conversations, read_aiperf_messages
from simserve.workload.traces.columns import (
    are_told,
    header_of,
    read_azure,
    read_burstgpt,
    read_columns,
    read_csv,
    told_columns,
)
from simserve.workload.traces.dynamo import SCHEMA as DYNAMO_SCHEMA
from simserve.workload.traces.dynamo import read_dynamo, unwrapped
from simserve.workload.traces.mooncake import (
    DELAY_FIELDS,
    MOONCAKE_BLOCK_TOKENS,
    SESSION_FIELD,
    WAIT_FIELD,
    read_agentic_mooncake,
    read_bailian,
    read_mooncake,
    read_vllm_timed,
)
from simserve.workload.traces.mooncake import SCHEMA as AGENTIC_SCHEMA
from simserve.workload.traces.otel import read_otel
from simserve.workload.traces.records import field_samples
from simserve.workload.traces.sharegpt import read_sharegpt
from simserve.workload.traces.table import files_of, read_text
from simserve.workload.traces.trace import Trace
from simserve.workload.traces.usage import is_usage, read_buckets
from simserve.workload.traces.vllm_bench import read_vllm_bench
from simserve.workload.traces.weka import read_weka

_REMEMBERED = 2  # Traces that are cached: a search serves the same one on every deployment.
_MOST_COLUMNS = 12  # Most columns that an error names.
AUTO = "auto"
COLUMNS = "columns"  # Format of any table, read by the names of its columns.
READERS: dict[str, Callable[[Path], Trace]] = {
    "azure": read_azure,
    "csv": read_csv,
    "mooncake": read_mooncake,
    "burstgpt": read_burstgpt,
    "bailian": read_bailian,
    "sharegpt": read_sharegpt,
    "vllm-bench": read_vllm_bench,
    "vllm-timed": read_vllm_timed,
    "otel": read_otel,
    "agentic-mooncake": read_agentic_mooncake,
    "aiperf-messages": read_aiperf_messages,
    "aiperf-conversations": read_aiperf_conversations,
    "dynamo": read_dynamo,
    "weka": read_weka,
    COLUMNS: read_columns,
}
"""Format -> its reader."""

_COLUMNS = {
    "azure": ("TIMESTAMP", "ContextTokens"),
    "burstgpt": ("Request tokens",),
    "csv": ("arrival_time", "prompt_tokens", "output_tokens"),
}
"""Columns that identify a format by the header of a table."""
_FIELDS = {
    "vllm-bench": ("request_throughput",),
    "bailian": ("chat_id", "input_length"),
    "mooncake": ("timestamp", "input_length"),
    "sharegpt": ("conversations",),
    "otel": ("resourceSpans",),
    "weka": ("requests", "block_size"),
}
"""Fields that identify a format by its first object, checked in this order; spans may have any other fields too."""


def check_format(name: str) -> None:
    """Refuse an unknown format.

    Raises:
        UsageError: It is neither ``auto`` nor a key of `READERS`.
    """
    if name not in (AUTO, *READERS):
        raise UsageError("is not a known format", key="--format", value=name, remedy=nearest(name, (AUTO, *READERS)))


def read_trace(path: Path, trace_format: str = AUTO, columns: Mapping[Any, str] | None = None) -> Trace:
    """Return the trace in a file; a file that has not changed since it was last read is not read again.

    Args:
        path: The file, plain or gzip; or a folder of JSON files, since some tools write a trace in several.
        trace_format: A key of `READERS`, or ``auto``.
        columns: For the format ``columns``: the column of each field of a trace; ``auto`` then means that format.

    Raises:
        TraceError: The file cannot be read, its format cannot be detected, or a row breaks a rule of the format.
    """
    named = tuple((columns or {}).items())
    try:
        states = [file.stat() for file in files_of(path)]
    except OSError:
        return _read.__wrapped__(path, trace_format, named)  # which says what is wrong with it
    known = tuple((each.st_mtime_ns, each.st_size, each.st_ino) for each in states)
    return _read(path, trace_format, named, known)


@lru_cache(maxsize=_REMEMBERED)
def _read(
    path: Path, trace_format: str, columns: tuple[tuple[str, str], ...], _state: tuple[tuple[int, int, int], ...] = ()
) -> Trace:
    if columns:
        return read_columns(path, dict(columns)).frozen()
    return READERS[detect(path) if trace_format == AUTO else trace_format](path).frozen()


def detect(path: Path) -> str:
    """Return the format of a file, detected from its header or its first object.

    Raises:
        TraceError: The file cannot be read, or has none of the formats.
    """
    text = read_text(files_of(path)[0]).lstrip()
    is_json = text[0] in "[{"
    first = _first_object(text) if is_json else dict.fromkeys(header_of(text))
    of_header = (name for name, columns in _COLUMNS.items() if set(columns) <= first.keys())
    found = _of_object(first, text) if is_json else next(of_header, None)
    if first.get("schema") == AGENTIC_SCHEMA:
        return "agentic-mooncake"
    is_session = found is None and "input_length" in first and SESSION_FIELD in first
    if (found == "mooncake" or is_session) and any(f'"{field}":' in text for field in (WAIT_FIELD, *DELAY_FIELDS)):
        # The first row of a task or session has no field that says it waits.
        found = "agentic-mooncake"
    if found is None and (read_buckets(path) is not None if is_json else is_usage(path, list(first))):
        rule = "holds sums: a row stands for several requests, whose own times and lengths are not known"
        remedy = f"simserve trace {path} says what they come to, and which command prices a month of them"
        raise TraceError(rule, file=path, remedy=remedy)
    if found is None:
        columns = field_samples(text) if is_json else first
        if are_told(columns):
            return COLUMNS
        names = list(columns)[:_MOST_COLUMNS]
        told = list(told_columns(columns))
        lacking = [what for what in ("arrival_time", "prompt_tokens", "output_tokens") if what not in told]
        known = f"there are {', '.join(names)}" if names else "its first row has none"
        remedy = (
            f"say which column holds what with --columns {','.join(f'{what}=COLUMN' for what in lacking)} ({known}), "
            f"or the format with --format: {', '.join(READERS)}"
        )
        raise TraceError("is of no format that its first row tells", file=path, remedy=remedy)
    return found


def _first_object(text: str) -> dict[str, Any]:
    """Return the first object of JSON lines, of a list, or of the whole file; an empty one if there is none."""
    try:
        first, _ = json.JSONDecoder().raw_decode(text.lstrip("[ \r\n\t") if text.startswith("[") else text)
    except (ValueError, RecursionError):
        return {}
    return first if isinstance(first, dict) else {}


def _of_object(first: dict[str, Any], text: str) -> str | None:
    if "session_id" in first and ("turns" in first or "orchestrator" in first):
        return "aiperf-conversations"
    found = next((name for name, fields in _FIELDS.items() if all(field in first for field in fields)), None)
    if unwrapped(first).get("schema") == DYNAMO_SCHEMA:
        return "dynamo"
    if found is None and ("attributes" in first or "resource_spans" in first):
        return "otel"
    if found is None and any(field in first for field in TEXT_FIELDS) and not are_told(field_samples(text)):
        return "aiperf-messages"
    ids, length = first.get("hash_ids"), first.get("input_length")
    if found == "mooncake" and isinstance(ids, list) and isinstance(length, int):
        # More blocks than the prompt would have at Mooncake's block size.
        found = "vllm-timed" if (len(ids) - 1) * MOONCAKE_BLOCK_TOKENS >= max(length, 1) else found
    return "vllm-bench" if found is None and "input_lens" in first else found
