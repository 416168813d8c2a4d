"""Acceptance of speculative decoding: how many drafts of a step are kept, and how many steps an answer then takes.

A step verifies k drafts of each request and always brings one token more than it accepts. ``conditional`` is a tuple
of k probabilities: that draft i is accepted, given that all before it were. It knows no seconds and no engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

EXACT_TOKENS = 1024
"""Answers up to this length take a number of steps drawn from its exact distribution; beyond, from the normal one
that it tends to (renewal theory; the difference is below 0.1 %)."""

_NEVER = 1e-15


def decaying_acceptance(rate: float, decay: float, num_speculative_tokens: int) -> tuple[float, ...]:
    """Return ``rate * decay ** i`` for position i = 0 .. k - 1; with ``decay`` 1 every draft is as good as the first.

    Each draft stands on the ones before it, so real acceptance falls with the position.

    Args:
        rate: Probability that the first draft is accepted, 0 to 1.
        decay: Factor from one position to the next, 0 to 1.
        num_speculative_tokens: Drafts a step, k.
    """
    return tuple(rate * decay**position for position in range(num_speculative_tokens))


def conditional_acceptance(per_position: Sequence[float]) -> tuple[float, ...]:
    """Return conditional probabilities from shares of steps in which each position was accepted.

    Those shares are what vLLM reports as per-position acceptance rates: they never rise, since a draft counts only
    if all before it did.
    """
    before = (1.0, *per_position)
    return tuple(share / last if last else 0.0 for last, share in zip(before, per_position, strict=False))


def expected_tokens(conditional: Sequence[float]) -> float:
    """Return the mean tokens that a step brings a request, the bonus token included: vLLM's mean acceptance length.

    ``1 + c1 + c1 c2 + ...``; with one rate a for all positions ``(1 - a^(k+1)) / (1 - a)`` (Leviathan et al.,
    Fast Inference from Transformers via Speculative Decoding, 2023, equation 1).
    """
    return 1.0 + float(np.cumprod(conditional).sum())


def token_shares(conditional: Sequence[float]) -> NDArray[np.float64]:
    """Return the probabilities of 1 .. k + 1 tokens a step, shape [k + 1]."""
    reached = np.concatenate(([1.0], np.cumprod(conditional)))
    shares: NDArray[np.float64] = reached - np.append(reached[1:], 0.0)
    return shares


def num_decode_steps(
    tokens: NDArray[np.int64], conditional: Sequence[float], uniforms: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Return how many steps each answer takes: the quantile of its uniform, so that more luck never costs a step.

    The distribution is that of the first step at which a sum of independent step lengths reaches ``tokens``.

    Args:
        tokens: Tokens to be decoded, >= 0, shape [N].
        conditional: As above.
        uniforms: In [0, 1), shape [N].
    """
    shares = token_shares(conditional)
    steps = np.zeros(len(tokens), dtype=np.int64)
    is_short = (tokens > 0) & (tokens <= EXACT_TOKENS)
    if is_short.any():
        unfinished = _unfinished(shares, int(tokens[is_short].max()))
        for length in np.unique(tokens[is_short]):
            rows = tokens == length
            # Falling in the step: count the steps after which fewer than 1 - u of the answers are done.
            above = np.searchsorted(-unfinished[:, length], -(1.0 - uniforms[rows]), side="left")
            steps[rows] = above + 1
    is_long = tokens > EXACT_TOKENS
    if is_long.any():
        steps[is_long] = _normal_steps(tokens[is_long], shares, uniforms[is_long])
    return steps


def draw_paces(
    output_tokens: NDArray[np.int64], conditional: Sequence[float], generator: np.random.Generator, grid: int
) -> NDArray[np.int64]:
    """Return the mean tokens a decode step of each request, in ``1 / grid`` token, shape [N].

    The number of steps is drawn; the pace is one of the two next to it on the grid, with chances that keep the mean
    number of steps. The first token comes with the prefill, and what the last step brings beyond the answer is lost,
    as in an engine. Every request takes two uniforms of its own.

    Args:
        output_tokens: Tokens of each answer, >= 1, shape [N].
        conditional: As above.
        generator: The stream to draw from.
        grid: Parts of a token that a pace counts in.
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


def _unfinished(shares: NDArray[np.float64], longest: int) -> NDArray[np.float64]:
    """Return P(fewer than t tokens after n steps) for n = 1 .. and t = 0 .. longest, shape [steps, longest + 1]."""
    reached = np.zeros(longest + 1)
    reached[0] = 1.0
    rows = []
    while True:
        reached = np.convolve(reached, np.concatenate(([0.0], shares)))[: longest + 1]
        below = np.concatenate(([0.0], np.cumsum(reached)[:-1]))
        rows.append(below)
        if below[-1] <= _NEVER:
            return np.minimum.accumulate(np.array(rows), axis=0)


def _normal_steps(
    tokens: NDArray[np.int64], shares: NDArray[np.float64], uniforms: NDArray[np.float64]
) -> NDArray[np.int64]:
    lengths = np.arange(1, len(shares) + 1)
    mean = float(shares @ lengths)
    variance = float(shares @ lengths**2) - mean**2
    # Wald: mean * steps = tokens + what the last step brings beyond them.
    excess = float(shares @ (lengths * (lengths - 1))) / (2.0 * mean)
    centre = (tokens + excess) / mean
    normal = NormalDist()
    scores = np.array([normal.inv_cdf(min(max(each, 1e-12), 1.0 - 1e-12)) for each in uniforms.tolist()])
    drawn = centre + scores * np.sqrt(variance * tokens / mean**3)
    steps: NDArray[np.int64] = np.clip(np.rint(drawn).astype(np.int64), -(-tokens // len(shares)), tokens)
    return steps
