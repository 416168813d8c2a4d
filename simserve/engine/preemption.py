"""Preemption by recompute: who has to go when blocks run out or somebody more urgent waits, and what it costs.

The victim keeps its generated tokens and prefills them again with its prompt. Swap comes later; `preempt` is its seam.
"""

from __future__ import annotations

from heapq import heapify
from math import inf, nextafter
from typing import Any

from simserve.engine.decoding import cache_decoded, generated_by_now, growth_of_step, leave_decoding
from simserve.engine.departing import forget_finished, preempt_departing, release_one
from simserve.engine.gaps import keep_largest_gap, leave_stall
from simserve.engine.loras import count_decoding, count_waiting, leave_adapter
from simserve.engine.numbers import remove_all
from simserve.engine.overlap import growth_beyond, is_in_flight, known_tokens, lose_token, waits_for_results
from simserve.engine.paces import leave_at_pace
from simserve.engine.passing import blocks_of_next, pass_over, take_back
from simserve.engine.prefix_cache import find_prefix, leave_prefix
from simserve.engine.radix_tree import RETRACT_DECODE_STEPS, leave_tree, make_free
from simserve.engine.state import EVICTED, LATE_NOTHING, MASK, SHIFT, Replica, RequestTable
from simserve.engine.swap import swap_out
from simserve.engine.windows import give_back, window_growth_of_step


def make_room(replica: Replica, requests: RequestTable) -> bool:
    """Preempt until the next step's decodes have their blocks; return whether anyone had to go."""
    has_preempted = False
    if (
        replica.progress is not None
        and replica.block_weight * replica.progress.most_growth(1) <= replica.free_blocks
        and not replica.has_window_pool
    ):
        return False
    if is_held_up(replica, requests):
        return False
    if replica.has_ordered_pass and is_short(replica, requests):
        make_room_in_order(replica, requests)
        return True
    while is_short(replica, requests):
        if replica.cache is not None and replica.cache.tree is not None:
            make_free(replica, growth_of_batch(replica, requests))
        # The chunks of the step before: nobody has one in this step yet.
        replica.chunk_requests.clear()
        preempt(replica, requests)
        has_preempted = True
    return has_preempted


def is_short(replica: Replica, requests: RequestTable) -> bool:
    """Return whether the next step's decodes take more blocks than are free."""
    if growth_of_batch(replica, requests) > replica.free_blocks:
        return True
    return replica.has_window_pool and window_growth_of_step(replica) > replica.free_window_blocks


def make_room_in_order(replica: Replica, requests: RequestTable) -> None:
    """Preempt as a pass over the decoding requests in the order of their admission does (`simserve.engine.passing`)."""
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
                place = _place_of_worst(replica, requests)
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


def is_held_up(replica: Replica, requests: RequestTable) -> bool:
    """Return whether a step of decodes waits for the blocks of those that are done, in place of retracting others."""
    if not (replica.has_overlap and replica.grows and waits_for_results(replica, requests)):
        return False
    return growth_of_batch(replica, requests) > replica.free_blocks


def growth_of_batch(replica: Replica, requests: RequestTable) -> int:
    """Return the blocks that the next step's decodes take, those beyond their end among them."""
    growth = growth_of_step(replica) if replica.num_decoding else 0
    return growth + growth_beyond(replica, requests) if replica.has_overlap else growth


def make_way(replica: Replica, requests: RequestTable) -> bool:
    """Preempt running requests of a worse priority until the head of the queue has a seat and blocks to start with.

    Returns:
        Whether the next step may see another preemption, so that nothing may leap over it: somebody had to go, or a
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
        window = min(blocks, replica.window_blocks)
        need = replica.block_weight * -(-chunk // replica.block_size) + replica.window_weight * window + idle + growth
        if replica.num_running + len(replica.departing) < replica.max_num_seqs and need <= replica.free_blocks:
            window += -(-chunk // replica.block_size)
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
    """Return who has the worst priority of those running that are less urgent than the head of the queue; -1: nobody.

    Who has waited long enough to come before the head again would only change places with it.
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
    """Return what a request is ordered by in the queue of a replica that goes by priority."""
    queue: Any = replica.waiting
    return queue.rank(index)  # type: ignore[no-any-return]


def preempt(replica: Replica, requests: RequestTable, victim: int = -1) -> int:
    """Send the victim back to the queue, its KV cache dropped or swapped to host memory; return it.

    A ``victim`` that is named has been taken out of ``running`` already.
    """
    index = _victim(replica, requests) if victim < 0 else victim
    free_blocks = replica.free_blocks
    if replica.passed_over and index in replica.passed_over:
        take_back(replica, requests, index)
    if index in replica.departing:
        if replica.has_overlap:
            remove_all(replica.late_prompts, index)
            release_one(replica, requests, index, 0)
            requests.num_preemptions[index] += 1
        else:
            preempt_departing(replica, requests, index)
        return index
    if index in replica.prefilling:
        computed = done = requests.computed_tokens[index]
        replica.prefilling.remove(index)
        replica.prefilled_tokens -= done
        give_back(replica, -(-done // replica.block_size))
        requests.computed_tokens[index] = 0
    else:
        finish_step = requests.finish_step[index]
        generated = generated_by_now(replica, requests, index)
        last_token_time = max(requests.last_token_time[index], replica.last_decode_time)
        if index in replica.swapped_in:
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
        if replica.releases_late and requests.joined_leap[index] < replica.leap_index:
            # The token of its last step is not known when it loses its blocks.
            computed -= 1
        if replica.swaps:
            swap_out(replica, requests, index, computed)
    if replica.cache is not None and replica.cache.tree is not None:
        # What it has computed since its prompt is lost.
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
    else:
        replica.waiting.appendleft(index)
    return index


def _requeue(replica: Replica, index: int) -> None:
    """Queue a victim as one that comes now: SGLang orders equal priorities by when they were queued last.

    Who is passed over for an adapter, or held back for other ranks, goes by when it came.
    """
    config = replica.config
    if replica.is_ordered and not config.max_loras and config.data_parallel_size == 1:
        queue: Any = replica.waiting
        # Scheduled ahead, when the step that runs began: who came since then comes behind it.
        now = replica.late_start if replica.late_results != LATE_NOTHING else replica.start_time
        replica.last_requeue_time = max(now, nextafter(replica.last_requeue_time, inf))
        queue.requeue(index, replica.last_requeue_time)
    else:
        replica.waiting.append(index)


def _victim(replica: Replica, requests: RequestTable) -> int:
    """Return who is preempted: vLLM's last admitted, or SGLang's shortest output (ties: longest prompt, last in).

    With priorities in vLLM, the worst one that has no chunk in the step yet, of several the last to come.
    """
    forget_finished(replica, requests)
    running = replica.running
    if replica.has_priorities and not replica.uses_estimate:
        return running.pop(_place_of_worst(replica, requests))
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


def _place_of_worst(replica: Replica, requests: RequestTable) -> int:
    """Return where among the running ones stands who has the worst priority and no chunk in the step yet."""
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
    """SGLang's new-token ratio after a retraction, from the decoding requests that are left."""
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
