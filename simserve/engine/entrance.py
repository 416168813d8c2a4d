"""Entrance: how a request gets from its arrival to a replica, or to whatever answers it instead.

In this order: the response cache, the router with its rules, the API, admission control, fair turns.
"""

from __future__ import annotations

from heapq import heappush
from math import nan

from simserve.engine.admission_control import (
    ADMITTED,
    API_LIMIT,
    REJECTED,
    TASK_CANCELLED,
    TIMED_OUT,
    refusal,
    refusal_at_gateway,
)
from simserve.engine.client_state import end, without_answer
from simserve.engine.clients import ANSWER, TURN, abandon, wait_for, wait_for_task
from simserve.engine.conversations import Conversations, deadline_of
from simserve.engine.data_parallel import num_running_at, num_seats_of, strike
from simserve.engine.data_plane import choice
from simserve.engine.fleet_state import is_open, park, take_in
from simserve.engine.gateway import (
    API,
    CACHE,
    NEVER,
    NO_LIMIT,
    NOBODY,
    REFUSE,
    REPLICA,
    STAY,
    Gateway,
    answer_again,
    answer_by_api,
    begin_wait,
    charge_answer,
    charge_prompt,
    is_answered,
    is_taken,
    line_up,
    next_class,
    seconds_before,
    seconds_to_wait,
    take_turn,
)
from simserve.engine.judged import judged_refusal
from simserve.engine.plane_state import ARRIVED, ASKS_ADMISSION, ELSEWHERE, NOWHERE, PARKED, ClientState, DataPlane
from simserve.engine.routing import add_near, choose, deal
from simserve.engine.state import FAILED, RequestTable
from simserve.engine.transfers import forget

RETRIED = -1
"""In place of a reason for a loss: the router sends the request elsewhere, and its client does not notice."""


def arrive(plane: DataPlane, client_state: ClientState, requests: RequestTable, index: int, now: float) -> None:
    """Answer a request in front of the replicas, refuse it, or give it to the replica that the router chooses."""
    clients, conversations = client_state.clients, plane.conversations
    if requests.status[index] == FAILED:
        end(plane, client_state, requests, index, now, 0.0)
        return
    if conversations is not None and conversations.has_limits:
        wait_for_task(clients, index, deadline_of(conversations, index), now)
    wait_for(clients, index, now)
    gateway = client_state.gateway
    if gateway is not None:
        cache = gateway.cache
        if cache is not None and is_answered(cache, index, now):
            _answer(client_state, gateway, index, answer_again(cache, requests, index, now), CACHE)
            return
    number = chosen(plane, client_state, index)
    if gateway is not None and is_diverted(plane, client_state, gateway, requests, index, number, now):
        return
    reason = ADMITTED
    if client_state.asks & ASKS_ADMISSION:
        reason = judged_refusal(client_state, index, now)
    if reason == ADMITTED:
        reason = _refusal(plane, client_state, number, index, now)
    if reason != ADMITTED:
        client_state.refusals[reason] += 1
        retry_after = 0.0 if client_state.admission_control is None else client_state.admission_control.retry_after
        without_answer(plane, client_state, requests, index, now, REJECTED, reason, now, retry_after)
        return
    hand_to(plane, client_state, requests, number, index, now)


def leave_out(
    plane: DataPlane,
    client_state: ClientState,
    conversations: Conversations,
    requests: RequestTable,
    index: int,
    now: float,
) -> None:
    """End a call, or a retry of one, that its client no longer sends because its task is given up."""
    requests.status[index] = TIMED_OUT
    requests.reason[index] = TASK_CANCELLED
    if client_state.clients.tries[index]:
        requests.finish_time[index] = now
    else:
        conversations.arrival_time[index] = requests.ready_time[index] = nan
    end(plane, client_state, requests, index, now, 0.0)


def chosen(plane: DataPlane, client_state: ClientState, index: int) -> int:
    """Return the replica that the router chooses for a request; `NOBODY`: none may take it now."""
    gateway = client_state.gateway
    if gateway is not None and goes_to_api(plane, gateway, index):
        return NOBODY
    if client_state.regions is not None or (gateway is not None and gateway.fair is not None):
        return choice_among(plane, client_state, index)
    if client_state.fleet_state is not None and not is_open(plane, index):
        return NOBODY
    return choice(plane, index)


def goes_to_api(plane: DataPlane, gateway: Gateway, index: int) -> bool:
    """Return whether a rule sends a request to the API."""
    return len(gateway.is_ruled) > 0 and gateway.is_ruled[plane.kinds[index]] != 0


def choice_among(plane: DataPlane, client_state: ClientState, index: int) -> int:
    """Return the replica that the router chooses among those that are near and have room; `NOBODY`: there is none."""
    numbers, pools, regions = client_state.open, client_state.open_pools, client_state.regions
    numbers.clear()
    pools.clear()
    if regions is not None:
        add_near(plane, regions, index, pools)
    elif plane.is_divided and plane.shares is not None:
        own = plane.parts[plane.kinds[index]].pools
        for position in range(len(own)):
            pools.append(own[position])
    elif plane.is_divided:
        add_open(plane, client_state, plane.parts[plane.kinds[index]].ready)
    else:
        add_open(plane, client_state, plane.ready)
    if pools:
        keep_open(plane, client_state)
        if plane.shares is not None and len(pools) > 1:
            pool = deal(plane.shares, pools)
            pools.clear()
            pools.append(pool)
        numbers.clear()
        for position in range(len(pools)):
            add_open(plane, client_state, plane.pools[pools[position]].ready)
    if not numbers:
        return NOBODY
    if plane.is_stale:
        return choose(plane.router, index, numbers, plane.seen)
    return choose(plane.router, index, numbers, plane.tokens if plane.weighs_tokens else plane.loads)


def keep_open(plane: DataPlane, client_state: ClientState) -> None:
    """Keep only the candidate pools in which a replica has room."""
    numbers, pools, kept = client_state.open, client_state.open_pools, 0
    for position in range(len(pools)):
        numbers.clear()
        add_open(plane, client_state, plane.pools[pools[position]].ready)
        if numbers:
            pools[kept] = pools[position]
            kept += 1
    while len(pools) > kept:
        pools.pop()


def add_open(plane: DataPlane, client_state: ClientState, ready: list[int]) -> None:
    """Add the replicas that have room for one more request: under fair turns they may have none."""
    gateway = client_state.gateway
    for position in range(len(ready)):
        number = ready[position]
        if gateway is not None and gateway.fair is not None:
            most = gateway.fair.max_outstanding
            if plane.loads[number] >= (num_seats_of(plane.replicas[number]) if most == NO_LIMIT else most):
                continue
        client_state.open.append(number)


def is_diverted(
    plane: DataPlane,
    client_state: ClientState,
    gateway: Gateway,
    requests: RequestTable,
    index: int,
    number: int,
    now: float,
) -> bool:
    """Return whether a request goes to the API instead of a replica (`NOBODY`: none is ready); if so, send it."""
    api = gateway.api
    if api is None:
        return False
    is_ruled = goes_to_api(plane, gateway, index)
    if not is_ruled:
        load = num_running = -1
        if number >= 0:
            load, num_running = plane.loads[number], num_running_at(plane.replicas[number])
        if not is_taken(api, index, load, num_running, num_at_gateway(client_state), now):
            return False
    seconds = seconds_to_wait(api, requests, index, now)
    if seconds > 0.0:
        api.num_limited += 1
        if api.when_limited == STAY and not is_ruled:
            return False
        if api.when_limited == REFUSE:
            client_state.refusals[API_LIMIT] += 1
            without_answer(plane, client_state, requests, index, now, REJECTED, API_LIMIT, now, seconds)
            return True
    _answer(client_state, gateway, index, answer_by_api(api, requests, index, now + seconds), API)
    return True


def num_at_gateway(client_state: ClientState) -> int:
    """Return how many requests wait in front of all replicas."""
    gateway, fleet_state = client_state.gateway, client_state.fleet_state
    if gateway is not None and gateway.fair is not None:
        return gateway.fair.num_parked
    return 0 if fleet_state is None else len(fleet_state.parked)


def _answer(client_state: ClientState, gateway: Gateway, index: int, answered_at: float, server: int) -> None:
    """Let a request be answered elsewhere."""
    gateway.served_by[index] = server
    client_state.place[index] = ELSEWHERE
    heappush(client_state.clients.events, (answered_at, ANSWER, index, client_state.clients.tries[index]))


def _refusal(plane: DataPlane, client_state: ClientState, number: int, index: int, now: float) -> int:
    """Return why a request is refused that goes to a replica, or waits in front of all (`NOBODY`)."""
    admission_control = client_state.admission_control
    if admission_control is None:
        return ADMITTED
    if number >= 0:
        return refusal(
            admission_control,
            index,
            plane.replicas[number],
            plane.loads[number],
            client_state.finishes[number].interval,
            now,
        )
    num_parked, seconds = num_at_gateway(client_state), 0.0
    gateway = client_state.gateway
    if gateway is not None and gateway.fair is not None:
        fair = gateway.fair
        num_parked, seconds = fair.num_waiting[fair.kinds[index]], seconds_before(fair, index)
    return refusal_at_gateway(admission_control, index, num_parked, seconds, now)


def hand_to(
    plane: DataPlane, client_state: ClientState, requests: RequestTable, number: int, index: int, now: float
) -> None:
    """Give a request to a replica, or let it wait for one (`NOBODY`)."""
    gateway = client_state.gateway
    if gateway is not None:
        gateway.served_by[index] = REPLICA
        fair = gateway.fair
        if fair is not None:
            begin_wait(fair, index, now)
            if number >= 0 and not fair.num_parked:
                take_in(plane, client_state, requests, number, index, now)
                charge_prompt(fair, requests, index)
                return
            # A request that waits already may come before it.
            client_state.place[index] = PARKED
            line_up(fair, index)
            if number >= 0:
                release(plane, client_state, gateway, requests, now)
            return
    if number < 0:
        park(client_state, index)
    else:
        take_in(plane, client_state, requests, number, index, now)


def hand_over(plane: DataPlane, client_state: ClientState, requests: RequestTable, index: int, now: float) -> None:
    """Route a request that has already been admitted."""
    hand_to(plane, client_state, requests, chosen(plane, client_state, index), index, now)


def lose(
    plane: DataPlane, client_state: ClientState, requests: RequestTable, index: int, reason: int, now: float
) -> None:
    """Retry a request whose replica is gone, or let it end."""
    if client_state.transfers is not None:
        forget(plane, client_state, requests, index, now)
    client_state.place[index] = NOWHERE
    if client_state.regions is not None:
        client_state.regions.arrives_at[index] = ARRIVED
    if reason == RETRIED:
        abandon(client_state.clients, requests, index, now)
        requests.ready_time[index] = now
        hand_over(plane, client_state, requests, index, now)
    else:
        without_answer(plane, client_state, requests, index, now, FAILED, reason, now, 0.0)


def offer_turn(client_state: ClientState, now: float) -> None:
    """Let waiting requests be routed after everything else of this instant, if there is room for them."""
    gateway = client_state.gateway
    if gateway is not None and gateway.fair is not None and gateway.fair.num_parked:
        heappush(client_state.clients.events, (now, TURN, NOBODY, 0))


def release(plane: DataPlane, client_state: ClientState, gateway: Gateway, requests: RequestTable, now: float) -> None:
    """Give waiting requests to replicas with room, in fair order."""
    while _release_one(plane, client_state, gateway, requests, now):
        pass


def _release_one(
    plane: DataPlane, client_state: ClientState, gateway: Gateway, requests: RequestTable, now: float
) -> bool:
    """Give the first request whose turn it is to a replica; False: no waiting request finds one with room."""
    fair = gateway.fair
    assert fair is not None
    for own in range(len(fair.tried)):
        fair.tried[own] = 0
    own = next_class(fair)
    while own != NOBODY:
        index = fair.first[own]
        number = choice_among(plane, client_state, index)
        if number >= 0:
            take_turn(fair, index, now)
            client_state.place[index] = NOWHERE
            take_in(plane, client_state, requests, number, index, now)
            charge_prompt(fair, requests, index)
            return True
        fair.tried[own] = 1
        own = next_class(fair)
    return False


def asks_again(
    plane: DataPlane,
    client_state: ClientState,
    gateway: Gateway,
    requests: RequestTable,
    number: int,
    index: int,
    now: float,
) -> bool:
    """Return whether a replica's new answer is not good enough, so that the request goes elsewhere."""
    if not len(gateway.is_ruled) or gateway.asked_again[index] or gateway.second[index] == NEVER:
        return False
    strike(plane.replicas[number], index)
    gateway.asked_again[index] = 1
    gateway.num_asked_again += 1
    gateway.discarded_tokens += requests.generated_tokens[index]
    for each in range(len(plane.loads)):
        replica = plane.replicas[each]
        for position in range(replica.num_ranks):
            cache = replica.ranks[position].cache
            if cache is not None:
                cache.paths.cached_tokens[index] = 0
    if gateway.fair is not None:
        charge_answer(gateway.fair, requests, index)
    plane.kinds[index] = gateway.second[index]
    abandon(client_state.clients, requests, index, now)
    requests.ready_time[index] = now
    # Between two replicas: other steps may still have to end at this instant.
    client_state.place[index] = ELSEWHERE
    heappush(client_state.clients.events, (now, TURN, index, client_state.clients.tries[index]))
    return True


def take_up(plane: DataPlane, client_state: ClientState, requests: RequestTable, index: int, now: float) -> None:
    """Route a request whose first answer was not good enough."""
    gateway = client_state.gateway
    assert gateway is not None
    client_state.place[index] = NOWHERE
    if goes_to_api(plane, gateway, index) and is_diverted(plane, client_state, gateway, requests, index, NOBODY, now):
        return
    hand_over(plane, client_state, requests, index, now)
