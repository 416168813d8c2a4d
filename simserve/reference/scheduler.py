"""Continuous batching, one step at a time: decodes, chunks, admission, preemption. Specifies the engine's kernel.

It uses no leaps, no heaps of finishes and no closed forms: it looks at every request in every step.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from typing import TYPE_CHECKING

from simserve.reference.arrival_order import came, growth, make_room, pauses_for, take_growth
from simserve.reference.cached_blocks import waiting_seconds
from simserve.reference.kv_memory import Scheduler
from simserve.reference.micro_batches import join_micro_batches, take_turns
from simserve.reference.request import Request, batch_tokens, new_tokens, page_reserve, prefilling_tokens
from simserve.reference.seats import beyond_end, schedule_seats
from simserve.reference.steps import Launches, Step, hand_over, mixed_seconds, to_checkpoint, uncached_seconds
from simserve.reference.suspension import (
    bring_back,
    keeps_out,
    known_tokens,
    lacks_budget,
    may_begin,
    passes,
    preempt_stuck,
    waits_with_blocks,
)
from simserve.reference.victims import RATIO_LOOKAHEAD_TOKENS, choose_victim, decode_in_order, growths, next_ratio

if TYPE_CHECKING:
    from simserve.engine.config import EngineConfig
    from simserve.engine.state import StepTimes

LOOKS_BETWEEN_USES, MOST_TOUCHED = 32, 128
"""At every 32nd look at its queue, SGLang uses the prefixes of up to 128 waiting requests (``schedule_policy.py``)."""


class ContinuousScheduler(Scheduler):
    """Iteration-level scheduling: the batch may change with every step.

    Attributes:
        ratio: ``estimate``: share of ``max_tokens`` that a running request is expected to generate.
        is_full: ``estimate``: whether the head of the queue was refused; no request is tried until the batch shrinks.
        left: ``estimate``: tokens that requests could still have generated when they stopped decoding in the last
            decode step; they keep their seats until the next.
        in_flight: Where results are known late: requests whose tokens of the step that has ended are not known yet, in
            the order of that step; has_late_results, late_start: whether there was such a step, and when it began.
        passed_before: Requests that the last step passed over, so that they have no token in flight.
        unsent: Seconds of work that the API server still has to do.
        looks_at: When to schedule again although nothing arrives.
    """

    def __init__(self, config: EngineConfig, times: StepTimes) -> None:
        super().__init__(config, times)
        self.ratio = config.new_token_ratio_initial
        self.is_full = self.has_late_results = False
        self.left: list[int] = []
        self.in_flight: list[Request] = []
        self.passed_before: list[Request] = []
        self.late_start, self.unsent, self.sent_until, self.looks_at = 0.0, 0.0, 0.0, math.inf
        self.paused_at = math.inf  # when nothing was left to do
        self.num_looks, self.launches = 0, Launches(config)

    def check(self, step: Step) -> None:
        """Inspect a planned step before it begins."""

    def look_again(self, now: float) -> float:
        """Return when to schedule after a step for which no next step could be scheduled ahead."""
        return self.looks_at if self.looks_at > now else math.inf

    @property
    def releases_late(self) -> bool:
        """Whether requests done in a step keep seats and blocks until the next one is scheduled (steps ahead)."""
        is_late = self.config.releases_late and self.config.async_scheduling and self.config.kv_allocation != "none"
        return is_late or self.config.has_overlap

    def schedule(self, now: float) -> Step | None:
        """Choose the requests of the step that starts ``now``; None without requests."""
        config = self.config
        if not self.num_outstanding and not beyond_end(self):
            self.release_departing()
            self.has_late_results = self.is_full = False
            self.paused_at = min(self.paused_at, now)
            self.left.clear()
            return None
        # Scheduled ahead, what came while the last step ran has let no pause begin.
        if now > (math.nextafter(self.paused_at, math.inf) if config.has_overlap else self.paused_at - 1.0):
            self.ratio = config.new_token_ratio_initial if config.data_parallel_size == 1 else self.ratio
        self.paused_at = math.inf
        was_running = bool(self.active or self.departing)
        step = self.planned(now)
        if (config.has_whole_prompts or self.states.is_used) and was_running and not (self.active or self.departing):
            # All that ran were preempted for one that is then passed over: the engine schedules again.
            if config.async_scheduling and config.data_parallel_size == 1:
                self.looks_at = math.nextafter(now, math.inf)
                return None
            step = self.planned(now)
        while step.is_empty and (step.passed_over or (self.states.is_used and step.has_preempted and self.active)):
            # An empty step: the engine schedules again, one step ahead when the last one has ended.
            self.passed_before = step.passed_over
            self.release_departing()
            if config.async_scheduling and config.data_parallel_size == 1:
                self.looks_at = math.nextafter(now, math.inf)
                return None
            step = self.planned(now)
        if config.has_overlap:
            if self.has_late_results or step.requests:
                if step.is_empty:
                    self.learn_results(step)
                    self.looks_at = math.nextafter(now, math.inf)
                    return None
            else:
                self.left, self.is_full = [], False
                if config.data_parallel_size > 1:
                    return None
                self.ratio = self.ratio if config.keeps_ratio else config.new_token_ratio_initial
                step = self.planned(now)
            self.check(step)
            step.blocked_by = self.blocked_by(step)
            self.learn_results(step)
            step.seconds = self.seconds(step)
            return step
        if self.departing:
            if not step.is_empty:
                self.check(step)
            self.release_departing()
            if step.is_empty:
                # Nothing could be scheduled ahead: the engine waits for the running step and schedules again.
                if config.data_parallel_size == 1:
                    self.looks_at = math.nextafter(now, math.inf)  # after the requests that arrived while it ran
                    return None
                step = self.planned(now)
                self.check(step)
        elif step.requests or not self.left:
            self.check(step)
        else:
            # Only requests that have left are in the batch: the engine's loop runs once more, or beside other ranks.
            self.left, self.is_full = [], False
            if config.data_parallel_size > 1:
                return None
            self.ratio = self.ratio if config.keeps_ratio else config.new_token_ratio_initial
            step = self.planned(now)
            self.check(step)
        self.ratio = next_ratio(self, step)
        step.blocked_by = self.blocked_by(step)
        self.forget_left(step)
        step.seconds = self.seconds(step)
        return step

    def learn_results(self, step: Step) -> None:
        """Process the results of the step that has ended, now that the next one is scheduled (SGLang, overlapped)."""
        self.ratio = next_ratio(self, step)
        if not step.chunks:
            self.is_full = self.is_full and not self.left
            self.left.clear()
        struck = [] if step.chunks else [one for one in self.departing if one not in self.goes_on(self.departing)]
        self.is_full = self.is_full and not struck
        for request in (one for one in self.departing if one not in struck):
            self.note_left(request)
        # In the order of the step; the KV cache of a request that decodes once more also holds its last token.
        for request in [*self.in_flight, *(one for one in self.departing if one not in self.in_flight)]:
            if request in self.departing:
                self.release_departed(request, request.computed + (request in step.beyond))
            elif self.tree is not None and request.computed == request.target:
                self.cache(request, request.computed)
        self.in_flight, self.has_late_results = [], False

    def known_tokens(self, request: Request) -> int:
        """Return the number of tokens that a request has generated, as far as the scheduler knows."""
        return request.generated - (request in self.in_flight)

    @property
    def decoding_on(self) -> list[Request]:
        """Requests that decode, as far as the scheduler knows: some may be done."""
        late = beyond_end(self)
        return [one for one in self.running if one in late or (one.is_decoding and one not in self.departing)]

    def planned(self, now: float) -> Step:
        """Choose the requests of a step; those that are done keep their seats and blocks and compute nothing."""
        config = self.config
        step, self.loads = self.loads, Step(0.0)
        self.states.begin()
        step.start, step.longest_chunk = now, config.max_chunk_tokens
        step.budget = config.max_num_batched_tokens * config.pipeline_parallel_size
        if config.lifts_chunk_limit and len(self.running) + len(self.waiting) <= 1:
            step.longest_chunk = step.budget if config.overlaps_chunks else config.max_num_batched_tokens
        self.sort_queue()
        self.make_way(step)
        if self.config.kv_allocation == "none":
            self.schedule_uncached(step)
        elif self.states.is_used:
            take_turns(step, config, [one for one in self.decoding_on if one not in self.departing])
            schedule_seats(self, step)
            self.admit(step)
            self.states.learn()
        elif self.config.scheduler == "mixed":
            self.schedule_decodes(step)
            take_turns(step, config, step.decoding)
            is_merged = self.keeps_order and bool(self.waiting) and (config.has_suspension or not step.has_preempted)
            if not is_merged:
                self.schedule_chunks(step)
            self.admit(step, is_merged=is_merged)
            while preempt_stuck(self, step):
                self.admit(step, is_merged=True)
            self.cache_decoded(step)
        else:
            self.look_at_queue()
            self.schedule_chunks(step)
            self.admit(step)
            if not step.chunks:
                self.schedule_decodes(step)
        self.give_way()
        return step

    def blocked_by(self, step: Step) -> str:
        """Return what keeps the head of the queue out of a planned step; empty if no request waits."""
        if len(self.running) == self.config.max_num_seqs:
            return "seats"
        if not self.waiting:
            return ""
        if self.num_seated == self.config.max_num_seqs:
            return "seats"
        if self.num_seated + len(step.deferred) >= self.config.max_num_seqs:
            return step.passed_for
        if step.asks_nobody:
            return "blocks"
        asked = [one for one in self.waiting if self.has_adapter_seat(one) and one not in step.deferred]
        if not asked:
            return "blocks" if step.has_preempted else step.passed_for
        head = asked[0]
        target = head.prompt_tokens + head.generated
        found = self.cached_prefix(head, target)
        target -= self.computed_before(head, found)
        if not may_begin(self, step, head):
            return keeps_out(self, head)
        is_chunked = self.config.enable_chunked_prefill
        is_padded = step.budget > 0 and target == 1 and not self.padded(step, len(found))
        charged = head.prompt_tokens + head.generated if self.ignores_found else target
        is_cut = is_chunked and self.states.cut(head, min(charged, step.longest_chunk, step.budget), charged) == 0
        if step.budget == 0 or is_cut or is_padded or (not is_chunked and charged > step.budget):
            # SGLang checks memory first, but checks no request once its new prompts have used up the budget.
            if self.keeps_full and self.running and not (is_chunked and step.num_admitted):
                free = self.free - self.in_pool(self.cached.num_idle(found), 0)
                return "budget" if self.is_within_estimate(step, head, target, free) else "blocks"
            return "budget"
        is_contiguous = self.config.kv_allocation in ("pow2", "oracle")
        has_tokens = is_contiguous and self.kv_tokens - self.used_tokens >= self.span_of(head)
        return "scatter" if has_tokens else "blocks"

    def schedule_decodes(self, step: Step) -> None:
        """Give every decoding request its tokens and the blocks it may need for them."""
        if self.config.has_whole_prompts:
            make_room(self, step)
            return
        decoding = decode_in_order(self, step) if self.config.has_ordered_pass else self.goes_on(self.decoding_on)
        while True:
            needs, windows = growths(self, decoding)
            if self.fits(sum(needs), sum(windows)):
                break
            if len(decoding) < len(self.decoding_on):
                # No request is retracted or runs before requests that are done have released their blocks.
                return
            self.make_free(sum(needs))
            self.preempt(step)
            decoding = self.goes_on(self.decoding_on)
        if not step.has_preempted:
            self.swap_in(step)
            bring_back(self, step)
            decoding = self.goes_on(self.decoding_on)
            needs, windows = growths(self, decoding)
        for request, blocks, window in zip(decoding, needs, windows, strict=True):
            self.take(request, blocks, window)
        step.decoding = [request for request in decoding if request not in self.departing]
        step.beyond = [request for request in decoding if request in self.departing]
        if self.config.scheduler == "mixed":
            step.budget -= self.tokens_per_decode * len(decoding)

    def goes_on(self, decoding: list[Request]) -> list[Request]:
        """Return the requests of a batch that compute next: SGLang 0.5.22 knows which have reached ``max_tokens``."""
        if not (self.config.has_overlap and self.config.skips_ended):
            return decoding
        return [one for one in decoding if one not in self.departing or one.output_tokens < one.max_tokens]

    def schedule_chunks(self, step: Step, before: Request | None = None) -> None:
        """Give the prefilling requests their next chunks, in the order of seats; only those that came before one."""
        for request in [request for request in self.active if not request.is_decoding and request not in step.requests]:
            if request not in self.running or request in step.passed_over:
                continue
            if before is not None and came(before) < came(request):
                break
            chunk = min(to_checkpoint(self.config, request.target - request.computed), step.longest_chunk, step.budget)
            chunk = self.states.cut(request, chunk, request.target - request.computed)
            chunk = 0 if lacks_budget(self.config, step) else chunk
            if self.keeps_full:
                # SGLang's ``add_chunked_req``: as much as its estimate has room for, or all if it has no room.
                room = self.estimated_room(self.free)
                if room < chunk:
                    self.note_tie(room - round(room))
                    chunk = int(room) if room >= 1.0 else chunk
            if chunk == 0:
                continue
            held = self.blocks_of(request.computed)
            is_growing = self.is_growing and not self.config.has_whole_prompts
            blocks = self.blocks_of(request.computed + chunk) - held if is_growing else 0
            windows = self.windows_with(request.blocks, blocks) - self.window_of(request.blocks)
            if self.config.has_suspension and not self.fits(blocks, windows):
                continue
            while request in self.running and not self.fits(blocks, windows):
                self.preempt(step)
            if request not in self.running and self.config.has_ordered_pass:
                step.passed_over += [one for one in self.active if one not in step.requests and not one.is_decoding]
            if request in self.running:
                self.take(request, blocks, windows)
                if self.caches_chunks:
                    self.cache(request, request.computed + chunk)
                step.chunks.append((request, chunk))
                step.budget -= chunk

    def cache_decoded(self, step: Step) -> None:
        """Cache the blocks that decodes fill, or hold after another's copy was evicted; ahead, as far as known."""
        if not self.config.caches_decoded or self.states.is_used:
            return
        for request in step.decoding:
            computed = float(request.computed)
            if self.config.async_scheduling:
                # The tokens of the running step are not there yet.
                computed += request.fraction - self.tokens_gained(request)
            self.cache(request, math.floor(computed) + 1)

    def admit(self, step: Step, *, is_merged: bool = False) -> None:
        """Admit from the head of the queue up to a limit; ``is_merged``: running prompts have no chunks yet."""
        if not self.decoding_on and not self.left:
            self.is_full = False
        step.asks_nobody = self.is_full
        step.in_use = set(self.cached.users)
        passed: list[Request] = []
        is_refused = False
        while not ((step.has_preempted and step.paused is None) or self.is_full) and self.waiting:
            head = self.waiting[0]
            if is_merged:
                self.schedule_chunks(step, head)
            if step.paused is not None and came(step.paused) <= came(head):
                is_refused = True
                break
            # Requests that wait for a prefix hold their seats.
            has_seat = self.num_seated + len(step.deferred) < self.config.max_num_seqs
            if has_seat and not may_begin(self, step, head):
                is_refused = True
                break
            if has_seat and (not self.has_adapter_seat(head) or self.waits_for_prefix(step, head)):
                # It needs one adapter too many or another's prefix: it keeps its place, and the next one is tried.
                passed.append(self.waiting.popleft())
                continue
            self.cache_decoded(step)
            self.look_up(step)
            if has_seat and self.config.has_whole_prompts and pauses_for(self, step, head):
                passed.append(self.waiting.popleft())
                continue
            chunk = self.head_chunk(step) if has_seat else 0
            if chunk == 0 and has_seat and self.sets_aside(step):
                passed.append(self.waiting.popleft())
                continue
            if chunk == 0 and has_seat and waits_with_blocks(self, head):
                request = self.enter(step)
                self.take(request, self.blocks_of(request.computed) - request.blocks, 0)
                continue
            if chunk == 0 and has_seat and passes(self, step, head):
                passed.append(self.waiting.popleft())
                continue
            if chunk == 0:
                is_refused = has_seat
                self.note_refusal(step)
                break
            charge, surplus = self.charge(step, chunk), self.surplus(step, self.waiting[0])
            request = self.enter(step)
            self.set_aside += surplus
            self.take_space(request, chunk)
            if self.caches_chunks:
                self.cache(request, min(request.computed + chunk, request.target))
            step.chunks.append((request, chunk))
            step.budget -= charge
        if passed and not self.waiting and self.num_seated == self.config.max_num_seqs:
            self.note_refusal(step)
        step.set_aside, self.set_aside = self.set_aside, 0
        if is_merged and (self.config.has_suspension or not (is_refused and (step.requests or self.departing))):
            self.schedule_chunks(step)
        if self.config.has_whole_prompts:
            take_growth(self, step)
        # Where blocks are taken lazily, all have found theirs before any takes what it lacks.
        self.reuse_for_taken()
        self.waiting.extendleft(reversed(passed))

    def look_at_queue(self) -> None:
        """Count a look at the queue and, at times, a use of its cached prefixes, the head's last (SGLang 0.5.22)."""
        config = self.config
        if self.tree is None or not (config.touches_waiting and config.scheduling_policy == "fcfs" and self.waiting):
            return
        is_full = self.is_full and (self.decoding_on or self.left)
        has_seat = not is_full and self.num_seated < config.max_num_seqs
        if has_seat or any(not request.is_decoding for request in self.active):
            if self.num_looks % LOOKS_BETWEEN_USES == 0:
                for request in reversed(list(self.waiting)[:MOST_TOUCHED]):
                    blocks = (request.prompt_tokens + request.generated) // config.block_size
                    self.tree.find(request, self.blocks_on_path(request, blocks))
            self.num_looks += 1

    def look_up(self, step: Step) -> None:
        """Note the use of the prefix that the head of the queue finds in the tree, unless the budget is spent."""
        has_seat = self.num_seated < self.config.max_num_seqs and not self.waiting[0].is_swapped
        is_asked = (step.budget or not step.num_admitted) and not self.passes_over(step)
        if self.tree is not None and has_seat and is_asked:
            head = self.waiting[0]
            limit = (head.prompt_tokens + head.generated - 1) // self.config.block_size
            self.tree.find(head, self.blocks_on_path(head, limit))

    def note_refusal(self, step: Step) -> None:
        """``estimate``: if seats or blocks refuse the head while others decode, try no request for a while.

        SGLang's ``batch_is_full``; with preemption by priority it tries every time.
        """
        if self.passes_over(step):
            return
        if self.keeps_full and (self.decoding_on or self.left) and self.blocked_by(step) in ("seats", "blocks"):
            self.is_full = True

    def passes_over(self, step: Step) -> bool:
        """Whether no request is tried because the budget is spent, although memory is left (SGLang 0.5.23)."""
        return self.config.strikes_at_once and step.budget == 0 and self.room_left(step, self.free) > 0

    @property
    def keeps_full(self) -> bool:
        """Whether a refusal holds until the batch shrinks, and requests leave the batch when it decodes again."""
        is_vllm = self.releases_late and not self.config.has_overlap
        asks_always = self.config.priority_preemption or is_vllm
        return self.is_growing and self.config.admission == "estimate" and not asks_always

    @property
    def num_seated(self) -> int:
        """Seats that are taken, including by requests that have stopped decoding."""
        return len(self.running) + len(self.left)

    def note_left(self, request: Request) -> None:
        """Keep the seat of a request that stops decoding until SGLang's batch decodes again (``filter_batch``)."""
        if self.config.strikes_at_once:
            self.is_full = False
        elif self.keeps_full:
            self.left.append(new_tokens(request))

    def let_go(self, request: Request) -> None:
        """Take a request from the queue or the batch; one that decoded keeps its seat for a while."""
        was_decoding = request not in self.waiting and request.is_decoding
        super().let_go(request)
        self.in_flight = [one for one in self.in_flight if one is not request]
        if was_decoding:
            self.note_left(request)

    def forget_left(self, step: Step) -> None:
        """Free the seats of requests that left, in a step that decodes; if it only decodes, try the queue again."""
        if self.left and not (step.chunks and self.config.scheduler == "prefill_first"):
            self.left.clear()
            if not step.chunks:
                self.is_full = False

    def head_chunk(self, step: Step) -> int:
        """Return the number of tokens that the head of the queue would compute in this step; 0 if it must wait."""
        if self.num_seated == self.config.max_num_seqs or step.budget == 0 or self.waiting[0].is_swapped:
            return 0
        head = self.waiting[0]
        target = head.prompt_tokens + head.generated
        found = self.cached_prefix(head, target)
        target -= self.computed_before(head, found)
        if not may_begin(self, step, head):
            return 0
        if not self.config.enable_chunked_prefill:
            chunk = target if self.charge(step, target) <= step.budget else 0
        else:
            chunk = min(to_checkpoint(self.config, target), step.longest_chunk, step.budget)
            chunk = min(self.charge(step, self.states.cut(head, chunk, target)), target)
        if chunk == target == 1:
            chunk = self.padded(step, len(found))
        return chunk if chunk and self.has_space(step, head, target, chunk, found) else 0

    def padded(self, step: Step, num_found: int) -> int:
        """Return the tokens computed for a request with a single token left; 0 if that exceeds the budget."""
        config, length = self.config, num_found * self.config.block_size + self.tokens_per_decode
        has_running_prompt = len(step.chunks) > step.num_admitted
        if not config.has_padding or has_running_prompt or not (step.decoding or step.beyond or num_found):
            return 1
        if self.tokens_per_decode > step.longest_chunk or length + 1 > config.max_model_len:
            return 1
        return self.tokens_per_decode if self.tokens_per_decode <= step.budget else 0

    def has_space(self, step: Step, head: Request, target: int, chunk: int, found: list[tuple[int, int]]) -> bool:
        """Whether the admission rule finds room for ``target`` tokens of the head after its cached prefix."""
        if self.states.is_used:
            return self.states.has_space(head, chunk, found)
        free = self.free - self.in_pool(self.cached.num_idle(found), 0)
        if self.config.kv_allocation == "static":
            return free >= 1
        if self.config.kv_allocation in ("pow2", "oracle"):
            return self.first_fit(self.span_of(head)) is not None
        if self.config.admission == "reserve":
            return free >= self.blocks_of(self.longest(head)) - len(found) + self.surplus(step, head)
        if self.config.has_whole_prompts:
            return self.asked_blocks(step, head) <= self.free - growth(self) + growth(self, head)
        blocks = self.blocks_of(self.computed_before(head, found) + chunk) - len(found)
        needed_window = self.windows_with(len(found), blocks)
        needed = self.in_pool(blocks, needed_window)
        if self.config.admission == "on_demand":
            if self.config.reserve_full_prompt:
                # A layer with a window never holds more than the window and a chunk of the prompt.
                blocks = self.blocks_of(target)
                longest_chunk = self.blocks_of(self.config.max_chunk_tokens)
                whole_window = min(self.windows_with(len(found), blocks), self.config.window_blocks + longest_chunk)
                needed = max(needed, self.in_pool(blocks, whole_window))
                needed_window = max(needed_window, whole_window)
            if needed_window > self.free_window:
                return False
            return free - needed >= self.config.watermark_blocks or (not self.running and free >= needed)
        if free < needed or self.free_window < needed_window:
            return False
        return not self.running or self.is_within_estimate(step, head, target, free)

    def is_within_estimate(self, step: Step, head: Request, target: int, free: float) -> bool:
        """Whether the expected new tokens of all leave room for the head (``estimate``)."""
        asked = target + new_tokens(head) + page_reserve(self.config)
        room = self.room_left(step, free)
        self.note_tie(asked - room)
        return asked < room

    def room_left(self, step: Step, free: float) -> float:
        """Return the tokens that ``estimate`` leaves after those expected of the batch and the step's prompts."""
        return self.estimated_room(free) - prefilling_tokens(self.active, step.chunks, page_reserve(self.config))

    def note_tie(self, distance: float) -> None:
        """Note how close a test of the estimate came to a tie, which rounding decides for a fractional ratio."""
        expected = self.expected_tokens
        if self.ratio * expected != round(self.ratio) * expected:
            self.closest_estimate = min(self.closest_estimate, abs(distance))

    @property
    def expected_tokens(self) -> float:
        """Most new tokens of the requests that the batch decodes or still holds."""
        departing = self.departing if self.config.has_overlap else []
        return batch_tokens(self.active, self.in_flight, departing) + sum(self.left)

    def estimated_room(self, free: float) -> float:
        """Return the tokens that ``estimate`` leaves of ``free`` blocks after those expected of the batch."""
        if self.keeps_windows:
            # Counted as one block in every layer.
            free = min(free // self.in_pool(1, 1), self.free_window)
        ratio = 1.0 if self.config.expects_max_tokens else self.ratio
        return free * self.config.block_size - ratio * self.expected_tokens

    def preempt(self, step: Step, chosen: Request | None = None) -> None:
        """Take everything from the victim and requeue it."""
        victim = chosen or choose_victim(self, step)
        assert all(victim is not request for request, _ in step.chunks)
        known, before = victim.computed, victim.assumed - self.tokens_per_decode
        is_ahead = self.config.assumes_drafts and before >= victim.target
        if victim in self.departing and self.config.has_overlap:
            known = 0
        elif victim in self.departing:
            known = max(before if is_ahead else known - 1, victim.prompt_tokens)
        elif self.releases_late and self.is_token_unknown(victim):
            known = before if is_ahead else known - 1
        elif self.releases_late and victim.is_decoding and victim not in self.passed_before:
            known -= self.config.hashes_next_token
        if self.config.has_whole_prompts and not victim.is_decoding:
            # TensorRT-LLM takes all but the last token for computed.
            known = victim.target - 1
        if self.config.has_suspension:
            # Others find its prompt; those behind it are not looked at in this step.
            step.paused = victim
            known = known_tokens(self.config, victim, victim.computed)
        if self.tree is None:
            self.leave_cached(victim, known)
        self.write_through(victim, known)
        self.running.remove(victim)
        if victim in self.in_flight:
            self.lose_token(victim)
        if victim in self.departing:
            # It has all its tokens: only its memory is taken.
            self.departing.remove(victim)
            self.release(victim)
            victim.num_preemptions, step.has_preempted = victim.num_preemptions + 1, True
            return
        self.num_preempted, self.is_full = self.num_preempted + 1, False
        if victim in step.decoding:
            step.decoding.remove(victim)
        blocks = self.blocks_of(victim.computed)
        self.release(victim)
        self.make_free(RATIO_LOOKAHEAD_TOKENS * len(self.decoding_on))
        self.drop_adapter(victim)
        if self.config.preemption_mode == "swap" and victim.is_decoding and blocks <= self.free_in_host:
            victim.is_swapped = True
            self.free_in_host -= blocks
            step.moved_blocks += blocks
        else:
            victim.suspended = victim.computed if self.config.has_suspension else 0
            victim.computed = victim.assumed = 0
        victim.fraction, victim.micro_batch = 0.0, -1
        victim.num_preemptions, step.has_preempted = victim.num_preemptions + 1, True
        if self.config.admission == "estimate":
            self.waiting.append(victim)
            if not self.config.max_loras and self.config.data_parallel_size == 1:
                # SGLang orders equal priorities by when they were queued last.
                now = self.late_start if self.has_late_results else step.start
                self.last_requeued = max(now, math.nextafter(self.last_requeued, math.inf))
                self.requeued[victim.index] = self.last_requeued
        else:
            earlier = itertools.takewhile(lambda one: came(one) < came(victim), self.waiting)
            keeps_order = self.config.has_whole_prompts or self.config.has_suspension
            self.waiting.insert(len(list(earlier)) if keeps_order else 0, victim)
        self.sort_queue()

    def is_token_unknown(self, victim: Request) -> bool:
        """Whether the newest token of a request is on its way, so that its KV cache does not count as computed."""
        if self.config.has_whole_prompts:
            return victim.is_decoding
        return victim.computed > victim.target and victim not in self.passed_before

    def sort_queue(self) -> None:
        """Sort the queue by the policy; it is already in the order of first come, first served."""
        config = self.config
        if config.scheduling_policy == "shortest_first":
            ordered = sorted(
                self.waiting, key=lambda one: (one.prompt_tokens + one.max_tokens, self.queued(one), one.index)
            )
        elif config.scheduling_policy == "priority":
            ordered = sorted(self.waiting, key=lambda one: (self.rank(one), self.queued(one), one.index))
        else:
            return
        self.waiting = deque(ordered)

    def lose_token(self, victim: Request) -> None:
        """Take its in-flight token from a victim; it is generated again."""
        self.in_flight.remove(victim)
        victim.generated -= victim not in self.departing
        if not victim.generated:
            victim.token_times.clear()
            victim.handed_over = math.nan

    def make_way(self, step: Step) -> None:
        """Preempt running requests of a worse priority until the head of the queue has a seat and blocks to start."""
        config = self.config
        if not config.priority_preemption or not self.waiting:
            return
        head = self.waiting[0]
        while True:
            worse = [one for one in self.active if one.priority > head.priority and self.rank(one) > self.rank(head)]
            if not worse:
                break
            target = head.prompt_tokens + head.generated
            found = self.cached_prefix(head, target)
            chunk = target - len(found) * config.block_size
            if config.enable_chunked_prefill and not config.reserve_full_prompt:
                chunk = min(chunk, config.max_chunk_tokens, step.budget)
            if head.is_swapped:
                chunk = head.computed + 1
            decoding = [request for request in self.active if request.is_decoding and config.scheduler == "mixed"]
            blocks = self.states.num_idle(found) + self.blocks_of(chunk)
            blocks += sum(self.blocks_needed(request) for request in decoding)
            window_blocks = self.windows_with(len(found), self.blocks_of(chunk))
            window_blocks += sum(self.window_growth(request) for request in decoding)
            if len(self.running) < config.max_num_seqs and self.fits(blocks, window_blocks):
                break
            self.preempt(step, max(worse, key=lambda one: (one.priority, one.ready, one.index)))
        step.has_preempted = False

    def schedule_uncached(self, step: Step) -> None:
        """Without a KV cache, only seats limit the batch, and everything is computed again."""
        step.decoding = list(self.running)
        while self.waiting and len(self.running) < self.config.max_num_seqs:
            request = self.enter(step)
            step.chunks.append((request, request.target))

    def seconds(self, step: Step) -> float:
        """Return the seconds of a planned step."""
        if self.config.kv_allocation == "none":
            lengths = [request.computed + 1 for request in step.decoding]
            return uncached_seconds(self.times, lengths + [chunk for _, chunk in step.chunks])
        contexts = [request.computed + request.fraction for request in step.decoding]
        contexts += [request.prompt_tokens + request.output_tokens - 1 for request in step.beyond]
        chunks = [(request.computed, chunk) for request, chunk in step.chunks]
        stages, width = self.config.pipeline_parallel_size, self.tokens_per_decode
        computing = mixed_seconds(self.times, contexts, chunks, stages, width, step.passing(self.config))
        seconds = step.encoder_seconds + computing + waiting_seconds(self.config, self.store, step, computing)
        seconds += self.seconds_of_adapters(step)
        self.launches.begin(step, self.times, chunks, width * len(contexts))
        return max(seconds, step.late_launch) + self.times.swap_block_seconds * step.moved_blocks

    def complete(self, step: Step, end: float, /) -> list[Request]:
        """Apply the effects of a step: tokens and finishes."""
        config = self.config
        self.launches.end(step, end)
        hand_over(config, [*self.running, *self.waiting], step, end)
        self.send_tokens(step, end)
        self.passed_before = step.passed_over
        gained = {}
        self.states.note(step)
        for request in step.decoding:
            request.assumed = request.computed + config.assumes_drafts * self.tokens_per_decode
            request.fraction += self.tokens_gained(request)
            gained[request] = math.floor(request.fraction)
            request.fraction -= gained[request]
            request.computed += gained[request]
        for request, chunk in step.chunks:
            request.assumed = request.computed = min(request.computed + chunk, request.target)
            if config.has_padding and self.is_growing and not self.states.is_used:
                self.take(request, self.blocks_of(request.computed) - request.blocks, 0)
        if config.takes_lazily and config.enable_prefix_caching:
            self.reuse_for_taken()
        self.keep_late_prompts()
        if config.has_overlap:
            self.has_late_results, self.late_start = True, step.start
            self.retract_ahead(step, end)
        for request in self.running:
            # Blocks that no query sees any more are free again.
            request.window_blocks = self.window_of(request.window_blocks)
        finished, sent = [], self.unsent
        join_micro_batches(self, step)
        for request in [request for request, _ in step.chunks] + sorted(step.decoding, key=lambda one: one.index):
            if request.is_decoding:
                if request not in gained:
                    self.write_through(request, request.target)
                request.goes_on = config.decodes_beyond and request.generated + 1 < request.max_tokens
                # All tokens of a step arrive at once.
                request.generated = min(request.output_tokens, request.generated + gained.get(request, 1))
                if request.token_times:
                    # A server that sends more slowly than the engine generates delays every token.
                    sending = self.token_seconds * len(step.decoding)
                    request.gaps.append(max(end - request.token_times[-1], sending))
                request.token_times.append(end)
                if len(request.token_times) == 1 and self.token_seconds:
                    self.unsent += 0.0 if request in gained else self.token_seconds
                    request.handed_over = end + (sent if request in gained else self.unsent)
                if math.isnan(request.answer_began) and request.generated > request.thinking_tokens:
                    request.answer_began = end + self.unsent
            if request.generated == request.output_tokens:
                self.departing.append(request)
                if self.tree is not None and not self.releases_late:
                    self.release_departing()
                request.status, request.finish = "completed", end + self.unsent
                self.drop_adapter(request)
                finished.append(request)
            elif self.tree is not None and request not in gained and not (request.is_decoding and config.has_overlap):
                self.cache(request, request.computed)
            elif request.is_decoding and request not in gained:
                self.keep_prompt(request)
            if config.has_suspension and request not in gained:
                self.cache(request, min(request.computed, request.prompt_tokens))
        if not self.releases_late:
            self.release_departing()
        is_cut = any(not request.is_decoding for request, _ in step.chunks)
        if step.chunks and (is_cut or (finished and not config.has_overlap)):
            self.is_full = False
        for request in finished if not (step.chunks or config.has_overlap) else ():
            self.note_left(request)
        if config.has_overlap:
            decoded = sorted(step.decoding, key=lambda one: one.index)
            self.in_flight = [*(one for one, _ in step.chunks if one.is_decoding), *decoded]
        return sorted(finished, key=lambda one: one.index)

    def retract_ahead(self, step: Step, end: float) -> None:
        """Retract for a step scheduled before it is known who has finished; the victims' newest tokens are lost."""
        decoding, delays = self.decoding_on, self.config.prefill_delayer_max_delay_passes
        is_decode = not (step.chunks or delays) and all(request.is_decoding for request in self.active)
        if not is_decode or self.fits(sum(self.blocks_needed(one) for one in decoding), 0):
            return
        if self.config.skips_ended and any(one.ends_as_asked for one in step.decoding):
            # Requests that have ended are removed first.
            return
        if self.waiting and not self.is_full:
            coming = Step(end, budget=self.config.max_num_batched_tokens, longest_chunk=self.config.max_chunk_tokens)
            self.look_up(coming)
            if self.head_chunk(coming):
                return
        while not self.fits(sum(self.blocks_needed(one) for one in decoding), 0):
            self.make_free(sum(self.blocks_needed(one) for one in decoding))
            self.preempt(self.loads)
            decoding = self.decoding_on
        for request in [one for one in step.decoding if one not in self.running]:
            step.decoding.remove(request)
            request.gaps.append(end - request.token_times[-1])
            request.token_times.append(end)

    @property
    def token_seconds(self) -> float:
        """API server seconds per token."""
        return self.config.api_token_seconds * self.config.data_parallel_size

    def send_tokens(self, step: Step, end: float) -> None:
        """Let the API server send its backlog and the step's decoded tokens until the end of the step."""
        if self.token_seconds:
            unsent = max(0.0, self.unsent - (step.start - self.sent_until))
            unsent += self.token_seconds * len(step.decoding) - (end - step.start)
            self.unsent, self.sent_until = max(0.0, unsent), end
