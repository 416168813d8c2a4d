"""What holds of every replayed workload, whatever the replica: no walker needed."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from simserve.engine.state import StepTimes
from simserve.sim.records import COMPLETED, FAILED, RequestRecords
from simserve.sim.simulate import replay
from simserve.workload.requests import RequestSpecs
from tests.engine.strategies import Case, cases, pressed_cases
from tests.fuzzing import examples

any_case = given(st.one_of(cases(), pressed_cases()))
few = settings(
    max_examples=examples(100),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)


def columns(records: RequestRecords) -> dict[str, list[object]]:
    """Return the columns as lists, with None for nan, so that they compare by ``==``."""
    columns = {field.name: getattr(records, field.name) for field in dataclasses.fields(records)}
    values = {name: column.tolist() for name, column in columns.items() if isinstance(column, np.ndarray)}
    return {name: [None if value != value else value for value in column] for name, column in values.items()}


def scaled(times: StepTimes, factor: float) -> StepTimes:
    """Return step times ``factor`` times as long."""
    kept = {"mixed_decode_factor", "launch_max_tokens"}  # are no seconds
    seconds = {
        field.name: (np.asarray(getattr(times, field.name)) * factor).tolist()
        for field in dataclasses.fields(times)
        if field.name not in kept
    }
    return dataclasses.replace(times, **seconds)


@any_case
@few
def test_every_request_is_accounted_for(case: Case) -> None:
    """A request is completed with the tokens it asked for, or fails with none; nothing is dropped."""
    specs, records = case.specs, replay(case.config, case.times, case.specs).records
    room = case.config.max_model_len - specs.prompt_tokens
    asked = np.where(specs.max_tokens == -1, room, np.minimum(specs.max_tokens, room))
    is_completed = records.status == COMPLETED

    assert len(records) == len(specs)
    assert np.array_equal(~is_completed, records.status == FAILED)
    assert np.array_equal(records.output_tokens, np.where(is_completed, np.minimum(specs.output_tokens, asked), 0))
    assert np.array_equal(records.prompt_tokens, specs.prompt_tokens)
    assert is_completed[records.num_preemptions > 0].all()


@any_case
@few
def test_timestamps_are_in_order(case: Case) -> None:
    """Arrival, queue, first step, first token, finish; the first token takes at least a step."""
    records = replay(case.config, case.times, case.specs).records
    done = records.status == COMPLETED

    assert (records.arrival_time[done] <= records.admitted_time[done]).all()
    assert (records.admitted_time[done] <= records.scheduled_time[done]).all()
    assert (records.scheduled_time[done] < records.first_token_time[done]).all()
    assert (records.first_token_time[done] <= records.finish_time[done]).all()
    assert np.isnan(records.scheduled_time[~done]).all()
    assert np.isnan(records.first_token_time[~done]).all()


@any_case
@few
def test_the_first_step_comes_in_order_of_arrival(case: Case) -> None:
    """First come first served: no request is scheduled before one that reached the queue earlier."""
    records = replay(case.config, case.times, case.specs).records
    done = records.status == COMPLETED
    order = np.argsort(records.admitted_time[done], kind="stable")

    assert (np.diff(records.scheduled_time[done][order]) >= 0).all()


@any_case
@few
def test_gaps_span_from_the_first_token_to_the_last(case: Case) -> None:
    """Continuous: one gap fewer than tokens, summing to finish - first token, none above the largest; where
    first tokens are handed over late, so is every other, and gaps are those of the steps."""
    assume(case.config.batching == "continuous" and not case.config.async_output)
    result = replay(case.config, case.times, case.specs)
    records = result.records
    done = records.status == COMPLETED
    spans = records.finish_time[done] - records.first_token_time[done]
    gaps = records.output_tokens[done] - 1

    assert result.totals.itl.count == gaps.sum()
    assert math.isclose(result.totals.itl.total, spans.sum(), rel_tol=1e-9, abs_tol=1e-9)
    assert np.array_equal(np.isnan(records.itl_max[done]), gaps == 0)
    longest, several = records.itl_max[done][gaps > 0], gaps[gaps > 0]
    assert (longest * several >= spans[gaps > 0] * (1 - 1e-9)).all()
    assert (longest <= spans[gaps > 0] * (1 + 1e-9)).all()


@any_case
@few
def test_only_growing_requests_are_preempted(case: Case) -> None:
    """Whoever reserves everything at admission, or has no cache, is never preempted."""
    config = case.config
    assume(config.batching == "static" or config.kv_allocation != "paged" or config.admission == "reserve")

    assert not replay(config, case.times, case.specs).records.num_preemptions.any()


@any_case
@few
def test_twice_the_seconds_give_twice_the_times(case: Case) -> None:
    """All seconds doubled, all times double, to the last bit, and every count stays."""
    assume(not case.config.async_output)  # whose host times are no table
    specs, config = case.specs, case.config
    slower = dataclasses.replace(
        config, static_max_wait=config.static_max_wait * 2, frontend_latency=config.frontend_latency * 2
    )
    later = dataclasses.replace(specs, arrival_time=specs.arrival_time * 2, think_time=specs.think_time * 2)
    once = replay(config, case.times, specs)
    twice = replay(slower, scaled(case.times, 2.0), later)

    names = ("arrival_time", "admitted_time", "scheduled_time", "first_token_time", "finish_time", "itl_max")
    doubled = dataclasses.replace(once.records, **{name: getattr(once.records, name) * 2 for name in names})
    assert columns(twice.records) == columns(doubled)
    assert twice.totals.num_steps == once.totals.num_steps


@any_case
@few
def test_what_comes_later_changes_nothing_before(case: Case) -> None:
    """Open loop: requests that arrive after everything is answered leave the earlier records alone."""
    specs = case.specs
    assume(specs.concurrency is None)
    first = replay(case.config, case.times, specs).records
    end = np.nanmax(np.concatenate([first.finish_time, first.arrival_time])) + case.config.frontend_latency + 1.0
    repeated = RequestSpecs(
        arrival_time=np.concatenate([specs.arrival_time, specs.arrival_time + end]),
        prompt_tokens=np.tile(specs.prompt_tokens, 2),
        output_tokens=np.tile(specs.output_tokens, 2),
        max_tokens=np.tile(specs.max_tokens, 2),
        think_time=specs.think_time,
        concurrency=None,
        is_stationary=False,
        offered_rate=math.nan,
    )
    both = replay(case.config, case.times, repeated).records

    count = len(specs)
    assert {name: column[:count] for name, column in columns(both).items()} == columns(first)
    assert both.output_tokens[count:].tolist() == first.output_tokens.tolist()


@any_case
@few
def test_replays_repeat_and_leave_their_inputs_alone(case: Case) -> None:
    """Two replays of one case are equal to the last bit; neither writes to the columns it was given."""
    before = {name: np.copy(getattr(case.specs, name)) for name in ("arrival_time", "prompt_tokens", "max_tokens")}
    first, second = (replay(case.config, case.times, case.specs).records for _ in range(2))

    assert columns(first) == columns(second)
    for name, column in before.items():
        np.testing.assert_array_equal(getattr(case.specs, name), column)
