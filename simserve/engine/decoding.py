"""Joining and leaving the decoding requests of a replica: the aggregates that let a leap skip over tokens.

First visible tokens: when the answer begins of a request that thinks first and hides its thinking.

When a request starts to decode, the step of that token is known, like that of its last one. The heap of those steps
ends no leap: the time of a step inside a leap follows from the leap.

Inter-token gaps without a walk over the batch: the largest per request, and stalls of prefill-first scheduling.

``gap_step_runs`` and ``gap_values`` are a monotonic stack: values fall, so the largest gap since a leap is the first
entry from it on. A request remembers the leap it joined in.

Joining and leaving with speculative decoding, where each request decodes at its own pace.

Such replicas have a `Progress`; plain decoding never uses this part.

Finished requests that still hold their seat and blocks: asynchronous scheduling, as in vLLM from 0.14.

Step n + 1 is scheduled while step n runs, before it is known which requests finish in n. A finished request keeps its
seat and blocks until then, computes nothing in n + 1, may be preempted to make room (and is answered all the same), and
is gone when n + 2 is scheduled. A preempted request has a token on its way, whose block is not in the prefix cache yet.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from heapq import heappop, heappush

from simserve.engine.kv import blocks_taken, release_fixed
from simserve.engine.loras import count_decoding, leave_adapter
from simserve.engine.micro_batches import join_micro_batch, leave_micro_batch
from simserve.engine.prefix_cache import cache_blocks, evict, forget_decoder, leave_prefix, note_contests, note_decoder
from simserve.engine.progress import GRID, Progress
from simserve.engine.state import COMPLETED, ESTIMATE_CLIP, FINISHED, MASK, SHIFT, UNFINISHED, Replica, RequestTable
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
    if replica.micro_batches:
        join_micro_batch(replica, requests, index)
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
    if replica.takes_lazily:
        replica.residues[(step - context) % replica.block_size] += 1
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
    """Remove a request from the decoding ones: it has all its tokens."""
    keep_largest_gap(replica, requests, index)
    if replica.loras is not None:
        count_decoding(replica.loras, index, -1)
    free_blocks, free_window_blocks = replica.free_blocks, replica.free_window_blocks
    if replica.progress is not None:
        known = generated_at_pace(requests, index, replica.step - 1)
        until = until_beyond(replica, requests, index, known, replica.tokens_per_decode)
        leave_at_pace(replica, requests, replica.progress, index)
    else:
        until, output = 0, requests.output_tokens[index]
        leave_decoding(replica, requests, index, requests.context_base[index] + replica.step, output)
    finish(replica, requests, index, until, free_blocks, free_window_blocks)


def leave_decoding(replica: Replica, requests: RequestTable, index: int, context: int, generated: int) -> None:
    """Remove a request, with its growing blocks, from the aggregates of the decoding ones."""
    if replica.micro_batches:
        leave_micro_batch(replica, requests, index)
    if replica.has_thinking:
        requests.answer_step[index] = -1
    replica.num_decoding -= 1
    replica.context_sum -= context
    if replica.takes_lazily:
        replica.residues[(replica.step - context) % replica.block_size] -= 1
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


def finish(
    replica: Replica, requests: RequestTable, index: int, until: int, free_blocks: int, free_window: int
) -> None:
    """Declare a request completed at the end of the step; the API server tells its client.

    A step more takes slots for ``until`` tokens; 0: there is none. Its growing blocks are free; ``free_blocks`` were so
    before, and ``free_window`` in the pool of layers with a window.
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
    tokens = findable_tokens(replica, requests, index, output)
    if replica.releases_late:
        depart(replica, index, tokens, free_blocks, free_window)
        replica.departing_until[-1] = until
    elif replica.cache is not None and replica.cache.tree is None:
        hold_until_all_are_done(replica, index, tokens, free_blocks, free_window)
    else:
        if not replica.grows:
            release_fixed(replica, requests, index)
        if replica.cache is not None:
            leave_prefix(replica, index, tokens, replica.free_blocks - free_blocks)
    if replica.finished is not None:
        replica.finished.append(index)


def findable_tokens(replica: Replica, requests: RequestTable, index: int, generated: int) -> int:
    """Return how many computed tokens of a request that leaves others may find: under suspension, no answer."""
    tokens = requests.prompt_tokens[index]
    return tokens if replica.has_suspension else tokens + generated - 1


def cache_decoded(replica: Replica, requests: RequestTable, index: int, is_next_counted: int) -> None:
    """Cache the tokens of a request that other decoding requests have computed.

    vLLM caches a block as soon as the step that fills it is scheduled; scheduled ahead, once its last token is known.

    Args:
        replica: The replica, which has a prefix cache.
        requests: The table.
        index: The request.
        is_next_counted: 1: decodes of the step being planned are scheduled already; 0: not yet.
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
    """Decide which request is the first to cache the blocks that contested decodes fill in the step being planned.

    Args:
        replica: The replica, which has a prefix cache.
        requests: The table.
        free_blocks: Free blocks once the decodes and the running prompts of the step have theirs.
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
    """Return how many tokens of a decoding request are computed or scheduled, and known, in the sense of
    `cache_decoded`."""
    step = replica.step + is_next_counted
    if replica.config.async_scheduling:
        step -= 1
    if replica.progress is not None:
        return (requests.context_base[index] + requests.pace[index] * (step - 1)) // GRID + 1
    return requests.context_base[index] + step


def generated_by_now(replica: Replica, requests: RequestTable, index: int) -> int:
    """Return the tokens that a decoding request has generated."""
    if replica.progress is not None:
        return generated_at_pace(requests, index, replica.step)
    return requests.output_tokens[index] - (requests.finish_step[index] - replica.step)


def growth_of_step(replica: Replica) -> int:
    """Return the blocks of the pool that the next step's decodes take."""
    if replica.progress is not None:
        growth = replica.progress.growth(replica.step, 1) + replica.growth_beyond
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


def expect_answer(replica: Replica, requests: RequestTable, index: int, generated: int) -> None:
    """Record at which step a request that decodes from the next step on shows its first token, if it has yet to.

    Args:
        replica: The replica, whose requests think.
        requests: The table.
        index: The request.
        generated: Its tokens so far.
    """
    missing = requests.thinking_tokens[index] + 1 - generated
    if missing <= 0 or requests.thinking_tokens[index] >= requests.output_tokens[index]:
        return
    steps = missing
    if replica.progress is not None:
        steps = -(-GRID * missing // requests.pace[index])
    answer_step = replica.step + steps
    requests.answer_step[index] = answer_step
    heappush(replica.answer_heap, answer_step << SHIFT | index)


def begin_answers(replica: Replica, requests: RequestTable, num_steps: int, free_at: float) -> None:
    """Record when answers began in the leap that has run; its steps are counted, and no request has left since.

    Args:
        replica: The replica.
        requests: The table.
        num_steps: Steps of the leap.
        free_at: When the API server would have been free before it, seconds.
    """
    heap = replica.answer_heap
    start, first, increment = replica.start_time, replica.first_seconds, replica.increment_seconds
    sending = replica.api_token_seconds * replica.num_scheduled_decodes
    until = (replica.step + 1) << SHIFT
    while heap and heap[0] < until:
        entry = heappop(heap)
        index, step = entry & MASK, entry >> SHIFT
        if requests.answer_step[index] != step or requests.replica_id[index] != replica.identity:
            # It has been preempted, or has left.
            continue
        if replica.config.data_parallel_size > 1 and requests.rank[index] != replica.rank:
            continue
        k = step - replica.step + num_steps
        if k >= num_steps:
            requests.answer_time[index] = max(replica.end_time, replica.api_free_at)
        else:
            sent = max(free_at, start) + sending * k
            requests.answer_time[index] = max(start + first * k + increment * (k * (k - 1) * 0.5), sent)
        requests.answer_step[index] = -1


def note_recomputed(replica: Replica, requests: RequestTable, index: int, generated: int) -> None:
    """Record that an answer begins with the token that follows recomputing a preempted request."""
    if generated == requests.thinking_tokens[index] + 1:
        requests.answer_time[index] = max(replica.end_time, replica.api_free_at)


def push_gap(replica: Replica, leap: int, gap: float) -> None:
    """Record the largest gap (seconds) that every decoding request had in a leap."""
    gap_values = replica.gap_values
    while gap_values and gap_values[-1] <= gap:
        gap_values.pop()
        replica.gap_step_runs.pop()
    gap_values.append(gap)
    replica.gap_step_runs.append(leap)


def keep_largest_gap(replica: Replica, requests: RequestTable, index: int) -> None:
    """Fold the gaps since a request joined into its ``itl_max``."""
    position = bisect_left(replica.gap_step_runs, requests.joined_leap[index])
    if position < len(replica.gap_values):
        gap = replica.gap_values[position]
        if gap > requests.itl_max[index]:
            requests.itl_max[index] = gap


def note_stall(replica: Replica, num_joined: int) -> None:
    """Prefill-first: decoding requests waited for a prefill step; record since when, for their next gap."""
    leap = replica.leap_index
    if not replica.stall_step_runs:
        num_before = replica.num_decoding - num_joined
        if num_before:
            add_stall(replica, leap - 1, replica.last_decode_time, num_before)
    if num_joined:
        add_stall(replica, leap, replica.end_time, num_joined)


def add_stall(replica: Replica, leap: int, last_token_time: float, count: int) -> None:
    """Record that ``count`` requests, with the time of their last token, wait from a leap on for a stall to end."""
    replica.stall_step_runs.append(leap)
    replica.stall_times.append(last_token_time)
    replica.stall_counts.append(count)


def end_stall(replica: Replica) -> None:
    """Record every group's gap since its last token, at the first decode step after a stall."""
    token_time = replica.start_time + replica.first_seconds
    for position in range(len(replica.stall_step_runs)):
        count = replica.stall_counts[position]
        if count:
            gap = token_time - replica.stall_times[position]
            replica.irregular_gaps.extend((gap, count))
            push_gap(replica, replica.stall_step_runs[position], gap)
    replica.stall_step_runs.clear()
    replica.stall_times.clear()
    replica.stall_counts.clear()


def leave_stall(replica: Replica, joined_leap: int) -> None:
    """Remove a stalled request that is preempted: its gap will be counted when it comes back."""
    for position in range(len(replica.stall_step_runs) - 1, -1, -1):
        if replica.stall_step_runs[position] <= joined_leap or not position:
            replica.stall_counts[position] -= 1
            return


class Paces:
    """Speculative decoding with different pools: what a request gains per decode step on each of them.

    Attributes:
        values: In parts of a token (`simserve.engine.progress.GRID`), pool after pool; shape [pools x N].
        first: For each replica, where the values of its pool begin.
    """

    __slots__ = ("first", "values")

    def __init__(self, values: Sequence[int], first: list[int]) -> None:
        self.values, self.first = values, first


def use_pace(paces: Paces, requests: RequestTable, number: int, index: int) -> None:
    """Set what a request gains per decode step on the replica that it joins."""
    requests.pace[index] = paces.values[paces.first[number] + index]


def join_at_pace(
    replica: Replica, requests: RequestTable, progress: Progress, index: int, context: int, generated: int
) -> None:
    """Let a request decode from the next step on; arguments as in `join_decoding`."""
    step, pace = replica.step, requests.pace[index]
    base = GRID * context - pace * step
    finish_step = step - (GRID * (generated - requests.output_tokens[index]) // pace)
    requests.context_base[index] = base
    requests.finish_step[index] = finish_step
    requests.joined_step[index] = step
    requests.joined_leap[index] = replica.leap_index
    requests.last_token_time[index] = replica.end_time
    replica.num_decoding += 1
    replica.context_sum += context
    heappush(replica.finish_heap, finish_step << SHIFT | index)
    progress.join(base, pace, step)
    if replica.uses_estimate:
        _estimate(replica, requests, index, 1, generated)


def leave_at_pace(replica: Replica, requests: RequestTable, progress: Progress, index: int) -> None:
    """Remove a request, with its growing blocks, from the aggregates of the decoding ones."""
    if replica.micro_batches:
        leave_micro_batch(replica, requests, index)
    if replica.has_thinking:
        requests.answer_step[index] = -1
    step, pace, base = replica.step, requests.pace[index], requests.context_base[index]
    context = (base + pace * step) / GRID
    replica.num_decoding -= 1
    replica.context_sum -= context
    held = progress.leave(base, pace, step, requests.joined_step[index])
    if replica.grows:
        if replica.keeps_windows:
            leave_window(replica, requests, index, held)
        else:
            replica.free_blocks += held
        if replica.uses_estimate:
            _estimate(replica, requests, index, -1, context - requests.prompt_tokens[index] + 1)


def generated_at_pace(requests: RequestTable, index: int, step: int) -> int:
    """Return the whole tokens that a decoding request has generated before a step."""
    context = (requests.context_base[index] + requests.pace[index] * step) // GRID
    return context - requests.prompt_tokens[index] + 1


def _estimate(replica: Replica, requests: RequestTable, index: int, sign: int, generated: float) -> None:
    """Add (or, with -1, subtract) what a request that has ``generated`` tokens may still need."""
    most = requests.max_tokens[index]
    if most > ESTIMATE_CLIP:
        replica.estimate_sum += sign * ESTIMATE_CLIP
    else:
        replica.estimate_sum += sign * (most - generated)
        replica.estimate_shrinking += sign * requests.pace[index] / GRID


def depart(replica: Replica, index: int, tokens: int, free_blocks: int, free_window_blocks: int) -> None:
    """Let a finished request hold what its end has freed, until `release_departing`.

    Args:
        replica: The replica, on which the request's growing blocks already count as free.
        index: The request.
        tokens: Its tokens in the KV cache.
        free_blocks: Blocks that were free before.
        free_window_blocks: Likewise in the pool of layers with a window.
    """
    hold_until_all_are_done(replica, index, tokens, free_blocks, free_window_blocks)
    cache = replica.cache
    if cache is not None and (cache.num_decoders or cache.contested):
        forget_decoder(cache, index)
        cache_blocks(cache, index, tokens - 1)
        note_contests(cache, index)


def hold_until_all_are_done(
    replica: Replica, index: int, tokens: int, free_blocks: int, free_window_blocks: int
) -> None:
    """Let a finished request hold its blocks, as in `depart`, until all that finish in this step have done so."""
    replica.departing.append(index)
    replica.departing_tokens.append(tokens)
    replica.departing_blocks.append(replica.free_blocks - free_blocks)
    replica.departing_window_blocks.append(replica.free_window_blocks - free_window_blocks)
    replica.departing_until.append(0)
    replica.free_blocks = free_blocks
    replica.free_window_blocks = free_window_blocks


def release_departing(replica: Replica, requests: RequestTable) -> None:
    """Release all departing requests, in the order of their admission: the next step is scheduled.

    In this order, what they leave in the prefix cache is evicted (``update_from_output`` of vLLM).
    """
    is_ordered = replica.cache is not None and replica.cache.tree is None and len(replica.departing) > 1
    if is_ordered:
        forget_finished(replica, requests)
    if is_ordered and _num_seated(replica) == len(replica.departing):
        running = replica.running
        for seat in range(len(running)):
            index = running[seat]
            if index in replica.departing:
                position = replica.departing.index(index)
                _release(replica, requests, position, replica.departing_tokens[position])
    else:
        # Prompts that went on to a decode worker no longer have a seat, and have ended in the order of their seats.
        for position in range(len(replica.departing)):
            _release(replica, requests, position, replica.departing_tokens[position])
    replica.departing.clear()
    replica.departing_tokens.clear()
    replica.departing_blocks.clear()
    replica.departing_window_blocks.clear()
    replica.departing_until.clear()


def preempt_departing(replica: Replica, requests: RequestTable, index: int) -> None:
    """Release a departing request at once, since its blocks are needed; its last tokens are not in the cache yet."""
    position = replica.departing.index(index)
    tokens = replica.departing_tokens[position] - 1
    if replica.assumes_drafts and requests.finish_step[index] == replica.step:
        tokens = requests.prompt_tokens[index] + generated_at_pace(requests, index, replica.step - 1) - 1
    tokens = max(tokens, requests.prompt_tokens[index])
    release_one(replica, requests, index, tokens)
    requests.num_preemptions[index] += 1


def until_beyond(replica: Replica, requests: RequestTable, index: int, known: int, computed: int) -> int:
    """Return the tokens for which a request that ends needs slots in a step more; 0: its end was certain before.

    It had generated ``known`` tokens before the last step, which computes ``computed`` if all drafts hold.
    """
    if not replica.decodes_beyond or known + 1 >= requests.max_tokens[index]:
        return 0
    return requests.prompt_tokens[index] + known - 1 + computed + replica.tokens_per_decode


def count_beyond(replica: Replica) -> None:
    """Count the departing requests that compute a step more, their tokens, and the blocks that they take for it."""
    replica.num_beyond = replica.beyond_tokens = replica.growth_beyond = 0
    for position in range(len(replica.departing)):
        until = replica.departing_until[position]
        if until:
            replica.num_beyond += 1
            replica.beyond_tokens += replica.departing_tokens[position]
            if replica.grows and not replica.keeps_windows:
                growth = -(-until // replica.block_size) - replica.departing_blocks[position]
                replica.growth_beyond += max(growth, 0)


def take_beyond(replica: Replica) -> None:
    """Let the departing requests that compute a step more take their blocks for it."""
    for position in range(len(replica.departing)):
        until = replica.departing_until[position]
        if until and replica.growth_beyond:
            growth = max(-(-until // replica.block_size) - replica.departing_blocks[position], 0)
            replica.departing_blocks[position] += growth
            replica.free_blocks -= growth
    replica.growth_beyond = 0


def release_one(replica: Replica, requests: RequestTable, index: int, tokens: int) -> None:
    """Release a departing request, with ``tokens`` tokens in the cache."""
    position = replica.departing.index(index)
    _release(replica, requests, position, tokens)
    replica.departing.pop(position)
    replica.departing_tokens.pop(position)
    replica.departing_blocks.pop(position)
    replica.departing_window_blocks.pop(position)
    replica.departing_until.pop(position)
    if replica.decodes_beyond:
        count_beyond(replica)


def _release(replica: Replica, requests: RequestTable, position: int, tokens: int) -> None:
    index, free_blocks = replica.departing[position], replica.free_blocks
    replica.free_blocks += replica.departing_blocks[position]
    replica.free_window_blocks += replica.departing_window_blocks[position]
    if not replica.grows:
        release_fixed(replica, requests, index)
    if replica.cache is not None:
        blocks = blocks_taken(replica, requests, index, tokens, free_blocks)
        leave_prefix(replica, index, tokens, blocks)


def _num_seated(replica: Replica) -> int:
    """Return how many departing requests are still in the list of those that could be preempted."""
    num_seated = 0
    for seat in range(len(replica.running)):
        if replica.running[seat] in replica.departing:
            num_seated += 1
    return num_seated


def forget_finished(replica: Replica, requests: RequestTable) -> None:
    """Remove finished requests from the list of those that could be preempted."""
    running = replica.running
    kept = 0
    for position in range(len(running)):
        index = running[position]
        if requests.status[index] == UNFINISHED or index in replica.departing:
            running[kept] = index
            kept += 1
    while len(running) > kept:
        running.pop()
