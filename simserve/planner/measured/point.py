"""MeasuredPoint: one measured server, as a scenario to replay and its measured figures; MeasuredMemory: its KV room.

Reads and runs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

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
    """How a benchmark turned its requests into one figure.

    Attributes:
        statistic: Statistic over requests.
        is_server_side: TTFT and E2E start when the scheduler has the request, not when the client sends it.
        is_token_weighted: TPOT is the decode time of all requests over all their generated tokens (first one
            included), not the mean of each request's (E2E - TTFT) / (tokens - 1).
        is_total_throughput: Throughput counts prompt tokens too.
        is_steady_throughput: Throughput is that of a closed loop whose every request takes the mean TTFT and TPOT,
            without the start and the end of the run (Little's law): the source gives only the two times.
        is_batch_time: TTFT is the prompt phase of the whole batch: the last request's, not the mean.
        is_last_answer: E2E is the time until the last request of a batch is answered, not the mean.
        is_long_run: The run was so long that its start and end hardly count: figures are taken from the middle of the
            replay.
        beam_width: Beams that a request decoded; the replay decodes them one after another, and only one of them
            is the answer.
        num_copies: Equal replicas, of which the replay runs one; throughput is that of all.
        cold_seconds: How much longer the first requests of a fresh server waited for their first tokens: it was started
            for the run, and its kernels are compiled for the sizes that they bring.
        cold_stall_seconds: How much longer their answers then took, while the same was done for the prompts after
            theirs.
        front_seconds: Seconds between client and engine, both ways, beyond the engine's own.
        polled_tokens: Tokens that a request decodes between two looks of the engine's scheduler for new requests; an
            arrival during decodes waits for half of them on average.
        is_in_process: The client shares the engine's event loop, which sleeps while a step runs: where tokens are
            handed over in the next step (`simserve.engine.kernel`), the client hears of them when that step has ended.
    """

    statistic: Statistic = "mean"
    is_server_side: bool = False
    is_token_weighted: bool = False
    is_total_throughput: bool = False
    is_steady_throughput: bool = False
    is_batch_time: bool = False
    is_last_answer: bool = False
    is_long_run: bool = False
    beam_width: int = 1
    num_copies: int = 1
    cold_seconds: float = 0.0
    cold_stall_seconds: float = 0.0
    front_seconds: float = 0.0
    polled_tokens: float = 0.0
    is_in_process: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRequests:
    """The requests of a run whose arrivals and lengths were recorded.

    Attributes:
        arrival_time: Seconds from the start, ascending.
        prompt_tokens: Tokens of each prompt.
        output_tokens: Tokens of each answer.
    """

    arrival_time: NDArray[np.float64]
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPoint:
    """One measured deployment under one load.

    Attributes:
        source: Family of measurements.
        label: File and row, or the figure's own name.
        engine: Engine, as the catalogue names it.
        version: Its version as the source writes it, or the one in use at the date of the measurement.
        hardware: GPU, as the catalogue names it.
        model: Model, as the catalogue names it.
        load_kind: What ``load`` counts.
        load: Clients, requests/s or requests in a batch; NaN offline and for traces.
        scenario: The scenario as in a file; empty where ``reason`` says why there is none.
        measured: Metric -> seconds or tokens/s.
        shown_only: Metrics that are compared but not scored, because the source's figure has artefacts.
        protocol: How the figures were taken.
        requests: The requests themselves, where they were recorded; they replace the scenario's workload.
        pools: Separate workers for prompts and answers, in place of the scenario
            (`simserve.planner.validation.prediction.Workers`); of several, those with the nearest TPOT are taken to
            have run.
        reason: Why the point cannot be replayed; empty where it can be tried.
        fitted: Metrics that a constant of the catalogue was fitted to.
        laboratory: Who measured it, if several reports are from one: the same nodes, client and habits; else empty.
    """

    source: str
    label: str
    engine: str
    version: str
    hardware: str
    model: str
    load_kind: LoadKind
    load: float
    scenario: Mapping[str, Any]
    measured: Mapping[Metric, float]
    shown_only: frozenset[Metric] = frozenset()
    protocol: Protocol = field(default_factory=Protocol)
    requests: RecordedRequests | None = None
    pools: tuple[Any, ...] = ()
    reason: str = ""
    fitted: frozenset[Metric] = frozenset()
    laboratory: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredMemory:
    """The KV room of one deployment.

    Attributes:
        label: File and row.
        engine: Engine, as the catalogue names it.
        version: Its version.
        hardware: GPU, as the catalogue names it.
        model: Model, as the catalogue names it.
        scenario: The scenario as in a file.
        kv_bytes: Bytes a GPU in the log; NaN where it gives tokens.
        kv_tokens: Tokens in the log; NaN where it gives bytes.
    """

    label: str
    engine: str
    version: str
    hardware: str
    model: str
    scenario: Mapping[str, Any]
    kv_bytes: float = math.nan
    kv_tokens: float = math.nan
