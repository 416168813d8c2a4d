"""Classes of requests side by side, cell by cell, for the terminal and the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simserve.metrics.result import RunResult
from simserve.report.quantities import UNDEFINED, count, share
from simserve.report.tables import Cell, Row
from simserve.units import format_seconds

CLASS_COLUMNS = ("requests", "lost", "TTFT p50", "TTFT p95", "TPOT p95", "E2E p95", "SLO met")
_LATENCIES = ("p50_ttft_ms", "p95_ttft_ms", "p95_tpot_ms", "p95_e2el_ms")
_LOST = ("rejected", "timed_out", "failed", "unfinished")


def class_rows(result: RunResult) -> list[Row]:
    """Return a row a class with the cells of `CLASS_COLUMNS`; empty without classes."""
    classes: Mapping[str, Mapping[str, Any]] = result.summary["simserve"]["classes"]
    return [_row(name, figures) for name, figures in classes.items()]


def _row(name: str, figures: Mapping[str, Any]) -> Row:
    key = f"simserve.classes.{name}"
    lost = sum(figures[status] for status in _LOST)
    attainment = figures["slo"]["attainment"]
    return Row(
        name,
        "",
        (
            Cell(f"{key}.submitted", figures["submitted"], count(figures["submitted"])),
            Cell("", lost, count(lost)),
            *(Cell(f"{key}.{each}", figures[each], _time(figures[each])) for each in _LATENCIES),
            Cell(f"{key}.slo.attainment", attainment, share(attainment)),
        ),
    )


def _time(milliseconds: float | None) -> str:
    return UNDEFINED if milliseconds is None else format_seconds(milliseconds / 1000)
