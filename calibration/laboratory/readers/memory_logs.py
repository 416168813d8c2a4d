"""KV memory of real engines according to their start-up logs. Reads files, plans nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from calibration.laboratory.readers import blocks
from calibration.laboratory.readers.names import (
    engine_name,
    hardware_name,
    model_name,
    quantization_name,
    version_number,
)
from calibration.laboratory.readers.table import Row, read_rows
from simserve.planner.measured import build
from simserve.planner.measured.point import MeasuredMemory
from simserve.units import GIB

MEMORY = "memory"
"""Name of these measurements among the sources."""

PLANNER_FILE = "memory_kv_capacity_vllm_h100.csv"
REPLAYS_FILE = "llmservingsim_vllm_summary.csv"

_PLANNER_VERSION = "0.11.0"
"""The release that the notes of llm-d-planner's table name."""

_SHARE_TOLERANCE = 0.02
"""A row whose parts add up to a share that differs by more than this from the stated one was run with another."""


def read_memory(folder: Path) -> list[MeasuredMemory]:
    """Return the logs of every file in the folder."""
    found: list[MeasuredMemory] = []
    if (folder / PLANNER_FILE).is_file():
        found += [_planner_row(row) for row in read_rows(folder / PLANNER_FILE)]
    if (folder / REPLAYS_FILE).is_file():
        rows = read_rows(folder / REPLAYS_FILE)
        found += [_replay_row(row, int(row.note("kv_cache"))) for row in rows if row.note("kv_cache").isdecimal()]
    return found


def _planner_row(row: Row) -> MeasuredMemory:
    model = row.text("model")
    quantization = "mxfp4" if model.startswith("gpt-oss") else "fp8" if model.endswith("-FP8") else "none"
    settings = {
        "gpu_memory_utilization": _share(row),
        "max_model_len": row.count("max_model_len", 16000),
        "block_size": 128,
        "flashinfer_sampler": False,  # the activations of its four rows are those of PyTorch's sampler
    }
    return _measured(
        row,
        version=_PLANNER_VERSION,
        quantization=quantization,
        settings=settings,
        kv_bytes=row.number_of("kv_cache_gib") * GIB,
    )


def _share(row: Row) -> float:
    """Return the share of the GPU that the row's parts add up to, or the stated one if they agree."""
    parts = ("weights_gib", "activation_peak_gib", "non_torch_gib", "kv_cache_gib")
    total = row.text("hardware").partition("(")[2].partition(" ")[0]
    stated = row.number_of("gpu_memory_utilization")
    added = sum(row.number_of(part) for part in parts) / float(total)
    return stated if abs(added - stated) <= _SHARE_TOLERANCE else round(added, 2)


def _replay_row(row: Row, tokens: int) -> MeasuredMemory:
    settings = {
        name: int(row.note(name))
        for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len")
        if row.note(name).isdecimal()
    }
    return _measured(
        row,
        version=version_number(row.text("version")),
        quantization=quantization_name(row.text("precision")),
        settings=settings,
        kv_tokens=float(tokens),
    )


def _measured(
    row: Row, *, version: str, quantization: str, settings: Mapping[str, Any], **figures: float
) -> MeasuredMemory:
    hardware, model, engine = (
        hardware_name(row.text("hardware")),
        model_name(row.text("model")),
        engine_name(row.text("framework")),
    )
    deployed = blocks.deployment(
        hardware,
        engine={"name": engine, "version": version, **settings},
        tensor_parallel_size=row.count("tp", 1),
        quantization=quantization,
    )
    workload = build.all_at_once(1, build.fixed(1), build.fixed(1))
    return MeasuredMemory(
        label=row.label,
        engine=engine,
        version=version,
        hardware=hardware,
        model=model,
        scenario=build.scenario(row.label, model, deployed, workload),
        **figures,
    )
