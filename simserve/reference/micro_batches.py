"""Which requests pass the stages of a pipeline together, and which wait for each other. Counts every request anew."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from simserve.engine.config import EngineConfig
    from simserve.reference.request import Request
    from simserve.reference.steps import Step


class Batch(Protocol):
    """A scheduler, as these rules see it."""

    config: EngineConfig
    running: list[Request]
    departing: list[Request]


def take_turns(step: Step, config: EngineConfig, decoding: list[Request]) -> None:
    """Make a step with decodes one micro-batch, where stages wait for the tokens that the last one samples."""
    if not (config.samples_in_turn and decoding):
        return
    step.in_turn = True
    step.budget -= (config.pipeline_parallel_size - 1) * config.max_num_batched_tokens
    if config.overlaps_chunks:
        step.longest_chunk //= config.pipeline_parallel_size


def join_micro_batches(batch: Batch, step: Step) -> None:
    """Give the requests that now begin to decode a micro-batch: together those that were handed out together.

    The first join the smallest that has requests, the further ones the smallest of all.
    """
    if not batch.config.keeps_micro_batches:
        return
    handed_out, last = 0, -1
    place = 0
    for request, chunk in step.chunks:
        handed_out += chunk
        number = (handed_out - 1) // batch.config.max_num_batched_tokens
        if not request.is_decoding or request.generated + 1 == request.output_tokens:
            continue
        if number != last:
            place, last = smallest(batch, step.passed_over, may_be_empty=number > 0), number
        request.micro_batch = place


def smallest(batch: Batch, passed_over: list[Request], *, may_be_empty: bool) -> int:
    """Return the place of the smallest micro-batch; requests that a step passes over are in none."""
    among = [one for one in batch.running if one not in batch.departing and one not in passed_over]
    sizes = [sum(one.micro_batch == place for one in among) for place in range(batch.config.pipeline_parallel_size)]
    places = [place for place, size in enumerate(sizes) if size or may_be_empty]
    return min(places, key=lambda place: (sizes[place], place), default=0)
