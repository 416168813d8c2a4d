"""Requests in the order of their arrival, whoever was admitted first, and who is preempted for whom (TensorRT-LLM).

``MaxUtilizationPolicy`` of its ``scheduler.py``: one pass over all that have seats; where blocks are missing, the last
to arrive that has started is paused.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

from simserve.reference.request import Request
from simserve.reference.steps import Step

if TYPE_CHECKING:
    from simserve.engine.config import EngineConfig


class Batch(Protocol):
    """A scheduler, as these rules see it."""

    config: EngineConfig
    running: list[Request]
    departing: list[Request]
    waiting: deque[Request]

    @property
    def free(self) -> int:
        """Blocks that nobody holds."""

    @property
    def active(self) -> list[Request]:
        """Requests with a seat that are not done."""

    @property
    def tokens_per_decode(self) -> int:
        """Tokens that a decoding request computes in a step."""

    @property
    def keeps_order(self) -> bool:
        """Whether running prompts and waiting requests are looked at together."""

    def blocks_needed(self, request: Request) -> int:
        """Return the number of blocks that the next step of a decoding request opens."""

    def asked_blocks(self, step: Step, head: Request) -> int:
        """Return the blocks that the head of the queue needs of those free."""

    def cached_prefix(self, request: Request, tokens: int) -> list[tuple[int, int]]:
        """Return the cached blocks at the start of a request."""

    def take(self, request: Request, blocks: int, window_blocks: int) -> None:
        """Give blocks to a request."""


class Preempting(Batch, Protocol):
    """One that may take everything from a request."""

    def preempt(self, step: Step, chosen: Request | None = None) -> None:
        """Preempt a request, or the one whose turn it is."""


def came(request: Request) -> tuple[float, int]:
    """Return what requests are ordered by: when each reached the scheduler, then their numbers."""
    return request.ready, request.index


def growth(batch: Batch, after: Request | None = None) -> int:
    """Return the blocks counted for the next step's decodes, of all or of requests that came after one.

    One whose last token is on its way counts as if it decoded once more.
    """
    if after is not None and batch.config.num_speculative_tokens:
        return 0
    blocks = 0
    for request in batch.running:
        if after is not None and came(request) <= came(after):
            continue
        if request in batch.departing:
            blocks += (request.prompt_tokens + request.output_tokens - 1) % batch.config.block_size == 0
        elif request.is_decoding:
            blocks += batch.blocks_needed(request)
    return blocks


def overtakes(batch: Preempting) -> bool:
    """Whether the head of the queue came before a running request, so that it may take that one's blocks."""
    if batch.config.num_speculative_tokens or batch.config.scheduling_policy != "fcfs":
        return False
    return bool(batch.waiting and batch.running) and came(batch.waiting[0]) < came(batch.running[-1])


def make_room(batch: Preempting, step: Step) -> None:
    """Preempt the last to arrive until the decodes of the next step fit; who decodes takes its blocks at its end."""
    while not overtakes(batch) and growth(batch) > batch.free:
        batch.preempt(step)
    step.decoding = [one for one in batch.active if one.is_decoding]
    step.budget -= batch.tokens_per_decode * len(step.decoding)


def take_growth(batch: Preempting, step: Step) -> None:
    """Give blocks to those that decode, now that the step has admitted others; preempt the last where they lack."""
    while growth(batch) > batch.free:
        batch.preempt(step)
    for request in step.decoding:
        batch.take(request, batch.blocks_needed(request), 0)


def pauses_for(batch: Preempting, step: Step, head: Request) -> bool:
    """Preempt requests that came after the head of the queue, until it has room; return whether it is passed over.

    Having had another paused, it is looked at again, and seems to wait for the prefix that it computes itself.
    """
    need = batch.asked_blocks(step, head)
    target = head.prompt_tokens + head.generated
    misses_block = target >= (len(batch.cached_prefix(head, target)) + 1) * batch.config.block_size
    is_once = misses_block and batch.keeps_order
    has_paused = False
    while need > batch.free - growth(batch):
        room = batch.free - growth(batch) + growth(batch, head)
        if need <= room or (has_paused and is_once):
            break
        last = batch.running[-1] if batch.running else head
        if came(last) <= came(head) or last in [request for request, _ in step.chunks]:
            break
        has_paused = has_paused or room >= 0
        step.paused = last
        batch.preempt(step, last)
    if has_paused and is_once:
        step.deferred.append(head)
    return has_paused and is_once
