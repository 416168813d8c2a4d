"""The autoscaler of a plan, tried offline: metric, target, stabilization and minimum that hold the SLO at least cost.

Every setting runs the scenario's whole traffic on the plan's deployment, including the start-up of its replicas. A
metric's target is raised until the SLO no longer holds. The cheapest setting is then judged on seeds that no search has
seen, and lowered until it holds there. It is compared with the fleet that is always there, and with what the load needs
where it is known ahead (`simserve.planner.plan.clairvoyant`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np

from simserve.errors import UsageError
from simserve.metrics.latency import MS, SLO
from simserve.metrics.summary import or_null
from simserve.planner.overrides import Overrides, with_overrides, with_seed
from simserve.planner.plan.clairvoyant import (
    Floats,
    Load,
    largest,
    load_over_time,
    rates_by_replicas,
    replica_seconds,
    replicas_needed,
    sustained_rate,
)
from simserve.planner.plan.explain import command, describe
from simserve.planner.plan.findings import Findings
from simserve.planner.plan.fleet import Fleet, resized
from simserve.planner.search.trial import run_holds
from simserve.planner.space.makeup import REPLICAS_KEY, SCALING_KEY, merged
from simserve.planner.space.traffic import UNEVEN
from simserve.scenario.replication import replica_weights_bytes, startup_seconds
from simserve.scenario.resolve import ResolvedScenario, resolve, resolve_like
from simserve.scenario.run import run
from simserve.scenario.schema import Scenario, objective
from simserve.units import HOURS_PER_MONTH, SECONDS_PER_HOUR
from simserve.workload.arrival_spec import AllAtOnceArrivals, ClosedLoopArrivals, PoissonArrivals

Metric = Literal["running", "kv_usage", "queue_depth"]
METRICS: tuple[Metric, ...] = ("running", "kv_usage", "queue_depth")
"""Metrics that rise with the load. Busy time does not, as one request makes a GPU busy; a missed SLO comes too late."""
STABILIZATION = 300.0  # Seconds with which the search begins: Kubernetes' default.
LONGER = 3.0
"""Factor by which it is lengthened while that is cheaper; shortened instead if the first longer one is not cheaper."""
LONGEST_STABILIZATION = 2700.0
OVERFLOW_KEY = "deployment.overflow"
ALONE = (SCALING_KEY, OVERFLOW_KEY)  # What the fixed fleet lacks: it serves everything, and its size never changes.
LEVEL_SECONDS = 3600.0  # How long a rate lasts in a run that tells whether it holds.
FEWEST_REQUESTS, MOST_REQUESTS = 4_000, 50_000  # Least and most requests of such a run.
TARGET_FACTOR = 1.12  # Factor between targets until one holds and one does not.
TARGET_STEP = 0.06  # Relative precision of a target.
MOST_RUNS_A_TARGET = 7
BELOW = 0.9  # Target with which the search begins, as a share of what a replica has at the highest rate that holds.
QUEUE_TARGET = 4.0  # Waiting requests of a replica with which the search of a queue's target begins.
USED_MISSES = 0.8  # Share of the allowed misses that a run of the search may use up: other days are worse.
FRESH_RUNS = 10  # Runs on seeds that the search has not seen, all of which must hold.
DEVIATIONS = 3.0  # Standard deviations of those runs by which their mean attainment must exceed what is asked.
SHORTEST_GRACE = 30.0
LIVES = 2.0
"""Factor on the p99 of E2E: time that a released replica has to finish its answers, rounded up to half minutes."""
LOWERED = 0.95  # Factor on a target that did not hold on fresh seeds.
LOWERED_AT_MOST = 8
ROOM = 1.25  # Most replicas of an autoscaler over those of the fleet that is always there, rounded up.


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """An autoscaler's settings."""

    metric: Metric
    target: float
    stabilization: float
    min_replicas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """Results of a run with a setting."""

    setting: Setting  # The setting.
    seed: int  # Seed of the traffic.
    holds: bool  # Whether the SLO is met and the queue does not grow.
    has_room: bool  # Whether so few requests miss that other days hold as well.
    attainment: float  # Share of the requests within the SLO.
    failed: int  # Requests without an answer.
    replica_hours: float  # Replica-hours from launch until release.
    peak: int  # Most replicas at once.
    launched: int  # Starts, including those at the beginning.
    timeline: tuple[tuple[float, int], ...]  # Time in seconds and replicas launched, at every change.


def check_autoscaler(scenario: Scenario) -> None:
    """Check that thresholds can be sought for a scenario.

    Raises:
        UsageError: Nothing arrives by itself, nothing changes, there is no SLO, or the fleet is more than replicas.
    """
    workload, deployment = scenario.workload, scenario.deployment
    arrivals = workload.arrivals
    rule, remedy = "", "leave it out"
    if objective(scenario) is None:
        rule, remedy = "needs an SLO that the replicas must hold", "--set 'slo={ttft: 1 s, tpot: 50 ms}'"
    elif deployment.pools or deployment.faults or deployment.updates:
        rule = "scales one pool of equal replicas, and the scenario has pools, faults or updates"
    elif isinstance(arrivals, ClosedLoopArrivals | AllAtOnceArrivals) or workload.has_clients or workload.has_sessions:
        rule = "needs requests that arrive by themselves; here they wait for answers, or all come at once"
    elif any(each.arrivals for each in workload.classes or ()):
        rule, remedy = "needs one load, and classes have arrivals of their own", "give the classes shares"
    if rule:
        raise UsageError(rule, key="--autoscaler", remedy=remedy)
    rates = load_over_time(scenario).rates
    if rates.max() < UNEVEN * rates.mean():
        rule = f"needs a load that changes; the busiest minutes have {rates.max() / rates.mean():.2g} times the mean"
        remedy = "--set workload.arrivals={process: daily, rate: ...}"
        raise UsageError(rule, key="--autoscaler", remedy=remedy)


@dataclass(kw_only=True)
class _Thresholds:
    """One search for thresholds."""

    scenario: Scenario  # What is asked, on the plan's deployment without an autoscaler.
    known: ResolvedScenario  # The same, resolved.
    load: Load  # Its load over time.
    fixed: int  # Replicas of the fixed fleet.
    kept: Mapping[str, Any]  # What is kept of the scenario's own autoscaler: its interval and its start-up.
    fresh_runs: int  # Runs on seeds that the search has not seen.
    without: Mapping[str, None] = field(default_factory=dict)  # Keys of the deployment that are unset.
    startup: float = 0.0  # Seconds from the launch of a replica until it is ready.
    grace: float = 0.0  # Seconds that a released replica has to finish its answers.
    rates: Sequence[float] = ()  # Rate that 0, 1, 2 ... replicas can sustain, requests/s.
    needed: tuple[int, ...] = ()  # Replicas that each step of the load needs.
    bound: float = math.nan  # Replica-hours of an autoscaler that knows the load.
    tried: list[Tried] = field(default_factory=list)
    _measured: dict[int, float] = field(default_factory=dict)
    _at_most: dict[int, tuple[float, float, float]] = field(default_factory=dict)

    @property
    def asked(self) -> SLO:
        """The objective."""
        asked = objective(self.scenario)
        assert asked is not None  # as `check_autoscaler` requires
        return asked

    @property
    def max_replicas(self) -> int:
        """Most replicas of the autoscaler."""
        return math.ceil(self.fixed * ROOM)

    def overrides(self, setting: Setting) -> dict[str, Any]:
        """Return the overrides that make the deployment scale."""
        return {
            **self.without,
            REPLICAS_KEY: max(setting.min_replicas, self.needed[0], 1),
            SCALING_KEY: {
                "metric": setting.metric,
                "target": setting.target,
                "min_replicas": setting.min_replicas,
                "max_replicas": self.max_replicas,
                "stabilization": f"{setting.stabilization:g} s",
                "grace_period": f"{self.grace:g} s",
                **self.kept,
            },
        }

    def sustained(self) -> Floats:
        """Return the rates that 0, 1, 2 ... replicas can sustain within the SLO, up to the peak of the load."""
        size, guess = 1, self.load.peak / self.fixed
        while True:
            self._measured[size] = sustained_rate(partial(self._holds_level, size), guess)
            if self._measured[size] >= self.load.peak or size >= 4 * self.fixed:
                return rates_by_replicas(self._measured)
            guess = (self._measured[size] or guess) * 2
            size *= 2

    def _holds_level(self, size: int, rate: float) -> bool:
        count = min(max(round(rate * LEVEL_SECONDS), FEWEST_REQUESTS), MOST_REQUESTS)
        level = {"arrivals": PoissonArrivals(rate=rate), "num_requests": count, "duration": None}
        workload = self.scenario.workload.model_copy(update=level)
        deployment = self.scenario.deployment.model_copy(update={"replicas": size})
        there = self.scenario.model_copy(update={"workload": workload, "deployment": deployment})
        summary = _summary(resolve_like(there, self.known))
        holds = run_holds(there, summary)
        if holds:
            running = rate * summary["mean_e2el_ms"] / MS / size
            kv_usage = summary["simserve"]["kv"]["usage_mean"]
            self._at_most[size] = running, kv_usage, summary["p99_e2el_ms"] / MS
        return holds

    def settle_grace(self) -> None:
        """Set the grace period: the time that most answers take at the highest load."""
        _, _, longest = self._at_most[max(self._at_most)]
        self.grace = math.ceil(LIVES * longest / SHORTEST_GRACE) * SHORTEST_GRACE

    def natural_target(self, metric: Metric) -> float:
        """Return the first target: a share of a replica's level at the highest rate that holds."""
        running, kv_usage, _ = self._at_most[max(self._at_most)]
        return {"running": BELOW * running, "kv_usage": BELOW * kv_usage, "queue_depth": QUEUE_TARGET}[metric]

    def try_setting(self, setting: Setting, seed: int | None = None) -> Tried:
        """Return a run of the whole traffic with a setting; a run with the scenario's own seed is kept."""
        there = with_overrides(self.scenario, self.overrides(setting))
        if seed is not None:
            there = with_seed(there, seed)
        summary = _summary(resolve(there))
        inner = summary["simserve"]
        fleet = inner["replicas"]
        attainment, holds = float(inner["slo"]["attainment"] or 0.0), run_holds(there, summary)
        tried = Tried(
            setting=setting,
            seed=there.run.seed,
            holds=holds,
            has_room=holds and 1 - attainment <= USED_MISSES * (1 - self.asked.attainment),
            attainment=attainment,
            failed=int(summary["failed"]),
            replica_hours=float(fleet["gpu_hours"]) / self.scenario.deployment.gpus_per_replica,
            peak=int(fleet["peak"]),
            launched=int(fleet["launched"]),
            timeline=tuple((float(each["time_s"]), int(each["launched"])) for each in fleet["timeline"]),
        )
        if seed is None:
            self.tried.append(tried)
        return tried

    def best_target(self, setting: Setting) -> Tried | None:
        """Return the run with the highest target that holds with room, beginning at a setting's; None if none does."""
        limit = 0.98 if setting.metric == "kv_usage" else math.inf
        tried: dict[float, Tried] = {}

        def has_room(target: float) -> bool:
            tried[target] = self.try_setting(replace(setting, target=_rounded(target)))
            return tried[target].has_room

        how = {"bracket": TARGET_FACTOR, "step": TARGET_STEP, "limit": limit}
        best = largest(has_room, min(setting.target, limit), **how, most_tried=MOST_RUNS_A_TARGET)
        return tried.get(best)

    def search(self, metrics: Sequence[Metric]) -> Tried | None:
        """Return the cheapest setting that holds with room on the scenario's own seed."""
        minimum = max(min(self.needed), 1)
        best = self._best_metric(metrics, minimum)
        # If the load jumps before new replicas can start, they must already be running.
        while best is None and minimum < self.fixed - 1:
            minimum = (minimum + self.fixed) // 2
            best = self._best_metric(metrics, minimum)
        if best is None:
            return None
        best = self._best_stabilization(best)
        for other_minimum in {minimum + 1, max(minimum - 1, 1)} - {minimum}:
            other = self.try_setting(replace(best.setting, min_replicas=other_minimum))
            best = min(best, other, key=_cost) if other.has_room else best
        return best

    def _best_metric(self, metrics: Sequence[Metric], minimum: int) -> Tried | None:
        """Return the cheapest setting, each metric at its highest target; None where none holds."""
        first = Setting(metric=metrics[0], target=0.0, stabilization=STABILIZATION, min_replicas=minimum)
        begins = [replace(first, metric=metric, target=self.natural_target(metric)) for metric in metrics]
        found = [self.best_target(setting) for setting in begins]
        return min((each for each in found if each is not None), key=_cost, default=None)

    def _best_stabilization(self, best: Tried) -> Tried:
        """Return the cheapest setting with a longer or a shorter window, each with its own target."""
        start = best
        for factor in (LONGER, 1 / LONGER):
            while best.setting.stabilization * factor <= LONGEST_STABILIZATION:
                there = replace(best.setting, stabilization=best.setting.stabilization * factor)
                other = self.best_target(there)
                if other is None or _cost(best) <= _cost(other):
                    break
                best = other
            if best is not start:
                break
        return best

    def judged(self, best: Tried) -> tuple[Setting, list[Tried]]:
        """Return the setting, lowered until it holds with room on fresh seeds, and its runs there."""
        setting, seed, runs = best.setting, self.scenario.run.seed, list[Tried]()
        for _ in range(LOWERED_AT_MOST):
            runs = []
            for _ in range(self.fresh_runs):
                seed += 1
                runs.append(self.try_setting(setting, seed))
                if not runs[-1].holds:
                    break
            shares = np.array([each.attainment for each in runs])
            room = DEVIATIONS * float(shares.std(ddof=1)) if len(runs) > 1 else 0.0
            if all(each.holds for each in runs) and float(shares.mean()) - room >= self.asked.attainment:
                break
            setting = replace(setting, target=_rounded(setting.target * LOWERED))
        return setting, runs

    def answer(self, setting: Setting | None, runs: Sequence[Tried], usd_per_hour: float | None) -> dict[str, Any]:
        """Return what was found, as plain values; ``runs`` are those of the setting on fresh seeds."""
        price = math.nan if usd_per_hour is None else usd_per_hour
        fixed_hours = self.fixed * self.load.seconds / SECONDS_PER_HOUR
        return {
            "startup_s": self.startup,
            "seconds": self.load.seconds,
            "best": None if setting is None else self._best(setting, runs, price, fixed_hours),
            "fixed": {"replicas": self.fixed, "replica_hours": fixed_hours, "usd": or_null(fixed_hours * price)},
            "clairvoyant": {
                "replica_hours": self.bound,
                "usd": or_null(self.bound * price),
                "peak_replicas": max(self.needed),
                "least_replicas": min(self.needed),
            },
            "requests_per_second_by_replicas": self.rates,
            "over_time": list(self._over_time(runs)),
            "tried": [
                {
                    "metric": each.setting.metric,
                    "target": each.setting.target,
                    "stabilization_s": each.setting.stabilization,
                    "min_replicas": each.setting.min_replicas,
                    "holds": each.holds,
                    "attainment": each.attainment,
                    "failed": each.failed,
                    "replica_hours": each.replica_hours,
                }
                for each in self.tried
            ],
        }

    def _best(self, setting: Setting, runs: Sequence[Tried], price: float, fixed_hours: float) -> dict[str, Any]:
        hours = float(np.mean([each.replica_hours for each in runs]))
        return {
            "metric": setting.metric,
            "target": setting.target,
            "min_replicas": setting.min_replicas,
            "max_replicas": self.max_replicas,
            "stabilization_s": setting.stabilization,
            "grace_period_s": self.grace,
            "replica_hours": hours,
            "usd": or_null(hours * price),
            "of_clairvoyant": hours / self.bound,
            "of_fixed": hours / fixed_hours,
            "peak_replicas": max(each.peak for each in runs),
            "launched": float(np.mean([each.launched for each in runs])),
            "holds": all(each.holds for each in runs) and len(runs) == self.fresh_runs,
            "fresh_seeds": [each.seed for each in runs],
            "attainment": {
                "asked": self.asked.attainment,
                "least": min(each.attainment for each in runs),
                "mean": float(np.mean([each.attainment for each in runs])),
            },
            "overrides": self.overrides(setting),
        }

    def _over_time(self, runs: Sequence[Tried]) -> Iterator[dict[str, Any]]:
        """Yield the steps of the load with the replicas of the first fresh run and of an autoscaler that knows it."""
        edges = self.load.edges
        scaled = _mean_replicas(runs[0].timeline, edges) if runs else np.full(len(edges) - 1, math.nan)
        for start, rate, replicas, needed in zip(edges[:-1], self.load.rates, scaled, self.needed, strict=True):
            yield {
                "time_s": float(start),
                "requests_per_second": float(rate),
                "replicas": or_null(float(replicas)),
                "clairvoyant_replicas": needed,
            }


def autoscaler_of(
    scenario: Scenario,
    overrides: Overrides,
    replicas: int,
    *,
    usd_per_hour: float | None = None,
    metrics: Sequence[Metric] = METRICS,
    fresh_runs: int = FRESH_RUNS,
) -> dict[str, Any] | None:
    """Return thresholds for a deployment under a load that changes; None where no fixed fleet of it holds.

    Args:
        scenario: The traffic and the SLO (`check_autoscaler`).
        replicas: Replicas with which the search for the fixed fleet begins.
        usd_per_hour: Price of a replica; None: unknown.
        fresh_runs: Runs on seeds that the search has not seen, all of which must hold.
    """
    deployment = with_overrides(scenario, overrides).deployment
    own, overflow = deployment.autoscaling, deployment.overflow
    kept = {} if own is None else own.model_dump(mode="json", include={"interval", "startup"})
    plain = {key: value for key, value in overrides.items() if not key.startswith(ALONE)} | dict.fromkeys(ALONE)
    fixed = resized(Fleet(scenario=scenario, overrides=plain, replicas=replicas))
    if fixed is None:
        return None
    there = with_overrides(scenario, {**plain, REPLICAS_KEY: fixed.replicas})
    known = resolve(there)
    load = load_over_time(there)
    found = _Thresholds(
        scenario=there,
        known=known,
        load=load,
        fixed=fixed.replicas,
        kept=kept,
        fresh_runs=fresh_runs,
        without={} if overflow is None else {OVERFLOW_KEY: None},
    )
    sustained = found.sustained()
    if sustained[-1] < load.peak:
        return None
    needed = replicas_needed(load, sustained)
    found.startup = startup_seconds(own, replica_weights_bytes(known))
    found.rates, found.needed = [float(each) for each in sustained], tuple(int(each) for each in needed)
    found.bound = replica_seconds(load.edges, needed, found.startup) / SECONDS_PER_HOUR
    found.settle_grace()
    best = found.search(metrics)
    setting, runs = (None, []) if best is None else found.judged(best)
    return found.answer(setting, runs, usd_per_hour)


def _mean_replicas(timeline: Sequence[tuple[float, int]], edges: Floats) -> Floats:
    """Return the mean, between edges, of a number of replicas that changes at given times."""
    times = np.array([time for time, _ in timeline])
    counts = np.array([count for _, count in timeline], dtype=np.float64)
    sums = np.concatenate([[0.0], np.cumsum(counts[:-1] * np.diff(times))])
    place = np.searchsorted(times, edges, side="right") - 1
    at_edges = sums[place] + counts[place] * (edges - times[place])
    return np.asarray(np.diff(at_edges) / np.diff(edges), dtype=np.float64)


def _summary(resolved: ResolvedScenario) -> Mapping[str, Any]:
    result = run(resolved, explain=False, finishable=None)
    if result.simulation.was_interrupted:
        raise KeyboardInterrupt
    return result.summary


def _cost(tried: Tried) -> tuple[float, int]:
    return tried.replica_hours, tried.launched


def _rounded(target: float) -> float:
    """Return a target rounded to three digits."""
    return float(f"{target:.3g}")


def thresholds_of(found: Findings) -> dict[str, Any] | None:
    """Return thresholds for a plan's deployment; None where nothing holds or was confirmed, or no fixed fleet holds.

    Beside what `autoscaler_of` returns, the best of them has the fleet in words, and the mean GPUs and the dollars of
    its fresh runs, for a month of 30 days.
    """
    if found.fleet is None or found.member is None or found.confirmed is None:
        return None
    fleet, trial = found.fleet, found.confirmed
    price = None if trial.usd_per_hour is None or not trial.mean_gpus else trial.usd_per_hour / trial.mean_gpus
    gpus = trial.num_gpus / trial.replicas
    answer = autoscaler_of(
        found.planned, fleet.overrides, fleet.replicas, usd_per_hour=None if price is None else price * gpus
    )
    if answer is None or answer["best"] is None:
        return answer
    best = answer["best"]
    changes = merged(fleet.overrides, best["overrides"])
    hours = answer["seconds"] / SECONDS_PER_HOUR
    more = {
        "label": describe(with_overrides(found.planned, changes)),
        "mean_gpus": best["replica_hours"] * gpus / hours,
        "usd_per_month": None if best["usd"] is None else best["usd"] / hours * HOURS_PER_MONTH,
        "overrides": changes,
        "command": command(found.reference, changes),
    }
    return {**answer, "best": {**best, **more}}
