"""Prometheus' text format as a server's ``/metrics`` writes it, read within bounds: any text gives samples or none.

Formats: https://prometheus.io/docs/instrumenting/exposition_formats/ and OpenMetrics, whose exemplars are passed over.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

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
