"""Fitted collectives: monotone in the message, nothing for one rank, right sizes of known all-reduces."""

from __future__ import annotations

import numpy as np
import pytest

from simserve.perf.collective_curve import all_reduce_curve_seconds, transfer_curve_seconds
from simserve.profiles.hardware import load_hardware
from simserve.profiles.kernel_curves import CollectiveCurves

MESSAGES = np.geomspace(1.0, 4e9, 400)
PROFILES = ("h100-sxm-80gb", "h200-sxm-141gb", "a100-sxm-80gb")


def curves_of(name: str) -> CollectiveCurves:
    """Return the collectives of a catalogue GPU that has them."""
    curves = load_hardware(name).collective_curves
    assert curves is not None
    return curves


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_larger_message_never_takes_less_time(name: str, ranks: int) -> None:
    """Across every change of algorithm."""
    curves = curves_of(name)
    times = [all_reduce_curve_seconds(curve, MESSAGES, ranks, 450e9) for curve in curves.all_reduce]
    times += [transfer_curve_seconds(curve, MESSAGES, ranks, 450e9) for curve in curves.transfers]

    assert all(np.all(np.diff(seconds) >= 0) for seconds in times)


def test_one_rank_waits_for_nobody() -> None:
    """A group of one communicates nothing."""
    curves = curves_of("h200-sxm-141gb")

    assert np.all(all_reduce_curve_seconds(curves.all_reduce[0], MESSAGES, 1, 450e9) == 0)
    assert np.all(transfer_curve_seconds(curves.transfers[0], MESSAGES, 1, 450e9) == 0)


@pytest.mark.parametrize(("num_bytes", "measured"), [(8192, 5.1e-6), (1 << 20, 14.1e-6), (1 << 28, 1052e-6)])
def test_all_reduce_of_vllm_on_eight_h200_is_near_the_table(num_bytes: int, measured: float) -> None:
    """8 KB, 1 MB and 256 MB (AIConfigurator, vLLM 0.24, CUDA graph), within 20 %."""
    curve = curves_of("h200-sxm-141gb").all_reduce_of("vllm")
    predicted = all_reduce_curve_seconds(curve, np.array([float(num_bytes)]), 8, 450e9)[0]

    assert predicted == pytest.approx(measured, rel=0.2)
