"""KV transfers: from pools and links to what `simserve.engine.transfers` goes by, and back to records and totals.

A link is the way out of one prefill replica, which sends one KV cache after the other; whoever hangs up meanwhile takes
nothing off it. At one pace throughout, the engine knows of each cache when it lands. What a change of pace means for
the caches on their way, which go on at another pace or stand still, is worked out here (`Links`).
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
    """Return what is between prefill and decode replicas before anything is sent.

    Args:
        spec: The links.
        kv_bytes_per_token: Of the whole model, where a pool does not say.
        setups: The pools.
        members: The replicas of each.
        num_requests: Of the run.
        token_latency: What a token of a prompt adds to the latency of the links, seconds.
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
    """Return the pools that take in what a pool computes: those that decode its model and format in its region."""
    alike = source.kv_layout, source.region
    pools = enumerate(setups)
    return [number for number, each in pools if each.role == "decode" and (each.kv_layout, each.region) == alike]


def transfer_totals(transfers: Transfers) -> dict[str, float]:
    """Return what KV caches did between the pools."""
    senders = [transfers.ports[number] for number in transfers.senders]
    return {
        "count": float(transfers.num_transfers),
        "link_seconds": sum(port.seconds for port in senders),
        "waited_seconds": sum(port.waited for port in senders),
        "stalled_seconds": transfers.stalled,
    }


def with_transfers(records: RequestRecords, transfers: Transfers) -> RequestRecords:
    """Return the records with the way of every KV cache between the pools."""
    return replace(
        records,
        prefill_end_time=np.array(transfers.prefill_end),
        transfer_start_time=np.array(transfers.transfer_start),
        transfer_end_time=np.array(transfers.transfer_end),
        prefill_replica_id=np.array(transfers.prefill_replica, dtype=np.int32),
    )


@dataclass(slots=True)
class Crossing:
    """A KV cache on its way.

    Attributes:
        index: The request.
        queued_at: When it was ready to be sent, seconds.
        start: When its first byte is sent, seconds; inf while the link is down.
        end: When its last one is; inf likewise.
        left: Seconds at full bandwidth that were left of it when the link last changed its pace.
        latency: From its last byte to the scheduler of the decode replica, seconds.
        has_begun: Whether some of it had crossed by then.
    """

    index: int
    queued_at: float
    start: float
    end: float
    left: float
    latency: float
    has_begun: bool = False


class Links:
    """The links of a run, as those who break them see them.

    Args:
        cluster: The plane.
        transfers: What it was given to know of them; compiled code fills its columns where they are.
    """

    def __init__(self, cluster: Cluster, transfers: Transfers) -> None:
        self._cluster, self._columns = cluster, transfers
        self._stage = np.frombuffer(transfers.stage, dtype=np.int8)
        self._source = np.frombuffer(transfers.prefill_replica, dtype=np.int32)
        self._crossings: dict[int, deque[Crossing]] = {}
        self._down_since: dict[int, float] = {}

    def set_pace(self, number: int, now: float, pace: float) -> list[int]:
        """Let a link take ``pace`` times as long from now on; return what lands at another time than was said before.

        Args:
            number: Its prefill replica.
            now: Seconds.
            pace: inf: it is down.
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
        """Forget what a replica that is lost was sending; return the requests, in the order of their numbers.

        What has landed is safe; it no longer counts as on its way.
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
        """Note when a cache crosses; return whether anybody still waits for it."""
        columns, index = self._columns, crossing.index
        if self._source[index] != number or columns.prefill_end[index] != crossing.queued_at:
            # Its request has been tried again.
            return False
        if not crossing.has_begun:
            columns.transfer_start[index] = crossing.start if crossing.start < inf else nan
        columns.transfer_end[index] = crossing.end + crossing.latency if crossing.end < inf else nan
        return bool(self._stage[index] == ON_ITS_WAY)

    def _take_sends(self) -> None:
        """Take over what the plane has sent since it was last asked."""
        sends = self._live.sends
        for number, index, queued_at, seconds, start, end, latency in _rows(list(sends)):
            crossing = Crossing(int(index), queued_at, start, end, seconds, latency)
            self._crossings.setdefault(int(number), deque()).append(crossing)
        fill(sends, [])

    def _stop(self, number: int, now: float) -> list[Crossing]:
        """Note what is left of everything that a link sends, as if all stood still from now on; return it in order."""
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
