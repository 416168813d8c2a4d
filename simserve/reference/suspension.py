"""Requests that are suspended instead of preempted, and what may begin beside them (TensorRT-LLM's second KV manager).

``KVCacheV2Scheduler`` of its ``scheduler_v2.py``: who decodes comes first, prompts take blocks chunk by chunk and wait
where they find none, and a prompt alike one of the same step is passed over.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

from simserve.reference.cached_blocks import CachedBlocks
from simserve.reference.request import Request
from simserve.reference.steps import Step

if TYPE_CHECKING:
    from simserve.engine.config import EngineConfig


class Batch(Protocol):
    """A scheduler, as these rules see it."""

    config: EngineConfig
    capacity: int
    cached: CachedBlocks
    waiting: deque[Request]
    departing: list[Request]

    @property
    def free(self) -> int:
        """Blocks that nobody holds."""

    @property
    def active(self) -> list[Request]:
        """Requests with a seat that are not done."""

    def blocks_needed(self, request: Request) -> int:
        """Return the number of blocks that the next step of a decoding request opens."""

    def cached_prefix(self, request: Request, tokens: int) -> list[tuple[int, int]]:
        """Return the cached blocks at the start of a request."""

    def resume(self, request: Request, found: list[tuple[int, int]], step: Step) -> None:
        """Let a suspended request decode again in a step, with cached blocks at its start."""

    def blocks_of(self, tokens: int) -> int:
        """Return the number of blocks that hold ``tokens``."""

    def aligned(self, chunk: int, target: int) -> int:
        """Return a chunk of whole blocks, unless it is all that is left."""

    def first_missing(self, request: Request) -> tuple[int, int] | None:
        """Return the first full block of a request that the cache lacks."""


class Preempting(Batch, Protocol):
    """One that may take everything from a request."""

    def preempt(self, step: Step, chosen: Request | None = None) -> None:
        """Preempt a request, or the one whose turn it is."""


def known_tokens(config: EngineConfig, request: Request, computed: int) -> int:
    """Return how many of a request's computed tokens others may find: under suspension, none of its answer."""
    return min(computed, request.prompt_tokens) if config.has_suspension else computed


def lacks_budget(config: EngineConfig, step: Step) -> bool:
    """Whether the budget leaves less than a block, so that no prompt is computed."""
    return config.has_suspension and config.has_aligned_chunks and step.budget < config.block_size


def may_begin(batch: Batch, step: Step, head: Request) -> bool:
    """Whether there is budget and, of all blocks, few enough are in use for a prompt to begin or to come back."""
    return head.suspended < head.prompt_tokens and is_within_limit(batch) and not lacks_budget(batch.config, step)


def keeps_out(batch: Batch, head: Request) -> str:
    """Return what keeps a request out that may not begin."""
    return "budget" if head.suspended < head.prompt_tokens and is_within_limit(batch) else "blocks"


def bring_back(batch: Batch, step: Step) -> None:
    """Let suspended requests decode again, in the order of arrival, while they find blocks."""
    for head in [one for one in batch.waiting if one.suspended >= one.prompt_tokens]:
        growth = sum(batch.blocks_needed(one) for one in batch.active if one.is_decoding)
        found = batch.cached_prefix(head, head.suspended + 1)
        need = batch.blocks_of(head.suspended + 1) - len(found) + batch.cached.num_idle(found)
        if batch.capacity - batch.free + growth > batch.config.max_used_blocks or need + growth > batch.free:
            break
        batch.resume(head, found, step)


def is_within_limit(batch: Batch) -> bool:
    """Whether so few blocks are in use that requests may begin."""
    return not batch.config.has_suspension or batch.capacity - batch.free <= batch.config.max_used_blocks


def is_alike(batch: Batch, step: Step, head: Request) -> bool:
    """Whether a prompt of the step computes the first block that a request lacks, which is then noted."""
    block = batch.first_missing(head)
    computed = [batch.first_missing(one) for one, _ in step.chunks]
    is_met = block is not None and block in computed and not head.suspended
    step.deferred += [head] if is_met else []
    return is_met


def waits_with_blocks(batch: Batch, head: Request) -> bool:
    """Whether a suspended prompt finds the blocks that it had, though none for its next chunk."""
    if not head.suspended:
        return False
    found = batch.cached_prefix(head, head.suspended + 1)
    need = batch.blocks_of(head.suspended) - len(found) + batch.cached.num_idle(found)
    return need <= batch.free


def passes(batch: Batch, step: Step, head: Request) -> bool:
    """Whether a prompt that finds budget but no blocks lets those behind it go; it is then noted."""
    if not batch.config.has_suspension or not step.budget:
        return False
    missing = head.prompt_tokens - len(batch.cached_prefix(head, head.prompt_tokens)) * batch.config.block_size
    if missing > step.budget and not batch.config.enable_chunked_prefill:
        return False
    step.deferred.append(head)
    step.lacks_blocks = True
    return True


def preempt_stuck(batch: Preempting, step: Step) -> bool:
    """Suspend prompts, the last to arrive first, while all that run are prompts that find no blocks for a chunk.

    Returns:
        Whether any was suspended.
    """
    has_preempted = False
    if not batch.config.has_suspension or step.requests:
        return False
    step.deferred.clear()
    while len(batch.active) > 1 and not batch.departing and not any(one.is_decoding for one in batch.active):
        for request in batch.active:
            missing = request.target - request.computed
            chunk = batch.aligned(min(missing, step.longest_chunk, step.budget), missing)
            if batch.blocks_of(request.computed + chunk) - request.blocks <= batch.free:
                return has_preempted
        batch.preempt(step)
        has_preempted = True
    return has_preempted
