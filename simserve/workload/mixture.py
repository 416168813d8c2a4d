"""Traffic of several kinds on one clock: conversations, tasks, single requests, and clients of closed loops.

Each kind is drawn separately, from its own streams; here their rows are merged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.workload.arrival_spec import STATIONARY, AllAtOnceArrivals, Arrivals, ClosedLoopArrivals
from simserve.workload.classes import draw_beginnings, draw_rows, with_beginnings, with_thinking
from simserve.workload.conversations import draw_dialogues, draw_pauses
from simserve.workload.dependencies import Dependencies, from_counts
from simserve.workload.distributions import Draws, asked_tokens, offered_rate, some
from simserve.workload.prefixes import PrefixSegments, joined, own_prefixes
from simserve.workload.requests import OPEN, ClientLoop, RequestSpecs
from simserve.workload.spec import WorkloadSpec

_FEWEST_DRAWN, _ROUNDS_DRAWN = 1000, 4
"""Requests drawn at first for a closed loop: at least the first number, and at least the second per client."""


def draw_mixture(spec: WorkloadSpec, draws: Draws, num_drawn: int | None = None) -> RequestSpecs:
    """Return the requests of a workload whose classes are not all of one kind.

    Open arrivals come first, in order of their start times; the requests of each closed loop follow.

    Args:
        num_drawn: Number of requests drawn for the clients of each closed loop; None: some rounds of them all.

    Raises:
        ScenarioError: No request arrives within the duration.
    """
    classes = spec.classes or ()
    numbers: list[int | None] = [number for number, each in enumerate(classes) if each.arrivals is not None]
    if any(each.share is not None for each in classes):
        numbers.insert(0, None)
    waiting: list[RequestSpecs] = []
    coming: list[RequestSpecs] = []
    for number in numbers:
        arrivals = _arrivals(spec, number)
        part = _part(_bounded(spec, number, arrivals, num_drawn), number, draws)
        if len(part):
            (waiting if isinstance(arrivals, ClosedLoopArrivals) else coming).append(part)
    specs = _together(spec, [*coming, *waiting], [OPEN] * len(coming) + list(range(len(waiting))))
    some(specs.arrival_time)
    sources = [_arrivals(spec, number) for number in numbers]
    rates = [each.rate for each in sources if isinstance(each, STATIONARY)]
    is_steady, rate = len(rates) == len(sources), sum(rates)
    if not is_steady:  # over the time of the last open arrival; NaN if answers set the pace
        last = float(np.nanmax(specs.arrival_time, initial=0.0))
        rate = float("nan") if waiting or not last else len(specs) / last
    return replace(
        specs,
        concurrency=sum(part.concurrency or 0 for part in waiting) or None,
        loops=tuple(ClientLoop(part.concurrency or 0, part.ramp_up) for part in waiting),
        closes_at=spec.duration if waiting else None,
        is_stationary=is_steady,
        offered_rate=rate,
    )


def _arrivals(spec: WorkloadSpec, number: int | None) -> Arrivals:
    arrivals = spec.arrivals if number is None else (spec.classes or ())[number].arrivals
    assert arrivals is not None, "checked where the workload was read"
    return arrivals


def _bounded(spec: WorkloadSpec, number: int | None, arrivals: Arrivals, num_drawn: int | None) -> WorkloadSpec:
    """Return the workload limited for one of its sources: by a number of requests if no duration can end it."""
    count = None
    if isinstance(arrivals, ClosedLoopArrivals):
        count = num_drawn or max(_FEWEST_DRAWN, _ROUNDS_DRAWN * arrivals.concurrency)
    elif isinstance(arrivals, AllAtOnceArrivals) and number is not None:
        count = (spec.classes or ())[number].num_requests
    return spec if count is None else spec.of_length(count)


def _part(spec: WorkloadSpec, number: int | None, draws: Draws) -> RequestSpecs:
    """Return the requests of one kind as turns of conversations; a single request is a conversation of one turn."""
    each = None if number is None else (spec.classes or ())[number]
    kind = spec.sessions if each is None else each.agents or each.sessions
    if kind is not None:
        return draw_dialogues(spec, kind, draws, number)
    arrivals, own = _arrivals(spec, number), draws if each is None else draws.own(each.name)
    rows = draw_rows(spec, number, draws)
    count = len(rows.arrival_time)
    specs = RequestSpecs.arriving(
        arrivals,
        spec.classes or (),
        **rows._asdict(),
        max_tokens=asked_tokens(spec.max_tokens, rows.output_tokens),
        think_time=draw_pauses(arrivals, count, own) if isinstance(arrivals, ClosedLoopArrivals) else np.zeros(count),
        offered_rate=offered_rate(arrivals, rows.arrival_time) if count else 0.0,
        session=-1 - np.arange(count, dtype=np.int64),
        turn=np.ones(count, dtype=np.int64),
    )
    specs = with_thinking(specs, spec, own)
    return with_beginnings(specs, draw_beginnings(spec, count, own, rows.request_class))


def _together(spec: WorkloadSpec, parts: Sequence[RequestSpecs], loops: Sequence[int]) -> RequestSpecs:
    """Return the rows of all parts: open arrivals in order of their start times, then those of the closed loops."""
    columns: dict[str, Any] = dict.fromkeys(("arrival_time", "think_time"), np.zeros(0))
    columns |= dict.fromkeys(("prompt_tokens", "output_tokens", "max_tokens"), np.zeros(0, dtype=np.int64))
    for each in fields(RequestSpecs):
        values = [getattr(part, each.name) for part in parts]
        if values and isinstance(values[0], np.ndarray) and each.name != "time_limit":
            columns[each.name] = np.concatenate(values)
    num_conversations, num_single = 0, 0
    sessions = []
    for part in parts:
        assert part.session is not None
        session = part.session
        sessions.append(np.where(session < 0, session - num_single, session + num_conversations))
        num_conversations += max(int(session.max(initial=-1)) + 1, 0)
        num_single += int(np.count_nonzero(session < 0))
    columns["time_limit"] = None
    if any(part.time_limit is not None for part in parts):
        limits = (np.full(len(part), np.inf) if part.time_limit is None else part.time_limit for part in parts)
        columns["time_limit"] = np.concatenate([*limits])
    columns["session"] = np.concatenate([*sessions, np.zeros(0, dtype=np.int64)])
    columns["loop"] = np.repeat(np.array(loops, dtype=np.int8), [len(part) for part in parts])
    together = RequestSpecs(
        **columns,
        concurrency=None,
        is_stationary=False,
        offered_rate=float("nan"),
        classes=spec.classes or (),
        prefixes=_prefixes(spec, parts),
        dependencies=_dependencies(parts),
    )
    return together.without_answers().of_rows(_by_beginning(together, spec.num_requests))


def _prefixes(spec: WorkloadSpec, parts: Sequence[RequestSpecs]) -> PrefixSegments | None:
    if all(part.prefixes is None for part in parts):
        return None
    blocks = [spec.shared_prefix, *(each.shared_prefix for each in spec.classes or ())]
    num_shared = sum(block.num_groups for block in blocks if block is not None)
    segments = [part.prefixes or own_prefixes(part.prompt_tokens + part.output_tokens, num_shared) for part in parts]
    return joined(segments, num_shared)


def _dependencies(parts: Sequence[RequestSpecs]) -> Dependencies | None:
    """Return what the calls of tasks wait for (single requests wait for nothing); None if there are no tasks."""
    if all(part.dependencies is None for part in parts):
        return None
    counts, parents, num_before = [], [], 0
    for part in parts:
        graph = part.dependencies
        counts.append(np.zeros(len(part), dtype=np.int64) if graph is None else graph.num_parents)
        parents.append(np.zeros(0, dtype=np.int64) if graph is None else graph.parents + num_before)
        num_before += len(part)
    return from_counts(np.concatenate(counts), np.concatenate(parents))


def _by_beginning(specs: RequestSpecs, num_requests: int | None) -> NDArray[np.int64]:
    """Return the rows in their final order; of open arrivals alone, only the first ``num_requests`` if given."""
    assert specs.loop is not None
    is_open = specs.loop == OPEN
    times = specs.arrival_time[is_open]
    # A later turn takes the time of the first turn, which is above it.
    first = np.flatnonzero(~np.isnan(times))
    starts = times[first[np.searchsorted(first, np.arange(len(times)), side="right") - 1]]
    order = np.argsort(starts, kind="stable")[: None if (~is_open).any() else num_requests]
    return np.concatenate([order, np.flatnonzero(~is_open)])
