"""The figures of a run, as Matplotlib figures that are never shown by themselves: drawn small, one message each.

Colours are those of Okabe and Ito, told apart by any eye, and lines differ in their dashes too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simserve.metrics.latency import request_latencies
from simserve.metrics.result import RunResult
from simserve.report import facts
from simserve.report.axes import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    SKY,
    VERMILION,
    canvas,
    clock,
    few_ticks,
    key_below,
    legend,
    log_time_axis,
    mark_limits,
    share_axis,
)
from simserve.report.curves import (
    TurningPoint,
    cumulative,
    cumulative_histogram,
    thinned,
)
from simserve.report.quantities import share

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]
Dashes = str | tuple[int, tuple[int, int]]
Curve = tuple[str, str, Dashes, Floats, Floats]
"""Label, colour, dashes, x and y."""

_SOLID: Dashes = "-"
_DASHED: Dashes = (0, (5, 2))
_PART_COLORS = {
    "weights": BLUE,
    "kv": SKY,
    "compute": ORANGE,
    "communication": GREEN,
    "host": GREY,
    "draft": VERMILION,
}
_WAIT_COLORS = {"seats": VERMILION, "blocks": SKY, "budget": ORANGE, "step": GREY}


def request_latency(result: RunResult) -> Figure:
    """Return the cumulative curves of TTFT and E2E of the measured requests, with their SLO bounds."""
    latencies, counted = request_latencies(result.simulation.records), _is_measured(result)
    curves = [
        ("TTFT", BLUE, _SOLID, *cumulative(latencies.ttft[counted])),
        ("E2E", VERMILION, _DASHED, *cumulative(latencies.e2e[counted])),
    ]
    limits = {} if result.slo is None else {"TTFT": result.slo.ttft, "E2E": result.slo.e2e}
    return _cumulative(curves, limits, "share of completed requests")


def token_latency(result: RunResult) -> Figure:
    """Return the cumulative curves of TPOT (a request) and of ITL (a gap, the whole run), with the TPOT bound."""
    latencies, counted = request_latencies(result.simulation.records), _is_measured(result)
    curves = [
        ("TPOT, of requests", BLUE, _SOLID, *cumulative(latencies.tpot[counted])),
        ("ITL, of gaps", VERMILION, _DASHED, *cumulative_histogram(result.simulation.totals.itl)),
    ]
    limits = {} if result.slo is None else {"TPOT, of requests": result.slo.tpot}
    return _cumulative(curves, limits, "share of requests, of gaps")


def requests_over_time(result: RunResult) -> Figure:
    """Return running and waiting requests over time."""
    series = result.simulation.totals.series
    edges, (running, waiting) = thinned(series.edges, series.running, series.waiting)
    figure, axes = canvas()
    times, label = clock(edges)
    _steps(axes, times, running, "running", BLUE, _SOLID)
    _steps(axes, times, waiting, "waiting", VERMILION, _DASHED)
    axes.set_ylim(0, max(1.0, 1.08 * float(max(running.max(), waiting.max()))))
    few_ticks(axes)
    axes.set_xlim(0, times[-1])
    axes.set_xlabel(label)
    axes.set_ylabel("requests")
    legend(figure, axes)
    return figure


def kv_over_time(result: RunResult) -> Figure:
    """Return the share of KV memory that is reserved over time, 0 to 100 %."""
    series = result.simulation.totals.series
    edges, (usage,) = thinned(series.edges, series.kv_usage)
    figure, axes = canvas()
    times, label = clock(edges)
    axes.stairs(usage, times, fill=True, color=SKY, alpha=0.5, linewidth=0)
    _steps(axes, times, usage, "KV memory reserved", BLUE, _SOLID)
    share_axis(axes)
    axes.set_xlim(0, times[-1])
    axes.set_xlabel(label)
    axes.set_ylabel("share of KV capacity")
    legend(figure, axes)
    return figure


def step_time(result: RunResult) -> Figure:
    """Return one stacked bar: which part of the step time goes where."""
    shares = result.summary["simserve"]["bottleneck"]["step_shares"]
    return _stacked(shares, facts.PART_LABELS, _PART_COLORS, "share of step time")


def waiting_time(result: RunResult) -> Figure:
    """Return one stacked bar: what the requests in the queue waited for."""
    shares = result.summary["simserve"]["bottleneck"]["waiting_shares"]
    return _stacked(shares, facts.WAIT_LABELS, _WAIT_COLORS, "share of queueing time")


def throughput_curve(points: Sequence[tuple[int, float]], turning_point: TurningPoint) -> Figure:
    """Return throughput against ``max_num_seqs``, its turning point named.

    Args:
        points: (``max_num_seqs``, output tokens/s), at least one.
        turning_point: Of the same points (`simserve.report.curves.turning_point`).
    """
    ordered = sorted(points)
    figure, axes = canvas()
    axes.plot([x for x, _ in ordered], [y for _, y in ordered], color=BLUE, marker="o", markersize=3)
    axes.axvline(turning_point.at, color=VERMILION, linewidth=1, linestyle=_DASHED)
    after = "falls beyond" if turning_point.falls_after else "no gain beyond"
    axes.set_title(f"most at max_num_seqs {turning_point.at}, {after}", fontsize=9, loc="left", color=INK)
    axes.set_ylim(0, 1.12 * turning_point.value)
    axes.set_xlabel("max_num_seqs")
    axes.set_ylabel("output tokens/s")
    return figure


def _is_measured(result: RunResult) -> NDArray[np.bool_]:
    """Return which requests the latencies of the summary are over: completed, and arrived in the window."""
    window = result.summary["simserve"]["window"]
    latencies, arrival = request_latencies(result.simulation.records), result.simulation.records.arrival_time
    if window["start_s"] is None:
        return np.zeros(len(arrival), dtype=np.bool_)
    in_window: NDArray[np.bool_] = (arrival >= window["start_s"]) & (arrival <= window["end_s"])
    return latencies.is_completed & in_window


def _steps(axes: Axes, edges: Floats, values: Floats, name: str, color: str, dashes: Dashes) -> None:
    """Draw means over bins as steps, closed by no vertical line at either end."""
    axes.stairs(values, edges, baseline=None, color=color, linestyle=dashes, linewidth=1.2, label=name)


def _cumulative(curves: Sequence[Curve], limits: Mapping[str, float | None], label: str) -> Figure:
    figure, axes = canvas()
    drawn = [curve for curve in curves if len(curve[3])]
    for name, color, dashes, values, levels in drawn:
        axes.plot(values, levels, color=color, linestyle=dashes, label=name)
    bounds = [(limit, color) for name, color, *_ in curves if (limit := limits.get(name)) is not None]
    reach = [float(values[index]) for *_, values, _ in drawn for index in (0, -1)]
    log_time_axis(axes, reach + [limit for limit, _ in bounds])
    share_axis(axes)
    axes.set_ylabel(label)
    mark_limits(axes, bounds)
    legend(figure, axes)
    return figure


def _stacked(
    shares: Mapping[str, float | None], labels: Mapping[str, str], colors: Mapping[str, str], axis_label: str
) -> Figure:
    figure, axes = canvas(height=1.75, left=0.02, right=0.95, bottom=0.62, top=0.98)
    start = 0.0
    for name, text in labels.items():
        value = shares.get(name)
        if value:
            axes.barh([0], [value], left=[start], color=colors[name], label=f"{text} {share(value)}")
            start += value
    axes.set_xlim(0, 1)
    axes.set_yticks([])
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0%", "25%", "50%", "75%", "100%"])
    axes.set_xlabel(axis_label)
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.grid(False)
    if start:
        key_below(figure, axes)
    else:
        axes.set_axis_off()
        axes.text(0.5, 0.5, "nothing was recorded", transform=axes.transAxes, ha="center", color=INK)
    return figure
