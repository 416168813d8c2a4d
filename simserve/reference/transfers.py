"""KV transfers: caches on their way from prefill replicas to decode replicas, over one link each."""

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
    """One KV cache on its way. Times are seconds, inf while nobody knows."""

    request: Request
    source: Replica
    left: float
    computed_at: float
    start: float = math.inf
    end: float = math.inf
    lands_at: float = math.inf


class Surroundings(Protocol):
    """What the links ask, and tell, of the run around them."""

    clock: Clock
    landed: deque[Request]

    def take_to_decode(self, request: Request) -> None:
        """Route a KV cache that has arrived."""

    def computes_again(self, source: Pool) -> bool:
        """Whether those that read the KV caches of a pool compute the last token of a prompt again."""


class Transfers:
    """The links of all prefill replicas: each sends one cache after the other at full bandwidth.

    Attributes:
        by_request: The transfer of every request that crossed, or crosses, in its last attempt.
        on_their_way: Those that count against ``max_in_transfer``: until they have a seat.
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
        """Forget an earlier attempt; ask a prefill replica for the first token alone."""
        self.by_request.pop(request, None)
        if replica.pool.role == "prefill":
            self.asked[request] = (request.output_tokens, request.max_tokens)
            request.output_tokens = request.max_tokens = 1

    def restore(self, request: Request) -> None:
        """Let a request ask again for what its client wants."""
        if request in self.asked:
            request.output_tokens, request.max_tokens = self.asked.pop(request)

    def send(self, request: Request, source: Replica) -> bool:
        """Send the KV cache of a computed prompt; return False if its first token was all that was wanted."""
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
        """Say of everything in the queue of a link when it begins and ends, at the pace that the link has now."""
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
        """Route a cache to a decode replica when it has arrived, unless its link changed its pace on the way."""
        yield self.cluster.clock.at(time, LANDS, transfer.request.index)
        is_own = transfer.request.place == "crossing" and self.by_request.get(transfer.request) is transfer
        has_landed = transfer.request in self.cluster.landed
        if is_own and transfer.lands_at == time and not has_landed:
            self.cluster.take_to_decode(transfer.request)

    def set_pace(self, source: Replica, pace: float) -> None:
        """Let a link take ``pace`` times as long from now on; inf: it is down, and everything on it waits."""
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
        """Whether so many caches of a prefill replica are on their way that it starts no further step."""
        assert self.spec is not None
        own = [each for each in self.on_their_way.values() if each.source is source]
        if len(own) < self.spec.max_in_transfer:
            return False
        self.stalled_since.setdefault(source, self.cluster.clock.now)
        return True

    def release(self, request: Request) -> None:
        """Count a cache no longer as on its way; its prefill replica goes on if it stood still."""
        transfer = self.on_their_way.pop(request, None)
        since = None if transfer is None else self.stalled_since.pop(transfer.source, None)
        if transfer is not None and since is not None:
            self.stalled_seconds += self.cluster.clock.now - since
            transfer.source.wake()

    def drop(self, request: Request, replica: Replica | None) -> None:
        """Forget a cache that nobody wants any more, on its way or at a decode replica."""
        if replica is not None and request in replica.landed:
            replica.landed.remove(request)
        self.release(request)

    def lose(self, replica: Replica, members: list[Request]) -> list[Request]:
        """Forget what was at a lost replica; return the requests whose caches it was sending.

        What has arrived at a decode replica, or waits for one, is safe there.
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
