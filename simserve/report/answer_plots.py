"""Figures of what simserve finds by many runs, as Matplotlib figures: capacity, differences, sweeps, plans, dollars."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from simserve.report.axes import BLUE, GREEN, GREY, INK, ORANGE, SKY, VERMILION, canvas, legend
from simserve.report.quantities import dollars, number
from simserve.units import format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from simserve.planner.capacity_answer import Capacity
    from simserve.planner.compare import Comparison
    from simserve.planner.sweep import Sweep

_DASHED = (0, (5, 2))
_SERIES = ((BLUE, "-", "o"), (VERMILION, _DASHED, "s"), (GREEN, ":", "^"), (ORANGE, "-.", "D"), (SKY, "-", "v"))
"""Colour, dashes and marker of the first, second, ... line: told apart by any eye, and without colour."""
_MOST_LINES = len(_SERIES)
_SHARES = ("slo_attainment", "busy", "kv_usage_mean")
_UNITS = {
    "workload.arrivals.rate": "requests/s",
    "workload.arrivals.concurrency": "requests in hand",
    "workload.prompt_tokens.mean": "tokens",
    "workload.output_tokens.mean": "tokens",
    "deployment.engine.max_num_seqs": "sequences",
    "deployment.engine.max_num_batched_tokens": "tokens",
    "deployment.tensor_parallel_size": "GPUs",
}
"""Of keys whose name does not carry it."""
_COMPARED = (
    ("p95_ttft_ms", "TTFT p95"),
    ("p95_tpot_ms", "TPOT p95"),
    ("p95_e2el_ms", "E2E p95"),
    ("output_throughput", "output tokens/s"),
    ("usd_per_million_output_tokens", "dollars a token"),
)


def capacity_latency(capacity: Capacity) -> Figure:
    """Return p95 of TTFT and TPOT against the load, with the bounds of the SLO and the load that is borne."""
    slo = capacity.scenario.slo
    assert slo is not None  # as the search required
    figure, axes = canvas()
    loads = [level.load for level in capacity.found.levels]
    for name, label, bound, (color, dashes, marker) in (
        ("p95_ttft", "TTFT p95", slo.ttft, _SERIES[0]),
        ("p95_tpot", "TPOT p95", slo.tpot, _SERIES[1]),
    ):
        values = [level.mean(name) for level in capacity.found.levels]
        if not np.isfinite(values).any():
            continue
        axes.plot(loads, values, color=color, linestyle=dashes, marker=marker, markersize=3.5, label=label)
        if bound is not None:
            axes.axhline(bound, color=color, linewidth=1, linestyle=":")
            _note(axes, f"SLO {format_seconds(bound)}", (min(loads), bound), color)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: format_seconds(value))
    axes.yaxis.set_minor_formatter(lambda *_: "")
    _mark_capacity(axes, capacity)
    axes.set_xlabel(_load_label(capacity))
    axes.set_ylabel("p95, logarithmic")
    legend(figure, axes)
    return figure


def capacity_goodput(capacity: Capacity) -> Figure:
    """Return requests/s answered, and within the SLO, against the load; the knee is where the latter is highest."""
    figure, axes = canvas()
    levels = capacity.found.levels
    loads = [level.load for level in levels]
    for name, label, (color, dashes, marker) in (
        ("throughput", "answered", _SERIES[1]),
        ("goodput", "within the SLO", _SERIES[0]),
    ):
        values = [level.mean(name) for level in levels]
        axes.plot(loads, values, color=color, linestyle=dashes, marker=marker, markersize=3.5, label=label)
    knee = capacity.found.knee
    if knee is not None:
        axes.scatter([knee.load], [knee.mean("goodput")], s=60, facecolors="none", edgecolors=INK, zorder=4)
        _note(axes, "knee", (knee.load, knee.mean("goodput")), INK, (6, -22))
    axes.set_ylim(0, None)
    _mark_capacity(axes, capacity)
    axes.set_xlabel(_load_label(capacity))
    axes.set_ylabel("requests/s")
    legend(figure, axes)
    return figure


def _load_label(capacity: Capacity) -> str:
    return "clients" if capacity.is_closed_loop else "requests/s that arrive"


def _mark_capacity(axes: Axes, capacity: Capacity) -> None:
    value = capacity.found.largest.value
    if not value:
        return
    interval = capacity.found.interval
    if interval is not None:
        axes.axvspan(*interval, color=GREY, alpha=0.25, linewidth=0)
    axes.axvline(value, color=INK, linewidth=1, linestyle=_DASHED)
    axes.annotate(
        f"holds up to {number(value)}",
        (value, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(-3, 3),
        textcoords="offset points",
        ha="right",
        fontsize=8,
        color=INK,
    )


def differences(comparison: Comparison) -> Figure:
    """Return what each variant changes, in percent of the base, with 95 % intervals; hollow: not shown to differ."""
    from matplotlib.ticker import MaxNLocator

    names = [
        (name, label)
        for name, label in _COMPARED
        if any(_relative(variant.differences[name]) is not None for variant in comparison.variants)
    ]
    variants = comparison.variants[:_MOST_LINES]
    height = 1.0 + 0.42 * len(names) * max(1, len(variants)) ** 0.7
    figure, axes = canvas(height=height, left=0.3, bottom=0.55 / height, top=1 - 0.4 / height)
    for number_of, variant in enumerate(variants):
        color, _, marker = _SERIES[number_of]
        offset = 0.6 * ((number_of + 0.5) / len(variants) - 0.5)
        label: str | None = variant.name
        for row, (name, _) in enumerate(names):
            difference = variant.differences[name]
            value = _relative(difference)
            if value is None:
                continue
            mean, width = value
            axes.errorbar(
                [mean],
                [row + offset],
                xerr=[[width], [width]],
                fmt=marker,
                color=color,
                markersize=5,
                markerfacecolor=color if difference.is_shown else "none",
                capsize=3,
                linewidth=1.2,
                label=label,
            )
            label = None
    axes.axvline(0, color=INK, linewidth=1)
    axes.set_yticks(range(len(names)), [label for _, label in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:+g}%" if value else "0")
    axes.set_xlabel(f"change from {comparison.base.name}, with its 95% interval")
    legend(figure, axes)
    return figure


def _relative(difference: Any) -> tuple[float, float] | None:
    """Return the mean and half width in percent of the base; None where undefined."""
    if difference.base is None or not difference.base or math.isnan(difference.mean) or math.isnan(difference.base):
        return None
    scale = 100 / abs(difference.base)
    width = 0.0 if math.isnan(difference.half_width) else difference.half_width
    return scale * difference.mean, scale * width


def sweep_curves(sweep: Sweep, figure_name: str, label: str) -> Figure | None:
    """Return a figure of the points against the first key with numbers, one line a value of the next key.

    Args:
        sweep: The rows.
        figure_name: Column of the table, such as ``p95_ttft_ms``.
        label: Of the vertical axis, with its unit.

    Returns:
        None where no key has at least two numbers, or the figure is undefined throughout.
    """
    axis = next((key for key in sweep.keys if len(_numbers(sweep, key)) > 1), None)
    if axis is None:
        return None
    others = [key for key in sweep.keys if key != axis]
    lines: dict[tuple[str, ...], list[tuple[float, float]]] = {}
    for row in sweep.rows:
        value, at = row.get(figure_name), row["values"][axis]
        if value is None or not isinstance(at, int | float) or isinstance(at, bool):
            continue
        lines.setdefault(tuple(str(row["values"][key]) for key in others), []).append((float(at), float(value)))
    if not lines:
        return None
    figure, axes = canvas()
    drawn = sorted(lines.items())[:_MOST_LINES]
    for (names, points), (color, dashes, marker) in zip(drawn, _SERIES, strict=False):
        points.sort()
        title = ", ".join(f"{key.rpartition('.')[2]} {name}" for key, name in zip(others, names, strict=True))
        axes.plot(*zip(*points, strict=True), color=color, linestyle=dashes, marker=marker, markersize=3.5, label=title)
    if len(lines) > _MOST_LINES:
        axes.set_title(f"{_MOST_LINES} of {len(lines)} combinations", fontsize=8, loc="right", color=INK)
    axes.set_ylim(0, None)
    if figure_name in _SHARES:
        axes.set_ylim(0, 1.04)
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f}%")
    axes.set_xlabel(f"{axis}, {_UNITS[axis]}" if axis in _UNITS else axis)
    axes.set_ylabel(label)
    if len(drawn) > 1 and len(others):
        axes.legend(frameon=False, fontsize=8, labelcolor=INK)
    return figure


def _numbers(sweep: Sweep, key: str) -> set[float]:
    values = [row["values"][key] for row in sweep.rows]
    return {value for value in values if isinstance(value, int | float) and not isinstance(value, bool)}


def plan_candidates(summary: Mapping[str, Any]) -> Figure | None:
    """Return dollars a month against p95 TTFT of the fleets that were simulated; None where none was priced.

    Args:
        summary: Of a plan.
    """
    seen = [
        each
        for each in summary["candidates"]
        if each.get("usd_per_month") and each.get("p95_ttft_ms") and each["usd_per_month"] > 0
    ]
    if not seen:
        return None
    figure, axes = canvas()
    for holds, (color, _, marker), label in ((True, _SERIES[0], "holds"), (False, _SERIES[1], "does not hold")):
        points = [each for each in seen if bool(each.get("holds")) == holds]
        axes.scatter(
            [each["p95_ttft_ms"] / 1e3 for each in points],
            [each["usd_per_month"] for each in points],
            color=color if holds else "none",
            edgecolors=color,
            marker=marker,
            s=22,
            linewidths=1,
            label=label,
        )
    best = summary["best"]
    if best:
        spot = (best["p95_ttft_ms"] / 1e3, best["usd_per_month"])
        axes.scatter([spot[0]], [spot[1]], s=90, facecolors="none", edgecolors=INK, zorder=4)
        _note(axes, "the plan", spot, INK, (7, -10))
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: format_seconds(value))
    axes.xaxis.set_minor_formatter(lambda *_: "")
    axes.set_ylim(0, None)
    axes.yaxis.set_major_formatter(lambda value, _: dollars(value) if value else "$0")
    axes.set_xlabel("TTFT p95, logarithmic")
    axes.set_ylabel("dollars a month")
    legend(figure, axes)
    return figure


def break_even(summary: Mapping[str, Any]) -> Figure | None:
    """Return dollars a month of self-hosting and of the API against the requests of a month.

    Self-hosting is drawn for the fleet of the answer: beyond what it holds another replica is needed.

    Args:
        summary: Of `simserve cost`.

    Returns:
        None where one of the two sides is unknown.
    """
    own, api, even = summary["self_host"], summary["api"], summary["break_even"]["requests_per_month"]
    asked = (summary.get("day") or summary.get("terms") or {}).get("requests_per_month")
    if own["usd_per_month"] is None or api["usd_per_request"] is None:
        return None
    marks = [value for value in (asked, even) if value]
    if not marks:
        return None
    most = 1.2 * max(marks) / 1e6
    figure, axes = canvas()
    axes.plot([0, most], [0, most * 1e6 * api["usd_per_request"]], color=VERMILION, label=str(api["name"]))
    axes.plot([0, most], [own["usd_per_month"]] * 2, color=BLUE, linestyle=_DASHED, label="self-hosting, this fleet")
    if even:
        axes.scatter([even / 1e6], [even * api["usd_per_request"]], color=INK, s=26, zorder=4)
        _note(
            axes,
            f"break-even {number(even / 1e6)} M",
            (even / 1e6, even * api["usd_per_request"]),
            INK,
            (6, -12) if even / 1e6 < 0.7 * most else (-6, -12),
            "left" if even / 1e6 < 0.7 * most else "right",
        )
    if asked:
        axes.axvline(asked / 1e6, color=GREY, linewidth=1, linestyle=":")
        axes.annotate(
            "this traffic",
            (asked / 1e6, 1),
            xycoords=("data", "axes fraction"),
            xytext=(0, 3),
            ha="center",
            textcoords="offset points",
            fontsize=8,
            color=INK,
        )
    axes.set_xlim(0, most)
    axes.set_ylim(0, None)
    axes.yaxis.set_major_formatter(lambda value, _: dollars(value) if value else "$0")
    axes.set_xlabel("million requests a month")
    axes.set_ylabel("dollars a month")
    legend(figure, axes)
    return figure


def tornado(summary: Mapping[str, Any]) -> Figure | None:
    """Return by how much each input moves the saving of self-hosting; None where there is none.

    Args:
        summary: Of `simserve cost`.
    """
    rows: Sequence[Mapping[str, Any]] = summary["sensitivity"][:8]
    if not rows:
        return None
    height = 1.1 + 0.32 * len(rows)
    figure, axes = canvas(height=height, left=0.47, bottom=0.55 / height, top=1 - 0.25 / height)
    for position, row in enumerate(rows):
        low, high = row["saving_usd_per_month_low"], row["saving_usd_per_month_high"]
        axes.barh([position], [high - low], left=[low], color=SKY if row["changes_the_answer"] else GREY, height=0.6)
    axes.axvline(0, color=INK, linewidth=1)
    if summary["saving_usd_per_month"] is not None:
        axes.axvline(summary["saving_usd_per_month"], color=VERMILION, linewidth=1, linestyle=_DASHED)
    axes.set_yticks(range(len(rows)), [row["parameter"] for row in rows], fontsize=8)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1e3:g}" if value else "0")
    axes.set_xlabel("$1,000 a month saved")
    return figure


def _note(
    axes: Axes, text: str, at: tuple[float, float], color: str, offset: tuple[int, int] = (3, 3), ha: str = "left"
) -> None:
    axes.annotate(text, at, xytext=offset, textcoords="offset points", fontsize=8, color=color, ha=ha)
