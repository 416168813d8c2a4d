"""The all-reduce of AMD's GPUs: what the profiles hold is what the published times give."""

import numpy as np
import pytest

from calibration.laboratory.fits.amd_collective_fit import calls_of, errors, fit_all_reduce, left_out
from simserve.profiles.hardware import load_hardware

CONSTANTS = ("start", "start_per_doubling", "one_shot", "two_shot_start_per_doubling", "two_shot", "ring_start", "ring")


@pytest.mark.parametrize("name", ["mi300x-192gb", "mi325x-256gb", "mi350x-288gb", "mi355x-288gb"])
def test_profiles_hold_the_fit(name: str) -> None:
    """All four run the same kernels, each over links of its own."""
    curves = load_hardware(name).collective_curves
    fitted = fit_all_reduce(calls_of())

    assert curves is not None
    for constant in CONSTANTS:
        told = getattr(curves.all_reduce_of("vllm"), constant)
        assert told == pytest.approx(getattr(fitted, constant), rel=0.01, abs=1e-9)


def test_errors_are_as_the_profiles_say() -> None:
    """In sample, and of numbers of ranks that the fit did not see."""
    fit = load_hardware("mi300x-192gb").collective_curves
    assert fit is not None
    told = fit.all_reduce_of("vllm").fit

    assert np.median(np.abs(errors((2, 4, 8), (2, 4, 8)))) == pytest.approx(told.median_error, abs=0.002)
    assert np.median(np.abs(left_out())) == pytest.approx(told.held_out_error, abs=0.005)
