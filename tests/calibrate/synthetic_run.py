"""Runs of kernels that nobody measured: times from known constants, with noise, in the files of a measurement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from simserve.calibrate import curve_forms as forms
from simserve.calibrate.curve_regressor import CurveForm
from simserve.calibrate.kernels import points
from simserve.calibrate.kernels.points import Point, plan_points
from simserve.calibrate.run_folder import FORMAT_VERSION, Log, write_provenance, write_tables
from simserve.profiles.catalog import load_model

CORES = 132
NOISE = 0.05
NUM_DEVICES = 8
MODEL, SPARSE = "llama-3.1-8b", "qwen3-30b-a3b"
WIDE_TILES = {"min_tile_rows": 64, "max_tile_rows": 64}
NARROW_TILES = {"min_tile_rows": 16, "max_tile_rows": 16}

START, COMPUTE, MEMORY = forms.START, forms.COMPUTE, forms.MEMORY

Truth = tuple[CurveForm, str, Mapping[str, Any], Mapping[str, float]]
"""Form, table, columns that pick the calls, and the constants."""

TRUTHS: Mapping[str, Truth] = {
    "products bfloat16": (
        forms.product_form("bfloat16", CORES, WIDE_TILES),
        points.GEMM,
        {"gemm_dtype": "bfloat16"},
        {START: 3.3e-6, COMPUTE: 8e14, MEMORY: 3.9e12, forms.SUSTAINED: 1.0},
    ),
    "products fp8": (
        forms.product_form("fp8", CORES, WIDE_TILES),
        points.GEMM,
        {"gemm_dtype": "fp8"},
        {START: 3.3e-6, COMPUTE: 1.2e15, MEMORY: 3.9e12, forms.SUSTAINED: 1.0, forms.ROUNDING: 1.0},
    ),
    "products int4_wo": (
        forms.product_form("int4_wo", CORES, NARROW_TILES),
        points.GEMM,
        {"gemm_dtype": "int4_wo"},
        {START: 8e-6, COMPUTE: 6e14, MEMORY: 3.5e12, forms.SUSTAINED: 1.0},
    ),
    "prefill attention": (
        forms.prefill_form(),
        points.PREFILL,
        {},
        {START: 12e-6, COMPUTE: 6e14, MEMORY: 2e12, forms.TILE_RATE: forms.NO_TILE},
    ),
    "decode attention": (
        forms.decode_form(CORES),
        points.DECODE,
        {},
        {START: 10e-6, MEMORY: 3.8e12, forms.WAVE: 2e-6},
    ),
    "element-wise": (forms.elementwise_form(), points.ELEMENTWISE, {}, {START: 2e-6, MEMORY: 3.6e12}),
    "routed experts": (
        forms.expert_form(CORES),
        points.MOE,
        {},
        {START: 3e-5, COMPUTE: 4e14, MEMORY: 3.5e12},
    ),
    "all-reduce": (
        forms.all_reduce_form(),
        points.ALL_REDUCE,
        {},
        {START: 9e-6, MEMORY: 3e11, forms.DOUBLING: 0.0},
    ),
    "copies": (forms.copy_form(), points.COPY, {}, {START: 2e-6, MEMORY: 4e12}),
}


SOURCES = {
    (points.GEMM, "bfloat16"): "torch linear",
    (points.GEMM, "fp8"): "torch _scaled_mm",
    (points.PREFILL, ""): "torch SDPA (FA3)",
    (points.DECODE, ""): "torch varlen_attn (FA3), paged KV",
    (points.ALL_REDUCE, ""): "torch.distributed nccl",
}
"""Kernels that PyTorch runs on Hopper."""


def planned(*formats: str) -> list[Point]:
    """Return the points of a measurement of one model on a GPU."""
    return plan_points([load_model(MODEL)], formats=formats or ("bfloat16",), num_devices=NUM_DEVICES)


def calls_of(name: str) -> pd.DataFrame:
    """Return the planned calls of a kind, a row each."""
    _, table, columns, _ = TRUTHS[name]
    models = [load_model(SPARSE if name == "routed experts" else MODEL)]
    everything = plan_points(models, formats=tuple(points.FORMATS), num_devices=NUM_DEVICES)
    chosen = [point.sizes for point in everything if point.table == table]
    rows = [dict(sizes) for sizes in chosen if all(sizes[key] == value for key, value in columns.items())]
    table = pd.DataFrame(rows)
    return table[table["op_name"] != points.SAMPLING].reset_index(drop=True) if name == "element-wise" else table


def noisy_seconds(name: str, calls: pd.DataFrame, seed: int, noise: float = NOISE) -> np.ndarray[Any, Any]:
    """Return what calls of a kind take by its constants, each off by its own error."""
    form, _, _, constants = TRUTHS[name]
    errors = np.random.default_rng(seed).normal(0.0, noise, len(calls))
    return form.predict(calls, constants) * np.exp(errors)


def write_run(
    folder: Path,
    *,
    noise: float = 0.02,
    kinds: Sequence[str] = ("products bfloat16", "prefill attention", "decode attention", "element-wise", "copies"),
    keep: float = 1.0,
    ended: str = "complete",
    device_name: str = "NVIDIA X1000",
    is_logged: bool = False,
) -> Path:
    """Write a run of some kinds and return its folder.

    Args:
        folder: Where.
        noise: Relative error of a call.
        kinds: Of `TRUTHS`.
        keep: Share of the planned calls, in their order, that were measured.
        ended: How the measurement ended.
        device_name: As the driver names it.
        is_logged: Whether the calls are in the log alone, as after a kill.
    """
    folder.mkdir(parents=True)
    log = Log(folder / "points.jsonl")
    for seed, name in enumerate(kinds):
        calls = calls_of(name)
        seconds = noisy_seconds(name, calls, seed, noise)
        for row, taken in list(zip(calls.to_dict("records"), seconds, strict=True))[: int(np.ceil(keep * len(calls)))]:
            sizes = {str(key): value for key, value in row.items()}
            log.rows[points.key_of(TRUTHS[name][1], sizes)] = measured_row(TRUTHS[name][1], sizes, float(taken))
    if is_logged:
        log.rows, rows = {}, list(log.rows.values())
        for row in rows:
            log.add(row["table"], row["sizes"], {name: row[name] for name in row if name not in ("table", "sizes")})
    write_provenance(
        folder, provenance(log, ended, device_name) | {"tables": {} if is_logged else write_tables(folder, log)}
    )
    return folder


def measured_row(table: str, sizes: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """Return a row of the log."""
    latency = seconds * 1e3
    return {
        "event": "measured",
        "table": table,
        "sizes": dict(sizes),
        "latency": latency,
        "latency_p10": 0.98 * latency,
        "latency_p90": 1.02 * latency,
        "num_samples": 50,
        "relative_error": 0.003,
        "kernel_source": SOURCES.get((table, str(sizes.get("gemm_dtype", ""))), "made up"),
        "timing": "graph",
    }


def provenance(log: Log, ended: str = "complete", device_name: str = "NVIDIA X1000") -> dict[str, Any]:
    """Return what a measurement of a GPU writes about itself."""
    return {
        "format": FORMAT_VERSION,
        "device_name": device_name,
        "torch": "2.13.0",
        "models": [MODEL],
        "device": {
            "kind": "cuda",
            "name": device_name,
            "num_multiprocessors": CORES,
            "cache_bytes": 50e6,
            "total_memory_bytes": 85e9,
            "compute_capability": "9.0",
            "driver": "600.1",
            "power_limit_w": "700.00",
        },
        "date": "2026-11-21",
        "command": "simserve calibrate kernels",
        "ended": ended,
        "is_complete": ended == "complete",
        "planned_points": len(planned()),
        "measured_points": len(log.rows),
        "skipped_points": 0,
        "skipped": [],
        "clocks": [],
    }
