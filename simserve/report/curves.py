"""Readable curves from any number of points: pure arrays, no plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from simserve.sim.records import Histogram

Floats = NDArray[np.float64]

_NUM_LEVELS = 240
_NUM_BINS = 300
_PLATEAU = 0.02  # Two values closer than this share of the larger one count as equal: the noise of one run.


@dataclass(frozen=True, slots=True, kw_only=True)
class TurningPoint:
    """Where a rising curve stops rising."""

    at: int  # x of the largest y; the first if several are equal.
    value: float  # That y.
    falls_after: bool  # Whether some later y is more than 2 % below it.


def num_holding(found: Mapping[str, Any], asked: float) -> int:
    """Return at how many loads of `simserve.report.other_loads`, ascending, the SLO held before the first miss."""
    held = [
        stability != "overloaded" and (attainment or 0.0) >= asked
        for stability, attainment in zip(found["stability"], found["attainment"], strict=True)
    ]
    return held.index(False) if False in held else len(held)


def turning_point(points: Sequence[tuple[int, float]]) -> TurningPoint:
    """Return the turning point of a curve, such as throughput against ``max_num_seqs``.

    Args:
        points: (x, y) in any order, each x once, at least one.
    """
    ordered = sorted(points)
    at, value = max(ordered, key=lambda point: point[1])
    enough = (1 - _PLATEAU) * value
    return TurningPoint(
        at=at,
        value=value,
        falls_after=any(x > at and y < enough for x, y in ordered),
    )


def cumulative_levels() -> Floats:
    """Return the shares at which a cumulative curve is drawn, 0 to 1, denser where the tail is."""
    body = np.linspace(0.0, 0.9, _NUM_LEVELS // 2, endpoint=False)
    return np.concatenate((body, np.linspace(0.9, 1.0, _NUM_LEVELS // 2)))


def cumulative(values: Floats) -> tuple[Floats, Floats]:
    """Return a cumulative curve: values ascending, and the share of ``values`` up to each.

    Empty without values; NaN does not count.
    """
    is_defined = np.isfinite(values)
    ordered = np.sort(values if is_defined.all() else values[is_defined])
    if not len(ordered):
        return np.empty(0), np.empty(0)
    levels = cumulative_levels()
    places = levels * (len(ordered) - 1)
    before = places.astype(np.int64)
    low, high = ordered[before], ordered[np.minimum(before + 1, len(ordered) - 1)]
    return (high - low) * (places - before) + low, levels


def cumulative_histogram(histogram: Histogram) -> tuple[Floats, Floats]:
    """Return the cumulative curve of a histogram, seconds; empty if the histogram is."""
    if histogram.count == 0:
        return np.empty(0), np.empty(0)
    levels = cumulative_levels()
    return np.array(histogram.percentiles_of(histogram.counts, 100 * levels)), levels


def thinned(edges: Floats, *series: Floats) -> tuple[Floats, list[Floats]]:
    """Return at most 300 bins and the mean of each series over them, weighted by time.

    Args:
        edges: Seconds, shape [B + 1], ascending.
        series: Means over the bins, shape [B].
    """
    group = -(-(len(edges) - 1) // _NUM_BINS)
    starts = np.arange(0, len(edges) - 1, group)
    widths = np.diff(edges)
    weights = np.add.reduceat(widths, starts)
    means = [np.add.reduceat(each * widths, starts) / weights for each in series]
    return np.append(edges[starts], edges[-1]), means
