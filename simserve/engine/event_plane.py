"""The data plane where requests are turned away, given up and sent again: the same replicas, and an event for each.

Everything that happens at a time of its own is an event in one heap. What touches a replica inside a leap takes effect
at the end of the step that runs. At one instant steps end first, then events happen, then steps are planned. Runs
without any of that take `simserve.engine.data_plane`, with the same result.
"""

from __future__ import annotations

from array import array
from heapq import heappop, heappush

from simserve.engine.callers import (
    ARRIVE,
    FIRST_BYTE,
    SUBMIT,
    TIMEOUT,
    Callers,
    put,
    send_again,
    wait_for,
)
from simserve.engine.cancel import cancel, end_leap
from simserve.engine.conversations import Conversations, following, ready_after
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
from simserve.engine.delivery import Delivery, note_leap, seconds_to_client
from simserve.engine.door import Door, Finishes, end_pause, note_finishes, refusal
from simserve.engine.kernel import complete, plan, seen_time, submit
from simserve.engine.numbers import earliest_of, find_all, sort_ascending
from simserve.engine.outcomes import ADMITTED, DEADLINE, GAVE_UP, REJECTED, TIMED_OUT
from simserve.engine.state import FAILED, INFINITY, UNFINISHED, RequestTable
from simserve.engine.uniforms import num_left

NOWHERE = -1
_HELD = -2
"""Of a request that its replica's scheduler, which works ahead, has yet to see: this less the number of the replica."""

AT_DOOR, TO_ROUTE, TO_PAUSE = 1, 2, 4
"""What may take random numbers; flags."""
NUMBERS_TO_ROUTE = 2
"""Most that a request takes."""


class Attendance:
    """What a plane knows of its clients beside who serves them.

    Args:
        callers: The clients.
        door: Who is turned away; None: nobody.
        num_units: Replicas of the plane.
        delivery: How long answers are on their way to clients that wait for them; None: they hear of them at once.

    Attributes:
        draws: What takes random numbers: the flags above, added.
        place: Of each request the replica that it is at, `NOWHERE`, or that it is held back from.
        has_left: 1 where a client has hung up, and the request leaves at the end of the running step.
        leaving: Those requests: (replica, request, when that was decided), in the order of deciding.
        num_leaving: How many of them at each replica.
        going: Those who leave at the instant at hand.
        refusals: How often each reason was the answer at the door, repeated tries included.
        finishes: How fast each replica finishes requests, where the door goes by it.
        lost_tokens: Tokens generated for requests that were then given up.
        mid_time: The instant that a drive stopped in, to be given random numbers; negative: in none.
    """

    __slots__ = (
        "callers",
        "delivery",
        "door",
        "draws",
        "finishes",
        "going",
        "has_left",
        "leaving",
        "lost_tokens",
        "mid_time",
        "num_leaving",
        "place",
        "refusals",
    )

    def __init__(self, callers: Callers, door: Door | None, num_units: int, delivery: Delivery | None = None) -> None:
        self.callers, self.door, self.delivery, self.draws = callers, door, delivery, 0
        num_requests = len(callers.tries)
        self.place = array("i", [NOWHERE]) * num_requests
        self.has_left = array("b", [0]) * num_requests
        self.leaving: list[tuple[int, int, float]] = []
        self.num_leaving = [0] * num_units
        self.going: list[tuple[int, float]] = []
        self.refusals = array("q", [0]) * (max(DEADLINE, GAVE_UP) + 1)
        self.finishes = [Finishes(0.0) for _ in range(num_units)]
        self.lost_tokens = 0
        self.mid_time = -1.0


def next_moment(plane: DataPlane, attendance: Attendance, requests: RequestTable) -> float:
    """Return when the next event or arrival happens; infinity: none is to come."""
    events = attendance.callers.events
    moment = events[0][0] if events else INFINITY
    if plane.cursor < plane.num_scheduled:
        return min(moment, requests.ready_time[plane.cursor])
    return moment


def lacks_numbers(plane: DataPlane, attendance: Attendance) -> bool:
    """Return whether random numbers might run out before the next event is over.

    Those who leave take one each for the pause before they try again, and so does whoever is refused.
    """
    door, draws = attendance.door, attendance.draws
    if draws & AT_DOOR and door is not None and num_left(door.uniforms) < 1:
        return True
    if draws & TO_ROUTE and num_left(plane.router.uniforms) < NUMBERS_TO_ROUTE:
        return True
    needed = len(attendance.leaving) + 1
    return bool(draws & TO_PAUSE) and num_left(attendance.callers.patience.uniforms) < needed


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
        if attendance.place[index] == _HELD - about:
            attendance.place[index] = about
            unit = plane.units[about]
            submit(unit, requests, index, now)
            plane.ends[about] = unit.end_time
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
    if plane.schedules_ahead:
        time = seen_time(unit, now)
        if time > now:
            plane.ends[number] = unit.end_time
            attendance.place[index] = _HELD - number
            heappush(attendance.callers.events, (time, SUBMIT, index, number))
            return
    submit(unit, requests, index, now)
    plane.ends[number] = unit.end_time


def without_answer(
    plane: DataPlane,
    attendance: Attendance,
    requests: RequestTable,
    index: int,
    now: float,
    status: int,
    reason: int,
    free_at: float,
    retry_after: float,
) -> None:
    """Let a client react at ``now`` to an attempt that came to nothing: it tries again, or that was it.

    Args:
        plane: The plane.
        attendance: Its clients.
        requests: The table.
        index: The request.
        now: When the client knows.
        status: What becomes of the request if it gives up.
        reason: Why.
        free_at: When the server has let go.
        retry_after: Seconds to wait at least, as a refusal says.
    """
    if send_again(attendance.callers, requests, index, now, free_at, retry_after):
        return
    requests.status[index] = status
    requests.reason[index] = reason
    requests.finish_time[index] = now
    end(plane, attendance, requests, index, now, free_at)


def end(
    plane: DataPlane, attendance: Attendance, requests: RequestTable, index: int, now: float, not_before: float
) -> None:
    """Note that a request has come to its end ``now``, and send what follows in its conversation.

    That arrives no sooner than ``not_before``.
    """
    callers, conversations = attendance.callers, plane.conversations
    callers.num_ended += 1
    if conversations is None:
        return
    if attendance.delivery is not None:
        now += seconds_to_client(attendance.delivery, requests, index)
    group = following(conversations, index, now)
    if group < 0:
        return
    for each in range(conversations.edges[group], conversations.edges[group + 1]):
        ready = ready_after(conversations, each, now)
        send(callers, requests, conversations, each, max(ready, not_before))


def send(callers: Callers, requests: RequestTable, conversations: Conversations, index: int, ready_time: float) -> None:
    """Let a request of a conversation, which has just been sent for the first time, arrive at ``ready_time``."""
    callers.sent_at[index] = conversations.arrival_time[index]
    put(callers, requests, index, ready_time)


def hang_up(plane: DataPlane, attendance: Attendance, requests: RequestTable, index: int, now: float) -> None:
    """Drop a request whose client waits no longer, at the end of the step that runs."""
    place = attendance.place[index]
    if place == NOWHERE or attendance.has_left[index]:
        return
    if place <= _HELD:
        leave(plane, attendance, requests, _HELD - place, index)
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


def leave(plane: DataPlane, attendance: Attendance, requests: RequestTable, number: int, index: int) -> None:
    """Count a request no longer at a replica."""
    attendance.place[index] = NOWHERE
    plane.loads[number] -= 1
    if plane.weighs_tokens:
        plane.tokens[number] -= requests.prompt_tokens[index] + requests.max_tokens[index]


def complete_unit(plane: DataPlane, attendance: Attendance, requests: RequestTable, number: int, now: float) -> None:
    """End the step of a replica: answers go out, and whoever has hung up goes."""
    unit = plane.units[number]
    if attendance.delivery is not None:
        note_leap(attendance.delivery, number, unit, unit.num_scheduled_decodes, now)
    num_finished = complete(unit, requests)
    if num_finished:
        plane.loads[number] -= num_finished
        plane.num_finished += num_finished
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
        # Others have finished in this very step.
        if requests.status[index] == UNFINISHED:
            cancel(unit, requests, index)
            leave(plane, attendance, requests, number, index)
    if num_finished:
        if plane.notes_finishes:
            for position in range(len(plane.finished)):
                index = plane.finished[position]
                if not attendance.has_left[index]:
                    end(plane, attendance, requests, index, now, 0.0)
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


def take_leaving(attendance: Attendance, number: int) -> None:
    """Put those who leave a replica into ``going``, in their order."""
    leaving, going = attendance.leaving, attendance.going
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
    attendance.num_leaving[number] = 0


def drive_events(plane: DataPlane, requests: RequestTable, until: float) -> int:
    """Advance to ``until`` (exclusive), or until there are chores, random numbers to be drawn among them.

    Return `REACHED` or `CHORES`, as of `simserve.engine.driver.driver`.
    """
    attendance = plane.attendance
    assert attendance is not None
    ends, units, due = plane.ends, plane.units, plane.due
    draws = attendance.draws
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
            plan(unit, requests)
            ends[number] = unit.end_time
        instant = -1.0
        countdown -= 1
        if not countdown:
            return CHORES
