"""Figures: what they show, not how they look."""

from __future__ import annotations

import numpy as np
import pytest

from simserve import api
from simserve.report import plots
from simserve.report.axes import clock, log_ticks
from simserve.report.curves import turning_point
from simserve.report.sketch import Note, Rule
from simserve.report.sketch_figure import sketch_figure
from simserve.report.sketch_svg import sketch_svg
from tests.report.builders import run


def test_cumulative_curves_reach_from_nobody_to_everybody() -> None:
    """TTFT and E2E of the measured requests, and the bound that the SLO sets."""
    axes = sketch_figure(plots.request_latency(run("stable"))).axes[0]
    curves = {line.get_label(): line for line in axes.lines}

    assert {"TTFT", "E2E"} <= set(curves)
    assert np.median(curves["TTFT"].get_xdata()) < np.median(curves["E2E"].get_xdata())
    assert [text.get_text() for text in axes.texts] == ["SLO 1 s"]
    assert all(np.isin((0.0, 1.0), curves[name].get_ydata()).all() for name in ("TTFT", "E2E"))


def test_the_curve_agrees_with_the_table() -> None:
    """The 50th percentile is where the curve crosses one half."""
    result = run("stable")

    curve = sketch_figure(plots.request_latency(result)).axes[0].lines[0]

    median = 1e3 * np.interp(0.5, np.asarray(curve.get_ydata()), np.asarray(curve.get_xdata()))
    assert median == pytest.approx(result.summary["p50_ttft_ms"], rel=0.01)


def test_bars_add_up_to_everything() -> None:
    """The parts of the step time."""
    axes = sketch_figure(plots.step_time(run("stable"))).axes[0]

    assert sum(bar.get_width() for bar in axes.patches) == pytest.approx(1.0)


def test_axes_carry_their_units() -> None:
    """Time in minutes for a run of minutes, shares in per cent, requests in requests."""
    over_time = sketch_figure(plots.requests_over_time(run("overloaded"))).axes[0]
    kv = sketch_figure(plots.kv_over_time(run("stable"))).axes[0]

    assert over_time.get_xlabel().startswith("simulated time, ")
    assert over_time.get_ylabel() == "requests"
    assert kv.get_ylim()[1] in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
    assert 0.4 < 1.1 * run("stable").simulation.totals.series.kv_usage.max() / kv.get_ylim()[1] <= 1.0
    assert kv.get_ylabel() == "share of KV capacity"


def test_the_throughput_curve_names_its_turning_point() -> None:
    """And whether it falls beyond."""
    points = [(8, 500.0), (32, 925.0), (48, 813.0)]

    axes = sketch_figure(plots.throughput_curve(points, turning_point(points))).axes[0]

    assert axes.get_title(loc="left") == "most at max_num_seqs 32, falls beyond"
    assert axes.get_xlabel() == "max_num_seqs"
    assert axes.get_ylabel() == "output tokens/s"


def test_a_drawing_is_one_element_with_ids_of_its_own() -> None:
    """The same figure twice gives the same text; another name gives other ids."""
    first = sketch_svg(plots.kv_over_time(run("stable")), "one", "Use & <more>")
    again = sketch_svg(plots.kv_over_time(run("stable")), "one", "Use & <more>")

    assert first == again
    assert first.startswith('<svg role="img" aria-label="Use &amp; &lt;more&gt;" viewBox="0 0 ')
    assert 'id="one-' in first
    assert "http" not in first
    assert "#0072b2" not in first
    assert "var(--blue)" in first
    assert ">simulated time, " in first


@pytest.mark.parametrize(("low", "high"), [(0.009, 0.02), (0.03, 5.0), (1e-4, 1e3), (40.0, 1500.0)])
def test_logarithmic_ticks_are_few_and_inside(low: float, high: float) -> None:
    """Between one and seven round values, ascending."""
    ticks = log_ticks(low, high)

    assert 1 <= len(ticks) <= 7
    assert ticks == sorted(ticks)
    assert low <= ticks[0] <= ticks[-1] <= high


@pytest.mark.parametrize(("span", "unit", "last"), [(60.0, "s", 60.0), (600.0, "min", 10.0), (7200.0, "h", 2.0)])
def test_a_clock_fits_its_span(span: float, unit: str, last: float) -> None:
    """Seconds, minutes or hours."""
    times, label = clock(np.array([0.0, span]))

    assert label == f"simulated time, {unit}"
    assert times[-1] == pytest.approx(last)


@pytest.mark.parametrize(("low", "high"), [(2.95, 7.8), (4.0, 6.0), (0.011, 0.018), (300.0, 900.0)])
def test_a_short_logarithmic_axis_has_ticks_too(low: float, high: float) -> None:
    """At least three, though no two decades are near."""
    ticks = log_ticks(low, high)

    assert 3 <= len(ticks) <= 7
    assert all(low <= tick <= high for tick in ticks)


def test_changes_of_the_fleet_are_marked() -> None:
    """A lost replica and its return; a fleet that stays as it is has no marks."""
    lost = plots.requests_over_time(api.run(api.load("lost-replica")))
    still = plots.requests_over_time(run("stable"))

    rules = [mark.x for mark in lost.marks if isinstance(mark, Rule)]
    notes = [(mark.x, mark.text) for mark in lost.marks if isinstance(mark, Note)]
    assert rules == pytest.approx([4.0, 7.0])
    assert notes == [(pytest.approx(4.0), "3 ready"), (pytest.approx(7.0), "4 ready")]
    assert not any(isinstance(mark, Rule) for mark in still.marks)


def test_a_change_at_the_end_is_named_within_the_picture() -> None:
    """A replica that is lost for good nine tenths through the run: its name stands left of its line."""
    faults = 'deployment.faults=[{kind: replica, at: "90 s", replica: 0, duration: "10 min"}]'
    short = ["workload.duration=100 s", "workload.output_tokens={distribution: fixed, value: 5}"]
    lost = plots.requests_over_time(api.run(api.load("lost-replica", [faults, *short])))

    (note,) = [mark for mark in lost.marks if isinstance(mark, Note)]
    assert note.text == "3 ready"
    assert note.is_left_of
