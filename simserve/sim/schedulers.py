"""What moves a replica of a fleet: one scheduler of any kind, or the ranks of data-parallel attention as a team.

The functions are those of `simserve.engine`, for whatever a replica has; a plain scheduler is asked first.
"""

from __future__ import annotations

from typing import cast

from simserve.engine import handover, kernel, slowing
from simserve.engine.cancel import cancel as cancel_continuous
from simserve.engine.config import EngineConfig
from simserve.engine.lockstep import (
    Ranks,
    complete_ranks,
    cut_ranks,
    plan_ranks,
    seen_by_ranks,
    submit_to_rank,
)
from simserve.engine.state import CONTINUOUS, INFINITY, SHIFT, STATIC, Replica, RequestTable
from simserve.engine.static import break_batch, leave_batch
from simserve.engine.tables import StepTimes
from simserve.engine.uncached import leave_uncached


class Team(Ranks):
    """The ranks of one replica, which look like one scheduler from outside: numbers of requests are sums.

    What is said of blocks, and of tokens in a step, is a mean over the ranks: the share of memory in use is then that
    of the replica.
    """

    __slots__ = ()
    mode = CONTINUOUS
    is_contiguous = has_slots = False

    @property
    def config(self) -> EngineConfig:
        """What each rank obeys."""
        return self.ranks[0].config

    @property
    def max_num_seqs(self) -> int:
        """Seats."""
        return sum(rank.max_num_seqs for rank in self.ranks)

    @property
    def num_running(self) -> int:
        """Requests with a seat."""
        return sum(rank.num_running for rank in self.ranks)

    @property
    def num_outstanding(self) -> int:
        """Requests that have not ended."""
        return sum(rank.num_outstanding for rank in self.ranks)

    @property
    def num_steps(self) -> int:
        """Steps of the common leap; 0: none runs."""
        return max(rank.num_steps for rank in self.ranks)

    @property
    def start_time(self) -> float:
        """When the leap began that runs, seconds."""
        return max(rank.start_time for rank in self.ranks)

    @property
    def num_scheduled_decodes(self) -> float:
        """Sequences that decode in a step."""
        return sum(rank.num_scheduled_decodes for rank in self.ranks) / len(self.ranks)

    @property
    def prefill_tokens(self) -> float:
        """Tokens of prompts in a step."""
        return sum(rank.prefill_tokens for rank in self.ranks if rank.chunk_requests) / len(self.ranks)

    @property
    def chunk_requests(self) -> list[int]:
        """Requests with a part of their prompt in the step."""
        return [index for rank in self.ranks for index in rank.chunk_requests]

    @property
    def grows(self) -> bool:
        """Whether blocks are taken as contexts grow."""
        return self.ranks[0].grows

    @property
    def num_blocks(self) -> int:
        """KV blocks of a rank."""
        return self.ranks[0].num_blocks

    @property
    def free_blocks(self) -> float:
        """Those of them that are free."""
        return sum(rank.free_blocks for rank in self.ranks) / len(self.ranks)

    @property
    def leaps(self) -> bytearray:
        """The longest list of leaps."""
        return max((rank.leaps for rank in self.ranks), key=len)


Scheduler = Replica | Team


def schedulers_of(number: int, config: EngineConfig, times: StepTimes) -> Scheduler:
    """Return what moves a new replica."""
    if config.data_parallel_size == 1:
        replica = Replica(number, config, times)
        replica.finished = []
        return replica
    team = Team([Replica(number, config, times) for _ in range(config.data_parallel_size)])
    team.finished = []
    for rank in team.ranks:
        rank.finished = team.finished
    return team


def each_of(scheduler: Scheduler) -> list[Replica]:
    """Return the schedulers that write down what a replica does."""
    return [scheduler] if isinstance(scheduler, Replica) else scheduler.ranks


def as_one(scheduler: Scheduler) -> Replica:
    """Return what looks like one scheduler to whoever only reads loads and memory; a team does."""
    return cast(Replica, scheduler)


def take_finished(scheduler: Scheduler) -> list[int]:
    """Return which requests have finished, and forget it."""
    assert scheduler.finished is not None
    finished = list(scheduler.finished)
    scheduler.finished.clear()
    return finished


def submit(scheduler: Scheduler, requests: RequestTable, index: int, now: float) -> None:
    """Queue a request."""
    if isinstance(scheduler, Replica):
        kernel.submit(scheduler, requests, index, now)
    else:
        submit_to_rank(scheduler, requests, index, now)


def complete(scheduler: Scheduler, requests: RequestTable) -> int:
    """Apply the leap that ends at ``end_time``; return how many requests finished."""
    if isinstance(scheduler, Replica):
        return kernel.complete(scheduler, requests)
    return complete_ranks(scheduler, requests)


def plan(scheduler: Scheduler, requests: RequestTable) -> None:
    """Plan the next leap at ``end_time``."""
    if isinstance(scheduler, Replica):
        kernel.plan(scheduler, requests)
    else:
        plan_ranks(scheduler, requests)


def seen_time(scheduler: Scheduler, now: float) -> float:
    """Return when an arrival at ``now`` is seen."""
    return kernel.seen_time(scheduler, now) if isinstance(scheduler, Replica) else seen_by_ranks(scheduler, now)


def end_leap(scheduler: Scheduler, now: float) -> bool:
    """Let the leap end with the step that runs at ``now``; return whether one runs at all.

    A static batch is one step to everybody outside: nothing is added to it, and nobody leaves it before its end.
    """
    if not isinstance(scheduler, Replica):
        cut_ranks(scheduler, now)
        return scheduler.num_steps > 0
    if not scheduler.num_steps:
        return False
    if scheduler.num_steps > 1 and scheduler.mode != STATIC:
        kernel.cut(scheduler, now)
    return True


def break_off(scheduler: Scheduler, now: float) -> None:
    """Let a static batch end with the step that runs, and its requests wait again; nothing elsewhere."""
    if isinstance(scheduler, Replica) and scheduler.mode == STATIC:
        break_batch(scheduler, now)


def cancel(scheduler: Scheduler, requests: RequestTable, index: int) -> None:
    """Take an unfinished request out, between `complete` and `plan`."""
    if not isinstance(scheduler, Replica):
        scheduler = next(rank for rank in scheduler.ranks if _holds(rank, requests, index))
    if scheduler.mode == CONTINUOUS:
        cancel_continuous(scheduler, requests, index)
    elif scheduler.mode == STATIC:
        leave_batch(scheduler, index)
    else:
        leave_uncached(scheduler, requests, index)


def _holds(rank: Replica, requests: RequestTable, index: int) -> bool:
    entry = requests.finish_step[index] << SHIFT | index
    return index in rank.prefilling or entry in rank.finish_heap or index in rank.waiting


def use_times(scheduler: Scheduler, times: StepTimes) -> None:
    """Let steps take ``times`` from the next one on."""
    for each in each_of(scheduler):
        slowing.use_times(each, times)


def take_in(scheduler: Scheduler, requests: RequestTable, index: int, now: float) -> bool:
    """Let a request decode whose KV cache was computed elsewhere; return False if there is no room."""
    if isinstance(scheduler, Replica):
        return handover.take_in(scheduler, requests, index, now)
    for rank in sorted(scheduler.ranks, key=lambda rank: rank.num_outstanding):
        if handover.take_in(rank, requests, index, now):
            scheduler.end_time = now
            return True
    return False


def strike(scheduler: Scheduler, index: int) -> None:
    """Strike a request off the lists of those that could be preempted."""
    for each in each_of(scheduler):
        handover.strike(each, index)


def stand_still(scheduler: Scheduler) -> None:
    """Plan nothing, whatever waits, until `go_on`."""
    for each in each_of(scheduler):
        each.end_time = INFINITY
    scheduler.end_time = INFINITY


def go_on(scheduler: Scheduler, now: float) -> None:
    """Plan again at ``now``."""
    for each in each_of(scheduler):
        if each.num_outstanding:
            each.end_time = now
    scheduler.end_time = now
