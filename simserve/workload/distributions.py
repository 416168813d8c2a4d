"""What a workload draws from: when requests arrive, and how long they are.

Arrivals are drawn by inversion, one uniform per request, so another rate only stretches the same draws.

Lengths are whole tokens, drawn from tables of probabilities that have exactly the requested mean. A continuous
distribution is rounded to whole tokens (the mass between k - 1/2 and k + 1/2), truncated to the bounds, and its
location or scale is solved so that the mean of what remains is exact; the shape is kept. The normal distribution is
evaluated in log space with numpy alone: importing `scipy.special` would cost every run a third of a second.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.polynomial import chebyshev
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
from simserve.workload.length_spec import (
    MAX_TABULATED_TOKENS,
    AnswerLength,
    EmpiricalLength,
    ExponentialLength,
    FixedLength,
    GeometricLength,
    LognormalLength,
    NoLength,
    NormalLength,
    UniformLength,
)

RenewalArrivals = PoissonArrivals | GammaArrivals | WeibullArrivals
VaryingArrivals = BurstArrivals | RampArrivals | StepArrivals | SpikeArrivals | DailyArrivals
OpenLoopArrivals = RenewalArrivals | ConstantArrivals | VaryingArrivals
Quantile = Callable[[NDArray[np.float64]], NDArray[np.float64]]
Floats = NDArray[np.float64]
_SLACK = 1e-12  # Relative slack of rate * duration, which rounding may leave slightly below a whole number.
_POINTS_A_DAY = 96  # Linear pieces of a day's cosine, 15 minutes each: its mean is exact, its height to 0.05 %.
MODEL_LIMIT = -1  # In `RequestSpecs.max_tokens`: the rest of the model's length after the prompt.
_MAX_STEPS = 400
_EPSILON = 2.0**-52
_Drawn = FixedLength | UniformLength | NormalLength | LognormalLength | ExponentialLength | GeometricLength | NoLength
_TAIL = 1e-9  # Share of requests that the default `max` of an exponential cuts off.
_GUIDE_SIZE = 1 << 16  # Cells of the guide that speeds up looking up many lengths.
_TAIL_SCORE = 6.0  # Standard score beyond which a normal distribution holds the same share.
_MEAN_TOLERANCE = 1e-12  # Relative error left in the mean.
_REMEMBERED = 16
"""Distributions that are cached: a search draws the same lengths for every deployment, and solving for the mean of a
long tail takes as long as simulating hundreds of requests."""
_TAIL_COEFFICIENTS = (
    *(-0.6513268598908547, 0.6419697923564904, 0.019476473204185708, -0.00956151478680863),
    *(-0.0009465953444820733, 0.00036683949785280785, 4.2523324806755235e-05, -2.0278578112490945e-05),
    *(-1.6242900046945478e-06, 1.303655835720129e-06, 1.562644157273678e-08, -8.523809568933831e-08),
    *(6.529054286476926e-09, 5.059343647496768e-09, -9.913644559187097e-10, -2.2736487943461407e-10),
    *(9.646743957736206e-11, 2.394465990071051e-12, -6.886391464639792e-12, 8.948019378875956e-13),
    *(3.1324154734868355e-13, -1.1333527023161162e-13, 1.1412486553779912e-15, 6.081349041036923e-15),
    -6.549459098258569e-16,
)
"""Chebyshev series of log(erfc(x) exp(x^2) / t) in 2 t - 1, with t = 2 / (2 + x) and x >= 0: interpolated at
25 Chebyshev nodes, error below 2e-15 of the logarithm. The substitution is the one of Press et al., Numerical
Recipes, 3rd edition, section 6.2.2."""
_SCORES_AT_ONCE = 16384
"""Scores evaluated at once: the series passes over them 25 times, faster while they stay in the cache."""


@dataclass(frozen=True, slots=True)
class Draws:
    """What the draws of one run depend on besides the workload."""

    seed: int  # Seed of the run, >= 0.
    replication: int = 0  # Index of the replication, >= 0.
    base_path: Path | None = None  # Folder in which relative paths are looked up before the working folder.
    suffix: str = ""  # End of the names of the streams, for a class with its own arrivals or media.

    def own(self, name: str) -> Draws:
        """Return the same with the streams of a class."""
        return replace(self, suffix=f".{name}")

    def stream(self, name: str) -> np.random.Generator:
        """Return a stream by its name."""
        return rng.stream(self.seed, f"{name}{self.suffix}", self.replication)

    def lengths(self, spec: AnswerLength, name: str, count: int) -> NDArray[np.int64]:
        """Return ``count`` lengths from the stream of a name."""
        return length_distribution(spec, self.base_path).sample(self.stream(name), count)


def start_times(
    arrivals: Arrivals | None, draws: Draws, *, num_requests: int | None, duration: float | None
) -> NDArray[np.float64]:
    """Return when requests, or conversations, arrive, seconds; NaN if clients of a closed loop send them.

    Args:
        draws: The run's draws: the streams are ``arrivals`` and ``arrival_phases``.
        num_requests: Number of arrivals; or
        duration: time after which none arrives, seconds.

    Raises:
        InvariantError: There are no arrivals.
    """
    match arrivals:
        case ClosedLoopArrivals():
            return np.full(num_requests or 0, np.nan)
        case AllAtOnceArrivals():
            return np.zeros(num_requests or 0)
        case GammaArrivals():
            return _gamma_times(arrivals, draws, num_requests, duration).copy()
        case None:
            raise InvariantError("a workload without a trace has arrivals")
    generator, phases = draws.stream("arrivals"), draws.stream("arrival_phases")
    return arrival_times(arrivals, generator, num_requests=num_requests, duration=duration, phases=phases)


@lru_cache(maxsize=_REMEMBERED)
def _gamma_times(
    arrivals: GammaArrivals, draws: Draws, num_requests: int | None, duration: float | None
) -> NDArray[np.float64]:
    """Return arrivals; cached, since their quantiles can take longer than a run and each fleet needs them again."""
    return arrival_times(arrivals, draws.stream("arrivals"), num_requests=num_requests, duration=duration)


def some(times: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return times, if there are any.

    Raises:
        ScenarioError: There are none.
    """
    if not len(times):
        remedy = "lengthen it or raise the rate"
        raise ScenarioError("is over before the first request arrives", key="workload.duration", remedy=remedy)
    return times


def offered_rate(arrivals: Arrivals, arrival_time: NDArray[np.float64], num_requests: int | None = None) -> float:
    """Return the mean requests a second that are sent, whatever their outcome; NaN if answers set the pace.

    ``num_requests`` are sent at ``arrival_time``, if that is not one at each.
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
        phases: Source of the lengths of bursts and quiet times, used only for them.

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
        rule = f"asks for about {expected:.3g} requests, more than {MAX_REQUESTS // 2:,}"
        raise ScenarioError(rule, key="workload.duration", remedy="shorten it or lower the rate")
    times = curve.inverse(_sums_beyond(expected, _unit_exponential, generator))
    return times[times <= duration]


def rate_curve_of(
    arrivals: VaryingArrivals, phases: np.random.Generator | None = None, *, expected: float = 0.0, until: float = 0.0
) -> RateCurve:
    """Return the rate over time of varying arrivals.

    Args:
        phases: Source of the lengths of bursts and quiet times.
        expected: Bursts: number of arrivals that the curve must cover, and
        until: number of seconds.
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
    """Draw bursts and quiet times, starting in the stationary state, until the curve covers enough.

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
    """Return one day or week, from ``start_hour`` on, repeated."""
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
    """Return the segments of a period, rotated to begin at ``start``; the one that contains it is cut in two."""
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
    """Return the Weibull shape with a coefficient of variation, which falls as the shape grows."""

    def fall(log_shape: float) -> float:
        inverse = math.exp(-log_shape)
        log_ratio = math.lgamma(1.0 + 2.0 * inverse) - 2.0 * math.lgamma(1.0 + inverse)
        return math.log1p(cv * cv) - log_ratio

    return math.exp(increasing_root(fall, start=0.0, step=0.5, tolerance=1e-14))


def _unit_exponential(uniforms: NDArray[np.float64]) -> NDArray[np.float64]:
    return -np.log1p(-uniforms)


@dataclass(frozen=True, eq=False)
class RateCurve:
    """A rate over time, linear within segments; jumps between them are allowed."""

    edges: Floats  # Start of each segment and the end of the last, seconds, ascending from 0, shape [n + 1].
    left: Floats  # Rate at the start of each segment, >= 0, shape [n].
    right: Floats  # Rate at the end of each segment, >= 0, shape [n].
    is_periodic: bool = False
    """Whether it starts over after the last segment; otherwise its last rate holds for ever."""

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
        """Return when the integral reaches each amount, seconds; inf if it never does.

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


def through(times: Floats, rates: Floats) -> RateCurve:
    """Return the continuous curve through points; the first time is 0.

    Args:
        times: Seconds, ascending, shape [n + 1].
        rates: Requests a second, shape [n + 1].
    """
    return RateCurve(times, rates[:-1], rates[1:])


def steps(durations: Floats, rates: Floats) -> RateCurve:
    """Return a curve of constant pieces, the last of which holds for ever.

    Args:
        durations: Seconds, > 0, shape [n].
        rates: Requests a second, shape [n].
    """
    return RateCurve(np.concatenate([[0.0], np.cumsum(durations)]), rates, rates)


def increasing_root(function: Callable[[float], float], start: float, step: float, tolerance: float) -> float:
    """Return where an increasing function crosses zero.

    The bracket grows from ``start`` by doubling steps; inside it Chandrupatla's method (Advances in
    Engineering Software 28 (3), 1997) chooses between inverse quadratic interpolation and bisection. It is as
    safe as ``scipy.optimize.brentq``, whose import takes longer than drawing a workload.

    Args:
        function: Increasing, negative far below and positive far above the root.
        start: First guess.
        step: First width of the bracket, > 0.
        tolerance: A function value this close to zero is taken as zero.

    Raises:
        InvariantError: No sign change was found.
    """
    low, high = start, start
    value = low_value = high_value = function(start)
    while abs(value) > tolerance and low_value * high_value > 0:
        if value < 0:
            low, low_value = high, high_value
            high += step
            value = high_value = function(high)
        else:
            high, high_value = low, low_value
            low -= step
            value = low_value = function(low)
        step *= 2.0
        if not math.isfinite(step):
            raise InvariantError(f"no sign change of an increasing function around {start}")
    if abs(low_value) <= tolerance:
        return low
    if abs(high_value) <= tolerance:
        return high
    return _bracketed_root(function, (low, low_value), (high, high_value), tolerance)


def _bracketed_root(
    function: Callable[[float], float], newest: tuple[float, float], opposite: tuple[float, float], tolerance: float
) -> float:
    previous = newest
    share = 0.5
    for _ in range(_MAX_STEPS):
        (a, value_a), (b, _) = newest, opposite
        point = a + share * (b - a)
        value = function(point)
        if (value > 0) == (value_a > 0):
            previous = newest
        else:
            previous, opposite = opposite, newest
        newest = (point, value)
        best = min(newest, opposite, key=lambda pair: abs(pair[1]))
        width = abs(opposite[0] - newest[0])
        shortest = 2.0 * _EPSILON * abs(best[0])
        if abs(best[1]) <= tolerance or width <= 2.0 * shortest or width == 0.0:
            return best[0]
        share = min(max(_next_share(newest, opposite, previous), shortest / width), 1.0 - shortest / width)
    raise InvariantError(f"no root after {_MAX_STEPS} steps, last bracket {newest[0]} to {opposite[0]}")


def _next_share(newest: tuple[float, float], opposite: tuple[float, float], previous: tuple[float, float]) -> float:
    (a, value_a), (b, value_b), (c, value_c) = newest, opposite, previous
    xi = (a - b) / (c - b)
    phi = (value_a - value_b) / (value_c - value_b)
    if not (phi * phi < xi and (1.0 - phi) ** 2 < 1.0 - xi):
        return 0.5
    return value_a / (value_b - value_a) * value_c / (value_b - value_c) + (c - a) / (b - a) * value_a / (
        value_c - value_a
    ) * value_b / (value_c - value_b)


@dataclass(frozen=True, slots=True)
class LengthDistribution:
    """A distribution on whole numbers of tokens. Shared between callers, so its arrays are read-only."""

    values: NDArray[np.int64]  # Lengths that can occur, ascending, tokens, int64.
    probabilities: NDArray[np.float64]  # Probability of each, float64; sum to 1.
    _looking: _Looking = field(default_factory=lambda: _Looking(), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.values.flags.writeable = self.probabilities.flags.writeable = False

    @property
    def mean(self) -> float:
        """Mean length, tokens."""
        return float((self.probabilities * self.values).sum())

    def sample(self, generator: np.random.Generator, num_requests: int) -> NDArray[np.int64]:
        """Return independent lengths by inversion, one uniform each."""
        cumulative = np.cumsum(self.probabilities)
        guide = self._looking.guide(cumulative, num_requests)
        if guide is None:
            return self._at(_search(cumulative, generator.random(num_requests) * cumulative[-1]))
        lengths = np.empty(num_requests, dtype=np.int64)
        for start in range(0, num_requests, _GUIDE_SIZE):
            part = lengths[start : start + _GUIDE_SIZE]
            part[:] = self._at(guide.search(generator.random(len(part)) * cumulative[-1]))
        return lengths

    def _at(self, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.asarray(self.values[np.minimum(ranks, len(self.values) - 1)])


def _search(cumulative: NDArray[np.float64], values: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.asarray(np.searchsorted(cumulative, values, side="right"))


class _Guide:
    """Like `_search`, but with a guide table: most values lie in a cell in which only one rank is possible.

    Chen and Asau, On generating random variates from an empirical distribution, AIIE Transactions 6 (1974).
    """

    def __init__(self, cumulative: NDArray[np.float64]) -> None:
        self._cumulative = cumulative
        self._cells_per_unit = _GUIDE_SIZE / cumulative[-1]
        # Cells are computed with a rounded product, so a cell's ranks are taken from slightly beyond its edges.
        edges = np.arange(_GUIDE_SIZE + 2) / self._cells_per_unit
        slack = cumulative[-1] * 1e-12
        self._lowest = _search(cumulative, edges[:-1] - slack)
        self._is_open = self._lowest != _search(cumulative, edges[1:] + slack)

    def search(self, values: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the rank of each value."""
        cells = (values * self._cells_per_unit).astype(np.int64)
        ranks: NDArray[np.int64] = self._lowest[cells]
        others = np.flatnonzero(self._is_open[cells])
        ranks[others] = _search(self._cumulative, values[others])
        return ranks


@dataclass(slots=True)
class _Looking:
    """The guide of a distribution, made once as many lengths were drawn from it as the guide has cells."""

    num_drawn: int = 0
    made: _Guide | None = None

    def guide(self, cumulative: NDArray[np.float64], num_lengths: int) -> _Guide | None:
        """Return the guide for the next lengths; None while looking them up without one is quicker."""
        self.num_drawn += num_lengths
        if self.made is None and self.num_drawn >= _GUIDE_SIZE:
            self.made = _Guide(cumulative)
        return self.made


def length_distribution(spec: AnswerLength, base_path: Path | None = None) -> LengthDistribution:
    """Return the distribution that a specification describes; recent ones are cached, files by their state.

    Args:
        spec: The specification; its mean is known to be attainable.
        base_path: Folder in which the path of an empirical distribution is looked up first.

    Raises:
        TraceError: The file of an empirical distribution cannot be used.
    """
    if not isinstance(spec, EmpiricalLength):
        return _tabulated(spec)
    from simserve.workload.traces.table import find_file

    file = find_file(spec.path, base_path)
    state = file.stat()
    return _counted(file, spec.column, (state.st_mtime_ns, state.st_size, state.st_ino))


def asked_tokens(asked: int | Literal["exact", "model_limit"], exact: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the most tokens that each request asks for; `MODEL_LIMIT` stands for the model's limit.

    Args:
        asked: As in the workload.
        exact: Value of ``exact`` for each.
    """
    if asked == "exact":
        return exact
    return np.full(len(exact), MODEL_LIMIT if asked == "model_limit" else asked, dtype=np.int64)


@lru_cache(maxsize=_REMEMBERED)
def _counted(file: Path, column: str | None, _state: tuple[int, int, int]) -> LengthDistribution:
    from simserve.workload.traces.table import read_lengths

    lengths, counts = np.unique(read_lengths(file, column), return_counts=True)
    return LengthDistribution(lengths, counts / counts.sum())


@lru_cache(maxsize=_REMEMBERED)
def _tabulated(spec: _Drawn) -> LengthDistribution:
    match spec:
        case FixedLength():
            return LengthDistribution(np.array([spec.value], dtype=np.int64), np.ones(1))
        case UniformLength():
            values = np.arange(spec.min, spec.max + 1, dtype=np.int64)
            return LengthDistribution(values, np.full(len(values), 1.0 / len(values)))
        case NormalLength():
            return _normal(spec)
        case LognormalLength():
            return _lognormal(spec)
        case ExponentialLength():
            return _exponential(spec)
        case GeometricLength():
            return _exponential(spec.as_exponential())
        case NoLength():
            return LengthDistribution(np.zeros(1, dtype=np.int64), np.ones(1))


def _normal(spec: NormalLength) -> LengthDistribution:
    values = _support(spec.min, spec.max, spec.mean + _TAIL_SCORE * spec.std)
    edges = _edges(values) / spec.std
    start = spec.mean / spec.std
    return _with_mean(spec.mean, values, lambda location: _log_masses(edges, location), start=start, step=1.0)


def _lognormal(spec: LognormalLength) -> LengthDistribution:
    sigma = math.sqrt(math.log1p(spec.cv**2))
    start = math.log(spec.mean) - sigma**2 / 2
    values = _support(spec.min, spec.max, math.exp(start + _TAIL_SCORE * sigma))
    edges = np.log(_edges(values)) / sigma
    start = start / sigma
    return _with_mean(spec.mean, values, lambda location: _log_masses(edges, location), start=start, step=1.0)


def _exponential(spec: ExponentialLength) -> LengthDistribution:
    # Rounded to whole tokens an exponential is a geometric distribution: masses fall by one ratio a token.
    excess = spec.mean - spec.min
    log_ratio = -math.log1p(1.0 / excess)
    values = _support(spec.min, spec.max, spec.min + math.log(_TAIL) / log_ratio)
    steps = (values - spec.min).astype(np.float64)
    return _with_mean(spec.mean, values, lambda slope: slope * steps, start=log_ratio, step=-0.5 * log_ratio)


def _support(shortest: int, longest: int | None, tail: float) -> NDArray[np.int64]:
    """Return every length from the shortest to the longest, or to the end of the tail if that is shorter."""
    limit = MAX_TABULATED_TOKENS if longest is None else longest
    return np.arange(shortest, min(limit, math.ceil(tail) + 1) + 1, dtype=np.int64)


def _edges(values: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.append(values - 0.5, values[-1] + 0.5)


def _with_mean(
    mean: float,
    values: NDArray[np.int64],
    logarithms: Callable[[float], NDArray[np.float64]],
    *,
    start: float,
    step: float,
) -> LengthDistribution:
    """Return the member of a family with the requested mean; the mean grows with the family's parameter."""

    # Not with BLAS: the last digit of its products depends on the number of cores.
    def probabilities(parameter: float) -> NDArray[np.float64]:
        shifted = logarithms(parameter)
        masses = np.exp(shifted - shifted.max())
        return np.asarray(masses / masses.sum())

    parameter = increasing_root(
        lambda parameter: float((probabilities(parameter) * values).sum()) - mean, start, step, _MEAN_TOLERANCE * mean
    )
    return LengthDistribution(values, probabilities(parameter))


def _log_masses(edges: NDArray[np.float64], location: float) -> NDArray[np.float64]:
    """Return logarithms of the probabilities between neighbouring edges, all shifted by one constant.

    Far from the location a mass is a difference of tails whose logarithms are large and nearly equal: their
    quadratic parts are subtracted analytically, so that nothing cancels.

    Args:
        edges: Ascending, in standard deviations, shape [n + 1]; the result has shape [n].
        location: Mean of the distribution, in standard deviations.
    """
    scores = edges - location
    scaled = _log_scaled_tail(np.abs(scores))
    is_above = scores[:-1] > 0
    near, far = np.where(is_above, edges[:-1], edges[1:]), np.where(is_above, edges[1:], edges[:-1])
    near_scaled = np.where(is_above, scaled[:-1], scaled[1:])
    far_scaled = np.where(is_above, scaled[1:], scaled[:-1])
    anchor = int(np.argmin(np.abs(scores)))
    to_far = -(far - near) * (far + near - 2.0 * location) / 2.0
    to_near = -(near - edges[anchor]) * (near + edges[anchor] - 2.0 * location) / 2.0
    with np.errstate(divide="ignore"):
        shares = np.log(-np.expm1(np.minimum(to_far + far_scaled - near_scaled, 0.0)))
    logarithms = to_near + near_scaled + shares
    holder = int(np.searchsorted(scores, 0.0, side="right")) - 1
    if 0 <= holder < len(logarithms):
        # The interval that contains the location is no difference of tails on one side.
        left, right = float(scores[holder]), float(scores[holder + 1])
        mass = 0.5 * (math.erf(right / math.sqrt(2.0)) - math.erf(left / math.sqrt(2.0)))
        logarithms[holder] = math.log(mass) + float(scores[anchor]) ** 2 / 2.0
    return np.asarray(logarithms)


def _log_scaled_tail(distance: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the logarithm of the upper tail beyond a standard score >= 0, times exp(score^2 / 2)."""
    result = np.empty_like(distance)
    for start in range(0, len(distance), _SCORES_AT_ONCE):
        block = slice(start, start + _SCORES_AT_ONCE)
        t = 2.0 / (2.0 + distance[block] / math.sqrt(2.0))
        result[block] = np.log(0.5 * t) + chebyshev.chebval(2.0 * t - 1.0, _TAIL_COEFFICIENTS)
    return result
