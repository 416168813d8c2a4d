"""Shapes of prefill workers and of decode workers, separate for each role. Simulates nothing.

A shape is a pool of one replica: its GPU, weight format, parallel sizes and one knob of its engine (the token budget of
a prefill worker, the seats of a decode worker). What both roles share (KV format, drafts and routing) stays with the
space.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from simserve.planner.overrides import Overrides
from simserve.planner.space.formats import WEIGHTS_KEY
from simserve.planner.space.links import Side, domain_of, network_of
from simserve.planner.space.makeup import POOLS_KEY, REPLICAS_KEY
from simserve.profiles.hardware import HardwareProfile, in_nodes, load_hardware
from simserve.scenario.schema import Scenario

PREFILL, DECODE = "prefill", "decode"
SIZE_KEYS = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "enable_expert_parallel")
"""Keys that a shape sets, below ``deployment`` or in a pool."""
GPU, FORMAT = "hardware", "quantization"  # Keys in which a role may differ from the rest of the deployment.
NODES = "gpus_per_node"  # GPUs of a node: of the deployment for its own GPU, of a pool for that pool's.
KIND_KEYS = (GPU, FORMAT, *SIZE_KEYS)  # Keys that tell workers apart, besides the knob of their engine.
KNOBS = {PREFILL: "max_num_batched_tokens", DECODE: "max_num_seqs"}
"""The engine knob of each role that its speed and memory depend on."""
LINK_KEY = "deployment.disaggregation"
POOL_KEYS = (POOLS_KEY, LINK_KEY, REPLICAS_KEY)  # Keys that deploy prefill and decode workers.
Pool = Mapping[str, Any]  # Keys of `deployment.pools`, without the number of replicas.


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """The possible prefill and decode workers."""

    prefill: tuple[Pool, ...]  # Shapes of a prefill worker, the scenario's own first.
    decode: tuple[Pool, ...]  # Likewise of a decode worker.
    link: Mapping[str, Any]  # The scenario's link for KV transfers.
    own: Mapping[str, Any]  # GPU, GPUs of a node and weight format of the deployment, which a pool need not repeat.
    gpus: Mapping[str, HardwareProfile] = field(default_factory=dict)
    """Kinds of GPU by name, in their usual nodes, which determine the links; empty if the scenario sets the link."""

    def shapes(self, role: str) -> tuple[Pool, ...]:
        """Return the shapes of a role."""
        return self.prefill if role == PREFILL else self.decode

    def hardware_of(self, pool: Pool) -> str:
        """Return the GPU of a shape."""
        return str(pool.get(GPU) or self.own[GPU])

    def link_of(self, workers: Sequence[tuple[Pool, int]]) -> dict[str, Any]:
        """Return the link between workers: the slowest of their network ports, one per GPU."""
        if not self.gpus:
            return dict(self.link)
        network = network_of(self._sides(workers)) if workers else None
        return {} if network is None else network.spec

    def domain_link(self, workers: Sequence[tuple[Pool, int]]) -> dict[str, Any] | None:
        """Return the link inside the one node or NVLink domain that holds all workers; None if none does."""
        domain = domain_of(self._sides(workers)) if self.gpus else None
        return None if domain is None else domain.spec

    def fastest_link(self, pool: Pool, number: int) -> dict[str, Any]:
        """Return the fastest link that ``number`` workers of a shape may have, whatever they are paired with."""
        domain = self.domain_link([(pool, number)])
        is_full = domain is not None and self.domain_link([(pool, number), ({**pool, **_SMALLEST}, 1)]) is None
        return self.link_of([(pool, number)]) if domain is None or is_full else domain

    def _sides(self, workers: Sequence[tuple[Pool, int]]) -> list[Side]:
        return [Side(self._in_nodes(pool), gpus_of_size(pool), number) for pool, number in workers]

    def _in_nodes(self, pool: Pool) -> HardwareProfile:
        """Return the GPU of a shape in the pool's own nodes, else in the deployment's where it has the same GPU."""
        name = self.hardware_of(pool)
        shared = self.own[NODES] if name == self.own[GPU] else None
        return in_nodes(self.gpus[name], pool.get(NODES) or shared)

    def deployed(
        self, front: Overrides, workers: Sequence[tuple[Pool, int]], *, link: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the overrides that deploy a number of workers of each shape, with what both roles share.

        Args:
            front: What both roles share.
            workers: Shapes with their numbers.
            link: Link for their KV transfers; None: the network ports of the workers.
        """
        pools = [{**pool, "replicas": count} for pool, count in workers]
        link = self.link_of(workers) if link is None else dict(link)
        found = {**front, POOLS_KEY: pools, LINK_KEY: link, REPLICAS_KEY: 1}
        for key in (GPU, FORMAT):
            self._share(found, key, [pool.get(key) for pool in pools])
        if found.get(f"deployment.{GPU}", self.own[GPU]) != self.own[GPU] and self.own[NODES] is not None:
            found[f"deployment.{NODES}"] = None  # they are those of the deployment's GPU, which is another now
            for pool in pools:
                if pool.get(GPU) == self.own[GPU]:
                    pool.setdefault(NODES, self.own[NODES])
        return found

    def _share(self, overrides: dict[str, Any], key: str, values: Sequence[Any]) -> None:
        """Set once what all pools have in common; if they differ, the deployment has the value of the last pool."""
        if None in values:
            return  # not searched, or a pool of the scenario does not set it
        overrides.pop(f"deployment.{key}", None)
        if values[-1] != self.own[key]:
            overrides[f"deployment.{key}"] = values[-1]
        if len(set(values)) == 1:
            for pool in overrides[POOLS_KEY]:
                del pool[key]


def roles_of(scenario: Scenario, values: Mapping[str, Sequence[Any]], largest: int) -> Roles | None:
    """Return the possible prefill and decode workers; None if the scenario's pools are not one of each role.

    Args:
        scenario: The scenario on the GPU in question.
        values: Dotted key -> values that the search may set.
        largest: Most GPUs of a worker.
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
    names = {scenario.deployment.hardware, *(pool[GPU] for pool in own.values() if GPU in pool)}
    gpus = {name: load_hardware(name, scenario.folder) for name in sorted(names)}
    return Roles(
        prefill=shapes[PREFILL],
        decode=shapes[DECODE],
        link=mapping.get("disaggregation", {}),
        own={key: getattr(scenario.deployment, key) for key in (GPU, NODES, FORMAT)},
        gpus={} if "disaggregation" in mapping else gpus,
    )


def mixed_roles(several: Sequence[Roles]) -> Roles | None:
    """Return the shapes of several kinds of GPU as one choice per role; None if pools have their own GPUs.

    Args:
        several: Workers on each kind of GPU, that of the deployment first; either role may be empty.
    """
    if any(GPU in pool for each in several for pool in (*each.prefill, *each.decode)):
        return None
    shapes = {
        role: tuple({GPU: each.own[GPU], **pool} for each in several for pool in each.shapes(role)) for role in KNOBS
    }
    first = several[0]
    gpus = {name: profile for each in several for name, profile in each.gpus.items()}
    return Roles(prefill=shapes[PREFILL], decode=shapes[DECODE], link=first.link, own=first.own, gpus=gpus)


def gpus_of_size(pool: Pool) -> int:
    """Return the GPUs of one worker."""
    return int(pool["tensor_parallel_size"] * pool["pipeline_parallel_size"] * pool["data_parallel_size"])


def kind_of(pool: Pool) -> tuple[Any, ...]:
    """Return what tells a shape from others, apart from its knob: GPU, weight format and sizes."""
    return tuple(pool.get(key) for key in KIND_KEYS)


def is_split(overrides: Overrides) -> bool:
    """Return whether a deployment has prefill and decode workers with separate shapes."""
    pools = overrides.get(POOLS_KEY) or []
    return any(pool.get("role") in KNOBS and set(SIZE_KEYS) <= pool.keys() for pool in pools)


def _shapes(
    base: Pool, deployment: Mapping[str, Any], values: Mapping[str, Sequence[Any]], largest: int
) -> Iterator[Pool]:
    """Yield a worker at every size, weight format and setting of its knob."""
    own = {key: base.get(key, deployment.get(key, plain)) for key, plain in _PLAIN.items()}
    sizes = [
        tuple(own.values()),
        *itertools.product(*(_searched(values, f"deployment.{key}", own[key]) for key in own)),
    ]
    knob = KNOBS[base["role"]]
    engine = base.get("engine", deployment.get("engine", {}))
    limits = _searched(values, f"deployment.engine.{knob}", engine.get(knob))
    formats = () if FORMAT in base else values.get(WEIGHTS_KEY, ())
    in_format: list[dict[str, Any]] = [{FORMAT: each} for each in formats] or [{}]
    for number, each in enumerate(dict.fromkeys(sizes)):
        size = dict(zip(own, each, strict=True))
        if number and not is_plausible(size, largest):
            continue
        for stored, limit in itertools.product(in_format, limits):
            changed = {} if limit == engine.get(knob) else {"engine": {**engine, knob: limit}}
            yield {**base, **stored, **size, **changed}


_PLAIN: Mapping[str, Any] = dict(zip(SIZE_KEYS, (1, 1, 1, False), strict=True))
_SMALLEST = {"tensor_parallel_size": 1, "pipeline_parallel_size": 1, "data_parallel_size": 1}
"""Sizes of the smallest possible partner of a worker."""


def _searched(values: Mapping[str, Sequence[Any]], key: str, own: Any) -> tuple[Any, ...]:
    """Return the values of a key, its own first; only that if the key is not searched."""
    return tuple(values[key]) if key in values else (own,)


def is_plausible(size: Mapping[str, Any], largest: int) -> bool:
    """Return whether a worker of some sizes is worth trying: not too large, and experts lie whole
    on ranks that share them, or on several GPUs."""
    ranks, stages = size["data_parallel_size"], size["pipeline_parallel_size"]
    tensor, is_whole = size["tensor_parallel_size"], size["enable_expert_parallel"]
    is_laid = (stages == 1 and is_whole) if ranks > 1 else not (is_whole and tensor == 1)
    return bool(is_laid and tensor * stages * ranks <= largest)
