"""Requests that API servers work on one after another, where all that will be sent is known beforehand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.sim.cluster import handed_over
from simserve.sim.simulate import Simulation, simulate
from simserve.workload.class_spec import ClassSpec
from simserve.workload.requests import RequestSpecs
from tests.builders import constant_step_times, make_config, make_specs
from tests.fuzzing import examples
from tests.theory.builders import make_deployment


def served(specs: RequestSpecs, seconds: float, *, retries: int = 0) -> Simulation:
    """Return a run whose API server works ``seconds`` on each request, at a replica with room for all."""
    config = make_config(max_num_seqs=64, frontend_latency=0.25, frontend_seconds_per_request=seconds)
    classes = (ClassSpec(name="all", share=1.0, timeout="1000 h", retries={"max": retries} if retries else None),)
    specs = replace(specs, classes=classes, request_class=np.zeros(len(specs), dtype=np.int16))
    return simulate(make_deployment(config, constant_step_times(1.0), 1, "round_robin"), specs)


def test_requests_that_come_together_are_handed_over_together() -> None:
    """Three at 0 are done at 3; one that comes at 1 is done at 4; one that comes at 10, at 11."""
    assert handed_over(np.array([0.0, 0.0, 0.0, 1.0, 10.0]), 1.0).tolist() == [3.0, 3.0, 3.0, 4.0, 11.0]


def test_what_comes_meanwhile_waits_for_all_before_it() -> None:
    """The second comes in the first's second and is done at 2; two that come by then are done together at 4."""
    assert handed_over(np.array([0.0, 0.5, 1.25, 2.0]), 1.0).tolist() == [1.0, 2.0, 4.0, 4.0]


def test_a_long_prompt_holds_up_those_sent_after_it() -> None:
    """The first is tokenised at 5: the second, sent later, is accepted with it although it was ready at 1."""
    assert handed_over(np.array([5.0, 1.0]), 1.0).tolist() == [7.0, 7.0]


@settings(max_examples=examples(60), deadline=None, derandomize=True)
@given(
    gaps=st.lists(st.sampled_from([0.0, 0.125, 0.5, 1.0, 4.0]), min_size=1, max_size=24),
    seconds=st.sampled_from([0.25, 0.75, 2.0]),
)
def test_it_is_what_happens_event_by_event(gaps: list[float], seconds: float) -> None:
    """A client that may send again, and never does, takes the plane from event to event."""
    specs = make_specs(np.cumsum(gaps).tolist(), 4, [2] * len(gaps))

    at_once, by_events = (served(specs, seconds, retries=retries).records for retries in (0, 1))

    assert at_once.admitted_time.tolist() == by_events.admitted_time.tolist()
    assert at_once.finish_time.tolist() == by_events.finish_time.tolist()


@pytest.mark.parametrize("utilization", [0.3, 0.7, 0.9])
def test_the_mean_wait_is_that_of_gated_service(utilization: float) -> None:
    """Poisson arrivals, one unit of work each: 1 + u (1/2 + u) / (1 - u^2) from coming to being handed over.

    A batch of n takes n. Those that come meanwhile, Poisson(u n) of them or else the next one alone, are the batch
    after it, so that E[n^2] / E[n] = 1 / (1 - u^2) = m. Who comes while the server works (a share u) meets a batch of
    m in the mean, waits for half of it, and is handed over with the 1 + u m of its own batch.
    """
    generator = np.random.default_rng(7)
    means = []
    for _ in range(24):
        came = np.cumsum(generator.exponential(1.0 / utilization, size=8_000))
        means.append(float(np.mean((handed_over(came, 1.0) - came)[1_000:])))
    expected = 1.0 + utilization * (0.5 + utilization) / (1.0 - utilization**2)

    error = np.std(means, ddof=1) / np.sqrt(len(means))

    assert error < 0.03 * expected
    assert abs(np.mean(means) - expected) < 4.0 * error
