"""The data plane of equal replicas behind a built-in router, advanced event by event to the next decision.

Ties at one instant are ordered finish, arrival, plan. It knows arrivals and schedulers; what to do with those who
finish, and with what the schedulers have written down, is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from simserve.engine.numbers import earliest_of, find_all, least_of
from simserve.engine.state import FAILED, INFINITY, RequestTable

REACHED, NEWS, CHORES = range(3)
"""Why `drive` returns: the time is up or nothing is left; requests finished that somebody listens to; it is time to
look after what has gathered."""

EVENTS_BETWEEN_CHORES = 4096


class DataPlane:
    """Who serves, who is to come, and the router between them.

    Attributes:
        units: Replicas, or the ranks of one together.
        ends: When the plan of each ends, seconds.
        loads: Requests at each, held back ones included.
        due: Units whose plans end at the instant at hand.
        cursor: Open loop: requests that have arrived so far.
        num_scheduled: Open loop: how many arrive in all, in the order of the table.
        sent: Closed loop: a heap of (ready time, request).
        inbox: What is to go there, for compiled code, whose heaps nobody else touches.
        held: Those who reach a scheduler that works ahead after its next step began: a heap of (time, request, unit).
        failed: Requests that were refused, where `lists_failures`.
        turn: Whose turn it is, round robin.
        routes_least: Whether the router looks for the fewest requests (ties: the lowest unit) instead.
        schedules_ahead: Whether the schedulers work a step ahead.
        has_listener: Whether `drive` returns at the instant of every finish.
        num_finished: Requests that have completed.
    """

    __slots__ = (
        "cursor",
        "due",
        "ends",
        "failed",
        "has_listener",
        "held",
        "inbox",
        "lists_failures",
        "loads",
        "num_finished",
        "num_scheduled",
        "num_units",
        "routes_least",
        "schedules_ahead",
        "sent",
        "turn",
        "units",
    )

    def __init__(self, units: list[Any], routes_least: bool, schedules_ahead: bool) -> None:
        self.units = units
        self.num_units = len(units)
        self.ends = [INFINITY] * len(units)
        self.loads = [0] * len(units)
        self.due: list[int] = []
        self.cursor = 0
        self.num_scheduled = 0
        self.sent: list[tuple[float, int]] = []
        self.inbox: list[tuple[float, int]] = []
        self.held: list[tuple[float, int, int]] = []
        self.failed: list[int] = []
        self.lists_failures = False
        self.turn = 0
        self.routes_least = routes_least and len(units) > 1
        self.schedules_ahead = schedules_ahead
        self.has_listener = False
        self.num_finished = 0


def next_ready(plane: DataPlane, requests: RequestTable) -> float:
    """Return when the next request reaches the cluster or its scheduler; infinity: none is to come."""
    ready = INFINITY
    if plane.cursor < plane.num_scheduled:
        ready = requests.ready_time[plane.cursor]
    elif plane.sent:
        ready = plane.sent[0][0]
    return min(ready, plane.held[0][0]) if plane.held else ready


def driver(
    submit: Callable[[Any, RequestTable, int, float], None],
    complete: Callable[[Any, RequestTable], int],
    plan: Callable[[Any, RequestTable], None],
    seen: Callable[[Any, float], float],
) -> Callable[[DataPlane, RequestTable, float], int]:
    """Return `drive` over units that these four functions move."""

    def hand_over(plane: DataPlane, requests: RequestTable, number: int, index: int, now: float) -> None:
        unit = plane.units[number]
        submit(unit, requests, index, now)
        plane.ends[number] = unit.end_time

    def admit(plane: DataPlane, requests: RequestTable, now: float) -> None:
        """Route the next arrival and hand it to its unit, or hand over one that was held back."""
        if plane.held and plane.held[0][0] == now:
            _, index, number = heappop(plane.held)
            hand_over(plane, requests, number, index, now)
            return
        if plane.cursor < plane.num_scheduled:
            index = plane.cursor
            plane.cursor = index + 1
        else:
            index = heappop(plane.sent)[1]
        if requests.status[index] == FAILED:
            if plane.lists_failures:
                plane.failed.append(index)
            return
        loads = plane.loads
        if plane.routes_least:
            number = least_of(loads)
        else:
            number = plane.turn
            plane.turn = number + 1 if number + 1 < plane.num_units else 0
        loads[number] += 1
        if plane.schedules_ahead:
            unit = plane.units[number]
            time = seen(unit, now)
            if time > now:
                plane.ends[number] = unit.end_time
                heappush(plane.held, (time, index, number))
                return
        hand_over(plane, requests, number, index, now)

    def drive(plane: DataPlane, requests: RequestTable, until: float) -> int:
        """Advance to ``until`` (exclusive), or to the first instant at which a request finishes that is listened to.

        In a listened-to instant the arrivals and plans of that instant are still to come: call again.

        Returns:
            `REACHED`, `NEWS` or `CHORES`.
        """
        ends, units, loads, due = plane.ends, plane.units, plane.loads, plane.due
        ready_times, statuses, num_scheduled = requests.ready_time, requests.status, plane.num_scheduled
        is_single = plane.num_units == 1
        is_plain = is_single and not plane.schedules_ahead
        while plane.inbox:
            heappush(plane.sent, plane.inbox.pop())
        has_news = False
        countdown = EVENTS_BETWEEN_CHORES
        only = units[0]
        ready = next_ready(plane, requests)
        while True:
            end = only.end_time if is_single else earliest_of(ends)
            if ready < end:
                if ready >= until:
                    return REACHED
                cursor = plane.cursor
                if is_plain and cursor < num_scheduled:
                    # Nothing to route, nothing to look up: the path of most requests of most runs.
                    plane.cursor = cursor + 1
                    if statuses[cursor] != FAILED:
                        loads[0] += 1
                        submit(only, requests, cursor, ready)
                    cursor += 1
                else:
                    admit(plane, requests, ready)
                    if plane.failed:
                        return NEWS
                    cursor = plane.cursor
                ready = ready_times[cursor] if is_plain and cursor < num_scheduled else next_ready(plane, requests)
                continue
            if end >= until or end == INFINITY:
                return REACHED
            if is_single:
                num_finished = complete(only, requests)
                if num_finished:
                    loads[0] -= num_finished
                    plane.num_finished += num_finished
                    has_news = plane.has_listener
            else:
                find_all(ends, end, due)
                for position in range(len(due)):
                    number = due[position]
                    num_finished = complete(units[number], requests)
                    if num_finished:
                        loads[number] -= num_finished
                        plane.num_finished += num_finished
                        has_news = plane.has_listener
            if has_news:
                return NEWS
            while ready == end:
                admit(plane, requests, ready)
                if plane.failed:
                    return NEWS
                ready = next_ready(plane, requests)
            if is_single:
                plan(only, requests)
            else:
                for position in range(len(due)):
                    number = due[position]
                    unit = units[number]
                    plan(unit, requests)
                    ends[number] = unit.end_time
            countdown -= 1
            if not countdown:
                return CHORES

    return drive
