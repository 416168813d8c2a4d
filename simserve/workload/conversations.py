"""Draws conversations and tasks: what each prompt contains of earlier ones, and when it is sent.

Conversations have turns and think times; tasks have the calls of agents and sub-agents, and what each call waits for.
All random draws happen here, from named streams; the time at which a turn or call is sent is known only when what it
waits for is answered.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve import rng
from simserve.workload.arrival_spec import (
    STATIONARY,
    Arrivals,
    ClosedLoopArrivals,
    RampArrivals,
    StepArrivals,
    WeibullArrivals,
)
from simserve.workload.class_spec import ClassSpec
from simserve.workload.classes import (
    Beginnings,
    draw_beginnings,
    draw_lengths,
    draw_own_lengths,
    draw_shares,
    draw_thinking,
    priorities,
)
from simserve.workload.dependencies import Dependencies, from_counts
from simserve.workload.distributions import (
    asked_tokens,
    length_distribution,
    offered_rate,
    some,
    start_times,
    unit_quantile,
)
from simserve.workload.prefixes import PrefixSegments
from simserve.workload.requests import RequestSpecs
from simserve.workload.session_spec import AgentsSpec, SessionsSpec
from simserve.workload.spec import WorkloadSpec

Integers = NDArray[np.int64]
NONE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Which request is which turn of which conversation; rows are ordered by conversation, turn, and call.

    Attributes:
        session: Number of the conversation, shape [R].
        turn: Turn number from 1, shape [R].
        call: Position among the requests of its turn, from 0; the first is the main line, shape [R].
    """

    session: Integers
    turn: Integers
    call: Integers

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
    spec: SessionsSpec,
    *,
    seed: int,
    replication: int,
    base_path: Path | None,
    num_requests: int | None = None,
    num_sessions: int | None = None,
    suffix: str = "",
) -> Shape:
    """Return the turns of ``num_sessions`` conversations, or of the first ``num_requests`` requests (the last is cut).

    ``suffix`` is that of the streams ``turns`` and ``parallel_calls``.
    """
    assert spec.turns is not None, "checked where the workload was read"
    turns_of = length_distribution(spec.turns, base_path)
    calls_of = length_distribution(spec.parallel_calls, base_path)
    most = num_requests if num_sessions is None else num_sessions
    turns = turns_of.sample(rng.stream(seed, f"turns{suffix}", replication), most or 0)
    if num_requests is not None:
        # Every turn has at least one request: no more conversations than that can begin.
        turns = turns[: int(np.searchsorted(np.cumsum(turns), num_requests)) + 1]
    calls = calls_of.sample(rng.stream(seed, f"parallel_calls{suffix}", replication), int(turns.sum()))
    turn = positions(turns) + 1
    rows = slice(0, num_requests)
    return Shape(
        session=np.repeat(np.repeat(np.arange(len(turns)), turns), calls)[rows],
        turn=np.repeat(turn, calls)[rows],
        call=positions(calls)[rows],
    )


def draw_pauses(
    arrivals: ClosedLoopArrivals, count: int, *, seed: int, replication: int, suffix: str = ""
) -> NDArray[np.float64]:
    """Return the think times, seconds, before each of ``count`` requests, or conversations, of closed-loop clients."""
    pauses = np.full(count, arrivals.think_time)
    if arrivals.think_time_cv is None:
        return pauses
    quantile = unit_quantile(WeibullArrivals(rate=1.0, cv=arrivals.think_time_cv))
    return pauses * quantile(rng.stream(seed, f"client_think_time{suffix}", replication).random(count))


def draw_think_times(
    spec: SessionsSpec, shape: Shape, *, seed: int, replication: int, suffix: str = ""
) -> NDArray[np.float64]:
    """Return the seconds between the answers of a turn and the sending of the next; 0 for first turns."""
    is_main = shape.call == 0
    num_turns = int(is_main.sum())
    times = np.full(num_turns, spec.think_time or 0.0)
    if spec.think_time_cv:
        quantile = unit_quantile(WeibullArrivals(rate=1.0, cv=spec.think_time_cv))
        times = times * quantile(rng.stream(seed, f"think_time{suffix}", replication).random(num_turns))
    if spec.tool_share:
        is_tool = rng.stream(seed, f"tool_turns{suffix}", replication).random(num_turns) < spec.tool_share
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
        shape: The conversations.
        new_tokens: New text of each request, shape [R].
        output_tokens: Its answer, shape [R].
        growth: Share of an answer that is kept.
        beginnings: System prompt of each conversation; None: no system prompts.
        generated_tokens: What each request generates, hidden thinking and answer, shape [R]; None: no thinking.

    Returns:
        Prompt tokens, shape [R], and the segments.
    """
    from simserve.workload.prefixes import PrefixSegments

    num_rows = len(new_tokens)
    main = np.flatnonzero(shape.call == 0)
    turn_of_row = np.cumsum(shape.call == 0) - 1
    first_turns = np.flatnonzero(shape.turn[main] == 1)
    first_turn = first_turns[shape.session]  # of each row's conversation, as an index of turns
    kept = np.rint(growth * output_tokens)
    grown = new_tokens[main] + np.bincount(turn_of_row, weights=kept, minlength=len(main)).astype(np.int64)
    before = np.cumsum(grown) - grown
    context = before - before[first_turns][shape.session[main]]
    if beginnings is not None:
        context += beginnings.tokens[shape.session[main]]
    prompts = context[turn_of_row] + new_tokens
    ends = prompts + (output_tokens if generated_tokens is None else generated_tokens)

    is_whole = growth == 1.0 and generated_tokens is None
    num_groups = 0 if beginnings is None else beginnings.num_groups
    has_system = np.zeros(num_rows, dtype=np.int64)
    if beginnings is not None:
        has_system[beginnings.group[shape.session] >= 0] = 1
    offsets = np.concatenate([[0], np.cumsum(has_system + shape.turn + (not is_whole))])
    segments = np.empty(offsets[-1], dtype=np.int64)
    segment_ends = np.empty(offsets[-1], dtype=np.int64)
    main_ends = ends if is_whole else prompts
    # The earlier turns: ``count`` of them, from the first one of the conversation on.
    count = shape.turn - 1
    before_row = np.cumsum(count) - count
    number = np.arange(int(count.sum()))
    earlier = main[number + np.repeat(first_turn - before_row, count)]
    number += np.repeat(offsets[:-1] + has_system - before_row, count)
    segments[number] = earlier + num_groups
    segment_ends[number] = main_ends[earlier]
    own = offsets[:-1] + has_system + count
    row = np.arange(num_rows)
    segments[own], segment_ends[own] = row + num_groups, main_ends
    if not is_whole:
        segments[own + 1], segment_ends[own + 1] = num_rows + row + num_groups, ends
    if beginnings is not None:
        rows = np.flatnonzero(has_system)
        first, owner = offsets[:-1][rows], shape.session[rows]
        segments[first], segment_ends[first] = beginnings.group[owner], beginnings.tokens[owner]
    return prompts, PrefixSegments(offsets=offsets, segments=segments, ends=segment_ends)


def positions(counts: Integers) -> Integers:
    """Return 0 .. n - 1 for each n of ``counts``, one after another."""
    return np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)


def draw_dialogues(
    spec: WorkloadSpec,
    sessions: SessionsSpec,
    *,
    seed: int,
    replication: int,
    base_path: Path | None,
    num_class: int | None = None,
) -> RequestSpecs:
    """Return the requests of conversations; rows are ordered by conversation, and these by their beginning.

    Args:
        spec: What to draw; ``num_requests`` or ``duration`` limits it.
        sessions: The kind of conversations.
        seed: Seed of the run.
        replication: Replication of the run.
        base_path: Folder in which relative paths are looked up before the working folder.
        num_class: The class of the conversations, with its own arrivals and streams; None: those that share
            the common arrivals.

    Raises:
        ScenarioError: Nothing arrives within the duration.
    """
    drawn = {"seed": seed, "replication": replication}
    classes = spec.classes or ()
    own = None if num_class is None else classes[num_class]
    suffix = "" if own is None else f".{own.name}"
    arrivals = spec.arrivals if own is None else own.arrivals
    assert arrivals is not None
    starting = slowed(arrivals, mean_requests(sessions, base_path))
    if isinstance(arrivals, ClosedLoopArrivals) or spec.duration is None:
        shape = _draw_shape(sessions, base_path=base_path, num_requests=spec.num_requests, suffix=suffix, **drawn)
        starts = _starts(starting, spec, shape.num_sessions, suffix, seed, replication)
    else:
        starts = _starts(starting, spec, None, suffix, seed, replication)
        shape = _draw_shape(sessions, base_path=base_path, num_sessions=len(starts), suffix=suffix, **drawn)
    num_requests = len(shape.turn)
    class_of = _class_of(classes, num_class, shape.num_sessions, seed, replication)
    request_class = None if class_of is None else class_of[shape.session]
    if request_class is not None and own is None:
        new_tokens, output_tokens = draw_lengths(spec, request_class, base_path=base_path, **drawn)
    else:
        new_tokens, output_tokens = draw_own_lengths(spec, own, base_path=base_path, num_requests=num_requests, **drawn)
    thinking = draw_thinking(spec, request_class, num_requests, base_path=base_path, **drawn)
    if thinking is not None:
        output_tokens = output_tokens + thinking
    max_tokens = asked_tokens(spec.max_tokens, output_tokens)
    answers = generated = np.where(max_tokens < 0, output_tokens, np.minimum(output_tokens, max_tokens))
    if thinking is not None:
        answers = np.maximum(generated - thinking, 0)
    beginnings = draw_beginnings(spec, shape.num_sessions, class_of=class_of, suffix=suffix, **drawn)
    prompts, prefixes = contexts(
        shape, new_tokens, answers, sessions.context_growth, beginnings, None if thinking is None else generated
    )
    think_time = draw_think_times(sessions, shape, suffix=suffix, **drawn)
    if isinstance(arrivals, ClosedLoopArrivals):
        is_first = shape.turn == 1
        pauses = draw_pauses(arrivals, shape.num_sessions, suffix=suffix, **drawn)
        think_time[is_first] = pauses[shape.session[is_first]]
    return RequestSpecs(
        arrival_time=np.where(shape.turn == 1, starts[shape.session], np.nan),
        prompt_tokens=prompts,
        output_tokens=output_tokens,
        max_tokens=max_tokens,
        think_time=think_time,
        concurrency=getattr(arrivals, "concurrency", None),
        ramp_up=getattr(arrivals, "ramp_up", None),
        is_stationary=isinstance(arrivals, STATIONARY),
        offered_rate=offered_rate(arrivals, starts, num_requests),
        prefixes=prefixes,
        session=shape.session,
        turn=shape.turn,
        classes=classes,
        request_class=request_class,
        priority=None if request_class is None else priorities(classes, request_class),
        thinking_tokens=thinking,
    )


def _class_of(
    classes: tuple[ClassSpec, ...], num_class: int | None, num_sessions: int, seed: int, replication: int
) -> NDArray[np.int16] | None:
    """Return the class of each conversation: the given one, or drawn by shares; None without classes."""
    if num_class is not None:
        return np.full(num_sessions, num_class, dtype=np.int16)
    return draw_shares(classes, num_sessions, seed=seed, replication=replication) if classes else None


def _starts(
    arrivals: Arrivals, spec: WorkloadSpec, count: int | None, suffix: str, seed: int, replication: int
) -> NDArray[np.float64]:
    duration = spec.duration if count is None else None
    times = start_times(
        arrivals, seed=seed, replication=replication, num_requests=count, duration=duration, suffix=suffix
    )
    # With several sources, one may have no arrivals.
    return times if suffix else some(times)


@dataclass(frozen=True, slots=True, kw_only=True)
class Agents:
    """Who makes which call; rows are ordered by task, and a call of the main agent precedes the sub-agents it starts.

    Agents are numbered: the main agents by task, then the sub-agents in the order of their calls.

    Attributes:
        task: Number of the task of each call, shape [R].
        agent: Number of the agent that makes it, shape [R].
        step: Position among the calls of its agent, from 0, shape [R].
        started_by: For each agent, the row of the call that starts it, `NONE` for main agents, shape [A].
        is_fork: For each agent, whether it begins with the context of that call, shape [A].
    """

    task: Integers
    agent: Integers
    step: Integers
    started_by: Integers
    is_fork: NDArray[np.bool_]

    @property
    def num_tasks(self) -> int:
        """Number of tasks."""
        return int(self.task[-1]) + 1 if len(self.task) else 0

    @property
    def rows(self) -> tuple[Integers, Integers]:
        """The calls of all agents, agent by agent and step by step, shape [R], and the first index of each agent."""
        order = np.argsort(self.agent, kind="stable")  # an agent's calls stand in their order
        counts = np.bincount(self.agent, minlength=len(self.started_by))
        return order, np.cumsum(counts) - counts

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


def draw_tasks(
    spec: WorkloadSpec,
    agents: AgentsSpec,
    *,
    seed: int,
    replication: int,
    base_path: Path | None,
    num_class: int | None = None,
) -> RequestSpecs:
    """Return the calls of tasks; rows are ordered by task, and these by their beginning.

    Args:
        spec: What to draw; ``num_requests`` (the last task is cut there) or ``duration`` limits it.
        agents: The kind of tasks.
        seed: Seed of the run.
        replication: Replication of the run.
        base_path: Folder in which relative paths are looked up before the working folder.
        num_class: The class of the tasks, with its own arrivals and streams; None: there are no classes.

    Raises:
        ScenarioError: Nothing arrives within the duration, and there are no classes.
    """
    drawn: dict[str, Any] = {"seed": seed, "replication": replication}
    classes = spec.classes or ()
    own = None if num_class is None else classes[num_class]
    suffix = "" if own is None else f".{own.name}"
    arrivals = spec.arrivals if own is None else own.arrivals
    assert arrivals is not None, "checked where the workload was read"
    starting = slowed(arrivals, mean_calls(agents, base_path))
    if isinstance(arrivals, ClosedLoopArrivals) or spec.duration is None:
        made = draw_agents(agents, base_path=base_path, num_calls=spec.num_requests, suffix=suffix, **drawn)
        starts = start_times(starting, num_requests=made.num_tasks, duration=None, suffix=suffix, **drawn)
    else:
        starts = start_times(starting, num_requests=None, duration=spec.duration, suffix=suffix, **drawn)
        made = draw_agents(agents, base_path=base_path, num_tasks=len(starts), suffix=suffix, **drawn)
    # With several sources, one may have no arrivals.
    starts = starts if own is not None else some(starts)
    num_calls = len(made.task)
    new_tokens, output_tokens = draw_own_lengths(spec, own, base_path=base_path, num_requests=num_calls, **drawn)
    class_of = None if num_class is None else np.full(num_calls, num_class, dtype=np.int16)
    thinking = draw_thinking(spec, class_of, num_calls, base_path=base_path, **drawn)
    if thinking is not None:
        output_tokens = output_tokens + thinking
    max_tokens = asked_tokens(spec.max_tokens, output_tokens)
    answers = generated = np.where(max_tokens < 0, output_tokens, np.minimum(output_tokens, max_tokens))
    if thinking is not None:
        answers = np.maximum(generated - thinking, 0)
    of_task = None if class_of is None else class_of[: made.num_tasks]
    beginnings = draw_beginnings(spec, made.num_tasks, class_of=of_task, suffix=suffix, **drawn)
    dependencies = dependencies_of_agents(made)
    prompts, prefixes = agent_contexts(
        made, new_tokens, answers, agents.context_growth, beginnings, None if thinking is None else generated
    )
    think_time = draw_tool_times(agents, made, dependencies, suffix=suffix, **drawn)
    is_root = dependencies.num_parents == 0
    if isinstance(arrivals, ClosedLoopArrivals):
        think_time[is_root] = draw_pauses(arrivals, made.num_tasks, suffix=suffix, **drawn)
    return RequestSpecs(
        arrival_time=np.where(is_root, starts[made.task], np.nan),
        prompt_tokens=prompts,
        output_tokens=output_tokens,
        max_tokens=max_tokens,
        think_time=think_time,
        concurrency=getattr(arrivals, "concurrency", None),
        ramp_up=getattr(arrivals, "ramp_up", None),
        is_stationary=isinstance(arrivals, STATIONARY),
        offered_rate=offered_rate(arrivals, starts, num_calls) if num_calls else 0.0,
        classes=classes,
        request_class=class_of,
        priority=None if class_of is None else priorities(classes, class_of),
        prefixes=prefixes,
        session=made.task,
        turn=dependencies.depths(),
        dependencies=dependencies,
        thinking_tokens=thinking,
    ).within(agents.max_execution_time)


def draw_agents(
    spec: AgentsSpec,
    *,
    seed: int,
    replication: int,
    base_path: Path | None,
    num_calls: int | None = None,
    num_tasks: int | None = None,
    suffix: str = "",
) -> Agents:
    """Return the agents of ``num_tasks`` tasks, or of the first ``num_calls`` calls (the last task is cut there).

    The streams are ``agent_calls``, ``subagent_starts``, ``subagents``, ``subagent_calls`` and ``forks``, each followed
    by ``suffix``.
    """
    drawn: dict[str, Any] = {"seed": seed, "replication": replication, "base_path": base_path}
    most = num_calls if num_tasks is None else num_tasks
    calls = _lengths(spec, "calls", f"agent_calls{suffix}", most or 0, **drawn)
    if num_calls is not None:
        # Every task has at least its main agent's calls: no more tasks than that can begin.
        calls = calls[: int(np.searchsorted(np.cumsum(calls), num_calls)) + 1]
    num_main = int(calls.sum())
    is_last = np.zeros(num_main, dtype=bool)
    is_last[np.cumsum(calls) - 1] = True
    starts = rng.stream(seed, f"subagent_starts{suffix}", replication).random(num_main) < spec.subagent_share
    fan_out = np.where(starts & ~is_last, _lengths(spec, "subagents", f"subagents{suffix}", num_main, **drawn), 0)
    num_subagents = int(fan_out.sum())
    own_calls = _lengths(spec, "subagent_calls", f"subagent_calls{suffix}", num_subagents, **drawn)
    is_fork = rng.stream(seed, f"forks{suffix}", replication).random(num_subagents) < spec.fork_share
    made = _placed(calls, fan_out, own_calls, is_fork)
    return made if num_calls is None else made.first(num_calls)


def _lengths(
    spec: AgentsSpec, part: str, stream: str, count: int, *, seed: int, replication: int, base_path: Path | None
) -> Integers:
    return length_distribution(getattr(spec, part), base_path).sample(rng.stream(seed, stream, replication), count)


def _placed(calls: Integers, fan_out: Integers, own_calls: Integers, is_fork: NDArray[np.bool_]) -> Agents:
    """Return the calls in their rows.

    Args:
        calls: Calls of each main agent.
        fan_out: Sub-agents that each call of the main agents starts.
        own_calls: Calls of each sub-agent.
        is_fork: Whether each sub-agent is a fork.
    """
    num_tasks, num_main, num_subagents = len(calls), len(fan_out), len(own_calls)
    main_task = np.repeat(np.arange(num_tasks), calls)
    starter = np.repeat(np.arange(num_main), fan_out)  # of each sub-agent, as a call of the main agents
    behind = np.bincount(starter, weights=own_calls, minlength=num_main).astype(np.int64)
    main_row = np.arange(num_main) + np.cumsum(behind) - behind
    own_before = np.cumsum(own_calls) - own_calls
    own_row = np.repeat(starter + 1, own_calls) + np.arange(int(own_calls.sum()))
    num_rows = num_main + len(own_row)
    task, agent, step = (np.empty(num_rows, dtype=np.int64) for _ in range(3))
    task[main_row], agent[main_row], step[main_row] = main_task, main_task, positions(calls)
    task[own_row] = np.repeat(main_task[starter], own_calls)
    agent[own_row] = num_tasks + np.repeat(np.arange(num_subagents), own_calls)
    step[own_row] = np.arange(len(own_row)) - np.repeat(own_before, own_calls)
    return Agents(
        task=task,
        agent=agent,
        step=step,
        started_by=np.concatenate([np.full(num_tasks, NONE), main_row[starter]]),
        is_fork=np.concatenate([np.zeros(num_tasks, dtype=bool), is_fork]),
    )


def dependencies_of_agents(agents: Agents) -> Dependencies:
    """Return what each call waits for.

    An agent's first call waits for the one that starts it, each further call for the one before it or, if that one has
    started sub-agents, for the last calls of all of them.
    """
    num_rows = len(agents.task)
    order, begins = agents.rows
    before = np.full(num_rows, NONE, dtype=np.int64)
    before[order[1:]] = order[:-1]
    is_begin = agents.step == 0
    before[is_begin] = agents.started_by[agents.agent[is_begin]]
    num_agents = len(agents.started_by)
    last_row = order[np.append(begins[1:], num_rows) - 1]
    is_subagent = agents.started_by >= 0
    # For each call that starts sub-agents: the next call of the same agent, unless the draw was cut before it.
    next_row = np.full(num_rows, NONE, dtype=np.int64)
    follows = ~is_begin
    next_row[before[follows]] = np.flatnonzero(follows)
    joined = next_row[agents.started_by[is_subagent]]
    parent = last_row[np.arange(num_agents)[is_subagent]][joined >= 0]
    child = joined[joined >= 0]
    waits_alone = before >= 0
    waits_alone[child] = False
    children = np.concatenate([np.flatnonzero(waits_alone), child])
    parents = np.concatenate([before[waits_alone], parent])
    by_child = np.argsort(children, kind="stable")
    return from_counts(np.bincount(children, minlength=num_rows), parents[by_child])


def draw_tool_times(
    spec: AgentsSpec, agents: Agents, dependencies: Dependencies, *, seed: int, replication: int, suffix: str = ""
) -> NDArray[np.float64]:
    """Return the seconds that a tool runs before each call, from the stream ``tool_time`` followed by ``suffix``.

    0 for the first call of an agent, and for calls that wait for sub-agents.
    """
    num_rows = len(agents.task)
    times = np.full(num_rows, spec.tool_time)
    if spec.tool_time_cv:
        quantile = unit_quantile(WeibullArrivals(rate=1.0, cv=spec.tool_time_cv))
        times = times * quantile(rng.stream(seed, f"tool_time{suffix}", replication).random(num_rows))
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
        agents: Who makes which call.
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
    grown = new_tokens + kept + _reported(agents, output_tokens)
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
    is_whole = growth == 1.0 and generated_tokens is None
    ends = prompts + (output_tokens if generated_tokens is None else generated_tokens)
    return prompts, _segments(agents, prompts, ends, is_whole, beginnings)


def _reported(agents: Agents, output_tokens: Integers) -> Integers:
    """Return the tokens of the last answers of the sub-agents that each call starts, shape [R]."""
    order, begins = agents.rows
    last_row = order[np.append(begins[1:], len(order)) - 1]
    subagents = np.flatnonzero(agents.started_by >= 0)
    return np.bincount(
        agents.started_by[subagents], weights=output_tokens[last_row[subagents]], minlength=len(order)
    ).astype(np.int64)


def _segments(
    agents: Agents, prompts: Integers, ends: Integers, is_whole: bool, beginnings: Beginnings | None
) -> PrefixSegments:
    """Return the segments of every call: the system prompt, the calls that its context holds, and itself.

    If only part of an answer is kept, or it follows thinking, a call's segment ends with its prompt, and its answer is
    a separate segment.
    """
    num_rows = len(prompts)
    order, begins = agents.rows
    starter = np.where(agents.is_fork, agents.started_by, NONE)[agents.agent]
    inherited = np.where(starter >= 0, agents.step[starter] + 1, 0)
    has_system = np.zeros(num_rows, dtype=np.int64)
    num_groups = 0
    if beginnings is not None:
        num_groups = beginnings.num_groups
        has_system[beginnings.group[agents.task] >= 0] = 1
    own = agents.step + 1
    offsets = np.concatenate([[0], np.cumsum(has_system + inherited + own + (not is_whole))])
    segments, segment_ends = (np.empty(offsets[-1], dtype=np.int64) for _ in range(2))
    main_ends = ends if is_whole else prompts

    def fill(first: Integers, agent: Integers, counts: Integers) -> None:
        """Enter the first calls of an agent into the segments of each row."""
        place = positions(counts)
        earlier = order[place + np.repeat(begins[agent], counts)]
        at = place + np.repeat(first, counts)
        segments[at], segment_ends[at] = earlier + num_groups, main_ends[earlier]

    fill(offsets[:-1] + has_system, agents.agent[starter], inherited)
    fill(offsets[:-1] + has_system + inherited, agents.agent, own)
    if not is_whole:
        last = offsets[1:] - 1
        segments[last], segment_ends[last] = num_groups + num_rows + np.arange(num_rows), ends
    if beginnings is not None:
        rows = np.flatnonzero(has_system)
        first, task = offsets[:-1][rows], agents.task[rows]
        segments[first], segment_ends[first] = beginnings.group[task], beginnings.tokens[task]
    return PrefixSegments(offsets=offsets, segments=segments, ends=segment_ends)
