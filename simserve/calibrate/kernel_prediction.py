"""A hardware profile's prediction of single calls of an operator table: products, attention, experts, all-reduce.

The seconds are those of one call on one rank, as priced by `simserve.perf` before it becomes part of a step. Knows
columns of tables and one profile; compares nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.perf.attention import (
    TILE_PAIRS,
    AttentionShape,
    decode_key_seconds,
    dot_product_flops,
    prefill_key_seconds,
    prefill_pair_seconds,
)
from simserve.perf.attention_curve import Gpu, Heads, decode_seconds, prefill_seconds
from simserve.perf.collectives import Link, all_reduce_seconds
from simserve.perf.efficiency import COLLECTIVE_SKEW_KERNELS, Array, Machine, start_latency
from simserve.perf.gemm import gemm_call, gemm_curve, gemm_work
from simserve.perf.measured import ALL_REDUCE_ELEMENT_BYTES
from simserve.perf.moe import expert_curve, layer_parts, routed_load, shape_of_experts
from simserve.profiles.hardware import HardwareProfile
from simserve.profiles.kernel_curves import GemmClass
from simserve.profiles.model_blocks import Gemm

Columns = Mapping[str, NDArray[Any]]

FORMATS: Mapping[str, tuple[GemmClass | None, str, float, float]] = {
    "bfloat16": ("bf16", "bf16", 16.0, 2.0),
    "float32": (None, "fp32", 32.0, 4.0),
    "fp8": ("fp8", "fp8", 8.0, 1.0),
    "fp8_block": ("fp8_block", "fp8", 8.0, 1.0),
    "sq": ("int8", "int8", 8.0, 1.0),
    "int8_wo": ("int8_weight_only", "bf16", 8.0, 2.0),
    "int4_wo": ("int4_weight_only", "bf16", 4.125, 2.0),
}
"""Format in the tables -> kernels of the profile, arithmetic, bits per weight, bytes of an input element."""

NARROW_KV = "fp8"
ROUNDING = ("fp8", "fp8_block")  # Formats whose rows include the rounding of their inputs.


def machine_of(hardware: HardwareProfile, engine: str) -> Machine:
    """Return a GPU as the operators of an engine see it, before any scale that the engine has."""
    efficiency = hardware.efficiency
    peaks = {dtype: hardware.peak_flops(dtype) for dtype in hardware.supported_dtypes}
    return Machine(
        name=hardware.name,
        peaks={dtype: peak for dtype, peak in peaks.items() if peak is not None},
        bandwidth=hardware.memory.bandwidth,
        gemm_efficiency=efficiency.gemm,
        gemm_overlap=efficiency.gemm_overlap,
        grouped_gemm_overlap=efficiency.grouped_gemm_overlap,
        attention_efficiency=efficiency.attention_prefill,
        memory_efficiency=efficiency.memory,
        kernel_latency=efficiency.kernel_latency,
        num_multiprocessors=hardware.compute.num_multiprocessors or 1,
        gemm_curves=hardware.gemm_curves_of(engine),
        grouped_gemm_curves=hardware.grouped_gemm_curves_of(engine),
        activation_quantisation=hardware.activation_quantisation,
    )


def without_cache(hardware: HardwareProfile) -> HardwareProfile:
    """Return a profile whose attention finds no keys in a cache, as in measurements that rotate through copies."""
    curves = hardware.attention_curves
    if curves is None:
        return hardware
    return hardware.model_copy(update={"attention_curves": curves.model_copy(update={"l2_cache": 0.0})})


def predicted(table: str, columns: Columns, hardware: HardwareProfile, engine: str) -> Array:
    """Return the seconds of every row of a table, NaN where the profile cannot predict it.

    Args:
        table: A key of `PREDICTORS`, such as ``gemm_perf``.
    """
    return PREDICTORS[table](columns, hardware, engine)


def _by(columns: Columns, names: tuple[str, ...]) -> list[tuple[tuple[Any, ...], NDArray[np.intp]]]:
    """Return the rows of every combination of some columns."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for row, key in enumerate(zip(*(columns[name].tolist() for name in names), strict=True)):
        groups.setdefault(key, []).append(row)
    return [(key, np.array(rows)) for key, rows in groups.items()]


def _products(columns: Columns, hardware: HardwareProfile, engine: str) -> Array:
    machine = machine_of(hardware, engine)
    seconds = np.full(len(columns["m"]), np.nan)
    for (name, out_features, in_features), rows in _by(columns, ("gemm_dtype", "n", "k")):
        kernels, dtype, bits, input_bytes = FORMATS.get(str(name), (None, "", 0.0, 0.0))
        if dtype not in machine.peaks:
            continue
        tokens = columns["m"][rows].astype(np.float64)
        work = gemm_work(tokens, out_features, in_features, weight_bits=bits, input_bytes=input_bytes)
        call = gemm_call(gemm_curve(machine, kernels, dtype), machine, work, dtype, tokens, out_features)
        seconds[rows] = call.total
        rounding = machine.activation_quantisation
        if name in ROUNDING and rounding is not None:
            moved = in_features * (2.0 + input_bytes) * tokens
            seconds[rows] += rounding.start_latency + moved / (machine.bandwidth * rounding.memory_efficiency)
    return seconds


def _attention(columns: Columns, hardware: HardwareProfile, engine: str, *, is_decode: bool) -> Array:
    seconds = np.full(len(columns["batch_size"]), np.nan)
    names = ("num_heads", "num_key_value_heads", "head_dim", "window_size", "kv_cache_dtype")
    for (heads, kv_heads, width, window, kv_dtype), rows in _by(columns, names):
        if window:
            continue  # kernels read more than the window; they have no curve yet
        batch = columns["batch_size"][rows].astype(np.float64)
        length = columns["step"][rows] + 1.0 if is_decode else columns["isl"][rows].astype(np.float64)
        sizes = (float(heads), float(kv_heads), float(width))
        is_narrow = str(kv_dtype) == NARROW_KV
        seconds[rows] = _attention_seconds(hardware, engine, sizes, is_narrow, batch, length, is_decode=is_decode)
    return seconds


def _attention_seconds(
    hardware: HardwareProfile,
    engine: str,
    sizes: tuple[float, float, float],
    is_narrow: bool,
    batch: Array,
    length: Array,
    *,
    is_decode: bool,
) -> Array:
    num_heads, kv_heads, width = sizes
    kv_bytes = 2.0 * kv_heads * width * (1.0 if is_narrow else 2.0)
    curves = hardware.attention_curves
    kernel = curves.kernel(engine, "heads", 8 if is_narrow else 16, num_heads / kv_heads) if curves else None
    machine = machine_of(hardware, engine)
    dtype = "bf16" if "bf16" in machine.peaks else "fp16" if "fp16" in machine.peaks else "fp32"
    if curves is not None and kernel is not None:
        shape = Heads(num_heads=num_heads, num_kv_heads=kv_heads, width=width, kv_bytes=kv_bytes)
        gpu = Gpu(
            peak=machine.peak(dtype),
            bandwidth=machine.bandwidth,
            num_multiprocessors=curves.num_multiprocessors,
            l2_cache=curves.l2_cache,
        )
        if is_decode:
            return decode_seconds(kernel.decode, shape, gpu, batch, length)
        return prefill_seconds(kernel.prefill, shape, gpu, batch, length)
    flops = dot_product_flops(num_heads, width, width)
    layer = AttentionShape(
        num_heads=num_heads, prefill_flops_per_pair=flops, decode_flops_per_key=flops, kv_bytes_per_token=kv_bytes
    )
    start = start_latency(machine, "attention_decode" if is_decode else "attention_prefill")
    if is_decode:
        return np.asarray(start + batch * length * decode_key_seconds(layer, machine, dtype, is_flash=True))
    pair = prefill_pair_seconds(layer, machine, dtype, is_flash=True)
    pairs = length * (length + 1.0) / 2.0 + TILE_PAIRS
    return np.asarray(start + batch * (pairs * pair + length * prefill_key_seconds(layer, machine)))


def _experts(columns: Columns, hardware: HardwareProfile, engine: str) -> Array:
    machine = machine_of(hardware, engine)
    seconds = np.full(len(columns["num_tokens"]), np.nan)
    names = ("moe_dtype", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size")
    for (name, hidden, inter, topk, experts, slices, groups), rows in _by(columns, names):
        kernels, dtype, bits, input_bytes = FORMATS.get(str(name), (None, "", 0.0, 0.0))
        if dtype not in machine.peaks:
            continue
        width = -(-int(inter) // int(slices))
        up, down = Gemm("gate_up", 2 * width, int(hidden), "column"), Gemm("down", int(hidden), width, "row")
        shape = shape_of_experts(up, down, bits, input_bytes)
        load = routed_load(int(experts), int(topk), columns["num_tokens"][rows].astype(np.float64), int(groups))
        parts = layer_parts(expert_curve(machine, kernels, dtype), machine, dtype, shape, load)
        seconds[rows] = parts.sum(axis=0)
    return seconds


def _all_reduce(columns: Columns, hardware: HardwareProfile, engine: str) -> Array:
    intra = hardware.intra_node
    seconds = np.full(len(columns["message_size"]), np.nan)
    if intra.kind == "none":
        return seconds
    skew = COLLECTIVE_SKEW_KERNELS * hardware.efficiency.kernel_latency
    link = Link(
        bandwidth=intra.bandwidth,
        latency=intra.latency,
        reference_ranks=intra.num_latency_gpus,
        curves=hardware.collective_curves,
        engine=engine,
        skew=0.0 if hardware.collective_curves is not None else skew,
        is_pcie=intra.kind == "pcie",
        is_ring=intra.is_ring,
    )
    for (ranks,), rows in _by(columns, ("num_gpus",)):
        message = columns["message_size"][rows].astype(np.float64) * ALL_REDUCE_ELEMENT_BYTES
        seconds[rows] = all_reduce_seconds(message, int(ranks), link)
    return seconds


PREDICTORS: Mapping[str, Callable[[Columns, HardwareProfile, str], Array]] = {
    "gemm_perf": _products,
    "context_attention_perf": partial(_attention, is_decode=False),
    "generation_attention_perf": partial(_attention, is_decode=True),
    "moe_perf": _experts,
    "custom_allreduce_perf": _all_reduce,
}
"""Tables that a profile can predict -> function that does."""
