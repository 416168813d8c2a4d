"""Transfers: KV caches on their way from prefill replicas to decode replicas.

Every prefill replica has a link of its own, which sends one cache after the other at full bandwidth. The time at which
a cache lands is therefore known when it is sent, unless the pace of the link changes (`simserve.sim.transfers`).
"""

from __future__ import annotations

from heapq import heappush
from math import inf, nan
from typing import TYPE_CHECKING

from simserve.engine.clients import LAND
from simserve.engine.data_parallel import end_leap, go_on, look_again, num_outstanding_at, stand_still, strike, take_in
from simserve.engine.data_plane import count_off, join, note_end
from simserve.engine.numbers import least_among
from simserve.engine.plane_state import (
    AT_REPLICA,
    LANDED,
    NEVER,
    NOBODY,
    ON_ITS_WAY,
    PREFILLS,
    STRANDED,
    DataPlane,
    Transfers,
)
from simserve.engine.state import UNFINISHED, RequestTable

if TYPE_CHECKING:
    from simserve.engine.plane_state import ClientState
    from simserve.engine.state import DataParallelReplica

SEND_WIDTH = 7


def begin(transfers: Transfers, requests: RequestTable, number: int, index: int) -> None:
    """Clear an earlier attempt; let a prefill replica compute only the first token."""
    transfers.prefill_end[index] = transfers.transfer_start[index] = transfers.transfer_end[index] = nan
    transfers.prefill_replica[index] = NOBODY
    if transfers.ports[number].role == PREFILLS:
        transfers.asked_output[index] = requests.output_tokens[index]
        transfers.asked_max[index] = requests.max_tokens[index]
        requests.output_tokens[index] = requests.max_tokens[index] = 1


def restore(transfers: Transfers, requests: RequestTable, index: int) -> None:
    """Restore in the row what the client asked for."""
    if transfers.asked_output[index]:
        requests.output_tokens[index] = transfers.asked_output[index]
        requests.max_tokens[index] = transfers.asked_max[index]
        transfers.asked_output[index] = 0


def restore_finished(plane: DataPlane, transfers: Transfers, requests: RequestTable, number: int) -> None:
    """Restore the rows of all requests that a replica has just finished."""
    replica = plane.replicas[number]
    for each in range(replica.num_ranks):
        finished = replica.ranks[each].finished
        assert finished is not None
        for position in range(len(finished)):
            restore(transfers, requests, finished[position])


def send_on(
    plane: DataPlane, client_state: ClientState, requests: RequestTable, number: int, index: int, now: float
) -> bool:
    """Send on a request whose prompt is computed; return False if the replica does all, or the one token was all."""
    transfers = client_state.transfers
    assert transfers is not None
    port = transfers.ports[number]
    if port.role != PREFILLS or (port.answers_lone_token and requests.output_tokens[index] == 1):
        return False
    strike(plane.replicas[number], index)
    requests.status[index] = UNFINISHED
    requests.finish_time[index] = requests.first_token_time[index] = nan
    port.num_on_way += 1
    transfers.num_transfers += 1
    transfers.stage[index], transfers.is_counted[index] = ON_ITS_WAY, 1
    transfers.prefill_end[index], transfers.prefill_replica[index] = now, number
    client_state.place[index] = NOBODY
    if not port.has_sent:
        port.has_sent = True
        transfers.senders.append(number)
    prompt = requests.prompt_tokens[index]
    seconds = prompt * port.bytes_per_token / transfers.bandwidth
    latency = transfers.latency + transfers.token_latency * prompt
    if port.pace == inf:
        _note_send(transfers, number, index, now, seconds, inf, inf, latency)
        transfers.transfer_start[index] = transfers.transfer_end[index] = nan
        return True
    start = max(now, port.free_at)
    end = start + seconds * port.pace
    _note_send(transfers, number, index, now, seconds, start, end, latency)
    port.free_at = end
    port.seconds += end - start
    port.waited += start - now
    landing = end + latency
    transfers.transfer_start[index], transfers.transfer_end[index] = start, landing
    heappush(client_state.clients.events, (landing, LAND, index, number))
    return True


def _note_send(
    transfers: Transfers, number: int, index: int, now: float, seconds: float, start: float, end: float, latency: float
) -> None:
    if transfers.notes_sends:
        sends = transfers.sends
        sends.append(float(number))
        sends.append(float(index))
        sends.append(now)
        sends.append(seconds)
        sends.append(start)
        sends.append(end)
        sends.append(latency)


def land(plane: DataPlane, client_state: ClientState, requests: RequestTable, index: int, now: float) -> None:
    """Take a KV cache that lands ``now`` to the decode replica with the fewest requests, if it is still needed."""
    transfers = client_state.transfers
    assert transfers is not None
    if transfers.stage[index] == ON_ITS_WAY and transfers.transfer_end[index] == now:
        take_to_reader(plane, client_state, transfers, requests, index, now)


def take_to_reader(
    plane: DataPlane, client_state: ClientState, transfers: Transfers, requests: RequestTable, index: int, now: float
) -> None:
    """Take a KV cache that has landed to the decode replica with the fewest requests; it waits while none is ready."""
    readers = transfers.ports[transfers.prefill_replica[index]].readers
    if not len(readers):
        transfers.stage[index] = STRANDED
        transfers.stranded.append(index)
        return
    number = least_among(readers, plane.loads)
    join(plane, client_state, requests, number, index, now)
    transfers.stage[index] = LANDED
    landed = transfers.ports[number].landed
    landed.append(index)
    if len(landed) == 1:
        _try_first(plane, client_state, number, now)


def _try_first(plane: DataPlane, client_state: ClientState, number: int, now: float) -> None:
    """Let a replica try to take in, after the running step, the first of the caches that have landed there."""
    replica = plane.replicas[number]
    if not end_leap(replica, now):
        look_again(replica, now)
    note_end(plane, client_state, number)


def may_step(
    plane: DataPlane, client_state: ClientState, transfers: Transfers, requests: RequestTable, number: int, now: float
) -> bool:
    """Return whether a replica may plan a step; one that decodes first takes in what it has room for."""
    port, replica = transfers.ports[number], plane.replicas[number]
    if port.role == PREFILLS:
        if num_outstanding_at(replica) and port.num_on_way >= transfers.max_in_transfer:
            if port.stalled_since < 0.0:
                port.stalled_since = now
            stand_still(replica)
            return False
        return True
    landed = port.landed
    while landed and take_in(replica, requests, landed[0], now):
        _release(plane, client_state, transfers, landed.popleft(), now)
    return True


def is_releasing(transfers: Transfers, replica: DataParallelReplica, number: int) -> bool:
    """Return whether a cache that found no room may find it after one step.

    Finished requests are gone by then, and those that wait in front of it may have a seat.
    """
    if not transfers.ports[number].landed:
        return False
    num_before = 0
    for position in range(replica.num_ranks):
        rank = replica.ranks[position]
        num_before += len(rank.departing) + len(rank.waiting)
    return num_before > 0


def drop(plane: DataPlane, client_state: ClientState, requests: RequestTable, index: int, now: float) -> bool:
    """Drop a cache that is no longer needed; return False if the request has none between two replicas."""
    transfers, place = client_state.transfers, client_state.place[index]
    assert transfers is not None
    stage = transfers.stage[index]
    if stage == AT_REPLICA:
        return False
    if stage == LANDED:
        landed = transfers.ports[place].landed
        was_first = landed[0] == index
        landed.remove(index)
        count_off(plane, requests, place, index)
        client_state.place[index] = NOBODY
        if was_first and landed:
            _try_first(plane, client_state, place, now)
    elif stage == STRANDED:
        transfers.stranded.remove(index)
    _release(plane, client_state, transfers, index, now)
    return True


def forget(plane: DataPlane, client_state: ClientState, requests: RequestTable, index: int, now: float) -> None:
    """Drop the cache of a request that was lost with a replica, where it was computed or where it has landed."""
    transfers = client_state.transfers
    assert transfers is not None
    restore(transfers, requests, index)
    if transfers.stage[index] == LANDED:
        transfers.ports[client_state.place[index]].landed.remove(index)
    if transfers.stage[index] != AT_REPLICA:
        _release(plane, client_state, transfers, index, now)


def _release(plane: DataPlane, client_state: ClientState, transfers: Transfers, index: int, now: float) -> None:
    """Count a cache as no longer on its way; let its prefill replica plan again if that had stopped for it."""
    transfers.stage[index] = AT_REPLICA
    if not transfers.is_counted[index]:
        return
    transfers.is_counted[index] = 0
    number = transfers.prefill_replica[index]
    port = transfers.ports[number]
    port.num_on_way -= 1
    if port.stalled_since < 0.0:
        return
    transfers.stalled += now - port.stalled_since
    port.stalled_since = NEVER
    replica = plane.replicas[number]
    if num_outstanding_at(replica):
        # All its ranks, even if a request that came at this instant has woken one.
        go_on(replica, now)
        note_end(plane, client_state, number)
