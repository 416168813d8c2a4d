"""MeasuredPoint: one measured server, as a scenario to replay and the figures it gave; MeasuredMemory: its KV room.

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
        statistic: Over requests.
        is_server_side: TTFT and E2E start when the scheduler has the request, not when the client sends it.
        is_token_weighted: TPOT is the decode time of all requests over all their generated tokens (first one
            included), not the mean of each request's (E2E - TTFT) / (tokens - 1).
        is_total_throughput: Throughput counts prompt tokens too.
        is_steady_throughput: Throughput is that of a closed loop whose every request takes the mean TTFT and TPOT, the
            start and the end of the run left out (Little's law): the source gives the two times alone.
        is_batch_time: TTFT is the prompt phase of the whole batch: the last request's, not the mean.
        is_last_answer: E2E is the time until the last request of a batch is answered, not the mean.
        is_long_run: The run was so long that its start and end hardly count: figures are of the middle of the
            replay.
        beam_width: Beams that a request decoded; the replay decodes them one after another, and only one of them
            is the answer.
        num_copies: Equal replicas of which the replay runs one; throughput is that of all.
        cold_seconds: How much longer the requests that a fresh server begins with waited for their first tokens: it was
            started for the run, and its kernels are compiled for the sizes that they bring.
        cold_stall_seconds: How much longer their answers then took, while the same was done for prompts behind theirs.
        front_seconds: Seconds between client and engine, both ways, beyond what the engine takes of its own.
        polled_tokens: Tokens that a request decodes from one look of the engine's scheduler for new requests to the
            next; an arrival beside decodes waits for half of them on average.
        is_in_process: The client shares the engine's event loop, which sleeps while a step runs: where tokens are
            handed over in the next step (`simserve.engine.kernel`), it hears of them when that has ended.
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
class PoolPair:
    """Separate workers for prompts and for answers, each described alone.

    Attributes:
        prefill: What a scenario file of one prefill worker would hold, workload included.
        decode: The same of one decode worker.
        num_prefills: Prefill workers.
        num_decodes: Decode workers.
        num_drafts: Drafts a step of the decode workers' MTP layer; 0: none.
        port_bandwidth: Bytes/s at which a KV cache leaves one GPU of a prefill worker for another node.
        handover_seconds: From the last byte of a cache to the scheduler of the decode worker.
    """

    prefill: Mapping[str, Any]
    decode: Mapping[str, Any]
    num_prefills: int
    num_decodes: int
    num_drafts: int = 0
    port_bandwidth: float = 25e9
    handover_seconds: float = 0.001


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
        scenario: What a scenario file would hold; empty where ``reason`` says why there is none.
        measured: Metric -> seconds or tokens/s.
        shown_only: Metrics that are compared but not scored, as the source's figure carries artefacts.
        protocol: How the figures were taken.
        requests: The very requests, where they were recorded; they replace the scenario's workload.
        pools: Separate workers, in place of the scenario; of several, the one whose TPOT is nearest is what ran.
        reason: Why the point cannot be replayed; empty where it can be tried.
        fitted: Metrics that a constant of the catalogue was fitted to.
        laboratory: Who measured it, where several reports are of one: the same nodes, client and habits; else empty.
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
    pools: tuple[PoolPair, ...] = ()
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
        scenario: What a scenario file would hold.
        kv_bytes: Bytes a GPU that the log says; NaN where it says tokens.
        kv_tokens: Tokens that the log says; NaN where it says bytes.
    """

    label: str
    engine: str
    version: str
    hardware: str
    model: str
    scenario: Mapping[str, Any]
    kv_bytes: float = math.nan
    kv_tokens: float = math.nan
