"""Fitted kernels of one GPU on another of its architecture: the curves as shares of the peaks, those of its class.

Knows curves and efficiencies; no file, no formula of a kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from simserve.profiles.gemm_curves import GemmClass, GemmCurve, TileCurve
from simserve.profiles.kernel_curves import AttentionCurves, AttentionKernel

if TYPE_CHECKING:
    from simserve.profiles.hardware import HardwareProfile

_Curve = TypeVar("_Curve", bound=TileCurve)


def with_kernels_of(profile: HardwareProfile, fitted: HardwareProfile) -> HardwareProfile:
    """Return a profile with the fitted curves of another GPU, each share scaled as the class efficiencies of the two.

    Starts, tiles and overlaps are those of the architecture; shares of the peaks go with what the class reaches of
    them. What limits decode attention beside memory is work of the ordinary cores (softmax, conversion of 8-bit keys),
    and goes with their peak. Collectives come along where both have the same kind of link, the borrower's at least as
    fast. Curves of its own stay. The borrowed ones have no ``fit``: their fidelity is ``roofline``.

    Not for cards whose power limit lies far below: FP8 runs at the limit, and falls further than the 16-bit class
    efficiency says (H100 NVL and PCIe: MLPerf's offline runs come out 30 % too fast so).
    """
    own, other = profile.efficiency, fitted.efficiency
    compute, memory = own.gemm / other.gemm, own.memory / other.memory
    changes: dict[str, object] = {
        "gemm_curves": _scaled(fitted.gemm_curves, compute, memory) | profile.gemm_curves,
        "grouped_gemm_curves": _scaled(fitted.grouped_gemm_curves, compute, memory) | profile.grouped_gemm_curves,
        "activation_quantisation": profile.activation_quantisation or fitted.activation_quantisation,
    }
    if profile.attention_curves is None and fitted.attention_curves is not None:
        changes["attention_curves"] = _attention(profile, fitted, fitted.attention_curves)
    link, theirs = profile.intra_node, fitted.intra_node
    if profile.collective_curves is None and link.kind == theirs.kind and link.bandwidth >= theirs.bandwidth:
        changes["collective_curves"] = fitted.collective_curves
    return profile.model_copy(update=changes)


def _scaled(
    curves: Mapping[GemmClass, Sequence[_Curve]], compute: float, memory: float
) -> dict[GemmClass, tuple[_Curve, ...]]:
    return {name: tuple(_slowed(curve, compute, memory) for curve in each) for name, each in curves.items()}


def _slowed(curve: _Curve, compute: float, memory: float) -> _Curve:
    changes: dict[str, object] = {
        "efficiency": min(curve.efficiency * compute, 1.0),
        "memory_efficiency": min(curve.memory_efficiency * memory, 1.0),
        "fit": None,
    }
    if isinstance(curve, GemmCurve):
        changes["sustained_efficiency"] = min(curve.sustained_efficiency * compute, 1.0)
    return curve.model_copy(update=changes)


def _attention(profile: HardwareProfile, fitted: HardwareProfile, curves: AttentionCurves) -> AttentionCurves:
    own, other = profile.efficiency, fitted.efficiency
    prompt, memory = own.attention_prefill / other.attention_prefill, own.memory / other.memory
    cores = _peak_ratio(profile, fitted, "fp32") / _peak_ratio(profile, fitted, "bf16")
    return curves.model_copy(
        update={
            "num_multiprocessors": profile.compute.num_multiprocessors or curves.num_multiprocessors,
            "kernels": tuple(_slowed_kernel(each, prompt, prompt * cores, memory) for each in curves.kernels),
        }
    )


def _peak_ratio(profile: HardwareProfile, fitted: HardwareProfile, dtype: str) -> float:
    own, other = profile.peak_flops(dtype), fitted.peak_flops(dtype)
    return own / other if own is not None and other is not None else 1.0


def _slowed_kernel(kernel: AttentionKernel, prompt: float, step: float, memory: float) -> AttentionKernel:
    decode, prefill = kernel.decode, kernel.prefill
    slower_decode = {"compute": decode.compute * step, "memory": min(decode.memory * memory, 1.0)}
    slower_prefill = {"compute": prefill.compute * prompt, "tile_compute": prefill.tile_compute * prompt}
    return kernel.model_copy(
        update={
            "decode": decode.model_copy(update=slower_decode),
            "prefill": prefill.model_copy(update=slower_prefill),
        }
    )
