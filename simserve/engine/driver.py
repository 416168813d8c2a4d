"""Driving the data plane, event by event, to the next decision: arrivals, steps that end, and plans.

Ties at one instant are ordered finish, arrival, plan; before them the router looks at the replicas, where it does so
only now and then.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from simserve.engine.data_plane import (
    CHORES,
    EVENTS_BETWEEN_CHORES,
    REACHED,
    DataPlane,
    answer,
    next_ready,
    note_finished,
    renew,
    route,
)
from simserve.engine.numbers import SEVERAL, earliest_of, find_all, find_one, least_of, sort_ascending
from simserve.engine.order import (
    arrange_loads,
    arrange_times,
    find_first,
    first_time,
    has_order,
    least_load,
    note_load,
    note_time,
)
from simserve.engine.state import FAILED, INFINITY, RequestTable


def driver(
    submit: Callable[[Any, RequestTable, int, float], None],
    complete: Callable[[Any, RequestTable], int],
    plan: Callable[[Any, RequestTable], None],
    seen: Callable[[Any, float], float],
) -> Callable[[DataPlane, RequestTable, float], int]:
    """Return `drive` over replicas of one rank each, which these four functions move."""

    def hand_over(plane: DataPlane, requests: RequestTable, number: int, index: int, now: float) -> float:
        """Hand a request to a replica and return when its plan ends, which is no later than before."""
        replica = plane.ranks[number]
        submit(replica, requests, index, now)
        return moved_end(plane, number, replica.end_time)

    def moved_end(plane: DataPlane, number: int, end: float) -> float:
        """Note when the plan of a replica ends now; return that."""
        plane.ends[number] = end
        if has_order(plane.num_schedulers):
            note_time(plane.end_order, number, end)
        return end

    def admit(plane: DataPlane, requests: RequestTable, now: float) -> float:
        """Route the next arrival and hand it to its replica, or hand over one that was held back.

        Returns:
            When the plan of that replica ends; infinity: there is none.
        """
        if plane.held and plane.held[0][0] == now:
            _, index, number = heappop(plane.held)
            return hand_over(plane, requests, number, index, now)
        if plane.cursor < plane.num_scheduled:
            index = plane.cursor
            plane.cursor = index + 1
        else:
            index = heappop(plane.sent)[1]
        if requests.status[index] == FAILED:
            if plane.conversations is not None:
                answer(plane, requests, index)
            return INFINITY
        number = route(plane, requests, index)
        if plane.routes_least and has_order(plane.num_schedulers):
            note_load(plane.load_order, number, plane.loads[number])
        if plane.schedules_ahead:
            replica = plane.ranks[number]
            time = seen(replica, now)
            if time > now:
                heappush(plane.held, (time, index, number))
                return moved_end(plane, number, replica.end_time)
        return hand_over(plane, requests, number, index, now)

    def drive(plane: DataPlane, requests: RequestTable, until: float) -> int:
        """Advance to ``until`` (exclusive), or until there are chores; return `REACHED` or `CHORES`."""
        ends, replicas, loads, due = plane.ends, plane.ranks, plane.loads, plane.due
        ready_times, statuses, num_scheduled = requests.ready_time, requests.status, plane.num_scheduled
        notes_finishes, renew_at = plane.notes_finishes, plane.renew_at
        is_single, routes_least, schedules_ahead = plane.num_schedulers == 1, plane.routes_least, plane.schedules_ahead
        is_ordered = has_order(plane.num_schedulers)
        ranks_loads = is_ordered and routes_least
        end_order, load_order = plane.end_order, plane.load_order
        if is_ordered:
            arrange_times(end_order, ends)
            if ranks_loads:
                arrange_loads(load_order, loads)
        limit = min(until, renew_at)
        sent = plane.sent
        # Only what is sent is to come.
        is_sent = num_scheduled == 0 and not schedules_ahead
        number = 0
        countdown = EVENTS_BETWEEN_CHORES
        ready = next_ready(plane, requests)
        end = first_time(end_order, ends) if is_ordered else earliest_of(ends)
        while True:
            if ready < end:
                if ready >= limit:
                    if ready >= until:
                        return REACHED
                    renew_at = renew(plane, ready)
                    limit = min(until, renew_at)
                cursor = plane.cursor
                if cursor < num_scheduled and not schedules_ahead:
                    # Nothing to look up and nobody to hold back: the path of most requests of most runs.
                    plane.cursor = cursor + 1
                    if statuses[cursor] != FAILED:
                        if is_single:
                            number = 0
                            loads[0] += 1
                        elif ranks_loads:
                            number = least_load(load_order, loads)
                            loads[number] += 1
                            note_load(load_order, number, loads[number])
                        elif routes_least:
                            number = least_of(loads)
                            loads[number] += 1
                        else:
                            number = route(plane, requests, cursor)
                        replica = replicas[number]
                        submit(replica, requests, cursor, ready)
                        unit_end = replica.end_time
                        if is_ordered and unit_end != ends[number]:
                            note_time(end_order, number, unit_end)
                        ends[number] = unit_end
                        if unit_end < end:
                            end = unit_end
                    cursor += 1
                    ready = ready_times[cursor] if cursor < num_scheduled else next_ready(plane, requests)
                else:
                    unit_end = admit(plane, requests, ready)
                    if unit_end < end:
                        end = unit_end
                    ready = (sent[0][0] if sent else INFINITY) if is_sent else next_ready(plane, requests)
                continue
            if end >= limit:
                if end >= until:
                    return REACHED
                renew_at = renew(plane, end)
                limit = min(until, renew_at)
            number = 0 if is_single else find_first(end_order, ends) if is_ordered else find_one(ends, end)
            if number >= 0:
                replica = replicas[number]
                num_finished = complete(replica, requests)
                if num_finished:
                    loads[number] -= num_finished
                    if ranks_loads:
                        note_load(load_order, number, loads[number])
                    plane.num_finished += num_finished
                    if notes_finishes:
                        note_finished(plane, requests, number, replicas[number])
            else:
                find_all(ends, end, due)
                for position in range(len(due)):
                    number = due[position]
                    num_finished = complete(replicas[number], requests)
                    if num_finished:
                        loads[number] -= num_finished
                        if ranks_loads:
                            note_load(load_order, number, loads[number])
                        plane.num_finished += num_finished
                        if notes_finishes:
                            note_finished(plane, requests, number, replicas[number])
                number = SEVERAL
            if notes_finishes and plane.finished:
                if plane.conversations is not None:
                    if len(plane.finished) > 1:
                        sort_ascending(plane.finished)
                    for position in range(len(plane.finished)):
                        answer(plane, requests, plane.finished[position])
                    ready = (sent[0][0] if sent else INFINITY) if is_sent else next_ready(plane, requests)
                plane.finished.clear()
            while ready == end:
                admit(plane, requests, ready)
                ready = next_ready(plane, requests)
            if number >= 0:
                plan(replica, requests)
                unit_end = ends[number] = replica.end_time
                if is_ordered:
                    note_time(end_order, number, unit_end)
            else:
                for position in range(len(due)):
                    number = due[position]
                    replica = replicas[number]
                    plan(replica, requests)
                    unit_end = ends[number] = replica.end_time
                    if is_ordered:
                        note_time(end_order, number, unit_end)
            end = replica.end_time if is_single else first_time(end_order, ends) if is_ordered else earliest_of(ends)
            countdown -= 1
            if not countdown:
                return CHORES

    return drive
