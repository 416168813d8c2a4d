"""The invariants of a step, where they are hard to state."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simserve.workload.prefixes import PrefixSegments
from simserve.workload.requests import ClientLoop, RequestSpecs
from tests.agreement import assert_agrees
from tests.builders import constant_step_times, make_closed_loop, make_config
from tests.walker import walk


def conversations() -> RequestSpecs:
    """Return three conversations and one client, as a drawn test found them."""
    segments = [
        *([0, 2], [0, 2, 3], [0, 2, 3, 4], [0, 2, 3, 4, 5], [0, 2, 3, 4, 6]),
        *([0, 7], [0, 7, 8], [0, 7, 8, 9], [0, 7, 8, 9, 10], [0, 11], [0, 12]),
    ]
    ends = [
        *([1, 5], [1, 5, 7], [1, 5, 7, 9], [1, 5, 7, 9, 11], [1, 5, 7, 9, 11]),
        *([1, 9], [1, 9, 11], [1, 9, 11, 13], [1, 9, 11, 13, 15], [1, 4], [1, 7]),
    ]
    arrivals = np.full(11, np.nan)
    arrivals[[0, 5, 9]] = 0.0, 1.8, 1.8
    return replace(
        make_closed_loop(1, [2, 6, 8, 10, 10, 5, 10, 12, 14, 2, 6], [3, 1, 1, 1, 1, 4, 1, 1, 1, 2, 1]),
        arrival_time=arrivals,
        prefixes=PrefixSegments(
            offsets=np.cumsum([0, *map(len, segments)]), segments=np.concatenate(segments), ends=np.concatenate(ends)
        ),
        session=np.array([0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 3]),
        turn=np.array([1, 2, 3, 4, 4, 1, 2, 3, 4, 1, 1]),
        loop=np.array([-1] * 10 + [0], dtype=np.int8),
        loops=(ClientLoop(concurrency=1, ramp_up=None),),
    )


def test_a_decode_may_take_the_blocks_for_which_the_head_had_to_wait() -> None:
    """Prompts first: the head finds its prefix and lacks room beside it; then a decode evicts the prefix.

    Without it the head would ask for less, but it was asked before the decodes, and the step is planned.
    """
    config = make_config(
        scheduler="prefill_first",
        max_num_seqs=2,
        max_num_batched_tokens=5,
        max_chunk_tokens=3,
        checkpoint_tokens=6,
        last_checkpoint_tokens=5,
        max_model_len=11,
        enable_prefix_caching=True,
        waits_for_prefix=True,
        block_size=2,
        num_blocks=6,
        watermark_blocks=3,
    )
    times = constant_step_times(max_num_seqs=2)

    outcome = walk(config, times, conversations())

    assert_agrees(config, times, conversations(), outcome)
