"""Requests that a step passes over, counted out by hand: priorities in vLLM up to 0.32. Every step takes a second."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.agreement import assert_agrees
from tests.builders import constant_step_times, make_config, make_specs


@pytest.mark.parametrize(("ends_pass", "third"), [(True, 4.0), (False, 3.0)])
def test_who_preempts_itself_ends_the_pass(ends_pass: bool, third: float) -> None:
    """In the third step the first takes the last block, the second needs one: the third, which needs none, waits."""
    config = make_config(num_blocks=4, max_model_len=8, scheduling_policy="priority", ends_pass=ends_pass)
    specs = replace(make_specs([0.0, 0.0, 0.5], [3, 3, 1], [3, 3, 2]), priority=np.array([0, 1, 0]))

    records = assert_agrees(config, constant_step_times(), specs).records

    assert records.finish_time.tolist() == [3.0, 4.0, third]
    assert records.itl_max.tolist() == [1.0, 2.0, third - 2.0]
    assert records.num_preemptions.tolist() == [0, 1, 0]


@pytest.mark.parametrize("is_ahead", [False, True])
def test_a_step_that_passes_over_everybody_is_scheduled_again(is_ahead: bool) -> None:
    """The first preempts itself, so that nobody computes anything; those behind it decode all the same."""
    config = make_config(
        num_blocks=3,
        max_model_len=8,
        scheduling_policy="priority",
        ends_pass=True,
        async_scheduling=is_ahead,
        releases_late=True,
    )
    specs = make_specs([0.0, 0.5, 0.5], [3 - is_ahead, 1, 1], [3 + is_ahead, 2, 2])
    specs = replace(specs, priority=np.array([1, 0, 0]))

    records = assert_agrees(config, constant_step_times(), specs).records

    assert records.finish_time.tolist() == pytest.approx([4.0 + is_ahead, 3.0 + is_ahead, 3.0 + is_ahead])
    assert records.num_preemptions.tolist() == [1, 0, 0]


@pytest.mark.parametrize(("misses_next", "third"), [(True, 5.0), (False, 4.0)])
def test_the_pass_misses_one_where_a_finished_request_makes_room(misses_next: bool, third: float) -> None:
    """Scheduled ahead, the first is done and still holds the block that the second needs: the third is missed."""
    config = make_config(
        num_blocks=4,
        max_model_len=8,
        scheduling_policy="priority",
        ends_pass=True,
        misses_next=misses_next,
        async_scheduling=True,
        releases_late=True,
    )
    specs = replace(make_specs([0.0, 0.4, 0.5], [3, 4, 1], [3, 2, 2]), priority=np.array([1, 0, 0]))

    records = assert_agrees(config, constant_step_times(), specs).records

    assert records.finish_time.tolist() == [3.0, 4.0, third]
    assert records.num_preemptions.tolist() == [1, 0, 0]


def test_a_prompt_that_preempts_itself_ends_the_pass_over_prompts() -> None:
    """Two prompts are computed in chunks of two tokens; the first finds no block, and the second waits with it."""
    config = make_config(
        block_size=2,
        num_blocks=5,
        max_model_len=10,
        max_num_batched_tokens=8,
        max_chunk_tokens=2,
        scheduling_policy="priority",
        ends_pass=True,
    )
    specs = replace(make_specs([0.0, 0.0, 0.5], [1, 6, 6], [3, 1, 1]), priority=np.array([0, 2, 1]))

    ended = assert_agrees(config, constant_step_times(), specs).records
    went_on = assert_agrees(replace(config, ends_pass=False), constant_step_times(), specs).records

    assert ended.num_preemptions[1] == went_on.num_preemptions[1] == 1
    assert (ended.finish_time[2], went_on.finish_time[2]) == (5.0, 4.0)


def test_who_has_a_full_window_takes_one_block_for_its_next_token() -> None:
    """One group of layers keeps all and another four blocks: 16 of 17 are taken by prompts of 1, 3 and 4 tokens.

    The first, which matters least, needs two blocks, and preempts itself: three are free. The second takes two, and the
    third, whose window is full, the last one.
    """
    windows = {"window_blocks": 4, "window_groups": 1, "block_size": 1, "num_blocks": 17, "max_model_len": 9}
    config = make_config(**windows, scheduling_policy="priority", ends_pass=True)
    specs = replace(make_specs([0.0, 0.0, 0.0], [1, 3, 4], 2), priority=np.array([1, 0, 0]))

    records = assert_agrees(config, constant_step_times(), specs).records

    assert records.num_preemptions.tolist() == [1, 0, 0]
    assert records.finish_time.tolist() == [3.0, 2.0, 2.0]
