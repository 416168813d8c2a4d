"""Shapes that prefill workers and decode workers may have, each role its own. Simulates nothing.

A shape is a pool of one replica: parallel sizes and one knob of its engine (the token budget of a worker that
prefills, the seats of one that decodes). What both roles share, formats, drafts and routing, stays with the space.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simserve.planner.overrides import Overrides
from simserve.planner.space.makeup import POOLS_KEY, REPLICAS_KEY
from simserve.scenario.schema import Scenario

PREFILL, DECODE = "prefill", "decode"
SIZE_KEYS = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "enable_expert_parallel")
"""What a shape sets, below ``deployment`` or in a pool."""
KNOBS = {PREFILL: "max_num_batched_tokens", DECODE: "max_num_seqs"}
"""The engine knob of each role that its speed and memory turn on."""
LINK_KEY = "deployment.disaggregation"
POOL_KEYS = (POOLS_KEY, LINK_KEY, REPLICAS_KEY)
"""Keys that deploy prefill and decode workers."""

Pool = Mapping[str, Any]
"""Keys of `deployment.pools`, without the number of replicas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """What may prefill and what may decode.

    Attributes:
        prefill: Shapes of a prefill worker, the scenario's own first.
        decode: Likewise of a decode worker.
        link: How KV caches get from one to the other.
    """

    prefill: tuple[Pool, ...]
    decode: tuple[Pool, ...]
    link: Mapping[str, Any]

    def shapes(self, role: str) -> tuple[Pool, ...]:
        """Return the shapes of a role."""
        return self.prefill if role == PREFILL else self.decode

    def deployed(self, front: Overrides, workers: Sequence[tuple[Pool, int]]) -> dict[str, Any]:
        """Return the overrides that deploy so many workers of each shape, with what both roles share."""
        pools = [{**pool, "replicas": count} for pool, count in workers]
        return {**front, POOLS_KEY: pools, LINK_KEY: dict(self.link), REPLICAS_KEY: 1}


def roles_of(scenario: Scenario, values: Mapping[str, Sequence[Any]], largest: int) -> Roles | None:
    """Return what may prefill and decode in a scenario; None where its own pools are others than one of each role.

    Args:
        scenario: The scenario on the GPU in question.
        values: Dotted key -> values that the search may set.
        largest: GPUs that a worker may have.
    """
    mapping = scenario.as_mapping()["deployment"]
    own: dict[str, Pool] = {}
    for pool in mapping.get("pools", ()):
        if pool.get("role") not in KNOBS or pool["role"] in own:
            return None
        own[pool["role"]] = {key: value for key, value in pool.items() if key != "replicas"}
    shapes = {}
    for role in KNOBS:
        base = own.get(role, {"name": role, "role": role})
        shapes[role] = tuple(_shapes(base, mapping, values, largest))
    return Roles(prefill=shapes[PREFILL], decode=shapes[DECODE], link=mapping.get("disaggregation", {}))


def is_split(overrides: Overrides) -> bool:
    """Return whether a deployment is one of prefill and decode workers with shapes of their own."""
    pools = overrides.get(POOLS_KEY) or []
    return any(pool.get("role") in KNOBS and set(SIZE_KEYS) <= pool.keys() for pool in pools)


def _shapes(
    base: Pool, deployment: Mapping[str, Any], values: Mapping[str, Sequence[Any]], largest: int
) -> Iterator[Pool]:
    """Yield a worker at every size and setting of its knob."""
    own = {key: base.get(key, deployment.get(key, plain)) for key, plain in _PLAIN.items()}
    sizes = [
        tuple(own.values()),
        *itertools.product(*(_searched(values, f"deployment.{key}", own[key]) for key in own)),
    ]
    knob = KNOBS[base["role"]]
    engine = base.get("engine", deployment.get("engine", {}))
    limits = _searched(values, f"deployment.engine.{knob}", engine.get(knob))
    for number, each in enumerate(dict.fromkeys(sizes)):
        size = dict(zip(own, each, strict=True))
        if number and not is_plausible(size, largest):
            continue
        for limit in limits:
            changed = {} if limit == engine.get(knob) else {"engine": {**engine, knob: limit}}
            yield {**base, **size, **changed}


_PLAIN: Mapping[str, Any] = dict(zip(SIZE_KEYS, (1, 1, 1, False), strict=True))


def _searched(values: Mapping[str, Sequence[Any]], key: str, own: Any) -> tuple[Any, ...]:
    """Return the values of a key, what stands there first; that alone where the key is not searched."""
    return tuple(values[key]) if key in values else (own,)


def is_plausible(size: Mapping[str, Any], largest: int) -> bool:
    """Return whether a worker of some sizes is worth a look: not too large, and experts lie whole
    on ranks that share them, or on several GPUs."""
    ranks, stages = size["data_parallel_size"], size["pipeline_parallel_size"]
    tensor, is_whole = size["tensor_parallel_size"], size["enable_expert_parallel"]
    is_laid = (stages == 1 and is_whole) if ranks > 1 else not (is_whole and tensor == 1)
    return bool(is_laid and tensor * stages * ranks <= largest)
