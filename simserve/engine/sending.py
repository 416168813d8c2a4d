"""The events of one scheduler's answers pass an API server one by one. Compiled, it does what `simserve.sim.streaming`
does with numpy on many at a time, with results equal to the bit.

Nothing interpreted calls it: it is a loop over tokens. It knows columns and no requests.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(slots=True)
class Sending:
    """Events to be sent and their results; a column has one entry per answer unless stated otherwise.

    Attributes:
        start: When each leap of the clock began, seconds; shape [leaps], like the next three.
        steps: Steps of each.
        seconds: Duration of its first step.
        increment: By how much each further step is longer.
        num_leaps: How many leaps there are.
        in_order: Answers with events in a run of steps, sorted by the first of these steps, then by number; shape
            [num_runs].
        num_runs: How many there are.
        begin: Step of the clock in which such a run begins.
        runs: Events in it.
        stride: Steps from one to the next.
        time: Times of the other events, ascending, those of one instant by answer; shape [num_others].
        owner: Answers that they belong to, likewise.
        is_before: Whether each is before the run, likewise.
        num_others: How many there are.
        edges: Duration from which each bin of the gaps begins, from -inf to inf; shape [num_bins + 1].
        num_bins: How many there are.
        cost: Seconds per event.
        thinks: Whether an answer may show its first token later than with its first event.
        active: Space for the answers that are in their run.
        due: Space for the step in which each of them has its next event.
        here: Space for those with events at an instant, shape [num_answers + num_others].
        first: When the first event of each had left the server, seconds; NaN before.
        last: When the last one had, likewise.
        answer: When the event with its first visible token had, likewise.
        largest: Largest gap of each, seconds.
        awaited: Number, from 0, of the event that shows its first visible token, minus the events sent.
        gaps: Number of gaps in each bin.
        squares: Sum of their squares, seconds^2.
        smallest: Smallest gap, inf: there is none.
        delay: Seconds that events spent at the server.
    """

    start: Floats
    steps: Integers
    seconds: Floats
    increment: Floats
    num_leaps: int
    in_order: Integers
    num_runs: int
    begin: Integers
    runs: Integers
    stride: int
    time: Floats
    owner: Integers
    is_before: Integers
    num_others: int
    edges: Floats
    num_bins: int
    cost: float
    thinks: bool
    active: Integers
    due: Integers
    here: Integers
    first: Floats
    last: Floats
    answer: Floats
    largest: Floats
    awaited: Integers
    gaps: Floats
    squares: float = 0.0
    smallest: float = float("inf")
    delay: float = 0.0


def send_all(sending: Sending) -> int:
    """Send all events, first come, first served, and return how many there were."""
    start, steps, seconds, increment = sending.start, sending.steps, sending.seconds, sending.increment
    time, cost = sending.time, sending.cost
    num_leaps, num_others = sending.num_leaps, sending.num_others
    leap = step = other = num_active = num_begun = num_sent = 0
    k, free = 1, -float("inf")
    while leap < num_leaps or other < num_others:
        now, is_step = 0.0, leap < num_leaps
        if is_step:
            now = start[leap] + seconds[leap] * k + increment[leap] * (k * (k - 1) * 0.5)
        if other < num_others and (not is_step or time[other] <= now):
            is_step = is_step and time[other] == now
            now = time[other]
        until = other
        while until < num_others and time[until] == now:
            until += 1
        num_here = 0
        if is_step:
            num_active, num_begun = _begin(sending, step, num_active, num_begun)
            num_here, num_active = _collect(sending, step, num_active, other, until)
            step += 1
            k += 1
            if k > steps[leap]:
                leap += 1
                k = 1
        else:
            for place in range(other, until):
                sending.here[num_here] = sending.owner[place]
                num_here += 1
        other = until
        if num_here:
            ready = now - num_sent * cost
            free = max(free, ready)
            sending.delay += num_here * (free - ready) + cost * (num_here * (num_here + 1) * 0.5)
            _send(sending, num_here, num_sent, free)
            num_sent += num_here
    return num_sent


def _begin(sending: Sending, step: int, num_active: int, num_begun: int) -> tuple[int, int]:
    """Add the answers whose run begins with a step to the active ones; return how many are active, and have begun."""
    in_order, begin, active, due = sending.in_order, sending.begin, sending.active, sending.due
    until = num_begun
    while until < sending.num_runs and begin[in_order[until]] <= step:
        due[in_order[until]] = step
        until += 1
    # Both are in order: from the back, the larger of the two goes to the free end.
    kept, new = num_active - 1, until - 1
    place = num_active + until - num_begun - 1
    while new >= num_begun:
        if kept >= 0 and active[kept] > in_order[new]:
            active[place] = active[kept]
            kept -= 1
        else:
            active[place] = in_order[new]
            new -= 1
        place -= 1
    return num_active + until - num_begun, until


def _collect(sending: Sending, step: int, num_active: int, other: int, until: int) -> tuple[int, int]:
    """List the answers with events in a step or at its instant; return how many there are and how many stay active."""
    active, due, here, runs = sending.active, sending.due, sending.here, sending.runs
    begin, owner, is_before, stride = sending.begin, sending.owner, sending.is_before, sending.stride
    num_here = num_left = 0
    for place in range(num_active):
        answer = active[place]
        while other < until and (owner[other] < answer or (owner[other] == answer and is_before[other])):
            here[num_here] = owner[other]
            num_here += 1
            other += 1
        if due[answer] <= step:
            here[num_here] = answer
            num_here += 1
            due[answer] = step + stride
        if due[answer] < begin[answer] + stride * runs[answer]:
            active[num_left] = answer
            num_left += 1
    while other < until:
        here[num_here] = owner[other]
        num_here += 1
        other += 1
    return num_here, num_left


def _send(sending: Sending, num_here: int, num_sent: int, free: float) -> None:
    """Send the events of an instant; ``free`` is when the server is free for the first of them."""
    here, first, last, largest = sending.here, sending.first, sending.last, sending.largest
    edges, gaps, cost, thinks = sending.edges, sending.gaps, sending.cost, sending.thinks
    squares, smallest = 0.0, sending.smallest
    number, num_in_bin, lower, upper = 0, 0, 0.0, 0.0
    for place in range(num_here):
        answer = here[place]
        when = free + (num_sent + place + 1) * cost
        gap = when - last[answer]
        last[answer] = when
        if gap != gap:
            first[answer] = when
            if not thinks:
                sending.answer[answer] = when
        else:
            if not lower <= gap < upper:
                gaps[number] += num_in_bin
                number, num_in_bin = _bin_of(edges, gap, sending.num_bins), 0
                lower, upper = edges[number], edges[number + 1]
            num_in_bin += 1
            squares += gap * gap
            smallest = min(smallest, gap)
            largest[answer] = max(largest[answer], gap)
        if thinks:
            if sending.awaited[answer] == 0:
                sending.answer[answer] = when
            sending.awaited[answer] -= 1
    gaps[number] += num_in_bin
    sending.squares += squares
    sending.smallest = smallest


def _bin_of(edges: Floats, gap: float, num_bins: int) -> int:
    """Return which bin a gap is in."""
    low, high = 0, num_bins
    while high - low > 1:
        middle = (low + high) // 2
        if edges[middle] <= gap:
            low = middle
        else:
            high = middle
    return low
