"""Attendance: what a data plane knows of its clients beside who serves them, and how a request leaves or ends.

The loop that moves replicas by these rules is `simserve.engine.event_plane`.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from simserve.engine.callers import Callers, put, send_again
from simserve.engine.conversations import Conversations, find_due, ready_after
from simserve.engine.data_plane import DataPlane, count_off
from simserve.engine.delivery import Delivery, seconds_to_client
from simserve.engine.door import Door, Finishes
from simserve.engine.gateway import Gateway, note_end
from simserve.engine.outcomes import API_LIMIT
from simserve.engine.paces import Paces
from simserve.engine.regions import Regions
from simserve.engine.state import INFINITY, RequestTable
from simserve.engine.transfers import Transfers, restore
from simserve.engine.uniforms import num_left

if TYPE_CHECKING:
    from simserve.engine.judged import Judge
    from simserve.engine.presence import Presence

NOBODY = NOWHERE = -1
PARKED = -2
"""Of a request that waits for a replica to be ready."""
ELSEWHERE = -3
"""Of a request that the gateway has answered, or asks again."""
HELD = -4
"""Of a request that its replica's scheduler, which works ahead, has yet to see: this less the number of the replica."""

AT_DOOR, TO_ROUTE, TO_PAUSE, TO_ANSWER, TO_PACE = 1, 2, 4, 8, 16
"""What may take random numbers; flags. The last two: the first token of an API's answer, and those after it."""
NUMBERS_TO_ROUTE = 2
"""Most that a request takes."""


class Attendance:
    """What a plane knows of its clients beside who serves them.

    Args:
        callers: The clients.
        door: Who is turned away; None: nobody.
        num_units: Replicas of the plane.
        delivery: How long answers are on their way to clients that wait for them; None: they hear of them at once.
        presence: Where replicas come and go, what is known of that; None: they are there throughout.

    Attributes:
        draws: What takes random numbers: the flags above, added.
        place: Of each request the replica that it is at, `NOWHERE`, `PARKED`, or that it is held back from.
        has_left: 1 where a client has hung up, and the request leaves at the end of the running step.
        leaving: Those requests: (replica, request, when that was decided), in the order of deciding.
        num_leaving: How many of them at each replica.
        going: Those who leave at the instant at hand.
        refusals: How often each reason was the answer at the door, repeated tries included.
        finishes: How fast each replica finishes requests, where the door goes by it.
        lost_tokens: Tokens generated for requests that were then given up.
        mid_time: The instant that a drive stopped in, to be given random numbers or answers; negative: in none.
        mid_position: How many of the replicas whose steps end at that instant have ended them.
        transfers: KV caches between prefill and decode replicas; None: every replica does both.
        gateway: What stands in front of the replicas; None: nothing but the router.
        regions: Where clients and replicas are; None: it does not matter.
        paces: What a step brings each request where pools draft for themselves; None: it is the same on all.
        asks: What is asked of somebody outside: flags of `simserve.engine.judged`.
        judge: Whom; interpreted only.
        open: Replicas that have room for the request at hand.
        open_pools: Pools that have such.
    """

    __slots__ = (
        "asks",
        "callers",
        "delivery",
        "door",
        "draws",
        "finishes",
        "gateway",
        "going",
        "has_left",
        "judge",
        "leaving",
        "lost_tokens",
        "mid_position",
        "mid_time",
        "num_leaving",
        "open",
        "open_pools",
        "paces",
        "place",
        "presence",
        "refusals",
        "regions",
        "transfers",
    )

    def __init__(
        self,
        callers: Callers,
        door: Door | None,
        num_units: int,
        delivery: Delivery | None = None,
        presence: Presence | None = None,
    ) -> None:
        self.callers, self.door, self.delivery, self.draws = callers, door, delivery, 0
        num_requests = len(callers.tries)
        self.place = array("i", [NOWHERE]) * num_requests
        self.has_left = array("b", [0]) * num_requests
        self.leaving: list[tuple[int, int, float]] = []
        self.num_leaving = [0] * num_units
        self.going: list[tuple[int, float]] = []
        self.refusals = array("q", [0]) * (API_LIMIT + 1)
        self.finishes = [Finishes(0.0) for _ in range(num_units)]
        self.lost_tokens = 0
        self.presence = presence
        self.transfers: Transfers | None = None
        self.gateway: Gateway | None = None
        self.regions: Regions | None = None
        self.paces: Paces | None = None
        self.asks = 0
        self.judge: Judge | None = None
        self.open: list[int] = []
        self.open_pools: list[int] = []
        self.mid_time, self.mid_position = -1.0, 0


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
    if draws & TO_ROUTE and num_left(plane.router.uniforms) < numbers_to_route(attendance):
        return True
    if draws & TO_ANSWER and lacks_answers(attendance):
        return True
    needed = len(attendance.leaving) + 1
    return bool(draws & TO_PAUSE) and num_left(attendance.callers.patience.uniforms) < needed


def lacks_answers(attendance: Attendance) -> bool:
    """Return whether random numbers are short for the next answer of the API."""
    gateway = attendance.gateway
    return gateway is not None and gateway.api is not None and num_left(gateway.api.ttft_factors) < 1


def numbers_to_route(attendance: Attendance) -> int:
    """Return how many random numbers the router may take at the next event: turns are given to all who wait."""
    gateway = attendance.gateway
    if gateway is None or gateway.fair is None:
        return NUMBERS_TO_ROUTE
    return NUMBERS_TO_ROUTE * (2 + gateway.fair.num_parked)


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
    callers, conversations, presence = attendance.callers, plane.conversations, attendance.presence
    callers.num_ended += 1
    if presence is not None and presence.notes_ends:
        presence.ended.append(index)
    if attendance.delivery is not None:
        now += seconds_to_client(attendance.delivery, requests, index)
    if presence is not None and len(presence.heard_at):
        presence.heard_at[index] = now
        presence.calls.append(NOBODY)
    if attendance.gateway is not None:
        note_end(attendance.gateway, requests, index, now)
    if conversations is None:
        return
    find_due(conversations, index, now)
    for position in range(len(conversations.due)):
        each = conversations.due[position]
        ready = ready_after(conversations, each, now)
        send(callers, requests, conversations, each, max(ready, not_before))


def send(callers: Callers, requests: RequestTable, conversations: Conversations, index: int, ready_time: float) -> None:
    """Let a request of a conversation, which has just been sent for the first time, arrive at ``ready_time``."""
    callers.sent_at[index] = conversations.arrival_time[index]
    put(callers, requests, index, ready_time)


def leave(plane: DataPlane, attendance: Attendance, requests: RequestTable, number: int, index: int) -> None:
    """Count a request no longer at a replica."""
    attendance.place[index] = NOWHERE
    if attendance.transfers is not None:
        restore(attendance.transfers, requests, index)
    count_off(plane, requests, number, index)


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
