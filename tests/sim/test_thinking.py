"""Thinking on its way to the client: streams, whole answers, APIs and regions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simserve.engine.progress import GRID
from simserve.sim.control import Control, OverflowSpec, StreamingSpec
from simserve.sim.simulate import simulate
from simserve.validation import validate
from simserve.workload.requests import RequestSpecs
from tests.builders import constant_step_times, make_config, make_specs
from tests.theory.builders import make_deployment


def thinking(specs: RequestSpecs, *tokens: int) -> RequestSpecs:
    """Return requests that think so many tokens each."""
    return replace(specs, thinking_tokens=np.array(tokens, dtype=np.int64))


def answers(specs: RequestSpecs, config: Any = None, **streaming: Any) -> list[float]:
    """Return when clients see answers begin; every step takes a second, events cost nothing."""
    control = Control(streaming=validate(StreamingSpec, {"cost_per_event": "0 s", **streaming}))
    deployment = make_deployment(config or make_config(), constant_step_times(1.0), 1)
    records = simulate(replace(deployment, control=control), specs).records
    assert records.answer_time is not None
    return [float(each) for each in records.answer_time]


@pytest.mark.parametrize(("size", "expected"), [(1, 6.0), (2, 6.0), (4, 8.0), (5, 10.0), (100, 10.0)])
def test_an_answer_begins_with_the_event_that_holds_its_first_token(size: int, expected: float) -> None:
    """Token 6 of 10 is the first behind 5 thought ones; of events of 4 it is in the second, complete at token 8."""
    specs = thinking(make_specs([0.0], 4, 10), 5)

    assert answers(specs, buffer_tokens=size) == [expected]


@pytest.mark.parametrize(("size", "expected"), [(1, 6.0), (2, 7.0), (4, 9.0), (5, 6.0), (100, 10.0)])
def test_an_interval_shows_an_answer_with_its_first_token(size: int, expected: float) -> None:
    """Events end at the first token and one interval after another: of two at 1, 3, 5 and 7, of five at 1 and 6."""
    specs = thinking(make_specs([0.0], 4, 10), 5)

    assert answers(specs, stream_interval=size) == [expected]


def test_the_network_counts_for_answers_too() -> None:
    """20 ms to the server, 20 ms back."""
    assert answers(thinking(make_specs([0.0], 4, 10), 5), network_latency="20 ms") == [pytest.approx(6.04)]


def test_a_whole_answer_begins_at_its_end() -> None:
    """What is not streamed is there in one piece."""
    assert answers(thinking(make_specs([0.0, 0.0], 4, 10), 5, 0), stream=False) == [10.0, 10.0]


def test_no_event_shows_an_answer_that_was_cut() -> None:
    """All 8 tokens that may be generated are thought."""
    assert np.isnan(answers(thinking(make_specs([0.0], 4, 12, 8), 8))).all()


def test_drafts_bring_an_answer_forward() -> None:
    """At 2.5 tokens a step tokens 4 to 6 come together, with the second step behind the first token.

    After five thoughts the answer begins among them, after six with the next step."""
    config = make_config(num_speculative_tokens=3)
    specs = replace(thinking(make_specs([0.0], 4, 10), 5), pace=np.array([5 * GRID // 2]))

    assert answers(specs, config, buffer_tokens=1) == [3.0]
    assert answers(thinking(specs, 6), config, buffer_tokens=1) == [4.0]


def test_an_api_sends_its_tokens_evenly() -> None:
    """Where an API answers, the token behind half of the others is half-way between the first and the last."""
    overflow = validate(OverflowSpec, {"api": "x", "max_queue": 1, "ttft": "1 s", "tokens_per_second": 10})
    control = Control(overflow=overflow)
    deployment = replace(make_deployment(make_config(max_num_seqs=1), constant_step_times(1.0), 1), control=control)

    records = simulate(deployment, thinking(make_specs([0.0] * 4, 4, 11), 5, 5, 5, 5)).records

    away = records.replica_id < 0
    assert away.any()
    assert records.answer_time is not None
    half_way = (records.first_token_time + records.finish_time) / 2
    np.testing.assert_allclose(records.answer_time[away], half_way[away])
