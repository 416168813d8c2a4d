"""Fits the kernels of a run kind by kind: which calls, which form, how many are enough. Writes no profile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pandas as pd

from simserve.calibrate import curve_forms as forms
from simserve.calibrate.curve_regressor import CurveForm, CurveRegressor
from simserve.calibrate.kernels import points
from simserve.calibrate.run_folder import KernelRun
from simserve.perf.efficiency import Array
from simserve.profiles.hardware import HardwareProfile

MIN_POINTS = 10  # Least number of calls of a kind of kernels: three for each constant, and one more.
ALWAYS_PLANNED = ("products bfloat16", "prefill attention", "decode attention", "element-wise", "copies")
"""Kinds that are measured for every model and number format."""

TILE_CHOICES: tuple[Mapping[str, float], ...] = (
    {"min_tile_rows": 64, "max_tile_rows": 64},
    {"min_tile_rows": 64, "max_tile_rows": 256, "max_splits": 1},
    {"min_tile_rows": 16, "max_tile_rows": 16},
    *({"min_tile_rows": 1, "max_tile_rows": 1, "overlap": overlap} for overlap in (1.0, 1.5, 2.0, 3.0)),
)
"""Tiles tried in addition to those of a base profile: cuBLAS's 64 rows, CUTLASS's that grow and do not split the
reduction, the 16 of weight-only kernels, and a CPU's 1, whose core overlaps loads with arithmetic partly or not."""

HELD_SHAPE = ("loop_overhead", "wave_quantisation", "overlap", "max_splits", "min_tile_rows", "max_tile_rows")
"""Fixed constants of products: from a base profile's curve or `TILE_CHOICES`, whichever fits best."""


@dataclass(frozen=True, slots=True)
class FittedKind:
    """One kind of kernels."""

    name: str  # Name in reports, such as ``products bfloat16``.
    table: str  # Table of the run.
    number_format: str  # Number format of products; empty for others.
    regressor: CurveRegressor  # The fitted curve.
    shape: Mapping[str, Any]  # Constants that were fixed.
    calls: pd.DataFrame  # Calls it was fitted to.

    @property
    def seconds(self) -> Array:
        """Seconds of the calls."""
        return self.calls["seconds"].to_numpy(dtype=np.float64)

    @property
    def range(self) -> str:
        """Sizes that the calls cover."""
        names = [name for name in _SIZES[self.table] if name in self.calls]
        reach = [f"{name} {self.calls[name].min():g} to {self.calls[name].max():g}" for name in names]
        return ", ".join(reach)


_SIZES: Mapping[str, tuple[str, ...]] = {
    points.GEMM: ("m", "n", "k"),
    points.PREFILL: ("batch_size", "isl", "num_heads", "head_dim"),
    points.DECODE: ("batch_size", "step", "num_key_value_heads", "head_dim"),
    points.MOE: ("num_tokens", "num_experts", "hidden_size", "inter_size"),
    points.ELEMENTWISE: ("m", "width"),
    points.COPY: ("bytes",),
    points.ALL_REDUCE: ("num_gpus", "message_size"),
}


class KernelFit:
    """The curves of a device from a run of its kernels.

    Args:
        base: Profile of the same GPU, whose tiles and shapes of products are also tried; None: only class defaults.

    Attributes:
        kinds_: Name -> fitted kind.
        not_fitted_: Name -> why it was not fitted.
    """

    kinds_: dict[str, FittedKind]
    not_fitted_: dict[str, str]

    def __init__(self, base: HardwareProfile | None = None) -> None:
        self.base = base

    def fit(self, run: KernelRun) -> Self:
        """Fit every kind of kernels that has enough calls."""
        self.kinds_, self.not_fitted_ = {}, {}
        cores = self._cores(run)
        for name in points.FORMATS:
            self._fit_products(run, name, cores)
        attention_cores = self._attention_cores(run)
        self._fit_table(run, "prefill attention", points.PREFILL, forms.prefill_form)
        self._fit_table(run, "decode attention", points.DECODE, lambda: forms.decode_form(attention_cores))
        self._fit_table(run, "routed experts", points.MOE, lambda: forms.expert_form(cores))
        table = run.tables.get(points.ELEMENTWISE, pd.DataFrame({"op_name": []}))
        is_sampling = table["op_name"] == points.SAMPLING
        for title, chosen in (("element-wise", ~is_sampling), ("sampling", is_sampling)):
            calls = table[chosen].reset_index(drop=True)
            if self._is_enough(title, calls):
                regressor = self._regressor(forms.elementwise_form(), calls)
                self.kinds_[title] = FittedKind(title, points.ELEMENTWISE, "", regressor, {}, calls)
        self._fit_table(run, "copies", points.COPY, forms.copy_form)
        self._fit_table(run, "all-reduce", points.ALL_REDUCE, forms.all_reduce_form)
        return self

    def _fit_products(self, run: KernelRun, name: str, cores: int) -> None:
        title = f"products {name}"
        table = run.tables.get(points.GEMM, pd.DataFrame({"gemm_dtype": []}))
        calls = table[table["gemm_dtype"] == name].reset_index(drop=True)
        if not self._is_enough(title, calls):
            return
        curves = self.base.gemm_curves.get(forms.CLASS_OF[name], ()) if self.base is not None else ()
        shapes = [{key: getattr(curve, key) for key in HELD_SHAPE} for curve in curves] + list(TILE_CHOICES)
        seconds = calls["seconds"].to_numpy(dtype=np.float64)
        tried = [CurveRegressor(forms.product_form(name, cores, shape), num_folds=0) for shape in shapes]
        errors = [float(np.median(np.abs(np.log1p(each.fit(calls, seconds).errors_)))) for each in tried]
        shape = shapes[int(np.argmin(errors))]
        regressor = self._regressor(forms.product_form(name, cores, shape), calls)
        self.kinds_[title] = FittedKind(title, points.GEMM, name, regressor, shape, calls)

    def _fit_table(self, run: KernelRun, title: str, table: str, form: Callable[[], CurveForm]) -> None:
        calls = run.tables.get(table, pd.DataFrame())
        if self._is_enough(title, calls):
            self.kinds_[title] = FittedKind(title, table, "", self._regressor(form(), calls), {}, calls)

    def _regressor(self, form: CurveForm, calls: pd.DataFrame) -> CurveRegressor:
        return CurveRegressor(form).fit(calls, calls["seconds"].to_numpy(dtype=np.float64))

    def _is_enough(self, title: str, calls: pd.DataFrame) -> bool:
        if len(calls) >= MIN_POINTS:
            return True
        if len(calls) or title in ALWAYS_PLANNED:
            self.not_fitted_[title] = f"{len(calls)} calls, {MIN_POINTS} are needed"
        return False

    def _cores(self, run: KernelRun) -> int:
        """Return the multiprocessors that tiles are distributed to; 1 for a CPU, whose threads share every tile."""
        if self.base is not None and self.base.compute.num_multiprocessors:
            return self.base.compute.num_multiprocessors
        device = run.provenance["device"]
        return int(device["num_multiprocessors"]) if device["kind"] == "cuda" else 1

    def _attention_cores(self, run: KernelRun) -> int:
        if self.base is not None and self.base.attention_curves is not None:
            return self.base.attention_curves.num_multiprocessors
        return int(run.provenance["device"]["num_multiprocessors"])
