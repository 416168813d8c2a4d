"""Conversations drawn: how many turns, what each prompt holds of those before it, and how long people think.

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
    Arrivals,
    ClosedLoopArrivals,
    RampArrivals,
    StepArrivals,
    WeibullArrivals,
)
from simserve.workload.arrivals import unit_quantile
from simserve.workload.beginnings import Beginnings
from simserve.workload.lengths import length_distribution
from simserve.workload.session_spec import SessionsSpec

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


def draw_shape(
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
    turn = _positions(turns) + 1
    rows = slice(0, num_requests)
    return Shape(
        session=np.repeat(np.repeat(np.arange(len(turns)), turns), calls)[rows],
        turn=np.repeat(turn, calls)[rows],
        call=_positions(calls)[rows],
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


def _positions(counts: Integers) -> Integers:
    """Return 0 .. n - 1 for each n of ``counts``, one after another."""
    return np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
