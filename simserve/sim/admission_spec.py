"""The `deployment.admission` block: which requests are turned away at the admission control. Decides nothing.

The text below a field is its entry in the reference.
"""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from simserve.units import Seconds
from simserve.validation import FrozenModel


class TokenBucketSpec(FrozenModel):
    """A bucket that fills at a rate and that every admitted request takes one token from."""

    rate: Annotated[float, Field(gt=0)]
    """Requests a second in the long run."""
    burst: Annotated[float, Field(ge=1)]
    """Requests that an unused bucket lets in at once."""


class AdmissionSpec(FrozenModel):
    """When a request is answered with 503 and Retry-After instead of being queued. The first rule that refuses is the
    reason; each looks at the replica that the router has chosen."""

    token_bucket: TokenBucketSpec | None = None
    """Limit on the rate, in front of all replicas. Reason: `rate_limit`."""
    max_queue: Annotated[int, Field(ge=0)] | None = None
    """Most requests that wait at a replica (or, while none is ready, in front of all). Reason: `queue_full`."""
    kv_headroom: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Share of a replica's KV memory that must be free. Reason: `kv_headroom`."""
    probabilistic_from: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Load from which requests are refused at random, more and more of them up to all at load 1; the load of a replica
    is the larger of its KV use and its unanswered requests over `max_num_seqs`. Reason: `load`."""
    deadline_aware: bool = False
    """Whether a request is refused whose first token would come too late: the requests that wait at the replica times
    its mean time between two finishes is more than the TTFT limit (or, without one, than the client's timeout).
    Reason: `deadline`."""
    retry_after: Seconds = 1.0
    """What the refusal tells the client to wait."""

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        rules = (self.token_bucket, self.max_queue, self.kv_headroom, self.probabilistic_from)
        if not self.deadline_aware and all(rule is None for rule in rules):
            raise ValueError(
                "refuses nobody; give max_queue, kv_headroom, probabilistic_from, token_bucket or deadline_aware"
            )
        return self
