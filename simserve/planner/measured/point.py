"""MeasuredPoint: one measured server, as a scenario to replay and its measured figures; MeasuredMemory: its KV room.

Runs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from simserve.metrics.latency import request_latencies
from simserve.sim.records import RequestRecords
from simserve.sim.simulate import Deployment
from simserve.workload.requests import RequestSpecs

Metric = Literal["tpot", "ttft", "e2e", "throughput"]
METRICS: tuple[Metric, ...] = ("tpot", "ttft", "e2e", "throughput")
"""Latencies in seconds, throughput in tokens/s of the whole deployment."""

LoadKind = Literal["concurrency", "rate", "batch", "offline", "trace"]

Statistic = Literal["mean", "median"]

COMPUTED = "the source computed its capped rows from the others (prompts 1.3 times as long): nothing was measured"
"""Why Splitwise's power-capped rows are not run: every one is its uncapped twin times 1.3 and 1.0, to six digits."""

NO_RECIPE = "no public recipe of separate pools has these clients: how many workers served them is not said"
"""Why a row of InferenceX's separate pools is not run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """How a benchmark turned its requests into one figure."""

    statistic: Statistic = "mean"  # Statistic over requests.
    is_server_side: bool = False
    """TTFT and E2E start when the scheduler has the request, not when the client sends it."""
    is_total_throughput: bool = False  # Throughput counts prompt tokens too.
    is_last_answer: bool = False  # E2E is the time until the last request of a batch is answered, not the mean.
    cold_seconds: float = 0.0
    """How much longer the first requests of a fresh server waited for their first tokens: it was started for the run,
    and its kernels are compiled for the sizes that they bring."""

    def figures(self, records: RequestRecords) -> dict[Metric, float]:
        """Return TPOT, TTFT, E2E (seconds) and throughput (tokens/s) of a run."""
        latencies = request_latencies(records)
        late = records.admitted_time - records.arrival_time if self.is_server_side else np.zeros(len(records))
        late = late - self.cold_seconds * (records.arrival_time == np.nanmin(records.arrival_time))
        e2e = latencies.e2e - late
        return {
            "tpot": self.average(latencies.tpot),
            "ttft": self.average(latencies.ttft - late),
            "e2e": float(np.nanmax(e2e)) if self.is_last_answer else self.average(e2e),
            "throughput": self.throughput(records),
        }

    def average(self, values: NDArray[np.float64]) -> float:
        """Return the statistic of those values that are defined; NaN without any."""
        defined = values[np.isfinite(values)]
        if not len(defined):
            return math.nan
        return float(np.median(defined)) if self.statistic == "median" else float(np.mean(defined))

    def throughput(self, records: RequestRecords) -> float:
        """Return tokens/s over the whole run."""
        tokens = records.output_tokens + (records.prompt_tokens if self.is_total_throughput else 0)
        duration = float(np.nanmax(records.finish_time) - np.nanmin(records.arrival_time))
        return float(tokens.sum()) / duration if duration > 0 else math.nan

    def heard(self, deployment: Deployment) -> Deployment:
        """Return a deployment as the benchmark's client hears of it."""
        return deployment


@dataclass(frozen=True, slots=True, kw_only=True)
class _Deployed:
    """What was measured."""

    label: str  # File and row, or the figure's own name.
    engine: str  # Engine, as the catalogue names it.
    version: str  # Its version as the source writes it, or the one in use at the date of the measurement.
    hardware: str  # GPU, as the catalogue names it.
    model: str  # Model, as the catalogue names it.
    scenario: Mapping[str, Any]  # The scenario as in a file; empty where it cannot be replayed.


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPoint(_Deployed):
    """One measured deployment under one load."""

    source: str  # Family of measurements.
    load_kind: LoadKind  # What ``load`` counts.
    load: float  # Clients, requests/s or requests in a batch; NaN offline and for traces.
    measured: Mapping[Metric, float]  # Metric -> seconds or tokens/s.
    shown_only: frozenset[Metric] = frozenset()
    """Metrics that are compared but not scored, because the source's figure has artefacts."""
    protocol: Protocol = field(default_factory=Protocol)  # How the figures were taken.
    requests: RequestSpecs | None = None
    """The requests themselves, where they were recorded; they replace the scenario's workload."""
    pools: tuple[Any, ...] = ()
    """Separate workers for prompts and answers, in place of the scenario
    (`simserve.planner.validation.prediction.Workers`); of several, those with the nearest TPOT are taken to have
    run."""
    reason: str = ""  # Why the point cannot be replayed; empty where it can be tried.
    fitted: frozenset[Metric] = frozenset()  # Metrics that a constant of the catalogue was fitted to.
    laboratory: str = ""
    """Who measured it, if several reports are from one: the same nodes, client and habits; else empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredMemory(_Deployed):
    """The KV room of one deployment."""

    kv_bytes: float = math.nan  # Bytes a GPU in the log; NaN where it gives tokens.
    kv_tokens: float = math.nan  # Tokens in the log; NaN where it gives bytes.
