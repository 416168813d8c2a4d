"""The data plane of equal replicas behind one router: who serves, what is still to arrive, and what goes where.

It knows arrivals, conversations and schedulers, but no loop over events: that is `simserve.engine.event_plane`. The
caller decides what to do with the schedulers' records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simserve.engine.admission_control import end_pause
from simserve.engine.decoding import use_pace
from simserve.engine.numbers import copy_into, least_of
from simserve.engine.plane_state import FROZEN, DataPlane
from simserve.engine.routing import choose, deal
from simserve.engine.state import Replica, RequestTable

if TYPE_CHECKING:
    from simserve.engine.plane_state import ClientState

REACHED, CHORES, CALLED = range(3)
"""Why `drive` returns: the time is up or nothing is left; chores have gathered; or replicas that come and go must be
handled (`simserve.engine.fleet_state`)."""

EVENTS_BETWEEN_CHORES = 4096


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
    """Count a request as no longer at a replica."""
    plane.loads[number] -= 1
    if plane.counts_tokens:
        plane.tokens[number] -= requests.prompt_tokens[index] + requests.max_tokens[index]


def join(
    plane: DataPlane, client_state: ClientState, requests: RequestTable, number: int, index: int, now: float
) -> None:
    """Count a request at the replica that receives it, or its KV cache."""
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
    """Record when a replica must be looked at next: at the end of its plan, or never while it hangs."""
    fleet_state = client_state.fleet_state
    if fleet_state is None or not fleet_state.marks[number] & FROZEN:
        plane.ends[number] = plane.replicas[number].end_time


def renew(plane: DataPlane, now: float) -> float:
    """Let the router look at the replicas as often as is due up to ``now``; return when it looks next."""
    copy_into(plane.seen, plane.tokens if plane.weighs_tokens else plane.loads)
    renew_at = plane.renew_at
    while renew_at <= now:
        renew_at += plane.renew_interval
    plane.renew_at = renew_at
    return renew_at


def note_finished(plane: DataPlane, requests: RequestTable, number: int, rank: Replica) -> None:
    """Collect the requests that a rank of a replica has finished."""
    finished = rank.finished
    assert finished is not None
    while finished:
        index = finished.pop()
        plane.finished.append(index)
        if plane.counts_tokens:
            plane.tokens[number] -= requests.prompt_tokens[index] + requests.max_tokens[index]
