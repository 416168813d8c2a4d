"""Rounding weights to integers: what a symmetric format makes of given values. Knows no model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simserve.perf.efficiency import Array


@dataclass(frozen=True, slots=True)
class QuantizedValues:
    """Values rounded to signed integers with one scale.

    Attributes:
        scale: Value of one code step.
        codes: Integers.
        largest_error: Largest absolute difference between a value and ``code * scale``.
    """

    scale: float
    codes: tuple[int, ...]
    largest_error: float


def quantize_symmetric(values: Sequence[float], bits: int) -> QuantizedValues:
    """Return ``values`` rounded to signed integers with ``scale = max |value| / (2^(bits-1) - 1)``."""
    array: Array = np.asarray(values, dtype=np.float64)
    largest_code = 2 ** (bits - 1) - 1
    scale = float(np.max(np.abs(array))) / largest_code or 1.0
    codes = np.rint(array / scale)
    return QuantizedValues(scale, tuple(int(code) for code in codes), float(np.max(np.abs(array - codes * scale))))
