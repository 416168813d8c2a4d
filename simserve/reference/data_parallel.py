"""Data-parallel attention, one step at a time: each rank chooses a step, and all take as long as the longest."""

from __future__ import annotations

import itertools
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
RECENT_BATCHES = 16
"""Batches of prompts, begun or not, that a rank remembers from SGLang 0.5.18 on."""


class DataParallelReplica(Scheduler):
    """Schedulers, each with its own KV cache, that look like one from outside; the ranks serve the requests."""

    def __init__(self, config: EngineConfig, times: StepTimes) -> None:
        self.ranks = [CheckedScheduler(config, times) for _ in range(config.data_parallel_size)]
        super().__init__(config, times)
        self.held_steps = 0
        # SGLang's delayer: steps for which prompts have waited, the most prompts of a rank in a step so far, and
        # whether prompts have begun once although the fullest rank had too few seats.
        self.num_delayed, self.largest_batch, self.has_passed = 0, 0.0, False
        # By rank: the last batches of prompts that were tried, and the requests that this step tries.
        self.recent_batches: list[deque[int]] = [deque(maxlen=RECENT_BATCHES) for _ in self.ranks]
        self.num_tried = [0] * len(self.ranks)
        self.looks_at = math.inf
        self.turns = itertools.cycle(self.ranks)

    def look_again(self, now: float) -> float:
        """Return when to schedule again after no step could be launched."""
        return self.looks_at if self.looks_at > now else math.inf

    def submit(self, request: Request) -> None:
        """Queue a request at the next rank in turn, or at the one with the fewest requests."""
        in_turn = self.config.rotates_ranks
        rank = next(self.turns) if in_turn else min(self.ranks, key=lambda each: each.num_outstanding)
        rank.submit(request)

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
        is_late = any(rank.has_late_results for rank in self.ranks)
        steps = self.schedule_ranks(now)
        if is_late and not any(steps) and any(rank.num_outstanding for rank in self.ranks):
            # Nothing could be launched before the last results were known: they look again, arrivals included.
            self.looks_at = math.nextafter(now, math.inf)
            return None
        if not any(steps):
            # SGLang's new-token ratios begin anew, and loops go round where batches have turned out to be empty.
            if not (self.config.keeps_ratio and any(rank.waiting for rank in self.ranks)):
                for rank in self.ranks:
                    rank.ratio = self.config.new_token_ratio_initial
            if any(rank.waiting for rank in self.ranks):
                steps = self.schedule_ranks(now)
        parts = [step for step in steps if step is not None]
        if not parts:
            return None
        self.largest_batch = max([self.largest_batch, *(len(step.chunks) for step in parts)])
        decodes = self.ranks[0].tokens_per_decode * sum(len(step.decoding) + len(step.beyond) for step in parts)
        tokens = decodes + sum(chunk for step in parts for _, chunk in step.chunks)
        last = max(len(self.times.shared_seconds) - 1, 0)
        shared = self.times.shared_seconds[min(tokens, last)] if self.times.shared_seconds else 0.0
        shared += self.times.shared_seconds_beyond * max(0, tokens - last)
        common = Step(now, seconds=max(step.seconds for step in parts) + shared, parts=parts, num_steps=len(parts))
        self.of_rank = list(zip(self.ranks, steps, strict=True))
        return common

    def schedule_ranks(self, now: float) -> list[Step | None]:
        """Let every rank choose its part of a step; None: it has none, and idles along."""
        is_held = self.is_delayed() if self.config.prefill_delayer_max_delay_passes else self.must_wait()
        steps = [self.schedule_held(rank, now) if is_held else rank.schedule(now) for rank in self.ranks]
        for recent, tried, step in zip(self.recent_batches, self.num_tried, steps, strict=True):
            if tried:
                recent.append((len(step.chunks) if step else 0) or tried)
        return steps

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
        ready = [rank for rank in self.ranks if self.has_prompt(rank)]
        self.num_tried = [self.tries(rank) if config.forgets_batches and rank in ready else 0 for rank in self.ranks]
        is_light = any(rank.kv_share < config.prefill_delayer_token_usage_low_watermark for rank in ready)
        is_running = any(
            rank.has_late_results or any(request not in rank.departing for request in rank.running)
            for rank in self.ranks
        )
        if not ready or is_light:
            return False
        num_left = config.prefill_delayer_max_delay_passes - 1 - before
        # Where requests that have ended hold seats and nothing runs, ranks look again at once, when these are free.
        holds_seats = not is_running and any(rank.left for rank in self.ranks) and len(ready) < len(self.ranks)
        if not is_running and not holds_seats:
            if len(ready) < len(self.ranks):
                # In steps of no work they wait all the same.
                for recent, tried in zip(self.recent_batches, self.num_tried, strict=True):
                    recent.extend([tried] * num_left if tried else [])
                for rank in [rank for rank in self.ranks if rank.waiting and self.has_seat(rank)] * max(num_left, 0):
                    self.look_at_queue(rank)
            return False
        may_wait = num_left > 0
        if len(ready) == len(self.ranks):
            fullest = max(self.num_in_batch(rank) for rank in self.ranks)
            lacks_seats = config.max_num_seqs - fullest < self.num_seats_needed
            if not (config.delays_for_seats and lacks_seats):
                return False
            if not self.has_passed:
                self.has_passed = True
                return False
            may_wait = may_wait or not config.bounds_prompt_delay
        if may_wait:
            self.num_delayed = before + (not holds_seats)
            for rank in self.ranks:
                has_seat = self.has_seat(rank)
                if rank.waiting and (has_seat or self.is_amid_prompt(rank)):
                    self.look_at_queue(rank)
                if rank.waiting and self.is_amid_prompt(rank) and has_seat and self.lacks_memory(rank):
                    self.note_full(rank)
        return may_wait

    @property
    def num_seats_needed(self) -> int:
        """Requests of the largest batch of prompts so far, or of those that the ranks remember."""
        if self.config.forgets_batches:
            return max((size for recent in self.recent_batches for size in recent), default=0)
        return math.floor(self.largest_batch)

    def has_prompt(self, rank: CheckedScheduler) -> bool:
        """Whether a rank tells the others that it has a prompt; one that memory refuses counts for it as refused."""
        if self.is_amid_prompt(rank) and self.config.bounds_prompt_delay:
            return True
        if not (rank.waiting and self.has_seat(rank)):
            return False
        if not self.lacks_memory(rank):
            return True
        self.look_at_queue(rank)
        self.note_full(rank)
        return False

    def lacks_memory(self, rank: CheckedScheduler) -> bool:
        """Whether memory refuses the head of a rank's queue before the ranks agree, after a running prompt's chunk."""
        config = self.config
        asks_memory = config.bounds_prompt_delay or not config.delays_for_seats
        is_plain = not (rank.keeps_windows or config.max_loras or config.preemption_mode == "swap")
        if not (asks_memory and is_plain and rank.keeps_full and config.scheduler == "prefill_first"):
            return False
        rank.sort_queue()
        step, free = self.after_chunks(rank)
        head = rank.waiting[0]
        if self.passes_over(rank, step, free):
            return False
        found = rank.cached_prefix(head, head.prompt_tokens + head.generated)
        target = chunk = head.prompt_tokens + head.generated - len(found) * config.block_size
        if config.enable_chunked_prefill:
            chunk = min(target, config.max_chunk_tokens, step.budget)
        free -= rank.cached.num_idle(found)
        if rank.blocks_of(chunk) > free:
            return True
        return bool(rank.running) and not rank.is_within_estimate(step, head, target, free)

    def after_chunks(self, rank: CheckedScheduler) -> tuple[Step, int]:
        """Return a step with a running prompt's next chunk, and the blocks that this leaves."""
        config = self.config
        step, free = Step(0.0, budget=config.max_num_batched_tokens), rank.free
        for request in [one for one in rank.active if not one.is_decoding]:
            chunk = min(request.target - request.computed, config.max_chunk_tokens, step.budget)
            room = rank.estimated_room(free)
            chunk = min(chunk, int(room)) if room >= 1.0 else chunk
            free -= rank.blocks_of(request.computed + chunk) - rank.blocks_of(request.computed)
            step.chunks.append((request, chunk))
            step.budget -= chunk
        return step, free

    def note_full(self, rank: CheckedScheduler) -> None:
        """Record that the head of a rank's queue was refused, if the rank's batch holds any request."""
        rank.is_full = rank.is_full or self.num_in_batch(rank) > 0

    def tries(self, rank: CheckedScheduler) -> int:
        """Return how many requests a rank takes its next batch of prompts for, as far as it knows."""
        return max(1, min(len(rank.waiting), self.config.max_num_seqs - self.num_in_batch(rank)))

    @staticmethod
    def is_amid_prompt(rank: CheckedScheduler) -> bool:
        """Whether a rank computes a prompt in chunks."""
        return any(not (request.is_decoding or request in rank.departing) for request in rank.running)

    def look_at_queue(self, rank: CheckedScheduler) -> None:
        """Note the uses of prefixes by a look at a queue whose head does not begin."""
        rank.look_at_queue()
        step, free = self.after_chunks(rank)
        if not self.is_amid_prompt(rank) or (self.has_seat(rank) and not self.passes_over(rank, step, free)):
            rank.look_up(step)

    def passes_over(self, rank: CheckedScheduler, step: Step, free: int) -> bool:
        """Whether a rank tries no request because a running prompt has spent the budget (SGLang 0.5.23)."""
        return self.config.strikes_at_once and step.budget == 0 and rank.room_left(step, free) > 0

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
        is_requeued = rank.config.admission == "estimate"
        rank.waiting = deque([*held, *rank.waiting] if is_requeued else [*rank.waiting, *held])
        return step
