"""Admission control: which requests are turned away, and why. It never sees how long an answer will be."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from simserve.reference.clock import Chance

if TYPE_CHECKING:
    from simserve.reference.replica import Replica
    from simserve.reference.request import Request
    from simserve.sim.control import AdmissionSpec, Control
    from simserve.workload.requests import RequestSpecs


class TokenBucket:
    """A rate limit that fills steadily up to a burst."""

    def __init__(self, rate: float, burst: float) -> None:
        self.rate, self.burst = rate, burst
        self.level, self.filled_at = burst, 0.0

    def seconds_to(self, amount: float, now: float) -> float:
        """Return the seconds until so much may pass; more than the bucket ever holds passes when it is full."""
        self.level = min(self.burst, self.level + self.rate * (now - self.filled_at))
        self.filled_at = now
        return max(0.0, (min(amount, self.burst) - self.level) / self.rate)

    def holds(self, amount: float, now: float) -> bool:
        """Whether so much may pass ``now``."""
        return self.seconds_to(amount, now) == 0.0

    def take(self, amount: float) -> None:
        """Let so much pass; the bucket may be left with less than nothing."""
        self.level -= amount


class Admission:
    """The rules of `deployment.admission`; the first that refuses is the reason."""

    def __init__(self, spec: AdmissionSpec, control: Control, specs: RequestSpecs) -> None:
        self.spec, self.control, self.specs = spec, control, specs
        self.chance = Chance(specs, "admission")
        bucket = spec.token_bucket
        self.bucket = None if bucket is None else TokenBucket(bucket.rate, bucket.burst)

    def refusal(
        self, request: Request, replica: Replica | None, num_parked: int, parked_seconds: float, now: float
    ) -> str:
        """Return why a request is refused ``now``; empty: it is not.

        Args:
            request: It.
            replica: Where the router would send it; None: it would wait in front of all replicas.
            num_parked: Requests that it would wait behind there.
            parked_seconds: How long it would wait there, as far as anybody knows.
            now: Seconds.
        """
        if self.bucket is not None and not self.bucket.holds(1.0, now):
            return "rate_limit"
        reason = (
            self.refusal_at_gateway(request, num_parked, parked_seconds)
            if replica is None
            else self.refusal_at(request, replica)
        )
        if not reason and self.bucket is not None:
            self.bucket.take(1.0)
        return reason

    def refusal_at_gateway(self, request: Request, num_parked: int, parked_seconds: float) -> str:
        """Return why a request may not wait in front of all replicas."""
        if self.spec.max_queue is not None and num_parked >= self.spec.max_queue:
            return "queue_full"
        if self.spec.deadline_aware and parked_seconds > self.patience(request):
            return "deadline"
        return ""

    def refusal_at(self, request: Request, replica: Replica) -> str:
        """Return why a request may not go to a replica."""
        # An idle replica serves it at once: it does not wait, so no limit on waiting applies.
        if self.spec.max_queue is not None and replica.load and replica.num_waiting >= self.spec.max_queue:
            return "queue_full"
        if self.spec.kv_headroom and 1.0 - replica.kv_share < self.spec.kv_headroom:
            return "kv_headroom"
        start = self.spec.probabilistic_from
        if start is not None:
            share = max(replica.kv_share, replica.load / replica.scheduler.max_num_seqs)
            if share >= start and self.chance.next() < (share - start) / (1.0 - start):
                return "load"
        if self.spec.deadline_aware and replica.num_waiting * replica.pace.interval > self.patience(request):
            return "deadline"
        return ""

    def patience(self, request: Request) -> float:
        """Return the seconds in which a first token must come: the TTFT objective, else the client's own limit."""
        has_classes = self.specs.request_class is not None
        ttft = self.control.limits[request.kind if has_classes else 0].ttft
        timeout = self.specs.classes[request.kind].timeout if has_classes else None
        return next((limit for limit in (ttft, timeout) if limit is not None), math.inf)
