"""A run as HTML: `report.html`, one self-contained file, and a fragment for a notebook."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simserve.metrics.result import RunResult
from simserve.report import facts, knobs, tables
from simserve.report.answer import cautions, steady_state_caveat, verdict
from simserve.report.brief import brief_of_run
from simserve.report.facts import LOOPS, traffic
from simserve.report.kinds import CLASS_COLUMNS, PARTS, class_rows
from simserve.report.page import brief_html, environment, html_table
from simserve.report.panels import brief_panel, figure_groups, memory_panel
from simserve.report.quantities import UNDEFINED, capital, number
from simserve.report.tables import STATISTICS, latency_rows, slo_rows
from simserve.scenario.formats import quality_lines
from simserve.unfinished import write_text

REPORT_FILE = "report.html"
_OF_THE_FLEET = ("Users", "Tasks", "Rounds", "Front", "Admission", "Fleet", "Stream")
_WORDS = {"holds": "holds", "missed": "missed", "none": UNDEFINED}
_CLASSES = {"holds": "is-good", "missed": "is-bad", "none": ""}


def write_report(result: RunResult, folder: Path, film: Mapping[str, Any] | None = None) -> Path:
    """Write ``report.html`` into ``folder``, with a `simserve.report.film` if there is one, and return its path.

    Raises:
        OSError: The file cannot be written.
    """
    path = folder / REPORT_FILE
    write_text(path, render_report(result, film))
    return path


def render_report(result: RunResult, film: Mapping[str, Any] | None = None) -> str:
    """Return the page: the brief, verdicts, latencies, figures, memory, engine, trust, scenario."""
    shown = ""
    if film is not None:
        from simserve.report.film import film_fragment  # imports the timeline; only needed with a film

        shown = film_fragment(film)
    from simserve.metrics.files import scenario_text

    simserve = result.summary["simserve"]
    content = {
        **_answer(result),
        **_tables(result),
        "real_server_lines": facts.real_server_lines(result),
        "fidelity_lines": facts.fidelity_lines(result),
        "quality_lines": quality_lines(simserve.get("quality", ())),
        **{name: simserve[name] for name in ("version", "scenario_hash", "seed")},
        "has_trace": "trace" in result.scenario["workload"],
        "scenario_text": scenario_text(result.scenario),
        "figure_groups": figure_groups(result),
        "film": shown,
    }
    return environment().get_template("run.html").render(content)


def _answer(result: RunResult) -> dict[str, Any]:
    decided, brief = verdict(result), brief_of_run(result)
    return {
        "name": result.summary["simserve"]["scenario_name"],
        "brief": brief,
        "picture": brief_panel(brief.latencies),
        "slo_word": _WORDS[decided],
        "slo_class": _CLASSES[decided],
        "has_completed": bool(result.summary["completed"]),
        "explanation": result.summary["simserve"]["bottleneck"]["explanation"],
        "title": facts.heading(result),
        "traffic": traffic(result),
        "engine": knobs.engine_name(result),
        "warnings": cautions(result),
        "caveat": capital(steady_state_caveat(result) or ""),
    }


def _tables(result: RunResult) -> dict[str, Any]:
    summary = result.summary
    return {
        "slo_rows": tables.slo_rows(result),
        "thresholds": [{**each, "text": number(each["value"], 4)} for each in summary["simserve"]["thresholds"]],
        "headline_rows": tables.headline_rows(summary),
        "latency_rows": tables.latency_rows(summary),
        "class_rows": class_rows(result),
        "class_columns": CLASS_COLUMNS,
        "statistics": tables.STATISTICS,
        "fleet_lines": [line for label in _OF_THE_FLEET for line in PARTS[label](result)],
        "meanings": tables.LATENCY_MEANINGS,
        "first_pool": next(iter(summary["simserve"]["pools"]), None),
        "memory_rows": tables.memory_rows(summary),
        "memory_bar": memory_panel(result).svg,
        "memory_lines": [*facts.memory_arithmetic(result), *facts.memory_lines(result)[2:]],
        "cost_lines": facts.cost_lines(result),
        "energy_lines": facts.energy_lines(result),
        "measured": capital(facts.measured(result)),
        "load": LOOPS[summary["simserve"]["load"]],
        "knobs": knobs.important_knobs(result),
        "all_knobs": knobs.all_knobs(result),
    }


def run_html(result: RunResult) -> str:
    """Return the answer of a run, its latencies, throughput and dollars, and how far to trust it."""
    explanation = result.summary["simserve"]["bottleneck"]["explanation"]
    lines = [explanation] if result.summary["completed"] else []
    lines.append(f"{facts.heading(result)}; {traffic(result)}")
    lines += [f"{row.label}: {row.cells[0].text}" for row in slo_rows(result)]
    rows = [(row.label, row.unit, *(cell.text for cell in row.cells)) for row in latency_rows(result.summary)]
    caveat = steady_state_caveat(result)
    notes = [
        facts.measured(result),
        *([caveat] if caveat else []),
        *facts.throughput_lines(result),
        *facts.cost_lines(result),
        *cautions(result),
        *facts.real_server_lines(result),
        *facts.fidelity_lines(result),
    ]
    return brief_html(brief_of_run(result, reference=())) + html_table(lines, ("", "unit", *STATISTICS), rows, notes)
