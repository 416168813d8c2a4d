"""First visible tokens: the plane against the reference, token by token, and against what is known of a small case."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings

from simserve.scenario.reference_run import by_reference, records_of
from simserve.sim.control import Control
from simserve.sim.simulate import replay, simulate
from simserve.workload.prefixes import system_prompts
from tests.agreement import NEAR, assert_near, closest_tie
from tests.builders import affine_step_times, constant_step_times, make_config, make_faults, make_specs
from tests.engine.strategies import Case, thinking_cases
from tests.engine.test_fuzz import CHECKS
from tests.fuzzing import examples
from tests.theory.builders import make_deployment
from tests.walker import Walk


@given(thinking_cases())
@settings(max_examples=examples(60), deadline=None, derandomize=True, suppress_health_check=CHECKS)
def test_answers_begin_when_the_reference_says(case: Case) -> None:
    """Any replica, with preemption, swapping, drafts, ranks and a slow API server: every answer begins on time."""
    agree(case)


@pytest.mark.slow
@given(thinking_cases())
@settings(max_examples=examples(800), deadline=None, suppress_health_check=CHECKS)
def test_answers_begin_when_the_reference_says_at_length(case: Case) -> None:
    """The same with more examples, other ones every time."""
    agree(case)


def agree(case: Case) -> None:
    """Assert that the plane and the reference agree on every answer, unless rounding decides who comes first."""
    walk = Walk(case.config, case.times, case.specs)
    outcome = walk.outcome()
    expected = records_of(walk)
    assume(closest_tie(outcome, case.config, case.specs) > NEAR and outcome.closest_estimate > NEAR)

    records = replay(case.config, case.times, case.specs).records

    assert expected.thinking_tokens is not None
    assert expected.answer_time is not None
    assert records.answer_time is not None
    np.testing.assert_array_equal(records.thinking_tokens, expected.thinking_tokens)
    assert_near("answer_time", records.answer_time, expected.answer_time)
    assert_near("first_token_time", records.first_token_time, expected.first_token_time)
    assert_near("finish_time", records.finish_time, expected.finish_time)


@pytest.mark.parametrize(("ends", "seconds"), [(4, 1.0), (8, 3.0)])
def test_images_that_the_prefix_cache_holds_are_not_encoded_again(ends: int, seconds: float) -> None:
    """Two prompts share four tokens: an image that ends with these is there for the second, a later one is not."""
    shared = system_prompts(np.zeros(2, np.int64), 1, np.full(2, 4), np.full(2, 9))
    specs = replace(
        make_specs([0.0, 5.0], 8, 1),
        prefixes=shared,
        encoder_seconds=np.array([0.0, 2.0]),
        image_ends=np.array([4, ends]),
    )
    config = make_config(enable_prefix_caching=True, block_size=4)

    records = replay(config, constant_step_times(), specs).records
    walk = Walk(config, constant_step_times(), specs)
    walk.outcome()

    assert records.cached_tokens.tolist() == [0, 4]
    assert records.finish_time.tolist() == [1.0, 5.0 + seconds]
    assert records_of(walk).finish_time.tolist() == [1.0, 5.0 + seconds]


def thinking(case_specs: object, *tokens: int) -> object:
    """Return requests that think so many tokens each."""
    return replace(case_specs, thinking_tokens=np.array(tokens, dtype=np.int64))  # type: ignore[type-var]


def test_the_first_visible_token_follows_the_thinking() -> None:
    """One step a second: the prompt gives token 1 at 1 s, so that the token behind 5 thought ones is there at 6 s."""
    specs = thinking(make_specs([0.0, 0.0], 4, 10), 5, 0)

    records = replay(make_config(), constant_step_times(), specs).records  # type: ignore[arg-type]

    assert records.first_token_time.tolist() == [1.0, 1.0]
    assert records.answer_time is not None
    assert records.answer_time.tolist() == [6.0, 1.0]
    assert records.finish_time.tolist() == [10.0, 10.0]


def test_a_limit_cuts_the_answer_first() -> None:
    """Of 8 tokens that may be generated 6 are thought and 2 shown; of 6 none is left for the answer."""
    specs = thinking(make_specs([0.0, 0.0], 4, 12, [8, 6]), 6, 6)

    records = replay(make_config(), constant_step_times(), specs).records  # type: ignore[arg-type]

    assert records.output_tokens.tolist() == [8, 6]
    assert records.thinking_tokens is not None
    assert records.thinking_tokens.tolist() == [6, 6]
    assert records.answer_time is not None
    np.testing.assert_array_equal(records.answer_time, [7.0, np.nan])


def test_a_preemption_delays_the_answer_behind_it() -> None:
    """A request that loses its blocks while it thinks is later to answer than one alone, by what it waits."""
    config = make_config(num_blocks=8, max_model_len=24, max_num_seqs=2)
    times = affine_step_times(step_seconds=1.0, token_seconds=0.01)
    both = replay(config, times, thinking(make_specs([0.0, 0.1], 8, 16), 12, 12)).records  # type: ignore[arg-type]
    alone = replay(config, times, thinking(make_specs([0.1], 8, 16), 12)).records  # type: ignore[arg-type]

    assert both.num_preemptions.tolist() == [0, 1]
    assert both.answer_time is not None
    assert alone.answer_time is not None
    waited = both.answer_time[1] - alone.answer_time[0]
    assert waited > 1.0


def test_an_api_server_that_has_caught_up_begins_again_with_the_replica() -> None:
    """The replica hangs from 5 s to 34.5 s; by then what it had computed is sent, at 1.5 s a token.

    Then the tenth token, the first that is shown, is the fifth to be sent, and the last one the ninth.
    """
    fault = {"kind": "black_hole", "at": "4.5 s", "duration": "30 s", "probe": {"depth": "shallow"}}
    config = make_config(api_token_seconds=1.5)
    hanging = replace(make_deployment(config, constant_step_times(), 1), control=Control(faults=make_faults(fault)))
    specs = replace(make_specs([0.0], 4, 14), thinking_tokens=np.array([9]))

    for records in (simulate(hanging, specs).records, by_reference(hanging, specs)):
        assert records.answer_time is not None
        assert records.first_token_time.tolist() == [2.5]
        assert records.answer_time.tolist() == [34.5 + 5 * 1.5]
        assert records.finish_time.tolist() == [34.5 + 9 * 1.5]
