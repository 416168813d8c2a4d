"""`result.plot`, `_repr_html_` and `to_html` of the answers, as a notebook uses them."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure

import simserve as ss
from simserve.errors import UsageError
from simserve.report.html import render_report
from simserve.report.plots import memory_bar
from simserve.report.sketch_svg import sketch_svg
from simserve.report.tables import memory_rows
from tests.report.builders import run

_NAMES = ("latency", "token_latency", "requests", "kv", "step_time", "waiting", "memory", "roofline")


@pytest.mark.parametrize("name", _NAMES)
def test_a_figure_returns_itself(name: str) -> None:
    """Nothing is shown by the side."""
    assert isinstance(getattr(run("stable").plot, name)(), Figure)


def test_a_notebook_shows_a_figure_without_pyplot() -> None:
    """As SVG, with the same bytes each time."""
    shown = run("stable").plot.latency()._repr_svg_()

    assert shown.startswith("<?xml")
    assert "<svg" in shown
    assert shown == run("stable").plot.latency()._repr_svg_()


def test_the_figures_can_be_listed() -> None:
    """By completion in a notebook."""
    assert set(_NAMES) | {"seats"} == {name for name in dir(run("stable").plot) if not name.startswith("_")}


def test_figures_that_a_run_lacks_say_why() -> None:
    """Seats are tried in runs with preemptions only; without a step there is no roofline."""
    assert isinstance(run("preempting").plot.seats(), Figure)
    with pytest.raises(UsageError, match="preemptions only"):
        run("stable").plot.seats()
    with pytest.raises(UsageError, match="no request was completed"):
        run("empty").plot.roofline()


def test_the_roofline_shows_every_operator_and_both_roofs() -> None:
    """As many points as the background has, the roof of each dtype."""
    result = run("stable")

    axes = result.plot.roofline().axes[0]

    shown = sum(len(each.get_offsets()) for each in axes.collections)
    assert shown == len(result.background["roofline"]["points"])
    texts = [text.get_text() for text in axes.texts]
    assert [each for each in texts if "TFLOP/s" in each] == ["fp8 1,979 TFLOP/s", "bf16 989 TFLOP/s"]
    assert "3.35 TB/s" in texts


def test_the_memory_bar_is_all_of_a_gpu() -> None:
    """In GB."""
    axes = run("stable").plot.memory().axes[0]

    assert sum(bar.get_width() for bar in axes.patches) == pytest.approx(85.02, abs=0.01)


def test_a_run_shows_itself() -> None:
    """Answer first; what limits it last."""
    shown = run("stable")._repr_html_()

    assert shown.startswith('<h1 class="holds">The SLO holds')
    assert "TTFT" in shown
    assert "xpected error (median): TPOT" in shown


def test_an_answer_prints_as_its_first_sentence() -> None:
    """A prompt without a notebook shows the answer, not every figure of the summary."""
    scenario = ss.load("chatbot", ["workload.num_requests=60"])
    compared = ss.compare(scenario, {"bf16": ["deployment.quantization=none"]}, replications=2)

    assert repr(run("stable")).startswith("<RunResult of ")
    assert "The SLO holds" in repr(run("stable"))
    assert repr(compared) == "<Comparison: bf16: too few runs for intervals (--replications 5).>"
    for answer in (run("stable"), compared, ss.cost(scenario), ss.sweep(scenario, {"workload.arrivals.rate": [3]})):
        assert str(answer) == repr(answer)
        assert len(repr(answer)) < 300


def test_a_run_writes_its_report(tmp_path: Path) -> None:
    """The same page as in its folder."""
    run("stable").to_html(tmp_path / "page.html")

    assert (tmp_path / "page.html").read_text(encoding="utf-8") == render_report(run("stable"))


@pytest.mark.slow
def test_the_answers_of_many_runs_draw_themselves() -> None:
    """Capacity against load with the bounds, differences with their intervals, a sweep over its first numbers."""
    scenario = ss.load("chatbot", ["workload.num_requests=120"])
    capacity = ss.capacity(scenario, num_requests=120, replications=2)
    comparison = ss.compare(scenario, {"two": {"deployment.replicas": 2}}, replications=2)
    swept = ss.sweep(scenario, {"deployment.quantization": ["fp8"], "workload.arrivals.rate": [2, 4]})

    loads = [line.get_xdata() for line in capacity.plot.latency().axes[0].lines if line.get_label() == "TTFT p95"]
    assert len(loads[0]) == len(capacity.found.levels)
    assert {"SLO 1 s", "SLO 50 ms"} <= {text.get_text() for text in capacity.plot.latency().axes[0].texts}
    assert isinstance(capacity.plot.goodput(), Figure)
    assert comparison.plot.differences().axes[0].get_yticklabels()[0].get_text() == "TTFT p95"
    curve = swept.plot.curve("p95_ttft_ms")
    assert curve is not None
    assert curve.axes[0].get_xlabel() == "workload.arrivals.rate, requests/s"
    assert list(curve.axes[0].lines[0].get_xdata()) == [2.0, 4.0]


def test_a_sweep_without_numbers_has_no_curve() -> None:
    """Names cannot be an axis."""
    scenario = ss.load("chatbot", ["workload.num_requests=60"])

    assert ss.sweep(scenario, {"deployment.quantization": ["fp8", "none"]}).plot.curve() is None


def test_the_two_sides_meet_where_the_summary_says() -> None:
    """The circle of the break-even, and bars of what matters."""
    answer = ss.cost(gpus=2, gpu_hour_usd=6, requests_per_month=1e6, prompt_tokens=500, output_tokens=200, api="gpt-4o")

    figure = answer.plot.break_even()

    assert figure is not None
    spot = figure.axes[0].collections[0].get_offsets()[0]
    assert spot[0] * 1e6 == pytest.approx(answer.summary["break_even"]["requests_per_month"])
    assert isinstance(answer.plot.tornado(), Figure)


def test_states_of_linear_attention_have_a_place_in_the_bar() -> None:
    """A hybrid model's, between weights and KV cache; nothing of them is called unused."""
    summary = dict(run("stable").summary)
    simserve = dict(summary["simserve"])
    memory = {**simserve["memory"], "states_bytes": 4e9}
    summary["simserve"] = simserve | {"memory": memory}
    plain = {row.label: row.cells[0].value for row in memory_rows(run("stable").summary)}

    rows = {row.label: row.cells[0].value for row in memory_rows(summary)}

    assert rows["States of linear attention"] == 4e9
    assert plain["Unused"] - rows["Unused"] == pytest.approx(4e9)
    assert "States of linear attention" not in plain
    assert "States of linear attention" in sketch_svg(memory_bar(summary), "memory", "Memory.")
