"""Scrapes of an engine's ``/metrics`` over time, out of files: text with times, folders of it, Prometheus' answers.

Knows how scrapes are written down, not what they mean; reads no URL. Their text is read within bounds: any text gives
samples or none. Formats: https://prometheus.io/docs/instrumenting/exposition_formats/ and OpenMetrics, whose exemplars
are passed over.
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

MOST_SAMPLES = 200_000
"""Samples that are read; a server of one model writes some thousands."""
LONGEST_LINE = 65_536
"""Characters of a line that is looked at."""
_SAMPLE = re.compile(
    r"([a-zA-Z_:][a-zA-Z0-9_:]*)"
    r"(?:\{((?:[^\"}]|\"(?:[^\"\\]|\\.)*\")*)\})?"
    r"[ \t]+([^ \t]+)(?:[ \t]+(-?\d{1,17}(?:\.\d{1,9})?))?[ \t]*(?:# .*)?"
)
_LABEL = re.compile(r"([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*\"((?:[^\"\\]|\\.)*)\"")
_MOST_SECONDS = 1e11
"""Times below are in seconds (OpenMetrics), those from here on in milliseconds (Prometheus' own format)."""
_ESCAPED = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}
LARGEST_FILE = 256_000_000
"""Bytes of all the files that are read."""
MOST_SCRAPES = 50_000
"""Scrapes that are read: a week at one every 15 s is 40,320."""
MARK = "# scraped_at "
"""Begins a line that says when the scrape below it was made, seconds since 1970."""
PREFIXES = ("vllm:", "sglang:", "trtllm_", "trtllm:")
"""How the metrics of an engine that is read begin."""
START = "process_start_time_seconds"
_MARK = re.compile(r"^#[ \t]+scraped_at[ \t]+(\d{1,11}(?:\.\d+)?)[ \t]*\r?$", re.MULTILINE)
_TIME_IN_NAME = re.compile(r"(?<![\d.])(\d{9,11}(?:\.\d+)?)(?!\d)")
_ENDINGS = ("", ".prom", ".txt", ".metrics", ".json", ".gz")
_GZIP_MAGIC = b"\x1f\x8b"
_NO_SERIES = "holds no metrics of vLLM, SGLang or TensorRT-LLM"


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of figures.

    Attributes:
        name: The metric's name.
        labels: Label -> value.
        value: The figure; infinite where the text says so, never NaN.
        time: When it was read, seconds since 1970; None: the line does not say.
    """

    name: str
    labels: Mapping[str, str]
    value: float
    time: float | None = None


def samples_of(text: str) -> list[Sample]:
    """Return the samples of a page of metrics, in its order; lines that are none, and NaN, are left out."""
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
    told = float(text)
    return told if "." in text or abs(told) < _MOST_SECONDS else told / 1e3


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _unescaped(text: str) -> str:
    return re.sub(r"\\.", lambda match: _ESCAPED.get(match[0], match[0]), text)


@dataclass(frozen=True, slots=True)
class Scrape:
    """What a server's page said at one time.

    Attributes:
        time: Seconds since 1970; None: not known.
        samples: Its figures, those of an engine alone.
    """

    time: float | None
    samples: Sequence[Sample]


def scrapes_of(text: str, where: object, time: float | None = None) -> list[Scrape]:
    """Return the scrapes of a text: one page, several below lines ``# scraped_at SECONDS``, or Prometheus' JSON.

    Args:
        text: What was read.
        where: Names it in errors.
        time: When a page was read that does not say it.

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
        raise InputError(_NO_SERIES, file=where, remedy="save the page that the server shows at /metrics")
    return found


def in_order(scrapes: Iterable[Scrape]) -> list[Scrape]:
    """Return scrapes by their time, those of one instant together; what has no time comes first."""
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

    Files may be compressed by gzip. A page's time is that of a line ``# scraped_at SECONDS``, else of its samples, else
    of the file's name.

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
            raise InputError("no such file or folder", file=path)
        size += file.stat().st_size
        _check_size(size, path)
        if len(found) > MOST_SCRAPES:
            raise InputError(f"has more than {MOST_SCRAPES:,} scrapes", file=path, remedy="read fewer hours at once")
        named = _TIME_IN_NAME.search(file.name)
        content = _content(file)
        size += max(len(content) - file.stat().st_size, 0)
        _check_size(size, path)
        text = content.decode("utf-8", errors="replace")
        found += scrapes_of(text, file, None if named is None else float(named[1]))
    if not found:
        raise InputError(_NO_SERIES, file=path, remedy="its files end in .prom, .txt or .json, plain or .gz")
    return in_order(found)


def _check_size(size: int, path: Path) -> None:
    if size > LARGEST_FILE:
        raise InputError(f"has more than {LARGEST_FILE // 10**6} MB", file=path, remedy="read fewer hours at once")


def _content(file: Path) -> bytes:
    """Return the bytes of a file, decompressed if it is gzip, one more than may be read at most.

    Raises:
        InputError: It cannot be read, or is a damaged gzip file.
    """
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
    """Return a scrape as `scrapes_of` reads it; what its samples are labelled with stands in it, nothing else."""
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
    """Yield times and values, those that are numbers."""
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
