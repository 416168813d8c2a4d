"""Prompts that begin alike, where a request waits while another computes what it begins with: TensorRT-LLM's rule.

A full block is in its cache once the whole prompt that it belongs to is computed (``storeContextBlocks``), not while
chunks of it run; scheduled ahead, a step later still, since results are processed behind the next step. So that two
prompts do not compute the same at once, a request whose first block that the cache lacks is also the first that a
running prompt lacks, or one that the step admits, is passed over: those behind it are asked, and it keeps its place
(``beneficialToSkip`` in its ``capacityScheduler.cpp``, ``_beneficial_to_skip`` in its ``scheduler.py``). Its PyTorch
runtime cached nothing before a request had ended, until pull request 6683: alike prompts then ran one by one, whole.
"""

from __future__ import annotations

from simserve.engine.cache_state import PrefixCache
from simserve.engine.prefix_cache import cache_blocks, first_missing
from simserve.engine.state import Replica, RequestTable


def note_contributions(replica: Replica, requests: RequestTable) -> None:
    """Note the first block that the cache lacks of each prompt that is being computed."""
    replica.contributed.clear()
    for position in range(len(replica.prefilling)):
        is_contributed(replica, requests, replica.prefilling[position])


def is_contributed(replica: Replica, requests: RequestTable, index: int) -> bool:
    """Return whether another computes the first block that a request lacks; else note that this one will."""
    cache, contributed = replica.cache, replica.contributed
    if cache is None:
        return False
    segment, place = first_missing(cache, index, requests.prompt_tokens[index] + requests.generated_tokens[index])
    if segment < 0:
        return False
    for position in range(0, len(contributed), 2):
        if contributed[position] == segment and contributed[position + 1] == place:
            return True
    contributed.append(segment)
    contributed.append(place)
    return False


def defer(replica: Replica) -> None:
    """Pass the head of the queue over, until `restore_deferred`."""
    replica.deferred.append(replica.waiting.popleft())


def restore_deferred(replica: Replica) -> None:
    """Put back at the head of the queue, in their order, those that were passed over."""
    while replica.deferred:
        replica.waiting.appendleft(replica.deferred.pop())


def keep_prompt(replica: Replica, cache: PrefixCache, index: int, tokens: int) -> None:
    """Cache a prompt of so many tokens that has been computed, or let that be done when the next step has ended."""
    if replica.config.caches_at_end:
        return
    if replica.config.async_scheduling:
        replica.late_prefixes.append(index)
        replica.late_prefix_tokens.append(tokens)
    else:
        cache_blocks(cache, index, tokens)


def keep_late_prompts(replica: Replica, cache: PrefixCache) -> None:
    """Cache the prompts that the step before the one that has ended had computed."""
    late, tokens = replica.late_prefixes, replica.late_prefix_tokens
    for position in range(len(late)):
        cache_blocks(cache, late[position], tokens[position])
    late.clear()
    tokens.clear()
