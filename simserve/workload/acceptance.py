"""Acceptance of speculative decoding: how many drafts a step accepts, and how many steps an answer then takes.

A step verifies k drafts of each request and always produces one token more than it accepts. ``conditional`` is a tuple
of k probabilities: that draft i is accepted, given that all before it were. It knows no seconds and no engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

EXACT_TOKENS = 1024
"""Up to this length of an answer, its number of steps is drawn from the exact distribution; beyond, from the normal
limit (renewal theory; the difference is below 0.1 %)."""

_NEVER = 1e-15
_REMEMBERED = 4
"""Distributions that are cached, up to a few MB each: a search uses the same acceptance on many deployments."""


def decaying_acceptance(rate: float, decay: float, num_speculative_tokens: int) -> tuple[float, ...]:
    """Return ``rate * decay ** i`` for position i = 0 .. k - 1; with ``decay`` 1 every draft is as good as the first.

    Each draft depends on the ones before it, so real acceptance falls with the position.

    Args:
        rate: Probability that the first draft is accepted, 0 to 1.
        decay: Factor from one position to the next, 0 to 1.
        num_speculative_tokens: Drafts per step, k.
    """
    return tuple(rate * decay**position for position in range(num_speculative_tokens))


def conditional_acceptance(per_position: Sequence[float]) -> tuple[float, ...]:
    """Return conditional probabilities from the share of steps in which each position was accepted.

    Those shares are what vLLM reports as per-position acceptance rates: they never rise, since a draft counts only
    if all before it did.
    """
    before = (1.0, *per_position)
    return tuple(share / last if last else 0.0 for last, share in zip(before, per_position, strict=False))


def expected_tokens(conditional: Sequence[float]) -> float:
    """Return the mean tokens that a request gains in a step, including the bonus token: vLLM's mean acceptance length.

    ``1 + c1 + c1 c2 + ...``; with one rate a for all positions ``(1 - a^(k+1)) / (1 - a)`` (Leviathan et al.,
    Fast Inference from Transformers via Speculative Decoding, 2023, equation 1).
    """
    return 1.0 + float(np.cumprod(conditional).sum())


def token_shares(conditional: Sequence[float]) -> NDArray[np.float64]:
    """Return the probabilities of 1 .. k + 1 tokens per step, shape [k + 1]."""
    reached = np.concatenate(([1.0], np.cumprod(conditional)))
    shares: NDArray[np.float64] = reached - np.append(reached[1:], 0.0)
    return shares


def num_decode_steps(
    tokens: NDArray[np.int64], conditional: Sequence[float], uniforms: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Return how many steps each answer takes: the quantile at its uniform, so that better acceptance never adds steps.

    The distribution is that of the first step at which a sum of independent step lengths reaches ``tokens``.

    Args:
        tokens: Tokens to decode, >= 0, shape [N].
        conditional: Acceptance, as described for the module.
        uniforms: In [0, 1), shape [N].
    """
    shares = token_shares(conditional)
    steps = np.zeros(len(tokens), dtype=np.int64)
    is_short = (tokens > 0) & (tokens <= EXACT_TOKENS)
    if is_short.any():
        unfinished = _unfinished(tuple(shares.tolist()), int(tokens[is_short].max()))
        rising = np.flatnonzero(is_short)
        rising = rising[np.argsort(tokens[rising], kind="stable")]
        lengths, starts = np.unique(tokens[rising], return_index=True)
        for length, rows in zip(lengths, np.split(rising, starts[1:]), strict=True):
            # The column falls with the step: count the steps after which more than 1 - u of the answers are unfinished.
            above = np.searchsorted(-unfinished[:, length], -(1.0 - uniforms[rows]), side="left")
            steps[rows] = above + 1
    is_long = tokens > EXACT_TOKENS
    if is_long.any():
        many, lengths = tokens[is_long], np.arange(1, len(shares) + 1)
        mean = float(shares @ lengths)
        variance = float(shares @ lengths**2) - mean**2
        # Wald: mean * steps = tokens + the tokens of the last step beyond them.
        excess = float(shares @ (lengths * (lengths - 1))) / (2.0 * mean)
        centre, normal = (many + excess) / mean, NormalDist()
        at = [min(max(each, 1e-12), 1.0 - 1e-12) for each in uniforms[is_long].tolist()]
        drawn = centre + np.array([normal.inv_cdf(each) for each in at]) * np.sqrt(variance * many / mean**3)
        steps[is_long] = np.clip(np.rint(drawn).astype(np.int64), -(-many // len(shares)), many)
    return steps


def draw_paces(
    output_tokens: NDArray[np.int64], conditional: Sequence[float], generator: np.random.Generator, grid: int
) -> NDArray[np.int64]:
    """Return the pace of each request: mean tokens per decode step, in units of ``1 / grid`` token, shape [N].

    The number of steps is drawn; the pace is one of the two nearest on the grid, with probabilities that keep the mean
    number of steps. The first token comes with the prefill, and tokens of the last step beyond the answer are lost, as
    in an engine. Every request uses two uniforms of its own.

    Args:
        output_tokens: Tokens of each answer, >= 1, shape [N].
        conditional: Acceptance, as described for the module.
        grid: Parts of a token in which paces are counted.
    """
    tokens = np.asarray(output_tokens, dtype=np.int64) - 1
    uniforms = generator.random((len(tokens), 2))
    decoded = np.maximum(tokens, 1)
    drawn = np.maximum(num_decode_steps(tokens, conditional, uniforms[:, 0]), 1)
    slow = np.maximum(grid * decoded // drawn, grid)
    fast = np.minimum(slow + 1, grid * (len(conditional) + 1))
    most, fewest = -(-grid * decoded // slow), -(-grid * decoded // fast)
    is_slow = uniforms[:, 1] * (most - fewest) <= drawn - fewest
    paces: NDArray[np.int64] = np.where(is_slow, slow, fast)
    return paces


@lru_cache(maxsize=_REMEMBERED)
def _unfinished(shares: tuple[float, ...], longest: int) -> NDArray[np.float64]:
    """Return P(fewer than t tokens after n steps) for n = 1 .. and t = 0 .. longest, shape [steps, longest + 1]."""
    reached = np.zeros(longest + 1)
    reached[0] = 1.0
    rows = []
    while True:
        reached = np.convolve(reached, np.concatenate(([0.0], shares)))[: longest + 1]
        below = np.concatenate(([0.0], np.cumsum(reached)[:-1]))
        rows.append(below)
        if below[-1] <= _NEVER:
            unfinished: NDArray[np.float64] = np.minimum.accumulate(np.array(rows), axis=0)
            unfinished.flags.writeable = False
            return unfinished
