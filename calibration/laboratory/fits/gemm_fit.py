"""Fits GEMM curves to measured calls and predicts calls from them.

The tables include effects that a server does not see: weights small enough to stay in L2 over the benchmark's repeats,
and for FP8 the kernel that quantises the activations. Both are fitted here separately and kept out of the curve.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from simserve.calibrate.curve_regressor import soft_fit
from simserve.perf.efficiency import Array
from simserve.perf.gemm import GemmDevice, gemm_seconds
from simserve.profiles.kernel_curves import GemmCurve

NUM_FITTED_ROWS = 4000
"""Rows drawn for a fit, from up to 36,000: more rows change no parameter by more than a few percent."""

MIN_FITTED_SECONDS = 6e-6
"""Shorter calls are left out of a fit: they are start-up time, and few calls of a server are so short."""

MIN_TESTED_SECONDS = 10e-6
"""Shorter calls are left out of a test."""

NUM_WEIGHT_COPIES = 6.0
"""Copies of the weights that the benchmark of vLLM and SGLang cycles through; TensorRT-LLM's takes as many as
fill the L2, at most 5 (AIConfigurator, collector/*/collect_gemm.py)."""

MAX_TRTLLM_COPIES = 5.0

QUANTISED_BYTES = 3.0
"""Bytes moved per activation element in quantisation: 16 bit in, 8 bit out."""

RESIDENCY_POWER = 4.0
"""Steepness of the transition from L2 to memory as the working set outgrows the cache."""

BOUNDS: Mapping[str, tuple[float, float]] = {
    "start_latency": (1e-7, 1e-4),
    "efficiency": (0.2, 1.0),
    "sustained_ratio": (0.4, 1.0),
    "loop_overhead": (1.0, 3000.0),
    "wave_quantisation": (1e-3, 1.0),
    "overlap": (1.0, 8.0),
    "memory_efficiency": (0.2, 1.0),
    "split_latency": (1e-8, 1e-4),
    "residency": (1e-3, 5.0),
    "quantisation_start": (1e-8, 1e-4),
    "quantisation_efficiency": (0.02, 1.0),
    "row_seconds": (1e-13, 1e-7),
}
"""Range of each parameter; its logarithm is fitted."""

START: Mapping[str, float] = {
    "start_latency": 3.3e-6,
    "efficiency": 0.85,
    "sustained_ratio": 0.85,
    "loop_overhead": 180.0,
    "wave_quantisation": 0.4,
    "overlap": 3.0,
    "memory_efficiency": 0.83,
    "split_latency": 2e-6,
    "residency": 0.4,
    "quantisation_start": 2e-6,
    "quantisation_efficiency": 0.5,
    "row_seconds": 1e-10,
}
"""Initial values of a fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """What a table includes besides the GEMM itself.

    Attributes:
        framework: The framework of kernels and benchmark.
        is_quantising: Whether 16-bit activations are quantised in the timed region.
        input_bytes: Bytes per activation element that the GEMM reads.
        weight_bytes: Bytes per weight.
        max_tile_rows: Kernel family: rows of the largest tile.
        max_splits: Kernel family: most SMs that share a tile's reduction.
    """

    framework: str
    is_quantising: bool = False
    input_bytes: float = 2.0
    weight_bytes: float = 2.0
    max_tile_rows: int = 64
    max_splits: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A GPU as the tables measured it.

    Attributes:
        gemm: Peak, bandwidth and SMs.
        l2_bytes: L2 cache, which matters only for the benchmark.
    """

    gemm: GemmDevice
    l2_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmFit:
    """A curve and the parameters fitted with it.

    Attributes:
        curve: The GEMM.
        benchmark: What the table holds.
        residency: Working set, in L2 sizes, up to which the cache serves calls.
        quantisation_start: Least seconds that a quantisation call adds.
        quantisation_efficiency: Share of the bandwidth that it reaches.
        row_seconds: Further seconds per row of quantisation (one thread block per row in vLLM's kernel).
        num_points: Number of fitted rows.
    """

    curve: GemmCurve
    benchmark: Benchmark
    residency: float
    quantisation_start: float
    quantisation_efficiency: float
    row_seconds: float
    num_points: int


def free_parameters(benchmark: Benchmark) -> list[str]:
    """Return the parameters of a kernel family; a quantised GEMM keeps the 16-bit start-up time.

    Start-up of the GEMM and of the quantisation before it cannot be told apart.
    """
    names = ["efficiency", "sustained_ratio", "loop_overhead", "wave_quantisation", "overlap", "memory_efficiency"]
    names += ["split_latency"] if benchmark.max_splits > 1 else []
    names += ["residency"]
    if benchmark.is_quantising:
        return [*names, "quantisation_start", "quantisation_efficiency", "row_seconds"]
    return [*names, "start_latency"]


def fit_gemm(rows: pd.DataFrame, device: Device, benchmark: Benchmark, start_latency: float | None = None) -> GemmFit:
    """Return the curve with the least soft-L1 error of the logarithm of the time.

    Args:
        rows: Columns ``m, n, k, seconds``.
        device: The GPU that was measured.
        benchmark: What the rows include.
        start_latency: Start-up seconds to keep if they are not fitted.
    """
    long_enough = rows[rows["seconds"] > MIN_FITTED_SECONDS]
    drawn = long_enough.sample(min(len(long_enough), NUM_FITTED_ROWS), random_state=0)
    start = {**START, **({} if start_latency is None else {"start_latency": start_latency})}
    names = free_parameters(benchmark)
    values = fit_parameters(
        lambda given: predict_seconds(_fit_of({**start, **given}, benchmark, len(drawn)), drawn, device),
        drawn["seconds"].to_numpy(),
        {name: start[name] for name in names},
        BOUNDS,
    )
    return _fit_of({**start, **values}, benchmark, len(drawn))


def fit_parameters(
    predict: Callable[[dict[str, float]], Array],
    measured: Array,
    start: Mapping[str, float],
    bounds: Mapping[str, tuple[float, float]],
) -> dict[str, float]:
    """Return the parameters, within bounds, with the least soft-L1 error of ``log(predicted / measured)``.

    Errors beyond about 5 % count linearly, so that odd kernels do not distort the curve.
    """
    names = list(start)

    def given(logarithms: Array) -> dict[str, float]:
        return dict(zip(names, np.exp(logarithms).tolist(), strict=True))

    low, high = (np.log([bounds[name][side] for name in names]) for side in (0, 1))
    found = soft_fit(
        lambda logarithms: predict(given(logarithms)),
        measured,
        first=np.log([start[name] for name in names]),
        low=low,
        high=high,
        soft_error=0.05,
        step=np.full(len(names), 1e-3),
        max_predictions=60,
    )
    return given(found.values)


def predict_seconds(fit: GemmFit, rows: pd.DataFrame, device: Device) -> Array:
    """Return the seconds of the benchmark's calls: GEMM, quantisation and L2 savings."""
    m, n, k = (rows[name].to_numpy(dtype=np.float64) for name in ("m", "n", "k"))
    weights = n * k * fit.benchmark.weight_bytes
    activations = m * (k * fit.benchmark.input_bytes + n * 2.0)
    missed = _missed_share(fit, weights, activations, device.l2_bytes)
    num_bytes = (weights + activations) * missed
    seconds = gemm_seconds(fit.curve, device.gemm, rows=m, out_features=n, in_features=k, num_bytes=num_bytes).total
    if not fit.benchmark.is_quantising:
        return seconds
    moved = m * k * QUANTISED_BYTES / (device.gemm.bandwidth * fit.quantisation_efficiency)
    return np.asarray(seconds + fit.quantisation_start + m * fit.row_seconds + moved)


def scale_to(fit: GemmFit, rows: pd.DataFrame, device: Device) -> float:
    """Return the median of measured over predicted time: the single factor that transfers a fit to another GPU."""
    tested = rows[rows["seconds"] > MIN_TESTED_SECONDS]
    return float(np.median(tested["seconds"].to_numpy() / predict_seconds(fit, tested, device)))


def _missed_share(fit: GemmFit, weights: Array, activations: Array, l2_bytes: float) -> Array:
    """Return the share of the bytes that come from memory when the benchmark repeats its calls."""
    copies: Array | float = NUM_WEIGHT_COPIES
    if fit.benchmark.framework == "trtllm":
        copies = np.clip(np.ceil(l2_bytes / weights), 1.0, MAX_TRTLLM_COPIES)
    kept = fit.residency * l2_bytes / (copies * weights + activations)
    return np.asarray(1.0 / (1.0 + kept**RESIDENCY_POWER))


def _fit_of(values: Mapping[str, float], benchmark: Benchmark, num_points: int) -> GemmFit:
    curve = GemmCurve.model_construct(
        engines=(),
        fit=None,
        start_latency=values["start_latency"],
        efficiency=values["efficiency"],
        sustained_efficiency=values["efficiency"] * values["sustained_ratio"],
        loop_overhead=values["loop_overhead"],
        wave_quantisation=values["wave_quantisation"],
        overlap=values["overlap"],
        memory_efficiency=values["memory_efficiency"],
        split_latency=values["split_latency"] if benchmark.max_splits > 1 else 0.0,
        max_splits=benchmark.max_splits,
        max_tile_rows=benchmark.max_tile_rows,
    )
    return GemmFit(
        curve=curve,
        benchmark=benchmark,
        residency=values["residency"],
        quantisation_start=values["quantisation_start"],
        quantisation_efficiency=values["quantisation_efficiency"],
        row_seconds=values["row_seconds"],
        num_points=num_points,
    )
