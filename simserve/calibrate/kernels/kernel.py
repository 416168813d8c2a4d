"""A kernel that is ready to be measured, and the check of its result in double precision. Knows no operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from simserve.calibrate.kernels.torch_device import Tensor

CHECKED_ROWS, CHECKED_COLUMNS = 8, 64
"""Rows and columns of a result that are recomputed for the check: whole dot products, but not all of them."""


class UnsupportedError(Exception):
    """This device or this PyTorch lacks a kernel; the message gives the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One call on one device."""

    call: Callable[[int], Any]  # Runs it on a copy of its inputs and returns the result.
    copies: int  # Number of copies of its inputs.
    error: Callable[[], float]
    """Runs it once and returns its largest error against float64, divided by the largest true value."""
    tolerance: float  # Largest error that counts as correct.
    source: str  # Whose kernel.
    mode: str | None = None  # ``events`` to launch it call by call.


def relative_error(result: Tensor, truth: Tensor) -> float:
    """Return the largest difference divided by the largest true value; infinite where a result is not finite."""
    difference = (result.double() - truth.double()).abs().max().item()
    largest = truth.double().abs().max().item()
    if difference != difference:
        return float("inf")
    return float(difference / largest) if largest > 0 else float("inf")


def spread_indices(count: int, most: int) -> Sequence[int]:
    """Return at most ``most`` indices spread over ``count``, including the first and the last."""
    if count <= most:
        return list(range(count))
    return sorted({round(index * (count - 1) / (most - 1)) for index in range(most)})
