"""From recorded calls of agents to a trace: sorted, with what they waited for and which blocks they share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simserve.workload.traces.tasks import RecordedCall, tasks_by_time
from simserve.workload.traces.trace import PrefixBlocks, Trace


def trace_of_calls(
    calls: Sequence[RecordedCall], block_tokens: int | None, *, num_unserved: int, has_arrival_times: bool
) -> Trace:
    """Return the trace of some calls.

    Args:
        calls: They; with ``has_arrival_times`` on one clock, else in the order of their tasks.
        block_tokens: Tokens of a block, where all of them say which they begin with; None: they do not.
        num_unserved: Rows left out.
        has_arrival_times: Whether the recording says when tasks begin.
    """
    if has_arrival_times:
        calls = sorted(calls, key=lambda call: call.start)
    starts = np.array([call.start for call in calls], dtype=np.float64)
    tasks = tasks_by_time(calls)
    blocks = None
    if block_tokens is not None and all(call.blocks is not None for call in calls):
        lists = [call.blocks or () for call in calls]
        blocks = PrefixBlocks(
            block_tokens=block_tokens,
            ids=np.array([each for ids in lists for each in ids], dtype=np.int64),
            counts=np.array([len(ids) for ids in lists], dtype=np.int64),
        )
    return Trace(
        arrival_time=starts - starts[0] if has_arrival_times else np.full(len(calls), np.nan),
        prompt_tokens=np.array([call.prompt_tokens for call in calls], dtype=np.int64),
        output_tokens=np.array([call.output_tokens for call in calls], dtype=np.int64),
        prefix_blocks=blocks,
        session=tasks.task if (tasks.task >= 0).any() else None,
        tasks=tasks if (tasks.task >= 0).any() else None,
        num_unserved=num_unserved,
    )
