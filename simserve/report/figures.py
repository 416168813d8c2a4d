"""The figures that answers name: label, unit, how each is written. One table for tables, pages, plots and notebooks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from simserve.report.quantities import dollars, number, share
from simserve.report.tables import LATENCY_LABELS, STATISTICS

Kind = Literal["share", "number", "dollars"]
_WRITE = {"share": share, "number": number, "dollars": dollars}


@dataclass(frozen=True, slots=True)
class Figure:
    """Label and format of a figure."""

    label: str  # What it is.
    kind: Kind = "number"  # How it is written.
    unit: str = ""  # Its unit, if the label does not include it.
    short: str = ""  # Label where room is short; empty: the same.

    @property
    def title(self) -> str:
        """Its label with its unit: ``TTFT p95, ms``."""
        return f"{self.label}, {self.unit}" if self.unit else self.label

    @property
    def narrow(self) -> str:
        """The same where room is short."""
        return self.short or self.title

    def text(self, value: float | None) -> str:
        """Return a value as readers see it."""
        return _WRITE[self.kind](value)


SHOWN: Mapping[str, Figure] = {
    **{
        f"{each}_{name}": Figure(f"{label} {each}", unit="ms")
        for name, label in LATENCY_LABELS.items()
        for each in STATISTICS
    },
    "slo_attainment": Figure("within the SLO", "share"),
    "request_throughput": Figure("requests/s"),
    "request_goodput": Figure("of them within the SLO"),
    "output_throughput": Figure("output tokens/s", short="output tok/s"),
    "busy": Figure("GPUs are busy", "share"),
    "kv_usage_mean": Figure("KV memory in use", "share"),
    "usd_per_hour": Figure("dollars an hour", "dollars"),
    "usd_per_million_output_tokens": Figure("dollars/M output tokens", "dollars", short="$/M output"),
    "usd_per_million_tokens": Figure("dollars/M tokens", "dollars"),
}
"""Name of a figure, as in `simserve.planner.compare.FIGURES` and the columns of a sweep -> its label and format."""
