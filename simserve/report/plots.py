"""The plots of a run and of its deployment as sketches: small, with one message each.

Of the deployment: its operators on the roofline, its memory, dollars against an API. Colours are those of Okabe and
Ito, distinct for the colour-blind, and lines differ in their dashes too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.metrics.result import RunResult
from simserve.report import facts
from simserve.report.answer_plots import against_requests
from simserve.report.axes import BLUE, GREEN, GREY, INK, ORANGE, SKY, VERMILION, clock
from simserve.report.curves import TurningPoint, cumulative, cumulative_histogram, thinned
from simserve.report.quantities import number, share
from simserve.report.sketch import (
    DASHED,
    DOTTED,
    SOLID,
    Axis,
    Bar,
    Curve,
    Dots,
    Mark,
    Note,
    Rule,
    Sketch,
    Steps,
    area,
    bar_sketch,
    log_time,
)
from simserve.report.tables import Row, memory_rows
from simserve.units import format_seconds

Floats = NDArray[np.float64]
_SHARE_TICKS = ((0, "0%"), (0.25, "25%"), (0.5, "50%"), (0.75, "75%"), (0.9, "90%"), (1, "100%"))
_SHARE_ENDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # Shares at which an axis may end.
_SHARE_ROOM = 1.1  # Factor on the largest share that leaves room above it on the axis.
_EVEN_TICKS = tuple(each for each in _SHARE_TICKS if each[0] != 0.9)
_DIFFERENT = 0.25  # Within this share of the axis from either end, the name of a limit is on the inner side.
_PART_COLORS = {"weights": BLUE, "kv": SKY, "compute": ORANGE, "communication": GREEN, "host": GREY, "draft": VERMILION}
_WAIT_COLORS = {"seats": VERMILION, "blocks": SKY, "budget": ORANGE, "loras": GREEN, "prefix": BLUE, "step": GREY}
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


def request_latency(result: RunResult) -> Sketch:
    """Return the cumulative curves of TTFT and E2E of the measured requests, with their SLO bounds."""
    latencies, counted = result.latencies, _is_measured(result)
    curves = [
        _curve("TTFT", BLUE, *cumulative(latencies.ttft[counted])),
        _curve("E2E", VERMILION, *cumulative(latencies.e2e[counted])),
    ]
    limits = {} if result.slo is None else {"TTFT": result.slo.ttft, "E2E": result.slo.e2e}
    return _cumulative(curves, limits, "share of completed requests")


def token_latency(result: RunResult) -> Sketch:
    """Return the cumulative curves of TPOT (a request) and of ITL (a gap, the whole run), with the TPOT bound."""
    latencies, counted = result.latencies, _is_measured(result)
    curves = [
        _curve("TPOT, of requests", BLUE, *cumulative(latencies.tpot[counted])),
        _curve("ITL, of gaps", VERMILION, *cumulative_histogram(result.simulation.totals.itl)),
    ]
    limits = {} if result.slo is None else {"TPOT, of requests": result.slo.tpot}
    return _cumulative(curves, limits, "share of requests, of gaps")


_MOST_FLEET_MARKS = 40
_NOTE_SHARE, _CLOSE = 0.15, 0.02
"""Shares of the time axis: the width of a note, and the distance below which changes count as one."""


def requests_over_time(result: RunResult) -> Sketch:
    """Return running and waiting requests over time, and when replicas started, stopped or failed."""
    series = result.simulation.totals.series
    edges, (running, waiting) = thinned(series.edges, series.running, series.waiting)
    times, label = clock(edges)
    span = float(times[-1])
    changes: list[tuple[float, int]] = []
    ready = None
    for row in result.summary["simserve"]["replicas"]["timeline"]:
        at = row["time_s"] / float(edges[-1]) * span
        if ready is not None and row["ready"] != ready and at <= span:
            changes.append((at, row["ready"]))
        ready = row["ready"]
    rules: list[Mark] = [Rule(x=at, color=GREY, dashes=DOTTED) for at, _ in changes[:_MOST_FLEET_MARKS]]
    notes: list[Mark] = []
    named_at = -math.inf
    for (at, count), (following, _) in pairwise([*changes, (math.inf, 0)]):
        # Of changes close together the last is named; at the right end the name is left of its line, if there is room.
        is_left_of = at > (1 - _NOTE_SHARE) * span
        room = (2 if is_left_of else 1) * _NOTE_SHARE
        if following - at >= _CLOSE * span and at - named_at >= room * span:
            named_at = at
            right = -2 if is_left_of else 2
            notes.append(Note(text=f"{count} ready", x=at, y=None, right=right, up=3, is_left_of=is_left_of))
    return Sketch(
        x=Axis(label=label, high=float(times[-1])),
        y=Axis(label="requests", high=max(1.0, 1.08 * float(max(running.max(), waiting.max()))), is_whole=True),
        marks=[
            Steps(edges=times, values=running, label="running", color=BLUE),
            Steps(edges=times, values=waiting, label="waiting", color=VERMILION, dashes=DASHED),
            *rules,
            *notes,
        ],
    )


def kv_over_time(result: RunResult) -> Sketch:
    """Return the share of KV memory reserved over time, on an axis up to the next round share above its maximum."""
    series = result.simulation.totals.series
    edges, (usage,) = thinned(series.edges, series.kv_usage)
    times, label = clock(edges)
    return Sketch(
        x=Axis(label=label, high=float(times[-1])),
        y=_share_axis(float(usage.max(initial=0.0))),
        marks=area(times, usage, BLUE, "KV memory reserved", SKY),
    )


def _share_axis(most: float) -> Axis:
    """Return an axis of shares of the KV memory that ends at a round one above ``most``."""
    label = "share of KV capacity"
    high = next(end for end in _SHARE_ENDS if end >= min(_SHARE_ROOM * most, 1.0))
    if high == 1.0:
        return Axis(label=label, ticks=_SHARE_TICKS)
    steps = (part / 4 for part in range(5)) if high == _SHARE_ENDS[-2] else (part / 5 for part in range(6))
    return Axis(label=label, high=high, ticks=tuple((step * high, f"{100 * step * high:g}%") for step in steps))


def step_time(result: RunResult) -> Sketch:
    """Return one stacked bar: where the step time goes."""
    shares = result.summary["simserve"]["bottleneck"]["step_shares"]
    return _stacked(shares, facts.PART_LABELS, _PART_COLORS, "share of step time")


def waiting_time(result: RunResult) -> Sketch:
    """Return one stacked bar: what the requests in the queue waited for."""
    shares = result.summary["simserve"]["bottleneck"]["waiting_shares"]
    return _stacked(shares, facts.WAIT_LABELS, _WAIT_COLORS, "share of queueing time")


def throughput_curve(points: Sequence[tuple[int, float]], turning_point: TurningPoint) -> Sketch:
    """Return throughput against ``max_num_seqs``, with its turning point named.

    Args:
        points: (``max_num_seqs``, output tokens/s), at least one.
        turning_point: Of the same points (`simserve.report.curves.turning_point`).
    """
    seats, rates = (np.array(each, dtype=np.float64) for each in zip(*sorted(points), strict=True))
    margin = 0.05 * (seats[-1] - seats[0]) or 1.0
    after = "falls beyond" if turning_point.falls_after else "no gain beyond"
    return Sketch(
        x=Axis(label="max_num_seqs", low=float(seats[0] - margin), high=float(seats[-1] + margin)),
        y=Axis(label="output tokens/s", high=1.12 * turning_point.value),
        marks=[
            Curve(x=seats, y=rates, color=BLUE, shape="circle"),
            Rule(x=turning_point.at, color=VERMILION, dashes=DASHED),
        ],
        title=f"most at max_num_seqs {turning_point.at}, {after}",
        key=None,
    )


def _is_measured(result: RunResult) -> NDArray[np.bool_]:
    """Return which requests the latencies of the summary cover: completed ones that arrived in the window."""
    window = result.summary["simserve"]["window"]
    latencies, arrival = result.latencies, result.simulation.records.arrival_time
    if window["start_s"] is None:
        return np.zeros(len(arrival), dtype=np.bool_)
    in_window: NDArray[np.bool_] = (arrival >= window["start_s"]) & (arrival <= window["end_s"])
    return latencies.is_completed & in_window


def _curve(name: str, color: str, values: Floats, levels: Floats) -> Curve:
    return Curve(x=values, y=levels, color=color, label=name, dashes=SOLID if color == BLUE else DASHED)


def _cumulative(curves: Sequence[Curve], limits: Mapping[str, float | None], label: str) -> Sketch:
    drawn = [curve for curve in curves if len(curve.x)]
    bounds = [(limit, curve.color) for curve in curves if (limit := limits.get(curve.label)) is not None]
    reach = [float(curve.x[index]) for curve in drawn for index in (0, -1)]
    axis = log_time(reach + [limit for limit, _ in bounds])
    return Sketch(x=axis, y=Axis(label=label, ticks=_SHARE_TICKS), marks=[*drawn, *_limits(axis, bounds)])


def _limits(axis: Axis, limits: Sequence[tuple[float, str]]) -> list[Mark]:
    """Return a line at each bound (seconds, colour), named above the axes on the side where there is room."""
    marks: list[Mark] = []
    for position, (limit, color) in enumerate(limits):
        place = axis.share(limit)
        to_left = place > 1 - _DIFFERENT or (place > _DIFFERENT and position < len(limits) - 1)
        words, right = f"SLO {format_seconds(limit)}", -2 if to_left else 2
        marks.append(Rule(x=limit, color=color, dashes=DOTTED))
        marks.append(Note(text=words, x=limit, y=None, right=right, up=3, is_left_of=to_left, color=color, size=9.0))
    return marks


def _stacked(
    shares: Mapping[str, float | None], labels: Mapping[str, str], colors: Mapping[str, str], axis_label: str
) -> Sketch:
    bars, start = [], 0.0
    for name, text in labels.items():
        value = shares.get(name)
        if value:
            label = f"{text} {share(value)}"
            bars.append(Bar(start=start, length=value, color=colors[name], edge=colors[name], label=label))
            start += value
    sketch = bar_sketch(axis_label, 1.0, bars)
    sketch.x.ticks = _EVEN_TICKS
    sketch.instead = "" if bars else "nothing was recorded"
    return sketch


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
    marks: list[Mark] = []
    for position, (dtype, peak) in enumerate(sorted(found["peaks"].items(), key=lambda each: -each[1])):
        xs = np.array([low, min(max(peak / found["bandwidth"], low), high), high])
        ys = np.minimum(found["bandwidth"] * xs, peak)
        marks.append(Curve(x=xs, y=ys, color=INK, width=0.8 if position else 1.3))
        text = f"{dtype} {number(peak / 1e12)} TFLOP/s"
        marks.append(Note(text=text, x=high, y=peak, right=-2, up=3, is_left_of=True))
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
            *marks,
            *(_operators(phase, points) for phase in _PHASES),
            *_names(points),
            Note(text=slope, x=middle, y=bandwidth * middle, right=-5, up=4, is_left_of=True),
        ],
    )


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
    """Name the operators that take longest, at most seven per phase; of those at the same spot the first."""
    notes = []
    for phase, (color, _) in _PHASES.items():
        of_phase = sorted((each for each in points if each["phase"] == phase), key=lambda each: -each["seconds"])
        placed: list[tuple[float, float]] = []
        for point in of_phase[:_MOST_LABELS]:
            x, y = point["intensity"], point["flops_per_second"]
            spot = (math.log10(x), math.log10(y))
            if any(abs(spot[0] - other[0]) < 0.35 and abs(spot[1] - other[1]) < 0.13 for other in placed):
                continue
            placed.append(spot)
            text = _NAMES.get(point["name"], point["name"].replace("_", " "))
            right, up = (5, -9) if phase == "decode" else (-5, -15)
            notes.append(Note(text=text, x=x, y=y, right=right, up=up, is_left_of=phase != "decode", color=color))
    return notes


def memory_bar(summary: Mapping[str, Any]) -> Sketch:
    """Return one stacked bar: where the memory of a GPU goes."""
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
    """Return the cost of a month at an API and on this deployment, against the requests of the month.

    Args:
        month: ``month`` of a run's summary, with an API.
    """
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
