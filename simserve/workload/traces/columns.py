"""Traces in tables: CSV or JSON lines whose columns are given, found by their usual names, or fixed.

Fixed columns: plain CSV, the Azure public dataset, and BurstGPT. Knows names of columns and formats of times, not what
a request is.
"""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simserve.errors import TraceError, nearest
from simserve.workload.traces.media import MEDIA_COLUMNS, RecordedMedia, read_media
from simserve.workload.traces.records import Records, field_samples, read_records
from simserve.workload.traces.table import LATEST, MAX_TOKENS, Table, delimiter_of, read_table, read_text
from simserve.workload.traces.trace import Trace, numbered

USUAL_NAMES: Mapping[str, tuple[str, ...]] = {
    "arrival_time": (
        *("arrival_time", "timestamp", "arrived_at", "arrival", "arrival_timestamp", "request_time"),
        *("request_timestamp", "start_time", "started_at", "request_start_time", "received_at", "time_received"),
        *("created_at", "created", "sent_at", "send_time", "datetime", "event_time", "time", "ts"),
    ),
    "prompt_tokens": (
        *("prompt_tokens", "num_prompt_tokens", "prompt", "input_tokens", "num_input_tokens", "num_prefill_tokens"),
        *("prefill_tokens", "context_tokens", "request_tokens", "prompt_len", "prompt_length", "input_len"),
        *("input_length", "prompt_token_count", "input_token_count", "input_usage", "tokens_in", "tokens_input"),
        *("tokens_prompt", "in_tokens", "input", "isl"),
    ),
    "output_tokens": (
        *("output_tokens", "num_output_tokens", "completion_tokens", "num_completion_tokens", "completion"),
        *("num_decode_tokens", "decode_tokens", "generated_tokens", "response_tokens", "output_len"),
        *("output_length", "candidates_token_count", "output_token_count", "output_usage", "tokens_out"),
        *("tokens_output", "tokens_completion", "out_tokens", "output", "response", "osl"),
    ),
    "max_tokens": ("max_tokens", "max_new_tokens", "max_completion_tokens"),
    "num_images": ("num_images", "image_count", "images"),
    "image_sizes": ("image_sizes", "image_resolutions", "image_resolution"),
    "audio_seconds": ("audio_seconds", "audio_duration", "audio_durations", "audio_length", "audio_lengths"),
    "session": ("session", "session_id", "conversation_id", "conversation"),
}
"""Field of a trace -> usual names of its column, the likeliest first; case and punctuation are ignored. Among them are
those of Gemini (``promptTokenCount``), Bedrock (``inputTokenCount``), OpenRouter (``tokens_prompt``) and Langfuse
(``inputUsage``)."""
_MODELS = ("model", "modelname", "modelgroup")
"""Usual names of the column that says which model served a request, without punctuation."""
_MOST_MODELS = 3  # Most models of a log that are named.
_IS_USAGE = re.compile(r"usage|token", re.IGNORECASE)
"""What a nested field, or an object that holds it, is called where it counts tokens: ``usage.input``."""
_MISSING = ("", "null", "none", "nan", "-")
"""What programs write where a request has no count, mostly because it failed."""
_NEEDED = ("prompt_tokens", "output_tokens")
_TIME_UNITS = (("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0))
_UNIT_OF_NAME = re.compile(r".*[_. (\[](ns|us|ms|s)[)\]]?", re.IGNORECASE)
_EPOCHS = ((1e17, 1e-9), (1e14, 1e-6), (1e11, 1e-3))
"""(Least number, unit in seconds): from this number up, a time since 1970 is in this unit. The number is a date of 1973
in its own unit, and would be one after the year 5000 in the next larger unit."""
_ZONE_APART = re.compile(r" (?=[+-]\d\d:?\d\d$)")
IMAGES = "NumImages"
_DECIMAL_COMMA = re.compile(r"^\s*(\d+),(\d+)\s*$")  # As spreadsheets write times where a comma is the decimal point.
_AZURE_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d{1,9})?)(?:Z|[+]00:00)?", re.ASCII)
_BURSTGPT_SESSION = "Session ID"


@dataclass(frozen=True, slots=True)
class _Cells:
    """Columns as text, and the function that makes the error about a cell."""

    source: Table | Records
    columns: Mapping[str, Sequence[str]]
    names: Mapping[str, str]

    def error(self, index: int, what: str, rule: str, remedy: str | None = None) -> TraceError:
        return self.source.error(index, self.names[what], rule, remedy)

    def of(self, what: str) -> Sequence[str]:
        return self.columns[self.names[what]]

    @property
    def may_have_decimal_commas(self) -> bool:
        """Whether a comma within a cell can only be that of a number: in a table that other signs separate."""
        return isinstance(self.source, Table) and delimiter_of(self.source.text) != ","


def column_samples(path: Path) -> dict[str, object]:
    """Return the columns of a table, with None, or the fields of the first objects, each with a value.

    Raises:
        TraceError: The file cannot be read.
    """
    text = read_text(path).lstrip()
    if text[0] not in "[{":
        return dict.fromkeys(header_of(text))
    return field_samples(text) or dict.fromkeys(read_records(path).rows[0])


def header_of(text: str) -> list[str]:
    """Return the names in the first line of a table."""
    first = text.lstrip().splitlines()[:1]
    return [name.strip() for name in next(csv.reader(first, delimiter=delimiter_of(text)), [])]


def told_columns(columns: Mapping[str, object]) -> dict[str, str]:
    """Return the fields of a trace that are found by usual names: field -> column.

    Args:
        columns: The columns, each with a value that it holds, or None. A field within another has a dotted name, and
            goes behind those that are not; it counts tokens only if it, or what it is in, is called so. Fields with
            texts where their names promise counts are passed over: an ``input`` may be the prompt itself.
    """
    plain: dict[str, list[str]] = {}
    for name in columns:
        for each in {_plain(name), _plain(name.rpartition(".")[2])}:
            plain.setdefault(each, []).append(name)
    found = {}
    for what, usual in _USUAL:
        fitting = [name for each in usual for name in plain.get(each, ()) if _fits(what, name, columns[name])]
        if fitting:
            found[what] = min(fitting, key=lambda name: name.count("."))
    return found


def _fits(what: str, name: str, sample: object) -> bool:
    """Return whether a column may hold a field of a trace, by its whole name and a value in it."""
    if what in _NEEDED:
        return ("." not in name or _IS_USAGE.search(name) is not None) and _is_count(sample)
    if what in MEDIA_COLUMNS:
        return "." not in name
    return ("." not in name or what == "arrival_time") and not isinstance(sample, dict | list)


def _is_count(sample: object) -> bool:
    """Return whether a value may be a number of tokens; None is the value of a column of which none is known."""
    if isinstance(sample, str):
        return sample.strip().replace(".", "", 1).isdecimal()
    return sample is None or (isinstance(sample, int | float) and not isinstance(sample, bool))


def are_told(columns: Mapping[str, object]) -> bool:
    """Return whether the columns for the lengths of prompts and answers are found by their names."""
    return set(_NEEDED) <= told_columns(columns).keys()


def read_columns(path: Path, columns: Mapping[str, str] | None = None) -> Trace:
    """Return the trace in a CSV file or in JSON lines, plain or gzip.

    Times are numbers or ISO 8601, in UTC unless a zone is given; dates count from the first request. Rows that are not
    in the order of their times are sorted, with a remark. A row without an answer, or without a prompt, was not served
    and is left out. Without a column of times the trace has none.

    Args:
        columns: Column of each field of a trace (``arrival_time`` ``prompt_tokens`` ``output_tokens`` ``max_tokens``
            ``session`` ``num_images`` ``image_sizes`` ``audio_seconds``), dotted within objects (``usage.input``);
            absent ones are found by their usual names.

    Raises:
        TraceError: The file cannot be read, lacks a column, or a row breaks a rule.
    """
    samples = column_samples(path)
    present = list(samples)
    asked = dict(columns or {})
    for what, name in asked.items():
        if name not in present:
            remedy = f"{nearest(name, present)} The columns are {', '.join(present[:12])}"
            raise TraceError(f"has no column {name!r} for {what}", file=path, remedy=remedy)
    names = {**told_columns({name: samples[name] for name in present if name not in asked.values()}), **asked}
    lacking = [what for what in _NEEDED if what not in names]
    if lacking:
        remedy = (
            f"say which: --columns {','.join(f'{what}=NAME' for what in lacking)}; there are {', '.join(present[:12])}"
        )
        raise TraceError(f"has no column that is known to hold {' and '.join(lacking)}", file=path, remedy=remedy)
    served_by = next((name for each in _MODELS for name in present if _plain(name) == each), None)
    cells = _cells(path, names if served_by is None else {**names, _MODEL: served_by})
    prompts, outputs = (_counts(cells, what) for what in _NEEDED)
    is_served = (prompts > 0) & (outputs > 0)
    if not is_served.any():
        raise TraceError("holds no request that was served: every prompt or answer has 0 tokens", file=path)
    times = _times(cells) if "arrival_time" in names else np.full(len(prompts), np.nan)
    is_sorted = not (np.diff(times) < 0).any()
    rows = np.flatnonzero(is_served)
    if not is_sorted:
        rows = rows[np.argsort(times[rows], kind="stable")]
    remarks = [_where(names)]
    if not is_sorted:
        remarks.append(_sorted_by(names["arrival_time"]))
    if served_by is not None:
        remarks.append(_models(served_by, [cells.of(_MODEL)[row] for row in rows.tolist()]))
    media = {what: cells.of(what) for what in MEDIA_COLUMNS if what in names}
    images, audio = read_media(media, cells.error, _unit_of(names.get("audio_seconds", "")) or 1.0)
    session = (
        numbered([cells.of("session")[row].strip() or None for row in rows.tolist()]) if "session" in names else None
    )
    return Trace(
        arrival_time=times[rows],
        prompt_tokens=prompts[rows],
        output_tokens=outputs[rows],
        max_tokens=_limits(cells, outputs, rows, remarks) if "max_tokens" in names else None,
        session=session,
        images=None if images is None else images.of_rows(rows),
        audio=None if audio is None else audio.of_rows(rows),
        num_unserved=len(prompts) - len(rows),
        remark="; ".join(filter(None, remarks)) or None,
    )


def _limits(
    cells: _Cells, outputs: NDArray[np.int64], rows: NDArray[np.int64], remarks: list[str]
) -> NDArray[np.int64] | None:
    """Return the most tokens that the clients of some rows asked for; None, with a remark, where some named none."""
    limits = _counts(cells, "max_tokens")[rows]
    if not limits.all():
        remarks.append(f"{cells.names['max_tokens']} is not used: some requests have none")
        return None
    exceeding = np.flatnonzero(outputs[rows] > limits)
    if len(exceeding):
        first = int(exceeding[0])
        raise cells.error(int(rows[first]), "output_tokens", f"is above the row's max_tokens {limits[first]}")
    return limits


def _models(name: str, cells: Sequence[str]) -> str:
    """Return the caution about a log of several models; "" if it is of one."""
    counts = Counter(cells)
    if len(counts) == 1:
        return ""
    shares = [f"{model or 'none'} {count / len(cells):.0%}" for model, count in counts.most_common(_MOST_MODELS)]
    shares += [f"{len(counts) - _MOST_MODELS} others"] if len(counts) > _MOST_MODELS else []
    return f"{name} names {len(counts)} models ({', '.join(shares)}), and one serves all rows here: keep those of one"


def _where(names: Mapping[str, str]) -> str:
    text = ", ".join(f"{what} in {name}" for what, name in names.items() if what != name)
    return f"columns: {text}" if text else ""


def _plain(name: str) -> str:
    stem = _UNIT_OF_NAME.fullmatch(name.strip())
    text = name if stem is None else name[: stem.start(1)]
    return re.sub(r"[^a-z0-9]", "", text.lower())


_USUAL = tuple((what, tuple(map(_plain, usual))) for what, usual in USUAL_NAMES.items())
_MODEL = "model"


def _cells(path: Path, names: Mapping[str, str]) -> _Cells:
    wanted = tuple(dict.fromkeys(names.values()))
    if read_text(path).lstrip()[0] not in "[{":
        table = read_table(path, required=wanted)
        return _Cells(table, table.columns, names)
    records = read_records(path).only(wanted)
    kinds = {name: what for what, name in names.items()}
    columns = {name: [_text(row.get(name), kinds[name]) for row in records.rows] for name in wanted}
    return _Cells(records, columns, names)


def _text(value: object, what: str) -> str:
    if isinstance(value, list):
        # A list of images, as in AIPerf's data sets, gives their number; a list of sizes or seconds gives each value.
        return str(len(value)) if what == "num_images" else "; ".join(_text(each, what) for each in value)
    if what == "image_sizes" and isinstance(value, dict):
        frames = value.get("frames")
        return f"{value.get('width')}x{value.get('height')}" + ("" if frames is None else f"x{frames}")
    return "" if value is None else str(value)


def _counts(cells: _Cells, what: str) -> NDArray[np.int64]:
    """Return a column of token counts, >= 0, 0 where a row has none.

    pandas writes whole numbers as ``12.0`` if some are missing.
    """
    found = np.empty(len(cells.of(what)), dtype=np.int64)
    for index, cell in enumerate(cells.of(what)):
        try:
            value = float(cell)
        except ValueError:
            value = 0.0 if cell.strip().lower() in _MISSING else -0.5
        value = 0.0 if math.isnan(value) else value
        if not (0 <= value <= MAX_TOKENS and value.is_integer()):
            remedy = f"mend or remove the row, or name the column that counts tokens: --columns {what}=NAME"
            raise cells.error(index, what, f"is not a whole number of tokens, {MAX_TOKENS:,} at most", remedy)
        found[index] = int(value)
    return found


def _times(cells: _Cells) -> NDArray[np.float64]:
    """Return arrival times in seconds: dates relative to the earliest one, other numbers unchanged."""
    texts, what = cells.of("arrival_time"), "arrival_time"
    try:
        if cells.may_have_decimal_commas:
            texts = [_DECIMAL_COMMA.sub(r"\1.\2", text) for text in texts]
        times = np.array([float(text) for text in texts], dtype=np.float64)
    except ValueError:
        return _from_dates(cells, texts)
    if not np.isfinite(times).all() or (times < 0).any():
        wrong = int(np.flatnonzero(~np.isfinite(times) | (times < 0))[0])
        raise cells.error(wrong, what, "is not a time: a number of seconds, or ISO 8601")
    first = float(times.min())
    unit = _unit_of(cells.names[what]) or next((each for least, each in _EPOCHS if first >= least), 1.0)
    is_date = first * unit > LATEST
    return np.asarray((times - first) * unit if is_date else times * unit)


def _unit_of(name: str) -> float | None:
    """Return the seconds of the unit at the end of a column's name; None if there is none."""
    named = _UNIT_OF_NAME.fullmatch(name.strip())
    return None if named is None else dict(_TIME_UNITS)[named[1].lower()]


def _from_dates(cells: _Cells, texts: Sequence[str]) -> NDArray[np.float64]:
    found: list[datetime] = []
    for index, text in enumerate(texts):
        try:
            instant = datetime.fromisoformat(_ZONE_APART.sub("", text.strip().replace(" UTC", "+00:00")))
        except ValueError:
            remedy = "write 2026-11-16T18:17:03Z, or seconds"
            raise cells.error(
                index, "arrival_time", "is not a time: a number of seconds, or ISO 8601", remedy
            ) from None
        found.append(instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC))
    first = min(found)
    return np.array([(each - first).total_seconds() for each in found], dtype=np.float64)


def read_csv(path: Path) -> Trace:
    """Return the trace in a file of the format; other columns are ignored.

    Arrival times are seconds from the start of the run and are kept unchanged: a first one of 5 arrives at 5. Rows that
    are not in their order are sorted, with a remark.

    Raises:
        TraceError: The file cannot be read, or a row breaks a rule; with the row's line in the file.
    """
    columns = ("arrival_time", "prompt_tokens", "output_tokens")
    table = read_table(path, required=columns, optional=("max_tokens", "session", *MEDIA_COLUMNS))
    arrival_time = table.seconds("arrival_time")
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
    trace = Trace(
        arrival_time=arrival_time,
        prompt_tokens=table.whole_numbers("prompt_tokens"),
        output_tokens=output_tokens,
        max_tokens=max_tokens,
        images=images,
        audio=audio,
        session=numbered([cell.strip() or None for cell in table.columns.get("session", ())]),
    )
    return _in_order(trace, "arrival_time")


def _in_order(trace: Trace, column: str) -> Trace:
    """Return the trace with its requests in the order of their times, with a remark if its rows were not."""
    order = np.argsort(trace.arrival_time, kind="stable")
    if not (np.diff(order) < 0).any():
        return trace
    return replace(
        trace,
        arrival_time=trace.arrival_time[order],
        prompt_tokens=trace.prompt_tokens[order],
        output_tokens=trace.output_tokens[order],
        max_tokens=None if trace.max_tokens is None else trace.max_tokens[order],
        session=None if trace.session is None else trace.session[order],
        images=None if trace.images is None else trace.images.of_rows(order),
        audio=None if trace.audio is None else trace.audio.of_rows(order),
        remark=_sorted_by(column),
    )


def _sorted_by(column: str) -> str:
    return f"the rows are sorted by {column}"


def read_azure(path: Path) -> Trace:
    """Return the trace in a file of the format; the first request arrives at 0, other columns are ignored.

    Rows that are not in the order of their times are sorted, with a remark.

    The multimodal trace of 2025 has NumImages; its ContextTokens count the tokens of images too
    (AzureLMMInferenceDataset2025.md of Azure/AzurePublicDataset).

    The 2023 traces have no request without tokens. A request without tokens (0 generated: nothing was served) is
    refused, neither dropped nor rounded up to one token.

    Raises:
        TraceError: The file cannot be read, or a row breaks a rule; with the row's line in the file.
    """
    table = read_table(path, required=("TIMESTAMP", "ContextTokens", "GeneratedTokens"), optional=(IMAGES,))
    has_images = IMAGES in table.columns
    trace = Trace(
        arrival_time=_azure_seconds(table),
        prompt_tokens=table.whole_numbers("ContextTokens"),
        output_tokens=table.whole_numbers("GeneratedTokens"),
        images=RecordedMedia(table.whole_numbers(IMAGES, minimum=0)) if has_images else None,
        counts_media=has_images,
    )
    return _in_order(trace, "TIMESTAMP")


def _azure_seconds(table: Table) -> NDArray[np.float64]:
    instants = []
    for index, cell in enumerate(table.columns["TIMESTAMP"]):
        match = _AZURE_TIMESTAMP.fullmatch(cell.strip())
        if match is None:
            rule = "is not a timestamp in UTC"
            raise table.error(index, "TIMESTAMP", rule, "write for example 2023-11-16 18:17:03.9799600")
        instants.append(match[1])
    try:
        clock = np.array(instants, dtype="datetime64[ns]").astype(np.int64)
    except ValueError:
        raise table.error(_first_impossible(instants), "TIMESTAMP", "is not a date and time that exists") from None
    return np.asarray((clock - clock.min()) / 1e9)


def _first_impossible(instants: list[str]) -> int:
    for index, instant in enumerate(instants):
        try:
            np.datetime64(instant, "ns")
        except ValueError:
            return index
    return 0


def read_burstgpt(path: Path) -> Trace:
    """Return the trace in a file of the format; other columns are ignored.

    A response of 0 tokens is a request that failed: it is left out and counted. Times are kept unchanged; rows that are
    not in their order are sorted, with a remark.

    Raises:
        TraceError: The file cannot be read, or a row breaks a rule; with the row's line in the file.
    """
    table = read_table(path, required=("Timestamp", "Request tokens", "Response tokens"), optional=(_BURSTGPT_SESSION,))
    arrival_time = table.seconds("Timestamp")
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
    trace = Trace(
        arrival_time=arrival_time[is_served],
        prompt_tokens=prompt_tokens[is_served],
        output_tokens=output_tokens[is_served],
        session=numbered(names),
        num_unserved=int((~is_served).sum()),
    )
    return _in_order(trace, "Timestamp")
