"""Preemption by swap: the KV blocks of a victim are copied to host memory, and back before it decodes again.

vLLM's rules before V1: a swapped request stands at the head of the queue, comes back as soon as a seat and its blocks
are free and nobody has just been preempted, and decodes in that very step. Copies take the seconds of the host link,
and the step that moves blocks waits for them. Where host memory is full, and for a request that still prefills, the
victim is computed again.
"""

from __future__ import annotations

from simserve.engine.decoding import growth_of_step, join_decoding
from simserve.engine.state import RETURNED, Replica, RequestTable


def swap_out(replica: Replica, requests: RequestTable, index: int, context: int) -> None:
    """Copy the ``context`` tokens of a preempted request to host memory, if there is room."""
    blocks = -(-context // replica.block_size)
    if blocks > replica.free_swap_blocks:
        return
    replica.free_swap_blocks -= blocks
    replica.moved_blocks += blocks
    requests.swapped_tokens[index] = context


def swap_in(replica: Replica, requests: RequestTable) -> bool:
    """Bring swapped requests back from the head of the queue while they fit; return whether any came."""
    waiting, block_size = replica.waiting, replica.block_size
    has_come = False
    while waiting and replica.num_running + len(replica.departing) < replica.max_num_seqs:
        index = waiting[0]
        context = requests.swapped_tokens[index]
        # Its blocks, and one more if its next token opens one.
        if not context or growth_of_step(replica) - (-(context + 1) // block_size) > replica.free_blocks:
            break
        waiting.popleft()
        last_token_time = requests.last_token_time[index]
        join_decoding(replica, requests, index, context, requests.generated_tokens[index])
        # Its next gap reaches back to before it was swapped out; the leap that begins counts for the others alone.
        requests.last_token_time[index] = last_token_time
        requests.joined_leap[index] = replica.leap_index + 1
        replica.swapped_in.append(index)
        blocks = forget_swap(replica, requests, index)
        replica.free_blocks -= blocks
        replica.moved_blocks += blocks
        replica.running.append(index)
        replica.num_running += 1
        if replica.batch_log is not None:
            replica.batch_log.extend((index, replica.start_time, RETURNED))
        has_come = True
    return has_come


def forget_swap(replica: Replica, requests: RequestTable, index: int) -> int:
    """Free the host memory of a request that comes back, or gives up; return its blocks."""
    blocks = -(-requests.swapped_tokens[index] // replica.block_size)
    replica.free_swap_blocks += blocks
    requests.swapped_tokens[index] = 0
    return blocks


def end_swaps(replica: Replica, requests: RequestTable, num_decodes: int) -> None:
    """Count the gaps of the step in which requests came back, or decode again that the step before passed over.

    Such a step is alone in its leap. The gaps of the others are counted too, unless they were stalled.
    """
    now, sending = replica.end_time, replica.api_token_seconds * num_decodes
    for position in range(len(replica.swapped_in)):
        index = replica.swapped_in[position]
        gap = max(now - requests.last_token_time[index], sending)
        replica.irregular_gaps.extend((gap, 1.0))
        if gap > requests.itl_max[index]:
            requests.itl_max[index] = gap
    others = num_decodes - len(replica.swapped_in)
    if others and not replica.stall_step_runs:
        replica.irregular_gaps.extend((max(replica.first_seconds, sending), float(others)))
    replica.swapped_in.clear()
