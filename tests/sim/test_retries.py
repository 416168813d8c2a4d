"""Clients that wait only so long, and send again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simserve.sim.records import COMPLETED, TIMED_OUT
from simserve.sim.simulate import Simulation, simulate
from simserve.workload.class_spec import ClassSpec
from simserve.workload.requests import RequestSpecs
from tests.builders import constant_step_times, make_closed_loop, make_config, make_specs
from tests.theory.builders import make_deployment


def served(specs: RequestSpecs, *, replicas: int = 1, config: dict[str, Any] | None = None, **own: Any) -> Simulation:
    """Return a run whose clients are all of one class; every step takes a second."""
    classes = (ClassSpec(name="all", share=1.0, **own),)
    specs = replace(specs, classes=classes, request_class=np.zeros(len(specs), dtype=np.int16))
    deployment = make_deployment(make_config(**(config or {})), constant_step_times(1.0), replicas, "least_outstanding")
    return simulate(deployment, specs)


def test_a_client_that_hangs_up_frees_its_seat() -> None:
    """One seat: the answer of twenty tokens is given up at 6.5, and the next request starts with the step after it."""
    run = served(make_specs([0.0, 1.0], 4, [20, 2]), timeout="6.5 s", config={"max_num_seqs": 1})

    assert run.records.status[0] == TIMED_OUT
    assert run.records.finish_time[0] == 6.5
    assert run.records.scheduled_time[1] == 7.0
    assert run.records.output_tokens[0] == 7


def test_a_retry_starts_over() -> None:
    """Given up at 4.5, sent again after a pause and served by then; TTFT counts from the first sending."""
    run = served(
        make_specs([0.0, 1.0], 4, [3, 2]),
        timeout="3.5 s",
        retries={"max": 3, "backoff": "1.5 s", "jitter": 0},
        config={"max_num_seqs": 1},
    )
    records = run.records

    assert records.arrival_time.tolist() == [0.0, 1.0]
    assert records.status.tolist() == [COMPLETED, COMPLETED]
    assert records.admitted_time[1] == 6.0
    assert records.first_token_time[1] == 7.0
    assert run.timeline is not None
    assert run.timeline.num_resent == 1
    assert run.timeline.tries.tolist() == [[1.0, 3.0, 4.5]]


def test_pauses_double_and_jitter_shortens_them() -> None:
    """1, 2, 4 s and then no more than 4; with jitter shorter, and the same for the same seed."""
    specs = make_specs([0.0, 0.25], 4, [60, 2], max_tokens=[60, 2])
    hopeless = {"timeout": "2 s", "config": {"max_num_seqs": 1, "max_model_len": 64}}
    pauses = {"max": 4, "backoff": "1 s", "max_backoff": "4 s"}
    specs = specs.first(2)
    exact = served(specs, retries={**pauses, "jitter": 0}, **hopeless)
    shaken, again = (served(specs, retries={**pauses, "jitter": 0.5}, **hopeless) for _ in range(2))

    # The long one is given up at 2, 5, 9, 15 and 21: five times two seconds, and pauses of 1, 2, 4 and 4.
    assert exact.records.finish_time[0] == 21.0
    assert shaken.records.finish_time[0] < 21.0
    assert shaken.records.finish_time.tolist() == again.records.finish_time.tolist()


def test_every_attempt_is_in_the_time_series() -> None:
    """Seats taken by attempts that came to nothing count as running, so Little's law holds for the engine."""
    run = served(
        make_specs([0.3 * index for index in range(60)], 4, [12, 3, 30] * 20),
        timeout="9 s",
        retries=2,
    )
    series = run.totals.series
    steps = np.diff(series.edges)

    assert run.timeline is not None
    tried = run.timeline.tries
    own = run.records.finish_time - run.records.admitted_time
    assert float((series.running + series.waiting) @ steps) == pytest.approx(
        float(np.nansum(own) + (tried[:, 2] - tried[:, 0]).sum()), rel=1e-9
    )


def test_a_closed_loop_goes_on_after_a_timeout() -> None:
    """The client that gave up thinks, and sends its next request."""
    run = served(make_closed_loop(1, [4, 4, 4], [30, 2, 2], 1.0), timeout="5 s")

    assert run.records.status.tolist() == [TIMED_OUT, COMPLETED, COMPLETED]
    assert run.records.arrival_time.tolist() == [0.0, 6.0, 9.0]
