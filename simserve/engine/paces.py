"""Joining and leaving the decoding requests of a replica that decodes speculatively, each at a pace of its own.

The counterpart of `simserve.engine.decoding` for replicas with a `Progress`; plain decoding never comes here.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappush

from simserve.engine.progress import GRID, Progress
from simserve.engine.state import ESTIMATE_CLIP, SHIFT, Replica, RequestTable
from simserve.engine.windows import leave_window


class Paces:
    """Speculative decoding where pools differ: what a decode step brings a request on each of them.

    Attributes:
        values: In parts of a token (`simserve.engine.progress.GRID`), pool after pool; shape [pools x N].
        first: Of each replica, where the values of its pool begin.
    """

    __slots__ = ("first", "values")

    def __init__(self, values: Sequence[int], first: list[int]) -> None:
        self.values, self.first = values, first


def use_pace(paces: Paces, requests: RequestTable, number: int, index: int) -> None:
    """Note what a decode step brings a request on the replica that it joins."""
    requests.pace[index] = paces.values[paces.first[number] + index]


def join_at_pace(
    replica: Replica, requests: RequestTable, progress: Progress, index: int, context: int, generated: int
) -> None:
    """Let a request decode from the next step on; arguments as of `simserve.engine.decoding.join_decoding`."""
    step, pace = replica.step, requests.pace[index]
    base = GRID * context - pace * step
    finish_step = step - (GRID * (generated - requests.output_tokens[index]) // pace)
    requests.context_base[index] = base
    requests.finish_step[index] = finish_step
    requests.joined_step[index] = step
    requests.joined_leap[index] = replica.leap_index
    requests.last_token_time[index] = replica.end_time
    replica.num_decoding += 1
    replica.context_sum += context
    heappush(replica.finish_heap, finish_step << SHIFT | index)
    progress.join(base, pace, step)
    if replica.uses_estimate:
        _estimate(replica, requests, index, 1, generated)


def leave_at_pace(replica: Replica, requests: RequestTable, progress: Progress, index: int) -> None:
    """Take a request out of the aggregates of the decoding ones, and its growing blocks with it."""
    if replica.has_thinking:
        requests.answer_step[index] = -1
    step, pace, base = replica.step, requests.pace[index], requests.context_base[index]
    context = (base + pace * step) / GRID
    replica.num_decoding -= 1
    replica.context_sum -= context
    held = progress.leave(base, pace, step, requests.joined_step[index])
    if replica.grows:
        if replica.keeps_windows:
            leave_window(replica, requests, index, held)
        else:
            replica.free_blocks += held
        if replica.uses_estimate:
            _estimate(replica, requests, index, -1, context - requests.prompt_tokens[index] + 1)


def generated_at_pace(replica: Replica, requests: RequestTable, index: int) -> int:
    """Return the whole tokens that a decoding request has generated, before its last step."""
    context = (requests.context_base[index] + requests.pace[index] * replica.step) // GRID
    return context - requests.prompt_tokens[index] + 1


def _estimate(replica: Replica, requests: RequestTable, index: int, sign: int, generated: float) -> None:
    """Count (or, with -1, discount) what a request that has ``generated`` tokens may still need."""
    most = requests.max_tokens[index]
    if most > ESTIMATE_CLIP:
        replica.estimate_sum += sign * ESTIMATE_CLIP
    else:
        replica.estimate_sum += sign * (most - generated)
        replica.estimate_shrinking += sign * requests.pace[index] / GRID
