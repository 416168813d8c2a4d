"""The records of the data plane: who serves, who asks, what lies between them, and the router that joins the two.

Nothing here decides: the rules stand in the modules beside it, as functions of these records, so that the same source
can be compiled. The schedulers of a replica have records of their own (`simserve.engine.state`).
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
from simserve.engine.state import INFINITY, DataParallelReplica, Finishes, Uniforms

ASKS_ADMISSION, ASKS_SECONDS = 1, 2
"""What of a plane is a user's own, beside its router: flags."""
LEAST = 0
"""Policy of a router that looks for the least loaded; the others are `simserve.engine.routing`'s."""
CALLS, DRAINS, FROZEN = 1, 2, 4
"""Marks of a replica: it calls when its step ends; it calls when it holds nothing any more; it does nothing."""
BOTH, PREFILLS, DECODES = range(3)
"""What a replica does."""
AT_REPLICA, ON_ITS_WAY, LANDED, STRANDED = range(4)
"""Where a request is: at a replica or at none, on a link, or behind one, waiting for a seat; or for a replica."""
NEVER = -1.0
ARRIVED = -1.0
"""Instead of a time of arrival: the request is not on its way."""
NOBODY = NOWHERE = -1
PARKED = -2
"""Of a request that waits for a replica to be ready."""
ELSEWHERE = -3
"""Of a request that the gateway has answered, or asks again."""
HELD = -4
"""Of a request that its replica's scheduler, which works ahead, has yet to see: this less the number of the replica."""
NO_ORDER, HAND_OVER, LOSE, SETTLE, OFFER, ADMIT, LAND_AGAIN, BREAK_OFF = range(8)
"""Orders: route a request; a replica that held a request is gone; end the step of a replica on which none runs; let
those whose turn it is be routed; take a KV cache that has landed to a replica; let one land when its link has sent it
after all; note which tokens a replica that is lost has sent."""
Event = tuple[float, int, int, int]
"""Time, kind (`simserve.engine.clients`), request, and the attempt (or the replica) that it is about; of those to be
taken in the order of their coming (`ARRIVE`, `SUBMIT`) that order, and the request."""


class Judge(Protocol):
    """Asks them."""

    def choice(self, index: int, ready: Sequence[int]) -> int:
        """Return which of some replicas a request goes to."""

    def refusal(self, index: int, now: float) -> int:
        """Return why a request is refused (`simserve.engine.admission_control`)."""

    def step_seconds(self, prompt_tokens: int, decode_tokens: int, context_tokens: float, now: float) -> float:
        """Return how long a step takes."""


class Affinity:
    """What a router remembers of the requests it has routed.

    A request is known by a path of keys, and a key stands for the whole path to it. Where a router sent a key last,
    that part of the request has probably been kept; it is not told what has been evicted since (as SGLang's and the
    vLLM production stack's routers are not).

    Attributes:
        offsets: Request i has the entries ``offsets[i] .. offsets[i + 1] - 1`` of the two columns, shape [N + 1].
        keys: Number of each key, from 0.
        ends: What it is worth, in the replica of the loads, to be where that key is known; ascending within a request.
        least: Of each request, what it must be worth for a detour, shape [N].
        places: Key -> replica that it went to last; -1: none.
        known: Key -> what it was worth there; a request may go on under the same key.
        worth: Of the replica that was preferred last.
    """

    __slots__ = ("ends", "keys", "known", "least", "offsets", "places", "worth")

    def __init__(
        self, offsets: Sequence[int], keys: Sequence[int], ends: Sequence[int], least: Sequence[float], num_keys: int
    ) -> None:
        self.offsets, self.keys, self.ends, self.least = offsets, keys, ends, least
        self.places = [-1] * num_keys
        self.known = [0] * num_keys
        self.worth = 0


class Router:
    """One policy and its state.

    Attributes:
        policy: How it chooses where nothing is known of a request.
        affinity: What it remembers; None: nothing.
        guard: Load over the mean load from which a replica that knows a request is passed over.
        turn: Whose turn it is.
        uniforms: Random numbers; the policies that need some take one or two a request.
        judge: Asks a user's own function, where that decides.
    """

    __slots__ = ("affinity", "guard", "judge", "policy", "turn", "uniforms")

    def __init__(
        self, policy: int, affinity: Affinity | None = None, guard: float = 1.0, uniforms: Uniforms | None = None
    ) -> None:
        self.policy = policy
        self.affinity = affinity
        self.guard = guard
        self.turn = 0
        self.judge: Judge | None = None
        self.uniforms = Uniforms(0) if uniforms is None else uniforms


class Shares:
    """How pools share the requests that several of them may serve.

    Attributes:
        weights: Of each pool.
        credits: What each is owed.
    """

    __slots__ = ("credits", "weights")

    def __init__(self, weights: list[float]) -> None:
        self.weights = weights
        self.credits = [0.0] * len(weights)


class Part:
    """Some of the replicas of a plane.

    Attributes:
        ready: Their numbers.
        pools: Those that share them by weight, as the plane counts pools.
    """

    __slots__ = ("pools", "ready")

    def __init__(self, ready: list[int], pools: Sequence[int] = ()) -> None:
        self.ready, self.pools = ready, list(pools)


class DataPlane:
    """Who serves, who is to come, and the router between them.

    Args:
        replicas: Replicas, at least one, each with its ranks.
        router: What chooses between them.
        client_state: What is known of the clients.
        weighs_tokens: Whether it goes by tokens: prompts and the most that they may generate; else by requests.
        renew_interval: Seconds between two looks of the router at the replicas; 0: what it knows is never stale.
        schedules_ahead: Whether the schedulers work a step ahead.
        parts: Where replicas are not all alike, those that each kind of request may go to; empty: any may go to all.
        kinds: Of each request an index into ``parts``; None: there are none.
        shares: How pools share the requests of a part by weight; None: they do not, its replicas are all alike.
        pools: The replicas of each pool, where they do.
        comes_and_goes: Whether replicas do, so that ``parts`` say which are there.
        counts_tokens: Whether somebody else than the router asks for the tokens at each replica.

    Attributes:
        replicas: Those.
        ranks: The schedulers of all of them, side by side.
        num_schedulers: How many replicas; 0: they come and go.
        has_ranks: Whether any of them has several schedulers.
        ends: When the plan of each ends, seconds.
        end_order: Those in an order, where there are many replicas and nothing happens but arrivals and ends of steps.
        load_order: Likewise the loads, where ``routes_least``.
        loads: Requests at each, held back ones included.
        counts_tokens: Whether ``tokens`` are counted.
        tokens: Theirs, where they are.
        seen: Which of the two the router saw at its last look, where that is not now.
        is_stale: Whether it is not.
        renew_at: When it looks next; inf: never.
        ready: The numbers of all replicas.
        is_divided: Whether there are ``parts``.
        routes_least: Whether the router looks for the fewest requests as they are, and for nothing else.
        due: Replicas whose plans end at the instant at hand.
        cursor: Open loop: requests that have arrived so far.
        num_scheduled: Open loop: how many arrive in all, in the order of the table.
        conversations: Whose next turn is sent when the one before it is answered; None: there are none.
        finished: Requests that finished at the instant at hand, where ``notes_finishes``.
        notes_finishes: Whether the router or the conversations want to know which.
    """

    __slots__ = (
        "client_state",
        "conversations",
        "counts_tokens",
        "cursor",
        "due",
        "end_order",
        "ends",
        "finished",
        "has_ranks",
        "is_divided",
        "is_stale",
        "kinds",
        "load_order",
        "loads",
        "notes_finishes",
        "num_scheduled",
        "num_schedulers",
        "parts",
        "pools",
        "ranks",
        "ready",
        "renew_at",
        "renew_interval",
        "replicas",
        "router",
        "routes_least",
        "schedules_ahead",
        "seen",
        "shares",
        "tokens",
        "weighs_tokens",
    )

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
        # Where replicas come and go, those who decide that say when the router looks, too.
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


class Port:
    """A replica as its links see it.

    Args:
        role: What it does.
        bytes_per_token: Of the KV caches that it computes.
        readers: Replicas that take them in, those that are ready.
        answers_lone_token: Whether it answers a request of a single token itself; not if they compute that again.

    Attributes:
        has_sent: Whether it has sent anything.
        pace: How many times as long its link takes for a cache as at full bandwidth; inf: it is down.
        free_at: When its link will have sent all that it has, seconds.
        seconds: Seconds in which that was in use.
        waited: Seconds that caches waited for it.
        num_on_way: Caches that it has sent and nobody has taken in.
        stalled_since: Since when it stands still because those are too many; negative: it does not.
        landed: Caches that wait for a seat here.
    """

    __slots__ = (
        "answers_lone_token",
        "bytes_per_token",
        "free_at",
        "has_sent",
        "landed",
        "num_on_way",
        "pace",
        "readers",
        "role",
        "seconds",
        "stalled_since",
        "waited",
    )

    def __init__(self, role: int, bytes_per_token: float, readers: list[int], answers_lone_token: bool = True) -> None:
        self.role, self.bytes_per_token, self.readers = role, bytes_per_token, readers
        self.answers_lone_token = answers_lone_token
        self.pace, self.has_sent = 1.0, False
        self.free_at = self.seconds = self.waited = 0.0
        self.num_on_way = 0
        self.stalled_since = NEVER
        self.landed: deque[int] = deque()


class Transfers:
    """What is between prefill and decode replicas.

    Args:
        ports: One a replica of the plane.
        bandwidth: Of a link, bytes/s.
        latency: From the last byte sent to the scheduler of the decode replica, seconds.
        token_latency: What a token of the prompt adds to that, seconds.
        max_in_transfer: Caches of one prefill replica on their way, from which on it starts no further step.
        num_requests: Of the run.

    Attributes:
        stage: Where each request is; shape [N], as all columns here.
        is_counted: Whether its cache counts as on its way where it was computed; not if that replica is gone.
        asked_output: What the row of a request that prefills will say again of its answer; 0: it says so.
        asked_max: Likewise of the most tokens that it may have.
        prefill_end: When the prompt of each request was computed, seconds; NaN: it was not handed over.
        transfer_start: When its first byte was sent, likewise.
        transfer_end: When it had landed, likewise.
        prefill_replica: Which replica computed it; -1: none that handed it over.
        senders: Replicas that have sent anything, in the order of their first cache.
        notes_sends: Whether somebody asks what was sent, because links may change their pace.
        sends: What was, since somebody asked, `SEND_WIDTH` numbers each: from which replica, the request, when it was
            ready to be sent, its seconds at full bandwidth, its start and its end (inf: the link is down), and its
            latency from there.
        stranded: Requests whose caches have landed while nobody was ready who reads them, in that order.
        num_transfers: Caches that were sent.
        stalled: Seconds in which prefill replicas stood still.
    """

    __slots__ = (
        "asked_max",
        "asked_output",
        "bandwidth",
        "is_counted",
        "latency",
        "max_in_transfer",
        "notes_sends",
        "num_transfers",
        "ports",
        "prefill_end",
        "prefill_replica",
        "senders",
        "sends",
        "stage",
        "stalled",
        "stranded",
        "token_latency",
        "transfer_end",
        "transfer_start",
    )

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


class Regions:
    """Where clients and replicas are.

    Args:
        home: Of each request, the region of its client; shape [N].
        num_places: Regions that have pools.
        nearest: Of each region of clients, those regions from the nearest to the farthest; one after the other.
        seconds: Of each region of clients, the way to each region of pools, seconds.
        place_of_pool: Of each pool that takes requests, its region.
        place_of: Of each replica, its region.
        spill_above: Requests a replica above which a request goes farther; inf: never.
        is_streamed: Whether answers are on their way token by token, so that the way back is in no row.
        has_thinking: Whether requests think before they answer.

    Attributes:
        arrives_at: When requests arrive that are on their way, seconds; `ARRIVED`: they are not.
        way_back: Of each answer, where they are streamed, the seconds of its way.
    """

    __slots__ = (
        "arrives_at",
        "has_thinking",
        "home",
        "is_streamed",
        "nearest",
        "num_places",
        "place_of",
        "place_of_pool",
        "seconds",
        "spill_above",
        "way_back",
    )

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


class FleetState:
    """Replicas that come and go, beside what the plane knows of them.

    Attributes:
        marks: Of each replica, the flags above.
        calls: Replicas that somebody must look after before anything else happens; -1: somebody waits for a request
            that has ended.
        parked: Requests that wait for a replica to be ready, in the order of their coming.
        joined: Of each request, its place in the order of joining a replica.
        num_joined: How many have.
        last_joined: Of each replica, the request that joined it last; -1: none.
        busy_seconds: Of each replica, seconds of its steps so far.
        notes_ends: Whether somebody asks which requests have ended.
        ended: Those since it was last asked.
        heard_at: When the client of each hears of that, where somebody waits for it, seconds; else of none.
        order: What is to be done at the next call of the drive, which then does nothing else.
        subject: Which request, or replica, that is about.
        reason: Of a loss, or `simserve.engine.entrance.RETRIED`.
        time: When, seconds; else the instant at hand.
    """

    __slots__ = (
        "busy_seconds",
        "calls",
        "ended",
        "heard_at",
        "joined",
        "last_joined",
        "marks",
        "notes_ends",
        "num_joined",
        "order",
        "parked",
        "reason",
        "subject",
        "time",
    )

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


class Patience:
    """What clients of each class do; one entry a class in all columns, one in all without classes.

    Attributes:
        kinds: Class of each request, shape [N].
        timeout: Seconds from its sending in which a request must be answered; inf: no limit.
        has_timeouts: Whether any class has one.
        first_byte_timeout: Seconds in which the first token must come, of any class; inf: no limit.
        max_tries: How often a request is sent again.
        backoff: Pause before the first retry, seconds; it doubles with each.
        max_backoff: Longest pause.
        jitter: Share of the pause that a random number may take off.
        honors: Whether the client waits at least as long as a refusal says.
        uniforms: For the jitter.
    """

    __slots__ = (
        "backoff",
        "first_byte_timeout",
        "has_timeouts",
        "honors",
        "jitter",
        "kinds",
        "max_backoff",
        "max_tries",
        "timeout",
        "uniforms",
    )

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


class Clients:
    """The clients of a run.

    Attributes:
        patience: What they do.
        events: What is still to happen, a heap of `Event`.
        latency: From its sending through the tokeniser, seconds, shape [N] as all columns.
        own_wait: What each waits behind it by itself, seconds, where ``has_own_waits``: others pass it.
        has_own_waits: Whether anybody does.
        num_encoders: Places for workers of the encoder pool; 0: there is none.
        encoders: When each of them is free; inf: it takes nothing.
        encoder_given: Seconds of work that each has been given.
        encoder_starts: When each part that was given begins, in that order, then NaN; empty: nobody asks.
        num_encoder_starts: How many those are.
        notes_encoder_starts: Whether somebody asks.
        to_encode: Seconds that the images of each still take there, 0: none are left; this and the next three are empty
            without a pool.
        encoder_parts: Into how many equal parts those are divided at most; once given, into how many they were.
        embedding_seconds: What its embeddings then take to its replica.
        encoder_wait: How long its images waited for the first worker, NaN: none were encoded.
        sent_at: When the attempt at hand was sent.
        tries: Which one that is, the first being 0.
        tokenized_at: When the tokeniser is done with the one that was sent last, seconds.
        spacing: How long its API servers work on one request, seconds, where that is one after another: those that have
            come when they turn to the next are taken on, and handed over, together. 0: they hold up nobody.
        will_parse: Whether there is an event at which they turn to the next.
        first: Of those that have been sent and have not reached the router the one that will do so first, `NOBODY`:
            there is none; last: the one that will do so last.
        behind: Of each of them the next.
        num_come: How many have been put into the order of their coming.
        came: The place of each in that.
        abandoned: Of every attempt that came to nothing and was followed by another: when it reached the scheduler, its
            first step (NaN: none), its end; three entries each.
        num_resent: How many of them clients sent again.
        num_ended: Requests that have come to an end.
    """

    __slots__ = (
        "abandoned",
        "behind",
        "came",
        "embedding_seconds",
        "encoder_given",
        "encoder_parts",
        "encoder_starts",
        "encoder_wait",
        "encoders",
        "events",
        "first",
        "has_own_waits",
        "last",
        "latency",
        "notes_encoder_starts",
        "num_come",
        "num_encoder_starts",
        "num_encoders",
        "num_ended",
        "num_resent",
        "own_wait",
        "patience",
        "sent_at",
        "spacing",
        "to_encode",
        "tokenized_at",
        "tries",
        "will_parse",
    )

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


class Delivery:
    """The way of answers from the replicas to their clients.

    Args:
        num_replicas: How many send them.
        network_latency: From a server to its client, seconds.
        cost: Seconds that an event adds to what its API server has to do.
        cost_per_token: The same of a token, where those are sent as they come.
        streams: Whether they are; if not, whole answers are the only events.

    Attributes:
        backlog: Of the API server of each replica, seconds of work, as of ``seen_at``.
        seen_at: When its replica last ended a leap, seconds.
        batch: Seconds of work that a step of that leap made.
    """

    __slots__ = ("backlog", "batch", "cost", "cost_per_token", "network_latency", "seen_at", "streams")

    def __init__(
        self, num_replicas: int, network_latency: float, cost: float, cost_per_token: float, streams: bool
    ) -> None:
        self.streams = streams
        self.network_latency, self.cost, self.cost_per_token = network_latency, cost, cost_per_token
        self.backlog = [0.0] * num_replicas
        self.seen_at = [0.0] * num_replicas
        self.batch = [0.0] * num_replicas


class ClientState:
    """What a plane knows of its clients beside who serves them.

    Args:
        clients: The clients.
        admission_control: Who is turned away; None: nobody.
        num_schedulers: Replicas of the plane.
        delivery: How long answers are on their way to clients that wait for them; None: they hear of them at once.
        fleet_state: Where replicas come and go, what is known of that; None: they are there throughout.

    Attributes:
        draws: What takes random numbers: the flags above, added.
        place: Of each request the replica that it is at, `NOWHERE`, `PARKED`, or that it is held back from.
        has_left: 1 where a client has hung up, and the request leaves at the end of the running step.
        leaving: Those requests: (replica, request, when that was decided), in the order of deciding.
        num_leaving: How many of them at each replica.
        going: Those who leave at the instant at hand.
        refusals: How often each reason was the answer at the admission control, repeated tries included.
        finishes: How fast each replica finishes requests, where the admission control goes by it.
        lost_tokens: Tokens generated for requests that were then given up.
        mid_time: The instant that a drive stopped in, to be given random numbers or answers; negative: in none.
        mid_position: How many of the replicas whose steps end at that instant have ended them.
        transfers: KV caches between prefill and decode replicas; None: every replica does both.
        gateway: What stands in front of the replicas; None: nothing but the router.
        regions: Where clients and replicas are; None: it does not matter.
        paces: What a step brings each request where pools draft for themselves; None: it is the same on all.
        asks: What is asked of somebody outside: flags of `simserve.engine.judged`.
        judge: Whom; interpreted only.
        open: Replicas that have room for the request at hand.
        open_pools: Pools that have such.
    """

    __slots__ = (
        "admission_control",
        "asks",
        "clients",
        "delivery",
        "draws",
        "finishes",
        "fleet_state",
        "gateway",
        "going",
        "has_left",
        "judge",
        "leaving",
        "lost_tokens",
        "mid_position",
        "mid_time",
        "num_leaving",
        "open",
        "open_pools",
        "paces",
        "place",
        "refusals",
        "regions",
        "transfers",
    )

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

        Whoever hangs up in the step that answers is not answered; what has prefilled goes on.
        """
        patience, fleet_state = self.clients.patience, self.fleet_state
        if patience.has_timeouts or patience.first_byte_timeout < INFINITY or self.transfers is not None:
            return True
        if self.gateway is not None or self.regions is not None:
            return True
        return fleet_state is not None and fleet_state.notes_ends
