"""Errors of operators on GPUs left out of every fit: curves of H200 on the calls of H100 and A100.

Fits again from the operator tables, so that no data of H100 or A100 can be in a curve. Writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from calibration.laboratory.fits.attention_fit import KERNELS, fit_system, predict, relative_errors
from calibration.laboratory.fits.attention_tables import ENGINE_FOLDERS, GPUS
from calibration.laboratory.fits.collective_fit import LINKS, errors_of, fit_all_reduce, read_all_reduce
from calibration.laboratory.fits.gemm_fit import GemmFit, fit_gemm, predict_seconds, scale_to
from calibration.laboratory.fits.gemm_report import HOPPER_GEMMS, SCALE_SHARE, SCALED, TESTED, TRAINED, GemmCase, device
from calibration.laboratory.fits.gemm_tables import gemm_rows
from simserve.perf.efficiency import Array

LIMITS = {"bfloat16": 0.06, "fp8": 0.10, "decode": 0.08, "prefill": 0.10, "all-reduce": 0.12, "scaled": 0.10}
"""Largest allowed median absolute error of each class of operators."""

FRAMEWORKS = tuple(ENGINE_FOLDERS)
"""Engines that have tables."""

SHORTEST_SECONDS = 10e-6
"""Least time of calls counted in errors: shorter ones are start-up time."""

_SYSTEMS = {TRAINED: "h200_sxm", TESTED: "h100_sxm", SCALED: "a100_sxm"}


def operator_errors(kernels: Path, frameworks: Sequence[str] = FRAMEWORKS) -> list[dict[str, Any]]:
    """Return one row per operator and framework: matrix products, decode and prefill attention, all-reduce.

    Args:
        kernels: Folder that holds ``aiconfigurator/``.
        frameworks: Frameworks whose kernels are tested.

    Returns:
        ``operator framework fitted tested scale points median_ape mean_ape p90_ape bias limit``; errors are shares,
        ``bias`` the median signed one, ``scale`` the single factor if one was fitted, else None.

    Raises:
        InputError: A table is missing.
    """
    tables = kernels / "aiconfigurator"
    return [*_gemms(kernels, frameworks), *_attention(tables, frameworks), *_all_reduces(tables, frameworks)]


def _gemms(kernels: Path, frameworks: Sequence[str]) -> Iterator[dict[str, Any]]:
    folders = [ENGINE_FOLDERS[framework] for framework in frameworks]
    for case in HOPPER_GEMMS:
        if case.benchmark.framework not in folders:
            continue
        framework, name = case.benchmark.framework, f"GEMM {case.dtype}"
        trained, tested = (gemm_rows(kernels, gpu, framework, case.dtype) for gpu in (TRAINED, TESTED))
        fit = fit_gemm(trained, device(TRAINED, case.dtype), case.benchmark)
        predicted = predict_seconds(fit, tested, device(TESTED, case.dtype))
        limit = LIMITS[case.dtype.partition("_")[0]]
        yield _row(name, framework, TESTED, _signed(predicted, tested["seconds"].to_numpy()), limit)
        if case.dtype == "bfloat16":
            yield _scaled(case, kernels, fit)


def _scaled(case: GemmCase, kernels: Path, fit: GemmFit) -> dict[str, Any]:
    """Return the row of an A100: the H200 curve times one factor from 10 % of its calls, tested on the others."""
    gpu, rows = device(SCALED, case.dtype), gemm_rows(kernels, SCALED, case.benchmark.framework, case.dtype)
    drawn = rows.sample(frac=SCALE_SHARE, random_state=0)
    scale, others = scale_to(fit, drawn, gpu), rows.drop(drawn.index)
    errors = _signed(scale * predict_seconds(fit, others, gpu), others["seconds"].to_numpy())
    return _row(f"GEMM {case.dtype}", case.benchmark.framework, SCALED, errors, LIMITS["scaled"], scale)


def _attention(tables: Path, frameworks: Sequence[str]) -> Iterator[dict[str, Any]]:
    trained, tested = _SYSTEMS[TRAINED], _SYSTEMS[TESTED]
    kernels = [kernel for kernel in KERNELS if kernel.engine in frameworks]
    for kernel, curves in fit_system(tables, trained, kernels).items():
        for phase, curve in curves.items():
            calls = kernel.calls(tables, tested, phase)
            if calls is None or (phase == "prefill" and kernel.min_group > 1):
                continue  # one prompt kernel for every group: its rows are those of groups of one
            what = f"{phase} attention, {'MLA' if kernel.kind == 'latent' else f'{kernel.kv_bits}-bit KV'}"
            if kernel.kind == "latent":
                what = f"{what} {kernel.kv_bits}-bit"
            if phase == "decode" and np.isfinite(kernel.max_group):
                groups = (
                    f"{kernel.min_group} to {kernel.max_group:g} query heads"
                    if kernel.min_group > 1
                    else "one query head"
                )
                what = f"{what}, {groups} a key head"
            errors = relative_errors(predict(curve, calls, GPUS[tested]), calls)
            yield _row(what, kernel.engine, TESTED, errors, LIMITS[phase])


def _all_reduces(tables: Path, frameworks: Sequence[str]) -> Iterator[dict[str, Any]]:
    for engine in frameworks:
        curve = fit_all_reduce(tables, _SYSTEMS[TRAINED], engine)
        calls = read_all_reduce(tables, _SYSTEMS[TESTED], engine)
        if curve is not None and calls is not None:
            errors = errors_of(curve, calls, LINKS[_SYSTEMS[TESTED]])
            yield _row("all-reduce", engine, TESTED, errors, LIMITS["all-reduce"])


def _signed(predicted: Array, measured: Array) -> Array:
    return np.asarray((predicted / measured - 1.0)[measured > SHORTEST_SECONDS])


def _row(
    operator: str, framework: str, tested: str, errors: Array, limit: float, scale: float | None = None
) -> dict[str, Any]:
    absolute = np.abs(errors)
    return {
        "operator": operator,
        "framework": "tensorrt-llm" if framework == "trtllm" else framework,
        "fitted": TRAINED,
        "tested": tested,
        "scale": scale,
        "points": len(errors),
        "median_ape": float(np.median(absolute)),
        "mean_ape": float(absolute.mean()),
        "p90_ape": float(np.quantile(absolute, 0.9)),
        "bias": float(np.median(errors)),
        "limit": limit,
    }
