"""The leaping scheduler kernel: submit, cut, complete, plan, cancel. Exact, and without a walk over the batch per step.

Between two moments at which a batch changes shape, it takes K identical steps whose durations are affine in the step
number. `plan` decides the next step and how many like it can follow; `cut` shortens the plan when an arrival could be
admitted; `complete` applies all its effects at once. Times are seconds on the caller's clock; nothing here draws a
random number. The specification in step-by-step form is `simserve.reference.scheduler`.

Invariants that the formulas rely on:

* Every decoding request advances one token (or its drawn pace) in every step that decodes, so a request finishes at a
  known value of the replica's step counter, and its context is ``context_base + step``.
* A decoding request needs a block for its next token when ``context % block_size == 0``; ``residues`` counts
  requests by ``-context_base % block_size``, hence the growth of a step is ``residues[step % block_size]``. With
  speculative decoding every request has a pace of its own, and `simserve.engine.progress.Progress` knows the growth.
* ``free_blocks`` are the blocks free before the planned step; what the step takes is recorded when it completes.

Launching ahead, with asynchronous scheduling: the host launches a step while the GPU computes the one before. A step
with prompts on piecewise graphs, whose launching takes H and began l seconds before the step, takes
``max(GPU, H - l)``. The host is free for the next one when it has launched this one and the GPU has begun with it, so
that the next lead is ``step - max(H - l, 0)``. After a pause, and without asynchronous scheduling, there is none.

Cancelling a request between two steps, with continuous batching and a KV cache:

A client that hangs up, a drain and a replacement are all a `cancel`: whatever the request holds is free for the next
step. It takes effect at the end of the running step, as an engine's scheduler sees an abort.
"""

from __future__ import annotations

from heapq import heapify, heappop
from math import ceil, inf, nextafter, sqrt

from simserve.engine.chunks import (
    chunk_blocks,
    complete_chunks,
    longest_chunk,
    may_pass,
    plan_chunks,
    schedule_chunks,
    tokens_to_checkpoint,
)
from simserve.engine.decoding import (
    begin_answers,
    count_beyond,
    end_stall,
    findable_tokens,
    finish_decoding,
    generated_by_now,
    growth_of_step,
    keep_largest_gap,
    leave_at_pace,
    leave_decoding,
    leave_stall,
    release_departing,
    settle_decoders,
    steps_until_dry,
    take_beyond,
)
from simserve.engine.kv import (
    blocks_taken,
    forget_left,
    has_room,
    note_left,
    prompt_blocks,
    release_fixed,
    unused_blocks,
    used_tokens,
)
from simserve.engine.kv_tier import ask_store
from simserve.engine.loras import count_decoding, count_waiting, leave_adapter, lora_seconds, take_lora_loading
from simserve.engine.micro_batches import price_decodes
from simserve.engine.numbers import remove_all
from simserve.engine.overlap import expect_results, learn_results
from simserve.engine.preemption import (
    decay_ratio,
    end_swaps,
    forget_swap,
    growth_of_batch,
    is_empty_step,
    is_held_up,
    make_room,
    make_way,
    note_beyond,
    resume,
    swap_in,
)
from simserve.engine.prefix_cache import evict, find_prefix, is_decoded, keep_late_prompts, leave_prefix
from simserve.engine.progress import GRID
from simserve.engine.radix_tree import look_up, make_free_for_leap
from simserve.engine.seats import schedule_seats
from simserve.engine.state import (
    BLOCKED_BY_BUDGET,
    BLOCKED_BY_NOTHING,
    BLOCKED_BY_SEATS,
    INFINITY,
    LATE_DECODE,
    LATE_NOTHING,
    LATE_PROMPTS,
    MASK,
    SHIFT,
    STATIC,
    UNFINISHED,
    Replica,
    RequestTable,
    leap_row,
    sum_around,
)
from simserve.engine.state_cache import asks_again, note_step
from simserve.engine.static import complete_static, complete_uncached, plan_static, plan_uncached, submit_static
from simserve.engine.suspension import bring_back, forget_suspended, preempt_stuck, seconds_to_return
from simserve.engine.windows import affordable_steps, cross, give_back, held_tokens, take_chunks, take_leap
from simserve.errors import InvariantError


def submit(replica: Replica, requests: RequestTable, index: int, now: float) -> None:
    """Queue a request that reaches the scheduler at ``now``; shorten the plan if it could be admitted."""
    if replica.mode == STATIC:
        submit_static(replica, requests, index, now)
        return
    if replica.has_extras:
        cache = replica.cache
        if cache is not None:
            store = cache.paths.store
            if store is not None:
                ask_store(store, cache, index)
    replica.waiting.append(index)
    if replica.loras is not None:
        count_waiting(replica.loras, index, 1)
    replica.num_outstanding += 1
    replica.late_arrivals_sum += now
    if replica.is_open:
        # Only the first arrival of a leap cuts it: after that there is a queue.
        replica.is_open = False
        if replica.num_steps > 1:
            cut(replica, now)
    elif replica.end_time == INFINITY:
        replica.end_time = now
        if replica.has_overlap and now > nextafter(replica.ahead_until, inf):
            # It did not come while the last step ran: the engine's loop has found nothing to do.
            _forget_ratio(replica)
    elif replica.is_ordered and replica.num_steps > 1 and (replica.waiting[0] == index or replica.loras is not None):
        # It sorts before the head that the leap was planned for, or after one that waits only for an adapter.
        cut(replica, now)


def cut(replica: Replica, now: float) -> None:
    """End the plan with the step that is running at ``now``: the smallest k with T(k) >= now."""
    steps, end = _running_step(replica, now)
    if steps < replica.num_steps:
        replica.num_steps = steps
        replica.end_time = end


def _running_step(replica: Replica, now: float) -> tuple[int, float]:
    """Return which step of the plan is running at ``now``, counted from 1, and when it ends."""
    start, first, increment = replica.start_time, replica.first_seconds, replica.increment_seconds
    elapsed = now - start
    if increment > 0.0:
        slope = first - 0.5 * increment
        steps = ceil((sqrt(slope * slope + 2.0 * increment * elapsed) - slope) / increment)
    else:
        steps = ceil(elapsed / first)
    if steps < 1:
        steps = 1
    while steps > 1 and start + first * (steps - 1) + increment * ((steps - 1) * (steps - 2) * 0.5) >= now:
        steps -= 1
    end = start + first * steps + increment * (steps * (steps - 1) * 0.5)
    while end < now:
        steps += 1
        end = start + first * steps + increment * (steps * (steps - 1) * 0.5)
    return steps, end


def seen_time(replica: Replica, now: float, may_be_cut: bool) -> float:
    """Return when a scheduler that works a step ahead sees an arrival at ``now``.

    The step after the running one has already been scheduled, so the arrival is seen right after that step begins; a
    leap that it could join ends with the running step, with which it may come. It is seen at once if no step runs, or
    if it only joins a queue that is not looked at before the step after next.

    Args:
        replica: The scheduler.
        now: When a request arrives.
        may_be_cut: Whether anything else, such as a client that hangs up, may end a leap early.
    """
    num_steps = replica.num_steps
    if not num_steps:
        return nextafter(now, inf) if now == replica.ahead_until else now
    if num_steps > 1:
        if replica.is_open:
            cut(replica, now)
        elif replica.is_ordered or may_be_cut:
            # It may come before the head of the queue, or the queue may be tried before the planned end of the leap.
            steps, end = _running_step(replica, now)
            return nextafter(end if steps < num_steps else replica.end_time, inf)
        elif now <= replica.end_time - replica.first_seconds - replica.increment_seconds * (num_steps - 1):
            return now
    return nextafter(replica.end_time, inf)


def complete(replica: Replica, requests: RequestTable) -> int:
    """Apply the plan that ends at ``end_time`` and return how many requests finished; a plan is due then."""
    num_steps = replica.num_steps
    if not num_steps:
        return 0
    if replica.mode:
        return complete_static(replica, requests) if replica.mode == STATIC else complete_uncached(replica, requests)
    replica.num_steps = 0
    replica.is_open = False
    if replica.late_tokens:
        hand_over(replica, requests)
    now = replica.end_time
    first, increment = replica.first_seconds, replica.increment_seconds
    num_decodes = first_gaps = replica.num_scheduled_decodes
    api_free_at = replica.api_free_at
    if replica.api_token_seconds:
        pass_on(replica, num_decodes * num_steps)
    grows, block_size = replica.grows, replica.block_size
    context_sum = replica.context_sum
    held = context_sum + replica.prefilled_tokens
    has_extras = replica.has_extras
    if has_extras and replica.cache is not None:
        held -= replica.cache.num_duplicates * block_size
    keeps_windows = replica.keeps_windows
    if keeps_windows:
        held = held_tokens(replica, requests, held)
    used_before = used_after = (
        (replica.num_blocks - replica.free_blocks) * block_size if grows else used_tokens(replica)
    )
    taken = 0
    leap = replica.leap_index
    replica.leap_index = leap + 1
    replica.ahead_until, replica.lead = now, first + increment * (num_steps - 1) - replica.late_launch

    if num_decodes:
        longest = max(first + increment * (num_steps - 1), replica.api_token_seconds * num_decodes)
        if has_extras and replica.cache is not None and replica.cache.tree is not None:
            make_free_for_leap(replica, num_steps)
        if has_extras and replica.swapped_in:
            end_swaps(replica, requests, num_decodes)
            first_gaps = 0
        if replica.stall_step_runs:
            end_stall(replica)
            first_gaps = 0
            if num_steps == 1:
                longest = 0.0
        gap_values, gap_step_runs = replica.gap_values, replica.gap_step_runs
        while gap_values and gap_values[-1] <= longest:
            gap_values.pop()
            gap_step_runs.pop()
        gap_values.append(longest)
        gap_step_runs.append(leap)
        step, progress = replica.step, replica.progress
        advance: float = num_decodes
        if progress is not None:
            advance = progress.total / GRID
            replica.advances.append(advance)
            if grows and not keeps_windows:
                taken = progress.take(step, num_steps)
        elif grows and not keeps_windows:
            if num_steps == 1:
                taken = replica.residues[step % block_size]
            else:
                taken = (num_steps // block_size) * num_decodes
                remainder = num_steps % block_size
                if remainder:
                    taken += sum_around(replica.residues, step % block_size, remainder)
        if keeps_windows:
            taken = take_leap(replica, requests, num_steps)
        replica.step = step + num_steps
        if keeps_windows:
            cross(replica, requests)
        replica.context_sum = context_sum + advance * num_steps
        replica.last_decode_time = now
        if replica.estimate_sum:
            replica.estimate_sum -= replica.estimate_shrinking * num_steps
            decay_ratio(replica, num_steps)
    elif replica.num_beyond:
        note_beyond(replica)

    chunks = replica.chunk_requests
    num_chunks = len(chunks)
    prefill_tokens = replica.prefill_tokens
    if grows:
        if num_chunks and keeps_windows:
            taken += take_chunks(replica, requests)
        elif num_chunks:
            blocks = replica.scheduled_blocks
            taken += blocks if num_steps == 1 and blocks >= 0 else chunk_blocks(replica, requests, num_steps)
        if taken:
            replica.free_blocks -= taken
            used_after += taken * block_size
    if has_extras:
        cache = replica.cache
        if cache is not None:
            evict(cache, unused_blocks(replica, requests, replica.free_blocks))
            if cache.has_states:
                note_step(replica, cache)
            if replica.late_prefixes:
                keep_late_prompts(replica, cache)
        replica.num_swapped_blocks += replica.moved_blocks
        replica.moved_blocks = 0
    blocked_by = replica.blocked_by
    waiting_seconds = 0.0
    if replica.waiting:
        waiting_seconds = (
            len(replica.waiting) * now - replica.num_queued * replica.start_time - replica.late_arrivals_sum
        )
        if blocked_by == BLOCKED_BY_NOTHING and replica.num_running >= replica.max_num_seqs:
            blocked_by = BLOCKED_BY_SEATS
    replica.step_runs.extend(
        leap_row(
            replica.start_time,
            num_steps,
            first,
            increment,
            num_decodes + replica.num_beyond,
            (context_sum if num_decodes else 0) + replica.beyond_tokens,
            prefill_tokens,
            num_chunks,
            replica.priced_tokens,
            replica.priced_decodes,
            replica.attended_pairs,
            replica.attended_keys,
            first_gaps,
            num_decodes,
            held,
            used_before,
            used_after,
            waiting_seconds,
            blocked_by,
        )
    )
    num_finished = 0
    if replica.has_overlap:
        replica.late_results = LATE_PROMPTS if num_chunks else LATE_DECODE
        replica.late_start = replica.start_time if num_steps == 1 else now - (first + increment * (num_steps - 1))
        if not (num_chunks or replica.prefilling or replica.config.prefill_delayer_max_delay_passes):
            retract_ahead(replica, requests)
    if num_chunks:
        num_finished = complete_chunks(replica, requests, num_steps)
    if num_decodes:
        if replica.answer_heap:
            begin_answers(replica, requests, num_steps, api_free_at)
        heap = replica.finish_heap
        until = (replica.step + 1) << SHIFT
        while heap and heap[0] < until:
            index = heappop(heap) & MASK
            finish_decoding(replica, requests, index)
            num_finished += 1
            if replica.keeps_full and not num_chunks and not replica.has_overlap:
                note_left(replica, requests, index)
    if num_finished and replica.departing and not replica.releases_late:
        release_departing(replica, requests)
    if has_extras and replica.passed_over:
        resume(replica, requests)
    if replica.has_overlap:
        if num_chunks and replica.prefilling:
            replica.is_full = False
    elif replica.is_full and num_chunks and (num_finished or replica.prefilling):
        replica.is_full = False
    return num_finished


def plan(replica: Replica, requests: RequestTable) -> None:
    """Decide the step that starts at ``end_time``, and how many like it can follow before anything changes.

    Raises:
        InvariantError: Requests wait at an empty replica and none can be admitted.
    """
    if replica.mode:
        if replica.mode == STATIC:
            plan_static(replica, requests)
        else:
            plan_uncached(replica, requests)
        return
    now = replica.start_time = replica.end_time
    replica.blocked_by = BLOCKED_BY_NOTHING
    replica.ratio_steps_skipped = int(replica.has_retracted)
    replica.late_arrivals_sum = replica.late_launch = 0.0
    progress, waiting = replica.progress, replica.waiting
    if replica.has_overlap and replica.late_results != LATE_NOTHING:
        expect_results(replica, requests)
    num_running = replica.num_running + len(replica.departing)
    if replica.decodes_beyond:
        count_beyond(replica)
    is_restless = _schedule(replica, requests)
    if replica.plans_again and num_running and not (replica.num_running or replica.departing):
        # All that ran were preempted for one that is then passed over: the engine schedules again.
        if replica.config.async_scheduling and replica.config.data_parallel_size == 1:
            replica.end_time = nextafter(now, inf)
            return
        is_restless = _schedule(replica, requests)
    while replica.has_extras and is_empty_step(replica, is_restless):
        resume(replica, requests)
        release_departing(replica, requests)
        if replica.config.async_scheduling and replica.config.data_parallel_size == 1:
            # When the last step has ended, so that arrivals during it are included.
            replica.end_time = nextafter(now, inf)
            return
        is_restless = _schedule(replica, requests)
    if replica.has_extras and replica.swapped_in:
        is_restless = True
    if replica.has_overlap:
        was_running = replica.late_results != LATE_NOTHING
        is_waiting = not replica.chunk_requests and is_held_up(replica, requests)
        if learn_results(replica, requests, not is_waiting):
            is_restless = True
        if is_waiting or (waiting and not (replica.chunk_requests or replica.num_decoding or replica.num_beyond)):
            if was_running or replica.config.data_parallel_size > 1:
                # Nothing could be launched: arrivals during the last step are included once it has ended.
                replica.end_time = nextafter(now, inf)
                return
            # The engine's loop finds an empty batch and goes round once more.
            _go_round(replica)
            is_restless = _schedule(replica, requests)
    elif replica.departing:
        num_decoding = replica.num_decoding + replica.num_beyond
        if replica.cache is not None and replica.grows and num_decoding and not replica.chunk_requests:
            # What decodes take in this step is evicted before finished requests give anything back.
            evict(replica.cache, replica.free_blocks - growth_of_step(replica))
        if replica.num_beyond:
            take_beyond(replica)
        release_departing(replica, requests)
        if waiting or replica.num_beyond:
            # The next step may admit more, or computes less.
            is_restless = True
            if not (num_decoding or replica.chunk_requests):
                if replica.config.data_parallel_size == 1:
                    # Nothing could be scheduled ahead: arrivals during the last step are included once it has ended.
                    replica.end_time = nextafter(now, inf)
                    return
                is_restless = _schedule(replica, requests)
    if waiting and replica.cache is not None and is_decoded(replica.cache, waiting[0]):
        # One more block of its prefix may let the head of the queue in.
        is_restless = True
    if replica.cache is not None and replica.cache.contested:
        is_restless = True
    is_short = replica.has_suspension and len(replica.prefilling) > 0
    if replica.late_prefixes or is_short or (replica.has_state_cache and asks_again(replica)):
        is_restless = True
    if replica.keeps_full and replica.blocked_by == BLOCKED_BY_BUDGET and not replica.chunk_requests:
        # The head of the queue is tried at every step, and a refusal holds.
        is_restless = True
    if replica.num_left and not replica.has_overlap and not (replica.chunk_requests and replica.is_prefill_first):
        forget_left(replica, not replica.chunk_requests)
        if waiting and not replica.chunk_requests:
            if replica.num_decoding:
                is_restless = True
            elif replica.config.data_parallel_size > 1:
                _go_idle(replica)
                replica.end_time = now  # it idles along if other ranks run, and looks again with them
                return
            else:
                _go_round(replica)
                is_restless = _schedule(replica, requests)
    if replica.chunk_requests:
        num_decodes = 0 if replica.is_prefill_first else replica.num_decoding + replica.num_beyond
        plan_chunks(replica, requests, num_decodes, is_restless)
        return

    num_decoding = replica.num_decoding
    if not (num_decoding or replica.num_beyond):
        if waiting:
            report_stuck(replica)
        _go_idle(replica)
        return
    num_steps = 1
    if not is_restless:
        num_steps = (replica.finish_heap[0] >> SHIFT) - replica.step
        if replica.grows:
            if replica.keeps_windows:
                num_steps = affordable_steps(replica, num_steps)
            elif progress is not None:
                num_steps = progress.affordable_steps(replica.step, num_steps, replica.free_blocks)
            elif num_decoding * (num_steps // replica.block_size + 1) > replica.free_blocks:
                num_steps = min(num_steps, steps_until_dry(replica))
            if waiting and replica.has_extras and _may_ask_for_less(replica, num_steps):
                num_steps = 1
    num_computed = num_priced = num_decoding + replica.num_beyond
    if replica.samples_in_turn or replica.micro_batches:
        num_priced = price_decodes(replica, num_computed)
    slope = replica.decode_slope[num_priced] * (num_priced / num_computed)
    first = replica.decode_base[num_priced] + slope * (replica.context_sum + replica.beyond_tokens)
    increment = slope * num_decoding
    replica.priced_tokens = num_priced
    if progress is not None:
        increment = slope * (progress.total / GRID)
        replica.priced_tokens = num_computed * replica.tokens_per_decode
    if is_restless and replica.moved_blocks:
        first += replica.times.swap_block_seconds * replica.moved_blocks
    if replica.has_suspension and replica.swapped_in:
        first += seconds_to_return(replica, first)
    if replica.loras is not None:
        # For requests whose KV caches have come from elsewhere.
        loading = take_lora_loading(replica.loras)
        if loading:
            num_steps = 1
        first += loading + lora_seconds(replica, replica.loras, num_decoding)
    replica.num_steps = num_steps
    replica.first_seconds = first
    replica.increment_seconds = increment
    replica.end_time = now + first * num_steps + increment * (num_steps * (num_steps - 1) * 0.5)
    replica.num_scheduled_decodes = num_decoding
    replica.num_queued = len(waiting)
    replica.is_open = False
    if may_pass(replica):
        has_seat = replica.num_running < replica.max_num_seqs
        replica.is_open = (has_seat or replica.keeps_full) and not replica.is_full


def _may_ask_for_less(replica: Replica, num_steps: int) -> bool:
    """Return whether a leap may evict what the head of the queue finds, so that it would load, or need, less."""
    cache = replica.cache
    if cache is None or not cache.has_choice:
        return False
    growth = replica.num_decoding * ((num_steps * replica.tokens_per_decode) // replica.block_size + 2)
    return cache.num_idle + cache.num_empty + replica.block_weight * growth > replica.free_blocks


def _schedule(replica: Replica, requests: RequestTable) -> bool:
    """Choose the chunks of the next step and make room for its decodes; return whether the next one may differ."""
    is_restless = False
    progress = replica.progress
    waiting = replica.waiting
    if replica.has_state_cache:
        return schedule_seats(replica, requests)
    if waiting or replica.prefilling:
        if waiting and replica.is_ordered and replica.config.priority_preemption:
            is_restless = make_way(replica, requests)
        has_preempted = False
        if replica.is_prefill_first:
            has_preempted = schedule_chunks(replica, requests, 0, not replica.has_retracted)
            if replica.chunk_requests:
                return has_preempted or is_restless
            has_preempted = has_preempted or replica.has_retracted
            replica.has_retracted = False
            if replica.grows and make_room(replica, requests):
                has_preempted = True
            if replica.swaps and not has_preempted and swap_in(replica, requests):
                is_restless = True
        else:
            replica.last_suspended = -1
            # A step takes at most one block per decoding request.
            if replica.grows and (
                replica.num_decoding + len(replica.departing) > replica.free_blocks
                or progress is not None
                or replica.keeps_windows
            ):
                has_preempted = make_room(replica, requests)
            if replica.swaps and not has_preempted and swap_in(replica, requests):
                is_restless = True
            if replica.num_suspended and not has_preempted and bring_back(replica, requests):
                is_restless = True
            num_decodes = replica.num_decoding + replica.num_beyond
            if schedule_chunks(replica, requests, num_decodes, replica.has_suspension or not has_preempted):
                has_preempted = True
            if replica.has_suspension and _unstick(replica, requests):
                has_preempted = True
            if replica.chunk_requests:
                return has_preempted or is_restless
        if has_preempted:
            is_restless = True
        replica.attended_pairs = replica.attended_keys = 0.0
    else:
        if replica.chunk_requests:
            forget_chunks(replica)
        if replica.grows and (
            replica.num_decoding + len(replica.departing) > replica.free_blocks
            or progress is not None
            or replica.keeps_windows
        ):
            is_restless = make_room(replica, requests)
        if replica.cache is not None and replica.cache.contested and replica.num_decoding:
            growth = growth_of_step(replica) if replica.grows else 0
            settle_decoders(replica, requests, replica.free_blocks - growth)
    return is_restless


def retract_ahead(replica: Replica, requests: RequestTable) -> None:
    """Retract if memory runs out for a step that is scheduled before it is known which requests finish in the last one.

    A retracted request also loses its last token, which is on its way.
    """
    if not replica.grows or growth_of_batch(replica, requests) <= replica.free_blocks:
        return
    if replica.config.skips_ended and _ends_as_asked(replica, requests):
        # Their blocks are freed first.
        return
    expect_results(replica, requests)
    if not (replica.waiting and not replica.is_full and would_admit(replica, requests)):
        replica.start_time = replica.end_time
        replica.has_retracted = make_room(replica, requests)


def _ends_as_asked(replica: Replica, requests: RequestTable) -> bool:
    """Return whether ``max_tokens`` ends a request with the decode step being completed."""
    until = (replica.step + 1) << SHIFT
    for position in range(len(replica.finish_heap)):
        entry = replica.finish_heap[position]
        if entry < until and requests.output_tokens[entry & MASK] == requests.max_tokens[entry & MASK]:
            return True
    return False


def _unstick(replica: Replica, requests: RequestTable) -> bool:
    """Suspend prompts until another has a chunk, where they hold what it lacks; return whether any was suspended."""
    has_preempted = False
    while not (replica.chunk_requests or replica.num_decoding) and preempt_stuck(replica, requests):
        has_preempted = True
        schedule_chunks(replica, requests, 0, True)
    return has_preempted


def forget_chunks(replica: Replica) -> None:
    """Schedule no chunk: the next step only decodes."""
    replica.chunk_requests.clear()
    replica.chunk_tokens.clear()
    replica.prefill_tokens = 0
    replica.attended_pairs = replica.attended_keys = 0.0


def would_admit(replica: Replica, requests: RequestTable) -> bool:
    """Return whether the head of the queue would be admitted to a step of prompts only; SGLang's growing requests.

    Asked when a step has run: those that were done before it have left, and those that end with it still run.
    """
    config, cache, index = replica.config, replica.cache, replica.waiting[0]
    if replica.num_running + replica.num_left >= replica.max_num_seqs:
        return False
    target = requests.prompt_tokens[index] + requests.generated_tokens[index]
    blocks = idle = 0
    if cache is not None:
        blocks, idle = find_prefix(cache, index, target) if cache.tree is None else look_up(cache, index, target)
    cached = blocks * replica.block_size
    target -= cached
    chunk = target
    if config.enable_chunked_prefill:
        chunk = min(tokens_to_checkpoint(replica, target), longest_chunk(replica))
    if chunk > replica.token_budget:
        return False
    need = -(-chunk // replica.block_size)
    return has_room(replica, requests, index, need, replica.free_blocks - idle, 0, 0, cached)


def report_stuck(replica: Replica) -> None:
    """Raise: requests wait at an empty replica, and none can be admitted."""
    raise InvariantError(
        f"{len(replica.waiting)} requests wait at an empty replica at {replica.end_time} s "
        f"with {replica.free_blocks} blocks free"
    )


def _go_round(replica: Replica) -> None:
    """Try the head of the queue once more, since the batch has turned out to be empty."""
    if not replica.config.keeps_ratio:
        replica.new_token_ratio = replica.config.new_token_ratio_initial
    replica.blocked_by = BLOCKED_BY_NOTHING


def _go_idle(replica: Replica) -> None:
    replica.end_time = INFINITY
    replica.is_open = False
    if replica.keeps_full:
        forget_left(replica, True)
    if not replica.has_overlap:
        _forget_ratio(replica)
    replica.gap_step_runs.clear()
    replica.gap_values.clear()
    replica.running.clear()


def _forget_ratio(replica: Replica) -> None:
    """Let SGLang's new-token ratio begin anew after a pause; ranks have theirs together."""
    if replica.config.data_parallel_size == 1:
        replica.new_token_ratio = replica.config.new_token_ratio_initial


def pass_on(replica: Replica, num_tokens: int) -> None:
    """Let the API server work until the running leap ends, before that is completed.

    ``api_free_at`` is then when it will have sent everything, no earlier than the end of the leap.

    Args:
        replica: The replica whose leap has run.
        num_tokens: Tokens of decoding requests that the leap generated; first tokens are counted as they come.
    """
    start, end = replica.start_time, replica.end_time
    work = replica.api_token_seconds * num_tokens
    replica.api_free_at = max(max(replica.api_free_at, start) + work, end)


def hand_over(replica: Replica, requests: RequestTable) -> None:
    """Deliver the first tokens of the step before the one that has run, before that one is completed.

    The host takes ``transfer_step_seconds`` per step, ``transfer_request_seconds`` per sequence in it, and
    ``transfer_prompt_seconds`` for launching prompts; no longer than the step.
    """
    config, num_prompts = replica.config, len(replica.chunk_requests)
    wait = config.transfer_step_seconds
    wait += config.transfer_request_seconds * (replica.num_scheduled_decodes + replica.num_beyond + num_prompts)
    if num_prompts:
        wait += config.transfer_prompt_seconds
    if wait > replica.first_seconds:
        wait = replica.first_seconds
    late = replica.late_tokens
    for position in range(len(late)):
        index = late[position]
        if requests.status[index] == UNFINISHED:
            requests.first_token_time[index] = replica.start_time + wait
    late.clear()


def cancel(replica: Replica, requests: RequestTable, index: int) -> None:
    """Remove an unfinished request from a replica: from its queue, or with its KV memory from its batch.

    Between `complete` and `plan` only: no step runs. The row keeps what was generated; the caller sets its status.

    Raises:
        ValueError: The replica does not hold the request.
    """
    entry = requests.finish_step[index] << SHIFT | index
    if index in replica.prefilling:
        _leave_prefill(replica, requests, index)
    elif entry in replica.finish_heap:
        _leave_decode(replica, requests, index, entry)
        note_left(replica, requests, index)
    else:
        replica.waiting.remove(index)
        if replica.loras is not None:
            count_waiting(replica.loras, index, -1)
        replica.num_outstanding -= 1
        if replica.swaps and requests.swapped_tokens[index]:
            forget_swap(replica, requests, index)
        if replica.num_suspended and requests.swapped_tokens[index]:
            forget_suspended(replica, requests, index)
        return
    remove_all(replica.running, index)
    replica.num_running -= 1
    replica.num_outstanding -= 1
    if replica.loras is not None:
        leave_adapter(replica.loras, index)


def _leave_prefill(replica: Replica, requests: RequestTable, index: int) -> None:
    done = requests.computed_tokens[index]
    replica.prefilling.remove(index)
    replica.prefilled_tokens -= done
    free_blocks = replica.free_blocks
    if replica.grows:
        give_back(replica, prompt_blocks(replica, requests, index, done))
    else:
        release_fixed(replica, requests, index)
    leave_prefix(replica, index, done, blocks_taken(replica, requests, index, done, free_blocks))
    requests.computed_tokens[index] = 0


def _leave_decode(replica: Replica, requests: RequestTable, index: int, entry: int) -> None:
    generated, free_blocks = generated_by_now(replica, requests, index), replica.free_blocks
    keep_largest_gap(replica, requests, index)
    leave_stall(replica, requests.joined_leap[index])
    if replica.loras is not None:
        count_decoding(replica.loras, index, -1)
    if replica.progress is not None:
        leave_at_pace(replica, requests, replica.progress, index)
    else:
        leave_decoding(replica, requests, index, requests.context_base[index] + replica.step, generated)
    remove_all(replica.late_tokens, index)
    remove_all(replica.late_prompts, index)
    remove_all(replica.swapped_in, index)
    replica.finish_heap.remove(entry)
    heapify(replica.finish_heap)
    if not replica.grows:
        release_fixed(replica, requests, index)
    tokens = findable_tokens(replica, requests, index, generated)
    leave_prefix(replica, index, tokens, blocks_taken(replica, requests, index, tokens, free_blocks))
    requests.generated_tokens[index] = generated
