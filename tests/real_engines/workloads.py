"""Random workloads for a scheduler: small engines under which every rule comes into play. Knows no engine."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

CLASSES = (
    *("plain", "chunked", "kv_short", "priority", "prefix", "prefix_short", "conversations", "forks", "threshold"),
    *("watermark", "kv_short_cached"),
)
SHARING = (
    *("prefix", "prefix_short", "conversations", "forks", "delayed_prefix"),
    *("states_prefix", "states_prefix_short", "states_conversations"),
    *("windows_prefix", "windows_prefix_short", "windows_conversations", "windows_drafts_prefix_short"),
    *("states_drafts_prefix", "states_drafts_prefix_short", "states_drafts_conversations"),
    *("windows_eagle_prefix", "windows_eagle_prefix_short", "windows_eagle_conversations"),
    *("eagle_prefix", "eagle_prefix_short", "eagle_conversations"),
)
"""Classes whose prompts begin alike. In ``kv_short_cached`` a preempted request alone finds what it had computed."""
ENDING_EARLY = "early_end"
"""A class for engines that expect answers of ``max_tokens``: short of KV memory, and many end before."""
DRAFTING = ("drafts", "drafts_short")
"""Classes whose engine verifies drafts, the second short of KV memory; each request has a pace at which they hold."""
TURNS = (
    *("conversations", "states_conversations", "windows_conversations", "states_drafts_conversations"),
    *("windows_eagle_conversations", "eagle_conversations"),
)
"""Classes in which a turn follows when the one before it has been answered."""
RANKED = ("delayed", "delayed_short", "delayed_prefix")
"""Classes whose engine has ranks that step together, with prompts that wait for each other (SGLang's delayer)."""
WINDOWED = ("windows", "windows_short")
"""Classes whose engine has layers with a window beside those that see everything, the second short of KV memory."""
STATEFUL = ("states", "states_short", "states_prefix", "states_prefix_short", "states_conversations")
"""Classes whose engine has layers of linear attention or Mamba beside attention: a state for each request, in blocks of
the same pool. The last three cache prefixes with the states behind them; ``short``: short of KV memory."""
WINDOWED_CACHED = ("windows_cached_short", "windows_prefix", "windows_prefix_short", "windows_conversations")
"""The same as `WINDOWED` with the prefix cache on; in the first one, only preempted requests find anything."""
PRIORITISED = ("states_priority", "windows_priority")
"""Classes of engines with states or windows that are short of memory and preempt by priority."""
WINDOWED_DRAFTING = ("windows_drafts", "windows_drafts_short", "windows_drafts_prefix_short")
"""`DRAFTING` with windows; in the last one prefixes are shared too."""
STATEFUL_DRAFTING = (
    *("states_drafts", "states_drafts_short", "states_drafts_prefix", "states_drafts_prefix_short"),
    "states_drafts_conversations",
)
"""`STATEFUL` with drafts of a layer of the model's own (MTP): a state for each of them, KV slots for the next ones."""
WINDOWED_EAGLE = (
    *("windows_eagle", "windows_eagle_short", "windows_eagle_prefix", "windows_eagle_prefix_short"),
    "windows_eagle_conversations",
)
"""`WINDOWED` and `WINDOWED_CACHED` with drafts of a layer that reads the model's hidden states (EAGLE)."""
EAGLE = ("eagle", "eagle_short", "eagle_prefix", "eagle_prefix_short", "eagle_conversations")
"""The same with attention alone."""
OWN_DRAFTS = (*STATEFUL_DRAFTING, *WINDOWED_EAGLE, *EAGLE)
"""Classes whose drafts come from a layer with KV of its own; those of the others cost nothing, as n-grams."""
SIXTEENTHS = 16
"""Parts of a token that a pace counts in."""
UNIT = math.sqrt(2.0) / 997.0


def draw_case(kind: str, seed: int, *, is_async: bool) -> dict[str, Any]:
    """Return one case: an engine, the seconds of its steps, and requests with their tokens.

    Args:
        kind: One of `CLASSES`, `ENDING_EARLY`, or one of `DRAFTING`, `RANKED`, `WINDOWED`, `STATEFUL`,
            `WINDOWED_CACHED`, `PRIORITISED`, `WINDOWED_DRAFTING` or `OWN_DRAFTS`.
        seed: Of the draw.
        is_async: Whether steps are scheduled while the ones before them run.
    """
    every_kind = (
        *CLASSES,
        ENDING_EARLY,
        *DRAFTING,
        *RANKED,
        *WINDOWED,
        *STATEFUL,
        *WINDOWED_CACHED,
        *PRIORITISED,
        *WINDOWED_DRAFTING,
        *OWN_DRAFTS,
    )
    has_states = kind in (*STATEFUL, "states_priority", *STATEFUL_DRAFTING)
    has_windows = kind in (*WINDOWED, *WINDOWED_CACHED, *WINDOWED_DRAFTING, "windows_priority", *WINDOWED_EAGLE)
    rng = np.random.default_rng([every_kind.index(kind), seed])
    block_size = int(rng.choice([4, 8, 16])) * (2 if has_states else 1)
    num_ranks = int(rng.integers(2, 5)) if kind in RANKED else 1
    num_requests = int(rng.integers(20, 60)) * num_ranks
    max_num_seqs = int(rng.integers(2, 12))
    longest_prompt = int(rng.integers(8, 160))
    longest_output = int(rng.integers(2, 60))
    prompts = rng.integers(1, longest_prompt + 1, num_requests)
    outputs = rng.integers(1, longest_output + 1, num_requests)
    max_model_len = longest_prompt + longest_output + 8
    budget = max(int(rng.integers(16, 400)), max_num_seqs)
    is_chunked = kind != "plain" or bool(rng.integers(2))
    if not is_chunked:
        budget = max(budget, max_model_len)
    elif kind == "chunked":
        budget = max(max_num_seqs, int(rng.integers(8, 64)))
    blocks_of_one = math.ceil(max_model_len / block_size) + 1
    window, window_groups = 0, 0
    if has_windows:
        window, window_groups = int(rng.integers(block_size, 3 * block_size + 20)), int(rng.integers(1, 4))
        blocks_of_one *= 1 + window_groups
    state_groups = int(rng.integers(1, 5)) if has_states else 0
    # A state, and for a step the one at the last boundary.
    blocks_of_one += 2 * state_groups
    num_blocks = blocks_of_one * max_num_seqs * 2
    if kind in (
        "kv_short",
        "kv_short_cached",
        "watermark",
        "prefix_short",
        "priority",
        ENDING_EARLY,
        "drafts_short",
        "delayed_short",
        "windows_short",
        "windows_cached_short",
        "windows_prefix_short",
        *PRIORITISED,
        *WINDOWED_DRAFTING[1:],
        "states_short",
        "states_prefix_short",
        *(each for each in OWN_DRAFTS if each.endswith("_short")),
    ) or (kind in ("conversations", "forks", "windows_conversations", *TURNS[-3:]) and rng.integers(2)):
        num_blocks = int(blocks_of_one * rng.uniform(1.2, max(1.5, 0.45 * max_num_seqs)))
    tokens = _tokens(kind, rng, prompts, outputs)
    step_seconds = 0.01
    mean_step = step_seconds + 1e-4 * float(prompts.mean())
    per_request = float(outputs.mean()) * mean_step / (max_num_seqs * num_ranks)
    gaps = rng.exponential(per_request / rng.uniform(0.4, 1.6), num_requests)
    if kind in TURNS:
        # A turn follows when the one before it has been answered.
        gaps += 2.0 * float(outputs.max()) * mean_step
    arrivals = np.cumsum(gaps) + UNIT
    requests: list[dict[str, Any]] = [
        {"arrival": float(arrival), "prompt": own, "output": int(output)}
        for arrival, own, output in zip(arrivals, tokens, outputs, strict=True)
    ]
    if kind in ("priority", *PRIORITISED):
        for request in requests:
            request["priority"] = int(rng.integers(0, 3))
    if kind == ENDING_EARLY:
        for request in requests:
            request["max_tokens"] = request["output"] + int(rng.integers(0, longest_output + 1))
    drafts = int(rng.integers(1, 6)) if kind in (*DRAFTING, *WINDOWED_DRAFTING, *OWN_DRAFTS) else 0
    lookahead = drafts if kind in OWN_DRAFTS else 0
    if drafts:
        budget = max(budget, max_num_seqs * (1 + drafts))
        # Scheduled ahead, the drafts of the step under way count as if they held.
        max_model_len += (1 + is_async) * (1 + drafts) + lookahead
        for request in requests:
            request["pace"] = int(rng.integers(SIXTEENTHS, SIXTEENTHS * (1 + drafts) + 1))
    longest = max(len(request["prompt"]) + request.get("max_tokens", request["output"]) for request in requests)
    longest += 8 + drafts + lookahead + is_async * bool(drafts) * (1 + drafts)
    states_of_drafts = state_groups * drafts
    if kind in OWN_DRAFTS and not kind.endswith("_short"):
        num_blocks += states_of_drafts * max_num_seqs
    least = (1 + window_groups) * math.ceil(longest / block_size) + 2 + 3 * state_groups + states_of_drafts
    num_blocks = max(num_blocks, least)
    return {
        "kind": kind,
        "seed": seed,
        "async_scheduling": is_async,
        "scheduling_policy": "priority" if kind in ("priority", *PRIORITISED) else "fcfs",
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max(budget, longest if not is_chunked else 0),
        "max_model_len": max(max_model_len, longest),
        "enable_chunked_prefill": is_chunked,
        "long_prefill_token_threshold": min(int(rng.integers(8, 64)), max_model_len) if kind == "threshold" else 0,
        "num_speculative_tokens": drafts,
        "num_lookahead_tokens": lookahead,
        "sliding_window": window,
        "window_groups": window_groups,
        "state_groups": state_groups,
        "data_parallel_size": num_ranks,
        "prefill_delayer_max_delay_passes": int(rng.integers(2, 12)) if num_ranks > 1 else 0,
        "prefill_delayer_token_usage_low_watermark": float(rng.choice([0.0, 0.3])) if num_ranks > 1 else 0.0,
        "block_size": block_size,
        "num_gpu_blocks": num_blocks,
        "watermark": float(rng.uniform(0.02, 0.2)) if kind == "watermark" else 0.0,
        "enable_prefix_caching": kind in (*SHARING, "kv_short_cached", "windows_cached_short", "states_priority"),
        "step_seconds": step_seconds + UNIT * float(rng.random()),
        "token_seconds": 1e-4,
        "requests": requests,
    }


def _tokens(kind: str, rng: np.random.Generator, prompts: Any, outputs: Any) -> list[list[int]]:
    """Return the tokens of every prompt: all different, beginning alike, or with the earlier turns before them."""
    own = [[1_000 * (index + 1) + position for position in range(prompt)] for index, prompt in enumerate(prompts)]
    if kind in (
        *("prefix", "prefix_short", "delayed_prefix", "states_prefix", "states_prefix_short"),
        *("windows_prefix", "windows_prefix_short", "windows_drafts_prefix_short"),
        *("states_drafts_prefix", "states_drafts_prefix_short", "windows_eagle_prefix", "windows_eagle_prefix_short"),
        *("eagle_prefix", "eagle_prefix_short"),
    ):
        beginnings = [
            [-1 - 1_000 * group - position for position in range(int(rng.integers(4, 120)))] for group in range(4)
        ]
        return [[*beginnings[int(rng.integers(4))], *tokens] for tokens in own]
    if kind in ("forks", *TURNS):
        num_sessions = max(2, len(own) // 5)
        histories: list[list[int]] = [[] for _ in range(num_sessions)]
        for index, tokens in enumerate(own):
            history = histories[index % num_sessions]
            own[index] = [*history, *tokens]
            answer = [10_000_000 + 10_000 * index + position for position in range(outputs[index])]
            histories[index % num_sessions] = [*own[index], *answer]
    return own
