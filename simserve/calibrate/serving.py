"""Fit of some of an engine's few constants to end-to-end benchmarks by simulation.

Least squares on the logarithm of simulated over measured: per run one TTFT, one TPOT and, where clients set the pace,
one throughput. Intervals are those of the linearised problem, with at least the noise `NOISE`. Knows benchmark results
and a model that predicts them; no file of a profile.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from simserve.calibrate.serving_search import LAST_STAGE, Problem, Progress, Solution, reason_of, search, untold
from simserve.calibrate.simulated import PARAMETERS, EngineParameters, Replay, ServingModel, replay_of
from simserve.errors import InputError, UsageError, nearest
from simserve.profiles.expected_errors import FLOORS, LEVEL, load_calibrated_errors
from simserve.workload.benchmarks.result import BenchResult

FEWEST_FOR_HOLDING_OUT = 3


FIT_LATENCIES = ("ttft", "tpot")
FALLBACKS = {"tpot": ("tpot", "ntpot")}
CLOSED = ("closed_loop", "all_at_once")
GATED = ("mean_", "median_")
"""Statistics of latencies that the drift gate compares; tails of a few hundred requests are too noisy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """One parameter."""

    value: float  # Seconds, or a factor.
    half_width: float | None = None  # Half of the 95 % interval; None for a parameter that was not fitted.
    reason: str = ""  # Why it was not fitted; empty for one that was.


@dataclass(frozen=True, slots=True, kw_only=True)
class RunErrors:
    """A benchmark before and after the fit."""

    replay: Replay  # The benchmark.
    measured: Mapping[str, float]  # Figure -> measured value, for all figures that are compared.
    before: Mapping[str, float]  # Figure -> value simulated with the constants of the profile.
    after: Mapping[str, float]  # Figure -> value simulated with the fitted constants.
    held_out: Mapping[str, float] = field(default_factory=dict)
    """Figure -> value simulated with constants fitted to the other files; empty below three files."""
    missed: Mapping[str, float] = field(default_factory=dict)
    """Gated figure -> by what share the fitted value is off, up or down; see `gated_figures`."""

    def error(self, which: str, figure: str) -> float | None:
        """Return simulated over measured minus 1; ``which`` is ``before``, ``after`` or ``held_out``."""
        simulated: Mapping[str, float] = getattr(self, which)
        return simulated[figure] / self.measured[figure] - 1.0 if figure in simulated else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """Benchmarks before and after a fit."""

    runs: Sequence[RunErrors]  # Every benchmark.

    def median_error(self, which: str, latency: str) -> float | None:
        """Return the median absolute error of a latency or of ``output_throughput`` over all runs."""
        errors = [
            abs(error)
            for run in self.runs
            for figure in run.measured
            if figure.endswith(latency) and (error := run.error(which, figure)) is not None
        ]
        return float(np.median(errors)) if errors else None

    def num_unexplained(self, latency: str) -> int:
        """Return how many benchmarks the fit itself misses by more than nine in ten calibrated servers are off.

        Those are off at loads that they were not calibrated on: a server that is missed even at the loads of its own
        fit is not one of them, and `run` states a wider range for it.
        """
        known = load_calibrated_errors().metrics.get(latency.removeprefix("output_"))
        if known is None:
            return 0
        most = abs(known.center) + max(known.p90, FLOORS[latency.removeprefix("output_")])
        return sum(any(each > most for each in found) for found in self._log_errors(latency))

    @property
    def own_errors(self) -> dict[str, float]:
        """What holds 90 % of the absolute logarithms of simulated over measured after the fit, for each metric."""
        found = {
            latency.removeprefix("output_"): [each for errors in self._log_errors(latency) for each in errors]
            for latency in ("ttft", "tpot", "output_throughput")
        }
        return {
            name: float(np.quantile(errors, LEVEL, method="higher")) for name, errors in found.items() if any(errors)
        }

    @property
    def own_figures(self) -> dict[str, float]:
        """The largest share by which each gated figure is off after the fit, over all benchmarks."""
        names = dict.fromkeys(figure for run in self.runs for figure in run.missed)
        return {name: max(run.missed[name] for run in self.runs if name in run.missed) for name in names}

    def _log_errors(self, latency: str) -> list[list[float]]:
        """Return the absolute logarithms of simulated over measured of each run after the fit."""
        return [
            [
                abs(math.log1p(error))
                for figure in run.measured
                if figure.endswith(latency) and (error := run.error("after", figure)) is not None and error > -1.0
            ]
            for run in self.runs
        ]

    @property
    def errors(self) -> dict[str, Any]:
        """Median errors and all benchmarks as plain values."""
        return {
            "median_error": {
                latency: {which: self.median_error(which, latency) for which in _SIMULATED}
                for latency in ("ttft", "tpot", "output_throughput")
            },
            "runs": [
                {
                    "label": run.replay.result.label,
                    "file": run.replay.result.file,
                    "tool": run.replay.result.tool,
                    "definitions": dict(run.replay.result.definitions),
                    "notes": [*run.replay.result.notes, *run.replay.notes],
                    "figures": {
                        figure: {
                            "measured": measured,
                            **{which: getattr(run, which).get(figure) for which in _SIMULATED},
                        }
                        for figure, measured in run.measured.items()
                    },
                }
                for run in self.runs
            ],
        }


_SIMULATED = ("before", "after", "held_out")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingFit(Explained):
    """What a fit found."""

    parameters: Mapping[str, Fitted]  # Parameter -> its value and interval, or why it was not fitted.
    before: EngineParameters  # The constants of the profile.
    after: EngineParameters  # The fitted constants.
    noise: float  # Relative noise that the intervals are based on.

    @property
    def fitted_names(self) -> tuple[str, ...]:
        """The parameters that were fitted."""
        return tuple(name for name, each in self.parameters.items() if each.half_width is not None)


class ServingCalibration:
    """Fits engine constants to benchmarks: `fit` returns the object itself, with the result in ``fit_``.

    Args:
        names: Parameters to fit, of `PARAMETERS`.
        statistic: ``median`` or ``mean``: which TTFT and TPOT of a file to fit; the other if the file has only that.
    """

    fit_: ServingFit

    def __init__(
        self, model: ServingModel, names: Sequence[str], statistic: str = "median", progress: Progress | None = None
    ) -> None:
        unknown = next((name for name in names if name not in PARAMETERS), None)
        if unknown is not None:
            raise UsageError("is no parameter", key="--fit", value=unknown, remedy=nearest(unknown, PARAMETERS))
        self.model, self.names, self.statistic, self.progress = model, names, statistic, progress

    def fit(self, results: Sequence[BenchResult]) -> ServingCalibration:
        """Fit the constants.

        Raises:
            InputError: The results do not determine the parameters, or hold fewer figures than parameters.
            InfeasibleError: The scenario's deployment cannot serve their requests.
        """
        replays = [replay_of(result, self.model.scenario) for result in results]
        problem = Problem(self.model, replays, [fit_figures(each, self.statistic) for each in results], self.progress)
        names, size = list(dict.fromkeys(self.names)), problem.num_figures()
        if "frontend_latency" in names and "frontend_latency" in self.model.scenario.deployment.engine.overrides():
            raise _undetermined("frontend_latency", "the scenario sets it")
        if not size:
            raise InputError("hold neither TTFT nor TPOT", key="RESULTS", remedy="benchmark with streaming on")
        if len(names) >= size and (least := [name for name in LEAST_TOLD if name in names]):
            raise _undetermined(least[0], f"{size} figures cannot tell {len(names)} parameters apart")
        start = self.model.stated
        found = search(problem, start, names)
        if missing := untold(found):
            raise _undetermined(missing[0], reason_of(found, missing[0]))
        widths = dict(zip(found.names, found.half_widths, strict=True))
        held_out = _held_out(problem, found, names)
        self.fit_ = ServingFit(
            parameters={
                name: Fitted(
                    value=getattr(found.parameters, name),
                    half_width=widths.get(name),
                    reason="" if name in widths else "not asked for",
                )
                for name in PARAMETERS
            },
            before=start,
            after=found.parameters,
            runs=[
                run_errors(
                    replay,
                    self.statistic,
                    before=problem.simulated(index, start),
                    after=problem.simulated(index, found.parameters),
                    held_out=held_out[index] if held_out else {},
                )
                for index, replay in enumerate(replays)
            ],
            noise=found.noise,
        )
        return self


LEAST_TOLD = ("frontend_latency", "host_seconds_per_request", "host_seconds_per_step")
"""Parameters that few figures tell least, the least first."""


def _undetermined(name: str, reason: str) -> InputError:
    remedy = "leave it out, or add files at other loads and lengths"
    return InputError(f"cannot be fitted: {reason}", key=f"--fit {name}", remedy=remedy)


def run_errors(
    replay: Replay, statistic: str, *, written: Mapping[str, float] | None = None, **simulated: Mapping[str, float]
) -> RunErrors:
    """Return a benchmark with what was simulated ``before``, ``after`` and ``held_out``, by figure.

    Args:
        written: What is simulated with the constants as a profile holds them; None: no profile is written.
    """
    measured = shown_figures(replay.result, statistic)
    shown = {which: {key: found[key] for key in measured if key in found} for which, found in simulated.items()}
    gated = {key: (value, (written or {}).get(key, 0.0)) for key, value in gated_figures(replay.result).items()}
    missed = {key: max(own / value, value / own) - 1.0 for key, (value, own) in gated.items() if own > 0}
    return RunErrors(replay=replay, measured=measured, missed=missed, **shown)


def gated_figures(result: BenchResult) -> Mapping[str, float]:
    """Return the figures of a run that the drift gate compares: means, medians and throughput."""
    return {
        figure: value
        for figure, value in result.measured.items()
        if figure.startswith(GATED) or figure.endswith("throughput")
    }


def fit_figures(result: BenchResult, statistic: str) -> tuple[str, ...]:
    """Return the figures of a run that are fitted: a TTFT, a TPOT, and throughput where clients set the pace.

    At a given rate, throughput only says that the server kept up.
    """
    order = (statistic, "mean" if statistic == "median" else "median")
    found = []
    for latency in FIT_LATENCIES:
        candidates = [f"{each}_{name}" for name in FALLBACKS.get(latency, (latency,)) for each in order]
        found += [name for name in candidates if name in result.measured][:1]
    if "output_throughput" in result.measured and result.arrivals.get("process") in CLOSED:
        found.append("output_throughput")
    return tuple(found)


def shown_figures(result: BenchResult, statistic: str) -> dict[str, float]:
    """Return the measured figures that a table compares: the fitted ones and throughput."""
    names = dict.fromkeys((*fit_figures(result, statistic), "output_throughput"))
    return {name: result.measured[name] for name in names if name in result.measured}


def _held_out(problem: Problem, found: Solution, names: Sequence[str]) -> list[dict[str, float]]:
    """Return the figures of each run with constants fitted to the other files; empty below three files."""
    files = list(dict.fromkeys(replay.result.file for replay in problem.replays))
    if len(files) < FEWEST_FOR_HOLDING_OUT or not names:
        return []
    figures: list[dict[str, float]] = [{} for _ in problem.replays]
    for file in files:
        others = [index for index, replay in enumerate(problem.replays) if replay.result.file != file]
        if problem.num_figures(others) <= len(names):
            return []
        without = search(problem, found.parameters, names, others, stages=LAST_STAGE)
        for index, replay in enumerate(problem.replays):
            if replay.result.file == file:
                figures[index] = problem.simulated(index, without.parameters)
    return figures


def as_mapping(fit: ServingFit) -> dict[str, Any]:
    """Return a fit as plain values, times in the units that their names end in."""
    return {
        "parameters": {
            name: {"value": each.value, "half_width_95": each.half_width, "reason": each.reason}
            for name, each in fit.parameters.items()
        },
        "before": {name: getattr(fit.before, name) for name in PARAMETERS},
        "noise": fit.noise,
        **fit.errors,
    }
