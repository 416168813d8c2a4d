"""Static batching: collect up to a size or a wait, pad to the longest, answer together. And serving without a KV cache.

A batch is one plan. When it ends, it is recorded as one leap for its prefill and one for its decode steps; no request
gets a token before the end, so TTFT equals E2E and inter-token gaps are undefined. Without a KV cache every step
computes the whole prefix of every request again: the context lengths enter squared, so a step is never affine, and a
plan is one step.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from simserve.engine.decoding import keep_largest_gap, push_gap
from simserve.engine.state import (
    ADMITTED,
    BLOCKED_BY_BLOCKS,
    BLOCKED_BY_NOTHING,
    BLOCKED_BY_SEATS,
    COMPLETED,
    FINISHED,
    INFINITY,
    MASK,
    SHIFT,
    Replica,
    RequestTable,
    end_row,
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
            0,
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
    """Remove an unfinished request, waiting or running, between two steps; its row keeps its tokens."""
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


def submit_static(replica: Replica, requests: RequestTable, index: int, now: float) -> None:
    """Queue a request; an idle replica starts now if the batch is full, else when the first has waited long enough."""
    replica.waiting.append(index)
    replica.num_outstanding += 1
    replica.late_arrivals_sum += now
    if not replica.num_steps and now < replica.end_time:
        # A request that waited in front of the replicas may already have waited long enough.
        replica.end_time = now if _is_full(replica) else max(now, _latest_start(replica, requests))


def plan_static(replica: Replica, requests: RequestTable) -> None:
    """Start a batch at ``end_time`` if one is due, else wait for it."""
    now = replica.end_time
    waiting = replica.waiting
    if not waiting:
        replica.end_time = INFINITY
        return
    latest = _latest_start(replica, requests)
    if not _is_full(replica) and now < latest:
        replica.end_time = latest
        return
    replica.start_time = now
    batch = replica.chunk_requests
    batch.clear()
    size = _batch_size(replica, requests)
    for _ in range(size):
        index = waiting.popleft()
        batch.append(index)
        requests.scheduled_time[index] = now
        if replica.batch_log is not None:
            replica.batch_log.extend((index, now, ADMITTED))
        requests.replica_id[index] = replica.identity
    replica.num_running = size
    replica.num_queued = len(waiting)
    replica.late_arrivals_sum = 0.0
    replica.blocked_by = BLOCKED_BY_NOTHING
    if waiting:
        full = size == min(replica.config.static_batch_size, replica.max_num_seqs)
        replica.blocked_by = BLOCKED_BY_SEATS if full else BLOCKED_BY_BLOCKS
    replica.num_steps = max(requests.output_tokens[index] for index in batch)
    replica.end_time = now + _record_batch(replica, requests, size)
    replica.free_blocks = replica.num_blocks - _held_blocks(replica, requests)


def complete_static(replica: Replica, requests: RequestTable) -> int:
    """Answer all requests of the batch; return how many."""
    if not replica.num_steps:
        return 0
    for row in replica.batch_rows:
        replica.step_runs.extend(leap_row(*row))
    replica.batch_rows.clear()
    # The number of requests that waited meanwhile is known now.
    late = len(replica.waiting) * replica.end_time - replica.late_arrivals_sum
    if replica.waiting and replica.blocked_by == BLOCKED_BY_NOTHING:
        replica.blocked_by = BLOCKED_BY_SEATS
    end_row(replica.step_runs, late - replica.num_queued * replica.start_time, replica.blocked_by)
    for index in replica.chunk_requests:
        requests.first_token_time[index] = requests.finish_time[index] = replica.end_time
        requests.generated_tokens[index] = requests.output_tokens[index]
        requests.status[index] = COMPLETED
        if replica.batch_log is not None:
            replica.batch_log.extend((index, replica.end_time, FINISHED))
        if replica.finished is not None:
            replica.finished.append(index)
    size = len(replica.chunk_requests)
    replica.num_steps = replica.num_running = 0
    replica.free_blocks = replica.num_blocks
    replica.num_outstanding -= size
    replica.chunk_requests.clear()
    return size


def break_batch(replica: Replica, now: float) -> None:
    """Let the batch end, unanswered, with the step running at ``now``; its requests wait again, at the front.

    Does nothing if no batch runs. The requests start from the beginning in the next batch, if there is one.
    """
    rows = replica.batch_rows
    if not rows or not replica.num_steps:
        return
    while len(rows) > 1 and rows[-1][0] >= now:
        rows.pop()
    start, num_steps, first, increment, *rest = rows[-1]
    steps = 1
    while steps < num_steps and start + first * steps + increment * (steps * (steps - 1) * 0.5) < now:
        steps += 1
    rows[-1] = (start, steps, first, increment, *rest)
    replica.end_time = start + first * steps + increment * (steps * (steps - 1) * 0.5)
    batch = replica.chunk_requests
    # The requests of the batch have not waited meanwhile.
    replica.late_arrivals_sum += len(batch) * replica.end_time
    for index in reversed(batch):
        replica.waiting.appendleft(index)
    replica.num_running = 0
    batch.clear()


def leave_batch(replica: Replica, index: int) -> None:
    """Remove a request from the queue, between two batches."""
    replica.waiting.remove(index)
    replica.num_outstanding -= 1


def _is_full(replica: Replica) -> bool:
    return len(replica.waiting) >= replica.config.static_batch_size


def _latest_start(replica: Replica, requests: RequestTable) -> float:
    return requests.ready_time[replica.waiting[0]] + replica.config.static_max_wait


def _batch_size(replica: Replica, requests: RequestTable) -> int:
    """Return how many from the head of the queue fit: seats, and KV for all padded to the longest."""
    config = replica.config
    most = min(config.static_batch_size, config.max_num_seqs)
    capacity = config.num_blocks * config.block_size
    longest_prompt = longest_output = size = 0
    for index in replica.waiting:
        longest_prompt = max(longest_prompt, requests.prompt_tokens[index])
        longest_output = max(longest_output, requests.max_tokens[index])
        slot = _slot(replica, longest_prompt, longest_output)
        if size and (size >= most or (size + 1) * slot > capacity):
            break
        size += 1
    return size


def _slot(replica: Replica, prompt: int, output: int) -> int:
    """Return the KV tokens of one padded sequence."""
    config = replica.config
    if config.kv_allocation == "none":
        return 0
    if config.kv_allocation == "static":
        return config.max_model_len
    return config.block_size * -(-(prompt + output) // config.block_size)


def _record_batch(replica: Replica, requests: RequestTable, size: int) -> float:
    """Prepare the record of the batch as leaps, for when it ends; return its seconds."""
    batch = replica.chunk_requests
    prompt = max(requests.prompt_tokens[index] for index in batch)
    slot = _slot(replica, prompt, max(requests.max_tokens[index] for index in batch))
    held = sum(requests.prompt_tokens[index] for index in batch)
    now, used = replica.start_time, size * slot
    if replica.config.kv_allocation == "none":
        for step in range(replica.num_steps):
            length = prompt + step
            tokens, pairs = size * length, size * length * (length + 1) * 0.5
            seconds = prefill_seconds(replica, size, tokens, pairs, tokens)
            _record(replica, now, 1, seconds, 0.0, 0, 0, tokens, size, tokens, pairs, tokens, 0, 0)
            now += seconds
        return now - replica.start_time
    pipeline = replica.config.pipeline_parallel_size
    tokens = size * prompt
    priced = max(tokens, pipeline * prompt)
    own = prompt * (prompt + 1) * 0.5
    pairs, keys = max(size * own / pipeline, own), max(size * prompt / pipeline, prompt)
    seconds = prefill_seconds(replica, size, priced, pairs, keys)
    # Held before the leap: the recorder adds the padded prompts, of which only the true tokens are held.
    _record(replica, now, 1, seconds, 0.0, 0, 0, tokens, size, priced, pairs, keys, held - tokens, used)
    now += seconds
    num_decodes = replica.num_steps - 1
    if num_decodes:
        slope = replica.decode_slope[size]
        first = replica.decode_base[size] + slope * tokens
        increment = slope * size
        padding = size * (num_decodes + 1) / 2 - _mean_answers(replica, requests, num_decodes)
        _record(replica, now, num_decodes, first, increment, size, tokens, 0, 0, size, 0.0, 0.0, held - padding, used)
        now += first * num_decodes + increment * (num_decodes * (num_decodes - 1) * 0.5)
    return now - replica.start_time


def _held_blocks(replica: Replica, requests: RequestTable) -> int:
    """Return the blocks, or slots, that the batch takes."""
    batch = replica.chunk_requests
    if replica.config.kv_allocation == "none" or replica.has_slots:
        return len(batch) if replica.has_slots else 0
    prompt = max(requests.prompt_tokens[index] for index in batch)
    slot = _slot(replica, prompt, max(requests.max_tokens[index] for index in batch))
    return min(len(batch) * slot // replica.block_size, replica.num_blocks)


def _mean_answers(replica: Replica, requests: RequestTable, num_decodes: int) -> float:
    """Return the tokens of true answers in the KV cache, a mean over the decode steps: padding holds none."""
    total = 0.0
    for index in replica.chunk_requests:
        own = requests.output_tokens[index] - 1
        total += own * (own + 1) / 2 + (num_decodes - own) * own
    return total / num_decodes


def _record(
    replica: Replica,
    start: float,
    num_steps: int,
    first: float,
    increment: float,
    num_decoding: int,
    context: int,
    prefill_tokens: int,
    num_prefilling: int,
    priced: int,
    pairs: float,
    keys: float,
    held: float,
    used: int,
) -> None:
    row = (start, num_steps, first, increment, num_decoding, context, prefill_tokens, num_prefilling, priced)
    replica.batch_rows.append((*row, 0, pairs, keys, 0, 0, held, used, used, 0.0, replica.blocked_by))
