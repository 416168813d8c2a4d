"""Presence: what a data plane knows of replicas that come and go, and what it is told to do between two drives.

Who comes and goes is decided elsewhere. The plane calls where a step has ended that somebody waits for; what touches
schedulers, routes or clients is an order to it, carried out where they are: compiled code has no other way in.
"""

from __future__ import annotations

from array import array
from heapq import heappush

from simserve.engine.attendance import HELD, NOWHERE, PARKED, Attendance
from simserve.engine.callers import SUBMIT
from simserve.engine.data_parallel import seen_time, submit
from simserve.engine.data_plane import DataPlane, count_at
from simserve.engine.door import end_pause
from simserve.engine.paces import use_pace
from simserve.engine.regions import ARRIVED, set_off
from simserve.engine.state import RequestTable
from simserve.engine.transfers import begin

CALLS, DRAINS, FROZEN = 1, 2, 4
"""Marks of a replica: it calls when its step ends; it calls when it holds nothing any more; it does nothing."""
NO_ORDER, HAND_OVER, LOSE, SETTLE, OFFER = range(5)
"""Orders: route a request; a replica that held a request is gone; end the step of a replica on which none runs; let
those whose turn it is be routed."""
RETRIED = -1
"""Instead of a reason for a loss: the router sends the request elsewhere, and its client knows nothing."""


class Presence:
    """Replicas that come and go, beside what the plane knows of them.

    Attributes:
        marks: Of each replica, the flags above.
        calls: Replicas that somebody must look after before anything else happens.
        called_at: When the last of them called, seconds.
        parked: Requests that wait for a replica to be ready, in the order of their coming.
        joined: Of each request, the how manieth it was to join a replica.
        num_joined: How many have.
        last_joined: Of each replica, the request that joined it last; -1: none.
        busy_seconds: Of each replica, seconds of its steps so far.
        notes_ends: Whether somebody asks which requests have ended.
        ended: Those since it was last asked.
        order: What is to be done at the next call of the drive, which then does nothing else.
        subject: Which request, or replica, that is about.
        reason: Of a loss, or `RETRIED`.
        time: When, seconds.
    """

    __slots__ = (
        "busy_seconds",
        "called_at",
        "calls",
        "ended",
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

    def __init__(self, num_requests: int, num_units: int, *, notes_ends: bool) -> None:
        self.marks = [0] * num_units
        self.last_joined = [NOWHERE] * num_units
        self.busy_seconds = [0.0] * num_units
        self.calls: list[int] = []
        self.called_at = 0.0
        self.parked: list[int] = []
        self.joined = array("q", [0]) * num_requests
        self.num_joined = 0
        self.notes_ends = notes_ends
        self.ended: list[int] = []
        self.order, self.subject, self.reason, self.time = NO_ORDER, 0, 0, 0.0


def is_open(plane: DataPlane, index: int) -> bool:
    """Return whether a replica is there that may take a request."""
    return len(plane.parts[plane.kinds[index]].ready) > 0


def park(attendance: Attendance, index: int) -> None:
    """Let a request wait for a replica to be ready."""
    assert attendance.presence is not None
    attendance.place[index] = PARKED
    attendance.presence.parked.append(index)


def take_in(
    plane: DataPlane, attendance: Attendance, requests: RequestTable, number: int, index: int, now: float
) -> None:
    """Give a request to a replica; a scheduler that works ahead may see it later."""
    door, presence = attendance.door, attendance.presence
    if door is not None and door.has_patience and not plane.loads[number]:
        end_pause(attendance.finishes[number], now)
    if attendance.paces is not None:
        use_pace(attendance.paces, requests, number, index)
    count_at(plane, requests, number, index)
    if presence is not None:
        presence.num_joined += 1
        presence.joined[index] = presence.num_joined
        presence.last_joined[number] = index
    regions = attendance.regions
    if regions is not None:
        set_off(regions, index, number, now)
        attendance.place[index] = HELD - number
        heappush(attendance.callers.events, (regions.arrives_at[index], SUBMIT, index, number))
        return
    attendance.place[index] = number
    enter(plane, attendance, requests, number, index, now)


def enter(
    plane: DataPlane, attendance: Attendance, requests: RequestTable, number: int, index: int, now: float
) -> None:
    """Let a request reach the scheduler of its replica."""
    unit, presence = plane.units[number], attendance.presence
    if attendance.transfers is not None:
        begin(attendance.transfers, requests, number, index)
    if plane.schedules_ahead and unit.ranks[0].config.async_scheduling:
        time = seen_time(unit, now)
        if time > now:
            plane.ends[number] = unit.end_time
            attendance.place[index] = HELD - number
            heappush(attendance.callers.events, (time, SUBMIT, index, number))
            return
    submit(unit, requests, index, now)
    if presence is None or not presence.marks[number] & FROZEN:
        plane.ends[number] = unit.end_time


def see(plane: DataPlane, attendance: Attendance, requests: RequestTable, number: int, index: int, now: float) -> None:
    """Let a scheduler see a request that is on its way to it, or that it was to see later, if it is still wanted."""
    if attendance.place[index] != HELD - number:
        return
    regions = attendance.regions
    if regions is not None and regions.arrives_at[index] != ARRIVED:
        if regions.arrives_at[index] == now:
            regions.arrives_at[index] = ARRIVED
            requests.ready_time[index] = now
            attendance.place[index] = number
            enter(plane, attendance, requests, number, index, now)
        # Else it is the news of an attempt that was given up on the way.
        return
    attendance.place[index] = number
    unit, presence = plane.units[number], attendance.presence
    submit(unit, requests, index, now)
    if presence is None or not presence.marks[number] & FROZEN:
        plane.ends[number] = unit.end_time


def call_if_awaited(plane: DataPlane, presence: Presence, number: int, now: float) -> None:
    """Call for a replica whose step has ended, or that holds one request less, if somebody waits for that."""
    mark = presence.marks[number]
    if mark & CALLS or (mark & DRAINS and not plane.loads[number]):
        presence.calls.append(number)
        presence.called_at = now
