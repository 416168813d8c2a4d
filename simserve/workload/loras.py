"""The `workload.loras` block: which LoRA adapter each request asks for. Knows no engine.

The text below a field is its entry in the reference.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from simserve import rng
from simserve.validation import FrozenModel
from simserve.workload.requests import RequestSpecs

MAX_ADAPTERS = 100_000
"""Adapters of a workload at most: each replica knows of each where it is."""


class LorasSpec(FrozenModel):
    """LoRA adapters of one base model, such as one a tenant. All turns of a conversation have the same."""

    num_adapters: Annotated[int, Field(ge=1, le=MAX_ADAPTERS)]
    """How many there are."""
    rank: Annotated[int, Field(ge=1, le=1024)] = 16
    """Their rank: how wide A and B are."""
    target_modules: Literal["all", "attention", "mlp"] = "all"
    """Matrices that they are made for: those of attention (q, k, v, o), of the MLP (gate, up, down; of a model with
    experts, the dense layers and shared experts), or all of them."""
    zipf: Annotated[float, Field(ge=0, le=10)] | None = None
    """Popularity: the n-th adapter is asked for in proportion to 1 / n to this power; 0: all alike. Absent, and
    `shares` too: 1."""
    shares: tuple[Annotated[float, Field(gt=0)], ...] | None = None
    """Popularity instead of `zipf`: a weight of each adapter, any scale."""
    base_share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the requests without an adapter: they ask for the base model."""

    @model_validator(mode="after")
    def _check_popularity(self) -> Self:
        if self.shares is not None and self.zipf is not None:
            raise ValueError("has zipf and shares; keep one of the two")
        if self.shares is not None and len(self.shares) != self.num_adapters:
            raise ValueError(f"has {len(self.shares)} shares for {self.num_adapters} adapters; give one of each")
        return self

    @property
    def popularity(self) -> NDArray[np.float64]:
        """Share of each adapter among the requests with one, shape [num_adapters]."""
        if self.shares is not None:
            weights = np.array(self.shares, dtype=np.float64)
        else:
            exponent = 1.0 if self.zipf is None else self.zipf
            weights = np.arange(1, self.num_adapters + 1, dtype=np.float64) ** -exponent
        return np.asarray(weights / weights.sum())


def with_adapters(specs: RequestSpecs, loras: LorasSpec | None, *, seed: int, replication: int) -> RequestSpecs:
    """Return requests with the adapter of each drawn, from the stream ``loras``; the same without adapters.

    Requests under different adapters share no KV, so that what their prompts share is told apart by adapter.
    """
    if loras is None:
        return specs
    uniforms = rng.stream(seed, "loras", replication).random(len(specs))
    if specs.session is not None:
        # All turns of a conversation go by the draw of its first row.
        _, first, inverse = np.unique(specs.session, return_index=True, return_inverse=True)
        has_session = specs.session >= 0
        uniforms = np.where(has_session, uniforms[first][inverse], uniforms)
    edges = loras.base_share + (1.0 - loras.base_share) * np.cumsum(loras.popularity)
    drawn = np.searchsorted(edges, uniforms, side="right")
    adapter = np.where(uniforms < loras.base_share, -1, np.minimum(drawn, loras.num_adapters - 1)).astype(np.int64)
    prefixes = specs.prefixes
    if prefixes is not None:
        owner = np.repeat(adapter, np.diff(prefixes.offsets))
        told_apart = prefixes.segments * (loras.num_adapters + 1) + owner + 1
        segments = np.unique(told_apart, return_inverse=True)[1].astype(np.int64)
        prefixes = replace(prefixes, segments=segments)
    return replace(specs, adapter=adapter, prefixes=prefixes)
