"""Suspension: requests that give way keep their KV cache, as under TensorRT-LLM's second KV cache manager.

Its scheduler (``KVCacheV2Scheduler`` in ``_torch/pyexecutor/scheduler/scheduler_v2.py``) looks at the requests that
have seats in the order of arrival, whatever capacity policy it is asked for:

* Those that decode come first. Where one finds no block, the last to arrive that has started is suspended: its blocks
  are copied to host memory once others need them, it keeps its seat and its place, and goes on where it was.
* Prompts follow, chunk by chunk. None begins while more blocks are in use than ``max_util_for_resume`` allows, or with
  less than a block of budget left. One that finds no blocks waits, and preempts nobody; those behind it may go.
* A chunk can be found once its step has run, an answer never (``try_commit_blocks`` stops at the end of the prompt). A
  request whose next block another prompt of the step computes is passed over.

Host memory is taken to have room for everything, and copies to take no time.
"""

from __future__ import annotations

from simserve.engine.arrival_order import is_before, seat_by_arrival
from simserve.engine.decoding import growth_of_step, join_decoding
from simserve.engine.kv_tier import take_loading_seconds, take_overlapped_seconds
from simserve.engine.preemption import preempt
from simserve.engine.prefix_cache import (
    defer,
    evict,
    find_prefix,
    is_contributed,
    load_prefix,
    restore_deferred,
    use_prefix,
)
from simserve.engine.state import (
    BLOCKED_BY_BLOCKS,
    BLOCKED_BY_BUDGET,
    BLOCKED_BY_NOTHING,
    BLOCKED_BY_PREFIX,
    RETURNED,
    Replica,
    RequestTable,
)


def bring_back(replica: Replica, requests: RequestTable) -> bool:
    """Let suspended requests decode again, in the order of arrival, while they find blocks; return whether any does."""
    waiting, block_size, cache = replica.waiting, replica.block_size, replica.cache
    has_come = False
    num_left = replica.num_suspended
    while waiting and num_left:
        index = waiting[0]
        context = requests.swapped_tokens[index]
        num_left -= context > 0
        if context < requests.prompt_tokens[index]:
            defer(replica)
            continue
        free = replica.free_blocks - growth_of_step(replica)
        blocks = idle = 0
        if cache is not None:
            blocks, idle = find_prefix(cache, index, context + 1)
        if is_over_limit(replica, free) or idle - blocks - (-(context + 1) // block_size) > free:
            break
        waiting.popleft()
        last_token_time = requests.last_token_time[index]
        join_decoding(replica, requests, index, context, requests.generated_tokens[index])
        # Its next gap reaches back to before it was suspended; the leap that begins counts only for the others.
        requests.last_token_time[index] = last_token_time
        requests.joined_leap[index] = replica.leap_index + 1
        replica.swapped_in.append(index)
        replica.free_blocks -= idle - blocks - (-context // block_size)
        if blocks and cache is not None:
            if cache.has_tiers:
                load_prefix(replica, requests, index, blocks)
            use_prefix(cache, index, blocks, idle)
        forget_suspended(replica, requests, index)
        seat_by_arrival(requests, replica.running, index)
        replica.num_running += 1
        if replica.batch_log is not None:
            replica.batch_log.extend((index, replica.start_time, RETURNED))
        has_come = True
    restore_deferred(replica)
    return has_come


def seconds_to_return(replica: Replica, seconds: float) -> float:
    """Return how much longer a step of ``seconds`` takes that waits for what those that come back had shared."""
    cache = replica.cache
    if cache is None or not cache.has_tiers:
        return 0.0
    loading = take_loading_seconds(cache, replica.start_time)
    return loading + take_overlapped_seconds(cache, seconds)


def forget_suspended(replica: Replica, requests: RequestTable, index: int) -> None:
    """Note that a request goes on, or is given up."""
    replica.num_suspended -= 1
    requests.swapped_tokens[index] = 0


def go_on(replica: Replica, requests: RequestTable, index: int, computed: int, restored: int) -> int:
    """Let a suspended prompt that is admitted go on behind its first ``computed`` tokens.

    Returns:
        How many prompts more are known to run: with a prefix cache, the caller adds it to them.
    """
    forget_suspended(replica, requests, index)
    replica.free_blocks -= restored
    if replica.cache is not None:
        return 0
    seat_by_arrival(requests, replica.prefilling, index)
    requests.computed_tokens[index] = computed
    replica.prefilled_tokens += computed
    return 1


def what_keeps_out(replica: Replica, requests: RequestTable, index: int, free: int, budget: int) -> int:
    """Return why a waiting request may not begin or come back, whatever it needs: the prefix only if others may."""
    suspended = requests.swapped_tokens[index]
    if suspended >= requests.prompt_tokens[index] or is_over_limit(replica, free):
        return BLOCKED_BY_BLOCKS
    if is_below_block(replica, budget):
        return BLOCKED_BY_BUDGET
    if replica.cache is None or suspended:
        return BLOCKED_BY_NOTHING
    evict(replica.cache, free)
    if is_contributed(replica, requests, index, is_noted=False):
        return BLOCKED_BY_PREFIX
    return BLOCKED_BY_NOTHING


def is_over_limit(replica: Replica, free: int) -> bool:
    """Return whether more blocks are in use than where requests may begin, with ``free`` ones left."""
    return replica.num_blocks - free > replica.config.max_used_blocks


def is_below_block(replica: Replica, budget: int) -> bool:
    """Return whether the budget leaves less than a block, so that no prompt is computed, however short."""
    return replica.has_aligned_chunks and budget < replica.block_size


def continue_growing(
    replica: Replica, requests: RequestTable, position: int, until: int, budget: int, free: int
) -> tuple[int, int, int]:
    """Give chunks to the running prompts from a position on, in the order of arrival, as far as they find blocks.

    Args:
        replica: The replica.
        requests: The table.
        position: In ``prefilling``.
        until: The request before which they arrived; -1: all.
        budget: Tokens left of the step.
        free: Blocks left.

    Returns:
        The position of the next one, and the tokens and blocks left.
    """
    prefilling, block_size, max_chunk = replica.prefilling, replica.block_size, replica.config.max_chunk_tokens
    if not (position or replica.chunk_requests):
        replica.contributed.clear()
    while position < len(prefilling) and (until < 0 or not is_before(requests, until, prefilling[position])):
        index = prefilling[position]
        position += 1
        done = requests.computed_tokens[index]
        remaining = requests.prompt_tokens[index] - done
        chunk = min(remaining, max_chunk, budget)
        if replica.has_aligned_chunks and chunk < remaining:
            chunk -= chunk % block_size
        need = -(-(done + chunk) // block_size) + (-done // block_size)
        if chunk > 0 and need <= free and not is_below_block(replica, budget):
            is_contributed(replica, requests, index)
            replica.chunk_requests.append(index)
            replica.chunk_tokens.append(chunk)
            budget -= chunk
            free -= need
    return position, budget, free


def preempt_stuck(replica: Replica, requests: RequestTable) -> bool:
    """Suspend prompts, the last to arrive first, where all that run are prompts and none finds blocks for a chunk.

    The real scheduler stops there and reports a deadlock (``_detect_deadlock``).

    Returns:
        Whether any was suspended.
    """
    has_preempted = False
    while len(replica.prefilling) > 1 and not (replica.num_decoding or replica.departing):
        for position in range(len(replica.prefilling)):
            index = replica.prefilling[position]
            done = requests.computed_tokens[index]
            chunk = requests.prompt_tokens[index] + requests.generated_tokens[index] - done
            most = min(replica.config.max_chunk_tokens, replica.token_budget)
            if chunk > most:
                chunk = most - most % replica.block_size if replica.has_aligned_chunks else most
            if -(-(done + chunk) // replica.block_size) + (-done // replica.block_size) <= replica.free_blocks:
                return has_preempted
        replica.chunk_requests.clear()
        preempt(replica, requests)
        has_preempted = True
    return has_preempted
