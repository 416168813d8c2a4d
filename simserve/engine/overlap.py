"""SGLang's overlapped loop: a step is launched before the results of the previous one are processed.

Step n + 1 is scheduled while step n runs, before the results of n are known. A request that finishes in n keeps its
seat and its blocks, is expected to go on, and decodes once more in n + 1 if that decodes. What n has computed joins the
radix tree once n + 1 is launched. A finished request has left the batch when the next step but one decodes, and a
request retracted in between loses the token that was on its way (``event_loop_overlap`` of 0.5.9).
"""

from __future__ import annotations

from math import nan

from simserve.engine.decoding import generated_by_now, growth_of_step, release_departing, release_one
from simserve.engine.kv import forget_left, note_left
from simserve.engine.numbers import remove_all
from simserve.engine.radix_tree import cache_computed, make_free
from simserve.engine.state import ESTIMATE_CLIP, LATE_DECODE, LATE_NOTHING, LATE_PROMPTS, Replica, RequestTable


def expect_results(replica: Replica, requests: RequestTable) -> None:
    """Count what is still expected of requests for tokens that they already have, but that are not known yet."""
    expected: float = replica.estimate_shrinking if replica.late_results == LATE_DECODE else 0
    departing = replica.departing
    for position in range(len(departing)):
        index = departing[position]
        expected += min(requests.max_tokens[index] - requests.output_tokens[index] + 1, ESTIMATE_CLIP)
    for position in range(len(replica.late_prompts)):
        index = replica.late_prompts[position]
        if index not in departing and requests.max_tokens[index] <= ESTIMATE_CLIP:
            expected += 1
    replica.late_estimate = expected


def decodes_beyond(replica: Replica, requests: RequestTable, index: int) -> bool:
    """Return whether a finished request decodes once more; 0.5.22 knows in advance which ones ``max_tokens`` ends."""
    return not replica.config.skips_ended or requests.output_tokens[index] < requests.max_tokens[index]


def growth_beyond(replica: Replica, requests: RequestTable) -> int:
    """Return the blocks that requests decoding beyond their end take in the next step."""
    growth = 0
    for position in range(len(replica.departing)):
        if not replica.departing_tokens[position] % replica.block_size:
            growth += decodes_beyond(replica, requests, replica.departing[position])
    return growth


def waits_for_results(replica: Replica, requests: RequestTable) -> bool:
    """Return whether ``max_tokens`` has ended any request, so that none is retracted before its blocks are free."""
    for position in range(len(replica.departing)):
        if not decodes_beyond(replica, requests, replica.departing[position]):
            return True
    return False


def is_in_flight(replica: Replica, index: int) -> bool:
    """Return whether the newest token of a decoding request is not known yet."""
    if replica.late_results == LATE_DECODE:
        return True
    return replica.late_results == LATE_PROMPTS and index in replica.late_prompts


def known_tokens(replica: Replica, requests: RequestTable, index: int) -> int:
    """Return the tokens that a request of the batch has generated, as far as the scheduler knows."""
    if index in replica.departing:
        return requests.output_tokens[index] - 1
    return generated_by_now(replica, requests, index) - is_in_flight(replica, index)


def lose_token(replica: Replica, requests: RequestTable, index: int) -> None:
    """Remove the token on its way from a request that is retracted."""
    if index in replica.late_prompts:
        replica.late_prompts.remove(index)
    if not requests.generated_tokens[index]:
        requests.first_token_time[index] = nan
        remove_all(replica.late_tokens, index)


def learn_results(replica: Replica, requests: RequestTable, is_launched: bool) -> bool:
    """Process the results of the step that has ended, now that the next one is scheduled.

    Args:
        replica: The replica.
        requests: The table.
        is_launched: Whether there is a next one.

    Returns:
        Whether the one after it may differ.
    """
    num_beyond = beyond_tokens = 0
    is_restless = False
    if not replica.chunk_requests:
        if replica.num_left:
            is_restless = len(replica.waiting) > 0
            forget_left(replica, True)
        if replica.departing:
            is_restless = True
            cache = replica.cache
            if cache is not None and cache.tree is not None:
                growth = growth_beyond(replica, requests)
                if replica.num_decoding:
                    growth += growth_of_step(replica)
                make_free(replica, growth)
        for position in range(len(replica.departing)):
            if is_launched and decodes_beyond(replica, requests, replica.departing[position]):
                num_beyond += 1
                beyond_tokens += replica.departing_tokens[position]
                # Its last token has been computed, too.
                replica.departing_tokens[position] += 1
    replica.num_beyond = num_beyond
    replica.beyond_tokens = beyond_tokens
    for position in range(len(replica.departing)):
        index = replica.departing[position]
        if replica.chunk_requests or decodes_beyond(replica, requests, index):
            note_left(replica, requests, index)
        else:
            # It was removed from the batch as that decoded, and the queue is tried again.
            replica.is_full = False
    for position in range(len(replica.late_prompts)):
        index = replica.late_prompts[position]
        if index in replica.departing:
            release_one(replica, requests, index, replica.departing_tokens[replica.departing.index(index)])
        elif replica.cache is not None and replica.cache.tree is not None:
            cache_computed(replica, index, requests.context_base[index] + replica.step, True)
    replica.late_prompts.clear()
    release_departing(replica, requests)
    replica.late_results = LATE_NOTHING
    replica.late_estimate = 0
    return is_restless
