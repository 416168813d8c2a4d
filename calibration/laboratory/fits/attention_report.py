"""Writes the fitted attention curves as blocks of profiles, and their errors, in and out of sample.

Rerun on tables in the layout of NVIDIA's AIConfigurator (``<system>/<family>/<backend>/<version>/*.parquet``)::

    python -m calibration.laboratory.fits.attention_report FOLDER            # error tables, Markdown
    python -m calibration.laboratory.fits.attention_report FOLDER h200_sxm   # the block of a profile, YAML
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from calibration.laboratory.fits.attention_fit import (
    SMOOTH,
    Curve,
    Kernel,
    fit_system,
    predict,
    predict_affine,
    relative_errors,
    widest_calls,
)
from calibration.laboratory.fits.attention_tables import GPUS
from simserve.perf.efficiency import Array

TIMES = {
    "start": ("us", 1e6),
    "start_per_width": ("us", 1e6),
    "context_doubling": ("us", 1e6),
    "wave": ("us", 1e6),
    "wave_per_width": ("us", 1e6),
    "combine": ("us", 1e6),
    "query_element": ("ns", 1e9),
    "kv_element": ("ns", 1e9),
    "cache_bandwidth": ("TB/s", 1e-12),
}
"""Unit and factor of the constants that have one."""


def error_cells(errors: Array) -> str:
    """Return median, mean and p90 absolute error and median signed error, in percent, as table cells."""
    if len(errors) == 0:
        return "- | - | - | - | 0"
    size = np.abs(errors) * 100
    figures = (np.median(size), size.mean(), np.quantile(size, 0.9), np.median(errors) * 100)
    return " | ".join([*(f"{figure:.1f}" for figure in figures), f"{len(size):,}"])


def error_tables(root: Path) -> str:
    """Return the errors of curves fitted on H200 and tested on H100, and of those fitted and tested on A100."""
    lines = [
        "| kernel | phase | what | median % | mean % | p90 % | bias % | calls |",
        "|---|---|---|---|---|---|---|---|",
    ]
    h200 = fit_system(root, "h200_sxm")
    for kernel, curves in h200.items():
        for phase, curve in curves.items():
            for label, errors in _transfers(root, kernel, phase, curve):
                lines.append(f"| {_name(kernel)} | {phase} | {label} | {error_cells(errors)} |")
    for kernel, curves in fit_system(root, "a100_sxm").items():
        for phase, curve in curves.items():
            calls = kernel.calls(root, "a100_sxm", phase)
            assert calls is not None
            gpu = GPUS["a100_sxm"]
            own = relative_errors(predict(curve, calls, gpu), calls)
            lines.append(f"| {_name(kernel)} | {phase} | A100, in sample | {error_cells(own)} |")
    return "\n".join(lines)


def _transfers(root: Path, kernel: Kernel, phase: str, curve: Curve) -> list[tuple[str, Array]]:
    """Return the errors of a curve of H200: in sample, on H100, on H100 in the affine form, and with windows."""
    rows: list[tuple[str, Array]] = []
    for system, label in (("h200_sxm", "H200, in sample"), ("h100_sxm", "H100, out of sample")):
        calls = kernel.calls(root, system, phase)
        if calls is None:
            continue
        gpu = GPUS[system]
        rows.append((label, relative_errors(predict(curve, calls, gpu), calls)))
        if system == "h100_sxm":
            affine = relative_errors(predict_affine(curve, calls, gpu), calls)
            rows.append(("H100, affine form", affine))
        widest = widest_calls(root, system, kernel) if phase == "prefill" else None
        if widest is not None:
            label = label.replace(",", ", heads of 512,", 1)
            rows.append((label, relative_errors(predict(curve, widest, gpu), widest)))
    windowed = kernel.calls(root, "h100_sxm", phase, is_windowed=True) if kernel.kind == "heads" else None
    if windowed is not None:
        gpu = GPUS["h100_sxm"]
        rows.append(("H100, sliding window", relative_errors(predict(curve, windowed, gpu), windowed)))
    return rows


def _name(kernel: Kernel) -> str:
    heads = {"heads": "heads", "latent": "MLA"}[kernel.kind]
    group = f", groups of {kernel.min_group} to {kernel.max_group:g}" if np.isfinite(kernel.max_group) else ""
    return f"{kernel.engine} {heads}, {kernel.kv_bits}-bit KV{group}"


def profile_block(root: Path, system: str) -> str:
    """Return the ``attention_curves`` of a hardware profile as YAML."""
    gpu = GPUS[system]
    lines = [
        "attention_curves:",
        f"  num_multiprocessors: {gpu.num_multiprocessors}",
        f'  l2_cache: "{gpu.l2_cache / 1e6:g} MB"',
        "  kernels:",
    ]
    fitted = fit_system(root, system)
    for kernel, curves in fitted.items():
        lines.append(f"    - engine: {kernel.engine}")
        lines += [f"      kind: {kernel.kind}", f"      kv_bits: {kernel.kv_bits}"]
        if kernel.min_group > 1:
            lines.append(f"      min_group: {kernel.min_group}")
        for phase in curves:
            measured = _measured(kernel, phase)
            lines += _curve_lines(root, system, measured, phase, fitted[measured][phase])
    return "\n".join(lines)


EXPANDED_PROMPTS = "tensorrt-llm"
"""Engine whose table of MLA prompts holds expanded keys and values, as every engine computes prompts without a cached
prefix. SGLang's holds the absorbed form: 590 TFLOP/s on an H200 if counted that way, 175 if expanded."""


def _measured(kernel: Kernel, phase: str) -> Kernel:
    """Return the kernel whose table a profile uses for a phase."""
    if (kernel.kind, phase) == ("latent", "prefill"):
        return replace(kernel, engine=EXPANDED_PROMPTS)
    return kernel


def _curve_lines(root: Path, system: str, kernel: Kernel, phase: str, curve: Curve) -> list[str]:
    calls = kernel.calls(root, system, phase)
    assert calls is not None
    errors = relative_errors(predict(curve, calls, GPUS[system]), calls)
    names = [name for name in type(curve).model_fields if getattr(curve, name) != SMOOTH.get(name)]
    fields = ", ".join(f"{name}: {_value(name, getattr(curve, name))}" for name in names)
    reach = f"batch {calls.batch.max():g}, {calls.length.max():g} tokens"
    median = float(np.median(np.abs(errors)))
    return [
        f"      {phase}: {{{fields}}}",
        f'      {phase}_fit: {{points: {len(calls.seconds)}, median_error: {median:.3f}, valid_to: "{reach}"}}',
    ]


def _value(name: str, value: float | str) -> str:
    if isinstance(value, str):
        return value
    if name not in TIMES:
        return f"{value:.4g}"
    unit, factor = TIMES[name]
    return f'"{value * factor:.4g} {unit}"'


def main(arguments: list[str]) -> None:
    """Print the error tables, or the block of a profile."""
    root = Path(arguments[0])
    print(profile_block(root, arguments[1]) if len(arguments) > 1 else error_tables(root))


if __name__ == "__main__":
    main(sys.argv[1:])
