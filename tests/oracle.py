"""The walker: one replica, one step at a time, as plainly as can be written; it specifies the engine kernel.

It knows no leaps, no heaps of finishes and no closed forms: it looks at every request in every step. It reads
the kernel's inputs (EngineConfig, StepTimes, RequestSpecs) and nothing else of the kernel.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from simserve.engine.config import EngineConfig
from simserve.engine.tables import StepTimes
from simserve.workload.requests import RequestSpecs

MAX_ESTIMATED_TOKENS = 4096
RATIO_LOOKAHEAD_TOKENS = 20


@dataclass(frozen=True)
class Outcome:
    """What happened to every request (row i is request i) and to the replica.

    Attributes:
        arrival_time: Seconds; nan if never sent.
        ready_time: Seconds at which the scheduler sees the request; nan if never sent.
        scheduled_time: Start of the step that first holds the request, seconds; nan if none did, as below.
        first_token_time: Seconds.
        finish_time: Seconds; nan for a failed request.
        itl_max: Largest gap between two tokens, seconds.
        num_preemptions: Times the request lost its blocks.
        generated_tokens: Tokens it was given.
        status: ``completed`` or ``failed``.
        is_truncated: Whether the model's limit cut what was asked for.
        num_steps: Steps of the engine.
        gaps: Every gap between two consecutive tokens of one request, seconds.
        batches: Of each step (static: each batch) its start, decoding requests, prefill tokens and indices.
        step_ends: End of each step (static: each batch), seconds.
        deadlines: Static: instants at which a batch would start for having waited long enough, seconds.
        closest_estimate: ``estimate``: the nearest that the two sides of the admission test came, tokens.
    """

    arrival_time: np.ndarray
    ready_time: np.ndarray
    scheduled_time: np.ndarray
    first_token_time: np.ndarray
    finish_time: np.ndarray
    itl_max: np.ndarray
    num_preemptions: np.ndarray
    generated_tokens: np.ndarray
    status: list[str]
    is_truncated: np.ndarray
    num_steps: int
    gaps: list[float]
    batches: list[tuple[float, int, int, tuple[int, ...]]]
    step_ends: list[float]
    deadlines: list[float]
    closest_estimate: float


@dataclass(eq=False)
class Request:
    """One request, from the moment it is sent."""

    index: int
    prompt_tokens: int
    output_tokens: int
    asked_tokens: int
    arrival: float
    ready: float
    max_tokens: int = 0
    status: str = "waiting"
    is_truncated: bool = False
    computed: int = 0
    target: int = 0
    generated: int = 0
    blocks: int = 0
    span: tuple[int, int] = (0, 0)
    num_preemptions: int = 0
    scheduled: float = math.nan
    finish: float = math.nan
    token_times: list[float] = field(default_factory=list)

    @property
    def is_decoding(self) -> bool:
        """Whether an admitted request has all its tokens in the KV cache but the newest."""
        return self.computed >= self.target


@dataclass
class Step:
    """What one step holds; ``chunks`` pairs a prefilling request with its tokens."""

    start: float
    budget: int
    decoding: list[Request] = field(default_factory=list)
    chunks: list[tuple[Request, int]] = field(default_factory=list)
    has_preempted: bool = False

    @property
    def requests(self) -> list[Request]:
        """The requests that take part."""
        return self.decoding + [request for request, _ in self.chunks]


def walk(config: EngineConfig, times: StepTimes, specs: RequestSpecs) -> Outcome:
    """Serve ``specs`` on one replica, step by step, until nothing is left."""
    return Walker(config, times, specs).run()


def mixed_seconds(
    times: StepTimes, contexts: list[int], chunks: list[tuple[int, int]], pipeline: int
) -> float:
    """Return the seconds of a step.

    Args:
        times: The tables.
        contexts: Tokens in the KV cache of each decoding request.
        chunks: Of each prefilling request the tokens computed before and the tokens of this step.
        pipeline: Pipeline-parallel size.
    """
    decoding, context = len(contexts), sum(contexts)
    if not chunks:
        return times.decode_base[decoding] + times.decode_slope[decoding] * context
    pairs = [chunk * done + chunk * (chunk + 1) / 2 for done, chunk in chunks]
    keys = [done + chunk for done, chunk in chunks]
    largest = max(chunk for _, chunk in chunks)
    tokens = max(decoding + sum(chunk for _, chunk in chunks), pipeline * largest)
    return (
        token_seconds(times, tokens)
        + times.sequence_seconds[decoding + len(chunks)]
        + times.decode_attention_base[decoding]
        + times.decode_slope[decoding] * context
        + times.prefill_request_seconds * len(chunks)
        + times.prefill_pair_seconds * max(sum(pairs) / pipeline, max(pairs))
        + times.prefill_context_seconds * max(sum(keys) / pipeline, max(keys))
    )


def uncached_seconds(times: StepTimes, lengths: list[int]) -> float:
    """Return the seconds of a step without a KV cache, in which every sequence is computed anew."""
    return (
        token_seconds(times, sum(lengths))
        + times.sequence_seconds[len(lengths)]
        + times.prefill_request_seconds * len(lengths)
        + times.prefill_pair_seconds * sum(length * (length + 1) / 2 for length in lengths)
        + times.prefill_context_seconds * sum(lengths)
    )


def token_seconds(times: StepTimes, tokens: int) -> float:
    """Return what depends on the tokens of a step, beyond the end of the table too."""
    last = len(times.token_seconds) - 1
    return times.token_seconds[min(tokens, last)] + times.token_seconds_beyond * max(0, tokens - last)


class Walker:
    """The replica: its queue, its batch, its memory and its clock."""

    def __init__(self, config: EngineConfig, times: StepTimes, specs: RequestSpecs) -> None:
        self.config, self.times, self.specs = config, times, specs
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.free = config.num_blocks
        if config.kv_allocation == "static":
            self.free = self.kv_tokens // config.max_model_len
        self.capacity = self.free
        self.spans: list[tuple[int, int]] = []
        self.ratio = config.new_token_ratio_initial
        self.requests: dict[int, Request] = {}
        self.upcoming: list[tuple[float, int]] = []
        self.num_sent = self.num_steps = 0
        self.batches: list[tuple[float, int, int, tuple[int, ...]]] = []
        self.step_ends: list[float] = []
        self.deadlines: list[float] = []
        self.closest_estimate = math.inf

    @property
    def kv_tokens(self) -> int:
        """Tokens that the KV cache holds."""
        return self.config.num_blocks * self.config.block_size

    @property
    def is_growing(self) -> bool:
        """Whether requests take blocks as they grow (and may therefore be preempted)."""
        return self.config.kv_allocation == "paged" and self.config.admission in ("on_demand", "estimate")

    def run(self) -> Outcome:
        """Walk to the end."""
        for index in range(len(self.specs)):
            if self.specs.concurrency is None:
                self.send(float(self.specs.arrival_time[index]))
            elif index < self.specs.concurrency:
                self.send(0.0)
        now = self.upcoming[0][0] if self.upcoming else 0.0
        while True:
            self.receive(now, is_end=True)
            if self.config.batching == "static":
                next_time = self.serve_static_batch(now)
            else:
                next_time = self.serve_step(now)
            if math.isinf(next_time):
                break
            now = next_time
        assert not self.waiting
        assert not self.running
        assert self.free == self.capacity
        assert not self.spans
        return self.outcome()

    # Arrivals

    def send(self, arrival: float) -> None:
        """Let the next request arrive."""
        index, self.num_sent = self.num_sent, self.num_sent + 1
        specs, ready = self.specs, arrival + self.config.frontend_latency
        prompt, output, asked = (
            int(column[index]) for column in (specs.prompt_tokens, specs.output_tokens, specs.max_tokens)
        )
        self.requests[index] = Request(index, prompt, output, asked, arrival, ready)
        heapq.heappush(self.upcoming, (ready, index))

    def send_follower(self, answered: float) -> None:
        """Closed loop: let the client that got an answer send the next unsent request."""
        if self.specs.concurrency is not None and self.num_sent < len(self.specs):
            self.send(answered + float(self.specs.think_time[self.num_sent]))

    def receive(self, until: float, *, is_end: bool) -> None:
        """Queue or fail what becomes ready before ``until``, and at it if ``is_end``."""
        while self.upcoming and (self.upcoming[0][0] < until or (is_end and self.upcoming[0][0] == until)):
            request = self.requests[heapq.heappop(self.upcoming)[1]]
            limit = self.config.max_model_len - 1
            is_whole = self.config.batching == "continuous" and not self.config.enable_chunked_prefill
            if is_whole and self.config.kv_allocation != "none":
                limit = min(limit, self.config.max_num_batched_tokens)
            if request.prompt_tokens > limit:
                request.status = "failed"
                self.send_follower(request.ready)
                continue
            room = self.config.max_model_len - request.prompt_tokens
            request.max_tokens = room if request.asked_tokens == -1 else min(request.asked_tokens, room)
            request.is_truncated = request.asked_tokens > room or (
                request.asked_tokens == -1 and request.output_tokens > room
            )
            request.output_tokens = min(request.output_tokens, request.max_tokens)
            self.waiting.append(request)

    # Memory

    def blocks_of(self, tokens: int) -> int:
        """Return the blocks that hold ``tokens``."""
        return math.ceil(tokens / self.config.block_size)

    def span_of(self, request: Request) -> int:
        """Return the tokens of the contiguous range that a request takes (``pow2`` and ``oracle``)."""
        if self.config.kv_allocation == "oracle":
            return request.prompt_tokens + request.output_tokens
        power = 1
        while power < request.max_tokens:
            power *= 2
        return min(request.prompt_tokens + power, self.config.max_model_len)

    def first_fit(self, tokens: int) -> int | None:
        """Return the lowest address at which ``tokens`` contiguous tokens are free."""
        address = 0
        for start, end in sorted(self.spans):
            if start - address >= tokens:
                return address
            address = end
        return address if self.kv_tokens - address >= tokens else None

    def take(self, request: Request, blocks: int) -> None:
        """Give blocks (or slots) to a request."""
        self.free -= blocks
        request.blocks += blocks
        assert self.free >= 0

    def release(self, request: Request) -> None:
        """Take back everything a request holds."""
        self.free += request.blocks
        request.blocks = 0
        if request.span in self.spans:
            self.spans.remove(request.span)

    # Planning a continuous step

    def serve_step(self, now: float) -> float:
        """Run one step from ``now`` and return its end; without work, return the next ready time."""
        if not self.running and not self.waiting:
            self.ratio = self.config.new_token_ratio_initial
            return self.upcoming[0][0] if self.upcoming else math.inf
        step = Step(now, self.config.max_num_batched_tokens * self.config.pipeline_parallel_size)
        if self.config.kv_allocation == "none":
            self.schedule_uncached(step)
        elif self.config.scheduler == "mixed":
            self.schedule_decodes(step)
            self.schedule_chunks(step)
            self.admit(step)
        else:
            self.schedule_chunks(step)
            self.admit(step)
            if not step.chunks:
                self.schedule_decodes(step)
        self.check(step)
        self.update_ratio(step)
        end = now + self.seconds(step)
        self.receive(end, is_end=False)
        self.complete(step, end)
        return end

    def schedule_decodes(self, step: Step) -> None:
        """Give every decoding request its token, and the block it may need for it."""
        while True:
            decoding = [request for request in self.running if request.is_decoding]
            growing = [request for request in decoding if self.needs_block(request)]
            if len(growing) <= self.free:
                break
            self.preempt(step)
        for request in growing:
            self.take(request, 1)
        step.decoding = decoding
        step.budget -= len(decoding)

    def needs_block(self, request: Request) -> bool:
        """Whether the next token of a decoding request opens a block."""
        return self.is_growing and request.computed % self.config.block_size == 0

    def schedule_chunks(self, step: Step) -> None:
        """Give the prefilling requests their next chunks, in order of admission."""
        for request in [request for request in self.running if not request.is_decoding]:
            if request not in self.running:
                continue
            chunk = min(request.target - request.computed, self.config.max_chunk_tokens, step.budget)
            if chunk == 0:
                continue
            blocks = 0
            if self.is_growing:
                blocks = self.blocks_of(request.computed + chunk) - self.blocks_of(request.computed)
            while request in self.running and blocks > self.free:
                self.preempt(step)
            if request in self.running:
                self.take(request, blocks)
                step.chunks.append((request, chunk))
                step.budget -= chunk

    def admit(self, step: Step) -> None:
        """Admit from the head of the queue until a limit says stop."""
        while not step.has_preempted and self.waiting:
            chunk = self.head_chunk(step)
            if chunk == 0:
                break
            request = self.enter(step)
            if self.is_growing:
                self.take(request, self.blocks_of(chunk))
            elif self.config.kv_allocation == "paged":
                self.take(request, self.blocks_of(request.prompt_tokens + request.max_tokens))
            elif self.config.kv_allocation == "static":
                self.take(request, 1)
            else:
                address, size = self.first_fit(self.span_of(request)), self.span_of(request)
                assert address is not None
                request.span = (address, address + size)
                self.spans.append(request.span)
            step.chunks.append((request, chunk))
            step.budget -= chunk

    def enter(self, step: Step) -> Request:
        """Move the head of the queue into the batch."""
        request = self.waiting.popleft()
        request.target = request.prompt_tokens + request.generated
        if math.isnan(request.scheduled):
            request.scheduled = step.start
        self.running.append(request)
        return request

    def head_chunk(self, step: Step) -> int:
        """Return the tokens that the head of the queue would compute in this step; 0 if it must wait."""
        if len(self.running) == self.config.max_num_seqs or step.budget == 0:
            return 0
        head = self.waiting[0]
        target = head.prompt_tokens + head.generated
        if not self.config.enable_chunked_prefill:
            chunk = target if target <= step.budget else 0
        else:
            chunk = min(target, self.config.max_chunk_tokens, step.budget)
        return chunk if chunk and self.has_space(step, head, target, chunk) else 0

    def has_space(self, step: Step, head: Request, target: int, chunk: int) -> bool:
        """Whether the admission rule finds room for the head."""
        if self.config.kv_allocation == "static":
            return self.free >= 1
        if self.config.kv_allocation in ("pow2", "oracle"):
            return self.first_fit(self.span_of(head)) is not None
        if self.config.admission == "reserve":
            return self.free >= self.blocks_of(head.prompt_tokens + head.max_tokens)
        if self.config.admission == "on_demand":
            checked = self.blocks_of(target if self.config.reserve_full_prompt else chunk)
            return self.free - checked >= self.config.watermark_blocks or (
                not self.running and self.free >= checked
            )
        if self.free < self.blocks_of(chunk):
            return False
        return not self.running or self.is_within_estimate(step, head, target)

    def is_within_estimate(self, step: Step, head: Request, target: int) -> bool:
        """Whether the expected new tokens of all leave room for the head (``estimate``)."""
        chunk_of = {request.index: chunk for request, chunk in step.chunks}
        decoding = sum(estimated_tokens(request) for request in self.running if request.is_decoding)
        prefilling = sum(
            estimated_tokens(request) + request.target - request.computed - chunk_of.get(request.index, 0)
            for request in self.running
            if not request.is_decoding
        )
        asked = target + estimated_tokens(head)
        room = self.free * self.config.block_size - self.ratio * decoding - prefilling
        if self.ratio * decoding != round(self.ratio) * decoding:
            self.closest_estimate = min(self.closest_estimate, abs(asked - room))
        return asked < room

    def preempt(self, step: Step) -> None:
        """Take everything from the victim and queue it again."""
        victim = self.running[-1]
        decoding = [request for request in self.running if request.is_decoding]
        if self.config.admission == "estimate" and decoding:
            victim = min(
                decoding, key=lambda one: (one.generated, -one.prompt_tokens, -self.running.index(one))
            )
        assert all(victim is not request for request, _ in step.chunks)
        self.running.remove(victim)
        if victim in step.decoding:
            step.decoding.remove(victim)
        self.release(victim)
        victim.computed = 0
        victim.num_preemptions += 1
        step.has_preempted = True
        if self.config.admission == "estimate":
            self.waiting.append(victim)
        else:
            self.waiting.appendleft(victim)

    def schedule_uncached(self, step: Step) -> None:
        """Without a KV cache: only seats limit, and everything is computed again."""
        step.decoding = list(self.running)
        while self.waiting and len(self.running) < self.config.max_num_seqs:
            request = self.enter(step)
            step.chunks.append((request, request.target))

    def update_ratio(self, step: Step) -> None:
        """``estimate``: let the ratio fall with every decode step, and reset it when it was too low."""
        decoding = [request for request in self.running if request.is_decoding]
        if step.has_preempted and decoding:
            generated = sum(request.generated for request in decoding) + RATIO_LOOKAHEAD_TOKENS * len(
                decoding
            )
            self.ratio = min(1.0, generated / (sum(request.max_tokens for request in decoding) + 1))
        elif step.decoding and not step.has_preempted:
            self.ratio = max(
                self.config.new_token_ratio_minimum, self.ratio - self.config.new_token_ratio_decay
            )

    # The step itself

    def seconds(self, step: Step) -> float:
        """Return the seconds of a planned step, and note what it holds."""
        prefill_tokens = sum(chunk for _, chunk in step.chunks)
        indices = tuple(request.index for request in step.requests)
        self.batches.append((step.start, len(step.decoding), prefill_tokens, indices))
        self.num_steps += 1
        if self.config.kv_allocation == "none":
            lengths = [request.computed + 1 for request in step.decoding]
            return uncached_seconds(self.times, lengths + [chunk for _, chunk in step.chunks])
        contexts = [request.computed for request in step.decoding]
        chunks = [(request.computed, chunk) for request, chunk in step.chunks]
        return mixed_seconds(self.times, contexts, chunks, self.config.pipeline_parallel_size)

    def complete(self, step: Step, end: float) -> None:
        """Bring the effects of a step about: tokens, finishes, and the next requests of the clients."""
        self.step_ends.append(end)
        for request in step.decoding:
            request.computed += 1
        for request, chunk in step.chunks:
            request.computed += chunk
        finished = []
        for request in step.requests:
            if request.is_decoding:
                request.generated += 1
                request.token_times.append(end)
            if request.generated == request.output_tokens:
                self.running.remove(request)
                self.finish(request, end)
                finished.append(request.index)
        for _ in sorted(finished):
            self.send_follower(end)

    def finish(self, request: Request, end: float) -> None:
        """Answer a request."""
        request.status, request.finish = "completed", end
        self.release(request)

    def check(self, step: Step) -> None:
        """Assert what must hold of every planned step."""
        config, held = self.config, sum(request.blocks for request in self.running)
        assert step.requests, "a step that holds nothing"
        assert len(set(step.requests)) == len(step.requests)
        assert all(request in self.running for request in step.requests)
        assert held + self.free == self.capacity
        assert len(self.running) <= config.max_num_seqs
        assert all(request.blocks == 0 for request in self.waiting)
        if config.kv_allocation == "none":
            return
        self.check_space(step)
        tokens = len(step.decoding) + sum(chunk for _, chunk in step.chunks)
        assert tokens <= config.max_num_batched_tokens * config.pipeline_parallel_size
        assert all(0 < chunk <= config.max_chunk_tokens for _, chunk in step.chunks)
        if config.scheduler == "prefill_first":
            assert not (step.chunks and step.decoding)
        if self.waiting and not step.has_preempted:
            assert self.head_chunk(step) == 0, "the head of the queue would be admitted"

    def check_space(self, step: Step) -> None:
        """Assert that every token of the step has a place, and no place has two owners."""
        for request in self.running:
            chunk = sum(tokens for one, tokens in step.chunks if one is request)
            after = request.computed + chunk + (request in step.decoding)
            assert after <= request.prompt_tokens + request.output_tokens - 1
            if self.is_growing:
                assert request.blocks == self.blocks_of(after)
            elif self.config.kv_allocation == "paged":
                assert request.blocks * self.config.block_size >= after
            elif self.config.kv_allocation != "static":
                assert request.span[1] - request.span[0] >= after
        edges = [edge for span in sorted(self.spans) for edge in span]
        assert edges == sorted(edges)
        assert not edges or (edges[0] >= 0 and edges[-1] <= self.kv_tokens)

    # Static batching

    def serve_static_batch(self, now: float) -> float:
        """Run a whole batch from ``now`` and return its end; without one, return when to look again."""
        next_ready = self.upcoming[0][0] if self.upcoming else math.inf
        if not self.waiting:
            return next_ready
        deadline = self.waiting[0].ready + self.config.static_max_wait
        if len(self.waiting) < self.config.static_batch_size and self.config.static_max_wait > 0:
            self.deadlines.append(deadline)
            if now < deadline:
                return min(next_ready, deadline)
        batch = self.static_batch()
        end = now + sum(self.static_seconds(batch))
        prompts = sum(request.prompt_tokens for request in batch)
        self.batches.append((now, 0, prompts, tuple(request.index for request in batch)))
        self.receive(end, is_end=False)
        self.step_ends.append(end)
        for request in batch:
            request.scheduled, request.generated = now, request.output_tokens
            request.token_times = [end]
            self.finish(request, end)
        for _ in batch:
            self.send_follower(end)
        return end

    def static_batch(self) -> list[Request]:
        """Take from the queue the longest prefix that has seats and memory."""
        limit = min(self.config.static_batch_size, self.config.max_num_seqs)
        batch = [self.waiting.popleft()]
        while self.waiting and len(batch) < limit:
            candidate = [*batch, self.waiting[0]]
            if len(candidate) * self.static_slot(candidate) > self.kv_tokens:
                break
            batch.append(self.waiting.popleft())
        return batch

    def static_slot(self, batch: list[Request]) -> int:
        """Return the tokens of KV that each request of a batch is given."""
        if self.config.kv_allocation == "none":
            return 0
        if self.config.kv_allocation == "static":
            return self.config.max_model_len
        longest = max(request.prompt_tokens for request in batch) + max(
            request.max_tokens for request in batch
        )
        return self.config.block_size * self.blocks_of(longest)

    def static_seconds(self, batch: list[Request]) -> list[float]:
        """Return the seconds of every step of a batch, padded to its longest prompt and output."""
        size, pipeline = len(batch), self.config.pipeline_parallel_size
        prompt = max(request.prompt_tokens for request in batch)
        output = max(request.output_tokens for request in batch)
        self.num_steps += output
        if self.config.kv_allocation == "none":
            return [uncached_seconds(self.times, [prompt + done] * size) for done in range(output)]
        prefill = mixed_seconds(self.times, [], [(0, prompt)] * size, pipeline)
        decodes = (
            mixed_seconds(self.times, [prompt + done] * size, [], pipeline) for done in range(output - 1)
        )
        return [prefill, *decodes]

    # Results

    def outcome(self) -> Outcome:
        """Return the columns of what happened."""
        rows = [self.requests.get(index) for index in range(len(self.specs))]
        sent = [request for request in rows if request is not None]
        assert len(sent) == len(rows), "a request was never sent"
        gaps = [np.diff(request.token_times).tolist() for request in sent]
        return Outcome(
            arrival_time=np.array([request.arrival for request in sent]),
            ready_time=np.array([request.ready for request in sent]),
            scheduled_time=np.array([request.scheduled for request in sent]),
            first_token_time=np.array([(request.token_times or [math.nan])[0] for request in sent]),
            finish_time=np.array([request.finish for request in sent]),
            itl_max=np.array([max(one, default=math.nan) for one in gaps]),
            num_preemptions=np.array([request.num_preemptions for request in sent]),
            generated_tokens=np.array([request.generated for request in sent]),
            status=[request.status for request in sent],
            is_truncated=np.array([request.is_truncated for request in sent]),
            num_steps=self.num_steps,
            gaps=[gap for one in gaps for gap in one],
            batches=self.batches,
            step_ends=self.step_ends,
            deadlines=self.deadlines,
            closest_estimate=self.closest_estimate,
        )


def estimated_tokens(request: Request) -> int:
    """Return the new tokens that ``estimate`` expects of a request at most."""
    if request.max_tokens > MAX_ESTIMATED_TOKENS:
        return MAX_ESTIMATED_TOKENS
    return request.max_tokens - request.generated
