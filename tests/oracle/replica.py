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
    priority: int = 0
    max_tokens: int = 0
    status: str = "waiting"
    is_truncated: bool = False
    path: list[tuple[int, int]] = field(default_factory=list)
    computed: int = 0
    target: int = 0
    generated: int = 0
    fraction: float = 0.0
    blocks: int = 0
    window_blocks: int = 0
    shared: list[tuple[int, int]] = field(default_factory=list)
    is_private: bool = False
    cached_tokens: int = -1
    span: tuple[int, int] = (0, 0)
    num_preemptions: int = 0
    is_swapped: bool = False
    scheduled: float = math.nan
    finish: float = math.nan
    handed_over: float = math.nan
    token_times: list[float] = field(default_factory=list)

    @property
    def first_token(self) -> float:
        """When its first token was handed over: with its step, unless that waited for the next."""
        if math.isnan(self.handed_over):
            return (self.token_times or [math.nan])[0]
        return self.handed_over

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
        self.capacity = config.num_blocks
        if config.kv_allocation == "static":
            self.capacity = self.kv_tokens // config.max_model_len
        # Cached blocks, (segment, position in the request), and when each segment was last given up by a user.
        self.cached: set[tuple[int, int]] = set()
        self.last_used: dict[int, int] = {}
        # The tier behind them: what gave way, and when a block of each segment last came.
        self.tier: set[tuple[int, int]] = set()
        self.came: dict[int, int] = {}
        self.answered: set[int] = set()
        self.free_in_host = config.num_swap_blocks
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
            if self.specs.turn is not None:
                break
            if self.specs.concurrency is None:
                self.send(float(self.specs.arrival_time[index]))
            elif index < self.specs.concurrency:
                self.send(0.0)
        self.begin_sessions()
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
        assert len(self.cached) <= self.capacity
        assert not self.spans
        assert self.free_in_host == self.config.num_swap_blocks
        return self.outcome()

    @abstractmethod
    def serve(self, now: float) -> float:
        """Serve from ``now`` and return when to look again: the end of it, or infinity for never."""

    def send(self, arrival: float, index: int | None = None) -> None:
        """Let a request arrive, the next one if none is named."""
        if index is None:
            index = self.num_sent
        self.num_sent += 1
        specs, ready = self.specs, arrival + self.config.frontend_latency
        prompt, output, asked = (
            int(column[index]) for column in (specs.prompt_tokens, specs.output_tokens, specs.max_tokens)
        )
        pace = ONE_TOKEN if specs.pace is None else int(specs.pace[index])
        priority = 0 if specs.priority is None else int(specs.priority[index])
        self.requests[index] = Request(
            index, prompt, output, asked, pace, arrival, ready, priority, path=self.path_of(index)
        )
        heapq.heappush(self.upcoming, (ready, index))

    def path_of(self, index: int) -> list[tuple[int, int]]:
        """Return the segments of a request, each with the token at which it ends."""
        prefixes = self.specs.prefixes
        if prefixes is None or not self.config.enable_prefix_caching:
            return []
        entries = slice(int(prefixes.offsets[index]), int(prefixes.offsets[index + 1]))
        return list(zip(prefixes.segments[entries].tolist(), prefixes.ends[entries].tolist(), strict=True))

    def begin_sessions(self) -> None:
        """Send the first turns: at their times, or in a closed loop those that find a client."""
        if self.specs.turn is None:
            return
        self.unbegun: dict[int, list[int]] = {}
        for session, loop in zip(self.specs.session.tolist(), self.specs.loop_of_each.tolist(), strict=True):
            if session not in self.unbegun.setdefault(loop, []):
                self.unbegun[loop].append(session)
        for session in self.unbegun.pop(-1, []):
            for index in self.turn_of(session, 1):
                self.send(float(self.specs.arrival_time[index]), index)
        for loop, clients in enumerate(self.specs.client_loops):
            for _ in range(min(clients.concurrency, len(self.unbegun.get(loop, [])))):
                self.begin_session(loop, None)

    def begin_session(self, loop: int, answered: float | None) -> None:
        """Let a client of a closed loop send the first turn of the next conversation."""
        if self.unbegun[loop]:
            session = self.unbegun[loop].pop(0)
            for index in self.turn_of(session, 1):
                thought = 0.0 if answered is None else float(self.specs.think_time[index])
                self.send((answered or 0.0) + thought, index)

    def turn_of(self, session: int, turn: int) -> list[int]:
        """Return the requests of one turn of one conversation."""
        rows = zip(self.specs.session.tolist(), self.specs.turn.tolist(), strict=True)
        return [index for index, row in enumerate(rows) if row == (session, turn)]

    def follow_up(self, index: int, answered: float) -> None:
        """Conversations: if a turn is answered, send the next, or let the client begin another conversation."""
        session, turn = int(self.specs.session[index]), int(self.specs.turn[index])
        self.answered.add(index)
        if not self.answered.issuperset(self.turn_of(session, turn)):
            return
        following = self.turn_of(session, turn + 1)
        for each in following:
            earliest = float(self.specs.arrival_time[each])
            sent = answered + float(self.specs.think_time[each])
            self.send(sent if math.isnan(earliest) else max(sent, earliest), each)
        loop = int(self.specs.loop_of_each[index])
        if not following and loop >= 0:
            self.begin_session(loop, answered)

    def send_follower(self, index: int, answered: float) -> None:
        """Let whoever waits for the answer to a request send what comes next."""
        if self.specs.turn is not None:
            self.follow_up(index, answered)
        elif self.specs.concurrency is not None and self.num_sent < len(self.specs):
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
                self.send_follower(request.index, request.ready)
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

    @property
    def free(self) -> int:
        """Blocks (or slots) of the pool that no running request holds, alone or with others."""
        return self.capacity - self.own - self.in_pool(len(self.in_use), 0)

    @property
    def own(self) -> int:
        """Blocks (or slots) of the pool that running requests hold each for itself."""
        return sum(
            self.in_pool(request.blocks - len(request.shared), request.window_blocks) for request in self.running
        )

    @property
    def free_window(self) -> float:
        """Blocks free in the pool that layers with a window have to themselves; any number where they have none."""
        if not self.keeps_windows or not self.config.num_window_blocks:
            return math.inf
        return self.config.num_window_blocks - sum(request.window_blocks for request in self.running)

    @property
    def keeps_windows(self) -> bool:
        """Whether layers with a window keep no more of a request than their window."""
        is_growing = self.config.kv_allocation == "paged" and self.config.admission in ("on_demand", "estimate")
        return is_growing and self.config.window_blocks > 0

    def in_pool(self, blocks: int, window_blocks: int) -> int:
        """Return what so many blocks of a layer that sees everything, and of one with a window, are in the pool."""
        if not self.keeps_windows:
            return blocks
        return self.config.full_groups * blocks + self.config.window_groups * window_blocks

    def fits(self, blocks: int, window_blocks: int) -> bool:
        """Whether so many are free in every pool."""
        return self.in_pool(blocks, window_blocks) <= self.free and window_blocks <= self.free_window

    def window_of(self, blocks: int) -> int:
        """Return the blocks of a layer with a window, of a request that has so many blocks in the others."""
        return min(blocks, self.config.window_blocks)

    @property
    def in_use(self) -> set[tuple[int, int]]:
        """Cached blocks that running requests use."""
        return {block for request in self.running for block in request.shared}

    def take(self, request: Request, blocks: int, window_blocks: int) -> None:
        """Give blocks (or slots) to a request; what was cached gives way, least recently used first."""
        request.blocks += blocks
        request.window_blocks += window_blocks
        assert self.free >= 0
        assert self.free_window >= 0
        while self.own + self.in_pool(len(self.cached), 0) > self.capacity:
            idle = self.cached - self.in_use
            oldest = min({segment for segment, _ in idle}, key=lambda segment: self.last_used[segment])
            block = max(block for block in idle if block[0] == oldest)
            self.cached.remove(block)
            self.keep(block)

    def keep(self, block: tuple[int, int]) -> None:
        """Take a block into the tier, if there is one; what came least recently gives way there, its end first."""
        if not self.config.num_offload_blocks:
            return
        self.tier.add(block)
        self.came[block[0]] = 1 + max(self.came.values(), default=0)
        if len(self.tier) > self.config.num_offload_blocks:
            oldest = min({segment for segment, _ in self.tier}, key=lambda segment: self.came[segment])
            self.tier.remove(max(each for each in self.tier if each[0] == oldest))

    def blocks_on_path(self, request: Request, num_blocks: int) -> list[tuple[int, int]]:
        """Return the first blocks of a request by segment and position; a block is its last token's."""
        block_size = self.config.block_size
        found = []
        for position in range(num_blocks):
            last_token = (position + 1) * block_size - 1
            segments = [segment for segment, end in request.path if last_token < end]
            found += [(segment, position) for segment in segments[:1]]
        return found

    def cached_prefix(self, request: Request, tokens: int) -> list[tuple[int, int]]:
        """Return the cached blocks that a request begins with; the last of its ``tokens`` is computed in any case."""
        wanted = self.blocks_on_path(request, (tokens - 1) // self.config.block_size)
        missing = [number for number, block in enumerate(wanted) if block not in self.cached | self.tier]
        return wanted[: missing[0]] if missing else wanted

    def cache(self, request: Request, tokens: int) -> None:
        """Cache the full blocks of the first ``tokens`` tokens, up to one that another request has cached first."""
        for block in self.blocks_on_path(request, tokens // self.config.block_size)[len(request.shared) :]:
            request.is_private = request.is_private or block in self.cached
            if not request.is_private:
                self.cached.add(block)
                self.tier.discard(block)
                request.shared.append(block)

    def release(self, request: Request) -> None:
        """Take back everything a request holds."""
        segments = list(dict.fromkeys(segment for segment, _ in request.shared))
        request.blocks, request.window_blocks, request.shared, request.is_private = 0, 0, [], False
        for segment in reversed(segments):
            self.last_used[segment] = 1 + max(self.last_used.values(), default=0)
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
            first_token_time=np.array([request.first_token for request in sent]),
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
            cached_tokens=np.array([max(request.cached_tokens, 0) for request in sent]),
        )
