"""Factors of one server relative to its engine profile, by maximum a posteriori from at least one measured run.

The prior of the log factors (`simserve.profiles.engine_options.FACTORS`) is the profile itself: a factor that the runs
do not determine keeps the profile's value. Factors and figures follow Student's t, as odd servers and odd runs are
common. Only the share of the result is taken that explains the runs better than noise alone would (`believed`), and
from three loads up nothing where they foretell one another no better than the profile does. Knows measured figures and
a function that predicts them; no files, no scenario.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from simserve.profiles.engine_options import FACTORS

Array = NDArray[np.float64]
Factors = Mapping[str, float]
Predict = Callable[[int, Factors], Mapping[str, float]]  # Index of a run and factors -> its figures.
REPEATABILITY = {"tpot": 0.02, "ttft": 0.05, "throughput": 0.02}
"""How far repeated runs of one server differ, as a share: the noise of a figure where no load is repeated."""
KNOWN_REPEATS = 4.0
"""Number of repeats that `REPEATABILITY` counts for when pooled with those of a server's own loads."""
FREEDOM = 4.0  # Degrees of freedom of factors and figures: no odd run may dominate the fit, and a factor may be odd.
INFORMATION = (FREEDOM + 1.0) / (FREEDOM + 3.0)  # Fisher information of the location of Student's t with scale 1.
SCALE = float(np.sqrt((FREEDOM - 2.0) / FREEDOM))  # Scale of Student's t with standard deviation 1.
HALF_STEP = 0.06
"""Half of the difference in log factors over which slopes are taken: large against the jitter from which requests
share a step."""
MAX_ROUNDS = 3  # Most Gauss-Newton steps, each with nine simulations of every run.
ENOUGH = 0.005  # A step in log factors this small ends the search.
FARTHEST = 2.0  # Largest log factor: beyond a factor of e squared something other than an engine's speed is wrong.
FEWEST_FOR_HOLDING_OUT = 3  # Least number of runs for each to be predicted from those at other loads.
WEIGHINGS = 50  # Iterations of reweighting, enough to converge.


@dataclass(frozen=True, slots=True, kw_only=True)
class Priors:
    """How far servers are from their profiles, in logarithms."""

    widths: Mapping[str, float]  # Factor -> scale of the servers' factors around 1.
    misfit: Mapping[str, float]
    """``tpot`` or ``ttft`` -> standard deviation of a run's error that no factor explains: what the model leaves
    out."""

    def covariance(self) -> Array:
        """Return the covariance of the log factors."""
        return np.diag(self.scales() ** 2)

    def scales(self) -> Array:
        """Return the scales of the log factors."""
        return np.array([self.widths[name] for name in FACTORS])


PRIORS = Priors(
    widths={"gpu": 0.071, "host": 0.078, "prompts": 0.129, "batch": 0.262, "frontend": 0.152},
    misfit={"tpot": 0.056, "ttft": 0.107},
)
"""Empirical Bayes over 89 replayed servers of eight sources (docs/calibrated-servers.md, which also gives the widths
with each source left out); unseen reports are not among them."""

CPU_HOST_WIDTH = 0.8
"""Scale of the host's log factor where the device is a CPU. The times of the engine profiles come from hosts of GPUs
and say little about CPUs: nodes differ by 1.4 to 2 (`host_cores` of the hardware profiles; taken as 1.5), and front
end, scheduler, worker and client share the cores, so that each may wait for the others as long as it works (2):
(ln 1.5)^2 + (ln 2)^2 = 0.8^2. An assumption: two CPU servers have been measured."""

CPU_KERNEL_WIDTH = 0.05
"""Scale of the log factors on a CPU's computation (`gpu`, `prompts`, `batch`): its profile was fitted to kernels
measured on the same core, and held-out single calls are 4 to 8 % off (calibration/runs/vllm-cpu-2026-11-27). The wider
scales of `PRIORS` also include the distance of a server's kernels from bundled curves."""


def priors_on(*, is_cpu: bool) -> Priors:
    """Return how far servers on a CPU or a GPU are from their profiles."""
    if not is_cpu:
        return PRIORS
    computing = dict.fromkeys(("gpu", "prompts", "batch"), CPU_KERNEL_WIDTH)
    return replace(PRIORS, widths={**PRIORS.widths, **computing, "host": CPU_HOST_WIDTH})


def kind_of(figure: str) -> str:
    """Return whether a figure is a ``tpot`` (with its first token or without), a ``ttft`` or a ``throughput``."""
    return "tpot" if figure.endswith("tpot") else "ttft" if figure.endswith("ttft") else "throughput"


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """Runs linearised around some factors."""

    runs: NDArray[np.int64]  # Run of each figure.
    figures: tuple[str, ...]  # Its name.
    residuals: Array  # log(simulated / measured).
    slopes: Array  # Their derivatives with respect to the log factors, one row per figure.
    repeats: Array | None = None  # Standard error of each figure from its repeats; None: `REPEATABILITY`.

    def noise(self, priors: Priors) -> Array:
        """Return the standard error of each figure: repeats, misfit, and the effect of a misfit of step times.

        Where requests queue, TTFT changes many times as much as the time of a step, and so does its error.
        """
        kinds = [kind_of(figure) for figure in self.figures]
        repeats = np.array([REPEATABILITY[kind] for kind in kinds]) if self.repeats is None else self.repeats
        own = np.array([priors.misfit["ttft"] if kind == "ttft" else 0.0 for kind in kinds])
        steps = np.abs(self.slopes[:, FACTORS.index("gpu")]) + np.abs(self.slopes[:, FACTORS.index("host")])
        passed_on = priors.misfit["tpot"] * np.maximum(steps, np.array([0.0 if k == "ttft" else 1.0 for k in kinds]))
        return np.asarray(np.sqrt(repeats**2 + own**2 + passed_on**2))

    def of(self, keep: NDArray[np.bool_]) -> Linear:
        """Return some of the figures."""
        figures = tuple(name for name, is_kept in zip(self.figures, keep, strict=True) if is_kept)
        repeats = None if self.repeats is None else self.repeats[keep]
        kept = {name: getattr(self, name)[keep] for name in ("runs", "residuals", "slopes")}
        return Linear(figures=figures, repeats=repeats, **kept)

    def by_load(self, loads: Sequence[int]) -> Linear:
        """Return the means of the figures of equal loads: what the model leaves out is the same in every repeat.

        The differences between repeats are pooled over the loads for each kind of figure, with `REPEATABILITY`.

        Args:
            loads: Index of each run's load.
        """
        of_run = [(loads[run], figure) for run, figure in zip(self.runs.tolist(), self.figures, strict=True)]
        groups = list(dict.fromkeys(of_run))
        members = np.array([[key == group for key in of_run] for group in groups], dtype=np.float64)
        counts = members.sum(axis=1)
        mean = members / counts[:, None]
        means = mean @ self.residuals
        squares = members @ (self.residuals - members.T @ means) ** 2
        kinds = np.array([kind_of(figure) for _, figure in groups])
        errors = np.empty(len(groups))
        for kind in REPEATABILITY:
            own = kinds == kind
            pooled = KNOWN_REPEATS * REPEATABILITY[kind] ** 2 + squares[own].sum()
            errors[own] = np.sqrt(pooled / (KNOWN_REPEATS + (counts[own] - 1.0).sum()) / counts[own])
        return Linear(
            runs=np.array([load for load, _ in groups], dtype=np.int64),
            figures=tuple(figure for _, figure in groups),
            residuals=means,
            slopes=mean @ self.slopes,
            repeats=errors,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FactorFit:
    """What a fit found."""

    log_factors: Array  # In the order of `FACTORS`.
    covariance: Array  # Of the log factors, given the runs.
    priors: Priors  # The priors of the fit.
    before: Sequence[Mapping[str, float]]  # The figures of each run with the profile alone.
    after: Sequence[Mapping[str, float]]  # The same with the factors.
    held_out: Sequence[Mapping[str, float]] = ()
    """The same with factors of the runs at other loads; empty below three runs, or with only one load."""
    is_kept: bool = True
    """Whether the factors are those found; False: the runs foretell one another no better than the profile does, and
    every factor is 1."""
    num_simulations: int = 0  # Runs simulated for the fit.

    @property
    def factors(self) -> dict[str, float]:
        """The factors by name."""
        return _as_factors(self.log_factors)

    def deviation(self, name: str) -> float:
        """Return the standard deviation of a log factor."""
        return float(np.sqrt(self.covariance[FACTORS.index(name), FACTORS.index(name)]))

    def interval(self, name: str) -> tuple[float, float]:
        """Return the central 95 % of a factor."""
        centre, reach = self.log_factors[FACTORS.index(name)], 1.96 * self.deviation(name)
        return float(np.exp(centre - reach)), float(np.exp(centre + reach))

    def is_told(self, name: str) -> bool:
        """Return whether the runs at least halve the prior variance of a factor."""
        return self.deviation(name) ** 2 < 0.5 * self.priors.widths[name] ** 2


def _as_factors(log_factors: Array) -> dict[str, float]:
    """Return factors by name."""
    return {name: float(np.exp(value)) for name, value in zip(FACTORS, log_factors, strict=True)}


@dataclass(slots=True)
class FactorSearch:
    """Maximum a posteriori of the factors of one server."""

    measured: Sequence[Mapping[str, float]]  # Measured figures of each run, by name.
    predict: Predict  # Simulates the figures of a run.
    priors: Priors  # How far servers are from their profiles.
    loads: Sequence[int] = ()
    """Index of each run's load, equal for repeats of one; empty: every run has a different load."""
    num_simulations: int = 0  # Runs simulated so far.
    _known: dict[tuple[int, tuple[float, ...]], Mapping[str, float]] = field(default_factory=dict)

    def simulated(self, run: int, log_factors: Array) -> Mapping[str, float]:
        """Return the figures of a run."""
        key = run, tuple(float(f"{value:.9g}") for value in log_factors)
        if key not in self._known:
            self._known[key] = self.predict(run, _as_factors(log_factors))
            self.num_simulations += 1
        return self._known[key]

    def linear_at(self, log_factors: Array) -> Linear:
        """Return residuals and slopes of the runs, by central differences."""
        figures = [(run, figure) for run, measured in enumerate(self.measured) for figure in measured]
        columns = []
        for each in np.diag(np.full(len(FACTORS), HALF_STEP)):
            above, below = (self._logs(figures, log_factors + sign * each) for sign in (1.0, -1.0))
            columns.append((above - below) / (2.0 * HALF_STEP))
        return Linear(
            runs=np.array([run for run, _ in figures], dtype=np.int64),
            figures=tuple(figure for _, figure in figures),
            residuals=self._residuals(figures, log_factors),
            slopes=np.column_stack(columns),
        )

    def _logs(self, figures: Sequence[tuple[int, str]], log_factors: Array) -> Array:
        return np.array([np.log(self.simulated(run, log_factors)[figure]) for run, figure in figures])

    def _residuals(self, figures: Sequence[tuple[int, str]], log_factors: Array) -> Array:
        measured = np.log([self.measured[run][figure] for run, figure in figures])
        return np.asarray(self._logs(figures, log_factors) - measured)

    def fit(self, *, is_held_out: bool = True) -> FactorFit:
        """Return the factors and, from three runs up, the figures of each run with the factors of other loads.

        Args:
            is_held_out: Whether to predict each load from the others, and to keep the profile where that is no better.
        """
        place = np.zeros(len(FACTORS))
        linear = self.linear_at(place)
        for _ in range(MAX_ROUNDS):
            aim = solve(self._of_loads(linear), place, self.priors)[0]
            found = self._on_the_way(place, aim, linear)
            moved = float(np.max(np.abs(found - place)))
            place = found
            if moved < ENOUGH:
                break
            linear = self.linear_at(place)
        count = len(self.measured)
        at_start = np.zeros(len(FACTORS))
        told = self._of_loads(linear)
        share = believed(told, place, place, self.priors)
        held_out = self._held_out(linear, place) if is_held_out else ()
        covariance = solve(told, place, self.priors)[1]
        is_kept = not held_out or self._predicts(linear, held_out)
        place = share * place if is_kept else at_start
        return FactorFit(
            log_factors=place,
            covariance=covariance,
            priors=self.priors,
            before=[self.simulated(run, at_start) for run in range(count)],
            after=[self.simulated(run, place) for run in range(count)],
            held_out=held_out,
            is_kept=is_kept,
            num_simulations=self.num_simulations,
        )

    def _of_loads(self, linear: Linear) -> Linear:
        return linear.by_load(self.loads) if self.loads else linear

    def _on_the_way(self, place: Array, aim: Array, linear: Linear) -> Array:
        """Return the farthest of a few points towards ``aim`` that is no worse than ``place``, or ``place``."""
        figures = list(zip(linear.runs.tolist(), linear.figures, strict=True))
        told = self._of_loads(linear)
        scale = SCALE * told.noise(self.priors)
        least = self._cost(place, told.residuals / scale)
        for share in (1.0, 0.5, 0.25):
            point = place + share * (aim - place)
            there = self._of_loads(replace(linear, residuals=self._residuals(figures, point)))
            if self._cost(point, there.residuals / scale) <= least:
                return point
        return place

    def _cost(self, log_factors: Array, standardised: Array) -> float:
        return surprise(standardised) + surprise(log_factors / self.priors.scales())

    def _held_out(self, linear: Linear, place: Array) -> Sequence[Mapping[str, float]]:
        """Return each run with the factors of runs at other loads, found from the slopes at the fit."""
        count = len(self.measured)
        of_run = np.asarray(self.loads or range(count))
        if count < FEWEST_FOR_HOLDING_OUT or len(np.unique(of_run)) == 1:
            return ()
        found = []
        for run in range(count):
            others = self._of_loads(linear.of(of_run[linear.runs] != of_run[run]))
            aim = solve(others, place, self.priors)[0]
            found.append(self.simulated(run, believed(others, place, aim, self.priors) * aim))
        return found

    def _predicts(self, linear: Linear, held_out: Sequence[Mapping[str, float]]) -> bool:
        """Return whether runs are no less probable with the factors of other loads than with the profile alone."""
        figures = list(zip(linear.runs.tolist(), linear.figures, strict=True))
        measured = np.log([self.measured[run][figure] for run, figure in figures])
        scale = SCALE * self._of_loads(linear).noise(self.priors)

        def missed(simulated: Sequence[Mapping[str, float]]) -> float:
            residuals = np.log([simulated[run][figure] for run, figure in figures]) - measured
            return surprise(self._of_loads(replace(linear, residuals=residuals)).residuals / scale)

        at_start = np.zeros(len(FACTORS))
        return missed(held_out) <= missed([self.simulated(run, at_start) for run in range(len(self.measured))])


def surprise(standardised: Array) -> float:
    """Return minus twice the logarithm of the density of Student's t, up to a constant."""
    return float((FREEDOM + 1.0) * np.sum(np.log1p(standardised**2 / FREEDOM)))


def weights(standardised: Array) -> Array:
    """Return the weights with which squares approximate `surprise` around some values."""
    return np.asarray((FREEDOM + 1.0) / (FREEDOM + standardised**2))


def solve(linear: Linear, place: Array, priors: Priors) -> tuple[Array, Array]:
    """Return the most probable log factors of the linearised runs, and their covariance.

    Iteratively reweighted least squares; it starts as if no run or factor were odd.
    """
    offset, slopes = _standardised(linear, place, priors)
    scales = priors.scales()
    of_figures, of_factors = np.ones(len(offset)), np.ones(len(scales))
    for _ in range(WEIGHINGS):
        covariance = np.linalg.inv(slopes.T @ (of_figures[:, None] * slopes) + np.diag(of_factors / scales**2))
        found = np.clip(-covariance @ (slopes.T @ (of_figures * offset)), -FARTHEST, FARTHEST)
        of_figures, of_factors = weights(offset + slopes @ found), weights(found / scales)
    return found, np.asarray(covariance)


def believed(linear: Linear, place: Array, found: Array, priors: Priors) -> float:
    """Return the share of some log factors that is taken: gain / (gain + gain of noise alone).

    The gain is how much the factors reduce the surprise of runs and prior. If the server were exactly as its profile
    says, noise would gain about one for each factor that the runs determine, and half for one they half determine.

    Args:
        linear: The runs around ``place``.
        place: Log factors.
        found: The log factors to judge.
    """
    offset, slopes = _standardised(linear, place, priors)
    scales = priors.scales()
    after = offset + slopes @ found
    gain = surprise(offset) - surprise(after) - surprise(found / scales)
    information = INFORMATION * slopes.T @ slopes
    by_noise = float(
        np.trace(np.linalg.solve(information + np.diag(weights(np.zeros(len(scales))) / scales**2), information))
    )
    return gain / (gain + by_noise) if gain > 0.0 else 0.0


def _standardised(linear: Linear, place: Array, priors: Priors) -> tuple[Array, Array]:
    """Return the linearised runs' residuals with the profile alone, and their slopes, both divided by their scale."""
    scale = SCALE * linear.noise(priors)
    return np.asarray((linear.residuals - linear.slopes @ place) / scale), np.asarray(linear.slopes / scale[:, None])
