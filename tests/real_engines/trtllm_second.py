"""TensorRT-LLM's second KV cache manager and its scheduler, as we read them: no line of it runs here. Knows no kernel.

It says in Python what `KVCacheV2Scheduler` (``_torch/pyexecutor/scheduler/scheduler_v2.py``) asks of
`KVCacheManagerV2` (``_torch/pyexecutor/kv_cache/kv_cache_manager_v2.py``, both at 00746ef): for text, one rank, one
window, one beam, chunks first come, first served, no drafts, no adapters and no reuse of parts of blocks. The manager's
own storage is compiled (``tensorrt_llm.bindings.internal.batch_manager.kv_cache_manager_v2``) and is memory of a GPU.

Host memory has room for whatever gives way, as with the tier that the manager makes by default, but without an end.
Every copy is done when it is asked for. A step takes ``step_seconds + token_seconds * its tokens``.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

MAX_UTIL_FOR_RESUME = 0.95
"""``max_util_for_resume`` of its ``KvCacheConfig`` (``llm_args.py``)."""


@dataclass(eq=False)
class Sequence:
    """A request that has a seat.

    Attributes:
        index: Its number.
        prompt: Its prompt.
        answer: The tokens that it will generate.
        allowed: Its ``max_tokens``.
        computed: Tokens in its KV cache, or on their way there; of its prompt until all of that is.
        generated: Tokens known to the executor.
        launched: Tokens of the answer that have been launched.
        blocks: What it holds: prefixes that others may hold too, or blocks of its own.
        has_begun: Whether it has been given a KV cache.
        is_active: Whether that is on the GPU.
        has_run: Whether it has held its blocks for a step since it was suspended.
    """

    index: int
    prompt: list[int]
    answer: list[int]
    allowed: int
    computed: int = 0
    generated: int = 0
    launched: int = 0
    blocks: list[Any] = field(default_factory=list)
    has_begun: bool = False
    is_active: bool = False
    has_run: bool = False
    is_done: bool = False

    @property
    def is_prompt(self) -> bool:
        """Whether part of its prompt is to be computed."""
        return self.computed < len(self.prompt)

    @property
    def goes_on(self) -> bool:
        """Whether it decodes: ``GENERATION_TO_COMPLETE`` is not scheduled any more."""
        return not self.is_prompt and self.launched < self.allowed and not self.is_done


class Pages:
    """The pool: blocks of sequences that are active, and what of earlier prompts can be found."""

    def __init__(self, num_blocks: int, block_size: int, *, is_shared: bool) -> None:
        self.num_blocks, self.block_size, self.is_shared = num_blocks, block_size, is_shared
        self.holders: dict[Any, int] = {}
        self.findable: set[tuple[int, ...]] = set()

    def may_resume(self) -> bool:
        """Whether few enough blocks are locked by active sequences."""
        return len(self.holders) / self.num_blocks <= MAX_UTIL_FOR_RESUME

    def lock(self, sequence: Sequence) -> bool:
        """Bring the blocks of a sequence to the GPU; False, with nothing done, if others have locked too many."""
        missing = sum(block not in self.holders for block in sequence.blocks)
        if not self.may_resume() or len(self.holders) + missing > self.num_blocks:
            return False
        for block in sequence.blocks:
            self.holders[block] = self.holders.get(block, 0) + 1
        sequence.is_active = True
        return True

    def unlock(self, sequence: Sequence) -> None:
        """Let others have the blocks of a sequence."""
        if sequence.is_active:
            for block in sequence.blocks:
                self.holders[block] -= 1
                if not self.holders[block]:
                    del self.holders[block]
        sequence.is_active = False

    def grow(self, sequence: Sequence, tokens: int) -> bool:
        """Give a sequence blocks for so many tokens."""
        wanted = -(-tokens // self.block_size)
        if len(self.holders) + wanted - len(sequence.blocks) > self.num_blocks:
            return False
        for position in range(len(sequence.blocks), wanted):
            block = (sequence.index, position)
            sequence.blocks.append(block)
            self.holders[block] = 1
        return True

    def reusable(self, sequence: Sequence) -> int:
        """Return how many blocks of its prompt are found, the last token of it left out."""
        found = 0
        if self.is_shared:
            while (found + 1) * self.block_size < len(sequence.prompt):
                if tuple(sequence.prompt[: (found + 1) * self.block_size]) not in self.findable:
                    break
                found += 1
        return found

    def first_new(self, sequence: Sequence) -> tuple[int, ...] | None:
        """Return the first full block that a prompt would add, named by all tokens up to its end."""
        end = (self.reusable(sequence) + 1) * self.block_size
        return tuple(sequence.prompt[:end]) if end < len(sequence.prompt) else None

    def commit(self, sequence: Sequence) -> None:
        """Let others find what is computed of a prompt; a block that they find already takes the place of its own."""
        if not self.is_shared:
            return
        for position in range(min(sequence.computed, len(sequence.prompt)) // self.block_size):
            key = tuple(sequence.prompt[: (position + 1) * self.block_size])
            own = sequence.blocks[position]
            self.findable.add(key)
            if own != key:
                sequence.blocks[position] = key
                if sequence.is_active:
                    del self.holders[own]
                    self.holders[key] = self.holders.get(key, 0) + 1


class Run:
    """One case, in the executor's normal or its overlapped loop."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.case = case
        self.pages = Pages(case["num_blocks"], case["block_size"], is_shared=case["enable_prefix_caching"])
        self.arrivals = deque(enumerate(case["requests"]))
        self.waiting: deque[Sequence] = deque()
        self.active: list[Sequence] = []
        self.rows: list[dict[str, Any]] = [
            {"scheduled": None, "first_token": None, "finish": None, "preemptions": 0, "cached": None}
            for _ in case["requests"]
        ]

    def receive(self, now: float) -> None:
        """Queue what has arrived, and give seats to those that come first."""
        while self.arrivals and self.arrivals[0][1]["arrival"] <= now:
            index, asked = self.arrivals.popleft()
            answer = [10_000_000 + 10_000 * index + place for place in range(asked["output"])]
            allowed = asked.get("max_tokens", asked["output"])
            self.waiting.append(Sequence(index, list(asked["prompt"]), answer, allowed))
        while self.waiting and len(self.active) < self.case["max_num_seqs"]:
            self.active.append(self.waiting.popleft())

    def schedule(self) -> tuple[list[tuple[Sequence, int]], list[Sequence]]:
        """Return the prompts of the next step, each with its chunk, and the sequences that decode in it."""
        budget = self.case["max_num_batched_tokens"]
        decodes: list[Sequence] = []
        prompts: list[Sequence] = []
        position, end = 0, len(self.active)
        while position < end:
            one = self.active[position]
            position += 1
            if one.is_prompt:
                prompts.append(one)
                continue
            if not one.goes_on:
                continue
            fits = self.has_next(one)
            while not fits:
                later = [each for each in self.active[position:end] if each.is_active and self.has_started(each)]
                if not later:
                    break
                end = self.active.index(later[-1])
                self.suspend(later[-1])
                fits = self.has_next(one)
            if not fits:
                if one.is_active:
                    self.suspend(one)
                break
            decodes.append(one)
            budget -= 1
        chunks: list[tuple[Sequence, int]] = []
        promised: set[tuple[int, ...]] = set()
        unit = self.case["block_size"] if self.case["enable_chunked_prefill"] else 0
        for one in prompts:
            if budget < max(unit, 1):
                break
            new = self.pages.first_new(one)
            if not one.has_begun and new is not None and new in promised:
                continue
            chunk = self.chunk_of(one, budget, unit)
            if chunk < 0:
                break
            if chunk:
                chunks.append((one, chunk))
                budget -= chunk
                promised |= {new} if new is not None else set()
        return chunks, decodes

    def chunk_of(self, one: Sequence, budget: int, unit: int) -> int:
        """Return the tokens of a prompt in this step, its blocks taken; 0: it waits; -1: so do those behind it."""
        is_new = not one.has_begun
        if is_new:
            found = self.pages.reusable(one)
            one.blocks = [tuple(one.prompt[: (each + 1) * self.case["block_size"]]) for each in range(found)]
            one.computed = found * self.case["block_size"]
        if not one.is_active and not self.pages.lock(one):
            self.forget(one, is_new)
            return 0 if unit else -1
        one.has_run |= one.has_begun
        chunk = remaining = len(one.prompt) - one.computed
        if unit:
            chunk = min(budget, remaining)
            chunk = chunk if chunk == remaining else chunk // unit * unit
        elif chunk > budget:
            self.forget(one, is_new)
            return -1
        if not self.pages.grow(one, one.computed + chunk):
            self.forget(one, is_new)
            return 0
        one.has_begun = True
        return chunk

    def forget(self, one: Sequence, is_new: bool) -> None:
        """Take everything from a prompt that was not admitted."""
        if is_new:
            self.pages.unlock(one)
            one.blocks, one.computed = [], 0

    def has_next(self, one: Sequence) -> bool:
        """Make room for the next token of a sequence that decodes, on the GPU if it is not there."""
        if not one.is_active and not self.pages.lock(one):
            return False
        return self.pages.grow(one, one.computed + 1)

    def has_started(self, one: Sequence) -> bool:
        """Whether it could be suspended: its prompt has begun, or it decodes."""
        return one.has_begun

    def suspend(self, one: Sequence) -> None:
        """Let others have its blocks; it keeps its seat, its place and what it has computed."""
        self.pages.unlock(one)
        self.rows[one.index]["preemptions"] += one.has_run
        one.has_run = False

    def run(self) -> dict[str, Any]:
        """Serve everything; -1 in the rows of those that the scheduler would never serve."""
        now = free_at = 0.0
        previous: tuple[list[Sequence], float] | None = None
        while self.arrivals or self.waiting or self.active:
            self.receive(now)
            chunks, decodes = self.schedule()
            if not (chunks or decodes or previous):
                if not self.arrivals:
                    self.rows = [
                        {key: -1 if value is None else value for key, value in row.items()} for row in self.rows
                    ]
                    break
                now = max(now, self.arrivals[0][1]["arrival"])
                continue
            launched = None
            if chunks or decodes:
                start = max(now, free_at)
                num_tokens = len(decodes) + sum(chunk for _, chunk in chunks)
                free_at = start + self.case["step_seconds"] + self.case["token_seconds"] * num_tokens
                launched = (self.launch(chunks, decodes, start), free_at)
            due = previous if self.case["async_scheduling"] else launched
            previous = launched if self.case["async_scheduling"] else None
            if due is not None:
                sampled, now = due
                self.process(sampled, now)
        return {"requests": self.rows, "steps": []}

    def launch(self, chunks: list[tuple[Sequence, int]], decodes: list[Sequence], start: float) -> list[Sequence]:
        """Move the sequences of a step on, and return those to which it brings a token.

        What prompts have computed can be found when the next step is scheduled, in either loop.
        """
        for one, chunk in chunks:
            row = self.rows[one.index]
            if row["scheduled"] is None:
                row["scheduled"], row["cached"] = start, one.computed
            one.computed += chunk
            one.has_run = True
            self.pages.commit(one)
        for one in decodes:
            one.computed += 1
            one.has_run = True
        sampled = [*(one for one, _ in chunks if not one.is_prompt), *decodes]
        for one in sampled:
            one.launched += 1
        return sampled

    def process(self, sampled: list[Sequence], end: float) -> None:
        """Note the tokens of a step, and let go of the sequences that are done."""
        for one in sampled:
            if one.is_done:
                continue
            one.generated += 1
            row = self.rows[one.index]
            row["first_token"] = row["first_token"] or end
            if one.generated == len(one.answer):
                row["finish"], one.is_done = end, True
        for one in [each for each in self.active if each.is_done]:
            self.pages.unlock(one)
            self.active.remove(one)


def schedules_of_second(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what the scheduler does with cases, as we read it."""
    return [Run(case).run() for case in cases]
