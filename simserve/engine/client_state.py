"""Client state: what a data plane knows of its clients beside who serves them, and how a request leaves or ends.

The loop that moves replicas by these rules is `simserve.engine.event_plane`.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from simserve.engine.admission_control import AdmissionControl, Finishes
from simserve.engine.clients import Clients, send, send_again
from simserve.engine.conversations import deadline_of, find_due, think
from simserve.engine.data_plane import DataPlane, count_off
from simserve.engine.delivery import Delivery, seconds_to_client
from simserve.engine.gateway import Gateway, note_end
from simserve.engine.outcomes import API_LIMIT, GAVE_UP, TASK_CANCELLED
from simserve.engine.paces import Paces
from simserve.engine.regions import Regions
from simserve.engine.state import INFINITY, RequestTable
from simserve.engine.transfers import Transfers, restore
from simserve.engine.uniforms import num_left

if TYPE_CHECKING:
    from simserve.engine.fleet_state import FleetState
    from simserve.engine.judged import Judge

NOBODY = NOWHERE = -1
PARKED = -2
"""Of a request that waits for a replica to be ready."""
ELSEWHERE = -3
"""Of a request that the gateway has answered, or asks again."""
HELD = -4
"""Of a request that its replica's scheduler, which works ahead, has yet to see: this less the number of the replica."""

AT_ADMISSION, TO_ROUTE, TO_PAUSE, TO_ANSWER, TO_PACE = 1, 2, 4, 8, 16
"""What may take random numbers; flags. The last two: the first token of an API's answer, and those after it."""
NUMBERS_TO_ROUTE = 2
"""Most that a request takes."""


class ClientState:
    """What a plane knows of its clients beside who serves them.

    Args:
        clients: The clients.
        admission_control: Who is turned away; None: nobody.
        num_schedulers: Replicas of the plane.
        delivery: How long answers are on their way to clients that wait for them; None: they hear of them at once.
        fleet_state: Where replicas come and go, what is known of that; None: they are there throughout.

    Attributes:
        draws: What takes random numbers: the flags above, added.
        place: Of each request the replica that it is at, `NOWHERE`, `PARKED`, or that it is held back from.
        has_left: 1 where a client has hung up, and the request leaves at the end of the running step.
        leaving: Those requests: (replica, request, when that was decided), in the order of deciding.
        num_leaving: How many of them at each replica.
        going: Those who leave at the instant at hand.
        refusals: How often each reason was the answer at the admission control, repeated tries included.
        finishes: How fast each replica finishes requests, where the admission control goes by it.
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
        "admission_control",
        "asks",
        "clients",
        "delivery",
        "draws",
        "finishes",
        "fleet_state",
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
        "refusals",
        "regions",
        "transfers",
    )

    def __init__(
        self,
        clients: Clients,
        admission_control: AdmissionControl | None,
        num_schedulers: int,
        delivery: Delivery | None = None,
        fleet_state: FleetState | None = None,
    ) -> None:
        self.clients, self.admission_control, self.delivery, self.draws = clients, admission_control, delivery, 0
        num_requests = len(clients.tries)
        self.place = array("i", [NOWHERE]) * num_requests
        self.has_left = array("b", [0]) * num_requests
        self.leaving: list[tuple[int, int, float]] = []
        self.num_leaving = [0] * num_schedulers
        self.going: list[tuple[int, float]] = []
        self.refusals = array("q", [0]) * (API_LIMIT + 1)
        self.finishes = [Finishes(0.0) for _ in range(num_schedulers)]
        self.lost_tokens = 0
        self.fleet_state = fleet_state
        self.transfers: Transfers | None = None
        self.gateway: Gateway | None = None
        self.regions: Regions | None = None
        self.paces: Paces | None = None
        self.asks = 0
        self.judge: Judge | None = None
        self.open: list[int] = []
        self.open_pools: list[int] = []
        self.mid_time, self.mid_position = -1.0, 0

    @property
    def asks_who_finished(self) -> bool:
        """Whether it matters which requests finish, and not only how many.

        Whoever hangs up in the step that answers is not answered; what has prefilled goes on.
        """
        patience, fleet_state = self.clients.patience, self.fleet_state
        if patience.has_timeouts or patience.first_byte_timeout < INFINITY or self.transfers is not None:
            return True
        if self.gateway is not None or self.regions is not None:
            return True
        return fleet_state is not None and fleet_state.notes_ends


def next_moment(plane: DataPlane, client_state: ClientState, requests: RequestTable) -> float:
    """Return when the next event or arrival happens; infinity: none is to come."""
    clients = client_state.clients
    events = clients.events
    moment = events[0][0] if events else INFINITY
    if clients.first != NOBODY:
        # What arrives at a time known beforehand was sent after it.
        return min(moment, requests.ready_time[clients.first])
    if plane.cursor < plane.num_scheduled:
        return min(moment, requests.ready_time[plane.cursor])
    return moment


def lacks_numbers(plane: DataPlane, client_state: ClientState) -> bool:
    """Return whether random numbers might run out before the next event is over.

    Those who leave take one each for the pause before they try again, and so does whoever is refused.
    """
    admission_control, draws = client_state.admission_control, client_state.draws
    if draws & AT_ADMISSION and admission_control is not None and num_left(admission_control.uniforms) < 1:
        return True
    if draws & TO_ROUTE and num_left(plane.router.uniforms) < numbers_to_route(client_state):
        return True
    if draws & TO_ANSWER and lacks_answers(client_state):
        return True
    needed = len(client_state.leaving) + 1
    return bool(draws & TO_PAUSE) and num_left(client_state.clients.patience.uniforms) < needed


def lacks_answers(client_state: ClientState) -> bool:
    """Return whether random numbers are short for the next answer of the API."""
    gateway = client_state.gateway
    return gateway is not None and gateway.api is not None and num_left(gateway.api.ttft_factors) < 1


def numbers_to_route(client_state: ClientState) -> int:
    """Return how many random numbers the router may take at the next event: turns are given to all who wait."""
    gateway = client_state.gateway
    if gateway is None or gateway.fair is None:
        return NUMBERS_TO_ROUTE
    return NUMBERS_TO_ROUTE * (2 + gateway.fair.num_parked)


def without_answer(
    plane: DataPlane,
    client_state: ClientState,
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
        client_state: Its clients.
        requests: The table.
        index: The request.
        now: When the client knows.
        status: What becomes of the request if it gives up.
        reason: Why.
        free_at: When the server has let go.
        retry_after: Seconds to wait at least, as a refusal says.
    """
    conversations = plane.conversations
    latest = INFINITY if conversations is None else deadline_of(conversations, index)
    if reason == GAVE_UP and now >= latest:
        reason = TASK_CANCELLED
    elif send_again(client_state.clients, requests, index, now, free_at, retry_after, latest):
        return
    requests.status[index] = status
    requests.reason[index] = reason
    requests.finish_time[index] = now
    end(plane, client_state, requests, index, now, free_at)


def end(
    plane: DataPlane, client_state: ClientState, requests: RequestTable, index: int, now: float, not_before: float
) -> None:
    """Note that a request has come to its end ``now``, and send what follows in its conversation.

    That is sent no sooner than ``not_before``.
    """
    clients, conversations, fleet_state = client_state.clients, plane.conversations, client_state.fleet_state
    clients.num_ended += 1
    if fleet_state is not None and fleet_state.notes_ends:
        fleet_state.ended.append(index)
    if client_state.delivery is not None:
        now += seconds_to_client(client_state.delivery, requests, index)
    if fleet_state is not None and len(fleet_state.heard_at):
        fleet_state.heard_at[index] = now
        fleet_state.calls.append(NOBODY)
    if client_state.gateway is not None:
        note_end(client_state.gateway, requests, index, now)
    if conversations is None:
        return
    find_due(conversations, index, now)
    for position in range(len(conversations.due)):
        each = conversations.due[position]
        think(conversations, each, now)
        send(clients, each, conversations.arrival_time[each], max(now, not_before))


def leave(plane: DataPlane, client_state: ClientState, requests: RequestTable, number: int, index: int) -> None:
    """Count a request no longer at a replica."""
    client_state.place[index] = NOWHERE
    if client_state.transfers is not None:
        restore(client_state.transfers, requests, index)
    count_off(plane, requests, number, index)


def take_leaving(client_state: ClientState, number: int) -> None:
    """Put those who leave a replica into ``going``, in their order."""
    leaving, going = client_state.leaving, client_state.going
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
    client_state.num_leaving[number] = 0
