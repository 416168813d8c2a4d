"""MLPerf Inference v4.1 logs: offline throughput and Poisson servers. Layouts are not in the logs: assumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from simserve.planner.measured import build
from simserve.planner.measured.names import hardware_name, version_number
from simserve.planner.measured.point import MeasuredPoint
from simserve.planner.measured.table import Row, read_rows

NUM_REQUESTS = 24_576
"""Requests of a replay: the data set once, which keeps ramp-up and drain small."""

OUTPUT_CV = 0.8
"""Coefficient of variation of answers around the mean that the log says (OpenOrca's 219 tokens spread so)."""

MAX_NUM_SEQS = 1024
"""Seats of a replica: an assumption, of the size that submissions of NVIDIA's harness set."""

_TENSORRT_LLM = "0.11.0"
"""The release at the round's deadline (July 2024)."""

_DATA_SETS = {
    "llama2-70b": ("llama-2-70b", "llama2-70b-99_openorca.csv.gz", 1024),
    "mixtral-8x7b": ("mixtral-8x7b", "mixtral-8x7b.csv.gz", 1024),
}
"""Benchmark -> model profile, file of prompt lengths, longest answer."""

_ONE_GPU_BYTES_LARGE = ("h200", "mi300x")
"""GPUs that hold Llama-2-70B in FP8 alone; others share it between two."""


def read_mlperf(folder: Path) -> list[MeasuredPoint]:
    """Return the logs: output tokens/s, and means of TTFT, TPOT and E2E of the Poisson servers."""
    lengths = folder.parent / "traces" / "mlperf_lengths"
    return [_point(row, lengths) for row in read_rows(folder / "mlperf_v4.1_v5.1_llm_logs.csv")]


def _point(row: Row, lengths: Path) -> MeasuredPoint:
    benchmark = next((name for name in _DATA_SETS if row.text("model").startswith(name)), "")
    model, file, longest = _DATA_SETS.get(benchmark, (row.text("model"), "", 0))
    hardware = hardware_name(row.text("hardware"))
    engine, version = _engine(row.text("framework"))
    reason = _reason(row, benchmark, engine, hardware)
    tensor = 2 if benchmark == "llama2-70b" and not hardware.startswith(_ONE_GPU_BYTES_LARGE) else 1
    measured = row.latencies("tpot", "ttft", "e2e")
    throughput = row.number_of("throughput_tok_s")
    if throughput > 0:
        measured["throughput"] = throughput
    is_rate = row.text("load_type").startswith("rate")
    return MeasuredPoint(
        source="mlperf",
        label=row.label,
        engine=engine,
        version=version,
        hardware=hardware,
        model=model,
        load_kind="rate" if is_rate else "offline",
        load=row.number_of("load_value"),
        scenario={} if reason else _scenario(row, model, hardware, (engine, version), tensor, lengths / file, longest),
        measured=measured,
        reason=reason,
    )


def _scenario(
    row: Row,
    model: str,
    hardware: str,
    engine: tuple[str, str],
    tensor_parallel_size: int,
    lengths: Path,
    longest: int,
) -> dict[str, Any]:
    deployed = build.deployment(
        hardware,
        engine={"name": engine[0], "version": engine[1], "max_num_seqs": MAX_NUM_SEQS, "max_model_len": 4096},
        tensor_parallel_size=tensor_parallel_size,
        replicas=row.count("gpus", 1) // tensor_parallel_size,
        quantization="fp8",
        kv_cache_dtype="fp8",
    )
    prompt = {"distribution": "empirical", "path": str(lengths), "column": "input_length"}
    output = build.around(row.number_of("osl"), OUTPUT_CV, longest)
    if row.text("load_type").startswith("rate"):
        workload = build.poisson(row.number_of("load_value"), NUM_REQUESTS, prompt, output)
    else:
        workload = build.all_at_once(NUM_REQUESTS, prompt, output)
    return build.scenario(row.label, model, deployed, workload)


def _engine(framework: str) -> tuple[str, str]:
    name, _, rest = framework.partition(" ")
    if name == "vLLM":
        return "vllm", version_number(rest)
    return ("tensorrt-llm", _TENSORRT_LLM) if name == "TensorRT" else (framework.lower(), "")


def _reason(row: Row, benchmark: str, engine: str, hardware: str) -> str:
    if not benchmark:
        return f"no lengths of the data set of {row.text('model')} are recorded"
    if row.text("load_type") not in ("offline_max", "rate_rps (Poisson)"):
        return "single-stream latency percentiles"
    if engine not in ("vllm", "tensorrt-llm"):
        return "the log does not name the engine"
    if row.number_of("osl") > 0 and row.count("gpus", 0) >= 1 and not hardware.startswith("rtx"):
        return ""
    return "the log does not say lengths, GPUs or how the model was cut"
