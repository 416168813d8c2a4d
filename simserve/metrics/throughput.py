"""Throughput of a run: who waited when, whether the run kept up with its traffic, which requests are measured, the
rates of requests and tokens in the measured window, and what limited the run.

Knows records and totals of a run, not how they came about.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from simserve.metrics.latency import RequestLatencies, percentiles, rows_where
from simserve.sim.recorder import ascending
from simserve.sim.records import COMPLETED, UNFINISHED, RequestRecords
from simserve.units import SECONDS_PER_HOUR

if TYPE_CHECKING:
    from simserve.sim.recorder import RunTotals
    from simserve.sim.simulate import Simulation

Stability = Literal["stable", "backlogged", "overloaded"]
_BATCH = 5
EDGE_SOJOURNS = 3.0
"""A measured window starts at least this many mean E2E after the first arrival and ends as many before the last one:
the system fills up first and empties at the end. With neither cut, E2E of runs of 2,000 requests at 66 % load comes out
1.3 % too low."""
_MIN_REQUESTS = 100  # Fewest requests, before and after the cut, for a steady state to mean anything.
_MIN_SOJOURNS = 10.0
"""A cut window must be this many mean E2E long: what is in flight at its edges is then a small part of it."""
_MIN_ARRIVALS = 50  # Fewest arrivals that can show a trend, or at a steady rate a backlog.
_NUM_BLOCKS = 20
_POINTS_PER_BLOCK = 10
_SIGNIFICANCE = 3.0
"""Growth over the period, in standard deviations of a queue without drift that has steps of the same size."""
_LEAST_QUEUE_GROWTH = 0.01
"""Least share of the arrivals that pile up in the queue of an overloaded run: the load exceeds the capacity by 1 %."""
_LEAST_SYSTEM_GROWTH = 0.05  # The same for the number in the system, which grows a little whenever the load does.
_LEAST_END = 0.5  # A queue that grows to the end must end at this share of its peak or more.
_LEAST_STEADINESS = 0.6
"""Least growth of the number in the system in the last quarter of the arrivals, over that in the quarter before: growth
slows while a system fills up, but not under overload."""
_LONGEST_STAY = 0.25  # The arrivals must last four times the typical stay, or the system is still filling up.
_WAITING_SHARE = 0.2
_WAIT_OF_RUN = 0.05
"""A run is backlogged if waiting is 20 % of the time in the system and the slowest 5 % of the requests waited 5 % of
the run. The second condition tells a steady queue at high load from one that was worked off. It is dropped where there
is no steady state: a closed loop, a trace, all requests at once. A few requests at a steady rate take so short a time
that any wait is 5 % of it: they show no backlog. Waiting limits a run from the same 20 % on."""
PARTS = {
    "weights": "memory bandwidth (weights)",
    "kv": "memory bandwidth (KV reads)",
    "compute": "compute",
    "communication": "communication",
    "host": "CPU and kernel launches",
    "draft": "drafting",
}
"""What limits each part of the step time."""
LIMITS = {"seats": "max_num_seqs", "blocks": "KV memory", "budget": "max_num_batched_tokens", "loras": "max_loras"}
"""What holds up the head of the queue. ``step`` (it arrived while a step was running) is not a limit."""
NONE = "none"
_ACTIVITIES = {
    "weights": "reading the weights",
    "kv": "reading the KV cache",
    "compute": "arithmetic",
    "communication": "communication over links",
    "host": "CPU work, such as launching kernels,",
    "draft": "drafting",
}
STATIC_LIMIT = "static_batch_size"
"""What holds up the queue of static batching: the running batch is full, and no request joins it."""
_LEAST_GAIN = 1.1  # Least factor on throughput of doubling a limit for that limit to be the bottleneck.
_NOTICEABLE_GAIN = 1.005  # Least factor that is printed as a gain of 1 % or more.
_THROTTLING_GAIN = 2.0  # A limit that halves what the GPUs could do is the bottleneck at any load.
_PREEMPTIONS_PER_REQUEST = 0.1
_IDLE_SHARE = 0.5
USERS_KEYS = ("users", "clients", "request_rate", "waiting", "waiting_share", "pause_s", "requests_per_user_hour")


def ratio(numerator: float, denominator: float) -> float:
    """Return a quotient; NaN if the denominator, which is never negative, is 0."""
    return float(numerator) / float(denominator) if denominator > 0 else math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class Sojourns:
    """When each request that was sent arrived, left the queue and left the system; in order of arrival."""

    arrival: NDArray[np.float64]  # Seconds on the simulation clock, ascending.
    queue_exit: NDArray[np.float64]  # When a step first worked on it, or it left without one; inf if it still waits.
    system_exit: NDArray[np.float64]  # When it was answered, refused or given up; inf if it is still in the system.
    end_time: float  # When the simulation stopped looking, seconds.
    last_beginning: float
    """The last arrival that did not wait for an answer: only turns of conversations come after it, fewer and fewer;
    NaN if nothing was sent."""

    def __len__(self) -> int:
        """Return the number of requests sent."""
        return len(self.arrival)

    @property
    def run_end(self) -> float:
        """The last arrival or departure; if requests are left unfinished, the end of the simulation."""
        if not len(self):
            return float("nan")
        last = max(float(self.system_exit.max()), float(self.arrival[-1]))
        return last if np.isfinite(last) else self.end_time

    def waits(self) -> NDArray[np.float64]:
        """Return the seconds from arrival to the first step, up to ``end_time`` for those that still wait.

        Waits after a preemption do not count.
        """
        return np.minimum(self.queue_exit, self.end_time) - self.arrival

    def times_in_system(self) -> NDArray[np.float64]:
        """Return the seconds from arrival to departure, up to ``end_time`` for those still in the system."""
        return np.minimum(self.system_exit, self.end_time) - self.arrival

    def num_in_system_at_arrivals(self) -> NDArray[np.float64]:
        """Return how many earlier requests each request found in the system."""
        departed = np.searchsorted(ascending(self.system_exit), self.arrival, side="right")
        present: NDArray[np.int64] = np.arange(len(self)) - departed
        return np.maximum(present, 0).astype(np.float64)


def sojourns(records: RequestRecords, end_time: float) -> Sojourns:
    """Return the stays of all requests that were sent.

    A request without a finish time that is not unfinished was refused on arrival: it leaves when it arrives.
    """
    is_sent = np.isfinite(records.arrival_time)
    sent = slice(None) if is_sent.all() else np.flatnonzero(is_sent)
    ordered = records.arrival_time[sent]
    if (ordered[1:] < ordered[:-1]).any():
        sent = np.arange(len(is_sent))[sent]
        sent = sent[np.argsort(ordered, kind="stable")]
    arrival, finish = records.arrival_time[sent], records.finish_time[sent]
    stayed = np.where(records.status[sent] == UNFINISHED, np.inf, arrival)
    system_exit = np.where(np.isfinite(finish), finish, stayed)
    queue_exit = np.fmin(records.scheduled_time[sent], system_exit)
    beginnings = arrival if records.turn is None else arrival[records.turn[sent] <= 1]
    return Sojourns(
        arrival=arrival,
        queue_exit=queue_exit,
        system_exit=system_exit,
        end_time=end_time,
        last_beginning=float(beginnings[-1]) if len(beginnings) else float("nan"),
    )


def num_present(
    arrival: NDArray[np.float64], leave: NDArray[np.float64], grid: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Return how many have arrived but not left at each time of ``grid`` (ascending, seconds)."""
    return _count_until(arrival, grid) - _count_until(leave, grid)


def _count_until(times: NDArray[np.float64], grid: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.searchsorted(ascending(times), grid, side="right")


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """How the traffic compares with what the deployment finishes while its queue is never empty."""

    mean: float  # Load ratio: requests offered a second over those that can be finished.
    peak: float | None  # The same for the busiest five minutes; None for a steady rate.


def stability(
    sojourns: Sojourns, *, is_open_loop: bool, is_stationary: bool = True, offered: Offered | None = None
) -> Stability:
    """Return the verdict on a run.

    If the load ratio is known, it decides: 1 or more is ``overloaded``, however short the run. Otherwise the trend of
    the queue decides:

    * ``overloaded``: open loop, and the number waiting (or the number in the system, over the second half of the
      arrivals) grows until the last arrival. The growth must exceed three standard deviations of what a queue at
      exactly its capacity would show, estimated from the steps between the means of 20 blocks of the period, be a
      noticeable share of the arrivals (1 % waiting, 5 % in the system), and end near its peak.
    * ``backlogged``: not overloaded, but requests waited long: all came at once, a closed loop has more clients than
      seats, or a burst was worked off.
    * ``stable``: neither.

    The number in the system is tested too because a replica with free seats slows down before requests queue. Its
    growth must not level off, as it does while a system fills up.
    """
    is_overload = _is_growing(sojourns) if offered is None else offered.mean >= 1
    if is_open_loop and is_overload:
        return "overloaded"
    return "backlogged" if _is_waiting(sojourns, is_open_loop and is_stationary) else "stable"


def waiting_share(sojourns: Sojourns) -> float:
    """Return the share of the time in the system that was waiting for a first step; NaN if there was none."""
    total = float(sojourns.times_in_system().sum())
    return float(sojourns.waits().sum()) / total if total > 0 else math.nan


def _is_growing(sojourns: Sojourns) -> bool:
    if len(sojourns) < _MIN_ARRIVALS:
        return False
    start, end = float(sojourns.arrival[0]), sojourns.last_beginning
    if end <= start:
        return False
    num_arrivals = int(np.searchsorted(sojourns.arrival, end, side="right"))
    if _has_trend(_levels(sojourns, sojourns.queue_exit, start, end), num_arrivals, _LEAST_QUEUE_GROWTH):
        return True
    middle = (start + end) / 2
    num_early = int(np.searchsorted(sojourns.arrival, middle, side="right"))
    if percentiles(sojourns.times_in_system()[:num_early], [50])[0] > _LONGEST_STAY * (end - start):
        return False
    levels = _levels(sojourns, sojourns.system_exit, middle, end)
    return _is_unabated(levels) and _has_trend(levels, num_arrivals - num_early, _LEAST_SYSTEM_GROWTH)


def _levels(sojourns: Sojourns, leave: NDArray[np.float64], start: float, end: float) -> NDArray[np.float64]:
    grid = np.linspace(start, end, _NUM_BLOCKS * _POINTS_PER_BLOCK + 1)[1:]
    return num_present(sojourns.arrival, leave, grid).astype(np.float64)


def _has_trend(levels: NDArray[np.float64], num_arrivals: int, least_growth: float) -> bool:
    blocks = _block_means(levels)
    growth = float(blocks[-1] - blocks[0])
    steps = np.diff(blocks)
    fluctuation = float(steps.std(ddof=1)) * math.sqrt(len(steps))
    ends_high = float(blocks[-2:].mean()) >= _LEAST_END * float(levels.max())
    return growth >= least_growth * num_arrivals and growth > _SIGNIFICANCE * fluctuation and ends_high


def _is_unabated(levels: NDArray[np.float64]) -> bool:
    blocks = _block_means(levels)
    half = _NUM_BLOCKS // 2
    return float(blocks[-1] - blocks[-1 - half]) >= _LEAST_STEADINESS * float(blocks[half] - blocks[0])


def _block_means(levels: NDArray[np.float64]) -> NDArray[np.float64]:
    means: NDArray[np.float64] = levels.reshape(_NUM_BLOCKS, _POINTS_PER_BLOCK).mean(axis=1)
    return means


def _is_waiting(sojourns: Sojourns, has_steady_state: bool) -> bool:
    share = waiting_share(sojourns)
    if math.isnan(share) or share < _WAITING_SHARE:
        return False
    if has_steady_state and len(sojourns) < _MIN_ARRIVALS:
        return False
    run = sojourns.run_end - float(sojourns.arrival[0])
    return not has_steady_state or percentiles(sojourns.waits(), [95])[0] >= _WAIT_OF_RUN * run


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The measured part of a run."""

    start: float  # Seconds on the simulation clock, NaN if nothing was sent.
    end: float  # Likewise.
    has_arrived: NDArray[np.bool_]  # Whether the request arrived in the window, shape [requests].

    @property
    def seconds(self) -> float:
        """Length of the window."""
        return self.end - self.start


def find_window(
    records: RequestRecords,
    latencies: RequestLatencies,
    sojourns: Sojourns,
    *,
    warmup: str | float,
    is_steady: bool,
    has_changing_fleet: bool = False,
    slowness: float = 1.0,
) -> Window:
    """Return the measured window of a run.

    ``warmup: none``, and ``auto`` where there is no steady state to wait for, is the whole run: first arrival to last
    departure, as ``vllm bench serve`` counts. A fleet that scales or fails has none: the gap that a start or a failure
    leaves is part of the question. Otherwise the window starts at the end of the warm-up and ends three mean E2E before
    the last arrival (of a conversation, where there are any), which leaves out filling up and draining: a request
    counts for latency if it *arrives* in the window, for throughput if it is *completed* in it. Little's law then holds
    for both.

    * ``auto``: MSER-5 on TTFT, on E2E and on the number in the system, each in order of arrival; the latest
      cut of the three, at most half the requests, and only where the start lies below the rest; at least three mean
      E2E. Runs of fewer than 100 requests, or with less than ten mean E2E left, are reported whole.
    * Seconds: from that long after the first arrival to the last one. Without steady arrivals the window ends with the
      run. A warm-up longer than that leaves an empty window.

    Args:
        records: One row a request.
        latencies: Likewise, seconds.
        sojourns: The requests that were sent.
        warmup: ``auto``, ``none`` or seconds.
        is_steady: Whether arrivals are open-loop and stationary and the run keeps up with them.
        has_changing_fleet: Whether replicas start, stop or fail in the run.
        slowness: ``2 / (1 - load ratio)`` where known: how many stays of a request a system takes to fill up.
    """
    if not len(sojourns):
        return Window(start=np.nan, end=np.nan, has_arrived=np.zeros(len(records), bool))
    first, last, run_end = float(sojourns.arrival[0]), sojourns.last_beginning, sojourns.run_end
    whole = _window(records, first, run_end)
    if isinstance(warmup, str):
        if warmup == "none" or not is_steady or has_changing_fleet:
            return whole
        edge = EDGE_SOJOURNS * float(np.nanmean(latencies.e2e)) if latencies.is_completed.any() else 0.0
        start = max(_warmup_end(records, latencies, sojourns), first + edge * max(1.0, slowness / EDGE_SOJOURNS))
        window = _window(records, start, last - edge)
        stays = latencies.e2e[window.has_arrived & latencies.is_completed]
        is_long = len(stays) >= _MIN_REQUESTS and window.seconds >= _MIN_SOJOURNS * float(stays.mean())
        return window if is_long else whole
    start = first + warmup
    return _window(records, start, max(start, last if is_steady else run_end))


def mser5(sequence: NDArray[np.float64]) -> int:
    """Return how many leading values to cut by MSER-5; at most half of them.

    White, Cobb and Spratt, "A comparison of five steady-state truncation heuristics for simulation", WSC
    2000: over means of five, the cut d minimises ``sum_{j>d} (y_j - mean)^2 / (m - d)^2``.
    """
    num_batches = len(sequence) // _BATCH
    if num_batches < 2:
        return 0
    means = sequence[: num_batches * _BATCH].reshape(num_batches, _BATCH).mean(axis=1)
    backwards = (means - means.mean())[::-1]
    left = np.arange(1, num_batches + 1)
    squares = np.cumsum(backwards**2) - np.cumsum(backwards) ** 2 / left
    statistic = (np.maximum(squares, 0.0) / left**2)[::-1]
    return int(np.argmin(statistic[: num_batches // 2 + 1])) * _BATCH


def _warmup_end(records: RequestRecords, latencies: RequestLatencies, sojourns: Sojourns) -> float:
    completed = np.flatnonzero(latencies.is_completed)
    arrival = records.arrival_time[completed]
    ends = [float(sojourns.arrival[_warmup_length(sojourns.num_in_system_at_arrivals())])]
    if len(completed):
        for values in (latencies.ttft, latencies.e2e):
            ends.append(float(arrival[_warmup_length(values[completed])]))
    return max(ends)


def _warmup_length(sequence: NDArray[np.float64]) -> int:
    """Return the MSER-5 cut if the values it removes are below the rest, else 0.

    A run starts empty, so a warm-up is always too low. A high start is a chance burst: it is part of the
    steady state, and cutting it biases the mean (by -6 % in an M/M/1 queue at 90 % load over 5,000 requests).
    """
    cut = mser5(sequence)
    return cut if cut and sequence[:cut].mean() < sequence[cut:].mean() else 0


def _window(records: RequestRecords, start: float, end: float) -> Window:
    has_arrived = (records.arrival_time >= start) & (records.arrival_time <= end)
    return Window(start=start, end=end, has_arrived=has_arrived)


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Rates per second over the window: requests completed in it, and their tokens; NaN if it has no length."""

    requests: float  # Requests completed.
    good_requests: float  # Those that met every SLO term; NaN without an SLO.
    output_tokens: float  # Tokens generated.
    tokens: float  # Prompt and generated tokens.

    @property
    def by_name(self) -> dict[str, float]:
        """The rates by their names in results."""
        return {
            "request_throughput": self.requests,
            "request_goodput": self.good_requests,
            "output_throughput": self.output_tokens,
            "total_token_throughput": self.tokens,
        }


def throughput(
    records: RequestRecords,
    window: Window,
    meets_slo: NDArray[np.bool_] | None,
    counted: NDArray[np.bool_] | None = None,
) -> Throughput:
    """Return the rates of the window.

    Args:
        records: One row a request.
        meets_slo: Whether each request met the SLO, shape [requests]; None without one.
        counted: Which requests count, shape [requests]; None: all.
    """
    if not window.seconds > 0:
        return Throughput(requests=np.nan, good_requests=np.nan, output_tokens=np.nan, tokens=np.nan)
    finish = records.finish_time
    done = (records.status == COMPLETED) & (finish >= window.start) & (finish <= window.end)
    if counted is not None:
        done &= counted
    rows = rows_where(done)
    prompt_tokens = int(records.prompt_tokens[rows].sum())
    output_tokens = int(records.output_tokens[rows].sum())
    good = np.nan if meets_slo is None else np.count_nonzero(done & meets_slo) / window.seconds
    return Throughput(
        requests=np.count_nonzero(done) / window.seconds,
        good_requests=good,
        output_tokens=output_tokens / window.seconds,
        tokens=(prompt_tokens + output_tokens) / window.seconds,
    )


def steady_throughput(records: RequestRecords, window: Window, meets_slo: NDArray[np.bool_] | None) -> Throughput:
    """Return the long-run rates of a run that keeps up with steady open arrivals: what arrived, at its rate.

    The rates measured in the window of a short run are lower: the run starts empty and drains, and long enough windows
    are found where fewer requests than average arrive.

    Args:
        records: One row a request; they must not all arrive at the same time.
        window: The requests in it give the share that meets the SLO.
        meets_slo: Whether each request met it, shape [requests]; None without one.
    """
    arrival, done = records.arrival_time, records.status == COMPLETED
    # The first arrival starts the period in which the others arrive.
    per_second = (1.0 - 1.0 / len(records)) / float(arrival.max() - arrival.min())
    prompt_tokens, output_tokens = int(records.prompt_tokens[done].sum()), int(records.output_tokens[done].sum())
    good = np.nan
    if meets_slo is not None:
        good = float(np.mean(meets_slo[window.has_arrived])) * len(records) * per_second
    return Throughput(
        requests=np.count_nonzero(done) * per_second,
        good_requests=good,
        output_tokens=output_tokens * per_second,
        tokens=(prompt_tokens + output_tokens) * per_second,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class UsersFacts:
    """The users of a scenario."""

    users: int  # All of them.
    clients: int | None  # Those of a closed loop; None if requests arrive at a rate.
    think_time: float  # Mean seconds between an answer and the next request of a client.
    rate: float  # Requests/s of an open loop; NaN in a closed one.
    classes: tuple[int, ...] | None = None  # The classes of the users' requests; None: all.


def users_figures(
    facts: UsersFacts | None,
    latencies: RequestLatencies,
    window: Window,
    request_class: NDArray[np.int16] | None = None,
) -> dict[str, Any]:
    """Return the figures `USERS_KEYS`, each None if the scenario has no number of users.

    From the mean E2E latency R of the measured window, by Little's law: ``clients`` that think for Z send
    ``request_rate`` = clients / (R + Z); of all users ``waiting`` = rate x R wait for an answer at any moment, and
    ``pause_s`` = users / rate - R is how long each pauses between an answer and the next request.
    """
    if facts is None:
        return dict.fromkeys(USERS_KEYS)
    is_counted = window.has_arrived & latencies.is_completed
    if facts.classes is not None and request_class is not None:
        is_counted &= np.isin(request_class, facts.classes)
    counted = latencies.e2e[is_counted]
    seconds = float(np.mean(counted)) if len(counted) else math.nan
    rate = facts.rate if facts.clients is None else facts.clients / (seconds + facts.think_time)
    return {
        "users": facts.users,
        "clients": facts.clients,
        "request_rate": rate,
        "waiting": rate * seconds,
        "waiting_share": rate * seconds / facts.users,
        "pause_s": facts.users / rate - seconds,
        "requests_per_user_hour": rate / facts.users * SECONDS_PER_HOUR,
    }


@dataclass(frozen=True, slots=True)
class LimitGain:
    """Factor by which throughput would grow with a larger limit of the scheduler."""

    twice: float  # With twice the limit.
    most: float  # With the multiple of the limit that gains most.


def bottleneck(
    *,
    seconds_by_part: Mapping[str, float],
    blocked_seconds: Mapping[str, float],
    busy_share: float,
    waiting_share: float,
    preemptions_per_request: float,
    mean_batch: float,
    max_batch: int,
    is_static: bool = False,
    limit_gains: Mapping[str, LimitGain] | None = None,
    load_ratio: float | None = None,
    swaps: bool = False,
) -> dict[str, Any]:
    """Return ``binding`` (a name), ``explanation`` (a sentence), ``step_shares`` and ``waiting_shares``.

    In this order: KV memory, if there was a preemption for every tenth request. The limit that held up most of the
    queue, if requests waited for 20 % of their time in the system and a larger limit would help (doubling it gains 10 %
    or more; under overload, up to eight times as much also makes up what is lacking, or doubles what can be finished),
    else what takes most of the step time. Nothing, if the fleet was idle for half of the run. Else the part that takes
    most of the step time: a faster step must shorten that.

    Args:
        seconds_by_part: Seconds of steps by part, keys of `PARTS`.
        blocked_seconds: Waiting requests x seconds by what held up the head of the queue; keys of `LIMITS`,
            ``step`` and ``prefix`` (another request computes what it needs).
        busy_share: Share of the run in which the replicas ran a step, NaN if there was no run.
        waiting_share: Share of the requests' time in the system before their first step; NaN if no time was spent
            there.
        preemptions_per_request: Preemptions over completed requests, NaN if none was completed.
        mean_batch: Sequences in a step on average, NaN if there was no step.
        max_batch: Sequences that a step may hold at most.
        is_static: Whether requests are batched statically: they then wait for a batch, not for a seat.
        limit_gains: By key of `LIMITS`, the factor on throughput of a larger limit.
        load_ratio: Offered over finishable throughput; None where requests do not arrive at a rate.
        swaps: Whether preempted requests keep their KV in host memory.
    """
    step_shares, waiting_shares = _shares(seconds_by_part), _shares(blocked_seconds)
    reason, part = _largest(waiting_shares), _largest(step_shares)
    if math.isnan(busy_share) or busy_share == 0:
        binding, explanation = NONE, "No step ran"
    elif preemptions_per_request >= _PREEMPTIONS_PER_REQUEST:
        binding = LIMITS["blocks"]
        explanation = f"KV memory ran out: {preemptions_per_request:.2g} preemptions a completed request, " + (
            "their KV copied to host memory and back" if swaps else "each of them computed again"
        )
    elif waiting_share >= _WAITING_SHARE and reason in LIMITS:
        binding = STATIC_LIMIT if is_static and reason == "seats" else LIMITS[reason]
        of_wait = waiting_shares[reason]
        explanation = f"Requests spent {waiting_share:.0%} of their time waiting, {of_wait:.0%} of it for {binding}"
        why_not = _does_not_relieve((limit_gains or {}).get(reason), load_ratio)
        if binding in LIMITS.values() and why_not and part in PARTS:
            # A larger limit would only make each step as much longer.
            binding = PARTS[part]
            explanation += f", but {why_not}"
    elif busy_share < 1 - _IDLE_SHARE:
        binding, explanation = NONE, f"The fleet is idle {1 - busy_share:.0%} of the time"
    else:
        binding = PARTS[part]
        # One request is enough to keep a step running: the room left shows in how full the steps are.
        explanation = (
            f"The GPUs are busy {busy_share:.0%} of the time and serve {mean_batch:.3g} requests at once on average, "
            f"of {max_batch:,} at most"
        )
    most = f"; {_ACTIVITIES[part]} takes {step_shares[part]:.0%} of the step time" if part in PARTS else ""
    return {
        "binding": binding,
        "explanation": f"{explanation}{most}.",
        "step_shares": step_shares,
        "waiting_shares": waiting_shares,
    }


def _does_not_relieve(gain: LimitGain | None, load_ratio: float | None) -> str:
    """Return why a larger limit would not shorten the queue; "" where it would, or where that is not known."""
    if gain is None:
        return ""
    if gain.twice < _LEAST_GAIN:
        gained = f"only {gain.twice - 1:.0%}" if gain.twice >= _NOTICEABLE_GAIN else "nothing"
        return f"twice that limit would gain {gained}"
    if load_ratio is not None and load_ratio >= 1 and gain.most < min(load_ratio, _THROTTLING_GAIN):
        return (
            f"more of it would gain {gain.most - 1:.0%} at most, and the load is {load_ratio:.2f} of what can be "
            "finished: it takes more or faster GPUs"
        )
    return ""


def _largest(shares: Mapping[str, float]) -> str:
    """Return the name of the largest share; ``none`` where shares are undefined."""
    return max(shares, key=lambda name: shares[name]) if sum(shares.values()) > 0 else NONE


def _shares(amounts: Mapping[str, float]) -> dict[str, float]:
    total = sum(amounts.values())
    return {name: amount / total if total > 0 else math.nan for name, amount in amounts.items()}


def requests_in_kv(simulation: Simulation) -> float | None:
    """Return about how many requests of this traffic the KV memory of one replica holds at once.

    That is its capacity over the mean reservation of a running request; None without a KV cache or a finished request.
    """
    records, totals = simulation.records, simulation.totals
    running_seconds = float(np.nansum(records.finish_time - records.scheduled_time))
    if totals.kv_reserved_token_seconds <= 0 or running_seconds <= 0:
        return None
    reservation = totals.kv_reserved_token_seconds / running_seconds
    return totals.kv_capacity_tokens / simulation.num_replicas / reservation


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What the errors of a run's figures depend on besides the deployment."""

    in_flight: float  # Mean number of requests in the system per replica; NaN if none was answered.
    waiting: float  # Share of the time to first token that requests spent waiting for their first step.
    at_once: float  # Share of the requests that arrived in the first instant.
    host: float  # Share of the step time that is host work.


def conditions(records: RequestRecords, totals: RunTotals, num_replicas: int) -> Conditions:
    """Return the conditions of a run.

    Args:
        num_replicas: Replicas that served it.
    """
    answered = np.isfinite(records.finish_time)
    waited = (records.scheduled_time - records.arrival_time)[answered]
    first = (records.first_token_time - records.arrival_time)[answered]
    return Conditions(
        in_flight=_in_flight(records, answered) / num_replicas,
        waiting=_share(float(np.nansum(waited)), float(np.nansum(first))),
        at_once=_share(float(np.count_nonzero(records.arrival_time == np.nanmin(records.arrival_time))), len(records))
        if answered.any()
        else 0.0,
        host=_share(totals.seconds_by_part["host"], totals.busy_seconds),
    )


def _in_flight(records: RequestRecords, answered: NDArray[np.bool_]) -> float:
    """Return the mean number of requests in the system (Little's law); NaN where none was answered."""
    if not answered.any():
        return math.nan
    seconds = (records.finish_time - records.arrival_time)[answered]
    duration = float(records.finish_time[answered].max() - records.arrival_time[answered].min())
    return float(seconds.sum()) / duration if duration > 0 else math.nan


def _share(part: float, whole: float) -> float:
    return min(max(part / whole, 0.0), 1.0) if whole > 0 else 0.0
