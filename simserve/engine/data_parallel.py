"""A replica of a plane: one scheduler, or the ranks of data-parallel attention, each with its own queue and KV cache.

The experts of a layer are spread over all ranks, so a rank that has computed its attention waits for the others: a step
takes as long as the slowest rank takes for its own part, plus the experts for the tokens of all; a rank without
requests idles along. The functions correspond to those of `simserve.engine.kernel` for one rank; a leap of the ranks is
the shortest of theirs, and ends where another rank becomes the slowest. All of them also serve replicas of one rank,
where they add nothing.

Two rules hold prompts back on ranks that step together, so that no rank idles while another computes a prompt.
TensorRT-LLM's ``enable_balance`` (``_balance_adp_requests`` in its ``py_executor.py``): until every rank has one, at
most ``timeout_iters`` steps, while all decode. SGLang's ``--enable-prefill-delayer`` (``prefill_delayer.py``): ranks
agree before each step. A rank has a prompt if one waits, a seat is free and no refusal holds; but for 0.5.10 to 0.5.16,
memory must not refuse it either, and from 0.5.17 on a rank has one while it computes one in chunks. If some have one,
all wait, at most ``max_delay_passes - 1`` steps in a row, unless one of them uses less KV memory than the watermark. If
all have one they also wait, from 0.5.10 on, while the fullest rank has fewer free seats than the largest batch of
prompts so far took, except the first time; from 0.5.18 on the largest of a rank's last 16, of which those that had to
wait count with the requests that wait. Steps without work take no time here, so nothing waits while nothing runs.
"""

from __future__ import annotations

from math import floor, inf, nextafter
from typing import Any

from simserve.engine.decoding import (
    add_stall,
    generated_by_now,
    growth_of_step,
    join_decoding,
    keep_largest_gap,
    release_departing,
)
from simserve.engine.kernel import cancel as cancel_at_rank
from simserve.engine.kernel import complete as complete_rank
from simserve.engine.kernel import cut as cut_rank
from simserve.engine.kernel import plan as plan_rank
from simserve.engine.kernel import seen_time as seen_by_rank
from simserve.engine.kernel import submit as submit_to_rank
from simserve.engine.kv import estimated_room, has_room, is_passed_over, note_full, page_reserve, take_fixed
from simserve.engine.kv import kv_share as kv_share_of_rank
from simserve.engine.loras import count_decoding, has_lora_seat, take_adapter
from simserve.engine.micro_batches import open_micro_batch
from simserve.engine.numbers import remove_all
from simserve.engine.overlap import expect_results
from simserve.engine.prefix_cache import find_prefix
from simserve.engine.radix_tree import look_up, looks_at_queue, touch_waiting
from simserve.engine.state import (
    ADMITTED,
    ESTIMATE_CLIP,
    INFINITY,
    LATE_NOTHING,
    MASK,
    SHIFT,
    STATIC,
    UNCACHED,
    DataParallelReplica,
    Replica,
    RequestTable,
)
from simserve.engine.static import break_batch, leave_batch, leave_uncached
from simserve.engine.windows import pool_blocks, take_blocks, window_growth_of_step

BATCH_DECAY = 0.998
"""Factor per step on the largest batch of prompts, where it decays (SGLang pull request 32880)."""
RECENT_BATCHES = 16
"""Steps with prompts, begun or not, of which a rank keeps the batches (SGLang 0.5.18, environ.py:
``SGLANG_PREFILL_DELAYER_MAX_PREFILL_BS_WINDOW_SIZE``)."""
NO_BOUND = 2**31 - 1
"""Steps for which prompts wait where only a request that ends lets them begin."""


def submit(replica: DataParallelReplica, requests: RequestTable, index: int, now: float) -> None:
    """Queue a request at its rank: the next in turn, or the one with the fewest.

    Ends the common leap if it could be admitted there.
    """
    ranks = replica.ranks
    if replica.num_ranks == 1:
        submit_to_rank(ranks[0], requests, index, now)
        replica.end_time = ranks[0].end_time
        return
    least = 0
    if ranks[0].config.rotates_ranks:
        least = replica.next_rank
        replica.next_rank = (least + 1) % replica.num_ranks
    else:
        for position in range(1, replica.num_ranks):
            if ranks[position].num_outstanding < ranks[least].num_outstanding:
                least = position
    rank = ranks[least]
    requests.rank[index] = least
    is_joining = rank.end_time == INFINITY and replica.end_time != INFINITY
    num_steps, end = rank.num_steps, rank.end_time
    submit_to_rank(rank, requests, index, now)
    if replica.end_time == INFINITY:
        replica.end_time = rank.end_time
    elif is_joining or rank.num_steps != num_steps or rank.end_time != end or _is_first_prompt(rank):
        end_leap(replica, now)
        if is_joining:
            rank.end_time = replica.end_time


def _is_first_prompt(rank: Replica) -> bool:
    """Return whether a rank tells the others something new with the prompt that has just come, if none can begin."""
    return rank.config.prefill_delayer_max_delay_passes > 0 and len(rank.waiting) == 1


def seen_time(replica: DataParallelReplica, now: float) -> float:
    """Return when schedulers that work a step ahead see an arrival at ``now``; a common leap ends with its step."""
    if replica.num_ranks == 1:
        time = seen_by_rank(replica.ranks[0], now, True)
        replica.end_time = replica.ranks[0].end_time
        return time
    if end_leap(replica, now):
        return nextafter(replica.end_time, inf)
    ended = -1.0
    for position in range(replica.num_ranks):
        ended = max(ended, replica.ranks[position].ahead_until)
    return nextafter(now, inf) if now == ended else now


def complete(replica: DataParallelReplica, requests: RequestTable) -> int:
    """Apply the leap that ends at ``end_time`` on every rank; return how many requests finished."""
    if replica.num_ranks == 1:
        return complete_rank(replica.ranks[0], requests)
    if replica.timeout_steps:
        _note_steps(replica, num_steps_of(replica))
    num_finished = 0
    for position in range(replica.num_ranks):
        num_finished += complete_rank(replica.ranks[position], requests)
    return num_finished


def plan(replica: DataParallelReplica, requests: RequestTable) -> None:
    """Plan every rank that has requests, and set the pace of all to that of the slowest."""
    ranks = replica.ranks
    if replica.num_ranks == 1:
        plan_rank(ranks[0], requests)
        replica.end_time = ranks[0].end_time
        return
    is_late = _knows_late(replica)
    slowest, num_stepping, tokens = _plan_ranks(replica, requests)
    if not num_stepping:
        if is_late and _looks_again(replica):
            return
        _go_round(replica)
        if replica.alike_steps:
            # Batches have turned out to be empty: their loops go round once more.
            slowest, num_stepping, tokens = _plan_ranks(replica, requests)
    if num_stepping:
        _keep_pace(replica, ranks[slowest], tokens)
    else:
        replica.end_time = INFINITY


def _plan_ranks(replica: DataParallelReplica, requests: RequestTable) -> tuple[int, int, int]:
    """Plan a step of every rank; return the slowest, how many have work, and the tokens of all."""
    ranks, now = replica.ranks, replica.end_time
    is_held = _holds_prompts(replica, requests)
    slowest, num_stepping, tokens = 0, 0, 0
    for position in range(replica.num_ranks):
        rank = ranks[position]
        if rank.end_time == INFINITY:
            continue
        rank.end_time = now
        if is_held:
            _plan_without_prompts(rank, requests, now)
        else:
            plan_rank(rank, requests)
        if rank.num_tried:
            _note_batch(rank, len(rank.chunk_requests) or rank.num_tried)
        if rank.num_steps:
            num_stepping += 1
            tokens += rank.priced_tokens
            if num_stepping == 1 or _is_slower(rank, ranks[slowest]):
                slowest = position
        elif rank.end_time != INFINITY and not is_held:
            # It idles along, and begins with the next step.
            replica.alike_steps = 1
    return slowest, num_stepping, tokens


def _knows_late(replica: DataParallelReplica) -> bool:
    """Return whether the results of the step that has ended are known once the next one is launched."""
    is_late = False
    for position in range(replica.num_ranks):
        is_late = is_late or replica.ranks[position].late_results != LATE_NOTHING
    return is_late


def _looks_again(replica: DataParallelReplica) -> bool:
    """Return whether ranks plan again, now that the last results are known and no step could be launched before."""
    for position in range(replica.num_ranks):
        if replica.ranks[position].end_time != INFINITY:
            # Arrivals during the last step are included. If prompts waited, they did so for this step, too.
            replica.end_time = nextafter(replica.end_time, inf)
            replica.held_steps += replica.held_steps >= 0
            return True
    return False


def _go_round(replica: DataParallelReplica) -> None:
    """Let SGLang's new-token ratios begin anew, as no rank runs."""
    config = replica.ranks[0].config
    is_waiting = False
    for position in range(replica.num_ranks):
        is_waiting = is_waiting or len(replica.ranks[position].waiting) > 0
    if not (is_waiting and config.keeps_ratio):
        for position in range(replica.num_ranks):
            replica.ranks[position].new_token_ratio = config.new_token_ratio_initial


def _is_slower(rank: Replica, other: Replica) -> bool:
    if rank.first_seconds != other.first_seconds:
        return rank.first_seconds > other.first_seconds
    return rank.increment_seconds > other.increment_seconds


def _keep_pace(replica: DataParallelReplica, slowest: Replica, tokens: int) -> None:
    """Let all ranks take as long as the slowest, plus the time shared for ``tokens``, until another becomes slower."""
    ranks = replica.ranks
    first, increment, num_steps = slowest.first_seconds, slowest.increment_seconds, slowest.num_steps
    for position in range(replica.num_ranks):
        rank = ranks[position]
        if rank.num_steps:
            num_steps = min(num_steps, rank.num_steps)
            replica.largest_batch = max(replica.largest_batch, len(rank.chunk_requests))
            if rank.increment_seconds > increment:
                ahead = (first - rank.first_seconds) / (rank.increment_seconds - increment)
                if ahead < num_steps:
                    num_steps = min(num_steps, floor(ahead) + 1)
    if replica.alike_steps:
        num_steps = min(num_steps, replica.alike_steps)
    first += _shared_seconds(slowest, tokens)
    end = replica.end_time + first * num_steps + increment * (num_steps * (num_steps - 1) * 0.5)
    for position in range(replica.num_ranks):
        rank = ranks[position]
        if rank.num_steps:
            rank.num_steps, rank.first_seconds, rank.increment_seconds = num_steps, first, increment
            rank.end_time = end
        elif rank.num_decoding and not rank.stall_step_runs:
            # It waits for the blocks of requests that have ended.
            add_stall(rank, rank.leap_index - 1, rank.last_decode_time, rank.num_decoding)
    replica.end_time = end


def _holds_prompts(replica: DataParallelReplica, requests: RequestTable) -> bool:
    """Return whether prompts waiting at some ranks must wait for the others in the next step, and for how many."""
    replica.alike_steps = 0
    if not replica.timeout_steps:
        return False
    if replica.ranks[0].config.prefill_delayer_max_delay_passes:
        return _delays_prompts(replica, requests)
    num_waiting = num_ready = num_decoding = 0
    for position in range(replica.num_ranks):
        rank = replica.ranks[position]
        num_decoding += rank.num_decoding > 0
        if rank.waiting:
            num_waiting += 1
            num_ready += rank.num_running < rank.max_num_seqs
    if not num_waiting:
        return False
    if num_ready == replica.num_ranks:
        replica.held_steps = -1  # the next step does not count towards the following wait, as after a time-out
        return False
    num_left = replica.timeout_steps - 1 - replica.held_steps
    if num_left <= 0 or num_decoding < replica.num_ranks:
        return False
    replica.alike_steps = num_left
    return True


def _delays_prompts(replica: DataParallelReplica, requests: RequestTable) -> bool:
    """Return what SGLang's ranks agree on."""
    config = replica.ranks[0].config
    held = max(replica.held_steps, 0)
    replica.held_steps = -1
    num_ready = fullest = 0
    is_running = is_changing = is_light = has_left = False
    for position in range(replica.num_ranks):
        rank = replica.ranks[position]
        has_left = has_left or rank.num_left > 0
        if rank.late_results != LATE_NOTHING:
            # What is on its way changes what memory admits, and what runs in the next step.
            expect_results(rank, requests)
            is_running = True
        num_done = rank.num_left + len(rank.departing)
        fullest = max(fullest, rank.num_decoding + num_done)
        is_running = is_running or rank.num_decoding > 0 or len(rank.prefilling) > 0
        # The next step knows which requests have left, or whether a chunk was the last one.
        is_changing = is_changing or num_done > 0 or len(rank.prefilling) > 0
        rank.num_tried = 0
        if _has_prompt(rank, requests, num_done):
            num_ready += 1
            share = kv_share_of_rank(rank, replica.end_time)
            is_light = is_light or share < config.prefill_delayer_token_usage_low_watermark
            if config.forgets_batches:
                rank.num_tried = max(1, min(len(rank.waiting), rank.max_num_seqs - rank.num_decoding - num_done))
    if not num_ready:
        return False
    replica.alike_steps = 1
    most = replica.timeout_steps - 1 - held
    if is_light:
        return False
    if not is_running and not (has_left and num_ready < replica.num_ranks):
        if num_ready < replica.num_ranks:
            # Steps without work, in which they wait all the same.
            _note_refusals(replica, requests, most)
        return False
    # Where requests that have ended hold seats and nothing runs, ranks look again at once, when these are free.
    if num_ready == replica.num_ranks:
        free_seats = replica.ranks[0].max_num_seqs - fullest
        if not config.delays_for_seats or free_seats >= _largest_batch(replica):
            return False
        if not replica.has_passed:
            replica.has_passed = True
            return False
        if not config.bounds_prompt_delay:
            most = NO_BOUND
    if most <= 0:
        return False
    replica.held_steps = held
    if not (is_changing or config.bounds_prompt_delay or _asks_memory(replica.ranks[0])):
        replica.alike_steps = most
    for position in range(replica.num_ranks):
        rank = replica.ranks[position]
        has_seat = _has_seat(rank, rank.num_left + len(rank.departing))
        if rank.waiting and (has_seat or rank.prefilling):
            _use_prefixes(rank, requests)
        if rank.waiting and rank.prefilling and has_seat and _asks_memory(rank) and _lacks_memory(rank, requests):
            note_full(rank)
    return True


def _has_prompt(rank: Replica, requests: RequestTable, num_done: int) -> bool:
    """Return whether a rank has a prompt to begin or to go on with, as it tells the others.

    Args:
        rank: One of the ranks.
        requests: The table.
        num_done: Requests that have ended and keep their seats.
    """
    if rank.prefilling and rank.config.bounds_prompt_delay:
        return True
    if not rank.waiting or not _has_seat(rank, num_done):
        return False
    if not _asks_memory(rank) or not _lacks_memory(rank, requests):
        return True
    _use_prefixes(rank, requests)
    note_full(rank)
    return False


def _has_seat(rank: Replica, num_done: int) -> bool:
    """Return whether a rank tries the head of its queue: no refusal holds, and a seat is free."""
    is_full = rank.is_full and rank.num_decoding + num_done > 0
    return not is_full and rank.num_running + num_done < rank.max_num_seqs


def _asks_memory(rank: Replica) -> bool:
    """Return whether memory may refuse a prompt before the ranks agree, by SGLang's estimate, without windows."""
    is_asked = rank.config.bounds_prompt_delay or not rank.config.delays_for_seats
    is_plain = not (rank.keeps_windows or rank.swaps) and rank.loras is None
    return is_asked and rank.keeps_full and rank.is_prefill_first and is_plain


def _lacks_memory(rank: Replica, requests: RequestTable) -> bool:
    """Return whether memory refuses the head of a rank's queue, after what the next chunk of a prompt takes."""
    config, cache, index, block_size = rank.config, rank.cache, rank.waiting[0], rank.block_size
    budget, free, uncommitted = _after_chunks(rank, requests)
    if is_passed_over(rank, budget, free, 0, uncommitted):
        return False
    target = requests.prompt_tokens[index] + requests.generated_tokens[index]
    blocks = idle = 0
    if cache is not None:
        blocks, idle = find_prefix(cache, index, target)
    cached = blocks * block_size
    chunk = target - cached
    if config.enable_chunked_prefill:
        chunk = min(chunk, config.max_chunk_tokens, budget)
    return not has_room(rank, requests, index, -(-chunk // block_size), free - idle, 0, uncommitted, cached)


def _after_chunks(rank: Replica, requests: RequestTable) -> tuple[int, int, int]:
    """Return the budget, the blocks and the tokens still to come that a running prompt's next chunk leaves."""
    config, block_size = rank.config, rank.block_size
    budget, free, uncommitted = config.max_num_batched_tokens, rank.free_blocks, 0
    for position in range(len(rank.prefilling)):
        one = rank.prefilling[position]
        done = requests.computed_tokens[one]
        remaining = requests.prompt_tokens[one] + requests.generated_tokens[one] - done
        chunk = min(remaining, config.max_chunk_tokens, budget)
        room = int(estimated_room(rank, free, 0))
        if room > 0:
            chunk = min(chunk, room)
        free -= -(-(done + chunk) // block_size) + (-done // block_size)
        uncommitted += min(requests.max_tokens[one], ESTIMATE_CLIP) + remaining - chunk + page_reserve(rank)
        budget -= chunk
    return budget, free, uncommitted


def _use_prefixes(rank: Replica, requests: RequestTable) -> None:
    """Count a look at a queue whose head does not begin, in a tree of prefixes."""
    cache = rank.cache
    if cache is None or cache.tree is None:
        return
    if rank.config.touches_waiting and looks_at_queue(rank):
        touch_waiting(rank, requests)
    index = rank.waiting[0]
    is_asked = not rank.prefilling
    if not is_asked and _has_seat(rank, rank.num_left + len(rank.departing)):
        budget, free, uncommitted = _after_chunks(rank, requests)
        is_asked = not is_passed_over(rank, budget, free, 0, uncommitted)
    if is_asked:
        look_up(cache, index, requests.prompt_tokens[index] + requests.generated_tokens[index])


def _largest_batch(replica: DataParallelReplica) -> int:
    """Return the requests of the largest batch of prompts that counts."""
    if not replica.ranks[0].config.forgets_batches:
        return int(replica.largest_batch)
    largest = 0
    for position in range(replica.num_ranks):
        recent = replica.ranks[position].recent_batches
        for place in range(len(recent)):
            largest = max(largest, recent[place])
    return largest


def _note_batch(rank: Replica, size: int) -> None:
    """Keep the size of a rank's latest batch of prompts, begun or not."""
    if len(rank.recent_batches) == RECENT_BATCHES:
        rank.recent_batches.pop(0)
    rank.recent_batches.append(size)


def _note_refusals(replica: DataParallelReplica, requests: RequestTable, num_steps: int) -> None:
    """Keep the batches of ranks whose prompts wait in ``num_steps`` steps, and count the looks at their queues."""
    for position in range(replica.num_ranks):
        rank = replica.ranks[position]
        if rank.waiting and _has_seat(rank, rank.num_left + len(rank.departing)):
            for _ in range(num_steps):
                _use_prefixes(rank, requests)
        if rank.num_tried:
            for _ in range(min(num_steps, RECENT_BATCHES)):
                _note_batch(rank, rank.num_tried)


def _note_steps(replica: DataParallelReplica, num_steps: int) -> None:
    """Count the steps of a leap that is being completed."""
    config = replica.ranks[0].config
    if not config.prefill_delayer_max_delay_passes:
        replica.held_steps = (replica.held_steps + num_steps) % replica.timeout_steps
        return
    if replica.held_steps >= 0:
        replica.held_steps += num_steps
    if config.bounds_prompt_delay:
        replica.largest_batch *= BATCH_DECAY**num_steps


def _plan_without_prompts(rank: Replica, requests: RequestTable, now: float) -> None:
    """Plan a rank as if no request waited; those that do cannot be admitted before the common leap ends."""
    is_ordered, rank.is_ordered = rank.is_ordered, False
    exchange_queues(rank)
    plan_rank(rank, requests)
    exchange_queues(rank)
    rank.is_ordered = is_ordered
    # Requests preempted meanwhile; SGLang queues them as if they came now.
    while rank.uses_estimate and rank.held_back:
        rank.waiting.append(rank.held_back.popleft())
    while rank.held_back:
        rank.waiting.appendleft(rank.held_back.pop())
    rank.num_queued = len(rank.waiting)
    if rank.waiting:
        rank.is_open = False
        if rank.end_time == INFINITY:
            # It has nothing else to do, and looks again with the others.
            rank.end_time = now


def _shared_seconds(rank: Replica, tokens: int) -> float:
    shared = rank.shared_seconds
    beyond = rank.times.shared_seconds_beyond
    if tokens < len(shared):
        return shared[tokens]
    if not len(shared):
        return beyond * tokens
    return shared[len(shared) - 1] + beyond * (tokens - (len(shared) - 1))


def end_leap(replica: DataParallelReplica, now: float) -> bool:
    """Let the common leap end with the step running at ``now``; return whether any step runs."""
    is_running = False
    for position in range(replica.num_ranks):
        rank = replica.ranks[position]
        if rank.num_steps:
            is_running = True
            if rank.num_steps > 1 and rank.mode != STATIC:
                cut_rank(rank, now)
            replica.end_time = rank.end_time
    return is_running


def break_off(replica: DataParallelReplica, now: float) -> None:
    """Let a static batch end with the running step, and its requests wait again; otherwise do nothing."""
    if replica.ranks[0].mode == STATIC:
        break_batch(replica.ranks[0], now)
        replica.end_time = replica.ranks[0].end_time


def look_again(replica: DataParallelReplica, now: float) -> None:
    """Have the next leap planned ``now`` if none runs."""
    replica.end_time = now
    if replica.num_ranks == 1:
        replica.ranks[0].end_time = now


def stand_still(replica: DataParallelReplica) -> None:
    """Plan nothing, whatever waits, until `go_on`."""
    for position in range(replica.num_ranks):
        replica.ranks[position].end_time = INFINITY
    replica.end_time = INFINITY


def go_on(replica: DataParallelReplica, now: float) -> None:
    """Plan again at ``now``."""
    for position in range(replica.num_ranks):
        rank = replica.ranks[position]
        if rank.num_outstanding:
            rank.end_time = now
    replica.end_time = now


def cancel(replica: DataParallelReplica, requests: RequestTable, index: int) -> None:
    """Remove an unfinished request from the rank that has it, between `complete` and `plan`."""
    mode = replica.ranks[0].mode
    if mode == STATIC:
        leave_batch(replica.ranks[0], index)
        return
    if mode == UNCACHED:
        leave_uncached(replica.ranks[0], requests, index)
        return
    own = 0
    if replica.num_ranks > 1:
        while not _holds(replica.ranks[own], requests, index):
            own += 1
    cancel_at_rank(replica.ranks[own], requests, index)


def _holds(rank: Replica, requests: RequestTable, index: int) -> bool:
    entry = requests.finish_step[index] << SHIFT | index
    return index in rank.prefilling or entry in rank.finish_heap or index in rank.waiting


def take_in(replica: DataParallelReplica, requests: RequestTable, index: int, now: float) -> bool:
    """Let a request decode whose KV cache was computed elsewhere; return False if no rank has room.

    Ranks are tried in order of their number of requests, the one with the fewest first.
    """
    ranks, count = replica.ranks, replica.num_ranks
    if count == 1:
        if not take_in_at_rank(ranks[0], requests, index, now):
            return False
        replica.end_time = ranks[0].end_time
        return True
    load, place = -1, count
    for _ in range(count):
        best = -1
        for position in range(count):
            own = ranks[position].num_outstanding
            is_next = own > load or (own == load and position > place)
            if is_next and (best < 0 or own < ranks[best].num_outstanding):
                best = position
        if best < 0:
            return False
        load, place = ranks[best].num_outstanding, best
        if take_in_at_rank(ranks[best], requests, index, now):
            requests.rank[index] = best
            replica.end_time = now
            return True
    return False


def take_in_at_rank(rank: Replica, requests: RequestTable, index: int, now: float) -> bool:
    """Let a request with its prompt's KV cache decode from the next step on.

    Its first token comes with the cache; or the next step computes the last token of the prompt again, and with it the
    first of the answer.

    Between `complete` and `plan` only. Requests that were preempted here go first; blocks must be free for the cache
    and for the growth of the next step, or for the tokens that are reserved for each request while others run.

    Returns:
        False, with nothing changed, if there is no seat or not enough memory.
    """
    if rank.departing and not rank.num_running:
        # No other request runs: the next step is scheduled when they are gone.
        release_departing(rank, requests)
    if rank.num_running + len(rank.departing) >= rank.max_num_seqs or rank.waiting:
        return False
    loras = rank.loras
    if loras is not None and not has_lora_seat(loras, index):
        return False
    context, block_size = requests.prompt_tokens[index], rank.block_size
    generated = 1
    if rank.has_late_first_token:
        context, generated = context - 1, 0
    if rank.grows:
        blocks = -(-context // block_size)
        grown = growth_of_step(rank) if rank.num_decoding else 0
        need = pool_blocks(rank, blocks + (context % block_size == 0))
        if need + grown > rank.free_blocks:
            return False
        reserved = rank.config.reserved_decode_tokens
        if reserved and rank.num_running:
            kept = -(-reserved * (rank.num_running + 1) // block_size)
            if pool_blocks(rank, blocks + kept) > rank.free_blocks:
                return False
        if rank.has_window_pool:
            grown = window_growth_of_step(rank) if rank.num_decoding else 0
            if min(blocks + 1, rank.window_blocks) + grown > rank.free_window_blocks:
                return False
        take_blocks(rank, blocks)
    elif not take_fixed(rank, requests, index):
        return False
    if rank.grows or rank.cache is not None:
        rank.running.append(index)
    rank.num_running += 1
    rank.num_outstanding += 1
    requests.generated_tokens[index] = generated
    if generated:
        requests.first_token_time[index] = now
    else:
        rank.swapped_in.append(index)
    requests.replica_id[index] = rank.identity
    rank.end_time = now
    if rank.batch_log is not None:
        rank.batch_log.extend((index, now, ADMITTED))
    if loras is not None:
        take_adapter(rank, loras, index)
        count_decoding(loras, index, 1)
    if rank.micro_batches:
        open_micro_batch(rank, -1)
    join_decoding(rank, requests, index, context, generated)
    if rank.stall_step_runs:
        add_stall(rank, rank.leap_index, now, 1)
    elif rank.num_decoding == 1:
        # Prompts of others may be computed before its next token.
        rank.last_decode_time = now
    return True


def note_sent_tokens(replica: DataParallelReplica, requests: RequestTable) -> None:
    """Record which tokens a lost replica has sent of the answers that it leaves unfinished."""
    for position in range(replica.num_ranks):
        rank = replica.ranks[position]
        for each in range(len(rank.finish_heap)):
            index = rank.finish_heap[each] & MASK
            keep_largest_gap(rank, requests, index)
            requests.generated_tokens[index] = generated_by_now(rank, requests, index)


def strike(replica: DataParallelReplica, index: int) -> None:
    """Remove a request from the lists of those that could be preempted."""
    for position in range(replica.num_ranks):
        remove_all(replica.ranks[position].running, index)


# The state of a replica as a whole.


def num_steps_of(replica: DataParallelReplica) -> int:
    """Return the steps of the common leap; 0: none runs."""
    num_steps = 0
    for position in range(replica.num_ranks):
        num_steps = max(num_steps, replica.ranks[position].num_steps)
    return num_steps


def start_time_of(replica: DataParallelReplica) -> float:
    """Return when the running leap began, seconds."""
    start: float = replica.ranks[0].start_time
    for position in range(1, replica.num_ranks):
        start = max(start, replica.ranks[position].start_time)
    return start


def num_decodes_of(replica: DataParallelReplica) -> int:
    """Return the sequences that decode in a step of the running leap."""
    count = 0
    for position in range(replica.num_ranks):
        rank = replica.ranks[position]
        if rank.num_steps:
            count += rank.num_scheduled_decodes
    return count


def num_running_at(replica: DataParallelReplica) -> int:
    """Return the requests with a seat."""
    count = 0
    for position in range(replica.num_ranks):
        count += replica.ranks[position].num_running
    return count


def num_outstanding_at(replica: DataParallelReplica) -> int:
    """Return the requests that its schedulers have."""
    count = 0
    for position in range(replica.num_ranks):
        count += replica.ranks[position].num_outstanding
    return count


def num_seats_of(replica: DataParallelReplica) -> int:
    """Return the seats of all ranks."""
    return replica.num_ranks * replica.ranks[0].max_num_seqs


def kv_share(replica: DataParallelReplica, now: float) -> float:
    """Return the share of KV memory reserved at ``now``: the mean over the ranks."""
    share = kv_share_of_rank(replica.ranks[0], now)
    if replica.num_ranks == 1:
        return share
    for position in range(1, replica.num_ranks):
        share += kv_share_of_rank(replica.ranks[position], now)
    return share / replica.num_ranks


def exchange_queues(replica: Replica) -> None:
    """Swap the requests that wait with those that are held back."""
    waiting: Any = replica.waiting
    replica.waiting, replica.held_back = replica.held_back, waiting
