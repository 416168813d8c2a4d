"""Which optimisation pays: the plan with one lever moved, and single changes of a deployment as it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from simserve.errors import InfeasibleError, InputError
from simserve.planner.overrides import Overrides, with_overrides
from simserve.planner.plan.fleet import Fleet, refused
from simserve.planner.search.explain import plain
from simserve.planner.search.trial import try_fleet
from simserve.planner.space.formats import KV_KEY, WEIGHTS_KEY, searched_formats
from simserve.planner.space.makeup import POOLS_KEY, SCALING_KEY
from simserve.planner.space.options import Choice
from simserve.planner.space.roles import DECODE, KIND_KEYS, POOL_KEYS, is_split
from simserve.planner.space.space import POOL_NAME, Space
from simserve.profiles.checkpoint import WIDE_FORMATS
from simserve.scenario.combinations import lack_of
from simserve.scenario.deployment_spec import DeploymentSpec, PoolSpec
from simserve.scenario.formats import kv_of_auto
from simserve.scenario.resolve import replica_shape
from simserve.scenario.schema import Scenario
from simserve.workload.arrival_spec import AllAtOnceArrivals

MOST_TENSOR_PARALLEL = 16


@dataclass(frozen=True, slots=True)
class Lever:
    """A choice of the decision tree."""

    name: str
    """``quantise``, ``quantise_kv``, ``batch``, ``chunk``, ``shard``, or the name of an option
    (`simserve.planner.space.options`)."""
    label: str  # The variant, in words.
    changes: tuple[tuple[str, Any], ...]  # Dotted key -> value.


LEVERS = (
    Lever("batch", "one request at a time", (("deployment.engine.max_num_seqs", 1),)),
    Lever("batch", "8 requests at a time", (("deployment.engine.max_num_seqs", 8),)),
    Lever("chunk", "whole prompts", (("deployment.engine.enable_chunked_prefill", False),)),
    Lever("chunk", "chunks of 2,048 tokens", (("deployment.engine.max_num_batched_tokens", 2048),)),
    Lever("shard", "half the tensor parallel size", (("deployment.tensor_parallel_size", 0.5),)),
    Lever("shard", "twice the tensor parallel size", (("deployment.tensor_parallel_size", 2),)),
)
"""What is moved besides number formats, one at a time; sizes are factors on the plan's."""

_FACTORS = ("deployment.tensor_parallel_size",)
SATURATING_REQUESTS = 400  # Requests that come at once, so that a replica's queue is full nearly all the time.
SINGLE_LEVERS = (
    Lever("batch", "256 requests at a time", (("deployment.engine.max_num_seqs", 256),)),
    Lever("batch", "1,024 requests at a time", (("deployment.engine.max_num_seqs", 1024),)),
)
"""What is changed besides number formats, one at a time, on the GPUs that are there."""


def levers_of(fleet: Fleet, levers: Sequence[Lever]) -> Iterator[tuple[Lever, Overrides]]:
    """Yield the levers that change something in a fleet, with the overrides of both."""
    there = with_overrides(fleet.scenario, fleet.overrides)
    for lever in levers:
        changes = {key: _value(there, key, value) for key, value in lever.changes}
        if any(changes[key] is None for key in _FACTORS if key in changes) or _is_there(there.deployment, changes):
            continue
        if there.deployment.pools and not _reaches_pools(there, changes):
            continue
        yield lever, {**fleet.overrides, **changes}


def format_levers(scenario: Scenario) -> Iterator[Lever]:
    """Yield the weight formats that exist for a deployment's model, each with its origin, and its KV formats."""
    found = searched_formats(scenario)
    for each in found.weights:
        name = "16-bit" if each.format in WIDE_FORMATS else each.format
        yield Lever("quantise", f"{name} weights, {each.label}", ((WEIGHTS_KEY, each.format),))
    own = kv_of_auto(replica_shape(scenario))
    for kept in found.kv_cache:
        if kept != "auto" and lack_of(scenario, f"kv_cache_{kept}") is not None:
            continue
        cache = own if kept == "auto" else kept
        label = "16-bit KV cache" if cache in WIDE_FORMATS else f"{cache} KV cache"
        yield Lever("quantise_kv", label, ((KV_KEY, kept),))


def option_levers(fleet: Fleet, space: Space) -> Iterator[tuple[Lever, Overrides]]:
    """Yield the other choices of every searched option that fit the fleet, with their overrides.

    In place of workers by role come replicas of the shape of its decode workers.
    """
    chosen = space.chosen(fleet.overrides)
    pools = {key: fleet.overrides[key] for key in POOL_KEYS} if is_split(fleet.overrides) else {}
    decode: Overrides = next((pool for pool in pools.get(POOLS_KEY, ()) if pool["role"] == DECODE), {})
    shape = {f"deployment.{key}": decode[key] for key in KIND_KEYS if key in decode}
    for name, choices in space.options.items():
        if name == POOL_NAME and pools:
            chosen[name] = Choice("workers of shapes of their own")
        families = {chosen[name].family}
        for choice in choices:
            if choice is chosen[name] or (choice.family and choice.family in families):
                continue
            families.add(choice.family)
            kept = shape if name == POOL_NAME else pools
            overrides = {**space.overrides({**chosen, name: choice}), **kept}
            own = space.scenario.deployment
            if overrides.get(POOLS_KEY, own.pools) and overrides.get(SCALING_KEY, own.autoscaling):
                continue  # pools are not scaled together
            yield Lever(name, choice.label, ()), overrides


def _value(scenario: Scenario, key: str, value: Any) -> Any:
    """Return the value that a lever sets; None where it cannot be moved that far."""
    if key not in _FACTORS:
        return value
    size = scenario.deployment.tensor_parallel_size * value
    return int(size) if size == int(size) and 1 <= size <= MOST_TENSOR_PARALLEL else None


def _reaches_pools(there: Scenario, changes: Overrides) -> bool:
    """Return whether a change of the deployment reaches any of its pools: one with its own value does not change."""
    before, after = there.deployment, with_overrides(there, changes).deployment
    return any(
        before.of_pool(one) != after.of_pool(other) for one, other in zip(before.pools, after.pools, strict=True)
    )


def _is_there(deployment: DeploymentSpec, changes: Overrides) -> bool:
    values = deployment.model_dump()
    for key, value in changes.items():
        part: Any = values
        for name in key.split(".")[1:]:
            part = part[name]
        if part != value:
            return False
    return True


def single_changes(scenario: Scenario, space: Space) -> dict[str, Any] | None:
    """Return output tokens a second of one replica with a full queue, as it is and with each change.

    ``output_throughput``, and ``changes`` with the largest gain first: ``lever variant overrides output_throughput
    times reason``, the last where the engine refuses it. None where a queue cannot be kept full: a trace,
    conversations, several pools.

    Args:
        space: Its deployments on its own GPU, for the known drafts.
    """
    full = _with_full_queue(scenario)
    own = None if full is None else _throughput(full, {})
    if full is None or not isinstance(own, float) or own <= 0:
        return None
    found = []
    for lever, overrides in _changes(full, space):
        reached = _throughput(full, overrides)
        entry: dict[str, Any] = {"lever": lever.name, "variant": lever.label, "overrides": plain(overrides)}
        if isinstance(reached, str):
            found.append({**entry, "output_throughput": None, "times": None, "reason": reached})
        else:
            found.append({**entry, "output_throughput": reached, "times": reached / own, "reason": ""})
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
        return try_fleet(scenario, overrides, 1).figures["output_throughput"] or 0.0
    except (InfeasibleError, InputError) as refusal:
        return refused(refusal)
