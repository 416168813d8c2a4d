"""Quantities with units."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from simserve.units import (
    Bytes,
    Seconds,
    format_bandwidth,
    format_bytes,
    format_compute,
    format_seconds,
    parse,
    to_text,
)


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("500 ms", "time", 0.5),
        ("250us", "time", 250e-6),
        ("10 min", "time", 600.0),
        ("2 h", "time", 7200.0),
        ("80 GB", "bytes", 80e9),
        ("64 GiB", "bytes", 64 * 2**30),
        ("1.5e3 kB", "bytes", 1.5e6),
        ("3.35 TB/s", "bandwidth", 3.35e12),
        ("400 Gbit/s", "bandwidth", 50e9),
        ("989 TFLOP/s", "compute", 989e12),
        ("1979 TOPS", "compute", 1979e12),
        ("700 W", "power", 700.0),
        ("0.7 kW", "power", 700.0),
        ("  0 s ", "time", 0.0),
    ],
)
def test_a_number_with_a_unit(text: str, dimension: str, value: float) -> None:
    """Decimal and binary prefixes, bits and bytes, with or without a space."""
    assert parse(text, dimension) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    ("value", "dimension", "message"),
    [
        (80, "bytes", 'needs a unit of bytes; write it as a string, for example "80 GB"'),
        (True, "time", "needs a unit of time"),
        (None, "time", "needs a unit of time"),
        ("80", "bytes", 'is not a number with a unit of bytes; write for example "80 GB"'),
        ("fast", "bandwidth", "is not a number with a unit of bandwidth"),
        ("5 GB", "bandwidth", 'has the unit "GB", which is not one of bandwidth'),
        ("5 Gb", "bytes", 'has the unit "Gb"'),
        ("-1 s", "time", "must be finite and not negative"),
        ("1e400 s", "time", "must be finite and not negative"),
        ("nan s", "time", "is not a number with a unit"),
    ],
)
def test_what_is_refused(value: object, dimension: str, message: str) -> None:
    """The rule, and an example of what to write."""
    with pytest.raises(ValueError) as error:
        parse(value, dimension)

    assert str(error.value).startswith(message)


def test_a_unit_of_another_size_is_not_the_same() -> None:
    """80 GB and 80 GiB differ by 7 %."""
    assert parse("80 GiB", "bytes") / parse("80 GB", "bytes") == pytest.approx(1.0737, abs=1e-4)


@pytest.mark.parametrize("dimension", ["time", "bytes", "bandwidth", "compute", "power"])
@given(value=st.floats(0, 1e18))
def test_text_reads_back_exactly(value: float, dimension: str) -> None:
    """What is written is read back to the last bit."""
    assert parse(to_text(value, dimension), dimension) == value


@pytest.mark.parametrize(
    ("value", "dimension", "text"),
    [(0.5, "time", "500 ms"), (80e9, "bytes", "80 GB"), (600.0, "time", "600 s"), (3.35e12, "bandwidth", "3.35 TB/s")],
)
def test_text_is_short(value: float, dimension: str, text: str) -> None:
    """The shortest spelling, or one as short."""
    assert len(to_text(value, dimension)) <= len(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (format_bytes(141e9), "141 GB"),
        (format_bytes(999.96e6), "1 GB"),
        (format_bytes(12), "12 B"),
        (format_bytes(-3e9), "-3 GB"),
        (format_bandwidth(3.35e12), "3.35 TB/s"),
        (format_compute(989e12), "989 TFLOP/s"),
        (format_seconds(4.18e-3), "4.18 ms"),
        (format_seconds(2.5e-5), "25 us"),
        (format_seconds(12.34), "12.3 s"),
        (format_seconds(1500.0), "25 min"),
        (format_seconds(7200.0), "2 h"),
        (format_seconds(math.inf), "unbounded"),
        (format_seconds(math.nan), "undefined"),
    ],
)
def test_for_people(text: str, expected: str) -> None:
    """In the unit a person would choose."""
    assert text == expected


class Limits(BaseModel):
    """A model with quantities."""

    wait: Seconds
    memory: Bytes


def test_fields_hold_si_and_write_units() -> None:
    """In Python a field is in seconds or bytes; in JSON it carries its unit again."""
    limits = Limits.model_validate({"wait": "500 ms", "memory": "80 GB"})

    assert (limits.wait, limits.memory) == (0.5, 80e9)
    assert Limits.model_validate_json(limits.model_dump_json()) == limits


def test_the_schema_says_text_with_a_unit() -> None:
    """An editor sees a string and an example."""
    wait = Limits.model_json_schema()["properties"]["wait"]

    assert wait["type"] == "string"
    assert wait["examples"] == ["500 ms"]


@pytest.mark.parametrize("value", [1e300, 1.7e308, 5e-324])
def test_extreme_values_have_a_text(value: float) -> None:
    """A prefix that would overflow is passed over."""
    assert parse(to_text(value, "time"), "time") == value


@pytest.mark.parametrize("text", ["400Gbps", "400 Gb/s", "400 Gbits/s"])
def test_bits_a_second_are_asked_to_be_spelled_out(text: str) -> None:
    """As networks are sold; a lower-case b is too near to bytes to be taken for bits."""
    with pytest.raises(ValueError, match='write for example "400 Gbit/s"'):
        parse(text, "bandwidth")

    assert parse("400 Gbit/s", "bandwidth") == 50e9
