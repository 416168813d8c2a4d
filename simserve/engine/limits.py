"""Length limits: how many tokens requests may generate, and which prompts an engine refuses. Knows no table."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simserve.engine.config import EngineConfig


@dataclass(frozen=True, slots=True)
class Limited:
    """Requests after the limits, shape [N] each.

    Attributes:
        max_tokens: What each may generate.
        output_tokens: What it generates; 0 where the prompt is too long.
        is_truncated: Whether a limit cut what was asked for.
        is_too_long: Whether the prompt is.
    """

    max_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    is_truncated: NDArray[np.bool_]
    is_too_long: NDArray[np.bool_]


def limited(
    prompt_tokens: NDArray[np.int64],
    output_tokens: NDArray[np.int64],
    max_tokens: NDArray[np.int64],
    config: EngineConfig,
) -> Limited:
    """Return what the length limits of an engine leave of requests; ``max_tokens`` of -1 is the model's limit."""
    prompt_limit = config.max_model_len - 1
    if config.batching == "continuous" and not config.enable_chunked_prefill and config.kv_allocation != "none":
        prompt_limit = min(prompt_limit, config.max_num_batched_tokens)
    if len(prompt_tokens) and int(max_tokens.min()) >= 0:
        longest_prompt = int(prompt_tokens.max())
        if longest_prompt <= prompt_limit and longest_prompt + int(max_tokens.max()) <= config.max_model_len:
            # No limit reaches anybody, as in most runs.
            nobody = np.zeros(len(prompt_tokens), dtype=np.bool_)
            return Limited(max_tokens, np.minimum(output_tokens, max_tokens), nobody, nobody)
    longest = np.maximum(config.max_model_len - prompt_tokens, 0)
    allowed = np.where(max_tokens < 0, longest, np.minimum(max_tokens, longest))
    wanted = np.where(max_tokens < 0, output_tokens, np.minimum(output_tokens, max_tokens))
    too_long = prompt_tokens > prompt_limit
    return Limited(
        max_tokens=allowed,
        output_tokens=np.where(too_long, 0, np.minimum(output_tokens, allowed)),
        is_truncated=((max_tokens > longest) | (wanted > longest)) & ~too_long,
        is_too_long=too_long,
    )


def finds_itself(config: EngineConfig, lengths: NDArray[np.int64]) -> bool:
    """Return whether a preempted request may find its own blocks in the prefix cache when it is computed again.

    Where the longest requests that have seats fit the KV cache together, nobody is preempted for it.

    Args:
        config: The engine.
        lengths: Tokens of each request, prompt and answer together, shape [N].
    """
    if not config.enable_prefix_caching or config.admission == "reserve" or not len(lengths):
        return False
    if config.priority_preemption:
        return True
    seats = min(config.max_num_seqs, len(lengths))
    longest = np.partition(lengths, len(lengths) - seats)[len(lengths) - seats :] + config.num_speculative_tokens
    blocks = int((longest // config.block_size + 1).sum()) * (config.full_groups + config.window_groups)
    return blocks > config.num_blocks - config.watermark_blocks
