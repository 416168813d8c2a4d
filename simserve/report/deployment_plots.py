"""Pictures of a deployment as sketches: its operators on the roofline, its memory, dollars against an API."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from simserve.report.axes import BLUE, GREEN, GREY, INK, ORANGE, SKY, VERMILION
from simserve.report.quantities import number, share
from simserve.report.sketch import (
    Axis,
    Bar,
    Curve,
    Dots,
    Mark,
    Note,
    Sketch,
    bar_sketch,
)
from simserve.report.tables import Row, memory_rows

_MEMORY_COLORS: dict[str, str | None] = {
    "Weights": BLUE,
    "Draft weights": VERMILION,
    "States of linear attention": VERMILION,
    "Slots of LoRA adapters": VERMILION,
    "KV cache": SKY,
    "Activations": ORANGE,
    "Runtime and communication": GREY,
    "CUDA graphs": GREEN,
    "Unused": None,
}
_PHASES = {"decode": (BLUE, "of the mean decode step"), "prefill": (VERMILION, "of a mean prompt")}
_NAMES = {
    "qkv": "QKV",
    "gate_up": "gate, up",
    "lm_head": "LM head",
    "attention": "attention",
    "experts": "experts",
    "router": "router",
}
_MOST_LABELS = 7


def roofline(found: Mapping[str, Any]) -> Sketch:
    """Return the operators of a deployment below the limits of its GPU, both axes logarithmic.

    Args:
        found: ``roofline`` of `simserve.report.background`.
    """
    points, bandwidth = found["points"], found["bandwidth"]
    reach = [point["intensity"] for point in points]
    top = max(found["peaks"].values())
    low, high = min(reach) / 2, max([*reach, 2 * top / bandwidth]) * 2
    bottom = min([point["flops_per_second"] for point in points] + [bandwidth * low]) / 2
    middle = math.sqrt(low * top / bandwidth)
    slope = f"{number(bandwidth / 1e12)} TB/s"
    return Sketch(
        height=3.6,
        top=0.88,
        bottom=0.15,
        x=Axis(
            label="arithmetic intensity, FLOP a byte, logarithmic",
            low=low,
            high=high,
            is_log=True,
            words=lambda tick: number(tick, 1),
        ),
        y=Axis(
            label="TFLOP/s of one GPU, logarithmic",
            low=bottom,
            high=2.2 * top,
            is_log=True,
            words=lambda tick: number(tick / 1e12, 1),
        ),
        marks=[
            *_roofs(found, low, high),
            *(_operators(phase, points) for phase in _PHASES),
            *_names(points),
            Note(text=slope, x=middle, y=bandwidth * middle, right=-5, up=4, is_left_of=True),
        ],
    )


def _roofs(found: Mapping[str, Any], low: float, high: float) -> list[Mark]:
    """Return what memory and each format's arithmetic allow."""
    marks: list[Mark] = []
    for position, (dtype, peak) in enumerate(sorted(found["peaks"].items(), key=lambda each: -each[1])):
        xs = np.array([low, min(max(peak / found["bandwidth"], low), high), high])
        ys = np.minimum(found["bandwidth"] * xs, peak)
        marks.append(Curve(x=xs, y=ys, color=INK, width=0.8 if position else 1.3))
        text = f"{dtype} {number(peak / 1e12)} TFLOP/s"
        marks.append(Note(text=text, x=high, y=peak, right=-2, up=3, is_left_of=True))
    return marks


def _operators(phase: str, points: Sequence[Mapping[str, Any]]) -> Dots:
    color, label = _PHASES[phase]
    of_phase = [point for point in points if point["phase"] == phase]
    return Dots(
        x=[point["intensity"] for point in of_phase],
        y=[point["flops_per_second"] for point in of_phase],
        color=color,
        label=label,
        shape="square" if phase == "prefill" else "circle",
    )


def _names(points: Sequence[Mapping[str, Any]]) -> list[Note]:
    """Name the operators that take longest, at most seven a phase; of those on one spot the first."""
    notes = []
    for phase, (color, _) in _PHASES.items():
        of_phase = sorted((each for each in points if each["phase"] == phase), key=lambda each: -each["seconds"])
        placed: list[tuple[float, float]] = []
        for point in of_phase[:_MOST_LABELS]:
            spot = (math.log10(point["intensity"]), math.log10(point["flops_per_second"]))
            if any(abs(spot[0] - x) < 0.35 and abs(spot[1] - y) < 0.13 for x, y in placed):
                continue
            placed.append(spot)
            is_left = phase == "decode"
            notes.append(
                Note(
                    text=_NAMES.get(point["name"], point["name"].replace("_", " ")),
                    x=point["intensity"],
                    y=point["flops_per_second"],
                    right=5 if is_left else -5,
                    up=-9 if is_left else -15,
                    is_left_of=not is_left,
                    color=color,
                )
            )
    return notes


def memory_bar(summary: Mapping[str, Any]) -> Sketch:
    """Return one stacked bar: where the memory of a GPU goes.

    Args:
        summary: Of a run.
    """
    parts: list[Row] = memory_rows(summary)[:-1]
    total = summary["simserve"]["memory"]["total_bytes"] / 1e9
    bars, start = [], 0.0
    for row in parts:
        size = (row.cells[0].value or 0.0) / 1e9
        if size <= 0:
            continue
        color, label = _MEMORY_COLORS[row.label], f"{row.label} {share(size / total)}"
        bars.append(Bar(start=start, length=size, color=color, edge=color or GREY, label=label))
        start += size
    return bar_sketch("GB of one GPU", total, bars)


def dollars_a_month(month: Mapping[str, Any]) -> Sketch:
    """Return what a month costs at an API and on this deployment, over the requests of the month.

    Args:
        month: ``month`` of a run's summary, with an API.
    """
    from simserve.report.answer_plots import against_requests

    api, requests, even = month["api"], month["requests_per_month"], month["break_even_requests_per_month"]
    return against_requests(
        api["name"],
        api["usd_per_request"],
        ("this deployment", month["self_host_usd_per_month"]),
        even=even,
        asked=("this traffic", requests),
        most=1.25 * max(requests, min(even or requests, 4 * requests)),
        label="million requests a month like those of this run",
    )
