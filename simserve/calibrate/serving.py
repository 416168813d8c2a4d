"""Fit of an engine's few constants to end-to-end benchmarks by simulation, leaving out what the files do not determine.

Least squares on the logarithm of simulated over measured: per run one TTFT, one TPOT and, where clients set the pace,
one throughput. Intervals are those of the linearised problem, with at least the noise `NOISE`. Knows benchmark results
and a model that predicts them; no file of a profile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from simserve.calibrate.serving_search import (
    LAST_STAGE,
    Problem,
    Progress,
    Solution,
    problem_size,
    reason_of,
    search,
    untold,
)
from simserve.calibrate.simulated import PARAMETERS, EngineParameters, Replay, ServingModel, replay_of
from simserve.errors import InputError, UsageError, nearest
from simserve.workload.benchmarks.result import BenchResult

FEWEST_FOR_HOLDING_OUT = 3


FIT_LATENCIES = ("ttft", "tpot")
FALLBACKS = {"tpot": ("tpot", "ntpot")}
CLOSED = ("closed_loop", "all_at_once")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """One parameter.

    Attributes:
        value: Seconds, or a factor.
        half_width: Half of the 95 % interval; None for a parameter that was not fitted.
        reason: Why it was not fitted; empty for one that was.
    """

    value: float
    half_width: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunErrors:
    """A benchmark before and after the fit.

    Attributes:
        replay: The benchmark.
        measured: Figure -> measured value, for all figures that are compared.
        before: Figure -> value simulated with the constants of the profile.
        after: Figure -> value simulated with the fitted constants.
        held_out: Figure -> value simulated with constants fitted to the other files; empty below three files.
    """

    replay: Replay
    measured: Mapping[str, float]
    before: Mapping[str, float]
    after: Mapping[str, float]
    held_out: Mapping[str, float] = field(default_factory=dict)

    def error(self, which: str, figure: str) -> float | None:
        """Return simulated over measured minus 1; ``which`` is ``before``, ``after`` or ``held_out``."""
        simulated: Mapping[str, float] = getattr(self, which)
        return simulated[figure] / self.measured[figure] - 1.0 if figure in simulated else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingFit:
    """What a fit found.

    Attributes:
        parameters: Parameter -> its value and interval, or why it was not fitted.
        before: The constants of the profile.
        after: The fitted constants.
        runs: Every benchmark.
        noise: Relative noise that the intervals are based on.
    """

    parameters: Mapping[str, Fitted]
    before: EngineParameters
    after: EngineParameters
    runs: Sequence[RunErrors]
    noise: float

    @property
    def fitted_names(self) -> tuple[str, ...]:
        """The parameters that were fitted."""
        return tuple(name for name, each in self.parameters.items() if each.half_width is not None)

    def median_error(self, which: str, latency: str) -> float | None:
        """Return the median absolute error of a latency or of ``output_throughput`` over all runs."""
        return median_error(self.runs, which, latency)


def median_error(runs: Sequence[RunErrors], which: str, latency: str) -> float | None:
    """Return the median absolute error of a latency or of ``output_throughput`` over some runs."""
    errors = [
        abs(error)
        for run in runs
        for figure in run.measured
        if figure.endswith(latency) and (error := run.error(which, figure)) is not None
    ]
    return float(np.median(errors)) if errors else None


class ServingCalibration:
    """Fits engine constants to benchmarks: `fit` returns the object itself, with the result in ``fit_``.

    Args:
        model: The deployment.
        names: Parameters to fit; None: those of `PARAMETERS` that the results can tell apart.
        statistic: ``median`` or ``mean``: which TTFT and TPOT of a file to fit; the other if the file has only that.
        progress: Called now and then.
    """

    fit_: ServingFit

    def __init__(
        self,
        model: ServingModel,
        names: Sequence[str] | None = None,
        statistic: str = "median",
        progress: Progress | None = None,
    ) -> None:
        unknown = next((name for name in names or () if name not in PARAMETERS), None)
        if unknown is not None:
            raise UsageError("is no parameter", key="--fit", value=unknown, remedy=nearest(unknown, PARAMETERS))
        self.model, self.names, self.statistic, self.progress = model, names, statistic, progress

    def fit(self, results: Sequence[BenchResult]) -> ServingCalibration:
        """Fit the constants.

        Raises:
            InputError: The results cannot tell the parameters apart, or hold fewer figures than parameters.
            InfeasibleError: The scenario's deployment cannot serve their requests.
        """
        replays = [replay_of(result, self.model.scenario) for result in results]
        problem = Problem(self.model, replays, [fit_figures(each, self.statistic) for each in results], self.progress)
        start = self.model.stated
        left: dict[str, str] = {}
        names = list(dict.fromkeys(self.names or PARAMETERS))
        if "frontend_latency" in self.model.scenario.deployment.engine.overrides():
            _leave(names, left, "frontend_latency", "the scenario sets it", asked=self.names is not None)
        _check_count(names, problem, asked=self.names is not None, left=left)
        found = search(problem, start, names)
        while names and (candidates := untold(found)):
            # Of the undetermined parameters, drop the one without which the rest explains the files best.
            trials = {
                name: search(
                    problem,
                    found.with_value(name, getattr(start, name)),
                    [each for each in names if each != name],
                    stages=LAST_STAGE,
                )
                for name in candidates
            }
            worst = min(trials, key=lambda name: trials[name].noise)
            _leave(names, left, worst, reason_of(found, worst), asked=self.names is not None)
            found = trials[worst]
        self.fit_ = self._summary(problem, start, found, left, _held_out(problem, found, names))
        return self

    def _summary(
        self,
        problem: Problem,
        start: EngineParameters,
        found: Solution,
        left: Mapping[str, str],
        held_out: Sequence[Mapping[str, float]],
    ) -> ServingFit:
        widths = dict(zip(found.names, found.half_widths, strict=True))
        parameters = {
            name: Fitted(
                value=getattr(found.parameters, name),
                half_width=widths.get(name),
                reason="" if name in widths else left.get(name, "not asked for"),
            )
            for name in PARAMETERS
        }
        runs = []
        for index, replay in enumerate(problem.replays):
            measured = shown_figures(replay.result, self.statistic)
            before, after = problem.simulated(index, start), problem.simulated(index, found.parameters)
            runs.append(
                RunErrors(
                    replay=replay,
                    measured=measured,
                    before={key: before[key] for key in measured if key in before},
                    after={key: after[key] for key in measured if key in after},
                    held_out={key: held_out[index][key] for key in measured if key in held_out[index]}
                    if held_out
                    else {},
                )
            )
        return ServingFit(parameters=parameters, before=start, after=found.parameters, runs=runs, noise=found.noise)


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


def _leave(names: list[str], left: dict[str, str], name: str, reason: str, *, asked: bool) -> None:
    """Take a parameter out of the fit.

    Raises:
        InputError: It was asked for by name.
    """
    if name not in names:
        return
    if asked:
        raise InputError(
            f"cannot be fitted: {reason}",
            key=f"--fit {name}",
            remedy="leave it out, or add files at other loads and lengths",
        )
    names.remove(name)
    left[name] = reason


def _check_count(names: list[str], problem: Problem, *, asked: bool, left: dict[str, str]) -> None:
    """Leave out parameters until there are fewer parameters than figures.

    Raises:
        InputError: There is no figure to fit, or the parameters were asked for by name.
    """
    if not problem.num_figures:
        raise InputError("hold neither TTFT nor TPOT", key="RESULTS", remedy="benchmark with streaming on")
    for name in ("frontend_latency", "host_seconds_per_request", "host_seconds_per_step"):
        if len(names) < problem.num_figures:
            return
        reason = f"{problem.num_figures} figures cannot tell {len(names)} parameters apart"
        _leave(names, left, name, reason, asked=asked)


def _held_out(problem: Problem, found: Solution, names: Sequence[str]) -> list[dict[str, float]]:
    """Return the figures of each run with constants fitted to the other files; empty below three files."""
    files = list(dict.fromkeys(replay.result.file for replay in problem.replays))
    if len(files) < FEWEST_FOR_HOLDING_OUT or not names:
        return []
    figures: list[dict[str, float]] = [{} for _ in problem.replays]
    for file in files:
        others = [index for index, replay in enumerate(problem.replays) if replay.result.file != file]
        if problem_size(problem, others) <= len(names):
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
        "median_error": {
            latency: {which: fit.median_error(which, latency) for which in ("before", "after", "held_out")}
            for latency in ("ttft", "tpot", "output_throughput")
        },
        "runs": runs_as_mapping(fit.runs),
    }


def runs_as_mapping(runs: Sequence[RunErrors]) -> list[dict[str, Any]]:
    """Return benchmarks with their figures as plain values."""
    return [
        {
            "label": run.replay.result.label,
            "file": run.replay.result.file,
            "tool": run.replay.result.tool,
            "definitions": dict(run.replay.result.definitions),
            "notes": [*run.replay.result.notes, *run.replay.notes],
            "figures": {
                figure: {
                    "measured": measured,
                    **{which: getattr(run, which).get(figure) for which in ("before", "after", "held_out")},
                }
                for figure, measured in run.measured.items()
            },
        }
        for run in runs
    ]
