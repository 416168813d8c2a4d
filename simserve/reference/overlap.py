"""SGLang's overlapped loop: the results of a step are known after the next one has been scheduled."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from simserve.reference.request import Request
from simserve.reference.steps import Step

if TYPE_CHECKING:
    from simserve.reference.scheduler import ContinuousScheduler


def learn_results(scheduler: ContinuousScheduler, step: Step) -> None:
    """Process the results of the step that has ended, now that the next one is scheduled (SGLang, overlapped)."""
    scheduler.update_ratio(step)
    if not step.chunks:
        scheduler.is_full = scheduler.is_full and not scheduler.left
        scheduler.left.clear()
    struck = (
        [] if step.chunks else [one for one in scheduler.departing if one not in scheduler.goes_on(scheduler.departing)]
    )
    scheduler.is_full = scheduler.is_full and not struck
    for request in (one for one in scheduler.departing if one not in struck):
        scheduler.note_left(request)
    # In the order of the step; the KV cache of a request that decodes once more also holds its last token.
    for request in [*scheduler.in_flight, *(one for one in scheduler.departing if one not in scheduler.in_flight)]:
        if request in scheduler.departing:
            scheduler.release_departed(request, request.computed + (request in step.beyond))
        elif scheduler.tree is not None and request.computed == request.target:
            scheduler.cache(request, request.computed)
    scheduler.in_flight, scheduler.has_late_results = [], False


def lose_token(scheduler: ContinuousScheduler, victim: Request) -> None:
    """Take its in-flight token from a victim; it is generated again."""
    scheduler.in_flight.remove(victim)
    victim.generated -= victim not in scheduler.departing
    if not victim.generated:
        victim.token_times.clear()
        victim.handed_over = math.nan


def retract_ahead(scheduler: ContinuousScheduler, step: Step, end: float) -> None:
    """Retract if memory runs out for a step scheduled before it is known which requests the last one finished.

    The newest tokens of retracted requests have been computed and are lost.
    """
    decoding = scheduler.decoding_on
    is_decode = not step.chunks and all(request.is_decoding for request in scheduler.active)
    if not is_decode or scheduler.fits(sum(scheduler.blocks_needed(one) for one in decoding), 0):
        return
    if scheduler.config.skips_ended and any(one.ends_as_asked for one in step.decoding):
        # Requests that have ended are removed first.
        return
    if scheduler.waiting and not scheduler.is_full:
        coming = Step(
            end, budget=scheduler.config.max_num_batched_tokens, longest_chunk=scheduler.config.max_chunk_tokens
        )
        scheduler.look_up(coming)
        if scheduler.head_chunk(coming):
            return
    while not scheduler.fits(sum(scheduler.blocks_needed(one) for one in decoding), 0):
        scheduler.make_free(sum(scheduler.blocks_needed(one) for one in decoding))
        scheduler.preempt(scheduler.loads)
        decoding = scheduler.decoding_on
    for request in [one for one in step.decoding if one not in scheduler.running]:
        step.decoding.remove(request)
        request.gaps.append(end - request.token_times[-1])
        request.token_times.append(end)
