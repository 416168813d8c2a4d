"""The curves that are fitted to the kernels of a run, in absolute units: seconds, FLOP/s, bytes/s.

They are the formulas of `simserve.perf` with all but a few constants fixed. The profile turns rates into shares of the
device's peaks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simserve.calibrate.curve_regressor import CurveForm, Sizes, Values, group_numbers
from simserve.calibrate.kernels.points import ELEMENTWISE_BYTES, GEMM, work_of
from simserve.perf.attention_curve import TILE
from simserve.perf.efficiency import Array
from simserve.perf.gemm import (
    CLASS_LOOP_OVERHEAD,
    CLASS_MAX_SPLITS,
    CLASS_OVERLAP,
    CLASS_WAVE_QUANTISATION,
    GemmDevice,
    gemm_seconds,
)
from simserve.perf.measured import ALL_REDUCE_ELEMENT_BYTES
from simserve.perf.moe import CLASS_LOCAL_PASSES, CLASS_ROUTED_PASSES, ExpertLoad, ExpertShape, expert_seconds
from simserve.perf.moe import CLASS_OVERLAP as EXPERT_OVERLAP
from simserve.profiles.kernel_curves import GemmClass, GemmCurve, GroupedGemmCurve

START, COMPUTE, MEMORY = "start_s", "compute_flop_per_s", "memory_bytes_per_s"
SUSTAINED, TILE_RATE, WAVE, DOUBLING = "sustained_ratio", "tile_flop_per_s", "wave_s", "start_per_doubling_s"
ROUNDING = "rounding_ratio"

UNITS = {
    START: "s",
    WAVE: "s",
    DOUBLING: "s",
    COMPUTE: "FLOP/s",
    TILE_RATE: "FLOP/s",
    MEMORY: "byte/s",
    SUSTAINED: "share",
    ROUNDING: "share",
}
"""Constant -> its unit."""

CLASS_OF: Mapping[str, GemmClass] = {
    "bfloat16": "bf16",
    "fp8": "fp8",
    "sq": "int8",
    "int8_wo": "int8_weight_only",
    "int4_wo": "int4_weight_only",
}
"""Number format of a table -> class of a profile."""

PEAK_OF: Mapping[str, str] = {"bfloat16": "bf16", "fp8": "fp8", "sq": "int8", "int8_wo": "bf16", "int4_wo": "bf16"}
"""Number format of a table -> dtype whose peak its products run at."""

QUANTISED_BYTES = 3.0
"""Bytes moved per activation element that the timed call rounds to 8 bits: 16 bits in, 8 bits out."""

ROUNDING_STARTS = 0.5
"""Time that rounding its inputs adds to a product, in starts of the product: an element-wise kernel
(`KERNEL_LATENCIES`)."""

SPLIT_STARTS = 0.7  # Time that a split reduction adds, in starts: as `simserve.perf.gemm.CLASS_SPLIT_LATENCIES`.
NO_TILE = 1e18  # FLOP/s so high that nothing ever waits for the longest tile of a prompt.

BOUNDS = {
    START: (1e-9, 1.0),
    COMPUTE: (1e7, 1e17),
    MEMORY: (1e7, 1e15),
    SUSTAINED: (0.3, 1.0),
    ROUNDING: (0.01, 1.0),
    TILE_RATE: (1e8, 1e16),
    WAVE: (1e-10, 1.0),
    DOUBLING: (1e-10, 1.0),
}
"""Constant -> least and greatest value."""
FURTHER = {
    SUSTAINED: (1.0, 0.85),
    ROUNDING: (1.0, 0.5),
    TILE_RATE: (NO_TILE, 1e12),
    WAVE: (0.0, 1e-6),
    DOUBLING: (0.0, 1e-6),
}
"""Constant that not every kernel shows -> value at which it has no effect, and where the search starts."""
STARTS = {START: 5e-6, COMPUTE: 1e13, MEMORY: 1e12}


def product_curve(values: Values, shape: Mapping[str, Any] | None = None) -> GemmCurve:
    """Return the curve of a device whose peak and bandwidth are the fitted rates.

    Args:
        shape: Fixed constants of `GemmCurve`; those left out are class defaults.
    """
    held: dict[str, Any] = {
        "loop_overhead": CLASS_LOOP_OVERHEAD,
        "wave_quantisation": CLASS_WAVE_QUANTISATION,
        "overlap": CLASS_OVERLAP,
        "max_splits": CLASS_MAX_SPLITS,
        "min_tile_rows": 64,
        "max_tile_rows": 64,
    }
    return GemmCurve.model_construct(
        engines=(),
        fit=None,
        start_latency=values[START],
        efficiency=1.0,
        sustained_efficiency=values.get(SUSTAINED, 1.0),
        memory_efficiency=1.0,
        split_latency=SPLIT_STARTS * values[START],
        **(held | dict(shape or {})),
    )


def product_form(name: str, num_multiprocessors: int, shape: Mapping[str, Any]) -> CurveForm:
    """Return the form of products of a number format (`simserve.perf.gemm`).

    FP8 calls include the rounding of their inputs: half a start, and its bytes at a share of the rate of the weights.
    """

    def read(calls: pd.DataFrame) -> Sizes:
        m, n, k = _columns("m", "n", "k")(calls)
        return m, n, k, work_of(GEMM, {"gemm_dtype": name, "m": m, "n": n, "k": k})[1]

    def seconds(sizes: Sizes, values: Values) -> Array:
        m, n, k, num_bytes = sizes
        device = GemmDevice(peak=values[COMPUTE], bandwidth=values[MEMORY], num_multiprocessors=num_multiprocessors)
        curve = product_curve(values, shape)
        total = gemm_seconds(curve, device, rows=m, out_features=n, in_features=k, num_bytes=num_bytes).total
        if name != "fp8":
            return total
        return np.asarray(
            total + m * k * QUANTISED_BYTES / (values[MEMORY] * values[ROUNDING]) + ROUNDING_STARTS * values[START]
        )

    further = (SUSTAINED, ROUNDING) if name == "fp8" else (SUSTAINED,)
    return _form(STARTS, read, seconds, ("n", "k"), ("m",), further=further)


def expert_form(num_multiprocessors: int) -> CurveForm:
    """Return the form of routed experts with evenly spread tokens (`simserve.perf.moe`)."""

    def seconds(sizes: Sizes, values: Values) -> Array:
        tokens, topk, experts, hidden, width, ups = sizes
        device = GemmDevice(peak=values[COMPUTE], bandwidth=values[MEMORY], num_multiprocessors=num_multiprocessors)
        shape = ExpertShape(hidden_size=hidden, intermediate_size=width, up_projections=ups, weight_bits=16.0)
        pairs = tokens * topk
        load = ExpertLoad(pairs=pairs, distinct=np.minimum(pairs, experts), routed=pairs, held=experts, tokens=tokens)
        return np.asarray(expert_seconds(grouped_curve(values), device, shape, load).total)

    read = _columns("num_tokens", "topk", "num_experts", "hidden_size", "inter_size", "up_projections")
    return _form(STARTS | {START: 3e-5}, read, seconds, ("num_tokens",))


def grouped_curve(values: Values) -> GroupedGemmCurve:
    """Return the curve of routed experts on a device whose peak and bandwidth are the fitted rates."""
    return GroupedGemmCurve.model_construct(
        engines=(),
        fit=None,
        start_latency=values[START],
        efficiency=1.0,
        loop_overhead=CLASS_LOOP_OVERHEAD,
        overlap=EXPERT_OVERLAP,
        memory_efficiency=1.0,
        expert_latency=0.0,
        routed_passes=CLASS_ROUTED_PASSES,
        local_passes=CLASS_LOCAL_PASSES,
        tile_rows=64,
    )


def prefill_form() -> CurveForm:
    """Return the form of attention over prompts: start, rows, attended pairs, and the longest tile where it shows."""

    def seconds(sizes: Sizes, values: Values) -> Array:
        batch, tokens, heads, kv_heads, width = sizes
        pairs = batch * tokens * (tokens + 1.0) / 2.0
        rows = batch * tokens * width * (heads + kv_heads) * ROW_BYTES
        tile = tokens * 4.0 * TILE * width / values[TILE_RATE]
        return np.asarray(values[START] + 4.0 * heads * width * pairs / values[COMPUTE] + rows / values[MEMORY] + tile)

    read = _columns("batch_size", "isl", *_HEADS)
    return _form(STARTS | {START: 1e-5}, read, seconds, ("isl",), ("batch_size",), further=(TILE_RATE,))


ROW_BYTES = 4.0
"""Bytes moved per 16-bit element of a query (read, and its result written) or of a key-value pair (two reads)."""


def decode_form(num_multiprocessors: int) -> CurveForm:
    """Return the form of decode attention: start, bytes of the keys, and waves of heads where they show."""

    def seconds(sizes: Sizes, values: Values) -> Array:
        batch, step, _, kv_heads, width = sizes
        context = step + 1.0
        keys = batch * context * 4.0 * kv_heads * width
        waves = np.maximum(batch * kv_heads / num_multiprocessors - 1.0, 0.0)
        return np.asarray(values[START] + waves * values[WAVE] + keys / values[MEMORY])

    read = _columns("batch_size", "step", *_HEADS)
    return _form({START: 1e-5, MEMORY: 1e12}, read, seconds, ("step",), ("batch_size",), further=(WAVE,))


def elementwise_form() -> CurveForm:
    """Return the form of memory-bound kernels: a start for each launch, and bytes."""

    def seconds(sizes: Sizes, values: Values) -> Array:
        kernels, num_bytes = sizes
        return np.asarray(kernels * values[START] + num_bytes / values[MEMORY])

    def read(calls: pd.DataFrame) -> Sizes:
        return calls["kernels"].to_numpy(dtype=np.float64), elementwise_bytes(calls)

    return _form({START: 2e-6, MEMORY: 1e12}, read, seconds, ("op_name",), ("m",))


def copy_form() -> CurveForm:
    """Return the form of copies: a start, and every byte read and written."""

    def seconds(sizes: Sizes, values: Values) -> Array:
        (num_bytes,) = sizes
        return np.asarray(values[START] + 2.0 * num_bytes / values[MEMORY])

    return _form({START: 2e-6, MEMORY: 1e12}, _columns("bytes"), seconds, ("bytes",))


def all_reduce_form() -> CurveForm:
    """Return the form of an all-reduce: a start, an addition for each doubling of the ranks, and a ring's bytes."""

    def seconds(sizes: Sizes, values: Values) -> Array:
        ranks, elements = sizes
        moved = 2.0 * (ranks - 1.0) / ranks * elements * ALL_REDUCE_ELEMENT_BYTES
        return np.asarray(values[START] + values[DOUBLING] * np.log2(ranks) + moved / values[MEMORY])

    read = _columns("num_gpus", "message_size")
    return _form({START: 1e-5, MEMORY: 1e11}, read, seconds, ("message_size",), further=(DOUBLING,))


def elementwise_bytes(calls: pd.DataFrame) -> Array:
    """Return the bytes that memory-bound calls move, summed over launches."""
    row = calls["op_name"].map(ELEMENTWISE_BYTES).to_numpy(dtype=np.float64)
    return np.asarray(calls["m"].to_numpy(dtype=np.float64) * calls["width"].to_numpy(dtype=np.float64) * row)


def _form(
    start: Mapping[str, float],
    read: Callable[[pd.DataFrame], Sizes],
    seconds: Callable[[Sizes, Values], Array],
    *groups: tuple[str, ...],
    further: tuple[str, ...] = (),
) -> CurveForm:
    """Return a form whose calls are held out together where they agree in the columns of each group, added up."""

    def numbers(calls: pd.DataFrame) -> NDArray[np.int64]:
        found = [group_numbers(calls, *columns) for columns in groups]
        return np.asarray(np.sum(found, axis=0), dtype=np.int64)

    return CurveForm(
        start=start,
        read=read,
        seconds=seconds,
        groups=numbers,
        further={name: FURTHER[name][0] for name in further},
        further_start={name: FURTHER[name][1] for name in further},
        bounds=BOUNDS,
    )


def _columns(*names: str) -> Callable[[pd.DataFrame], Sizes]:
    """Return a function that reads columns of a table of calls as numbers."""
    return lambda calls: tuple(calls[name].to_numpy(dtype=np.float64) for name in names)


_HEADS = ("num_heads", "num_key_value_heads", "head_dim")
