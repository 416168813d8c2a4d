"""The `deployment.routing` block: which replica an arrival goes to. Decides nothing.

The text below a field is its entry in the reference.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from simserve.units import Seconds
from simserve.validation import FrozenModel

RoutingPolicy = Literal[
    "round_robin", "random", "least_outstanding", "least_tokens", "power_of_two", "session", "prefix", "lora"
]
BLIND_POLICIES = ("round_robin", "random")
"""Policies that look at no signal."""

TOKEN_POLICIES = ("least_tokens", "prefix")
"""Policies whose load is tokens, not requests."""


API_POOL = "api"
"""Name of the API of `deployment.overflow` among the pools of a rule."""


class RuleSpec(FrozenModel):
    """Which requests go to a pool, and how often its answer does not do."""

    pool: str
    """The pool of `deployment.pools`, or `api`: the one of `deployment.overflow`."""
    classes: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """Classes that it is about; absent: all whose class names no pool itself."""
    min_prompt_tokens: Annotated[int, Field(ge=1)] | None = None
    """Shortest prompt that it is about."""
    max_prompt_tokens: Annotated[int, Field(ge=1)] | None = None
    """Longest prompt that it is about."""
    misclassified: Annotated[float, Field(gt=0, le=1)] | None = None
    """Share of these requests that the pool's answer does not do for: when it is complete, they are asked again of
    `retry_pool`. Both answers are computed and paid; the client's first token is that of the second one."""
    retry_pool: str | None = None
    """The pool that misclassified requests are asked again of, or `api`."""

    @model_validator(mode="after")
    def _check_retry(self) -> Self:
        if (self.misclassified is None) != (self.retry_pool is None):
            raise ValueError("needs both misclassified and retry_pool, or none of them")
        if self.retry_pool == self.pool:
            raise ValueError(f"asks the pool {self.pool} again, whose answer did not do; name another retry_pool")
        shortest, longest = self.min_prompt_tokens, self.max_prompt_tokens
        if shortest is not None and longest is not None and shortest > longest:
            raise ValueError(f"is about no prompt: min_prompt_tokens {shortest} is above max_prompt_tokens {longest}")
        return self


class RoutingSpec(FrozenModel):
    """How requests are spread over the replicas."""

    policy: RoutingPolicy = "least_outstanding"
    """`round_robin`; `random`; `least_outstanding`: the replica with the fewest unanswered requests; `least_tokens`:
    the one whose unanswered requests have the fewest tokens, prompts and the most they may generate; `power_of_two`:
    the less loaded of two drawn at random; `session`: where the session's last turn went; `prefix`: where the longest
    part of the prompt was served last, if that is much of it (`cache_threshold`), else the one with the fewest tokens
    to do; `lora`: where the request's LoRA adapter went last, requests without one to the fewest unanswered requests.
    Ties go to the lowest replica."""
    update_interval: Seconds = 0.0
    """How old the router's view of the replicas gets: it is renewed so often, and what was routed since is not in it.
    `0 s`: always up to date."""
    imbalance_guard: Annotated[float, Field(ge=1)] | None = None
    """`session`, `prefix` and `lora`: a replica with more than this many times the mean load of all is passed over for
    the least loaded one, if it has more to do than that one by four requests (`session`, `lora`), or by the tokens that
    it need not compute (`prefix`, whose load is the tokens of unanswered requests). Absent: 1.5."""
    cache_threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    """`prefix`: the share of the prompt that a replica must know for the request to go there; below it, the least
    loaded one is chosen. Absent: 0.5."""
    weights: dict[str, Annotated[float, Field(gt=0)]] | None = None
    """Share of the traffic by pool, any scale, as for a roll-out: `{stable: 95, canary: 5}`; the policy then chooses
    within the pool. Absent: the policy chooses among the replicas of all pools."""
    rules: Annotated[tuple[RuleSpec, ...], Field(min_length=1)] | None = None
    """Which requests go to which pool; the first rule that fits counts, and the policy then chooses within its pool.
    What fits none goes to any pool, or to that of its class. Absent: no rules."""
