"""A run as a fragment of HTML for a notebook: the answer, its tables, what limits it."""

from __future__ import annotations

from simserve.metrics.result import RunResult
from simserve.report import facts
from simserve.report.answer import steady_state_caveat, warnings
from simserve.report.arriving import traffic
from simserve.report.brief import brief_of_run
from simserve.report.page import brief_html, html_table
from simserve.report.tables import STATISTICS, latency_rows, slo_rows


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
        *warnings(result)[len(result.summary["simserve"].get("warnings", ())) :],
        *facts.real_server_lines(result),
        *facts.fidelity_lines(result),
    ]
    return brief_html(brief_of_run(result, reference=())) + html_table(lines, ("", "unit", *STATISTICS), rows, notes)
