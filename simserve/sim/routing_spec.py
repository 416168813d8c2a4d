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

TOKEN_POLICIES = ("least_tokens", "prefix")
"""Policies whose load is tokens, not requests."""


class RoutingSpec(FrozenModel):
    """How requests are spread over the replicas."""

    policy: RoutingPolicy = "least_outstanding"
    """`round_robin`; `random`; `least_outstanding`: the replica with the fewest unanswered requests; `least_tokens`:
    the one whose unanswered requests have the fewest tokens, prompts and the most they may generate; `power_of_two`:
    the less loaded of two drawn at random; `session`: where the session's last turn went; `prefix`: where the longest
    part of the prompt was served last, if that is much of it (`cache_threshold`), else the one with the fewest tokens
    to do. Ties go to the lowest replica."""
    update_interval: Annotated[Seconds, Field(ge=0)] = 0.0
    """How old the router's view of the replicas gets: it is renewed so often, and what was routed since is not in it.
    `0 s`: always up to date."""
    imbalance_guard: Annotated[float, Field(ge=1)] | None = None
    """`session` and `prefix`: a replica with more than this many times the mean load of all is passed over for the
    least loaded one, if it has more to do than that one by four requests (`session`), or by the tokens that it need not
    compute (`prefix`, whose load is the tokens of unanswered requests). Absent: 1.5."""
    cache_threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    """`prefix`: the share of the prompt that a replica must know for the request to go there; below it, the least
    loaded one is chosen. Absent: 0.3."""
    weights: dict[str, Annotated[float, Field(gt=0)]] | None = None
    """Share of the traffic by pool, any scale, as for a roll-out: `{stable: 95, canary: 5}`; the policy then chooses
    within the pool. Absent: the policy chooses among the replicas of all pools."""
