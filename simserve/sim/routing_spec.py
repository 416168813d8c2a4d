"""The `deployment.routing` block: which replica an arrival goes to. Decides nothing.

The text below a field is its entry in the reference.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from simserve.units import Seconds
from simserve.validation import FrozenModel

RoutingPolicy = Literal[
    "round_robin", "random", "least_outstanding", "least_tokens", "power_of_two", "session", "prefix"
]
LIVE_POLICIES = ("round_robin", "least_outstanding")
"""Policies that the plain data plane knows, with signals that are never stale."""
BLIND_POLICIES = ("round_robin", "random")
"""Policies that look at no signal."""


class RoutingSpec(FrozenModel):
    """How requests are spread over the replicas."""

    policy: RoutingPolicy = "least_outstanding"
    """`round_robin`; `random`; `least_outstanding`: the replica with the fewest unanswered requests; `least_tokens`:
    the one whose unanswered requests have the fewest tokens, prompts and the most they may generate; `power_of_two`:
    the less loaded of two drawn at random; `session`: where the session's last turn went; `prefix`: where the longest
    part of the prompt was served last. Ties go to the lowest replica."""
    update_interval: Annotated[Seconds, Field(ge=0)] = 0.0
    """How old the router's view of the replicas gets: it is renewed so often, and what was routed since is not in it.
    `0 s`: always up to date."""
    imbalance_guard: Annotated[float, Field(ge=1)] | None = None
    """`session` and `prefix`: a replica with more than this many times the mean load of all (and with more than the
    least loaded by four requests) is passed over for the least loaded one. Absent: 1.5."""
    weights: dict[str, Annotated[float, Field(gt=0)]] | None = None
    """Share of the traffic by pool, any scale, as for a roll-out: `{stable: 95, canary: 5}`; the policy then chooses
    within the pool. Absent: the policy chooses among the replicas of all pools."""
