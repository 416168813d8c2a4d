"""What admission requires of growing KV memory: blocks for the next chunk, or SGLang's decaying estimate.

Knows the free blocks and what the running requests may still need, never the true output lengths.
"""

from __future__ import annotations

from simserve.engine.numbers import sum_around
from simserve.engine.prefix_cache import find_prefix
from simserve.engine.state import ESTIMATE_CLIP, Replica, RequestTable
from simserve.engine.windows import most_window_blocks


def estimate_of(requests: RequestTable, index: int) -> int:
    """Return the new tokens SGLang expects at most of a request that is not decoding yet."""
    most = requests.max_tokens[index]
    return ESTIMATE_CLIP if most > ESTIMATE_CLIP else most - requests.generated_tokens[index]


def has_room(
    replica: Replica,
    requests: RequestTable,
    index: int,
    need: int,
    free: int,
    free_window: int,
    uncommitted: int,
    cached: int = 0,
) -> bool:
    """Return whether the head of the queue may be admitted as far as blocks go.

    Args:
        replica: The replica; its free blocks are passed as ``free`` because this step has taken some.
        requests: The table.
        index: The head of the queue.
        need: Blocks of its first chunk, without those of the cached prefix that it shares.
        free: Blocks free after all that this step takes already, and after the cached prefix is in use.
        free_window: The same of the windows' own pool, where they have one.
        uncommitted: ``estimate``: tokens the prefilling requests may still take.
        cached: Tokens of its cached prefix.
    """
    config = replica.config
    if replica.uses_estimate:
        if need > free:
            return False
        if not replica.num_running:
            return True
        target = requests.prompt_tokens[index] + requests.generated_tokens[index] - cached
        committed = replica.new_token_ratio * replica.estimate_sum + uncommitted
        if replica.keeps_windows:
            free //= replica.block_weight
            if replica.has_window_pool:
                free = min(free, free_window)
        return target + estimate_of(requests, index) < free * config.block_size - committed
    if config.reserve_full_prompt:
        target = requests.prompt_tokens[index] + requests.generated_tokens[index] - cached
        whole = -(-target // config.block_size)
        if replica.keeps_windows:
            found = min(cached // config.block_size, replica.window_blocks)
            windowed = most_window_blocks(replica, whole + found)
            if replica.has_window_pool and windowed > free_window:
                return False
            need = max(need, replica.full_weight * whole + replica.window_weight * windowed)
        else:
            need = whole
    return free - need >= (config.watermark_blocks if replica.num_running or replica.departing else 0)


def steps_until_admitted(replica: Replica, requests: RequestTable, num_steps: int) -> int:
    """Return after how many decode steps the estimate admits the blocked head, at most ``num_steps``.

    With k steps the need is met when ``need < free(k) * block_size - ratio(k) * estimate(k)``. The right side is
    at most a concave function of k (exact for blocks of one token), so bisection finds where it can first
    hold; from there the exact condition is checked. With speculative decoding, 1. Where windows have a pool of their
    own, the head may have to wait for that one longer.
    """
    config = replica.config
    if replica.progress is not None or (replica.keeps_windows and not replica.has_window_pool):
        # Free blocks fall in uneven steps: look again after every one.
        return 1
    index = replica.waiting[0]
    target = requests.prompt_tokens[index] + requests.generated_tokens[index]
    available = replica.free_blocks
    if replica.cache is not None:
        # The need is the same whether or not its prefix gives way in the meantime.
        blocks, idle = find_prefix(replica.cache, index, target)
        target -= blocks * config.block_size
        available -= idle
    need_tokens = target + estimate_of(requests, index)
    block_size, num_decoding = replica.block_size, replica.num_decoding
    is_mixed = not replica.is_prefill_first
    chunk = target
    if config.enable_chunked_prefill:
        chunk = min(target, config.max_chunk_tokens, replica.token_budget - num_decoding * is_mixed)
    need_blocks = -(-chunk // block_size)
    shrinking = replica.estimate_shrinking
    start, decay, floor = (
        replica.new_token_ratio,
        config.new_token_ratio_decay,
        config.new_token_ratio_minimum,
    )

    def committed(steps: int) -> float:
        return max(floor, start - decay * steps) * (replica.estimate_sum - shrinking * steps)

    def bound(steps: int) -> float:
        tokens = available * block_size - num_decoding * (steps - block_size + 1)
        return tokens - committed(steps)

    peak = _peak(replica, num_steps, floor)
    if peak > 1 and bound(peak - 1) > bound(peak):
        peak -= 1
    if bound(peak) <= need_tokens:
        return num_steps
    low, high = 0, peak  # bound(high) > need; the bound rises up to the peak
    while high - low > 1:
        middle = (low + high) // 2
        if bound(middle) > need_tokens:
            high = middle
        else:
            low = middle
    steps = max(1, high - 1)
    offset, residues = replica.step % block_size, replica.residues
    while steps < num_steps and (steps <= peak or bound(steps) > need_tokens):
        free = available - (steps // block_size) * num_decoding
        free -= sum_around(residues, offset, steps % block_size)
        if is_mixed:
            free -= residues[(offset + steps) % block_size]
        if need_blocks <= free and need_tokens < free * block_size - committed(steps):
            return steps
        steps += 1
    return num_steps


def _peak(replica: Replica, num_steps: int, floor: float) -> int:
    """Return the step at or just behind which the concave bound of the free tokens is largest, in 1..num_steps."""
    config = replica.config
    start, decay = replica.new_token_ratio, config.new_token_ratio_decay
    shrinking = replica.estimate_shrinking
    if start <= floor or decay <= 0:
        return 1
    flat = int((start - floor) / decay) + 1
    if shrinking:
        rise = start * shrinking + decay * replica.estimate_sum - replica.num_decoding
        flat = min(flat, int(rise / (2 * decay * shrinking)) + 1 if rise > 0 else 1)
    return max(1, min(num_steps, flat))
