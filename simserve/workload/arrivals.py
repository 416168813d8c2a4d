"""Arrival times by inversion: one uniform a request, so another rate only stretches the same draws."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from simserve.workload.spec import ConstantArrivals, GammaArrivals, PoissonArrivals

OpenLoopArrivals = PoissonArrivals | GammaArrivals | ConstantArrivals

_SLACK = 1e-12
"""Relative slack of rate * duration, which rounding may leave a hair below a whole number."""


def arrival_times(
    arrivals: OpenLoopArrivals,
    generator: np.random.Generator,
    *,
    num_requests: int | None = None,
    duration: float | None = None,
) -> NDArray[np.float64]:
    """Return arrival times of an open-loop process, ascending, in seconds from the start of the run.

    Args:
        arrivals: The process. Time 0 is the start of an interval, not an arrival.
        generator: Source of uniforms; constant arrivals take none.
        num_requests: Number of arrivals, or
        duration: the time after which none arrives, in seconds. Exactly one of the two.
    """
    if isinstance(arrivals, ConstantArrivals):
        if duration is not None:
            num_requests = math.floor(arrivals.rate * duration * (1.0 + _SLACK))
        return np.arange(1, (num_requests or 0) + 1, dtype=np.float64) / arrivals.rate
    quantile = _unit_quantile(arrivals)
    if duration is None:
        return np.cumsum(quantile(generator.random(num_requests))) / arrivals.rate
    return _until(duration, arrivals.rate, quantile, generator)


def _until(
    duration: float,
    rate: float,
    quantile: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    generator: np.random.Generator,
) -> NDArray[np.float64]:
    expected = rate * duration
    size = math.ceil(expected + 6.0 * math.sqrt(expected)) + 16
    gaps = quantile(generator.random(size))
    while (total := gaps.sum()) <= expected:
        missing = math.ceil(1.1 * (expected - total)) + 16
        gaps = np.concatenate([gaps, quantile(generator.random(missing))])
    times = np.cumsum(gaps) / rate
    return times[times <= duration]


def _unit_quantile(
    arrivals: PoissonArrivals | GammaArrivals,
) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
    """Return the quantile function of the time between arrivals at one request a second."""
    if isinstance(arrivals, PoissonArrivals) or arrivals.cv == 1.0:
        return _unit_exponential
    from scipy.special import gammaincinv  # heavy, and only these arrivals need it

    shape = arrivals.cv**-2.0
    return lambda uniforms: np.asarray(gammaincinv(shape, uniforms), dtype=np.float64) / shape


def _unit_exponential(uniforms: NDArray[np.float64]) -> NDArray[np.float64]:
    return -np.log1p(-uniforms)
