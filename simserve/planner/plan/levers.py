"""Which optimisation is worth it: the plan with one lever moved, and what it then needs. Knows names, but no
figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from simserve.planner.overrides import Overrides, with_overrides
from simserve.planner.plan.fleet import Fleet
from simserve.planner.space.formats import KV_KEY, WEIGHTS_KEY, searched_formats
from simserve.planner.space.options import Choice
from simserve.planner.space.roles import POOL_KEYS, is_split
from simserve.planner.space.space import POOL_NAME, Space
from simserve.profiles.model import WIDE_FORMATS
from simserve.scenario.combinations import lack_of
from simserve.scenario.deployment_spec import DeploymentSpec
from simserve.scenario.formats import kv_of_auto
from simserve.scenario.resolve import replica_shape
from simserve.scenario.schema import Scenario

MOST_TENSOR_PARALLEL = 16


@dataclass(frozen=True, slots=True)
class Lever:
    """A choice of the decision tree.

    Attributes:
        name: ``quantise``, ``quantise_kv``, ``batch``, ``chunk``, ``shard``, or the name of an option
            (`simserve.planner.space.options`).
        label: The variant, in words.
        changes: Dotted key -> value.
    """

    name: str
    label: str
    changes: tuple[tuple[str, Any], ...]


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
    """Yield the other choices of every option that entered the search, with the overrides that make them."""
    chosen = space.chosen(fleet.overrides)
    pools = {key: fleet.overrides[key] for key in POOL_KEYS} if is_split(fleet.overrides) else {}
    for name, choices in space.options.items():
        if name == POOL_NAME and pools:
            chosen[name] = Choice("workers of shapes of their own")
        families = {chosen[name].family}
        for choice in choices:
            if choice is chosen[name] or (choice.family and choice.family in families):
                continue
            families.add(choice.family)
            kept = {} if name == POOL_NAME else pools
            yield Lever(name, choice.label, ()), {**space.overrides({**chosen, name: choice}), **kept}


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
