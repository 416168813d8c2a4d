"""Replica: a replica that is launched, ready, drained, lost, stopped; and the pool of equal ones that it belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from simserve.engine.admission_control import Finishes
from simserve.engine.cache_state import PrefixPaths
from simserve.engine.config import EngineConfig
from simserve.engine.data_parallel import DataParallelReplica, kv_share, num_running_at
from simserve.engine.queue import OrderedQueue
from simserve.engine.state import INFINITY, Replica, RequestTable
from simserve.engine.tables import StepTimes
from simserve.sim.control import Role
from simserve.sim.recorder import Recorder

if TYPE_CHECKING:
    from simserve.engine.cache_state import PrefixPaths
    from simserve.sim.cluster import Cluster
    from simserve.sim.control import Control
    from simserve.sim.own_parts import Gauges
    from simserve.sim.pools import PoolSetup

STARTING, READY, DRAINING, DOWN, STOPPED = range(5)
"""Lifecycle: it takes requests while READY, finishes those it has while DRAINING, has none in the other states."""


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
        ranks: Of every request, where the queues of the replicas go by rank; else of none.
        replicas: All that were ever launched.
        ready: Numbers of those that take requests, ascending.
        region: Where they are; empty: regions do not matter.
        startup_seconds: From the launch of a replica to its first request.
        weights_bytes: Of one replica, over all its GPUs: what a start loads.
        replicas_per_node: How many of them fill a node.
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
    ranks: Sequence[float] = ()
    replicas: list[ManagedReplica] = field(default_factory=list)
    ready: list[int] = field(default_factory=list)
    region: str = ""
    startup_seconds: float = 0.0
    weights_bytes: float = 0.0
    replicas_per_node: int = 1
    kv_layout: str = ""
    kv_bytes_per_token: float | None = None
    wanted: int | None = None
    in_flux: int = 0

    @property
    def present(self) -> list[ManagedReplica]:
        """Replicas that serve, will serve, or are down for a while."""
        return [replica for replica in self.replicas if replica.state in (STARTING, READY, DOWN)]

    def reads(self, source: Pool) -> bool:
        """Return whether a decode pool takes in what a prefill pool computes: caches of its own, of its region."""
        return self.kv_layout == source.kv_layout and self.region == source.region

    def free_place(self) -> int:
        """Return the lowest place that no replica has."""
        taken = {replica.place for replica in self.replicas if replica.state != STOPPED}
        return next(place for place in range(len(taken) + 1) if place not in taken)


class ManagedReplica:
    """One replica, as those who decide see it; what it does is the plane's.

    Args:
        cluster: The plane.
        number: Its place in the plane; the identity of its schedulers.
        pool: What it is one of.
        launched_at: When it was launched, and paid for from, seconds.
        place: Its place in the pool, which a replacement takes over: places fill nodes in their order.

    Attributes:
        state: STARTING, READY, DRAINING, DOWN or STOPPED.
        is_dying: Whether all of its requests leave at the end of the running step: the replica is lost or stopped.
        loss: Why, an index into `simserve.sim.records.REASONS`.
        is_loss_retried: Whether they are routed to another replica then.
        ready_at: When it first took requests; inf: never.
        stopped_at: When it was given back; inf: never.
        next_times: Step times from the next step on; None: as they are.
        is_freezing: Whether it hangs from the end of the running step on.
        is_frozen: Whether it hangs: it takes requests and does nothing.
    """

    __slots__ = (
        "_cluster",
        "is_dying",
        "is_freezing",
        "is_frozen",
        "is_loss_retried",
        "launched_at",
        "loss",
        "next_times",
        "number",
        "place",
        "pool",
        "ready_at",
        "state",
        "stopped_at",
    )

    def __init__(self, cluster: Cluster, number: int, pool: Pool, launched_at: float, place: int) -> None:
        self._cluster = cluster
        self.number, self.pool, self.place = number, pool, place
        self.state = STARTING
        self.is_dying = self.is_loss_retried = self.is_freezing = self.is_frozen = False
        self.loss = 0
        self.launched_at = launched_at
        self.ready_at = self.stopped_at = INFINITY
        self.next_times: StepTimes | None = None

    @property
    def schedulers(self) -> DataParallelReplica:
        """Its schedulers as they are, only to be looked at."""
        return self._cluster.replica(self.number)

    @property
    def load(self) -> int:
        """Requests routed to it and not answered."""
        return self._cluster.plane.loads[self.number]

    @property
    def tokens(self) -> int:
        """Their prompts and the most that they may generate, where the plane counts them."""
        return self._cluster.plane.tokens[self.number]

    @property
    def busy_seconds(self) -> float:
        """Seconds of its steps so far."""
        return self._cluster.fleet_state.busy_seconds[self.number]

    @property
    def finishes(self) -> Finishes:
        """How fast it finishes requests."""
        return self._cluster.client_state.finishes[self.number]

    @property
    def num_waiting(self) -> int:
        """Requests in the queues of its schedulers, and those routed to it that they have not seen yet."""
        return self.load - num_running_at(self.schedulers)

    def new_replica(self) -> DataParallelReplica:
        """Give the replica schedulers that hold nothing, and return them."""
        schedulers = fresh_replica(self.pool, self.number)
        self._cluster.replace(self.number, schedulers)
        return schedulers

    def flush(self) -> None:
        """Hand what the schedulers have written down to the recorder."""
        self._cluster.flush_one(self.pool.recorder, self.number)


def gauges_of(replica: ManagedReplica, now: float) -> Gauges:
    """Return what a user's own functions see of a replica."""
    schedulers = replica.schedulers
    share = kv_share(schedulers, now)
    return replica.number, replica.pool.name, num_running_at(schedulers), replica.num_waiting, replica.tokens, share


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
        _ranks(setup, requests),
        region=setup.region,
        startup_seconds=setup.startup_seconds if is_named else control.startup_seconds,
        weights_bytes=setup.weights_bytes if is_named else control.weights_bytes,
        replicas_per_node=setup.replicas_per_node if is_named else control.replicas_per_node,
        kv_layout=setup.kv_layout,
        kv_bytes_per_token=setup.kv_bytes_per_token,
    )


def _ranks(setup: PoolSetup, requests: RequestTable) -> Sequence[float]:
    """Return what each request is ordered by in the queues of a pool; nothing where the first to come is the first."""
    if setup.engine.scheduling_policy == "fcfs":
        return ()
    if setup.engine.scheduling_policy == "shortest_first" and setup.role == "prefill":
        return [tokens + 1 for tokens in requests.prompt_tokens]
    return _ordered_queue(setup.engine, requests).ranks


def _ordered_queue(config: EngineConfig, requests: RequestTable) -> OrderedQueue:
    return OrderedQueue(config, requests.ready_time, requests.priority, requests.prompt_tokens, requests.max_tokens)


def fresh_replica(pool: Pool, number: int) -> DataParallelReplica:
    """Return the schedulers of a replica of a pool, which hold nothing."""
    replica = new_replica(number, pool.config, pool.times, pool.requests, pool.paths)
    for rank in replica.ranks:
        pool.recorder.watch(rank)
        if isinstance(rank.waiting, OrderedQueue):
            # Not from the rows as they now are: those of requests at a prefill replica say one token meanwhile.
            rank.waiting.ranks = pool.ranks
    return replica


def new_replica(
    number: int, config: EngineConfig, times: StepTimes, requests: RequestTable | None, paths: PrefixPaths | None
) -> DataParallelReplica:
    """Return the schedulers of a replica, set up for the run of these requests."""
    replica = DataParallelReplica([Replica(number, config, times, rank) for rank in range(config.data_parallel_size)])
    if requests is not None:
        for rank in replica.ranks:
            set_up(rank, requests, paths)
    return replica


def set_up(replica: Replica, requests: RequestTable, paths: PrefixPaths | None) -> None:
    """Give a new replica its queue and, where prompts share anything (``paths``), its prefix cache."""
    replica.has_thinking = len(requests.thinking_tokens) > 0
    replica.has_encoder = len(requests.encoder_seconds) > 0
    if replica.config.scheduling_policy != "fcfs":
        replica.is_ordered = True
        replica.waiting = _ordered_queue(replica.config, requests)
    if replica.config.max_loras and len(requests.adapter):
        from simserve.engine.cache_state import Loras

        replica.loras = Loras(replica.config, requests.adapter)
    if paths is not None:
        from simserve.engine.cache_state import KVTier, PrefixCache

        tiers = [KVTier(each) for each in replica.config.kv_tiers if not each.is_shared]
        seconds, chunk = replica.times.token_seconds, replica.config.max_chunk_tokens
        chunk = min(chunk, len(seconds) - 1)
        replica.cache = PrefixCache(
            paths, replica.config, tiers, seconds[chunk] / chunk, replica.times.prefill_pair_seconds
        )
        replica.has_extras = True
