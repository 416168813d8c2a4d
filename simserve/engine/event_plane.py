"""The data plane where requests are turned away, given up and sent again, or replicas come and go.

Everything that happens at a time of its own is an event in one heap. What touches a replica inside a leap takes effect
at the end of the step that runs. At one instant steps end first, then events happen, then steps are planned. Runs
without any of that take `simserve.engine.data_plane`, with the same result.
"""

from __future__ import annotations

from heapq import heappop, heappush

from simserve.engine.admission_control import note_finishes
from simserve.engine.client_state import (
    ELSEWHERE,
    HELD,
    NOWHERE,
    PARKED,
    ClientState,
    end,
    lacks_numbers,
    leave,
    next_moment,
    take_leaving,
    without_answer,
)
from simserve.engine.clients import ANSWER, ARRIVE, FIRST_BYTE, LAND, SUBMIT, TIMEOUT, TURN
from simserve.engine.data_parallel import (
    cancel,
    complete,
    end_leap,
    note_sent_tokens,
    num_running_at,
    num_steps_of,
    plan,
    start_time_of,
    strike,
)
from simserve.engine.data_plane import (
    CALLED,
    CHORES,
    EVENTS_BETWEEN_CHORES,
    FROZEN,
    REACHED,
    DataPlane,
    note_finished,
    renew,
)
from simserve.engine.delivery import note_leap
from simserve.engine.entrance import arrive, asks_again, hand_over, lose, offer_turn, release, take_up
from simserve.engine.fleet_state import (
    ADMIT,
    BREAK_OFF,
    HAND_OVER,
    LAND_AGAIN,
    LOSE,
    NO_ORDER,
    OFFER,
    FleetState,
    call_if_awaited,
    see,
)
from simserve.engine.gateway import NOBODY, cut, step_out
from simserve.engine.judged import ASKS_SECONDS, take_judged_seconds
from simserve.engine.numbers import earliest_of, find_all, sort_ascending
from simserve.engine.outcomes import GAVE_UP, TIMED_OUT
from simserve.engine.regions import ARRIVED, answered_at
from simserve.engine.state import COMPLETED, INFINITY, UNFINISHED, RequestTable
from simserve.engine.transfers import drop, land, may_step, restore_finished, send_on, take_to_reader


def happen(plane: DataPlane, client_state: ClientState, requests: RequestTable, now: float) -> None:
    """Let the next event happen: what the heap holds, or else the next arrival."""
    events = client_state.clients.events
    if not events or events[0][0] != now:
        index = plane.cursor
        plane.cursor = index + 1
        arrive(plane, client_state, requests, index, now)
        return
    _, kind, index, about = heappop(events)
    if kind == ARRIVE:
        arrive(plane, client_state, requests, index, now)
    elif kind == SUBMIT:
        see(plane, client_state, requests, about, index, now)
    elif kind == LAND:
        land(plane, client_state, requests, index, now)
    elif kind == TURN and index == NOBODY:
        if client_state.gateway is not None:
            release(plane, client_state, client_state.gateway, requests, now)
    elif kind in (ANSWER, TURN):
        if client_state.place[index] == ELSEWHERE and client_state.clients.tries[index] == about:
            if kind == TURN:
                take_up(plane, client_state, requests, index, now)
            else:
                client_state.place[index] = NOWHERE
                requests.status[index] = COMPLETED
                end(plane, client_state, requests, index, now, 0.0)
    elif requests.status[index] != UNFINISHED or client_state.clients.tries[index] != about:
        return
    elif kind == TIMEOUT or (kind == FIRST_BYTE and not requests.first_token_time[index] <= now):
        hang_up(plane, client_state, requests, index, now)


def hang_up(plane: DataPlane, client_state: ClientState, requests: RequestTable, index: int, now: float) -> None:
    """Drop a request whose client waits no longer, at the end of the step that runs; turns are taken after that."""
    drop_caller(plane, client_state, requests, index, now)
    offer_turn(client_state, now)


def drop_caller(plane: DataPlane, client_state: ClientState, requests: RequestTable, index: int, now: float) -> None:
    """Drop a request whose client waits no longer, at the end of the step that runs."""
    if client_state.transfers is not None and drop(plane, client_state, requests, index, now):
        without_answer(plane, client_state, requests, index, now, TIMED_OUT, GAVE_UP, now, 0.0)
        return
    place, fleet_state = client_state.place[index], client_state.fleet_state
    if place == NOWHERE or client_state.has_left[index]:
        return
    if place in (ELSEWHERE, PARKED):
        gateway = client_state.gateway
        if place == ELSEWHERE:
            cut(requests, index, now)
        elif gateway is not None and gateway.fair is not None:
            step_out(gateway.fair, index)
        elif fleet_state is not None:
            fleet_state.parked.remove(index)
        client_state.place[index] = NOWHERE
        without_answer(plane, client_state, requests, index, now, TIMED_OUT, GAVE_UP, now, 0.0)
        return
    if place <= HELD:
        number = HELD - place
        if client_state.regions is not None:
            client_state.regions.arrives_at[index] = ARRIVED
        leave(plane, client_state, requests, number, index)
        without_answer(plane, client_state, requests, index, now, TIMED_OUT, GAVE_UP, now, 0.0)
        if fleet_state is not None and not plane.loads[number]:
            # No step runs where nobody is.
            call_if_awaited(plane, fleet_state, number)
        return
    replica = plane.replicas[place]
    client_state.has_left[index] = 1
    client_state.leaving.append((place, index, now))
    client_state.num_leaving[place] += 1
    if end_leap(replica, now):
        plane.ends[place] = replica.end_time
    else:
        # A plan is due at this very instant: it is made without the request.
        complete_unit(plane, client_state, requests, place, now)


def complete_unit(plane: DataPlane, client_state: ClientState, requests: RequestTable, number: int, now: float) -> None:
    """End the step of a replica: answers go out, and whoever has hung up goes."""
    replica, transfers, fleet_state = plane.replicas[number], client_state.transfers, client_state.fleet_state
    gateway = client_state.gateway
    if fleet_state is not None and num_steps_of(replica):
        fleet_state.busy_seconds[number] += now - start_time_of(replica)
    if client_state.delivery is not None:
        note_leap(client_state.delivery, number, replica, now)
    num_finished = complete(replica, requests)
    if num_finished:
        plane.loads[number] -= num_finished
        plane.num_finished += num_finished
        if transfers is not None:
            restore_finished(plane, transfers, requests, number)
        if plane.notes_finishes:
            for position in range(replica.num_ranks):
                note_finished(plane, requests, number, replica.ranks[position])
            if len(plane.finished) > 1:
                sort_ascending(plane.finished)
        admission_control = client_state.admission_control
        if admission_control is not None and admission_control.has_patience:
            note_finishes(client_state.finishes[number], num_finished, num_running_at(replica), now)
    if client_state.num_leaving[number]:
        take_leaving(client_state, number)
    going = client_state.going
    for position in range(len(going)):
        index, _ = going[position]
        if requests.status[index] == UNFINISHED:
            cancel(replica, requests, index)
            leave(plane, client_state, requests, number, index)
        else:
            # It has finished in this very step, and may come back.
            strike(replica, index)
    if num_finished:
        if plane.notes_finishes:
            for position in range(len(plane.finished)):
                index = plane.finished[position]
                if client_state.has_left[index]:
                    continue
                if transfers is not None and send_on(plane, client_state, requests, number, index, now):
                    continue
                if gateway is None or not asks_again(plane, client_state, gateway, requests, number, index, now):
                    # The API server may have it for longer.
                    answered = max(now, requests.finish_time[index])
                    if client_state.regions is not None:
                        answered = answered_at(client_state.regions, requests, index, number, answered)
                    end(plane, client_state, requests, index, answered, 0.0)
            plane.finished.clear()
        else:
            client_state.clients.num_ended += num_finished
    for position in range(len(going)):
        index, decided_at = going[position]
        client_state.place[index] = NOWHERE
        client_state.has_left[index] = 0
        client_state.lost_tokens += requests.generated_tokens[index]
        without_answer(plane, client_state, requests, index, decided_at, TIMED_OUT, GAVE_UP, now, 0.0)
    going.clear()
    if gateway is not None:
        offer_turn(client_state, now)
    if fleet_state is not None:
        call_if_awaited(plane, fleet_state, number)


def carry_out(plane: DataPlane, client_state: ClientState, fleet_state: FleetState, requests: RequestTable) -> None:
    """Do what the plane has been told to."""
    order, subject, now = fleet_state.order, fleet_state.subject, fleet_state.time
    fleet_state.order = NO_ORDER
    if order == HAND_OVER:
        hand_over(plane, client_state, requests, subject, now)
    elif order == OFFER:
        offer_turn(client_state, now)
    elif order == LOSE:
        lose(plane, client_state, requests, subject, fleet_state.reason, now)
    elif order == ADMIT:
        assert client_state.transfers is not None
        take_to_reader(plane, client_state, client_state.transfers, requests, subject, now)
    elif order == LAND_AGAIN:
        land_again(client_state, subject)
    elif order == BREAK_OFF:
        note_sent_tokens(plane.replicas[subject], requests)
    else:
        complete_unit(plane, client_state, requests, subject, now)


def land_again(client_state: ClientState, index: int) -> None:
    """Let a KV cache land when its link, whose pace has changed, has sent it."""
    transfers = client_state.transfers
    assert transfers is not None
    landing = (transfers.transfer_end[index], LAND, index, transfers.prefill_replica[index])
    heappush(client_state.clients.events, landing)


def drive_events(plane: DataPlane, requests: RequestTable, until: float) -> int:
    """Advance to ``until`` (exclusive), or until there are chores, random numbers to be drawn among them.

    Return `REACHED` or `CHORES`, as of `simserve.engine.driver.driver`, or `CALLED`: replicas that come and go must be
    looked after. Where there is an order for the plane, it is carried out, and nothing else.
    """
    client_state = plane.client_state
    assert client_state is not None
    fleet_state = client_state.fleet_state
    if fleet_state is not None and fleet_state.order:
        carry_out(plane, client_state, fleet_state, requests)
        return REACHED
    ends, replicas, due = plane.ends, plane.replicas, plane.due
    draws, transfers = client_state.draws, client_state.transfers
    countdown = EVENTS_BETWEEN_CHORES
    instant, num_ended = client_state.mid_time, client_state.mid_position
    client_state.mid_time = -1.0
    while True:
        if instant < 0.0:
            if draws and lacks_numbers(plane, client_state):
                return CHORES
            instant = earliest_of(ends)
            moment = next_moment(plane, client_state, requests)
            if moment < instant:
                if moment >= until:
                    return REACHED
                if moment >= plane.renew_at:
                    renew(plane, moment)
                if fleet_state is not None:
                    fleet_state.time = moment
                happen(plane, client_state, requests, moment)
                if fleet_state is not None and fleet_state.calls:
                    return CALLED
                instant = -1.0
                continue
            if instant >= until or instant == INFINITY:
                return REACHED
            if instant >= plane.renew_at:
                renew(plane, instant)
            find_all(ends, instant, due)
            num_ended = 0
        if fleet_state is not None:
            fleet_state.time = instant
        while num_ended < len(due):
            complete_unit(plane, client_state, requests, due[num_ended], instant)
            num_ended += 1
            if fleet_state is not None and fleet_state.calls:
                client_state.mid_time, client_state.mid_position = instant, num_ended
                return CALLED
        while next_moment(plane, client_state, requests) == instant:
            if draws and lacks_numbers(plane, client_state):
                client_state.mid_time, client_state.mid_position = instant, num_ended
                return CHORES
            happen(plane, client_state, requests, instant)
            if fleet_state is not None and fleet_state.calls:
                client_state.mid_time, client_state.mid_position = instant, num_ended
                return CALLED
        for position in range(num_ended):
            number = due[position]
            replica = replicas[number]
            is_frozen = fleet_state is not None and fleet_state.marks[number] & FROZEN != 0
            is_due = replica.end_time == instant and not is_frozen
            if is_due and transfers is not None:
                is_due = may_step(plane, client_state, transfers, requests, number, instant)
            if is_due:
                plan(replica, requests)
                if client_state.asks & ASKS_SECONDS:
                    take_judged_seconds(client_state, replica)
            ends[number] = INFINITY if is_frozen else replica.end_time
        instant = -1.0
        # Every rank writes down what it does.
        countdown -= replicas[due[0]].num_ranks
        if countdown <= 0:
            return CHORES
