"""Conversations drawn: turns, what each prompt holds of those before it, thinking times, and their requests.

All chance is drawn here, from named streams; when a turn is sent is known only when the one before it is answered.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

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
from simserve.workload.arrivals import unit_quantile
from simserve.workload.class_spec import ClassSpec
from simserve.workload.classes import (
    Beginnings,
    asked_tokens,
    draw_beginnings,
    draw_lengths,
    draw_own_lengths,
    draw_shares,
    draw_thinking,
    offered_rate,
    priorities,
    some,
    start_times,
)
from simserve.workload.lengths import length_distribution
from simserve.workload.requests import RequestSpecs
from simserve.workload.session_spec import SessionsSpec
from simserve.workload.spec import WorkloadSpec

if TYPE_CHECKING:
    from simserve.workload.prefixes import PrefixSegments

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Which request is which turn of which conversation; rows stand by conversation, turn, and call.

    Attributes:
        session: Number of the conversation, shape [R].
        turn: From 1, shape [R].
        call: Position among the requests of its turn, from 0; the first is the main line, shape [R].
    """

    session: Integers
    turn: Integers
    call: Integers

    @property
    def num_sessions(self) -> int:
        """Conversations."""
        return int(self.session[-1]) + 1 if len(self.session) else 0


def mean_requests(spec: SessionsSpec, base_path: Path | None) -> float:
    """Return the mean number of requests of a conversation."""
    assert spec.turns is not None, "checked where the workload was read"
    return length_distribution(spec.turns, base_path).mean * length_distribution(spec.parallel_calls, base_path).mean


def slowed(arrivals: Arrivals, factor: float) -> Arrivals:
    """Return arrivals whose rates are divided by ``factor``; what has no rate stays."""
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
    """Return the turns of so many conversations, or of the first that hold ``num_requests`` (the last is cut there).

    ``suffix`` is that of the streams ``turns`` and ``parallel_calls``.
    """
    assert spec.turns is not None, "checked where the workload was read"
    turns_of = length_distribution(spec.turns, base_path)
    calls_of = length_distribution(spec.parallel_calls, base_path)
    most = num_requests if num_sessions is None else num_sessions
    turns = turns_of.sample(rng.stream(seed, f"turns{suffix}", replication), most or 0)
    if num_requests is not None:
        # Every turn holds a request at least: no more conversations than that can begin.
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
    """Return the seconds that clients of a closed loop think before each of so many requests, or conversations."""
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

    A turn's prompt is the context and new text. The context of the next turn is the main line's prompt and ``growth``
    of all answers of the turn. The main line's answer is in the cache of whoever gave it; other answers, and one that
    is kept in part or was thought about first, come back as new text.

    Args:
        shape: The conversations.
        new_tokens: New text of each request, shape [R].
        output_tokens: Its answer, shape [R].
        growth: Share of an answer that is kept.
        beginnings: System prompt of each conversation; None: there is none.
        generated_tokens: What each request generates, hidden thinking and answer, shape [R]; None: nobody thinks.

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
    # The turns before: so many of them, from the first one of the conversation on.
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
    """Return the requests of conversations; rows stand by conversation, and these in order of their beginning.

    Args:
        spec: What to draw; ``num_requests`` or ``duration`` says how many.
        sessions: What the conversations are like.
        seed: Of the run.
        replication: Of the run.
        base_path: Folder that relative paths are tried against before the working folder.
        num_class: The class whose conversations they are, with arrivals and streams of its own; None: those that share
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
    """Return the class of each conversation: the one asked for, or drawn by shares; None without classes."""
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
    # Of several sources one may be silent.
    return times if suffix else some(times)
