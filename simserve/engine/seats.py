"""One pass over the requests with seats, in their order, where blocks are counted: those that decode, and prompts.

As vLLM's ``Scheduler.schedule`` has it. Each gives back the states that it has passed and takes what it opens before
the next one is looked at; where blocks lack, the last one is preempted (`simserve.engine.state_cache`). What the budget
does not reach computes nothing in the step. With priorities, up to 0.32 the pass ends where a request gives up its own
blocks, and up to 0.27 it misses as many as have given up theirs before it without a part in the step
(`simserve.engine.preemption`).
"""

from __future__ import annotations

from simserve.engine.chunks import begin_round, cut_chunk, longest_chunk, schedule_chunks
from simserve.engine.decoding import count_beyond, forget_finished
from simserve.engine.numbers import remove_all
from simserve.engine.preemption import make_way, pass_over, place_of_worst, preempt
from simserve.engine.state import UNFINISHED, Replica, RequestTable
from simserve.engine.state_cache import (
    assumed_context,
    is_settled,
    keep_blocks,
    keep_decoded,
    known_beyond,
    known_context,
    learn,
    pass_states,
    take_blocks_for,
)

_ALL = 1 << 62


def schedule_seats(replica: Replica, requests: RequestTable) -> bool:
    """Choose what the next step computes, and take the blocks; return whether a request was preempted."""
    cache = replica.cache
    assert cache is not None
    cache.fresh_states.clear()
    has_made_way = False
    if replica.waiting and replica.is_ordered and replica.config.priority_preemption:
        has_made_way = make_way(replica, requests)
    has_preempted = _serve(replica, requests)
    pass_over(replica, requests)
    num_seats = len(replica.running)
    schedule_chunks(replica, requests, replica.num_decoding + replica.num_beyond, not has_preempted)
    learn(replica, requests, replica.step, num_seats)
    cache.is_under_way = False
    return has_preempted or has_made_way


def _serve(replica: Replica, requests: RequestTable) -> bool:
    """Give the running requests their tokens, chunks and blocks; return whether any was preempted."""
    cache, running = replica.cache, replica.running
    assert cache is not None
    chunks, sizes, passed_over = replica.chunk_requests, replica.chunk_tokens, replica.passed_over
    chunks.clear()
    sizes.clear()
    replica.prefill_tokens = 0
    replica.attended_pairs = replica.attended_keys = 0.0
    forget_finished(replica, requests)
    if replica.config.pipeline_parallel_size > 1:
        begin_round(replica, replica.num_decoding)
    budget, max_chunk, width = replica.round_tokens, longest_chunk(replica), replica.tokens_per_decode
    has_preempted = False
    seat = 0
    while seat < len(running):
        index = running[seat]
        seat += 1
        if replica.num_beyond and index in replica.departing:
            done = replica.departing_until[replica.departing.index(index)] - width
            if done < 0:
                continue
        elif requests.status[index] != UNFINISHED or index in replica.departing:
            continue
        else:
            done = requests.computed_tokens[index]
        remaining = 0
        is_prompt = done > 0 and requests.status[index] == UNFINISHED
        replica.exported_states = 0
        tokens = width
        if is_prompt:
            remaining = requests.prompt_tokens[index] + requests.generated_tokens[index] - done
            tokens = cut_chunk(replica, requests, index, remaining, min(remaining, max_chunk, budget))
            if tokens <= 0:
                continue
        elif budget < width:
            if requests.status[index] == UNFINISHED:
                passed_over.append(index)
            else:
                replica.departing_until[replica.departing.index(index)] = 0
                count_beyond(replica)
            continue
        elif requests.status[index] == UNFINISHED:
            done = assumed_context(replica, requests, index, replica.step)
            if is_settled(cache, index, done + width):
                budget -= width
                continue
        num_missed = 0
        while not _has_blocks(replica, requests, index, done + tokens):
            place = place_of_worst(replica, requests) if replica.has_priorities else len(running) - 1
            victim = running.pop(place)
            if place < seat:
                seat -= 1
                is_served = not requests.computed_tokens[victim] and victim not in passed_over
                is_served = is_served and (victim not in replica.departing or _is_beyond(replica, victim))
                budget += width * (is_served and victim != index)
                num_missed += replica.config.misses_next and not is_served
            remove_all(passed_over, victim)
            preempt(replica, requests, victim)
            has_preempted = True
            if victim == index:
                tokens = 0
                break
        if not tokens:
            if replica.has_priorities and not replica.config.ends_pass:
                continue
            _pass_seats(replica, requests, seat, len(running))
            break
        budget -= tokens
        if is_prompt:
            replica.prefill_tokens += tokens
            chunks.append(index)
            sizes.append(tokens)
            keep_blocks(cache, index, done + min(tokens, remaining - cache.num_hidden))
        elif requests.status[index] == UNFINISHED:
            keep_decoded(replica, requests, index, replica.step)
        if num_missed:
            until = min(seat + num_missed, len(running))
            _pass_seats(replica, requests, seat, until)
            seat = until
    return has_preempted


def _pass_seats(replica: Replica, requests: RequestTable, seat: int, until: int) -> None:
    """Let the requests with these seats compute nothing in the step."""
    while seat < until:
        index = replica.running[seat]
        seat += 1
        is_decoding = not requests.computed_tokens[index] and requests.status[index] == UNFINISHED
        if is_decoding and index not in replica.departing:
            replica.passed_over.append(index)


def _is_beyond(replica: Replica, index: int) -> bool:
    """Return whether a finished request computes a step more."""
    return replica.departing_until[replica.departing.index(index)] > 0


def _has_blocks(replica: Replica, requests: RequestTable, index: int, tokens: int) -> bool:
    """Let a request give back the states that it has passed, and take what ``tokens`` tokens need, if that is free.

    One that is alone also gives back those that it has not: vLLM would preempt it forever.
    """
    cache = replica.cache
    assert cache is not None
    if requests.status[index] == UNFINISHED:
        pass_states(replica, index, known_context(replica, requests, index))
    else:
        pass_states(replica, index, known_beyond(replica, requests, index, tokens))
    if take_blocks_for(replica, index, tokens, cache.num_ahead):
        return True
    if len(replica.running) > 1 or cache.has_windows:
        return False
    pass_states(replica, index, _ALL)
    return take_blocks_for(replica, index, tokens, cache.num_ahead)
