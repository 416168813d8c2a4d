"""The `deployment.response_cache` block: answers that are given again without asking a model. Answers nothing.

The text below a field is its entry in the reference.
"""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from simserve.units import PositiveSeconds, Seconds
from simserve.validation import FrozenModel

Share = Annotated[float, Field(ge=0, le=1)]


class ResponseCacheSpec(FrozenModel):
    """A cache of whole answers in front of the router, exact or semantic: what it holds costs no GPU.

    With a measured hit rate, give `hit_share` alone. To see a cache fill up and its answers expire, say how many
    questions the repeated requests ask (`questions`).
    """

    hit_share: Share | dict[str, Share]
    """Share of the requests that it answers, or such a share by class (a class left out: none). With `questions`: the
    share of the requests that ask one of them; a hit is then one whose answer is held and has not expired."""
    latency: Seconds = 0.005
    """Time from the gateway to the whole answer: embedding, look-up."""
    questions: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    """Different questions that come again (of each class), the k-th most popular one in proportion to k^-`zipf`; the
    cache is empty at first. Absent: each of those requests is a hit, as in a cache that has long been full."""
    zipf: Annotated[float, Field(ge=0, le=10)] = 1.0
    """`questions`: how unequal they are; 0: all alike."""
    expiry: PositiveSeconds | None = None
    """`questions`: how long an answer may be given again, from when it was made; the first request after that goes to
    a model and renews it. Absent: for ever."""

    @model_validator(mode="after")
    def _check_questions(self) -> Self:
        if self.questions is None and self.expiry is not None:
            raise ValueError(
                "has expiry without questions: whether an answer is too old depends on how often its question comes "
                "again; give questions, or the measured hit_share alone"
            )
        if self.questions is None and self.zipf != type(self).model_fields["zipf"].default:
            raise ValueError("has zipf without questions, which it divides the requests over; add questions")
        if not self._shares or not any(self._shares):
            raise ValueError("hits nothing: hit_share is 0; leave the block out")
        return self

    @property
    def _shares(self) -> list[float]:
        return list(self.hit_share.values()) if isinstance(self.hit_share, dict) else [self.hit_share]

    def share_of(self, name: str | None) -> float:
        """Return the share of a class; of requests without one for None."""
        if isinstance(self.hit_share, dict):
            return self.hit_share.get(name or "", 0.0)
        return self.hit_share
