"""A kernel ready to be measured, and how its result is compared with one in double precision. Knows no operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from simserve.calibrate.kernels.torch_device import Tensor

CHECKED_ROWS, CHECKED_COLUMNS = 8, 64
"""Rows and columns of a result that are computed again: whole dot products, only not all of them."""


class UnsupportedError(Exception):
    """A kernel that this device or this PyTorch does not have; the message is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One call on one device.

    Attributes:
        call: Runs it on a copy of its inputs and returns the result.
        copies: Copies of its inputs.
        error: Runs it once and returns its largest error over the largest true value, against float64.
        tolerance: Error up to which it counts as correct.
        source: Whose kernel.
        mode: ``events`` where it is to be launched call by call.
    """

    call: Callable[[int], Any]
    copies: int
    error: Callable[[], float]
    tolerance: float
    source: str
    mode: str | None = None


def relative_error(result: Tensor, truth: Tensor) -> float:
    """Return the largest difference over the largest true value; infinite where a result is not finite."""
    difference = (result.double() - truth.double()).abs().max().item()
    largest = truth.double().abs().max().item()
    if difference != difference:
        return float("inf")
    return float(difference / largest) if largest > 0 else float("inf")


def spread_indices(count: int, most: int) -> Sequence[int]:
    """Return at most ``most`` indices spread over ``count``, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return sorted({round(index * (count - 1) / (most - 1)) for index in range(most)})
