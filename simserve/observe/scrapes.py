"""Scrapes of an engine's ``/metrics`` over time, from files: text with times, folders of it, answers of Prometheus.

Knows the formats of scrapes, not their meaning; reads no URL. Text is read within bounds: any text gives samples or
none. Formats: https://prometheus.io/docs/instrumenting/exposition_formats/ and OpenMetrics, whose exemplars are
skipped.
"""

from __future__ import annotations

import gzip
import json
import math
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simserve.errors import InputError

MOST_SAMPLES = 200_000  # Most samples that are read; a server of one model writes a few thousand.
LONGEST_LINE = 65_536  # Most characters of a line that is parsed.
_SAMPLE = re.compile(
    r"([a-zA-Z_:][a-zA-Z0-9_:]*)"
    r"(?:\{((?:[^\"}]|\"(?:[^\"\\]|\\.)*\")*)\})?"
    r"[ \t]+([^ \t]+)(?:[ \t]+(-?\d{1,17}(?:\.\d{1,9})?))?[ \t]*(?:# .*)?"
)
_LABEL = re.compile(r"([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*\"((?:[^\"\\]|\\.)*)\"")
_MOST_SECONDS = 1e11
"""Times below this are in seconds (OpenMetrics), others in milliseconds (Prometheus' own format)."""
_ESCAPED = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}
LARGEST_FILE = 256_000_000  # Most bytes of all files that are read.
MOST_SCRAPES = 50_000  # Most scrapes that are read: a week at one every 15 s is 40,320.
MARK = "# scraped_at "  # Start of a line with the time of the scrape below it, seconds since 1970.
PREFIXES = ("vllm:", "sglang:", "trtllm_", "trtllm:")  # Prefixes of the engine metrics that are read.
START = "process_start_time_seconds"
_MARK = re.compile(r"^#[ \t]+scraped_at[ \t]+(\d{1,11}(?:\.\d+)?)[ \t]*\r?$", re.MULTILINE)
_TIME_IN_NAME = re.compile(r"(?<![\d.])(\d{9,11}(?:\.\d+)?)(?!\d)")
_ENDINGS = ("", ".prom", ".txt", ".metrics", ".json", ".gz")
_GZIP_MAGIC = b"\x1f\x8b"
_NO_SERIES = "holds no metrics of vLLM, SGLang or TensorRT-LLM"
_SAVE = "save the page that the server shows at /metrics"


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of figures."""

    name: str  # The metric's name.
    labels: Mapping[str, str]  # Label -> value.
    value: float  # The figure; infinite if the text says so, never NaN.
    time: float | None = None  # When it was read, seconds since 1970; None if the line does not say.


def samples_of(text: str) -> list[Sample]:
    """Return the samples of a page of metrics, in its order; invalid lines and NaN are left out."""
    found: list[Sample] = []
    for line in text.splitlines():
        if line.startswith("#") or not line or len(line) > LONGEST_LINE:
            continue
        match = _SAMPLE.fullmatch(line)
        value = math.nan if match is None else _number(match[3])
        if match is None or math.isnan(value):
            continue
        labels = {name: _unescaped(told) for name, told in _LABEL.findall(match[2] or "")}
        found.append(Sample(match[1], labels, value, None if match[4] is None else _seconds(match[4])))
        if len(found) == MOST_SAMPLES:
            break
    return found


def _seconds(text: str) -> float:
    number = float(text)
    return number if "." in text or abs(number) < _MOST_SECONDS else number / 1e3


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _unescaped(text: str) -> str:
    return re.sub(r"\\.", lambda match: _ESCAPED.get(match[0], match[0]), text)


@dataclass(frozen=True, slots=True)
class Scrape:
    """The content of a server's page at one time."""

    time: float | None  # Seconds since 1970; None if unknown.
    samples: Sequence[Sample]  # Its figures, only those of an engine.


def scrapes_of(text: str, where: object, time: float | None = None) -> list[Scrape]:
    """Return the scrapes of a text: one page, several below lines ``# scraped_at SECONDS``, or Prometheus' JSON.

    Args:
        where: Name of the text in errors.
        time: When the page was read, if it does not say.

    Raises:
        InputError: It holds no metrics of an engine.
    """
    if text.lstrip()[:1] == "{":
        found = _of_prometheus(text, where)
    else:
        parts = _MARK.split(text)
        pages = [(time, parts[0]), *((float(at), page) for at, page in zip(parts[1::2], parts[2::2], strict=True))]
        found = [scrape for at, page in pages[:MOST_SCRAPES] for scrape in _of_page(page, at)]
    if not found:
        raise InputError(_NO_SERIES, file=where, remedy=_SAVE)
    return found


def in_order(scrapes: Iterable[Scrape]) -> list[Scrape]:
    """Return scrapes by time, with those of one instant merged; scrapes without a time come first."""
    by_time: dict[float, list[Sample]] = {}
    untimed: list[Scrape] = []
    for scrape in scrapes:
        if scrape.time is None:
            untimed.append(scrape)
        else:
            by_time.setdefault(scrape.time, []).extend(scrape.samples)
    return [*untimed, *(Scrape(time, by_time[time]) for time in sorted(by_time))]


def read_scrapes(path: Path) -> list[Scrape]:
    """Return the scrapes of a file, or of the files of a folder, by time.

    Files may be gzipped. The time of a page comes from a line ``# scraped_at SECONDS``, else from its samples, else
    from the file's name.

    Raises:
        InputError: There is no such file, it is too large, or it holds no metrics of an engine.
    """
    files = sorted(each for each in path.iterdir() if each.suffix in _ENDINGS) if path.is_dir() else [path]
    found: list[Scrape] = []
    size = 0
    for file in files:
        if not file.is_file():
            if path.is_dir():
                continue
            raise InputError("is no file and no folder" if path.exists() else "no such file or folder", file=path)
        size += file.stat().st_size
        _check_size(size, path)
        if len(found) > MOST_SCRAPES:
            raise InputError(f"has more than {MOST_SCRAPES:,} scrapes", file=path, remedy="read fewer hours at once")
        named = _TIME_IN_NAME.search(file.name)
        content = _content(file)
        size += max(len(content) - file.stat().st_size, 0)
        _check_size(size, path)
        text = content.decode("utf-8", errors="replace")
        if not text.strip():
            raise InputError("is empty", file=file, remedy=_SAVE)
        found += scrapes_of(text, file, None if named is None else float(named[1]))
    if not found:
        raise InputError(_NO_SERIES, file=path, remedy="its files end in .prom, .txt or .json, plain or .gz")
    return in_order(found)


def _check_size(size: int, path: Path) -> None:
    if size > LARGEST_FILE:
        raise InputError(f"has more than {LARGEST_FILE // 10**6} MB", file=path, remedy="read fewer hours at once")


def _content(file: Path) -> bytes:
    """Return the bytes of a file, decompressed if it is gzip, at most one more than may be read."""
    try:
        with file.open("rb") as plain:
            is_compressed = plain.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
            plain.seek(0)
            source = gzip.GzipFile(fileobj=plain) if is_compressed else plain
            return source.read(LARGEST_FILE + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error):
        remedy = "copy or download it again"
        raise InputError("is a truncated or damaged gzip file", file=file, remedy=remedy) from None
    except OSError as failure:
        raise InputError(f"cannot be read: {failure.strerror}", file=file) from None


def text_of(scrape: Scrape) -> str:
    """Return a scrape as text for `scrapes_of`; it contains the labels of its samples and nothing else."""
    lines = [] if scrape.time is None else [f"{MARK}{scrape.time:.3f}"]
    for sample in scrape.samples:
        labels = ",".join(f'{name}="{_escaped(value)}"' for name, value in sample.labels.items())
        lines.append(f"{sample.name}{{{labels}}} {sample.value!r}")
    return "\n".join(lines) + "\n"


def _of_page(page: str, time: float | None) -> Iterator[Scrape]:
    """Yield the scrapes of a page: one, or as many as its samples have times."""
    by_time: dict[float | None, list[Sample]] = {}
    for sample in samples_of(page):
        if sample.name.startswith(PREFIXES) or sample.name == START:
            by_time.setdefault(time if sample.time is None else sample.time, []).append(sample)
    for at, samples in by_time.items():
        if any(sample.name.startswith(PREFIXES) for sample in samples):
            yield Scrape(at, samples)


def _of_prometheus(text: str, where: object) -> list[Scrape]:
    """Return the scrapes in the answer to a range query, https://prometheus.io/docs/prometheus/latest/querying/api/."""
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        answer = None
    status = answer.get("status") if isinstance(answer, dict) else None
    if status == "error":
        raise InputError(f"Prometheus refuses: {str(answer.get('error'))[:200]}", file=where)
    inner = answer.get("data") if isinstance(answer, dict) else None
    rows = inner.get("result") if isinstance(inner, dict) else None
    if status != "success" or not isinstance(rows, list):
        raise InputError("is no answer of Prometheus", file=where, remedy="save that of /api/v1/query_range")
    by_time: dict[float, list[Sample]] = {}
    for row in rows:
        labels = _labels_of(row)
        name = labels.pop("__name__", "")
        if not name.startswith(PREFIXES):
            continue
        for at, value in _points_of(row):
            by_time.setdefault(at, []).append(Sample(name, labels, value))
            if len(by_time) > MOST_SCRAPES:
                raise InputError(f"has more than {MOST_SCRAPES:,} times", file=where, remedy="ask for a longer step")
    return [Scrape(at, by_time[at]) for at in sorted(by_time)]


def _labels_of(row: object) -> dict[str, str]:
    metric = row.get("metric") if isinstance(row, dict) else None
    if not isinstance(metric, dict):
        return {}
    return {name: value for name, value in metric.items() if isinstance(name, str) and isinstance(value, str)}


def _points_of(row: Mapping[str, Any]) -> Iterator[tuple[float, float]]:
    """Yield those times and values that are numbers."""
    points = row.get("values")
    for point in points if isinstance(points, list) else [row.get("value")]:
        if not isinstance(point, list) or len(point) != 2:
            continue
        try:
            at, value = float(point[0]), float(point[1])
        except (TypeError, ValueError, OverflowError):
            continue
        if math.isfinite(at) and at >= 0 and not math.isnan(value):
            yield at, value


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
