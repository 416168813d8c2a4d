"""Seconds of GEMM calls from few physical parameters: tiles over SMs, k-loop, memory, start-up.

``seconds = start + (compute^p + memory^p)^(1/p)``. Every term rises with m, n and k, so that no call gets
faster with more work. Knows sizes and curves, no model; parameters are `simserve.profiles.gemm_curves`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simserve.perf.efficiency import Array
from simserve.profiles.gemm_curves import GemmCurve, GroupedGemmCurve, TileCurve

TILE_COLUMNS = 64.0
"""Columns of a tile. Chosen with the rows on the AIConfigurator tables of an H200: of 64 x 64, 64 x 128 and
128 x 128 it follows the measured times best (calibration/LOG.md)."""

SUSTAINED_FLOPS = 1e12
"""FLOP of a call half-way between short-call and sustained efficiency: about 1.3 ms on an H100."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmDevice:
    """What of a GPU a GEMM sees.

    Attributes:
        peak: FLOP/s of the arithmetic.
        bandwidth: Memory bandwidth, bytes/s.
        num_multiprocessors: SMs that tiles are dealt to; 1 where unknown: no partly filled rounds.
    """

    peak: float
    bandwidth: float
    num_multiprocessors: int


@dataclass(frozen=True, slots=True)
class GemmSeconds:
    """Seconds of calls.

    Attributes:
        arithmetic: The flops alone at the efficiency of the call.
        memory: The bytes alone.
        total: The call, start-up included.
    """

    arithmetic: Array
    memory: Array
    total: Array


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
        curve: Parameters of the kernels.
        device: The GPU.
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
    if curve.narrow_rows is not None:
        total = np.maximum(total, _least_of_wide_calls(curve, device, rows, out_features, in_features, memory))
    return GemmSeconds(arithmetic=flops / rate, memory=memory, total=total)


def _least_of_wide_calls(
    curve: GemmCurve,
    device: GemmDevice,
    rows: Array,
    out_features: Array | float,
    in_features: Array | float,
    memory: Array,
) -> Array:
    """Return what calls of more than ``narrow_rows`` rows take at least: as long as one that fills a tile.

    Kernels of whole tiles draw less of the bandwidth than those with exchanged operands before them (vLLM's FP8 by
    CUTLASS: 17 to 49 rows take 6 to 32 % longer than 16 on an H200, 2 to 11 % on an H100, 64 again 5 and 2 %).
    Following them would have more rows take less time.
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
    """Return the seconds of one projection of all experts that a rank uses, without start-up.

    Args:
        curve: Parameters of the kernels.
        device: The GPU.
        tile_rows: Rows of a tile.
        rows: Token-expert pairs that the rank computes.
        experts: Distinct experts among them; each starts a tile of its own.
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
    return GemmSeconds(arithmetic=flops / rate, memory=memory, total=overlapped(curve, compute, memory))


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
    """Return the share of the peak, falling with the length of the call as power lowers the clock."""
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
    """Return the seconds of rounds of tiles, the last of which counts by the curve's share of it."""
    rounds = tiles / device.num_multiprocessors
    whole = curve.wave_quantisation
    waves = whole * np.ceil(rounds) + (1.0 - whole) * np.maximum(rounds, 1.0)
    flops_per_row = 2.0 * TILE_COLUMNS * (in_features + curve.loop_overhead) * device.num_multiprocessors
    return np.asarray(waves * flops_per_row / rate_per_row)
