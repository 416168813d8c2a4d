"""Static batches of walker and kernel, and the worked examples of batching, worked out by hand."""

from __future__ import annotations

import math

import pytest

from tests.agreement import walk_alike as walk
from tests.builders import affine_step_times, constant_step_times, make_config, make_specs

SECOND = constant_step_times(1.0)
STATIC = {"batching": "static", "max_model_len": 1024, "num_blocks": 4096, "max_num_seqs": 8}


def test_a_static_batch_starts_when_it_is_full_or_has_waited() -> None:
    """The first two fill a batch; the third waits its 4 s, and the fourth is too late for it."""
    config = make_config(**STATIC, static_batch_size=2, static_max_wait=4.0)
    outcome = walk(config, SECOND, make_specs([0.0, 1.0, 2.0, 8.0], 4, 2))

    assert outcome.scheduled_time.tolist() == [1.0, 1.0, 6.0, 12.0]
    assert outcome.finish_time.tolist() == [3.0, 3.0, 8.0, 14.0]
    assert outcome.first_token_time.tolist() == outcome.finish_time.tolist()
    assert outcome.gaps == []
    assert all(math.isnan(one) for one in outcome.itl_max)


def test_a_static_batch_pads_to_its_longest() -> None:
    """Prompts of 3 and 5 and outputs of 1 and 3 cost 2 x 5 prefill tokens and contexts of 2 x 5, 2 x 6."""
    config = make_config(**STATIC, static_batch_size=2)
    times = affine_step_times(step_seconds=0.0, token_seconds=1.0, decode_context_seconds=16.0)
    outcome = walk(config, times, make_specs([0.0, 0.0], [3, 5], [1, 3]))

    assert outcome.finish_time.tolist() == [10 + 16.0 * (10 + 12)] * 2
    assert outcome.num_steps == 3


@pytest.mark.parametrize(
    ("kv_allocation", "sizes"),
    [("paged", [3, 1]), ("static", [1, 1, 1, 1]), ("none", [4])],
)
def test_memory_limits_a_static_batch(kv_allocation: str, sizes: list[int]) -> None:
    """In 24 tokens: slots of 8 (P + M = 6, in blocks of 4), slots of 16, no slots."""
    config = make_config(
        batching="static",
        static_batch_size=8,
        max_num_seqs=4,
        num_blocks=6,
        max_model_len=16,
        kv_allocation=kv_allocation,
    )
    outcome = walk(config, SECOND, make_specs([0.0] * 4, 4, 1, 2))

    assert [len(indices) for _, _, _, indices in outcome.batches] == sizes


def test_static_lengths_10_50_200_500() -> None:
    """Worked example: 500 steps, 0.008 sequences a step."""
    config = make_config(**STATIC, static_batch_size=4)
    outcome = walk(config, SECOND, make_specs([0.0] * 4, 10, [10, 50, 200, 500]))

    assert outcome.num_steps == 500
    assert 4 / outcome.num_steps == pytest.approx(0.008)


def test_static_seven_short_and_one_long() -> None:
    """Worked example: 850 tokens in 5 s at 10 ms a step are 170 tokens/s."""
    config = make_config(**STATIC, static_batch_size=8)
    outcome = walk(config, constant_step_times(0.01), make_specs([0.0] * 8, 10, [50] * 7 + [500]))

    assert outcome.finish_time.max() == pytest.approx(5.0)
    assert outcome.generated_tokens.sum() / outcome.finish_time.max() == pytest.approx(170.0)


def test_static_wastes_slots() -> None:
    """Worked example: 7 x 20 and 1 x 500 tokens leave 3,360 of 4,000 slot-steps unused."""
    config = make_config(**STATIC, static_batch_size=8)
    outcome = walk(config, SECOND, make_specs([0.0] * 8, 10, [20] * 7 + [500]))

    assert 8 * outcome.num_steps - outcome.generated_tokens.sum() == 3360


def test_continuous_with_a_full_queue_gives_every_seat_a_token() -> None:
    """Worked example: 8 seats at 10 ms a step give 800 tokens/s, 4.7 times the static 170."""
    config = make_config(max_num_seqs=8, max_num_batched_tokens=4096, max_model_len=1024, num_blocks=4096)
    outputs = ([50] * 7 + [500]) * 8
    outcome = walk(config, constant_step_times(0.01), make_specs([0.0] * 64, 1, outputs))
    tokens = sum(len(indices) for _, _, _, indices in outcome.batches[:500])

    assert outcome.step_ends[499] == pytest.approx(5.0)
    assert tokens / outcome.step_ends[499] == pytest.approx(800.0)
    assert tokens / 850 == pytest.approx(4.7, abs=0.01)


def test_equal_lengths_make_static_and_continuous_agree() -> None:
    """Worked example: with equal lengths nothing is padded, and both take the same time."""
    specs = make_specs([0.0] * 4, 10, 20)
    times = affine_step_times(token_seconds=0.5, decode_context_seconds=0.25, prefill_pair_seconds=0.125)
    roomy = {"max_model_len": 64, "num_blocks": 256, "max_num_batched_tokens": 64}
    static = walk(make_config(**roomy, batching="static", static_batch_size=4), times, specs)
    continuous = walk(make_config(**roomy), times, specs)

    assert static.finish_time.tolist() == continuous.finish_time.tolist()
    assert static.num_steps == continuous.num_steps
