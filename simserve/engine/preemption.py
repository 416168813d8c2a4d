"""Preemption: which request is preempted, by recompute or by swap, which ones a step then passes over, and the cost.

The victim keeps its generated tokens and prefills them again with its prompt.

Preemption by swap: the KV blocks of a victim are copied to host memory, and back before it decodes again.

vLLM's rules before V1: a swapped request is at the head of the queue, comes back as soon as a seat and its blocks are
free and no request has just been preempted, and decodes in that same step. Copies take the seconds of the host link,
and the step that moves blocks waits for them. If host memory is full, or the victim still prefills, it is computed
again.

Requests that a step passes over: with priorities, vLLM up to 0.32 does not always look at all running requests.

It looks at them in the order of their admission. A request that needs a block, and would itself be the next to give one
up, is preempted and ends the pass: those after it keep their blocks and compute nothing in that step (``ends_pass``).
Up to 0.27, if a finished request earlier in the order gives up its blocks instead, the pass loses count by one and
misses the request after the one that needed them (``misses_next``; pull request 49206).

A decoding request that is passed over leaves the aggregates of the decoding ones for one step.

Requests in order of arrival: TensorRT-LLM's ``MAX_UTILIZATION`` (``MaxUtilizationPolicy`` in its ``scheduler.py``).

It looks at all that have seats in this order. Where blocks are missing, the last to arrive that has started is paused,
and keeps its seat and its place in the order. A request that has waited for a prefix comes before those that overtook
it, and may so take the blocks of those that decode.
"""

from __future__ import annotations

from heapq import heapify, heappush
from math import inf, nextafter
from typing import Any

from simserve.engine.arrival_order import is_before, queue_by_arrival
from simserve.engine.decoding import (
    cache_decoded,
    expect_answer,
    forget_finished,
    generated_at_pace,
    generated_by_now,
    growth_of_step,
    join_decoding,
    keep_largest_gap,
    leave_at_pace,
    leave_decoding,
    leave_stall,
    preempt_departing,
    release_one,
)
from simserve.engine.kv import prompt_blocks
from simserve.engine.loras import count_decoding, count_waiting, leave_adapter
from simserve.engine.micro_batches import leave_micro_batch, open_micro_batch
from simserve.engine.numbers import remove_all
from simserve.engine.overlap import growth_beyond, is_in_flight, known_tokens, lose_token, waits_for_results
from simserve.engine.prefix_cache import find_prefix, leave_prefix
from simserve.engine.progress import GRID
from simserve.engine.radix_tree import RETRACT_DECODE_STEPS, leave_tree, make_free
from simserve.engine.state import EVICTED, LATE_NOTHING, MASK, RETURNED, SHIFT, Replica, RequestTable
from simserve.engine.windows import chunk_windows, give_back, join_window, leave_window, window_growth_of_step


def make_room(replica: Replica, requests: RequestTable) -> bool:
    """Preempt until the next step's decodes have their blocks; return whether any request was preempted."""
    has_preempted = False
    if (
        replica.progress is not None
        and replica.block_weight * replica.progress.most_growth(1) + replica.growth_beyond <= replica.free_blocks
        and not replica.has_window_pool
    ):
        return False
    if is_held_up(replica, requests) or may_overtake(replica, requests):
        return False
    if replica.has_ordered_pass and is_short(replica, requests):
        make_room_in_order(replica, requests)
        return True
    while is_short(replica, requests):
        if replica.cache is not None and replica.cache.tree is not None:
            make_free(replica, growth_of_batch(replica, requests))
        # The chunks of the previous step: no request has one in this step yet.
        replica.chunk_requests.clear()
        preempt(replica, requests)
        has_preempted = True
    return has_preempted


def is_short(replica: Replica, requests: RequestTable) -> bool:
    """Return whether the next step's decodes take more blocks than are free."""
    if growth_of_batch(replica, requests) > replica.free_blocks:
        # States that are held a step longer may take more than there is; with nothing left to do nobody gives way.
        return replica.num_outstanding > 0 or replica.has_overlap or replica.num_beyond > 0
    return replica.has_window_pool and window_growth_of_step(replica) > replica.free_window_blocks


def make_room_in_order(replica: Replica, requests: RequestTable) -> None:
    """Preempt like a pass over the decoding requests in the order of their admission."""
    replica.chunk_requests.clear()
    forget_finished(replica, requests)
    running, passed_over = replica.running, replica.passed_over
    seat = taken = window_taken = 0
    while seat < len(running):
        index = running[seat]
        num_missed = 0
        if index not in replica.departing and index not in replica.prefilling:
            blocks, window = blocks_of_next(replica, requests, index)
            while taken + blocks > replica.free_blocks or (
                replica.has_window_pool and window_taken + window > replica.free_window_blocks
            ):
                place = place_of_worst(replica, requests)
                victim = running.pop(place)
                was_missed = victim in passed_over
                remove_all(passed_over, victim)
                if victim in replica.departing:
                    if place < seat and replica.config.misses_next:
                        num_missed += 1
                elif place < seat and not was_missed and victim not in replica.prefilling:
                    own, own_window = blocks_of_next(replica, requests, victim)
                    taken -= own
                    window_taken -= own_window
                preempt(replica, requests, victim)
                if victim == index:
                    for position in range(seat, len(running)):
                        if running[position] not in replica.departing:
                            passed_over.append(running[position])
                    pass_over(replica, requests)
                    return
                if place < seat:
                    seat -= 1
            taken += blocks
            window_taken += window
        seat += 1
        for _ in range(num_missed):
            if seat < len(running):
                if running[seat] not in replica.departing:
                    passed_over.append(running[seat])
                seat += 1
    pass_over(replica, requests)


def may_overtake(replica: Replica, requests: RequestTable) -> bool:
    """Return whether the head of the queue may take the blocks of a running request that arrived after it."""
    if not (replica.has_whole_prompts and replica.waiting) or replica.progress is not None or replica.is_ordered:
        return False
    forget_finished(replica, requests)
    return len(replica.running) > 0 and is_before(requests, replica.waiting[0], replica.running[-1])


def growth_after(replica: Replica, requests: RequestTable, index: int) -> int:
    """Return the blocks that the next step's decodes take of requests that arrived after one."""
    if replica.progress is not None:
        return 0
    growth = 0
    for position in range(len(replica.running)):
        other = replica.running[position]
        if other in replica.prefilling or not is_before(requests, index, other):
            continue
        if other in replica.departing:
            tokens = replica.departing_tokens[replica.departing.index(other)]
            growth += tokens % replica.block_size == 0
        else:
            growth += blocks_of_next(replica, requests, other)[0]
    return growth


def pause_for(
    replica: Replica, requests: RequestTable, index: int, need: int, taken: int, is_once: bool
) -> tuple[int, int, bool]:
    """Preempt requests that arrived after a waiting one, the last first, until it finds the blocks that it needs.

    Args:
        replica: The replica.
        requests: The table.
        index: The waiting request.
        need: The blocks.
        taken: Blocks that others have been given in the step being planned.
        is_once: Whether to preempt one at most, beside those that decodes before it need.

    Returns:
        The blocks that it finds, the last request preempted (-1: none), and whether one was preempted for it.
    """
    room, paused = replica.free_blocks - growth_of_batch(replica, requests) - taken, -1
    is_for_it = False
    if need <= room:
        return room, paused, is_for_it
    forget_finished(replica, requests)
    while True:
        room = replica.free_blocks - growth_of_batch(replica, requests) - taken
        room += growth_after(replica, requests, index)
        if need <= room or (is_once and is_for_it):
            return room, paused, is_for_it
        if not replica.running or not is_before(requests, index, replica.running[-1]):
            return room, paused, is_for_it
        if replica.running[-1] in replica.chunk_requests:
            return room, paused, is_for_it
        is_for_it = is_for_it or room >= 0
        paused = replica.running.pop()
        preempt(replica, requests, paused)


def is_held_up(replica: Replica, requests: RequestTable) -> bool:
    """Return whether a step of decodes waits for the blocks of finished requests, instead of retracting others."""
    if not (replica.has_overlap and replica.grows and waits_for_results(replica, requests)):
        return False
    return growth_of_batch(replica, requests) > replica.free_blocks


def growth_of_batch(replica: Replica, requests: RequestTable) -> int:
    """Return the blocks that the next step's decodes take, including those beyond their end.

    TensorRT-LLM counts a further token for requests whose last one is on its way (``getNeededBlocksOneStep``).
    """
    growth = growth_of_step(replica) if replica.num_decoding or replica.growth_beyond else 0
    if replica.has_whole_prompts and (replica.num_decoding or replica.waiting or replica.prefilling):
        for position in range(len(replica.departing)):
            growth += replica.departing_tokens[position] % replica.block_size == 0
    return growth + growth_beyond(replica, requests) if replica.has_overlap else growth


def make_way(replica: Replica, requests: RequestTable) -> bool:
    """Preempt running requests of a worse priority until the head of the queue has a seat and blocks to start with.

    Returns:
        Whether the next step may have another preemption, so that no leap may pass it: a request was preempted, or a
        worse one is still running.
    """
    queue, config = replica.waiting, replica.config
    head = queue[0]
    forget_finished(replica, requests)
    victim = _worse(replica, requests, head)
    has_preempted = False
    while victim >= 0:
        target = requests.prompt_tokens[head] + requests.generated_tokens[head]
        swapped = requests.swapped_tokens[head] if replica.swaps else 0
        blocks = idle = 0
        if replica.cache is not None:
            if replica.cache.num_decoders:
                cache_decoded(replica, requests, head, 0)
            blocks, idle = find_prefix(replica.cache, head, target)
        chunk = target - blocks * replica.block_size
        if config.enable_chunked_prefill and not config.reserve_full_prompt:
            chunk = min(chunk, config.max_chunk_tokens, replica.token_budget)
        if swapped:
            chunk = swapped + 1
        growth = 0 if replica.is_prefill_first else growth_of_step(replica)
        need = -(-chunk // replica.block_size)
        window = min(blocks, replica.window_blocks) + chunk_windows(replica, blocks, need)
        need = replica.full_weight * need + replica.window_weight * window + idle + growth
        if replica.num_running + len(replica.departing) < replica.max_num_seqs and need <= replica.free_blocks:
            if replica.has_window_pool and not replica.is_prefill_first:
                window += window_growth_of_step(replica)
            if not replica.has_window_pool or window <= replica.free_window_blocks:
                return True
        replica.running.remove(victim)
        preempt(replica, requests, victim)
        has_preempted = True
        victim = _worse(replica, requests, head)
    return has_preempted


def _worse(replica: Replica, requests: RequestTable, head: int) -> int:
    """Return the running request of the worst priority, among those less urgent than the head of the queue; -1: none.

    A request that has waited long enough to come before the head again would only change places with it.
    """
    running, priority, ready_time = replica.running, requests.priority, requests.ready_time
    urgency, rank = priority[head], rank_of(replica, head)
    worst = -1
    for position in range(len(running)):
        index = running[position]
        if priority[index] <= urgency or rank_of(replica, index) <= rank or index in replica.departing:
            continue
        if worst < 0 or (priority[index], ready_time[index], index) > (priority[worst], ready_time[worst], worst):
            worst = index
    return worst


def rank_of(replica: Replica, index: int) -> float:
    """Return the rank of a request in the queue of a replica with priorities."""
    queue: Any = replica.waiting
    return queue.rank(index)  # type: ignore[no-any-return]


def preempt(replica: Replica, requests: RequestTable, victim: int = -1) -> int:
    """Send the victim back to the queue, its KV cache dropped or swapped to host memory; return it.

    A given ``victim`` has already been taken out of ``running``.
    """
    index = _victim(replica, requests) if victim < 0 else victim
    free_blocks = replica.free_blocks
    replica.last_suspended = index
    if replica.passed_over and index in replica.passed_over:
        take_back(replica, requests, index)
    if index in replica.departing:
        if replica.has_overlap:
            remove_all(replica.late_prompts, index)
            release_one(replica, requests, index, 0)
            requests.num_preemptions[index] += 1
            _raise_ratio(replica, requests)
        else:
            preempt_departing(replica, requests, index)
        return index
    if index in replica.prefilling:
        computed = done = requests.computed_tokens[index]
        if replica.has_whole_prompts:
            # TensorRT-LLM takes all but the last token for computed (``releaseBlocks``).
            computed = requests.prompt_tokens[index] + requests.generated_tokens[index] - 1
        if replica.has_suspension:
            requests.swapped_tokens[index] = done
            replica.num_suspended += done > 0
        replica.prefilling.remove(index)
        replica.prefilled_tokens -= done
        give_back(replica, prompt_blocks(replica, requests, index, done))
        requests.computed_tokens[index] = 0
    else:
        finish_step = requests.finish_step[index]
        generated = generated_by_now(replica, requests, index)
        last_token_time = max(requests.last_token_time[index], replica.last_decode_time)
        has_waited = index in replica.swapped_in
        if has_waited:
            # It has not decoded since it came back.
            replica.swapped_in.remove(index)
            last_token_time = requests.last_token_time[index]
        else:
            keep_largest_gap(replica, requests, index)
            leave_stall(replica, requests.joined_leap[index])
        if replica.progress is not None:
            leave_at_pace(replica, requests, replica.progress, index)
        else:
            leave_decoding(replica, requests, index, requests.context_base[index] + replica.step, generated)
        if replica.loras is not None:
            count_decoding(replica.loras, index, -1)
        replica.finish_heap.remove(finish_step << SHIFT | index)
        heapify(replica.finish_heap)
        requests.last_token_time[index] = last_token_time
        requests.generated_tokens[index] = generated
        if replica.has_overlap and is_in_flight(replica, index):
            requests.generated_tokens[index] = generated - 1
            lose_token(replica, requests, index)
        computed = requests.prompt_tokens[index] + generated - 1
        is_recent = requests.joined_leap[index] == replica.leap_index and not replica.has_whole_prompts
        if replica.releases_late and not is_recent:
            # The tokens of its last step are not known when it loses its blocks.
            computed -= 1
            if replica.assumes_drafts:
                computed = requests.prompt_tokens[index] + generated_at_pace(requests, index, replica.step - 1) - 1
        elif replica.releases_late and not has_waited and replica.config.hashes_next_token:
            # Nor is the first one, by which the block before it is found.
            computed -= 1
        if replica.swaps:
            swap_out(replica, requests, index, computed)
        if replica.has_suspension:
            requests.swapped_tokens[index] = requests.prompt_tokens[index] + generated - 1
            replica.num_suspended += 1
            computed = requests.prompt_tokens[index]
    if replica.cache is not None and replica.cache.tree is not None:
        # Everything computed since its prompt is lost.
        leave_tree(replica, index, 0)
        make_free(replica, RETRACT_DECODE_STEPS * (replica.num_decoding + len(replica.departing)))
    elif replica.cache is not None:
        leave_prefix(replica, index, computed, replica.free_blocks - free_blocks)
    requests.num_preemptions[index] += 1
    if replica.batch_log is not None:
        replica.batch_log.extend((index, replica.start_time, EVICTED))
    replica.num_running -= 1
    if replica.loras is not None:
        leave_adapter(replica.loras, index)
        count_waiting(replica.loras, index, 1)
    if replica.uses_estimate:
        replica.is_full = False
        _requeue(replica, index)
        _raise_ratio(replica, requests)
    elif replica.has_suspension or (replica.has_whole_prompts and not replica.is_ordered):
        queue_by_arrival(replica, requests, index)
    else:
        replica.waiting.appendleft(index)
    return index


def _requeue(replica: Replica, index: int) -> None:
    """Queue a victim as if it arrived now: SGLang orders equal priorities by when they were last queued.

    Requests passed over for an adapter, or held back for other ranks, are ordered by arrival.
    """
    config = replica.config
    if replica.is_ordered and not config.max_loras and config.data_parallel_size == 1:
        queue: Any = replica.waiting
        # Scheduled ahead, when the running step began: later arrivals come after it.
        now = replica.late_start if replica.late_results != LATE_NOTHING else replica.start_time
        replica.last_requeue_time = max(now, nextafter(replica.last_requeue_time, inf))
        queue.requeue(index, replica.last_requeue_time)
    else:
        replica.waiting.append(index)


def _victim(replica: Replica, requests: RequestTable) -> int:
    """Return the request to preempt: vLLM's last admitted, or SGLang's shortest output (ties: longest prompt, last in).

    With priorities in vLLM, the worst one that has no chunk in the step yet; of several, the last to arrive.
    """
    forget_finished(replica, requests)
    running = replica.running
    if replica.has_priorities and not replica.uses_estimate:
        return running.pop(place_of_worst(replica, requests))
    if replica.has_whole_prompts or replica.has_suspension:
        position = len(running) - 1
        while running[position] in replica.chunk_requests:
            position -= 1
        return running.pop(position)
    if not replica.uses_estimate or not (replica.num_decoding or replica.departing):
        return running.pop()
    position = -1
    fewest = longest = 0
    for candidate in range(len(running)):
        index = running[candidate]
        if index in replica.prefilling:
            continue
        generated, prompt = known_tokens(replica, requests, index), requests.prompt_tokens[index]
        if position < 0 or generated < fewest or (generated == fewest and prompt >= longest):
            position, fewest, longest = candidate, generated, prompt
    return running.pop(position)


def place_of_worst(replica: Replica, requests: RequestTable) -> int:
    """Return the position in ``running`` of the request of the worst priority that has no chunk in the step yet."""
    running, scheduled = replica.running, replica.chunk_requests
    priority, ready_time = requests.priority, requests.ready_time
    victim = place = -1
    for position in range(len(running)):
        index = running[position]
        if index in scheduled:
            continue
        if victim < 0 or (priority[index], ready_time[index], index) > (priority[victim], ready_time[victim], victim):
            victim, place = index, position
    return place


def _raise_ratio(replica: Replica, requests: RequestTable) -> None:
    """Set SGLang's new-token ratio after a retraction, from the decoding requests that are left."""
    num_left = replica.num_decoding + len(replica.departing)
    replica.ratio_steps_skipped = 1
    if not num_left:
        return
    most = generated = 0
    for position in range(len(replica.finish_heap)):
        index = replica.finish_heap[position] & MASK
        most += requests.max_tokens[index]
        generated += known_tokens(replica, requests, index)
    for position in range(len(replica.departing)):
        index = replica.departing[position]
        most += requests.max_tokens[index]
        generated += known_tokens(replica, requests, index)
    replica.new_token_ratio = min(1.0, (generated + RETRACT_DECODE_STEPS * num_left) / (most + 1))


def decay_ratio(replica: Replica, num_steps: int) -> None:
    """Let SGLang's new-token ratio fall over ``num_steps`` decode steps; the step of a retraction does not count."""
    config = replica.config
    decayed = replica.new_token_ratio - config.new_token_ratio_decay * (num_steps - replica.ratio_steps_skipped)
    replica.new_token_ratio = max(config.new_token_ratio_minimum, decayed)


def note_beyond(replica: Replica) -> None:
    """Note a step of none but requests that decode beyond their end."""
    if replica.decodes_beyond:
        replica.advances.append(0.0)
    else:
        decay_ratio(replica, 1)


def swap_out(replica: Replica, requests: RequestTable, index: int, context: int) -> None:
    """Copy the ``context`` tokens of a preempted request to host memory, if there is room."""
    blocks = -(-context // replica.block_size)
    if blocks > replica.free_swap_blocks:
        return
    replica.free_swap_blocks -= blocks
    replica.moved_blocks += blocks
    requests.swapped_tokens[index] = context


def swap_in(replica: Replica, requests: RequestTable) -> bool:
    """Bring swapped requests back from the head of the queue while they fit; return whether any came."""
    waiting, block_size = replica.waiting, replica.block_size
    has_come = False
    while waiting and replica.num_running + len(replica.departing) < replica.max_num_seqs:
        index = waiting[0]
        context = requests.swapped_tokens[index]
        # Its blocks, and one more if its next token opens one.
        if not context or growth_of_step(replica) - (-(context + 1) // block_size) > replica.free_blocks:
            break
        waiting.popleft()
        last_token_time = requests.last_token_time[index]
        if replica.micro_batches:
            open_micro_batch(replica, -1)
        join_decoding(replica, requests, index, context, requests.generated_tokens[index])
        # Its next gap reaches back to before it was swapped out; the leap that begins counts only for the others.
        requests.last_token_time[index] = last_token_time
        requests.joined_leap[index] = replica.leap_index + 1
        replica.swapped_in.append(index)
        blocks = forget_swap(replica, requests, index)
        replica.free_blocks -= blocks
        replica.moved_blocks += blocks
        replica.running.append(index)
        replica.num_running += 1
        if replica.batch_log is not None:
            replica.batch_log.extend((index, replica.start_time, RETURNED))
        has_come = True
    return has_come


def forget_swap(replica: Replica, requests: RequestTable, index: int) -> int:
    """Free the host memory of a request that comes back, or is abandoned; return its blocks."""
    blocks = -(-requests.swapped_tokens[index] // replica.block_size)
    replica.free_swap_blocks += blocks
    requests.swapped_tokens[index] = 0
    return blocks


def end_swaps(replica: Replica, requests: RequestTable, num_decodes: int) -> None:
    """Count the gaps of the step in which requests came back, or decode again after being passed over.

    Such a step is alone in its leap. The gaps of the others are counted too, unless they were stalled. Requests that
    came with their KV caches have their first token now, and no gap before it.
    """
    now, sending = replica.end_time, replica.api_token_seconds * num_decodes
    for position in range(len(replica.swapped_in)):
        index = replica.swapped_in[position]
        if not requests.first_token_time[index] >= 0.0:
            requests.first_token_time[index] = max(now, replica.api_free_at)
            requests.last_token_time[index] = now
            requests.joined_leap[index] = replica.leap_index
            if replica.has_late_tokens and requests.finish_step[index] > replica.step + 1:
                # A request that ends with it is answered at once.
                replica.late_tokens.append(index)
            continue
        gap = max(now - requests.last_token_time[index], sending)
        replica.irregular_gaps.extend((gap, 1.0))
        if gap > requests.itl_max[index]:
            requests.itl_max[index] = gap
    others = num_decodes - len(replica.swapped_in)
    if others and not replica.stall_step_runs:
        replica.irregular_gaps.extend((max(replica.first_seconds, sending), float(others)))
    replica.swapped_in.clear()


def blocks_of_next(replica: Replica, requests: RequestTable, index: int) -> tuple[int, int]:
    """Return what the next step of a decoding request takes: blocks of the pool, and of the windows' own pool."""
    context = requests.context_base[index] + replica.step
    if context % replica.block_size:
        return 0, 0
    window = int(replica.keeps_windows and context < replica.window_context)
    return replica.full_weight + replica.window_weight * window, window


def pass_over(replica: Replica, requests: RequestTable) -> None:
    """Take the decoding requests in ``passed_over`` out of the step being planned."""
    for position in range(len(replica.passed_over)):
        index = replica.passed_over[position]
        if index not in replica.prefilling:
            _leave(replica, requests, index)


def _leave(replica: Replica, requests: RequestTable, index: int) -> None:
    step, progress, pace = replica.step, replica.progress, 1
    position = requests.context_base[index] + step
    context = position
    if progress is not None:
        pace = requests.pace[index]
        position = requests.context_base[index] + pace * step
        context = position // GRID
    requests.generated_tokens[index] = generated_by_now(replica, requests, index)
    if index in replica.swapped_in:
        # It has not decoded since it was last passed over.
        replica.swapped_in.remove(index)
    else:
        keep_largest_gap(replica, requests, index)
        requests.last_token_time[index] = max(requests.last_token_time[index], replica.last_decode_time)
    if replica.has_thinking:
        requests.answer_step[index] = -1
    if replica.loras is not None:
        count_decoding(replica.loras, index, -1)
    if replica.micro_batches:
        leave_micro_batch(replica, requests, index)
    replica.num_decoding -= 1
    if progress is not None:
        replica.context_sum -= position / GRID
        progress.leave(requests.context_base[index], pace, step, requests.joined_step[index])
    else:
        replica.context_sum -= context
        replica.residues[(step - context) % replica.block_size] -= 1
    if replica.keeps_windows:
        free_blocks, free_window_blocks = replica.free_blocks, replica.free_window_blocks
        leave_window(replica, requests, index, -(-context // replica.block_size))
        replica.free_blocks, replica.free_window_blocks = free_blocks, free_window_blocks
    replica.finish_heap.remove(requests.finish_step[index] << SHIFT | index)
    heapify(replica.finish_heap)
    # Its tokens stay in the KV cache; it has the same number when the step ends.
    requests.computed_tokens[index] = context
    replica.prefilled_tokens += context
    if progress is not None:
        # Where it stands in its pace, and the steps that it has left, whenever it goes on.
        requests.context_base[index] = position
        requests.finish_step[index] -= step


def take_back(replica: Replica, requests: RequestTable, index: int) -> None:
    """Restore a request that was passed over, since it is preempted in the same step."""
    remove_all(replica.passed_over, index)
    if index not in replica.prefilling:
        _rejoin(replica, requests, index)


def is_empty_step(replica: Replica, has_preempted: bool) -> bool:
    """Return whether the requests with seats, decodes or prompts, are all passed over."""
    if replica.num_decoding or replica.chunk_requests or replica.num_beyond:
        return False
    return len(replica.passed_over) > 0 or (replica.has_state_cache and has_preempted and len(replica.prefilling) > 0)


def resume(replica: Replica, requests: RequestTable) -> None:
    """Let requests that were passed over decode from the next step on; their gap reaches back to their last token."""
    for position in range(len(replica.passed_over)):
        index = replica.passed_over[position]
        if index not in replica.prefilling:
            _rejoin(replica, requests, index)
            requests.joined_leap[index] = replica.leap_index
    replica.passed_over.clear()


def _rejoin(replica: Replica, requests: RequestTable, index: int) -> None:
    context, generated, step = requests.computed_tokens[index], requests.generated_tokens[index], replica.step
    requests.computed_tokens[index] = 0
    replica.prefilled_tokens -= context
    progress = replica.progress
    if progress is None:
        requests.context_base[index] = context - step
        requests.finish_step[index] = step + requests.output_tokens[index] - generated
    else:
        requests.context_base[index] -= requests.pace[index] * step
        requests.finish_step[index] += step
    heappush(replica.finish_heap, requests.finish_step[index] << SHIFT | index)
    if replica.has_thinking:
        expect_answer(replica, requests, index, generated)
    if replica.loras is not None:
        count_decoding(replica.loras, index, 1)
    if replica.micro_batches:
        replica.micro_batches[requests.micro_batch[index]] += 1
    replica.num_decoding += 1
    if progress is not None:
        base, pace = requests.context_base[index], requests.pace[index]
        replica.context_sum += (base + pace * step) / GRID
        requests.joined_step[index] = step
        progress.join(base, pace, step)
    else:
        replica.context_sum += context
        replica.residues[(step - context) % replica.block_size] += 1
    if replica.keeps_windows:
        join_window(replica, requests, index, context)
    replica.swapped_in.append(index)
