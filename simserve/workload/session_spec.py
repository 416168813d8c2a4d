"""Conversations and shared beginnings: the `workload.sessions` and `workload.shared_prefix` blocks. Draws nothing.

The text below a field is its entry in the reference.
"""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BeforeValidator, Field, model_validator

from simserve.units import Seconds
from simserve.validation import FrozenModel
from simserve.workload.length_spec import FixedLength, Length, Tokens


def _as_fixed(value: object) -> object:
    is_count = isinstance(value, int) and not isinstance(value, bool)
    return {"distribution": "fixed", "value": value} if is_count else value


class SessionsSpec(FrozenModel):
    """Conversations: a turn's prompt is all that came before it and new text; the next one leaves after the answer.

    `arrivals` start conversations, `rate` still being requests per second: it is divided by the mean number of
    requests of a conversation. In a closed loop every client holds one conversation after another. `prompt_tokens`
    are the new text of a turn.
    """

    turns: Annotated[Length, BeforeValidator(_as_fixed, json_schema_input_type=int | Length)]
    """Turns of a conversation; a bare number: so many in each."""
    think_time: Seconds = 0.0
    """Mean time between an answer and the next turn: reading and typing."""
    think_time_cv: float = Field(default=0.0, ge=0, le=20)
    """Its standard deviation over its mean (Weibull): 0 the same every time, 1 exponential; else at least 0.05."""
    context_growth: float = Field(default=1.0, ge=0, le=1)
    """Share of each answer that stays in the context; the prompts always stay. Below 1, such as where hidden reasoning
    is dropped, the kept part is new text to a prefix cache."""
    parallel_calls: Length = FixedLength(value=1)
    """Requests of a turn, sent together: an agent's fan-out. Each is the context and new text of its own; the next turn
    leaves after the last answer, and finds all answers in its context."""
    tool_share: float = Field(default=0.0, ge=0, le=1)
    """Share of the turns that follow on a tool instead of a person: after `tool_time` instead of `think_time`."""
    tool_time: Seconds = 0.0
    """Time that a tool takes."""

    @model_validator(mode="after")
    def _check_times(self) -> Self:
        if 0 < self.think_time_cv < 0.05:
            raise ValueError(f"think_time_cv {self.think_time_cv:g} must be 0 or at least 0.05")
        if self.think_time_cv and not self.think_time:
            raise ValueError("think_time_cv needs think_time; give both or neither")
        if self.tool_time and not self.tool_share:
            raise ValueError("tool_time needs tool_share, the share of the turns that wait for a tool")
        return self


class SharedPrefixSpec(FrozenModel):
    """System prompts: every prompt (every conversation) begins with the one of its group."""

    num_groups: int = Field(ge=1, le=1_000_000_000)
    """Different system prompts; each request, or conversation, draws one, all equally likely."""
    tokens: Tokens
    """Length of a system prompt; it comes on top of `prompt_tokens`."""
