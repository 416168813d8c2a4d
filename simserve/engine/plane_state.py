"""The records of the data plane: who serves, the clients, what lies between them, and the router that joins the two.

Nothing here decides. The rules are functions of these records in the neighbouring modules, so that the same source can
be compiled. The schedulers of a replica have records of their own (`simserve.engine.state`).
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import MutableSequence, Sequence
from math import nan
from typing import Any, Protocol

from simserve.engine.admission_control import API_LIMIT, AdmissionControl
from simserve.engine.conversations import Conversations
from simserve.engine.decoding import Paces
from simserve.engine.gateway import Gateway
from simserve.engine.slots import slotted
from simserve.engine.state import INFINITY, DataParallelReplica, Finishes, Uniforms

ASKS_ADMISSION, ASKS_SECONDS = 1, 2
"""Which parts of a plane, besides its router, are a user's own functions: flags."""
LEAST = 0
"""Policy of a router that looks for the least loaded replica; the others are in `simserve.engine.routing`."""
CALLS, DRAINS, FROZEN = 1, 2, 4
"""Flags of a replica: it reports when its step ends; it reports when it holds nothing any more; it does nothing."""
BOTH, PREFILLS, DECODES = range(3)
"""What a replica does."""
AT_REPLICA, ON_ITS_WAY, LANDED, STRANDED = range(4)
"""Where a request is: at a replica or at none; on a link; across it, waiting for a seat or for a replica."""
NEVER = -1.0
ARRIVED = -1.0
"""In place of an arrival time: the request is not on its way."""
NOBODY = NOWHERE = -1
PARKED = -2
"""The request waits for a replica to be ready."""
ELSEWHERE = -3
"""The gateway has answered the request, or will ask again."""
HELD = -4
"""The request's replica has a scheduler that works ahead and has not seen it yet: this minus the replica's number."""
NO_ORDER, HAND_OVER, LOSE, SETTLE, OFFER, ADMIT, LAND_AGAIN, BREAK_OFF = range(8)
"""Orders: route a request; a replica that held a request is gone; end the step of a replica on which none runs; let the
requests whose turn it is be routed; take a KV cache that has landed to a replica; let one land once its link has sent
it after all; record which tokens a lost replica has sent."""
Event = tuple[float, int, int, int]
"""Time, kind (`simserve.engine.clients`), request, and the attempt (or replica) concerned. For events taken in order of
arrival (`ARRIVE`, `SUBMIT`), the last two are that order and the request."""


class Judge(Protocol):
    """Asks a user's own functions."""

    def choice(self, index: int, ready: Sequence[int]) -> int:
        """Return which of the ready replicas a request goes to."""

    def refusal(self, index: int, now: float) -> int:
        """Return why a request is refused (`simserve.engine.admission_control`)."""

    def step_seconds(self, prompt_tokens: int, decode_tokens: int, context_tokens: float, now: float) -> float:
        """Return how long a step takes."""


@slotted
class Affinity:
    """What a router remembers of the requests it has routed.

    A request is known by a path of keys; each key stands for the whole path up to it. The replica to which the router
    last sent a key has probably kept that part of the request. The router is not told what has been evicted since (as
    with the routers of SGLang and the vLLM production stack).

    Attributes:
        offsets: Request i has the entries ``offsets[i] .. offsets[i + 1] - 1`` of the two columns, shape [N + 1].
        keys: Number of each key, from 0.
        ends: Value, in the unit of the replica loads, of being where that key is known; ascending within a request.
        least: For each request, the least value that is worth a detour, shape [N].
        places: Key -> replica that it last went to; -1: none.
        known: Key -> its value there; a request may continue under the same key.
        worth: Value at the replica that was preferred last.
    """

    def __init__(
        self, offsets: Sequence[int], keys: Sequence[int], ends: Sequence[int], least: Sequence[float], num_keys: int
    ) -> None:
        self.offsets, self.keys, self.ends, self.least = offsets, keys, ends, least
        self.places = [-1] * num_keys
        self.known = [0] * num_keys
        self.worth = 0


@slotted
class Router:
    """One policy and its state.

    Attributes:
        policy: How it chooses when nothing is known of a request.
        affinity: What it remembers; None: nothing.
        guard: Load, relative to the mean, from which a replica that knows a request is passed over.
        turn: Whose turn it is.
        uniforms: Random numbers; policies that need them take one or two per request.
        judge: Asks a user's own function, if that decides.
    """

    def __init__(
        self, policy: int, affinity: Affinity | None = None, guard: float = 1.0, uniforms: Uniforms | None = None
    ) -> None:
        self.policy = policy
        self.affinity = affinity
        self.guard = guard
        self.turn = 0
        self.judge: Judge | None = None
        self.uniforms = Uniforms(0) if uniforms is None else uniforms


@slotted
class Shares:
    """How pools share the requests that several of them may serve.

    Attributes:
        weights: Weight of each pool.
        credits: What each pool is owed.
    """

    def __init__(self, weights: list[float]) -> None:
        self.weights = weights
        self.credits = [0.0] * len(weights)


@slotted
class Part:
    """Some of the replicas of a plane.

    Attributes:
        ready: Numbers of the ready replicas.
        pools: The pools that share them by weight, as the plane numbers pools.
    """

    def __init__(self, ready: list[int], pools: Sequence[int] = ()) -> None:
        self.ready, self.pools = ready, list(pools)


@slotted
class DataPlane:
    """Who serves, what is still to arrive, and the router between them.

    Args:
        replicas: Replicas, at least one, each with its ranks.
        router: What chooses between them.
        client_state: What is known of the clients.
        weighs_tokens: Whether the router counts load in tokens (prompts and the most that they may generate), else in
            requests.
        renew_interval: Seconds between two looks of the router at the replicas; 0: what it knows is always current.
        schedules_ahead: Whether the schedulers work a step ahead.
        parts: If not all replicas are alike, the ones that each kind of request may go to; empty: any may go to all.
        kinds: Index into ``parts`` of each request; None: no kinds.
        shares: How pools share the requests of a part by weight; None: they do not, its replicas are all alike.
        pools: The replicas of each pool, if pools share by weight.
        comes_and_goes: Whether replicas start and stop, so that ``parts`` say which are there.
        counts_tokens: Whether anything besides the router needs the tokens at each replica.

    Attributes:
        replicas: The replicas.
        ranks: The schedulers of all of them, in one list.
        num_schedulers: Number of replicas; 0: they come and go.
        has_ranks: Whether any replica has several schedulers.
        ends: When the plan of each ends, seconds.
        end_order: The ends in order, if there are many replicas and the only events are arrivals and ends of steps.
        load_order: Likewise the loads, if ``routes_least``.
        loads: Requests at each, including those held back.
        counts_tokens: Whether ``tokens`` are counted.
        tokens: Tokens at each, if counted.
        seen: Loads or tokens at the router's last look, if that was earlier.
        is_stale: Whether the router's view may be old.
        renew_at: When it looks next; inf: never.
        ready: The numbers of all replicas.
        is_divided: Whether there are ``parts``.
        routes_least: Whether the router only looks for the fewest requests, as they are now.
        due: Replicas whose plans end at the current instant.
        cursor: Open loop: requests that have arrived so far.
        num_scheduled: Open loop: how many arrive in all, in the order of the table.
        conversations: Those whose next turn is sent when the previous one is answered; None: there are none.
        finished: Requests that finished at the current instant, if ``notes_finishes``.
        notes_finishes: Whether the router or the conversations need to know which.
    """

    def __init__(
        self,
        replicas: list[DataParallelReplica],
        router: Router,
        client_state: ClientState,
        *,
        weighs_tokens: bool = False,
        renew_interval: float = 0.0,
        schedules_ahead: bool = False,
        parts: Sequence[Part] = (),
        kinds: MutableSequence[int] | None = None,
        shares: Shares | None = None,
        pools: Sequence[Part] = (),
        comes_and_goes: bool = False,
        counts_tokens: bool = False,
    ) -> None:
        is_single = len(replicas) == 1 and not comes_and_goes
        self.replicas = replicas
        self.ranks = [rank for replica in replicas for rank in replica.ranks]
        self.num_schedulers = 0 if comes_and_goes else len(replicas)
        self.has_ranks = len(self.ranks) > len(replicas)
        self.router = router
        self.weighs_tokens = weighs_tokens and not is_single
        self.counts_tokens = counts_tokens or self.weighs_tokens
        self.is_stale = renew_interval > 0.0 and not is_single
        # If replicas come and go, the code that decides that also says when the router looks.
        self.renew_at = 0.0 if self.is_stale and not comes_and_goes else INFINITY
        self.renew_interval = renew_interval
        self.routes_least = (
            router.policy == LEAST and router.affinity is None and not (self.weighs_tokens or self.is_stale or parts)
        )
        self.ends = [INFINITY] * len(replicas)
        self.end_order: list[Any] = []
        self.load_order: list[int] = []
        self.loads = [0] * len(replicas)
        self.tokens = [0] * len(replicas)
        self.seen = [0] * len(replicas)
        self.ready = list(range(len(replicas)))
        self.parts, self.is_divided = parts, len(parts) > 0
        self.kinds: MutableSequence[int] = [] if kinds is None else kinds
        self.shares, self.pools = shares, pools
        self.due: list[int] = []
        self.cursor = 0
        self.num_scheduled = 0
        self.conversations: Conversations | None = None
        self.finished: list[int] = []
        self.notes_finishes = self.counts_tokens
        self.schedules_ahead = schedules_ahead
        self.client_state = client_state


@slotted
class Port:
    """A replica as seen by its links.

    Args:
        role: What it does.
        bytes_per_token: Bytes per token of the KV caches that it computes.
        readers: Ready replicas that take these caches in.
        answers_lone_token: Whether it answers a request of a single token itself; not if the readers compute that
            again.

    Attributes:
        has_sent: Whether it has sent anything.
        pace: Factor on the time that its link takes for a cache, relative to full bandwidth; inf: the link is down.
        free_at: When its link will have sent everything queued, seconds.
        seconds: Seconds in which the link was in use.
        waited: Seconds that caches waited for the link.
        num_on_way: Caches that it has sent and no replica has taken in.
        stalled_since: When it stopped because these are too many; negative: it is not stopped.
        landed: Caches that wait for a seat here.
    """

    def __init__(self, role: int, bytes_per_token: float, readers: list[int], answers_lone_token: bool = True) -> None:
        self.role, self.bytes_per_token, self.readers = role, bytes_per_token, readers
        self.answers_lone_token = answers_lone_token
        self.pace, self.has_sent = 1.0, False
        self.free_at = self.seconds = self.waited = 0.0
        self.num_on_way = 0
        self.stalled_since = NEVER
        self.landed: deque[int] = deque()


@slotted
class Transfers:
    """What lies between prefill and decode replicas.

    Args:
        ports: One per replica of the plane.
        bandwidth: Of a link, bytes/s.
        latency: From the last byte sent to the scheduler of the decode replica, seconds.
        token_latency: Latency that each token of the prompt adds, seconds.
        max_in_transfer: Number of caches of one prefill replica on their way at which it starts no further step.
        num_requests: Requests of the run.

    Attributes:
        stage: Where each request is; shape [N], like all columns here.
        is_counted: Whether its cache counts as on its way at the replica that computed it; not if that replica is gone.
        asked_output: Output tokens to restore to the row of a request that prefills; 0: the row has them.
        asked_max: Likewise the most tokens that it may generate.
        prefill_end: When the prompt of each request was computed, seconds; NaN: it was not handed over.
        transfer_start: When its first byte was sent, likewise.
        transfer_end: When it had landed, likewise.
        prefill_replica: Which replica computed it; -1: none that handed it over.
        senders: Replicas that have sent anything, in the order of their first cache.
        notes_sends: Whether sends are recorded, because links may change their pace.
        sends: Sends since the last query, `SEND_WIDTH` numbers each: the sending replica, the request, when it was
            ready to be sent, its seconds at full bandwidth, its start and its end (inf: the link is down), and its
            latency from there.
        stranded: Requests whose caches have landed while no reader was ready, in that order.
        num_transfers: Caches that were sent.
        stalled: Seconds for which prefill replicas were stopped.
    """

    def __init__(
        self,
        ports: list[Port],
        bandwidth: float,
        latency: float,
        token_latency: float,
        max_in_transfer: int,
        num_requests: int,
    ) -> None:
        self.ports = ports
        self.bandwidth, self.latency, self.token_latency = bandwidth, latency, token_latency
        self.max_in_transfer = max_in_transfer
        self.stage = array("b", [AT_REPLICA]) * num_requests
        self.is_counted = array("b", [0]) * num_requests
        self.asked_output, self.asked_max = (array("i", [0]) * num_requests for _ in range(2))
        self.prefill_end, self.transfer_start, self.transfer_end = (array("d", [nan]) * num_requests for _ in range(3))
        self.prefill_replica = array("i", [NOBODY]) * num_requests
        self.senders: list[int] = []
        self.notes_sends = False
        self.sends: list[float] = []
        self.stranded: list[int] = []
        self.num_transfers = 0
        self.stalled = 0.0


@slotted
class Regions:
    """Where clients and replicas are.

    Args:
        home: For each request, the region of its client; shape [N].
        num_places: Number of regions that have pools.
        nearest: For each region of clients, the regions with pools from the nearest to the farthest; concatenated.
        seconds: From each region of clients to each region of pools, seconds.
        place_of_pool: For each pool that takes requests, its region.
        place_of: For each replica, its region.
        spill_above: Requests per replica above which a request goes to a farther region; inf: never.
        is_streamed: Whether answers travel token by token, so that no row includes the way back.
        has_thinking: Whether requests think before they answer.

    Attributes:
        arrives_at: When requests on their way arrive, seconds; `ARRIVED`: they are not on their way.
        way_back: For each answer, if answers are streamed, the seconds of its way.
    """

    def __init__(
        self,
        *,
        home: Sequence[int],
        num_places: int,
        nearest: list[int],
        seconds: list[float],
        place_of_pool: list[int],
        place_of: list[int],
        spill_above: float,
        is_streamed: bool,
        has_thinking: bool = False,
    ) -> None:
        self.home, self.num_places, self.nearest, self.seconds = home, num_places, nearest, seconds
        self.place_of_pool, self.place_of = place_of_pool, place_of
        self.spill_above, self.is_streamed, self.has_thinking = spill_above, is_streamed, has_thinking
        self.arrives_at: MutableSequence[float] = array("d", [ARRIVED]) * len(home)
        self.way_back: MutableSequence[float] = array("d", [0.0]) * len(home)


@slotted
class FleetState:
    """Replicas that come and go, in addition to what the plane knows of them.

    Attributes:
        marks: For each replica, the flags above.
        calls: Replicas that must be handled before anything else happens; -1: a request has ended for which something
            waits.
        parked: Requests that wait for a replica to be ready, in order of arrival.
        joined: For each request, its place in the order of joining a replica.
        num_joined: How many have joined.
        last_joined: For each replica, the request that joined it last; -1: none.
        busy_seconds: For each replica, seconds of its steps so far.
        notes_ends: Whether the requests that have ended are recorded.
        ended: Those since the last query.
        heard_at: When the client of each learns of its end, seconds, if anything waits for that; else empty.
        order: What to do at the next call of the drive, which then does nothing else.
        subject: The request, or replica, that the order concerns.
        reason: Of a loss, or `simserve.engine.entrance.RETRIED`.
        time: When, seconds; else the current instant.
    """

    def __init__(self, num_requests: int, num_schedulers: int, *, notes_ends: bool, tells_ends: bool = False) -> None:
        self.marks = [0] * num_schedulers
        self.last_joined = [NOWHERE] * num_schedulers
        self.busy_seconds = [0.0] * num_schedulers
        self.calls: list[int] = []
        self.parked: list[int] = []
        self.joined = array("q", [0]) * num_requests
        self.num_joined = 0
        self.notes_ends = notes_ends
        self.ended: list[int] = []
        self.heard_at = array("d", [0.0]) * (num_requests if tells_ends else 0)
        self.order, self.subject, self.reason, self.time = NO_ORDER, 0, 0, 0.0


@slotted
class Patience:
    """What clients of each class do. All columns have one entry per class, or one entry without classes.

    Attributes:
        kinds: Class of each request, shape [N].
        timeout: Seconds from sending within which a request must be answered; inf: no limit.
        has_timeouts: Whether any class has one.
        first_byte_timeout: Seconds within which the first token must come, for any class; inf: no limit.
        max_tries: How often a request is sent again.
        backoff: Pause before the first retry, seconds; it doubles with each.
        max_backoff: Longest pause.
        jitter: Share of the pause that a random number may take off.
        honors: Whether the client waits at least as long as a refusal says.
        uniforms: For the jitter.
    """

    def __init__(
        self,
        *,
        kinds: Sequence[int],
        timeout: Sequence[float],
        first_byte_timeout: float,
        max_tries: Sequence[int],
        backoff: Sequence[float],
        max_backoff: Sequence[float],
        jitter: Sequence[float],
        honors: Sequence[int],
        uniforms: Uniforms,
    ) -> None:
        self.kinds = kinds
        self.timeout, self.first_byte_timeout = timeout, first_byte_timeout
        self.has_timeouts = min(timeout) < INFINITY
        self.max_tries, self.backoff, self.max_backoff = max_tries, backoff, max_backoff
        self.jitter, self.honors = jitter, honors
        self.uniforms = uniforms


@slotted
class Clients:
    """The clients of a run.

    Attributes:
        patience: What they do.
        events: Future events, a heap of `Event`.
        latency: From its sending through the tokeniser, seconds, shape [N] like all columns.
        own_wait: Wait of each after that on its own, seconds, if ``has_own_waits``: others pass it.
        has_own_waits: Whether any request has one.
        num_encoders: Places for workers of the encoder pool; 0: there is none.
        encoders: When each of them is free; inf: it takes no work.
        encoder_given: Seconds of work that each has been given.
        encoder_starts: When each part that was given begins, in that order, then NaN; empty: not recorded.
        num_encoder_starts: How many these are.
        notes_encoder_starts: Whether they are recorded.
        to_encode: Remaining seconds of encoding the images of each there, 0: none are left; this and the next three are
            empty without a pool.
        encoder_parts: The largest number of equal parts to split them into; once given, the number they were split
            into.
        embedding_seconds: Time that its embeddings then take to its replica.
        encoder_wait: How long its images waited for the first worker, NaN: none were encoded.
        sent_at: When the current attempt was sent.
        tries: Number of that attempt, the first being 0.
        tokenized_at: When the tokeniser finishes the request that was sent last, seconds.
        spacing: How long its API servers work on one request, seconds, if one after another: requests that have come by
            the time they turn to the next are accepted, and handed over, together. 0: no request is held up.
        will_parse: Whether an event is due at which they turn to the next.
        first: Of the requests sent that have not reached the router, the one that will do so first, `NOBODY`: there is
            none; last: the one that will do so last.
        behind: For each of them the next one.
        num_come: How many have been given a place in the order of arrival.
        came: The place of each in that order.
        abandoned: For every attempt that failed and was followed by another: when it reached the scheduler, its first
            step (NaN: none), its end; three entries each.
        num_resent: How many of them clients sent again.
        num_ended: Requests that have ended.
    """

    def __init__(
        self,
        patience: Patience,
        latency: MutableSequence[float],
        sent_at: MutableSequence[float],
        own_wait: Sequence[float] = (),
        spacing: float = 0.0,
    ) -> None:
        self.patience = patience
        self.events: list[Event] = []
        self.latency, self.sent_at, self.own_wait = latency, sent_at, own_wait
        self.has_own_waits = len(own_wait) > 0
        self.num_encoders = self.num_encoder_starts = 0
        self.notes_encoder_starts = False
        self.encoders: MutableSequence[float] = array("d")
        self.encoder_given: MutableSequence[float] = array("d")
        self.encoder_starts: MutableSequence[float] = array("d")
        self.to_encode: MutableSequence[float] = array("d")
        self.encoder_parts: MutableSequence[int] = array("q")
        self.embedding_seconds: Sequence[float] = array("d")
        self.encoder_wait: MutableSequence[float] = array("d")
        self.tries = array("i", [0]) * len(sent_at)
        self.tokenized_at, self.spacing, self.will_parse = 0.0, spacing, False
        self.first = self.last = NOBODY
        self.behind = array("q", [NOBODY]) * len(sent_at)
        self.num_come = 0
        self.came = array("q", [0]) * len(sent_at)
        self.abandoned: list[float] = []
        self.num_resent = self.num_ended = 0


@slotted
class Delivery:
    """The way of answers from the replicas to their clients.

    Args:
        num_replicas: How many send answers.
        network_latency: From a server to its client, seconds.
        cost: Seconds of work that an event adds to its API server.
        cost_per_token: Likewise for each token, if tokens are sent as they come.
        streams: Whether they are; if not, whole answers are the only events.

    Attributes:
        backlog: For the API server of each replica, seconds of work at ``seen_at``.
        seen_at: When its replica last ended a leap, seconds.
        batch: Seconds of work that a step of that leap made.
    """

    def __init__(
        self, num_replicas: int, network_latency: float, cost: float, cost_per_token: float, streams: bool
    ) -> None:
        self.streams = streams
        self.network_latency, self.cost, self.cost_per_token = network_latency, cost, cost_per_token
        self.backlog = [0.0] * num_replicas
        self.seen_at = [0.0] * num_replicas
        self.batch = [0.0] * num_replicas


@slotted
class ClientState:
    """What a plane knows of its clients, besides who serves them.

    Args:
        clients: The clients.
        admission_control: Decides which requests are refused; None: none are.
        num_schedulers: Replicas of the plane.
        delivery: How long answers take to clients that wait for them; None: no time.
        fleet_state: If replicas come and go, their state; None: they are there throughout.

    Attributes:
        draws: What takes random numbers: the flags above, added.
        place: For each request the replica that it is at, `NOWHERE`, `PARKED`, or the replica that it is held back
            from.
        has_left: 1 if a client has hung up and the request leaves at the end of the running step.
        leaving: Those requests: (replica, request, when that was decided), in the order of deciding.
        num_leaving: How many of them at each replica.
        going: Those that leave at the current instant.
        refusals: How often admission control gave each reason, including repeated tries.
        finishes: How fast each replica finishes requests, if admission control uses it.
        lost_tokens: Tokens generated for requests that were then given up.
        mid_time: The instant within which a drive stopped to be given random numbers or answers; negative: none.
        mid_position: How many of the replicas whose steps end at that instant have ended them.
        transfers: KV caches between prefill and decode replicas; None: every replica does both.
        gateway: The gateway in front of the replicas; None: nothing but the router.
        regions: Where clients and replicas are; None: not modelled.
        paces: What each request gains per step, if pools have drafts of their own; None: the same on all.
        asks: What is asked of a user's own functions (`simserve.engine.judged`): flags above.
        judge: Asks them; interpreted only.
        open: Replicas that can take the current request.
        open_pools: Pools with such replicas.
    """

    def __init__(
        self,
        clients: Clients,
        admission_control: AdmissionControl | None,
        num_schedulers: int,
        delivery: Delivery | None = None,
        fleet_state: FleetState | None = None,
    ) -> None:
        self.clients, self.admission_control, self.delivery, self.draws = clients, admission_control, delivery, 0
        num_requests = len(clients.tries)
        self.place = array("i", [NOWHERE]) * num_requests
        self.has_left = array("b", [0]) * num_requests
        self.leaving: list[tuple[int, int, float]] = []
        self.num_leaving = [0] * num_schedulers
        self.going: list[tuple[int, float]] = []
        self.refusals = array("q", [0]) * (API_LIMIT + 1)
        self.finishes = [Finishes(0.0) for _ in range(num_schedulers)]
        self.lost_tokens = 0
        self.fleet_state = fleet_state
        self.transfers: Transfers | None = None
        self.gateway: Gateway | None = None
        self.regions: Regions | None = None
        self.paces: Paces | None = None
        self.asks = 0
        self.judge: Judge | None = None
        self.open: list[int] = []
        self.open_pools: list[int] = []
        self.mid_time, self.mid_position = -1.0, 0

    @property
    def asks_who_finished(self) -> bool:
        """Whether it matters which requests finish, and not only how many.

        A request whose client hangs up in the step that answers is not answered; one that has prefilled goes on.
        """
        patience, fleet_state = self.clients.patience, self.fleet_state
        if patience.has_timeouts or patience.first_byte_timeout < INFINITY or self.transfers is not None:
            return True
        if self.gateway is not None or self.regions is not None:
            return True
        return fleet_state is not None and fleet_state.notes_ends
