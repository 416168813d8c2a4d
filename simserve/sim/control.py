"""Control: everything of a deployment that decides while a run goes on, beside the plain spreading of requests."""

from __future__ import annotations

from dataclasses import dataclass, field

from simserve.sim.admission_spec import AdmissionSpec
from simserve.sim.routing_spec import LIVE_POLICIES, RoutingSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """What decides in a run.

    Attributes:
        routing: How requests are spread.
        admission: Who is turned away; None: nobody.
        ttft_limits: TTFT objective of each class (of all requests: one entry), seconds; None: no limit.
    """

    routing: RoutingSpec = field(default_factory=RoutingSpec)
    admission: AdmissionSpec | None = None
    ttft_limits: tuple[float | None, ...] = (None,)

    @property
    def is_plain(self) -> bool:
        """Whether nothing decides but a router that the plain data plane knows."""
        is_live = self.routing.policy in LIVE_POLICIES and not self.routing.update_interval
        return is_live and self.admission is None
