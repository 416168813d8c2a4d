"""Least squares of an engine's constants through the simulator: the search, its intervals, undetermined parameters.

Knows figures of runs and a model that predicts them; not which files they came from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares, lsq_linear
from scipy.stats import t as student

from simserve import rng
from simserve.calibrate.simulated import EngineParameters, Replay, ServingModel

NOISE = 0.01  # Least relative noise of a figure: repeated runs of one server differ by 0.5 to 2 % in throughput.
LOSS_SCALE = 0.1
"""Log error beyond which a figure's influence stops growing: a run near saturation must not dominate the fit."""

MAX_EVALUATIONS = 8
"""Steps of one stage of the search, each with two simulations of every run per parameter and one more."""

SPREADS = (8.0, 3.0)
"""Stages of the search by slopes: the number of steps (`Scale.step`) that slopes are taken over in each."""
LAST_STAGE = 1  # Stages of a search that starts close to its result: from the constants of all files.
RADII = (2.0, 1.0, 1.0)  # Rounds of the search by planes: radius in steps around the best so far, ...
POINTS_A_PARAMETER = 6
"""... each fitted to this many simulations per parameter: a run's figures jump where a request joins another step, and
a plane through many points averages the jumps out."""

COVERAGE = 0.975  # Upper quantile of a two-sided 95 % interval.


@dataclass(frozen=True, slots=True)
class Scale:
    """How a parameter is searched."""

    unit: float  # Value that counts as 1 in the search.
    step: float  # Difference for slopes, in units: large against the jitter from which requests share a step.
    highest: float  # Upper bound, in units; the lower bound is 0.
    widest: float  # Half-width of the widest interval that still determines the parameter, in units, ...
    widest_share: float  # ... plus this share of its value.


SCALES = {
    "host_seconds_per_step": Scale(1e-3, 0.05, 100.0, 0.25, 0.3),
    "host_seconds_per_request": Scale(1e-5, 0.2, 1000.0, 0.5, 0.3),
    "compute_efficiency": Scale(1.0, 0.02, 1.5, 0.1, 0.1),
    "frontend_latency": Scale(1e-3, 0.25, 1000.0, 2.0, 0.3),
}
LEAST = {"compute_efficiency": 0.05, "frontend_latency": 1e-5}
"""Lower bounds where 0 is impossible: nothing runs at zero efficiency, and no request reaches the scheduler at once."""

Progress = Callable[[int, int | None, str], None]


@dataclass(slots=True)
class Problem:
    """Runs and the figures of each that are compared; simulation results are cached."""

    model: ServingModel  # The deployment.
    replays: Sequence[Replay]  # The runs.
    figures: Sequence[tuple[str, ...]]  # Names of the figures that are compared, for each run.
    progress: Progress | None  # Called after each simulation.
    num_simulated: int = field(default=0, init=False)
    _known: dict[tuple[int, EngineParameters], dict[str, float]] = field(default_factory=dict)

    def num_figures(self, runs: Sequence[int] | None = None) -> int:
        """Return the number of figures of some runs (None: all)."""
        return sum(len(each) for run, each in enumerate(self.figures) if runs is None or run in runs)

    def simulated(self, index: int, parameters: EngineParameters) -> dict[str, float]:
        """Return all figures of one run with some constants."""
        key = (index, parameters)
        if key not in self._known:
            if len(self._known) > 4096:
                self._known.clear()
            self._known[key] = self.model.predict(self.replays[index], parameters)
            self.num_simulated += 1
            if self.progress is not None:
                self.progress(self.num_simulated, None, "simulating benchmarks")
        return self._known[key]

    def errors(self, parameters: EngineParameters, indices: Sequence[int]) -> NDArray[np.float64]:
        """Return log(simulated / measured) of the figures of some runs."""
        return np.array(
            [
                np.log(self.simulated(index, parameters)[name] / self.replays[index].result.measured[name])
                for index in indices
                for name in self.figures[index]
            ]
        )


@dataclass(frozen=True, slots=True)
class Solution:
    """The result of a search."""

    names: tuple[str, ...]  # Parameters that were free.
    parameters: EngineParameters  # All parameters.
    half_widths: NDArray[Any]  # Half of the 95 % interval of each free one; infinite where nothing depends on it.
    noise: float  # Relative noise behind the intervals.


def search(
    problem: Problem,
    start: EngineParameters,
    names: Sequence[str],
    indices: Sequence[int] | None = None,
    stages: int = len(SPREADS),
) -> Solution:
    """Return the constants whose simulation is nearest to some runs (None: all), and their intervals."""
    runs = list(range(len(problem.replays))) if indices is None else indices
    scales = [SCALES[name] for name in names]
    lows = np.array([LEAST.get(name, 0.0) / scale.unit for name, scale in zip(names, scales, strict=True)])
    highs = np.array([scale.highest for scale in scales])
    steps = np.array([scale.step for scale in scales])

    def parameters(values: NDArray[np.float64]) -> EngineParameters:
        found = {name: float(value * SCALES[name].unit) for name, value in zip(names, values, strict=True)}
        return replace(start, **found)

    def residuals(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return problem.errors(parameters(values), runs)

    def slopes(values: NDArray[np.float64], spread: float = 1.0) -> NDArray[np.float64]:
        columns = []
        for each in np.diag(spread * steps):
            above, below = np.minimum(values + each, highs), np.maximum(values - each, lows)
            columns.append((residuals(above) - residuals(below)) / (above - below).sum())
        return np.column_stack(columns) if columns else np.zeros((problem.num_figures(runs), 0))

    first = np.array([getattr(start, name) / SCALES[name].unit for name in names])
    if not len(names):
        return Solution((), start, np.zeros(0), _noise(residuals(first), 0))
    first = np.clip(first, lows + 1e-3 * steps, highs - 1e-3 * steps)
    best = first
    for spread in SPREADS[-stages:]:
        # Every stage restarts from the best so far: a run's figures jump where a request joins another step.
        found = least_squares(
            residuals,
            best,
            jac=partial(slopes, spread=spread),
            bounds=(lows, highs),
            x_scale=np.array([max(scale.widest, 4 * scale.step) for scale in scales]),
            loss="soft_l1",
            f_scale=LOSS_SCALE,
            max_nfev=MAX_EVALUATIONS,
            xtol=1e-6,
            ftol=1e-9,
        )
        best = found.x
    jacobian = slopes(best)
    for number, radius in enumerate(RADII):
        best, jacobian = _plane(residuals, best, radius * steps, (lows, highs), seed=number)
    noise = _noise(residuals(best), len(names))
    covariance = np.linalg.pinv(jacobian.T @ jacobian) * noise**2
    quantile = float(student.ppf(COVERAGE, max(problem.num_figures(runs) - len(names), 1)))
    deviations = np.where(_is_flat(jacobian), np.inf, np.sqrt(np.maximum(np.diag(covariance), 0.0)))
    units = np.array([scale.unit for scale in scales])
    return Solution(tuple(names), parameters(best), quantile * deviations * units, noise)


def _plane(
    residuals: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    centre: NDArray[np.float64],
    radius: NDArray[np.float64],
    bounds: tuple[NDArray[np.float64], NDArray[np.float64]],
    seed: int,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the best point near ``centre``, and the slopes of the plane through the residuals around it."""
    size = len(centre)
    drawn = rng.stream(seed, "calibrate_serving").uniform(-1.0, 1.0, (POINTS_A_PARAMETER * size, size))
    points = np.clip(centre + radius * drawn, *bounds)
    values = np.array([residuals(each) for each in points])
    design = np.column_stack((np.ones(len(points)), (points - centre) / radius))
    plane = np.linalg.lstsq(design, values, rcond=None)[0]
    jacobian = plane[1:].T
    found = lsq_linear(jacobian, -plane[0], bounds=((bounds[0] - centre) / radius, (bounds[1] - centre) / radius))
    candidates = [centre, np.clip(centre + radius * np.clip(found.x, -2.0, 2.0), *bounds), *points]
    costs = [_cost(residuals(each)) for each in candidates]
    return candidates[int(np.argmin(costs))], jacobian / radius


def _cost(residuals: NDArray[np.float64]) -> float:
    """Return the softened sum of squares that the search minimises (``soft_l1`` of SciPy)."""
    return float(2.0 * LOSS_SCALE**2 * np.sum(np.sqrt(1.0 + (residuals / LOSS_SCALE) ** 2) - 1.0))


def _is_flat(slopes: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which parameters change no figure, or change figures only as the others do."""
    flat = np.zeros(slopes.shape[1], dtype=bool)
    for index in range(slopes.shape[1]):
        column, others = slopes[:, index], np.delete(slopes, index, axis=1)
        own = column
        if others.shape[1]:
            own = column - others @ np.linalg.lstsq(others, column, rcond=None)[0]
        flat[index] = float(np.linalg.norm(own)) < 1e-9 + 1e-6 * float(np.linalg.norm(column))
    return flat


def _noise(residuals: NDArray[np.float64], num_parameters: int) -> float:
    freedom = max(len(residuals) - num_parameters, 1)
    return max(float(np.sqrt(float(residuals @ residuals) / freedom)), NOISE)


def untold(found: Solution) -> list[str]:
    """Return the parameters whose intervals are wider than `Scale.widest` allows."""
    return [
        name
        for name, width in zip(found.names, found.half_widths, strict=True)
        for scale in [SCALES[name]]
        if width > scale.widest * scale.unit + scale.widest_share * getattr(found.parameters, name)
    ]


def reason_of(found: Solution, name: str) -> str:
    """Return why the results do not determine a parameter."""
    width = found.half_widths[found.names.index(name)]
    value = getattr(found.parameters, name)
    if not np.isfinite(width):
        return "no figure of the files depends on it, or only as on the others"
    return f"the files tell it no better than {shown(name, value)} +- {shown(name, width)}"


def shown(name: str, value: float) -> str:
    """Return a parameter's value as text with its unit."""
    if name == "compute_efficiency":
        return f"{value:.3f}"
    return f"{value * 1e6:.3g} us" if name == "host_seconds_per_request" else f"{value * 1e3:.3g} ms"
