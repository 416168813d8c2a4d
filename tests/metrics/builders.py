"""Small builders of runs: every test states only what it is about."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from simserve.metrics.cost import Grid
from simserve.metrics.latency import SLO
from simserve.metrics.summary import RunFacts
from simserve.perf.memory import MemoryPlan
from simserve.profiles.expected_errors import Expectation, MetricExpectation
from simserve.sim.recorder import RunTotals, TimeSeries
from simserve.sim.records import COMPLETED, Histogram, RequestRecords
from simserve.sim.simulate import Simulation
from tests.perf.shapes import make_shape


def make_records(
    arrival: Sequence[float],
    *,
    wait: float | Sequence[float] = 0.0,
    ttft: float | Sequence[float] = 1.0,
    e2e: float | Sequence[float] = 3.0,
    **columns: Any,
) -> RequestRecords:
    """Return completed requests of 10 prompt and 5 output tokens; times in seconds, ``columns`` override."""
    arrival_time = np.asarray(arrival, dtype=np.float64)
    count = len(arrival_time)
    values: dict[str, Any] = {
        "arrival_time": arrival_time,
        "admitted_time": arrival_time.copy(),
        "scheduled_time": arrival_time + np.asarray(wait),
        "first_token_time": arrival_time + np.asarray(ttft),
        "finish_time": arrival_time + np.asarray(e2e),
        "prompt_tokens": np.full(count, 10),
        "output_tokens": np.full(count, 5),
        "cached_tokens": np.zeros(count, dtype=np.int64),
        "num_preemptions": np.zeros(count, dtype=np.int32),
        "replica_id": np.zeros(count, dtype=np.int32),
        "itl_max": np.full(count, 0.5),
        "status": np.full(count, COMPLETED, dtype=np.int8),
        "reason": np.zeros(count, dtype=np.int8),
        "is_truncated": np.zeros(count, dtype=bool),
    }
    dtypes = {name: column.dtype for name, column in values.items()}
    values |= {name: np.asarray(column, dtype=dtypes[name]) for name, column in columns.items()}
    return RequestRecords(**values)


def make_series(num_bins: int = 3) -> TimeSeries:
    """Return a series of ones over bins of a second."""
    names = ("running", "waiting", "kv_usage", "busy", "prefill_tokens_per_s", "decode_tokens_per_s")
    return TimeSeries(edges=np.arange(num_bins + 1, dtype=np.float64), **{name: np.ones(num_bins) for name in names})


def make_totals(**overrides: Any) -> RunTotals:
    """Return the sums of a run of ten steps and two busy seconds, half of them reading weights."""
    values: dict[str, Any] = {
        "num_steps": 10,
        "sequence_steps": 25.0,
        "busy_seconds": 2.0,
        "seconds_by_part": {
            "weights": 1.0,
            "kv": 0.4,
            "compute": 0.3,
            "communication": 0.2,
            "host": 0.1,
        },
        "flops": 4e12,
        "bytes": 3e12,
        "blocked_seconds": {"seats": 0.0, "blocks": 0.0, "budget": 0.0, "step": 0.0},
        "kv_capacity_tokens": 1000.0,
        "kv_reserved_token_seconds": 1000.0,
        "kv_held_token_seconds": 800.0,
        "kv_unusable_token_seconds": 100.0,
        "kv_peak_share": 0.75,
        "itl": make_histogram([0.1, 0.2, 0.3]),
        "series": make_series(),
    }
    return RunTotals(**(values | overrides))


def make_histogram(gaps: Sequence[float]) -> Histogram:
    """Return the histogram of gaps in seconds."""
    histogram = Histogram()
    if len(gaps):
        histogram.add(np.asarray(gaps, dtype=np.float64), np.ones(len(gaps)))
    return histogram


def make_simulation(records: RequestRecords, totals: RunTotals | None = None, **overrides: Any) -> Simulation:
    """Return an open-loop run of one replica that ends with the last event of ``records``."""
    times = np.concatenate((records.arrival_time, records.finish_time))
    times = times[np.isfinite(times)]
    values: dict[str, Any] = {
        "records": records,
        "totals": make_totals() if totals is None else totals,
        "end_time": float(times.max()) if len(times) else 0.0,
        "num_replicas": 1,
        "is_open_loop": True,
        "is_stationary": False,
        "offered_rate": float("nan"),
        "was_interrupted": False,
    }
    return Simulation(**(values | overrides))


def make_memory() -> MemoryPlan:
    """Return a plan of 100 GB: 40 GB of weights, 50 GB of KV."""
    return MemoryPlan(
        fits=True,
        total_bytes=100e9,
        usable_bytes=90e9,
        weights_bytes=40e9,
        kv_bytes=50e9,
        activation_bytes=5e9,
        non_torch_bytes=3e9,
        cuda_graph_bytes=2e9,
        kv_bytes_per_token=1e6,
        num_kv_blocks=3125,
        block_size=16,
        max_model_len=8192,
        max_concurrent_full_length=6.1,
        longest_sequence=50000,
        host_bytes=0.0,
        shape=make_shape(),
        parts={"weights": 40e9},
    )


def make_slo(ttft: float | None = None, tpot: float | None = None, e2e: float | None = None, share: float = 0.9) -> SLO:
    """Return an objective; bounds in seconds."""
    return SLO(ttft=ttft, tpot=tpot, e2e=e2e, attainment=share)


def make_expectation(**half_90: float) -> Expectation:
    """Return what to expect of a foreign server: within 20 % in TPOT and throughput, 50 % in TTFT, without a bias."""
    widths = {"tpot": math.log(1.2), "ttft": math.log(1.5), "throughput": math.log(1.2)} | half_90
    metrics = {name: MetricExpectation(0.0, width / 3, width, 0) for name, width in widths.items()}
    return Expectation("foreign: a test", "foreign", metrics)


def make_facts(**overrides: Any) -> RunFacts:
    """Return the facts of a run on two GPUs at 3 dollars an hour, without an SLO or thresholds."""
    values: dict[str, Any] = {
        "version": "0.1.0",
        "seed": 1,
        "scenario_hash": "abc",
        "scenario_name": "test",
        "fidelity": "roofline",
        "expectation": make_expectation(),
        "engine_resolved": {"name": "vllm", "enable_prefix_caching": True, "max_num_seqs": 256},
        "formats": {
            "weights": "fp8",
            "weights_source": "as stored",
            "checkpoint": "org/name",
            "kv_cache": "bf16",
            "kv_cache_source": "16 bit by default",
            "pools": {},
        },
        "memory": make_memory(),
        "num_gpus": 2,
        "gpu_hour_usd": 3.0,
        "gpu_hour_source": "scenario",
        "pays_electricity": False,
        "grid": Grid(usd_per_kwh=0.1, grams_co2_per_kwh=400.0, pue=1.25, host_watts_per_gpu=0.0),
        "idle_watts": 100.0,
        "board_watts": 700.0,
        "slo": None,
        "warmup": "auto",
        "peak_flops": 4e12,
        "peak_bandwidth": 2e12,
        "thresholds": {},
    }
    return RunFacts(**(values | overrides))


def single_server_queue(
    *,
    load: float,
    num_requests: int,
    seed: int,
    is_deterministic: bool = False,
    interarrival_cv: float = 1.0,
) -> RequestRecords:
    """Return an M/M/1 or M/D/1 queue (gamma arrivals for another cv) with mean service of one second.

    Departures follow Lindley's recursion, ``D_i = max(A_i, D_{i-1}) + S_i``, unrolled with a running maximum.
    """
    generator = np.random.default_rng([seed, num_requests])
    shape = interarrival_cv**-2
    arrival = np.cumsum(generator.gamma(shape, 1 / (load * shape), num_requests))
    service = np.ones(num_requests) if is_deterministic else generator.exponential(1.0, num_requests)
    before = np.concatenate(([0.0], np.cumsum(service)[:-1]))
    start = before + np.maximum.accumulate(arrival - before)
    return make_records(
        arrival, wait=start - arrival, ttft=start + service / 2 - arrival, e2e=start + service - arrival
    )
