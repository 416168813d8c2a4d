"""Events of answers: when the tokens of one replica were there, before any of them is sent.

From the records of the engine and the clock of the replica. Token j of an answer was there ``output - j`` decode steps
before the one that ended at its finish time, which the clock turns into seconds. Most events are therefore a run of
steps; the others have times of their own: first and last tokens beside the steps with decodes, and all events of a
request that was preempted, of which only the first and the last are known and the others are spread evenly between
them. With speculative decoding a request gains its pace in tokens a step, and tokens of one step are one event.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from simserve.engine.progress import GRID
from simserve.sim.records import RequestRecords
from simserve.sim.streaming_spec import StreamingSpec

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Clock:
    """The leaps of a replica that decode, in their order; all shape [leaps].

    Attributes:
        start: When each began, seconds.
        steps: Steps of each.
        seconds: Of its first step.
        increment: By which each further one is longer.
        decoding: Sequences that decode in a step.
        until: Steps up to the end of each.
    """

    start: Floats
    steps: Integers
    seconds: Floats
    increment: Floats
    decoding: Floats
    until: Integers

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
class Events:
    """The events of some answers of one replica, answers in the order of their requests.

    Attributes:
        counts: Events of each, shape [answers].
        begin: Step of the clock in which those in a run begin, shape [answers].
        runs: How many of them there are, shape [answers].
        stride: Steps from each to the next.
        time: When the others were there, ascending, shape [others]; at one instant in the order of answers.
        owner: Which answer each belongs to, shape [others].
        is_before: Whether that is before the run, shape [others].
        answer: With which of its events, from 0, each shows its first visible token, shape [answers]; None: with the
            first, since nobody thinks.
    """

    counts: Integers
    begin: Integers
    runs: Integers
    stride: int
    time: Floats
    owner: Integers
    is_before: NDArray[np.bool_]
    answer: Integers | None = None


def events_of(
    records: RequestRecords, own: Integers, spec: StreamingSpec, clock: Clock, pace: Integers | None
) -> Events:
    """Return the events of the answers ``own`` of a replica; arguments as of `_events`."""
    events = _events(records, own, spec, clock, pace)
    if records.thinking_tokens is None:
        return events
    thinking = records.thinking_tokens[own]
    answer = thinking // spec.buffer_tokens if spec.stream else np.zeros_like(thinking)
    if pace is not None and spec.stream:
        answer = _drafted_before(events.counts, records.output_tokens[own], spec.buffer_tokens, pace, thinking)
    return replace(events, answer=np.where(thinking < records.output_tokens[own], answer, events.counts))


def _events(records: RequestRecords, own: Integers, spec: StreamingSpec, clock: Clock, pace: Integers | None) -> Events:
    """Return the events, but for those that show first visible tokens.

    Args:
        records: As the engine saw them.
        own: Requests that the replica has completed, ascending.
        spec: How tokens are sent.
        clock: Of the replica.
        pace: Speculative decoding: parts of a token that each of ``own`` gains a step; None: there is none.
    """
    output, first, last = records.output_tokens[own], records.first_token_time[own], records.finish_time[own]
    size = spec.buffer_tokens
    if not spec.stream:
        return _apart(np.ones_like(output), output, output, first, last)
    # An embedding, of no tokens, is sent as well.
    counts = np.maximum(-(-output // size), 1)
    if not len(clock.steps):
        return _apart(counts, _tokens(counts, output, size), output, first, last)
    # An answer ends with a leap of its replica, the last one that begins before it ends.
    done = clock.until[np.maximum(np.searchsorted(clock.start, last, side="left") - 1, 0)]
    is_whole = records.num_preemptions[own] == 0
    if pace is not None:
        return _drafted(counts, output, size, first, last, clock, done, is_whole, pace)
    # The first token is known by its own time, and the last one of all.
    before = 2 if size == 1 else 1
    begin = done - output + size * before - 1
    runs = np.maximum(counts - before, 0)
    is_whole &= begin >= 0
    runs[~is_whole] = 0
    has_first = is_whole & (counts > 1) & (size == 1)
    # Most of them come at the end of a step with decodes all the same.
    is_on_clock = has_first & (begin > 0)
    is_on_clock[is_on_clock] = clock.times(begin[is_on_clock] - 1) == first[is_on_clock]
    begin[is_on_clock] -= 1
    runs[is_on_clock] += 1
    has_first &= ~is_on_clock
    ends_run = is_whole & (begin + size * runs == done - 1) & (counts > 1)
    ends_run[ends_run] = clock.times(done[ends_run] - 1) == last[ends_run]
    runs[ends_run] += 1
    others = [np.flatnonzero(has_first), np.flatnonzero(is_whole & ~ends_run)]
    broken = np.flatnonzero(~is_whole)
    spread = _apart(
        counts[broken], _tokens(counts[broken], output[broken], size), output[broken], first[broken], last[broken]
    )
    owner = np.concatenate([*others, broken[spread.owner]])
    time = np.concatenate([first[others[0]], last[others[1]], spread.time])
    is_before = np.arange(len(owner)) < len(others[0])
    # One answer has its first token before its last.
    order = np.lexsort((owner, time))
    return Events(counts, begin, runs, size, time[order], owner[order], is_before[order])


def _tokens(counts: Integers, output: Integers, size: int) -> Integers:
    """Return with which token (from 1) each event is complete, answer by answer."""
    ends = np.cumsum(counts)
    tokens: Integers = size * (np.arange(1, int(counts.sum()) + 1) - np.repeat(ends - counts, counts))
    tokens[ends - 1] = output
    return tokens


def _apart(counts: Integers, tokens: Integers, output: Integers, first: Floats, last: Floats) -> Events:
    """Return events that are in no run, spread evenly between the first token and the last."""
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


def _drafted(
    counts: Integers,
    output: Integers,
    size: int,
    first: Floats,
    last: Floats,
    clock: Clock,
    done: Integers,
    is_whole: NDArray[np.bool_],
    pace: Integers,
) -> Events:
    """Return the events of requests that gain several tokens a step."""
    owner, tokens, back = _drafted_tokens(counts, output, size, pace)
    counts = np.bincount(owner, minlength=len(counts))
    times = clock.times(np.maximum(done[owner] - back, 1) - 1)
    spread = (tokens == 1) | ~is_whole[owner]
    whose = owner[spread]
    times[spread] = first[whose] + (last - first)[whose] * (tokens[spread] - 1) / np.maximum(output - 1, 1)[whose]
    times[np.cumsum(counts) - 1] = last
    return _in_no_run(counts, times)


def _drafted_tokens(
    counts: Integers, output: Integers, size: int, pace: Integers
) -> tuple[Integers, Integers, Integers]:
    """Return of the events of requests that gain several tokens a step, those of one step being one event, each one's
    answer, with which token it is complete, and how many steps before the last it is there.
    """
    tokens, owner = _tokens(counts, output, size), np.repeat(np.arange(len(counts)), counts)
    until_end = -(-GRID * (output - 1) // pace)
    back = until_end[owner] - -(-GRID * (tokens - 1) // pace[owner])
    is_sent = np.append((owner[1:] != owner[:-1]) | (back[1:] != back[:-1]), True)
    return owner[is_sent], tokens[is_sent], back[is_sent]


def _drafted_before(sent: Integers, output: Integers, size: int, pace: Integers, thinking: Integers) -> Integers:
    """Return how many events of each answer hold nothing but thinking, where it gains several tokens a step."""
    owner, tokens, _ = _drafted_tokens(-(-output // size), output, size, pace)
    before: Integers = np.bincount(owner[tokens <= thinking[owner]], minlength=len(sent))
    return before
