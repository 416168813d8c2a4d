"""Figures that may be undefined: NaN in the code, null in what leaves it. Knows no metric."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def ratio(numerator: float, denominator: float) -> float:
    """Return a quotient; NaN where the denominator, which is never below 0, is 0."""
    return float(numerator) / float(denominator) if denominator > 0 else math.nan


def rows_where(counted: NDArray[np.bool_]) -> NDArray[np.bool_] | slice:
    """Return what selects the rows that count: where all do, a slice, with which nothing is copied."""
    return slice(None) if counted.all() else counted


def or_null(figure: float) -> float | None:
    """Return a figure as JSON has it: None where it is undefined or unbounded."""
    return figure if math.isfinite(figure) else None


def in_json(value: Any) -> Any:
    """Return a value in what JSON knows: undefined and unbounded numbers become None, numpy's scalars plain ones."""
    if isinstance(value, Mapping):
        return {str(key): in_json(each) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [in_json(each) for each in value]
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return or_null(float(value))
    return value


def at(summary: Mapping[str, Any], key: str) -> Any:
    """Return what stands at a dotted key of a summary.

    Raises:
        KeyError: Nothing does.
    """
    value: Any = summary
    for part in key.split("."):
        value = value[part]
    return value


def figure_at(summary: Mapping[str, Any], key: str) -> float | None:
    """Return the figure at a dotted key of a summary; None where it is undefined.

    Raises:
        KeyError: Nothing stands there.
    """
    value = at(summary, key)
    return None if value is None else float(value)
