"""Client state: what a data plane knows of its clients besides who serves them, and how a request leaves or ends.

The loop that moves replicas by these rules is `simserve.engine.event_plane`.
"""

from __future__ import annotations

from simserve.engine.admission_control import GAVE_UP, TASK_CANCELLED
from simserve.engine.clients import seconds_to_client, send, send_again
from simserve.engine.conversations import deadline_of, find_due, think
from simserve.engine.data_plane import count_off
from simserve.engine.gateway import note_end
from simserve.engine.plane_state import NOBODY, NOWHERE, ClientState, DataPlane
from simserve.engine.state import INFINITY, RequestTable, num_left
from simserve.engine.transfers import restore

AT_ADMISSION, TO_ROUTE, TO_PAUSE, TO_ANSWER, TO_PACE = 1, 2, 4, 8, 16
"""What may take random numbers; flags. The last two: the first token of an API's answer, and the tokens after it."""
NUMBERS_TO_ROUTE = 2
"""Most random numbers that routing one request takes."""


def lacks_numbers(plane: DataPlane, client_state: ClientState) -> bool:
    """Return whether random numbers might run out before the next event is over.

    Each request that leaves takes one for the pause before its retry, and so does each one refused.
    """
    admission_control, draws = client_state.admission_control, client_state.draws
    if draws & AT_ADMISSION and admission_control is not None and num_left(admission_control.uniforms) < 1:
        return True
    if draws & TO_ROUTE and num_left(plane.router.uniforms) < numbers_to_route(client_state):
        return True
    if draws & TO_ANSWER and lacks_answers(client_state):
        return True
    needed = len(client_state.leaving) + 1
    return bool(draws & TO_PAUSE) and num_left(client_state.clients.patience.uniforms) < needed


def lacks_answers(client_state: ClientState) -> bool:
    """Return whether random numbers are short for the next answer of the API."""
    gateway = client_state.gateway
    return gateway is not None and gateway.api is not None and num_left(gateway.api.ttft_factors) < 1


def numbers_to_route(client_state: ClientState) -> int:
    """Return how many random numbers the router may take at the next event: turns are given to all that wait."""
    gateway = client_state.gateway
    if gateway is None or gateway.fair is None:
        return NUMBERS_TO_ROUTE
    return NUMBERS_TO_ROUTE * (2 + gateway.fair.num_parked)


def without_answer(
    plane: DataPlane,
    client_state: ClientState,
    requests: RequestTable,
    index: int,
    now: float,
    status: int,
    reason: int,
    free_at: float,
    retry_after: float,
) -> None:
    """Let a client react at ``now`` to an attempt that failed: it tries again, or the request ends.

    Args:
        plane: The plane.
        client_state: Its clients.
        requests: The table.
        index: The request.
        now: When the client knows.
        status: Status of the request if the client gives up.
        reason: Why.
        free_at: When the server has released it.
        retry_after: Least seconds to wait, from a refusal.
    """
    conversations = plane.conversations
    latest = INFINITY if conversations is None else deadline_of(conversations, index)
    if reason == GAVE_UP and now >= latest:
        reason = TASK_CANCELLED
    elif send_again(client_state.clients, requests, index, now, free_at, retry_after, latest):
        return
    requests.status[index] = status
    requests.reason[index] = reason
    requests.finish_time[index] = now
    end(plane, client_state, requests, index, now, free_at)


def end(
    plane: DataPlane, client_state: ClientState, requests: RequestTable, index: int, now: float, not_before: float
) -> None:
    """Record that a request has ended ``now``, and send what follows in its conversation.

    That is sent no sooner than ``not_before``.
    """
    clients, conversations, fleet_state = client_state.clients, plane.conversations, client_state.fleet_state
    clients.num_ended += 1
    if fleet_state is not None and fleet_state.notes_ends:
        fleet_state.ended.append(index)
    if client_state.delivery is not None:
        now += seconds_to_client(client_state.delivery, requests, index)
    if fleet_state is not None and len(fleet_state.heard_at):
        fleet_state.heard_at[index] = now
        fleet_state.calls.append(NOBODY)
    if client_state.gateway is not None:
        note_end(client_state.gateway, requests, index, now)
    if conversations is None:
        return
    find_due(conversations, index, now)
    for position in range(len(conversations.due)):
        each = conversations.due[position]
        think(conversations, each, now)
        send(clients, each, conversations.arrival_time[each], max(now, not_before))


def leave(plane: DataPlane, client_state: ClientState, requests: RequestTable, number: int, index: int) -> None:
    """Count a request as no longer at a replica."""
    client_state.place[index] = NOWHERE
    if client_state.transfers is not None:
        restore(client_state.transfers, requests, index)
    count_off(plane, requests, number, index)


def take_leaving(client_state: ClientState, number: int) -> None:
    """Put the requests that leave a replica into ``going``, in their order."""
    leaving, going = client_state.leaving, client_state.going
    kept = 0
    for position in range(len(leaving)):
        entry = leaving[position]
        if entry[0] == number:
            going.append((entry[1], entry[2]))
        else:
            leaving[kept] = entry
            kept += 1
    while len(leaving) > kept:
        leaving.pop()
    client_state.num_leaving[number] = 0
