"""Ratio of a GPU's kernel times to those of its bundled profile, by family of kernels, and a profile scaled by it.

PyTorch and engines run different kernels. Where the bundled profile has a curve of the same kernel that PyTorch ran
(its library's, on that generation of GPUs), the ratio of the two belongs to the device, not the kernel, and every
engine's curve of the family is scaled by it. Knows kinds of fitted kernels and one profile; no files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.calibrate import curve_forms as forms
from simserve.calibrate.kernel_fit import FittedKind, KernelFit
from simserve.calibrate.kernel_prediction import predicted, without_cache
from simserve.calibrate.kernels import points
from simserve.calibrate.kernels.torch_device import NEWER_FLASH_ATTENTION
from simserve.perf.efficiency import Array
from simserve.profiles.hardware import HardwareProfile
from simserve.units import parse, to_text

DEVICE_WIDTH = 0.1
"""Prior standard deviation of the logarithm of a device's factor. GPUs of one model under the same work
differ by 8 % on average and by up to 22 % (Sinha et al., "Not All GPUs Are Created Equal", SC 2022)."""

CURVE_ERROR = 0.05
"""Standard deviation of a bundled curve's error shared by all its calls: those of H100 are 0.3 to 8 % off tables that
they were not fitted to, 4.5 % in the root mean square (calibration/LOG.md)."""

MEDIAN_ERROR = 1.2533  # Standard error of a median divided by that of a mean, for normal errors: the root of pi / 2.
NORMAL_MAD = 1.4826  # Standard deviation divided by median absolute deviation, for normal errors.
NUM_FOLDS = 5

TIMES = {"start", "start_per_width", "start_per_doubling", "context_doubling", "wave", "wave_per_width", "combine"}
TIMES |= {"start_latency", "split_latency", "query_element", "kv_element", "two_shot_start_per_doubling", "ring_start"}
SHARES = {"efficiency", "sustained_efficiency", "memory_efficiency", "memory"}
RATES = {"compute", "tile_compute", "one_shot", "two_shot", "ring"}
"""Constants of curves: a factor multiplies times, and divides shares of a peak and rates."""


SCALED, OWN_CURVE, KEPT = "scaled", "own curve", "kept"  # What becomes of a family of kernels.


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFactor:
    """What a kind of kernels shows about a device."""

    kind: str  # Its name.
    action: str
    """``scaled`` (the factor multiplies the times of the engines' curves), ``own curve`` (the base has no curve of
    the family, so the fit to PyTorch's kernel is used) or ``kept`` (the base's curves stay)."""
    why: str  # Reason for the action.
    factor: float = 1.0  # Measured over predicted; 1 where nothing is scaled.
    interval: tuple[float, float] = (1.0, 1.0)  # Its central 95 %.
    before: float | None = None
    """Median error of the base's curve of the same kernel, on all calls; None without such a curve."""
    after: float | None = None  # The same with the factor.
    held_out: float | None = None  # The same for held-out calls, with the factor of the other calls.


def device_factors(fit: KernelFit) -> dict[str, DeviceFactor]:
    """Return what becomes of each fitted kind of a profile that is merged into the base of its fit."""
    kinds = {name: kind for name, kind in fit.kinds_.items() if kind.number_format not in NOT_OF_ENGINES}
    return {
        name: device_factor(kind, fit.base)
        for name, kind in kinds.items()
        if name == "element-wise" or kind.table in _FAMILIES
    }


_FAMILIES = (points.GEMM, points.PREFILL, points.DECODE, points.MOE, points.ALL_REDUCE)

NOT_OF_ENGINES = {"int4_wo": "PyTorch's own kernel is slower than engines' (Marlin, Machete) from some 16 rows on"}
"""Number format of products -> why its measurements differ from what engines run and are left out of a profile."""


def device_factor(kind: FittedKind, base: HardwareProfile | None) -> DeviceFactor:
    """Return what becomes of a kind of kernels in a profile merged into ``base``."""
    if base is None:
        return DeviceFactor(kind=kind.name, action=OWN_CURVE, why="no base profile: fitted to PyTorch's kernels")
    if not _has_curve(kind, base):
        return DeviceFactor(kind=kind.name, action=OWN_CURVE, why=f"{base.name} has no curve of it")
    engine, library = _twin(kind, base)
    if engine is None:
        return DeviceFactor(kind=kind.name, action=KEPT, why=f"{base.name} has no curve of {library}")
    columns = {str(name): kind.calls[name].to_numpy() for name in kind.calls.columns}
    seconds = predicted(kind.table, columns, without_cache(base), engine)
    logs = np.log(kind.seconds / seconds)
    groups = kind.regressor.form.groups(kind.calls)
    is_known = np.isfinite(logs)
    return _measured(kind.name, logs[is_known], groups[is_known], f"{library}, over the {engine} curve of {base.name}")


def _measured(name: str, logs: Array, groups: NDArray[np.int64], why: str) -> DeviceFactor:
    """Return the factor of calls, or the prior where the factor does not improve the prediction of held-out calls."""
    centre, deviation = _posterior(logs, groups)
    held_out = np.empty_like(logs)
    for fold in range(NUM_FOLDS):
        is_out = groups % NUM_FOLDS == fold
        held_out[is_out] = logs[is_out] - (_posterior(logs[~is_out], groups[~is_out])[0] if not is_out.all() else 0.0)
    before, after, out = (float(np.median(np.abs(np.expm1(-each)))) for each in (logs, logs - centre, held_out))
    errors = {"before": before, "after": after, "held_out": out}
    interval = (float(np.exp(centre - 1.96 * deviation)), float(np.exp(centre + 1.96 * deviation)))
    if out >= before:
        return DeviceFactor(
            kind=name, action=KEPT, why=f"{why}: calls held out are predicted no better", interval=interval, **errors
        )
    return DeviceFactor(kind=name, action=SCALED, why=why, factor=float(np.exp(centre)), interval=interval, **errors)


def _posterior(logs: Array, groups: NDArray[np.int64]) -> tuple[float, float]:
    """Return the log factor of a device, and its standard deviation: the median of the calls, shrunk to the prior.

    Calls of one group share a shape and its error, so groups are counted, not calls. All share the error of the curve,
    which no number of calls averages out.
    """
    if not len(logs):
        return 0.0, DEVICE_WIDTH
    median = float(np.median(logs))
    spread = NORMAL_MAD * float(np.median(np.abs(logs - median)))
    error = np.hypot(MEDIAN_ERROR * spread / np.sqrt(len(np.unique(groups))), CURVE_ERROR)
    precision = 1.0 / error**2 + 1.0 / DEVICE_WIDTH**2
    return float(median / error**2 / precision), float(precision**-0.5)


def _has_curve(kind: FittedKind, base: HardwareProfile) -> bool:
    if kind.table == points.GEMM:
        return forms.CLASS_OF[kind.number_format] in base.gemm_curves
    if kind.table in (points.PREFILL, points.DECODE):
        return base.attention_curves is not None
    if kind.table == points.ALL_REDUCE:
        return base.collective_curves is not None
    if kind.table == points.MOE:
        return "bf16" in base.grouped_gemm_curves
    return bool(base.gemm_curves)


def _twin(kind: FittedKind, base: HardwareProfile) -> tuple[str | None, str]:
    """Return the engine whose bundled curve is of the kernel that PyTorch ran, if any, and that kernel's name."""
    sources = sorted(set(kind.calls["kernel_source"])) if "kernel_source" in kind.calls else []
    ran = " and ".join(sources) or "PyTorch's kernel"
    if kind.table == points.GEMM and kind.number_format in _PRODUCTS:
        source, engine = _PRODUCTS[kind.number_format]
        return (engine if sources == [source] else None), f"{ran} (cuBLAS)" if sources == [source] else ran
    if kind.table in (points.PREFILL, points.DECODE) and base.compute_capability is not None:
        own = NEWER_FLASH_ATTENTION.get(int(base.compute_capability.split(".")[0]), "FA2")
        is_own = bool(sources) and all(f"({own})" in source for source in sources)
        is_paged = kind.table == points.PREFILL or all("paged" in source for source in sources)
        return ("vllm" if is_own and is_paged else None), ran
    if kind.table == points.ALL_REDUCE and base.collective_curves is not None:
        is_there = any(each.engine == "nccl" for each in base.collective_curves.all_reduce)
        return ("nccl" if is_there and all("nccl" in source.lower() for source in sources or [""]) else None), ran
    return None, ran


_PRODUCTS = {"bfloat16": ("torch linear", "vllm"), "fp8": ("torch _scaled_mm", "tensorrt-llm")}
"""Format -> kernel of PyTorch and an engine whose bundled curve is cuBLAS's too (calibration/README.md)."""


def scale(mapping: dict[str, Any], kind: FittedKind, found: DeviceFactor) -> None:
    """Scale every engine's curves of a kind's family in the mapping of a profile by its factor."""
    note = f"; times {found.factor:.3f}: {found.why}"
    if kind.table == points.GEMM:
        curves = mapping["gemm_curves"][forms.CLASS_OF[kind.number_format]]
        for each in curves:
            each |= _scaled(each, found.factor)
            if each.get("fit"):
                each["fit"] = each["fit"] | {"source": each["fit"]["source"] + note}
        rounding = mapping.get("activation_quantisation")
        if kind.number_format == "fp8" and rounding:
            rounding |= _scaled(rounding, found.factor)
        return
    if kind.table == points.ALL_REDUCE:
        family, part, names = mapping["collective_curves"], "all_reduce", ("",)
    else:
        family, part = mapping["attention_curves"], "kernels"
        names = ("decode",) if kind.table == points.DECODE else ("prefill",)
    for each in family[part]:
        for name in names:
            each |= {name: each[name] | _scaled(each[name], found.factor)} if name else _scaled(each, found.factor)
    family["source"] += f" {kind.name[:1].upper()}{kind.name[1:]}{note[1:]}."


def _scaled(curve: Mapping[str, Any], factor: float) -> dict[str, Any]:
    """Return the constants of a curve that a factor on its seconds changes; shares of a peak are at most 1."""
    changed: dict[str, Any] = {}
    for name in TIMES & curve.keys():
        changed[name] = to_text(parse(curve[name], "time") * factor, "time")
    for name in SHARES & curve.keys():
        changed[name] = min(float(curve[name]) / factor, 1.0)
    for name in RATES & curve.keys():
        changed[name] = float(curve[name]) / factor
    if "cache_bandwidth" in curve:
        changed["cache_bandwidth"] = to_text(parse(curve["cache_bandwidth"], "bandwidth") / factor, "bandwidth")
    return changed


def factor_rows(factors: Mapping[str, DeviceFactor]) -> list[tuple[str, ...]]:
    """Return one row per kind: its action, the factor, errors before and after, in and out of sample."""
    rows: list[tuple[str, ...]] = []
    for name, each in factors.items():
        low, high = each.interval
        is_measured = each.before is not None
        rows.append(
            (
                name,
                each.action,
                f"{each.factor:.3f} ({low:.3f} to {high:.3f})" if is_measured else "",
                _change(each.before, each.after),
                _change(each.before, each.held_out),
                each.why,
            )
        )
    return rows


def _change(before: float | None, after: float | None) -> str:
    return "" if before is None or after is None else f"{before:.1%} -> {after:.1%}"
