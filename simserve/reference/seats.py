"""One pass over the requests with seats, in their order, where states are cached: those that decode, and prompts.

As vLLM's ``Scheduler.schedule`` has it. Each gives back what it has passed and takes what it opens before the next one
is looked at; where blocks lack, the last one is preempted (`simserve.reference.states`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

from simserve.reference.steps import to_checkpoint
from simserve.reference.victims import Batch, choose_victim

if TYPE_CHECKING:
    from simserve.reference.request import Request
    from simserve.reference.states import StateCache
    from simserve.reference.steps import Step


class Seats(Batch, Protocol):
    """A scheduler, as this pass sees it."""

    states: StateCache

    @property
    def tokens_per_decode(self) -> int:
        """Number of tokens that a decoding request computes in a step."""

    def cache(self, request: Request, tokens: int, /) -> None:
        """Cache the full blocks of the first tokens of a request."""

    def tokens_gained(self, request: Request, /) -> float:
        """Return the mean number of tokens that a request gains per decode step."""


def schedule_seats(scheduler: Seats, step: Step) -> None:
    """Give the running requests their tokens, chunks and blocks; the budget may end before the seats."""
    place = 0
    while place < len(scheduler.running):
        request = scheduler.running[place]
        place += 1
        if request in scheduler.departing and request not in beyond_end(scheduler):
            continue
        tokens = tokens_of(scheduler, step, request)
        if not tokens:
            request.goes_on = False
            if request.is_decoding and request not in scheduler.departing:
                step.passed_over.append(request)
            continue
        num_missed = 0
        while not scheduler.states.is_served(request, max(request.computed, request.assumed) + tokens):
            victim = choose_victim(scheduler, step)
            is_before = victim in scheduler.running[: place - 1]
            place -= is_before
            num_missed += is_before and victim not in [*step.decoding, *step.beyond]
            step.passed_over = [one for one in step.passed_over if one is not victim]
            step.budget += scheduler.tokens_per_decode * (victim in [*step.decoding, *step.beyond])
            step.beyond = [one for one in step.beyond if one is not victim]
            scheduler.preempt(step, victim)
            if victim is request:
                break
        if request not in scheduler.running:
            place -= 1
            if scheduler.config.scheduling_policy == "priority" and not scheduler.config.ends_pass:
                continue
            step.passed_over += decoding(scheduler, scheduler.running[place:])
            break
        step.budget -= tokens
        if request in scheduler.departing:
            step.beyond.append(request)
            continue
        scheduler.cache(request, known_after(scheduler, request, tokens))
        if request.is_decoding:
            step.decoding.append(request)
        else:
            step.chunks.append((request, tokens))
        if scheduler.config.misses_next:
            step.passed_over += decoding(scheduler, scheduler.running[place : place + num_missed])
            place += num_missed
    for request in step.passed_over:
        # None of its drafts is under way.
        request.assumed = 0


def beyond_end(batch: Batch) -> list[Request]:
    """Return the requests that are done and decode once more: of vLLM's those whose end was not certain."""
    return [one for one in batch.departing if batch.config.has_overlap or one.goes_on]


def decoding(scheduler: Seats, requests: list[Request]) -> list[Request]:
    """Return those that decode and are not done."""
    return [one for one in requests if one.is_decoding and one not in scheduler.departing]


def tokens_of(scheduler: Seats, step: Step, request: Request) -> int:
    """Return the tokens that a running request computes in a step."""
    scheduler.states.num_exported = 0
    if request.is_decoding:
        return scheduler.tokens_per_decode if step.budget >= scheduler.tokens_per_decode else 0
    remaining = request.target - request.computed
    chunk = min(to_checkpoint(scheduler.config, remaining), step.longest_chunk, step.budget)
    return scheduler.states.cut(request, chunk, remaining)


def known_after(scheduler: Seats, request: Request, tokens: int) -> int:
    """Return the tokens that are computed once a step has run, and known as it is scheduled."""
    if not request.is_decoding:
        return request.computed + tokens
    computed = float(request.computed)
    if scheduler.config.async_scheduling:
        # The tokens of the running step are not there yet.
        computed += request.fraction - scheduler.tokens_gained(request)
    return math.floor(computed) + 1 - scheduler.config.hashes_next_token
