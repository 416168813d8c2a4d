"""The `deployment.overflow` block: requests that an API serves when the replicas are full. Sends nothing.

The text below a field is its entry in the reference.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from simserve.units import Seconds
from simserve.validation import FrozenModel


class OverflowSpec(FrozenModel):
    """When a request goes to an API instead of a queue, and how fast that answers. The run pays its dollars too."""

    api: str
    """API: a name that `simserve apis` lists, or the path of a profile file; its list price is paid."""
    max_queue: Annotated[int, Field(ge=0)]
    """Most requests that wait at a replica (or, while none is ready, in front of all); one more goes to the API."""
    ttft: Annotated[Seconds, Field(gt=0)] = 0.5
    """Mean time to first token of the API."""
    ttft_cv: Annotated[float, Field(ge=0, le=10)] = 0.5
    """Standard deviation over mean of that time; lognormal."""
    tokens_per_second: Annotated[float, Field(gt=0)] = 80.0
    """Tokens a second of one answer after the first."""
