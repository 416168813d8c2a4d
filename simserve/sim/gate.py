"""Gate: the rules of `deployment.admission`, from what a scenario says to what `simserve.engine.door` goes by."""

from __future__ import annotations

from collections.abc import Callable

from simserve.engine.bucket import Bucket
from simserve.engine.door import ANY_NUMBER, Door, refusal, refusal_in_front
from simserve.engine.numbers import column
from simserve.engine.state import INFINITY
from simserve.engine.uniforms import Uniforms
from simserve.sim.admission_spec import AdmissionSpec
from simserve.sim.chance import Chance
from simserve.sim.control import Control
from simserve.sim.patience import kinds_of
from simserve.sim.units import Unit
from simserve.workload.requests import RequestSpecs


def door_of(spec: AdmissionSpec, control: Control, specs: RequestSpecs, uniforms: Uniforms) -> Door:
    """Return the door of a run.

    Args:
        spec: The rules.
        control: The objectives.
        specs: What arrives, and how long clients wait.
        uniforms: For refusals at random.
    """
    patience = [INFINITY]
    if spec.deadline_aware:
        patience = [_patience(control, specs, kind) for kind in range(max(len(specs.classes), 1))]
    bucket = spec.token_bucket
    return Door(
        bucket=None if bucket is None else Bucket(bucket.rate, bucket.burst),
        max_queue=ANY_NUMBER if spec.max_queue is None else spec.max_queue,
        kv_headroom=spec.kv_headroom or 0.0,
        probabilistic_from=INFINITY if spec.probabilistic_from is None else spec.probabilistic_from,
        patience=column(patience),
        kinds=kinds_of(specs),
        has_patience=min(patience) < INFINITY,
        retry_after=spec.retry_after,
        uniforms=uniforms,
    )


def _patience(control: Control, specs: RequestSpecs, kind: int) -> float:
    """Return the seconds from its arrival in which the first token of a request must come; inf: no limit."""
    classes = specs.classes
    ttft, _, _ = control.limits[kind if specs.request_class is not None else 0]
    if ttft is not None:
        return ttft
    timeout = None if specs.request_class is None else classes[kind].timeout
    return INFINITY if timeout is None else timeout


class Gate:
    """The door of a fleet, in which requests may also wait in front of all replicas.

    Args:
        spec: The rules.
        control: The objectives.
        specs: What arrives.

    Attributes:
        parked_before: From a request to those of its class that wait in front of all replicas; None: one queue for all.
        seconds_before: From a request to how long it would wait there; None: nobody knows.
    """

    parked_before: Callable[[int], int] | None = None
    seconds_before: Callable[[int], float] | None = None

    def __init__(self, spec: AdmissionSpec, control: Control, specs: RequestSpecs) -> None:
        self._chance = Chance(specs, "admission")
        self._door = door_of(spec, control, specs, self._chance.uniforms)
        self.retry_after = spec.retry_after

    def refusal(self, index: int, unit: Unit | None, num_parked: int, now: float) -> int:
        """Return why a request is refused at ``now``, an index into `simserve.sim.records.REASONS`; 0: it is not.

        Args:
            index: The request.
            unit: The replica that the router has chosen; None while none is ready.
            num_parked: Requests that wait for a replica to be ready.
            now: Seconds.
        """
        if unit is not None:
            self._chance.top_up(1)
            return refusal(self._door, index, unit.replica, unit.load, unit.finishes.interval, now)
        if self.parked_before is not None:
            num_parked = self.parked_before(index)
        seconds = 0.0 if self.seconds_before is None else self.seconds_before(index)
        return refusal_in_front(self._door, index, num_parked, seconds, now)
