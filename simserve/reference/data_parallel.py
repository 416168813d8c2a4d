"""Data-parallel attention, one step at a time: each rank chooses a step, and all take as long as the longest."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

from simserve.reference.invariants import CheckedScheduler
from simserve.reference.kv_memory import Scheduler
from simserve.reference.request import Request
from simserve.reference.steps import Step

if TYPE_CHECKING:
    from simserve.engine.config import EngineConfig
    from simserve.engine.state import StepTimes


BATCH_DECAY = 0.998
"""Factor per step on the largest batch of prompts (SGLang pull request 32880)."""


class DataParallelReplica(Scheduler):
    """Schedulers, each with its own KV cache, that look like one from outside; the ranks serve the requests."""

    def __init__(self, config: EngineConfig, times: StepTimes) -> None:
        self.ranks = [CheckedScheduler(config, times) for _ in range(config.data_parallel_size)]
        super().__init__(config, times)
        self.held_steps = 0
        # SGLang's delayer: steps for which prompts have waited, the most prompts of a rank in a step so far, and
        # whether prompts have begun once although the fullest rank had too few seats.
        self.num_delayed, self.largest_batch, self.has_passed = 0, 0.0, False

    def submit(self, request: Request) -> None:
        """Queue a request at the rank with the fewest requests."""
        min(self.ranks, key=lambda rank: rank.num_outstanding).submit(request)

    def let_go(self, request: Request) -> None:
        """Take a request from the rank that has it."""
        next(rank for rank in self.ranks if request in rank.waiting or request in rank.running).let_go(request)

    @property
    def schedulers(self) -> list[Scheduler]:
        """The ranks."""
        return list(self.ranks)

    @property
    def num_running(self) -> int:
        """Number of requests with a seat at any rank."""
        return sum(rank.num_running for rank in self.ranks)

    @property
    def num_outstanding(self) -> int:
        """Number of requests that wait or run."""
        return sum(rank.num_outstanding for rank in self.ranks)

    @property
    def max_num_seqs(self) -> int:
        """Seats of all ranks."""
        return sum(rank.max_num_seqs for rank in self.ranks)

    @property
    def is_empty(self) -> bool:
        """Whether no request holds anything."""
        return all(rank.is_empty for rank in self.ranks)

    @property
    def kv_share(self) -> float:
        """Share of KV memory that is reserved, a mean over the ranks."""
        return sum(rank.kv_share for rank in self.ranks) / len(self.ranks)

    def schedule(self, now: float) -> Step | None:
        """Choose a common step: as long as that of the slowest rank, with the work of all ranks."""
        for rank in self.ranks:
            rank.times = self.times
        is_held = self.is_delayed() if self.config.prefill_delayer_max_delay_passes else self.must_wait()
        steps = [self.schedule_held(rank, now) if is_held else rank.schedule(now) for rank in self.ranks]
        parts = [step for step in steps if step is not None]
        if not parts:
            return None
        self.largest_batch = max([self.largest_batch, *(len(step.chunks) for step in parts)])
        tokens = sum(len(step.decoding) + sum(chunk for _, chunk in step.chunks) for step in parts)
        last = max(len(self.times.shared_seconds) - 1, 0)
        shared = self.times.shared_seconds[min(tokens, last)] if self.times.shared_seconds else 0.0
        shared += self.times.shared_seconds_beyond * max(0, tokens - last)
        common = Step(now, seconds=max(step.seconds for step in parts) + shared, parts=parts, num_steps=len(parts))
        self.of_rank = list(zip(self.ranks, steps, strict=True))
        return common

    def complete(self, _step: Step, end: float, /) -> list[Request]:
        """Apply the effects of a common step."""
        finished = []
        for number, (rank, own) in enumerate(self.of_rank):
            if own is None:
                continue
            for request in rank.complete(own, end):
                request.rank = number
                finished.append(request)
        if self.config.attention_dp_timeout_iters:
            self.held_steps = (self.held_steps + 1) % self.config.attention_dp_timeout_iters
        if self.config.bounds_prompt_delay:
            self.largest_batch *= BATCH_DECAY
        self.closest_estimate = min(rank.closest_estimate for rank in self.ranks)
        return sorted(finished, key=lambda one: one.index)

    def must_wait(self) -> bool:
        """Whether prompts wait for those of other ranks in this step."""
        timeout = self.config.attention_dp_timeout_iters
        if not timeout or not any(rank.waiting for rank in self.ranks):
            return False
        if all(rank.waiting and len(rank.running) < self.config.max_num_seqs for rank in self.ranks):
            self.held_steps = -1
            return False
        all_decode = all(any(request.is_decoding for request in rank.running) for rank in self.ranks)
        return self.held_steps + 1 < timeout and all_decode

    def is_delayed(self) -> bool:
        """Whether SGLang's ranks agree that no prompt begins in this step.

        A step that none of them computes takes no time, so prompts that wait for nothing else begin at once.
        """
        config, before, self.num_delayed = self.config, self.num_delayed, 0
        ready = [rank for rank in self.ranks if rank.waiting and self.has_seat(rank)]
        is_light = any(rank.kv_share < config.prefill_delayer_token_usage_low_watermark for rank in ready)
        is_running = any(request not in rank.departing for rank in self.ranks for request in rank.running)
        if not ready or is_light or not is_running:
            return False
        may_wait = before < config.prefill_delayer_max_delay_passes - 1
        if len(ready) == len(self.ranks):
            fullest = max(self.num_in_batch(rank) for rank in self.ranks)
            lacks_seats = config.max_num_seqs - fullest < math.floor(self.largest_batch)
            if not (config.delays_for_seats and lacks_seats):
                return False
            if not self.has_passed:
                self.has_passed = True
                return False
            may_wait = may_wait or not config.bounds_prompt_delay
        if may_wait:
            self.num_delayed = before + 1
        return may_wait

    @staticmethod
    def num_in_batch(rank: CheckedScheduler) -> int:
        """Return the requests of a rank that decode, or have ended and keep their seats until the next step."""
        decoding = [request for request in rank.running if request.is_decoding or request in rank.departing]
        return len(decoding) + len(rank.left)

    def has_seat(self, rank: CheckedScheduler) -> bool:
        """Whether a rank tries the head of its queue: no refusal holds, and a seat is free."""
        is_full = rank.is_full and self.num_in_batch(rank) > 0
        return not is_full and rank.num_seated < self.config.max_num_seqs

    @staticmethod
    def schedule_held(rank: CheckedScheduler, now: float) -> Step | None:
        """Choose a step that admits no request."""
        held, rank.waiting = rank.waiting, deque()
        step = rank.schedule(now)
        rank.waiting.extend(held)
        return step
