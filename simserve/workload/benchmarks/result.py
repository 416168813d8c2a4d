"""BenchResult: one end-to-end benchmark as any tool measured it, in one set of definitions. Reads no file.

=========  =====================================================================================================
ttft       first token at the client minus sending
tpot       (last token - first token) / (output tokens - 1), one value per request; undefined for one token
ntpot      (last token - sending) / output tokens, one value per request: it includes the first token
itl        every gap between consecutive tokens, pooled over requests
e2e        last token minus sending
=========  =====================================================================================================

Tools use the names TPOT and ITL for three of these; a reader decides which one a figure is, or leaves it out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.errors import TraceError
from simserve.workload.traces.table import MAX_TOKENS

LATENCIES = ("ttft", "tpot", "ntpot", "itl", "e2e")
STATISTICS = ("mean", "median", "p90", "p95", "p99")
RATES = ("output_throughput", "request_throughput")
FIGURES = (*(f"{statistic}_{latency}" for latency in LATENCIES for statistic in STATISTICS), *RATES)
"""Names of measured figures: latencies in seconds, rates per second."""

SAME_SHARE = 0.03
DIFFERENT_SHARE = 0.10
"""A mean called TPOT within the first share of E2E over output tokens, and beyond the second of TPOT, is NTPOT."""

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """One run of a benchmark tool."""

    label: str  # Its name: the file, and which run if the file has several.
    file: str  # The file it was read from.
    tool: str  # The tool that wrote it.
    arrivals: Mapping[str, Any]
    """How requests were sent, by the keys of ``workload.arrivals``; without ``process`` if the file gives only a
    rate, empty if it gives nothing."""
    num_requests: int  # Requests that were answered.
    prompt_tokens: Array  # Of each request, or only their mean; empty: not recorded.
    output_tokens: Array  # Of each request, or only their mean; empty: not recorded.
    arrival_time: Array | None = None  # Of each request, seconds from the first; None: not recorded.
    measured: Mapping[str, float]  # Figure (`FIGURES`) -> seconds, or tokens or requests per second.
    definitions: Mapping[str, str] = field(default_factory=dict)
    """Latency of a figure -> the tool's own key, and its meaning there."""
    notes: Sequence[str] = ()  # What was left out, and why.
    model: str = ""  # Name of the model in the file; empty: not recorded.
    engine: str = ""  # Engine profile that the file identifies; empty: none.
    duration: float | None = None  # Seconds from the first request to the last answer; None: not recorded.
    num_failed: int | None = None  # Requests that were not answered; None: not recorded.
    length_range: tuple[float, float] | None = None
    """Shortest and longest of equally likely lengths, as multiples of their mean; None: not recorded."""
    date: str = ""  # Day of the run, ``2026-11-23``; empty: not recorded.

    @property
    def load(self) -> str:
        """How requests were sent, in short: ``2/s``, ``48 clients``; empty if the file does not say."""
        if "concurrency" in self.arrivals:
            return f"{self.arrivals['concurrency']} client{'s' if self.arrivals['concurrency'] != 1 else ''}"
        if "rate" in self.arrivals:
            return f"{self.arrivals['rate']:g}/s"
        return "all at once" if self.arrivals.get("process") == "all_at_once" else ""


def checked(result: BenchResult) -> BenchResult:
    """Return the result if its figures can be what their names say.

    Raises:
        TraceError: It has nothing to compare, a figure is not a positive number, or a mean named TPOT is the one that
            includes the first token.
    """
    if not result.measured:
        rule = "holds no latency and no throughput"
        raise TraceError(rule, file=result.file, key=result.label, remedy="nothing to compare")
    for key, lengths in (("prompt tokens", result.prompt_tokens), ("output tokens", result.output_tokens)):
        if len(lengths) and not (np.all(np.isfinite(lengths)) and 0 < lengths.mean() <= MAX_TOKENS):
            raise TraceError(f"must be a mean above 0 and at most {MAX_TOKENS:,}", file=result.file, key=key)
    for figure, value in result.measured.items():
        if not np.isfinite(value) or value <= 0:
            raise TraceError("must be a number above 0", file=result.file, key=figure, value=value)
    _check_tpot(result)
    return result


def _check_tpot(result: BenchResult) -> None:
    """Refuse a mean TPOT that equals E2E over output tokens instead of the value by its definition.

    For requests of unequal lengths, means satisfy the definitions only approximately, hence a tolerance.
    """
    figures = result.measured
    if not {"mean_tpot", "mean_ttft", "mean_e2e"} <= set(figures):
        return
    tokens = float(result.output_tokens.mean()) if len(result.output_tokens) else 0.0
    if tokens <= 1:
        return
    tpot, whole = figures["mean_tpot"], figures["mean_e2e"]
    excluding, including = (whole - figures["mean_ttft"]) / (tokens - 1.0), whole / tokens
    if abs(tpot / including - 1.0) < SAME_SHARE and abs(tpot / max(excluding, 1e-12) - 1.0) > DIFFERENT_SHARE:
        raise TraceError(
            f"is E2E over output tokens ({including * 1e3:.4g} ms), which holds the first token; (E2E - TTFT) / "
            f"(tokens - 1) is {excluding * 1e3:.4g} ms",
            file=result.file,
            key="mean TPOT",
            value=f"{tpot * 1e3:.4g} ms",
            remedy="name it ntpot",
        )


def statistics(values: Array, name: str) -> dict[str, float]:
    """Return mean, median and percentiles of a latency over requests, by figure name."""
    known = values[np.isfinite(values)]
    if not len(known):
        return {}
    quantiles = {"median": 50, "p90": 90, "p95": 95, "p99": 99}
    found = {f"mean_{name}": float(known.mean())}
    return found | {f"{key}_{name}": float(np.percentile(known, share)) for key, share in quantiles.items()}
