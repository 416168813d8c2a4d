"""What single changes do to a deployment as it is: tokens a second with a full queue. Knows no SLO and no price."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from simserve.errors import InfeasibleError, InputError
from simserve.planner.overrides import Overrides
from simserve.planner.plan.fleet import Fleet
from simserve.planner.plan.levers import Lever, format_levers, levers_of, option_levers
from simserve.planner.search.explain import plain
from simserve.planner.search.trial import try_fleet
from simserve.planner.space.space import Space
from simserve.scenario.deployment_spec import PoolSpec
from simserve.scenario.schema import Scenario
from simserve.workload.arrival_spec import AllAtOnceArrivals

SATURATING_REQUESTS = 400
"""Requests that come at once, so that a replica's queue is full nearly all the time."""
SINGLE_LEVERS = (
    Lever("batch", "256 requests at a time", (("deployment.engine.max_num_seqs", 256),)),
    Lever("batch", "1,024 requests at a time", (("deployment.engine.max_num_seqs", 1024),)),
)
"""What is changed besides number formats, one at a time, on the GPUs that are there."""


def single_changes(scenario: Scenario, space: Space) -> dict[str, Any] | None:
    """Return output tokens a second of one replica with a full queue, as it is and with each change.

    ``output_throughput``, and ``changes`` with the largest gain first: ``lever variant overrides output_throughput
    times reason``, the last where the engine refuses it. None where a queue cannot be kept full: a trace,
    conversations, several pools.

    Args:
        scenario: The deployment as it is.
        space: Its deployments on its own GPU, for the known drafts.
    """
    full = _with_full_queue(scenario)
    own = None if full is None else _throughput(full, {})
    if full is None or not isinstance(own, float) or own <= 0:
        return None
    found = []
    for lever, overrides in _changes(full, space):
        reached = _throughput(full, overrides)
        is_refused = isinstance(reached, str)
        found.append(
            {
                "lever": lever.name,
                "variant": lever.label,
                "overrides": plain(overrides),
                "output_throughput": None if is_refused else reached,
                "times": None if isinstance(reached, str) else reached / own,
                "reason": reached if is_refused else "",
            }
        )
    return {"output_throughput": own, "changes": sorted(found, key=lambda each: -(each["times"] or 0.0))}


def _changes(full: Scenario, space: Space) -> Iterator[tuple[Lever, Overrides]]:
    levers = [*SINGLE_LEVERS, *format_levers(full)]
    yield from levers_of(Fleet(scenario=full, overrides={}, replicas=1), levers)
    for lever, overrides in option_levers(Fleet(scenario=full, overrides=space.plain, replicas=1), space):
        if lever.name == "speculate" and full.deployment.speculative is None:
            yield lever, {"deployment.speculative": overrides["deployment.speculative"]}
    if full.deployment.engine.batching == "static":
        continuous = {f"deployment.engine.{key}": None for key in ("static_batch_size", "static_max_wait")}
        yield Lever("static", "continuous batching", ()), {"deployment.engine.batching": "continuous", **continuous}


def _with_full_queue(scenario: Scenario) -> Scenario | None:
    """Return one replica of a scenario, without what decides who is served, and all requests at once."""
    workload, deployment = scenario.workload, scenario.deployment
    if workload.trace is not None or workload.sessions is not None or workload.classes or deployment.pools:
        return None
    return scenario.model_copy(
        update={
            "workload": workload.model_copy(
                update={"arrivals": AllAtOnceArrivals(), "num_requests": SATURATING_REQUESTS, "duration": None}
            ),
            "deployment": deployment.of_pool(PoolSpec(name="one")).model_copy(update={"encoder_disaggregation": None}),
            "slo": None,
            "thresholds": {},
        }
    )


def _throughput(scenario: Scenario, overrides: Overrides) -> float | str:
    """Return output tokens a second, or why the change is refused."""
    try:
        reached = try_fleet(scenario, overrides, 1).figures["output_throughput"]
    except InfeasibleError as refusal:
        return f"does not fit: {refusal.rule}".partition(" (")[0]
    except InputError as refusal:
        return f"{refusal.key or ''} {refusal.rule}".strip()
    return reached or 0.0
