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


def agreed(
    config: EngineConfig,
    times: StepTimes,
    prompts: list[int],
    outputs: list[int],
    arrivals: list[float] | None = None,
) -> Outcome:
    """Return what the walker does with requests, which arrive at once by default; the kernel must do the same."""
    specs = make_specs(arrivals or [0.0] * len(prompts), prompts, outputs)
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


def paced(**overrides: Any) -> StepTimes:
    """Return times in which a sequence of a micro-batch takes half a second in each of two stages, and prompts none."""
    return affine_step_times(max_num_seqs=16, step_seconds=1e-9, decode_sequence_seconds=0.5, **overrides)


def gaps_of(config: EngineConfig, times: StepTimes, prompts: list[int]) -> list[float]:
    """Return the largest gaps between the six tokens of requests that arrive at once, seconds."""
    outcome = agreed(config, times, prompts, [6] * len(prompts))
    return [round(gap, 6) for gap in outcome.itl_max.tolist()]


def test_requests_that_arrive_together_decode_as_one_micro_batch() -> None:
    """Four short prompts in one micro-batch of 8 tokens: a stage waits for the other, 2 x 4 x 0.5 s a token."""
    assert gaps_of(make_stages(2, keeps_micro_batches=True), paced(), [2, 2, 2, 2]) == [4.0] * 4
    assert gaps_of(make_stages(2), paced(), [2, 2, 2, 2]) == [2.0] * 4


def test_prompts_beyond_a_micro_batch_begin_another_one() -> None:
    """Prompts of a micro-batch each spread over both: two and two, as if nobody had to wait."""
    assert gaps_of(make_stages(2, keeps_micro_batches=True), paced(), [8, 8, 8, 8]) == [2.0] * 4


def test_a_newcomer_joins_the_micro_batch_that_is_there() -> None:
    """The second arrives while the first decodes; nothing else is in flight, so both take turns from then on."""
    config = make_stages(2, keeps_micro_batches=True)
    outcome = agreed(config, paced(), [2, 2], [8, 2], [0.0, 1.2])

    assert outcome.itl_max.tolist() == pytest.approx([2.0, 2.0], abs=1e-6)


def test_context_counts_for_the_largest_micro_batch() -> None:
    """Three sequences of 3, 3 and 3 tokens in one of two micro-batches: 9 tokens, twice."""
    times = affine_step_times(max_num_seqs=16, step_seconds=1e-9, decode_context_seconds=1.0)
    outcome = agreed(make_stages(2, keeps_micro_batches=True), times, [2, 2, 2], [2, 2, 2])

    assert outcome.itl_max.tolist() == pytest.approx([12.0] * 3)


def test_a_lone_request_waits_for_nobody() -> None:
    """One sequence passes both stages once."""
    assert gaps_of(make_stages(2, keeps_micro_batches=True), paced(), [2]) == [0.5]
    assert gaps_of(make_stages(2, samples_in_turn=True), paced(), [2]) == [0.5]


def test_prompts_beside_decodes_wait_where_stages_wait_for_samples() -> None:
    """A prompt of 16 tokens over two stages, alone in 12 s; beside a decoding request at most 8 tokens a step."""
    times = affine_step_times(max_num_seqs=16, step_seconds=1e-9, token_seconds=0.5, decode_sequence_seconds=0.25)
    alone = make_stages(2, samples_in_turn=True)

    assert agreed(alone, times, [16], [1]).first_token_time[0] == pytest.approx(12.0)
    outcome = agreed(alone, times, [2, 16], [40, 1], [0.0, 2.5])
    # A token of the other one beside 7, 7 and 2 of the prompt, each step through both stages.
    assert [tokens for _, decoding, tokens, _ in outcome.batches if decoding and tokens] == [7, 7, 2]
    assert outcome.first_token_time[1] - outcome.scheduled_time[1] == pytest.approx(8.0 + 8.0 + 3.0, abs=1e-6)
