"""Fits the attention curves of the hardware profiles; `attention_report` writes them and their errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from calibration.laboratory.fits.attention_tables import GPUS, Calls, read_calls
from simserve.calibrate.curve_regressor import soft_fit
from simserve.perf.attention_curve import (
    CRITICAL_SHARE,
    NARROWER,
    TILE,
    Gpu,
    Heads,
    decode_base_seconds,
    decode_seconds,
    key_seconds,
    pair_seconds,
    prefill_seconds,
    request_seconds,
    row_seconds,
    tile_key_seconds,
    wave_seconds,
)
from simserve.perf.efficiency import Array
from simserve.profiles.kernel_curves import DecodeAttentionCurve, PrefillAttentionCurve

Curve = DecodeAttentionCurve | PrefillAttentionCurve
Ranges = Mapping[str, tuple[float, float, float]]

DECODE_RANGES: Ranges = {
    "start": (0.1e-6, 9e-6, 100e-6),
    "start_per_width": (0.0, 2e-6, 20e-6),
    "context_doubling": (0.0, 0.5e-6, 10e-6),
    "wave": (0.0, 2e-6, 100e-6),
    "wave_per_width": (0.0, 1e-6, 100e-6),
    "overlap": (1.0, 1.5, 8.0),
    "compute": (0.02, 0.4, 1.0),
    "extra_width": (0.0, 30.0, 1000.0),
    "wide_penalty": (1.0, 1.3, 5.0),
    "memory": (0.3, 0.87, 0.98),
    "cache_bandwidth": (5e12, 8e12, 20e12),
    "tail": (0.2, 0.7, 1.0),
    "combine": (0.0, 2e-6, 20e-6),
}
"""Least, initial and greatest value of each constant."""

SMOOTH: Mapping[str, Any] = {"splits": "none", "tail": 0.0, "combine": 0.0}
"""Decode kernels that split contexts too smoothly to see, and the constants that they do not need."""

PREFILL_RANGES: Ranges = {
    "start": (1e-6, 10e-6, 100e-6),
    "compute": (0.1, 0.65, 2.0),
    "extra_width": (0.0, 30.0, 1000.0),
    "query_element": (0.0, 2e-12, 50e-12),
    "kv_element": (0.0, 3e-12, 50e-12),
    "tile_compute": (0.1, 1.0, 5.0),
    "wave": (0.0, 2e-6, 30e-6),
}

SAMPLE = 5000
"""Rows of a table used in a fit, drawn at random: twice as many change no error by 0.2 %."""

SOFT_ERROR = 0.05
"""Relative error beyond which a row counts linearly (soft L1): kernels switch, and rows are noisy."""

WIDE_TOKENS = 8192.0
"""Least tokens of the prompts that show what heads of 256 reach."""

WIDEST_TOKENS = 2048.0
"""Prompt length from which pairs take most of the time of the widest heads."""

FLOOR_SECONDS = 10e-6
"""Least time of calls counted in errors."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One fit: the engine, the kind of attention, the width of KV, and the least group of query heads."""

    engine: str
    kind: str
    kv_bits: int
    min_group: int = 1
    max_group: float = np.inf

    @property
    def splits(self) -> Mapping[str, Any]:
        """How its decode splits contexts, and the constants that are then not needed."""
        if self.engine != "tensorrt-llm" or self.kind != "heads":
            return SMOOTH
        return {"splits": "filling"} if self.max_group == 1 else {**SMOOTH, "splits": "waves"}

    def calls(self, root: Path, system: str, phase: str, *, is_windowed: bool = False) -> Calls | None:
        """Return the measured calls of this kernel on a system; None if there is no table."""
        calls = read_calls(
            root, system, self.engine, kind=self.kind, phase=phase, kv_bits=self.kv_bits, is_windowed=is_windowed
        )
        if calls is None or self.kind == "latent" or phase == "prefill":
            return calls
        group = calls.heads.group
        return calls.where((group >= self.min_group) & (group <= self.max_group))


XQA_MAX_GROUP = 32
"""Query heads per key-value head beyond which TensorRT-LLM leaves its decode kernel for one that is five to nine times
slower; no catalogue model has more."""

XQA_GROUPS = ((1, 1), (2, 8), (9, 16), (17, XQA_MAX_GROUP))
"""Query heads per key-value head that share one of its decode kernels: tiles of 8, 16 and 32 query rows."""

KERNELS = (
    *(Kernel(engine, "heads", bits) for engine in ("vllm", "sglang") for bits in (16, 8)),
    *(Kernel("tensorrt-llm", "heads", bits, *groups) for groups in XQA_GROUPS for bits in (16, 8)),
    *(Kernel(engine, "latent", bits) for engine in ("sglang", "tensorrt-llm") for bits in (16, 8)),
)


def affine_prefill_seconds(
    curve: PrefillAttentionCurve, heads: Heads, gpu: Gpu, batch: Array | float, tokens: Array | float
) -> Array:
    """Return the engine's estimate of the same call, from sums of tokens, requests, pairs and keys only."""
    num_tokens = np.asarray(tokens, dtype=np.float64)
    total = batch * num_tokens
    return np.asarray(
        curve.start
        + total * row_seconds(curve, heads)
        + wave_seconds(curve, heads, gpu, total / TILE)
        + batch * request_seconds(curve, heads, gpu)
        + total * CRITICAL_SHARE * tile_key_seconds(curve, heads, gpu)
        + batch * num_tokens * (num_tokens + 1.0) / 2.0 * pair_seconds(curve, heads, gpu)
    )


def predict(curve: Curve, calls: Calls, gpu: Gpu) -> Array:
    """Return the seconds that a curve predicts for measured calls; decode windows limit the context."""
    if isinstance(curve, DecodeAttentionCurve):
        return decode_seconds(curve, calls.heads, gpu, calls.batch, np.minimum(calls.length, calls.window))
    return prefill_seconds(curve, calls.heads, gpu, calls.batch, calls.length, calls.window)


def predict_affine(curve: Curve, calls: Calls, gpu: Gpu) -> Array:
    """Return the seconds of the form that the engine uses."""
    if not isinstance(curve, DecodeAttentionCurve):
        return affine_prefill_seconds(curve, calls.heads, gpu, calls.batch, calls.length)
    keys = key_seconds(curve, calls.heads, gpu) * calls.batch * calls.length
    return decode_base_seconds(curve, calls.heads, gpu, calls.batch) + keys


def fit(curve_type: type[Curve], ranges: Ranges, calls: Calls, gpu: Gpu, fixed: Mapping[str, Any]) -> Curve:
    """Return the curve with the least soft-L1 relative error over a sample of the calls.

    Args:
        curve_type: Which curve.
        ranges: Least, initial and greatest value of each constant.
        calls: What to fit.
        gpu: GPU on which they were measured.
        fixed: Constants that are given.
    """
    sample = calls.where(np.random.default_rng(0).permutation(len(calls.seconds))[:SAMPLE])
    free = [name for name in ranges if name not in fixed]
    low, first, high = (np.array([ranges[name][index] for name in free]) for index in range(3))
    unit = np.where(first > 0, first, 1.0)

    def curve(values: Array) -> Curve:
        constants: dict[str, Any] = dict(zip(free, (values * unit).tolist(), strict=True)) | dict(fixed)
        return curve_type.model_construct(**constants)

    found = soft_fit(
        lambda values: predict(curve(values), sample, gpu),
        sample.seconds,
        first=first / unit,
        low=low / unit,
        high=high / unit,
        soft_error=SOFT_ERROR,
    )
    return curve(found.values)


def fit_kernel(root: Path, system: str, kernel: Kernel, wide: DecodeAttentionCurve | None) -> dict[str, Curve]:
    """Return the curves of a kernel by phase.

    Args:
        root: Folder of the systems.
        system: System on which it was measured.
        kernel: Which kernel.
        wide: The decode curve of 16-bit KV, whose share of the bandwidth also applies to 8 bit: in those calls compute
            is the bottleneck, so they do not show it.
    """
    curves: dict[str, Curve] = {}
    decode, prefill = (kernel.calls(root, system, phase) for phase in ("decode", "prefill"))
    if decode is not None:
        fixed = dict(kernel.splits)
        if not np.any(decode.heads.width > TILE):
            fixed["wide_penalty"] = DECODE_RANGES["wide_penalty"][1]  # no call shows it
        if kernel.kind == "latent":
            fixed |= {"wide_penalty": 1.0, "start_per_width": 0.0}
        if wide is not None and kernel.kv_bits == 8:
            fixed |= {"memory": wide.memory, "cache_bandwidth": wide.cache_bandwidth}
        curves["decode"] = fit(DecodeAttentionCurve, DECODE_RANGES, decode, GPUS[system], fixed)
    if prefill is not None:
        found = fit(PrefillAttentionCurve, PREFILL_RANGES, prefill, GPUS[system], {})
        assert isinstance(found, PrefillAttentionCurve)
        by_pairs = wide_share(prefill, GPUS[system], found) if kernel.kind == "heads" else None
        widest = widest_share(root, system, kernel, found)
        curves["prefill"] = found.model_copy(update={"wide_compute": by_pairs, "widest_compute": widest})
    return curves


def widest_share(root: Path, system: str, kernel: Kernel, curve: PrefillAttentionCurve) -> float | None:
    """Return the share of the peak that pairs of heads wider than 256 reach; None without such calls.

    For calls of at least `WIDEST_TOKENS`.
    """
    calls = widest_calls(root, system, kernel)
    return None if calls is None else pair_share(calls.where(calls.length >= WIDEST_TOKENS), GPUS[system], curve)


def wide_share(calls: Calls, gpu: Gpu, curve: PrefillAttentionCurve) -> float | None:
    """Return the share of the peak that pairs of heads of 193 to 256 reach in long prompts; None if it is no less.

    For calls of at least `WIDE_TOKENS`, as servers meet it: the width's share of the curve, a straight line in the
    width, is that of all lengths.
    """
    is_long = (np.asarray(calls.heads.width) > NARROWER) & (calls.length >= WIDE_TOKENS)
    if not np.any(is_long):
        return None
    long = calls.where(is_long)
    share, width = pair_share(long, gpu, curve), float(np.max(np.asarray(long.heads.width)))
    return share if share < curve.compute * width / (width + curve.extra_width) else None


def pair_share(long: Calls, gpu: Gpu, curve: PrefillAttentionCurve) -> float:
    """Return the median of FLOP over peak and time, without what else the curve has for these calls."""
    paired = curve.model_copy(update={"wide_compute": None, "widest_compute": None})
    pairs = long.batch * long.length * (long.length + 1.0) / 2.0
    rest = predict(paired, long, gpu) - pairs * pair_seconds(paired, long.heads, gpu)
    flops = 4.0 * np.asarray(long.heads.num_heads) * np.asarray(long.heads.width) * pairs
    return float(np.median(flops / gpu.peak / (long.seconds - rest)))


def widest_calls(root: Path, system: str, kernel: Kernel) -> Calls | None:
    """Return the measured prompts of heads wider than 256; None if there are none."""
    if kernel.kind != "heads":
        return None
    return read_calls(
        root, system, kernel.engine, kind="heads", phase="prefill", kv_bits=kernel.kv_bits, is_widest=True
    )


def fit_system(root: Path, system: str, kernels: Sequence[Kernel] = KERNELS) -> dict[Kernel, dict[str, Curve]]:
    """Return the curves of every kernel that has tables on a system."""
    fitted: dict[Kernel, dict[str, Curve]] = {}
    for kernel in kernels:
        twin = fitted.get(replace(kernel, kv_bits=16), {}).get("decode")
        curves = fit_kernel(root, system, kernel, twin if isinstance(twin, DecodeAttentionCurve) else None)
        if len(curves) == 2:
            fitted[kernel] = curves
    return fitted


def relative_errors(predicted: Array, calls: Calls) -> Array:
    """Return predicted / measured - 1 of the calls above 10 us."""
    return np.asarray((predicted / calls.seconds - 1.0)[calls.seconds > FLOOR_SECONDS])
