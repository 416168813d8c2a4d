"""Constants of DeepEP's exchange: recovered from made-up calls, and on measured ones as good as is said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from calibration.laboratory.fits.exchange_fit import Direction, Exchanges, fit, held_out_errors, predict, read_exchanges
from simserve.perf.collectives import CURVES, ExchangeCurve, ExchangeMode

TABLES = Path(__file__).parents[5] / "shared" / "data" / "kernels" / "aiconfigurator"
LINK = 450e9
MODE: ExchangeMode = "deepep_low_latency"


def test_constants_are_found_again() -> None:
    """Calls that a curve made give that curve."""
    made = ExchangeCurve(12e-6, 5e-6, 2e-6, 0.5, 0.9)
    nodes, tokens = (each.ravel() for each in np.meshgrid([1.0, 2.0, 4.0, 8.0], 2.0 ** np.arange(9)))
    calls = Exchanges(nodes, tokens, np.zeros(len(nodes)))
    calls = Exchanges(nodes, tokens, predict(MODE, "dispatch", made, calls, LINK))
    found = fit(MODE, "dispatch", calls, LINK)

    assert found.network_share == pytest.approx(0.9, rel=1e-3)
    assert found.local_share == pytest.approx(0.5, rel=1e-3)
    assert found.start == pytest.approx(12e-6, rel=1e-2)


@pytest.mark.skipif(not TABLES.is_dir(), reason="needs the operator tables in ../shared/data")
@pytest.mark.parametrize("direction", ["dispatch", "combine"])
def test_low_latency_is_within_a_tenth_on_nodes_left_out(direction: Direction) -> None:
    """Median error on 2, 4 and 8 nodes by constants of the others; those that are declared are the fitted ones."""
    calls = read_exchanges(TABLES, "h100_sxm", MODE, direction)
    errors = held_out_errors(MODE, direction, calls, LINK)
    fitted, declared = fit(MODE, direction, calls, LINK), CURVES[MODE][direction]

    assert sorted(errors) == [2, 4, 8]
    assert max(float(np.median(each)) for each in errors.values()) <= 0.1
    assert declared.network_share == pytest.approx(fitted.network_share, rel=0.01)
    assert declared.start == pytest.approx(fitted.start, rel=0.01)
