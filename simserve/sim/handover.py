"""Handover: KV caches on their way from prefill replicas to decode replicas. Decides no route."""

from __future__ import annotations

from array import array
from collections import deque
from heapq import heappush
from math import inf, nan

from simserve.engine.callers import LAND, Event
from simserve.engine.data_parallel import strike, take_in
from simserve.engine.state import UNFINISHED, RequestTable
from simserve.sim.links import Crossing, Link
from simserve.sim.pool_spec import DisaggregationSpec
from simserve.sim.units import Unit


class Handover:
    """The links of all prefill replicas, and the queues of caches at the decode replicas.

    Args:
        spec: The links.
        kv_bytes_per_token: Of the whole model, where a pool does not say.
        requests: The table of all requests.
        events: Where landings are put, a heap.

    Attributes:
        num_transfers: Caches that were sent.
        stalled: Seconds in which prefill replicas stood still because too many caches were on their way.
        prefill_end: When the prompt of each request was computed, seconds; NaN: it was not handed over.
        transfer_start: When its first byte was sent, likewise.
        transfer_end: When it had arrived, likewise.
        prefill_replica: Which replica computed it; -1: none that handed it over.
    """

    def __init__(
        self, spec: DisaggregationSpec, kv_bytes_per_token: float, requests: RequestTable, events: list[Event]
    ) -> None:
        self.num_transfers = 0
        self.stalled = 0.0
        count = len(requests.ready_time)
        self.prefill_end, self.transfer_start, self.transfer_end = (array("d", [nan]) * count for _ in range(3))
        self.prefill_replica = array("i", [-1]) * count
        self._spec, self._bytes_per_token = spec, kv_bytes_per_token
        self._requests, self._events = requests, events
        # What the rows said before the prefill replica was asked for one token.
        self._asked: dict[int, tuple[int, int]] = {}
        self._source: dict[int, Unit] = {}
        self._links: dict[int, Link] = {}
        self._on_their_way: dict[int, int] = {}
        self._arrived: dict[int, deque[int]] = {}
        self._stalled_since: dict[int, float] = {}

    @property
    def seconds(self) -> float:
        """Seconds of links in use."""
        return sum(link.seconds for link in self._links.values())

    @property
    def waited(self) -> float:
        """Seconds that caches waited for a link."""
        return sum(link.waited for link in self._links.values())

    def begin(self, index: int, *, is_split: bool = True) -> None:
        """Forget an earlier attempt; ask a prefill replica (``is_split``) for the first token alone."""
        requests = self._requests
        self.prefill_end[index] = self.transfer_start[index] = self.transfer_end[index] = nan
        self.prefill_replica[index] = -1
        if is_split:
            self._asked[index] = (requests.output_tokens[index], requests.max_tokens[index])
            requests.output_tokens[index] = requests.max_tokens[index] = 1

    def restore(self, index: int) -> None:
        """Let the row say again what the client asked for."""
        asked = self._asked.pop(index, None)
        if asked is not None:
            self._requests.output_tokens[index], self._requests.max_tokens[index] = asked

    def send(self, index: int, unit: Unit, now: float) -> bool:
        """Send on a request whose prompt is computed; return False if its first token was all it wanted."""
        requests = self._requests
        self.restore(index)
        if requests.output_tokens[index] == 1:
            return False
        strike(unit.replica, index)
        requests.status[index] = UNFINISHED
        requests.finish_time[index] = requests.first_token_time[index] = nan
        own = unit.pool.kv_bytes_per_token
        bytes_per_token = self._bytes_per_token if own is None else own
        seconds = requests.prompt_tokens[index] * bytes_per_token / self._spec.transfer_bandwidth
        self.num_transfers += 1
        self._source[index] = unit
        self._on_their_way[unit.number] = self._on_their_way.get(unit.number, 0) + 1
        self.prefill_end[index], self.prefill_replica[index] = now, unit.number
        self._schedule(self._link(unit).send(index, seconds, now), unit)
        return True

    def set_pace(self, unit: Unit, now: float, pace: float) -> None:
        """Let the link of a prefill replica take ``pace`` times as long from now on; inf: it is down."""
        for crossing in self._link(unit).set_pace(pace, now):
            if self._source.get(crossing.index) is unit:
                self._schedule(crossing, unit)

    def _link(self, unit: Unit) -> Link:
        return self._links.setdefault(unit.number, Link())

    def _schedule(self, crossing: Crossing, unit: Unit) -> None:
        """Note when a cache crosses, and let it land then."""
        index = crossing.index
        if not crossing.has_begun:
            self.transfer_start[index] = crossing.start if crossing.start < inf else nan
        end = crossing.end + self._spec.transfer_latency
        self.transfer_end[index] = end if end < inf else nan
        if end < inf:
            heappush(self._events, (end, LAND, index, unit.number))

    def has_landed(self, index: int, now: float) -> bool:
        """Return whether a cache arrives ``now``: a landing from before its link changed its pace does not count."""
        return self.transfer_end[index] == now

    def is_full(self, unit: Unit, now: float) -> bool:
        """Return whether so many caches of a prefill replica are on their way that it must not start another step."""
        is_full = self._on_their_way.get(unit.number, 0) >= self._spec.max_in_transfer
        if is_full:
            self._stalled_since.setdefault(unit.number, now)
        return is_full

    def arrive(self, index: int, unit: Unit) -> bool:
        """Queue a cache at a decode replica; return whether it is the first there, so that it may be taken in soon."""
        queue = self._arrived.setdefault(unit.number, deque())
        queue.append(index)
        return len(queue) == 1

    def take_in(self, unit: Unit, now: float) -> list[Unit]:
        """Let a decode replica take in what it has room for; return the prefill replicas that may go on."""
        queue, freed = self._arrived.get(unit.number), []
        while queue and take_in(unit.replica, self._requests, queue[0], now):
            freed += self.release(queue.popleft(), now)
        return freed

    def drop(self, index: int, unit: Unit | None, now: float) -> list[Unit]:
        """Forget a cache that nobody wants any more, on its way or at ``unit``; return who may go on."""
        if unit is not None and index in self._arrived.get(unit.number, ()):
            self._arrived[unit.number].remove(index)
        return self.release(index, now)

    def is_queued(self, index: int, unit: Unit) -> bool:
        """Return whether a cache waits at a decode replica."""
        return index in self._arrived.get(unit.number, ())

    def release(self, index: int, now: float) -> list[Unit]:
        """Count a cache as no longer on its way; return its prefill replica if that stood still for it."""
        source = self._source.pop(index, None)
        if source is None:
            return []
        self._on_their_way[source.number] -= 1
        since = self._stalled_since.pop(source.number, None)
        if since is None:
            return []
        self.stalled += now - since
        return [source]

    def lose_source(self, unit: Unit, now: float) -> list[int]:
        """Forget everything that a prefill replica was sending; return the requests, in the order of their numbers.

        What has arrived at a decode replica is safe there; it no longer counts as on its way.
        """
        sent = sorted(index for index, source in self._source.items() if source is unit)
        for index in sent:
            self.release(index, now)
        link = self._links.get(unit.number)
        if link is not None:
            link.clear(now)
        return [index for index in sent if not self.transfer_end[index] <= now]
