"""Plots of the answers from many runs, as sketches: capacity, differences, sweeps, fleets of a plan, dollars."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from simserve.metrics.thresholds import at as figure_at
from simserve.report.axes import BLUE, GREEN, GREY, INK, ORANGE, SKY, TEXT_POINTS, VERMILION, WIDTH_INCHES
from simserve.report.figures import SHOWN
from simserve.report.quantities import count, dollars, load_figure, number
from simserve.report.sketch import (
    DASHED,
    DOTTED,
    POINTS_AN_INCH,
    SOLID,
    Axis,
    Band,
    Box,
    Curve,
    Dashes,
    Dots,
    Level,
    Mark,
    Note,
    Rule,
    Shape,
    Sketch,
    Whiskers,
    add_name,
    around,
    dollar_words,
    from_zero,
    log_time,
    spaced,
    text_width,
)
from simserve.scenario.schema import objective
from simserve.units import HOURS_PER_MONTH, format_seconds

if TYPE_CHECKING:
    from simserve.planner.capacity.answer import Capacity
    from simserve.planner.compare import Comparison
    from simserve.planner.statistics import Difference
    from simserve.planner.sweep.sweep import Sweep
    from simserve.report.brief import LatencyLine

SERIES: tuple[tuple[str, Dashes, Shape], ...] = (
    (BLUE, SOLID, "circle"),
    (VERMILION, DASHED, "square"),
    (GREEN, DOTTED, "triangle"),
    (ORANGE, (6.4, 1.6, 1.0, 1.6), "diamond"),
    (SKY, SOLID, "wedge"),
)
"""Colour, dashes and shape of the first, second, ... line: distinct for the colour-blind and without colour."""
_MOST_LINES = len(SERIES)
_UNITS = {
    "workload.arrivals.rate": "requests/s",
    "workload.arrivals.concurrency": "requests in hand",
    "workload.prompt_tokens.mean": "tokens",
    "workload.output_tokens.mean": "tokens",
    "deployment.engine.max_num_seqs": "sequences",
    "deployment.engine.max_num_batched_tokens": "tokens",
    "deployment.tensor_parallel_size": "GPUs",
}
"""Units of keys whose names do not include one."""
_COMPARED = ("p95_ttft_ms", "p95_tpot_ms", "p95_e2el_ms", "output_throughput", "usd_per_million_output_tokens")
_NAMES = 0.3  # Share of the width for the names of compared figures.
_HEADROOM = 1.12  # Factor on the largest figure that leaves room on the axis for the words beside it.
_CIRCLE = 9.0  # Points: size of the circle around a marked point.
_MEMORY = re.compile(r"(-sxm)?-\d+gb\b")  # End of a GPU's name that a picture leaves out.
_LEAST_NAME_GAP = 0.08
"""Least gap, as a share of the height, between the plan and a point of the front that also gets a name."""
_SLOWEST_DRAWN = 2.0  # Fleets are drawn up to this multiple of the TTFT of the slowest fleet that meets the SLO.
_RANGE = 0.36  # Thickness of the interval of real servers, as a share of a row.
_LIMIT = 0.025  # Half the width of the stroke that marks a limit, as a share of the limit.
_ROOM = 1.15  # Factor of room beyond the first and the last point of a logarithmic axis, for the circle.
_BILL_ROOM = 1.5  # Factor of room below the smallest and above the largest bill, for the words beside them.
_MILLION = 1e6
_MOST_INPUTS = 8
_RIGHT_EDGE = 0.96  # Share of the width at which the axes of plots with a row for each name end.
_RIGHT_END = 0.7  # From this share of the axis on, words are to the left of their point.


def latency_ranges(latencies: Sequence[LatencyLine]) -> Sketch | None:
    """Return mean, p95, limit and the interval of real servers of every latency on one axis of time.

    An open interval extends to the end of the axis.

    Returns:
        None where no latency has a mean.
    """
    known = [each for each in latencies if each.seconds.mean]
    if not known:
        return None
    axis = log_time(
        value
        for each in known
        for value in (each.seconds.mean, each.seconds.p95, each.seconds.limit, *(each.seconds.real_servers or ()))
        if value is not None
    )
    marks: list[Mark] = []
    for row, each in enumerate(known):
        seconds = each.seconds
        if seconds.real_servers is not None:
            low, high = seconds.real_servers
            end = min(high, axis.high)
            real = f"\n90% of real servers: {each.real_servers}" if each.real_servers else ""
            words = f"{each.label}\nmean: {each.mean}\np95: {each.p95}{real}"
            marks.append(Box(left=low, right=end, y=row, thickness=_RANGE, color=GREY, words=words))
        if seconds.limit is not None:
            ends = (seconds.limit * (1 - _LIMIT), seconds.limit * (1 + _LIMIT))
            limit_words = f"{each.label}\nlimit: {format_seconds(seconds.limit)}"
            marks.append(Box(left=ends[0], right=ends[1], y=row, thickness=0.8, color=VERMILION, words=limit_words))
    marks.append(
        Dots(
            x=[each.seconds.mean or math.nan for each in known],
            y=[float(row) for row in range(len(known))],
            color=BLUE,
            label="mean",
            size=7.0,
            names=[each.label for each in known],
        )
    )
    rows = [row for row, each in enumerate(known) if each.seconds.p95]
    marks.append(
        Dots(
            x=[known[row].seconds.p95 or math.nan for row in rows],
            y=[float(row) for row in rows],
            color=INK,
            label="p95",
            shape="diamond",
            is_hollow=True,
            names=[known[row].label for row in rows],
        )
    )
    height = 0.75 + 0.32 * len(known)
    return _by_rows([each.label for each in known], axis, marks, height=height, left=0.12, below=0.45, above=0.3)


def _by_rows(
    names: Sequence[str],
    x: Axis,
    marks: list[Mark],
    *,
    height: float,
    left: float,
    right: float = _RIGHT_EDGE,
    below: float = 0.55,
    above: float,
) -> Sketch:
    """Return a sketch with a row for each name, the first on top, and room for words (inches) below and above."""
    y = Axis(low=len(names) - 0.5, high=-0.5, ticks=list(enumerate(names)))
    bottom, top = below / height, 1 - above / height
    return Sketch(height=height, left=left, right=right, bottom=bottom, top=top, x=x, y=y, marks=marks)


def capacity_latency(capacity: Capacity) -> Sketch:
    """Return p95 of TTFT and TPOT against the load, with the bounds of the SLO and the highest load that meets it."""
    slo = objective(capacity.scenario)
    assert slo is not None  # the search required it; it has no bounds of its own if only classes have some
    levels = capacity.found.levels
    return latency_against_load(
        [level.load for level in levels],
        [level.mean("p95_ttft") for level in levels],
        [level.mean("p95_tpot") for level in levels],
        (slo.ttft, slo.tpot),
        load_label(is_closed=capacity.is_closed_loop),
        _sustained(capacity),
    )


def latency_against_load(
    loads: list[float],
    ttft: list[float],
    tpot: list[float],
    bounds: tuple[float | None, float | None],
    label: str,
    marks: list[Mark],
) -> Sketch:
    """Return p95 of TTFT and TPOT, seconds, against the load.

    Args:
        loads: Ascending.
        ttft: One value per load, NaN where undefined.
        tpot: As ``ttft``.
        bounds: Of the SLO, seconds.
        marks: What else is drawn, below.
    """
    drawn: list[Mark] = list(marks)
    reach: list[float] = []
    for values, name, bound, (color, dashes, shape) in zip(
        (ttft, tpot), ("TTFT p95", "TPOT p95"), bounds, SERIES, strict=False
    ):
        seen = [(load, value) for load, value in zip(loads, values, strict=True) if math.isfinite(value)]
        if not seen:
            continue
        reach += [value for _, value in seen]
        drawn.append(_line(seen, color, dashes, shape, name))
        if bound is not None:
            reach.append(bound)
            drawn.append(Level(y=bound, color=color, dashes=DOTTED))
            drawn.append(Note(text=f"SLO {format_seconds(bound)}", x=min(loads), y=bound, right=3, up=3, color=color))
    return Sketch(left=0.2, x=around(label, loads), y=log_time(reach, "p95, logarithmic"), marks=drawn)


def capacity_goodput(capacity: Capacity) -> Sketch:
    """Return requests/s answered, and within the SLO, against the load; the knee is where the latter is highest."""
    levels, knee = capacity.found.levels, capacity.found.knee
    return goodput_against_load(
        [level.load for level in levels],
        [level.mean("throughput") for level in levels],
        [level.mean("goodput") for level in levels],
        None if knee is None else (knee.load, knee.mean("goodput")),
        load_label(is_closed=capacity.is_closed_loop),
        _sustained(capacity),
    )


def goodput_against_load(
    loads: list[float],
    answered: list[float],
    good: list[float],
    knee: tuple[float, float] | None,
    label: str,
    marks: list[Mark],
) -> Sketch:
    """Return requests/s answered, and within the SLO, against the load.

    Args:
        loads: Ascending.
        answered: One value per load. Requests within the SLO are answered: where the rate of a short run comes out
            lower, the line is drawn at ``good``.
        good: As ``answered``.
        knee: Load and requests/s where ``good`` is highest.
        marks: What else is drawn, below.
    """
    drawn: list[Mark] = list(marks)
    answered = [max(each, least) if least > 0 else each for each, least in zip(answered, good, strict=True)]
    for values, name, (color, dashes, shape) in (
        (answered, "answered", SERIES[1]),
        (good, "within the SLO", SERIES[0]),
    ):
        seen = [(load, value) for load, value in zip(loads, values, strict=True) if math.isfinite(value)]
        if seen:
            drawn.append(_line(seen, color, dashes, shape, name))
    if knee is not None:
        at, most = knee
        drawn.append(Dots(x=[at], y=[most], color=INK, is_hollow=True, size=_CIRCLE))
        beyond = all(not isinstance(mark, Rule) or mark.x <= at for mark in marks)
        words = count(at) if at == round(at) else number(at)
        drawn.append(
            Note(text=f"knee at {words}", x=at, y=None, right=4 if beyond else -4, up=3, is_left_of=not beyond)
        )
    return Sketch(x=around(label, loads), y=from_zero("requests/s", [*answered, *good]), marks=drawn)


def _line(points: Iterable[tuple[float, float]], color: str, dashes: Dashes, shape: Shape, label: str) -> Curve:
    xs, ys = (np.array(each, dtype=np.float64) for each in zip(*points, strict=True))
    return Curve(x=xs, y=ys, color=color, dashes=dashes, shape=shape, label=label)


def load_label(*, is_closed: bool) -> str:
    """Return the label of the load axis."""
    return "clients" if is_closed else "requests/s that arrive"


def _sustained(capacity: Capacity) -> list[Mark]:
    """Return the highest load that meets the SLO, with its interval; nothing if none does."""
    value, interval = capacity.found.largest.value, capacity.found.interval
    if not value:
        return []
    marks: list[Mark] = [] if interval is None else [Band(low=interval[0], high=interval[1], color=GREY)]
    text = f"holds up to {load_figure(value, is_closed=capacity.is_closed_loop)}"
    return [
        *marks,
        Rule(x=value, color=INK, dashes=DASHED),
        Note(text=text, x=value, y=None, right=-3, up=3, is_left_of=True),
    ]


def differences(comparison: Comparison) -> Sketch:
    """Return what each variant changes, in percent of the base, with 95 % intervals; hollow: not shown to differ."""
    names = [
        name
        for name in _COMPARED
        if any(_relative(variant.differences[name]) is not None for variant in comparison.variants)
    ]
    variants = comparison.variants[:_MOST_LINES]
    marks: list[Mark] = [Rule(x=0.0, color=INK, dashes=SOLID)]
    ends = [0.0]
    for place, variant in enumerate(variants):
        offset = 0.6 * ((place + 0.5) / len(variants) - 0.5)
        rows: dict[bool, list[tuple[float, float, float]]] = {True: [], False: []}
        for row, name in enumerate(names):
            difference = variant.differences[name]
            value = _relative(difference)
            if value is not None:
                rows[difference.is_shown].append((value[0], row + offset, value[1]))
                ends += [value[0] - value[1], value[0] + value[1]]
        color, _, shape = SERIES[place]
        for is_shown, points in rows.items():
            if points:
                xs, ys, reach = (list(each) for each in zip(*points, strict=True))
                marks.append(Whiskers(x=xs, y=ys, reach=reach, color=color))
                marks.append(Dots(x=xs, y=ys, color=color, label=variant.name, shape=shape, is_hollow=not is_shown))
    height = 1.0 + 0.42 * len(names) * max(1, len(variants)) ** 0.7
    label = f"change from {comparison.base.name}, with its 95% interval"
    x = spaced(around(label, ends, _percent_words), (_RIGHT_EDGE - _NAMES) * WIDTH_INCHES * POINTS_AN_INCH)
    rows_of = [SHOWN[name].short or SHOWN[name].label for name in names]
    return _by_rows(rows_of, x, marks, height=height, left=_NAMES, above=0.4)


def compared_dollars(comparison: Comparison) -> Sketch | None:
    """Return dollars a month against p95 TTFT of the base and of each variant; None if one of them is unknown."""
    from simserve.planner.compare import FIGURES  # searches and worker pools, only needed for comparisons

    marks: list[Mark] = []
    reach: list[tuple[float, float]] = []
    for place, variant in enumerate((comparison.base, *comparison.variants)):
        hourly, ttft = (figure_at(variant.summary, FIGURES[name]) for name in ("usd_per_hour", "p95_ttft_ms"))
        if hourly is None or not ttft:
            return None
        spot = ttft / 1e3, hourly * HOURS_PER_MONTH
        base: tuple[str, Dashes, Shape] = (INK, SOLID, "circle")
        color, _, shape = SERIES[(place - 1) % len(SERIES)] if place else base
        marks.append(Dots(x=[spot[0]], y=[spot[1]], color=color, shape=shape, size=7.0, names=[variant.name]))
        reach.append(spot)
    x = log_time([time / _ROOM for time, _ in reach] + [time * _ROOM for time, _ in reach], "TTFT p95, logarithmic")
    y = from_zero("dollars a month for GPUs", [_HEADROOM * usd for _, usd in reach], dollar_words)
    sketch = Sketch(left=0.2, x=x, y=y, marks=marks)
    for (time, usd), variant in zip(reach, (comparison.base, *comparison.variants), strict=True):
        add_name(sketch, variant.name, time, usd, is_needed=True)
    return sketch


def _percent_words(value: float) -> str:
    return f"{value:+,.10g}%" if abs(value) > 1e-9 else "0"


def _relative(difference: Difference) -> tuple[float, float] | None:
    """Return the mean and half the width of its interval in percent of the base; None where undefined."""
    if difference.base is None or not difference.base or math.isnan(difference.mean) or math.isnan(difference.base):
        return None
    scale, interval = 100 / abs(difference.base), difference.relative_interval
    if interval is not None:
        return scale * difference.mean, 100 * (interval[1] - interval[0]) / 2
    width = 0.0 if math.isnan(difference.half_width) else difference.half_width
    return scale * difference.mean, scale * width


def sweep_curves(sweep: Sweep, figure_name: str) -> Sketch | None:
    """Return a figure of the points against the first numeric key, one line for each value of the next key.

    Args:
        figure_name: Column of the table, such as ``p95_ttft_ms``.

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
    drawn = sorted(lines.items())[:_MOST_LINES]
    marks: list[Mark] = []
    for (names, points), (color, dashes, shape) in zip(drawn, SERIES, strict=False):
        title = ", ".join(f"{key.rpartition('.')[2]} {name}" for key, name in zip(others, names, strict=True))
        marks.append(_line(sorted(points), color, dashes, shape, title))
    places, values = zip(*(point for _, points in drawn for point in points), strict=True)
    figure = SHOWN.get(figure_name)
    label = figure_name if figure is None else figure.narrow
    height = from_zero(label, values)
    if figure is not None and figure.kind == "share":
        height = Axis(label=label, high=1.04, words=lambda value: f"{100 * value:.0f}%")
    return Sketch(
        top=0.84 if len(lines) > _MOST_LINES else 0.9,
        x=around(f"{axis}, {_UNITS[axis]}" if axis in _UNITS else axis, places),
        y=height,
        marks=marks,
        title=f"{_MOST_LINES} of {len(lines)} combinations" if len(lines) > _MOST_LINES else "",
        key="above" if others else None,
    )


def _numbers(sweep: Sweep, key: str) -> set[float]:
    values = [row["values"][key] for row in sweep.rows]
    return {value for value in values if isinstance(value, int | float) and not isinstance(value, bool)}


def plan_candidates(summary: Mapping[str, Any]) -> Sketch | None:
    """Return dollars a month against p95 TTFT of the simulated fleets; None if none was priced."""
    seen = [
        each
        for each in summary["candidates"]
        if each.get("usd_per_month") and each.get("p95_ttft_ms") and each["usd_per_month"] > 0
    ]
    if not seen:
        return None
    held = [each["p95_ttft_ms"] for each in seen if each.get("holds")]
    if held:
        # Fleets that are far slower would squeeze those that matter into a corner.
        seen = [each for each in seen if each["p95_ttft_ms"] <= _SLOWEST_DRAWN * max(held)]
    times = [each["p95_ttft_ms"] / 1e3 for each in seen]
    best, circle = summary["best"], list[Mark]()
    if best and best.get("p95_ttft_ms"):
        at, price = best["p95_ttft_ms"] / 1e3, best["usd_per_month"]
        circle.append(Dots(x=[at], y=[price], color=INK, is_hollow=True, size=_CIRCLE))
        times.append(at)
    x = log_time([min(times) / _ROOM, max(times) * _ROOM], "TTFT p95, logarithmic")
    bills = [each["usd_per_month"] for each in seen]
    y = Axis(
        label="dollars a month, logarithmic",
        low=min(bills) / _BILL_ROOM,
        high=max(bills) * _BILL_ROOM,
        is_log=True,
        words=dollar_words,
    )
    front = _front(seen)
    places = [(each["p95_ttft_ms"] / 1e3, each["usd_per_month"]) for each in front]
    line = [_line(places, GREY, DOTTED, "circle", "front: nothing is both cheaper and faster")] if front else []
    sketch = Sketch(left=0.26, x=x, y=y, marks=[*line, *_fleets(seen), *circle])
    if circle:
        text = f"the plan: {_gpus_of(best)}" if best.get("hardware") else "the plan"
        add_name(sketch, text, at, price, is_needed=True)
    for each, (time, usd) in zip(front, places, strict=True):
        if not circle or abs(y.share(usd) - y.share(price)) > _LEAST_NAME_GAP:
            add_name(sketch, _gpus_of(each), time, usd)
    return sketch


def _gpus_of(fleet: Mapping[str, Any]) -> str:
    """Return the number and the name of a fleet's GPUs, without their memory: long names cover points."""
    return f"{fleet['num_gpus']} x {_MEMORY.sub('', fleet['hardware'])}"


def _fleets(seen: Sequence[Mapping[str, Any]]) -> list[Mark]:
    """Return the points of fleets, those that do not hold below the others."""
    marks: list[Mark] = []
    for holds, (color, _, shape), label in ((False, SERIES[1], "does not hold"), (True, SERIES[0], "holds")):
        points = [each for each in seen if bool(each.get("holds")) == holds]
        if points:
            xs, ys = [each["p95_ttft_ms"] / 1e3 for each in points], [each["usd_per_month"] for each in points]
            names = [f"{each['label']}, {label}" for each in points]
            size, opacity = (4.6, 1.0) if holds else (3.6, 0.55)
            marks.append(
                Dots(
                    x=xs,
                    y=ys,
                    color=color,
                    label=label,
                    shape=shape,
                    is_hollow=not holds,
                    size=size,
                    opacity=opacity,
                    names=names,
                )
            )
    return marks


def _front(seen: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the fleets that hold and that no other beats in dollars and TTFT, the fastest first; none of one."""
    held = sorted(
        (each for each in seen if each.get("holds")), key=lambda each: (each["p95_ttft_ms"], each["usd_per_month"])
    )
    front: list[Mapping[str, Any]] = []
    for each in held:
        if not front or each["usd_per_month"] < front[-1]["usd_per_month"]:
            front.append(each)
    return front if len(front) > 1 else []


def plan_waterfall(summary: Mapping[str, Any]) -> Sketch | None:
    """Return how the traffic leads to replicas and dollars a month, step by step, beside the API; None if unpriced."""
    best, month = summary["best"], summary["month"]
    if best is None or not best.get("usd_per_month") or not best.get("replicas"):
        return None
    gpus, needed, spare = best["usd_per_month"], best["replicas_needed"], best["replicas"] - best["replicas_needed"]
    each = gpus / best["replicas"]
    steps = [("one replica", each), (f"{needed - 1} more for the traffic", each * (needed - 1))]
    steps.append((f"{spare} spare", each * spare))
    total = gpus if month is None else month["self_host_usd_per_month"]
    steps.append(("people, platform, power", total - gpus))
    marks: list[Mark] = []
    names: list[str] = []

    def add(name: str, left: float, usd: float, color: str) -> None:
        marks.append(Box(left=left, right=left + usd, y=len(names), thickness=0.6, color=color))
        names.append(f"{name}: {dollars(usd)}")

    at = 0.0
    for name, usd in [step for step in steps if step[1] > 0]:
        add(name, at, usd, SKY)
        at += usd
    add("the plan", 0.0, total, BLUE)
    ends = [total]
    if month is not None and month["api"] is not None:
        ends.append(month["api"]["usd_per_month"])
        add(month["api"]["name"], 0.0, ends[-1], VERMILION)
    left = (20.0 + 1.05 * max(text_width(text, TEXT_POINTS) for text in names)) / (WIDTH_INCHES * POINTS_AN_INCH)
    x = spaced(from_zero("dollars a month", ends, dollar_words), (0.94 - left) * WIDTH_INCHES * POINTS_AN_INCH)
    return _by_rows(names, x, marks, height=0.9 + 0.34 * len(names), left=left, right=0.94, above=0.15)


def break_even(summary: Mapping[str, Any]) -> Sketch | None:
    """Return dollars a month of self-hosting and of the API against the requests of a month.

    Self-hosting is drawn for the fleet of the answer: beyond what it can serve, another replica is needed.

    Args:
        summary: Of `simserve cost`.

    Returns:
        None if one of the two sides is unknown.
    """
    own, api, even = summary["self_host"], summary["api"], summary["break_even"]["requests_per_month"]
    asked = (summary.get("day") or summary.get("terms") or {}).get("requests_per_month")
    if own["usd_per_month"] is None or api["usd_per_request"] is None or not any((asked, even)):
        return None
    return against_requests(
        str(api["name"]),
        api["usd_per_request"],
        ("self-hosting, this fleet", own["usd_per_month"]),
        even=even,
        asked=("this traffic", asked) if asked else None,
        most=1.2 * max(value for value in (asked, even) if value),
    )


def against_requests(
    api: str,
    usd_per_request: float,
    own: tuple[str, float],
    *,
    even: float | None,
    asked: tuple[str, float] | None,
    most: float,
    label: str = "million requests a month",
) -> Sketch:
    """Return the cost of a month at an API and on a fleet, against the requests of the month.

    Args:
        api: Its name.
        usd_per_request: At the API.
        own: Name and dollars a month of the fleet.
        even: Requests a month at which both cost the same; not drawn beyond ``most``.
        asked: Name and number of the requests in question.
        most: Requests at the end of the axis.
        label: Of the requests.
    """
    end = most / _MILLION
    marks: list[Mark] = [
        Curve(x=np.array([0.0, end]), y=np.array([0.0, most * usd_per_request]), color=VERMILION, label=api),
        Curve(x=np.array([0.0, end]), y=np.full(2, own[1]), color=BLUE, dashes=DASHED, label=own[0]),
    ]
    if even is not None and even <= most:
        marks.append(Dots(x=[even / _MILLION], y=[own[1]], color=INK))
        marks.append(_beside(f"break-even {number(even / _MILLION)} M", even / _MILLION, own[1], end))
    if asked is not None:
        at = asked[1] / _MILLION
        marks.append(Rule(x=at, color=GREY, dashes=DOTTED))
        marks.append(Note(text=asked[0], x=at, y=None, right=-3, up=3, is_left_of=True))
    return Sketch(
        left=0.2,
        x=Axis(label=label, high=end),
        y=from_zero("dollars a month", [own[1], most * usd_per_request], dollar_words),
        marks=marks,
    )


def _beside(text: str, x: float, y: float, end: float) -> Note:
    is_left_of = x > _RIGHT_END * end
    return Note(text=text, x=x, y=y, right=-6 if is_left_of else 6, up=5 if is_left_of else -12, is_left_of=is_left_of)


def tornado(summary: Mapping[str, Any]) -> Sketch | None:
    """Return how much each input changes the saving of self-hosting; None if there is none.

    Args:
        summary: Of `simserve cost`.
    """
    rows: Sequence[Mapping[str, Any]] = summary["sensitivity"][:_MOST_INPUTS]
    if not rows:
        return None
    marks: list[Mark] = []
    ends = [0.0]
    for place, row in enumerate(rows):
        low, high = row["saving_usd_per_month_low"], row["saving_usd_per_month_high"]
        ends += [low, high]
        color = SKY if row["changes_the_answer"] else GREY
        marks.append(Box(left=low, right=high, y=place, thickness=0.6, color=color))
    marks.append(Rule(x=0.0, color=INK, dashes=SOLID))
    saving = summary["saving_usd_per_month"]
    if saving is not None:
        marks.append(Rule(x=saving, color=VERMILION, dashes=DASHED))
        marks.append(Note(text="as it is", x=saving, y=None, right=3, up=3))
    width, names = WIDTH_INCHES * POINTS_AN_INCH, [row["parameter"] for row in rows]
    left = (18.0 + 1.12 * max(text_width(name, TEXT_POINTS) for name in names)) / width
    x = spaced(around("dollars saved a month", ends, dollar_words), (_RIGHT_EDGE - left) * width)
    return _by_rows(names, x, marks, height=1.1 + 0.32 * len(rows), left=left, above=0.25)
