"""Figures of a deployment, as Matplotlib figures: its operators on the roofline, its memory, dollars against an API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from simserve.report.axes import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    SKY,
    VERMILION,
    canvas,
    key_below,
    legend,
    log_ticks,
)
from simserve.report.quantities import dollars, number, share
from simserve.report.tables import Row, memory_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MEMORY_COLORS = {
    "Weights": BLUE,
    "Draft weights": VERMILION,
    "KV cache": SKY,
    "Activations": ORANGE,
    "Runtime and communication": GREY,
    "CUDA graphs": GREEN,
    "Unused": "none",
}
_PHASES = {"decode": ("o", BLUE, "of the mean decode step"), "prefill": ("s", VERMILION, "of a mean prompt")}
_NAMES = {
    "qkv": "QKV",
    "gate_up": "gate, up",
    "lm_head": "LM head",
    "attention": "attention",
    "experts": "experts",
    "router": "router",
}
_MOST_LABELS = 7
HOURS_A_MONTH = 720


def roofline(found: Mapping[str, Any]) -> Figure:
    """Return the operators of a deployment below the limits of its GPU, both axes logarithmic.

    Args:
        found: ``roofline`` of `simserve.report.background`.
    """
    points = found["points"]
    figure, axes = canvas(height=3.6, top=0.88, bottom=0.15)
    reach = [point["intensity"] for point in points]
    low, high = min(reach) / 2, max([*reach, 2 * max(found["peaks"].values()) / found["bandwidth"]]) * 2
    top = max(found["peaks"].values())
    xs = np.geomspace(low, high, 200)
    for position, (dtype, peak) in enumerate(sorted(found["peaks"].items(), key=lambda each: -each[1])):
        axes.plot(xs, np.minimum(found["bandwidth"] * xs, peak), color=INK, linewidth=1.3 if not position else 0.8)
        axes.annotate(
            f"{dtype} {number(peak / 1e12)} TFLOP/s",
            (high, peak),
            xytext=(-2, 3),
            textcoords="offset points",
            ha="right",
            fontsize=8,
            color=INK,
        )
    for phase, (marker, color, _) in _PHASES.items():
        of_phase = [point for point in points if point["phase"] == phase]
        axes.scatter(
            [point["intensity"] for point in of_phase],
            [point["flops_per_second"] for point in of_phase],
            marker=marker,
            s=22,
            color=color,
            label=_PHASES[phase][2],
            zorder=3,
        )
    _name_points(axes, points)
    axes.set(xscale="log", yscale="log", xlim=(low, high))
    bottom = min([point["flops_per_second"] for point in points] + [found["bandwidth"] * low]) / 2
    axes.set_ylim(bottom, 2.2 * top)
    _round_ticks(axes, low, high, bottom, 2.2 * top)
    axes.set_xlabel("arithmetic intensity, FLOP a byte, logarithmic")
    axes.set_ylabel("TFLOP/s of one GPU, logarithmic")
    middle = np.sqrt(low * top / found["bandwidth"])
    axes.annotate(
        f"{number(found['bandwidth'] / 1e12)} TB/s",
        (middle, found["bandwidth"] * middle),
        xytext=(-5, 4),
        textcoords="offset points",
        ha="right",
        fontsize=8,
        color=INK,
    )
    legend(figure, axes)
    return figure


def _name_points(axes: Axes, points: Sequence[Mapping[str, Any]]) -> None:
    """Name the operators that take longest, at most seven a phase; of those on one spot the first."""
    for phase in _PHASES:
        of_phase = sorted((each for each in points if each["phase"] == phase), key=lambda each: -each["seconds"])
        placed: list[tuple[float, float]] = []
        for point in of_phase[:_MOST_LABELS]:
            spot = (np.log10(point["intensity"]), np.log10(point["flops_per_second"]))
            if any(abs(spot[0] - x) < 0.35 and abs(spot[1] - y) < 0.13 for x, y in placed):
                continue
            placed.append(spot)
            color = _PHASES[phase][1]
            # Operators of a prompt lie together under the roof: their names hang below, on a thread.
            hangs = phase == "prefill"
            axes.annotate(
                _NAMES.get(point["name"], point["name"].replace("_", " ")),
                (point["intensity"], point["flops_per_second"]),
                xytext=(-10, -16 - 11 * len(placed)) if hangs else (5, -9),
                textcoords="offset points",
                ha="right" if hangs else "left",
                fontsize=8,
                color=color,
                arrowprops={"arrowstyle": "-", "color": color, "linewidth": 0.6, "shrinkB": 2} if hangs else None,
            )


def _round_ticks(axes: Axes, low: float, high: float, bottom: float, top: float) -> None:
    from matplotlib.ticker import FixedLocator, NullLocator

    xs, ys = log_ticks(low, high), log_ticks(bottom, top)
    for axis, ticks in ((axes.xaxis, xs), (axes.yaxis, ys)):
        axis.set_major_locator(FixedLocator(ticks))
        axis.set_minor_locator(NullLocator())
    axes.set_xticklabels([number(tick, 1) for tick in xs])
    axes.set_yticklabels([number(tick / 1e12, 1) for tick in ys])


def memory_bar(summary: Mapping[str, Any]) -> Figure:
    """Return one stacked bar: where the memory of a GPU goes.

    Args:
        summary: Of a run.
    """
    figure, axes = canvas(height=1.75, left=0.02, right=0.95, bottom=0.62, top=0.98)
    parts: list[Row] = memory_rows(summary)[:-1]
    total = summary["simserve"]["memory"]["total_bytes"] / 1e9
    start = 0.0
    for row in parts:
        size = (row.cells[0].value or 0.0) / 1e9
        if size <= 0:
            continue
        color = _MEMORY_COLORS[row.label]
        label = f"{row.label} {share(size / total)}"
        edge = GREY if color == "none" else color
        axes.barh([0], [size], left=[start], color=color, edgecolor=edge, linewidth=0.6, label=label)
        start += size
    axes.set_xlim(0, total)
    axes.set_yticks([])
    axes.set_xlabel("GB of one GPU")
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.grid(False)
    key_below(figure, axes)
    return figure


def dollars_a_month(api: Mapping[str, Any], usd_per_hour: float, requests_per_second: float) -> Figure:
    """Return what a month costs at an API and on this deployment, over the requests of the month.

    Args:
        api: ``api`` of `simserve.report.background`.
        usd_per_hour: Of the whole deployment.
        requests_per_second: What the run served.
    """
    served = requests_per_second * 3600 * HOURS_A_MONTH
    fleet = usd_per_hour * HOURS_A_MONTH
    even = fleet / api["usd_per_request"]
    most = 1.25 * max(served, min(even, 4 * served))
    figure, axes = canvas()
    million = 1e6
    axes.plot([0, most / million], [0, most * api["usd_per_request"]], color=VERMILION, label=api["name"])
    axes.plot([0, most / million], [fleet, fleet], color=BLUE, linestyle=(0, (5, 2)), label="this deployment")
    axes.axvline(served / million, color=GREY, linewidth=1, linestyle=":")
    axes.annotate(
        "this run",
        (served / million, 1),
        xycoords=("data", "axes fraction"),
        xytext=(-3, 3),
        ha="right",
        fontsize=8,
        textcoords="offset points",
        color=INK,
    )
    if even <= most:
        axes.scatter([even / million], [fleet], color=INK, s=24, zorder=3)
        axes.annotate(
            f"break-even {number(even / million)} M",
            (even / million, fleet),
            xytext=(5, -12),
            fontsize=8,
            textcoords="offset points",
            color=INK,
        )
    axes.set_xlim(0, most / million)
    axes.set_ylim(0, None)
    axes.yaxis.set_major_formatter(lambda value, _: dollars(value) if value else "$0")
    axes.set_xlabel("million requests a month like those of this run")
    axes.set_ylabel("dollars a month")
    legend(figure, axes)
    return figure
