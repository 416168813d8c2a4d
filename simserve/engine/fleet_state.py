"""Fleet state: what a data plane knows of replicas that come and go, and the orders given to it between two drives.

Which replicas come and go is decided elsewhere. The plane reports the end of a step for which something waits. Changes
to schedulers, routes or clients are orders to the plane, carried out where these are: compiled code has no other way
in.
"""

from __future__ import annotations

from heapq import heappush

from simserve.engine.clients import SUBMIT, next_to_come
from simserve.engine.data_parallel import seen_time, submit
from simserve.engine.data_plane import join, note_end
from simserve.engine.plane_state import ARRIVED, CALLS, DRAINS, HELD, PARKED, ClientState, DataPlane, FleetState
from simserve.engine.routing import set_off
from simserve.engine.state import STATIC, RequestTable
from simserve.engine.transfers import begin


def is_open(plane: DataPlane, index: int) -> bool:
    """Return whether there is a replica that may take a request."""
    return len(plane.parts[plane.kinds[index]].ready) > 0


def park(client_state: ClientState, index: int) -> None:
    """Let a request wait for a replica to be ready."""
    assert client_state.fleet_state is not None
    client_state.place[index] = PARKED
    client_state.fleet_state.parked.append(index)


def take_in(
    plane: DataPlane, client_state: ClientState, requests: RequestTable, number: int, index: int, now: float
) -> None:
    """Give a request to a replica; a scheduler that works ahead may see it later."""
    join(plane, client_state, requests, number, index, now)
    regions = client_state.regions
    if regions is not None:
        set_off(regions, index, number, now)
        hold(client_state, number, index, regions.arrives_at[index])
        return
    enter(plane, client_state, requests, number, index, now)


def enter(
    plane: DataPlane, client_state: ClientState, requests: RequestTable, number: int, index: int, now: float
) -> None:
    """Let a request reach the scheduler of its replica."""
    replica = plane.replicas[number]
    if client_state.transfers is not None:
        begin(client_state.transfers, requests, number, index)
    if plane.schedules_ahead and replica.ranks[0].config.async_scheduling and replica.ranks[0].mode != STATIC:
        time = seen_time(replica, now)
        if time > now:
            plane.ends[number] = replica.end_time
            hold(client_state, number, index, time)
            return
    submit(replica, requests, index, now)
    note_end(plane, client_state, number)


def hold(client_state: ClientState, number: int, index: int, time: float) -> None:
    """Let the scheduler of its replica see a request at ``time``; several at one time in order of arrival."""
    client_state.place[index] = HELD - number
    heappush(client_state.clients.events, (time, SUBMIT, next_to_come(client_state.clients, index), index))


def see(plane: DataPlane, client_state: ClientState, requests: RequestTable, index: int, came: int, now: float) -> None:
    """Let a scheduler see a request that was on its way, or held back, if it is still wanted."""
    if client_state.place[index] > HELD or client_state.clients.came[index] != came:
        # It belongs to an attempt that was given up.
        return
    number, regions = HELD - client_state.place[index], client_state.regions
    if regions is not None and regions.arrives_at[index] != ARRIVED:
        regions.arrives_at[index] = ARRIVED
        requests.ready_time[index] = now
        client_state.place[index] = number
        enter(plane, client_state, requests, number, index, now)
        return
    client_state.place[index] = number
    submit(plane.replicas[number], requests, index, now)
    note_end(plane, client_state, number)


def call_if_awaited(plane: DataPlane, fleet_state: FleetState, number: int) -> None:
    """Report a replica whose step has ended, or that has one request less, if something waits for that."""
    mark = fleet_state.marks[number]
    if mark & CALLS or (mark & DRAINS and not plane.loads[number]):
        fleet_state.calls.append(number)
