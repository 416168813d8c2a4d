"""What the client sees of a run: when each event left the API server, and when it crossed the network.

From the records of the engine and the clocks of its replicas, after the run. Token j of an answer was there ``output -
j`` decode steps before the one that ended at its finish time, which the clock of the replica turns into seconds; so
the time of every event is exact. Of a request that was preempted, only the first and the last token are known so, and
the others are spread evenly between them. With speculative decoding a request gains its pace in tokens a step, and
tokens of one step are one event. Events of one replica queue at its API server, first come, first served:
``D_i = max(A_i, D_(i-1)) + cost``, unrolled with a running maximum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from simserve.engine.histogram import Histogram
from simserve.engine.progress import GRID
from simserve.sim.records import COMPLETED, RequestRecords
from simserve.sim.streaming_spec import StreamingSpec

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


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
        clocks: Of each replica the leaps with decodes: start, steps, first and increment, shape [4, leaps].
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
        counts, tokens, back = _events(records.output_tokens[own], spec, None if pace is None else pace[own])
        ready = _token_times(records, own, counts, tokens, back, clocks.get(replica))
        sent = _sent(ready, cost)
        num_events += len(sent)
        delay += float((sent - ready).sum()) - cost * len(sent)
        # A core that falls behind is at work until its last event is sent.
        until = max(end_time, float(sent.max()))
        busiest = max(busiest, cost * len(sent) / until if until > 0 else 0.0)
        ends = np.cumsum(counts) - 1
        starts = ends + 1 - counts
        first[own], finish[own] = sent[starts], sent[ends]
        is_gap = np.ones(len(sent), dtype=bool)
        is_gap[ends] = False
        gaps = np.append(np.diff(sent), 0.0)
        itl.add(gaps[is_gap])
        gaps[ends] = 0.0
        itl_max[own] = np.where(counts > 1, np.maximum.reduceat(gaps, starts), np.nan)
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


def _events(
    output_tokens: Integers, spec: StreamingSpec, pace: Integers | None
) -> tuple[Integers, Integers, Integers | None]:
    """Return the events of each request, and of every event, in order, with which token (from 1) it is complete.

    With speculative decoding also how many decode steps before the last one that came; else None: as many as tokens.
    """
    size = spec.buffer_tokens
    counts = -(-output_tokens // size) if spec.stream else np.ones_like(output_tokens)
    ends = np.cumsum(counts)
    tokens: Integers = np.arange(1, int(ends[-1]) + 1) - np.repeat(ends - counts, counts)
    if size > 1:
        tokens *= size
    tokens[ends - 1] = output_tokens
    if pace is None:
        return counts, tokens, None
    owner = np.repeat(np.arange(len(counts)), counts)
    until_end = -(-GRID * (output_tokens - 1) // pace)
    back = until_end[owner] - -(-GRID * (tokens - 1) // pace[owner])
    is_sent = np.append((owner[1:] != owner[:-1]) | (back[1:] != back[:-1]), True)
    counts = np.bincount(owner[is_sent], minlength=len(counts))
    return counts, tokens[is_sent], back[is_sent]


def _sent(ready: Floats, cost: float) -> Floats:
    """Return when each event has left a core that takes ``cost`` seconds for one: the recursion above."""
    order = np.argsort(ready, kind="stable")
    place = np.arange(len(ready), dtype=np.float64)
    free = ready[order]
    free -= cost * place
    np.maximum.accumulate(free, out=free)
    place += 1.0
    place *= cost
    free += place
    sent = np.empty(len(ready))
    sent[order] = free
    return sent


def _token_times(
    records: RequestRecords,
    own: Integers,
    counts: Integers,
    tokens: Integers,
    back: Integers | None,
    clock: Floats | None,
) -> Floats:
    """Return when the tokens of `_events` of the requests ``own`` were there."""
    output, is_whole = records.output_tokens[own], records.num_preemptions[own] == 0
    first, last = records.first_token_time[own], records.finish_time[own]
    ends = np.cumsum(counts) - 1
    if clock is None or not clock.shape[1]:
        is_whole[:] = False
        times: Floats = np.empty(len(tokens))
    else:
        start, steps = clock[0], clock[1].astype(np.int64)
        until = np.cumsum(steps)
        # An answer ends with a leap of its replica, the last one that begins before it ends.
        done = until[np.maximum(np.searchsorted(start, last, side="left") - 1, 0)]
        step = np.repeat(done - output, counts) + tokens if back is None else np.repeat(done, counts) - back
        times = _step_times(clock, steps, until)[np.maximum(step, 1) - 1]
    # Of whole requests only the first token may have come before the first of those steps.
    starts = ends + 1 - counts
    spread = starts[tokens[starts] == 1]
    if not is_whole.all():
        spread = np.flatnonzero((tokens == 1) | np.repeat(~is_whole, counts))
    whose, before = np.searchsorted(ends, spread), tokens[spread] - 1
    times[spread] = first[whose] + (last[whose] - first[whose]) * before / np.maximum(output[whose] - 1, 1)
    times[ends] = last
    return times


def _step_times(clock: Floats, steps: Integers, until: Integers) -> Floats:
    """Return when each step of a clock ended."""
    leap = np.repeat(np.arange(len(steps)), steps)
    k = np.arange(1, len(leap) + 1) - (until - steps)[leap]
    start, _, seconds, increment = clock
    times: Floats = start[leap] + seconds[leap] * k + increment[leap] * (k * (k - 1) * 0.5)
    return times


def joined(clocks: Mapping[int, Sequence[Floats]] | None) -> dict[int, Floats]:
    """Return the clocks that a recorder kept in pieces, each in one; those without a leap are left out."""
    return {replica: np.concatenate(pieces, axis=1) for replica, pieces in (clocks or {}).items() if len(pieces)}
