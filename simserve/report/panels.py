"""The plots of a run's page in groups, each with a description for a reader who cannot see it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from simserve.metrics.latency import request_latencies, requests_meeting
from simserve.metrics.result import RunResult
from simserve.report import facts, plots, tables
from simserve.report.answer_plots import goodput_against_load, latency_against_load, latency_ranges, load_label
from simserve.report.axes import BLUE, GREY, SKY, VERMILION, clock
from simserve.report.curves import num_holding, thinned, turning_point
from simserve.report.kinds import audio_lines, image_lines, reasoning_lines, speculation_lines
from simserve.report.preemption import seats_points
from simserve.report.quantities import capital, count, counted, dollars, listed, load_figure, number, share
from simserve.report.sketch import DASHED, DOTTED, Axis, Mark, Note, Rule, Sketch, Steps, area
from simserve.report.sketch_svg import sketch_svg

if TYPE_CHECKING:
    from markupsafe import Markup

    from simserve.report.brief import LatencyLine


@dataclass(frozen=True, slots=True)
class Panel:
    """One plot: what it shows, a note below the title, the ``<svg>``."""

    title: str
    note: str
    svg: Markup


@dataclass(frozen=True, slots=True)
class PanelGroup:
    """Plots that together answer one question."""

    title: str
    note: str
    panels: tuple[Panel, ...]


def figure_groups(result: RunResult) -> list[PanelGroup]:
    """Return the plots of a run; none if no step ran."""
    if not result.summary["simserve"]["steps"]["count"]:
        return []
    replications = facts.num_replications(result)
    note = f"Drawn from the first of {replications} runs" if replications > 1 else ""
    groups = [
        PanelGroup("How latencies are distributed", _undefined(result) or note, _latency_panels(result)),
        PanelGroup("The run over time", note, _time_panels(result)),
        PanelGroup("Where the time goes", "", _share_panels(result)),
    ]
    deployment = (*_roofline_panels(result), *_dollar_panels(result))
    if deployment:
        groups.append(PanelGroup("What the GPUs could do, and cost", "", deployment))
    loads = result.background.get("loads")
    if loads:
        groups.append(_load_group(result, loads))
    points = seats_points(result)
    if points:
        requests = result.summary["simserve"]["bottleneck"]["seats_curve"]["requests"]
        runs = f"Short runs of {count(requests)} requests of this traffic, all queued at once, on one replica"
        best = turning_point(points)
        text = f"Output is highest at max_num_seqs {count(best.at)}, {number(best.value)} tokens a second."
        curve = panel("seats", "Throughput against max_num_seqs", "", plots.throughput_curve(points, best), text)
        groups.append(PanelGroup("Up to which batch a larger one pays", runs, (curve,)))
    return groups


def brief_panel(latencies: Sequence[LatencyLine]) -> Panel | None:
    """Return the latencies of a brief as a plot beside their table; None if nothing was measured."""
    sketch = latency_ranges(latencies)
    if sketch is None:
        return None
    text = "; ".join(f"{each.label} {each.text}" for each in latencies)
    note = "bar: 90% of real servers" if any(each.real_servers for each in latencies) else ""
    limit = "stroke: limit of the SLO" if any(each.limit for each in latencies) else ""
    return panel("latencies", "Latencies", "; ".join(part for part in (note, limit) if part), sketch, text)


def _load_group(result: RunResult, found: Mapping[str, Any]) -> PanelGroup:
    """Return latency and goodput at other loads, from runs beside this one."""
    unit = "clients" if found["is_closed"] else "requests/s"
    text = f"{knee_words(found, unit)}; {sustained_words(result, found, unit)}"
    note = f"{text}. {runs_words(found, unit)}; simserve capacity narrows it"
    panels = (
        panel("load-latency", "Latency against load", "", latency_at_loads(result, found), f"{text}."),
        panel("load-goodput", "Goodput against load", "", goodput_at_loads(found), f"{text}."),
    )
    return PanelGroup("At other loads", note, panels)


def _undefined(result: RunResult) -> str:
    """Return why latencies between tokens are missing; empty if they are not."""
    if not result.summary["completed"] or result.summary["p50_itl_ms"] is not None:
        return ""
    return "TPOT and ITL are undefined: no gap between tokens was seen"


def _latency_panels(result: RunResult) -> tuple[Panel, ...]:
    panels = []
    if result.summary["completed"]:
        text = _spread(result, "TTFT", "E2E")
        panels.append(panel("request-latency", "A request: TTFT and E2E", "", plots.request_latency(result), text))
    if result.summary["p50_itl_ms"] is not None:
        text = _spread(result, "TPOT", "ITL")
        panels.append(panel("token-latency", "Its tokens: TPOT and ITL", "", plots.token_latency(result), text))
    return tuple(panels)


def _time_panels(result: RunResult) -> tuple[Panel, ...]:
    simserve = result.summary["simserve"]
    sequences = number(simserve["steps"]["mean_batch"])
    state = f"The run is {simserve['stability']}, with {sequences} sequences in a step on average."
    requests = panel("requests", "Running and waiting requests", "", plots.requests_over_time(result), state)
    changes = _change_panels(result)
    if simserve["kv"]["usage_mean"] is None:
        return (requests, *changes)
    mean, peak = share(simserve["kv"]["usage_mean"]), share(simserve["kv"]["usage_peak"])
    use = f"Share of KV capacity reserved: {mean} on average, {peak} at its peak."
    return requests, panel("kv", "Use of KV memory", "", plots.kv_over_time(result), use), *changes


def _change_panels(result: RunResult) -> list[Panel]:
    """Return the replicas over time, and the share that met the objective; empty if the fleet never changed."""

    if not has_changed(result):
        return []
    replicas, met = replicas_over_time(result), attainment_over_time(result)
    figures = result.summary["simserve"]["replicas"]
    panels = []
    if replicas is not None:
        text = f"{number(figures['mean'])} replicas paid for on average, {figures['peak']} at most."
        panels.append(panel("replicas", "Replicas", "", replicas, text))
    if met is not None:
        text = f"{share(result.summary['simserve']['slo']['attainment'])} of all."
        panels.append(panel("attainment", "Within the objective, by time of arrival", "", met, text))
    return panels


def _share_panels(result: RunResult) -> tuple[Panel, ...]:
    bottleneck = result.summary["simserve"]["bottleneck"]
    parts = facts.listed_shares(bottleneck["step_shares"], facts.PART_LABELS) or "no step ran"
    waits = facts.listed_shares(bottleneck["waiting_shares"], facts.WAIT_LABELS) or "no request waited"
    further = [*facts.step_lines(result)[1:], *speculation_lines(result)]
    further += [*reasoning_lines(result), *image_lines(result), *audio_lines(result)]
    per_step = "; ".join(further)
    per_request = facts.waiting_lines(result)[0].partition(";")[0]
    return (
        panel("steps", "A step", per_step, plots.step_time(result), f"{capital(parts)}."),
        panel("waiting", "A request in the queue", per_request, plots.waiting_time(result), f"{capital(waits)}."),
    )


def panel(name: str, title: str, note: str, sketch: Sketch, description: str) -> Panel:
    """Return a sketch as a plot of a page; ``name`` is unique in it."""
    from markupsafe import Markup

    return Panel(title, note, Markup(sketch_svg(sketch, name, f"{title}. {description}")))


def _spread(result: RunResult, *labels: str) -> str:
    """Return median and 95th percentile of latencies in words."""
    texts = []
    for row in tables.latency_rows(result.summary):
        if row.label in labels and row.cells[0].value is not None:
            median, tail = row.cells[1].text, row.cells[3].text
            texts.append(f"{row.label} is up to {median} {row.unit} for half of them and {tail} {row.unit} for 95%")
    return f"Cumulative share over time. {'; '.join(texts) or 'Undefined in this run'}."


def memory_panel(result: RunResult) -> Panel:
    """Return where the memory of a GPU goes, as one bar."""
    parts = [f"{row.label} {row.cells[1].text}" for row in tables.memory_rows(result.summary)[:-1]]
    return panel("memory", "", "", plots.memory_bar(result.summary), f"Of one GPU: {', '.join(parts)}.")


def _roofline_panels(result: RunResult) -> tuple[Panel, ...]:
    found = result.background.get("roofline")
    if not found:
        return ()
    decoding, context, prompt = found["decoding"], found["context_tokens"], found["prompt_tokens"]
    ridge = max(found["peaks"].values()) / found["bandwidth"]
    note = (
        f"Operators of a layer on one GPU: {counted(decoding, 'sequence')} of {count(context)} tokens decoding, a "
        f"prompt of {count(prompt)}; memory is the bottleneck below {number(ridge)} FLOP a byte"
    )
    slowest = {
        phase: max((each for each in found["points"] if each["phase"] == phase), key=lambda each: each["seconds"])
        for phase in ("decode", "prefill")
    }
    text = "; ".join(
        f"{phase}: {each['name'].replace('_', ' ')} takes longest, {number(each['intensity'])} FLOP a byte at "
        f"{number(each['flops_per_second'] / 1e12)} TFLOP/s"
        for phase, each in slowest.items()
    )
    return (panel("roofline", "Roofline", note, plots.roofline(found), f"{text}."),)


def _dollar_panels(result: RunResult) -> tuple[Panel, ...]:
    month = result.summary["simserve"].get("month")
    if not month or month["api"] is None or not month["api"]["usd_per_request"]:
        return ()
    api, even, requests = month["api"], month["break_even_requests_per_month"], month["requests_per_month"]
    text = (
        f"A month of this traffic ({number(requests / 1e6)} million requests) costs "
        f"{dollars(month['self_host_usd_per_month'])} on this deployment and {dollars(api['usd_per_month'])} at "
        f"{api['name']}"
    )
    if even is not None:
        text += f"; both cost the same at {number(even / 1e6)} million requests a month"
    elif month["why_never"] is not None:
        text += f"; as it stands it never costs less: {month['why_never']}"
    chosen = "" if api["is_named"] else "The scenario names no API: this is the cheapest listed one with its weights. "
    note = f"{chosen}{text}. A request: {dollars(month['self_host_usd_per_request'])} here, "
    note += f"{dollars(api['usd_per_request'])} there"
    figure = plots.dollars_a_month(month)
    return (panel("api", f"Against {api['name']} (prices of {api['date']})", note, figure, f"{text}."),)


_NUM_SPANS = 80
_LEAST_REQUESTS = 20  # Least number of requests of a span for which the share that met the objective is shown.
_SHARE_TICKS = ((0, "0%"), (0.25, "25%"), (0.5, "50%"), (0.75, "75%"), (1, "100%"))


def has_changed(result: RunResult) -> bool:
    """Return whether replicas started, stopped or failed in a run."""
    return len(result.summary["simserve"]["replicas"]["timeline"]) > 1


def replicas_over_time(result: RunResult) -> Sketch | None:
    """Return the replicas that are paid for and those that are ready, over time; None if unknown."""
    series = result.simulation.totals.series
    if series.replicas_launched is None or series.replicas_ready is None:
        return None
    edges, (launched, ready) = thinned(series.edges, series.replicas_launched, series.replicas_ready)
    times, label = clock(edges)
    return Sketch(
        x=Axis(label=label, high=float(times[-1])),
        y=Axis(label="replicas", high=max(1.0, 1.08 * float(launched.max())), is_whole=True),
        marks=[
            *area(times, ready, BLUE, "ready", SKY),
            Steps(edges=times, values=launched, label="paid for", color=VERMILION, dashes=DASHED),
        ],
    )


def attainment_over_time(result: RunResult) -> Sketch | None:
    """Return the share of the requests that met the objective, by arrival; None without an objective, or if all came at
    once.

    The spans hold equal numbers of requests.
    """
    records = result.simulation.records
    order = np.argsort(records.arrival_time, kind="stable")[: int(np.isfinite(records.arrival_time).sum())]
    count = min(_NUM_SPANS, len(order) // _LEAST_REQUESTS)
    if result.slo is None or count < 2 or not records.arrival_time[order[-1]] > 0.0:
        return None
    met = requests_meeting(request_latencies(records), result.slo)[order].astype(np.float64)
    starts = np.arange(count) * len(order) // count
    shares = np.add.reduceat(met, starts) / np.diff(np.append(starts, len(order)))
    arrivals = records.arrival_time[order]
    edges = np.append(arrivals[starts], arrivals[-1])
    edges[0] = 0.0
    times, label = clock(np.maximum.accumulate(edges))
    return Sketch(
        x=Axis(label=label.replace("simulated time", "time of arrival"), high=float(times[-1])),
        y=Axis(label="requests within the SLO", ticks=_SHARE_TICKS),
        marks=area(times, shares, BLUE, "within the SLO", SKY),
    )


def latency_at_loads(result: RunResult, found: Mapping[str, Any]) -> Sketch:
    """Return p95 of TTFT and TPOT against the load, with the bounds of the SLO."""
    slo = result.slo
    bounds = (None, None) if slo is None else (slo.ttft, slo.tpot)
    ttft, tpot = _values(found["p95_ttft"]), _values(found["p95_tpot"])
    label = load_label(is_closed=found["is_closed"])
    return latency_against_load(found["loads"], ttft, tpot, bounds, label, _own(found))


def goodput_at_loads(found: Mapping[str, Any]) -> Sketch:
    """Return requests/s answered, and within the SLO, against the load, with the knee if it was found."""
    answered, good = _values(found["throughput"]), _values(found["goodput"])
    label = load_label(is_closed=found["is_closed"])
    return goodput_against_load(found["loads"], answered, good, knee(found), label, _own(found))


def knee(found: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return load and requests/s at the knee; None if that is the highest load tried."""
    pairs = list(zip(found["loads"], _values(found["goodput"]), strict=True))
    known = [(load, good) for load, good in pairs if good > 0]
    if not known:
        return None
    best = max(known, key=lambda pair: pair[1])
    return None if best[0] == found["loads"][-1] else best


def knee_words(found: Mapping[str, Any], unit: str) -> str:
    """Return the sentence about the knee."""
    seen = knee(found)
    if seen is not None:
        return f"Goodput is highest near {_load(found, seen[0])} {unit}: {number(seen[1])} requests/s within the SLO"
    if not any(found["goodput"]):
        return "At no load that was tried is a request within the SLO"
    return f"Goodput still rises at {_load(found, found['loads'][-1])} {unit}, the highest load that was tried"


def sustained_words(result: RunResult, found: Mapping[str, Any], unit: str) -> str:
    """Return the sentence about the loads up to which the SLO holds."""
    loads = found["loads"]
    held = num_holding(found, math.inf if result.slo is None else result.slo.attainment)
    if not held:
        return f"the SLO does not hold even at {_load(found, loads[0])} {unit}"
    beyond = "" if held == len(loads) else f", not at {_load(found, loads[held])}"
    return f"the SLO holds at {_load(found, loads[held - 1])} {unit}{beyond}"


def runs_words(found: Mapping[str, Any], unit: str) -> str:
    """Return how many requests the runs have, and which runs are too short for what they show."""
    fewest, most = min(found["requests"]), max(found["requests"])
    text = f"From runs of {count(fewest)}" + ("" if fewest == most else f" to {count(most)}") + " requests"
    unsettled = [
        _load(found, load)
        for load, settled, stability in zip(found["loads"], found["settled"], found["stability"], strict=True)
        if settled is False and stability != "overloaded"
    ]
    return text if not unsettled else f"{text}; too short to have settled at {listed(unsettled)} {unit}"


def _own(found: Mapping[str, Any]) -> list[Mark]:
    """Return a mark at the load of the run itself, named on the side away from the knee."""
    at, seen = found["own"], knee(found)
    is_left_of = seen is None or seen[0] >= at
    note = Note(text="this run", x=at, y=None, right=-3 if is_left_of else 3, up=3, is_left_of=is_left_of)
    return [Rule(x=at, color=GREY, dashes=DOTTED), note]


def _load(found: Mapping[str, Any], load: float) -> str:
    return load_figure(load, is_closed=found["is_closed"])


def _values(values: Sequence[float | None]) -> list[float]:
    return [math.nan if value is None else value for value in values]
