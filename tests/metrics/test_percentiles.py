"""Percentiles: numpy's own figures, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simserve.metrics.latency import percentiles

SHARES = (0, 1, 12.5, 50, 90, 95, 99, 99.9, 100)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=60))
def test_they_are_numpys(values: list[float]) -> None:
    """Of any values, one alone among them."""
    assert percentiles(np.array(values), SHARES) == np.percentile(np.array(values), SHARES).tolist()


@pytest.mark.parametrize("count", [999, 1000, 20_001])
def test_they_are_numpys_of_many(count: int) -> None:
    """Infinite waits included."""
    values = np.random.default_rng(count).lognormal(size=count)
    values[0] = np.inf

    assert percentiles(values, SHARES[:-1]) == np.percentile(values, SHARES[:-1]).tolist()
