"""TensorRT-LLM's second KV cache manager, in blocks of four tokens: who is suspended, what waits and what is found."""

from __future__ import annotations

from typing import Any

import pytest

from simserve.sim.simulate import Replay
from simserve.workload.requests import RequestSpecs
from tests.agreement import assert_agrees
from tests.builders import affine_step_times, constant_step_times, make_config, make_specs
from tests.engine.test_prefix_cache import with_paths

SECOND = constant_step_times(1.0)
ENGINE: dict[str, Any] = {
    "suspends": True,
    "evicts_by_block": True,
    "aligns_chunks": True,
    "enable_chunked_prefill": True,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 64,
    "max_chunk_tokens": 64,
    "num_blocks": 64,
    "max_used_blocks": 60,
    "block_size": 4,
}


def served(specs: RequestSpecs, **engine: Any) -> Replay:
    """Return what kernel and walker agree on."""
    return assert_agrees(make_config(**ENGINE | engine), SECOND, specs)


def test_a_suspended_request_goes_on_where_it_was() -> None:
    """At 5 s both need a fourth block and one is free: the last to arrive waits for it, and computes no token twice."""
    specs = make_specs([0.0, 0.0], 8, 8)
    engine = {"num_blocks": 7, "max_used_blocks": 6}

    records = served(specs, **engine).records

    assert records.num_preemptions.tolist() == [0, 1]
    assert records.finish_time.tolist() == [8.0, 11.0]


def test_no_step_computes_what_a_suspended_request_had_computed() -> None:
    """It decodes at once. Computed again, its 13 tokens would be a prompt, at 10 ms each."""
    specs = make_specs([0.0, 0.0], 8, 8)
    times = affine_step_times(token_seconds=0.01)
    engine = {"num_blocks": 7, "max_used_blocks": 6}

    suspended = assert_agrees(make_config(**ENGINE | engine), times, specs).records
    recomputed = assert_agrees(make_config(**ENGINE | engine | {"suspends": False}), times, specs).records

    assert recomputed.finish_time[1] - suspended.finish_time[1] == pytest.approx(13 * 0.01)


@pytest.mark.parametrize(("most", "start"), [(6, 12.0), (7, 1.0)])
def test_no_request_begins_while_too_many_blocks_are_in_use(most: int, start: float) -> None:
    """The first holds seven of twelve from its second step on, until it ends at 12 s."""
    specs = make_specs([0.0, 0.5], [24, 4], [12, 1])

    records = served(specs, num_blocks=12, max_used_blocks=most).records

    assert records.scheduled_time.tolist() == [0.0, start]


@pytest.mark.parametrize(("suspends", "start"), [(False, 1.0), (True, 2.0)])
def test_no_prompt_begins_with_less_than_a_block_of_budget(suspends: bool, start: float) -> None:
    """A decoding request and a prompt of four tokens leave three of eight: enough for the last prompt of two."""
    specs = make_specs([0.0, 0.5, 0.6], [8, 4, 2], [9, 1, 1])
    budget = {"max_num_batched_tokens": 8, "max_chunk_tokens": 8}

    records = served(specs, suspends=suspends, **budget).records

    assert records.scheduled_time.tolist() == [0.0, 1.0, start]


def test_a_prompt_that_finds_no_blocks_lets_those_behind_it_go() -> None:
    """The first holds five of eight blocks; the second needs five, the third one."""
    specs = make_specs([0.0, 0.5, 0.6], [16, 20, 4], [4, 1, 1])

    records = served(specs, num_blocks=8, max_used_blocks=8).records

    assert records.scheduled_time.tolist() == [0.0, 4.0, 1.0]


def test_a_running_prompt_that_finds_no_blocks_preempts_nobody() -> None:
    """Its third chunk waits until the request beside it has ended and given up its blocks."""
    specs = make_specs([0.0, 0.5], [12, 24], [8, 1])
    budget = {"max_num_batched_tokens": 12, "max_chunk_tokens": 12}

    records = served(specs, num_blocks=9, max_used_blocks=9, **budget).records

    assert records.num_preemptions.tolist() == [0, 0]
    assert records.finish_time.tolist() == [8.0, 9.0]


def test_a_later_turn_finds_the_prompt_and_not_the_answer() -> None:
    """Of 16 tokens that it repeats, the first eight were a prompt."""
    specs = make_specs([0.0, 20.0], [8, 20], [9, 1])

    records = served(with_paths(specs, [[(1, 16)], [(1, 16)]]), enable_prefix_caching=True).records

    assert records.cached_tokens.tolist() == [0, 8]


def test_a_prompt_alike_one_of_the_same_step_begins_a_step_later() -> None:
    """It then finds what that one has computed; a third one that is unlike them goes at once."""
    specs = make_specs([0.0, 0.0, 0.0], 20, 3)

    records = served(with_paths(specs, [[(1, 16)], [(1, 16)], [(2, 16)]]), enable_prefix_caching=True).records

    assert records.scheduled_time.tolist() == [0.0, 1.0, 0.0]
    assert records.cached_tokens.tolist() == [0, 16, 0]


def test_a_suspended_prompt_keeps_what_it_has_computed() -> None:
    """Three chunks of eight tokens until its fourth finds no blocks; at 9 s the first request takes those of the third.

    They fit again when that one has ended, at 24 s, and only the last chunk is left.
    """
    specs = make_specs([0.0, 0.5], [8, 32], [24, 1])
    budget = {"max_num_batched_tokens": 9, "max_chunk_tokens": 9}

    records = served(specs, num_blocks=10, max_used_blocks=10, **budget).records

    assert records.num_preemptions.tolist() == [0, 1]
    assert records.finish_time.tolist() == [24.0, 25.0]


def test_under_reserve_the_first_manager_runs() -> None:
    """Its rules hold where the policy is asked for: nothing is ever preempted."""
    specs = make_specs([0.0, 0.0], 8, 8)

    records = served(specs, num_blocks=7, max_used_blocks=6, admission="reserve").records

    assert records.num_preemptions.tolist() == [0, 0]
    assert records.scheduled_time.tolist() == [0.0, 8.0]
