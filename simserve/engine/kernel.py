"""The leaping scheduler kernel: submit, cut, complete, plan. Exact, and without a walk over the batch per step.

Between two moments at which a batch changes shape it takes K identical steps whose durations are affine in the
step number. `plan` decides the next step and how many like it can follow; `cut` shortens the plan when an arrival
could be admitted; `complete` applies all its effects at once. Times are seconds on the caller's clock; nothing
here draws a random number. The specification in step-by-step form is ``tests/oracle.py``.

Invariants that the formulas lean on:

* Every decoding request advances one token in every step that decodes, so a request finishes at a known value of
  the replica's step counter, and its context is ``context_base + step``.
* A decoding request needs a block for its next token when ``context % block_size == 0``; ``residues`` counts
  requests by ``-context_base % block_size`` (twice in a row, so that a cycle is one slice), hence the growth of a
  step is ``residues[step % block_size]``.
* ``free_blocks`` are the blocks free before the planned step; what the step takes is booked when it completes.
"""

from __future__ import annotations

from bisect import bisect_left
from heapq import heapify, heappop, heappush
from math import ceil, sqrt

from simserve.engine.admission import estimate_of, has_room, steps_until_admitted
from simserve.engine.kv import release_fixed, take_fixed, used_tokens
from simserve.engine.state import (
    BLOCKED_BY_BLOCKS,
    BLOCKED_BY_BUDGET,
    BLOCKED_BY_NOTHING,
    BLOCKED_BY_SEATS,
    COMPLETED,
    ESTIMATE_CLIP,
    INFINITY,
    STATIC,
    UNFINISHED,
    Replica,
    RequestTable,
)
from simserve.engine.static import complete_static, plan_static, submit_static
from simserve.engine.uncached import complete_uncached, plan_uncached
from simserve.errors import InvariantError

SHIFT = 32
"""A heap entry is ``finish_step << SHIFT | index``: one integer orders by step, then by request."""
MASK = (1 << SHIFT) - 1

RETRACT_DECODE_STEPS = 20
"""Steps of head-room in SGLang's new-token ratio after a retraction (``SGLANG_RETRACT_DECODE_STEPS``)."""


def submit(replica: Replica, requests: RequestTable, index: int, now: float) -> None:
    """Queue a request that reaches the scheduler at ``now``; shorten the plan if it could be admitted."""
    if replica.mode == STATIC:
        submit_static(replica, requests, index, now)
        return
    replica.waiting.append(index)
    replica.num_outstanding += 1
    if replica.is_open:
        # Only the first arrival of a leap cuts it: behind it there is a queue.
        replica.is_open = False
        if replica.num_steps > 1:
            cut(replica, now)
    elif replica.end_time == INFINITY:
        replica.end_time = now


def cut(replica: Replica, now: float) -> None:
    """End the plan with the step that is running at ``now``: the smallest k with T(k) >= now."""
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
    if steps < replica.num_steps:
        replica.num_steps = steps
        replica.end_time = end


def complete(replica: Replica, requests: RequestTable) -> int:
    """Apply the plan that ends at ``end_time`` and return how many requests finished; a plan is due then."""
    num_steps = replica.num_steps
    if not num_steps:
        return 0
    if replica.mode:
        return complete_static(replica, requests) if replica.mode == STATIC else complete_uncached(replica, requests)
    replica.num_steps = 0
    replica.is_open = False
    now = replica.end_time
    first, increment = replica.first_seconds, replica.increment_seconds
    num_decodes = first_gaps = replica.num_scheduled_decodes
    grows, block_size = replica.grows, replica.block_size
    context_sum = replica.context_sum
    held = context_sum + replica.prefilled_tokens
    used_before = used_after = (
        (replica.num_blocks - replica.free_blocks) * block_size if grows else used_tokens(replica)
    )
    step = replica.step
    leap = replica.leap_index
    replica.leap_index = leap + 1

    if num_decodes:
        longest = first + increment * (num_steps - 1)
        if replica.stalls:
            _end_stall(replica)
            first_gaps = 0
            if num_steps == 1:
                longest = 0.0
        gap_values = replica.gap_values
        while gap_values and gap_values[-1] <= longest:
            gap_values.pop()
            replica.gap_leaps.pop()
        gap_values.append(longest)
        replica.gap_leaps.append(leap)
        if grows:
            offset = step % block_size
            taken = (num_steps // block_size) * num_decodes
            remainder = num_steps % block_size
            if remainder:
                taken += sum(replica.residues[offset : offset + remainder])
            if taken:
                replica.free_blocks -= taken
                used_after += taken * block_size
        replica.step = step = step + num_steps
        replica.context_sum = context_sum + num_decodes * num_steps
        replica.last_decode_time = now
        if replica.estimate_sum:
            replica.estimate_sum -= replica.estimate_shrinking * num_steps
            _decay_ratio(replica, num_steps)

    chunks = replica.chunk_requests
    num_chunks = len(chunks)
    prefill_tokens = replica.prefill_tokens
    if num_chunks and grows:
        taken = _book_chunk_blocks(replica, requests, num_steps)
        used_after += taken * block_size
    replica.leaps.extend(
        (
            replica.start_time,
            num_steps,
            first,
            increment,
            num_decodes,
            context_sum if num_decodes else 0,
            prefill_tokens,
            num_chunks,
            replica.priced_tokens,
            replica.attended_pairs,
            replica.attended_keys,
            first_gaps,
            num_decodes,
            held,
            used_before,
            used_after,
            len(replica.waiting),
            replica.blocked_by,
        )
    )
    num_finished = 0
    if num_chunks:
        num_finished = _complete_chunks(replica, requests, num_steps)
    if num_decodes:
        heap = replica.finish_heap
        while heap and heap[0] >> SHIFT == step:
            _finish_decoding(replica, requests, heappop(heap) & MASK)
            num_finished += 1
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
    replica.ratio_steps_skipped = 0
    has_preempted = False
    waiting = replica.waiting
    if waiting or replica.prefilling:
        if replica.is_prefill_first:
            has_preempted = _schedule_chunks(replica, requests, 0, True)
            if replica.chunk_requests:
                _plan_chunks(replica, requests, 0, has_preempted)
                return
            if replica.grows and _make_room(replica, requests):
                has_preempted = True
        else:
            if replica.grows:
                has_preempted = _make_room(replica, requests)
            if _schedule_chunks(replica, requests, replica.num_decoding, not has_preempted):
                has_preempted = True
            if replica.chunk_requests:
                _plan_chunks(replica, requests, replica.num_decoding, has_preempted)
                return
    elif replica.grows and replica.num_decoding:
        has_preempted = _make_room(replica, requests)
    else:
        replica.chunk_requests.clear()
        replica.chunk_tokens.clear()
        replica.prefill_tokens = 0

    num_decoding = replica.num_decoding
    if not num_decoding:
        if waiting:
            raise InvariantError(
                f"{len(waiting)} requests wait at an empty replica at {now} s with {replica.free_blocks} blocks free"
            )
        _go_idle(replica)
        return
    num_steps = 1
    if not has_preempted:
        num_steps = (replica.finish_heap[0] >> SHIFT) - replica.step
        if replica.grows and num_decoding * (num_steps // replica.block_size + 1) > replica.free_blocks:
            num_steps = min(num_steps, _steps_until_dry(replica))
        if waiting and replica.estimate_sum and replica.blocked_by == BLOCKED_BY_BLOCKS:
            num_steps = steps_until_admitted(replica, requests, num_steps)
    slope = replica.decode_slope[num_decoding]
    first = replica.decode_base[num_decoding] + slope * replica.context_sum
    increment = slope * num_decoding
    replica.num_steps = num_steps
    replica.first_seconds = first
    replica.increment_seconds = increment
    replica.end_time = now + first * num_steps + increment * (num_steps * (num_steps - 1) * 0.5)
    replica.num_scheduled_decodes = num_decoding
    replica.priced_tokens = num_decoding
    replica.attended_pairs = replica.attended_keys = 0.0
    replica.is_open = not waiting and replica.num_running < replica.max_num_seqs


def _schedule_chunks(replica: Replica, requests: RequestTable, num_decodes: int, may_admit: bool) -> bool:
    """Choose the prefill chunks of the next step; return whether a request was preempted for them."""
    chunks, sizes = replica.chunk_requests, replica.chunk_tokens
    chunks.clear()
    sizes.clear()
    config = replica.config
    budget = replica.token_budget - num_decodes
    max_chunk = config.max_chunk_tokens
    grows, block_size = replica.grows, replica.block_size
    # Blocks that the decodes of this step take come first.
    growth = replica.residues[replica.step % block_size] if num_decodes and grows else 0
    free = replica.free_blocks - growth
    prompt_tokens, generated_tokens = requests.prompt_tokens, requests.generated_tokens
    computed_tokens = requests.computed_tokens
    uncommitted = 0  # estimate: new tokens and prompt tokens still to come of the prefilling ones
    taken = total = 0
    has_preempted = False

    if replica.prefilling:
        for index in tuple(replica.prefilling):
            if index not in replica.prefilling:
                continue
            done = computed_tokens[index]
            remaining = prompt_tokens[index] + generated_tokens[index] - done
            chunk = min(remaining, max_chunk, budget)
            if chunk > 0 and grows:
                need = -(-(done + chunk) // block_size) + (-done // block_size)
                while need > free:
                    victim = _preempt(replica, requests)
                    has_preempted = True
                    growth = replica.residues[replica.step % block_size] if num_decodes else 0
                    free = replica.free_blocks - growth - taken
                    if victim == index:
                        chunk = -1
                        break
                if chunk < 0:
                    continue
                free -= need
                taken += need
            if config.admission == "estimate":
                uncommitted += estimate_of(requests, index) + remaining - max(chunk, 0)
            if chunk > 0:
                chunks.append(index)
                sizes.append(chunk)
                budget -= chunk
                total += chunk

    waiting = replica.waiting
    if may_admit and not has_preempted:
        while waiting:
            if replica.num_running >= replica.max_num_seqs:
                replica.blocked_by = BLOCKED_BY_SEATS
                break
            index = waiting[0]
            target = prompt_tokens[index] + generated_tokens[index]
            chunk = target
            if config.enable_chunked_prefill:
                chunk = min(target, max_chunk, budget)
            if chunk > budget or chunk == 0:
                replica.blocked_by = BLOCKED_BY_BUDGET
                break
            if grows:
                need = -(-chunk // block_size)
                if not has_room(replica, requests, index, need, free, uncommitted):
                    replica.blocked_by = BLOCKED_BY_BLOCKS
                    break
                free -= need
                replica.running.append(index)
                if config.admission == "estimate":
                    uncommitted += estimate_of(requests, index) + target - chunk
            elif not take_fixed(replica, requests, index):
                replica.blocked_by = BLOCKED_BY_BLOCKS
                break
            waiting.popleft()
            replica.num_running += 1
            chunks.append(index)
            sizes.append(chunk)
            budget -= chunk
            total += chunk
            if not requests.scheduled_time[index] >= 0.0:
                requests.scheduled_time[index] = replica.start_time
                requests.replica_id[index] = replica.identity
    replica.prefill_tokens = total
    return has_preempted


def _plan_chunks(replica: Replica, requests: RequestTable, num_decodes: int, has_preempted: bool) -> None:
    """Price the step that holds the scheduled chunks beside ``num_decodes`` decodes; leap over equal chunks.

    After a preemption nobody was admitted, so the next step may differ: no leap.
    """
    times, chunks = replica.times, replica.chunk_requests
    total = replica.prefill_tokens
    if num_decodes:
        # A preemption for the chunks may have taken a decoding request out of this step.
        num_decodes = replica.num_decoding
    num_chunks = len(chunks)
    pairs = keys = 0.0
    if num_chunks == 1:
        done = requests.computed_tokens[chunks[0]]
        pairs = total * done + total * (total + 1) * 0.5
        keys = float(done + total)
        priced = num_decodes + total
        pipeline = replica.config.pipeline_parallel_size
        if pipeline > 1:
            priced = max(priced, pipeline * total)
    else:
        priced, pairs, keys = _sum_chunks(replica, requests, num_decodes)
    token_seconds = replica.token_seconds
    if priced < len(token_seconds):
        first = token_seconds[priced]
    else:
        first = token_seconds[-1] + times.token_seconds_beyond * (priced - len(token_seconds) + 1)
    first += (
        replica.sequence_seconds[num_decodes + num_chunks]
        + times.prefill_request_seconds * num_chunks
        + times.prefill_pair_seconds * pairs
        + times.prefill_context_seconds * keys
    )
    increment = 0.0
    num_steps = 1
    if num_decodes:
        slope = replica.decode_slope[num_decodes]
        first += replica.decode_attention_base[num_decodes] + slope * replica.context_sum
    if num_chunks == 1 and not has_preempted:
        num_steps = _equal_chunks(replica, requests, num_decodes)
        if num_steps > 1:
            increment = times.prefill_pair_seconds * (total * total) + times.prefill_context_seconds * total
            if num_decodes:
                increment += slope * num_decodes
    replica.num_steps = num_steps
    replica.first_seconds = first
    replica.increment_seconds = increment
    replica.end_time = replica.start_time + first * num_steps + increment * (num_steps * (num_steps - 1) * 0.5)
    replica.num_scheduled_decodes = num_decodes
    replica.priced_tokens = priced
    replica.attended_pairs = pairs
    replica.attended_keys = keys
    replica.is_open = (
        num_steps > 1
        and not replica.waiting
        and replica.num_running < replica.max_num_seqs
        and replica.token_budget - num_decodes > total
    )


def _equal_chunks(replica: Replica, requests: RequestTable, num_decodes: int) -> int:
    """Return how many steps the one scheduled chunk repeats: before its last one, a finish, or a dry pool."""
    index, chunk = replica.chunk_requests[0], replica.chunk_tokens[0]
    done = requests.computed_tokens[index]
    num_steps = (requests.prompt_tokens[index] + requests.generated_tokens[index] - done - 1) // chunk
    if num_steps < 2 or (replica.prefilling and replica.prefilling != [index]):
        return 1
    if replica.waiting and replica.config.admission == "estimate":
        return 1
    if num_decodes:
        num_steps = min(num_steps, (replica.finish_heap[0] >> SHIFT) - replica.step)
    if replica.grows:
        block_size = replica.block_size
        need = -(-(done + num_steps * chunk) // block_size) + (-done // block_size)
        if need + num_decodes * (num_steps // block_size + 1) > replica.free_blocks:
            return 1
    return num_steps


def _sum_chunks(replica: Replica, requests: RequestTable, num_decodes: int) -> tuple[int, float, float]:
    """Return x, P and C of StepTimes for several chunks."""
    pairs = keys = largest_pairs = largest_keys = 0.0
    computed_tokens = requests.computed_tokens
    for index, chunk in zip(replica.chunk_requests, replica.chunk_tokens, strict=True):
        done = computed_tokens[index]
        own = chunk * done + chunk * (chunk + 1) * 0.5
        pairs += own
        keys += done + chunk
        if own > largest_pairs:
            largest_pairs = own
        if done + chunk > largest_keys:
            largest_keys = done + chunk
    priced = num_decodes + replica.prefill_tokens
    pipeline = replica.config.pipeline_parallel_size
    if pipeline > 1:
        priced = max(priced, pipeline * max(replica.chunk_tokens))
        pairs = max(pairs / pipeline, largest_pairs)
        keys = max(keys / pipeline, largest_keys)
    return priced, pairs, keys


def _book_chunk_blocks(replica: Replica, requests: RequestTable, num_steps: int) -> int:
    """Take the blocks of the chunks that ran; return how many."""
    block_size = replica.block_size
    taken = 0
    for index, chunk in zip(replica.chunk_requests, replica.chunk_tokens, strict=True):
        done = requests.computed_tokens[index]
        taken += -(-(done + chunk * num_steps) // block_size) + (-done // block_size)
    replica.free_blocks -= taken
    return taken


def _complete_chunks(replica: Replica, requests: RequestTable, num_steps: int) -> int:
    """Move the chunks' requests on: further prefill, decoding, or finished; return how many finished."""
    now, step = replica.end_time, replica.step
    num_finished = num_joined = 0
    for index, chunk in zip(replica.chunk_requests, replica.chunk_tokens, strict=True):
        done = requests.computed_tokens[index]
        computed = done + chunk * num_steps
        generated = requests.generated_tokens[index]
        if computed < requests.prompt_tokens[index] + generated:
            requests.computed_tokens[index] = computed
            replica.prefilled_tokens += computed - done
            if not done:
                replica.prefilling.append(index)
            continue
        if done:
            replica.prefilling.remove(index)
            replica.prefilled_tokens -= done
            requests.computed_tokens[index] = 0
        if generated:
            gap = now - requests.last_token_time[index]
            replica.irregular_gaps.extend((gap, 1.0))
            if gap > requests.itl_max[index]:
                requests.itl_max[index] = gap
        else:
            requests.first_token_time[index] = now
        generated += 1
        remaining = requests.output_tokens[index] - generated
        if not remaining:
            if replica.grows:
                replica.free_blocks += -(-computed // replica.block_size)
            _finish(replica, requests, index)
            num_finished += 1
            continue
        num_joined += 1
        base = computed - step
        requests.context_base[index] = base
        requests.finish_step[index] = step + remaining
        requests.joined_leap[index] = replica.leap_index
        requests.last_token_time[index] = now
        replica.num_decoding += 1
        replica.context_sum += computed
        heappush(replica.finish_heap, (step + remaining) << SHIFT | index)
        if replica.grows:
            block_size = replica.block_size
            residue = -base % block_size
            replica.residues[residue] += 1
            replica.residues[residue + block_size] += 1
            if replica.config.admission == "estimate":
                most = requests.max_tokens[index]
                if most > ESTIMATE_CLIP:
                    replica.estimate_sum += ESTIMATE_CLIP
                else:
                    replica.estimate_sum += most - generated
                    replica.estimate_shrinking += 1
    if replica.is_prefill_first:
        _note_stall(replica, num_joined)
    return num_finished


def _finish_decoding(replica: Replica, requests: RequestTable, index: int) -> None:
    """Let a request leave the decoding ones: it has all its tokens."""
    context = requests.context_base[index] + replica.step
    position = bisect_left(replica.gap_leaps, requests.joined_leap[index])
    if position < len(replica.gap_values):
        gap = replica.gap_values[position]
        if gap > requests.itl_max[index]:
            requests.itl_max[index] = gap
    _leave_decoding(replica, requests, index, context, requests.output_tokens[index])
    _finish(replica, requests, index)


def _leave_decoding(replica: Replica, requests: RequestTable, index: int, context: int, generated: int) -> None:
    """Take a request out of the aggregates of the decoding ones, and its growing blocks with it."""
    replica.num_decoding -= 1
    replica.context_sum -= context
    if replica.grows:
        block_size = replica.block_size
        replica.free_blocks += -(-context // block_size)
        residue = -requests.context_base[index] % block_size
        replica.residues[residue] -= 1
        replica.residues[residue + block_size] -= 1
        if replica.config.admission == "estimate":
            most = requests.max_tokens[index]
            if most > ESTIMATE_CLIP:
                replica.estimate_sum -= ESTIMATE_CLIP
            else:
                replica.estimate_sum -= most - generated
                replica.estimate_shrinking -= 1


def _finish(replica: Replica, requests: RequestTable, index: int) -> None:
    """Declare a request completed at the end of the step."""
    requests.finish_time[index] = replica.end_time
    requests.generated_tokens[index] = requests.output_tokens[index]
    requests.status[index] = COMPLETED
    replica.num_running -= 1
    replica.num_outstanding -= 1
    if not replica.grows:
        release_fixed(replica, requests, index)
    if replica.finished is not None:
        replica.finished.append(index)


def _make_room(replica: Replica, requests: RequestTable) -> bool:
    """Preempt until the next step's decodes have their blocks; return whether anyone had to go."""
    replica.chunk_requests.clear()
    replica.chunk_tokens.clear()
    replica.prefill_tokens = 0
    has_preempted = False
    while replica.residues[replica.step % replica.block_size] > replica.free_blocks:
        _preempt(replica, requests)
        has_preempted = True
    return has_preempted


def _preempt(replica: Replica, requests: RequestTable) -> int:
    """Send the victim back to the queue without its KV cache (recompute); return it."""
    is_estimate = replica.config.admission == "estimate"
    index = _victim(replica, requests, is_estimate)
    if index in replica.prefilling:
        done = requests.computed_tokens[index]
        replica.prefilling.remove(index)
        replica.prefilled_tokens -= done
        replica.free_blocks += -(-done // replica.block_size)
        requests.computed_tokens[index] = 0
    else:
        finish_step = requests.finish_step[index]
        generated = requests.output_tokens[index] - (finish_step - replica.step)
        position = bisect_left(replica.gap_leaps, requests.joined_leap[index])
        if position < len(replica.gap_values):
            requests.itl_max[index] = max(requests.itl_max[index], replica.gap_values[position])
        _leave_stall(replica, requests.joined_leap[index])
        _leave_decoding(replica, requests, index, requests.context_base[index] + replica.step, generated)
        replica.finish_heap.remove(finish_step << SHIFT | index)
        heapify(replica.finish_heap)
        requests.last_token_time[index] = max(requests.last_token_time[index], replica.last_decode_time)
        requests.generated_tokens[index] = generated
    requests.num_preemptions[index] += 1
    replica.num_running -= 1
    if is_estimate:
        replica.waiting.append(index)
        _raise_ratio(replica, requests)
    else:
        replica.waiting.appendleft(index)
    return index


def _victim(replica: Replica, requests: RequestTable, is_estimate: bool) -> int:
    """Return who is preempted: vLLM's last admitted, or SGLang's shortest output (ties: longest prompt, last in)."""
    running = replica.running
    running[:] = [index for index in running if requests.status[index] == UNFINISHED]
    if not is_estimate or not replica.num_decoding:
        return running.pop()
    position = -1
    best: tuple[int, int] | None = None
    for candidate, index in enumerate(running):
        if index in replica.prefilling:
            continue
        generated = requests.output_tokens[index] - (requests.finish_step[index] - replica.step)
        key = (generated, -requests.prompt_tokens[index])
        if best is None or key <= best:
            best, position = key, candidate
    return running.pop(position)


def _raise_ratio(replica: Replica, requests: RequestTable) -> None:
    """SGLang's new-token ratio after a retraction, from the decoding requests that are left."""
    num_left = replica.num_decoding
    replica.ratio_steps_skipped = 1
    if not num_left:
        return
    most = generated = 0
    for entry in replica.finish_heap:
        index = entry & MASK
        most += requests.max_tokens[index]
        generated += requests.output_tokens[index] - ((entry >> SHIFT) - replica.step)
    replica.new_token_ratio = min(1.0, (generated + RETRACT_DECODE_STEPS * num_left) / (most + 1))


def _decay_ratio(replica: Replica, num_steps: int) -> None:
    config = replica.config
    decayed = replica.new_token_ratio - config.new_token_ratio_decay * (num_steps - replica.ratio_steps_skipped)
    replica.new_token_ratio = max(config.new_token_ratio_minimum, decayed)


def _steps_until_dry(replica: Replica) -> int:
    """Return for how many steps the free blocks cover the growth of the decoding requests."""
    block_size, residues = replica.block_size, replica.residues
    cycles, free = divmod(replica.free_blocks, replica.num_decoding)
    offset = replica.step % block_size
    extra = 0
    while extra < block_size and residues[offset + extra] <= free:
        free -= residues[offset + extra]
        extra += 1
    return cycles * block_size + extra


def _note_stall(replica: Replica, num_joined: int) -> None:
    """Prefill-first: decoding requests waited for a prefill step; remember since when, for their next gap."""
    leap = replica.leap_index
    stalls = replica.stalls
    if not stalls:
        num_before = replica.num_decoding - num_joined
        if num_before:
            stalls.append([leap - 1, replica.last_decode_time, num_before])
    if num_joined:
        stalls.append([leap, replica.end_time, num_joined])


def _end_stall(replica: Replica) -> None:
    """The first decode step after a stall ends: every group's gap since its last token."""
    token_time = replica.start_time + replica.first_seconds
    for leap, last_token_time, count in replica.stalls:
        if not count:
            continue
        gap = token_time - last_token_time
        replica.irregular_gaps.extend((gap, count))
        gap_leaps, gap_values = replica.gap_leaps, replica.gap_values
        while gap_values and gap_values[-1] <= gap:
            gap_values.pop()
            gap_leaps.pop()
        gap_leaps.append(int(leap))
        gap_values.append(gap)
    replica.stalls.clear()


def _leave_stall(replica: Replica, joined_leap: int) -> None:
    """A stalled request is preempted: its gap will be counted when it comes back."""
    for group in reversed(replica.stalls):
        if group[0] <= joined_leap or group is replica.stalls[0]:
            group[2] -= 1
            return


def _go_idle(replica: Replica) -> None:
    replica.end_time = INFINITY
    replica.is_open = False
    replica.new_token_ratio = replica.config.new_token_ratio_initial
    replica.gap_leaps.clear()
    replica.gap_values.clear()
    replica.running.clear()
