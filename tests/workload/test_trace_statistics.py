"""What is said of a trace: hand-worked figures, and Poisson traffic that shows as such."""

from __future__ import annotations

import math

import numpy as np
import pytest

from simserve.workload.traces.statistics import arrival_statistics, length_statistics
from simserve.workload.traces.trace import PrefixBlocks, Trace


def make_trace(times: list[float]) -> Trace:
    """Return a trace with requests at these times."""
    ones = np.ones(len(times), dtype=np.int64)
    return Trace(arrival_time=np.array(times, dtype=np.float64), prompt_tokens=ones, output_tokens=ones)


def test_arrivals_are_counted_from_the_first() -> None:
    """Three requests in the first minute, one in the second, one in the third, over 150 s."""
    found = arrival_statistics(make_trace([10, 20, 30, 80, 160]).arrival_time)

    assert found is not None
    assert found.span_s == 150
    assert found.mean_rate == pytest.approx(4 / 150)
    assert found.peak_rate == pytest.approx(3 / 60)
    gaps = np.array([10, 10, 50, 80])
    assert found.interarrival_cv == pytest.approx(gaps.std(ddof=1) / gaps.mean())


def test_minutes_are_compared_from_five_of_them_on() -> None:
    """Counts of 3, 1, 1, 1 and 2 a minute; of two minutes with as many requests each, "0 (Poisson: 1)" stood there."""
    times = [10, 20, 30, 80, 140, 200, 260, 270]

    found = arrival_statistics(make_trace([*times, 320]).arrival_time)
    short = arrival_statistics(make_trace([*times, 300]).arrival_time)

    assert found is not None
    assert short is not None
    assert found.dispersion_index == pytest.approx(0.8 / 1.6)
    assert math.isnan(short.dispersion_index)


def test_what_is_not_known_is_nan_or_none() -> None:
    """No times, one instant, less than a minute."""
    assert arrival_statistics(make_trace([math.nan, math.nan]).arrival_time) is None
    instant = arrival_statistics(make_trace([3.0, 3.0]).arrival_time)
    assert instant is not None
    assert math.isnan(instant.mean_rate)
    assert math.isnan(instant.peak_rate)
    short = arrival_statistics(make_trace([0.0, 1.0, 3.0]).arrival_time)
    assert short is not None
    assert math.isnan(short.dispersion_index)


def test_poisson_traffic_shows_as_poisson() -> None:
    """Both measures are 1 within their spread over an hour of 36,000 requests (4 standard errors)."""
    generator = np.random.default_rng(7)
    found = arrival_statistics(make_trace(np.cumsum(generator.exponential(0.1, 36_000)).tolist()).arrival_time)

    assert found is not None
    assert found.interarrival_cv == pytest.approx(1.0, abs=4 / math.sqrt(36_000) * math.sqrt(2))
    assert found.dispersion_index == pytest.approx(1.0, abs=4 * math.sqrt(2 / 59))


def test_lengths_have_mean_spread_and_percentiles() -> None:
    """As numpy has them."""
    found = length_statistics(np.arange(1, 102, dtype=np.int64))

    assert (found.total, found.mean, found.minimum, found.maximum) == (5151, 51.0, 1, 101)
    assert found.as_mapping()["p50"] == 51
    assert found.as_mapping()["p90"] == 91
    assert found.cv == pytest.approx(np.arange(1, 102).std(ddof=1) / 51)


def test_reuse_is_the_share_of_blocks_seen_before() -> None:
    """Of none it is undefined."""
    ids = np.array([1, 2, 1, 3], dtype=np.int64)

    assert PrefixBlocks(block_tokens=16, ids=ids, counts=np.array([2, 2])).reuse == 0.25
    assert math.isnan(PrefixBlocks(block_tokens=16, ids=ids[:0], counts=np.array([0])).reuse)


def test_the_busiest_minute_of_a_short_trace_is_all_of_it() -> None:
    """21 requests in 10 s are 2.1 a second, though a minute would hold no more."""
    found = arrival_statistics(np.linspace(0.0, 10.0, 21))

    assert found is not None
    assert found.peak_rate == pytest.approx(2.1)
