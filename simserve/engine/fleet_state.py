"""Fleet state: what a data plane knows of replicas that come and go, and what it is told to do between two drives.

Who comes and goes is decided elsewhere. The plane calls where a step has ended that somebody waits for; what touches
schedulers, routes or clients is an order to it, carried out where they are: compiled code has no other way in.
"""

from __future__ import annotations

from array import array
from heapq import heappush

from simserve.engine.client_state import HELD, NOWHERE, PARKED, ClientState
from simserve.engine.clients import SUBMIT, next_to_come
from simserve.engine.data_parallel import seen_time, submit
from simserve.engine.data_plane import CALLS, DRAINS, DataPlane, join, note_end
from simserve.engine.regions import ARRIVED, set_off
from simserve.engine.state import STATIC, RequestTable
from simserve.engine.transfers import begin

NO_ORDER, HAND_OVER, LOSE, SETTLE, OFFER, ADMIT, LAND_AGAIN, BREAK_OFF = range(8)
"""Orders: route a request; a replica that held a request is gone; end the step of a replica on which none runs; let
those whose turn it is be routed; take a KV cache that has landed to a replica; let one land when its link has sent it
after all; note which tokens a replica that is lost has sent."""


class FleetState:
    """Replicas that come and go, beside what the plane knows of them.

    Attributes:
        marks: Of each replica, the flags above.
        calls: Replicas that somebody must look after before anything else happens; -1: somebody waits for a request
            that has ended.
        parked: Requests that wait for a replica to be ready, in the order of their coming.
        joined: Of each request, its place in the order of joining a replica.
        num_joined: How many have.
        last_joined: Of each replica, the request that joined it last; -1: none.
        busy_seconds: Of each replica, seconds of its steps so far.
        notes_ends: Whether somebody asks which requests have ended.
        ended: Those since it was last asked.
        heard_at: When the client of each hears of that, where somebody waits for it, seconds; else of none.
        order: What is to be done at the next call of the drive, which then does nothing else.
        subject: Which request, or replica, that is about.
        reason: Of a loss, or `simserve.engine.entrance.RETRIED`.
        time: When, seconds; else the instant at hand.
    """

    __slots__ = (
        "busy_seconds",
        "calls",
        "ended",
        "heard_at",
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

    def __init__(self, num_requests: int, num_schedulers: int, *, notes_ends: bool, tells_ends: bool = False) -> None:
        self.marks = [0] * num_schedulers
        self.last_joined = [NOWHERE] * num_schedulers
        self.busy_seconds = [0.0] * num_schedulers
        self.calls: list[int] = []
        self.parked: list[int] = []
        self.joined = array("q", [0]) * num_requests
        self.num_joined = 0
        self.notes_ends = notes_ends
        self.ended: list[int] = []
        self.heard_at = array("d", [0.0]) * (num_requests if tells_ends else 0)
        self.order, self.subject, self.reason, self.time = NO_ORDER, 0, 0, 0.0


def is_open(plane: DataPlane, index: int) -> bool:
    """Return whether a replica is there that may take a request."""
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
    """Let a request be seen by the scheduler of its replica at a time; of several then, as they came."""
    client_state.place[index] = HELD - number
    heappush(client_state.clients.events, (time, SUBMIT, next_to_come(client_state.clients, index), index))


def see(plane: DataPlane, client_state: ClientState, requests: RequestTable, index: int, came: int, now: float) -> None:
    """Let a scheduler see a request that is on its way to it, or that it was to see later, if it is still wanted."""
    if client_state.place[index] > HELD or client_state.clients.came[index] != came:
        # It is the news of an attempt that was given up.
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
    """Call for a replica whose step has ended, or that holds one request less, if somebody waits for that."""
    mark = fleet_state.marks[number]
    if mark & CALLS or (mark & DRAINS and not plane.loads[number]):
        fleet_state.calls.append(number)
