"""The `workload.sessions`, `workload.shared_prefix` and `workload.agents` blocks. Draws nothing.

The text below a field is its entry in the reference.
"""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from simserve.units import PositiveSeconds, Seconds
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


class AgentsSpec(FrozenModel):
    """Tasks of agents: calls of a model with tools between them, and sub-agents that work side by side.

    `arrivals` start tasks, `rate` still being requests (calls) per second: it is divided by the mean number of calls of
    a task. In a closed loop every client works off one task after another. `prompt_tokens` are the new text of a call
    (a tool's result, an instruction), which comes on top of the context: all that the agent has read and written
    before. `shared_prefix` is the system prompt with the tools, of agents and sub-agents alike. Beside a `trace` the
    block holds nothing but `max_execution_time`: the trace says all else.
    """

    calls: Length | None = None
    """Calls of a task's main agent, a bare number: so many in each; needed, but beside a trace."""
    tool_time: Seconds = 0.0
    """Mean time that a tool runs between an answer and the agent's next call."""
    tool_time_cv: float = Field(default=0.0, ge=0, le=20)
    """Its standard deviation over its mean (Weibull): 0 the same every time, 1 exponential; else at least 0.05."""
    context_growth: float = Field(default=1.0, ge=0, le=1)
    """Share of each answer that stays in the context; the prompts always stay. Below 1, such as where hidden reasoning
    is dropped, the kept part is new text to a prefix cache."""
    subagent_share: float = Field(default=0.0, ge=0, le=1)
    """Share of the main agent's calls, but the last one, that hand work to sub-agents. Its next call waits for the last
    answers of all of them instead of a tool, and finds these in its context."""
    subagents: Length = FixedLength(value=1)
    """Fan-out: sub-agents that are started at once."""
    subagent_calls: Length = FixedLength(value=1)
    """Calls of a sub-agent, one after another with tools between them."""
    fork_share: float = Field(default=0.0, ge=0, le=1)
    """Share of the sub-agents that are forks: they begin with the context of the call that starts them, which a prefix
    cache holds already. Others begin with the system prompt and text of their own."""
    max_execution_time: PositiveSeconds | None = None
    """How long a client lets a task run, from its first call on (the name is LangChain's and CrewAI's). Then it hangs
    up the calls that run, the server drops them, and no further call is sent. Absent: it lets it end."""

    def check_drawn(self) -> None:
        """Refuse what only a trace says.

        Raises:
            ValueError: There are no calls.
        """
        if self.calls is None:
            raise ValueError("has agents without calls; add calls, such as {distribution: geometric, mean: 12}")

    def check_recorded(self) -> None:
        """Refuse what a trace says itself.

        Raises:
            ValueError: Anything is given.
        """
        given = self.model_fields_set - {"max_execution_time"}
        if given:
            raise ValueError(
                f"has a trace and agents.{min(given)}; the trace says what its tasks are like: write agents: {{}}"
            )

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        if 0 < self.tool_time_cv < 0.05:
            raise ValueError(f"tool_time_cv {self.tool_time_cv:g} must be 0 or at least 0.05")
        if self.tool_time_cv and not self.tool_time:
            raise ValueError("tool_time_cv needs tool_time; give both or neither")
        given = [name for name in ("subagents", "subagent_calls", "fork_share") if name in self.model_fields_set]
        if given and not self.subagent_share:
            raise ValueError(f"{given[0]} needs subagent_share, the share of the calls that start sub-agents")
        return self
