"""Data-parallel attention, one step at a time: ranks that each choose a step, and all take the longest of them."""

from __future__ import annotations

import math
from collections import deque

from simserve.engine.config import EngineConfig
from simserve.engine.tables import StepTimes
from simserve.workload.requests import RequestSpecs
from tests.oracle.continuous import ContinuousReplica, Step


class LockstepRanks(ContinuousReplica):
    """The door of the replica, and its clock; requests are served by the ranks behind it."""

    def __init__(self, config: EngineConfig, times: StepTimes, specs: RequestSpecs) -> None:
        super().__init__(config, times, specs)
        self.ranks = [ContinuousReplica(config, times, specs) for _ in range(config.data_parallel_size)]
        for rank in self.ranks:
            rank.send_follower = self.send_follower  # type: ignore[method-assign]
        self.held_steps = 0

    def receive(self, until: float, *, is_end: bool) -> None:
        """Queue what becomes ready, one by one, at the rank with the fewest requests."""
        while self.upcoming and (self.upcoming[0][0] < until or (is_end and self.upcoming[0][0] == until)):
            super().receive(self.upcoming[0][0], is_end=True)
            while self.waiting:
                rank = min(self.ranks, key=lambda one: len(one.waiting) + len(one.running))
                rank.waiting.append(self.waiting.popleft())

    def serve(self, now: float) -> float:
        """Run one common step from ``now`` and return its end; without work, return the next ready time."""
        busy = []
        for rank in self.ranks:
            if rank.running or rank.waiting:
                busy.append(rank)
            else:
                rank.ratio = self.config.new_token_ratio_initial
        if not busy:
            return self.upcoming[0][0] if self.upcoming else math.inf
        is_held = self.must_wait()
        steps = [self.schedule_held(rank, now) if is_held else rank.schedule(now) for rank in busy]
        tokens = sum(len(step.decoding) + sum(chunk for _, chunk in step.chunks) for step in steps)
        last = len(self.times.shared_seconds) - 1
        shared = self.times.shared_seconds[min(tokens, last)] + self.times.shared_seconds_beyond * max(0, tokens - last)
        end = now + max(rank.seconds(step) for rank, step in zip(busy, steps, strict=True)) + shared
        self.receive(end, is_end=False)
        for rank, step in zip(busy, steps, strict=True):
            rank.complete(step, end)
        if self.config.attention_dp_timeout_iters:
            self.held_steps = (self.held_steps + 1) % self.config.attention_dp_timeout_iters
        self.num_steps += len(busy)
        self.step_ends.append(end)
        self.closest_estimate = min(rank.closest_estimate for rank in self.ranks)
        return end

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

    @staticmethod
    def schedule_held(rank: ContinuousReplica, now: float) -> Step:
        """Choose a step that admits nobody."""
        held, rank.waiting = rank.waiting, deque()
        step = rank.schedule(now)
        rank.waiting.extend(held)
        return step
