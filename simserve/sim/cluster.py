"""Cluster: replicas behind a router, and their clients, set up for a run and advanced to the next decision.

It wraps the data plane (`simserve.engine.data_plane`) and builds its inputs: clients from classes, the router from its
policy; `simserve.sim.plane` has what only some runs need. Decisions over time are left to SimPy's side; replicas
that come and go are `simserve.sim.lifecycle`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, MutableSequence, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import simpy
from numpy.typing import NDArray

from simserve.engine.cache_state import PrefixPaths
from simserve.engine.client_state import TO_PAUSE, TO_ROUTE, numbers_to_route
from simserve.engine.clients import send
from simserve.engine.compiled.run import Compiled, Drive
from simserve.engine.config import EngineConfig, finds_itself
from simserve.engine.data_plane import CHORES
from simserve.engine.plane_state import (
    LEAST,
    NOWHERE,
    Affinity,
    Clients,
    ClientState,
    DataPlane,
    Part,
    Patience,
    Router,
    Shares,
)
from simserve.engine.queue import OrderedQueue
from simserve.engine.routing import NUMBERS
from simserve.engine.state import (
    INFINITY,
    LEAP_BYTES,
    STATIC,
    DataParallelReplica,
    Finishes,
    Replica,
    RequestTable,
    StepTimes,
    Uniforms,
    column,
    use_times,
)
from simserve.sim.control import TOKEN_POLICIES, RoutingPolicy, RoutingSpec, StreamingSpec
from simserve.sim.plane import Chance, conversations_of, first_sent, prefix_affinity, prefixes_of, session_affinity
from simserve.sim.recorder import FLUSH_ROWS, FLUSH_ROWS_EACH, Recorder
from simserve.workload.class_spec import ClassSpec

if TYPE_CHECKING:
    from simserve.engine.plane_state import FleetState, Port
    from simserve.workload.requests import RequestSpecs


Routing = RoutingPolicy
_Interpreted = Callable[[DataPlane, RequestTable, float], int]
DEFAULT_GUARD = 1.5
"""Load over the mean load above which a replica is passed over (SGLang's router: ``--balance-rel-threshold``)."""
DRAWS = {"random": 1, "power_of_two": 2}  # Random numbers used per request.
DEFAULT_CACHE_THRESHOLD = 0.5
"""Least share of the prompt that must be cached (``cache_threshold`` of SGLang's router)."""
_NO_CLASS = ClassSpec(name="all", share=1.0)


class CameAgain(Exception):
    """A request was preempted or sent again, or memory ran short, in a run that assumed this would not happen."""


@dataclass(frozen=True, slots=True)
class OwnBlocks:
    """Whether requests that share nothing can find their own earlier blocks, and how a run handles that.

    Without preemptions and retries no request looks for them, and a run that ignores them gives the same result in half
    the time. Whether any does only shows during the run, which is then repeated with them. Likewise windows and slots
    ahead are counted block by block (`EngineConfig.numbers_blocks`) only where memory runs short.
    """

    are_kept: bool  # Whether they are kept, from the first request on.
    is_assumed: bool = False  # Whether the run assumes that no request is preempted or sent again.

    @classmethod
    def of(cls, configs: Sequence[EngineConfig], specs: RequestSpecs, *, may_return: bool) -> OwnBlocks:
        """Return the setting that a run begins with.

        Args:
            may_return: Whether a request may return to a replica without being preempted there or sent again by its
                client.
        """
        caching = [each for each in configs if each.enable_prefix_caching]
        counts_windows = any(each.window_tokens + each.num_lookahead_tokens and each.numbers_blocks for each in configs)
        if (specs.prefixes is not None and caching) or not (caching or counts_windows) or may_return:
            return cls(are_kept=True)
        lengths = specs.prompt_tokens + specs.output_tokens
        is_sent_again = any(each.retries is not None for each in specs.classes)
        may_look = is_sent_again or counts_windows or any(finds_itself(each, lengths) for each in caching)
        # What tiers behind the cache receive counts in a result, whether or not anyone looks for it.
        is_assumed = may_look and not any(each.kv_tiers for each in caching)
        return cls(are_kept=may_look and not is_assumed, is_assumed=is_assumed)

    @property
    def settled(self) -> OwnBlocks:
        """The same without the assumption."""
        return OwnBlocks(are_kept=self.are_kept or self.is_assumed)

    def finds_any(self, config: EngineConfig, specs: RequestSpecs) -> bool:
        """Return whether requests can find anything in the prefix cache of a replica, or it counts their states."""
        if not config.enable_prefix_caching:
            return self.are_kept and config.has_state_cache
        return specs.prefixes is not None or self.are_kept or (config.keeps_states and config.has_state_cache)

    def check(self, requests: RequestTable, tries: NDArray[np.int32] | None = None) -> None:
        """Check that the assumption holds.

        Args:
            tries: How often each has been sent again, shape [N]; None: never.

        Raises:
            CameAgain: It does not hold.
        """
        if not self.is_assumed:
            return
        if np.frombuffer(requests.num_preemptions, dtype=np.int32).any() or (tries is not None and tries.any()):
            raise CameAgain

    def check_room(self, config: EngineConfig, recorder: Recorder) -> None:
        """Check that blocks need not be counted one by one: nobody has waited for memory, nor come close to it.

        Raises:
            CameAgain: They need to be.
        """
        if self.is_assumed and config.numbers_blocks and recorder.is_short:
            raise CameAgain


KEPT = OwnBlocks(are_kept=True)  # Default: own blocks are kept.


@cache
def _interpreted() -> _Interpreted:
    """Return the function that drives the plane in Python; compiled runs do not load it."""
    from simserve.engine.event_plane import drive

    return drive


class Cluster:
    """Replicas, requests on their way to them, and the router between them.

    Args:
        replicas: At least one replica.
        recorders: Recorders of the leaps, each with the schedulers it records: those of all replicas in order.
        router: Implements that policy (`simserve.sim.cluster.router_of`).
        numbers: Consumers of random numbers (flags of `simserve.engine.client_state`), and their sources.
        on_progress: Called now and then with the number of requests that have finished.
        parts: Groups of replicas that each kind of request may go to; empty: any may go to all.
        kinds: Index into ``parts`` of each request.
        shares: How pools share the requests of a part by weight; None: they do not.
        pools: The replicas of each pool, if they do.
        comes_and_goes: Whether replicas come and go (`simserve.sim.lifecycle`).
        counts_tokens: Whether the tokens at each replica are needed.
    """

    def __init__(
        self,
        replicas: list[DataParallelReplica],
        requests: RequestTable,
        recorders: Sequence[tuple[Recorder, Sequence[int]]],
        routing: RoutingSpec,
        router: Router,
        client_state: ClientState,
        numbers: Mapping[int, Chance] = MappingProxyType({}),
        on_progress: Callable[[int], None] | None = None,
        parts: Sequence[Part] = (),
        kinds: MutableSequence[int] | None = None,
        shares: Shares | None = None,
        pools: Sequence[Part] = (),
        comes_and_goes: bool = False,
        counts_tokens: bool = False,
    ) -> None:
        client_state.draws = sum(numbers)
        self._plane = DataPlane(
            replicas,
            router,
            client_state,
            weighs_tokens=routing.policy in TOKEN_POLICIES,
            renew_interval=routing.update_interval,
            schedules_ahead=any(
                each.config.async_scheduling and each.mode != STATIC for replica in replicas for each in replica.ranks
            ),
            parts=parts,
            kinds=kinds,
            shares=shares,
            pools=pools,
            comes_and_goes=comes_and_goes,
            counts_tokens=counts_tokens,
        )
        self.ranks = self._plane.ranks
        if self._plane.notes_finishes or client_state.asks_who_finished:
            self._note_finishes()
        self.requests = requests
        self._recorders = recorders
        self._client_state = client_state
        self._numbers = tuple(numbers.items())
        self._on_progress = on_progress
        self._compiled: Compiled | None = None
        self._fleet_state: FleetState | None = None

    def accelerate(self, drive: Drive | None) -> None:
        """Use compiled code from now on, before the first step; None: no change."""
        if drive is not None:
            self._compiled, self._fleet_state = Compiled(drive, self._plane, self.requests), None

    @property
    def replicas(self) -> list[DataParallelReplica]:
        """All replicas, in their original order."""
        return self._plane.replicas

    @property
    def num_arrived(self) -> int:
        """Open loop: requests that have arrived so far."""
        return self._plane.cursor if self._compiled is None else self._compiled.num_arrived

    def _note_finishes(self) -> None:
        self._plane.notes_finishes = True
        for rank in self.ranks:
            rank.finished = []

    def expect(self, specs: RequestSpecs, arrival_time: NDArray[np.float64]) -> None:
        """Let the clients send their requests; to be called before `accelerate`.

        Args:
            arrival_time: Receives when each request was sent, shape [N]; preset for requests that wait for no answer.
        """
        clients = self._client_state.clients
        first: Iterable[int] = range(len(specs))
        if specs.turn is not None or specs.concurrency is not None:
            self._note_finishes()
            self._plane.conversations = conversations = conversations_of(specs, arrival_time)
            first = first_sent(conversations, specs)
        elif not clients.has_own_waits and not (clients.spacing and any(clients.patience.max_tries)):
            came, spacing = arrival_time + np.asarray(clients.latency) - clients.spacing, clients.spacing
            waits = bool(np.any(came[1:] < came[:-1] + spacing))
            np.frombuffer(self.requests.ready_time)[:] = handed_over(came, spacing) if waits else came + spacing
            self._plane.num_scheduled = len(came)
            return
        for index in first:
            send(clients, index, float(arrival_time[index]), 0.0)

    def forget_unsent(self, arrival_time: NDArray[np.float64]) -> None:
        """Clear the arrival of requests that had not been sent when the run ended."""
        ready_time, num_scheduled = np.frombuffer(self.requests.ready_time), self._plane.num_scheduled
        ready_time[self.num_arrived : num_scheduled] = np.nan
        arrival_time[np.isnan(ready_time)] = np.nan

    def drive(self, until: float) -> None:
        """Advance to ``until`` (exclusive), or until nothing is left to do."""
        self.top_up()
        while self.advance(until) == CHORES:
            self.do_chores()

    def advance(self, until: float) -> int:
        """Let the plane advance to ``until``, or until it needs something; return why it stopped."""
        if self._compiled is not None:
            return self._compiled.drive(until)
        return _interpreted()(self._plane, self.requests, until)

    def do_chores(self) -> None:
        """Flush long lists of leaps to the recorders, draw random numbers, and report progress."""
        self._hand_over(least=FLUSH_ROWS, least_each=FLUSH_ROWS_EACH)
        self.top_up()
        if self._on_progress is not None:
            self._on_progress(self.num_ended)

    def top_up(self) -> None:
        """Draw as many numbers as the next event may need."""
        for taker, chance in self._numbers:
            least = numbers_to_route(self.client_state) if taker == TO_ROUTE else 1
            chance.top_up(1 + self._num_leaving() if taker == TO_PAUSE else least)

    def _num_leaving(self) -> int:
        return len(self._client_state.leaving) if self._compiled is None else self._compiled.num_leaving

    @property
    def num_ended(self) -> int:
        """Requests that have come to an end so far."""
        return self._client_state.clients.num_ended if self._compiled is None else self._compiled.num_ended

    def flush(self) -> None:
        """Flush all leaps to the recorders, and the compiled code's state of the clients to its source."""
        self._hand_over(least=0, least_each=0)
        if self._compiled is not None:
            self._compiled.read_back(self._client_state)

    def _hand_over(self, least: int, least_each: int) -> None:
        """Flush the leaps of each recorder's replicas if there are enough, in all and on average per replica."""
        for recorder, numbers in self._recorders:
            enough = max(least, least_each * len(numbers))
            if self._compiled is not None:
                recorder.flush_compiled(self._compiled, enough, numbers)
                continue
            ranks = [self.ranks[number] for number in numbers]
            if sum([len(rank.step_runs) for rank in ranks]) >= enough * LEAP_BYTES:
                recorder.flush_all(ranks)

    # Replicas that come and go: `simserve.sim.lifecycle`.

    @property
    def plane(self) -> DataPlane:
        """The plane in its current state; if compiled, to be read and changed only in small ways."""
        return self._plane if self._compiled is None else cast(DataPlane, self._compiled.plane)

    @property
    def client_state(self) -> ClientState:
        """The state of its clients; as for `plane`."""
        return self.plane.client_state

    @property
    def fleet_state(self) -> FleetState:
        """The state of replicas that come and go; as for `plane`."""
        if self._fleet_state is None:
            self._fleet_state = self.client_state.fleet_state
            assert self._fleet_state is not None
        return self._fleet_state

    def kind_of(self, index: int) -> int:
        """Return the index of the group of replicas that a request may go to."""
        return self._plane.kinds[index]

    def waiting_in_turn(self) -> list[int]:
        """Return the requests that wait in front of the replicas under fair turns."""
        gateway = self._client_state.gateway
        if gateway is None or gateway.fair is None:
            return []
        live = self.client_state.gateway
        assert live is not None
        assert live.fair is not None
        waiting = []
        for index in live.fair.first:
            while index >= 0:
                waiting.append(index)
                # A column: compiled code links requests in place.
                index = gateway.fair.behind[index]
        return waiting

    def replica(self, number: int) -> DataParallelReplica:
        """Return one of the replicas; as for `plane`."""
        return (
            self._plane.replicas[number]
            if self._compiled is None
            else cast(DataParallelReplica, self._compiled.replica(number))
        )

    def add(
        self,
        replica: DataParallelReplica,
        recorder: Recorder,
        now: float,
        *,
        place: int,
        first_pace: int,
        port: Port | None,
    ) -> None:
        """Add a replica to the plane, which has not begun and takes no requests yet.

        Args:
            now: Seconds.
            place: Its region, among those that have pools.
            first_pace: Where the paces of its pool begin, if pools have their own drafts.
            port: Its link to other replicas; None without KV transfers.
        """
        first, (_, members) = len(self.ranks), next(each for each in self._recorders if each[0] is recorder)
        assert isinstance(members, list)
        if port is not None:
            assert self._client_state.transfers is not None
            self._client_state.transfers.ports.append(port)
        regions, paces = self.client_state.regions, self.client_state.paces
        if regions is not None:
            regions.place_of.append(place)
        if paces is not None:
            paces.first.append(first_pace)
        members += range(first, first + replica.num_ranks)
        self._note_finishes_of(replica)
        self._plane.replicas.append(replica)
        self.ranks += replica.ranks
        if self._compiled is None:
            self.client_state.finishes.append(Finishes(now))
        else:
            self._compiled.add(replica, port)
            self.client_state.finishes[len(self._plane.replicas) - 1].last = now
        plane, client_state, fleet_state, delivery = (
            self.plane,
            self.client_state,
            self.fleet_state,
            self.client_state.delivery,
        )
        plane.ends.append(INFINITY)
        for counts in (plane.loads, plane.tokens, plane.seen, client_state.num_leaving, fleet_state.marks):
            counts.append(0)
        fleet_state.last_joined.append(NOWHERE)
        fleet_state.busy_seconds.append(0.0)
        for seconds in () if delivery is None else (delivery.backlog, delivery.seen_at, delivery.batch):
            seconds.append(0.0)

    def replace(self, number: int, replica: DataParallelReplica) -> None:
        """Replace a replica that is gone by one that has not begun."""
        self._note_finishes_of(replica)
        own = self._ranks_of(number)
        self._plane.replicas[number] = replica
        self.ranks[own.start : own.stop] = replica.ranks
        if self._compiled is not None:
            self._compiled.replace(number, replica)

    def _note_finishes_of(self, replica: DataParallelReplica) -> None:
        for rank in replica.ranks:
            rank.finished = [] if self._plane.notes_finishes else None

    def _ranks_of(self, number: int) -> range:
        """Return the positions of the schedulers of a replica."""
        first = sum(replica.num_ranks for replica in self._plane.replicas[:number])
        return range(first, first + self._plane.replicas[number].num_ranks)

    def use_times(self, number: int, times: StepTimes) -> None:
        """Use ``times`` for the steps of a replica from the next one on; only between two steps."""
        for position in self._ranks_of(number):
            if self._compiled is None:
                use_times(self.ranks[position], times)
            else:
                self._compiled.use_times(position, times)

    def flush_one(self, recorder: Recorder, number: int) -> None:
        """Flush the leaps of one replica to its recorder."""
        own = self._ranks_of(number)
        if self._compiled is not None:
            recorder.flush_compiled(self._compiled, 1, own)
        else:
            recorder.flush_all([self.ranks[position] for position in own])

    def tell(self, order: int, subject: int, now: float, reason: int = 0) -> None:
        """Give an order to the plane (`simserve.engine.fleet_state`), which carries it out at once."""
        self.top_up()
        fleet_state = self.fleet_state
        fleet_state.subject, fleet_state.time, fleet_state.reason = subject, now, reason
        fleet_state.order = order
        self.advance(now)


def clients_of(
    specs: RequestSpecs,
    streaming: StreamingSpec | None,
    latency: NDArray[np.float64],
    arrival_time: NDArray[np.float64],
    uniforms: Uniforms,
    spacing: float = 0.0,
) -> Clients:
    """Return the clients of a run, who have sent nothing yet.

    Args:
        streaming: How tokens reach them, and how long a connection stays open; None: at once, for ever.
        latency: Seconds from sending through the tokeniser, shape [N].
        arrival_time: When each request is first sent, if known; shape [N].
        spacing: Seconds that API servers work on one request, one after another.
    """
    whole, first = (None, None) if streaming is None else streaming.timeouts
    classes = specs.classes or (_NO_CLASS,)
    retries = [each.retries for each in classes]
    patience = Patience(
        kinds=kinds_of(specs),
        timeout=column([min(_or_never(each.timeout), _or_never(whole)) for each in classes]),
        first_byte_timeout=_or_never(first),
        max_tries=column([0 if each is None else each.max for each in retries], np.int64),
        backoff=column([0.0 if each is None else each.backoff for each in retries]),
        max_backoff=column([0.0 if each is None else each.max_backoff for each in retries]),
        jitter=column([0.0 if each is None else each.jitter for each in retries]),
        honors=column([each is not None and each.honor_retry_after for each in retries], np.int8),
        uniforms=uniforms,
    )
    own_wait = () if specs.own_wait is None else column(specs.own_wait)
    clients = Clients(patience, column(latency), column(arrival_time), own_wait, spacing)
    pool = specs.encoder_pool
    if pool is not None:
        places = np.arange(pool.num_workers if pool.max_workers is None else pool.max_workers)
        clients.num_encoders = len(places)
        clients.encoders = column(np.where(places < pool.num_workers, 0.0, INFINITY))
        clients.encoder_given, clients.to_encode = column(np.zeros(len(places))), column(pool.seconds)
        if pool.max_workers is not None:
            clients.notes_encoder_starts = True
            clients.encoder_starts = column(np.full(int(pool.num_parts[pool.seconds > 0].sum()), np.nan))
        clients.encoder_parts = column(pool.num_parts, np.int64)
        clients.embedding_seconds = column(pool.transfer_seconds)
        clients.encoder_wait = column(np.full(len(specs), np.nan))
    return clients


def plain_clients(
    specs: RequestSpecs,
    latency: NDArray[np.float64],
    arrival_time: NDArray[np.float64],
    num_replicas: int,
    spacing: float = 0.0,
) -> ClientState:
    """Return clients that are never refused, never give up and never retry; arguments as for `clients_of`."""
    clients = clients_of(specs, None, latency, arrival_time, Uniforms(0), spacing)
    return ClientState(clients, None, num_replicas)


def frontend_spacing(config: EngineConfig, num_replicas: int) -> float:
    """Return the seconds that API servers, one for each replica, work on one request."""
    return config.frontend_seconds_per_request / max(num_replicas, 1)


def handed_over(came: NDArray[np.float64], spacing: float) -> NDArray[np.float64]:
    """Return when API servers hand over requests that none of their clients sends again.

    They accept all that have come when they turn to the next, and hand them over when they are done with the last
    (`simserve.engine.clients.parse_together`). Only where one comes while another is worked on is it walked through.

    Args:
        came: When each reaches the API servers, in the order in which they are sent, seconds, shape [N].
        spacing: Seconds of work on one request; 0: they are not held up, and do not overtake.
    """
    if not spacing:
        return np.maximum.accumulate(came)
    ready, free = came + spacing, 0
    for late in (np.flatnonzero(came[1:] < ready[:-1]) + 1).tolist():
        if late < free:
            continue
        first, begin = late - 1, float(came[late - 1])
        while first < len(came):
            last, done = first + 1, begin + spacing
            while last < len(came) and came[last] <= begin:
                last, done = last + 1, done + spacing
            ready[first:last] = done
            first = last
            if first < len(came) and came[first] >= done:
                break
            begin = done
        free = first
    return ready


def kinds_of(specs: RequestSpecs) -> Any:
    """Return the class of every request as a column; 0 without classes."""
    classes = np.zeros(len(specs), dtype=np.int32) if specs.request_class is None else specs.request_class
    return column(classes, np.int32)


def _or_never(seconds: float | None) -> float:
    return INFINITY if seconds is None else seconds


def router_of(spec: RoutingSpec, specs: RequestSpecs, as_lists: bool = True, chance: Chance | None = None) -> Router:
    """Return the router of a run.

    Args:
        as_lists: Whether it is read from Python rather than from compiled code.
        chance: Its random numbers, which the caller tops up; None: each request is routed once, by numbers drawn here.
    """
    if chance is None and spec.policy in DRAWS:
        needed = len(specs) * DRAWS[spec.policy]
        chance = Chance(specs, "routing", needed)
        chance.top_up(needed)
    guard = DEFAULT_GUARD if spec.imbalance_guard is None else spec.imbalance_guard
    policy = NUMBERS.get(spec.policy, LEAST)
    return Router(policy, _affinity_of(spec, specs, as_lists), guard, None if chance is None else chance.uniforms)


def shares_of(spec: RoutingSpec, names: Sequence[str]) -> Shares | None:
    """Return how the pools of these names share requests; None: by their loads."""
    return Shares([spec.weights[name] for name in names]) if spec.weights else None


def _affinity_of(routing: RoutingSpec, specs: RequestSpecs, as_lists: bool = True) -> Affinity | None:
    """Return what the router remembers under its policy; None if it uses load alone, or has nothing to remember."""
    if routing.policy == "session" and specs.session is not None:
        return session_affinity(specs.session, as_lists)
    if routing.policy == "lora" and specs.adapter is not None:
        # Like a session that goes on: its replica has the adapter in a slot, or at least in host memory.
        return session_affinity(specs.adapter, as_lists)
    prefixes = prefixes_of(specs) if routing.policy == "prefix" else None
    if prefixes is not None:
        threshold = DEFAULT_CACHE_THRESHOLD if routing.cache_threshold is None else routing.cache_threshold
        least = threshold * specs.prompt_tokens
        return prefix_affinity(prefixes.offsets, prefixes.segments, prefixes.ends, least, as_lists)
    return None


def run_to_end(cluster: Cluster) -> bool:
    """Drive a cluster on SimPy's clock from decision to decision, to the end; return whether the user stopped it."""
    env = simpy.Environment()
    env.process(_data_plane(env, cluster))
    try:
        env.run()
    except KeyboardInterrupt:
        return True
    return False


def _data_plane(env: simpy.Environment, cluster: Cluster) -> Generator[simpy.Event, Any, None]:
    # Processes that start at time 0 come first.
    yield env.timeout(0)
    while True:
        until = env.peek()
        cluster.drive(until)
        if until == INFINITY:
            return
        yield env.timeout(max(until - env.now, 0.0))


def end_of(requests: RequestTable) -> float:
    """Return the time of the last event of any request, seconds."""
    columns = (np.frombuffer(requests.ready_time), np.frombuffer(requests.finish_time))
    last = float(np.fmax.reduce([np.fmax.reduce(column, initial=np.nan) for column in columns]))
    return 0.0 if np.isnan(last) else last


def ordered_queue(config: EngineConfig, requests: RequestTable) -> OrderedQueue:
    """Return an empty queue for an engine that orders its queue."""
    return OrderedQueue(config, requests.ready_time, requests.priority, requests.prompt_tokens, requests.max_tokens)


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
    replica.has_thinking, replica.has_encoder = len(requests.thinking_tokens) > 0, len(requests.encoder_seconds) > 0
    if replica.config.scheduling_policy != "fcfs":
        replica.is_ordered = True
        replica.waiting = ordered_queue(replica.config, requests)
    if replica.config.max_loras and len(requests.adapter):
        from simserve.engine.cache_state import Loras

        replica.loras = Loras(replica.config, requests.adapter)
    replica.has_state_cache &= paths is not None
    replica.keeps_windows &= replica.has_state_cache or replica.config.window_blocks > 0
    if paths is not None:
        from simserve.engine.cache_state import KVTier, PrefixCache

        tiers = [KVTier(each) for each in replica.config.kv_tiers if not each.is_shared]
        seconds, chunk = replica.times.token_seconds, replica.config.max_chunk_tokens
        chunk = min(chunk, len(seconds) - 1)
        replica.cache = PrefixCache(
            paths, replica.config, tiers, seconds[chunk] / chunk, replica.times.prefill_pair_seconds
        )
        replica.has_extras = True
