"""The `deployment.liveness` block: the probe that restarts a replica which does not answer in time. Asks nothing.

The text below a field is its entry in the reference.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from simserve.units import PositiveSeconds
from simserve.validation import FrozenModel


class LivenessSpec(FrozenModel):
    """A liveness probe that asks every replica for a token, and restarts the one that is late too often.

    The probe's request takes its place in the queue, behind everything that waits, so a replica that is overloaded
    looks as dead as one that hangs: it is killed with all it holds, and its load moves to the others. (The probe's own
    token costs nothing here. A probe that only asks whether the process is alive restarts nobody: leave the block out.)
    """

    period: PositiveSeconds = 10.0
    """Time from one probe to the next (Kubernetes' `periodSeconds`)."""
    timeout: PositiveSeconds = 1.0
    """How long the replica may take to begin with the probe's request (`timeoutSeconds`)."""
    threshold: Annotated[int, Field(ge=1)] = 3
    """Probes in a row that must be late (`failureThreshold`)."""
    restart: PositiveSeconds = 60.0
    """From the kill to the first request: the engine starts again and loads its weights."""
    in_flight: Literal["lost", "retry"] = "lost"
    """What becomes of the requests on it: `lost` to their clients, or `retry`: the router tries another replica,
    until a request was lost ten times."""

    @model_validator(mode="after")
    def _check_timeout(self) -> Self:
        if self.timeout > self.period:
            raise ValueError(f"timeout {self.timeout:g} s must not be longer than period {self.period:g} s")
        return self
