"""A fleet examined from all sides: confirmed, with more traffic, with other lengths, with a replica lost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from simserve.errors import InfeasibleError, InputError
from simserve.planner.capacity.level import Promise
from simserve.planner.capacity.probe import LoadProbe, load_of, own_traffic
from simserve.planner.capacity.search import FEW_FRESH_RUNS, Effort, find_capacity, long_run_requests
from simserve.planner.cost.month import month
from simserve.planner.overrides import ONCE, Overrides, with_overrides
from simserve.planner.scaling import scaled_traffic
from simserve.planner.search.deciding_run import deciding_run, promise_of, steady_probe
from simserve.planner.search.order import smallest_integer
from simserve.planner.search.trial import MOST_REQUESTS, Trial, deployed, is_attained, try_fleet
from simserve.planner.space.makeup import smallest_fleet
from simserve.scenario.finishable import Finishable
from simserve.scenario.resolve import resolve
from simserve.scenario.run import run
from simserve.scenario.schema import Scenario

CONFIRMING_REPLICATIONS = 3
TRAFFIC_STEP = 0.05  # Precision of the traffic that a fleet can sustain, as a share of the scenario's.
MOST_BELOW_PLANNED = 0.035
"""Share by which the promised traffic may be below the estimated mean capacity, which is known to some 1.5 %: it is at
most 5 % below brute force (docs/promises.md)."""
SUSTAINED_STEP = 0.001
SUSTAINED_DIGITS = 3  # The same for steady open traffic, rounded down.
ROUNDING = 1e-9
MOST_TRAFFIC = 4.0  # Largest traffic that is tried, as a multiple of the scenario's.
CHANGE = 0.2  # Share by which traffic and lengths change in the sensitivity of a plan.
RESIZED_AT_MOST = 4
"""Most replicas when a fleet's size is searched again: its own times this number, plus this number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """A deployment and its number of replicas, under a scenario's traffic."""

    scenario: Scenario  # What is asked.
    overrides: Overrides  # What is deployed.
    replicas: int  # Number of its replicas.
    confidence: float | None = None
    """Share of real servers on which the SLO must hold; None: it must hold as simulated."""
    is_measured: bool = False  # Whether that is judged as for a server whose loads have been measured.
    promise: Promise | None = None
    """Whether fresh runs sustain the traffic, if the search has looked; None: it has not."""


def scaled_lengths(scenario: Scenario, name: str, factor: float) -> Scenario | None:
    """Return the scenario with longer or shorter prompts or answers; None where the lengths cannot be scaled.

    Args:
        name: ``prompt_tokens`` or ``output_tokens``.
        factor: Factor on every length: mean, spread and bounds.
    """
    lengths = getattr(scenario.workload, name)
    if lengths is None:
        return None
    changed: dict[str, Any] = {}
    for key in ("value", "min", "max", "mean", "std"):
        value = getattr(lengths, key, None)
        if value is not None:
            changed[f"workload.{name}.{key}"] = (
                value * factor if key in ("mean", "std") else max(1, round(value * factor))
            )
    if not changed:
        return None
    longest = scenario.deployment.engine.max_model_len
    if longest is not None and factor > 1:
        changed["deployment.engine.max_model_len"] = round(longest * factor)
    return with_overrides(scenario, changed)


def confirm(fleet: Fleet) -> Trial:
    """Run a fleet several times: steady open traffic until it has settled, else all requests of the scenario.

    For steady open traffic, 95 % of runs that the search has not seen must hold, as `simserve capacity` promises; for
    bursts, days, clients and conversations the same share of runs that are as long as the scenario says.
    """
    fleet_run = partial(try_fleet, fleet.scenario, fleet.overrides, fleet.replicas)
    promise = fleet.promise or promise_of(fleet.scenario, fleet.overrides, fleet.replicas)
    known: Finishable | Literal["find"] | None = promise.finishable
    replications, count = CONFIRMING_REPLICATIONS, promise.num_requests
    if count is not None:
        # As long as it takes to know that 95 % of such runs hold.
        count = max(count, MOST_REQUESTS)
    else:
        replications = max(1 if fleet.scenario.workload.trace else replications, fleet.scenario.run.replications)
        # With an API for the excess, all of it is finished: then only the queue tells whether the fleet keeps up.
        known = None if fleet.scenario.deployment.overflow or not promise.holds else known or "find"
    if known == "find":
        # Where too many requests miss, what the fleet finishes changes nothing, and takes longer to find.
        look = fleet_run(None, replications)
        if not is_attained(fleet.scenario, look):
            return look
    trial = fleet_run(count, replications, explain=True, finishable=known)
    return replace(trial, holds=promise.holds and trial.holds).sure(fleet.confidence, is_measured=fleet.is_measured)


def resized(fleet: Fleet) -> Trial | None:
    """Return the run of the smallest fleet of this deployment that holds; None where four times as many do not."""
    held: dict[int, Trial] = {}
    there = with_overrides(fleet.scenario, fleet.overrides)
    least = smallest_fleet(there.deployment)

    def holds(replicas: int) -> bool:
        held[replicas] = deciding_run(fleet.scenario, fleet.overrides, replicas).sure(fleet.confidence)
        return held[replicas].holds

    most = RESIZED_AT_MOST * fleet.replicas + RESIZED_AT_MOST
    start = max(fleet.replicas, least)
    if not holds(start):
        found = smallest_integer(holds, start + 1, most)
    else:
        found = smallest_integer(holds, least, start - 1, starts_high=True) or start
    if found is None or there.deployment.overflow is None:
        return None if found is None else held[found]
    # The more replicas there are, the less an API serves: the smallest fleet that holds may not be the cheapest.
    while found < most and holds(found + 1) and _is_cheaper(held[found + 1], held[found]):
        found += 1
    return held[found]


def _is_cheaper(one: Trial, other: Trial) -> bool:
    return one.usd_per_hour is not None and other.usd_per_hour is not None and one.usd_per_hour < other.usd_per_hour


def resized_or_refused(fleet: Fleet) -> Trial | str | None:
    """Return the smallest fleet that holds, None if none does, or why the deployment is refused."""
    try:
        return resized(fleet)
    except (InfeasibleError, InputError) as refusal:
        return refused(refusal)


def refused(refusal: InfeasibleError | InputError) -> str:
    """Return in words why a deployment is refused."""
    if isinstance(refusal, InfeasibleError):
        return f"does not fit: {refusal.rule}".partition(" (")[0]
    return f"{refusal.key or ''} {refusal.rule}".strip()


def with_room(fleet: Fleet, scenario: Scenario) -> Fleet:
    """Return the deployment for other traffic; a token budget for whole prompts grows with the longest prompt."""
    engine = with_overrides(scenario, fleet.overrides).deployment.engine
    longest, budget = engine.max_model_len, engine.max_num_batched_tokens
    overrides = dict(fleet.overrides)
    if engine.enable_chunked_prefill is False and longest is not None and budget is not None and budget < longest:
        overrides["deployment.engine.max_num_batched_tokens"] = longest
    return replace(fleet, scenario=scenario, overrides=overrides)


def changes_of(scenario: Scenario) -> Iterator[tuple[str, float, Scenario]]:
    """Yield each possible change of the traffic: what changes, by how much, and the scenario with it."""
    for change in (-CHANGE, CHANGE):
        traffic = scaled_traffic(scenario, 1 + change)
        if traffic is not None:
            yield "traffic", change, traffic
    for name in ("prompt_tokens", "output_tokens"):
        for change in (-CHANGE, CHANGE):
            try:
                lengths = scaled_lengths(scenario, name, 1 + change)
            except InputError:
                # Bounds of the model, or of the distribution, leave no room for this change.
                continue
            if lengths is not None:
                yield name, change, lengths


def traffic_sustained(fleet: Fleet) -> float | None:
    """Return the largest traffic, as a multiple of the scenario's, that a fleet can sustain.

    For steady open traffic, and for conversations once as many end as begin, it is what `simserve capacity` promises of
    the fleet: 95 % of fresh runs hold. For other traffic it is the largest that was seen to hold, to `TRAFFIC_STEP`;
    except for a trace, in fresh runs too. The search begins at the scenario's own traffic, which was confirmed. For
    conversations, whose run may end before they reach their rate, it may be less than that. None where the traffic
    cannot be scaled, or nothing is promised; `MOST_TRAFFIC` where even that holds.
    """
    if scaled_traffic(fleet.scenario, 1.0) is None:
        return None
    probe = steady_probe(fleet.scenario, fleet.overrides, fleet.replicas)
    if probe is not None:
        return _promised(fleet, probe)
    steps = round((MOST_TRAFFIC - 1) / TRAFFIC_STEP)

    def fails(step: int) -> bool:
        scenario = scaled_traffic(fleet.scenario, 1 + step * TRAFFIC_STEP)
        return scenario is None or not deciding_run(scenario, fleet.overrides, fleet.replicas).holds

    first_miss = smallest_integer(fails, 1, steps)
    most = steps if first_miss is None else first_miss - 1
    while most and not _is_promised(fleet, 1 + most * TRAFFIC_STEP):
        most -= 1
    return 1 + most * TRAFFIC_STEP


def _is_promised(fleet: Fleet, factor: float) -> bool:
    busier = scaled_traffic(fleet.scenario, factor)
    return busier is not None and promise_of(busier, fleet.overrides, fleet.replicas).holds


def _promised(fleet: Fleet, probe: LoadProbe) -> float | None:
    rate = load_of(fleet.scenario, own_traffic(fleet.scenario))
    found = find_capacity(
        probe,
        asked=probe.slo.attainment,
        start=rate,
        effort=Effort(
            long_run_requests=long_run_requests(rate),
            fresh_runs=FEW_FRESH_RUNS,
            promise_only=True,
            most_below=MOST_BELOW_PLANNED,
        ),
        highest=MOST_TRAFFIC * rate,
        finishable=probe.finishable,
    )
    if found.was_interrupted:
        raise KeyboardInterrupt
    times = round(math.floor(found.largest.value / rate / SUSTAINED_STEP + ROUNDING) * SUSTAINED_STEP, SUSTAINED_DIGITS)
    return (times or None) if fleet.scenario.workload.has_sessions else max(1.0, times)


def month_of(fleet: Fleet) -> dict[str, Any] | None:
    """Return a month of a fleet's traffic in dollars, beside the API, as on the page of `simserve run`.

    None where the fleet has no price.
    """
    there = deployed(fleet.scenario, {**fleet.overrides, **ONCE}, fleet.replicas)
    resolved = resolve(there)
    result = run(resolved, explain=False, finishable=None)
    if result.simulation.was_interrupted:
        raise KeyboardInterrupt
    return month(resolved, result)


def confirmed_or_none(fleet: Fleet | None) -> Trial | None:
    """Return the confirming run of a fleet; None if it misses, or if there is no fleet."""
    trial = None if fleet is None else confirm(fleet)
    return trial if trial is not None and trial.holds else None


def one_fewer(fleet: Fleet) -> Trial | None:
    """Return the run with one replica lost; None where none would be left."""
    there = with_overrides(fleet.scenario, fleet.overrides)
    if fleet.replicas <= smallest_fleet(there.deployment):
        return None
    return deciding_run(fleet.scenario, fleet.overrides, fleet.replicas - 1)


def trial_figures(trial: Trial) -> Mapping[str, Any]:
    """Return the figures that are reported of a trial, as plain values."""
    return {
        "replicas": trial.replicas,
        "num_gpus": trial.num_gpus,
        "holds": trial.holds,
        "attainment": trial.attainment,
        "by_metric": dict(trial.by_metric),
        "probability": trial.probability,
        "stability": trial.stability,
        **trial.latencies,
    }
