"""The search of every fit: exact where the calls are, deaf to odd ones, within its bounds."""

from __future__ import annotations

import numpy as np
import pytest

from simserve.calibrate.soft_fit import SoftFit, soft_fit
from simserve.perf.efficiency import Array

SIZES = np.geomspace(1.0, 1e4, 40)
TRUE = np.array([3.0, 0.02])


def line(values: Array) -> Array:
    """Return a start and a slope over the sizes."""
    return np.asarray(values[0] + values[1] * SIZES)


def found(measured: Array, high: tuple[float, float] = (100.0, 1.0)) -> SoftFit:
    """Return the fit of a line to times."""
    return soft_fit(
        line, measured, first=np.array([1.0, 0.1]), low=np.array([1e-3, 1e-6]), high=np.array(high), soft_error=0.05
    )


def test_calls_without_noise_give_their_constants() -> None:
    """At no cost."""
    fit = found(line(TRUE))

    assert fit.values == pytest.approx(TRUE, rel=1e-5)
    assert fit.cost == pytest.approx(0.0, abs=1e-8)


def test_one_odd_call_hardly_pulls() -> None:
    """A kernel ten times as slow at one size; squares would move the start by far more."""
    measured = line(TRUE)
    measured[5] *= 10.0

    fit = found(measured)

    assert fit.values == pytest.approx(TRUE, rel=0.02)
    assert fit.cost > 0.01


def test_bounds_hold() -> None:
    """A start that may be 2 at most is 2 where the calls ask for 3."""
    fit = found(line(TRUE), high=(2.0, 1.0))

    assert fit.values[0] == pytest.approx(2.0, rel=1e-3)
