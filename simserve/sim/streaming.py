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
        own = np.flatnonzero(completed & (records.replica_id == replica))
        owner, tokens = _events(records.output_tokens[own], spec)
        if replica < 0:
            # Neither the API nor the cache goes through the API server of a replica.
            continue
        back = _steps_back(records.output_tokens[own[owner]], tokens, None if pace is None else pace[own[owner]])
        if pace is not None:
            is_sent = np.append((owner[1:] != owner[:-1]) | (back[1:] != back[:-1]), True)
            owner, tokens, back = owner[is_sent], tokens[is_sent], back[is_sent]
        ready = _token_times(records, back, own, owner, tokens, clocks.get(replica))
        order = np.argsort(ready, kind="stable")
        sent = np.empty(len(ready))
        place = np.arange(len(ready))
        sent[order] = np.maximum.accumulate(ready[order] - cost * place) + cost * (place + 1)
        num_events += len(sent)
        delay += float((sent - ready).sum()) - cost * len(sent)
        # A core that falls behind is at work until its last event is sent.
        until = max(end_time, float(sent.max()))
        busiest = max(busiest, cost * len(sent) / until if until > 0 else 0.0)
        starts = np.flatnonzero(np.diff(owner, prepend=-1))
        ends = np.append(starts[1:], len(owner)) - 1
        first[own], finish[own] = sent[starts], sent[ends]
        gaps = np.diff(sent)
        is_gap = owner[1:] == owner[:-1]
        if is_gap.any():
            itl.add(gaps[is_gap], np.ones(int(is_gap.sum())))
            largest = np.maximum.reduceat(np.append(np.where(is_gap, gaps, 0.0), 0.0), starts)
            itl_max[own] = np.where(ends > starts, largest, np.nan)
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


def _events(output_tokens: Integers, spec: StreamingSpec) -> tuple[Integers, Integers]:
    """Return, of every event, whose it is (a position) and with which token it is complete; in order."""
    size = spec.buffer_tokens
    counts = -(-output_tokens // size) if spec.stream else np.ones_like(output_tokens)
    owner = np.repeat(np.arange(len(output_tokens)), counts)
    position = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    if not spec.stream:
        return owner, output_tokens
    return owner, np.minimum(size * (position + 1), output_tokens[owner])


def _steps_back(output_tokens: Integers, tokens: Integers, pace: Integers | None) -> Integers:
    """Return how many decode steps before the last one each token (counted from 1) came."""
    if pace is None:
        return output_tokens - tokens
    steps: Integers = -(-GRID * (output_tokens - 1) // pace) - -(-GRID * (tokens - 1) // pace)
    return steps


def _token_times(
    records: RequestRecords, back: Integers, own: Integers, owner: Integers, tokens: Integers, clock: Floats | None
) -> Floats:
    """Return when the given tokens (counted from 1) were there, ``owner`` being positions in the requests ``own``."""
    output, num_preemptions = records.output_tokens[own], records.num_preemptions[own]
    first, last = records.first_token_time[own], records.finish_time[own]
    is_end = tokens == output[owner]
    is_known = (num_preemptions == 0)[owner] & (tokens > 1) & ~is_end
    times: Floats = np.empty(len(tokens))
    if clock is None or not clock.shape[1]:
        is_known[:] = False
    else:
        start, steps = clock[0], clock[1].astype(np.int64)
        until = np.cumsum(steps)
        # An answer ends with a leap of its replica, the last one that begins before it ends.
        done = until[np.maximum(np.searchsorted(start, last, side="left") - 1, 0)]
        step = np.maximum(done[owner] - back, 1)
        times = _step_times(clock, steps, until)[step - 1]
    times[is_end] = last[owner[is_end]]
    is_spread = ~(is_known | is_end)
    whose, before = owner[is_spread], tokens[is_spread] - 1
    times[is_spread] = first[whose] + (last[whose] - first[whose]) * before / np.maximum(output[whose] - 1, 1)
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
