"""Lengths in the proportions of an engine's histogram."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest

from simserve.observe.windows import Counts
from simserve.planner.importers.lengths import fitted_block, lengths_like

HISTOGRAM = {10.0: 50.0, 100.0: 30.0, 1000.0: 20.0, math.inf: 0.0}


@pytest.mark.parametrize("mean", [60.0, 100.0, 150.0])
def test_every_bucket_has_its_share_and_all_have_the_mean(mean: float) -> None:
    """Half up to 10 tokens, 30 % up to 100, 20 % up to 1,000: moved within these until the mean is met."""
    lengths = lengths_like(Counts(dict(HISTOGRAM), total=100 * mean, count=100), 1000)

    buckets = np.searchsorted([10, 100, 1000], lengths, side="left")
    assert np.bincount(buckets).tolist() == [500, 300, 200]
    assert lengths.mean() == pytest.approx(mean, rel=0.01)
    assert (np.diff(lengths) >= 0).all()


def test_known_lengths_give_a_bucket_its_shape() -> None:
    """Those that are known between 11 and 100 are all 40; below and above nothing is known."""
    counts = Counts(dict(HISTOGRAM), total=100 * 100.0, count=100)
    lengths = lengths_like(counts, 1000, np.full(5, 40.0))

    assert set(lengths[500:800].tolist()) == {40}
    assert lengths.mean() == pytest.approx(100.0, rel=0.01)


def test_a_lognormal_fits_its_own_histogram() -> None:
    """Quantiles of mean 400 and cv 1, counted into buckets: the closest lognormal is near at every bound."""
    sigma = math.sqrt(math.log(2.0))
    normal = NormalDist(math.log(400.0) - sigma**2 / 2, sigma)
    drawn = np.array([max(round(math.exp(normal.inv_cdf((place + 0.5) / 5000))), 1) for place in range(5000)])
    bounds = [50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, math.inf]
    counted = np.bincount(np.searchsorted(bounds, drawn, side="left"), minlength=len(bounds))
    counts = Counts(dict(zip(bounds, map(float, counted), strict=True)), total=float(drawn.sum()), count=5000.0)

    block, distance = fitted_block(counts)

    assert block["distribution"] == "lognormal"
    assert block["mean"] == pytest.approx(400.0, rel=0.02)
    assert block["cv"] == pytest.approx(1.0, rel=0.15)
    assert distance < 0.02
