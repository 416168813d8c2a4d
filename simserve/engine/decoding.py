"""Joining and leaving the decoding requests of a replica: the aggregates that let a leap skip over tokens."""

from __future__ import annotations

from heapq import heappush

from simserve.engine.gaps import keep_largest_gap
from simserve.engine.kv import release_fixed
from simserve.engine.progress import GRID
from simserve.engine.state import COMPLETED, ESTIMATE_CLIP, SHIFT, Replica, RequestTable


def join_decoding(replica: Replica, requests: RequestTable, index: int, context: int, generated: int) -> None:
    """Let a request decode from the next step on.

    Args:
        replica: The replica.
        requests: The table.
        index: The request.
        context: Its tokens in the KV cache.
        generated: Its tokens generated, at least one and fewer than all.
    """
    step = replica.step
    progress = replica.progress
    advance: float = 1
    if progress is None:
        base = context - step
        finish_step = step + requests.output_tokens[index] - generated
    else:
        pace = requests.pace[index]
        base = GRID * context - pace * step
        finish_step = step - (GRID * (generated - requests.output_tokens[index]) // pace)
        advance = pace / GRID
        requests.joined_step[index] = step
        progress.join(base, pace, step)
    requests.context_base[index] = base
    requests.finish_step[index] = finish_step
    requests.joined_leap[index] = replica.leap_index
    requests.last_token_time[index] = replica.end_time
    replica.num_decoding += 1
    replica.context_sum += context
    heappush(replica.finish_heap, finish_step << SHIFT | index)
    if replica.grows:
        if progress is None:
            block_size = replica.block_size
            residue = -base % block_size
            replica.residues[residue] += 1
            replica.residues[residue + block_size] += 1
        if replica.uses_estimate:
            most = requests.max_tokens[index]
            if most > ESTIMATE_CLIP:
                replica.estimate_sum += ESTIMATE_CLIP
            else:
                replica.estimate_sum += most - generated
                replica.estimate_shrinking += advance


def finish_decoding(replica: Replica, requests: RequestTable, index: int) -> None:
    """Let a request leave the decoding ones: it has all its tokens."""
    keep_largest_gap(replica, requests, index)
    output = requests.output_tokens[index]
    leave_decoding(replica, requests, index, context_of(replica, requests, index), output)
    finish(replica, requests, index)


def leave_decoding(replica: Replica, requests: RequestTable, index: int, context: float, generated: float) -> None:
    """Take a request out of the aggregates of the decoding ones, and its growing blocks with it."""
    replica.num_decoding -= 1
    replica.context_sum -= context
    advance: float = 1
    held = 0
    if replica.progress is not None:
        pace = requests.pace[index]
        held = replica.progress.leave(requests.context_base[index], pace, replica.step, requests.joined_step[index])
        advance = pace / GRID
        generated = context - requests.prompt_tokens[index] + 1
    if replica.grows:
        if replica.progress is None:
            block_size = replica.block_size
            held = int(-(-context // block_size))
            residue = -requests.context_base[index] % block_size
            replica.residues[residue] -= 1
            replica.residues[residue + block_size] -= 1
        replica.free_blocks += held
        if replica.uses_estimate:
            most = requests.max_tokens[index]
            if most > ESTIMATE_CLIP:
                replica.estimate_sum -= ESTIMATE_CLIP
            else:
                replica.estimate_sum -= most - generated
                replica.estimate_shrinking -= advance


def finish(replica: Replica, requests: RequestTable, index: int) -> None:
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


def context_of(replica: Replica, requests: RequestTable, index: int) -> float:
    """Return the KV tokens of a decoding request; with speculative decoding its mean progress, not a whole number."""
    if replica.progress is None:
        return requests.context_base[index] + replica.step
    return (requests.context_base[index] + requests.pace[index] * replica.step) / GRID


def generated_by_now(replica: Replica, requests: RequestTable, index: int) -> int:
    """Return the whole tokens that a decoding request has generated, before its last step."""
    if replica.progress is None:
        return requests.output_tokens[index] - (requests.finish_step[index] - replica.step)
    context = (requests.context_base[index] + requests.pace[index] * replica.step) // GRID
    return context - requests.prompt_tokens[index] + 1


def growth_of_step(replica: Replica) -> int:
    """Return the blocks that the next step's decodes take."""
    if replica.progress is None:
        return replica.residues[replica.step % replica.block_size]
    return replica.progress.growth(replica.step, 1)


def steps_until_dry(replica: Replica) -> int:
    """Return for how many steps the free blocks cover the growth of the decoding requests."""
    block_size, residues = replica.block_size, replica.residues
    cycles, free = divmod(replica.free_blocks, replica.num_decoding)
    offset = replica.step % block_size
    extra = 0
    while extra < block_size and residues[offset + extra] <= free:
        free -= residues[offset + extra]
        extra += 1
    return cycles * block_size + extra
