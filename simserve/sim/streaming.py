"""What the client sees of a run: when each event left the API server, and when it crossed the network.

Events of one replica (`simserve.sim.events`) queue at its API server, first come, first served:
``D_i = max(A_i, D_(i-1)) + cost``, unrolled with a running maximum. They are taken up some tens of thousands at a time,
so that memory follows the requests of a run, and not their tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from simserve.engine.histogram import NUM_BINS, Histogram, bins_of
from simserve.sim.events import Clock, Events, Floats, Integers, events_of
from simserve.sim.records import COMPLETED, RequestRecords
from simserve.sim.streaming_spec import StreamingSpec

EVENTS_AT_ONCE = 14_000
"""Enough to amortise numpy, few enough that its arrays stay in cache and are not given back to the system each time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTotals:
    """What was sent.

    Attributes:
        num_events: Events of the requests that replicas answered.
        num_tokens: Their tokens.
        busy_seconds: Seconds of API-server cores.
        delay_seconds: Seconds that events waited for their core, summed.
        busiest_share: Share of the run in which the cores of the busiest replica were at work.
    """

    num_events: int
    num_tokens: int
    busy_seconds: float
    delay_seconds: float
    busiest_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientView:
    """A run as the client sees it: its records, its gaps between events, and what was sent."""

    records: RequestRecords
    itl: Histogram
    totals: StreamTotals


def client_view(
    spec: StreamingSpec,
    records: RequestRecords,
    clocks: Mapping[int, Floats],
    end_time: float,
    pace: Integers | None = None,
    way_back: Floats | None = None,
) -> ClientView:
    """Return the run as the client sees it.

    Args:
        spec: How tokens are sent.
        records: As the engine saw it.
        clocks: Of each replica the leaps with decodes: start, steps, first, increment and how many decode, shape
            [5, leaps].
        end_time: Of the run, seconds.
        pace: Speculative decoding: parts of a token that each request gains a step (`simserve.engine.progress`).
        way_back: Seconds from the region of its replica to each client, beside the network; None: no regions.
    """
    first, finish = records.first_token_time.copy(), records.finish_time.copy()
    itl_max = np.where(records.replica_id < 0, records.itl_max, np.nan)
    itl = Histogram()
    num_events, delay, busiest, cost = 0, 0.0, 0.0, spec.cost_per_event / spec.api_servers
    completed = records.status == COMPLETED
    for replica in np.unique(records.replica_id[completed]).tolist():
        if replica < 0:
            # Neither the API nor the cache goes through the API server of a replica.
            continue
        own = np.flatnonzero(completed & (records.replica_id == replica))
        clock = Clock.of(clocks.get(replica))
        events = events_of(records, own, spec, clock, None if pace is None else pace[own])
        sent = _sent(events, clock, cost)
        count = int(events.counts.sum())
        num_events += count
        delay += sent.delay - cost * count
        # A core that falls behind is at work until its last event is sent.
        until = max(end_time, float(sent.last.max()))
        busiest = max(busiest, cost * count / until if until > 0 else 0.0)
        first[own], finish[own] = sent.first, sent.last
        itl_max[own] = np.where(events.counts > 1, sent.largest, np.nan)
        if count == len(own):
            continue
        itl.add_counted(
            sent.gaps,
            float((sent.last - sent.first).sum()),
            sent.squares,
            sent.smallest,
            sent.largest.max(),
        )
    latency = spec.network_latency + (0.0 if way_back is None else way_back)
    # Whoever got no answer still hears of it over the network.
    seen = replace(records, first_token_time=first + latency, finish_time=finish + latency, itl_max=itl_max)
    totals = StreamTotals(
        num_events=num_events,
        num_tokens=int(records.output_tokens[completed & (records.replica_id >= 0)].sum()),
        busy_seconds=spec.cost_per_event * num_events,
        delay_seconds=max(delay, 0.0),
        busiest_share=busiest,
    )
    return ClientView(records=seen, itl=itl, totals=totals)


@dataclass(slots=True)
class Sent:
    """What has been sent of the answers of one replica so far.

    Attributes:
        first: When the first event of each had left the server, seconds; NaN: none has. Shape [answers], as the next.
        last: When the last one had, likewise.
        largest: Largest gap between two of them, seconds; 0: there is none.
        gaps: How many gaps are in each bin of a histogram.
        squares: Sum of their squares, seconds^2.
        smallest: Smallest gap, inf: there is none.
        delay: Seconds that events spent at the server.
        num_sent: Events.
        free: When the server would have been free all along, in the unrolled recursion.
    """

    first: Floats
    last: Floats
    largest: Floats
    gaps: Floats
    squares: float = 0.0
    smallest: float = np.inf
    delay: float = 0.0
    num_sent: int = 0
    free: float = -np.inf

    @classmethod
    def nothing(cls, count: int) -> Sent:
        """Return what has been sent of so many answers before the first event."""
        first, last = np.full((2, count), np.nan)
        return cls(first, last, np.zeros(count), np.zeros(NUM_BINS))


def _sent(events: Events, clock: Clock, cost: float) -> Sent:
    """Send all events of a replica over a core that takes ``cost`` seconds for one."""
    sent = Sent.nothing(len(events.counts))
    marks = np.cumsum(clock.steps * clock.decoding) // (EVENTS_AT_ONCE * events.stride)
    ends = np.append(np.flatnonzero(np.diff(marks)) + 1, len(clock.steps)) if len(clock.steps) else np.array([0])
    in_order = np.argsort(events.begin, kind="stable")
    in_order = in_order[events.runs[in_order] > 0]
    begins = events.begin[in_order]
    behind = events.begin + events.stride * events.runs
    rows = np.array([], dtype=np.int64)
    leap = num_begun = num_others = step = 0
    for end in ends.tolist():
        times = clock.times_between(leap, end)
        until = step + len(times)
        begun = int(np.searchsorted(begins, until, side="left"))
        others = len(events.time)
        if end < len(clock.steps):
            others = int(np.searchsorted(events.time, times[-1], side="right"))
        rows = np.sort(np.concatenate([rows[behind[rows] > step], in_order[num_begun:begun]]))
        _send_some(sent, events, slice(num_others, others), rows, times, step, cost)
        leap, num_begun, num_others, step = end, begun, others, until
    return sent


def _send_some(
    sent: Sent, events: Events, others: slice, rows: Integers, times: Floats, step: int, cost: float
) -> None:
    """Send what is there in some leaps: the parts of runs in them, and other events.

    Args:
        sent: What was sent before.
        events: All of the replica.
        others: Which of those that are in no run.
        rows: Answers that may have a part of their run here, ascending.
        times: When the steps of the leaps ended.
        step: The first of them.
        cost: Seconds an event.
    """
    time, owner, is_before = events.time[others], events.owner[others], events.is_before[others]
    if len(owner):
        rows = np.union1d(rows, owner)
    # Answer by answer: others before its run, its run, others behind it.
    of_row = rows.searchsorted(owner)
    num_before = np.bincount(of_row[is_before], minlength=len(rows))
    begin, runs, stride = events.begin[rows], events.runs[rows], events.stride
    skipped = np.minimum(-(-np.maximum(step - begin, 0) // stride), runs)
    here = np.minimum(-(-np.maximum(step + len(times) - begin, 0) // stride), runs) - skipped
    counts = here + np.bincount(of_row, minlength=len(rows))
    starts = counts.cumsum() - counts
    total = int(counts.sum())
    if not total:
        return
    at = np.arange(0, stride * total, stride)
    at += (begin - step + stride * (skipped - starts - num_before)).repeat(counts)
    instants = times
    if len(time):
        instants = np.unique(np.concatenate([times, time]))
        # Others have places of their own.
        by_row = of_row.argsort(kind="stable")
        row = of_row[by_row]
        place = starts[row] + np.arange(len(row)) - row.searchsorted(row) + np.where(is_before[by_row], 0, here[row])
        at.clip(0, max(len(times) - 1, 0), out=at)
        at = instants.searchsorted(times)[at] if len(times) else at
        at[place] = instants.searchsorted(time[by_row])
    # Of a few bytes, numbers are sorted in time that follows their count.
    order = at.astype(np.uint16 if len(instants) <= 65_536 else np.int64).argsort(kind="stable")
    when = np.empty(total)
    when[order] = _pass_server(sent, instants, np.bincount(at, minlength=len(instants)), cost)
    is_here = counts > 0
    _note_gaps(sent, rows[is_here], starts[is_here], when)


def _pass_server(sent: Sent, instants: Floats, counts: Integers, cost: float) -> Floats:
    """Return when events have left the server, ``counts`` of which were ready at each of some instants, ascending."""
    place = np.arange(sent.num_sent, sent.num_sent + int(counts.sum()) + 1, dtype=np.float64)
    place *= cost
    first = np.cumsum(counts) - counts
    # Of those at one instant, the first has the least of `cost` times its place behind it.
    free = instants - place[first]
    free[0] = max(free[0], sent.free)
    np.maximum.accumulate(free, out=free)
    # Each waits for the server, and for those before it at its instant.
    waited = counts * (free - (instants - place[first])) + cost * (counts * (counts + 1) * 0.5)
    sent.delay += float(waited.sum())
    sent.free, sent.num_sent = float(free[-1]), sent.num_sent + len(place) - 1
    left = np.repeat(free, counts)
    left += place[1:]
    return left


def _note_gaps(sent: Sent, rows: Integers, starts: Integers, when: Floats) -> None:
    """Note when some events of answers left the server, answer by answer, and the gaps before each."""
    gaps = np.empty(len(when))
    np.subtract(when[1:], when[:-1], out=gaps[1:])
    gaps[starts] = when[starts] - sent.last[rows]
    is_new = np.isnan(sent.first[rows])
    new = starts[is_new]
    sent.first[rows[is_new]] = when[new]
    sent.last[rows] = when[np.append(starts[1:], len(when)) - 1]
    gaps[new] = np.inf
    sent.smallest = min(sent.smallest, float(gaps.min()))
    # No gap comes before a first event.
    gaps[new] = 0.0
    sent.gaps += np.bincount(bins_of(gaps), minlength=NUM_BINS)
    sent.gaps[0] -= len(new)
    sent.largest[rows] = np.maximum(sent.largest[rows], np.maximum.reduceat(gaps, starts))
    gaps *= gaps
    sent.squares += float(gaps.sum())


def joined(clocks: Mapping[int, Sequence[Floats]] | None) -> dict[int, Floats]:
    """Return the clocks that a recorder kept in pieces, each in one; those without a leap are left out."""
    return {replica: np.concatenate(pieces, axis=1) for replica, pieces in (clocks or {}).items() if len(pieces)}
