"""Masks of constrained answers: what grammars add to a step on the CPU. Knows no schema and no request."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simserve.perf.efficiency import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Masks:
    """What grammars cost a replica.

    Attributes:
        share: Share of the sequences that are constrained: a step is priced at it.
        mask_seconds: To fill the mask of a token.
        advance_seconds: To take a sampled token into the grammar.
        is_overlapped: Whether masks are filled while the GPU computes.
    """

    share: float
    mask_seconds: float
    advance_seconds: float
    is_overlapped: bool

    @property
    def note(self) -> str:
        """What a reader of the result should know."""
        where = "while the GPU computes" if self.is_overlapped else "before the GPU can go on"
        return (
            f"grammars: {self.share:.0%} of the sequences of every step are priced as constrained, masks filled "
            f"{where}, with CPU times that others have published (estimate)"
        )


def exposed_mask_seconds(masks: Masks | None, sequences: Array, gpu_seconds: Array, tokens_each: int = 1) -> Array:
    """Return what masks add to a step, seconds.

    Grammars advance when tokens are known, behind the GPU's work; masks that are filled beside it show where they take
    longer than it does.

    Args:
        masks: What grammars cost; None: nothing is constrained.
        sequences: In the step.
        gpu_seconds: How long the GPU works on it.
        tokens_each: Tokens of a sequence that are sampled: with drafts, several.
    """
    if masks is None:
        return np.zeros_like(sequences)
    constrained = masks.share * tokens_each * sequences
    filling = masks.mask_seconds * constrained
    shown = np.maximum(filling - gpu_seconds, 0.0) if masks.is_overlapped else filling
    return np.asarray(shown + masks.advance_seconds * constrained)
