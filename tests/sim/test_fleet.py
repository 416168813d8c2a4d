"""The event plane: what an undisturbed run leaves out changes nothing, to the last bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simserve.sim.control import Control, RoutingSpec
from simserve.sim.own_parts import OwnParts
from simserve.sim.records import RequestRecords
from simserve.sim.simulate import Deployment, Simulation, _decided, has_decisions, simulate
from simserve.workload.requests import RequestSpecs
from tests.builders import constant_step_times, make_config, make_specs
from tests.engine.strategies import Case, cases, pressed_cases, ranked_cases, routings, shared_cases
from tests.fuzzing import examples
from tests.theory.builders import make_deployment

COLUMNS = (
    "arrival_time",
    "admitted_time",
    "scheduled_time",
    "first_token_time",
    "finish_time",
    "output_tokens",
    "num_preemptions",
    "replica_id",
    "itl_max",
    "status",
    "cached_tokens",
)


def with_everything_asked(deployment: Deployment, specs: RequestSpecs) -> Simulation:
    """Return a run in which replicas could come and go, so that every event passes all that may decide on it."""
    assert deployment.control is not None
    return _decided(deployment, deployment.control, specs, None, None, "off", OwnParts())


def assert_same(records: RequestRecords, plain: RequestRecords) -> None:
    """Every column is the same, bit for bit."""
    for column in COLUMNS:
        np.testing.assert_array_equal(getattr(records, column), getattr(plain, column), err_msg=column)


@given(
    st.one_of(cases(), pressed_cases(), shared_cases(), ranked_cases()),
    st.integers(1, 3),
    routings(),
    st.sampled_from([None, 4.0, 20.0]),
)
@settings(max_examples=examples(100), deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
def test_an_undisturbed_run_leaves_out_nothing_that_matters(
    case: Case, num_replicas: int, routing: RoutingSpec, closes_at: float | None
) -> None:
    """Open and closed loops, to the last request or until clients stop, any scheduler, any router: the same bytes."""
    specs = case.specs if case.specs.concurrency is None else replace(case.specs, closes_at=closes_at)
    is_ahead = case.config.batching == "continuous" and num_replicas == 2
    config = replace(case.config, async_scheduling=is_ahead, overlaps_results=True)
    control = Control(routing=routing)
    deployment = replace(make_deployment(config, case.times, num_replicas), control=control)
    assert not has_decisions(deployment, control, specs)

    plain, run = simulate(deployment, specs), with_everything_asked(deployment, specs)

    assert_same(run.records, plain.records)
    assert run.end_time == plain.end_time
    assert run.totals.num_steps == plain.totals.num_steps
    assert run.totals.busy_seconds == pytest.approx(plain.totals.busy_seconds, rel=1e-12)
    assert run.totals.itl.count == plain.totals.itl.count
    np.testing.assert_allclose(run.totals.series.running, plain.totals.series.running, atol=1e-9)


@pytest.mark.parametrize("update_interval", ["0 s", "1 s"])
def test_a_step_beyond_the_last_answer_counts_whenever_somebody_would_have_looked_next(update_interval: str) -> None:
    """SGLang decodes once more who stops early: five steps, the last from the last answer on, however old views get."""
    config = make_config(
        scheduler="prefill_first",
        admission="estimate",
        max_num_seqs=2,
        async_scheduling=True,
        overlaps_results=True,
    )
    specs = make_specs([0.0], 4, 4, max_tokens=9)
    control = Control(routing=RoutingSpec(policy="least_outstanding", update_interval=update_interval))
    deployment = replace(make_deployment(config, constant_step_times(1.5), 2), control=control)

    plain, run = simulate(deployment, specs), with_everything_asked(deployment, specs)

    assert plain.end_time == run.end_time == pytest.approx(6.0)
    assert plain.totals.num_steps == run.totals.num_steps == 5
    assert run.totals.busy_seconds == pytest.approx(7.5)
