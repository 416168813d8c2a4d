"""KV memory of one replica: what admission requires of it, what a request takes, and how it comes back.

The kernel counts growing allocations (paged, on demand) in residues of the block size. Here are the fixed ones:
reservations of all of ``max_tokens``, slots, and contiguous ranges by first fit.

What admission requires of growing KV memory: blocks for the next chunk, or SGLang's decaying estimate.

Knows the free blocks and what the running requests may still need, never the true output lengths.
"""

from __future__ import annotations

from simserve.engine.state import ESTIMATE_CLIP, UNCACHED, Replica, RequestTable
from simserve.engine.windows import most_window_blocks


def fixed_need(replica: Replica, requests: RequestTable, index: int) -> int:
    """Return what a request takes at admission when its allocation does not grow: blocks, slots or tokens.

    Only the allocation ``oracle`` may look at the true output length (DESIGN section 3).
    """
    config = replica.config
    prompt = requests.prompt_tokens[index]
    if not replica.is_contiguous:
        if replica.has_slots:
            return 1
        return -(-(prompt + requests.max_tokens[index] + config.num_speculative_tokens) // config.block_size)
    return range_need(replica, requests, index)


def range_need(replica: Replica, requests: RequestTable, index: int) -> int:
    """Return the tokens of a request's range of contiguous KV memory."""
    config = replica.config
    prompt = requests.prompt_tokens[index]
    if config.kv_allocation == "oracle":
        return prompt + requests.output_tokens[index]
    power = 1 << (requests.max_tokens[index] - 1).bit_length()
    return min(prompt + power, config.max_model_len)


def take_fixed(replica: Replica, requests: RequestTable, index: int, shared: int = 0) -> bool:
    """Take a request's fixed allocation; return False, with nothing taken, if it is not free.

    ``shared`` of its blocks are already in use by others.
    """
    need = fixed_need(replica, requests, index) - shared
    if not replica.is_contiguous:
        if need > replica.free_blocks:
            return False
        replica.free_blocks -= need
        return True
    return take_range(replica, requests, index, need)


def take_range(replica: Replica, requests: RequestTable, index: int, need: int) -> bool:
    """Take the first free range that is long enough; return False if there is none."""
    ranges = replica.free_ranges
    for position, (start, length) in enumerate(ranges):
        if length >= need:
            if length == need:
                del ranges[position]
            else:
                ranges[position] = (start + need, length - need)
            requests.range_start[index] = start
            return True
    return False


def is_scattered(replica: Replica, requests: RequestTable, index: int) -> bool:
    """Return whether a request that got no range would fit in the free memory if that were contiguous."""
    return replica.is_contiguous and free_tokens(replica) >= fixed_need(replica, requests, index)


def free_tokens(replica: Replica) -> int:
    """Return the tokens of all free ranges together."""
    return sum(length for _, length in replica.free_ranges)


def release_fixed(replica: Replica, requests: RequestTable, index: int) -> None:
    """Return a request's fixed allocation; neighbouring free ranges merge."""
    need = fixed_need(replica, requests, index)
    if replica.is_contiguous:
        release_range(replica, requests, index, need)
    else:
        replica.free_blocks += need


def release_range(replica: Replica, requests: RequestTable, index: int, need: int) -> None:
    """Return a range; neighbouring free ranges merge."""
    start = requests.range_start[index]
    ranges = replica.free_ranges
    position = 0
    while position < len(ranges) and ranges[position][0] < start:
        position += 1
    end = start + need
    if position < len(ranges) and ranges[position][0] == end:
        end += ranges.pop(position)[1]
    if position and sum(ranges[position - 1]) == start:
        start = ranges[position - 1][0]
        ranges[position - 1] = (start, end - start)
    else:
        ranges.insert(position, (start, end - start))


def unused_blocks(replica: Replica, requests: RequestTable, free: int) -> int:
    """Return the blocks that no request has taken: ``free`` ones, and where blocks are taken lazily, reserved ones."""
    cache = replica.cache
    if not replica.takes_lazily or cache is None:
        return free
    block_size, step = replica.block_size, replica.step
    # The blocks of decoding requests: their contexts, each up to the end of a block.
    padded = int(replica.context_sum)
    for residue in range(block_size):
        padded += replica.residues[residue] * ((residue - step) % block_size)
    taken = padded // block_size
    for position in range(len(replica.prefilling)):
        taken += -(-requests.prompt_tokens[replica.prefilling[position]] // block_size)
    for position in range(len(replica.departing)):
        taken += -(-replica.departing_tokens[position] // block_size)
    return replica.num_blocks + cache.num_duplicates - taken


def blocks_taken(replica: Replica, requests: RequestTable, index: int, tokens: int, free_blocks: int) -> int:
    """Return how many blocks a request has taken that leaves with ``tokens`` computed.

    What it had reserved has been released; before that there were ``free_blocks``.
    """
    if not replica.takes_lazily:
        return replica.free_blocks - free_blocks
    return -(-max(tokens, requests.prompt_tokens[index]) // replica.block_size)


def prompt_blocks(replica: Replica, requests: RequestTable, index: int, computed: int) -> int:
    """Return the blocks that a growing request holds which has computed ``computed`` tokens of its prompt."""
    if replica.has_whole_prompts:
        computed = requests.prompt_tokens[index] + requests.generated_tokens[index]
    return -(-computed // replica.block_size)


def used_tokens(replica: Replica) -> int:
    """Return the KV tokens currently reserved."""
    config = replica.config
    if replica.is_contiguous:
        return config.num_blocks * config.block_size - free_tokens(replica)
    if replica.mode == UNCACHED:
        return 0
    per_block = config.max_model_len if replica.has_slots else config.block_size
    return (replica.num_blocks - replica.free_blocks) * per_block


def kv_share(replica: Replica, now: float) -> float:
    """Return the share of KV memory reserved at ``now``, also inside a leap; 0 without a KV cache.

    Inside a leap the blocks that its decodes take are counted in proportion to the time that has passed.
    """
    config = replica.config
    capacity = config.num_blocks * config.block_size
    if replica.mode == UNCACHED or not capacity:
        return 0.0
    used = float(used_tokens(replica))
    if replica.grows and replica.num_steps:
        passed = (now - replica.start_time) / (replica.end_time - replica.start_time)
        steps = replica.num_steps * min(max(passed, 0.0), 1.0)
        used += replica.num_scheduled_decodes * steps
        if replica.chunk_requests and replica.has_whole_prompts:
            used += replica.scheduled_blocks * replica.block_size
        elif replica.chunk_requests:
            used += replica.prefill_tokens * max(steps, 1.0)
    return min(used / capacity, 1.0)


def estimate_of(requests: RequestTable, index: int) -> int:
    """Return the most new tokens that SGLang expects of a request that is not decoding yet."""
    return min(requests.max_tokens[index] - requests.generated_tokens[index], ESTIMATE_CLIP)


def estimated_room(replica: Replica, free: int, free_window: int) -> float:
    """Return the tokens left free by SGLang's estimate for the requests that its batch decodes, or still holds.

    Args:
        replica: The replica.
        free: Free blocks.
        free_window: The same in the windows' own pool, if they have one.
    """
    if replica.keeps_windows:
        free //= replica.block_weight
        if replica.has_window_pool:
            free = min(free, free_window)
    expected = replica.estimate_sum + replica.left_estimate + replica.late_estimate
    ratio = 1.0 if replica.config.expects_max_tokens else replica.new_token_ratio
    return free * replica.block_size - ratio * expected


def is_passed_over(replica: Replica, budget: int, free: int, free_window: int, uncommitted: int) -> bool:
    """Return whether no request is tried once the budget is spent: SGLang 0.5.23, if its estimate leaves room."""
    if budget > 0 or not replica.config.strikes_at_once:
        return False
    return estimated_room(replica, free, free_window) - uncommitted > 0


def page_reserve(replica: Replica) -> int:
    """Return the tokens that admission requires beyond those of a request."""
    return replica.block_size if replica.config.reserves_page else 0


def has_room(
    replica: Replica,
    requests: RequestTable,
    index: int,
    need: int,
    free: int,
    free_window: int,
    uncommitted: int,
    cached: int = 0,
) -> bool:
    """Return whether the blocks suffice to admit the head of the queue.

    Args:
        replica: The replica; its free blocks are passed as ``free`` because this step has taken some.
        requests: The table.
        index: The head of the queue.
        need: Blocks of its first chunk, without those of the cached prefix that it shares.
        free: Blocks free after everything that this step takes already, and with the cached prefix in use.
        free_window: The same in the windows' own pool, if they have one.
        uncommitted: ``estimate``: tokens that the prefilling requests may still take.
        cached: Tokens of its cached prefix.
    """
    config = replica.config
    if replica.uses_estimate:
        if need > free:
            return False
        if not (replica.num_running or replica.departing):
            return True
        target = requests.prompt_tokens[index] + requests.generated_tokens[index] - cached
        room = estimated_room(replica, free, free_window) - uncommitted
        return target + estimate_of(requests, index) + page_reserve(replica) < room
    if config.reserve_full_prompt:
        target = requests.prompt_tokens[index] + requests.generated_tokens[index] - cached
        whole = -(-target // config.block_size)
        if replica.keeps_windows:
            found = min(cached // config.block_size, replica.window_blocks)
            windowed = most_window_blocks(replica, whole + found)
            if replica.has_window_pool and windowed > free_window:
                return False
            need = max(need, replica.full_weight * whole + replica.window_weight * windowed)
        else:
            need = max(need, whole)
    return free - need >= (config.watermark_blocks if replica.num_running or replica.departing else 0)


def note_full(replica: Replica) -> None:
    """Record that the head of the queue was refused: SGLang tries no request again until its batch has shrunk.

    Its ``batch_is_full`` (managers/scheduler.py, 0.4.6 to 0.5.18) is lost if no request decodes, and if requests are
    preempted for others of a better priority.
    """
    if replica.keeps_full and (replica.num_decoding or replica.num_left or replica.departing):
        replica.is_full = True


def note_left(replica: Replica, requests: RequestTable, index: int) -> None:
    """Record that a request stopped decoding: SGLang's batch holds it until the next decode step (``filter_batch``).

    With ``strikes_at_once`` it has left before the next step is scheduled, and the queue is tried again.
    """
    if replica.config.strikes_at_once:
        replica.is_full = False
    elif replica.keeps_full:
        replica.num_left += 1
        replica.left_estimate += estimate_of(requests, index)


def forget_left(replica: Replica, is_decode: bool) -> None:
    """Remove those from the batch: a step decodes. After a step that only decodes, the queue is tried again."""
    replica.num_left = 0
    replica.left_estimate = 0
    if is_decode:
        replica.is_full = False
