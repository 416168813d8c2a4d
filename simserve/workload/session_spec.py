"""The `workload.sessions`, `workload.shared_prefix` and `workload.agents` blocks. Draws nothing.

The text below a field is its entry in the reference.
"""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from simserve.units import PositiveSeconds, Seconds
from simserve.validation import FrozenModel
from simserve.workload.length_spec import FixedLength, Length, Tokens


def _changed(block: FrozenModel) -> set[str]:
    """Return the fields that differ from their defaults: a scenario that was written out holds all of them."""
    return {name for name, field in type(block).model_fields.items() if getattr(block, name) != field.default}


class SessionsSpec(FrozenModel):
    """Conversations: a turn's prompt is everything before it plus new text; the next turn is sent after the answer.

    `arrivals` start conversations; `rate` is still requests per second, and is divided by the mean number of requests
    in a conversation. In a closed loop every client holds one conversation after another. `prompt_tokens` are the new
    text of a turn. With a `trace` that identifies conversations, its rows are the turns, which wait for the answer
    before them; the trace then sets their number and lengths.
    """

    turns: Length | None = None
    """Turns of a conversation; a number means as many in each. Required without a trace."""
    think_time: Seconds | None = None
    """Mean time between an answer and the next turn: reading and typing. Absent: none; with a trace, a turn is sent at
    its recorded time, or with the answer to the turn before it if that comes later."""
    think_time_cv: float = Field(default=0.0, ge=0, le=20)
    """Standard deviation over mean of the think time (Weibull): 0 constant, 1 exponential; else at least 0.05."""
    context_growth: float = Field(default=1.0, ge=0, le=1)
    """Share of each answer that stays in the context; the prompts always stay. Below 1, for example where hidden
    reasoning is dropped, the kept part is new text to a prefix cache. With a trace: only if it does not name the blocks
    that prompts share."""
    parallel_calls: Length = FixedLength(value=1)
    """Requests of a turn, sent together: an agent's fan-out. Each has the context and new text of its own; the next
    turn is sent after the last answer, and has all answers in its context."""
    tool_share: float = Field(default=0.0, ge=0, le=1)
    """Share of the turns that follow a tool instead of a person: after `tool_time` instead of `think_time`."""
    tool_time: Seconds = 0.0
    """Time that a tool takes."""

    def check_drawn(self) -> None:
        """Refuse what only a trace can set.

        Raises:
            ValueError: There are no turns.
        """
        if self.turns is None:
            raise ValueError("has sessions without turns; add turns, such as {distribution: geometric, mean: 5}")

    def check_recorded(self) -> None:
        """Refuse what the trace itself sets.

        Raises:
            ValueError: There are turns, or calls, or tools without a time to think.
        """
        given = [name for name in ("turns", "parallel_calls") if name in _changed(self)]
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
    """System prompts: every prompt (every conversation) begins with that of its group."""

    num_groups: int = Field(ge=1, le=1_000_000_000)
    """Number of system prompts; each request, or conversation, draws one, all equally likely."""
    tokens: Tokens
    """Length of a system prompt, on top of `prompt_tokens`. With a trace: the first tokens of each prompt, already
    included in its recorded length."""


class AgentsSpec(FrozenModel):
    """Tasks of agents: calls of a model with tools between them, and sub-agents that work in parallel.

    `arrivals` start tasks; `rate` is still requests (calls) per second, and is divided by the mean number of calls in a
    task. In a closed loop every client runs one task after another. `prompt_tokens` are the new text of a call (a
    tool's result, an instruction), on top of the context: all that the agent has read and written before.
    `shared_prefix` is the system prompt with the tools, for agents and sub-agents alike. With a `trace` the block may
    set only `max_execution_time`: the trace sets everything else.
    """

    calls: Length | None = None
    """Calls of a task's main agent; a number means as many in each. Required without a trace."""
    tool_time: Seconds = 0.0
    """Mean time that a tool runs between an answer and the agent's next call."""
    tool_time_cv: float = Field(default=0.0, ge=0, le=20)
    """Standard deviation over mean of the tool time (Weibull): 0 constant, 1 exponential; else at least 0.05."""
    context_growth: float = Field(default=1.0, ge=0, le=1)
    """Share of each answer that stays in the context; the prompts always stay. Below 1, for example where hidden
    reasoning is dropped, the kept part is new text to a prefix cache."""
    subagent_share: float = Field(default=0.0, ge=0, le=1)
    """Share of the main agent's calls, except the last, that delegate to sub-agents. Instead of a tool, its next call
    waits for the last answers of all of them, and has these in its context."""
    subagents: Length = FixedLength(value=1)
    """Fan-out: sub-agents started at once."""
    subagent_calls: Length = FixedLength(value=1)
    """Calls of a sub-agent, one after another with tools between them."""
    fork_share: float = Field(default=0.0, ge=0, le=1)
    """Share of the sub-agents that are forks: they begin with the context of the call that starts them, which a prefix
    cache already holds. Others begin with the system prompt and their own text."""
    max_execution_time: PositiveSeconds | None = None
    """How long a client lets a task run, from its first call (the name is LangChain's and CrewAI's). It then cancels
    the running calls, the server drops them, and no further call is sent. Absent: no limit."""

    def check_drawn(self) -> None:
        """Refuse what only a trace can set.

        Raises:
            ValueError: There are no calls.
        """
        if self.calls is None:
            raise ValueError("has agents without calls; add calls, such as {distribution: geometric, mean: 12}")

    def check_recorded(self) -> None:
        """Refuse what the trace itself sets.

        Raises:
            ValueError: Anything is given.
        """
        given = _changed(self) - {"max_execution_time"}
        if given:
            rule = f"has a trace and agents.{min(given)}; the trace says what its tasks are like: write agents: {{}}"
            raise ValueError(rule)

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        if 0 < self.tool_time_cv < 0.05:
            raise ValueError(f"tool_time_cv {self.tool_time_cv:g} must be 0 or at least 0.05")
        if self.tool_time_cv and not self.tool_time:
            raise ValueError("tool_time_cv needs tool_time; give both or neither")
        given = [name for name in ("subagents", "subagent_calls", "fork_share") if name in _changed(self)]
        if given and not self.subagent_share:
            raise ValueError(f"{given[0]} needs subagent_share, the share of the calls that start sub-agents")
        return self
