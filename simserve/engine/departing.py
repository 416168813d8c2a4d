"""Requests that are done and still hold their seat and blocks: asynchronous scheduling, as vLLM has it from 0.14.

Step n + 1 is scheduled while step n runs, before anybody knows who is done in n. Who is done keeps its seat and its
blocks until then, computes nothing in n + 1, may be preempted to make room (and is answered all the same), and is
gone when n + 2 is scheduled. Who is preempted has a token on its way, whose block is not in the prefix cache yet.
"""

from __future__ import annotations

from simserve.engine.kv import release_fixed
from simserve.engine.prefix_cache import cache_blocks, forget_decoder, leave_prefix, note_contests
from simserve.engine.state import UNFINISHED, Replica, RequestTable


def depart(replica: Replica, index: int, tokens: int, free_blocks: int, free_window_blocks: int) -> None:
    """Let a finished request hold what its end has freed, until `release_departing`.

    Args:
        replica: The replica, on which the request's growing blocks count as free already.
        index: The request.
        tokens: What it has in the KV cache.
        free_blocks: Blocks that were free before.
        free_window_blocks: Likewise in the pool of layers with a window.
    """
    hold_until_all_are_done(replica, index, tokens, free_blocks, free_window_blocks)
    cache = replica.cache
    if cache is not None and (cache.num_decoders or cache.contested):
        forget_decoder(cache, index)
        cache_blocks(cache, index, tokens - 1)
        note_contests(cache, index)


def hold_until_all_are_done(
    replica: Replica, index: int, tokens: int, free_blocks: int, free_window_blocks: int
) -> None:
    """Let a finished request hold its blocks, as of `depart`, until all have finished that do in this step."""
    replica.departing.append(index)
    replica.departing_tokens.append(tokens)
    replica.departing_blocks.append(replica.free_blocks - free_blocks)
    replica.departing_window_blocks.append(replica.free_window_blocks - free_window_blocks)
    replica.free_blocks = free_blocks
    replica.free_window_blocks = free_window_blocks


def release_departing(replica: Replica, requests: RequestTable) -> None:
    """Let all of them go, the one first that was admitted first: the next step is scheduled.

    The order is that in which what they leave in the prefix cache gives way (``update_from_output`` of vLLM).
    """
    is_ordered = replica.cache is not None and replica.cache.tree is None and len(replica.departing) > 1
    if is_ordered:
        forget_finished(replica, requests)
    if is_ordered and _num_seated(replica) == len(replica.departing):
        running = replica.running
        for seat in range(len(running)):
            index = running[seat]
            if index in replica.departing:
                position = replica.departing.index(index)
                _release(replica, requests, position, replica.departing_tokens[position])
    else:
        # Prompts that went on to a decode worker have no seat any more, and have ended in the order of their seats.
        for position in range(len(replica.departing)):
            _release(replica, requests, position, replica.departing_tokens[position])
    replica.departing.clear()
    replica.departing_tokens.clear()
    replica.departing_blocks.clear()
    replica.departing_window_blocks.clear()


def preempt_departing(replica: Replica, requests: RequestTable, index: int) -> None:
    """Let one of them go at once, since its blocks are needed; its last token is not in the cache yet."""
    position = replica.departing.index(index)
    tokens = max(replica.departing_tokens[position] - 1, requests.prompt_tokens[index])
    release_one(replica, requests, index, tokens)
    requests.num_preemptions[index] += 1


def release_one(replica: Replica, requests: RequestTable, index: int, tokens: int) -> None:
    """Let one of them go, with so many tokens in the cache."""
    position = replica.departing.index(index)
    _release(replica, requests, position, tokens)
    replica.departing.pop(position)
    replica.departing_tokens.pop(position)
    replica.departing_blocks.pop(position)
    replica.departing_window_blocks.pop(position)


def _release(replica: Replica, requests: RequestTable, position: int, tokens: int) -> None:
    index, free_blocks = replica.departing[position], replica.free_blocks
    replica.free_blocks += replica.departing_blocks[position]
    replica.free_window_blocks += replica.departing_window_blocks[position]
    if not replica.grows:
        release_fixed(replica, requests, index)
    if replica.cache is not None:
        leave_prefix(replica, index, tokens, replica.free_blocks - free_blocks)


def _num_seated(replica: Replica) -> int:
    """Return how many of the departing ones are still among those that could be preempted."""
    num_seated = 0
    for seat in range(len(replica.running)):
        if replica.running[seat] in replica.departing:
            num_seated += 1
    return num_seated


def forget_finished(replica: Replica, requests: RequestTable) -> None:
    """Strike those who are done off the list of those that could be preempted."""
    running = replica.running
    kept = 0
    for position in range(len(running)):
        index = running[position]
        if requests.status[index] == UNFINISHED or index in replica.departing:
            running[kept] = index
            kept += 1
    while len(running) > kept:
        running.pop()
