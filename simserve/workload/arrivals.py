"""Arrivals: when requests come, by inversion: one uniform a request, so another rate only stretches the same draws."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from simserve import rng
from simserve.errors import InvariantError, ScenarioError
from simserve.workload.arrival_spec import (
    MAX_REQUESTS,
    STATIONARY,
    AllAtOnceArrivals,
    Arrivals,
    BurstArrivals,
    ClosedLoopArrivals,
    ConstantArrivals,
    DailyArrivals,
    GammaArrivals,
    PoissonArrivals,
    RampArrivals,
    SpikeArrivals,
    StepArrivals,
    WeibullArrivals,
)
from simserve.workload.lengths import increasing_root

RenewalArrivals = PoissonArrivals | GammaArrivals | WeibullArrivals
VaryingArrivals = BurstArrivals | RampArrivals | StepArrivals | SpikeArrivals | DailyArrivals
OpenLoopArrivals = RenewalArrivals | ConstantArrivals | VaryingArrivals
Quantile = Callable[[NDArray[np.float64]], NDArray[np.float64]]
Floats = NDArray[np.float64]
_SLACK = 1e-12
"""Relative slack of rate * duration, which rounding may leave a hair below a whole number."""
_POINTS_A_DAY = 96
"""Pieces of the cosine of a day, 15 minutes each: its mean is exact, its height to 0.05 %."""


def start_times(
    arrivals: Arrivals | None,
    *,
    seed: int,
    replication: int,
    num_requests: int | None,
    duration: float | None,
    suffix: str = "",
) -> NDArray[np.float64]:
    """Return when requests, or conversations, arrive, seconds; NaN where clients of a closed loop send them.

    Args:
        arrivals: The process.
        seed: Of the run.
        replication: Of the run.
        num_requests: How many, or
        duration: seconds after which none arrives.
        suffix: Of the streams ``arrivals`` and ``arrival_phases``: a class with arrivals of its own has its own.

    Raises:
        InvariantError: There are no arrivals.
    """
    match arrivals:
        case ClosedLoopArrivals():
            return np.full(num_requests or 0, np.nan)
        case AllAtOnceArrivals():
            return np.zeros(num_requests or 0)
        case None:
            raise InvariantError("a workload without a trace has arrivals")
    return arrival_times(
        arrivals,
        rng.stream(seed, f"arrivals{suffix}", replication),
        num_requests=num_requests,
        duration=duration,
        phases=rng.stream(seed, f"arrival_phases{suffix}", replication),
    )


def some(times: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return times, of which there are some.

    Raises:
        ScenarioError: There are none.
    """
    if not len(times):
        remedy = "lengthen it or raise the rate"
        raise ScenarioError("is over before the first request arrives", key="workload.duration", remedy=remedy)
    return times


def offered_rate(arrivals: Arrivals, arrival_time: NDArray[np.float64], num_requests: int | None = None) -> float:
    """Return the mean requests a second that are sent, whatever comes of them; NaN where answers set the pace.

    ``num_requests`` are sent on ``arrival_time``, where it is not one at each.
    """
    if isinstance(arrivals, ClosedLoopArrivals | AllAtOnceArrivals):
        return float("nan")
    if isinstance(arrivals, STATIONARY):
        return arrivals.rate
    return (num_requests or len(arrival_time)) / float(arrival_time[-1])


def arrival_times(
    arrivals: OpenLoopArrivals,
    generator: np.random.Generator,
    *,
    num_requests: int | None = None,
    duration: float | None = None,
    phases: np.random.Generator | None = None,
) -> NDArray[np.float64]:
    """Return arrival times of an open-loop process, ascending, in seconds from the start of the run.

    Args:
        arrivals: The process. Time 0 is the start of an interval, not an arrival.
        generator: Source of uniforms; constant arrivals take none.
        num_requests: Number of arrivals, or
        duration: the time after which none arrives, in seconds. Exactly one of the two.
        phases: Source of the lengths of bursts and quiet times, for them alone.

    Raises:
        ScenarioError: More requests are expected within the duration than a run can hold.
    """
    if isinstance(arrivals, ConstantArrivals):
        if duration is not None:
            num_requests = math.floor(arrivals.rate * duration * (1.0 + _SLACK))
        return np.arange(1, (num_requests or 0) + 1, dtype=np.float64) / arrivals.rate
    if isinstance(arrivals, RenewalArrivals):
        quantile = unit_quantile(arrivals)
        if duration is None:
            return np.cumsum(quantile(generator.random(num_requests))) / arrivals.rate
        times = _sums_beyond(arrivals.rate * duration, quantile, generator) / arrivals.rate
        return times[times <= duration]
    if duration is None:
        amounts = np.cumsum(_unit_exponential(generator.random(num_requests)))
        return rate_curve_of(arrivals, phases, expected=float(amounts[-1])).inverse(amounts)
    curve = rate_curve_of(arrivals, phases, until=duration)
    expected = curve.integral(duration)
    if expected > MAX_REQUESTS / 2:
        raise ScenarioError(
            f"asks for about {expected:.3g} requests, more than {MAX_REQUESTS // 2:,}",
            key="workload.duration",
            remedy="shorten it or lower the rate",
        )
    times = curve.inverse(_sums_beyond(expected, _unit_exponential, generator))
    return times[times <= duration]


def rate_curve_of(
    arrivals: VaryingArrivals,
    phases: np.random.Generator | None = None,
    *,
    expected: float = 0.0,
    until: float = 0.0,
) -> RateCurve:
    """Return the rate over time of arrivals that vary.

    Args:
        arrivals: The process.
        phases: Source of the lengths of bursts and quiet times.
        expected: Bursts: how many arrivals the curve must at least cover, and
        until: how many seconds.
    """
    match arrivals:
        case BurstArrivals():
            return _bursts(arrivals, phases or np.random.default_rng(0), expected, until)
        case RampArrivals():
            rates = np.array([arrivals.start_rate, arrivals.rate])
            return through(np.array([0.0, arrivals.ramp_duration]), rates)
        case StepArrivals():
            lengths = np.array([step.duration for step in arrivals.steps])
            return steps(lengths, np.array([step.rate for step in arrivals.steps]))
        case SpikeArrivals():
            lengths = np.array([arrivals.at, arrivals.spike_duration, 1.0])
            return steps(lengths, arrivals.rate * np.array([1.0, arrivals.factor, 1.0]))
        case DailyArrivals():
            return _days(arrivals)


def _bursts(arrivals: BurstArrivals, phases: np.random.Generator, expected: float, until: float) -> RateCurve:
    """Draw bursts and quiet times, the first as a stationary process is found, until the curve covers enough.

    Lengths come in pairs of uniforms, so that the same stream gives the same bursts at any rate.
    """
    on, off = arrivals.burst_duration, arrivals.quiet_duration
    starts_quiet = phases.random() * (on + off) >= on
    means = np.array([off, on] if starts_quiet else [on, off])
    rates = arrivals.rate * np.array([arrivals.quiet_factor, arrivals.factor])
    rates = rates if starts_quiet else rates[::-1]
    lengths = np.empty(0)
    while not len(lengths) or lengths.sum() < until or np.resize(rates, len(lengths)) @ lengths < expected:
        more = _unit_exponential(phases.random(512)).reshape(-1, 2) * means
        lengths = np.concatenate([lengths, np.maximum(more.ravel(), 1e-9)])
    return steps(lengths, np.resize(rates, len(lengths)))


def _days(arrivals: DailyArrivals) -> RateCurve:
    """Return one day or week, from ``start_hour`` on, over and over."""
    if arrivals.hours is None:
        hours = np.linspace(0.0, 24.0, _POINTS_A_DAY + 1)
        shape = 1.0 + (arrivals.peak_to_mean - 1.0) * np.cos((hours - arrivals.peak_hour) * (2.0 * np.pi / 24.0))
        left, right = np.maximum(shape[:-1], 0.0), np.maximum(shape[1:], 0.0)
    else:
        hours = np.arange(25.0)
        left = right = np.asarray(arrivals.hours)
    weights = np.ones(1) if arrivals.weekdays is None else np.asarray(arrivals.weekdays)
    edges = np.concatenate([day * 24.0 + hours[:-1] for day in range(len(weights))])
    left, right = np.outer(weights, left).ravel(), np.outer(weights, right).ravel()
    if arrivals.start_hour:
        edges, left, right = _started(edges, left, right, arrivals.start_hour, 24.0 * len(weights))
    scaled = np.append(edges, 24.0 * len(weights)) * (arrivals.day / 24.0)
    curve = RateCurve(scaled, left, right, is_periodic=True)
    factor = arrivals.rate / curve.mean
    return RateCurve(scaled, factor * left, factor * right, is_periodic=True)


def _started(
    edges: NDArray[np.float64], left: NDArray[np.float64], right: NDArray[np.float64], start: float, period: float
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return the segments of a period as they come from ``start`` on; the one that holds it is cut in two."""
    segment = int(np.searchsorted(edges, start, side="right")) - 1
    end = edges[segment + 1] if segment + 1 < len(edges) else period
    middle = left[segment] + (right[segment] - left[segment]) * (start - edges[segment]) / (end - edges[segment])
    order = np.arange(segment + 1, segment + len(edges)) % len(edges)
    turned = (edges[order] - start) % period
    if start == edges[segment]:
        return (
            np.concatenate([[0.0], turned]),
            np.concatenate([[left[segment]], left[order]]),
            np.concatenate([[right[segment]], right[order]]),
        )
    return (
        np.concatenate([[0.0], turned, [(edges[segment] - start) % period]]),
        np.concatenate([[middle], left[order], [left[segment]]]),
        np.concatenate([[right[segment]], right[order], [middle]]),
    )


def _sums_beyond(expected: float, quantile: Quantile, generator: np.random.Generator) -> NDArray[np.float64]:
    """Return the running sums of unit gaps up to the first ones beyond ``expected``."""
    size = math.ceil(expected + 6.0 * math.sqrt(expected)) + 16
    gaps = quantile(generator.random(size))
    while (total := gaps.sum()) <= expected:
        missing = math.ceil(1.1 * (expected - total)) + 16
        gaps = np.concatenate([gaps, quantile(generator.random(missing))])
    return np.asarray(np.cumsum(gaps), dtype=np.float64)


def unit_quantile(arrivals: RenewalArrivals) -> Quantile:
    """Return the quantile function of the time between arrivals at one request a second."""
    if isinstance(arrivals, PoissonArrivals) or arrivals.cv == 1.0:
        return _unit_exponential
    if isinstance(arrivals, WeibullArrivals):
        shape = _weibull_shape(arrivals.cv)
        scale = 1.0 / math.gamma(1.0 + 1.0 / shape)
        return lambda uniforms: scale * _unit_exponential(uniforms) ** (1.0 / shape)
    from scipy.special import gammaincinv  # heavy, and only these arrivals need it

    gamma_shape = arrivals.cv**-2.0
    return lambda uniforms: np.asarray(gammaincinv(gamma_shape, uniforms), dtype=np.float64) / gamma_shape


def _weibull_shape(cv: float) -> float:
    """Return the shape of the Weibull distribution with a coefficient of variation, which falls as the shape grows."""

    def fall(log_shape: float) -> float:
        inverse = math.exp(-log_shape)
        log_ratio = math.lgamma(1.0 + 2.0 * inverse) - 2.0 * math.lgamma(1.0 + inverse)
        return math.log1p(cv * cv) - log_ratio

    return math.exp(increasing_root(fall, start=0.0, step=0.5, tolerance=1e-14))


def _unit_exponential(uniforms: NDArray[np.float64]) -> NDArray[np.float64]:
    return -np.log1p(-uniforms)


@dataclass(frozen=True, eq=False)
class RateCurve:
    """A rate over time, linear within segments; jumps between them are allowed.

    Attributes:
        edges: Start of each segment and the end of the last, seconds, ascending from 0, shape [n + 1].
        left: Rate at the start of each segment, >= 0, shape [n].
        right: Rate at the end of each segment, >= 0, shape [n].
        is_periodic: Whether it starts over after the last segment; otherwise its last rate holds for ever.
    """

    edges: Floats
    left: Floats
    right: Floats
    is_periodic: bool = False

    @cached_property
    def _sums(self) -> Floats:
        areas = np.diff(self.edges) * (self.left + self.right) / 2
        return np.concatenate([[0.0], np.cumsum(areas)])

    @property
    def mean(self) -> float:
        """Mean rate over the segments."""
        return float(self._sums[-1] / self.edges[-1])

    def integral(self, until: float) -> float:
        """Return the number of arrivals expected from 0 to ``until`` seconds."""
        length, total = float(self.edges[-1]), float(self._sums[-1])
        if until >= length and not self.is_periodic:
            return total + (until - length) * float(self.right[-1])
        cycles, rest = divmod(until, length) if self.is_periodic else (0.0, until)
        segment = min(int(np.searchsorted(self.edges, rest, side="right")) - 1, len(self.left) - 1)
        elapsed = rest - self.edges[segment]
        return float(
            cycles * total + self._sums[segment] + elapsed * (self.left[segment] + self._slope[segment] * elapsed / 2)
        )

    def inverse(self, amounts: Floats) -> Floats:
        """Return when the integral reaches each amount, seconds; inf where it never does.

        Args:
            amounts: Expected arrivals, >= 0, shape [m].
        """
        length, total = float(self.edges[-1]), float(self._sums[-1])
        cycles = np.floor(amounts / total) if self.is_periodic else np.zeros(len(amounts))
        rest = amounts - cycles * total
        segment = np.clip(np.searchsorted(self._sums, rest, side="right") - 1, 0, len(self.left) - 1)
        # A segment without traffic is skipped: the amount is reached where the next one with traffic starts.
        missing = rest - self._sums[segment]
        left, slope = self.left[segment], self._slope[segment]
        root = np.sqrt(np.maximum(left * left + 2.0 * slope * missing, 0.0))
        with np.errstate(invalid="ignore", divide="ignore"):
            elapsed = np.where(missing > 0.0, 2.0 * missing / (left + root), 0.0)
        times = cycles * length + self.edges[segment] + elapsed
        if not self.is_periodic:
            beyond = rest > total
            with np.errstate(divide="ignore"):
                times[beyond] = length + (rest[beyond] - total) / self.right[-1]
        return np.asarray(times, dtype=np.float64)

    @cached_property
    def _slope(self) -> Floats:
        return np.asarray((self.right - self.left) / np.diff(self.edges), dtype=np.float64)


def through(times: Floats, rates: Floats, *, is_periodic: bool = False) -> RateCurve:
    """Return the continuous curve through points; the first time is 0.

    Args:
        times: Seconds, ascending, shape [n + 1].
        rates: Requests a second, shape [n + 1].
        is_periodic: Whether it starts over after the last point.
    """
    return RateCurve(times, rates[:-1], rates[1:], is_periodic)


def steps(durations: Floats, rates: Floats) -> RateCurve:
    """Return a curve of constant pieces, the last of which holds for ever.

    Args:
        durations: Seconds, > 0, shape [n].
        rates: Requests a second, shape [n].
    """
    return RateCurve(np.concatenate([[0.0], np.cumsum(durations)]), rates, rates)
