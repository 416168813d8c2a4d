"""Which request is preempted when blocks run out, and which a step passes over as a result. Knows no single blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from simserve.engine.config import EngineConfig
    from simserve.reference.request import Request
    from simserve.reference.steps import Step


RATIO_LOOKAHEAD_TOKENS = 20
"""Decode steps that SGLang's new ratio looks ahead after a retraction (``retract_decode_steps``)."""


class Batch(Protocol):
    """A scheduler, as these rules see it."""

    config: EngineConfig
    running: list[Request]
    departing: list[Request]
    ratio: float

    @property
    def decoding_on(self) -> list[Request]:
        """Requests that decode, as far as it knows."""

    def known_tokens(self, request: Request) -> int:
        """Return the number of tokens that a request has generated, as far as it knows."""

    def blocks_needed(self, request: Request) -> int:
        """Return the number of blocks that the next step of a decoding request opens."""

    def window_growth(self, request: Request) -> int:
        """Return the number of blocks that it opens in a layer with a window."""

    def fits(self, blocks: int, window_blocks: int, /) -> bool:
        """Whether that many blocks are free."""

    def preempt(self, step: Step, victim: Request, /) -> None:
        """Take everything from a request and requeue it."""


def choose_victim(batch: Batch, step: Step) -> Request:
    """Return the next request to preempt: the last one admitted (vLLM), or the one with fewest new tokens (SGLang).

    With priorities in vLLM, the worst one without a chunk in the step; among equals the last to arrive.
    """
    config, decoding = batch.config, batch.decoding_on
    if config.admission == "estimate" and decoding:
        places = {request: place for place, request in enumerate(batch.running)}
        return min(decoding, key=lambda one: (batch.known_tokens(one), -one.prompt_tokens, -places[one]))
    candidates = [one for one in batch.running if not one.is_stand_in]
    if config.scheduling_policy == "priority" and config.admission != "estimate":
        chunked = [request for request, _ in step.chunks]
        return max(
            (one for one in candidates if one not in chunked), key=lambda one: (one.priority, one.ready, one.index)
        )
    if config.has_whole_prompts or config.has_suspension:
        chunked = [request for request, _ in step.chunks]
        return [one for one in candidates if one not in chunked][-1]
    return candidates[-1]


def decode_in_order(batch: Batch, step: Step) -> list[Request]:
    """Look at one running request after another, as vLLM up to 0.32 does; return those that decode.

    ``step.passed_over`` are requests that it does not reach. A request that must preempt itself ends the pass. Up to
    0.27, when a request is removed that was already looked at and computes nothing because it is done, the index is
    not adjusted: the pass skips the next one.
    """
    decoding: list[Request] = []
    seen: list[Request] = []
    place = 0
    while place < len(batch.running):
        request = batch.running[place]
        seen.append(request)
        place += 1
        if request in batch.departing or not request.is_decoding:
            continue
        while not batch.fits(
            sum(batch.blocks_needed(one) for one in [*decoding, request]),
            sum(batch.window_growth(one) for one in [*decoding, request]),
        ):
            victim = choose_victim(batch, step)
            is_before = victim in batch.running[: batch.running.index(request)]
            is_missed = victim in batch.departing and batch.config.misses_next
            batch.preempt(step, victim)
            if victim is request:
                step.passed_over = [one for one in batch.running if one not in seen]
                return decoding
            if victim in decoding:
                decoding.remove(victim)
            place -= is_before and not is_missed
        decoding.append(request)
    step.passed_over = [one for one in batch.running if one not in seen]
    return decoding


def growths(batch: Batch, decoding: list[Request]) -> tuple[list[int], list[int]]:
    """Return the blocks that decoding requests open in a step, and those in a layer with a window."""
    return [batch.blocks_needed(one) for one in decoding], [batch.window_growth(one) for one in decoding]


def next_ratio(batch: Batch, step: Step) -> float:
    """Return ``estimate``'s ratio after a planned step: it falls with every decode step; too low, it is set anew."""
    config, decoding = batch.config, batch.decoding_on
    if step.has_preempted and decoding:
        generated = sum(batch.known_tokens(one) for one in decoding) + RATIO_LOOKAHEAD_TOKENS * len(decoding)
        return min(1.0, generated / (sum(one.max_tokens for one in decoding) + 1))
    if (step.decoding or step.beyond) and not step.has_preempted:
        return max(config.new_token_ratio_minimum, batch.ratio - config.new_token_ratio_decay)
    return batch.ratio
