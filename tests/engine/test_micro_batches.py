"""Micro-batches of pipeline stages, in the kernel and the walker: what overlaps in the stages, and what waits."""

from __future__ import annotations

from typing import Any

import pytest

from simserve.engine.config import EngineConfig
from simserve.engine.micro_batches import lone_tokens
from simserve.engine.state import StepTimes
from tests.agreement import assert_agrees
from tests.builders import affine_step_times, make_config, make_specs
from tests.walker import Outcome, walk


def make_stages(stages: int, **overrides: Any) -> EngineConfig:
    """Return a replica of several stages, 8 tokens a micro-batch, in which the chunks of a prompt overlap."""
    values = {"overlaps_chunks": True, "max_chunk_tokens": 8 * stages, "num_blocks": 64} | overrides
    return make_config(max_num_batched_tokens=8, pipeline_parallel_size=stages, **values)


def agreed(config: EngineConfig, times: StepTimes, prompts: list[int], outputs: list[int]) -> Outcome:
    """Return what the walker does with requests that arrive at once, after the kernel has done the same."""
    specs = make_specs([0.0] * len(prompts), prompts, outputs)
    outcome = walk(config, times, specs)
    assert_agrees(config, times, specs, outcome)
    return outcome


@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize("chunks", [1, 2, 3, 6])
def test_m_chunks_pass_p_stages_in_m_and_p_less_one_stage_times(stages: int, chunks: int) -> None:
    """A token takes a second in all stages, so a chunk of 8 takes 8 / p in one; alone, it waits for none."""
    times = affine_step_times(step_seconds=0.0, token_seconds=1.0 / stages)
    outcome = agreed(make_stages(stages), times, [8 * chunks], [1])

    assert outcome.first_token_time[0] == pytest.approx(8 / stages * (chunks + stages - 1))


def test_elsewhere_a_chunk_waits_for_the_one_before_it() -> None:
    """The same three chunks over two stages, each through both: 24 s instead of 16."""
    times = affine_step_times(step_seconds=0.0, token_seconds=0.5)
    apart = make_stages(2, overlaps_chunks=False, max_chunk_tokens=8)

    assert agreed(apart, times, [24], [1]).first_token_time[0] == 24.0
    assert agreed(make_stages(2), times, [24], [1]).first_token_time[0] == 16.0


def test_attention_of_overlapping_chunks_takes_the_same_share() -> None:
    """Pairs of 16 tokens, 136, over two stages: 3 of 4 stage times; keys, 8 and 16, likewise."""
    pairs = affine_step_times(step_seconds=1e-9, prefill_pair_seconds=1.0)
    keys = affine_step_times(step_seconds=1e-9, prefill_context_seconds=1.0)

    assert agreed(make_stages(2), pairs, [16], [1]).first_token_time[0] == pytest.approx(0.75 * 136)
    assert agreed(make_stages(2), keys, [16], [1]).first_token_time[0] == pytest.approx(0.75 * (8 + 16))


def test_other_prompts_fill_the_stages_beside_the_last_chunk() -> None:
    """Prompts of 12 and 4 tokens make full micro-batches of 8: the last of the longer one does not wait alone."""
    times = affine_step_times(step_seconds=0.0, token_seconds=0.5)

    assert agreed(make_stages(2), times, [12, 4], [1, 1]).first_token_time.tolist() == [10.0, 10.0]
    assert lone_tokens(2, 8, 12, is_last=True) == (20, 2)
    assert lone_tokens(2, 8, 12, is_last=False) == (16, 2)
    assert lone_tokens(2, 0, 12, is_last=True) == (24, 1)
