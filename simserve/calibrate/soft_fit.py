"""The search that every fit of a kernel's time ends in: least soft-L1 error of its logarithm, within bounds.

Knows numbers alone: what the constants are, and in which units they are searched for, is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from simserve.perf.efficiency import Array


@dataclass(frozen=True, slots=True)
class SoftFit:
    """Where a search ended.

    Attributes:
        values: The constants, in the caller's units.
        cost: Half the sum of soft squares there.
    """

    values: Array
    cost: float


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
        measured: Seconds that they took.
        first: Where the search starts.
        low: Least values.
        high: Greatest values.
        soft_error: Relative error beyond which a call counts linearly, so that odd kernels do not pull the curve.
        step: Relative steps of the derivatives; None: those of `scipy.optimize.least_squares`.
        max_predictions: Most predictions, derivatives aside; None: 100 a constant.
    """

    def errors(values: Array) -> Array:
        return np.asarray(np.log(predict(values) / measured))

    found = least_squares(
        errors,
        first,
        bounds=(low, high),
        loss="soft_l1",
        f_scale=soft_error,
        diff_step=step,
        max_nfev=max_predictions,
    )
    return SoftFit(found.x, float(found.cost))
