"""Static batching: collect, pad to the longest, answer together."""

from __future__ import annotations

import math

from simserve.reference.kv_memory import Scheduler
from simserve.reference.request import Request
from simserve.reference.steps import Step, mixed_seconds, uncached_seconds


class StaticScheduler(Scheduler):
    """A batch is served to its end before the next one starts; from outside it is one step."""

    def look_again(self, now: float) -> float:
        """Return when the batch being collected starts."""
        return self.deadline if self.waiting and now < self.deadline else math.inf

    @property
    def deadline(self) -> float:
        """When the head of the queue has waited long enough."""
        return self.waiting[0].ready + self.config.static_max_wait

    def schedule(self, now: float) -> Step | None:
        """Take a batch; None if no request waits or the batch is still being collected."""
        if not self.waiting:
            return None
        is_full = len(self.waiting) >= self.config.static_batch_size
        if not is_full and self.config.static_max_wait > 0 and now < self.deadline:
            return None
        self.running = self.take_batch()
        for request in self.running:
            request.scheduled = now
        seconds = self.batch_seconds(self.running)
        prompts = [(request, request.prompt_tokens) for request in self.running]
        return Step(now, chunks=prompts, seconds=sum(seconds), num_steps=len(seconds))

    def complete(self, _step: Step, end: float, /) -> list[Request]:
        """Answer all of the batch."""
        batch, self.running = self.running, []
        for request in batch:
            request.generated, request.token_times = request.output_tokens, [end]
            request.answer_began = end
            request.status, request.finish = "completed", end
        return sorted(batch, key=lambda one: one.index)

    def take_batch(self) -> list[Request]:
        """Take from the queue the longest prefix that has seats and memory."""
        limit = min(self.config.static_batch_size, self.config.max_num_seqs)
        batch = [self.waiting.popleft()]
        while self.waiting and len(batch) < limit:
            candidate = [*batch, self.waiting[0]]
            if len(candidate) * self.slot_tokens(candidate) > self.kv_tokens:
                break
            batch.append(self.waiting.popleft())
        return batch

    def slot_tokens(self, batch: list[Request]) -> int:
        """Return the number of KV tokens that each request of a batch is given."""
        if self.config.kv_allocation == "none":
            return 0
        if self.config.kv_allocation == "static":
            return self.config.max_model_len
        longest = max(request.prompt_tokens for request in batch) + max(request.max_tokens for request in batch)
        return self.config.block_size * self.blocks_of(longest)

    def batch_seconds(self, batch: list[Request]) -> list[float]:
        """Return the seconds of every step of a batch, padded to its longest prompt and output."""
        size, pipeline = len(batch), self.config.pipeline_parallel_size
        prompt = max(request.prompt_tokens for request in batch)
        output = max(request.output_tokens for request in batch)
        if self.config.kv_allocation == "none":
            return [uncached_seconds(self.times, [prompt + done] * size) for done in range(output)]
        prefill = mixed_seconds(self.times, [], [(0, prompt)] * size, pipeline)
        decodes = (mixed_seconds(self.times, [prompt + done] * size, [], pipeline) for done in range(output - 1))
        return [prefill, *decodes]
