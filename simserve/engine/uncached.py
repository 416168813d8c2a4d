"""Serving without a KV cache: every step computes the whole prefix of every request again.

The context lengths enter squared, so a step is never affine: one step a plan.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from simserve.engine.decoding import keep_largest_gap, push_gap
from simserve.engine.state import (
    ADMITTED,
    BLOCKED_BY_NOTHING,
    BLOCKED_BY_SEATS,
    COMPLETED,
    FINISHED,
    INFINITY,
    MASK,
    SHIFT,
    Replica,
    RequestTable,
    leap_row,
)


def plan_uncached(replica: Replica, requests: RequestTable) -> None:
    """Plan one step over all running requests and those that find a seat."""
    now = replica.start_time = replica.end_time
    waiting, chunks = replica.waiting, replica.chunk_requests
    chunks.clear()
    tokens = int(replica.context_sum) + replica.num_decoding
    pairs = (replica.context_squares + 3 * replica.context_sum + 2 * replica.num_decoding) * 0.5
    while waiting and replica.num_running < replica.max_num_seqs:
        index = waiting.popleft()
        chunks.append(index)
        replica.num_running += 1
        length = requests.prompt_tokens[index]
        tokens += length
        pairs += length * (length + 1) * 0.5
        requests.scheduled_time[index] = now
        if replica.batch_log is not None:
            replica.batch_log.extend((index, now, ADMITTED))
        requests.replica_id[index] = replica.identity
    replica.num_queued = len(waiting)
    replica.late_arrivals_sum = 0.0
    if not replica.num_running:
        replica.end_time = INFINITY
        replica.gap_step_runs.clear()
        replica.gap_values.clear()
        return
    replica.first_seconds = prefill_seconds(replica, replica.num_running, tokens, pairs, tokens)
    replica.increment_seconds = 0.0
    replica.num_steps = 1
    replica.end_time = now + replica.first_seconds
    replica.prefill_tokens = replica.priced_tokens = tokens
    replica.attended_pairs, replica.attended_keys = pairs, float(tokens)


def prefill_seconds(replica: Replica, num_sequences: int, tokens: int, pairs: float, keys: float) -> float:
    """Return the seconds of a step that computes ``tokens`` of ``num_sequences`` prefixes and reads ``keys``."""
    times, token_seconds = replica.times, replica.token_seconds
    if tokens < len(token_seconds):
        seconds = token_seconds[tokens]
    else:
        seconds = token_seconds[-1] + times.token_seconds_beyond * (tokens - len(token_seconds) + 1)
    return (
        seconds
        + replica.sequence_seconds[num_sequences]
        + times.prefill_request_seconds * num_sequences
        + times.prefill_pair_seconds * pairs
        + times.prefill_context_seconds * keys
    )


def complete_uncached(replica: Replica, requests: RequestTable) -> int:
    """Apply the step: one token for every request in it; return how many finished."""
    now, num_decoding = replica.end_time, replica.num_decoding
    replica.step_runs.extend(
        leap_row(
            replica.start_time,
            1,
            replica.first_seconds,
            0.0,
            0,
            0,
            replica.prefill_tokens,
            replica.num_running,
            replica.priced_tokens,
            replica.attended_pairs,
            replica.attended_keys,
            num_decoding,
            num_decoding,
            0,
            0,
            0,
            len(replica.waiting) * now - replica.num_queued * replica.start_time - replica.late_arrivals_sum,
            BLOCKED_BY_SEATS if replica.num_running >= replica.max_num_seqs else BLOCKED_BY_NOTHING,
        )
    )
    replica.num_steps = 0
    leap = replica.leap_index
    replica.leap_index = leap + 1
    if num_decoding:
        push_gap(replica, leap, replica.first_seconds)
        replica.context_squares += 2 * int(replica.context_sum) + num_decoding
        replica.context_sum += num_decoding
    replica.step += 1
    num_finished = 0
    for index in replica.chunk_requests:
        requests.first_token_time[index] = now
        remaining = requests.output_tokens[index] - 1
        if not remaining:
            _finish(replica, requests, index, 0)
            num_finished += 1
            continue
        length = requests.prompt_tokens[index]
        requests.joined_leap[index] = leap + 1
        requests.context_base[index] = length - replica.step
        requests.finish_step[index] = replica.step + remaining
        heappush(replica.finish_heap, (replica.step + remaining) << SHIFT | index)
        replica.num_decoding += 1
        replica.context_sum += length
        replica.context_squares += length * length
    heap = replica.finish_heap
    while heap and heap[0] >> SHIFT == replica.step:
        index = heappop(heap) & MASK
        _finish(replica, requests, index, requests.context_base[index] + replica.step)
        num_finished += 1
    return num_finished


def leave_uncached(replica: Replica, requests: RequestTable, index: int) -> None:
    """Take an unfinished request out, from the queue or from what runs, between two steps; its row keeps its tokens."""
    finish_step = requests.finish_step[index]
    entry = finish_step << SHIFT | index
    replica.num_outstanding -= 1
    if entry not in replica.finish_heap:
        replica.waiting.remove(index)
        return
    context = requests.context_base[index] + replica.step
    replica.num_decoding -= 1
    replica.context_sum -= context
    replica.context_squares -= context * context
    keep_largest_gap(replica, requests, index)
    replica.finish_heap.remove(entry)
    heapify(replica.finish_heap)
    replica.num_running -= 1
    requests.generated_tokens[index] = requests.output_tokens[index] - (finish_step - replica.step)


def _finish(replica: Replica, requests: RequestTable, index: int, context: int) -> None:
    if context:
        replica.num_decoding -= 1
        replica.context_sum -= context
        replica.context_squares -= context * context
        keep_largest_gap(replica, requests, index)
    requests.finish_time[index] = replica.end_time
    requests.generated_tokens[index] = requests.output_tokens[index]
    requests.status[index] = COMPLETED
    if replica.batch_log is not None:
        replica.batch_log.extend((index, replica.end_time, FINISHED))
    replica.num_running -= 1
    replica.num_outstanding -= 1
    if replica.finished is not None:
        replica.finished.append(index)
