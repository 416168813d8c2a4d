"""The data plane where requests are turned away, given up and sent again, or replicas come and go.

Everything that happens at a time of its own is an event in one heap. What touches a replica inside a leap takes effect
at the end of the step that runs. At one instant steps end first, then events happen, then steps are planned. Runs
without any of that take `simserve.engine.data_plane`, with the same result.
"""

from __future__ import annotations

from heapq import heappop, heappush

from simserve.engine.attendance import (
    ELSEWHERE,
    HELD,
    NOWHERE,
    PARKED,
    Attendance,
    end,
    lacks_numbers,
    leave,
    next_moment,
    take_leaving,
    without_answer,
)
from simserve.engine.callers import ANSWER, ARRIVE, FIRST_BYTE, LAND, SUBMIT, TIMEOUT, TURN
from simserve.engine.data_parallel import (
    cancel,
    complete,
    end_leap,
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
from simserve.engine.door import note_finishes
from simserve.engine.entrance import arrive, asks_again, hand_over, lose, offer_turn, release, take_up
from simserve.engine.gateway import NOBODY, cut, step_out
from simserve.engine.judged import ASKS_SECONDS, take_judged_seconds
from simserve.engine.numbers import earliest_of, find_all, sort_ascending
from simserve.engine.outcomes import GAVE_UP, TIMED_OUT
from simserve.engine.presence import (
    ADMIT,
    HAND_OVER,
    LAND_AGAIN,
    LOSE,
    NO_ORDER,
    OFFER,
    Presence,
    call_if_awaited,
    see,
)
from simserve.engine.regions import ARRIVED, answered_at
from simserve.engine.state import COMPLETED, INFINITY, UNFINISHED, RequestTable
from simserve.engine.transfers import drop, land, may_step, restore_finished, send_on, take_to_reader


def happen(plane: DataPlane, attendance: Attendance, requests: RequestTable, now: float) -> None:
    """Let the next event happen: what the heap holds, or else the next arrival."""
    events = attendance.callers.events
    if not events or events[0][0] != now:
        index = plane.cursor
        plane.cursor = index + 1
        arrive(plane, attendance, requests, index, now)
        return
    _, kind, index, about = heappop(events)
    if kind == ARRIVE:
        arrive(plane, attendance, requests, index, now)
    elif kind == SUBMIT:
        see(plane, attendance, requests, about, index, now)
    elif kind == LAND:
        land(plane, attendance, requests, index, now)
    elif kind == TURN and index == NOBODY:
        if attendance.gateway is not None:
            release(plane, attendance, attendance.gateway, requests, now)
    elif kind in (ANSWER, TURN):
        if attendance.place[index] == ELSEWHERE and attendance.callers.tries[index] == about:
            if kind == TURN:
                take_up(plane, attendance, requests, index, now)
            else:
                attendance.place[index] = NOWHERE
                requests.status[index] = COMPLETED
                end(plane, attendance, requests, index, now, 0.0)
    elif requests.status[index] != UNFINISHED or attendance.callers.tries[index] != about:
        return
    elif kind == TIMEOUT or (kind == FIRST_BYTE and not requests.first_token_time[index] <= now):
        hang_up(plane, attendance, requests, index, now)


def hang_up(plane: DataPlane, attendance: Attendance, requests: RequestTable, index: int, now: float) -> None:
    """Drop a request whose client waits no longer, at the end of the step that runs; turns are taken after that."""
    drop_caller(plane, attendance, requests, index, now)
    offer_turn(attendance, now)


def drop_caller(plane: DataPlane, attendance: Attendance, requests: RequestTable, index: int, now: float) -> None:
    """Drop a request whose client waits no longer, at the end of the step that runs."""
    if attendance.transfers is not None and drop(plane, attendance, requests, index, now):
        without_answer(plane, attendance, requests, index, now, TIMED_OUT, GAVE_UP, now, 0.0)
        return
    place, presence = attendance.place[index], attendance.presence
    if place == NOWHERE or attendance.has_left[index]:
        return
    if place in (ELSEWHERE, PARKED):
        gateway = attendance.gateway
        if place == ELSEWHERE:
            cut(requests, index, now)
        elif gateway is not None and gateway.fair is not None:
            step_out(gateway.fair, index)
        elif presence is not None:
            presence.parked.remove(index)
        attendance.place[index] = NOWHERE
        without_answer(plane, attendance, requests, index, now, TIMED_OUT, GAVE_UP, now, 0.0)
        return
    if place <= HELD:
        number = HELD - place
        if attendance.regions is not None:
            attendance.regions.arrives_at[index] = ARRIVED
        leave(plane, attendance, requests, number, index)
        without_answer(plane, attendance, requests, index, now, TIMED_OUT, GAVE_UP, now, 0.0)
        if presence is not None and not plane.loads[number]:
            # No step runs where nobody is.
            call_if_awaited(plane, presence, number)
        return
    unit = plane.units[place]
    attendance.has_left[index] = 1
    attendance.leaving.append((place, index, now))
    attendance.num_leaving[place] += 1
    if end_leap(unit, now):
        plane.ends[place] = unit.end_time
    else:
        # A plan is due at this very instant: it is made without the request.
        complete_unit(plane, attendance, requests, place, now)


def complete_unit(plane: DataPlane, attendance: Attendance, requests: RequestTable, number: int, now: float) -> None:
    """End the step of a replica: answers go out, and whoever has hung up goes."""
    unit, transfers, presence = plane.units[number], attendance.transfers, attendance.presence
    gateway = attendance.gateway
    if presence is not None and num_steps_of(unit):
        presence.busy_seconds[number] += now - start_time_of(unit)
    if attendance.delivery is not None:
        note_leap(attendance.delivery, number, unit, now)
    num_finished = complete(unit, requests)
    if num_finished:
        plane.loads[number] -= num_finished
        plane.num_finished += num_finished
        if transfers is not None:
            restore_finished(plane, transfers, requests, number)
        if plane.notes_finishes:
            for position in range(unit.num_ranks):
                note_finished(plane, requests, number, unit.ranks[position])
            if len(plane.finished) > 1:
                sort_ascending(plane.finished)
        door = attendance.door
        if door is not None and door.has_patience:
            note_finishes(attendance.finishes[number], num_finished, num_running_at(unit), now)
    if attendance.num_leaving[number]:
        take_leaving(attendance, number)
    going = attendance.going
    for position in range(len(going)):
        index, _ = going[position]
        if requests.status[index] == UNFINISHED:
            cancel(unit, requests, index)
            leave(plane, attendance, requests, number, index)
        else:
            # It has finished in this very step, and may come back.
            strike(unit, index)
    if num_finished:
        if plane.notes_finishes:
            for position in range(len(plane.finished)):
                index = plane.finished[position]
                if attendance.has_left[index]:
                    continue
                if transfers is not None and send_on(plane, attendance, requests, number, index, now):
                    continue
                if gateway is None or not asks_again(plane, attendance, gateway, requests, number, index, now):
                    # The API server may have it for longer.
                    answered = max(now, requests.finish_time[index])
                    if attendance.regions is not None:
                        answered = answered_at(attendance.regions, requests, index, number, answered)
                    end(plane, attendance, requests, index, answered, 0.0)
            plane.finished.clear()
        else:
            attendance.callers.num_ended += num_finished
    for position in range(len(going)):
        index, decided_at = going[position]
        attendance.place[index] = NOWHERE
        attendance.has_left[index] = 0
        attendance.lost_tokens += requests.generated_tokens[index]
        without_answer(plane, attendance, requests, index, decided_at, TIMED_OUT, GAVE_UP, now, 0.0)
    going.clear()
    if gateway is not None:
        offer_turn(attendance, now)
    if presence is not None:
        call_if_awaited(plane, presence, number)


def carry_out(plane: DataPlane, attendance: Attendance, presence: Presence, requests: RequestTable) -> None:
    """Do what the plane has been told to."""
    order, subject, now = presence.order, presence.subject, presence.time
    presence.order = NO_ORDER
    if order == HAND_OVER:
        hand_over(plane, attendance, requests, subject, now)
    elif order == OFFER:
        offer_turn(attendance, now)
    elif order == LOSE:
        lose(plane, attendance, requests, subject, presence.reason, now)
    elif order == ADMIT:
        assert attendance.transfers is not None
        take_to_reader(plane, attendance, attendance.transfers, requests, subject, now)
    elif order == LAND_AGAIN:
        land_again(attendance, subject)
    else:
        complete_unit(plane, attendance, requests, subject, now)


def land_again(attendance: Attendance, index: int) -> None:
    """Let a KV cache land when its link, whose pace has changed, has sent it."""
    transfers = attendance.transfers
    assert transfers is not None
    landing = (transfers.transfer_end[index], LAND, index, transfers.prefill_replica[index])
    heappush(attendance.callers.events, landing)


def drive_events(plane: DataPlane, requests: RequestTable, until: float) -> int:
    """Advance to ``until`` (exclusive), or until there are chores, random numbers to be drawn among them.

    Return `REACHED` or `CHORES`, as of `simserve.engine.driver.driver`, or `CALLED`: replicas that come and go must be
    looked after. Where there is an order for the plane, it is carried out, and nothing else.
    """
    attendance = plane.attendance
    assert attendance is not None
    presence = attendance.presence
    if presence is not None and presence.order:
        carry_out(plane, attendance, presence, requests)
        return REACHED
    ends, units, due = plane.ends, plane.units, plane.due
    draws, transfers = attendance.draws, attendance.transfers
    countdown = EVENTS_BETWEEN_CHORES
    instant, num_ended = attendance.mid_time, attendance.mid_position
    attendance.mid_time = -1.0
    while True:
        if instant < 0.0:
            if draws and lacks_numbers(plane, attendance):
                return CHORES
            instant = earliest_of(ends)
            moment = next_moment(plane, attendance, requests)
            if moment < instant:
                if moment >= until:
                    return REACHED
                if moment >= plane.renew_at:
                    renew(plane, moment)
                if presence is not None:
                    presence.time = moment
                happen(plane, attendance, requests, moment)
                if presence is not None and presence.calls:
                    return CALLED
                instant = -1.0
                continue
            if instant >= until or instant == INFINITY:
                return REACHED
            if instant >= plane.renew_at:
                renew(plane, instant)
            find_all(ends, instant, due)
            num_ended = 0
        if presence is not None:
            presence.time = instant
        while num_ended < len(due):
            complete_unit(plane, attendance, requests, due[num_ended], instant)
            num_ended += 1
            if presence is not None and presence.calls:
                attendance.mid_time, attendance.mid_position = instant, num_ended
                return CALLED
        while next_moment(plane, attendance, requests) == instant:
            if draws and lacks_numbers(plane, attendance):
                attendance.mid_time, attendance.mid_position = instant, num_ended
                return CHORES
            happen(plane, attendance, requests, instant)
            if presence is not None and presence.calls:
                attendance.mid_time, attendance.mid_position = instant, num_ended
                return CALLED
        for position in range(num_ended):
            number = due[position]
            unit = units[number]
            is_frozen = presence is not None and presence.marks[number] & FROZEN != 0
            is_due = unit.end_time == instant and not is_frozen
            if is_due and transfers is not None:
                is_due = may_step(plane, attendance, transfers, requests, number, instant)
            if is_due:
                plan(unit, requests)
                if attendance.asks & ASKS_SECONDS:
                    take_judged_seconds(attendance, unit)
            ends[number] = INFINITY if is_frozen else unit.end_time
        instant = -1.0
        # Every rank writes down what it does.
        countdown -= units[due[0]].num_ranks
        if countdown <= 0:
            return CHORES
