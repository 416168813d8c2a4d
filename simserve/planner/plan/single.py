"""What single changes do to a deployment as it is: tokens a second with a full queue. Knows no SLO and no price."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from simserve.errors import InfeasibleError, InputError
from simserve.planner.overrides import Overrides
from simserve.planner.plan.fleet import Fleet
from simserve.planner.plan.levers import Lever, format_levers, levers_of, option_levers
from simserve.planner.search.trial import try_fleet
from simserve.planner.space.space import Space
from simserve.scenario.schema import Scenario
from simserve.workload.arrival_spec import AllAtOnceArrivals

SATURATING_REQUESTS = 400
"""Requests that come at once, so that a replica's queue is full nearly all the time."""
SINGLE_LEVERS = (
    Lever("batch", "256 requests at a time", (("deployment.engine.max_num_seqs", 256),)),
    Lever("batch", "1,024 requests at a time", (("deployment.engine.max_num_seqs", 1024),)),
)
"""What is changed besides number formats, one at a time, on the GPUs that are there."""

_OF_REPLICA = (
    "hardware",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "pipeline_layer_partition",
    "data_parallel_size",
    "enable_expert_parallel",
    "quantization",
    "kv_cache_dtype",
    "operator_tables",
    "attention",
    "engine",
    "speculative",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Single:
    """A single change.

    Attributes:
        lever: The change.
        overrides: Overrides that make it.
        output_throughput: Output tokens a second of one replica with a full queue; None where it is refused.
        times: That over the throughput of the deployment as it is.
        reason: Why it is refused.
    """

    lever: Lever
    overrides: Overrides
    output_throughput: float | None
    times: float | None
    reason: str = ""


def single_changes(scenario: Scenario, space: Space) -> tuple[float | None, list[Single]]:
    """Return output tokens a second of the deployment as it is and with each change, the largest gain first.

    None and an empty list where a queue cannot be kept full: a trace, conversations, several pools.

    Args:
        scenario: The deployment as it is.
        space: Its deployments on its own GPU, for the known drafts.
    """
    full = _with_full_queue(scenario)
    own = None if full is None else _throughput(full, {})
    if full is None or not isinstance(own, float) or own <= 0:
        return None, []
    found = []
    for lever, overrides in _changes(full, space):
        reached = _throughput(full, overrides)
        if isinstance(reached, str):
            found.append(Single(lever=lever, overrides=overrides, output_throughput=None, times=None, reason=reached))
        else:
            found.append(Single(lever=lever, overrides=overrides, output_throughput=reached, times=reached / own))
    return own, sorted(found, key=lambda each: -(each.times or 0.0))


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
    # The engine alone: every field outside the shape of a replica is at its default.
    fields = type(deployment).model_fields
    plain = {name: fields[name].get_default() for name in fields if name not in _OF_REPLICA}
    return scenario.model_copy(
        update={
            "workload": workload.model_copy(
                update={"arrivals": AllAtOnceArrivals(), "num_requests": SATURATING_REQUESTS, "duration": None}
            ),
            "deployment": deployment.model_copy(update=plain),
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
