"""The `workload.classes` block: kinds of requests with their own lengths, objectives and patience. Draws nothing.

The text below a field is its entry in the reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, model_validator

from simserve.units import PositiveSeconds, Seconds
from simserve.validation import NAME_PATTERN, FrozenModel
from simserve.workload.arrival_spec import MAX_REQUESTS, AllAtOnceArrivals, Arrivals
from simserve.workload.length_spec import AnswerLength, Length
from simserve.workload.media_spec import AudioSpec, ImagesSpec
from simserve.workload.session_spec import AgentsSpec, SessionsSpec, SharedPrefixSpec

MAX_CLASSES = 100
MAX_RETRIES = 1000
MAX_PRIORITY = 10**9
MAX_MAX_TOKENS = 10**9  # Most tokens that a client may ask for: beyond any model.
_SHARE_SLACK = 1e-6  # Tolerance on the sum of shares, for example three times 0.333333.


class LatencyLimits(FrozenModel):
    """Limits on a request's latencies, and the share of requests that must meet them all."""

    ttft: PositiveSeconds | None = None
    """Longest time to first token."""
    tpot: PositiveSeconds | None = None
    """Longest time per output token after the first."""
    e2e: PositiveSeconds | None = None
    """Longest time from arrival to the last token."""
    ttfvt: PositiveSeconds | None = None
    """For requests that think (`workload.thinking_tokens`): longest time to the first visible token, that of the
    answer. A request whose `max_tokens` leaves no room for an answer misses it."""
    attainment: Annotated[float, Field(gt=0, le=1)] = 0.95
    """Share of submitted requests that must meet every limit."""

    @model_validator(mode="after")
    def _check_terms(self) -> Self:
        if not self.has_limit:
            raise ValueError('needs at least one limit: ttft, tpot or e2e, for example ttft: "1 s"')
        return self

    @property
    def has_limit(self) -> bool:
        """Whether anything is limited."""
        return any(limit is not None for limit in (self.ttft, self.tpot, self.e2e, self.ttfvt))


class RetrySpec(FrozenModel):
    """What a client does with a request that was refused, timed out or lost: it sends it again after a pause.

    The pause doubles with every try, `backoff * 2^k` up to `max_backoff`, less a random part. The defaults are those
    of the OpenAI Python client (`_constants.py`: 0.5 s, 8 s; `_base_client.py`: up to a quarter less).
    """

    max: Annotated[int, Field(ge=1, le=MAX_RETRIES)] = 2
    """Most times that a request is sent again."""
    backoff: Seconds = 0.5
    """Pause before the first retry; `0 s`: at once, the naive client."""
    max_backoff: Seconds = 8.0
    """Longest pause."""
    jitter: Annotated[float, Field(ge=0, le=1)] = 0.25
    """Share of the pause that a random draw may take off."""
    honor_retry_after: bool = True
    """Whether the client waits at least as long as a 503 with Retry-After tells it."""


def _as_retries(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool):
        return None if value == 0 else {"max": value}
    return value


class ClassSpec(FrozenModel):
    """A kind of request. Fields left out are taken from the workload."""

    name: Annotated[str, Field(pattern=NAME_PATTERN, max_length=60)]
    """Name in the results."""
    share: Annotated[float, Field(gt=0, le=1)] | None = None
    """Share of the workload's common arrivals, or of the rows of its trace; the shares of all classes add up to 1."""
    arrivals: Arrivals | None = None
    """Its own arrivals, instead of a share of the common ones: at a rate, or of clients in a closed loop
    (`workload.duration` then says when they stop), or a batch that arrives `all_at_once`."""
    num_requests: int | None = Field(default=None, ge=1, le=MAX_REQUESTS)
    """With its own `all_at_once` arrivals: number of requests."""
    sessions: SessionsSpec | None = None
    """With its own arrivals: conversations, as in `workload.sessions`. Absent: its requests are independent."""
    agents: AgentsSpec | None = None
    """With its own arrivals: agents' tasks, as in `workload.agents`."""
    shared_prefix: SharedPrefixSpec | None = None
    """System prompts, or documents, that its requests share, instead of `workload.shared_prefix`."""
    prompt_tokens: Length | None = None
    """Lengths of its prompts."""
    output_tokens: AnswerLength | None = None
    """Lengths of its answers; `0`: none, as for embeddings and rerankers."""
    thinking_tokens: Length | None = None
    """Reasoning models: lengths of the thinking before the answer, instead of `workload.thinking_tokens`."""
    thinking_token_budget: Annotated[int, Field(ge=1, le=MAX_MAX_TOKENS)] | None = None
    """Most tokens of thinking in a request, instead of `workload.thinking_token_budget`."""
    images: ImagesSpec | None = None
    """Images in its prompts, instead of `workload.images`."""
    audio: AudioSpec | None = None
    """Recordings in its prompts, instead of `workload.audio`."""
    priority: Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] | None = None
    """Place in the queue if the engine's scheduling_policy is `priority`: lower goes first."""
    slo: LatencyLimits | None = None
    """SLO of this class, instead of the scenario's."""
    timeout: PositiveSeconds | None = None
    """How long its clients wait for the whole answer, from sending, before they disconnect; the server then drops the
    request. Absent: for ever."""
    retries: Annotated[
        RetrySpec | None, BeforeValidator(_as_retries, json_schema_input_type=int | RetrySpec | None)
    ] = None
    """How often, and after which pauses, its clients resend a request; a number is `{max: N}`."""
    pool: str | None = None
    """The pool of `deployment.pools` that serves it; absent: any."""
    region: str | None = None
    """With `deployment.regions`: where its clients are; absent: in all regions, by `deployment.regions.clients`."""

    @model_validator(mode="after")
    def _check_arrivals(self) -> Self:
        if (self.share is None) == (self.arrivals is None):
            raise ValueError("needs either share, of the common arrivals, or arrivals of its own")
        is_batch = isinstance(self.arrivals, AllAtOnceArrivals)
        if is_batch and self.num_requests is None:
            raise ValueError("has all_at_once arrivals of its own and no end; give it num_requests")
        if self.num_requests is not None and not is_batch:
            raise ValueError("has num_requests, which all_at_once arrivals of its own need; else the workload ends it")
        if self.sessions is not None and self.arrivals is None:
            raise ValueError("has sessions and a share of the common arrivals; give workload.sessions, or it arrivals")
        if self.agents is None:
            return self
        if self.arrivals is None:
            raise ValueError("has agents and a share of the common arrivals; give it arrivals of its own")
        if self.sessions is not None:
            raise ValueError("has agents and also sessions; keep one of the two")
        self.agents.check_drawn()
        return self


def check_classes(classes: Sequence[ClassSpec], common: dict[str, object], *, has_trace: bool) -> None:
    """Refuse classes that do not together define what arrives.

    Args:
        common: The workload's own ``arrivals prompt_tokens output_tokens``; None where absent.
        has_trace: Whether the workload replays a trace.

    Raises:
        ValueError: A rule and a remedy, ready to stand behind ``workload``.
    """
    names = [each.name for each in classes]
    if len(set(names)) < len(names):
        raise ValueError("has two classes of one name; rename one")
    shares = [each.share for each in classes if each.share is not None]
    if shares and abs(sum(shares) - 1) > _SHARE_SLACK:
        raise ValueError(f"has classes whose shares add up to {sum(shares):g}; they must add up to 1")
    if has_trace:
        _check_trace_classes(classes)
        return
    if shares and common["arrivals"] is None:
        raise ValueError("has classes with a share, but no arrivals to share; add workload.arrivals")
    if not shares and common["arrivals"] is not None:
        raise ValueError("has arrivals that no class has a share of; give a class a share, or leave them out")
    for part in ("prompt_tokens", "output_tokens"):
        lacking = [each.name for each in classes if getattr(each, part) is None]
        if lacking and common[part] is None:
            raise ValueError(f"lacks {part} for the class {lacking[0]}; give it there, or in workload.{part} for all")


def _check_trace_classes(classes: Sequence[ClassSpec]) -> None:
    """Refuse classes of a trace that set more than shares of its rows."""
    for each in classes:
        own = ("arrivals", "prompt_tokens", "output_tokens", "thinking_tokens")
        given = [name for name in own if getattr(each, name) is not None]
        if given:
            raise ValueError(
                f"has a trace and a class, {each.name}, with {given[0]} of its own; a trace says when requests arrive "
                "and how long they are: give the class a share of its rows"
            )
