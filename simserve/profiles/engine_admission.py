"""What admission by an estimate expects of requests that run: constants of its rule, computed elsewhere."""

from __future__ import annotations

from pydantic import Field

from simserve.validation import FrozenModel


class NewTokenRatio(FrozenModel):
    """SGLang's decaying share of `max_tokens` that a running request is expected to still need."""

    initial: float = Field(ge=0, le=1)
    """Share at first."""
    minimum_factor: float = Field(ge=0, le=1)
    """The share stops decaying at this factor of `initial`."""
    decay_steps: int = Field(ge=1)
    """Decode steps from `initial` to the minimum."""
    groups_factor: float = Field(default=1.0, gt=0, le=1)
    """What `initial` is times, where there are several groups of data-parallel attention."""
    source: str
    """Where the constants come from."""

    def first(self, groups: int) -> float:
        """Return the share at first, of that many groups of data-parallel attention."""
        return self.initial * (self.groups_factor if groups > 1 else 1.0)
