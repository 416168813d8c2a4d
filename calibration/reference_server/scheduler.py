"""The scheduler of the reference server: continuous batching over paged KV memory. No clock, no tensors.

The life of a request:

1. It waits, first come first served.
2. A step begins with the requests whose tokens are all in the KV cache but the newest: each decodes one token.
3. One that starts a new block takes it; where blocks run out, the last admitted request loses all of its own and goes
   back to the head of the queue (recompute).
4. What the token budget leaves goes to requests whose prompt is not yet whole, in order of admission, in chunks.
5. Then to the head of the queue, while a seat is free and blocks are there for its first chunk. Nobody is admitted in
   a step that preempted.
6. The chunk that completes a prompt (after a preemption: the prompt and the tokens generated so far) gives a token.
7. After its last token the request frees its blocks.

Written apart from the simulator's kernel, in steps where that leaps, so that the two can be held against each other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the scheduler obeys.

    Attributes:
        max_num_seqs: Seats.
        max_num_batched_tokens: Token budget of a step.
        block_size: Tokens a KV block.
        num_blocks: KV blocks.
        enable_chunked_prefill: Whether a prompt may be split over steps.
        reserve_full_prompt: Whether admission wants blocks for the whole prompt, not only for the first chunk.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    num_blocks: int
    enable_chunked_prefill: bool = True
    reserve_full_prompt: bool = False


@dataclass(slots=True, eq=False)
class Request:
    """One request.

    Attributes:
        index: Its number.
        num_prompt_tokens: Tokens of its prompt.
        num_output_tokens: Tokens that it generates; the end of sequence is ignored.
        num_computed_tokens: Tokens whose keys and values are in the cache.
        num_generated_tokens: Tokens generated so far.
        block_table: Its blocks, in the order of its tokens.
        num_preemptions: Times that it lost them.
        sent: When the client sent it, seconds on the clock.
        token_times: When each of its tokens was there.
        token_ids: Prompt and generated tokens; left empty where nothing is computed.
    """

    index: int
    num_prompt_tokens: int
    num_output_tokens: int
    num_computed_tokens: int = 0
    num_generated_tokens: int = 0
    block_table: list[int] = field(default_factory=list)
    num_preemptions: int = 0
    sent: float = 0.0
    token_times: list[float] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """Tokens that it has: prompt and generated."""
        return self.num_prompt_tokens + self.num_generated_tokens

    @property
    def is_decoding(self) -> bool:
        """Whether the cache holds all its tokens but the newest, which the last step generated."""
        return self.num_generated_tokens > 0 and self.num_computed_tokens == self.num_tokens - 1

    @property
    def is_finished(self) -> bool:
        """Whether it has its last token."""
        return self.num_generated_tokens == self.num_output_tokens


@dataclass(frozen=True, slots=True)
class Step:
    """What one step computes.

    Attributes:
        decodes: Requests that decode one token each, in order of admission.
        chunks: Prefilling requests with their tokens of this step, in order.
        num_preempted: Requests that lost their blocks for it.
    """

    decodes: Sequence[Request]
    chunks: Sequence[tuple[Request, int]]
    num_preempted: int = 0

    @property
    def num_tokens(self) -> int:
        """Tokens that it computes."""
        return len(self.decodes) + sum(tokens for _, tokens in self.chunks)


class Scheduler:
    """Decides step by step who computes what; `schedule` and `complete` take turns.

    Args:
        limits: What it obeys.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.free_blocks = list(range(limits.num_blocks - 1, -1, -1))
        self._is_prefilling: dict[Request, bool] = {}

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises:
            ValueError: It could never be served.
        """
        tokens = request.num_prompt_tokens + request.num_output_tokens - 1
        if self._blocks_of(tokens) > self.limits.num_blocks:
            raise ValueError(f"request {request.index} of {tokens} tokens does not fit in the KV cache")
        # A request that is preempted prefills what it has generated too.
        if not self.limits.enable_chunked_prefill and tokens > self.limits.max_num_batched_tokens:
            raise ValueError(f"request {request.index} of {tokens} tokens does not fit a step and may not be split")
        self.waiting.append(request)

    @property
    def has_work(self) -> bool:
        """Whether anybody waits or runs."""
        return bool(self.waiting or self.running)

    def schedule(self) -> Step | None:
        """Return the next step, with the blocks it needs taken; None where there is nothing to do.

        Raises:
            RuntimeError: Requests wait and none can ever be admitted.
        """
        if not self.has_work:
            return None
        preempted = [0]
        decodes = self._schedule_decodes(preempted)
        budget = self.limits.max_num_batched_tokens - len(decodes)
        chunks, budget = self._schedule_chunks(budget, decodes, preempted)
        if not preempted[0]:
            self._admit(chunks, budget)
        if not decodes and not chunks and not preempted[0]:
            head = self.waiting[0]
            raise RuntimeError(f"request {head.index} of {head.num_tokens} tokens waits at an empty server")
        return Step(decodes, chunks, preempted[0])

    def complete(self, step: Step) -> list[Request]:
        """Book what a step computed and return the requests that got a token from it, finished ones included."""
        answered = []
        for request in step.decodes:
            request.num_computed_tokens += 1
            request.num_generated_tokens += 1
            answered.append(request)
        for request, tokens in step.chunks:
            request.num_computed_tokens += tokens
            if request.num_computed_tokens == request.num_tokens:
                self._is_prefilling[request] = False
                request.num_generated_tokens += 1
                answered.append(request)
        for request in answered:
            if request.is_finished:
                self.running.remove(request)
                self._release(request)
        return answered

    def _schedule_decodes(self, preempted: list[int]) -> list[Request]:
        while True:
            decodes = [request for request in self.running if not self._is_prefilling[request]]
            wanted = [request for request in decodes if self._missing_blocks(request, 1)]
            if len(wanted) <= len(self.free_blocks):
                break
            self._preempt(decodes, preempted)
        for request in wanted:
            self._take(request, 1)
        return decodes

    def _schedule_chunks(
        self, budget: int, decodes: list[Request], preempted: list[int]
    ) -> tuple[list[tuple[Request, int]], int]:
        chunks: list[tuple[Request, int]] = []
        for request in [each for each in self.running if self._is_prefilling[each]]:
            if request not in self.running:
                continue
            tokens = min(request.num_tokens - request.num_computed_tokens, budget)
            if tokens == 0:
                continue
            blocks = self._missing_blocks(request, tokens)
            while request in self.running and blocks > len(self.free_blocks):
                self._preempt(decodes, preempted)
            if request in self.running:
                self._take(request, blocks)
                chunks.append((request, tokens))
                budget -= tokens
        return chunks, budget

    def _admit(self, chunks: list[tuple[Request, int]], budget: int) -> None:
        while self.waiting and budget and len(self.running) < self.limits.max_num_seqs:
            head = self.waiting[0]
            tokens = head.num_tokens
            if tokens > budget:
                if not self.limits.enable_chunked_prefill:
                    return
                tokens = budget
            wanted = self._blocks_of(head.num_tokens if self.limits.reserve_full_prompt else tokens)
            if wanted > len(self.free_blocks):
                return
            self.running.append(self.waiting.popleft())
            self._is_prefilling[head] = True
            self._take(head, self._blocks_of(tokens))
            chunks.append((head, tokens))
            budget -= tokens

    def _preempt(self, decodes: list[Request], preempted: list[int]) -> None:
        """Send the last admitted request back to the head of the queue without its blocks."""
        victim = self.running.pop()
        if victim in decodes:
            decodes.remove(victim)
        self._release(victim)
        victim.num_computed_tokens = 0
        victim.num_preemptions += 1
        self.waiting.appendleft(victim)
        preempted[0] += 1

    def _blocks_of(self, tokens: int) -> int:
        return -(-tokens // self.limits.block_size)

    def _missing_blocks(self, request: Request, tokens: int) -> int:
        return self._blocks_of(request.num_computed_tokens + tokens) - len(request.block_table)

    def _take(self, request: Request, blocks: int) -> None:
        for _ in range(blocks):
            request.block_table.append(self.free_blocks.pop())

    def _release(self, request: Request) -> None:
        self.free_blocks.extend(reversed(request.block_table))
        request.block_table.clear()
        self._is_prefilling.pop(request, None)
