"""Lifecycle: pools of equal replicas, which are launched, become ready, drain, are lost and are given back.

The plane (`simserve.engine.event_plane`) moves them, interpreted or compiled. Decisions over time
(`simserve.sim.decisions`) reach it between two drives, and when it calls because a step or a request that somebody
waits for has ended. Rolling updates drain and replace replicas, a few at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import simpy

from simserve.engine.cache_state import PrefixPaths
from simserve.engine.clients import send
from simserve.engine.compiled.layout import fill
from simserve.engine.config import EngineConfig
from simserve.engine.data_parallel import break_off, end_leap, kv_share, num_running_at
from simserve.engine.data_plane import CALLED, CHORES
from simserve.engine.entrance import RETRIED, add_open
from simserve.engine.plane_state import (
    ADMIT,
    BREAK_OFF,
    CALLS,
    DRAINS,
    FROZEN,
    HAND_OVER,
    HELD,
    LAND_AGAIN,
    LEAST,
    LOSE,
    NOBODY,
    OFFER,
    SETTLE,
    ClientState,
    Port,
    Transfers,
)
from simserve.engine.queue import OrderedQueue
from simserve.engine.slots import slotted
from simserve.engine.state import INFINITY, UNFINISHED, DataParallelReplica, Finishes, RequestTable, StepTimes
from simserve.sim.cluster import Cluster, new_replica, ordered_queue
from simserve.sim.control import Control, Role, UpdateSpec
from simserve.sim.own_parts import Gauges, Judge
from simserve.sim.pools import PoolSetup
from simserve.sim.recorder import Recorder
from simserve.sim.records import DRAINED, REPLICA_LOST
from simserve.sim.transfers import ROLES, Links
from simserve.workload.requests import RequestSpecs

MOST_LOSSES = 10
"""How many times a request may be lost with its replica before it is lost for good, if a scenario allows retries.
Without a bound, a fleet whose probe restarts replicas for being busy would never finish."""
STARTING, READY, DRAINING, DOWN, STOPPED = range(5)
"""States: a replica takes requests while READY, finishes its own while DRAINING, and has none in the other states."""
Steps = Generator[simpy.Event, Any, None]


@dataclass(slots=True)
class Pool:
    """Equal replicas."""

    name: str  # Its name in results; empty if there is only one pool.
    config: EngineConfig  # Scheduler settings of each replica.
    times: StepTimes  # Step times in seconds, as lists.
    recorder: Recorder  # Adds up their leaps.
    gpus_per_replica: int = 1  # GPUs of each.
    role: Role = "both"  # Whether they prefill, decode, or both.
    paths: PrefixPaths | None = None  # What requests share, if the replicas cache prefixes; else None.
    requests: RequestTable | None = None  # The table of all requests, before the first replica is launched.
    ranks: Sequence[float] = ()
    """Sort key of each request in the queues of the replicas; empty if first come, first served."""
    replicas: list[ManagedReplica] = field(default_factory=list)  # All that were ever launched.
    ready: list[int] = field(default_factory=list)  # Numbers of those that take requests, ascending.
    region: str = ""  # Where they are; empty if regions do not matter.
    startup_seconds: float = 0.0  # From the launch of a replica to its first request.
    weights_bytes: float = 0.0  # Weights of one replica over all its GPUs, which a start loads.
    replicas_per_node: int = 1  # Replicas on a full node.
    kv_layout: str = ""
    """Model and format of its KV caches: with disaggregation, only pools of one layout read each other's."""
    kv_bytes_per_token: float | None = None  # Of the whole model, in this format; None: the same for all pools.
    wanted: int | None = None  # Replicas that the autoscaler last asked for; None without an autoscaler.
    in_flux: int = 0  # Replicas that an update will bring back, less the extra ones that it has launched.

    @property
    def present(self) -> list[ManagedReplica]:
        """Replicas that serve, will serve, or are down temporarily."""
        return [replica for replica in self.replicas if replica.state in (STARTING, READY, DOWN)]

    def reads(self, source: Pool) -> bool:
        """Return whether a decode pool reads KV caches of a prefill pool: same layout, same region."""
        return self.kv_layout == source.kv_layout and self.region == source.region

    def free_place(self) -> int:
        """Return the lowest place that no replica occupies."""
        taken = {replica.place for replica in self.replicas if replica.state != STOPPED}
        return next(place for place in range(len(taken) + 1) if place not in taken)


@slotted
class ManagedReplica:
    """One replica, as decision makers see it; the plane runs it.

    Args:
        number: Its index in the plane; identifies its schedulers.
        launched_at: When it was launched, and its cost began, seconds.
        place: Its place in the pool, which a replacement takes over; nodes are filled in order of place.

    Attributes:
        state: STARTING, READY, DRAINING, DOWN or STOPPED.
        is_dying: Whether it is lost or stopped at the end of the running step, with all of its requests.
        loss: Why, an index into `simserve.sim.records.REASONS`.
        is_loss_retried: Whether its requests are then routed to another replica.
        ready_at: When it first took requests; inf: never.
        stopped_at: When it was given back; inf: never.
        next_times: Step times from the next step on; None: unchanged.
        is_freezing: Whether it hangs from the end of the running step on.
        is_frozen: Whether it hangs: it takes requests and does nothing.
    """

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
        """Its schedulers in their current state, read only."""
        return self._cluster.replica(self.number)

    @property
    def load(self) -> int:
        """Requests routed to it and not answered."""
        return self._cluster.plane.loads[self.number]

    @property
    def tokens(self) -> int:
        """Prompts of those requests and the most tokens that they may generate, if the plane counts them."""
        return self._cluster.plane.tokens[self.number]

    @property
    def busy_seconds(self) -> float:
        """Total seconds of its steps so far."""
        return self._cluster.fleet_state.busy_seconds[self.number]

    @property
    def finishes(self) -> Finishes:
        """Tracks how fast it finishes requests."""
        return self._cluster.client_state.finishes[self.number]

    @property
    def num_waiting(self) -> int:
        """Requests in the queues of its schedulers, and those routed to it that the schedulers have not seen yet."""
        return self.load - num_running_at(self.schedulers)

    def new_replica(self) -> DataParallelReplica:
        """Replace its schedulers with empty ones, and return those."""
        schedulers = fresh_replica(self.pool, self.number)
        self._cluster.replace(self.number, schedulers)
        return schedulers

    def flush(self) -> None:
        """Pass the rows that the schedulers have written to the recorder."""
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
    """Return a pool without replicas; if it is the only one, ``control`` says how its replicas start."""
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
    """Return the sort keys of requests in the queues of a pool; empty if first come, first served."""
    if setup.engine.scheduling_policy == "fcfs":
        return ()
    if setup.engine.scheduling_policy == "shortest_first" and setup.role == "prefill":
        return [tokens + 1 for tokens in requests.prompt_tokens]
    return ordered_queue(setup.engine, requests).ranks


def fresh_replica(pool: Pool, number: int) -> DataParallelReplica:
    """Return the empty schedulers of a new replica of a pool."""
    replica = new_replica(number, pool.config, pool.times, pool.requests, pool.paths)
    for rank in replica.ranks:
        pool.recorder.watch(rank)
        if isinstance(rank.waiting, OrderedQueue):
            # Not from the current rows: at a prefill replica, rows of requests show an output of one token.
            rank.waiting.ranks = pool.ranks
    return replica


class Lifecycle:
    """The replicas of a run, and how they come and go.

    Args:
        pools: One or more, without replicas yet.
        cluster: The plane, with the initial replicas, pool by pool.
        counts: Initial number of replicas in each pool.
        allowed: For each class, pool indices that its arrivals may go to; one entry for all without classes.
        kv_bytes_per_token: Of the whole model, for pools that do not state it.

    Attributes:
        requests: The table of all requests.
        replicas: Every replica that was ever launched, by number.
        on_launch: Called with every replica that is launched.
        news: Callbacks due on SimPy's side at `news_time`; the data plane stops until they are done.
        judge: Calls a user's own parts; None if there are none.
    """

    judge: Judge | None = None

    def __init__(
        self,
        pools: list[Pool],
        cluster: Cluster,
        client_state: ClientState,
        counts: Sequence[int],
        specs: RequestSpecs,
        allowed: Sequence[Sequence[int]],
        kv_bytes_per_token: float = 0.0,
    ) -> None:
        self.pools = pools
        self.replicas: list[ManagedReplica] = []
        self.on_launch: list[Callable[[ManagedReplica], None]] = []
        self.news: list[Callable[[], None]] = []
        self.news_time = 0.0
        self.requests: RequestTable = cluster.requests
        self._awaited: dict[int, list[Callable[[], None]]] = {}
        self._num_losses: dict[int, int] = {}
        self._cluster, self._allowed, self._kv_bytes_per_token = cluster, allowed, kv_bytes_per_token
        self._concurrency, self._count = specs.concurrency, len(specs)
        self._tells: list[Callable[[int, float], None]] = []
        self._entrances = [pool for pool in pools if pool.role != "decode"]
        fleet_state = client_state.fleet_state
        assert fleet_state is not None
        # Compiled code writes these columns in place.
        self._place = np.frombuffer(client_state.place, dtype=np.int32)
        self._joined = np.frombuffer(fleet_state.joined, dtype=np.int64)
        self._transfers: Transfers | None = client_state.transfers
        self._links = None if client_state.transfers is None else Links(cluster, client_state.transfers)
        # First row of the table whose request has not ended.
        self._first = 0
        for pool, count in zip(pools, counts, strict=True):
            for place in range(count):
                replica = ManagedReplica(cluster, len(self.replicas), pool, 0.0, place)
                replica.state, replica.ready_at = READY, 0.0
                self.replicas.append(replica)
                pool.replicas.append(replica)
                pool.ready.append(replica.number)
        # As long as every replica ever launched is present, the router need not check which are.
        router, plane = cluster.plane.router, cluster.plane
        goes_by_load = router.policy == LEAST and router.affinity is None and not plane.weighs_tokens
        self._routes_least = goes_by_load and not plane.is_stale and len(pools) == 1
        self._publish()

    # Replicas come and go.

    def launch(self, pool: Pool, now: float, *, is_ready: bool, place: int | None = None) -> ManagedReplica:
        """Add a replica, paid for from ``now``; it takes requests once `ready` is called.

        Args:
            now: Seconds.
            is_ready: Whether it is ready at once.
            place: The place in the pool that it takes over; None: the first that is free.
        """
        replica = ManagedReplica(
            self._cluster, len(self.replicas), pool, now, pool.free_place() if place is None else place
        )
        number, port = self.pools.index(pool), None
        if self._transfers is not None:
            own = pool.kv_bytes_per_token
            answers = pool.role != "prefill" or not any(
                each.config.has_late_first_token for each in self._readers(pool)
            )
            port = Port(ROLES[pool.role], self._kv_bytes_per_token if own is None else own, [], answers)
        self._cluster.add(
            fresh_replica(pool, replica.number),
            pool.recorder,
            now,
            place=list(dict.fromkeys(each.region for each in self.pools)).index(pool.region),
            first_pace=number * self._count,
            port=port,
        )
        # Present, but it takes no requests yet.
        self._cluster.plane.routes_least = False
        self.replicas.append(replica)
        pool.replicas.append(replica)
        if is_ready:
            self.ready(replica, now)
        for tell in self.on_launch:
            tell(replica)
        return replica

    def ready(self, replica: ManagedReplica, now: float) -> None:
        """Let a replica take requests, and route those that waited for one."""
        replica.state = READY
        replica.ready_at = min(replica.ready_at, now)
        replica.finishes.last = now
        replica.pool.ready.append(replica.number)
        replica.pool.ready.sort()
        self._route_parked(now)
        self._mark(replica)

    def drain(self, replica: ManagedReplica, now: float) -> None:
        """Send a replica no more requests; it is given back when it has answered those it has."""
        self.withdraw(replica, DRAINING)
        self._offer_turn(now)
        if not replica.load:
            self.stop(replica, now)

    def stop(self, replica: ManagedReplica, now: float) -> None:
        """Give back a replica that holds no requests."""
        self.withdraw(replica, STOPPED)
        self._note_stop(replica, now)

    def when_stopped(self, replica: ManagedReplica, tell: Callable[[], None]) -> None:
        """Call ``tell`` on SimPy's side when a replica has been given back."""
        if replica.stopped_at < INFINITY:
            tell()
        else:
            self._awaited.setdefault(replica.number, []).append(tell)

    def lose(
        self, replica: ManagedReplica, now: float, *, then: int = DOWN, reason: int = REPLICA_LOST, retry: bool = False
    ) -> None:
        """Lose a replica with everything on it, at the end of the running step.

        Args:
            now: Seconds.
            then: Its state afterwards: DOWN, or STOPPED.
            reason: Why its requests are lost.
            retry: Whether the router sends them to another replica instead.
        """
        self.withdraw(replica, then)
        self._offer_turn(now)
        replica.is_dying, replica.loss, replica.is_loss_retried = True, reason, retry
        break_off(replica.schedulers, now)
        if not self.ends_leap(replica, now):
            self._bury(replica, now)

    def withdraw(self, replica: ManagedReplica, state: int) -> None:
        """Send a replica no more requests."""
        if replica.number in replica.pool.ready:
            replica.pool.ready.remove(replica.number)
        replica.state = state
        self._publish()
        self._mark(replica)

    def _offer_turn(self, now: float) -> None:
        """Route requests waiting under fair turns again: a replica that comes or goes changes which ones are near."""
        gateway = self._cluster.client_state.gateway
        if gateway is not None and gateway.fair is not None:
            self._cluster.tell(OFFER, 0, now)

    def ends_leap(self, replica: ManagedReplica, now: float) -> bool:
        """End the leap of a replica with the running step; return whether a step runs."""
        is_running = end_leap(self._cluster.replica(replica.number), now)
        self.note_end(replica)
        return is_running

    def note_end(self, replica: ManagedReplica) -> None:
        """Note when the data plane must look at a replica next."""
        self._look_at(replica, INFINITY if replica.is_frozen else replica.schedulers.end_time)

    def set_link_pace(self, replica: ManagedReplica, now: float, pace: float) -> None:
        """Make transfers on the link of a prefill replica take ``pace`` times as long from now on; inf: it is down."""
        assert self._links is not None
        for index in self._links.set_pace(replica.number, now, pace):
            self._cluster.tell(LAND_AGAIN, index, now)

    def complete(self, replica: ManagedReplica, now: float) -> None:
        """End the step of a replica, and do what waits for that end even if no step runs."""
        self._cluster.tell(SETTLE, replica.number, now)
        self._answer_calls()

    def _look_at(self, replica: ManagedReplica, time: float) -> None:
        self._cluster.plane.ends[replica.number] = time
        self._mark(replica)

    def _note_stop(self, replica: ManagedReplica, now: float) -> None:
        replica.stopped_at = now
        self._look_at(replica, INFINITY)
        awaited = self._awaited.pop(replica.number, [])
        if awaited:
            self.news += awaited
            self.news_time = now

    def _mark(self, replica: ManagedReplica) -> None:
        """Tell the plane when to call for a replica, and whether it does anything."""
        is_awaited = replica.is_dying or replica.is_freezing or replica.next_times is not None
        mark = CALLS * is_awaited + DRAINS * (replica.state == DRAINING) + FROZEN * replica.is_frozen
        self._cluster.fleet_state.marks[replica.number] = mark

    def _publish(self) -> None:
        """Tell the router which replicas take requests, and the links which take KV caches."""
        plane, entrances = self._cluster.plane, self._entrances
        for part, pools in zip(plane.parts, self._allowed, strict=True):
            is_open = [number for number in pools if entrances[number].ready]
            fill(part.pools, is_open)
            fill(part.ready, [each for number in is_open for each in entrances[number].ready])
        for part, pool in zip(plane.pools, entrances, strict=False):
            fill(part.ready, pool.ready)
        plane.routes_least = self._routes_least and len(self.pools[0].ready) == len(self.replicas)
        if self._transfers is None:
            return
        ports = self._live_transfers.ports
        for pool in self.pools:
            if pool.role == "prefill":
                readers = [number for other in self._readers(pool) for number in other.ready]
                for replica in pool.replicas:
                    fill(ports[replica.number].readers, readers)

    @property
    def _live_transfers(self) -> Transfers:
        transfers = self._cluster.client_state.transfers
        assert transfers is not None
        return transfers

    def _readers(self, source: Pool) -> list[Pool]:
        """Return the decode pools that read KV caches of a prefill pool."""
        return [pool for pool in self.pools if pool.role == "decode" and pool.reads(source)]

    def _route_parked(self, now: float) -> None:
        """Route the requests that waited for a ready replica, and the KV caches that have landed meanwhile."""
        self._publish()
        fleet_state = self._cluster.fleet_state
        parked = list(fleet_state.parked)
        fill(fleet_state.parked, [])
        # They have already passed admission control, so they are no longer refused.
        for index in parked:
            self._cluster.tell(HAND_OVER, index, now)
        self._offer_turn(now)
        if self._transfers is not None:
            transfers = self._live_transfers
            stranded = list(transfers.stranded)
            fill(transfers.stranded, [])
            for index in stranded:
                self._cluster.tell(ADMIT, index, now)

    def _bury(self, replica: ManagedReplica, now: float) -> None:
        """Discard the schedulers of a lost replica; its requests are retried, or lost with it."""
        self._cluster.tell(BREAK_OFF, replica.number, now)
        plane, number = self._cluster.plane, replica.number
        rows = self._rows_at(number)
        plane.loads[number] = plane.tokens[number] = 0
        members: list[int] = rows[np.argsort(self._joined[rows])].tolist()
        replica.is_dying = replica.is_freezing = replica.is_frozen = False
        replica.flush()
        replica.new_replica()
        self._look_at(replica, INFINITY)
        if replica.state == DRAINING:
            replica.state = STOPPED
        if replica.state == STOPPED:
            self._note_stop(replica, now)
        if self._links is not None and replica.pool.role == "prefill":
            members += self._links.cut_off(replica.number, now)
        for index in members:
            if replica.pool.paths is not None:
                replica.pool.paths.forget(index)
            is_retried = self._is_tried_again(index, replica)
            self._cluster.tell(LOSE, index, now, reason=RETRIED if is_retried else replica.loss)

    def _is_tried_again(self, index: int, replica: ManagedReplica) -> bool:
        """Return whether a request lost with its replica is retried on another, and count the loss."""
        if not replica.is_loss_retried:
            return False
        self._num_losses[index] = self._num_losses.get(index, 0) + 1
        return self._num_losses[index] < MOST_LOSSES

    def _rows_at(self, number: int) -> Any:
        """Return the requests at a replica."""
        status = np.frombuffer(self.requests.status, dtype=np.int8)
        while self._first < len(status) and status[self._first] != UNFINISHED:
            self._first += 1
        place, status = self._place[self._first :], status[self._first :]
        at_it = ((place == number) | (place == HELD - number)) & (status == UNFINISHED)
        return np.flatnonzero(at_it) + self._first

    def _answer_calls(self) -> None:
        """Handle replicas whose step has ended or that are empty; notify those who wait for the end of a request."""
        fleet_state = self._cluster.fleet_state
        now, calls = fleet_state.time, list(fleet_state.calls)
        fill(fleet_state.calls, [])
        if NOBODY in calls:
            self.news_time = now
            self.settle()
        for replica in (self.replicas[number] for number in calls if number != NOBODY):
            if replica.next_times is not None:
                self._cluster.use_times(replica.number, replica.next_times)
                replica.next_times = None
            if replica.is_freezing:
                replica.is_freezing, replica.is_frozen = False, True
            if replica.is_dying:
                self._bury(replica, now)
            elif replica.state == DRAINING and not replica.load:
                self.stop(replica, now)
            self._mark(replica)

    # What decisions are based on.

    @property
    def is_done(self) -> bool:
        """Whether every request has ended."""
        conversations = self._cluster.plane.conversations
        due = self._count
        if conversations is not None and conversations.num_idle == self._concurrency:
            # Clients stop at a time: the total number of requests is known only when the last client has stopped.
            due = conversations.num_begun
        return self._cluster.num_ended == due

    def drive(self, until: float) -> None:
        """Advance to ``until`` (exclusive), to news for SimPy's side, or until nothing is left to do."""
        cluster = self._cluster
        if cluster.fleet_state.calls:
            # A decision has ended a request.
            self._answer_calls()
        cluster.top_up()
        while True:
            # Events that began at the instant of the news are finished first.
            why = cluster.advance(min(until, self.news_time) if self.news else until)
            if why == CALLED:
                self._answer_calls()
            elif why == CHORES:
                cluster.do_chores()
            else:
                return

    def submit(self, index: int, sent_at: float, latency: float) -> None:
        """Send a request that spends ``latency`` in the tokeniser; interpreted runs only."""
        clients = self._cluster.client_state.clients
        clients.latency[index] = latency
        send(clients, index, sent_at, 0.0)

    def refresh(self, now: float) -> None:
        """Update the router's view of the replicas, which it keeps until the next update."""
        plane = self._cluster.plane
        fill(plane.seen, plane.tokens if plane.weighs_tokens else plane.loads)
        if self.judge is not None:
            self.judge.refresh(gauges_of(replica, now) for replica in self.replicas)

    def tell_ends(self, tell: Callable[[int, float], None]) -> None:
        """Have `settle` call ``tell`` with every request that ends, and when its client hears of it."""
        self._tells.append(tell)

    def settle(self) -> None:
        """Report the requests that have ended so far to those who asked."""
        fleet_state = self._cluster.fleet_state
        if not len(fleet_state.ended):
            return
        ended, heard_at = list(fleet_state.ended), fleet_state.heard_at
        fill(fleet_state.ended, [])
        for tell in self._tells:
            for index in ended:
                tell(index, heard_at[index] if len(heard_at) else fleet_state.time)

    def num_parked(self, pool: Pool) -> int:
        """Return how many requests, or KV caches, wait for a replica and could go to this pool."""
        if pool.role == "decode":
            assert self._transfers is not None
            waiting = self._live_transfers.stranded
            sources = [self.replicas[self._transfers.prefill_replica[index]].pool for index in waiting]
            return sum(pool.reads(source) for source in sources)
        number = self._entrances.index(pool)
        parked = [*self._cluster.fleet_state.parked, *self._cluster.waiting_in_turn()]
        return sum(number in self._allowed[self._cluster.kind_of(index)] for index in parked)

    @property
    def time(self) -> float:
        """Current time, seconds."""
        time: float = self._cluster.fleet_state.time
        return time

    def gauges(self, numbers: Sequence[int]) -> list[Gauges]:
        """Return what a user's own functions see of replicas now."""
        return [gauges_of(self.replicas[number], self.time) for number in numbers]

    def open_to(self, index: int) -> list[int]:
        """Return the replicas that a request may go to, over all its pools; interpreted runs only."""
        plane, client_state = self._cluster.plane, self._cluster.client_state
        client_state.open.clear()
        for number in self._allowed[self._cluster.kind_of(index)]:
            add_open(plane, client_state, self._entrances[number].ready)
        return list(client_state.open)

    def holds(self, replica: ManagedReplica, index: int) -> bool:
        """Return whether a request is at a replica."""
        place = int(self._place[index])
        return place in (replica.number, HELD - replica.number) and self.requests.status[index] == UNFINISHED

    def last_of(self, replica: ManagedReplica) -> int | None:
        """Return the request of a replica that came last; None if it has none."""
        if not replica.load:
            return None
        last = self._cluster.fleet_state.last_joined[replica.number]
        if last >= 0 and self.holds(replica, last):
            return int(last)
        rows = self._rows_at(replica.number)
        return int(rows[np.argmax(self._joined[rows])])


class Updates:
    """Performs every rolling update of a run at its time.

    Attributes:
        num_replaced: Replicas replaced so far.
        spans: When each update began, and when the last of its replicas was ready.
    """

    def __init__(self, env: simpy.Environment, fleet: Lifecycle) -> None:
        self.num_replaced = 0
        self.spans: list[tuple[float, float]] = []
        self._env, self._fleet = env, fleet

    def start(self, updates: tuple[UpdateSpec, ...]) -> None:
        """Schedule every update for its time."""
        for update in updates:
            self._env.process(self._roll(update))

    def _roll(self, spec: UpdateSpec) -> Steps:
        yield self._env.timeout(spec.at)
        number = len(self.spans)
        self.spans.append((self._env.now, float("inf")))
        for pool in self._fleet.pools:
            if spec.pool not in (None, pool.name):
                continue
            old = deque(pool.present)
            count = len(old)
            lanes = [self._lane(spec, pool, old, is_surge=True) for _ in range(min(spec.max_surge, count))]
            lanes += [self._lane(spec, pool, old, is_surge=False) for _ in range(min(spec.max_unavailable, count))]
            yield self._env.all_of([self._env.process(lane) for lane in lanes])
        self.spans[number] = (spec.at, self._env.now)

    def _lane(self, spec: UpdateSpec, pool: Pool, old: deque[ManagedReplica], *, is_surge: bool) -> Steps:
        """Replace one replica after another; with a surge, the new one starts before the old one drains."""
        startup = spec.startup.seconds(pool.weights_bytes)
        while old:
            replica = old.popleft()
            if replica not in pool.present:
                continue
            if is_surge:
                pool.in_flux -= 1
                yield from self._start(pool, replica.place, startup)
                pool.in_flux += 1
                yield from self._retire(spec, replica)
            else:
                pool.in_flux += 1
                yield from self._retire(spec, replica)
                pool.in_flux -= 1
                yield from self._start(pool, replica.place, startup)
            self.num_replaced += 1

    def _start(self, pool: Pool, place: int, seconds: float) -> Steps:
        replica = self._fleet.launch(pool, self._env.now, is_ready=False, place=place)
        yield self._env.timeout(seconds)
        if replica.state == STARTING:
            self._fleet.ready(replica, self._env.now)

    def _retire(self, spec: UpdateSpec, replica: ManagedReplica) -> Steps:
        """Drain a replica, cut off its remaining requests when the grace period is over, and wait until it is gone."""
        if replica.state not in (DRAINING, STOPPED):
            self._fleet.drain(replica, self._env.now)
        is_gone = self._env.event()
        self._fleet.when_stopped(replica, lambda: _tell(is_gone))
        yield is_gone | self._env.timeout(spec.grace_period)
        if not is_gone.triggered:
            if replica.state == DRAINING:
                self._fleet.lose(replica, self._env.now, then=STOPPED, reason=DRAINED)
            yield is_gone


def _tell(event: simpy.Event) -> None:
    event.succeed()
