"""Constants of the exchange over NVLink: recovered from made-up calls, and on measured ones as good as is said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from calibration.laboratory.fits.exchange_fit import Direction
from calibration.laboratory.fits.nvlink_exchange_fit import (
    LEAST_RANKS,
    NvlinkCalls,
    fit,
    held_out_errors,
    predict,
    read_nvlink_exchanges,
)
from simserve.perf.collectives import CURVES, ExchangeCurve, ExchangeMode

TABLES = Path(__file__).parents[5] / "shared" / "data" / "kernels" / "aiconfigurator"
LINK = 900e9


def test_constants_are_found_again() -> None:
    """Calls that a curve made give that curve."""
    made = ExchangeCurve(12e-6, 0.0, 2e-6, 0.6, 0.0)
    ranks, tokens = (each.ravel() for each in np.meshgrid([2.0, 8.0, 32.0], 2.0 ** np.arange(0, 16, 2)))
    calls = NvlinkCalls(ranks, tokens, np.full(len(ranks), 4032.0), np.zeros(len(ranks)))
    found = fit(NvlinkCalls(ranks, tokens, calls.token_bytes, predict(made, calls, LINK)), LINK)

    assert found.local_share == pytest.approx(0.6, rel=1e-3)
    assert found.start == pytest.approx(12e-6, rel=1e-2)
    assert found.start_per_doubling == pytest.approx(2e-6, rel=1e-2)


@pytest.mark.skipif(not TABLES.is_dir(), reason="needs the operator tables in ../shared/data")
@pytest.mark.parametrize(
    ("mode", "direction", "bound"),
    [
        ("nvlink_one_sided", "dispatch", 0.09),
        ("nvlink_one_sided", "combine", 0.13),
        ("nvlink_two_sided", "dispatch", 0.08),
        ("nvlink_two_sided", "combine", 0.10),
    ],
)
def test_exchanges_on_ranks_left_out(mode: ExchangeMode, direction: Direction, bound: float) -> None:
    """Median error on each number of ranks by constants of the others, half of them within 6 %; those that are declared
    are the fitted ones."""
    calls = read_nvlink_exchanges(TABLES, mode, direction)
    medians = [float(np.median(each)) for each in held_out_errors(mode, calls, LINK).values()]
    fitted, declared = fit(calls.where(calls.num_ranks >= LEAST_RANKS[mode]), LINK), CURVES[mode][direction]

    assert max(medians) <= bound
    assert float(np.median(medians)) <= 0.06
    assert declared.start == pytest.approx(fitted.start, rel=0.01)
    assert declared.start_per_doubling == pytest.approx(fitted.start_per_doubling, rel=0.01)
    assert declared.local_share == pytest.approx(fitted.local_share, rel=0.01)
