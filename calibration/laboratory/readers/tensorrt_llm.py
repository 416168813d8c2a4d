"""TensorRT-LLM's own performance pages: offline maximum throughput, online serving, static batches."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from calibration.laboratory.readers import blocks
from calibration.laboratory.readers.names import hardware_name, model_name, quantization_name, version_number
from calibration.laboratory.readers.table import Row, read_rows
from simserve.planner.measured import build
from simserve.planner.measured.point import LoadKind, MeasuredPoint, Metric
from simserve.profiles.engine_options import version_key

ENGINE = "tensorrt-llm"

OFFLINE_SHARE = 0.95
"""Share of the free memory used by the KV cache: an assumption, as the recorded pages do not state it."""

DECODES_BESIDE_A_PROMPT = 2048
"""Decoding requests whose tokens must fit a step together with the longest prompt, which is not split: the default
``max_batch_size``. With a budget for the prompt alone it would wait until nothing decodes."""

START = "1.3 ms"
"""From the call of a static batch to its first kernel, in process: what remains of the first token of one GPU's short
prompts (Llama-7B, H100: 1.2 to 1.9 ms; others 1 to 2.5 ms)."""

DATASET_CV = 0.5
"""Coefficient of variation of lengths of which only the mean is known: an assumption; lengths of one kind of request
vary less than those of conversations (cv 1)."""

_LONGEST_FACTOR = 8

_WITH_EXPERTS = ("deepseek", "gpt-oss", "qwen3-235b", "qwen3-30b")
"""Models of the pages of 1.0 and later whose attention is data-parallel; Llama 4 Scout is not among them."""


def read_offline(folder: Path) -> list[MeasuredPoint]:
    """Return the offline points: all requests queued at once, fixed lengths, output tokens/s."""
    return [_offline_point(row) for row in read_rows(folder / "trtllm_perf_overview_throughput.csv")]


def _offline_point(row: Row) -> MeasuredPoint:
    prompt, output = row.count("isl", 1), row.count("osl", 1)
    quantization = _quantization(row)
    settings = {
        "max_num_batched_tokens": max(8192, prompt + DECODES_BESIDE_A_PROMPT),
        "gpu_memory_utilization": OFFLINE_SHARE,
        "max_model_len": prompt + output,
    }
    narrow = quantization in ("fp8", "nvfp4")
    deployed = _deployment(row, settings, kv_cache_dtype="fp8" if narrow else "auto")
    workload = build.all_at_once(row.count("num_requests", 1000), build.fixed(prompt), build.fixed(output))
    return _point(row, "trtllm_perf_overview", deployed, workload, "offline", {"throughput": system_throughput(row)})


def read_online(folder: Path) -> list[MeasuredPoint]:
    """Return the Poisson points: mean TTFT and ITL; the lengths are means of an unnamed data set."""
    return [_online_point(row) for row in read_rows(folder / "trtllm_online_serving_v0.14.csv")]


def _online_point(row: Row) -> MeasuredPoint:
    prompt, output = row.number_of("isl"), row.number_of("osl")
    lengths = [build.around(mean, DATASET_CV, round(_LONGEST_FACTOR * mean)) for mean in (prompt, output)]
    deployed = _deployment(row, {"enable_prefix_caching": False})
    rate, count = row.number_of("load_value"), row.count("num_requests", 500)
    is_rate = not math.isnan(rate)  # "inf": all at once
    workload = build.poisson(rate, count, *lengths) if is_rate else build.all_at_once(count, *lengths)
    measured: dict[Metric, float] = {**row.latencies("ttft"), "throughput": system_throughput(row)}
    itl = row.number_of("itl_ms")
    if itl > 0:
        measured["tpot"] = itl / 1e3
    return _point(row, "trtllm_online_serving", deployed, workload, "rate" if is_rate else "offline", measured)


def read_static(folder: Path) -> list[MeasuredPoint]:
    """Return the static batches: output tokens/s, and the latency of the first token.

    A static batch answers when it is complete, so that a first token is that of a batch with one output token; a row
    with both figures gives two points.
    """
    points = []
    for row in read_rows(folder / "trtllm_static_batch_v0.5-0.9.csv"):
        throughput, first = system_throughput(row), row.latencies("ttft")
        if throughput > 0 or not first:
            points.append(_static_point(row, row.count("osl", 1), {"throughput": throughput}))
        if first:
            points.append(_static_point(row, 1, first))
    return points


def _static_point(row: Row, output: int, measured: dict[Metric, float]) -> MeasuredPoint:
    prompt, batch = row.count("isl", 1), row.count("load_value", 1)
    settings: dict[str, Any] = {
        "batching": "static",
        "max_num_seqs": batch,
        "static_batch_size": batch,
        "max_model_len": prompt + max(output, 2),
        "frontend_latency": START,
    }
    quantization = quantization_name(row.text("precision"))
    deployed = _deployment(row, settings, kv_cache_dtype="fp8" if quantization == "fp8" else "auto")
    workload = build.all_at_once(batch, build.fixed(prompt), build.fixed(output))
    return _point(row, "trtllm_static_batch", deployed, workload, "batch", measured)


def system_throughput(row: Row) -> float:
    """Return tokens/s of the whole deployment, NaN if the row has none."""
    value = row.number_of("throughput_tok_s")
    is_per_gpu = row.text("throughput_kind").endswith("per_gpu") or _is_unlabelled_per_gpu(row)
    return value * row.count("gpus", row.count("tp", 1)) if is_per_gpu else value


def _is_unlabelled_per_gpu(row: Row) -> bool:
    """Return whether a row is from a table of version 0.7.1 whose column header does not say "per GPU", or was lost.

    The page's H100 table is per GPU and says so; those of other GPUs agree with adjacent versions only if they are too.
    """
    return version_number(row.text("version")) == "0.7.1"


def _deployment(row: Row, settings: dict[str, Any], kv_cache_dtype: str = "auto") -> dict[str, Any]:
    return blocks.deployment(
        hardware_name(row.text("hardware")),
        engine={"name": ENGINE, "version": version_number(row.text("version")), **settings},
        **_layout(row),
        pipeline_parallel_size=row.count("pp", 1),
        quantization=_quantization(row),
        kv_cache_dtype=kv_cache_dtype,
    )


def _layout(row: Row) -> dict[str, int]:
    """Return how a row's ranks are split: from 1.0, models with experts have data-parallel attention on the pages.

    Their benchmark sets ``enable_attention_dp`` for them (perf-overview of 1.0 and 1.2, Reproducing Benchmarked
    Results), and the ranks that it calls TP hold whole experts.
    """
    ranks, version = row.count("tp", 1), version_number(row.text("version"))
    if model_name(row.text("model")).startswith(_WITH_EXPERTS) and version_key(version) >= version_key("1.0"):
        return {"data_parallel_size": ranks, "expert_parallel_size": ranks}
    return {"tensor_parallel_size": ranks}


def _quantization(row: Row) -> str:
    precision = row.text("precision")
    if model_name(row.text("model")).startswith("gpt-oss"):
        return "mxfp4"
    return quantization_name(precision, hardware_name(row.text("hardware")))


def _point(
    row: Row,
    source: str,
    deployed: dict[str, Any],
    workload: dict[str, Any],
    load_kind: LoadKind,
    measured: dict[Metric, float],
) -> MeasuredPoint:
    model = model_name(row.text("model"))
    filled = {metric: value for metric, value in measured.items() if value > 0 and not math.isnan(value)}
    return MeasuredPoint(
        source=source,
        label=row.label,
        engine=ENGINE,
        version=version_number(row.text("version")),
        hardware=hardware_name(row.text("hardware")),
        model=model,
        load_kind=load_kind,
        load=row.number_of("load_value"),
        scenario=build.scenario(row.label, model, deployed, workload),
        measured=filled,
        reason="" if filled else "the row holds no figure to compare",
    )
