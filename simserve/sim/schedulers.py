"""What the managed fleet does to replicas that no plain plane knows: with static batches, or without a KV cache.

Everything else is `simserve.engine.data_parallel`'s.
"""

from __future__ import annotations

from simserve.engine import data_parallel
from simserve.engine.data_parallel import Ranks
from simserve.engine.state import CONTINUOUS, STATIC, RequestTable
from simserve.engine.static import break_batch, leave_batch
from simserve.engine.uncached import leave_uncached


def break_off(unit: Ranks, now: float) -> None:
    """Let a static batch end with the step that runs, and its requests wait again; nothing elsewhere."""
    if unit.ranks[0].mode == STATIC:
        break_batch(unit.ranks[0], now)
        unit.end_time = unit.ranks[0].end_time


def cancel(unit: Ranks, requests: RequestTable, index: int) -> None:
    """Take an unfinished request out, between `complete` and `plan`."""
    mode = unit.ranks[0].mode
    if mode == CONTINUOUS:
        data_parallel.cancel(unit, requests, index)
    elif mode == STATIC:
        leave_batch(unit.ranks[0], index)
    else:
        leave_uncached(unit.ranks[0], requests, index)


def take_finished(unit: Ranks) -> list[int]:
    """Return which requests have finished, and forget it."""
    taken: list[int] = []
    for rank in unit.ranks:
        assert rank.finished is not None
        taken += rank.finished
        rank.finished.clear()
    return taken
