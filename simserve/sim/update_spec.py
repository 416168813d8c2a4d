"""The `deployment.updates` list: when the replicas are replaced one after another, and how. Replaces nothing.

The text below a field is its entry in the reference.
"""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from simserve.sim.autoscaling_spec import StartupSpec
from simserve.units import Seconds
from simserve.validation import FrozenModel

Count = Annotated[int, Field(ge=0, le=10_000)]


class UpdateSpec(FrozenModel):
    """A rolling update: every replica that is there at its time is drained and replaced by a new one.

    Of `max_unavailable` replicas at a time each is drained first, and its GPUs then start the new one: capacity is
    missing. Of `max_surge` at a time a new one is started on further GPUs first, which are paid for until the old one
    has drained.
    """

    at: Seconds
    """When it begins, from the start of the run."""
    max_unavailable: Count = 1
    """Most replicas that are missing at a time (Kubernetes' `maxUnavailable`)."""
    max_surge: Count = 0
    """Most replicas beyond the number there is (`maxSurge`)."""
    grace_period: Seconds = 30.0
    """How long a replica may take to answer what it has; then its requests are cut off
    (`terminationGracePeriodSeconds`)."""
    startup: StartupSpec = StartupSpec()
    """How long a new replica takes from its start to its first request."""
    pool: str | None = None
    """With `deployment.pools`: the pool that is updated; absent: all, one after another."""

    @model_validator(mode="after")
    def _check_pace(self) -> Self:
        if not self.max_unavailable and not self.max_surge:
            raise ValueError("never goes on with max_unavailable 0 and max_surge 0; set one of them to 1")
        return self
