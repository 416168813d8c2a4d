"""The least seconds of a replica that requests take: duality of the best mix of steps. Knows no SLO and no fleet."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from simserve.engine.config import EngineConfig
from simserve.engine.tables import StepTimes

Array = NDArray[np.float64]

TOKEN_PRICES = (1.0, 0.85, 0.5, 0.25)
"""Price of a prompt token that is tried, as shares of the highest that is feasible."""
MEMORY_PRICES = (0.0, 1.0, 3.0)
"""Price of a context token beyond the seconds of reading it, that is tried: times what would fill the step."""
PACE_PRICES = (0.0, 0.5, 2.0)
"""Price of a second of a request that decodes, that is tried: over the requests whose step takes a typical gap."""


def least_replica_seconds(
    prompt: Array,
    output: Array,
    decode_limit: Array | None,
    config: EngineConfig,
    times: StepTimes,
    *,
    computes_prompts: bool = True,
) -> tuple[Array, float]:
    """Return seconds of one replica that each request takes at least, so that sums over any of them are bounds.

    A single value may be below 0; only the sum over a set of requests bounds the seconds in which that set is
    worked on, from below.

    Take a step with n decoding requests whose contexts sum to S and c prompt tokens. If prices a, b, g, l >= 0 (b of
    any sign) exist with ::

        seconds(n, c, S) (1 + l n) >= a c + b n + g S      for every step that the engine can take

    then the steps that work on a set of requests take together at least ``a`` a prompt token, ``b`` a further
    token and ``g`` a token of context of each further token, less ``l`` times the seconds that requests spend
    decoding, which ``decode_limit`` bounds for those that keep their SLO. (Weak duality of the linear programme that
    packs tokens into steps.) Requests outside the set make a step longer, never shorter, since no table falls with
    its index. S is at most the KV memory, n the seats, n + c the token budget. For given a, g, l the best b is a
    minimum over n; several a, g, l are tried and the largest sum wins, all of them being bounds.

    After a preemption a further token comes from computing the request again: at least ``prompt + 1`` tokens at
    price a. So b of a request is at most ``(a - g) (prompt + 1)``, and g at most a.

    Args:
        prompt: Prompt tokens, shape [requests].
        output: Output tokens; 1 where only the first token counts.
        decode_limit: Seconds from first to last token that each request may take; None: no limit.
        config: Seats, token budget, KV memory.
        times: Seconds of steps.
        computes_prompts: Whether prompts are computed here; else their KV caches come from elsewhere.

    Returns:
        The seconds of each request, and the price of a prompt token.
    """
    gaps = np.maximum(output - 1, 0.0)
    contexts = gaps * prompt + gaps * np.maximum(gaps - 1, 0.0) / 2
    stages = config.pipeline_parallel_size
    computed = prompt if computes_prompts else np.zeros(len(prompt))
    fixed = (
        times.prefill_pair_seconds * computed * (computed + 1) / 2 + times.prefill_context_seconds * computed
    ) / stages + (times.prefill_request_seconds if computes_prompts else 0.0)
    limit = None
    num_gaps = float(gaps.sum())
    if decode_limit is not None and np.all(np.isfinite(decode_limit)) and num_gaps > 0:
        limit = decode_limit
    steps = _Steps(config, times)
    best, best_sum, best_price = fixed, float(fixed.sum()), 0.0
    typical_gap = None if limit is None else float(limit.sum() / num_gaps)
    for token, memory, pace in _prices(steps, has_gaps=num_gaps > 0, typical_gap=typical_gap):
        further = steps.further_token_price(token, memory, pace) if num_gaps else 0.0
        each = np.minimum(further, (token - memory) * (prompt + 1))
        seconds = fixed + token * computed + each * gaps + memory * contexts
        if limit is not None and pace:
            seconds = seconds - pace * limit
        total = float(seconds.sum())
        if total > best_sum:
            best, best_sum, best_price = seconds, total, token
    return best, best_price


class _Steps:
    """Every step that a replica can take, as the prices need it.

    Args:
        config: Seats, token budget, KV memory.
        times: Seconds of steps.
    """

    def __init__(self, config: EngineConfig, times: StepTimes) -> None:
        seats = min(config.max_num_seqs, len(times.decode_base) - 1)
        budget = max(config.max_num_batched_tokens * config.pipeline_parallel_size, seats + 1)
        if not config.enable_chunked_prefill:
            budget = max(budget, config.max_model_len)
        self.num = np.arange(1.0, seats + 1)
        self.decode = np.asarray(times.decode_base[1 : seats + 1])
        slopes = np.asarray(times.decode_slope[1 : seats + 1])
        # Of a step with more requests than counted: the least slope from here on.
        self.slope = np.minimum.accumulate(slopes[::-1])[::-1]
        head = np.asarray(times.sequence_seconds)
        self.mixed = head[np.minimum(np.arange(1, seats + 1) + 1, len(head) - 1)] + np.asarray(
            times.decode_attention_base[1 : seats + 1]
        )
        table = np.asarray(times.token_seconds, dtype=np.float64)
        if budget >= len(table):
            more = table[-1] + times.token_seconds_beyond * np.arange(1.0, budget - len(table) + 2)
            table = np.concatenate((table, more))
        self.token = table[: budget + 1]
        self.tokens = np.arange(budget + 1.0)
        # Contexts at most: layers with a window hold less of each, and where all have one, only the seats limit them.
        blocks = config.num_blocks * config.block_size
        self.capacity = float(blocks if config.full_groups else config.max_num_seqs * config.max_model_len)
        self.highest_token_price = float(((self.token[1:] + head[1]) / self.tokens[1:]).min())
        self._least_left: dict[float, Array] = {}

    def further_token_price(self, token: float, memory: float, pace: float) -> float:
        """Return the largest price of a further token that every step covers."""
        if token not in self._least_left:
            self._least_left[token] = self._least_beyond(token)
        least = self._least_left[token]
        stretch = 1.0 + pace * self.num
        held = np.minimum(0.0, self.slope * stretch - memory) * self.capacity
        alone = self.decode * stretch
        # (1 + l n) t - a x >= (1 + l n) (t - a x) + l n a n, as x > n.
        beside = stretch * (least + self.mixed) + pace * self.num * token * self.num + token * self.num
        return float(((np.minimum(alone, beside) + held) / self.num).min())

    def _least_beyond(self, token: float) -> Array:
        """Return the least seconds, less the price of its tokens, of a step with more than n tokens, n = 1, 2, ..."""
        left = self.token - token * self.tokens
        place = np.minimum(self.num.astype(np.int64) + 1, len(left) - 1)
        return np.asarray(np.minimum.accumulate(left[::-1])[::-1][place])


def _prices(steps: _Steps, *, has_gaps: bool, typical_gap: float | None) -> Iterator[tuple[float, float, float]]:
    """Yield prices of a prompt token, a context token and a second of decoding."""
    highest = steps.highest_token_price
    if not has_gaps:
        yield highest, 0.0, 0.0
        return
    reading = float(steps.slope.min())
    filling = float(steps.decode[0]) / steps.capacity if steps.capacity > 0 else 0.0
    paces: tuple[float, ...] = (0.0,)
    if typical_gap is not None:
        fitting = max(int(np.searchsorted(steps.decode, typical_gap)), 1)
        paces = tuple(pace / fitting for pace in PACE_PRICES)
    for token in (share * highest for share in TOKEN_PRICES):
        for memory in (min(reading + share * filling, token) for share in MEMORY_PRICES):
            for pace in paces:
                yield token, memory, pace
