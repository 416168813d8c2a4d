"""Joining and leaving the decoding requests of a replica: the aggregates that let a leap skip over tokens."""

from __future__ import annotations

from heapq import heappush

from simserve.engine.answers import expect_answer
from simserve.engine.departing import depart, hold_until_all_are_done
from simserve.engine.gaps import keep_largest_gap
from simserve.engine.kv import release_fixed
from simserve.engine.loras import count_decoding, leave_adapter
from simserve.engine.paces import generated_at_pace, join_at_pace, leave_at_pace
from simserve.engine.prefix_cache import cache_blocks, evict, leave_prefix, note_decoder
from simserve.engine.progress import GRID
from simserve.engine.state import COMPLETED, ESTIMATE_CLIP, FINISHED, SHIFT, Replica, RequestTable
from simserve.engine.windows import join_window, leave_window, window_growth_of_step


def join_decoding(replica: Replica, requests: RequestTable, index: int, context: int, generated: int) -> None:
    """Let a request decode from the next step on.

    Args:
        replica: The replica.
        requests: The table.
        index: The request.
        context: Its tokens in the KV cache.
        generated: Its tokens generated, at least one and fewer than all.
    """
    if replica.has_thinking:
        expect_answer(replica, requests, index, generated)
    if replica.cache is not None and replica.config.caches_decoded:
        note_decoder(replica.cache, index)
    if replica.progress is not None:
        join_at_pace(replica, requests, replica.progress, index, context, generated)
        if replica.keeps_windows:
            join_window(replica, requests, index, context)
        return
    step = replica.step
    finish_step = step + requests.output_tokens[index] - generated
    requests.context_base[index] = context - step
    requests.finish_step[index] = finish_step
    requests.joined_leap[index] = replica.leap_index
    requests.last_token_time[index] = replica.end_time
    replica.num_decoding += 1
    replica.context_sum += context
    heappush(replica.finish_heap, finish_step << SHIFT | index)
    if replica.grows:
        replica.residues[(step - context) % replica.block_size] += 1
        if replica.keeps_windows:
            join_window(replica, requests, index, context)
        if replica.uses_estimate:
            most = requests.max_tokens[index]
            if most > ESTIMATE_CLIP:
                replica.estimate_sum += ESTIMATE_CLIP
            else:
                replica.estimate_sum += most - generated
                replica.estimate_shrinking += 1


def finish_decoding(replica: Replica, requests: RequestTable, index: int) -> None:
    """Let a request leave the decoding ones: it has all its tokens."""
    keep_largest_gap(replica, requests, index)
    if replica.loras is not None:
        count_decoding(replica.loras, index, -1)
    free_blocks, free_window_blocks = replica.free_blocks, replica.free_window_blocks
    if replica.progress is not None:
        leave_at_pace(replica, requests, replica.progress, index)
    else:
        output = requests.output_tokens[index]
        leave_decoding(replica, requests, index, requests.context_base[index] + replica.step, output)
    finish(replica, requests, index, free_blocks, free_window_blocks)


def leave_decoding(replica: Replica, requests: RequestTable, index: int, context: int, generated: int) -> None:
    """Take a request out of the aggregates of the decoding ones, and its growing blocks with it."""
    if replica.has_thinking:
        requests.answer_step[index] = -1
    replica.num_decoding -= 1
    replica.context_sum -= context
    if replica.grows:
        block_size = replica.block_size
        if replica.keeps_windows:
            leave_window(replica, requests, index, -(-context // block_size))
        else:
            replica.free_blocks += -(-context // block_size)
        replica.residues[(replica.step - context) % block_size] -= 1
        if replica.uses_estimate:
            most = requests.max_tokens[index]
            if most > ESTIMATE_CLIP:
                replica.estimate_sum -= ESTIMATE_CLIP
            else:
                replica.estimate_sum -= most - generated
                replica.estimate_shrinking -= 1


def finish(replica: Replica, requests: RequestTable, index: int, free_blocks: int, free_window_blocks: int) -> None:
    """Declare a request completed at the end of the step; its client hears of it from the API server.

    Its growing blocks have been freed; before that there were ``free_blocks``, and ``free_window_blocks`` of the pool
    of layers with a window.
    """
    output = requests.output_tokens[index]
    requests.finish_time[index] = max(replica.end_time, replica.api_free_at)
    requests.generated_tokens[index] = output
    requests.status[index] = COMPLETED
    if replica.batch_log is not None:
        replica.batch_log.extend((index, replica.end_time, FINISHED))
    replica.num_running -= 1
    replica.num_outstanding -= 1
    if replica.loras is not None:
        leave_adapter(replica.loras, index)
    tokens = requests.prompt_tokens[index] + output - 1
    if replica.releases_late:
        depart(replica, index, tokens, free_blocks, free_window_blocks)
    elif replica.cache is not None and replica.cache.tree is None:
        hold_until_all_are_done(replica, index, tokens, free_blocks, free_window_blocks)
    else:
        if not replica.grows:
            release_fixed(replica, requests, index)
        if replica.cache is not None:
            leave_prefix(replica, index, tokens, replica.free_blocks - free_blocks)
    if replica.finished is not None:
        replica.finished.append(index)


def cache_decoded(replica: Replica, requests: RequestTable, index: int, is_next_counted: int) -> None:
    """Let the cache hold what others that decode have of the tokens of a request.

    vLLM caches a block as soon as the step that fills it is scheduled; scheduled ahead, once its last token is known.

    Args:
        replica: The replica, which has a prefix cache.
        requests: The table.
        index: The request.
        is_next_counted: 1: decodes of the step that is being planned are scheduled already; 0: not yet.
    """
    cache = replica.cache
    assert cache is not None
    paths = cache.paths
    for entry in range(paths.starts[index], paths.starts[index + 1]):
        if not paths.is_shared[entry]:
            continue
        other = cache.decoders.get(paths.segments[entry], 0) - 1
        if other >= 0 and other != index:
            cache_blocks(cache, other, _known_tokens(replica, requests, other, is_next_counted))


def settle_decoders(replica: Replica, requests: RequestTable, free_blocks: int) -> None:
    """Decide who is the first to cache the blocks that contested decodes fill in the step that is being planned.

    Args:
        replica: The replica, which has a prefix cache.
        requests: The table.
        free_blocks: Free once the decodes and the running prompts of the step have theirs.
    """
    cache = replica.cache
    assert cache is not None
    evict(cache, free_blocks)
    contested = cache.contested
    for _ in range(len(contested)):
        index = contested[0]
        cache_blocks(cache, index, _known_tokens(replica, requests, index, 1))
        contested.remove(index)
        note_decoder(cache, index)


def _known_tokens(replica: Replica, requests: RequestTable, index: int, is_next_counted: int) -> int:
    """Return how many tokens of a decoding request are computed or scheduled, and known, as `cache_decoded` counts."""
    step = replica.step + is_next_counted
    if replica.config.async_scheduling:
        step -= 1
    if replica.progress is not None:
        return (requests.context_base[index] + requests.pace[index] * (step - 1)) // GRID + 1
    return requests.context_base[index] + step


def generated_by_now(replica: Replica, requests: RequestTable, index: int) -> int:
    """Return the tokens that a decoding request has generated."""
    if replica.progress is not None:
        return generated_at_pace(replica, requests, index)
    return requests.output_tokens[index] - (requests.finish_step[index] - replica.step)


def growth_of_step(replica: Replica) -> int:
    """Return the blocks of the pool that the next step's decodes take."""
    if replica.progress is not None:
        growth = replica.progress.growth(replica.step, 1)
    else:
        growth = replica.residues[replica.step % replica.block_size]
    if replica.keeps_windows:
        return replica.full_weight * growth + replica.window_weight * window_growth_of_step(replica)
    return growth


def steps_until_dry(replica: Replica) -> int:
    """Return for how many steps the free blocks cover the growth of the decoding requests."""
    block_size, residues = replica.block_size, replica.residues
    cycles, free = divmod(replica.free_blocks, replica.num_decoding)
    offset = replica.step % block_size
    extra = 0
    while extra < block_size:
        growth = residues[(offset + extra) % block_size]
        if growth > free:
            break
        free -= growth
        extra += 1
    return cycles * block_size + extra
