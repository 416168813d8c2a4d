"""What a search is after, and what became of each deployment. Holds it, decides nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from simserve.planner.overrides import Overrides
from simserve.planner.search.bound import NO_BOUND, Bound
from simserve.planner.search.trial import Promise, Trial
from simserve.planner.space.makeup import Makeup

Objective = Literal["cost", "gpus", "latency", "energy", "throughput"]
OBJECTIVES: tuple[Objective, ...] = ("cost", "gpus", "latency", "energy", "throughput")
Status = Literal["invalid", "does_not_fit", "out_of_reach", "too_many_gpus", "not_better", "misses", "holds"]


def key_of(overrides: Overrides) -> tuple[tuple[str, str], ...]:
    """Return what tells deployments of one space apart."""
    return tuple(sorted((name, repr(value)) for name, value in overrides.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What the search is after.

    Attributes:
        objective: What is to be small.
        max_gpus: GPUs of the fleet at most, spares included.
        spare_replicas: Replicas that are paid for and may be lost.
        ceiling: Value from which on a fleet is of no interest.
        is_tight: Whether that is the value of the plan on the scenario's own GPU, not a multiple of it.
        replicas: How many there must be; None: as few as hold.
        confidence: Share of real servers on which the SLO must hold; None: it must where it is simulated.
        gpus_by_kind: GPU -> how many there are, of fixed GPUs of several kinds; empty: of one kind, ``max_gpus``.
        refused: Hashes of scenarios on fleets that failed when they were confirmed: none of these holds.
    """

    objective: Objective = "cost"
    max_gpus: int = 256
    spare_replicas: int = 0
    ceiling: float = math.inf
    is_tight: bool = False
    replicas: int | None = None
    confidence: float | None = None
    gpus_by_kind: Mapping[str, int] = field(default_factory=dict)
    refused: frozenset[str] = frozenset()


@dataclass(slots=True, kw_only=True)
class Member:
    """One deployment of the space and what became of it.

    Attributes:
        overrides: What it changes in the scenario; the number of replicas comes on top
            (`simserve.planner.space.makeup`).
        status: How it ended.
        reason: In words.
        bound: Proven bounds.
        num_gpus: GPUs of one replica, of pools that differ of the first.
        usd_per_gpu_hour: Price, likewise.
        trial: Its deciding run: the best fleet that holds, else the nearest.
        makeup: What a number of replicas stands for; None where it is not known to go together.
        tokens: Of all requests, prompts included.
        max_model_len: The longest request that it serves, of its pools the least; None: not deployed.
        headroom: Steps of more traffic at which it holds, where that decided between equals; else 0.
        promise: Whether the fleet of its trial holds in fresh runs; None where that was not looked at.
    """

    overrides: Overrides
    status: Status
    reason: str = ""
    bound: Bound = NO_BOUND
    num_gpus: int = 0
    usd_per_gpu_hour: float | None = None
    trial: Trial | None = None
    makeup: Makeup | None = None
    tokens: float = 0.0
    max_model_len: int | None = None
    headroom: int = 0
    promise: Promise | None = None

    def untried(self) -> Member:
        """Return what was known of it before it was tried."""
        if self.status not in ("holds", "misses", "not_better"):
            return self
        return replace(self, status="not_better", reason="", trial=None, promise=None, headroom=0)

    @property
    def key(self) -> tuple[tuple[str, str], ...]:
        """What is deployed, the number of replicas aside."""
        return key_of(self.overrides)

    @property
    def encoders(self) -> int:
        """GPUs of an encoder pool, whatever the number of replicas."""
        return 0 if self.makeup is None else self.makeup.encoders


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResult:
    """The search on one kind of GPU.

    Attributes:
        hardware: The GPU.
        base: Overrides that set it.
        members: Every deployment judged.
        best: The one that holds and is best; None if none holds.
        trials: All runs, in order.
        size: Combinations of the space.
        method: ``exhaustive``: every combination; ``shapes``: every shape; ``settings``: and engine knobs on some;
            ``roles``: prefill and decode workers, each role with a shape of its own.
        role_costs: Role -> what is to be small, of all workers of it, at least (bound); empty where it was not looked
            at.
        tried: Hash of the scenario on a fleet -> its deciding run.
    """

    hardware: str
    base: Overrides
    members: list[Member]
    best: Member | None
    trials: list[Trial] = field(default_factory=list)
    size: int
    method: str
    role_costs: Mapping[str, float] = field(default_factory=dict)
    tried: Mapping[str, Trial] = field(default_factory=dict)
