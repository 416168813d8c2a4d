"""What the client sees: events, buffers, the API server's core, the network."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from simserve.sim.control import Control
from simserve.sim.records import COMPLETED, TIMED_OUT
from simserve.sim.simulate import Simulation, simulate
from simserve.sim.streaming_spec import StreamingSpec
from simserve.validation import validate
from simserve.workload.requests import RequestSpecs
from tests.builders import constant_step_times, make_config, make_specs
from tests.engine.strategies import Case, cases
from tests.oracle.continuous import ContinuousReplica
from tests.theory.builders import make_deployment

FREE: dict[str, Any] = {"cost_per_event": "0 s"}


def streamed(specs: RequestSpecs, config: Any = None, times: Any = None, **spec: Any) -> Simulation:
    """Return a run as its clients see it; every step takes a second."""
    control = Control(streaming=validate(StreamingSpec, {**FREE, **spec}))
    deployment = make_deployment(config or make_config(), times or constant_step_times(1.0), 1)
    return simulate(replace(deployment, control=control), specs)


@given(cases(), st.integers(1, 6))
@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
def test_every_event_leaves_when_its_last_token_is_there(case: Case, size: int) -> None:
    """Against the walker's times of every token, where nobody was preempted; gaps and largest gaps likewise."""
    assume(case.config.batching == "continuous")
    assume(case.config.kv_allocation != "none")
    assume(case.specs.concurrency is None)
    walker = ContinuousReplica(case.config, case.times, case.specs)
    outcome = walker.run()
    assume(not outcome.num_preemptions.any())

    run = streamed(case.specs, case.config, case.times, buffer_tokens=size)

    gaps = []
    for index, request in walker.requests.items():
        if request.status != "completed":
            continue
        times = request.token_times
        events = [*times[size - 1 : -1 : size], times[-1]]
        assert run.records.first_token_time[index] == pytest.approx(events[0], rel=1e-9)
        assert run.records.finish_time[index] == pytest.approx(events[-1], rel=1e-9)
        if len(events) > 1:
            assert run.records.itl_max[index] == pytest.approx(max(np.diff(events)), rel=1e-9, abs=1e-9)
        gaps += np.diff(events).tolist()
    assert run.totals.itl.count == len(gaps)
    assert run.totals.itl.total == pytest.approx(sum(gaps), rel=1e-9, abs=1e-9)


def test_the_network_lies_on_both_ways() -> None:
    """0.25 s there and 0.25 s back."""
    records = streamed(make_specs([0.0], 4, 3), network_latency="250 ms").records

    assert records.admitted_time[0] == 0.25
    assert records.first_token_time[0] == 1.5
    assert records.finish_time[0] == 3.5


def test_a_core_sends_one_event_after_the_other() -> None:
    """Four tokens come in every step, each costs 0.2 s: the last is sent 0.8 s after the step."""
    run = streamed(make_specs([0.0] * 4, 1, 5), cost_per_event="0.2 s")

    assert sorted(run.records.first_token_time) == pytest.approx([1.2, 1.4, 1.6, 1.8])
    assert run.stream is not None
    assert run.stream.num_events == 20
    assert run.stream.busiest_share == pytest.approx(0.8)
    assert run.stream.delay_seconds == pytest.approx(5 * (0.2 + 0.4 + 0.6))


def test_a_full_core_falls_behind_and_more_cores_do_not() -> None:
    """At 0.5 s an event two seconds of work come with every step of one; four cores share them."""
    specs = make_specs([0.0] * 4, 1, 10)
    one, four = (streamed(specs, cost_per_event="0.5 s", api_servers=count) for count in (1, 4))

    assert one.records.finish_time.max() == pytest.approx(1 + 40 * 0.5)
    assert four.records.finish_time.max() == pytest.approx(10.5)


def test_whole_answers_have_no_first_token() -> None:
    """One event, when the answer ends; no gaps."""
    run = streamed(make_specs([0.0, 0.0], 4, [3, 6]), stream=False)

    assert run.records.first_token_time.tolist() == run.records.finish_time.tolist() == [3.0, 6.0]
    assert run.totals.itl.count == 0
    assert run.stream is not None
    assert run.stream.num_events == 2


def test_a_proxy_cuts_long_answers() -> None:
    """At 4.5 s the answer of six tokens is dropped; the seat is free at 5."""
    specs = make_specs([0.0, 0.0, 1.0], 4, [3, 6, 2])
    run = streamed(specs, make_config(max_num_seqs=2), stream=False, http_timeout="4.5 s")

    assert run.records.status.tolist() == [COMPLETED, TIMED_OUT, COMPLETED]
    assert run.records.finish_time[1] == 4.5


def test_a_step_that_outlasts_the_last_client_is_not_more_than_all_of_the_run() -> None:
    """One request, dropped at 2.5 s while its third step runs to 3 s: a step was running throughout."""
    run = streamed(make_specs([0.0], 4, [6]), make_config(max_num_seqs=2), stream=False, http_timeout="2.5 s")

    assert run.end_time == 2.5
    assert run.totals.busy_seconds == 3.0
    assert run.busy_share == 1.0
