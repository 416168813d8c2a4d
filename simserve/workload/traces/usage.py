"""Exports of usage: a row is the sum of an hour's or a day's requests, as on the invoice of an API. Not a trace."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.errors import TraceError
from simserve.units import DAYS_PER_MONTH, HOURS_PER_DAY
from simserve.workload.traces.table import Table, is_number, read_table, read_text

REQUESTS = ("requests", "num_requests", "n_requests", "num_model_requests", "request_count", "requests_count", "calls")
"""Usual names of the column that counts the requests of a row (``num_model_requests``: OpenAI's usage API,
organization/usage/completions; ``n_requests``: its older export)."""
PROMPTS = ("input_tokens", "prompt_tokens", "n_context_tokens_total", "total_input_tokens", "total_prompt_tokens")
ANSWERS = (
    *("output_tokens", "completion_tokens", "n_generated_tokens_total", "total_output_tokens"),
    "total_completion_tokens",
)
TIMES = ("date", "day", "timestamp", "start_time_iso", "start_time", "usage_date_utc", "time", "datetime", "hour_start")
HOURS = ("hour", "hour_of_day")
CACHED = ("input_cached_tokens", "cached_tokens", "n_cached_context_tokens_total", "cached_input_tokens")
_UNSAID = ("-", "n/a", "none", "null")  # How exports write that nothing is known of cached tokens.
MODELS = ("model", "model_name", "model_id", "snapshot_id")
_HOUR = re.compile(r"(\d{1,2})(?:\.0)?(?::\d{2}){0,2}")  # An hour of the day: ``9``, ``09:00``.


@dataclass(frozen=True, slots=True)
class Usage:
    """What an export of usage comes to."""

    rows: int  # Rows in it.
    requests: int  # Requests in all.
    prompt_tokens: int  # Their prompt tokens in all.
    output_tokens: int  # Their output tokens in all.
    days: int | None  # Days that it covers; None where it has no dates.
    hourly: tuple[float, ...] | None
    """Requests in each hour of a mean day, in the times of the file; None where rows are whole days."""
    cached_tokens: int | None  # Of the prompt tokens those that the API found in its cache; None where it does not say.
    models: Mapping[str, int]  # Model -> its requests, most first; empty where it does not say.

    @property
    def requests_per_month(self) -> float | None:
        """Requests of a month of 30 days like these; None where the days are not known."""
        return None if self.days is None else self.requests / self.days * DAYS_PER_MONTH

    @property
    def mean_prompt_tokens(self) -> float:
        """Prompt tokens of a mean request."""
        return self.prompt_tokens / self.requests

    @property
    def mean_output_tokens(self) -> float:
        """Output tokens of a mean request."""
        return self.output_tokens / self.requests

    def as_mapping(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        return {
            "rows": self.rows,
            "requests": self.requests,
            "days": self.days,
            "requests_per_month": self.requests_per_month,
            "prompt_tokens": {"mean": self.mean_prompt_tokens, "total": self.prompt_tokens},
            "output_tokens": {"mean": self.mean_output_tokens, "total": self.output_tokens},
            "cached_share": None if self.cached_tokens is None else self.cached_tokens / self.prompt_tokens,
            "models": dict(self.models),
            "hourly": None if self.hourly is None else list(self.hourly),
        }


def usage_columns(names: Sequence[str]) -> dict[str, str] | None:
    """Return the columns of a usage export by what they hold; None where a table counts no requests in its rows."""
    plain = {re.sub(r"[^a-z0-9]", "", name.lower()): name for name in reversed(names)}
    found = {}
    kinds = {"requests": REQUESTS, "prompt_tokens": PROMPTS, "output_tokens": ANSWERS, "time": TIMES, "hour": HOURS}
    kinds |= {"cached": CACHED, "model": MODELS}
    for what, usual in kinds.items():
        named = next((plain[each] for each in (name.replace("_", "") for name in usual) if each in plain), None)
        if named is not None:
            found[what] = named
    return found if {"requests", "prompt_tokens", "output_tokens"} <= found.keys() else None


def is_usage(path: Path, names: Sequence[str]) -> bool:
    """Return whether a row of a table stands for several requests: it counts them, and one at least has more than one.

    Raises:
        TraceError: The file cannot be read, or a count is no number.
    """
    columns = usage_columns(names)
    if columns is None:
        return False
    return bool((_amounts(read_table(path, required=(columns["requests"],)), columns["requests"]) > 1).any())


def read_buckets(path: Path) -> Usage | None:
    """Return what a file comes to that holds the answer of OpenAI's usage API; None: it holds something else.

    The answer (organization/usage/completions) is a page: an object whose ``data`` are buckets with a ``start_time``
    and ``results``, which are sums. A bucket without results is a time without requests. A list of pages will do.

    Raises:
        TraceError: The file cannot be read, or a sum is no number.
    """
    text = "" if path.is_dir() else read_text(path).lstrip()
    if not text.startswith(("{", "[")) or '"results"' not in text:
        return None
    try:
        pages = json.loads(text)
    except (ValueError, RecursionError):
        return None  # JSON lines, or damaged: readers of traces say so
    pages = pages if isinstance(pages, list) else [pages]
    buckets = [each for page in pages if isinstance(page, dict) for each in page.get("data") or () if _is_bucket(each)]
    if not buckets:
        return None
    names = {"requests": "num_model_requests", "prompt_tokens": "input_tokens", "output_tokens": "output_tokens"}
    results = [result for bucket in buckets for result in bucket["results"]]
    if any("input_cached_tokens" in each for each in results):
        names["cached"] = "input_cached_tokens"
    columns: dict[str, list[str]] = {name: [] for name in ("start_time", "model", *names.values())}
    for bucket in buckets:
        sums: list[dict[str, Any]] = bucket["results"] or [{}]
        for result in sums:
            columns["start_time"].append(str(bucket["start_time"]))
            columns["model"].append(str(result.get("model") or ""))
            for name in names.values():
                value = result.get(name, 0)
                if value is None and name == names.get("cached"):
                    value = 0
                if not is_number(value, least=0):
                    raise TraceError("is not a number", file=path, key=name, value=value)
                columns[name].append(str(value))
    return _summed_up(Table(path, text, dict(columns)), {**names, "time": "start_time", "model": "model"})


def _is_bucket(value: object) -> bool:
    return (
        isinstance(value, dict)
        and type(value.get("start_time")) is int
        and isinstance(value.get("results"), list)
        and all(isinstance(each, dict) for each in value["results"])
    )


def read_usage(path: Path, columns: dict[str, str]) -> Usage:
    """Return what a usage export comes to.

    Args:
        path: The file, plain or gzip.
        columns: As `usage_columns` finds them.

    Raises:
        TraceError: The file cannot be read, or a cell is no number or no time.
    """
    return _summed_up(read_table(path, required=tuple(columns.values())), columns)


def _summed_up(table: Table, columns: dict[str, str]) -> Usage:
    counts, prompts, outputs = (
        _amounts(table, columns[what]) for what in ("requests", "prompt_tokens", "output_tokens")
    )
    if not (counts.sum() and prompts.sum() and outputs.sum()):
        raise TraceError("counts no request, or no token", file=table.file, key=columns["requests"])
    if "hour" in columns and not _HOUR.fullmatch(table.columns[columns["hour"]][0].strip()):
        # A whole instant, as SQL's date_trunc('hour', ...) gives it: it says the day too.
        columns = {what: name for what, name in columns.items() if what != "hour"} | {"time": columns["hour"]}
    times = _instants(table, columns["time"]) if "time" in columns else None
    hours = _hours(table, columns, times)
    hourly = None
    days = None if times is None else len({each.date() for each in times})
    if hours is not None:
        totals = np.bincount(hours, weights=counts, minlength=HOURS_PER_DAY)
        hourly = tuple(float(total) / (days or 1) for total in totals)
    cached = int(_amounts(table, columns["cached"], _UNSAID).sum()) if "cached" in columns else None
    by_model: dict[str, int] = defaultdict(int)
    for name, count in zip(
        table.columns[columns["model"]] if "model" in columns else (), counts.tolist(), strict=False
    ):
        by_model[name.strip()] += int(count)
    models = {name: by_model[name] for name in sorted(by_model, key=lambda name: -by_model[name]) if by_model[name]}
    return Usage(
        rows=len(counts),
        requests=int(counts.sum()),
        prompt_tokens=int(prompts.sum()),
        output_tokens=int(outputs.sum()),
        days=days,
        hourly=hourly,
        cached_tokens=cached,
        models=models if any(models) else {},
    )


def _amounts(table: Table, column: str, unsaid: Sequence[str] = ()) -> NDArray[np.float64]:
    """Return the numbers of a column [rows]; empty cells, and those that are `unsaid`, are 0."""
    found = []
    for index, cell in enumerate(table.columns[column]):
        try:
            found.append(0.0 if cell.strip().lower() in unsaid else float(cell.replace(",", "") or 0))
        except ValueError:
            raise table.error(index, column, "is not a number") from None
    return np.array(found)


def _instants(table: Table, column: str) -> list[datetime]:
    found = []
    for index, cell in enumerate(table.columns[column]):
        text = cell.strip()
        try:
            is_epoch = re.fullmatch(r"\d{9,11}", text) is not None
            found.append(datetime.fromtimestamp(int(text), UTC) if is_epoch else datetime.fromisoformat(text))
        except ValueError:
            raise table.error(index, column, "is not a date", "write 2026-11-16, or 2026-11-16T18:00:00Z") from None
    return found


def _hours(table: Table, columns: dict[str, str], times: list[datetime] | None) -> NDArray[np.int64] | None:
    """Return the hour of the day of every row; None where rows are whole days."""
    if "hour" in columns:
        found = [_HOUR.fullmatch(cell.strip()) for cell in table.columns[columns["hour"]]]
        hours = np.array([HOURS_PER_DAY if each is None else int(each[1]) for each in found], dtype=np.int64)
        wrong = np.flatnonzero(hours >= HOURS_PER_DAY)
        if len(wrong):
            raise table.error(int(wrong[0]), columns["hour"], "is not an hour from 0 to 23")
        return hours
    hours = np.array([each.hour for each in times or ()], dtype=np.int64)
    return hours if hours.any() else None
