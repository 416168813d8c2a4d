"""Static batching: collect, pad to the longest, answer together."""

from __future__ import annotations

import math

from tests.oracle.replica import Replica, Request
from tests.oracle.seconds import mixed_seconds, uncached_seconds


class StaticReplica(Replica):
    """A batch is served to its end before the next one starts."""

    def serve(self, now: float) -> float:
        """Run a whole batch from ``now`` and return its end; without one, return when to look again."""
        next_ready = self.upcoming[0][0] if self.upcoming else math.inf
        if not self.waiting:
            return next_ready
        deadline = self.waiting[0].ready + self.config.static_max_wait
        if len(self.waiting) < self.config.static_batch_size and self.config.static_max_wait > 0:
            self.deadlines.append(deadline)
            if now < deadline:
                return min(next_ready, deadline)
        batch = self.take_batch()
        end = now + sum(self.batch_seconds(batch))
        prompts = sum(request.prompt_tokens for request in batch)
        self.batches.append((now, 0, prompts, tuple(request.index for request in batch)))
        self.receive(end, is_end=False)
        self.step_ends.append(end)
        for request in batch:
            request.scheduled, request.generated = now, request.output_tokens
            request.token_times = [end]
            self.finish(request, end)
        for request in sorted(batch, key=lambda one: one.index):
            self.send_follower(request.index, end)
        return end

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
        """Return the tokens of KV that each request of a batch is given."""
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
        self.num_steps += output
        if self.config.kv_allocation == "none":
            return [uncached_seconds(self.times, [prompt + done] * size) for done in range(output)]
        prefill = mixed_seconds(self.times, [], [(0, prompt)] * size, pipeline)
        decodes = (mixed_seconds(self.times, [prompt + done] * size, [], pipeline) for done in range(output - 1))
        return [prefill, *decodes]
