"""MLPerf Inference: logs of v4.1 and v5.1 with latencies, and the official tables of v5.0 to v6.0.

Neither states the servers' layouts: they come from the submissions' harness (`mlperf_harness`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from calibration.laboratory.protocol import Protocol
from calibration.laboratory.readers import blocks
from calibration.laboratory.readers.mlperf_harness import (
    BENCHMARKS,
    FP4_BENCHMARKS,
    FREE_SHARE,
    TENSORRT_LLM,
    Benchmark,
    Layout,
    benchmark_of,
    layout_of,
)
from calibration.laboratory.readers.names import hardware_name
from calibration.laboratory.readers.table import MS, Row, read_rows
from simserve.planner.measured import build
from simserve.planner.measured.point import LoadKind, MeasuredPoint, Metric

REQUESTS_PER_SEAT = 12
"""Requests of a replay per seat of the one replica that is replayed: the runs last 10 to 40 minutes, and the middle of
these represents their steady state."""

PAUSE = 2.0
"""Mean pause, seconds, exponential, before a client that got an answer asks again: arrivals are then spread over steps
as in the source. Clients without a pause would all ask as a step ends, and wait for the whole of the next. There are as
many additional clients as pause at a time."""

VLLM_SEATS = 256
"""Its default; vLLM on NVIDIA GPUs is assumed to be split over all of them."""

VLLM_WITH_FP8 = "0.5.5"
"""The known release nearest to 0.5.2, the version that ran FP8."""

AMDS_VLLM = "0.6.6"
"""The release whose host times are nearest to AMD's forks: that of v4.1 is based on 0.4.3, with its own scheduler."""

_LOG_LOADS = ("offline_max", "rate_rps (Poisson)")
_VARIANTS = ("DepthPruned", "Sparse")
_OFFICIAL_LOADS = ("mlperf_offline", "mlperf_server")


@dataclass(frozen=True, slots=True)
class _Submission:
    """The columns of a row that both files have."""

    row: Row
    source: str
    round_name: str
    benchmark: str
    engine: str
    version: str
    hardware: str
    rate: float | None
    mean: float

    @property
    def load_kind(self) -> LoadKind:
        return "offline" if self.rate is None else "rate"


def read_mlperf(folder: Path) -> list[MeasuredPoint]:
    """Return the logs: output tokens/s, and means of TTFT, TPOT and E2E of the Poisson servers."""
    lengths = _lengths(folder)
    return [_log_point(row, lengths) for row in read_rows(folder / "mlperf_v4.1_v5.1_llm_logs.csv")]


def read_official(folder: Path) -> list[MeasuredPoint]:
    """Return the official table: output tokens/s, offline and of Poisson servers, where it is their offered load."""
    lengths = _lengths(folder)
    return [_official_point(row, lengths) for row in read_rows(folder / "mlperf_official_v5.0_v5.1_v6.0_llm.csv")]


def _lengths(folder: Path) -> Path:
    return folder.parent / "traces" / "mlperf_lengths"


def _log_point(row: Row, lengths: Path) -> MeasuredPoint:
    benchmark = benchmark_of(row.text("model"))
    engine, version = _engine(row)
    is_rate = row.text("load_type").startswith("rate")
    stated = row.number_of("osl")
    mean = stated if stated > 0 else BENCHMARKS[benchmark].mean if benchmark else 0.0
    submission = _Submission(
        row=row,
        source="mlperf",
        round_name=row.text("version"),
        benchmark=benchmark,
        engine=engine,
        version=version,
        hardware=hardware_name(row.text("hardware")),
        rate=row.number_of("load_value") if is_rate else None,
        mean=mean,
    )
    return _point(submission, row.latencies("tpot", "ttft", "e2e"), _log_reason(submission), lengths)


def _official_point(row: Row, lengths: Path) -> MeasuredPoint:
    benchmark, hardware = benchmark_of(row.text("model")), hardware_name(row.text("hardware"))
    mean = BENCHMARKS[benchmark].mean if benchmark else 0.0
    is_server = row.text("load_type") == "mlperf_server"
    engine = "vllm" if hardware.startswith("mi") else "tensorrt-llm"
    submission = _Submission(
        row=row,
        source="mlperf_official",
        round_name=row.text("version"),
        benchmark=benchmark,
        engine=engine,
        version=TENSORRT_LLM.get(row.text("version"), "") if engine == "tensorrt-llm" else AMDS_VLLM,
        hardware=hardware,
        rate=row.number_of("throughput_tok_s") / mean if is_server and mean else None,
        mean=mean,
    )
    return _point(submission, {}, _official_reason(submission), lengths)


def _point(submission: _Submission, latencies: dict[Metric, float], reason: str, lengths: Path) -> MeasuredPoint:
    row = submission.row
    benchmark = BENCHMARKS.get(submission.benchmark)
    throughput = row.number_of("throughput_tok_s")
    measured: dict[Metric, float] = {**latencies, **({"throughput": throughput} if throughput > 0 else {})}
    is_run = not reason and benchmark is not None
    layout = _layout(submission) if is_run else None
    beam_width = benchmark.beam_width if benchmark else 1
    clients = _num_in_system(submission, layout) if layout else 0
    shown: set[Metric] = {"throughput"} if submission.rate is not None and not clients else set()
    return MeasuredPoint(
        source=submission.source,
        label=row.label,
        engine=submission.engine,
        version=submission.version,
        hardware=submission.hardware,
        model=benchmark.model if benchmark else row.text("model"),
        load_kind="concurrency" if clients else submission.load_kind,
        load=clients or (float("nan") if submission.rate is None else submission.rate),
        scenario=_scenario(submission, benchmark, layout, lengths) if benchmark and layout else {},
        measured=measured,
        shown_only=frozenset(measured) if beam_width > 1 else frozenset(shown),
        protocol=Protocol(
            is_long_run=True, beam_width=beam_width, num_copies=_num_copies(submission, layout) if layout else 1
        ),
        reason=reason,
    )


def _layout(submission: _Submission) -> Layout:
    """Return the harness's settings, with the row's own split and seats if it has them."""
    row = submission.row
    if submission.engine == "vllm" and not _is_amds(submission):
        return Layout(row.count("gpus", 1), 1, VLLM_SEATS, VLLM_SEATS)
    usual = layout_of(submission.round_name, submission.benchmark, submission.hardware)
    seats = re.search(r"gpu_batch_size=\{[^}]*: (\d+)\}", row.text("notes"))
    given = int(seats.group(1)) if seats else 0
    return replace(
        usual,
        tensor=row.count("tp", usual.tensor),
        pipeline=row.count("pp", usual.pipeline),
        server_seats=given or usual.server_seats,
        offline_seats=given or usual.offline_seats,
    )


def _is_amds(submission: _Submission) -> bool:
    """Return whether AMD's harness ran, with weights and KV cache that Quark quantised to FP8."""
    return submission.hardware.startswith("mi")


def _quantization(submission: _Submission) -> str:
    if "GPTQ" in submission.row.text("notes"):
        return "gptq-int4"
    is_blackwell = submission.hardware.startswith(("b200", "gb200"))
    return "nvfp4" if is_blackwell and submission.benchmark in FP4_BENCHMARKS else "fp8"


def _num_copies(submission: _Submission, layout: Layout) -> int:
    nodes = re.search(r"nodes (\d+)", submission.row.text("notes"))
    num_gpus = submission.row.count("gpus", 1) * (int(nodes.group(1)) if nodes else 1)
    return max(num_gpus // (layout.tensor * layout.pipeline * layout.data), 1)


def _num_in_system(submission: _Submission, layout: Layout) -> int:
    """Return the mean number of requests in a replica of a Poisson server: rate x E2E (Little); 0 if not logged.

    These servers run at 0.9 of their capacity and more, where an error of 10 % in the capacity changes latencies
    fourfold. At the load that they held, latencies compare step times, and throughput the rate at which this load is
    served.
    """
    seconds = submission.row.number_of("e2e_ms") * MS
    if submission.rate is None or not seconds > 0:
        return 0
    return max(round(submission.rate * seconds / _num_copies(submission, layout)), 1)


def _scenario(submission: _Submission, benchmark: Benchmark, layout: Layout, lengths: Path) -> dict[str, Any]:
    limits = _limits(submission, benchmark, layout)
    deployed = blocks.deployment(
        submission.hardware,
        engine={"name": submission.engine, "version": submission.version, **limits},
        tensor_parallel_size=layout.tensor,
        pipeline_parallel_size=layout.pipeline,
        data_parallel_size=layout.data,
        expert_parallel_size=layout.data,
        quantization=_quantization(submission),
        kv_cache_dtype="fp8" if submission.engine == "tensorrt-llm" or _is_amds(submission) else "auto",
    )
    prompt = {"distribution": "empirical", "path": str(lengths / benchmark.lengths), "column": "input_length"}
    width, num_requests = benchmark.beam_width, REQUESTS_PER_SEAT * layout.data * limits["max_num_seqs"]
    output = build.around(width * submission.mean, benchmark.cv, width * benchmark.longest)
    if not benchmark.cv:
        output = build.fixed(round(submission.mean))
    clients = _num_in_system(submission, layout)
    if submission.rate is None:
        workload = build.all_at_once(num_requests, prompt, output)
    elif clients:
        away = round(submission.rate / _num_copies(submission, layout) * PAUSE)
        workload = build.closed_loop(clients + away, prompt, output, max(num_requests, REQUESTS_PER_SEAT * clients))
        workload["arrivals"] |= {"think_time": f"{PAUSE:g} s", "think_time_cv": 1.0}
    else:
        workload = build.poisson(submission.rate / _num_copies(submission, layout), num_requests, prompt, output)
    return build.scenario(submission.row.label, benchmark.model, deployed, workload)


def _limits(submission: _Submission, benchmark: Benchmark, layout: Layout) -> dict[str, Any]:
    seats = layout.offline_seats if submission.rate is None else layout.server_seats
    longest = benchmark.longest_prompt + benchmark.beam_width * benchmark.longest
    limits: dict[str, Any] = {
        "max_num_seqs": seats,
        "max_num_batched_tokens": max(layout.budget, seats),
        "max_model_len": longest,
        "enable_chunked_prefill": True,
        "enable_prefix_caching": False,
    }
    if submission.engine == "tensorrt-llm":
        limits |= {"gpu_memory_utilization": FREE_SHARE, "admission": layout.admission}
    return limits


def _engine(row: Row) -> tuple[str, str]:
    """Return engine and version; NVIDIA's harness, whose logs name TensorRT, runs TensorRT-LLM."""
    name = row.text("framework").partition(" ")[0]
    if name == "vLLM":
        return "vllm", AMDS_VLLM if hardware_name(row.text("hardware")).startswith("mi") else VLLM_WITH_FP8
    return ("tensorrt-llm", TENSORRT_LLM.get(row.text("version"), "")) if name == "TensorRT" else (name.lower(), "")


def _log_reason(submission: _Submission) -> str:
    row = submission.row
    if not submission.benchmark:
        return f"no lengths of the data set of {row.text('model')} are recorded"
    if row.text("load_type") not in _LOG_LOADS:
        return "single-stream latency percentiles"
    if any(word in row.text("notes") for word in _VARIANTS):
        return "a pruned or sparse variant of the open division, not the model"
    if submission.engine not in ("vllm", "tensorrt-llm"):
        return "the log does not name the engine"
    if row.count("gpus", 0) < 1 or submission.hardware.startswith("rtx"):
        return "the log does not say how the model was cut"
    return _round_reason(submission)


def _official_reason(submission: _Submission) -> str:
    if not submission.benchmark:
        return f"no lengths of the data set of {submission.row.text('model')} are recorded"
    if submission.row.text("load_type") not in _OFFICIAL_LOADS:
        return "neither offline nor server"
    return _round_reason(submission)


def _round_reason(submission: _Submission) -> str:
    known = submission.round_name in TENSORRT_LLM
    return "" if known else f"the harness of round {submission.round_name} is not known"
