"""Request: one request from sending to answer, and what SGLang's ``estimate`` expects of it.

Decides nothing, and knows no memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import simpy

    from simserve.engine.config import EngineConfig

MAX_ESTIMATED_TOKENS = 4096
"""Most new tokens that SGLang expects of a request (``CLIP_MAX_NEW_TOKENS``)."""
ONE_TOKEN = 16
"""A pace of one token per step: paces count sixteenths."""


@dataclass(eq=False)
class Request:
    """One request. Times are seconds, NaN where nothing has happened yet; tokens are counted, not listed.

    The first group of fields is what its client asks for; ``pools`` are the names of the pools that a rule sends it to
    (None: no rule; empty: the API), ``second_pools`` the pools that give a second answer (None: the first is accepted),
    and ``home`` is the region of its client; ``images`` are the end in the prompt and the encoding seconds of the
    images of each turn. The second group is what a scheduler knows of an attempt and is reset when the request is tried
    again: ``suspended`` are the tokens with which it goes on, ``assumed`` those that it has computed if all drafts of
    its last step hold, ``goes_on`` says that it was not certain that this step would end it, ``is_stand_in`` marks a
    request that holds seat and blocks for one that goes on elsewhere, ``first_decodes`` says that its first token comes
    with a decode step, ``token_times`` are the ends of the steps that brought it tokens, ``gaps`` the gaps that its
    client sees. The last group is the outcome; ``place`` is its replica, or ``parked``, ``elsewhere``, ``crossing``,
    and ``way_back`` the seconds that a stream takes from another region.
    """

    index: int
    prompt_tokens: int
    output_tokens: int
    asked_tokens: int
    pace: int = ONE_TOKEN
    priority: int = 0
    adapter: int = -1
    kind: int = 0
    thinking_tokens: int = 0
    images: list[tuple[int, float]] = field(default_factory=list)
    path: list[tuple[int, int]] = field(default_factory=list)
    max_tokens: int = 0
    is_truncated: bool = False
    pools: list[str] | None = None
    second_pools: list[str] | None = None
    home: str = ""

    computed: int = 0
    target: int = 0
    generated: int = 0
    fraction: float = 0.0
    assumed: int = 0
    goes_on: bool = False
    blocks: int = 0
    window_blocks: int = 0
    shared: list[tuple[int, int]] = field(default_factory=list)
    promised: set[tuple[int, int]] = field(default_factory=set)
    num_duplicates: int = 0
    num_copies: int = 0
    next_state: int = 0
    junction: int = 0
    reused: int = 0
    stored: list[tuple[int, int]] = field(default_factory=list)
    span: tuple[int, int] = (0, 0)
    is_swapped: bool = False
    suspended: int = 0
    micro_batch: int = -1
    is_stand_in: bool = False
    ready: float = math.nan
    scheduled: float = math.nan
    handed_over: float = math.nan
    first_decodes: bool = False
    token_times: list[float] = field(default_factory=list)
    answer_began: float = math.nan
    gaps: list[float] = field(default_factory=list)

    status: str = "unfinished"
    reason: str = ""
    arrival: float = math.nan
    sent: float = math.nan
    finish: float = math.nan
    deadline: float = math.inf
    has_ended: bool = False
    attempt: int = 0
    num_preemptions: int = 0
    num_losses: int = 0
    past_gaps: list[float] = field(default_factory=list)
    cached_tokens: int = 0
    replica: int = -1
    rank: int = 0
    way_back: float = 0.0
    server: str = "replica"
    elsewhere: tuple[float, float] | None = None
    answer: simpy.Event | None = None
    place: object = None

    @property
    def first_token(self) -> float:
        """When its first token was handed over: with its step, unless it had to wait for the next."""
        if self.elsewhere is not None:
            return self.elsewhere[0]
        if math.isnan(self.handed_over):
            return (self.token_times or [math.nan])[0]
        return self.handed_over

    @property
    def itl_max(self) -> float:
        """Largest gap between two of its tokens."""
        if self.elsewhere is not None:
            return self.elsewhere[1]
        return max(self.gaps, default=math.nan)

    @property
    def first_visible_token(self) -> float:
        """When the first token after its thinking was there; a server elsewhere sends its tokens evenly."""
        if self.status != "completed" or self.thinking_tokens >= self.generated:
            return math.nan
        if not self.thinking_tokens:
            return self.first_token
        if self.elsewhere is not None:
            share = self.thinking_tokens / max(self.generated - 1, 1)
            return self.first_token + (self.finish - self.first_token) * share
        return self.answer_began

    @property
    def tokens_thought(self) -> int:
        """Number of thinking tokens: fewer than intended if its limit cut them."""
        return min(self.thinking_tokens, self.generated)

    @property
    def ends_as_asked(self) -> bool:
        """Whether its next token is the last that its client asked for."""
        return self.generated + 1 == self.output_tokens == self.max_tokens

    @property
    def is_decoding(self) -> bool:
        """Whether an admitted request has all its tokens but the newest in the KV cache."""
        return self.computed >= self.target

    @property
    def asked_in_all(self) -> int:
        """Number of tokens that routers count for it: its prompt, and the most that it may generate."""
        return self.prompt_tokens + self.max_tokens

    def forget(self) -> None:
        """Reset the attempt; only its preemptions and the gaps that its client saw are kept."""
        self.past_gaps += self.gaps
        self.computed = self.assumed = self.target = self.generated = self.blocks = self.window_blocks = 0
        self.fraction, self.shared, self.span = 0.0, [], (0, 0)
        self.is_swapped, self.suspended, self.micro_batch = False, 0, -1
        self.promised, self.first_decodes = set(), False
        self.scheduled = self.finish = self.handed_over = self.answer_began = math.nan
        self.token_times, self.gaps, self.elsewhere = [], [], None
        self.replica, self.status, self.reason = -1, "unfinished", ""

    def limit(self, longest: int, longest_prompt: int) -> bool:
        """Apply the length limits of the engines that may serve it; return whether its prompt fits.

        Args:
            longest: Most tokens of prompt and answer together.
            longest_prompt: Most tokens of a prompt that is not split.
        """
        if self.prompt_tokens > min(longest - 1, longest_prompt):
            self.output_tokens, self.status, self.reason = 0, "failed", "prompt_too_long"
            self.max_tokens = max(longest - self.prompt_tokens, 0)
            return False
        room = longest - self.prompt_tokens
        wanted = self.output_tokens if self.asked_tokens < 0 else self.asked_tokens
        self.is_truncated = wanted > room
        self.max_tokens = room if self.asked_tokens < 0 else min(self.asked_tokens, room)
        self.output_tokens = min(self.output_tokens, self.max_tokens)
        return True


def new_tokens(request: Request) -> int:
    """Return the new tokens that ``estimate`` allows a request that does not decode."""
    return min(request.max_tokens - request.generated, MAX_ESTIMATED_TOKENS)


def estimated_tokens(request: Request) -> float:
    """Return the most new tokens that ``estimate`` expects of a request."""
    if request.max_tokens > MAX_ESTIMATED_TOKENS:
        return MAX_ESTIMATED_TOKENS
    return request.max_tokens - request.generated - request.fraction


def page_reserve(config: EngineConfig) -> int:
    """Return the tokens that admission requires in addition to those of a request."""
    return config.block_size if config.reserves_page else 0


def prefilling_tokens(requests: Sequence[Request], chunks: Sequence[tuple[Request, int]], reserve: int) -> int:
    """Return the tokens that requests not yet decoding may take beyond a step's chunks, plus ``reserve`` each."""
    chunk_of = {request.index: chunk for request, chunk in chunks}
    return sum(
        min(one.max_tokens, MAX_ESTIMATED_TOKENS) + one.target - one.computed - chunk_of.get(one.index, 0) + reserve
        for one in requests
        if not one.is_decoding
    )


def batch_tokens(requests: Sequence[Request], in_flight: Sequence[Request], departing: Sequence[Request]) -> float:
    """Return the most new tokens of decoding requests, counting generated but still unknown ones (``in_flight``)."""
    decoding = sum(estimated_tokens(request) for request in requests if request.is_decoding)
    decoding += sum(one.max_tokens <= MAX_ESTIMATED_TOKENS for one in in_flight if one not in departing)
    return decoding + sum(min(new_tokens(one) + 1, MAX_ESTIMATED_TOKENS) for one in departing)
