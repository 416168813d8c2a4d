"""Acceptance by position: the fit finds what it should, predicts what it has not seen, and the page says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from calibration.laboratory.fits.speculation_fit import AcceptanceFit, fit_acceptance, fit_independent, read_lengths
from calibration.laboratory.fits.speculation_report import (
    Drafter,
    length_errors,
    length_rows,
    simulated_speedup,
    speedup_rows,
    target_of,
)

_ROOT = Path(__file__).resolve().parents[4]
_DATA = _ROOT.parent / "shared/data/measured"
with_data = pytest.mark.skipif(not _DATA.exists(), reason="needs ../shared/data/measured")


def lengths(rate: float, decay: float) -> dict[int, float]:
    """Return exact acceptance lengths for one to three drafts."""
    return {drafts: AcceptanceFit(rate, decay).length(drafts) for drafts in (1, 2, 3)}


@pytest.mark.parametrize(("rate", "decay"), [(0.85, 0.93), (0.6, 0.7), (0.75, 1.0)])
def test_the_fit_finds_rate_and_decay(rate: float, decay: float) -> None:
    """From exact lengths, exactly; and independent drafts only where there is no decay."""
    fit = fit_acceptance(lengths(rate, decay))

    assert (fit.rate, fit.decay) == pytest.approx((rate, decay), abs=1e-3)
    assert (fit_independent(lengths(rate, decay)).rate == pytest.approx(rate, abs=1e-3)) == (decay == 1.0)


@with_data
def test_three_drafts_predict_eight() -> None:
    """Every measured length at k = 4 to 8 within 15 %, half of them within 4 %; independent drafts are off by more."""
    series = read_lengths(_DATA)
    decaying, independent = length_errors(series)

    assert len(series) == 14
    assert len(decaying) == 70
    assert decaying.max() < 0.15
    assert sorted(decaying)[35] < 0.04
    assert independent.max() > 0.3
    assert sorted(independent)[35] > 2 * sorted(decaying)[35]


@with_data
def test_the_page_holds_these_fits() -> None:
    """calibration/speculation.md is what `python -m calibration.laboratory.fits.speculation_report` writes."""
    page = (_ROOT / "calibration/speculation.md").read_text(encoding="utf-8")

    for row in length_rows(read_lengths(_DATA)):
        assert row in page


@pytest.mark.slow
@with_data
def test_speedups_of_one_sequence() -> None:
    """Look-ups within 15 % of Spec-Bench and a small model within 25 %; trees of EAGLE are too fast by up to 60 %."""
    rows = [row.strip("| ").split(" | ") for row in speedup_rows(_DATA)]
    off = {(target, method): float(eager.rstrip("%")) for target, method, _, _, _, eager, _, _ in rows}

    assert len(off) == 13
    assert max(abs(error) for (_, method), error in off.items() if method == "PLD") < 15
    assert max(abs(error) for (_, method), error in off.items() if method == "SpS") < 25
    assert max(abs(error) for error in off.values()) < 60


def test_a_method_that_drafts_nothing_useful_is_slower() -> None:
    """One token a step: all that drafting and verifying take is lost."""
    assert simulated_speedup(target_of("Vicuna-7B-v1.3"), Drafter("draft_model", 5), 1.0, is_eager=True) < 0.9
