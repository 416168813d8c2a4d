"""Invariants of every step that the reference plans: a violation ends the run at once."""

from __future__ import annotations

from simserve.reference.scheduler import ContinuousScheduler
from simserve.reference.steps import Step


class CheckedScheduler(ContinuousScheduler):
    """The scheduler of a replica, with all its steps checked."""

    def schedule_decodes(self, step: Step) -> None:
        """Check the queue before decodes that prompts precede: their blocks may be those of the head's prefix."""
        if self.config.scheduler == "prefill_first":
            check_queue(self, step)
        super().schedule_decodes(step)

    def check(self, step: Step) -> None:
        """Assert the invariants of a planned step."""
        check(self, step)


def check(scheduler: ContinuousScheduler, step: Step) -> None:
    """Assert the invariants of a scheduler's planned step."""
    config = scheduler.config
    assert step.requests or step.beyond, "a step that holds nothing"
    assert len(set(step.requests)) == len(step.requests)
    assert all(request in scheduler.running for request in step.requests)
    kept = scheduler.in_pool(len(scheduler.cached), 0)
    assert scheduler.states.is_used or scheduler.held + kept <= scheduler.capacity
    assert scheduler.free >= 0
    assert scheduler.free_window >= 0
    assert len(scheduler.running) <= config.max_num_seqs
    assert all(request.blocks == 0 for request in scheduler.waiting)
    if config.kv_allocation == "none":
        return
    check_space(scheduler, step)
    tokens = scheduler.tokens_per_decode * len(step.decoding) + sum(chunk for _, chunk in step.chunks)
    assert tokens <= config.max_num_batched_tokens * config.pipeline_parallel_size
    assert all(0 < chunk <= step.longest_chunk for _, chunk in step.chunks)
    if config.scheduler == "prefill_first":
        assert not (step.chunks and step.decoding)
    if config.scheduler == "mixed" or step.chunks:
        check_queue(scheduler, step)


def check_queue(scheduler: ContinuousScheduler, step: Step) -> None:
    """Assert that the head of the queue waits for a reason, once a step has admitted all that it may."""
    if scheduler.waiting and not (step.has_preempted or step.moved_blocks or step.asks_nobody):
        eligible = [one for one in scheduler.waiting if scheduler.has_adapter_seat(one) and one not in step.deferred]
        asked = next(iter(eligible), None)
        scheduler.set_aside = step.set_aside
        assert asked is not scheduler.waiting[0] or scheduler.head_chunk(step) == 0, "the head would be admitted"
        scheduler.set_aside = 0


def check_space(scheduler: ContinuousScheduler, step: Step) -> None:
    """Assert that every token of the step has a slot, and no slot has two owners."""
    for request in scheduler.active:
        chunk = sum(tokens for one, tokens in step.chunks if one is request)
        after = request.computed + chunk + (request in step.decoding)
        computed = min(after, request.target) if chunk else after
        assert computed <= request.prompt_tokens + request.output_tokens - 1
        drafts = scheduler.config.num_speculative_tokens if request.is_decoding else 0
        # Those under way take slots as if they held.
        drafts += max(request.assumed - request.computed, 0)
        if scheduler.states.is_used and scheduler.config.num_speculative_tokens:
            assert request.blocks >= scheduler.blocks_of(computed + drafts * (request in step.decoding))
        elif scheduler.is_growing and drafts and request not in step.decoding:
            assert scheduler.blocks_of(after) <= request.blocks <= scheduler.blocks_of(after + drafts)
        elif scheduler.config.has_whole_prompts and not request.is_decoding:
            assert request.blocks == scheduler.blocks_of(request.target)
        elif scheduler.is_growing:
            assert request.blocks == scheduler.blocks_of(after + drafts)
        elif scheduler.config.kv_allocation == "paged":
            assert request.blocks * scheduler.config.block_size >= after
        elif scheduler.config.kv_allocation != "static":
            assert request.span[1] - request.span[0] >= after
        if scheduler.keeps_windows and not scheduler.config.numbers_blocks:
            assert request.window_blocks >= scheduler.window_of(scheduler.blocks_of(after))
    edges = [edge for span in sorted(scheduler.spans) for edge in span]
    assert edges == sorted(edges)
    assert not edges or (edges[0] >= 0 and edges[-1] <= scheduler.kv_tokens)
