"""Prefill chunks of a step: which requests get how many tokens, what the step takes, and what follows from it."""

from __future__ import annotations

from simserve.engine.arrival_order import continue_prompts, is_before, seat_by_arrival
from simserve.engine.decoding import (
    cache_decoded,
    finish,
    growth_of_step,
    join_decoding,
    note_recomputed,
    note_stall,
    settle_decoders,
    until_beyond,
)
from simserve.engine.kv import (
    estimated_room,
    fixed_need,
    has_room,
    is_passed_over,
    is_scattered,
    note_full,
    page_reserve,
    take_fixed,
    unused_blocks,
)
from simserve.engine.kv_tier import keep_in_store, take_loading_seconds, take_overlapped_seconds
from simserve.engine.loras import (
    count_decoding,
    has_lora_seat,
    is_shut,
    lora_seconds,
    restore_skipped,
    skip_waiting,
    take_lora_loading,
    use_adapter,
)
from simserve.engine.micro_batches import lone_tokens, open_micro_batch, price_chunks, price_decodes
from simserve.engine.preemption import growth_of_batch, pause_for, preempt
from simserve.engine.prefix_cache import (
    cache_blocks,
    claimed_blocks,
    defer,
    evict,
    find_prefix,
    is_contributed,
    is_decoded,
    keep_prompt,
    load_prefix,
    note_claims,
    note_contests,
    note_contributions,
    restore_deferred,
    seconds_to_encode,
    use_prefix,
)
from simserve.engine.progress import GRID
from simserve.engine.radix_tree import cache_computed, look_up, looks_at_queue, make_free, touch_waiting, use_found
from simserve.engine.state import (
    ADMITTED,
    BLOCKED_BY_BLOCKS,
    BLOCKED_BY_BUDGET,
    BLOCKED_BY_LORAS,
    BLOCKED_BY_NOTHING,
    BLOCKED_BY_PREFIX,
    BLOCKED_BY_SCATTER,
    BLOCKED_BY_SEATS,
    ESTIMATE_CLIP,
    READMITTED,
    RECOMPUTED,
    SHIFT,
    Replica,
    RequestTable,
)
from simserve.engine.state_cache import enter_pool, has_room_for_state, to_state
from simserve.engine.suspension import continue_growing, go_on, what_keeps_out
from simserve.engine.windows import admitted_windows, chunk_windows, give_back, take_blocks, window_growth_of_step


def schedule_chunks(replica: Replica, requests: RequestTable, num_decodes: int, may_admit: bool) -> bool:
    """Choose the prefill chunks of the next step; return whether a request was preempted for them."""
    chunks, sizes = replica.chunk_requests, replica.chunk_tokens
    config, has_states = replica.config, replica.has_state_cache
    if not has_states:
        chunks.clear()
        sizes.clear()
    if config.pipeline_parallel_size > 1 and not has_states:
        begin_round(replica, num_decodes)
    budget = replica.round_tokens - num_decodes * replica.tokens_per_decode
    max_chunk, is_aligned, is_whole = longest_chunk(replica), replica.has_aligned_chunks, replica.has_whole_prompts
    is_cut_short = is_aligned or config.checkpoint_tokens > 0 or has_states
    grows, block_size, keeps_full = replica.grows, replica.block_size, replica.keeps_full
    keeps_windows, has_window_pool = replica.keeps_windows, replica.has_window_pool
    # Blocks that the decodes of this step take are reserved first.
    growth = 0
    if is_whole:
        growth = growth_of_batch(replica, requests)
    elif num_decodes and grows and not has_states:
        if replica.progress is not None or keeps_windows:
            growth = growth_of_step(replica)
        else:
            growth = replica.residues[replica.step % block_size]
    free = replica.free_blocks - growth
    free_window = windows_taken = 0  # in a pool that layers with a window have to themselves
    if has_window_pool:
        free_window = replica.free_window_blocks
        if num_decodes:
            free_window -= window_growth_of_step(replica)
    prompt_tokens, generated_tokens = requests.prompt_tokens, requests.generated_tokens
    computed_tokens = requests.computed_tokens
    uncommitted = 0  # estimate: new tokens and prompt tokens that the prefilling requests still need
    taken = num_prompts = 0
    total = replica.prefill_tokens if has_states else 0  # of the requests with seats, looked at in their order
    budget -= total
    has_preempted = False
    cache = replica.cache
    # A tree receives what a step computes when it has ended.
    has_tree = cache is not None and cache.tree is not None
    waits_for_prefix, suspends = cache is not None and replica.has_prefix_waits, replica.has_suspension
    # Requests that wait for prefixes keep their places among the running prompts.
    is_merged = replica.has_prefix_waits and may_admit and len(replica.waiting) > 0
    if has_tree and config.touches_waiting and looks_at_queue(replica):
        touch_waiting(replica, requests)

    if replica.prefilling and not (is_merged or suspends or has_states):
        prefilling = replica.prefilling
        position = 0
        while position < len(prefilling):
            index = prefilling[position]
            if replica.has_ordered_pass and index in replica.passed_over:
                position += 1
                continue
            done = computed_tokens[index]
            remaining = prompt_tokens[index] + generated_tokens[index] - done
            chunk = min(remaining, max_chunk, budget)
            if is_cut_short:
                chunk = cut_chunk(replica, requests, index, remaining, chunk)
            if keeps_full:
                # SGLang's ``add_chunked_req``: as much as its estimate leaves room for, everything if it leaves none.
                room = int(estimated_room(replica, free, free_window))
                if room > 0:
                    chunk = min(chunk, room)
            if chunk > 0 and grows and not is_whole:
                need = window = -(-(done + chunk) // block_size) + (-done // block_size)
                if keeps_windows:
                    window = chunk_windows(replica, -(-done // block_size), need)
                    need = replica.full_weight * need + replica.window_weight * window
                while need > free or (has_window_pool and window > free_window):
                    if cache is not None and not has_tree:
                        evict(cache, free)
                    victim = preempt(replica, requests)
                    has_preempted = True
                    growth = growth_of_step(replica) if num_decodes else 0
                    free = replica.free_blocks - growth - taken
                    if has_window_pool:
                        free_window = replica.free_window_blocks - windows_taken
                        if num_decodes:
                            free_window -= window_growth_of_step(replica)
                    if victim == index:
                        chunk = -1
                        break
                    position = prefilling.index(index)
                if chunk < 0:
                    if replica.has_ordered_pass:
                        while position < len(prefilling):
                            replica.passed_over.append(prefilling[position])
                            position += 1
                    continue
                free -= need
                taken += need
                if has_window_pool:
                    free_window -= window
                    windows_taken += window
            if replica.uses_estimate:
                # As SGLang's budget counts: everything that the request may ever generate.
                uncommitted += min(requests.max_tokens[index], ESTIMATE_CLIP) + remaining - max(chunk, 0)
                uncommitted += page_reserve(replica)
            if chunk > 0:
                chunks.append(index)
                sizes.append(chunk)
                budget -= chunk
                total += chunk
                if cache is not None and not (has_tree or waits_for_prefix):
                    evict(cache, free)
                    if cache.num_decoders:
                        cache_decoded(replica, requests, index, 0)
                    cache_blocks(cache, index, done + chunk)
                    if cache.num_decoders:
                        note_contests(cache, index)
            position += 1

    if cache is not None and cache.contested:
        settle_decoders(replica, requests, free)
    waiting = replica.waiting
    if replica.is_full and not (replica.num_decoding or replica.num_left or replica.departing):
        replica.is_full = False
    if may_admit and waiting and not has_preempted and not replica.is_full:
        is_plain, is_chunked = replica.has_plain_admission, config.enable_chunked_prefill
        scheduled_time, has_extras, loras = requests.scheduled_time, replica.has_extras, replica.loras
        num_continued = len(chunks)
        seats = replica.max_num_seqs - len(replica.departing) - replica.num_left
        set_aside = 0  # of requests that the budget leaves less than a block of tokens
        is_cut = lacks_blocks = False
        # Whether blocks are taken once all have found theirs, and those in use that an admission finds are counted.
        takes_late = replica.takes_lazily or (waits_for_prefix and is_whole)
        ignores_found = takes_late and config.ignores_found
        paused = replica.last_suspended if suspends else -1
        replica.claimed.clear()
        if cache is not None and not (has_tree or is_whole):
            evict(cache, unused_blocks(replica, requests, free))
        if waits_for_prefix:
            note_contributions(replica, requests)
        while waiting:
            if is_merged:
                num_prompts, left = continue_prompts(replica, requests, num_prompts, waiting[0], max_chunk, budget)
                total += budget - left
                budget = left
            elif suspends:
                num_prompts, left, room = continue_growing(replica, requests, num_prompts, waiting[0], budget, free)
                total, taken, budget, free = total + budget - left, taken + free - room, left, room
            if replica.num_running + len(replica.deferred) >= seats:
                replica.blocked_by = _reason_to_pass(replica, seats, is_cut, lacks_blocks)
                if not is_passed_over(replica, budget, free, free_window, uncommitted):
                    note_full(replica)
                break
            index = waiting[0]
            if paused >= 0 and not is_before(requests, index, paused):
                replica.blocked_by = BLOCKED_BY_BLOCKS
                break
            if loras is not None and not has_lora_seat(loras, index):
                if is_shut(loras):
                    replica.blocked_by = BLOCKED_BY_LORAS
                    break
                skip_waiting(replica, loras)
                continue
            if waits_for_prefix and is_contributed(replica, requests, index):
                defer(replica)
                continue
            suspended = restored = 0
            if suspends:
                suspended = requests.swapped_tokens[index]
                replica.blocked_by = what_keeps_out(replica, requests, index, free, budget)
                if replica.blocked_by == BLOCKED_BY_PREFIX:
                    defer(replica)
                    continue
                if replica.blocked_by != BLOCKED_BY_NOTHING:
                    break
            target = prompt_tokens[index] + generated_tokens[index]
            cached = blocks = idle = 0
            if has_extras:
                if replica.swaps and requests.swapped_tokens[index]:
                    replica.blocked_by = BLOCKED_BY_BLOCKS
                    note_full(replica)
                    break
                if cache is not None:
                    if cache.num_decoders:
                        cache_decoded(replica, requests, index, 1)
                    is_asked = budget > 0 or len(chunks) == num_continued
                    if has_tree and is_asked and not is_passed_over(replica, budget, free, free_window, uncommitted):
                        blocks, idle = look_up(cache, index, target)
                    else:
                        blocks, idle = find_prefix(cache, index, suspended + 1 if suspended else target)
                    cached = blocks * block_size
                    target -= cached
            if suspended:
                # It goes on where it was: blocks of its own are restored beside those that it shares.
                restored = -(-suspended // block_size) - blocks
                target += cached - suspended
                cached = suspended
            chunk = target
            if is_chunked:
                chunk = min(target, max_chunk, budget)
                if is_cut_short:
                    chunk = cut_chunk(replica, requests, index, target, chunk)
            charge, surplus = chunk, 0
            if takes_late and cached and cache is not None:
                # Blocks that count as needed although others use them.
                surplus = blocks - idle if ignores_found else claimed_blocks(replica, cache, index, blocks)
                if ignores_found:
                    charge = target + cached
                    if is_chunked:
                        charge = min(charge, max_chunk, budget)
                        if is_aligned and charge < target + cached:
                            charge -= charge % block_size
                    chunk = min(charge, target)
            if target == 1 and replica.has_padding and chunk and not num_continued:
                chunk = padded_chunk(replica, num_decodes, cached, max_chunk)
            asked, room = 0, replica.free_blocks
            if is_whole:
                asked = surplus + idle - (-target // block_size)
                is_once = replica.has_prefix_waits and target >= block_size
                room, last, is_for_it = pause_for(replica, requests, index, asked, taken, is_once)
                if last >= 0:
                    paused, has_preempted = last, True
                    growth = growth_of_batch(replica, requests)
                    free = replica.free_blocks - growth - taken
                    if is_once and is_for_it:
                        # Looked at again, it seems to wait for a prefix: the one that it computes itself.
                        defer(replica)
                        continue
            if is_aligned and chunk == 0 and budget > 0 and (is_whole or not grows):
                need = asked
                if not is_whole:
                    need = fixed_need(replica, requests, index) - (blocks - idle - surplus)
                if need > room:
                    replica.blocked_by = BLOCKED_BY_BLOCKS
                    break
                # What is reserved for it stays so; a shorter prompt may get the rest of the budget.
                replica.free_blocks -= need
                set_aside += need
                is_cut = True
                defer(replica)
                continue
            if chunk > budget or charge > budget or chunk == 0:
                replica.blocked_by = BLOCKED_BY_BUDGET
                # SGLang checks memory first, but for no request once its new prompts have used up the budget.
                meets_memory = replica.keeps_full and (not is_chunked or len(chunks) == num_continued)
                meets_memory = meets_memory and not is_passed_over(replica, budget, free, free_window, uncommitted)
                if meets_memory and not has_room(
                    replica, requests, index, 0, free - idle, free_window, uncommitted, cached
                ):
                    replica.blocked_by = BLOCKED_BY_BLOCKS
                    note_full(replica)
                break
            if grows:
                need = -(-(cached + chunk) // block_size) + (-cached // block_size)
                window = 0
                if keeps_windows:
                    window = admitted_windows(replica, blocks, need)
                    need = replica.full_weight * need + replica.window_weight * window
                if is_whole:
                    need = -(-target // block_size)
                    has_space = asked <= room
                    if has_space:
                        replica.free_blocks -= surplus
                    free = replica.free_blocks - growth - taken
                elif has_states:
                    has_space = has_room_for_state(replica, requests, index, blocks, idle, chunk)
                elif is_plain:
                    has_space = need + idle + restored <= free
                else:
                    has_space = has_room(replica, requests, index, need, free - idle, free_window, uncommitted, cached)
                if has_window_pool and window > free_window:
                    has_space = False
                if not has_space and suspends:
                    if not suspended or idle + restored > free:
                        replica.blocked_by, lacks_blocks = BLOCKED_BY_BLOCKS, True
                        defer(replica)
                        continue
                    # It comes back all the same, and waits with its blocks.
                    has_space, chunk, charge, need = True, 0, 0, 0
                if not has_space:
                    replica.blocked_by = BLOCKED_BY_BLOCKS
                    note_full(replica)
                    break
                free -= need + idle + restored
                taken += need
                if has_window_pool:
                    free_window -= window
                if replica.uses_estimate:
                    uncommitted += min(requests.max_tokens[index], ESTIMATE_CLIP) + target - chunk
                    uncommitted += page_reserve(replica)
            elif not take_fixed(replica, requests, index, blocks - idle - surplus):
                replica.blocked_by = BLOCKED_BY_SCATTER if is_scattered(replica, requests, index) else BLOCKED_BY_BLOCKS
                break
            set_aside += surplus
            waiting.popleft()
            if (replica.has_prefix_waits and cache is not None) or is_whole or suspends:
                seat_by_arrival(requests, replica.running, index)
            elif grows or cache is not None:
                replica.running.append(index)
            replica.num_running += 1
            if loras is not None:
                use_adapter(replica, loras, index)
            if chunk:
                if suspends:
                    is_contributed(replica, requests, index)
                chunks.append(index)
                sizes.append(chunk)
            budget -= max(chunk, charge)
            total += chunk
            if not scheduled_time[index] >= 0.0:
                scheduled_time[index] = replica.start_time
                requests.replica_id[index] = replica.identity
                if cache is not None:
                    cache.paths.cached_tokens[index] = cached
                if replica.has_encoder:
                    replica.encoder_seconds += seconds_to_encode(requests, index, cached)
                if replica.batch_log is not None:
                    replica.batch_log.extend((index, replica.start_time, ADMITTED))
            elif replica.batch_log is not None:
                replica.batch_log.extend((index, replica.start_time, READMITTED))
            if suspended:
                num_prompts += go_on(replica, requests, index, cached, restored)
            if cache is not None:
                if is_merged or suspends:
                    seat_by_arrival(requests, replica.prefilling, index)
                    num_prompts += 1
                else:
                    replica.prefilling.append(index)
                if has_states:
                    enter_pool(replica, requests, index, blocks, cached + chunk)
                    free = replica.free_blocks
                if cache.has_tiers:
                    load_prefix(replica, requests, index, blocks)
                if has_tree:
                    use_found(replica, index, blocks)
                if cached:
                    if grows and not has_states:
                        replica.free_blocks -= idle
                        if keeps_windows:
                            own = min(blocks, replica.window_blocks)
                            replica.free_blocks -= replica.window_weight * own
                            if has_window_pool:
                                replica.free_window_blocks -= own
                    if takes_late:
                        note_claims(replica, cache, index, blocks)
                    if blocks and not (has_tree or has_states):
                        use_prefix(cache, index, blocks, idle)
                    computed_tokens[index] = cached
                    replica.prefilled_tokens += cached
                if not grows:
                    free = replica.free_blocks
                if not has_tree:
                    # What is evicted for its blocks is gone before they are cached.
                    if not takes_late:
                        evict(cache, free + set_aside)
                    if not (waits_for_prefix or suspends):
                        cache_blocks(cache, index, cached + min(chunk, target - (has_states and cache.num_hidden)))
                    if cache.num_decoders:
                        note_contests(cache, index)
        if loras is not None and loras.skipped:
            if not waiting and replica.num_running >= seats:
                replica.blocked_by = BLOCKED_BY_SEATS
                note_full(replica)
            elif not waiting:
                replica.blocked_by = BLOCKED_BY_LORAS
            restore_skipped(replica, loras)
        replica.free_blocks += set_aside
        runs_others = len(chunks) > 0 or replica.num_decoding > 0 or len(replica.departing) > 0
        if is_merged and not (replica.blocked_by == BLOCKED_BY_BLOCKS and runs_others):
            # Those that came after all who wait; none runs after one that is refused for memory.
            num_prompts, left = continue_prompts(replica, requests, num_prompts, -1, max_chunk, budget)
            total += budget - left
            budget = left
        if is_whole:
            while growth_of_batch(replica, requests) + taken > replica.free_blocks:
                preempt(replica, requests)
                has_preempted = True
            free = replica.free_blocks - taken - (growth_of_step(replica) if replica.num_decoding else 0)
        if cache is not None and takes_late:
            # All have found theirs before any takes what it lacks.
            evict(cache, unused_blocks(replica, requests, free))
        if replica.deferred:
            if not waiting:
                replica.blocked_by = _reason_to_pass(replica, seats, is_cut, lacks_blocks)
            restore_deferred(replica)
    elif waiting:
        # A request has just lost blocks, or none is tried: none is admitted in this step.
        num_seated = replica.num_running + replica.num_left + len(replica.departing)
        is_seated = replica.is_full and num_seated >= replica.max_num_seqs
        replica.blocked_by = BLOCKED_BY_SEATS if is_seated else BLOCKED_BY_BLOCKS
    if suspends:
        _, left, room = continue_growing(replica, requests, num_prompts, -1, budget, free)
        total, taken = total + budget - left, taken + free - room
    if cache is not None and has_tree and taken:
        make_free(replica, taken)
    replica.prefill_tokens = total
    replica.scheduled_blocks = -1 if has_preempted and not is_whole else taken
    return has_preempted


def _reason_to_pass(replica: Replica, seats: int, is_cut: bool, lacks_blocks: bool) -> int:
    """Return what keeps requests out that are passed over: seats, blocks, less than a block of budget, or a prefix."""
    if replica.num_running >= seats:
        return BLOCKED_BY_SEATS
    if lacks_blocks:
        return BLOCKED_BY_BLOCKS
    return BLOCKED_BY_BUDGET if is_cut else BLOCKED_BY_PREFIX


def may_pass(replica: Replica) -> bool:
    """Return whether a request that arrives may be admitted before those that wait."""
    is_passed = replica.blocked_by == BLOCKED_BY_LORAS or replica.blocked_by == BLOCKED_BY_PREFIX
    is_short = replica.has_suspension or (replica.has_aligned_chunks and replica.blocked_by == BLOCKED_BY_BUDGET)
    return not replica.waiting or is_passed or is_short


def padded_chunk(replica: Replica, num_decodes: int, cached: int, max_chunk: int) -> int:
    """Return the tokens that a request with one token left computes: as many as a decoding one, if it may."""
    padded = replica.tokens_per_decode
    is_beside = num_decodes > 0 or cached > 0
    return padded if is_beside and padded <= max_chunk and cached + padded < replica.config.max_model_len else 1


def begin_round(replica: Replica, num_decodes: int) -> None:
    """Set the most that a round of stages computes, and of one prompt in a micro-batch; 0: chunks do not overlap."""
    config = replica.config
    is_in_turn = replica.samples_in_turn and num_decodes > 0
    replica.round_tokens = config.max_num_batched_tokens if is_in_turn else replica.token_budget
    is_overlapping = config.overlaps_chunks and not is_in_turn
    replica.micro_chunk = longest_chunk(replica) // config.pipeline_parallel_size if is_overlapping else 0


def longest_chunk(replica: Replica) -> int:
    """Return the most tokens of the next step's budget that a request may have."""
    config = replica.config
    if is_chunk_limit_lifted(replica):
        return replica.round_tokens if config.overlaps_chunks else config.max_num_batched_tokens
    if config.overlaps_chunks and replica.round_tokens < replica.token_budget:
        return config.max_chunk_tokens // config.pipeline_parallel_size
    return config.max_chunk_tokens


def tokens_to_checkpoint(replica: Replica, remaining: int) -> int:
    """Return the most tokens of a chunk of a prompt with ``remaining`` left: to its next checkpoint, or its end."""
    config = replica.config
    if remaining > config.checkpoint_tokens > 0:
        return remaining - config.checkpoint_tokens
    if remaining > config.last_checkpoint_tokens:
        return remaining - config.last_checkpoint_tokens
    return remaining


def cut_chunk(replica: Replica, requests: RequestTable, index: int, remaining: int, chunk: int) -> int:
    """Return a chunk of a prompt with ``remaining`` left, cut to its next checkpoint, whole blocks, or a state."""
    if replica.config.checkpoint_tokens > 0:
        chunk = min(chunk, tokens_to_checkpoint(replica, remaining))
    if replica.has_aligned_chunks and chunk < remaining:
        chunk -= chunk % replica.block_size
    return to_state(replica, requests, index, remaining, chunk) if replica.has_state_cache else chunk


def is_chunk_limit_lifted(replica: Replica) -> bool:
    """Return whether there is at most one request, counting finished ones that still hold their seat."""
    if not replica.config.lifts_chunk_limit:
        return False
    return replica.num_running + len(replica.departing) + len(replica.waiting) <= 1


def plan_chunks(replica: Replica, requests: RequestTable, num_decodes: int, has_preempted: bool) -> None:
    """Price the step that has the scheduled chunks and ``num_decodes`` decodes; leap over equal chunks.

    After a preemption no request was admitted, so the next step may differ: no leap.
    """
    times, chunks, progress = replica.times, replica.chunk_requests, replica.progress
    total = replica.prefill_tokens
    if num_decodes:
        # A preemption for the chunks may have taken a decoding request out of this step.
        num_decodes = replica.num_decoding + replica.num_beyond
    num_chunks = len(chunks)
    stages = replica.config.pipeline_parallel_size
    if stages > 1:
        priced, pairs, keys = price_chunks(replica, requests, num_decodes)
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
    loading = 0.0
    cache = replica.cache
    if cache is not None and cache.has_tiers:
        loading = take_loading_seconds(cache, replica.start_time)
        first += loading
    if replica.loras is not None:
        waited = take_lora_loading(replica.loras)
        loading += waited
        first += waited + lora_seconds(replica, replica.loras, num_decodes)
    if replica.has_encoder:
        loading += replica.encoder_seconds
        first += replica.encoder_seconds
        replica.encoder_seconds = 0.0
    if num_decodes:
        alike = price_decodes(replica, num_decodes) if stages > 1 else num_decodes
        slope = replica.decode_slope[alike] * times.mixed_decode_factor * (alike / num_decodes)
        first += replica.decode_attention_base[alike] + slope * (replica.context_sum + replica.beyond_tokens)
    if cache is not None and cache.has_tiers:
        waiting = take_overlapped_seconds(cache, first - loading)
        first += waiting
        loading += waiting
    is_hidden = True
    if times.launch_seconds and priced <= times.launch_max_tokens:
        is_ahead = replica.config.async_scheduling
        late = times.launch_seconds - (replica.lead if is_ahead and replica.start_time == replica.ahead_until else 0.0)
        is_hidden = times.launch_seconds <= first and not (is_ahead and late > 0.0)
        replica.late_launch = max(late, 0.0)
        first = max(first, late)
    budget = replica.round_tokens - num_decodes * replica.tokens_per_decode
    most = min(longest_chunk(replica), budget)
    if replica.has_aligned_chunks:
        most -= most % replica.block_size
    if num_chunks == 1 and not (has_preempted or loading) and total >= most and is_hidden:
        num_steps = _equal_chunks(replica, requests, num_decodes)
        if num_steps > 1:
            increment = times.prefill_pair_seconds * (total * total) + times.prefill_context_seconds * total
            if replica.config.overlaps_chunks:
                alone, passes = lone_tokens(stages, replica.micro_chunk, total, False)
                increment = (
                    alone / stages * (times.prefill_pair_seconds * total + times.prefill_context_seconds * passes)
                )
            if num_decodes:
                increment += slope * (num_decodes if progress is None else progress.total / GRID)
    if has_preempted and replica.moved_blocks:
        first += times.swap_block_seconds * replica.moved_blocks
    replica.num_steps = num_steps
    replica.first_seconds = first
    replica.increment_seconds = increment
    if num_steps == 1:
        replica.end_time = replica.start_time + first
    else:
        replica.end_time = replica.start_time + first * num_steps + increment * (num_steps * (num_steps - 1) * 0.5)
    replica.num_scheduled_decodes = num_decodes - replica.num_beyond
    replica.priced_tokens = priced
    replica.attended_pairs = pairs
    replica.attended_keys = keys
    replica.num_queued = len(replica.waiting)
    replica.is_open = num_steps > 1 and may_pass(replica)
    if not is_chunk_limit_lifted(replica) and (replica.num_running >= replica.max_num_seqs or budget <= total):
        replica.is_open = False


def _equal_chunks(replica: Replica, requests: RequestTable, num_decodes: int) -> int:
    """Return how many steps the one chunk repeats: up to its last one, a checkpoint, a finish, or a dry pool."""
    index, chunk = replica.chunk_requests[0], replica.chunk_tokens[0]
    done = requests.computed_tokens[index]
    remaining = requests.prompt_tokens[index] + requests.generated_tokens[index] - done
    num_steps = min(remaining - 1, tokens_to_checkpoint(replica, remaining)) // chunk
    if replica.has_aligned_chunks:
        # The last one may be longer, up to what the budget leaves.
        most = min(longest_chunk(replica), replica.round_tokens - num_decodes * replica.tokens_per_decode)
        num_steps = (remaining - most - 1) // chunk + 1
    if replica.keeps_windows:
        # What a chunk leaves outside the window is freed before the next one.
        return 1
    if num_steps < 2 or (replica.prefilling and (len(replica.prefilling) > 1 or replica.prefilling[0] != index)):
        return 1
    if replica.waiting and (
        replica.uses_estimate
        or replica.has_prefix_waits
        or replica.has_suspension
        or (replica.cache is not None and replica.blocked_by == BLOCKED_BY_BLOCKS)
    ):
        # What the chunks cache, or evict, may let the head of the queue in.
        return 1
    if replica.cache is not None and replica.cache.tree is not None:
        # Every chunk is a node of its own.
        return 1
    if replica.cache is not None and is_decoded(replica.cache, index):
        # Either may be the first to cache a block.
        return 1
    if replica.swaps and replica.waiting and requests.swapped_tokens[replica.waiting[0]]:
        # It may have become the head in this same step: the next one checks whether it fits.
        return 1
    if num_decodes:
        num_steps = min(num_steps, (replica.finish_heap[0] >> SHIFT) - replica.step)
    if replica.grows:
        block_size = replica.block_size
        need = -(-(done + num_steps * chunk) // block_size) + (-done // block_size)
        if replica.has_whole_prompts:
            need = replica.scheduled_blocks
        if replica.progress is None:
            growth = num_decodes * (num_steps // block_size + 1)
        else:
            growth = replica.progress.growth(replica.step, num_steps) if num_decodes else 0
        if need + growth > replica.free_blocks:
            return 1
        before = -(-(done + (num_steps - 1) * chunk) // block_size) + (-done // block_size)
        if replica.keeps_full and chunk > estimated_room(replica, replica.free_blocks - before - growth, 0):
            # The estimate leaves less room for the last one, as the previous ones take whole blocks.
            return 1
    return num_steps


def _sum_chunks(replica: Replica, requests: RequestTable, num_decodes: int) -> tuple[int, float, float]:
    """Return x, P and C of StepTimes for the chunks of a step of one stage."""
    pairs = keys = 0.0
    for position in range(len(replica.chunk_requests)):
        chunk = replica.chunk_tokens[position]
        done = requests.computed_tokens[replica.chunk_requests[position]]
        pairs += chunk * done + chunk * (chunk + 1) * 0.5
        keys += done + chunk
    return num_decodes * replica.tokens_per_decode + replica.prefill_tokens, pairs, keys


def chunk_blocks(replica: Replica, requests: RequestTable, num_steps: int) -> int:
    """Return the blocks that the chunks take in ``num_steps`` steps."""
    if replica.has_whole_prompts:
        return replica.scheduled_blocks
    block_size = replica.block_size
    taken = 0
    for position in range(len(replica.chunk_requests)):
        chunk = replica.chunk_tokens[position]
        done = requests.computed_tokens[replica.chunk_requests[position]]
        taken += -(-(done + chunk * num_steps) // block_size) + (-done // block_size)
    return taken


def complete_chunks(replica: Replica, requests: RequestTable, num_steps: int) -> int:
    """Move the chunks' requests on: further prefill, decoding, or finished; return how many finished."""
    now = replica.end_time
    num_finished = num_joined = 0
    cache = replica.cache
    chunks, sizes = replica.chunk_requests, replica.chunk_tokens
    for position in range(len(chunks)):
        index, chunk = chunks[position], sizes[position]
        done = requests.computed_tokens[index]
        computed = done + chunk * num_steps
        generated = requests.generated_tokens[index]
        target = requests.prompt_tokens[index] + generated
        if computed > target:
            # The drafts with which its lone token was padded do not count.
            if replica.grows:
                give_back(replica, -(-computed // replica.block_size))
                take_blocks(replica, -(-target // replica.block_size))
            computed = target
        if computed < target:
            requests.computed_tokens[index] = computed
            replica.prefilled_tokens += computed - done
            # Requests with a prefix cache have been in ``prefilling`` since they were admitted.
            if cache is not None and cache.tree is not None:
                cache_computed(replica, index, computed, False)
            elif cache is not None:
                if not replica.has_prefix_waits:
                    cache_blocks(cache, index, computed)
            elif not done and (replica.has_prefix_waits or replica.has_suspension):
                seat_by_arrival(requests, replica.prefilling, index)
            elif not done:
                replica.prefilling.append(index)
            continue
        if cache is not None:
            store = cache.paths.store
            if store is not None:
                keep_in_store(store, cache, index, computed)
        if done or cache is not None:
            replica.prefilling.remove(index)
            replica.prefilled_tokens -= done
            requests.computed_tokens[index] = 0
        if generated:
            gap = now - requests.last_token_time[index]
            replica.irregular_gaps.extend((gap, 1.0))
            if gap > requests.itl_max[index]:
                requests.itl_max[index] = gap
            if replica.batch_log is not None:
                replica.batch_log.extend((index, now, RECOMPUTED))
            if replica.has_thinking:
                note_recomputed(replica, requests, index, generated + 1)
        else:
            replica.api_free_at = max(replica.api_free_at, now) + replica.api_token_seconds
            requests.first_token_time[index] = replica.api_free_at
        generated += 1
        if replica.has_overlap:
            replica.late_prompts.append(index)
        if cache is not None and replica.has_suspension:
            cache_blocks(cache, index, requests.prompt_tokens[index])
        if generated == requests.output_tokens[index]:
            free_blocks, free_window_blocks = replica.free_blocks, replica.free_window_blocks
            if replica.grows:
                give_back(replica, -(-computed // replica.block_size))
            until = until_beyond(replica, requests, index, generated - 1, 1) if replica.decodes_beyond else 0
            finish(replica, requests, index, until, free_blocks, free_window_blocks)
            num_finished += 1
        else:
            if cache is not None and cache.tree is not None and not replica.has_overlap:
                cache_computed(replica, index, computed, True)
            elif cache is not None and replica.has_prefix_waits:
                keep_prompt(replica, cache, index, computed)
            if replica.micro_batches:
                open_micro_batch(replica, position)
            join_decoding(replica, requests, index, computed, generated)
            if replica.loras is not None:
                count_decoding(replica.loras, index, 1)
            num_joined += 1
            if replica.has_late_tokens and generated == 1:
                replica.late_tokens.append(index)
    if replica.is_prefill_first:
        note_stall(replica, num_joined)
    return num_finished
