"""Admission control: from `deployment.admission` to what `simserve.engine.admission_control` goes by."""

from __future__ import annotations

from simserve.engine.admission_control import ANY_NUMBER, AdmissionControl
from simserve.engine.bucket import Bucket
from simserve.engine.numbers import column
from simserve.engine.state import INFINITY
from simserve.engine.uniforms import Uniforms
from simserve.sim.admission_spec import AdmissionSpec
from simserve.sim.control import Control
from simserve.sim.patience import kinds_of
from simserve.workload.requests import RequestSpecs


def admission_control_of(
    spec: AdmissionSpec, control: Control, specs: RequestSpecs, uniforms: Uniforms
) -> AdmissionControl:
    """Return the admission control of a run.

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
    return AdmissionControl(
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
    ttft = control.limits[kind if specs.request_class is not None else 0].ttft
    if ttft is not None:
        return ttft
    timeout = None if specs.request_class is None else classes[kind].timeout
    return INFINITY if timeout is None else timeout
