"""Driving the data plane from event to event, up to the next decision: arrivals, ends of steps, clients, replicas.

Events with a time of their own are in one heap; arrivals at times known beforehand are in the request table. Whatever
affects a replica inside a leap takes effect at the end of the running step. At one instant steps end first, then events
happen, then steps are planned; before them the router looks at the replicas, if it does so only periodically. If
nothing happens but arrivals and ends of steps, the loop checks nothing else.

Which of many replicas is first, or has the least load: kept in an order while times and loads change.

For few replicas a look at all is faster, as in `simserve.engine.numbers`. Python keeps heaps in which outdated entries
stay until they come to the top; compiled code keeps tournaments (`simserve.engine.compiled.replacements`). Both give
the same answers.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Any, cast

from simserve.engine.admission_control import GAVE_UP, TIMED_OUT, note_finishes
from simserve.engine.client_state import end, lacks_numbers, leave, take_leaving, without_answer
from simserve.engine.clients import (
    ANSWER,
    ARRIVE,
    FIRST_BYTE,
    LAND,
    PARSE,
    SEND,
    SUBMIT,
    TIMEOUT,
    TURN,
    is_at_encoders,
    line_up,
    next_to_come,
    note_leap,
    parse_together,
    tokenize,
)
from simserve.engine.conversations import deadline_of
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
from simserve.engine.data_plane import CALLED, CHORES, EVENTS_BETWEEN_CHORES, REACHED, note_finished, renew, route
from simserve.engine.entrance import arrive, asks_again, hand_over, leave_out, lose, offer_turn, release, take_up
from simserve.engine.fleet_state import call_if_awaited, see
from simserve.engine.gateway import NOBODY, cut, step_out
from simserve.engine.judged import take_judged_seconds
from simserve.engine.kernel import complete as complete_rank
from simserve.engine.kernel import plan as plan_rank
from simserve.engine.kernel import seen_time as seen_by_rank
from simserve.engine.kernel import submit as submit_to_rank
from simserve.engine.numbers import SEVERAL, earliest_of, find_all, find_one, least_of, sort_ascending
from simserve.engine.plane_state import (
    ADMIT,
    ARRIVED,
    ASKS_SECONDS,
    BREAK_OFF,
    ELSEWHERE,
    FROZEN,
    HAND_OVER,
    HELD,
    LAND_AGAIN,
    LOSE,
    NO_ORDER,
    NOWHERE,
    OFFER,
    PARKED,
    Clients,
    ClientState,
    DataPlane,
    FleetState,
)
from simserve.engine.routing import answered_at
from simserve.engine.state import COMPLETED, FAILED, INFINITY, MASK, SHIFT, STATIC, UNFINISHED, RequestTable
from simserve.engine.transfers import drop, is_releasing, land, may_step, restore_finished, send_on, take_to_reader


def happen(plane: DataPlane, client_state: ClientState, requests: RequestTable, now: float) -> None:
    """Process the next event: from the heap, or else the next arrival."""
    index = take_arriving(plane, client_state.clients, requests, now)
    if index != NOBODY:
        arrive(plane, client_state, requests, index, now)
        return
    _, kind, index, about = heappop(client_state.clients.events)
    if kind == SEND:
        take_sent(plane, client_state, requests, index, now)
    elif kind == ARRIVE:
        if not is_at_encoders(client_state.clients, requests, about, now):
            arrive(plane, client_state, requests, about, now)
    elif kind == PARSE:
        parse_together(client_state.clients, requests, now)
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


def take_arriving(plane: DataPlane, clients: Clients, requests: RequestTable, now: float) -> int:
    """Take the request that reaches the router next, if it does so ``now``; `NOBODY`: something else happens first."""
    events = clients.events
    if events and events[0][0] == now and events[0][1] == SEND:
        return NOBODY
    index = clients.first
    if index != NOBODY:
        if requests.ready_time[index] != now:
            return NOBODY
        clients.first = clients.behind[index]
        return index
    index = plane.cursor
    if index < plane.num_scheduled and requests.ready_time[index] == now:
        plane.cursor = index + 1
        return index
    return NOBODY


def take_sent(plane: DataPlane, client_state: ClientState, requests: RequestTable, index: int, now: float) -> None:
    """Start a request that is sent ``now`` on its way to the router, unless its task is over."""
    clients, conversations = client_state.clients, plane.conversations
    if conversations is not None and clients.sent_at[index] >= deadline_of(conversations, index):
        leave_out(plane, client_state, conversations, requests, index, now)
        return
    if plane.cursor < plane.num_scheduled:
        let_in_between(plane, clients, requests, index, now)
    else:
        tokenize(clients, requests, index, now)


def let_in_between(plane: DataPlane, clients: Clients, requests: RequestTable, index: int, now: float) -> None:
    """Tokenise a request that is sent ``now`` among those whose sending times were known beforehand."""
    cursor, end, ready_times = plane.cursor, plane.num_scheduled, requests.ready_time
    while cursor < end and (clients.sent_at[cursor] < now or (clients.sent_at[cursor] == now and cursor < index)):
        line_up(clients, cursor)
        clients.tokenized_at = ready_times[cursor]
        cursor += 1
    plane.cursor = cursor
    tokenize(clients, requests, index, now)
    while cursor < end and ready_times[cursor] < clients.tokenized_at:
        ready_times[cursor] = clients.tokenized_at
        cursor += 1


def hang_up(plane: DataPlane, client_state: ClientState, requests: RequestTable, index: int, now: float) -> None:
    """Drop a request whose client no longer waits, at the end of the running step; turns are taken after that."""
    drop_caller(plane, client_state, requests, index, now)
    offer_turn(client_state, now)


def drop_caller(plane: DataPlane, client_state: ClientState, requests: RequestTable, index: int, now: float) -> None:
    """Drop a request whose client no longer waits, at the end of the running step."""
    if client_state.transfers is not None and drop(plane, client_state, requests, index, now):
        without_answer(plane, client_state, requests, index, now, TIMED_OUT, GAVE_UP, now, 0.0)
        return
    place, fleet_state = client_state.place[index], client_state.fleet_state
    if place == NOWHERE or client_state.has_left[index]:
        return
    if place in (ELSEWHERE, PARKED):
        gateway = client_state.gateway
        if place == ELSEWHERE:
            if gateway is not None:
                cut(gateway, requests, index, now)
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
            # An empty replica runs no step.
            call_if_awaited(plane, fleet_state, number)
        return
    replica = plane.replicas[place]
    client_state.has_left[index] = 1
    client_state.leaving.append((place, index, now))
    client_state.num_leaving[place] += 1
    if end_leap(replica, now):
        plane.ends[place] = replica.end_time
    else:
        # A plan is due at this same instant: it is made without the request.
        complete_unit(plane, client_state, requests, place, now)


def complete_unit(plane: DataPlane, client_state: ClientState, requests: RequestTable, number: int, now: float) -> None:
    """End the step of a replica: deliver answers, and remove requests whose clients have hung up."""
    replica, transfers, fleet_state = plane.replicas[number], client_state.transfers, client_state.fleet_state
    gateway = client_state.gateway
    if fleet_state is not None and num_steps_of(replica):
        fleet_state.busy_seconds[number] += now - start_time_of(replica)
    if client_state.delivery is not None:
        note_leap(client_state.delivery, number, replica, now)
    num_finished = complete(replica, requests)
    if num_finished:
        plane.loads[number] -= num_finished
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
            # It has finished in this same step, and may come back.
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
                    # The API server may hold it longer.
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
    """Carry out the order given to the plane."""
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
    """Let a KV cache land once its link, whose pace has changed, has sent it."""
    transfers = client_state.transfers
    assert transfers is not None
    landing = (transfers.transfer_end[index], LAND, index, transfers.prefill_replica[index])
    heappush(client_state.clients.events, landing)


def next_moment(plane: DataPlane, client_state: ClientState, requests: RequestTable) -> float:
    """Return when the next event or arrival happens; infinity: there is none."""
    clients = client_state.clients
    events = clients.events
    moment = events[0][0] if events else INFINITY
    if clients.first != NOBODY:
        # Arrivals at times known beforehand were sent after it.
        return min(moment, requests.ready_time[clients.first])
    if plane.cursor < plane.num_scheduled:
        return min(moment, requests.ready_time[plane.cursor])
    return moment


def is_undisturbed(plane: DataPlane, client_state: ClientState) -> bool:
    """Return whether nothing happens but arrivals and ends of steps, on replicas of one rank that stay."""
    patience, conversations = client_state.clients.patience, plane.conversations
    if conversations is not None and conversations.has_limits:
        return False
    if patience.has_timeouts or patience.first_byte_timeout < INFINITY or plane.has_ranks:
        return False
    if client_state.admission_control is not None or client_state.gateway is not None or client_state.asks:
        return False
    if client_state.delivery is not None or client_state.regions is not None or client_state.paces is not None:
        return False
    if client_state.clients.num_encoders:
        return False
    return client_state.transfers is None and client_state.fleet_state is None


def take_next(plane: DataPlane, client_state: ClientState, requests: RequestTable, now: float) -> int:
    """Let the next request of an undisturbed run arrive, or be seen by its scheduler.

    Returns:
        The replica whose plan may now end at another time; `NOBODY`: none.
    """
    clients = client_state.clients
    index = take_arriving(plane, clients, requests, now)
    if index == NOBODY:
        _, kind, index, about = heappop(clients.events)
        if kind == SEND:
            tokenize(clients, requests, index, now)
            return NOBODY
        if kind == PARSE:
            parse_together(clients, requests, now)
            return NOBODY
        index = about
        if kind == SUBMIT:
            number = HELD - client_state.place[index]
            submit_to_rank(plane.ranks[number], requests, index, now)
            return number
    if requests.status[index] == FAILED:
        end(plane, client_state, requests, index, now, 0.0)
        return NOBODY
    number = route(plane, requests, index)
    if plane.routes_least and has_order(plane.num_schedulers):
        note_load(plane.load_order, number, plane.loads[number])
    rank = plane.ranks[number]
    if plane.schedules_ahead and rank.config.async_scheduling and rank.mode != STATIC:
        time = seen_by_rank(rank, now, False)
        if time > now:
            client_state.place[index] = HELD - number
            heappush(clients.events, (time, SUBMIT, next_to_come(clients, index), index))
            return number
    submit_to_rank(rank, requests, index, now)
    return number


def complete_undisturbed(plane: DataPlane, client_state: ClientState, requests: RequestTable, number: int) -> None:
    """End the step of a replica in an undisturbed run; record which requests have finished if that is needed."""
    rank = plane.ranks[number]
    num_finished = complete_rank(rank, requests)
    if num_finished:
        plane.loads[number] -= num_finished
        if plane.routes_least and has_order(plane.num_schedulers):
            note_load(plane.load_order, number, plane.loads[number])
        if plane.notes_finishes:
            note_finished(plane, requests, number, rank)
        if plane.conversations is None:
            client_state.clients.num_ended += num_finished


def answer_finished(plane: DataPlane, client_state: ClientState, requests: RequestTable) -> None:
    """Send what follows the requests of an undisturbed run that have finished at the current instant."""
    finished = plane.finished
    if plane.conversations is not None:
        if len(finished) > 1:
            sort_ascending(finished)
        for position in range(len(finished)):
            index = finished[position]
            end(plane, client_state, requests, index, requests.finish_time[index], 0.0)
    finished.clear()


def drive(plane: DataPlane, requests: RequestTable, until: float) -> int:
    """Advance to ``until`` (exclusive), or until there are chores, such as random numbers to be drawn.

    Return `REACHED`, `CHORES`, or `CALLED`: replicas that come and go must be handled. If there is an order for the
    plane, it is carried out, and nothing else.
    """
    client_state = plane.client_state
    fleet_state = client_state.fleet_state
    if fleet_state is not None and fleet_state.order:
        carry_out(plane, client_state, fleet_state, requests)
        return REACHED
    ends, replicas, ranks, loads, due = plane.ends, plane.replicas, plane.ranks, plane.loads, plane.due
    ready_times, statuses = requests.ready_time, requests.status
    draws, transfers, num_schedulers = client_state.draws, client_state.transfers, plane.num_schedulers
    is_plain = is_undisturbed(plane, client_state)
    routes_least = plane.routes_least
    is_single, is_ordered = is_plain and num_schedulers == 1, is_plain and has_order(num_schedulers)
    end_order, load_order = plane.end_order, plane.load_order
    if is_ordered:
        arrange_times(end_order, ends)
        if routes_least:
            arrange_loads(load_order, loads)
    # Requests that arrive at times known beforehand, with no event of the heap between them.
    num_in_row = plane.num_scheduled if is_plain and not plane.schedules_ahead else 0
    limit, countdown = min(until, plane.renew_at), EVENTS_BETWEEN_CHORES
    instant, num_ended = client_state.mid_time, client_state.mid_position
    is_amid = instant >= 0.0
    client_state.mid_time = -1.0
    moment = next_moment(plane, client_state, requests)
    if not is_amid:
        instant = first_time(end_order, ends) if is_ordered else earliest_of(ends)
    while True:
        number = SEVERAL
        if not is_amid:
            if draws and lacks_numbers(plane, client_state):
                return CHORES
            if moment < instant:
                if moment >= limit:
                    if moment >= until:
                        return REACHED
                    limit = min(until, renew(plane, moment))
                cursor = plane.cursor
                if cursor < num_in_row:
                    plane.cursor = cursor + 1
                    if statuses[cursor] == FAILED:
                        end(plane, client_state, requests, cursor, moment, 0.0)
                    else:
                        if is_single:
                            number = 0
                            loads[0] += 1
                        elif routes_least:
                            number = least_load(load_order, loads) if is_ordered else least_of(loads)
                            loads[number] += 1
                            if is_ordered:
                                note_load(load_order, number, loads[number])
                        else:
                            number = route(plane, requests, cursor)
                        rank = ranks[number]
                        submit_to_rank(rank, requests, cursor, moment)
                        plan_end = rank.end_time
                        if is_ordered and plan_end != ends[number]:
                            note_time(end_order, number, plan_end)
                        ends[number] = plan_end
                        if plan_end < instant:
                            instant = plan_end
                    cursor += 1
                    moment = ready_times[cursor] if cursor < num_in_row else INFINITY
                elif is_plain:
                    number = take_next(plane, client_state, requests, moment)
                    if number >= 0:
                        plan_end = ends[number] = ranks[number].end_time
                        if is_ordered:
                            note_time(end_order, number, plan_end)
                        if plan_end < instant:
                            instant = plan_end
                    moment = next_moment(plane, client_state, requests)
                else:
                    if fleet_state is not None:
                        fleet_state.time = moment
                    happen(plane, client_state, requests, moment)
                    if fleet_state is not None and fleet_state.calls:
                        return CALLED
                    moment = next_moment(plane, client_state, requests)
                    instant = earliest_of(ends)
                continue
            if instant >= limit:
                if instant >= until:
                    return REACHED
                limit = min(until, renew(plane, instant))
            if is_plain:
                number = 0 if is_single else find_first(end_order, ends) if is_ordered else find_one(ends, instant)
            if number < 0:
                find_all(ends, instant, due)
            num_ended = 0
        is_amid = False
        if is_plain:
            if number >= 0:
                complete_undisturbed(plane, client_state, requests, number)
            else:
                for position in range(len(due)):
                    complete_undisturbed(plane, client_state, requests, due[position])
            if plane.finished:
                answer_finished(plane, client_state, requests)
                moment = next_moment(plane, client_state, requests)
            while moment == instant:
                changed = take_next(plane, client_state, requests, instant)
                if changed >= 0:
                    ends[changed] = ranks[changed].end_time
                    if is_ordered:
                        note_time(end_order, changed, ends[changed])
                moment = next_moment(plane, client_state, requests)
            if number >= 0:
                rank = ranks[number]
                plan_rank(rank, requests)
                plan_end = ends[number] = rank.end_time
                if is_ordered:
                    note_time(end_order, number, plan_end)
            else:
                for position in range(len(due)):
                    rank = ranks[due[position]]
                    plan_rank(rank, requests)
                    plan_end = ends[due[position]] = rank.end_time
                    if is_ordered:
                        note_time(end_order, due[position], plan_end)
            instant = ends[0] if is_single else first_time(end_order, ends) if is_ordered else earliest_of(ends)
            countdown -= 1
            if not countdown:
                return CHORES
            continue
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
            is_awaited = False
            if is_due and transfers is not None:
                is_due = may_step(plane, client_state, transfers, requests, number, instant)
                is_awaited = is_due and is_releasing(transfers, replica, number)
            if is_due:
                plan(replica, requests)
                if is_awaited:
                    end_leap(replica, instant)
                if client_state.asks & ASKS_SECONDS:
                    take_judged_seconds(client_state, replica)
            ends[number] = INFINITY if is_frozen else replica.end_time
        moment, instant = next_moment(plane, client_state, requests), earliest_of(ends)
        countdown -= replicas[due[0]].num_ranks
        if countdown <= 0:
            return CHORES


_LEAST_UNITS = 24
"""Number of replicas from which on a heap finds the first faster than a look at all."""


def has_order(num_schedulers: int) -> bool:
    """Return whether keeping an order is worthwhile for this many replicas."""
    return num_schedulers >= _LEAST_UNITS


def arrange_times(order: list[Any], times: list[float]) -> None:
    """Give ``order`` the times, in whatever form the next three functions need."""
    order[:] = [(time, position) for position, time in enumerate(times) if time < INFINITY]
    heapify(order)


def note_time(order: list[Any], position: int, time: float) -> None:
    """Tell ``order`` that the time at a position has changed."""
    if time < INFINITY:
        heappush(order, (time, position))


def first_time(order: list[Any], times: list[float]) -> float:
    """Return the smallest of ``times``, if ``order`` knows of all changes; infinity: there is none."""
    while order:
        time, position = order[0]
        if times[position] == time:
            return cast(float, time)
        heappop(order)
    return INFINITY


def find_first(order: list[Any], times: list[float]) -> int:
    """Return the position of the `first_time` just returned; `SEVERAL`: there is more than one.

    The entry at that position is removed: it must be recorded again.
    """
    entry = heappop(order)
    while order and (order[0] == entry or times[order[0][1]] != order[0][0]):
        heappop(order)
    if order and order[0][0] == entry[0]:
        return SEVERAL
    return cast(int, entry[1])


def arrange_loads(order: list[int], loads: list[int]) -> None:
    """Give ``order`` the loads, in whatever form the next two functions need."""
    order[:] = [load << SHIFT | position for position, load in enumerate(loads)]
    heapify(order)


def note_load(order: list[int], position: int, load: int) -> None:
    """Tell ``order`` that the load at a position has changed."""
    heappush(order, load << SHIFT | position)


def least_load(order: list[int], loads: list[int]) -> int:
    """Return the position of the smallest of ``loads``, the first of several; ``order`` knows of all changes."""
    while True:
        entry = order[0]
        position = entry & MASK
        if loads[position] == entry >> SHIFT:
            return position
        heappop(order)
