"""The data plane of equal replicas behind one router: who serves, who is to come, and who goes where.

It knows arrivals, conversations and schedulers, and no loop over events: that is `simserve.engine.event_plane`. What to
do with what the schedulers have written down is the caller's.
"""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from typing import TYPE_CHECKING, Any

from simserve.engine.admission_control import end_pause
from simserve.engine.numbers import copy_into, least_of
from simserve.engine.paces import use_pace
from simserve.engine.routing import LEAST, Router, Shares, choose, deal
from simserve.engine.state import INFINITY, Replica, RequestTable

if TYPE_CHECKING:
    from simserve.engine.client_state import ClientState
    from simserve.engine.conversations import Conversations
    from simserve.engine.data_parallel import DataParallelReplica

REACHED, CHORES, CALLED = range(3)
"""Why `drive` returns: the time is up or nothing is left; it is time to look after what has gathered, or after replicas
that come and go (`simserve.engine.fleet_state`)."""

EVENTS_BETWEEN_CHORES = 4096
CALLS, DRAINS, FROZEN = 1, 2, 4
"""Marks of a replica: it calls when its step ends; it calls when it holds nothing any more; it does nothing."""


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
        due: Units whose plans end at the instant at hand.
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


def route(plane: DataPlane, requests: RequestTable, index: int) -> int:
    """Return which replica a request goes to; count it there."""
    number = choice(plane, index)
    count_at(plane, requests, number, index)
    return number


def choice(plane: DataPlane, index: int) -> int:
    """Return which replica the router chooses for a request."""
    if plane.num_schedulers == 1:
        return 0
    if plane.routes_least:
        return least_of(plane.loads)
    ready = plane.ready
    if plane.is_divided:
        part = plane.parts[plane.kinds[index]]
        ready = part.ready
        if plane.shares is not None and len(part.pools) > 1:
            ready = plane.pools[deal(plane.shares, part.pools)].ready
    if plane.is_stale:
        return choose(plane.router, index, ready, plane.seen)
    return choose(plane.router, index, ready, plane.tokens if plane.weighs_tokens else plane.loads)


def count_at(plane: DataPlane, requests: RequestTable, number: int, index: int) -> None:
    """Count a request at a replica."""
    plane.loads[number] += 1
    if plane.counts_tokens:
        plane.tokens[number] += requests.prompt_tokens[index] + requests.max_tokens[index]


def count_off(plane: DataPlane, requests: RequestTable, number: int, index: int) -> None:
    """Count a request no longer at a replica."""
    plane.loads[number] -= 1
    if plane.counts_tokens:
        plane.tokens[number] -= requests.prompt_tokens[index] + requests.max_tokens[index]


def join(
    plane: DataPlane, client_state: ClientState, requests: RequestTable, number: int, index: int, now: float
) -> None:
    """Count a request at a replica that is given it, or its KV cache."""
    admission_control, fleet_state = client_state.admission_control, client_state.fleet_state
    if admission_control is not None and admission_control.has_patience and not plane.loads[number]:
        end_pause(client_state.finishes[number], now)
    if client_state.paces is not None:
        use_pace(client_state.paces, requests, number, index)
    count_at(plane, requests, number, index)
    client_state.place[index] = number
    if fleet_state is not None:
        fleet_state.num_joined += 1
        fleet_state.joined[index] = fleet_state.num_joined
        fleet_state.last_joined[number] = index


def note_end(plane: DataPlane, client_state: ClientState, number: int) -> None:
    """Note when a replica must be looked at next: at the end of its plan, or never while it hangs."""
    fleet_state = client_state.fleet_state
    if fleet_state is None or not fleet_state.marks[number] & FROZEN:
        plane.ends[number] = plane.replicas[number].end_time


def renew(plane: DataPlane, now: float) -> float:
    """Let the router look at the replicas, as often as it does up to ``now``; return when it looks next."""
    copy_into(plane.seen, plane.tokens if plane.weighs_tokens else plane.loads)
    renew_at = plane.renew_at
    while renew_at <= now:
        renew_at += plane.renew_interval
    plane.renew_at = renew_at
    return renew_at


def note_finished(plane: DataPlane, requests: RequestTable, number: int, rank: Replica) -> None:
    """Take over which requests a rank of a replica has finished."""
    finished = rank.finished
    assert finished is not None
    while finished:
        index = finished.pop()
        plane.finished.append(index)
        if plane.counts_tokens:
            plane.tokens[number] -= requests.prompt_tokens[index] + requests.max_tokens[index]
