"""Matrix products with weights, ``y[m, n] = x[m, k] W[k, n]``: flops, bytes and seconds of a call.

A few physical parameters (`simserve.profiles.kernel_curves`) determine the time of a call: tiles over SMs, k-loop,
memory, start-up. ``seconds = start + (compute^p + memory^p)^(1/p)``; every term rises with m, n and k, so that no call
gets faster with more work. Knows sizes and curves, no model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from simserve.perf.efficiency import (
    FP4_OF_FP8,
    KERNEL_LATENCIES,
    NARROW_DTYPE_SHARE,
    Array,
    Machine,
    memory_efficiency,
    start_latency,
)
from simserve.perf.operators import HOST, PART_NAMES, WEIGHTS, Work, bound_parts
from simserve.perf.quantization import GGUF_TILE_ROWS, PLAIN_TILE_ROWS, Precision
from simserve.profiles.kernel_curves import GemmClass, GemmCurve, GroupedGemmCurve, TileCurve
from simserve.profiles.model_blocks import Gemm
from simserve.profiles.resolved_engine import ResolvedEngine

ACTIVATION_BYTES = 2.0  # Bytes of an activation element: engines keep them in 16 bit.
WIDE_DTYPES = ("bf16", "fp16")  # Dtypes that share the 16-bit kernels.
INT4_BITS = (4.0, 4.5)  # Bits per weight, with scales, of formats that 4-bit weight-only kernels multiply.
UNPACKING_STARTS = 2.2
"""Start-up of a product that unpacks its weights, relative to a plain one: 10.0 and 10.2 us (INT4, INT8) against 4.5 us
in the fits of an A100 (calibration/operators.md). Without it, vLLM 0.7.3 serves Llama-3.1-8B in W4A16 on A100, RTX 4090
and V100S 43, 43 and 70 % too fast (AccelMark, 8 clients; BF16 4, 15 and 23 %), with it 31, 36 and 58 %."""
CLASS_TILE_ROWS = 16
"""Rows of the smallest tile without a fit: tensor-core instructions of Ampere and Ada take 16. With the 64 of Hopper,
an RTX 3090 would decode Llama-3-8B in FP16 16 % too slowly (llama.cpp, 21.5 ms,
XiongjieDai/GPU-Benchmarks-on-LLM-Inference, 2024-05), as its arithmetic is slow for its bandwidth."""
CLASS_LOOP_OVERHEAD = 170.0
"""Columns of k that a tile spends outside its main loop without a fit: 150 to 180 in the 16-bit fits of H100 and H200
(calibration/operators.md)."""
CLASS_WAVE_QUANTISATION = 0.25
"""Share of a partly filled round that a call waits for without a fit; 0.19 to 0.28 in those fits."""
CLASS_OVERLAP = 3.0  # Exponent of the overlap of arithmetic and memory without a fit; 2.5 to 3.1 in those fits.
CLASS_SPLIT_LATENCIES = 0.7
"""Kernel latencies that a split reduction adds without a fit: 2.1 to 2.4 us in those fits."""
FP32_BITS = 32.0  # Bits per weight and per input of a product in FP32.
CLASS_MAX_SPLITS = 8  # Most SMs that share a tile's reduction.
TILE_COLUMNS = 64.0
"""Columns of a tile. Chosen with the rows on the AIConfigurator tables of an H200: of 64 x 64, 64 x 128 and
128 x 128 it follows the measured times best (calibration/LOG.md)."""
TRITON_MAKERS = ("triton", "triton_own")  # Triton's such products: AITER's, and the engine's own.
TUNED_TRITON = "triton_tuned"  # Maker of Triton's products with tiles of their own, as GPUs name their curves.
STEP_COLUMNS = 128.0  # Columns of the reduction per scale of block-scaled FP8: a tile processes this many at a time.
PAD_PASSES = 2
"""Passes over the inputs of a product whose rows are padded first: they are read and written (vLLM 0.11.0 and 0.11.2,
layers/quantization/utils/fp8_utils.py: CUTLASS's kernel for Hopper takes multiples of four rows)."""
SUSTAINED_FLOPS = 1e12
"""FLOP of a call half-way between short-call and sustained efficiency: about 1.3 ms on an H100."""
KEPT_PRODUCTS = 128
"""Products kept, 0.3 MB each if their rows are all those of a table of steps: the matrices of one GPU's parallel sizes
in a few number formats, which KV formats, seats, token budgets and roles share."""
_PARAMETERS = tuple(name for name in GemmCurve.model_fields if name not in ("engines", "fit"))
"""Parameters of a curve on which the seconds depend."""


def gemm_work(
    rows: Array,
    out_features: float,
    in_features: float,
    *,
    weight_bits: float,
    input_bytes: float = ACTIVATION_BYTES,
) -> Work:
    """Return flops ``2 m n k``, weight bytes ``n k bits / 8`` and activation bytes of inputs and outputs.

    Args:
        rows: Tokens m.
        out_features: Columns n of the weight, on one rank.
        in_features: Rows k of the weight, on one rank.
        weight_bits: Bits per weight with its share of group scales.
        input_bytes: Bytes per input element; outputs are 16 bit.
    """
    weights = float(out_features) * float(in_features)
    return Work(
        flops=2.0 * weights * rows,
        weight_bytes=np.full(len(rows), weights * weight_bits / 8),
        activation_bytes=rows * (in_features * input_bytes + out_features * ACTIVATION_BYTES),
    )


def gemm_class(precision: Precision) -> GemmClass | None:
    """Return the kernels that multiply quantised weights; None for formats without a fitted curve."""
    if precision.arithmetic == "fp4":
        return "nvfp4"
    if precision.arithmetic == "fp8" and precision.name != "fp8":
        return "mxfp4" if precision.name == "mxfp4" else None
    if precision.arithmetic == "fp8":
        return "fp8_block" if precision.is_block_scaled else "fp8"
    if precision.arithmetic == "int8":
        return "int8"
    if precision.arithmetic not in WIDE_DTYPES or precision.unpacked_from_rows is not None:
        return None
    if "mxfp4" in precision.name:
        return "mxfp4_weight_only"
    if precision.weight_bits == 16.0:
        return "bf16"
    if precision.weight_bits == 8.0:
        return "int8_weight_only"
    low, high = INT4_BITS
    return "int4_weight_only" if low <= precision.weight_bits <= high else None


def wide_class(dtype: str) -> GemmClass | None:
    """Return the kernels that multiply unquantised weights; None for FP32."""
    return "bf16" if dtype in WIDE_DTYPES else None


def gemm_curve(
    machine: Machine,
    kernels: GemmClass | None,
    dtype: str,
    compute_share: float = 1.0,
    min_tile_rows: int = PLAIN_TILE_ROWS,
    overlap: float = 1.0,
) -> GemmCurve:
    """Return how fast a GPU multiplies in a number format.

    The fitted curve of the format; or the 16-bit one with ``compute_share`` of its FLOP/s, tiles from ``min_tile_rows``
    rows and at least ``overlap`` if weights are unpacked in the kernel; or one from the class efficiencies. Only the
    first has a ``fit``.
    """
    curve = machine.gemm_curves.get(kernels) if kernels else None
    if curve is None and dtype in WIDE_DTYPES and "bf16" in machine.gemm_curves:
        curve = _unpacking(machine.gemm_curves["bf16"], compute_share, min_tile_rows, overlap)
        curve = curve.model_copy(update={"fit": None, "skinny_rows": None})
    if curve is None and dtype == "fp4" and "fp8" in machine.gemm_curves:
        curve = slowed(machine.gemm_curves["fp8"], FP4_OF_FP8, 1.0).model_copy(update={"fit": None})
    if curve is None and machine.unpacking is not None:
        curve = slowed(_class_curve(machine, dtype), compute_share, 1.0)  # one kernel either way, with one start
        if min_tile_rows != PLAIN_TILE_ROWS:
            curve = curve.model_copy(update={"min_tile_rows": min_tile_rows})
    if curve is None:
        curve = _unpacking(_class_curve(machine, dtype), compute_share, min_tile_rows, overlap)
    return slowed(curve, machine.engine_scale, machine.memory_scale)


FP4_MEMORY_EFFICIENCY = 0.6
"""Share of the bandwidth that products of NVFP4 weights reach with few rows: between CUTLASS's 0.54 and TensorRT-LLM's
0.63, fitted on the B200 (``hardware_profiles/b200-sxm-180gb.yaml``). Blackwell's workstation cards run the same kind of
kernels; their servers say 0.54 (Qwen3.6-27B, three laboratories) to 0.7 (Llama-3.1-8B), see calibration/LOG.md."""


def _class_curve(machine: Machine, dtype: str) -> GemmCurve:
    """Return the curve of a GPU without measurements: its class efficiencies, the usual shape."""
    efficiency = machine.gemm_efficiency * NARROW_DTYPE_SHARE.get(dtype, 1.0)
    return GemmCurve.model_construct(
        start_latency=KERNEL_LATENCIES["gemm"] * machine.kernel_latency,
        efficiency=efficiency,
        sustained_efficiency=efficiency,
        loop_overhead=CLASS_LOOP_OVERHEAD,
        wave_quantisation=CLASS_WAVE_QUANTISATION,
        overlap=machine.gemm_overlap or CLASS_OVERLAP,
        memory_efficiency=machine.memory_efficiency,
        narrow_memory_efficiency=FP4_MEMORY_EFFICIENCY if dtype == "fp4" else None,
        split_latency=CLASS_SPLIT_LATENCIES * machine.kernel_latency,
        max_splits=CLASS_MAX_SPLITS,
        min_tile_rows=machine.tile_rows or CLASS_TILE_ROWS,
    )


def fp32_parts(machine: Machine, rows: Array, out_features: int, in_features: int) -> Array:
    """Return the seconds by part of a product in FP32 on the ordinary cores, by the efficiencies of the GPU's class.

    Nothing is fitted. Measurements of vLLM's pull requests 47973 (GB200) and 55899 (GB300) are in calibration/LOG.md.

    Args:
        rows: Tokens m.
        out_features: Columns n.
        in_features: Reduction k.
    """
    sizes = ProductSizes(out_features, in_features, FP32_BITS, FP32_BITS / 8)
    return product_parts(gemm_curve(machine, None, "fp32"), device_of(machine, "fp32"), sizes, rows)


def gemm_call(curve: GemmCurve, machine: Machine, work: Work, dtype: str, rows: Array, columns: float) -> GemmSeconds:
    """Return the seconds of a call whose work is known.

    Args:
        curve: From `gemm_curve`.
        work: From `gemm_work`.
        dtype: Arithmetic dtype.
        rows: Tokens m.
        columns: Columns n; k follows from the flops.
    """
    return _seconds_of(curve, device_of(machine, dtype), work, rows, columns)


def _seconds_of(curve: GemmCurve, device: GemmDevice, work: Work, rows: Array, columns: float) -> GemmSeconds:
    return gemm_seconds(
        curve,
        device,
        rows=rows,
        out_features=columns,
        in_features=float(work.flops[0] / (2.0 * rows[0] * columns)),
        num_bytes=work.weight_bytes + work.activation_bytes,
    )


def device_of(machine: Machine, dtype: str) -> GemmDevice:
    """Return the properties of a GPU that matter to a GEMM in a dtype."""
    return GemmDevice(
        peak=machine.peak(dtype), bandwidth=machine.bandwidth, num_multiprocessors=machine.num_multiprocessors
    )


@dataclass(frozen=True, slots=True)
class ProductSizes:
    """The row-independent properties of a product."""

    out_features: int  # Columns n of the weight, on one rank.
    in_features: int  # Rows k of the weight, on one rank.
    weight_bits: float  # Bits per weight with its share of group scales.
    input_bytes: float = ACTIVATION_BYTES  # Bytes per input element; outputs are 16 bit.


class _Product:
    """A product that compares by value, whatever curve object, deployment or model it comes from."""

    __slots__ = ("curve", "device", "hidden", "key", "rows", "sizes")

    def __init__(self, curve: GemmCurve, device: GemmDevice, sizes: ProductSizes, rows: Array, hidden: float) -> None:
        self.curve, self.device, self.sizes, self.rows, self.hidden = curve, device, sizes, rows, hidden
        parameters = tuple([getattr(curve, name) for name in _PARAMETERS])
        self.key = (parameters, device, sizes, hidden, len(rows), float(rows[0]), float(rows[-1]))

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Product) and self.key == other.key and np.array_equal(self.rows, other.rows)


def product_parts(
    curve: GemmCurve, device: GemmDevice, sizes: ProductSizes, rows: Array, hidden_seconds: float = 0.0
) -> Array:
    """Return the seconds of a product by part, shape ``[5, rows]`` (`simserve.perf.operators.bound_parts`).

    Computed once per product: a search prices the matrices of a GPU for every KV format, seat and role. Nobody may
    change the array.

    Args:
        curve: From `gemm_curve`.
        device: From `device_of`.
        sizes: The matrix and its number format.
        rows: Tokens m, above 0.
        hidden_seconds: Part of the call that runs in the shadow of others.
    """
    return _product_parts(_Product(curve, device, sizes, rows, hidden_seconds))


@lru_cache(maxsize=KEPT_PRODUCTS)
def _product_parts(product: _Product) -> Array:
    sizes = product.sizes
    product.rows = rows = product.rows.copy()  # it is kept, and the caller may change its own
    work = gemm_work(
        rows, sizes.out_features, sizes.in_features, weight_bits=sizes.weight_bits, input_bytes=sizes.input_bytes
    )
    call = _seconds_of(product.curve, product.device, work, rows, sizes.out_features)
    total = np.maximum(call.total - product.hidden, 0.0)
    parts = bound_parts(work, arithmetic=call.arithmetic, memory=call.memory, total=total)
    parts.flags.writeable = False
    return parts


def _unpacking(curve: GemmCurve, compute_share: float, min_tile_rows: int, overlap: float) -> GemmCurve:
    """Return the curve of kernels that unpack weights, derived from that of plain ones.

    Their tiles are never wider than plain ones. Marlin's (which have an ``overlap``) distribute tiles of their smallest
    size evenly over the multiprocessors.
    """
    if compute_share == 1.0 and min_tile_rows == PLAIN_TILE_ROWS:
        return curve
    start = UNPACKING_STARTS * curve.start_latency
    min_tile_rows = min(min_tile_rows, curve.min_tile_rows)
    changed = {"min_tile_rows": min_tile_rows, "start_latency": start}
    if overlap > 1.0:
        changed |= {"overlap": max(curve.overlap, overlap), "max_tile_rows": min_tile_rows}
    return slowed(curve, compute_share, 1.0).model_copy(update=changed)


def slowed(curve: GemmCurve, compute: float, memory: float) -> GemmCurve:
    """Return the curve with its shares of the peaks scaled, to at most 1."""
    if compute == memory == 1.0:
        return curve
    return curve.model_copy(
        update={
            "efficiency": min(curve.efficiency * compute, 1.0),
            "sustained_efficiency": min(curve.sustained_efficiency * compute, 1.0),
            "memory_efficiency": min(curve.memory_efficiency * memory, 1.0),
        }
    )


def block_scaled_maker(
    engine: ResolvedEngine, vendor: str, out_features: int, in_features: int, *, is_beside: bool
) -> str | None:
    """Return whose product of FP8 with block scales runs where it is not that of the format; None: it is.

    Args:
        engine: The engine, which may call Triton's kernels on the GPUs of a vendor.
        out_features: Columns n, on one rank.
        in_features: Reduction k, on one rank.
        is_beside: Whether it runs beside the routed experts: with AITER's, as rows of theirs, without tiles of its own.
    """
    maker = engine.block_scaled_kernels.get(vendor)
    if maker not in TRITON_MAKERS:
        return None
    if is_beside and maker == TRITON_MAKERS[0]:
        return engine.name
    return TUNED_TRITON if (out_features, in_features) in engine.block_scaled_tuned else None


def block_scaled_curve(
    curve: GemmCurve, engine: ResolvedEngine, compute_capability: str | None, out_features: float
) -> tuple[GemmCurve, bool]:
    """Return the curve of a product with FP8 block scales under an engine, and whether its rows are padded first.

    See ``block_scaled_speed`` and the fields after it in `simserve.profiles.kernel_traits.KernelTraits`.
    """
    columns = engine.block_scaled_columns.get(compute_capability or "")
    if (least := engine.block_scaled_steps.get(compute_capability or "")) is not None:
        curve = curve.model_copy(update={"step_latency": least})
    if engine.block_scaled_columns and (columns is None or out_features % columns == 0):
        return curve, False
    curve = slowed(curve, engine.block_scaled_speed, engine.block_scaled_bandwidth)
    is_late = float(compute_capability or 0.0) >= engine.block_scaled_gap_since
    start = curve.start_latency + engine.block_scaled_gap * is_late
    step = engine.block_scaled_step * is_late if least is None else least
    changed = {"start_latency": start, "step_latency": step}
    return curve.model_copy(update=changed), columns is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmDevice:
    """The properties of a GPU that matter to a GEMM."""

    peak: float  # FLOP/s of the arithmetic.
    bandwidth: float  # Memory bandwidth, bytes/s.
    num_multiprocessors: int  # SMs over which tiles are distributed; 1 if unknown: no partly filled rounds.


@dataclass(frozen=True, slots=True)
class GemmSeconds:
    """Seconds of calls."""

    arithmetic: Array  # The flops alone at the efficiency of the call.
    memory: Array  # The bytes alone.
    total: Array  # The call, start-up included.


def gemm_seconds(
    curve: GemmCurve,
    device: GemmDevice,
    *,
    rows: Array,
    out_features: Array | float,
    in_features: Array | float,
    num_bytes: Array,
) -> GemmSeconds:
    """Return the seconds of ``y[m, n] = x[m, k] W[k, n]`` for every m.

    Args:
        rows: Tokens m, above 0.
        out_features: Columns n.
        in_features: Reduction k.
        num_bytes: Bytes of weights and activations that go through memory.
    """
    flops = 2.0 * rows * out_features * in_features
    rate = device.peak * _efficiency(curve, flops)
    compute = _compute_seconds(curve, device, rows, out_features, in_features, rate)
    memory = num_bytes / (device.bandwidth * curve.memory_efficiency)
    total = curve.start_latency + overlapped(curve, compute, memory)
    if curve.step_latency:
        total = np.maximum(total, curve.start_latency + in_features / STEP_COLUMNS * curve.step_latency)
    if curve.narrow_memory_efficiency is not None:
        least = num_bytes / (device.bandwidth * curve.narrow_memory_efficiency)
        total = np.maximum(total, curve.start_latency + least)
    if curve.narrow_rows is not None:
        total = np.maximum(total, _least_of_wide_calls(curve, device, rows, out_features, in_features, memory))
    if curve.vector_flops is not None:
        most = curve.min_tile_rows if curve.matrix_tile_rows is None else GGUF_TILE_ROWS
        further = np.clip(rows - 1.0, 0.0, most - 1.0)  # the bandwidth share was measured with one row
        vectors = 2.0 * further * out_features * in_features / curve.vector_flops
        total = np.maximum(total, curve.start_latency + overlapped(curve, vectors, memory))
    if curve.matrix_tile_rows is not None:
        tiles = _of_tiles(curve, curve.matrix_tile_rows)
        wide = gemm_seconds(
            tiles, device, rows=rows, out_features=out_features, in_features=in_features, num_bytes=num_bytes
        ).total
        total = np.where(rows > GGUF_TILE_ROWS, wide, np.minimum(total, wide))  # more rows may not take less time
    if curve.skinny_rows is not None:
        skinny = num_bytes / (device.bandwidth * (curve.skinny_memory_efficiency or curve.memory_efficiency))
        total = np.where(rows > curve.skinny_rows, total, curve.start_latency + skinny)
        memory = np.where(rows > curve.skinny_rows, memory, skinny)
    return GemmSeconds(arithmetic=flops / rate, memory=memory, total=total)


def _of_tiles(curve: GemmCurve, tile_rows: int) -> GemmCurve:
    """Return the curve of kernels that multiply whole tiles, and no rows one by one."""
    fixed = {"min_tile_rows": tile_rows, "max_tile_rows": tile_rows}
    return curve.model_copy(update={**fixed, "matrix_tile_rows": None, "vector_flops": None})


def _least_of_wide_calls(
    curve: GemmCurve,
    device: GemmDevice,
    rows: Array,
    out_features: Array | float,
    in_features: Array | float,
    memory: Array,
) -> Array:
    """Return the least time of calls with more than ``narrow_rows`` rows: that of a call that fills a tile.

    Kernels with whole tiles reach less of the bandwidth than the preceding ones with swapped operands (vLLM's FP8 by
    CUTLASS: 17 to 49 rows take 6 to 32 % longer than 16 on an H200, 2 to 11 % on an H100; 64 again 5 and 2 %).
    Following them exactly would make more rows take less time.
    """
    assert curve.narrow_rows is not None
    filled = np.minimum(rows, float(curve.min_tile_rows))
    rate = device.peak * _efficiency(curve, 2.0 * filled * out_features * in_features)
    compute = _compute_seconds(curve, device, filled, out_features, in_features, rate)
    seconds = curve.start_latency + overlapped(curve, compute, memory) + curve.wide_slowdown * memory
    return np.where(rows > curve.narrow_rows, seconds, 0.0)


def grouped_gemm_seconds(
    curve: GroupedGemmCurve,
    device: GemmDevice,
    *,
    tile_rows: Array | int,
    rows: Array,
    experts: Array,
    out_features: Array | float,
    in_features: Array | float,
    num_bytes: Array,
) -> GemmSeconds:
    """Return the seconds of one projection of all experts that a rank uses, without the start-up of the layer.

    Args:
        tile_rows: Rows of a tile.
        rows: Token-expert pairs that the rank computes.
        experts: Distinct experts among them; each starts its own tile.
        out_features: Columns n of an expert.
        in_features: Reduction k of an expert.
        num_bytes: Bytes of weights of the distinct experts and of activations.
    """
    flops = 2.0 * rows * out_features * in_features
    rate = device.peak * curve.efficiency
    tiles = (experts + (rows - experts) / tile_rows) * np.ceil(out_features / TILE_COLUMNS)
    waves = np.ceil(tiles / device.num_multiprocessors)
    tile_flops = 2.0 * tile_rows * TILE_COLUMNS * (in_features + curve.loop_overhead)
    compute = waves * tile_flops * device.num_multiprocessors / rate
    memory = num_bytes / (device.bandwidth * curve.memory_efficiency)
    steps = in_features / STEP_COLUMNS * curve.step_latency
    return GemmSeconds(arithmetic=flops / rate, memory=memory, total=steps + overlapped(curve, compute, memory))


def overlapped(curve: TileCurve, compute: Array, memory: Array) -> Array:
    """Return ``(compute^p + memory^p)^(1/p)``: arithmetic and memory traffic that overlap imperfectly."""
    longer, shorter = np.maximum(compute, memory), np.minimum(compute, memory)
    ratio = np.divide(shorter, longer, out=np.zeros_like(longer), where=longer > 0)
    return np.asarray(longer * (1.0 + ratio**curve.overlap) ** (1.0 / curve.overlap))


def _compute_seconds(
    curve: GemmCurve,
    device: GemmDevice,
    rows: Array,
    out_features: Array | float,
    in_features: Array | float,
    rate: Array,
) -> Array:
    """Return the seconds of the tiles: the least over the splits of the reduction that fill idle SMs."""
    tile_rows = _tile_rows(curve, rows)
    tiles = np.ceil(rows / tile_rows) * np.ceil(out_features / TILE_COLUMNS)
    reduction = np.broadcast_to(np.asarray(in_features, dtype=np.float64), tiles.shape)
    rate_per_row = rate / tile_rows
    compute = _tile_seconds(curve, device, tiles, reduction, rate_per_row)
    for splits in _splits(curve):
        idle = np.flatnonzero(tiles * (splits - 1) < device.num_multiprocessors)
        split = _tile_seconds(curve, device, tiles[idle] * splits, reduction[idle] / splits, rate_per_row[idle])
        compute[idle] = np.minimum(compute[idle], curve.split_latency + split)
    return compute


def _efficiency(curve: GemmCurve, flops: Array) -> Array:
    """Return the share of the peak, which falls with the length of the call as power lowers the clock."""
    drop = curve.efficiency - curve.sustained_efficiency
    return curve.sustained_efficiency + drop / (1.0 + flops / SUSTAINED_FLOPS)


def _tile_rows(curve: GemmCurve, rows: Array) -> Array | float:
    """Return the rows of a tile: the power of two that holds m, from the kernel family's smallest to its largest."""
    smallest = float(curve.min_tile_rows)
    if curve.max_tile_rows <= smallest:
        return smallest
    return np.clip(2.0 ** np.ceil(np.log2(rows)), smallest, curve.max_tile_rows)


def _splits(curve: GemmCurve) -> list[int]:
    return [2**power for power in range(1, curve.max_splits.bit_length()) if 2**power <= curve.max_splits]


def _tile_seconds(
    curve: GemmCurve, device: GemmDevice, tiles: Array, in_features: Array | float, rate_per_row: Array
) -> Array:
    """Return the seconds of rounds of tiles; the last round counts by the curve's share of it."""
    rounds = tiles / device.num_multiprocessors
    whole = curve.wave_quantisation
    waves = whole * np.ceil(rounds) + (1.0 - whole) * np.maximum(rounds, 1.0)
    flops_per_row = 2.0 * TILE_COLUMNS * (in_features + curve.loop_overhead) * device.num_multiprocessors
    return np.asarray(waves * flops_per_row / rate_per_row)


def unpacking_parts(precision: Precision, machine: Machine, num_weights: float, rows: Array) -> Array:
    """Return the seconds by part of a kernel that reads packed weights and writes them in 16 bit.

    ``(packed + 16-bit bytes) / bandwidth``, at the share of bandwidth that element-wise kernels reach, once or for
    every `Precision.unpacked_rows`; nothing below `Precision.unpacked_from_rows`.
    """
    parts = np.zeros((len(PART_NAMES), len(rows)))
    times = _is_unpacked(precision, rows)
    if precision.unpacked_rows is not None:
        times = times * np.ceil(rows / precision.unpacked_rows)
    moved = num_weights * (precision.weight_bits + precision.unpacked_bits) / 8
    parts[WEIGHTS] = times * moved / (machine.bandwidth * memory_efficiency(machine, "elementwise"))
    parts[HOST] = times * start_latency(machine, "elementwise")
    return parts


def unpacked_parts(
    precision: Precision, machine: Machine, sizes: ProductSizes, rows: Array, packed: Array, plain: Array
) -> Array:
    """Return the seconds by part of a linear layer: packed kernel below the switch, unpacking and plain kernel above.

    With `Precision.stored_flops`, another packed kernel above.

    Args:
        sizes: The matrix on the rank, and its number format.
        rows: Tokens m.
        packed: Parts of the kernel that unpacks internally, ``[5, rows]``.
        plain: Parts of the 16-bit kernel, ``[5, rows]``.
    """
    if precision.stored_flops is None:
        above = unpacking_parts(precision, machine, float(sizes.out_features * sizes.in_features), rows) + plain
    else:
        curve = gemm_curve(machine, None, precision.arithmetic, min_tile_rows=precision.min_tile_rows)
        device = replace(device_of(machine, precision.arithmetic), peak=precision.stored_flops)
        above = product_parts(curve, device, sizes, rows)
    return np.where(_is_unpacked(precision, rows), above, packed)


def _is_unpacked(precision: Precision, rows: Array) -> Array:
    switch = np.inf if precision.unpacked_from_rows is None else float(precision.unpacked_from_rows)
    return np.asarray(rows >= switch, dtype=np.float64)


def launched_gemms(gemms: list[Gemm], *, joins_latent: bool = True, joins_index: bool = False) -> list[Gemm]:
    """Return the projections of attention as engines launch them: products that read the same input as one.

    Args:
        joins_latent: MLA's down-projections of queries and of keys and values (``fused_qkv_a_proj_with_mqa`` in SGLang,
            ``fused_qkv_a_proj`` in vLLM, ``kv_a_proj_with_mqa`` in TensorRT-LLM).
        joins_index: Queries and keys of an indexer beside ordinary heads (``MinimaxM3QKVParallelLinearWithIndexer``).
    """
    if joins_latent and {"q_a", "kv_a"} <= {gemm.name for gemm in gemms}:
        gemms = _joined(gemms, "qkv_a", ("q_a", "kv_a"))
    return _joined(gemms, "qkv", ("qkv", "index_q", "index_k")) if joins_index else gemms


def _joined(gemms: list[Gemm], name: str, parts: tuple[str, ...]) -> list[Gemm]:
    """Return one product, first, in place of those named ``parts``, with the columns of all."""
    joined = {gemm.name: gemm for gemm in gemms if gemm.name in parts}
    width = sum(gemm.out_features for gemm in joined.values())
    rest = [gemm for gemm in gemms if gemm.name not in joined]
    return [replace(joined[parts[0]], name=name, out_features=width), *rest]
