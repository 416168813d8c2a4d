"""The API server behind a scheduler: when it falls behind, what clients see of it, and what the engine does not."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from simserve.sim.simulate import Replay, replay
from tests.agreement import NEAR, assert_near, closest_tie
from tests.builders import affine_step_times, constant_step_times, make_config, make_specs
from tests.engine.strategies import Case, cases, pressed_cases, ranked_cases
from tests.engine.test_fuzz import CHECKS
from tests.fuzzing import examples
from tests.walker import walk


def served(token_seconds: float) -> Replay:
    """Return what a replica with steps of a second does with two requests of ten tokens that come together."""
    config = make_config(api_token_seconds=token_seconds)
    return replay(config, constant_step_times(1.0), make_specs([0.0, 0.0], [4, 4], [10, 10]))


def test_a_server_that_keeps_up_is_not_seen() -> None:
    """Two tokens a step of a second take 0.8 s to send: first tokens come 0.4 and 0.8 s late, last ones not."""
    plain, sent = served(0.0).records, served(0.4).records

    assert (sent.first_token_time - plain.first_token_time).tolist() == pytest.approx([0.4, 0.8])
    assert sent.finish_time.tolist() == pytest.approx(plain.finish_time.tolist())


def test_a_server_that_falls_behind_holds_every_token_up() -> None:
    """20 tokens at 2 s each are sent 41 s after the engine began, which took 10: it began with the first tokens."""
    plain, sent = served(0.0), served(2.0)

    assert plain.records.finish_time.tolist() == [10.0, 10.0]
    assert sent.records.first_token_time.tolist() == pytest.approx([1.0 + 2.0, 1.0 + 4.0])
    assert sent.records.finish_time.tolist() == pytest.approx([1.0 + 20 * 2.0] * 2)
    assert sent.totals.busy_seconds == plain.totals.busy_seconds
    assert sent.totals.num_steps == plain.totals.num_steps


def test_gaps_are_those_that_clients_see() -> None:
    """No gap is shorter than the tokens of a step take to send; the largest one of each request likewise."""
    sent = served(2.0)

    assert sent.totals.itl.total == pytest.approx(2 * 9 * 4.0)
    assert sent.records.itl_max.tolist() == pytest.approx([4.0, 4.0])


def test_a_client_that_waits_sends_its_next_request_later() -> None:
    """One client with two requests: the second comes when the first has been sent, and finds the server idle."""
    specs = make_specs([0.0, 0.0], [4, 4], [10, 10])
    specs = dataclasses.replace(specs, concurrency=1, think_time=np.zeros(2))

    records = replay(make_config(api_token_seconds=2.0), constant_step_times(1.0), specs).records

    assert records.arrival_time.tolist() == pytest.approx([0.0, 21.0])
    assert records.finish_time.tolist() == pytest.approx([21.0, 42.0])


def test_an_idle_engine_lets_it_catch_up() -> None:
    """11 s after the first has ended at the engine, which left it 11 s of work, nothing of that is left."""
    specs = make_specs([0.0, 21.0], [4, 4], [10, 1])

    records = replay(make_config(api_token_seconds=2.0), constant_step_times(1.0), specs).records

    assert records.finish_time.tolist() == pytest.approx([21.0, 22.0 + 2.0])


def test_ranks_of_one_replica_share_it() -> None:
    """With data-parallel attention the tokens of both ranks pass one server: each counts for two."""
    alone, shared = (
        replay(
            make_config(api_token_seconds=2.0, data_parallel_size=ranks),
            constant_step_times(1.0),
            make_specs([0.0], [4], [10]),
        )
        for ranks in (1, 2)
    )

    assert shared.records.finish_time[0] - 1.0 == pytest.approx(2 * (alone.records.finish_time[0] - 1.0))
    assert [each.totals.itl.total for each in (alone, shared)] == pytest.approx([9 * 2.0, 9 * 4.0])


@pytest.mark.parametrize("token_seconds", [0.1, 0.6])
def test_compiled_code_sends_alike(token_seconds: float) -> None:
    """The same source, so the same times to the last bit."""
    pytest.importorskip("numba")
    specs = make_specs(np.linspace(0.0, 40.0, 50).tolist(), 4, [1 + number % 7 for number in range(50)])
    config = make_config(scheduler="prefill_first", api_token_seconds=token_seconds)

    off, on = (
        replay(config, constant_step_times(1.0), specs, accelerate=each).records  # type: ignore[arg-type]
        for each in ("off", "on")
    )

    np.testing.assert_array_equal(off.first_token_time, on.first_token_time)
    np.testing.assert_array_equal(off.finish_time, on.finish_time)


def test_steps_that_outgrow_the_server_count_as_long_as_they_are() -> None:
    """Of nine steps that lengthen from 0.625 s by 0.125, the server's 0.9 s a token covers the first three."""
    times = affine_step_times(max_num_seqs=1, step_seconds=0.125, decode_context_seconds=0.125)
    config = make_config(max_num_seqs=1, api_token_seconds=0.9)
    specs = make_specs([0.0], 4, [10])

    gaps = walk(config, times, specs).gaps
    found = replay(config, times, specs).totals.itl

    assert gaps == pytest.approx([max(0.9, 0.625 + 0.125 * step) for step in range(9)])
    assert (found.count, found.total) == (9, pytest.approx(sum(gaps)))


@given(st.one_of(cases(), pressed_cases(), ranked_cases()), st.sampled_from([0.02, 0.3, 1.0]))
@settings(max_examples=examples(50), deadline=None, derandomize=True, suppress_health_check=CHECKS)
def test_the_kernel_agrees_with_the_walker(case: Case, token_seconds: float) -> None:
    """Step by step or leap by leap, the same is waiting at every first and last token."""
    assume(case.config.batching == "continuous" and case.config.kv_allocation != "none")
    config = dataclasses.replace(case.config, api_token_seconds=token_seconds, async_output=False)
    expected = walk(config, case.times, case.specs)
    assume(closest_tie(expected, config, case.specs) > NEAR)

    records = replay(config, case.times, case.specs).records

    is_served = np.array([status == "completed" for status in expected.status])
    for name in ("arrival_time", "scheduled_time", "first_token_time"):
        assert_near(name, getattr(records, name), getattr(expected, name))
    assert_near("finish_time", records.finish_time[is_served], expected.finish_time[is_served])


def test_a_request_that_was_swapped_out_waits_for_the_tokens_of_its_step_too() -> None:
    """Two requests in memory for one and a half: whoever comes back is a token of its step like the others."""
    scarce = {"preemption_mode": "swap", "num_swap_blocks": 32, "num_blocks": 4, "max_model_len": 16}
    config = make_config(api_token_seconds=50.0, **scarce)
    run = replay(config, constant_step_times(1.0), make_specs([0.0, 0.0], [6, 6], [6, 6]))

    assert run.records.num_preemptions.sum() > 0
    assert run.totals.itl.minimum >= 50.0
