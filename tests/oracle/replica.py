"""Replica: what both ways of batching share: arrivals, the queue, memory, and the result."""

from __future__ import annotations

import heapq
import math
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from simserve.engine.config import EngineConfig
from simserve.engine.tables import StepTimes
from simserve.workload.requests import RequestSpecs
from tests.oracle.outcome import Outcome

ONE_TOKEN = 16
"""A pace of one token a step: paces count sixteenths."""


@dataclass(eq=False)
class Request:
    """One request, from the moment it is sent."""

    index: int
    prompt_tokens: int
    output_tokens: int
    asked_tokens: int
    pace: int
    arrival: float
    ready: float
    max_tokens: int = 0
    status: str = "waiting"
    is_truncated: bool = False
    computed: int = 0
    target: int = 0
    generated: int = 0
    fraction: float = 0.0
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


class Replica(ABC):
    """A queue, a batch, memory and a clock; how a step or a batch is served is left to the two ways of batching."""

    def __init__(self, config: EngineConfig, times: StepTimes, specs: RequestSpecs) -> None:
        self.config, self.times, self.specs = config, times, specs
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.free = config.num_blocks
        if config.kv_allocation == "static":
            self.free = self.kv_tokens // config.max_model_len
        self.capacity = self.free
        self.spans: list[tuple[int, int]] = []
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
            next_time = self.serve(now)
            if math.isinf(next_time):
                break
            now = next_time
        assert not self.waiting
        assert not self.running
        assert self.free == self.capacity
        assert not self.spans
        return self.outcome()

    @abstractmethod
    def serve(self, now: float) -> float:
        """Serve from ``now`` and return when to look again: the end of it, or infinity for never."""

    def send(self, arrival: float) -> None:
        """Let the next request arrive."""
        index, self.num_sent = self.num_sent, self.num_sent + 1
        specs, ready = self.specs, arrival + self.config.frontend_latency
        prompt, output, asked = (
            int(column[index]) for column in (specs.prompt_tokens, specs.output_tokens, specs.max_tokens)
        )
        pace = ONE_TOKEN if specs.pace is None else int(specs.pace[index])
        self.requests[index] = Request(index, prompt, output, asked, pace, arrival, ready)
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

    def blocks_of(self, tokens: int) -> int:
        """Return the blocks that hold ``tokens``."""
        return math.ceil(tokens / self.config.block_size)

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

    def finish(self, request: Request, end: float) -> None:
        """Answer a request."""
        request.status, request.finish = "completed", end
        self.release(request)

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
