"""Fits the few physical constants of a kernel's time, with intervals and errors on calls it has not seen.

Follows scikit-learn: the constructor takes the estimator's parameters, ``fit`` returns self, and names of results end
in an underscore. Every fit uses one search (`soft_fit`): least soft-L1 error of the logarithm of the time, within
bounds. Knows forms and numbers; no kernel, no profile.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import least_squares
from scipy.stats import f as f_distribution
from scipy.stats import t as student

from simserve.errors import InputError
from simserve.perf.efficiency import Array

SOFT_ERROR = 0.15
"""Relative error beyond which a call counts linearly (soft L1): three times the noise of a good measurement."""

SHOWN = 0.5  # Least share of a constant's direction that the calls must resolve (diagonal of the resolution matrix).
CONFIDENCE = 0.95

DIFFERENCE = 1e-5  # Step of the logarithms of constants by which derivatives of the errors are taken.
RATE = "_per_s"  # Suffix of the names of rates.
GRID = (0.01, 0.1, 1.0, 10.0, 100.0)
"""Factors on the initial values of rates from which a search may start: from a laptop's CPU to a large GPU. Times start
from that of the shortest call."""

TRIED_PLACES = 3  # Points of the grid that a search starts from, each with a different memory rate.
MAX_PREDICTIONS = 200  # Most predictions of one search, not counting derivatives.
SIGNIFICANCE = 0.99  # Quantile of the F distribution that a further constant must exceed to be fitted.
Values = Mapping[str, float]
Sizes = tuple[Array, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveForm:
    """The time of a kernel as a function of sizes and constants, all constants above 0."""

    start: Mapping[str, float]  # Constant -> where the search starts; these are always fitted.
    read: Callable[[pd.DataFrame], Sizes]
    """Reads what the seconds depend on from the table of calls, once for all constants that a search tries."""
    seconds: Callable[[Sizes, Values], Array]  # Seconds of calls, from the result of ``read`` and the constants.
    groups: Callable[[pd.DataFrame], NDArray[np.int64]]
    """Index of the group of each call: calls of one group are held out together."""
    further: Mapping[str, float] = field(default_factory=dict)
    """Constant -> value at which it has no effect; fitted only where that predicts better."""
    further_start: Mapping[str, float] = field(default_factory=dict)  # Constant -> where the search starts for it.
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Constant -> least and greatest value, where there are any."""

    def predict(self, calls: pd.DataFrame, values: Values) -> Array:
        """Return the seconds of calls from their table and the constants."""
        return self.seconds(self.read(calls), values)


class CurveRegressor:
    """Seconds of calls from a form whose constants are fitted to measured calls.

    The fit minimises the soft-L1 error of ``log(predicted / measured)``. Intervals hold for all constants of the curve
    at once (Bonferroni), from the larger of two variances: that of equal noise, and that of the sandwich with
    leave-one-out residuals (HC3; MacKinnon and White, 1985), which does not assume equal noise. They do not show where
    the form is wrong; the held-out error does.

    Args:
        num_folds: Parts that are held out in turn; 0: no held-out error.

    Attributes:
        constants_: Name -> value, also of further constants that were not worth fitting.
        fitted_: Names of those that were fitted.
        intervals_: Name -> ends of its 95 % interval.
        num_points_: Calls it was fitted on.
        errors_: Predicted over measured minus 1, in sample.
        median_error_: Median of their absolute values.
        held_out_error_: The same for calls that were held out in turn; None without folds.
        held_out_p90_error_: 90th percentile of the held-out errors.
        bias_: Mean of the logarithm of predicted over measured, in sample.
    """

    constants_: dict[str, float]
    fitted_: tuple[str, ...]
    intervals_: dict[str, tuple[float, float]]
    num_points_: int
    errors_: Array
    median_error_: float
    held_out_error_: float | None
    held_out_p90_error_: float | None
    bias_: float

    def __init__(self, form: CurveForm, *, num_folds: int = 5) -> None:
        self.form = form
        self.num_folds = num_folds

    def fit(self, calls: pd.DataFrame, seconds: Array) -> Self:
        """Find the constants.

        Args:
            calls: One row per call, with the columns that the form reads.

        Raises:
            InputError: There are fewer calls than constants.
        """
        names = list(self.form.start)
        if len(calls) <= len(names):
            raise InputError(f"are too few for {len(names)} constants", key="calls", value=len(calls))
        found = self._searched(calls, seconds, names)
        for name in self.form.further:
            wider = self._solve(calls, seconds, [*names, name], found.constants)
            if self._is_worthwhile(calls, seconds, found, wider):
                names, found = [*names, name], wider
        self._keep(calls, seconds, found)
        held_out = self._held_out(calls, seconds, found)
        self.held_out_error_ = None if held_out is None else float(np.median(np.abs(held_out)))
        self.held_out_p90_error_ = None if held_out is None else float(np.quantile(np.abs(held_out), 0.9))
        return self

    def predict(self, calls: pd.DataFrame) -> Array:
        """Return the seconds of calls."""
        return self.form.predict(calls, self.constants_)

    def _is_worthwhile(self, calls: pd.DataFrame, seconds: Array, found: _Solution, wider: _Solution) -> bool:
        """Return whether a further constant explains more than chance and predicts held-out calls no worse."""
        freedom = len(calls) - len(wider.names)
        if freedom < 1:
            return False
        gain = (found.cost - wider.cost) / max(wider.cost / freedom, 1e-300)
        if gain < f_distribution.ppf(SIGNIFICANCE, 1, freedom):
            return False
        before, after = (self._held_out(calls, seconds, each) for each in (found, wider))
        return before is None or (after is not None and np.median(np.abs(after)) <= np.median(np.abs(before)))

    def _keep(self, calls: pd.DataFrame, seconds: Array, found: _Solution) -> None:
        names, constants = found.names, found.constants
        self.constants_, self.fitted_, self.num_points_ = constants, tuple(names), len(calls)
        spread = _standard_errors(found.jacobian(), found.errors)
        quantile = student.ppf(0.5 + 0.5 * (1.0 - (1.0 - CONFIDENCE) / len(names)), len(calls) - len(names))
        reach = np.exp(np.minimum(quantile * spread, 50.0))
        self.intervals_ = {
            name: (constants[name] / float(each), constants[name] * float(each))
            for name, each in zip(names, reach, strict=True)
        }
        self.errors_ = self.predict(calls) / seconds - 1.0
        self.median_error_ = float(np.median(np.abs(self.errors_)))
        self.bias_ = float(np.mean(found.errors))

    def _searched(self, calls: pd.DataFrame, seconds: Array, names: Sequence[str]) -> _Solution:
        """Return the best of the solutions from the best points of a coarse grid.

        Arithmetic and memory rates can hide each other, so the error has more than one minimum.
        """
        form, measured = self.form, np.log(seconds)
        shortest = float(seconds.min())
        firsts = [
            tuple(form.start[name] * each for each in GRID) if name.endswith(RATE) else (shortest,) for name in names
        ]
        places = [dict(zip(names, values, strict=True)) for values in itertools.product(*firsts)]
        neutral, sizes = dict(form.further), form.read(calls)
        errors = [np.abs(np.log(form.seconds(sizes, neutral | place)) - measured).sum() for place in places]
        best: dict[float, dict[str, float]] = {}  # the best one for each value of the last rate, best first
        for number in np.argsort(errors, kind="stable"):
            best.setdefault(places[number][names[-1]], places[number])
        tried = list(best.values())[:TRIED_PLACES]
        return min((self._solve(calls, seconds, names, place) for place in tried), key=lambda each: each.cost)

    def _solve(self, calls: pd.DataFrame, seconds: Array, names: Sequence[str], near: Values) -> _Solution:
        """Return the constants with the least error, searched from ``near``; those not fitted have no effect."""
        form, sizes = self.form, self.form.read(calls)
        first = {
            **near,
            **{name: form.further_start[name] for name in names if near.get(name) == form.further.get(name)},
        }
        neutral = {name: value for name, value in form.further.items() if name not in names}

        def given(logarithms: Array) -> dict[str, float]:
            return neutral | dict(zip(names, np.exp(logarithms).tolist(), strict=True))

        def predict(logarithms: Array) -> Array:
            return form.seconds(sizes, given(logarithms))

        def residuals(logarithms: Array) -> Array:
            return np.asarray(np.log(predict(logarithms) / seconds))

        low, high = (np.log([form.bounds.get(name, (1e-12, 1e18))[side] for name in names]) for side in (0, 1))
        begin = np.clip(np.log([first[name] for name in names]), low + 1e-9, high - 1e-9)
        found = soft_fit(
            predict, seconds, first=begin, low=low, high=high, soft_error=SOFT_ERROR, max_predictions=MAX_PREDICTIONS
        )
        return _Solution(list(names), given(found.values), residuals, found.values, found.cost)

    def _held_out(self, calls: pd.DataFrame, seconds: Array, whole: _Solution) -> Array | None:
        """Return the relative errors of calls whose group was left out of the fit; None where too few calls remain."""
        if self.num_folds < 2:
            return None
        fold = self.form.groups(calls) % self.num_folds
        errors = np.full(len(calls), np.nan)
        for number in np.unique(fold):
            out = fold == number
            if np.count_nonzero(~out) <= len(whole.names):
                return None
            constants = self._solve(calls[~out], seconds[~out], whole.names, whole.constants).constants
            errors[out] = self.form.predict(calls[out], constants) / seconds[out] - 1.0
        return errors if len(np.unique(fold)) > 1 else None


@dataclass(frozen=True, slots=True)
class _Solution:
    """Constants at the end of a search."""

    names: list[str]  # Constants that were searched for.
    constants: dict[str, float]  # All, by name.
    residuals: Callable[[Array], Array]  # Errors of the logarithms as a function of the logarithms of ``names``.
    at: Array  # Where it ended.
    cost: float  # Half the sum of soft squares there.

    @property
    def errors(self) -> Array:
        """Logarithm of predicted over measured."""
        return self.residuals(self.at)

    def jacobian(self) -> Array:
        """Return the derivatives of the errors."""
        columns = [self.residuals(self.at + DIFFERENCE * unit) - self.errors for unit in np.eye(len(self.at))]
        return np.stack(columns, axis=1) / DIFFERENCE


def _standard_errors(jacobian: Array, residuals: Array) -> Array:
    """Return the standard errors of the logarithms of the constants, soft L1: the larger of HC3 and equal noise.

    Infinite for a constant on which no residual depends.
    """
    relative = (residuals / SOFT_ERROR) ** 2
    weight, curvature = (1.0 + relative) ** -0.5, (1.0 + relative) ** -1.5
    information = (jacobian * curvature[:, None]).T @ jacobian
    inverse = np.linalg.pinv(information)
    leverage = np.einsum("ij,jk,ik->i", jacobian, inverse, jacobian) * curvature
    influence = weight * residuals
    scores = jacobian * (influence / np.maximum(1.0 - leverage, 0.05))[:, None]
    sandwich = inverse @ (scores.T @ scores) @ inverse
    freedom = max(len(residuals) - jacobian.shape[1], 1)
    equal = float(influence @ influence) / freedom * (inverse @ jacobian.T @ jacobian @ inverse)
    errors = np.sqrt(np.maximum(np.maximum(np.diag(sandwich), np.diag(equal)), 0.0))
    is_shown = np.diag(inverse @ information) > SHOWN
    return np.where(is_shown, errors, np.inf)


def group_numbers(calls: pd.DataFrame, *columns: str) -> NDArray[np.int64]:
    """Return the index of each call's group: calls with the same values in the columns form one group."""
    return np.asarray(calls.groupby(list(columns)).ngroup(), dtype=np.int64)


@dataclass(frozen=True, slots=True)
class SoftFit:
    """Where a search ended."""

    values: Array  # The constants, in the caller's units.
    cost: float  # Half the sum of soft squares there.


def soft_fit(
    predict: Callable[[Array], Array],
    measured: Array,
    *,
    first: Array,
    low: Array,
    high: Array,
    soft_error: float,
    step: Array | None = None,
    max_predictions: int | None = None,
) -> SoftFit:
    """Return the constants with the least soft-L1 error of ``log(predicted / measured)``.

    Args:
        predict: Seconds of the calls, from constants.
        first: Where the search starts.
        soft_error: Relative error beyond which a call counts linearly, so that odd kernels do not distort the curve.
        step: Relative steps of the derivatives; None: those of `scipy.optimize.least_squares`.
        max_predictions: Most predictions, not counting derivatives; None: 100 per constant.
    """

    def errors(values: Array) -> Array:
        return np.asarray(np.log(predict(values) / measured))

    found = least_squares(
        errors, first, bounds=(low, high), loss="soft_l1", f_scale=soft_error, diff_step=step, max_nfev=max_predictions
    )
    return SoftFit(found.x, float(found.cost))
