"""A batch that is full by SGLang's estimate: when the head of the queue is asked again."""

from __future__ import annotations

import pytest

from tests.agreement import assert_agrees
from tests.builders import constant_step_times, make_config, make_specs

SECOND = constant_step_times(1.0)


@pytest.mark.parametrize(("seats", "num_blocks"), [(8, 18), (2, 64)])
def test_a_batch_that_was_full_asks_again_one_step_after_somebody_left(seats: int, num_blocks: int) -> None:
    """The step that strikes the one who left off the batch comes first: SGLang looks for new prompts before it does.

    The first prompts take a step of a second; the shorter answer ends at 4 s. The third request, which found too few
    blocks or no seat, is not asked at 4 s but at 5 s, although it would have fitted.
    """
    config = make_config(
        scheduler="prefill_first",
        admission="estimate",
        max_num_seqs=seats,
        max_model_len=16,
        block_size=1,
        num_blocks=num_blocks,
        new_token_ratio_initial=1.0,
        new_token_ratio_minimum=1.0,
    )
    specs = make_specs([0.0, 0.0, 0.5], [2, 2, 2], [4, 9, 2], [4, 9, 2])
    records = assert_agrees(config, SECOND, specs).records

    assert records.scheduled_time.tolist() == [0.0, 0.0, 5.0]


def test_a_prompt_in_pieces_lets_others_be_asked() -> None:
    """A piece leaves the batch when its step is over, and the batch is not full any more: SGLang again."""
    config = make_config(
        scheduler="prefill_first",
        admission="estimate",
        max_num_seqs=8,
        max_model_len=32,
        block_size=1,
        num_blocks=40,
        enable_chunked_prefill=True,
        max_num_batched_tokens=4,
        max_chunk_tokens=4,
        new_token_ratio_initial=1.0,
        new_token_ratio_minimum=1.0,
    )
    specs = make_specs([0.0, 0.5, 0.5], [2, 12, 20], [20, 2, 2], [20, 2, 2])

    assert_agrees(config, SECOND, specs)


@pytest.mark.parametrize("scheduler", ["mixed", "prefill_first"])
@pytest.mark.parametrize("block_size", [1, 2, 4])
@pytest.mark.parametrize("initial", [0.375, 0.75, 1.0])
@pytest.mark.parametrize("decay", [0.125, *(pytest.param(each, marks=pytest.mark.slow) for each in (0.03125, 0.25))])
def test_the_estimate_admits_at_the_first_step_it_can(
    scheduler: str, block_size: int, initial: float, decay: float
) -> None:
    """One request decodes and one waits: every pair of lengths, ratios exact in binary."""
    for extra in (0, 1, 3):
        config = make_config(
            scheduler=scheduler,
            admission="estimate",
            max_num_seqs=2,
            max_model_len=16,
            block_size=block_size,
            num_blocks=16 // block_size + extra,
            new_token_ratio_initial=initial,
            new_token_ratio_minimum=0.0625,
            new_token_ratio_decay=decay,
        )
        for output in (3, 7, 13):
            for prompt, asked in ((1, 2), (2, 9), (4, 2), (7, 8), (10, 1)):
                specs = make_specs([0.0, 0.5], [3, prompt], [output, 1], [output, asked])
                assert_agrees(config, SECOND, specs)


@pytest.mark.parametrize(("prompt", "scheduled"), [(63, 1.0), (64, 8.0)])
def test_the_estimate_of_a_very_long_answer_is_clipped(prompt: int, scheduled: float) -> None:
    """Of max_tokens 5,000 the estimate sets 4,096 aside, and no less with each token: 63 + 4,000 < 8,160 - 4,096."""
    config = make_config(
        admission="estimate",
        max_num_batched_tokens=128,
        max_model_len=8192,
        block_size=16,
        num_blocks=512,
        new_token_ratio_initial=1.0,
        new_token_ratio_minimum=1.0,
    )
    records = assert_agrees(config, SECOND, make_specs([0.0, 0.5], [16, prompt], [8, 1], [5000, 4000])).records

    assert records.scheduled_time.tolist() == [0.0, scheduled]


def test_the_ratio_after_a_preemption_looks_twenty_tokens_ahead() -> None:
    """Long answers, so that the ratio stays below 1: some prompt is the last one let in."""
    config = make_config(
        admission="estimate",
        max_num_batched_tokens=128,
        max_model_len=200,
        num_blocks=52,
        new_token_ratio_initial=0.0,
        new_token_ratio_minimum=0.0,
        new_token_ratio_decay=2.0**-10,
    )
    scheduled = set()
    for prompt in range(32, 64):
        specs = make_specs([0.0, 0.5, 99.5], [4, 4, prompt], [190, 150, 1])
        records = assert_agrees(config, SECOND, specs).records
        assert records.num_preemptions.tolist() == [0, 1, 0]
        scheduled.add(float(records.scheduled_time[2]))

    assert {102.0, 190.0} <= scheduled


def test_a_retraction_expects_twenty_more_tokens_of_each_that_is_left() -> None:
    """SGLang's look-ahead (SGLANG_RETRACT_DECODE_STEPS, 20): with 24, the victim would come back three steps later."""
    config = make_config(
        num_blocks=30,
        max_model_len=130,
        admission="estimate",
        new_token_ratio_initial=0.0,
        new_token_ratio_minimum=0.0,
        new_token_ratio_decay=0.01,
    )
    specs = make_specs([0.0, 0.5, 0.5], [30, 4, 12], [56, 48, 67], [100, 60, 80])

    assert assert_agrees(config, SECOND, specs).records.finish_time.tolist() == [56.0, 64.0, 123.0]


@pytest.mark.parametrize(
    ("checkpoints", "first_token"),
    [((0, 0), 8.0), ((20, 3), 9.0), ((16, 16), 8.0), ((17, 1), 9.0), ((60, 5), 8.0)],
)
def test_equal_chunks_stop_short_of_a_checkpoint(checkpoints: tuple[int, int], first_token: float) -> None:
    """A prompt of 60 tokens, 8 a step: chunks between checkpoints repeat, and the last of them is what is left.

    At 20 and 3 tokens before the end: 40 in five steps, 17 in three, and the last three.
    """
    first, last = checkpoints
    config = make_config(
        max_num_batched_tokens=64, max_chunk_tokens=8, checkpoint_tokens=first, last_checkpoint_tokens=last
    )
    records = assert_agrees(config, SECOND, make_specs([0.0], 60, 2)).records

    assert records.first_token_time.tolist() == [first_token]
