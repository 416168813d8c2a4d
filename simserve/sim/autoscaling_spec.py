"""The `deployment.autoscaling` block: how the number of replicas follows the load. Decides nothing.

The text below a field is its entry in the reference.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from simserve.units import PositiveBytesPerSecond, PositiveSeconds, Seconds
from simserve.validation import FrozenModel

SHARES = ("kv_usage", "busy", "slo")
"""Metrics whose target is a share."""


class StartupSpec(FrozenModel):
    """What passes between the decision to add a replica and its first request; the GPUs are paid for from the start."""

    schedule: Seconds = 20.0
    """A node is found, or booted."""
    image: Seconds = 60.0
    """The container image is pulled."""
    load_bandwidth: PositiveBytesPerSecond = 2e9
    """Bandwidth at which the weights of the whole replica are read from storage."""
    engine: Seconds = 40.0
    """The engine starts: profiling, CUDA graphs, compilation, warm-up."""

    def seconds(self, weights_bytes: float) -> float:
        """Return the seconds of a start with so many bytes of weights."""
        return self.schedule + self.image + weights_bytes / self.load_bandwidth + self.engine


class HorizontalScaling(FrozenModel):
    """What the scaling of replicas and that of encoder workers have in common."""

    metric: str
    """What is looked at."""
    target: Annotated[float, Field(gt=0)]
    """What the metric should be: a number of requests a replica, or for kv_usage, busy and slo a share."""
    min_replicas: Annotated[int, Field(ge=0, le=10_000)] = 1
    """Fewest replicas; 0: none while nothing is asked for, and the first request waits for a start."""
    max_replicas: Annotated[int, Field(ge=1, le=10_000)]
    """Most replicas."""
    interval: PositiveSeconds = 15.0
    """How often the metric is looked at."""
    stabilization: Seconds = 300.0
    """How long a lower load must last before replicas are given back."""
    startup: StartupSpec = StartupSpec()
    """How long a new replica takes."""

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        if self.min_replicas > self.max_replicas:
            raise ValueError(f"min_replicas {self.min_replicas} must not be above max_replicas {self.max_replicas}")
        if self.metric in SHARES and self.target > 1:
            raise ValueError(f"target {self.target:g} of {self.metric} is a share; it must be at most 1")
        return self


class AutoscalingSpec(HorizontalScaling):
    """Horizontal autoscaling as Kubernetes' HPA does it: `replicas x metric / target`, rounded up, at every interval.

    It grows at once and shrinks to the largest number asked for within the stabilization window; a change of less than
    a tenth is left alone. `deployment.replicas` are there at the start.
    """

    metric: Literal["queue_depth", "running", "kv_usage", "busy", "slo"] = "queue_depth"
    """`queue_depth`: requests that wait, of a replica; `running`: requests being served, of a replica; `kv_usage`:
    share of KV memory in use; `busy`: share of the interval with a step running; `slo`: share of the requests ended in
    the interval that met the objective, or of the agents' tasks ended in it, whichever is smaller: one replica more
    while it is below the target, one less when all met it and the others would have at most nine tenths of the requests
    each that replicas had at the last miss."""
    grace_period: Seconds = 30.0
    """How long a replica that is given back may take to answer what it has; then its requests are cut off."""


class EncoderAutoscalingSpec(HorizontalScaling):
    """How the workers of an encoder pool follow the load: the rule of `deployment.autoscaling`, on metrics of images.

    A worker that is added takes images from when it is ready; what others were given stays with them. One that is given
    back takes no more, and is paid for until it has encoded what it was given.
    """

    metric: Literal["queue_depth", "busy"] = "queue_depth"
    """`queue_depth`: images and recordings that wait for their turn, of a worker; `busy`: share of the interval in
    which a worker encodes."""
    target: Annotated[float, Field(gt=0)]
    """What the metric should be: a number of images a worker, or for busy a share."""
    min_replicas: Annotated[int, Field(ge=1, le=10_000)] = 1
    """Fewest workers."""
    max_replicas: Annotated[int, Field(ge=1, le=10_000)]
    """Most workers."""
    stabilization: Seconds = 300.0
    """How long a lower load must last before workers are given back."""
    startup: StartupSpec = StartupSpec()
    """How long a new worker takes, which loads the encoder alone."""
