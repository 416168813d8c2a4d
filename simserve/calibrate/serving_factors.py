"""`calibrate serving`: from benchmarks of one server to its factors relative to its engine profile.

Knows benchmark results and a scenario's deployment; `simserve.calibrate.factors` finds the factors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from simserve.calibrate.factors import FEWEST_FOR_HOLDING_OUT, FactorFit, FactorSearch, Priors, kind_of, priors_on
from simserve.calibrate.loads import (
    FIGURES,
    ProposedLoad,
    benchmark_command,
    client_counts,
    closed_loop,
    deviations,
    model_id,
    slopes_of,
)
from simserve.calibrate.serving import Explained, RunErrors, fit_figures, run_errors
from simserve.calibrate.serving_search import Progress
from simserve.calibrate.simulated import Replay, ServingModel, replay_of
from simserve.errors import InputError
from simserve.profiles.engine_options import FACTORS
from simserve.workload.benchmarks.result import BenchResult

MEASURED_ALREADY = 1.5  # A number of clients within this ratio of a measured one is not a new load.
BEYOND_REASON = 5.0
"""Median ratio, up or down, between a latency and the fit beyond which the files are of another server."""

SAME_LENGTHS = 1.1  # Largest ratio between the mean lengths of repeats.


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFactors(Explained):
    """What benchmarks show about a server."""

    fit: FactorFit  # The factors.
    next_load: ProposedLoad | None  # What to measure next; None: all loads have been measured.
    frontend_is_set: bool  # Whether the scenario sets the latency that `frontend` scales.

    def state_of(self, name: str) -> str:
        """Return ``fitted``, or why a factor stays at the profile or close to it."""
        if name == "frontend" and self.frontend_is_set:
            return "the scenario sets the latency"
        if not self.fit.is_kept:
            return "the profile's value: the loads show no better one"
        if self.fit.is_told(name):
            return "fitted"
        is_near = abs(np.log(self.fit.factors[name])) < self.fit.priors.widths[name]
        where = "near the profile's value" if is_near else "the brackets are all that is known"
        return f"the files tell it little: {where}"


class FactorCalibration:
    """Fits the factors of a server to its benchmarks: `fit` returns the object itself, with the result in ``fit_``.

    Args:
        statistic: ``median`` or ``mean``: which TTFT and TPOT of a file to fit; the other if the file has only that.
        priors: How far servers are from their profiles; None: those of the device.
    """

    fit_: ServerFactors

    def __init__(
        self,
        model: ServingModel,
        statistic: str = "median",
        progress: Progress | None = None,
        priors: Priors | None = None,
    ) -> None:
        self.model, self.statistic, self.progress = model, statistic, progress
        self.priors = priors or priors_on(is_cpu=model.resolved.shape.hardware.is_cpu)
        self._replays: list[Replay] = []
        self._num_simulated = 0

    def fit(self, results: Sequence[BenchResult]) -> FactorCalibration:
        """Fit the factors.

        Raises:
            InputError: No file holds a latency, or a throughput where clients set the pace.
            InfeasibleError: The scenario's deployment cannot serve their requests.
        """
        self._replays = [replay_of(result, self.model.scenario) for result in results]
        measured = [self._fitted(each) for each in results]
        if not any(measured):
            files = ", ".join(dict.fromkeys(result.file for result in results))
            raise InputError("hold neither TTFT nor TPOT", file=files, remedy="benchmark with streaming on")
        found = FactorSearch(measured, self._figures, self.priors, loads_of(results)).fit()
        held_out = found.held_out or [{}] * len(results)
        stated = {name: as_written(value) for name, value in found.factors.items()}
        runs = [
            run_errors(
                replay,
                self.statistic,
                written=self._figures(place, stated),
                before=found.before[place],
                after=found.after[place],
                held_out=held_out[place],
            )
            for place, replay in enumerate(self._replays)
        ]
        is_set = "frontend_latency" in self.model.scenario.deployment.engine.overrides()
        self.fit_ = ServerFactors(fit=found, runs=runs, next_load=self._next_load(found), frontend_is_set=is_set)
        return self

    def _fitted(self, result: BenchResult) -> dict[str, float]:
        """Return the fitted figures of a run: its TTFT and TPOT; throughput where it has no TPOT."""
        names = fit_figures(result, self.statistic)
        if any(kind_of(name) == "tpot" for name in names):
            names = tuple(name for name in names if kind_of(name) != "throughput")
        return {name: result.measured[name] for name in names}

    def _figures(self, run: int, factors: Mapping[str, float]) -> Mapping[str, float]:
        found = self.model.predict_slowed(self._replays[run], factors)
        self._num_simulated += 1
        if self.progress is not None:
            self.progress(self._num_simulated, None, "simulating benchmarks")
        return found

    def _next_load(self, found: FactorFit) -> ProposedLoad | None:
        """Return the number of clients whose TTFT and TPOT are most uncertain given the factors."""
        measured = [each.result.arrivals.get("concurrency") for each in self._replays]
        known = [int(clients) for clients in measured if clients]
        new = [n for n in client_counts(self.model) if all(max(n / k, k / n) > MEASURED_ALREADY for k in known)]
        if not new:
            return None
        replays = [closed_loop(self.model, self._replays[0].specs, clients) for clients in new]
        linear = slopes_of(self.model, replays, tuple(FIGURES.values()), self.priors, found.log_factors)
        open_ = [deviations(FIGURES, linear.of(linear.runs == run).slopes, found.covariance) for run in range(len(new))]
        best = max(range(len(new)), key=lambda run: sum(value**2 for value in open_[run].values()))
        name = next((each.result.model for each in self._replays if each.result.model), "") or model_id(self.model)
        command = benchmark_command(name, self._replays[0].specs, new[best])
        return ProposedLoad(num_clients=new[best], deviations=open_[best], command=command)


def as_written(factor: float) -> float:
    """Return a factor with the six digits that a profile holds."""
    return float(f"{factor:.6g}")


def misfit(runs: Sequence[RunErrors]) -> str | None:
    """Return a message that the benchmarks are of another server, if no fit explains them, else None.

    Args:
        runs: Benchmarks with TTFT and TPOT after the fit.
    """
    for latency in ("tpot", "ttft"):
        errors = [
            run.error("after", figure) for run in runs for figure in run.measured if figure.endswith(f"_{latency}")
        ]
        ratios = [1.0 + error for error in errors if error is not None and error > -1.0]
        if not ratios:
            continue
        times = float(np.exp(np.median(np.abs(np.log(ratios)))))
        if times > BEYOND_REASON:
            return (
                f"after the fit {latency.upper()} is still {times:.3g} times off (median): these files are not of the "
                "scenario's GPU, model, engine version or settings"
            )
    return None


def loads_of(results: Sequence[BenchResult]) -> list[int]:
    """Return the index of each benchmark's load: repeats send requests in the same way, of equal length within 10 %."""
    numbers: list[int] = []
    for place, result in enumerate(results):
        alike = (number for number, other in zip(numbers, results, strict=False) if _is_repeat(result, other))
        numbers.append(next(alike, place))
    return numbers


def _is_repeat(result: BenchResult, other: BenchResult) -> bool:
    lengths = [(one.prompt_tokens, one.output_tokens) for one in (result, other)]
    pairs = [(mine.mean(), its.mean()) for mine, its in zip(*lengths, strict=True) if len(mine) and len(its)]
    is_alike = all(max(mine / its, its / mine) <= SAME_LENGTHS for mine, its in pairs)
    return bool(result.arrivals) and result.arrivals == other.arrivals and is_alike


def as_mapping(server: ServerFactors) -> dict[str, Any]:
    """Return what was found as plain values."""
    fit, next_load = server.fit, server.next_load
    return {
        "parameters": {
            name: {
                "value": fit.factors[name],
                "interval_95": list(fit.interval(name)),
                "prior_interval_95": [float(np.exp(sign * 1.96 * fit.priors.widths[name])) for sign in (-1.0, 1.0)],
                "state": server.state_of(name),
            }
            for name in FACTORS
        },
        "is_kept": fit.is_kept,
        "simulations": fit.num_simulations,
        "fewest_runs_for_holding_out": FEWEST_FOR_HOLDING_OUT,
        "next_load": None
        if next_load is None
        else {
            "num_clients": next_load.num_clients,
            "deviation": dict(next_load.deviations),
            "command": next_load.command,
        },
        **server.errors,
    }
