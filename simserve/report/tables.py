"""The tables of a report, cell by cell: the text a reader sees, and the exact figure and key behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simserve.metrics.result import RunResult
from simserve.metrics.thresholds import at
from simserve.report.answer import share_asked
from simserve.report.quantities import dollars, latency_unit, number, share
from simserve.units import format_bytes, format_seconds

STATISTICS = ("mean", "p50", "p90", "p95", "p99")
LATENCY_LABELS = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "itl_ms": "ITL", "e2el_ms": "E2E"}
TERM_LABELS = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E", "ttfvt": "TTFVT", "task": "the makespan of tasks"}
"""Term of an SLO -> its name in text."""
LATENCY_MEANINGS = {
    "TTFT": "time to first token",
    "TPOT": "time per output token after the first",
    "ITL": "gap between consecutive tokens, over the whole run",
    "E2E": "arrival to last token",
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One figure."""

    key: str  # Its dotted key in `result.json`.
    value: float | None  # Its value there; None is undefined.
    text: str  # What a reader sees.


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table: its subject, its unit (empty if the cells include it), its figures."""

    label: str
    unit: str
    cells: tuple[Cell, ...]


def latency_rows(summary: Mapping[str, Any]) -> list[Row]:
    """Return TTFT, TPOT, ITL and E2E, with mean and percentiles in one unit per row."""
    intervals = summary["simserve"]["confidence_intervals"] or {}
    rows = []
    for name, label in LATENCY_LABELS.items():
        (unit, factor), cells = latency_unit(summary[f"p99_{name}"]), []
        for key in (f"{each}_{name}" for each in STATISTICS):
            value, half_width = summary[key], (intervals.get(key) or {}).get("half_width")
            text = number(None if value is None else value / factor)
            interval = "" if half_width is None else f" ±{number(half_width / factor, 2)}"
            cells.append(Cell(key, value, text + interval))
        rows.append(Row(label, unit, tuple(cells)))
    return rows


def slo_rows(result: RunResult) -> list[Row]:
    """Return the bound on each latency with the share of submitted requests within it, and that of all bounds."""
    if result.slo is None:
        return []
    slo = result.summary["simserve"]["slo"]
    rows = []
    for term, value in slo["by_metric"].items():
        bound = getattr(result.slo, term)
        if bound is not None:
            cell = Cell(f"simserve.slo.by_metric.{term}", value, share(value))
            rows.append(Row(f"{term.upper()} ≤ {format_seconds(bound)}", "", (cell,)))
    whole = Cell("simserve.slo.attainment", slo["attainment"], share(slo["attainment"]))
    return [*rows, Row(f"all bounds ({share_asked(result.slo.attainment)} asked)", "", (whole,))]


def headline_rows(summary: Mapping[str, Any]) -> list[Row]:
    """Return throughput and dollars; goodput only where there is an SLO."""
    texts: list[tuple[str, str, str]] = [
        ("Requests a second", "request_throughput", "number"),
        ("of them within the SLO", "request_goodput", "number"),
        ("Output tokens a second", "output_throughput", "tokens"),
        ("Tokens a second, prompts included", "total_token_throughput", "tokens"),
        ("Dollars a million output tokens", "simserve.cost.usd_per_million_output_tokens", "dollars"),
        ("Dollars a million tokens, prompts included", "simserve.cost.usd_per_million_tokens", "dollars"),
        ("Dollars a request", "simserve.cost.usd_per_request", "dollars"),
        ("Dollars an hour", "simserve.cost.usd_per_hour", "dollars"),
    ]
    write = {"number": number, "tokens": lambda value: number(value, 4), "dollars": dollars}
    rows = []
    for label, key, kind in texts:
        value = at(summary, key)
        if value is None and key == "request_goodput":
            continue
        rows.append(Row(label, "", (Cell(key, value, write[kind](value)),)))
    return rows


_OPTIONAL_BYTES = ("draft_weights_bytes", "states_bytes", "lora_bytes")
"""What few deployments have; left out where it is 0."""


def memory_rows(summary: Mapping[str, Any]) -> list[Row]:
    """Return where the bytes of one GPU go, with their share of it; they add up to all of it."""
    memory = summary["simserve"]["memory"]
    total = memory["total_bytes"]
    parts = {
        "Weights": "weights_bytes",
        "Draft weights": "draft_weights_bytes",
        "States of linear attention": "states_bytes",
        "Slots of LoRA adapters": "lora_bytes",
        "KV cache": "kv_bytes",
        "Activations": "activation_bytes",
        "Runtime and communication": "non_torch_bytes",
        "CUDA graphs": "cuda_graph_bytes",
    }
    parts = {label: key for label, key in parts.items() if memory.get(key) or key not in _OPTIONAL_BYTES}
    rows = [_memory_row(label, f"simserve.memory.{key}", memory[key], total) for label, key in parts.items()]
    unused = total - sum(memory[key] for key in parts.values())
    return [
        *rows,
        _memory_row("Unused", "", unused, total),
        _memory_row("GPU", "simserve.memory.total_bytes", total, total),
    ]


def _memory_row(label: str, key: str, value: float, total: float) -> Row:
    return Row(label, "", (Cell(key, value, format_bytes(value)), Cell("", value / total, share(value / total))))
