"""The `deployment.overflow` block: requests that an API serves instead of the replicas. Sends nothing.

The text below a field is its entry in the reference.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from simserve.sim.admission_spec import TokenBucketSpec
from simserve.units import PositiveSeconds
from simserve.validation import FrozenModel

ClassNames = Annotated[tuple[str, ...], Field(min_length=1)]


class OverflowSpec(FrozenModel):
    """When a request goes to an API instead of a queue, and how fast that answers. The run pays its dollars too."""

    api: str
    """API: a name that `simserve apis` lists, or the path of a profile file; its list price is paid."""
    max_queue: Annotated[int, Field(ge=0)] | None = None
    """Most requests that wait at a replica (or, while none is ready, in front of all); one more goes to the API."""
    above_rate: TokenBucketSpec | None = None
    """Rate that the replicas serve, with the burst they take at once: what comes above it goes to the API."""
    always: ClassNames | None = None
    """Classes that go to the API whatever the replicas do, prompts that no replica could take included (unless a 429
    makes them `stay`)."""
    never: ClassNames | None = None
    """Classes whose text must not leave, as data residency asks: they wait for a replica."""
    ttft: PositiveSeconds = 0.5
    """Mean time to first token of the API. Absent, as the next two: what the API's profile has as measured (`latency`,
    which `simserve apis --json` prints with its date and source), else this."""
    ttft_cv: Annotated[float, Field(ge=0, le=10)] = 0.5
    """Standard deviation over mean of that time; lognormal."""
    tokens_per_second: Annotated[float, Field(gt=0)] = 80.0
    """Tokens a second of one answer after the first."""
    tokens_per_second_cv: Annotated[float, Field(ge=0, le=10)] = 0.0
    """Standard deviation over mean of the time a token, one draw an answer; lognormal. 0: every answer is as fast."""
    requests_per_minute: Annotated[float, Field(gt=0)] | None = None
    """Most requests a minute that the API takes; absent: any number."""
    tokens_per_minute: Annotated[float, Field(gt=0)] | None = None
    """Most tokens a minute, prompts and `max_tokens`, as OpenAI counts them; absent: any number."""
    when_limited: Literal["stay", "wait", "refuse"] | None = None
    """What a 429 of the API leads to: `stay`: the request waits for a replica after all (except where a routing rule
    sends it to the API alone: it waits for that); `wait`: the gateway sends it
    again as soon as the limit lets it in, in order; `refuse`: the client gets the 429, with Retry-After, and may try
    again as its class does (reason `api_limit`). Absent: `stay`."""

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        both = set(self.always or ()) & set(self.never or ())
        if both:
            raise ValueError(f"names {', '.join(sorted(both))} in always and in never; keep one of the two")
        if self.when_limited is not None and not self.is_limited:
            raise ValueError("has when_limited without a limit; give requests_per_minute or tokens_per_minute")
        return self

    @property
    def never_stays(self) -> bool:
        """Whether what is sent to the API never ends at a replica."""
        return not self.is_limited or self.when_limited in ("wait", "refuse")

    @property
    def is_limited(self) -> bool:
        """Whether the API ever answers 429."""
        return self.requests_per_minute is not None or self.tokens_per_minute is not None
