"""The `deployment.faults` list: what goes wrong, when, and for how long. Breaks nothing.

The text below a field is its entry in the reference.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from simserve.units import PositiveSeconds, Seconds
from simserve.validation import FrozenModel

Place = Annotated[int, Field(ge=0)]


class _Timed(FrozenModel):
    """A fault at a time, or at random times."""

    at: Seconds | None = None
    """When, from the start of the run."""
    duration: PositiveSeconds | None = None
    """With `at`: how long until it is over, a restart and loading of weights included."""
    mtbf: PositiveSeconds | None = None
    """Instead of `at`: mean time between two faults of one replica (or node), exponential."""
    mttr: PositiveSeconds | None = None
    """With `mtbf`: mean time until it is over, exponential."""
    pool: str | None = None
    """With `deployment.pools`: the pool it strikes; `replica` and `node` then count within it. Absent: they count over
    all pools in their order."""

    @model_validator(mode="after")
    def _check_time(self) -> Self:
        if (self.at is None) == (self.mtbf is None):
            raise ValueError("needs either at, with a duration, or mtbf and mttr")
        if self.at is not None and (self.duration is None or self.mttr is not None):
            raise ValueError("has a time at which it happens: give duration, not mttr")
        if self.mtbf is not None and (self.mttr is None or self.duration is not None):
            raise ValueError("happens at random: give mttr, not duration")
        return self


class _Losing(_Timed):
    in_flight: Literal["lost", "retry"] = "lost"
    """What becomes of the requests on it: `lost` (their clients see an error, and may try again), or `retry`: the
    router sends them to another replica, where they start over, until a request was lost ten times."""


class ReplicaFault(_Losing):
    """A replica crashes, and comes back."""

    kind: Literal["replica"] = "replica"
    """`replica`."""
    replica: Place = 0
    """With `at`: which one, from 0."""


class NodeFault(_Losing):
    """A node is lost with all replicas on it; replicas fill nodes in their order."""

    kind: Literal["node"] = "node"
    """`node`."""
    node: Place = 0
    """With `at`: which one, from 0."""


class SpotFault(_Losing):
    """A spot instance is taken back after a notice: it gets no more requests, and what is left is cut off."""

    kind: Literal["spot"] = "spot"
    """`spot`."""
    replica: Place = 0
    """With `at`: which one, from 0."""
    notice: Seconds = 120.0
    """Warning before it is taken (AWS gives two minutes). `duration` (or `mttr`) runs from there until the instance
    that replaces it takes requests. That is paid for from its launch: `deployment.autoscaling.startup` before it is
    ready, or without autoscaling the defaults of that block."""


class SlowFault(_Timed):
    """A replica whose steps take longer: a hot GPU, a noisy neighbour, a bad link."""

    kind: Literal["slow"] = "slow"
    """`slow`."""
    replica: Place = 0
    """With `at`: which one, from 0."""
    factor: Annotated[float, Field(gt=1)] = 2.0
    """How many times as long every step takes."""


class LinkFault(_Timed):
    """The link over which a prefill replica sends its KV caches is slow, or down."""

    kind: Literal["link"] = "link"
    """`link`; with `deployment.disaggregation`."""
    replica: Place = 0
    """With `at`: which prefill replica's, from 0."""
    factor: Annotated[float, Field(gt=1)] | None = None
    """How many times as long a transfer takes. Absent: the link is down; what is on it, and what comes, waits until it
    is back, and back-pressure holds the prefill replica."""


class ProbeSpec(FrozenModel):
    """How an orchestrator notices that a replica hangs."""

    depth: Literal["deep", "shallow"] = "deep"
    """`deep`: it asks for a token; `shallow`: it asks whether the process is alive, and never notices."""
    period: PositiveSeconds = 10.0
    """Time between two probes."""
    threshold: Annotated[int, Field(ge=1)] = 3
    """Probes in a row that must fail (Kubernetes' `failureThreshold`)."""


class BlackHoleFault(_Losing):
    """A replica that accepts requests and never answers. It is restarted when its probe notices."""

    kind: Literal["black_hole"] = "black_hole"
    """`black_hole`. `duration` (or `mttr`) is how long the restart takes once it was noticed; unnoticed, it hangs that
    long and then goes on."""
    replica: Place = 0
    """With `at`: which one, from 0."""
    probe: ProbeSpec = ProbeSpec()
    """What notices."""


FaultSpec = Annotated[
    ReplicaFault | NodeFault | SpotFault | SlowFault | BlackHoleFault | LinkFault,
    Field(discriminator="kind"),
]
