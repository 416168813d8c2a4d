"""The pictures of a fleet that changes: the hole of a cold start is in them, and a plain run has none."""

from __future__ import annotations

import numpy as np
import pytest

from simserve.metrics.result import RunResult
from simserve.report.html import render_report
from simserve.report.panels import attainment_over_time, has_changed, replicas_over_time
from simserve.report.sketch import Sketch, Steps
from simserve.scenario.load import load
from simserve.scenario.run import run


@pytest.fixture(scope="module")
def cold() -> RunResult:
    """A spike against a start-up of three minutes."""
    return run(load("cold-start"), explain=False)


def steps(sketch: Sketch, label: str) -> Steps:
    """Return the line of a sketch with a label."""
    return next(mark for mark in sketch.marks if isinstance(mark, Steps) and mark.label == label)


def value_at(line: Steps, minutes: float) -> float:
    """Return what a line shows at a time."""
    return float(line.values[int(np.searchsorted(line.edges, minutes, side="right")) - 1])


def test_replicas_are_paid_for_before_they_are_ready(cold: RunResult) -> None:
    """Eight from 5.5 min on, two of them ready until 8.5 min."""
    sketch = replicas_over_time(cold)

    assert sketch is not None
    assert value_at(steps(sketch, "paid for"), 7.0) == pytest.approx(8.0)
    assert value_at(steps(sketch, "ready"), 7.0) == pytest.approx(2.0)
    assert value_at(steps(sketch, "ready"), 10.0) == pytest.approx(8.0)


def test_the_hole_is_in_the_share_within_the_objective(cold: RunResult) -> None:
    """Everybody before and after, nobody in between; the shares weigh up to that of all."""
    sketch = attainment_over_time(cold)

    assert sketch is not None
    line = steps(sketch, "within the SLO")
    assert [round(value_at(line, minutes), 2) for minutes in (2.0, 7.0, 12.0)] == [1.0, 0.0, 1.0]
    attained = cold.summary["simserve"]["slo"]["attainment"]
    assert float(line.values.mean()) == pytest.approx(attained, abs=0.02)


def test_the_page_shows_them_where_the_fleet_changed(cold: RunResult) -> None:
    """And not where it never did."""
    plain = run(load("chatbot", ["workload.num_requests=100"]), explain=False)

    assert has_changed(cold)
    assert not has_changed(plain)
    assert "Within the objective, by time of arrival" in render_report(cold)
    assert "Within the objective, by time of arrival" not in render_report(plain)
    assert plain.simulation.totals.series.replicas_ready is None
    columns = list(cold.timeseries.columns)
    assert columns[-2:] == ["replicas_launched", "replicas_ready"]


def test_there_is_no_time_of_arrival_where_all_come_at_once() -> None:
    """A replica is lost in an offline batch: the page shows the replicas, and no share by time."""
    overrides = {
        "workload.arrivals": {"process": "all_at_once"},
        "workload.num_requests": 200,
        "workload.duration": None,
        "deployment.faults": [{"kind": "node", "at": "1 s", "duration": "2 s", "in_flight": "retry"}],
    }
    result = run(load("lost-replica", overrides), explain=False)

    assert has_changed(result)
    assert attainment_over_time(result) is None
    assert "Replicas" in render_report(result)
