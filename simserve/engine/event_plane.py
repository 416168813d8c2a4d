"""The data plane where requests are turned away, given up and sent again: the same replicas, and an event for each.

Everything that happens at a time of its own is an event in one heap. What touches a replica inside a leap takes effect
at the end of the step that runs. At one instant steps end first, then events happen, then steps are planned. Runs
without any of that take `simserve.engine.data_plane`, with the same result.
"""

from __future__ import annotations

from heapq import heappop, heappush

from simserve.engine.attendance import (
    HELD,
    NOWHERE,
    Attendance,
    end,
    lacks_numbers,
    leave,
    next_moment,
    take_leaving,
    without_answer,
)
from simserve.engine.callers import ARRIVE, FIRST_BYTE, LAND, SUBMIT, TIMEOUT, wait_for
from simserve.engine.cancel import cancel, end_leap
from simserve.engine.data_plane import (
    CHORES,
    EVENTS_BETWEEN_CHORES,
    REACHED,
    DataPlane,
    choice,
    count_at,
    note_finished,
    renew,
)
from simserve.engine.delivery import note_leap
from simserve.engine.door import end_pause, note_finishes, refusal
from simserve.engine.handover import strike
from simserve.engine.kernel import complete, plan, seen_time, submit
from simserve.engine.numbers import earliest_of, find_all, sort_ascending
from simserve.engine.outcomes import ADMITTED, GAVE_UP, REJECTED, TIMED_OUT
from simserve.engine.state import FAILED, INFINITY, UNFINISHED, RequestTable
from simserve.engine.transfers import begin, drop, land, may_step, restore_finished, send_on


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
        if attendance.place[index] == HELD - about:
            attendance.place[index] = about
            unit = plane.units[about]
            submit(unit, requests, index, now)
            plane.ends[about] = unit.end_time
    elif kind == LAND:
        land(plane, attendance, requests, index, now)
    elif requests.status[index] != UNFINISHED or attendance.callers.tries[index] != about:
        return
    elif kind == TIMEOUT or (kind == FIRST_BYTE and not requests.first_token_time[index] <= now):
        hang_up(plane, attendance, requests, index, now)


def arrive(plane: DataPlane, attendance: Attendance, requests: RequestTable, index: int, now: float) -> None:
    """Turn a request away, or hand it to the replica that the router chooses."""
    if requests.status[index] == FAILED:
        end(plane, attendance, requests, index, now, 0.0)
        return
    wait_for(attendance.callers, index, now)
    number = choice(plane, index)
    unit = plane.units[number]
    door = attendance.door
    if door is not None:
        load = plane.loads[number]
        finishes = attendance.finishes[number]
        reason = refusal(door, index, unit, load, finishes.interval, now)
        if reason != ADMITTED:
            attendance.refusals[reason] += 1
            without_answer(plane, attendance, requests, index, now, REJECTED, reason, now, door.retry_after)
            return
        if not load and door.has_patience:
            end_pause(finishes, now)
    count_at(plane, requests, number, index)
    attendance.place[index] = number
    if attendance.transfers is not None:
        begin(attendance.transfers, requests, number, index)
    if plane.schedules_ahead:
        time = seen_time(unit, now)
        if time > now:
            plane.ends[number] = unit.end_time
            attendance.place[index] = HELD - number
            heappush(attendance.callers.events, (time, SUBMIT, index, number))
            return
    submit(unit, requests, index, now)
    plane.ends[number] = unit.end_time


def hang_up(plane: DataPlane, attendance: Attendance, requests: RequestTable, index: int, now: float) -> None:
    """Drop a request whose client waits no longer, at the end of the step that runs."""
    if attendance.transfers is not None and drop(plane, attendance, requests, index, now):
        without_answer(plane, attendance, requests, index, now, TIMED_OUT, GAVE_UP, now, 0.0)
        return
    place = attendance.place[index]
    if place == NOWHERE or attendance.has_left[index]:
        return
    if place <= HELD:
        leave(plane, attendance, requests, HELD - place, index)
        without_answer(plane, attendance, requests, index, now, TIMED_OUT, GAVE_UP, now, 0.0)
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
    unit, transfers = plane.units[number], attendance.transfers
    if attendance.delivery is not None:
        note_leap(attendance.delivery, number, unit, unit.num_scheduled_decodes, now)
    num_finished = complete(unit, requests)
    if num_finished:
        plane.loads[number] -= num_finished
        plane.num_finished += num_finished
        if transfers is not None:
            restore_finished(plane, transfers, requests, number)
        if plane.notes_finishes:
            note_finished(plane, requests, number)
            if len(plane.finished) > 1:
                sort_ascending(plane.finished)
        door = attendance.door
        if door is not None and door.has_patience:
            note_finishes(attendance.finishes[number], num_finished, unit.num_running, now)
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
                if transfers is None or not send_on(plane, attendance, requests, number, index, now):
                    # The API server may have it for longer.
                    end(plane, attendance, requests, index, max(now, requests.finish_time[index]), 0.0)
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


def drive_events(plane: DataPlane, requests: RequestTable, until: float) -> int:
    """Advance to ``until`` (exclusive), or until there are chores, random numbers to be drawn among them.

    Return `REACHED` or `CHORES`, as of `simserve.engine.driver.driver`.
    """
    attendance = plane.attendance
    assert attendance is not None
    ends, units, due = plane.ends, plane.units, plane.due
    draws, transfers = attendance.draws, attendance.transfers
    countdown = EVENTS_BETWEEN_CHORES
    instant = attendance.mid_time
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
                happen(plane, attendance, requests, moment)
                instant = -1.0
                continue
            if instant >= until or instant == INFINITY:
                return REACHED
            if instant >= plane.renew_at:
                renew(plane, instant)
            find_all(ends, instant, due)
            for position in range(len(due)):
                complete_unit(plane, attendance, requests, due[position], instant)
        while next_moment(plane, attendance, requests) == instant:
            if draws and lacks_numbers(plane, attendance):
                attendance.mid_time = instant
                return CHORES
            happen(plane, attendance, requests, instant)
        for position in range(len(due)):
            number = due[position]
            unit = units[number]
            if transfers is None or may_step(plane, transfers, requests, number, instant):
                plan(unit, requests)
            ends[number] = unit.end_time
        instant = -1.0
        countdown -= 1
        if not countdown:
            return CHORES
