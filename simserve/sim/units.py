"""Unit: a replica with a life: launched, ready, drained, lost, stopped; and the pool of equal ones it belongs to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from simserve.engine.config import EngineConfig
from simserve.engine.data_parallel import Ranks, num_running_at
from simserve.engine.door import Finishes
from simserve.engine.prefix_cache import PrefixPaths
from simserve.engine.set_up import set_up
from simserve.engine.state import INFINITY, Replica, RequestTable
from simserve.engine.tables import StepTimes
from simserve.sim.pool_spec import Role
from simserve.sim.recorder import Recorder

if TYPE_CHECKING:
    from simserve.sim.control import Control
    from simserve.sim.pools import PoolSetup

STARTING, READY, DRAINING, DOWN, STOPPED = range(5)
"""Life of a unit: it takes requests while READY, finishes those it has while DRAINING, has none in the other states."""


@dataclass(slots=True)
class Pool:
    """Equal replicas.

    Attributes:
        name: How results call it; empty where there is only one.
        config: What the scheduler of each obeys.
        times: Seconds of a step, as lists.
        recorder: Adds up their leaps.
        gpus_per_replica: GPUs of each.
        role: Whether they prefill, decode, or both.
        paths: What requests share, where the replicas cache prefixes; None: they do not.
        requests: The table of all requests, before the first replica is launched.
        units: All that were ever launched.
        ready: Numbers of those that take requests, ascending.
        region: Where they are; empty: regions do not matter.
        startup_seconds: From the launch of a replica to its first request.
        weights_bytes: Of one replica, over all its GPUs: what a start loads.
        replicas_per_node: How many of them fill a node.
        paces: Speculative decoding: pace of each request here; None: they are the table's.
        kv_layout: Model and format of its KV caches: with disaggregation, only pools of one layout read each other's.
        kv_bytes_per_token: Of the whole model, in this format; None: the same for all pools.
        wanted: Replicas that an autoscaler asked for last; None: there is none.
        in_flux: Replicas that an update will bring back, less those that it has launched on top.
    """

    name: str
    config: EngineConfig
    times: StepTimes
    recorder: Recorder
    gpus_per_replica: int = 1
    role: Role = "both"
    paths: PrefixPaths | None = None
    requests: RequestTable | None = None
    units: list[Unit] = field(default_factory=list)
    ready: list[int] = field(default_factory=list)
    region: str = ""
    startup_seconds: float = 0.0
    weights_bytes: float = 0.0
    replicas_per_node: int = 1
    paces: list[int] | None = None
    kv_layout: str = ""
    kv_bytes_per_token: float | None = None
    wanted: int | None = None
    in_flux: int = 0

    @property
    def present(self) -> list[Unit]:
        """Replicas that serve, will serve, or are down for a while."""
        return [unit for unit in self.units if unit.state in (STARTING, READY, DOWN)]

    def reads(self, source: Pool) -> bool:
        """Return whether a decode pool takes in what a prefill pool computes: caches of its own, of its region."""
        return self.kv_layout == source.kv_layout and self.region == source.region

    def free_place(self) -> int:
        """Return the lowest place that no replica has."""
        taken = {unit.place for unit in self.units if unit.state != STOPPED}
        return next(place for place in range(len(taken) + 1) if place not in taken)

    @property
    def schedules_ahead(self) -> bool:
        """Whether a step is scheduled while the one before it runs."""
        return self.config.async_scheduling and self.config.batching != "static"


class Unit:
    """One replica of a fleet.

    Attributes:
        number: Its place in the fleet; the identity of its replica.
        pool: What it is one of.
        place: Its place in the pool, which a replacement takes over: places fill nodes in their order.
        replica: Its schedulers; new ones after a loss.
        state: STARTING, READY, DRAINING, DOWN or STOPPED.
        load: Requests routed to it and not answered.
        tokens: Their prompts and the most that they may generate.
        members: Those requests with their tokens, in the order of their coming.
        doomed: Requests that leave at the end of the running step, and when that was decided.
        is_dying: Whether all of them do, because the replica is lost or stopped.
        loss: Why, an index into `simserve.sim.records.REASONS`.
        is_loss_retried: Whether they are routed to another replica then.
        launched_at: When it was launched, and paid for from, seconds.
        ready_at: When it first took requests; inf: never.
        stopped_at: When it was given back; inf: never.
        last_finish: When a request last finished on it, or the first one came after a pause.
        is_warm: Whether a request has finished since that pause.
        finish_interval: Running mean of the seconds between two finishes; 0: none seen.
        busy_seconds: Seconds of its steps so far.
        next_times: Step times from the next step on; None: as they are.
        is_freezing: Whether it hangs from the end of the running step on.
        is_frozen: Whether it hangs: it takes requests and does nothing.
    """

    __slots__ = (
        "busy_seconds",
        "doomed",
        "finishes",
        "is_dying",
        "is_freezing",
        "is_frozen",
        "is_loss_retried",
        "launched_at",
        "load",
        "loss",
        "members",
        "next_times",
        "number",
        "place",
        "pool",
        "ready_at",
        "replica",
        "state",
        "stopped_at",
        "tokens",
    )

    def __init__(self, number: int, pool: Pool, launched_at: float, place: int = 0) -> None:
        self.number = number
        self.pool = pool
        self.place = place
        self.replica = self.new_replica()
        self.state = STARTING
        self.load = 0
        self.tokens = 0
        self.members: dict[int, int] = {}
        self.doomed: dict[int, float] = {}
        self.is_dying = self.is_loss_retried = False
        self.loss = 0
        self.launched_at = launched_at
        self.ready_at = self.stopped_at = INFINITY
        self.finishes = Finishes(launched_at)
        self.busy_seconds = 0.0
        self.next_times: StepTimes | None = None
        self.is_freezing = self.is_frozen = False

    def new_replica(self) -> Ranks:
        """Give the unit schedulers that hold nothing, and return them."""
        self.replica = fresh_replica(self.pool, self.number)
        for rank in self.replica.ranks:
            rank.finished = []
        return self.replica

    def flush(self) -> None:
        """Hand what the schedulers have written down to the recorder."""
        for rank in self.replica.ranks:
            self.pool.recorder.flush(rank)

    @property
    def num_waiting(self) -> int:
        """Requests in the scheduler's queue, and those routed to it that it has not seen yet."""
        return self.load - num_running_at(self.replica)


def pool_of(
    setup: PoolSetup,
    control: Control,
    times: StepTimes,
    recorder: Recorder,
    paths: PrefixPaths | None,
    requests: RequestTable,
) -> Pool:
    """Return a pool without replicas; where there is only one, ``control`` says how its replicas start."""
    is_named = bool(setup.name)
    return Pool(
        setup.name,
        setup.engine,
        times,
        recorder,
        setup.gpus_per_replica,
        setup.role,
        paths,
        requests,
        region=setup.region,
        startup_seconds=setup.startup_seconds if is_named else control.startup_seconds,
        weights_bytes=setup.weights_bytes if is_named else control.weights_bytes,
        replicas_per_node=setup.replicas_per_node if is_named else control.replicas_per_node,
        kv_layout=setup.kv_layout,
        kv_bytes_per_token=setup.kv_bytes_per_token,
    )


def fresh_replica(pool: Pool, number: int) -> Ranks:
    """Return the schedulers of a replica of a pool, which hold nothing."""
    unit = new_replica(number, pool.config, pool.times, pool.requests, pool.paths)
    for rank in unit.ranks:
        pool.recorder.watch(rank)
    return unit


def new_replica(
    number: int, config: EngineConfig, times: StepTimes, requests: RequestTable | None, paths: PrefixPaths | None
) -> Ranks:
    """Return the schedulers of a replica, set up for the run of these requests."""
    unit = Ranks([Replica(number, config, times, rank) for rank in range(config.data_parallel_size)])
    if requests is not None:
        for rank in unit.ranks:
            set_up(rank, requests, paths)
    return unit
