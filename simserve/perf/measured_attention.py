"""Attention of one layer from a user's measured calls, in the forms that the tables of a step need.

The engine knows sums of lengths only, so that the measured calls are brought into the same affine forms as the
fitted curves: a start, a time a token, a request, an attended pair, a key. Knows calls; no step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simserve.perf.efficiency import Array
from simserve.perf.measured import Samples, non_negative_fit

COMMON_CONTEXTS = (128.0, 1024.0)
"""Contexts whose calls say what a decode step takes beside its keys, around the reference of the fitted curves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredAttention:
    """One layer on one rank, as `simserve.perf.fitted_attention.FittedAttention`.

    Attributes:
        batches: Batches of the measured decode steps, ascending.
        bases: Seconds of such a step that do not depend on the contexts, never falling.
        decode_key_seconds: Seconds of one more key in the contexts of a decode step.
        start: Seconds of a step of prompts however small.
        token_seconds: Seconds a token of it.
        request_seconds: Seconds of one more prompt in it.
        pair_seconds: Seconds of an attended query-key pair.
        prompt_key_seconds: Seconds of a key that a prompt reads; part of the token here.
    """

    batches: Array
    bases: Array
    decode_key_seconds: float
    start: float
    token_seconds: float
    request_seconds: float
    pair_seconds: float
    prompt_key_seconds: float = 0.0

    def decode_base_seconds(self, sequences: Array) -> Array:
        """Return the seconds of a decode step that do not depend on the contexts."""
        grown = np.maximum(sequences / self.batches[-1], 1.0)
        return np.asarray(np.interp(sequences, self.batches, self.bases) * grown)

    def prompt_seconds(self, tokens: Array) -> Array:
        """Return the seconds of a step of prompts with ``tokens`` in all, pairs left out."""
        return np.asarray(self.start + tokens * self.token_seconds)


def measured_attention(decode: Samples, prompts: Samples) -> MeasuredAttention:
    """Return the affine forms of measured calls, by least relative squares."""
    batches = np.unique(decode.batch)
    key, bases = _decode(decode, batches)
    total = prompts.batch * prompts.tokens
    pairs = prompts.batch * prompts.tokens * (prompts.tokens + 1.0) / 2.0
    terms = np.stack((np.ones_like(total), total, prompts.batch, pairs), axis=1)
    start, token, request, pair = non_negative_fit(terms, prompts.seconds)
    return MeasuredAttention(
        batches=batches,
        bases=np.maximum.accumulate(bases),
        decode_key_seconds=key,
        start=float(start),
        token_seconds=float(token),
        request_seconds=float(request),
        pair_seconds=float(pair),
    )


def _decode(decode: Samples, batches: Array) -> tuple[float, Array]:
    """Return the seconds of a key at full occupancy, and the rest of a step by batch.

    The key is the least squares' over the longer half of the keys read, where they take most of the time; the rest
    of each batch is the median of what its calls of common contexts take beyond: starts grow with the logarithm of
    the context, and the longest would charge every step for their own.
    """
    keys = decode.batch * decode.tokens
    long = keys >= np.median(keys)
    terms = np.stack((np.ones(np.count_nonzero(long)), keys[long]), axis=1)
    key = float(non_negative_fit(terms, decode.seconds[long])[1])
    rest = np.maximum(decode.seconds - key * keys, 0.0)
    floor = float(decode.seconds.min())
    bases = []
    for batch in batches:
        own = decode.batch == batch
        common = own & (decode.tokens >= COMMON_CONTEXTS[0]) & (decode.tokens <= COMMON_CONTEXTS[1])
        bases.append(max(float(np.median(rest[common if common.any() else own])), floor))
    return key, np.array(bases)
