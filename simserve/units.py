"""Quantities with units: ``"3.35 TB/s"`` to SI and back. Decimal and binary prefixes are kept apart.

Inside simserve every quantity is in SI: seconds, bytes, bytes/s, FLOP/s, watts. YAML carries the unit. This
module knows no field of any schema.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import Annotated

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema

from simserve.errors import UsageError

GIB = 2.0**30
"""Bytes of a GiB."""

_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": GIB, "Ti": 2.0**40}

SECONDS_PER_HOUR = 3600.0
HOURS_PER_DAY = 24
DAYS_PER_MONTH = 30
HOURS_PER_MONTH = HOURS_PER_DAY * DAYS_PER_MONTH
SECONDS_PER_MONTH = HOURS_PER_MONTH * 3600
MONTHS_PER_YEAR = 12
"""A month is 30 days, as prices are compared in this field; a year is twelve of them."""

_TIME = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_TIME |= {"sec": 1.0, "hour": 3600.0, "hours": 3600.0, "day": 86400.0, "days": 86400.0, "week": 604800.0}
_TIME |= {"minute": 60.0, "minutes": 60.0, "second": 1.0, "seconds": 1.0, "weeks": 604800.0}
_BYTES = {f"{prefix}B": factor for prefix, factor in (_DECIMAL | _BINARY).items()}
_BANDWIDTH = {f"{unit}/s": factor for unit, factor in _BYTES.items()}
_BANDWIDTH |= {f"{prefix}bit/s": factor / 8 for prefix, factor in _DECIMAL.items()}
_FLOPS = {
    f"{prefix}{unit}": factor
    for prefix, factor in _DECIMAL.items()
    for unit in ("FLOP/s", "FLOPS", "FLOPs", "OP/s", "OPS")
}
_WATTS = {f"{prefix}W": factor for prefix, factor in _DECIMAL.items()}

_DIMENSIONS: dict[str, tuple[dict[str, float], str]] = {
    "time": (_TIME, "500 ms"),
    "bytes": (_BYTES, "80 GB"),
    "bandwidth": (_BANDWIDTH, "3.35 TB/s"),
    "compute": (_FLOPS, "989 TFLOP/s"),
    "power": (_WATTS, "700 W"),
}
DIMENSIONS_BY_EXAMPLE = {example: dimension for dimension, (_, example) in _DIMENSIONS.items()}
"""The dimension for each example text of a schema."""
_REMEMBERED = 4096
"""Quantities whose text is kept: a search writes the same few of a scenario for every deployment it evaluates."""
_BITS = re.compile(r"([kKMGT]?)(?:b/s|bps|bits/s)")  # Bits a second as networks are sold, which may mean bytes.
_QUANTITY = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-zµ/]+)\s*")


def parse(value: object, dimension: str) -> float:
    """Return ``value`` in SI.

    Args:
        value: A string with a unit, such as ``"80 GB"`` or ``"64 GiB"``.
        dimension: One of ``time, bytes, bandwidth, compute, power``.

    Raises:
        ValueError: The value is a bare number, has an unknown unit, is negative or is not finite. The message is a rule
            and a remedy without the value, ready to follow a key path.
    """
    units, example = _DIMENSIONS[dimension]
    if isinstance(value, bool) or not isinstance(value, str):
        raise ValueError(f'needs a unit of {dimension}; write it as a string, for example "{example}"')
    match = _QUANTITY.fullmatch(value)
    if match is None:
        raise ValueError(f'is not a number with a unit of {dimension}; write for example "{example}"')
    number, unit = float(match[1]), match[2]
    if unit not in units:
        known = ", ".join(sorted(units, key=lambda name: (len(name), name))[:12])
        bits = _BITS.fullmatch(unit) if dimension == "bandwidth" else None
        if bits is not None:
            example = f"{match[1]} {bits[1]}bit/s"
        raise ValueError(
            f'has the unit "{unit}", which is not one of {dimension} ({known}, ...); write for example "{example}"'
        )
    quantity = number * units[unit]
    if not math.isfinite(quantity) or quantity < 0:
        raise ValueError("must be finite and not negative")
    return quantity


def _annotation(dimension: str) -> tuple[BeforeValidator, PlainSerializer, WithJsonSchema]:
    example = _DIMENSIONS[dimension][1]
    schema = {"type": "string", "description": f"{dimension} with its unit", "examples": [example]}
    return (
        BeforeValidator(lambda value: parse(value, dimension)),
        PlainSerializer(lambda value: to_text(value, dimension), when_used="json"),
        WithJsonSchema(schema),
    )


@lru_cache(maxsize=_REMEMBERED)
def to_text(value: float, dimension: str) -> str:
    """Return SI as the shortest text with a unit that `parse` reads back exactly: ``'500 ms'``."""
    units = _DIMENSIONS[dimension][0]
    base = next(unit for unit, factor in units.items() if factor == 1.0)
    candidates = [f"{_number(value)} {base}"]
    for unit, factor in units.items():
        number = value / factor
        if not math.isfinite(number):
            continue
        text = f"{_number(number)} {unit}"
        if _reads_back(text, dimension, value):
            candidates.append(text)
    return min(candidates, key=len)


def _reads_back(text: str, dimension: str, value: float) -> bool:
    try:
        return parse(text, dimension) == value
    except ValueError:  # rounding up near the largest float overflows
        return False


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)


Seconds = Annotated[float, *_annotation("time")]
Bytes = Annotated[float, *_annotation("bytes")]
BytesPerSecond = Annotated[float, *_annotation("bandwidth")]
FlopsPerSecond = Annotated[float, *_annotation("compute")]
Watts = Annotated[float, *_annotation("power")]


def _whole_bytes(value: object) -> object:
    """Return the bytes named by a text with a unit; a number is returned unchanged."""
    return round(parse(value, "bytes")) if isinstance(value, str) else value


WholeBytes = Annotated[
    int,
    BeforeValidator(_whole_bytes),
    WithJsonSchema(
        {
            "anyOf": [{"type": "integer", "minimum": 1}, {"type": "string"}],
            "description": "bytes, as a number or with their unit",
            "examples": ["2 GB"],
        }
    ),
]
"""Bytes for a key whose name says so: a bare number, or a text with a unit."""

PositiveSeconds = Annotated[Seconds, Field(gt=0)]
PositiveBytes = Annotated[Bytes, Field(gt=0)]
PositiveBytesPerSecond = Annotated[BytesPerSecond, Field(gt=0)]
PositiveFlopsPerSecond = Annotated[FlopsPerSecond, Field(gt=0)]
PositiveWatts = Annotated[Watts, Field(gt=0)]


def format_bytes(value: float) -> str:
    """Return bytes with a decimal prefix: ``format_bytes(141e9) == '141 GB'``."""
    return _scaled(value, "B")


def format_bandwidth(value: float) -> str:
    """Return bytes per second with a decimal prefix: ``'3.35 TB/s'``."""
    return _scaled(value, "B/s")


def format_compute(value: float) -> str:
    """Return FLOP per second with a decimal prefix: ``'989 TFLOP/s'``."""
    return _scaled(value, "FLOP/s")


def format_seconds(value: float) -> str:
    """Return a duration in a suitable unit: ``'4.18 ms'``, ``'12.3 s'``, ``'25.0 min'``."""
    if not math.isfinite(value):
        return "unbounded" if value > 0 else "undefined"
    if not value:
        return "0 s"
    magnitude = abs(value)
    for limit, unit, factor in ((1e-3, "us", 1e6), (1.0, "ms", 1e3), (120.0, "s", 1.0), (7200.0, "min", 1 / 60)):
        if magnitude < limit:
            return f"{value * factor:.3g} {unit}"
    return f"{value / 3600:.3g} h"


def _scaled(value: float, unit: str) -> str:
    for prefix in ("P", "T", "G", "M", "k"):
        if abs(value) >= 0.9995 * _DECIMAL[prefix]:
            return f"{value / _DECIMAL[prefix]:.4g} {prefix}{unit}"
    return f"{value:.4g} {unit}"


_RATE = re.compile(
    r"((?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?)\s*(k?|m(?=[^/m]*/))\s*"
    r"(?:(?:req(?:uests)?|r)?\s*/\s*(s|sec|second|min|minute|h|hour|d|day|w|week|month)|(rpm)|rps|req|qps)?",
    re.IGNORECASE,
)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400, "month": 30 * 86400}
_MULTIPLES = {"": 1, "k": 1000, "m": 1_000_000}


def requests_per_second(text: str | float) -> float:
    """Return requests a second from ``3``, ``3/s``, ``90/min``, ``10k/h``, ``5M/day``, ``40M/week``, ``150M/month``.

    ``inf`` is what `vllm bench serve --request-rate inf` sends: all requests at once.

    Raises:
        UsageError: It is not a rate, or is 0.
    """
    if str(text).strip().lower() == "inf":
        return math.inf
    found = _RATE.fullmatch(str(text).strip().replace(",", ""))
    if found is None or not float(found[1]):
        remedy = "write 3 (requests a second), 3/s, 90/min, 10k/h, 5M/day, 40M/week or 150M/month; inf: all at once"
        raise UsageError("is no rate" if found is None else "must be above 0", key="--rate", value=text, remedy=remedy)
    multiple, unit = found[2].lower(), (found[3] or ("m" if found[4] else "s")).lower()
    return float(found[1]) * _MULTIPLES[multiple] / _SECONDS["month" if unit == "month" else unit[0]]
