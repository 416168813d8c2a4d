"""Numbers as a reader wants them."""

from __future__ import annotations

import math

import pytest

from simserve.report.quantities import (
    UNDEFINED,
    count,
    counted,
    dollars,
    latency,
    latency_unit,
    listed,
    number,
    share,
    text_columns,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.04271, "0.0427"),
        (9.996, "10.0"),
        (17.6157, "17.6"),
        (336.2, "336"),
        (1130.4, "1,130"),
        (1.5e7, "15,000,000"),
        (None, UNDEFINED),
        (math.nan, UNDEFINED),
    ],
)
def test_number_has_three_digits_and_no_power_of_ten(value: float | None, text: str) -> None:
    """Whole digits are never dropped, undefined is a dash."""
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0%"),
        (1, "100%"),
        (0.00001, "<0.01%"),
        (0.99999, ">99.99%"),
        (0.9996, "99.96%"),
        (0.949, "94.9%"),
        (0.434, "43%"),
        (0.0209, "2.1%"),
        (None, UNDEFINED),
    ],
)
def test_only_nothing_is_zero_and_only_everything_is_all(value: float | None, text: str) -> None:
    """A share is never rounded to 0 % or 100 %."""
    assert share(value) == text


def test_dollars_have_cents_from_a_dollar_on() -> None:
    """Small prices keep three digits."""
    assert [dollars(each) for each in (15.96, 0.000817855, 12345.6, None)] == [
        "$15.96",
        "$0.000818",
        "$12,346",
        UNDEFINED,
    ]


def test_counts_are_whole_unless_they_are_means() -> None:
    """A mean over replications keeps a decimal."""
    assert (count(5000), count(2.5), count(None)) == ("5,000", "2.5", UNDEFINED)
    assert (counted(1, "GPU"), counted(4, "GPU")) == ("1 GPU", "4 GPUs")


def test_long_latencies_are_in_seconds() -> None:
    """From ten seconds on."""
    assert latency_unit(9_999)[0] == "ms"
    assert latency_unit(10_000) == ("s", 1000.0)
    assert latency_unit(None)[0] == "ms"


def test_a_latency_carries_its_unit() -> None:
    """Milliseconds up to ten seconds."""
    assert [latency(each) for each in (0.4271, 299.4, 9_900.0, 10_074.0, None)] == [
        "0.427 ms",
        "299 ms",
        "9,900 ms",
        "10.1 s",
        UNDEFINED,
    ]


def test_lists_end_with_and() -> None:
    """One, two and three items."""
    assert [listed(items) for items in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == ["", "a", "a and b", "a, b and c"]


def test_a_column_is_of_words_unless_each_cell_is_a_figure() -> None:
    """Signs, units and dashes go with figures; digits within a word do not; the first column names its row."""
    rows = [("1", "+54% ±3.1", UNDEFINED, "h100-sxm-80gb", "-"), ("2", "(equal)", "$1,000", "4 x a100", "no")]

    assert text_columns(rows) == (True, False, False, True, True)
    assert text_columns([]) == ()
