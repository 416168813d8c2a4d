"""`report.html`: a run as one file that needs nothing else. The same result gives the same bytes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simserve.metrics.result import RunResult
from simserve.profiles.quality import quality_lines
from simserve.report import facts, knobs, tables
from simserve.report.answer import answer, steady_state_caveat, verdict, warnings
from simserve.report.classes import CLASS_COLUMNS, class_rows
from simserve.report.fleet import door_lines, fleet_lines, stream_lines
from simserve.report.preemption import seats_points
from simserve.report.quantities import UNDEFINED, count, number, share
from simserve.report.speculation import speculation_lines

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup
    from matplotlib.figure import Figure

REPORT_FILE = "report.html"
_TEMPLATES = Path(__file__).parent / "templates"
_WORDS = {"holds": "holds", "missed": "missed", "none": UNDEFINED}
_CLASSES = {"holds": "is-good", "missed": "is-bad", "none": ""}


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture: what it shows, a note below the title, the ``<svg>``."""

    title: str
    note: str
    svg: Markup


@dataclass(frozen=True, slots=True)
class PanelGroup:
    """Pictures that answer one question together."""

    title: str
    note: str
    panels: tuple[Panel, ...]


def write_report(result: RunResult, folder: Path) -> Path:
    """Write ``report.html`` into ``folder``, whole or not at all, and return its path.

    Raises:
        OSError: The file cannot be written.
    """
    path = folder / REPORT_FILE
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        unfinished.write_text(render_report(result), encoding="utf-8", newline="\n")
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path


def render_report(result: RunResult) -> str:
    """Return the page: the answer, verdicts, latencies, figures, memory, engine, trust, scenario."""
    content = {**_answer(result), **_tables(result), **_background(result), "figure_groups": _figures(result)}
    return _environment().get_template("run.html").render(content)


def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["capitalize_first"] = lambda text: text[:1].upper() + text[1:]
    return environment


def _answer(result: RunResult) -> dict[str, Any]:
    decided = verdict(result)
    return {
        "name": result.summary["simserve"]["scenario_name"],
        "answer": answer(result),
        "verdict": decided,
        "slo_word": _WORDS[decided],
        "slo_class": _CLASSES[decided],
        "has_completed": bool(result.summary["completed"]),
        "explanation": result.summary["simserve"]["bottleneck"]["explanation"],
        "title": facts.title(result),
        "traffic": facts.traffic(result),
        "engine": knobs.engine_name(result),
        "warnings": warnings(result),
        "caveat": _sentence_case(steady_state_caveat(result)),
    }


def _tables(result: RunResult) -> dict[str, Any]:
    summary = result.summary
    return {
        "slo_rows": tables.slo_rows(result),
        "thresholds": [{**each, "text": number(each["value"], 4)} for each in summary["simserve"]["thresholds"]],
        "headline_rows": tables.headline_rows(summary),
        "latency_rows": tables.latency_rows(summary),
        "statistics": tables.STATISTICS,
        "class_rows": class_rows(result),
        "class_columns": CLASS_COLUMNS,
        "fleet_lines": [*door_lines(result), *fleet_lines(result), *stream_lines(result)],
        "meanings": tables.LATENCY_MEANINGS,
        "memory_rows": tables.memory_rows(summary),
        "memory_lines": [*facts.memory_arithmetic(result), *facts.memory_lines(result)[2:]],
        "cost_lines": facts.cost_lines(result),
        "energy_lines": facts.energy_lines(result),
        "measured": _sentence_case(facts.measured(result)),
        "load": summary["simserve"]["load"],
        "knobs": knobs.important_knobs(result),
        "all_knobs": knobs.all_knobs(result),
    }


def _background(result: RunResult) -> dict[str, Any]:
    from simserve.metrics.files import scenario_text

    simserve = result.summary["simserve"]
    return {
        "fidelity_lines": facts.fidelity_lines(result),
        "quality_lines": quality_lines(result.summary["simserve"].get("quality", ())),
        "version": simserve["version"],
        "scenario_hash": simserve["scenario_hash"],
        "seed": simserve["seed"],
        "has_trace": "trace" in result.scenario["workload"],
        "scenario_text": scenario_text(result.scenario),
    }


def _figures(result: RunResult) -> list[PanelGroup]:
    replications = facts.num_replications(result)
    note = f"Drawn from the first of {replications} runs" if replications > 1 else ""
    groups = [
        PanelGroup("How latencies are spread", _undefined(result) or note, _latency_panels(result)),
        PanelGroup("The run over time", note, _time_panels(result)),
        PanelGroup("Where the time goes", "", _share_panels(result)),
    ]
    points = seats_points(result)
    if points:
        requests = result.summary["simserve"]["bottleneck"]["seats_curve"]["requests"]
        runs = f"Short runs of {count(requests)} requests of this traffic, all queued at once, on one replica"
        groups.append(PanelGroup("Up to which batch a larger one pays", runs, (_seats_panel(points),)))
    return groups if result.summary["simserve"]["steps"]["count"] else []


def _seats_panel(points: list[tuple[int, float]]) -> Panel:
    from simserve.report import plots
    from simserve.report.curves import turning_point

    best = turning_point(points)
    text = f"Output is highest at max_num_seqs {count(best.at)}, {number(best.value)} tokens a second."
    return _panel("seats", "Throughput against max_num_seqs", "", plots.throughput_curve(points, best), text)


def _undefined(result: RunResult) -> str:
    """Return why latencies between tokens are missing; empty if they are not."""
    if not result.summary["completed"] or result.summary["p50_itl_ms"] is not None:
        return ""
    return "TPOT and ITL are undefined: no gap between tokens was seen"


def _latency_panels(result: RunResult) -> tuple[Panel, ...]:
    from simserve.report import plots

    panels = []
    if result.summary["completed"]:
        text = _spread(result, "TTFT", "E2E")
        panels.append(_panel("request-latency", "A request: TTFT and E2E", "", plots.request_latency(result), text))
    if result.summary["p50_itl_ms"] is not None:
        text = _spread(result, "TPOT", "ITL")
        panels.append(_panel("token-latency", "Its tokens: TPOT and ITL", "", plots.token_latency(result), text))
    return tuple(panels)


def _time_panels(result: RunResult) -> tuple[Panel, ...]:
    from simserve.report import plots

    simserve = result.summary["simserve"]
    sequences = number(simserve["steps"]["mean_batch"])
    state = f"The run is {simserve['stability']}, with {sequences} sequences in a step on average."
    requests = _panel("requests", "Running and waiting requests", "", plots.requests_over_time(result), state)
    if simserve["kv"]["usage_mean"] is None:
        return (requests,)
    mean, peak = share(simserve["kv"]["usage_mean"]), share(simserve["kv"]["usage_peak"])
    use = f"Share of KV capacity reserved: {mean} on average, {peak} at its peak."
    return requests, _panel("kv", "Use of KV memory", "", plots.kv_over_time(result), use)


def _share_panels(result: RunResult) -> tuple[Panel, ...]:
    from simserve.report import plots

    bottleneck = result.summary["simserve"]["bottleneck"]
    parts = facts.listed_shares(bottleneck["step_shares"], facts.PART_LABELS) or "no step ran"
    waits = facts.listed_shares(bottleneck["waiting_shares"], facts.WAIT_LABELS) or "no request waited"
    per_step = "; ".join([*facts.step_lines(result)[1:], *speculation_lines(result)])
    per_request = facts.waiting_lines(result)[0].partition(";")[0]
    return (
        _panel("steps", "A step", per_step, plots.step_time(result), f"{_sentence_case(parts)}."),
        _panel(
            "waiting", "A request in the queue", per_request, plots.waiting_time(result), f"{_sentence_case(waits)}."
        ),
    )


def _panel(name: str, title: str, note: str, figure: Figure, description: str) -> Panel:
    from markupsafe import Markup

    from simserve.report.svg import inline_svg

    return Panel(title, note, Markup(inline_svg(figure, name, f"{title}. {description}")))


def _spread(result: RunResult, *labels: str) -> str:
    """Return median and 95th percentile of latencies in words."""
    texts = []
    for row in tables.latency_rows(result.summary):
        if row.label in labels and row.cells[0].value is not None:
            median, tail = row.cells[1].text, row.cells[3].text
            texts.append(f"{row.label} is up to {median} {row.unit} for half of them and {tail} {row.unit} for 95%")
    return f"Cumulative share over time. {'; '.join(texts) or 'Undefined in this run'}."


def _sentence_case(text: str | None) -> str:
    return text[:1].upper() + text[1:] if text else ""
