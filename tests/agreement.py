"""The comparison of the kernel with the walker: counts equal, times to 1e-9."""

from __future__ import annotations

import numpy as np

from simserve.engine.config import EngineConfig
from simserve.engine.state import StepTimes
from simserve.metrics.result import RunResult
from simserve.scenario.run import run
from simserve.scenario.schema import Scenario
from simserve.sim.acceleration import Accelerate
from simserve.sim.records import STATUSES
from simserve.sim.simulate import Replay, replay
from simserve.workload.requests import RequestSpecs
from tests.walker import Outcome, walk

NEAR = 1e-9


def assert_agrees(
    config: EngineConfig, times: StepTimes, specs: RequestSpecs, outcome: Outcome | None = None
) -> Replay:
    """Assert that the kernel and the walker give the same records and totals, and return the kernel's."""
    expected = walk(config, times, specs) if outcome is None else outcome
    actual = replay(config, times, specs)
    assert_same_records(expected, actual)
    assert_same_totals(expected, actual)
    return actual


def walk_alike(config: EngineConfig, times: StepTimes, specs: RequestSpecs) -> Outcome:
    """Return what the walker does, once the kernel has done the same."""
    outcome = walk(config, times, specs)
    assert_agrees(config, times, specs, outcome)
    return outcome


def on_both_kernels(scenario: Scenario) -> list[RunResult]:
    """Return the run of a scenario, interpreted and compiled.

    What its deployment could finish comes from further runs, which are compiled in any case: it is left out.
    """
    kernels: tuple[Accelerate, ...] = ("off", "on")
    return [run(scenario, accelerate=accelerate, finishable=None) for accelerate in kernels]


def assert_same_records(expected: Outcome, actual: Replay) -> None:
    """Assert that every request fared the same."""
    records = actual.records
    assert [STATUSES[status] for status in records.status] == expected.status
    assert records.output_tokens.tolist() == expected.generated_tokens.tolist()
    assert records.cached_tokens.tolist() == expected.cached_tokens.tolist()
    assert records.num_preemptions.tolist() == expected.num_preemptions.tolist()
    assert records.is_truncated.tolist() == expected.is_truncated.tolist()
    is_queued = np.array([status != "failed" for status in expected.status])
    for name in ("arrival_time", "scheduled_time", "first_token_time", "itl_max"):
        assert_near(name, getattr(records, name), getattr(expected, name))
    assert_near("admitted_time", records.admitted_time[is_queued], expected.ready_time[is_queued])
    assert_near("finish_time", records.finish_time[is_queued], expected.finish_time[is_queued])


def assert_same_totals(expected: Outcome, actual: Replay) -> None:
    """Assert that the engine took as many steps and gave as many gaps, as long in sum."""
    assert actual.totals.num_steps == expected.num_steps
    assert actual.totals.itl.count == len(expected.gaps)
    assert_near("itl.total", np.array([actual.totals.itl.total]), np.array([sum(expected.gaps)]))


def assert_near(name: str, actual: np.ndarray, expected: np.ndarray) -> None:
    """Assert equality to 1e-9, relative or absolute, with nan in the same places."""
    np.testing.assert_allclose(actual, expected, rtol=NEAR, atol=NEAR, equal_nan=True, err_msg=name)


def closest_tie(outcome: Outcome, config: EngineConfig, specs: RequestSpecs) -> float:
    """Return how near, in seconds, two events came whose order matters.

    Events that are simultaneous by construction do not count: equal arrivals, and the arrival of a request
    that a client without think time sends at the very end of a step.
    """
    ready = np.unique(outcome.ready_time)
    instants = np.unique(np.array(outcome.step_ends + outcome.deadlines))
    to_instants = np.abs(ready[:, np.newaxis] - instants[np.newaxis, :]).ravel()
    if (specs.concurrency is not None or specs.turn is not None) and config.frontend_latency == 0.0:
        to_instants = to_instants[to_instants > 0.0]
    return float(np.concatenate([np.diff(ready), np.diff(instants), to_instants, [np.inf]]).min())
