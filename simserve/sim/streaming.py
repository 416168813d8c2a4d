"""What the client sees of a run: when each event was ready, left the API server and crossed the network.

Token j of an answer was ready ``output - j`` decode steps before the one that ended at its finish time, which the clock
of the replica turns into seconds. Most events are therefore a run of steps; the others have times of their own: first
and last tokens outside the steps with decodes, and all events of a request that was preempted, of which only the first
and the last are known and the others are spread evenly between them. With speculative decoding a request gains its pace
in tokens per step, and tokens of one step are one event.

Events of one replica queue at its API server, first come, first served:
``D_i = max(A_i, D_(i-1)) + cost``, unrolled with a running maximum. They are processed some tens of thousands at a
time, so that memory grows with the requests of a run, not with their tokens; compiled code processes them one by one.
The ranks of data-parallel attention have a clock each, and send through the API server of their replica; of
simultaneous events those of the first rank come first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.engine.progress import GRID
from simserve.engine.sending import Sending
from simserve.sim.control import StreamingSpec
from simserve.sim.records import COMPLETED, NUM_BINS, Histogram, RequestRecords, bin_edges, bins_of

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
SendAll = Callable[[Sending], Sending]
Clocks = Mapping[tuple[int, int], Floats]
"""For each replica and rank, the leaps with decodes: start, steps, first, increment, number decoding; [5, leaps]."""
EVENTS_AT_ONCE = 14_000
"""Enough to amortise numpy, few enough that its arrays stay in cache and are not given back to the system each time."""


@dataclass(frozen=True, slots=True)
class Clock:
    """The leaps of a replica that decode, in order; all shape [leaps]."""

    start: Floats  # When each began, seconds.
    steps: Integers  # Steps of each.
    seconds: Floats  # Duration of its first step.
    increment: Floats  # Seconds by which each further step is longer.
    decoding: Floats  # Sequences that decode in a step.
    until: Integers  # Total steps up to the end of each.

    @classmethod
    def of(cls, rows: Floats | None) -> Clock:
        """Return the clock that a recorder kept, shape [5, leaps]; None: no step ever decoded."""
        start, steps, seconds, increment, decoding = np.zeros((5, 0)) if rows is None else rows
        whole = steps.astype(np.int64)
        return cls(start, whole, seconds, increment, decoding, np.cumsum(whole))

    def times(self, steps: Integers) -> Floats:
        """Return when steps ended, counted from 0 over all leaps."""
        leap = np.searchsorted(self.until, steps, side="right")
        return self._ends(leap, steps - (self.until - self.steps)[leap] + 1)

    def times_between(self, first: int, last: int) -> Floats:
        """Return when the steps of the leaps from ``first`` up to ``last``, exclusive, ended."""
        steps = self.steps[first:last]
        leap = np.repeat(np.arange(first, last), steps)
        k = np.arange(1, len(leap) + 1) - np.repeat(np.cumsum(steps) - steps, steps)
        return self._ends(leap, k)

    def _ends(self, leap: Integers, k: Integers) -> Floats:
        times: Floats = self.start[leap] + self.seconds[leap] * k + self.increment[leap] * (k * (k - 1) * 0.5)
        return times


@dataclass(frozen=True, slots=True)
class Drafted:
    """How requests gain tokens under speculative decoding, shape [requests] each."""

    pace: Integers  # Parts of a token per decode step (`simserve.engine.progress`).
    before: Integers
    """Tokens that each has before its first decode step: the one that its prompt brings; 0 if its KV cache came from
    another replica without it (`EngineConfig.has_late_first_token`)."""

    def of(self, own: Integers) -> Drafted:
        """Return those of some requests."""
        return Drafted(self.pace[own], self.before[own])


@dataclass(frozen=True, slots=True)
class Events:
    """The events of some answers of one replica, answers in the order of their requests."""

    counts: Integers  # Events of each, shape [answers].
    begin: Integers  # Clock step at which its run of steps begins, shape [answers].
    runs: Integers  # Number of events in the run, shape [answers].
    stride: int  # Steps from each to the next.
    time: Floats
    """When the other events were ready, ascending, shape [others]; simultaneous ones in the order of answers."""
    owner: Integers  # Which answer each belongs to, shape [others].
    is_before: NDArray[np.bool_]  # Whether it comes before the run, shape [others].
    answer: Integers | None = None
    """Which of its events, from 0, shows each answer's first visible token, shape [answers]; None: the first, since
    no request thinks."""


def events_of(
    records: RequestRecords, own: Integers, spec: StreamingSpec, clock: Clock, drafted: Drafted | None
) -> Events:
    """Return the events of the answers ``own`` of a replica; arguments as for `_events`."""
    events = _events(records, own, spec, clock, drafted)
    if records.thinking_tokens is None:
        return events
    thinking = records.thinking_tokens[own]
    answer = _showing(thinking, spec) if spec.stream else np.zeros_like(thinking)
    if drafted is not None and spec.stream:
        output = records.output_tokens[own]
        owner, tokens, _ = _drafted_tokens(_num_events(output, spec), output, spec, drafted)
        before: Integers = np.bincount(owner[tokens <= thinking[owner]], minlength=len(events.counts))
        answer = before
    return replace(events, answer=np.where(thinking < records.output_tokens[own], answer, events.counts))


def _events(
    records: RequestRecords, own: Integers, spec: StreamingSpec, clock: Clock, drafted: Drafted | None
) -> Events:
    """Return the events, without `Events.answer`.

    Args:
        own: Requests that the replica has completed, ascending.
        spec: How tokens are sent.
        drafted: Speculative decoding: how each of ``own`` gains tokens; None without it.
    """
    output, first, last = records.output_tokens[own], records.first_token_time[own], records.finish_time[own]
    size, sends_first = spec.tokens_per_event, spec.sends_first
    if not spec.stream:
        return _apart(np.ones_like(output), output, output, first, last)
    counts = _num_events(output, spec)
    if not len(clock.steps):
        return _apart(counts, _tokens(counts, output, spec), output, first, last)
    # An answer ends with the last leap of its replica that begins before the answer ends.
    done = clock.until[np.maximum(np.searchsorted(clock.start, last, side="left") - 1, 0)]
    is_whole = records.num_preemptions[own] == 0
    if drafted is not None:
        return _with_drafts(counts, output, spec, first, last, clock, done, is_whole, drafted)
    # The times of the first token, and of the last of all, are known.
    begin = done - output + size - (0 if sends_first else 1)
    runs = np.maximum(counts - (2 if sends_first else 1), 0)
    is_whole &= begin >= 0
    runs[~is_whole] = 0
    has_first = is_whole & (counts > 1) & sends_first
    # Most first tokens come at the end of a step with decodes all the same.
    is_on_clock = has_first & (begin >= size)
    is_on_clock[is_on_clock] = clock.times(begin[is_on_clock] - size) == first[is_on_clock]
    begin[is_on_clock] -= size
    runs[is_on_clock] += 1
    has_first &= ~is_on_clock
    ends_run = is_whole & (begin + size * runs == done - 1) & (counts > 1)
    ends_run[ends_run] = clock.times(done[ends_run] - 1) == last[ends_run]
    runs[ends_run] += 1
    others = [np.flatnonzero(has_first), np.flatnonzero(is_whole & ~ends_run)]
    broken = np.flatnonzero(~is_whole)
    spread = _apart(
        counts[broken], _tokens(counts[broken], output[broken], spec), output[broken], first[broken], last[broken]
    )
    owner = np.concatenate([*others, broken[spread.owner]])
    time = np.concatenate([first[others[0]], last[others[1]], spread.time])
    is_before = np.arange(len(owner)) < len(others[0])
    # Within an answer, the first token comes before the last.
    order = np.lexsort((owner, time))
    return Events(counts, begin, runs, size, time[order], owner[order], is_before[order])


def _num_events(output: Integers, spec: StreamingSpec) -> Integers:
    """Return the events of answers with as many tokens; one for an answer without any, such as an embedding."""
    size = spec.tokens_per_event
    held = 1 if spec.sends_first else size
    return np.asarray(1 + np.maximum(-(-(output - held) // size), 0))


def _showing(thinking: Integers, spec: StreamingSpec) -> Integers:
    """Return which event, from 0, holds the token after so many."""
    size = spec.tokens_per_event
    return np.asarray(-(-thinking // size) if spec.sends_first else thinking // size)


def _tokens(counts: Integers, output: Integers, spec: StreamingSpec) -> Integers:
    """Return the token (from 1) that completes each event, answer by answer."""
    ends, size = np.cumsum(counts), spec.tokens_per_event
    held = 1 if spec.sends_first else size
    tokens: Integers = held + size * (np.arange(int(counts.sum())) - np.repeat(ends - counts, counts))
    tokens[ends - 1] = output
    return tokens


def _apart(counts: Integers, tokens: Integers, output: Integers, first: Floats, last: Floats) -> Events:
    """Return events outside any run, spread evenly between the first token and the last."""
    times = np.repeat(first, counts) + np.repeat(last - first, counts) * (tokens - 1) / np.repeat(
        np.maximum(output - 1, 1), counts
    )
    times[np.cumsum(counts) - 1] = last
    return _in_no_run(counts, times)


def _in_no_run(counts: Integers, times: Floats) -> Events:
    order = np.argsort(times, kind="stable")
    owner = np.repeat(np.arange(len(counts)), counts)[order]
    nothing = np.zeros(len(counts), dtype=np.int64)
    return Events(counts, nothing, nothing, 1, times[order], owner, np.zeros(len(owner), dtype=bool))


def _with_drafts(
    counts: Integers,
    output: Integers,
    spec: StreamingSpec,
    first: Floats,
    last: Floats,
    clock: Clock,
    done: Integers,
    is_whole: NDArray[np.bool_],
    drafted: Drafted,
) -> Events:
    """Return the events of requests that gain several tokens per step."""
    owner, tokens, back = _drafted_tokens(counts, output, spec, drafted)
    counts = np.bincount(owner, minlength=len(counts))
    times = clock.times(np.maximum(done[owner] - back, 1) - 1)
    spread = (tokens == 1) | ~is_whole[owner]
    whose = owner[spread]
    times[spread] = first[whose] + (last - first)[whose] * (tokens[spread] - 1) / np.maximum(output - 1, 1)[whose]
    times[np.cumsum(counts) - 1] = last
    return _in_no_run(counts, times)


def _drafted_tokens(
    counts: Integers, output: Integers, spec: StreamingSpec, drafted: Drafted
) -> tuple[Integers, Integers, Integers]:
    """Return the events of requests that gain several tokens per step; those of one step are one event.

    Returns, for each event, its answer, the token that completes it, and how many steps before the last it is ready.
    """
    tokens, owner = _tokens(counts, output, spec), np.repeat(np.arange(len(counts)), counts)
    pace, before = drafted.pace, drafted.before
    until_end = -(-GRID * (output - before) // pace)
    back = until_end[owner] - -(-GRID * (tokens - before[owner]) // pace[owner])
    is_sent = np.append((owner[1:] != owner[:-1]) | (back[1:] != back[:-1]), True)
    return owner[is_sent], tokens[is_sent], back[is_sent]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTotals:
    """Totals of what was sent."""

    num_events: int  # Events of the requests that replicas answered.
    num_tokens: int  # Their tokens.
    busy_seconds: float  # Busy seconds of API-server cores.
    delay_seconds: float  # Seconds that events waited for their core, summed.
    busiest_share: float  # Share of the run in which the cores of the busiest replica were busy.


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientView:
    """A run as the client sees it: its records, its gaps between events, and totals of what was sent."""

    records: RequestRecords
    itl: Histogram
    totals: StreamTotals


def client_view(
    spec: StreamingSpec,
    records: RequestRecords,
    clocks: Clocks,
    end_time: float,
    rank: Integers,
    drafted: Drafted | None = None,
    way_back: Floats | None = None,
    send_all: SendAll | None = None,
) -> ClientView:
    """Return the run as the client sees it.

    Args:
        spec: How tokens are sent.
        clocks: The leaps with decodes of each scheduler.
        end_time: End of the run, seconds.
        rank: For each request, its scheduler within its replica; empty: all replicas have one.
        drafted: Speculative decoding: how each request gains tokens; None without it.
        way_back: Seconds from the region of its replica to each client, on top of the network; None: no regions.
        send_all: Compiled function that sends the events of a scheduler; None: the run is interpreted.
    """
    first, finish = records.first_token_time.copy(), records.finish_time.copy()
    answer = None if records.answer_time is None else records.answer_time.copy()
    itl_max = np.where(records.replica_id < 0, records.itl_max, np.nan)
    itl = Histogram()
    num_events, num_tokens, delay, busiest, cost = 0, 0, 0.0, 0.0, spec.cost_per_event / spec.api_servers
    for replica, own in _by_replica(records):
        streams, own = _streams(records, own, spec, clocks, replica, rank, drafted)
        if send_all is None or len(streams) > 1:
            sent = _sent(streams, cost)
        else:
            sent = _sent_one_by_one(streams[0], cost, send_all)
        counts = np.concatenate([stream.events.counts for stream in streams])
        count = int(counts.sum())
        num_events += count
        num_tokens += int(records.output_tokens[own].sum())
        delay += sent.delay - cost * count
        # A core that falls behind is busy until its last event is sent.
        until = max(end_time, float(sent.last.max()))
        busiest = max(busiest, cost * count / until if until > 0 else 0.0)
        first[own], finish[own] = sent.first, sent.last
        if answer is not None:
            answer[own] = sent.answer
        itl_max[own] = np.where(counts > 1, sent.largest, np.nan)
        if count == len(own):
            continue
        itl.add_counted(
            sent.gaps, float((sent.last - sent.first).sum()), sent.squares, sent.smallest, sent.largest.max()
        )
    latency = spec.network_latency + (0.0 if way_back is None else way_back)
    # A client that got no answer still learns that over the network.
    seen = replace(
        records,
        first_token_time=first + latency,
        finish_time=finish + latency,
        itl_max=itl_max,
        answer_time=None if answer is None else answer + latency,
    )
    totals = StreamTotals(
        num_events=num_events,
        num_tokens=num_tokens,
        busy_seconds=spec.cost_per_event * num_events,
        delay_seconds=max(delay, 0.0),
        busiest_share=busiest,
    )
    return ClientView(records=seen, itl=itl, totals=totals)


@dataclass(slots=True)
class Sent:
    """What has been sent so far of the answers of one replica."""

    first: Floats
    """When the first event of each left the server, seconds; NaN: none has. Shape [answers], as the next."""
    last: Floats  # When the last one left.
    largest: Floats  # Largest gap between two of them, seconds; 0: there is none.
    answer: Floats  # When the event with its first visible token left.
    awaited: Integers  # Index of that event, from 0, minus the number sent.
    gaps: Floats  # Number of gaps in each bin of a histogram.
    squares: float = 0.0
    """Sum of squared gaps, seconds^2; like ``delay``, added instant by instant, however many are sent at once."""
    smallest: float = np.inf  # Smallest gap; inf: there is none.
    delay: float = 0.0  # Seconds that events spent at the server.
    num_sent: int = 0  # Events sent.
    free: float = -np.inf  # When the server would have been free all along, in the unrolled recursion.

    @classmethod
    def nothing(cls, awaited: Integers) -> Sent:
        """Return the state before the first event of the answers."""
        first, last, answer = np.full((3, len(awaited)), np.nan)
        return cls(first, last, np.zeros(len(awaited)), answer, awaited, np.zeros(NUM_BINS))


class Stream:
    """The events of one rank, processed in order of time.

    Attributes:
        events: All of them.
        clock: Clock of the rank.
        first: Index of its first answer among those of the replica.
        in_order: Answers with a run of steps, ordered by where the run begins.
    """

    def __init__(self, events: Events, clock: Clock, first: int) -> None:
        self.events, self.clock, self.first = events, clock, first
        in_order = np.argsort(events.begin, kind="stable")
        self.in_order = in_order[events.runs[in_order] > 0]
        self._begins = events.begin[self.in_order]
        self._behind = events.begin + events.stride * events.runs
        self._rows = np.array([], dtype=np.int64)
        self._leap = self._step = self._num_begun = self._num_others = 0

    def times_until(self, leap: int) -> Floats:
        """Return when the steps of the unprocessed leaps before ``leap`` ended."""
        return self.clock.times_between(self._leap, leap)

    def take(self, leap: int, times: Floats, until: float) -> tuple[Integers, Integers, Integers, Floats]:
        """Take the events of some leaps: the parts of runs in them, and other events up to a time.

        Args:
            leap: The first leap that is left.
            times: When the steps of the leaps before it ended (`times_until`).
            until: The last time of other events, seconds.

        Returns:
            The answers with events, ascending; their numbers of events; answer by answer the events' places among
            instants; those instants.
        """
        events, step = self.events, self._step
        begun = int(np.searchsorted(self._begins, step + len(times), side="left"))
        others = int(np.searchsorted(events.time, until, side="right"))
        continued = self._rows[self._behind[self._rows] > step]
        rows = self._rows = np.sort(np.concatenate([continued, self.in_order[self._num_begun : begun]]))
        own = slice(self._num_others, others)
        self._leap, self._step, self._num_begun, self._num_others = leap, step + len(times), begun, others
        time, owner, is_before = events.time[own], events.owner[own], events.is_before[own]
        if len(owner):
            rows = np.union1d(rows, owner)
        # Answer by answer: other events before its run, its run, other events after it.
        of_row = rows.searchsorted(owner)
        num_before = np.bincount(of_row[is_before], minlength=len(rows))
        begin, runs, stride = events.begin[rows], events.runs[rows], events.stride
        skipped = np.minimum(-(-np.maximum(step - begin, 0) // stride), runs)
        here = np.minimum(-(-np.maximum(step + len(times) - begin, 0) // stride), runs) - skipped
        counts = here + np.bincount(of_row, minlength=len(rows))
        starts = counts.cumsum() - counts
        at = np.arange(0, stride * int(counts.sum()), stride)
        at += (begin - step + stride * (skipped - starts - num_before)).repeat(counts)
        instants = times
        if len(time):
            instants = np.unique(np.concatenate([times, time]))
            # Other events have places of their own.
            by_row = of_row.argsort(kind="stable")
            row = of_row[by_row]
            place = (
                starts[row] + np.arange(len(row)) - row.searchsorted(row) + np.where(is_before[by_row], 0, here[row])
            )
            at.clip(0, max(len(times) - 1, 0), out=at)
            at = instants.searchsorted(times)[at] if len(times) else at
            at[place] = instants.searchsorted(time[by_row])
        return rows + self.first, counts, at, instants


def _by_replica(records: RequestRecords) -> Iterator[tuple[int, Integers]]:
    """Yield each replica and its answers; those of the API or the cache pass no replica's API server."""
    answered = np.flatnonzero((records.status == COMPLETED) & (records.replica_id >= 0))
    answered = answered[records.replica_id[answered].argsort(kind="stable")]
    replicas, counts = np.unique(records.replica_id[answered], return_counts=True)
    for replica, count, end in zip(replicas.tolist(), counts, counts.cumsum(), strict=True):
        yield replica, answered[end - count : end]


def _streams(
    records: RequestRecords,
    own: Integers,
    spec: StreamingSpec,
    clocks: Clocks,
    replica: int,
    rank: Integers,
    drafted: Drafted | None,
) -> tuple[list[Stream], Integers]:
    """Return the events of the answers of a replica, rank by rank, and those answers in that order."""
    ranks = rank[own] if len(rank) else np.zeros(len(own), dtype=np.int64)
    streams, orders, first = [], [], 0
    for number in np.unique(ranks).tolist():
        answers = own[ranks == number]
        clock = Clock.of(clocks.get((replica, number)))
        events = events_of(records, answers, spec, clock, None if drafted is None else drafted.of(answers))
        streams.append(Stream(events, clock, first))
        orders.append(answers)
        first += len(answers)
    return streams, np.concatenate(orders)


def _sent(streams: Sequence[Stream], cost: float) -> Sent:
    """Send all events of a replica over a core that takes ``cost`` seconds for each."""
    sent = Sent.nothing(np.concatenate([_awaited(stream.events) for stream in streams]))
    for start in [*_pauses(streams), np.inf]:
        # Ranks step together: none of their leaps spans such a time.
        step_runs = [int(np.searchsorted(stream.clock.start, start, side="left")) for stream in streams]
        times = [stream.times_until(leap) for stream, leap in zip(streams, step_runs, strict=True)]
        until = np.inf if start == np.inf else max(float(each[-1]) for each in times if len(each))
        taken = [stream.take(leap, own, until) for stream, leap, own in zip(streams, step_runs, times, strict=True)]
        rows, counts, at, instants = taken[0] if len(taken) == 1 else _together(taken)
        if len(at):
            _send_some(sent, rows, counts, at, instants, cost)
    return sent


def _sent_one_by_one(stream: Stream, cost: float, send_all: SendAll) -> Sent:
    """Send all events of a replica with one scheduler, with compiled code; like `_sent`."""
    events, clock = stream.events, stream.clock
    sent = Sent.nothing(_awaited(events).copy())
    num_answers, num_others = len(events.counts), len(events.owner)
    room = np.empty((3, num_answers + num_others), dtype=np.int64)
    done = send_all(
        Sending(
            start=np.ascontiguousarray(clock.start),
            steps=clock.steps,
            seconds=np.ascontiguousarray(clock.seconds),
            increment=np.ascontiguousarray(clock.increment),
            num_leaps=len(clock.steps),
            in_order=stream.in_order,
            num_runs=len(stream.in_order),
            begin=events.begin,
            runs=events.runs,
            stride=events.stride,
            time=events.time,
            owner=events.owner,
            is_before=events.is_before.astype(np.int64),
            num_others=num_others,
            edges=bin_edges(),
            num_bins=NUM_BINS,
            cost=cost,
            thinks=events.answer is not None,
            active=room[0],
            due=room[1],
            here=room[2],
            first=sent.first,
            last=sent.last,
            answer=sent.answer,
            largest=sent.largest,
            awaited=sent.awaited,
            gaps=sent.gaps,
        )
    )
    sent.squares, sent.smallest, sent.delay = done.squares, done.smallest, done.delay
    return sent


def _pauses(streams: Sequence[Stream]) -> list[float]:
    """Return the starts of leaps before which to send what is ready, so that enough events gather to be efficient."""
    starts = np.concatenate([stream.clock.start for stream in streams])
    numbers = np.concatenate([stream.clock.steps * stream.clock.decoding for stream in streams])
    begins, leap = np.unique(starts, return_inverse=True)
    if not len(begins):
        return []
    stride = max(stream.events.stride for stream in streams)
    marks = np.cumsum(np.bincount(leap, weights=numbers)) // (EVENTS_AT_ONCE * stride)
    pauses: list[float] = begins[np.flatnonzero(np.diff(marks)) + 1].tolist()
    return pauses


def _together(
    taken: Sequence[tuple[Integers, Integers, Integers, Floats]],
) -> tuple[Integers, Integers, Integers, Floats]:
    """Merge what several streams have taken into one."""
    instants = np.unique(np.concatenate([each for _, _, _, each in taken]))
    at = np.concatenate([instants.searchsorted(own)[places] for _, _, places, own in taken])
    return np.concatenate([each[0] for each in taken]), np.concatenate([each[1] for each in taken]), at, instants


def _send_some(sent: Sent, rows: Integers, counts: Integers, at: Integers, instants: Floats, cost: float) -> None:
    """Send some events.

    Args:
        rows: Answers that they belong to, ascending.
        counts: Number of events of each.
        at: When they are ready, answer by answer, as places among ``instants``.
        instants: Seconds, ascending.
        cost: Seconds per event.
    """
    # Numbers of a few bytes are sorted in linear time.
    order = at.astype(np.uint16 if len(instants) <= 65_536 else np.int64).argsort(kind="stable")
    when = np.empty(len(at))
    when[order] = _pass_server(sent, instants, np.bincount(at, minlength=len(instants)), cost)
    is_here = counts > 0
    starts = counts.cumsum() - counts
    gaps = _note_gaps(sent, rows[is_here], starts[is_here], when)
    gaps *= gaps
    sent.squares = _added(sent.squares, np.bincount(at, weights=gaps))


def _pass_server(sent: Sent, instants: Floats, counts: Integers, cost: float) -> Floats:
    """Return when events have left the server, ``counts`` of which were ready at each of some instants, ascending."""
    place = np.arange(sent.num_sent, sent.num_sent + int(counts.sum()) + 1, dtype=np.float64)
    place *= cost
    first = np.cumsum(counts) - counts
    # Of the events at one instant, the first has the smallest product of `cost` and place.
    free = instants - place[first]
    free[0] = max(free[0], sent.free)
    np.maximum.accumulate(free, out=free)
    # Each waits for the server, and for those before it at its instant.
    waited = counts * (free - (instants - place[first])) + cost * (counts * (counts + 1) * 0.5)
    sent.delay = _added(sent.delay, waited)
    sent.free, sent.num_sent = float(free[-1]), sent.num_sent + len(place) - 1
    left = np.repeat(free, counts)
    left += place[1:]
    return left


def _awaited(events: Events) -> Integers:
    """Return which event of each answer shows its first visible token, from 0."""
    return np.zeros_like(events.counts) if events.answer is None else events.answer


def _added(total: float, terms: NDArray[Any]) -> float:
    """Return a total with terms added one after the other."""
    return float(np.add.accumulate(np.append(total, terms))[-1])


def _note_gaps(sent: Sent, rows: Integers, starts: Integers, when: Floats) -> Floats:
    """Record when some events left the server, answer by answer, and return the gap before each, or 0."""
    gaps = np.empty(len(when))
    np.subtract(when[1:], when[:-1], out=gaps[1:])
    gaps[starts] = when[starts] - sent.last[rows]
    is_new = np.isnan(sent.first[rows])
    new = starts[is_new]
    counts = np.diff(np.append(starts, len(when)))
    awaited = sent.awaited[rows]
    begins = (awaited >= 0) & (awaited < counts)
    sent.answer[rows[begins]] = when[starts[begins] + awaited[begins]]
    sent.awaited[rows] = awaited - counts
    sent.first[rows[is_new]] = when[new]
    sent.last[rows] = when[np.append(starts[1:], len(when)) - 1]
    gaps[new] = np.inf
    sent.smallest = min(sent.smallest, float(gaps.min()))
    # No gap comes before a first event.
    gaps[new] = 0.0
    sent.gaps += np.bincount(bins_of(gaps), minlength=NUM_BINS)
    sent.gaps[0] -= len(new)
    sent.largest[rows] = np.maximum(sent.largest[rows], np.maximum.reduceat(gaps, starts))
    return gaps


def joined(clocks: Mapping[tuple[int, int], Sequence[Floats]] | None) -> dict[tuple[int, int], Floats]:
    """Return the clocks that a recorder kept in pieces, each joined into one, without those that have no leap."""
    return {number: np.concatenate(pieces, axis=1) for number, pieces in (clocks or {}).items() if len(pieces)}
