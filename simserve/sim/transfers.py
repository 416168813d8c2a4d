"""KV transfers: from pools and links to the inputs of `simserve.engine.transfers`, and back to records and totals.

Each prefill replica has one outgoing link, which sends one KV cache after the other; a cache is sent even if its client
has hung up. At a constant pace, the engine knows in advance when each cache arrives. What a change of pace means for
the caches in transfer, which go on at another pace or stop, is computed here (`Links`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf, nan
from typing import Any

import numpy as np

from simserve.engine.compiled.layout import fill
from simserve.engine.plane_state import BOTH, DECODES, ON_ITS_WAY, PREFILLS, Port, Transfers
from simserve.engine.transfers import SEND_WIDTH
from simserve.sim.cluster import Cluster
from simserve.sim.control import DisaggregationSpec
from simserve.sim.pools import PoolSetup
from simserve.sim.records import RequestRecords

ROLES = {"both": BOTH, "prefill": PREFILLS, "decode": DECODES}


def transfers_of(
    spec: DisaggregationSpec,
    kv_bytes_per_token: float,
    setups: Sequence[PoolSetup],
    members: Sequence[Sequence[int]],
    num_requests: int,
    token_latency: float = 0.0,
) -> Transfers:
    """Return the links between prefill and decode replicas before anything is sent.

    Args:
        kv_bytes_per_token: Of the whole model, for pools that do not state it.
        token_latency: Seconds that each prompt token adds to the latency of the links.
    """
    ports = []
    for setup, numbers in zip(setups, members, strict=True):
        own = setup.kv_bytes_per_token
        pools = [] if setup.role != "prefill" else _reading(setup, setups)
        readers = [number for each in pools for number in members[each]]
        answers = not any(setups[each].engine.has_late_first_token for each in pools)
        bytes_per_token = kv_bytes_per_token if own is None else own
        ports += [Port(ROLES[setup.role], bytes_per_token, list(readers), answers) for _ in numbers]
    latencies = spec.landing_seconds, token_latency
    return Transfers(ports, spec.transfer_bandwidth, *latencies, spec.max_in_transfer, num_requests)


def _reading(source: PoolSetup, setups: Sequence[PoolSetup]) -> list[int]:
    """Return the pools that read the KV caches of a pool: those that decode its model and format in its region."""
    alike = source.kv_layout, source.region
    pools = enumerate(setups)
    return [number for number, each in pools if each.role == "decode" and (each.kv_layout, each.region) == alike]


def transfer_totals(transfers: Transfers) -> dict[str, float]:
    """Return the totals of KV transfers between the pools."""
    senders = [transfers.ports[number] for number in transfers.senders]
    return {
        "count": float(transfers.num_transfers),
        "link_seconds": sum(port.seconds for port in senders),
        "waited_seconds": sum(port.waited for port in senders),
        "stalled_seconds": transfers.stalled,
    }


def with_transfers(records: RequestRecords, transfers: Transfers) -> RequestRecords:
    """Return the records with the times of every KV transfer between the pools."""
    return replace(
        records,
        prefill_end_time=np.array(transfers.prefill_end),
        transfer_start_time=np.array(transfers.transfer_start),
        transfer_end_time=np.array(transfers.transfer_end),
        prefill_replica_id=np.array(transfers.prefill_replica, dtype=np.int32),
    )


@dataclass(slots=True)
class Crossing:
    """A KV cache in transfer."""

    index: int  # The request.
    queued_at: float  # When it was ready to be sent, seconds.
    start: float  # When its first byte is sent, seconds; inf while the link is down.
    end: float  # When its last byte is sent; inf while the link is down.
    left: float  # Seconds at full bandwidth that the rest of it took when the link last changed its pace.
    latency: float  # From its last byte to the scheduler of the decode replica, seconds.
    has_begun: bool = False  # Whether part of it had been sent by then.


class Links:
    """The links of a run, in the form in which faults change them.

    Args:
        transfers: The plane's record of them; compiled code fills its columns in place.
    """

    def __init__(self, cluster: Cluster, transfers: Transfers) -> None:
        self._cluster, self._columns = cluster, transfers
        self._stage = np.frombuffer(transfers.stage, dtype=np.int8)
        self._source = np.frombuffer(transfers.prefill_replica, dtype=np.int32)
        self._crossings: dict[int, deque[Crossing]] = {}
        self._down_since: dict[int, float] = {}

    def set_pace(self, number: int, now: float, pace: float) -> list[int]:
        """Make a link take ``pace`` times as long from now on; return the requests whose caches arrive at another time.

        Args:
            number: Its prefill replica.
            now: Seconds.
            pace: Factor on the time at full bandwidth; inf: the link is down.
        """
        port, crossings = self._live.ports[number], self._stop(number, now)
        port.pace = pace
        if pace == inf:
            self._down_since[number] = now
            for crossing in crossings:
                crossing.start = crossing.end = inf
                self._write(number, crossing)
            return []
        time = now
        for crossing in crossings:
            crossing.start, crossing.end = time, time + crossing.left * pace
            port.seconds += crossing.end - time
            if not crossing.has_begun:
                port.waited += time - now
            time = crossing.end
        port.free_at = time
        return [crossing.index for crossing in crossings if self._write(number, crossing)]

    def cut_off(self, number: int, now: float) -> list[int]:
        """Forget what a lost replica was sending; return the requests, in order of their numbers.

        Caches that have arrived are safe; they no longer count as in transfer.
        """
        port, columns = self._live.ports[number], self._columns
        self._stop(number, now)
        self._crossings.pop(number, None)
        port.free_at = now
        own = self._source == number
        np.frombuffer(columns.is_counted, dtype=np.int8)[own] = 0
        port.num_on_way = 0
        if port.stalled_since >= 0.0:
            self._live.stalled += now - port.stalled_since
            port.stalled_since = -1.0
        sent = np.flatnonzero(own & (self._stage == ON_ITS_WAY)).tolist()
        return [index for index in sent if not columns.transfer_end[index] <= now]

    @property
    def _live(self) -> Any:
        return self._cluster.client_state.transfers

    def _write(self, number: int, crossing: Crossing) -> bool:
        """Record when a cache is sent and arrives; return whether its request still waits for it."""
        columns, index = self._columns, crossing.index
        if self._source[index] != number or columns.prefill_end[index] != crossing.queued_at:
            # Its request has been retried since.
            return False
        if not crossing.has_begun:
            columns.transfer_start[index] = crossing.start if crossing.start < inf else nan
        columns.transfer_end[index] = crossing.end + crossing.latency if crossing.end < inf else nan
        return bool(self._stage[index] == ON_ITS_WAY)

    def _take_sends(self) -> None:
        sends = self._live.sends
        for number, index, queued_at, seconds, start, end, latency in _rows(list(sends)):
            crossing = Crossing(int(index), queued_at, start, end, seconds, latency)
            self._crossings.setdefault(int(number), deque()).append(crossing)
        fill(sends, [])

    def _stop(self, number: int, now: float) -> list[Crossing]:
        """Stop a link now and record what is left of every cache on it; return those caches in order."""
        self._take_sends()
        port, down_since = self._live.ports[number], self._down_since.pop(number, now)
        kept: deque[Crossing] = deque()
        for crossing in self._crossings.get(number, ()):
            if crossing.end <= now:
                continue
            if port.pace < inf:
                crossing.has_begun = crossing.has_begun or crossing.start < now
                unsent = crossing.end - max(crossing.start, now)
                crossing.left = unsent / port.pace
                port.seconds -= unsent
                port.waited -= max(crossing.start - now, 0.0)
            elif not crossing.has_begun:
                port.waited += now - max(down_since, crossing.queued_at)
            kept.append(crossing)
        self._crossings[number] = kept
        return list(kept)


def _rows(values: list[float]) -> Iterable[list[float]]:
    return (values[first : first + SEND_WIDTH] for first in range(0, len(values), SEND_WIDTH))
