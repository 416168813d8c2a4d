"""Lockstep: the ranks of data-parallel attention, each with its own queue and KV cache, that step together.

The experts of a layer are spread over all ranks, so a rank that has computed its attention waits for the others: a
step takes as long as the slowest rank takes for its own, and the experts for the tokens of all; a rank without requests
idles along. With TensorRT-LLM's ``enable_balance`` (``_balance_adp_requests`` in its ``py_executor.py``) prompts wait
until every rank has one, at most ``timeout_iters`` steps, so that no rank idles while another computes one. The
functions are those of `simserve.engine.kernel` for one rank; a leap of the ranks is the shortest of theirs, and ends
where another rank becomes the slowest.
"""

from __future__ import annotations

from collections import deque
from math import floor, inf, nextafter

from simserve.engine.kernel import complete, cut, plan, submit
from simserve.engine.state import INFINITY, Replica, RequestTable
from simserve.engine.tables import StepTimes


class Ranks:
    """The ranks of one replica.

    Attributes:
        ranks: Two or more.
        end_time: End of the common leap, or when a plan is due; inf: every rank is idle.
        finished: Where all of them note what finished; None: nobody listens.
        timeout_steps: Steps after which prompts wait no longer for other ranks; 0: they never do.
        held_steps: Steps since they last could begin.
    """

    __slots__ = ("end_time", "finished", "held_steps", "ranks", "timeout_steps")

    def __init__(self, ranks: list[Replica]) -> None:
        self.ranks = ranks
        self.end_time = INFINITY
        self.finished: list[int] | None = None
        self.timeout_steps = ranks[0].config.attention_dp_timeout_iters
        self.held_steps = 0


def submit_to_rank(group: Ranks, requests: RequestTable, index: int, now: float) -> None:
    """Queue a request at the rank with the fewest requests; end the common leap if it could be admitted there."""
    rank = min(group.ranks, key=_outstanding)
    is_joining = rank.end_time == INFINITY and group.end_time != INFINITY
    num_steps, end = rank.num_steps, rank.end_time
    submit(rank, requests, index, now)
    if group.end_time == INFINITY:
        group.end_time = rank.end_time
    elif is_joining or (rank.num_steps, rank.end_time) != (num_steps, end):
        cut_ranks(group, now)
        if is_joining:
            rank.end_time = group.end_time


def seen_by_ranks(group: Ranks, now: float) -> float:
    """Return when ranks that schedule a step ahead see an arrival at ``now``; the common leap ends with its step."""
    if not any(rank.num_steps for rank in group.ranks):
        return now
    cut_ranks(group, now)
    return nextafter(group.end_time, inf)


def complete_ranks(group: Ranks, requests: RequestTable) -> int:
    """Apply the leap that ends at ``end_time`` on every rank; return how many requests finished."""
    if group.timeout_steps:
        steps = max(rank.num_steps for rank in group.ranks)
        group.held_steps = (group.held_steps + steps) % group.timeout_steps
    return sum(complete(rank, requests) for rank in group.ranks if rank.num_steps)


def plan_ranks(group: Ranks, requests: RequestTable) -> None:
    """Plan every rank that has requests, and let all keep the pace of the slowest."""
    now = group.end_time
    stepping = []
    is_held = _must_wait(group)
    for rank in group.ranks:
        if rank.end_time != INFINITY:
            rank.end_time = now
            if is_held:
                _plan_without_prompts(rank, requests)
            else:
                plan(rank, requests)
            if rank.num_steps:
                stepping.append(rank)
    if not stepping:
        group.end_time = INFINITY
        return
    slowest = max(stepping, key=_pace)
    first, increment = slowest.first_seconds, slowest.increment_seconds
    num_steps = min(rank.num_steps for rank in stepping)
    if is_held:
        num_steps = min(num_steps, group.timeout_steps - 1 - group.held_steps)
    for rank in stepping:
        if rank.increment_seconds > increment:
            overtaken = floor((first - rank.first_seconds) / (rank.increment_seconds - increment)) + 1
            num_steps = min(num_steps, overtaken)
    first += _shared_seconds(slowest.times, sum(rank.priced_tokens for rank in stepping))
    end = now + first * num_steps + increment * (num_steps * (num_steps - 1) * 0.5)
    for rank in stepping:
        rank.num_steps, rank.first_seconds, rank.increment_seconds = num_steps, first, increment
        rank.end_time = end
    group.end_time = end


def _must_wait(group: Ranks) -> bool:
    """Return whether prompts that wait at some ranks wait for those of the others, which all decode meanwhile."""
    if not group.timeout_steps or not any(rank.waiting for rank in group.ranks):
        return False
    if all(rank.waiting and rank.num_running < rank.max_num_seqs for rank in group.ranks):
        group.held_steps = -1  # the step that follows counts for the next ones no more than a time-out does
        return False
    return group.held_steps < group.timeout_steps - 1 and all(rank.num_decoding for rank in group.ranks)


def _plan_without_prompts(rank: Replica, requests: RequestTable) -> None:
    """Plan a rank as if nobody waited; whoever does cannot be admitted before the common leap ends."""
    waiting, preempted = rank.waiting, deque[int]()
    rank.waiting = preempted
    plan(rank, requests)
    for index in reversed(preempted):
        waiting.appendleft(index)
    rank.waiting = waiting
    rank.num_queued = len(waiting)
    if waiting:
        rank.is_open = False


def _shared_seconds(times: StepTimes, tokens: int) -> float:
    shared = times.shared_seconds
    if tokens < len(shared):
        return shared[tokens]
    return (shared[-1] if shared else 0.0) + times.shared_seconds_beyond * (tokens - max(len(shared) - 1, 0))


def cut_ranks(group: Ranks, now: float) -> None:
    """End the common leap with the step that runs at ``now``; nothing changes where a plan is due anyway."""
    for rank in group.ranks:
        if rank.num_steps > 1:
            cut(rank, now)
        if rank.num_steps:
            group.end_time = rank.end_time


def _outstanding(rank: Replica) -> int:
    return rank.num_outstanding


def _pace(rank: Replica) -> tuple[float, float]:
    return rank.first_seconds, rank.increment_seconds
