"""Agents' tasks: the `workload.agents` block. Draws nothing.

The text below a field is its entry in the reference.
"""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from simserve.units import PositiveSeconds, Seconds
from simserve.validation import FrozenModel
from simserve.workload.length_spec import FixedLength, Length


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
