"""Lengths of requests from an engine's histogram: a lognormal fitted to it, or lengths in its proportions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.observe.windows import Counts
from simserve.workload.distributions import length_distribution
from simserve.workload.length_spec import LognormalLength

MOST_LENGTH = 10_000_000  # Largest length that is accepted, tokens.
WORST_DISTANCE = 0.1
"""Largest distance between the shares of a histogram and of a lognormal up to any bound at which the lognormal is
used; above it, lengths are drawn in the histogram's proportions."""

_CVS = np.geomspace(0.05, 5.0, 24)
_QUANTILES = 1_000


def lengths_like(counts: Counts, num_requests: int, shape: NDArray[np.float64] | None = None) -> NDArray[np.int64]:
    """Return lengths in ascending order, in the proportions of a histogram and with its mean.

    Within a bucket they are distributed like the lengths of ``shape`` there, if it has any, or else evenly over the
    logarithm. All are then shifted within their buckets until the mean is met, as far as that is possible.

    Args:
        counts: The histogram; it must hold a value.
        shape: Expected lengths, ascending; None: nothing is known of them.
    """
    bounds, values = counts.bounds(), counts.values()
    if not values.sum():
        return np.full(num_requests, _whole(counts.mean))
    top = bounds[np.isfinite(bounds)].max(initial=1.0)
    highs = np.where(np.isfinite(bounds), bounds, max(2 * top, 2 * counts.mean))
    highs = np.clip(highs, 1.0, MOST_LENGTH)
    lows = np.concatenate([[0.0], highs[:-1]])
    shares = np.concatenate([[0.0], np.cumsum(values) / values.sum()])
    places = (np.arange(num_requests) + 0.5) / num_requests
    bucket = np.clip(np.searchsorted(shares, places, side="left") - 1, 0, len(values) - 1)
    width = np.maximum(shares[bucket + 1] - shares[bucket], 1e-300)
    inside = np.clip((places - shares[bucket]) / width, 0.0, 1.0)
    low, high = np.minimum(lows[bucket] + 1, highs[bucket]), highs[bucket]
    known = np.ones(1) if shape is None or not len(shape) else shape
    first = np.searchsorted(known, lows[bucket], side="right")
    num_known = np.searchsorted(known, highs[bucket], side="right") - first
    has_shape = (num_known > 0) & (shape is not None)

    def at(bend: float) -> NDArray[np.float64]:
        """Return lengths that move towards the upper ends of their buckets as ``bend`` falls."""
        bent = inside**bend
        place = np.minimum(first + np.minimum((bent * num_known).astype(np.int64), num_known - 1), len(known) - 1)
        return np.asarray(np.where(has_shape, known[place], low * (high / low) ** bent), dtype=np.float64)

    left, right = 0.02, 50.0
    for _ in range(40):
        middle = math.sqrt(left * right)
        if at(middle).mean() > counts.mean:
            left = middle
        else:
            right = middle
    return np.clip(np.rint(at(right)), 1, MOST_LENGTH).astype(np.int64)


def lognormal(mean: float, cv: float, longest: int) -> dict[str, Any]:
    """Return the block of lognormal lengths, tokens."""
    return {"distribution": "lognormal", "mean": mean, "cv": cv, "max": longest}


def fitted_block(counts: Counts) -> tuple[dict[str, Any], float]:
    """Return the lognormal closest to a histogram, with the same mean, and its distance from it.

    The distance is the Kolmogorov-Smirnov distance at the histogram's bounds.
    """
    mean = float(f"{max(counts.mean, 1.0):.5g}")
    bounds, values = counts.bounds(), counts.values()
    filled = np.flatnonzero(values)
    if not len(filled) or mean <= 1.0:
        return {"distribution": "fixed", "value": _whole(mean)}, 0.0
    finite = np.isfinite(bounds)
    shares = np.cumsum(values)[finite] / values.sum()
    last = bounds[filled[-1]]
    longest = int(min(last if math.isfinite(last) else 4 * max(bounds[finite], default=mean), MOST_LENGTH))
    best: tuple[float, dict[str, Any]] = 1.0, {"distribution": "fixed", "value": _whole(mean)}
    for cv in _CVS:
        block = lognormal(mean, float(f"{cv:.3g}"), max(longest, _whole(mean) + 1))
        try:
            fitted = length_distribution(LognormalLength.model_validate(block))
        except ValueError:  # a truncated lognormal cannot reach such a mean
            continue
        cumulative = np.concatenate([[0.0], np.cumsum(fitted.probabilities)])
        reached = cumulative[np.searchsorted(fitted.values, bounds[finite], side="right")]
        distance = float(np.abs(reached - shares).max(initial=0.0))
        if distance < best[0]:
            best = distance, block
    return best[1], best[0]


def drawn_text(counts: Counts, column: str) -> str:
    """Return a file of lengths in the histogram's proportions, for ``distribution: empirical``."""
    return f"{column}\n" + "".join(f"{length}\n" for length in lengths_like(counts, _QUANTILES))


def _whole(mean: float) -> int:
    return int(min(max(round(mean), 1), MOST_LENGTH))
