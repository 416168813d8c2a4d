"""Windowed KV: what layers with a sliding window hold of a request, and when its window is full.

Layers that see everything hold a block for every ``block_size`` tokens of a request. Layers with a window take blocks
alongside them until they hold ``window_blocks``; from then on every further block replaces one that no query sees any
more. So a request of ``n`` full blocks holds ``full_weight * n + window_weight * min(n, window_blocks)`` blocks of the
pool, and ``min(n, window_blocks)`` of the windows' own pool if they have one.

A prefill chunk needs room for all its blocks in every layer; what is outside the window by then is free again when its
step ends. So is what drafts took beyond the window. States of linear attention that share the pool are windows of one
block that no chunk lengthens.

The rule errs on the safe side in two ways. A window is assumed to span the largest number of blocks; one that begins
exactly with a block needs one fewer. And chunked attention, whose layers begin anew with every chunk, holds a whole
chunk as if it were a window. Where that matters under vLLM (``EngineConfig.window_tokens``), in runs that memory does
not suffice for or whose prompts share prefixes, blocks are counted one by one (`simserve.engine.state_cache`).

Elsewhere, requests share the blocks of the layers that see everything with a prefix cache. A request that finds its
prefix there takes a window of its own in addition, which an engine that still has the last blocks of the prefix would
share; and the window of the prefix is assumed to be cached if the prefix is.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from simserve.engine.progress import GRID, Progress
from simserve.engine.state import MASK, SHIFT, Replica, RequestTable, sum_around
from simserve.engine.state_cache import pass_leap, steps_in_pool


def pool_blocks(replica: Replica, blocks: int) -> int:
    """Return the blocks of the pool that a request of ``blocks`` full blocks holds between steps."""
    if not replica.keeps_windows:
        return blocks
    return replica.full_weight * blocks + replica.window_weight * min(blocks, replica.window_blocks)


def take_blocks(replica: Replica, blocks: int) -> None:
    """Take what a request of ``blocks`` full blocks holds between steps; a cache of states counts its own blocks."""
    if replica.has_state_cache:
        return
    replica.free_blocks -= pool_blocks(replica, blocks)
    if replica.has_window_pool:
        replica.free_window_blocks -= min(blocks, replica.window_blocks)


def give_back(replica: Replica, blocks: int) -> None:
    """Free what a request of ``blocks`` full blocks holds between steps, likewise."""
    if replica.has_state_cache:
        return
    replica.free_blocks += pool_blocks(replica, blocks)
    if replica.has_window_pool:
        replica.free_window_blocks += min(blocks, replica.window_blocks)


def chunk_windows(replica: Replica, before: int, blocks: int) -> int:
    """Return the blocks that a layer with a window takes for a chunk of ``blocks`` if the request had ``before``."""
    if replica.keeps_states:
        return min(before + blocks, replica.window_blocks) - min(before, replica.window_blocks)
    return blocks


def admitted_windows(replica: Replica, found: int, blocks: int) -> int:
    """Return the same for the first chunk of a request that finds ``found`` blocks in the prefix cache.

    It has a window of its own for them, in addition to the blocks that it shares.
    """
    return min(found, replica.window_blocks) + chunk_windows(replica, found, blocks)


def most_window_blocks(replica: Replica, blocks: int) -> int:
    """Return the most blocks that a layer with a window holds while a prompt of ``blocks`` blocks is computed."""
    config = replica.config
    if replica.keeps_states:
        return min(blocks, config.window_blocks)
    return min(blocks, config.window_blocks - (-config.max_chunk_tokens // config.block_size))


def join_window(replica: Replica, requests: RequestTable, index: int, context: int) -> None:
    """Count a request that decodes from the next step on, with the growing windows if its own is not full."""
    if context >= replica.window_context:
        replica.window_sum += replica.window_context
        return
    step = replica.step
    replica.window_sum += context
    replica.num_growing_windows += 1
    progress = replica.window_progress
    if progress is None:
        replica.window_residues[(step - context) % replica.block_size] += 1
    else:
        progress.join(requests.context_base[index], requests.pace[index], step)
    crossing = crossing_step(replica, requests, index)
    if crossing <= requests.finish_step[index]:
        heappush(replica.crossing_heap, crossing << SHIFT | index)


def crossing_step(replica: Replica, requests: RequestTable, index: int) -> int:
    """Return the step counter from which on a request that joined with a growing window has a full one."""
    base = requests.context_base[index]
    progress = replica.window_progress
    if progress is None:
        return replica.window_context - base
    return requests.joined_step[index] + progress.steps_to_hold(
        base, requests.pace[index], requests.joined_step[index], replica.window_blocks
    )


def leave_window(replica: Replica, requests: RequestTable, index: int, blocks: int) -> None:
    """Remove a decoding request of ``blocks`` full blocks, and free what it holds.

    Call it before the step counter moves on, and with the request's pace and base still in the table.
    """
    give_back(replica, blocks)
    step, base = replica.step, requests.context_base[index]
    progress = replica.window_progress
    if progress is None:
        context: float = base + step
        joined = context
    else:
        pace = requests.pace[index]
        context = (base + pace * step) / GRID
        joined = (base + pace * requests.joined_step[index]) / GRID
    if joined >= replica.window_context:
        replica.window_sum -= replica.window_context
        return
    crossing = crossing_step(replica, requests, index)
    if crossing <= step:
        replica.window_sum -= replica.window_context
        return
    replica.window_sum -= context
    _stop_growing(replica, requests, progress, index)
    if crossing <= requests.finish_step[index]:
        replica.crossing_heap.remove(crossing << SHIFT | index)
        heapify(replica.crossing_heap)


def cross(replica: Replica, requests: RequestTable) -> None:
    """Remove requests whose windows have become full from the growing ones."""
    heap = replica.crossing_heap
    progress = replica.window_progress
    until = (replica.step + 1) << SHIFT
    while heap and heap[0] < until:
        index = heappop(heap) & MASK
        if progress is not None:
            context = (requests.context_base[index] + requests.pace[index] * replica.step) / GRID
            replica.window_sum += replica.window_context - context
        excess = _stop_growing(replica, requests, progress, index) - replica.window_blocks
        if progress is not None and excess > 0 and not replica.has_state_cache:
            # What the drafts of its last step took beyond the window.
            replica.free_blocks += replica.window_weight * excess
            if replica.has_window_pool:
                replica.free_window_blocks += excess


def _stop_growing(replica: Replica, requests: RequestTable, progress: Progress | None, index: int) -> int:
    """Remove a request from the growing windows; return the blocks of its window (only with speculative decoding)."""
    replica.num_growing_windows -= 1
    base = requests.context_base[index]
    if progress is None:
        replica.window_residues[-base % replica.block_size] -= 1
        return 0
    return progress.leave(base, requests.pace[index], replica.step, requests.joined_step[index])


def window_growth_of_step(replica: Replica) -> int:
    """Return the blocks that a layer with a window takes in the next step's decodes."""
    if replica.window_progress is not None:
        return replica.window_progress.growth(replica.step, 1)
    return replica.window_residues[replica.step % replica.block_size]


def affordable_steps(replica: Replica, num_steps: int) -> int:
    """Return how many steps, at most ``num_steps``, a leap may last: no window becomes full, no pool runs dry.

    The first step is affordable.
    """
    if replica.crossing_heap:
        num_steps = min(num_steps, (replica.crossing_heap[0] >> SHIFT) - replica.step)
    if replica.has_state_cache:
        return steps_in_pool(replica, num_steps)
    if _is_affordable(replica, num_steps):
        return num_steps
    low, high = 1, num_steps
    while high - low > 1:
        middle = (low + high) // 2
        if _is_affordable(replica, middle):
            low = middle
        else:
            high = middle
    return low


def _is_affordable(replica: Replica, num_steps: int) -> bool:
    full, window = leap_growth(replica, num_steps)
    if replica.has_window_pool and window > replica.free_window_blocks:
        return False
    taken = replica.full_weight * full + replica.window_weight * window
    return taken <= replica.free_blocks


def leap_growth(replica: Replica, num_steps: int) -> tuple[int, int]:
    """Return the blocks that the decodes of ``num_steps`` steps take in a layer that sees all, and in the others."""
    step, block_size = replica.step, replica.block_size
    if replica.progress is not None and replica.window_progress is not None:
        return replica.progress.growth(step, num_steps), replica.window_progress.growth(step, num_steps)
    cycles, rest = divmod(num_steps, block_size)
    full, window = cycles * replica.num_decoding, cycles * replica.num_growing_windows
    if rest:
        offset = step % block_size
        full += sum_around(replica.residues, offset, rest)
        window += sum_around(replica.window_residues, offset, rest)
    return full, window


def take_leap(replica: Replica, requests: RequestTable, num_steps: int) -> int:
    """Take what the decodes of a leap need, before the step counter moves on; return the blocks of the pool.

    Those of the windows' own pool are subtracted here, those of the pool by the caller.
    """
    full, window = leap_growth(replica, num_steps)
    advance: float = replica.num_growing_windows
    if replica.progress is not None and replica.window_progress is not None:
        replica.progress.pending_blocks = replica.window_progress.pending_blocks = 0
        advance = replica.window_progress.total / GRID
    replica.window_sum += advance * num_steps
    if replica.has_window_pool:
        replica.free_window_blocks -= window
    if replica.has_state_cache:
        return pass_leap(replica, requests, num_steps)
    return replica.full_weight * full + replica.window_weight * window


def take_chunks(replica: Replica, requests: RequestTable) -> int:
    """Take what the chunks of a step leave behind when it ends; return the blocks of the pool.

    Those of the windows' own pool are subtracted here, those of the pool by the caller.
    """
    block_size, most = replica.block_size, replica.window_blocks
    if replica.has_state_cache:
        return 0
    full = window = 0
    for position in range(len(replica.chunk_requests)):
        done = requests.computed_tokens[replica.chunk_requests[position]]
        before, after = -(-done // block_size), -(-(done + replica.chunk_tokens[position]) // block_size)
        full += after - before
        window += min(after, most) - min(before, most)
    if replica.has_window_pool:
        replica.free_window_blocks -= window
    return replica.full_weight * full + replica.window_weight * window


def held_tokens(replica: Replica, requests: RequestTable, tokens: float) -> float:
    """Return the tokens in blocks of the pool, for requests that have ``tokens`` in the layers that see everything."""
    windowed = replica.window_sum
    for position in range(len(replica.prefilling)):
        windowed += min(requests.computed_tokens[replica.prefilling[position]], replica.window_context)
    if replica.keeps_states:
        # A state fills its block.
        windowed *= replica.block_size
    return replica.full_weight * tokens + replica.window_weight * windowed
