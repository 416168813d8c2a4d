"""Replica: a process that runs one engine step after another, with its lifecycle; and the pool of equal replicas."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from simserve.reference.cached_blocks import Store
from simserve.reference.clock import PLANS, STEP_ENDS, SUBMITS
from simserve.reference.data_parallel import DataParallelReplica
from simserve.reference.invariants import CheckedScheduler
from simserve.reference.kv_memory import Scheduler
from simserve.reference.static import StaticScheduler

if TYPE_CHECKING:
    from collections.abc import Callable

    import simpy

    from simserve.engine.config import EngineConfig
    from simserve.engine.state import StepTimes
    from simserve.reference.clock import Clock, Steps
    from simserve.reference.request import Request
    from simserve.reference.steps import Step
    from simserve.reference.streaming import Delivery
    from simserve.sim.control import AutoscalingSpec
    from simserve.sim.own_parts import Gauges, Judge


MOST_LOSSES = 10
"""Number of replicas that a request may be lost with before it is given up: otherwise it might never end when a probe
restarts busy replicas."""
NEW_SHARE = 0.1
"""Weight of a new interval between finishes in their running mean."""


class FinishPace:
    """How fast requests finish: a running mean of the seconds between two finishes, 0 before the first."""

    def __init__(self, now: float) -> None:
        self.last, self.interval, self.is_warm = now, 0.0, False

    def begin(self, now: float) -> None:
        """Note the first request after a pause: the time before does not count."""
        self.last, self.is_warm = now, False

    def note(self, count: int, num_running: int, now: float) -> None:
        """Note that ``count`` requests have finished ``now`` and ``num_running`` go on.

        The first finish after a pause takes the time of a whole request, in which each running request finishes about
        once; so it counts as one of ``num_running + 1`` intervals.
        """
        interval = (now - self.last) / count
        if not self.is_warm:
            interval /= num_running + 1
        self.last, self.is_warm = now, True
        self.interval += (interval - self.interval) * (NEW_SHARE if self.interval else 1.0)


def scheduler_of(config: EngineConfig, times: StepTimes) -> Scheduler:
    """Return a scheduler that holds nothing."""
    if config.data_parallel_size > 1:
        return DataParallelReplica(config, times)
    return StaticScheduler(config, times) if config.batching == "static" else CheckedScheduler(config, times)


@dataclass
class Pool:
    """Equal replicas.

    Attributes:
        name: Its name in rules and results; empty if there is only one pool.
        config: Configuration of their schedulers.
        times: Seconds of their steps.
        role: Whether they prefill, decode, or both.
        num_replicas: Number of replicas at the start.
        autoscaling: How their number follows the load; None: it is fixed.
        startup_seconds: From the launch of a replica to its first request.
        weights_bytes: Bytes that one replica loads at its start.
        replicas_per_node: Number of replicas that fill a node.
        kv_layout: Model and format of their KV caches: only pools with the same layout read each other's.
        kv_bytes_per_token: Bytes per token of such a cache.
        region: Where they are; empty: it does not matter.
        make_scheduler: Returns the scheduler of a new replica.
        replicas: All replicas that were ever launched.
        wanted: Replicas that an autoscaler asked for last; None without an autoscaler.
        in_flux: Replicas that an update will bring back, minus its additional ones.
        store: KV blocks that they share; None: each has only its own.
    """

    name: str
    config: EngineConfig
    times: StepTimes
    role: str
    num_replicas: int
    autoscaling: AutoscalingSpec | None = None
    startup_seconds: float = 0.0
    weights_bytes: float = 0.0
    replicas_per_node: int = 1
    kv_layout: str = ""
    kv_bytes_per_token: float = 0.0
    region: str = ""
    make_scheduler: Callable[[EngineConfig, StepTimes], Scheduler] = scheduler_of
    replicas: list[Replica] = field(default_factory=list)
    wanted: int | None = None
    in_flux: int = 0
    store: Store | None = None

    def __post_init__(self) -> None:
        """Give its replicas their shared store, if any."""
        self.store = next((Store(each) for each in self.config.kv_tiers if each.is_shared), None)

    def new_scheduler(self) -> Scheduler:
        """Return the scheduler of a new replica; it holds nothing and reads what others have stored."""
        scheduler = self.make_scheduler(self.config, self.times)
        scheduler.store = self.store
        return scheduler

    def reads(self, source: Pool) -> bool:
        """Whether it reads the KV caches of another pool: same model and format, same region."""
        return (self.kv_layout, self.region) == (source.kv_layout, source.region)

    @property
    def present(self) -> list[Replica]:
        """Replicas that serve, will serve, or are temporarily down."""
        return [replica for replica in self.replicas if replica.state in ("starting", "ready", "down")]

    def free_place(self) -> int:
        """Return the lowest place that no replica has."""
        taken = {replica.place for replica in self.replicas if replica.state != "stopped"}
        return next(place for place in range(len(taken) + 1) if place not in taken)


class Surroundings(Protocol):
    """What a replica needs from the run around it, which is `simserve.reference.cluster.Cluster`."""

    clock: Clock
    judge: Judge | None
    delivery: Delivery | None
    num_lost_tokens: int

    @property
    def transfers(self) -> Links:
        """The links between prefill and decode replicas."""

    @property
    def gateway(self) -> Front:
        """The gateway, which takes its answers and holds requests that wait for a replica."""

    def seconds_to(self, request: Request, pool: Pool) -> float | None:
        """Return the seconds that a request travels to a pool; None: regions do not matter."""

    def note_step(self, replica: Replica, step: Step) -> None:
        """Note a step that has been scheduled."""

    def note_step_end(self, replica: Replica, step: Step) -> None:
        """Note a step that is over, before its effects."""

    def note_finished(self, replica: Replica, num_finished: int) -> None:
        """Note how many requests have all their tokens after the step that is over."""

    def goes_on(self, request: Request, replica: Replica) -> bool:
        """Whether a request that it has finished goes on at a decode replica."""

    def unanswered(self, request: Request, status: str, reason: str, heard_at: float) -> None:
        """Tell a client that its attempt failed."""


class Links(Protocol):
    """KV transfers, as a replica sees them."""

    def is_full(self, source: Replica) -> bool:
        """Whether it has too many KV caches in transfer to start another step."""

    def begin(self, request: Request, replica: Replica) -> None:
        """Note that a request has arrived at a replica."""

    def restore(self, request: Request) -> None:
        """Restore what the client asked for in a request that leaves."""

    def release(self, request: Request) -> None:
        """Note that a KV cache that has arrived has a seat."""

    def lose(self, replica: Replica, members: list[Request]) -> list[Request]:
        """Discard what was on a replica; return the requests whose caches it was sending."""


class Front(Protocol):
    """The gateway, as a replica sees it."""

    def take_answer(self, request: Request, replica: Replica) -> None:
        """Send an answer to its client."""

    def offer_turn(self) -> None:
        """Let waiting requests be routed, now that there may be room."""

    def route_parked(self) -> None:
        """Route the requests that wait for a ready replica."""

    def route_again(self, request: Request) -> None:
        """Send a request that was lost with its replica to another one."""


class Replica:
    """One replica: ``starting``, ``ready``, ``draining`` (it finishes what it has), ``down`` or ``stopped``.

    Attributes:
        number: Its index in the fleet; place: its index in the pool, which a replacement takes over.
        members: Requests routed to it and not yet answered, with their tokens, in order of arrival.
        held: Members that its scheduler has not seen yet.
        doomed: Requests that leave at the end of the running step, and when that was decided.
        landed: KV caches that have arrived and wait for a seat (decode replicas).
        step: The running step; None if there is none.
    """

    def __init__(self, cluster: Surroundings, pool: Pool, number: int, place: int) -> None:
        self.cluster, self.clock, self.pool = cluster, cluster.clock, pool
        self.number, self.place, self.state = number, place, "starting"
        self.scheduler = pool.new_scheduler()
        self.members: dict[Request, int] = {}
        self.held: set[Request] = set()
        self.doomed: dict[Request, float] = {}
        self.landed: deque[Request] = deque()
        self.step: Step | None = None
        self.step_ends = math.nan
        self.pace = FinishPace(self.clock.now)
        self.launched_at, self.ready_at, self.stopped_at = self.clock.now, math.inf, math.inf
        self.busy_seconds = 0.0
        self.next_factor: float | None = None
        self.is_freezing = self.is_frozen = False
        self.dying: tuple[str, bool] | None = None
        self.asleep: simpy.Event | None = None
        self.gone = self.clock.event()
        self.clock.process(self.work())

    @property
    def is_ready(self) -> bool:
        """Whether it takes requests."""
        return self.state == "ready"

    @property
    def load(self) -> int:
        """Number of requests routed to it and not yet answered."""
        return len(self.members)

    @property
    def tokens(self) -> int:
        """Tokens of those requests: their prompts, and the most that they may generate."""
        return sum(self.members.values())

    @property
    def num_waiting(self) -> int:
        """Number of requests in its queue, including those that its scheduler has not seen yet."""
        return self.load - self.scheduler.num_running

    @property
    def kv_share(self) -> float:
        """Share of its KV memory in use."""
        return self.scheduler.kv_share

    @property
    def gauges(self) -> Gauges:
        """What a user's own functions can see of it."""
        running = self.scheduler.num_running
        return self.number, self.pool.name, running, self.num_waiting, self.tokens, self.kv_share

    # Its work: one step after another.

    def work(self) -> Steps:
        """Run step after step; sleep while there is nothing to do (a SimPy process)."""
        while True:
            yield self.clock.at(self.clock.now, PLANS, self.number)
            self.begin_step()
            if self.step is None:
                self.asleep = self.clock.event()
                yield self.asleep
                self.asleep = None
            else:
                yield self.clock.at(self.step_ends, STEP_ENDS, self.number)
                self.end_step()

    def wake(self) -> None:
        """Let it plan a step now, if it sleeps."""
        if self.asleep is not None and not self.asleep.triggered:
            self.asleep.succeed()

    def begin_step(self) -> None:
        """Plan a step, unless it hangs, is stopped or has nothing to do."""
        now = self.clock.now
        if self.is_frozen:
            return
        if self.pool.role == "prefill" and self.scheduler.num_outstanding and self.cluster.transfers.is_full(self):
            return
        if self.pool.role == "decode":
            self.take_in()
        self.step = self.scheduler.schedule(now)
        judge = self.cluster.judge
        if self.step is not None and judge is not None and judge.parts.step_seconds is not None:
            self.scheduler.take_own_seconds(self.step, judge)
        if self.step is not None:
            self.step_ends = now + self.step.seconds
            for request in self.step.requests or [one for part in self.step.parts for one in part.requests]:
                request.replica = self.number
            self.cluster.note_step(self, self.step)
        elif math.isfinite(self.scheduler.look_again(now)):
            self.clock.process(self.look_again(self.scheduler.look_again(now)))

    def look_again(self, time: float) -> Steps:
        """Wake up although nothing arrives: a static batch has been collected for long enough."""
        yield self.clock.at(time, STEP_ENDS, self.number)
        self.wake()

    def end_step(self) -> None:
        """End the running step, if any: answers go out, and doomed requests leave."""
        now, cluster = self.clock.now, self.cluster
        finished: list[Request] = []
        if self.step is not None:
            step, self.step = self.step, None
            self.busy_seconds += now - step.start
            cluster.note_step_end(self, step)
            if cluster.delivery is not None:
                cluster.delivery.note_step(self.number, step, now)
            finished = self.scheduler.complete(step, now)
            cluster.note_finished(self, len(finished))
            for request in finished:
                self.leave(request)
            if finished:
                self.pace.note(len(finished), self.scheduler.num_running, now)
        doomed, self.doomed = self.doomed, {}
        for request in doomed:
            if request in self.members:
                self.scheduler.let_go(request)
                self.leave(request)
        for request in finished:
            if request in doomed:
                self.scheduler.let_stand_in(request)
            elif not cluster.goes_on(request, self):
                cluster.gateway.take_answer(request, self)
        for request, decided_at in doomed.items():
            cluster.num_lost_tokens += request.generated
            cluster.unanswered(request, "timed_out", "timeout", decided_at)
        if self.next_factor is not None:
            self.scheduler.times = slowed(self.pool.times, self.next_factor)
            self.next_factor = None
        self.is_frozen, self.is_freezing = self.is_frozen or self.is_freezing, False
        if self.dying is not None:
            self.bury()
        elif self.state == "draining" and not self.load:
            self.stop()
        cluster.gateway.offer_turn()

    # Its requests.

    def join(self, request: Request) -> None:
        """Count a request as routed here."""
        if not self.load:
            self.pace.begin(self.clock.now)
        self.members[request] = request.asked_in_all
        request.place, request.rank = self, 0

    def take(self, request: Request) -> None:
        """Take a routed request, which takes time to arrive if there are regions."""
        self.join(request)
        way = self.cluster.seconds_to(request, self.pool)
        if way is None:
            self.submit(request)
            return
        self.held.add(request)
        self.clock.process(self.submit_on_arrival(request, self.clock.now + way))

    def submit_on_arrival(self, request: Request, time: float) -> Steps:
        """Submit a request to the scheduler when it arrives, if it is still wanted here."""
        attempt, num_losses = request.attempt, request.num_losses
        yield self.clock.at(time, SUBMITS, next(self.clock.coming))
        if request in self.held and (request.attempt, request.num_losses) == (attempt, num_losses):
            self.held.discard(request)
            request.ready = self.clock.now
            self.submit(request)

    def submit(self, request: Request) -> None:
        """Submit a request to the scheduler.

        A scheduler that works a step ahead has already chosen the step after the running one, or after the one that
        ends now. It sees the request right after that step has begun; several requests in order of arrival.
        """
        self.cluster.transfers.begin(request, self)
        is_ahead = self.pool.config.async_scheduling and self.pool.config.batching != "static"
        if is_ahead and (self.step is not None or self.clock.now == self.step_ends):
            self.held.add(request)
            self.clock.process(self.submit_later(request, math.nextafter(self.step_ends, math.inf)))
            return
        self.scheduler.submit(request)
        self.wake()

    def submit_later(self, request: Request, time: float) -> Steps:
        """Queue a request when the next step has begun, if it is still wanted here."""
        attempt = request.attempt
        yield self.clock.at(time, SUBMITS, next(self.clock.coming))
        if request in self.held and request.attempt == attempt:
            self.held.discard(request)
            self.scheduler.submit(request)
            self.wake()

    def leave(self, request: Request) -> None:
        """Stop counting a request."""
        del self.members[request]
        self.cluster.transfers.restore(request)
        request.place = None

    def let_go(self, request: Request) -> bool:
        """Drop a request whose client no longer waits; return False if that takes until the running step ends."""
        if request in self.held:
            self.held.discard(request)
            self.leave(request)
            return True
        self.doomed.setdefault(request, self.clock.now)
        if self.step is None:
            self.end_step()
        return False

    def take_in(self) -> None:
        """Let the KV caches that have arrived decode, as far as there is room."""
        while self.landed and self.has_room_for(self.landed[0]):
            request = self.landed.popleft()
            request.generated, request.replica = 0, self.number
            request.first_decodes = self.pool.config.has_late_first_token
            if not request.first_decodes:
                request.generated, request.token_times, request.handed_over = 1, [self.clock.now], self.clock.now
            self.cluster.transfers.release(request)

    def has_room_for(self, request: Request) -> bool:
        """Seat a request whose prompt was computed elsewhere, if a rank has a seat and memory for it."""
        ranks = sorted(self.scheduler.schedulers, key=lambda rank: rank.num_outstanding)
        return any(isinstance(rank, CheckedScheduler) and rank.seat_computed(request) for rank in ranks)

    # Its lifecycle.

    def become_ready(self) -> None:
        """Begin to take requests; those that waited for a replica are routed."""
        self.state, self.ready_at, self.pace.last = "ready", min(self.ready_at, self.clock.now), self.clock.now
        self.cluster.gateway.route_parked()

    def drain(self) -> None:
        """Take no more requests; when those it has are answered, it is released."""
        self.state = "draining"
        self.cluster.gateway.offer_turn()  # another region may now be the nearest
        if not self.load:
            self.stop()

    def stop(self) -> None:
        """Release the replica."""
        self.state, self.stopped_at = "stopped", self.clock.now
        if not self.gone.triggered:
            self.gone.succeed()

    def lose(self, then: str = "down", reason: str = "replica_lost", *, retry: bool = False) -> None:
        """Lose the replica and everything on it at the end of the running step.

        Args:
            then: Its state afterwards: ``down`` or ``stopped``.
            reason: Why its requests are lost.
            retry: Whether the router sends its requests to another replica instead.
        """
        self.state, self.dying = then, (reason, retry)
        self.cluster.gateway.offer_turn()
        if self.step is None:
            self.bury()

    def bury(self) -> None:
        """Discard everything: its requests are routed again, or lost with it."""
        assert self.dying is not None
        (reason, retry), self.dying = self.dying, None
        members, self.members = list(self.members), {}
        self.held.clear()
        self.doomed = {}
        self.is_freezing = self.is_frozen = False
        self.scheduler = self.pool.new_scheduler()
        on_their_way = self.cluster.transfers.lose(self, members)
        if self.state in ("draining", "stopped"):
            self.stop()
        for request in [*members, *on_their_way]:
            request.place = None
            request.num_losses += retry
            if retry and request.num_losses < MOST_LOSSES:
                self.cluster.gateway.route_again(request)
            else:
                self.cluster.unanswered(request, "failed", reason, self.clock.now)

    def freeze(self) -> None:
        """Hang from the end of the running step: take requests but do nothing."""
        self.is_freezing = True
        if self.step is None:
            self.end_step()

    def thaw(self) -> None:
        """Resume after a hang."""
        self.is_freezing = self.is_frozen = False
        self.wake()

    def change_pace(self, factor: float) -> None:
        """Let all steps after the running one take ``factor`` times as long."""
        self.next_factor = factor
        if self.step is None:
            self.end_step()


def slowed(times: StepTimes, factor: float) -> StepTimes:
    """Return step times that are all ``factor`` times as long."""
    columns = ("decode_base", "decode_slope", "token_seconds", "sequence_seconds", "decode_attention_base")
    longer: dict[str, Any] = {
        name: [factor * each for each in getattr(times, name)] for name in (*columns, "shared_seconds")
    }
    figures = ("token_seconds_beyond", "prefill_request_seconds", "prefill_pair_seconds", "prefill_context_seconds")
    adapters = ("lora_step_seconds", "lora_adapter_seconds", "lora_token_seconds", "launch_seconds")
    longer |= {name: factor * getattr(times, name) for name in (*figures, *adapters, "shared_seconds_beyond")}
    return replace(times, **longer)
