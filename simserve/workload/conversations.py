"""Draws conversations and tasks: what each prompt contains of earlier ones, and when it is sent.

Conversations have turns and think times; tasks have the calls of agents and sub-agents, and what each call waits for.
All random draws happen here, from named streams; the time at which a turn or call is sent is known only when what it
waits for is answered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from simserve.workload.arrival_spec import Arrivals, ClosedLoopArrivals, RampArrivals, StepArrivals, WeibullArrivals
from simserve.workload.class_spec import ClassSpec
from simserve.workload.classes import draw_beginnings, draw_lengths, draw_own_lengths, draw_shares, draw_thinking
from simserve.workload.dependencies import Dependencies, from_counts, ranges
from simserve.workload.distributions import (
    Draws,
    asked_tokens,
    length_distribution,
    offered_rate,
    some,
    start_times,
    unit_quantile,
)
from simserve.workload.prefixes import NONE, Beginnings, PrefixSegments, chained_prefixes
from simserve.workload.requests import RequestSpecs
from simserve.workload.session_spec import AgentsSpec, SessionsSpec
from simserve.workload.spec import WorkloadSpec

Integers = NDArray[np.int64]
_Begun = TypeVar("_Begun", "Shape", "Agents")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Which request is which turn of which conversation; rows are ordered by conversation, turn, and call."""

    session: Integers  # Number of the conversation, shape [R].
    turn: Integers  # Turn number from 1, shape [R].
    call: Integers  # Position among the requests of its turn, from 0; the first is the main line, shape [R].

    @property
    def num_sessions(self) -> int:
        """Number of conversations."""
        return int(self.session[-1]) + 1 if len(self.session) else 0


def mean_requests(spec: SessionsSpec, base_path: Path | None) -> float:
    """Return the mean number of requests in a conversation."""
    assert spec.turns is not None, "checked where the workload was read"
    return length_distribution(spec.turns, base_path).mean * length_distribution(spec.parallel_calls, base_path).mean


def slowed(arrivals: Arrivals, factor: float) -> Arrivals:
    """Return arrivals whose rates are divided by ``factor``; those without a rate are unchanged."""
    changes: dict[str, object] = {}
    if hasattr(arrivals, "rate"):
        changes["rate"] = arrivals.rate / factor
    if isinstance(arrivals, RampArrivals):
        changes["start_rate"] = arrivals.start_rate / factor
    if isinstance(arrivals, StepArrivals):
        changes["steps"] = tuple(each.model_copy(update={"rate": each.rate / factor}) for each in arrivals.steps)
    return arrivals.model_copy(update=changes)


def _draw_shape(
    spec: SessionsSpec, draws: Draws, *, num_requests: int | None = None, num_sessions: int | None = None
) -> Shape:
    """Return the turns of ``num_sessions`` conversations, or of the first ``num_requests`` requests (the last is cut).

    The streams are ``turns`` and ``parallel_calls``.
    """
    assert spec.turns is not None, "checked where the workload was read"
    most = num_requests if num_sessions is None else num_sessions
    turns = draws.lengths(spec.turns, "turns", most or 0)
    if num_requests is not None:
        # Every turn has at least one request: no more conversations than that can begin.
        turns = turns[: int(np.searchsorted(np.cumsum(turns), num_requests)) + 1]
    calls = draws.lengths(spec.parallel_calls, "parallel_calls", int(turns.sum()))
    turn = positions(turns) + 1
    rows = slice(0, num_requests)
    return Shape(
        session=np.repeat(np.repeat(np.arange(len(turns)), turns), calls)[rows],
        turn=np.repeat(turn, calls)[rows],
        call=positions(calls)[rows],
    )


def draw_pauses(arrivals: ClosedLoopArrivals, count: int, draws: Draws) -> NDArray[np.float64]:
    """Return the think times, seconds, before each of ``count`` requests, or conversations, of closed-loop clients."""
    return _varied(arrivals.think_time, arrivals.think_time_cv, count, draws, "client_think_time")


def _varied(mean: float, cv: float | None, count: int, draws: Draws, stream: str) -> NDArray[np.float64]:
    """Return ``count`` times that vary around their mean (Weibull); all equal without a coefficient of variation."""
    times = np.full(count, mean)
    if not cv:
        return times
    return times * unit_quantile(WeibullArrivals(rate=1.0, cv=cv))(draws.stream(stream).random(count))


def draw_think_times(spec: SessionsSpec, shape: Shape, draws: Draws) -> NDArray[np.float64]:
    """Return the seconds between the answers of a turn and the sending of the next; 0 for first turns."""
    is_main = shape.call == 0
    num_turns = int(is_main.sum())
    times = _varied(spec.think_time or 0.0, spec.think_time_cv, num_turns, draws, "think_time")
    if spec.tool_share:
        is_tool = draws.stream("tool_turns").random(num_turns) < spec.tool_share
        times = np.where(is_tool, spec.tool_time, times)
    spread: NDArray[np.float64] = times[np.cumsum(is_main) - 1]
    return np.where(shape.turn == 1, 0.0, spread)


def contexts(
    shape: Shape,
    new_tokens: Integers,
    output_tokens: Integers,
    growth: float,
    beginnings: Beginnings | None,
    generated_tokens: Integers | None = None,
) -> tuple[Integers, PrefixSegments]:
    """Return the prompt of every request, and what it shares with others.

    A turn's prompt is the context plus new text. The context of the next turn is the main line's prompt plus ``growth``
    of all answers of the turn. The main line's answer is in the cache of the replica that gave it; other answers, and
    one that is kept in part or follows thinking, return as new text.

    Args:
        new_tokens: New text of each request, shape [R].
        output_tokens: Its answer, shape [R].
        growth: Share of an answer that is kept.
        beginnings: System prompt of each conversation; None: no system prompts.
        generated_tokens: What each request generates, hidden thinking and answer, shape [R]; None: no thinking.

    Returns:
        Prompt tokens, shape [R], and the segments.
    """
    main = np.flatnonzero(shape.call == 0)
    turn_of_row = np.cumsum(shape.call == 0) - 1
    first_turns = np.flatnonzero(shape.turn[main] == 1)
    kept = np.rint(growth * output_tokens)
    grown = new_tokens[main] + np.bincount(turn_of_row, weights=kept, minlength=len(main)).astype(np.int64)
    before = np.cumsum(grown) - grown
    context = before - before[first_turns][shape.session[main]]
    if beginnings is not None:
        context += beginnings.tokens[shape.session[main]]
    prompts = context[turn_of_row] + new_tokens
    ends = prompts + (output_tokens if generated_tokens is None else generated_tokens)
    # The earlier turns are those of the main line, from the first one of the conversation on.
    count = shape.turn - 1
    chained = chained_prefixes(
        prompts,
        ends,
        None if beginnings is None else beginnings.of_rows(shape.session),
        earlier=main[ranges(first_turns[shape.session], count)],
        counts=count,
        is_whole=growth == 1.0 and generated_tokens is None,
    )
    return prompts, chained


def positions(counts: Integers) -> Integers:
    """Return 0 .. n - 1 for each n of ``counts``, one after another."""
    return np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)


def draw_dialogues(
    spec: WorkloadSpec, kind: SessionsSpec | AgentsSpec, draws: Draws, num_class: int | None = None
) -> RequestSpecs:
    """Return the turns of conversations, or the calls of tasks, which are adjacent, in the order in which these begin.

    Args:
        spec: What to draw; ``num_requests`` (the last conversation, or task, is cut there) or ``duration`` limits it.
        kind: The kind of conversations, or of tasks.
        num_class: Their class, with its own arrivals and streams; None: those that share the common arrivals.

    Raises:
        ScenarioError: Nothing arrives within the duration, and it is no class with its own arrivals.
    """
    classes = spec.classes or ()
    own = None if num_class is None else classes[num_class]
    draws = draws if own is None else draws.own(own.name)
    arrivals = spec.arrivals if own is None else own.arrivals
    assert arrivals is not None, "checked where the workload was read"
    dependencies: Dependencies | None = None
    if isinstance(kind, AgentsSpec):
        starting = slowed(arrivals, mean_calls(kind, draws.base_path))
        agents, starts = _begun(partial(draw_agents, kind, draws), starting, spec, draws, is_alone=own is None)
        dependencies = dependencies_of_agents(agents)
        session, turn, draw_contexts = agents.task, dependencies.depths(), partial(agent_contexts, agents)
        think_time = draw_tool_times(kind, agents, dependencies, draws)
    else:
        starting = slowed(arrivals, mean_requests(kind, draws.base_path))
        shape, starts = _begun(partial(_draw_shape, kind, draws), starting, spec, draws, is_alone=own is None)
        session, turn, draw_contexts = shape.session, shape.turn, partial(contexts, shape)
        think_time = draw_think_times(kind, shape, draws)
    is_first = turn == 1
    if isinstance(arrivals, ClosedLoopArrivals):
        think_time[is_first] = draw_pauses(arrivals, len(starts), draws)[session[is_first]]
    class_of = _class_of(classes, num_class, len(starts), draws)
    request_class = None if class_of is None else class_of[session]
    if request_class is not None and own is None:
        new_tokens, output_tokens = draw_lengths(spec, request_class, draws)
    else:
        new_tokens, output_tokens = draw_own_lengths(spec, own, len(session), draws)
    thinking = draw_thinking(spec, request_class, len(session), draws)
    if thinking is not None:
        output_tokens = output_tokens + thinking
    max_tokens = asked_tokens(spec.max_tokens, output_tokens)
    generated = np.where(max_tokens < 0, output_tokens, np.minimum(output_tokens, max_tokens))
    answers = generated if thinking is None else np.maximum(generated - thinking, 0)
    beginnings = draw_beginnings(spec, len(starts), draws, class_of)
    prompts, prefixes = draw_contexts(
        new_tokens, answers, kind.context_growth, beginnings, None if thinking is None else generated
    )
    return RequestSpecs.arriving(
        arrivals,
        spec.classes or (),
        request_class,
        arrival_time=np.where(is_first, starts[session], np.nan),
        prompt_tokens=prompts,
        output_tokens=output_tokens,
        max_tokens=max_tokens,
        think_time=think_time,
        offered_rate=offered_rate(arrivals, starts, len(session)) if len(session) else 0.0,
        prefixes=prefixes,
        session=session,
        turn=turn,
        dependencies=dependencies,
        thinking_tokens=thinking,
    ).within(getattr(kind, "max_execution_time", None))


def _begun(
    draw: Callable[..., _Begun], starting: Arrivals, spec: WorkloadSpec, draws: Draws, *, is_alone: bool
) -> tuple[_Begun, NDArray[np.float64]]:
    """Return conversations, or tasks, and when each of them begins, seconds.

    Args:
        draw: Draws as many as have ``num_requests`` requests, or ``num_sessions``.
        starting: When they begin.
        is_alone: Whether some must begin; of several sources, one may have no arrivals.
    """
    if spec.duration is None or isinstance(starting, ClosedLoopArrivals):
        made = draw(num_requests=spec.num_requests)
        starts = start_times(starting, draws, num_requests=made.num_sessions, duration=None)
        return made, some(starts) if is_alone else starts
    starts = start_times(starting, draws, num_requests=None, duration=spec.duration)
    return draw(num_sessions=len(some(starts) if is_alone else starts)), starts


def _class_of(
    classes: tuple[ClassSpec, ...], num_class: int | None, num_sessions: int, draws: Draws
) -> NDArray[np.int16] | None:
    """Return the class of each conversation: the given one, or drawn by shares; None without classes."""
    if num_class is not None:
        return np.full(num_sessions, num_class, dtype=np.int16)
    return draw_shares(classes, num_sessions, draws) if classes else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Agents:
    """Who makes which call; rows are ordered by task, and a call of the main agent precedes the sub-agents it starts.

    Agents are numbered: the main agents by task, then the sub-agents in the order of their calls.
    """

    task: Integers  # Number of the task of each call, shape [R].
    agent: Integers  # Number of the agent that makes it, shape [R].
    step: Integers  # Position among the calls of its agent, from 0, shape [R].
    started_by: Integers  # For each agent, the row of the call that starts it, `NONE` for main agents, shape [A].
    is_fork: NDArray[np.bool_]  # For each agent, whether it begins with the context of that call, shape [A].

    @property
    def num_sessions(self) -> int:
        """Number of tasks."""
        return int(self.task[-1]) + 1 if len(self.task) else 0

    @property
    def rows(self) -> tuple[Integers, Integers]:
        """The calls of all agents, agent by agent and step by step, shape [R], and the first index of each agent."""
        order = np.argsort(self.agent, kind="stable")  # an agent's calls stand in their order
        counts = np.bincount(self.agent, minlength=len(self.started_by))
        return order, np.cumsum(counts) - counts

    @property
    def last_rows(self) -> Integers:
        """The row of the last call of each agent, shape [A]."""
        order, begins = self.rows
        ends = np.append(begins[1:], len(order))[: len(begins)]  # no agents, no ends
        rows: Integers = order[ends - 1]
        return rows

    def first(self, num_calls: int) -> Agents:
        """Return only the first calls."""
        known, agent = np.unique(self.agent[:num_calls], return_inverse=True)
        return Agents(
            task=self.task[:num_calls],
            agent=agent,
            step=self.step[:num_calls],
            started_by=self.started_by[known],
            is_fork=self.is_fork[known],
        )


def mean_calls(spec: AgentsSpec, base_path: Path | None) -> float:
    """Return the mean number of calls in a task, including those of sub-agents."""
    assert spec.calls is not None, "checked where the workload was read"
    calls = length_distribution(spec.calls, base_path).mean
    of_subagents = length_distribution(spec.subagents, base_path).mean
    of_subagents *= length_distribution(spec.subagent_calls, base_path).mean
    return calls + (calls - 1) * spec.subagent_share * of_subagents


def draw_agents(
    spec: AgentsSpec, draws: Draws, *, num_requests: int | None = None, num_sessions: int | None = None
) -> Agents:
    """Return the agents of ``num_sessions`` tasks, or of the first ``num_requests`` calls (the last task is cut there).

    The streams are ``agent_calls``, ``subagent_starts``, ``subagents``, ``subagent_calls`` and ``forks``.
    """
    assert spec.calls is not None, "checked where the workload was read"
    calls = draws.lengths(spec.calls, "agent_calls", (num_requests if num_sessions is None else num_sessions) or 0)
    if num_requests is not None:
        # Every task has at least its main agent's calls: no more tasks than that can begin.
        calls = calls[: int(np.searchsorted(np.cumsum(calls), num_requests)) + 1]
    num_main = int(calls.sum())
    is_last = np.zeros(num_main, dtype=bool)
    is_last[np.cumsum(calls) - 1] = True
    starts = draws.stream("subagent_starts").random(num_main) < spec.subagent_share
    fan_out = np.where(starts & ~is_last, draws.lengths(spec.subagents, "subagents", num_main), 0)
    num_subagents = int(fan_out.sum())
    own_calls = draws.lengths(spec.subagent_calls, "subagent_calls", num_subagents)
    is_fork = draws.stream("forks").random(num_subagents) < spec.fork_share
    num_tasks = len(calls)
    main_task = np.repeat(np.arange(num_tasks), calls)
    starter = np.repeat(np.arange(num_main), fan_out)  # of each sub-agent, as a call of the main agents
    behind = np.bincount(starter, weights=own_calls, minlength=num_main).astype(np.int64)
    main_row = np.arange(num_main) + np.cumsum(behind) - behind
    own_before = np.cumsum(own_calls) - own_calls
    own_row = np.repeat(starter + 1, own_calls) + np.arange(int(own_calls.sum()))
    task, agent, step = (np.empty(num_main + len(own_row), dtype=np.int64) for _ in range(3))
    task[main_row], agent[main_row], step[main_row] = main_task, main_task, positions(calls)
    task[own_row] = np.repeat(main_task[starter], own_calls)
    agent[own_row] = num_tasks + np.repeat(np.arange(num_subagents), own_calls)
    step[own_row] = np.arange(len(own_row)) - np.repeat(own_before, own_calls)
    made = Agents(
        task=task,
        agent=agent,
        step=step,
        started_by=np.concatenate([np.full(num_tasks, NONE), main_row[starter]]),
        is_fork=np.concatenate([np.zeros(num_tasks, dtype=bool), is_fork]),
    )
    return made if num_requests is None else made.first(num_requests)


def dependencies_of_agents(agents: Agents) -> Dependencies:
    """Return what each call waits for.

    An agent's first call waits for the one that starts it, each further call for the one before it or, if that one has
    started sub-agents, for the last calls of all of them.
    """
    num_rows = len(agents.task)
    order, _ = agents.rows
    before = np.full(num_rows, NONE, dtype=np.int64)
    before[order[1:]] = order[:-1]
    is_begin = agents.step == 0
    before[is_begin] = agents.started_by[agents.agent[is_begin]]
    is_subagent = agents.started_by >= 0
    # For each call that starts sub-agents: the next call of the same agent, unless the draw was cut before it.
    next_row = np.full(num_rows, NONE, dtype=np.int64)
    follows = ~is_begin
    next_row[before[follows]] = np.flatnonzero(follows)
    joined = next_row[agents.started_by[is_subagent]]
    parent = agents.last_rows[is_subagent][joined >= 0]
    child = joined[joined >= 0]
    waits_alone = before >= 0
    waits_alone[child] = False
    children = np.concatenate([np.flatnonzero(waits_alone), child])
    parents = np.concatenate([before[waits_alone], parent])
    by_child = np.argsort(children, kind="stable")
    return from_counts(np.bincount(children, minlength=num_rows), parents[by_child])


def draw_tool_times(spec: AgentsSpec, agents: Agents, dependencies: Dependencies, draws: Draws) -> NDArray[np.float64]:
    """Return the seconds that a tool runs before each call, from the stream ``tool_time``.

    0 for the first call of an agent, and for calls that wait for sub-agents.
    """
    num_rows = len(agents.task)
    times = _varied(spec.tool_time, spec.tool_time_cv, num_rows, draws, "tool_time")
    first_parent = np.full(num_rows, NONE, dtype=np.int64)
    waits = dependencies.num_parents > 0
    first_parent[waits] = dependencies.parents[dependencies.offsets[:-1][waits]]
    has_tool = waits & (agents.agent[first_parent] == agents.agent)
    return np.where(has_tool, times, 0.0)


def agent_contexts(
    agents: Agents,
    new_tokens: Integers,
    output_tokens: Integers,
    growth: float,
    beginnings: Beginnings | None,
    generated_tokens: Integers | None = None,
) -> tuple[Integers, PrefixSegments]:
    """Return the prompt of every call, and what it shares with others.

    A prompt is the context plus new text. The context of an agent's next call is that prompt, ``growth`` of the answer,
    and the last answers of the sub-agents that the call started, as new text. A fork begins with the context that the
    call that starts it leaves, other sub-agents with the system prompt alone.

    Args:
        new_tokens: New text of each call, shape [R].
        output_tokens: Its answer, shape [R].
        growth: Share of an answer that is kept.
        beginnings: System prompt of each task; None: no system prompts.
        generated_tokens: What each call generates, hidden thinking and answer, shape [R]; None: no thinking. The
            context drops the thinking, so an answer is new text in it.

    Returns:
        Prompt tokens, shape [R], and the segments.
    """
    order, begins = agents.rows
    kept = np.rint(growth * output_tokens).astype(np.int64)
    # The last answers of the sub-agents that each call starts.
    is_subagent = agents.started_by >= 0
    starters, answers = agents.started_by[is_subagent], output_tokens[agents.last_rows[is_subagent]]
    reported = np.bincount(starters, weights=answers, minlength=len(agents.task)).astype(np.int64)
    grown = new_tokens + kept + reported
    total = np.cumsum(grown[order]) - grown[order]
    context = np.empty(len(order), dtype=np.int64)
    context[order] = total - np.repeat(total[begins], np.diff(np.append(begins, len(order))))
    base = np.zeros(len(agents.started_by), dtype=np.int64)
    if beginnings is not None:
        task_of_agent = agents.task[order[begins]]
        base = beginnings.tokens[task_of_agent].astype(np.int64)
    prompts = context + new_tokens + base[agents.agent]
    starter = agents.started_by[agents.agent]
    forked = agents.is_fork[agents.agent]
    # The call that starts a fork is a main agent's: its prompt is known.
    prompts[forked] += (prompts + kept)[starter[forked]] - base[agents.agent[forked]]
    ends = prompts + (output_tokens if generated_tokens is None else generated_tokens)
    # The calls in a context: of the agent that was forked, up to the fork, then the agent's own earlier ones.
    fork = np.where(agents.is_fork, agents.started_by, NONE)[agents.agent]
    inherited = np.where(fork >= 0, agents.step[fork] + 1, 0)
    counts = np.stack([inherited, agents.step], axis=1).ravel()
    chained = chained_prefixes(
        prompts,
        ends,
        None if beginnings is None else beginnings.of_rows(agents.task),
        earlier=order[ranges(np.stack([begins[agents.agent[fork]], begins[agents.agent]], axis=1).ravel(), counts)],
        counts=inherited + agents.step,
        is_whole=growth == 1.0 and generated_tokens is None,
    )
    return prompts, chained
