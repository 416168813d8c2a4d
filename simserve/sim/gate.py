"""Gate: which arrivals are turned away, and why. Sees what a front end sees, never how long an answer will be."""

from __future__ import annotations

from collections.abc import Callable

from simserve import rng
from simserve.engine.cancel import kv_share
from simserve.sim.admission_spec import AdmissionSpec
from simserve.sim.bucket import Bucket
from simserve.sim.records import DEADLINE, KV_HEADROOM, LOAD, QUEUE_FULL, RATE_LIMIT
from simserve.sim.units import Unit
from simserve.workload.requests import RequestSpecs

ADMITTED = 0
_UNIFORMS_AT_ONCE = 1024


class Gate:
    """Applies the rules of an `AdmissionSpec`.

    Args:
        spec: The rules.
        specs: What arrives, for its seed.
        patience: From a request to the seconds from its arrival in which its first token must come; None: no limit.

    Attributes:
        parked_before: From a request to those of its class that wait in front of all replicas; None: one queue for all.
    """

    parked_before: Callable[[int], int] | None = None

    def __init__(self, spec: AdmissionSpec, specs: RequestSpecs, patience: Callable[[int], float | None]) -> None:
        self.retry_after = spec.retry_after
        self._spec = spec
        self._patience = patience
        bucket = spec.token_bucket
        self._bucket = None if bucket is None else Bucket(bucket.rate, bucket.burst)
        self._random = rng.stream(specs.seed, "admission", specs.replication)
        self._uniforms: list[float] = []

    def refusal(self, index: int, unit: Unit | None, num_parked: int, now: float) -> int:
        """Return why a request is refused at ``now``, an index into `simserve.sim.records.REASONS`; 0: it is not.

        Args:
            index: The request.
            unit: The replica that the router has chosen; None while none is ready.
            num_parked: Requests that wait for a replica to be ready.
            now: Seconds.
        """
        if self._bucket is not None and not self._bucket.holds(1.0, now):
            return RATE_LIMIT
        reason = self._refusal_of(index, unit, num_parked, now)
        if reason == ADMITTED and self._bucket is not None:
            self._bucket.take(1.0)
        return reason

    def _refusal_of(self, index: int, unit: Unit | None, num_parked: int, now: float) -> int:
        spec = self._spec
        if unit is None and self.parked_before is not None:
            num_parked = self.parked_before(index)
        num_waiting = num_parked if unit is None else unit.num_waiting
        if spec.max_queue is not None and num_waiting >= spec.max_queue and (unit is None or not _has_seat(unit)):
            return QUEUE_FULL
        if unit is None:
            return ADMITTED
        if spec.kv_headroom is not None and 1.0 - kv_share(unit.replica, now) < spec.kv_headroom:
            return KV_HEADROOM
        if spec.probabilistic_from is not None and self._is_drawn(spec.probabilistic_from, unit, now):
            return LOAD
        if spec.deadline_aware:
            patience = self._patience(index)
            if patience is not None and num_waiting * unit.finish_interval > patience:
                return DEADLINE
        return ADMITTED

    def _is_drawn(self, start: float, unit: Unit, now: float) -> bool:
        load = max(kv_share(unit.replica, now), unit.load / unit.pool.config.max_num_seqs)
        if load < start:
            return False
        if not self._uniforms:
            self._uniforms = self._random.random(_UNIFORMS_AT_ONCE).tolist()
        return self._uniforms.pop() < (load - start) / (1.0 - start)


def _has_seat(unit: Unit) -> bool:
    """Return whether a request would be taken up at the next step: an idle replica has no queue, even one of 0."""
    return unit.load == 0
