"""KV transfers from prefill replicas to decode replicas, over one link per prefill replica."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from simserve.reference.clock import LANDS

if TYPE_CHECKING:
    from collections import deque

    from simserve.reference.clock import Clock, Steps
    from simserve.reference.replica import Pool, Replica
    from simserve.reference.request import Request
    from simserve.sim.control import DisaggregationSpec


@dataclass(eq=False)
class Transfer:
    """The transfer of one KV cache. Times are seconds, inf while unknown."""

    request: Request
    source: Replica
    left: float
    computed_at: float
    start: float = math.inf
    end: float = math.inf
    lands_at: float = math.inf


class Surroundings(Protocol):
    """What the links need from the run around them."""

    clock: Clock
    landed: deque[Request]

    def take_to_decode(self, request: Request) -> None:
        """Route a KV cache that has arrived."""

    def computes_again(self, source: Pool) -> bool:
        """Whether pools that read the KV caches of a pool recompute the last token of a prompt."""


class Transfers:
    """The links of all prefill replicas: each sends one cache after another at full bandwidth.

    Attributes:
        by_request: The transfer of every request that crossed, or is crossing, in its last attempt.
        on_their_way: Transfers that count against ``max_in_transfer``, until the request has a seat.
    """

    def __init__(self, cluster: Surroundings, spec: DisaggregationSpec | None, token_latency: float) -> None:
        self.cluster, self.spec, self.token_latency = cluster, spec, token_latency
        self.by_request: dict[Request, Transfer] = {}
        self.on_their_way: dict[Request, Transfer] = {}
        self.paces: dict[Replica, float] = {}
        self.queues: dict[Replica, list[Transfer]] = {}
        self.asked: dict[Request, tuple[int, int]] = {}
        self.sent: list[Transfer] = []
        self.stalled_since: dict[Replica, float] = {}
        self.stalled_seconds = 0.0

    def begin(self, request: Request, replica: Replica) -> None:
        """Discard an earlier attempt; ask a prefill replica for only the first token."""
        self.by_request.pop(request, None)
        if replica.pool.role == "prefill":
            self.asked[request] = (request.output_tokens, request.max_tokens)
            request.output_tokens = request.max_tokens = 1

    def restore(self, request: Request) -> None:
        """Restore what the client asked for in a request."""
        if request in self.asked:
            request.output_tokens, request.max_tokens = self.asked.pop(request)

    def send(self, request: Request, source: Replica) -> bool:
        """Send the KV cache of a computed prompt; return False if the client wanted only the first token."""
        if request.output_tokens == 1 and not self.cluster.computes_again(source.pool):
            return False
        assert self.spec is not None
        source.scheduler.let_stand_in(request)
        request.status, request.finish = "unfinished", math.nan
        request.handed_over, request.token_times, request.gaps = math.nan, [], []
        seconds = request.prompt_tokens * source.pool.kv_bytes_per_token / self.spec.transfer_bandwidth
        transfer = Transfer(request, source, seconds, self.cluster.clock.now)
        self.by_request[request] = self.on_their_way[request] = transfer
        self.queues.setdefault(source, []).append(transfer)
        self.sent.append(transfer)
        self.time(source)
        return True

    def time(self, source: Replica) -> None:
        """Set when each transfer in the queue of a link begins and ends, at the link's present pace."""
        now, pace = self.cluster.clock.now, self.paces.get(source, 1.0)
        assert self.spec is not None
        free_at = now
        for transfer in self.queues[source]:
            if math.isfinite(transfer.end) and transfer.lands_at < math.inf:
                free_at = transfer.end
                continue
            if pace == math.inf:
                return
            if transfer.start > now:
                transfer.start = max(now, free_at)
            transfer.end = free_at = max(now, free_at) + transfer.left * pace
            latency = self.spec.landing_seconds + self.token_latency * transfer.request.prompt_tokens
            transfer.lands_at = transfer.end + latency
            self.cluster.clock.process(self.land(transfer, transfer.lands_at))

    def land(self, transfer: Transfer, time: float) -> Steps:
        """Route a cache to a decode replica when it has arrived, unless its link changed its pace meanwhile."""
        yield self.cluster.clock.at(time, LANDS, transfer.request.index)
        is_own = transfer.request.place == "crossing" and self.by_request.get(transfer.request) is transfer
        has_landed = transfer.request in self.cluster.landed
        if is_own and transfer.lands_at == time and not has_landed:
            self.cluster.take_to_decode(transfer.request)

    def set_pace(self, source: Replica, pace: float) -> None:
        """Let a link take ``pace`` times as long from now on; inf: it is down, and all its transfers wait."""
        now, before = self.cluster.clock.now, self.paces.get(source, 1.0)
        self.paces[source] = pace
        self.queues[source] = [each for each in self.queues.get(source, []) if each.end > now]
        for transfer in self.queues[source]:
            if math.isfinite(transfer.end):
                transfer.left = (transfer.end - max(transfer.start, now)) / before
            transfer.end = transfer.lands_at = math.inf
            if transfer.start >= now:
                transfer.start = math.inf
        self.time(source)

    def is_full(self, source: Replica) -> bool:
        """Whether a prefill replica has too many caches in transfer to start another step."""
        assert self.spec is not None
        own = [each for each in self.on_their_way.values() if each.source is source]
        if len(own) < self.spec.max_in_transfer:
            return False
        self.stalled_since.setdefault(source, self.cluster.clock.now)
        return True

    def release(self, request: Request) -> None:
        """Stop counting a cache as in transfer; its prefill replica goes on if it was stalled."""
        transfer = self.on_their_way.pop(request, None)
        since = None if transfer is None else self.stalled_since.pop(transfer.source, None)
        if transfer is not None and since is not None:
            self.stalled_seconds += self.cluster.clock.now - since
            transfer.source.wake()

    def drop(self, request: Request, replica: Replica | None) -> None:
        """Discard a cache that is no longer wanted, in transfer or at a decode replica."""
        if replica is not None and request in replica.landed:
            replica.landed.remove(request)
        self.release(request)

    def lose(self, replica: Replica, members: list[Request]) -> list[Request]:
        """Discard what was at a lost replica; return the requests whose caches it was sending.

        Caches that have arrived at a decode replica, or wait for one, are safe.
        """
        for request in members:
            self.restore(request)
            self.drop(request, replica)
        now = self.cluster.clock.now
        own = sorted(
            (each for each in self.on_their_way.values() if each.source is replica), key=lambda one: one.request.index
        )
        for transfer in own:
            self.release(transfer.request)
        self.queues.pop(replica, None)
        lost = [each.request for each in own if each.request.place == "crossing" and not each.lands_at <= now]
        return [request for request in lost if request not in self.cluster.landed]
