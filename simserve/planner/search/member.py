"""The goal of a search and the outcome of each deployment. Records only, decides nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from simserve.planner.capacity.level import Promise
from simserve.planner.overrides import Overrides
from simserve.planner.search.bound import NO_BOUND, Bound
from simserve.planner.search.trial import Trial
from simserve.planner.space.makeup import Makeup

Objective = Literal["cost", "gpus", "latency", "energy", "throughput"]
OBJECTIVES: tuple[Objective, ...] = ("cost", "gpus", "latency", "energy", "throughput")
Status = Literal["invalid", "does_not_fit", "out_of_reach", "too_many_gpus", "not_better", "misses", "holds"]


def key_of(overrides: Overrides) -> tuple[tuple[str, str], ...]:
    """Return a key that identifies a deployment within a space."""
    return tuple(sorted((name, repr(value)) for name, value in overrides.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """The goal of a search."""

    objective: Objective = "cost"  # What to minimise.
    max_gpus: int = 256  # Most GPUs of the fleet, spares included.
    spare_replicas: int = 0  # Replicas that are paid for and may be lost.
    ceiling: float = math.inf  # Fleets of this value or more are of no interest.
    is_tight: bool = False
    """Whether the ceiling is the value of the best plan on other GPUs itself, not a multiple of it."""
    replicas: int | None = None  # Required number of replicas; None: the fewest that hold.
    confidence: float | None = None
    """Share of real servers on which the SLO must hold; None: it must hold in simulation."""
    gpus_by_kind: Mapping[str, int] = field(default_factory=dict)
    """GPU -> number of GPUs, for fixed GPUs of several kinds; empty: ``max_gpus`` of one kind."""
    refused: frozenset[str] = frozenset()
    """Hashes of scenarios on fleets that failed to be confirmed."""


@dataclass(slots=True, kw_only=True)
class Member:
    """One deployment of the space and its outcome."""

    overrides: Overrides
    """What it changes in the scenario, without the number of replicas (`simserve.planner.space.makeup`)."""
    status: Status  # Its outcome.
    reason: str = ""  # The reason in words.
    bound: Bound = NO_BOUND  # Proven bounds.
    num_gpus: int = 0  # GPUs of one replica, of the first pool if pools differ.
    usd_per_gpu_hour: float | None = None  # Price, likewise.
    trial: Trial | None = None  # Its deciding run: the best fleet that holds, else the nearest.
    makeup: Makeup | None = (
        None  # The makeup of each number of replicas; None if the deployment is not known to be valid.
    )
    tokens: float = 0.0  # Tokens of all requests, prompts included.
    max_model_len: int | None = None
    """The longest request that it serves, the least of its pools; None: not deployed."""
    promise: Promise | None = None
    """Whether the fleet of its trial holds in fresh runs; None if that was not checked."""

    def untried(self) -> Member:
        """Return the member as it was before it was tried."""
        if self.status not in ("holds", "misses", "not_better"):
            return self
        return replace(self, status="not_better", reason="", trial=None, promise=None)

    @property
    def key(self) -> tuple[tuple[str, str], ...]:
        """The deployment without its number of replicas."""
        return key_of(self.overrides)

    @property
    def run(self) -> Trial:
        """Its deciding run, where it has been tried."""
        assert self.trial is not None
        return self.trial

    @property
    def encoders(self) -> int:
        """GPUs of an encoder pool, for any number of replicas."""
        return 0 if self.makeup is None else self.makeup.encoders


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResult:
    """The search on one kind of GPU."""

    hardware: str  # The GPU.
    members: list[Member]  # Every deployment judged.
    best: Member | None  # The best deployment that holds; None if none holds.
    trials: list[Trial] = field(default_factory=list)  # All runs, in order.
    size: int  # Number of combinations in the space.
    method: str
    """``exhaustive``: every combination; ``shapes``: every shape; ``settings``: and engine knobs on some; ``roles``:
    prefill and decode workers, each role with its own shape."""
    role_costs: Mapping[str, float] = field(default_factory=dict)
    """Role -> least objective of all its workers (bound); empty if not determined."""
    tried: Mapping[str, Trial] = field(default_factory=dict)  # Hash of the scenario on a fleet -> its deciding run.
