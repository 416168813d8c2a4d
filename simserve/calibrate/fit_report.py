"""Report of a fit: constants with intervals, errors, what was not fitted, whether operators add up to whole layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from simserve.calibrate import curve_forms as forms
from simserve.calibrate.device_factors import KEPT, NOT_OF_ENGINES, device_factors
from simserve.calibrate.fitted_profile import constant_words, interval_words
from simserve.calibrate.kernel_fit import FittedKind, KernelFit
from simserve.calibrate.kernels import points
from simserve.calibrate.run_folder import KernelRun
from simserve.calibrate.run_report import clock_lines, ending_line, spread_line
from simserve.perf.efficiency import Array
from simserve.profiles.model import ModelProfile

_WORDS = {
    forms.START: "start",
    forms.WAVE: "waves",
    forms.DOUBLING: "start a doubling of the ranks",
    forms.COMPUTE: "compute rate",
    forms.TILE_RATE: "longest tile",
    forms.MEMORY: "memory rate",
    forms.SUSTAINED: "sustained rate",
    forms.ROUNDING: "rounding of inputs",
}

WIDE = 0.5  # Half-width of an interval, divided by the value, above which the calls do not determine a constant.


@dataclass(frozen=True, slots=True)
class RooflineSeries:
    """Calls of one kind on a roofline plot."""

    name: str  # Kind.
    intensity: Array  # FLOP per byte.
    measured: Array  # FLOP/s.
    fitted: Array  # FLOP/s by the curve.
    peak: float  # FLOP/s of its dtype in the profile.


def fit_summary(run: KernelRun, fit: KernelFit, models: Sequence[ModelProfile]) -> dict[str, Any]:
    """Return what ``simserve calibrate fit --json`` prints, without the files."""
    return {
        "run": run.folder.name,
        "device": run.provenance["device_name"],
        "base": None if fit.base is None else fit.base.name,
        "is_complete": run.is_complete,
        "ended": run.provenance["ended"],
        "points": run.num_points,
        "planned_points": run.provenance["planned_points"],
        "kinds": {name: _kind(kind) for name, kind in fit.kinds_.items()},
        "device_factors": {name: asdict(each) for name, each in device_factors(fit).items()},
        "not_fitted": fit.not_fitted_,
        "layers": layer_errors(run, fit, models),
        "launch_s": launch_seconds(run),
    }


def _kind(kind: FittedKind) -> dict[str, Any]:
    regressor = kind.regressor
    constants = {
        name: {
            "value": regressor.constants_[name],
            "low": regressor.intervals_[name][0],
            "high": regressor.intervals_[name][1],
            "unit": forms.UNITS[name],
        }
        for name in regressor.fitted_
    }
    return {
        "points": regressor.num_points_,
        "constants": constants,
        "held": dict(kind.shape),
        "median_error": regressor.median_error_,
        "held_out_error": regressor.held_out_error_,
        "held_out_p90_error": regressor.held_out_p90_error_,
        "bias": regressor.bias_,
        "range": kind.range,
    }


def warnings(run: KernelRun, fit: KernelFit) -> list[str]:
    """Return what a reader must not miss: an incomplete run, unfitted kinds, constants that no call determines."""
    lines = [] if run.is_complete else [f"the run is {ending_line(run)}; the fit knows no others"]
    lines += [line for line in clock_lines(run) if line.startswith("throttled")]
    lines += [line for line in [spread_line(run)] if line]
    sojourns = "stays at the curves of the base profile" if fit.base is not None else "stays at class efficiencies"
    lines += [f"{name} {sojourns}: {why}" for name, why in fit.not_fitted_.items()]
    for name, kind in fit.kinds_.items():
        if kind.number_format in NOT_OF_ENGINES:
            lines.append(f"{name} {sojourns}, though fitted: {NOT_OF_ENGINES[kind.number_format]}")
    if fit.base is not None:
        kept = {name: each for name, each in device_factors(fit).items() if each.action == KEPT}
        lines += [f"{name} stays at the curves of the base profile: {each.why}" for name, each in kept.items()]
    if ("prefill attention" in fit.kinds_) != ("decode attention" in fit.kinds_):
        lines.append(f"attention {sojourns}: it needs prefill and decode calls")
    for name, kind in fit.kinds_.items():
        loose = [each for each in kind.regressor.fitted_ if _half_width(kind, each) > WIDE]
        lines += [f"{name}: the calls hardly show its {_WORDS[each]} ({interval_words(kind, each)})" for each in loose]
    return lines


def _half_width(kind: FittedKind, name: str) -> float:
    low, high = kind.regressor.intervals_[name]
    return (high - low) / (2.0 * kind.regressor.constants_[name])


def table_rows(fit: KernelFit) -> list[tuple[str, ...]]:
    """Return one row per kind: constants with intervals, calls, errors."""
    rows: list[tuple[str, ...]] = []
    for name, kind in fit.kinds_.items():
        found = kind.regressor
        words = [_with_interval(kind, each) for each in (forms.START, forms.COMPUTE, forms.MEMORY)]
        held_out = "" if found.held_out_error_ is None else f"{found.held_out_error_:.1%}"
        rows.append((name, str(found.num_points_), *words, f"{found.median_error_:.1%}", held_out))
    return rows


def _with_interval(kind: FittedKind, name: str) -> str:
    if name not in kind.regressor.fitted_:
        return ""
    width = _half_width(kind, name)
    reach = f"±{width:.0%}" if width < 2.0 else "(not shown)"
    return f"{constant_words(name, kind.regressor.constants_[name])} {reach}"


def layer_errors(run: KernelRun, fit: KernelFit, models: Sequence[ModelProfile]) -> dict[str, Any]:
    """Return how far the sum of a layer's operators is from whole layers, which are not fitted, by mode.

    Eager layers include the host's launches where these take longer than the kernels.
    """
    layers = run.tables.get(points.LAYER, pd.DataFrame())
    needed = ("products bfloat16", "prefill attention", "decode attention", "element-wise")
    if layers.empty or any(name not in fit.kinds_ for name in needed):
        return {}
    by_name = {model.name: model for model in models}
    found: dict[str, Any] = {}
    for mode, calls in layers.groupby("mode"):
        known = calls[calls["model"].isin(list(by_name))]
        if known.empty:
            continue
        predicted = np.array([_layer_seconds(fit, by_name[row["model"]], row) for _, row in known.iterrows()])
        errors = predicted / known["seconds"].to_numpy(dtype=np.float64) - 1.0
        found[str(mode)] = {
            "calls": len(known),
            "median_error": float(np.median(np.abs(errors))),
            "bias": float(np.median(errors)),
        }
    return found


def _layer_seconds(fit: KernelFit, model: ModelProfile, row: pd.Series[Any]) -> float:
    is_decode, length = row["phase"] == "decode", float(row["length"])
    tokens = float(row["batch_size"]) if is_decode else length
    dense = next(layer for layer in range(model.num_hidden_layers) if not model.is_moe_layer(layer))
    gemms = [*model.attention_gemms(1), *model.mlp_gemms(dense, 1)]
    products = pd.DataFrame([{"m": tokens, "n": gemm.out_features, "k": gemm.in_features} for gemm in gemms])
    heads = {
        "num_heads": model.num_attention_heads,
        "num_key_value_heads": model.num_key_value_heads,
        "head_dim": model.head_dim,
    }
    attention = pd.DataFrame([{"batch_size": row["batch_size"], "step": length - 1.0, "isl": length, **heads}])
    turned = (model.num_attention_heads + model.num_key_value_heads) * model.head_dim
    passing = [("rms_norm", model.hidden_size), ("add", model.hidden_size)] * 2
    passing += [("rotary", turned), ("silu_and_mul", model.intermediate_size)]
    elementwise = pd.DataFrame(
        [{"op_name": name, "m": tokens, "width": width, "kernels": points.LAUNCHES[name]} for name, width in passing]
    )
    parts = (
        ("products bfloat16", products),
        ("decode attention" if is_decode else "prefill attention", attention),
        ("element-wise", elementwise),
    )
    return float(sum(fit.kinds_[name].regressor.predict(calls).sum() for name, calls in parts))


def launch_seconds(run: KernelRun) -> dict[str, float]:
    """Return the host's seconds per launch by mode."""
    launches = run.tables.get(points.LAUNCH, pd.DataFrame())
    return {} if launches.empty else {str(row["mode"]): float(row["seconds"]) for _, row in launches.iterrows()}


def roofline_series(fit: KernelFit, peaks: Mapping[str, float]) -> list[RooflineSeries]:
    """Return the measured and the fitted calls of products, attention and experts.

    Args:
        peaks: FLOP/s of the profile by dtype.
    """
    series = []
    for name, kind in fit.kinds_.items():
        if kind.table not in (points.GEMM, points.PREFILL, points.DECODE, points.MOE):
            continue
        sizes = {str(column): kind.calls[column].to_numpy() for column in kind.calls}
        flops, num_bytes = points.work_of(kind.table, sizes | {"gemm_dtype": kind.number_format})
        peak = peaks.get(forms.PEAK_OF.get(kind.number_format, "bf16"), 0.0)
        fitted = flops / kind.regressor.predict(kind.calls)
        series.append(RooflineSeries(name, flops / num_bytes, flops / kind.seconds, fitted, peak))
    return series


def profile_header(run: KernelRun, fit: KernelFit, command: str) -> str:
    """Return the comment at the top of the written profile."""
    lines = [
        f"Hardware profile of {run.provenance['device_name']}, fitted by: {command}",
        f"Run {Path(run.folder).resolve().name}: {ending_line(run)}.",
        *warnings(run, fit),
    ]
    return "".join(f"# {line}\n" for line in lines)
