"""KV memory of one replica: what a request takes at admission, and how it comes back.

Growing allocations (paged, on demand) are counted by the kernel in residues of the block size; here are the
fixed ones: reservations of all of ``max_tokens``, slots, and contiguous ranges by first fit.
"""

from __future__ import annotations

from simserve.engine.state import UNCACHED, Replica, RequestTable


def fixed_need(replica: Replica, requests: RequestTable, index: int) -> int:
    """Return what a request takes at admission when its allocation does not grow: blocks, slots or tokens.

    ``oracle`` is the one allocation that may look at the true output length (DESIGN section 3).
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

    ``shared`` of its blocks are in use by others already.
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
    """Return whether a request that got no range would fit in the free memory if it were in one piece."""
    return replica.is_contiguous and free_tokens(replica) >= fixed_need(replica, requests, index)


def free_tokens(replica: Replica) -> int:
    """Return the tokens of all free ranges together."""
    return sum(length for _, length in replica.free_ranges)


def release_fixed(replica: Replica, requests: RequestTable, index: int) -> None:
    """Give back a request's fixed allocation; neighbouring free ranges merge."""
    need = fixed_need(replica, requests, index)
    if replica.is_contiguous:
        release_range(replica, requests, index, need)
    else:
        replica.free_blocks += need


def release_range(replica: Replica, requests: RequestTable, index: int, need: int) -> None:
    """Give back a range; neighbouring free ranges merge."""
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


def used_tokens(replica: Replica) -> int:
    """Return the KV tokens reserved now."""
    config = replica.config
    if replica.is_contiguous:
        return config.num_blocks * config.block_size - free_tokens(replica)
    if replica.mode == UNCACHED:
        return 0
    per_block = config.max_model_len if replica.has_slots else config.block_size
    return (replica.num_blocks - replica.free_blocks) * per_block


def kv_share(replica: Replica, now: float) -> float:
    """Return the share of KV memory that is reserved at ``now``, inside a leap too; 0 without a KV cache.

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
        if replica.chunk_requests:
            used += replica.prefill_tokens * max(steps, 1.0)
    return min(used / capacity, 1.0)
