"""Conversations and shared beginnings: the `workload.sessions` and `workload.shared_prefix` blocks. Draws nothing.

The text below a field is its entry in the reference.
"""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from simserve.units import Seconds
from simserve.validation import FrozenModel
from simserve.workload.length_spec import FixedLength, Length, Tokens


class SessionsSpec(FrozenModel):
    """Conversations: a turn's prompt is all that came before it and new text; the next one leaves after the answer.

    `arrivals` start conversations, `rate` still being requests per second: it is divided by the mean number of
    requests of a conversation. In a closed loop every client holds one conversation after another. `prompt_tokens`
    are the new text of a turn. Beside a `trace` that tells conversations apart: its rows as turns, which wait for the
    answer before them; the trace says then how many there are, and how long.
    """

    turns: Length | None = None
    """Turns of a conversation, a bare number: so many in each; needed, but beside a trace."""
    think_time: Seconds | None = None
    """Mean time between an answer and the next turn: reading and typing. Absent: none; beside a trace, a turn is sent
    at its recorded time, or with the answer to the one before it if that comes later."""
    think_time_cv: float = Field(default=0.0, ge=0, le=20)
    """Its standard deviation over its mean (Weibull): 0 the same every time, 1 exponential; else at least 0.05."""
    context_growth: float = Field(default=1.0, ge=0, le=1)
    """Share of each answer that stays in the context; the prompts always stay. Below 1, such as where hidden reasoning
    is dropped, the kept part is new text to a prefix cache. Beside a trace: of one that does not name the blocks that
    prompts share."""
    parallel_calls: Length = FixedLength(value=1)
    """Requests of a turn, sent together: an agent's fan-out. Each is the context and new text of its own; the next turn
    leaves after the last answer, and finds all answers in its context."""
    tool_share: float = Field(default=0.0, ge=0, le=1)
    """Share of the turns that follow on a tool instead of a person: after `tool_time` instead of `think_time`."""
    tool_time: Seconds = 0.0
    """Time that a tool takes."""

    def check_drawn(self) -> None:
        """Refuse what only a trace says.

        Raises:
            ValueError: There are no turns.
        """
        if self.turns is None:
            raise ValueError("has sessions without turns; add turns, such as {distribution: geometric, mean: 5}")

    def check_recorded(self) -> None:
        """Refuse what a trace says itself.

        Raises:
            ValueError: There are turns, or calls, or tools without a time to think.
        """
        given = [name for name in ("turns", "parallel_calls") if name in self.model_fields_set]
        if given:
            raise ValueError(f"has a trace and sessions.{given[0]}; the trace says which requests are a conversation")
        if self.tool_share and self.think_time is None:
            raise ValueError("has sessions.tool_share without think_time; the trace says itself when turns come")

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
    """Length of a system prompt; it comes on top of `prompt_tokens`. Beside a trace: the first tokens of each prompt,
    whose recorded length holds it already."""
