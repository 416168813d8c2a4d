"""Percentiles by numpy's linear rule, to the bit, without sorting: of a million values in a few milliseconds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def percentiles(values: NDArray[np.float64], shares: Sequence[float]) -> list[float]:
    """Return what ``np.percentile(values, shares)`` returns.

    Values are parted at one percentile after the other, the smallest first: what lies below it is looked at no more.

    Args:
        values: At least one, none of them NaN.
        shares: In 0..100.
    """
    left, gone = values.copy(), 0
    found: dict[float, float] = {}
    for share in sorted(set(shares)):
        place = (len(values) - 1) * (share / 100)
        before = min(int(place), len(values) - 1)
        left.partition(before - gone)
        left, gone = left[before - gone :], before
        low = float(left[0])
        found[share] = low if len(left) == 1 else _between(low, float(left[1:].min()), place - before)
    return [found[share] for share in shares]


def _between(low: float, high: float, part: float) -> float:
    # As numpy interpolates: from the nearer end, so that it is monotone.
    return high - (high - low) * (1.0 - part) if part >= 0.5 else low + (high - low) * part
