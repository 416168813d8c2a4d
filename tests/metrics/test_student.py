"""Student's quantiles agree with closed forms and with SciPy."""

from __future__ import annotations

import math

import pytest
from scipy.special import stdtrit

from simserve.metrics.statistics import t_quantile


@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.99, 0.999])
@pytest.mark.parametrize("degrees", [0.7, 1, 2, 3.5, 9, 19, 49, 99.9, 101, 1000, 9999])
def test_quantiles_are_those_of_scipy(degrees: float, confidence: float) -> None:
    """An independent implementation, to 1e-12."""
    expected = float(stdtrit(degrees, 0.5 + confidence / 2))

    assert t_quantile(degrees, confidence) == pytest.approx(expected, rel=1e-12)


def test_one_and_two_degrees_of_freedom_have_closed_forms() -> None:
    """Cauchy: tan(pi c / 2); two degrees: c sqrt(2 / (1 - c^2))."""
    assert t_quantile(1, 0.95) == pytest.approx(math.tan(math.pi * 0.475), rel=1e-12)
    assert t_quantile(2, 0.95) == pytest.approx(0.95 * math.sqrt(2 / (1 - 0.95**2)), rel=1e-12)


def test_many_degrees_of_freedom_are_normal() -> None:
    """The limit is approached as z + (z^3 + z) / (4 degrees)."""
    normal = t_quantile(math.inf, 0.95)

    assert t_quantile(1e6, 0.95) - normal == pytest.approx((normal**3 + normal) / 4e6, rel=1e-4)
