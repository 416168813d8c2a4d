"""The page of calibrated servers states the priors that `calibrate serving` uses."""

from __future__ import annotations

from pathlib import Path

import pytest

from simserve.calibrate.priors import PRIORS

_PAGE = Path(__file__).resolve().parents[1] / "docs/calibrated-servers.md"


def _row(name: str) -> list[float]:
    line = next(line for line in _PAGE.read_text(encoding="utf-8").splitlines() if line.startswith(f"| {name} |"))
    return [float(cell) for cell in line.strip("| ").split("|")[1:]]


def test_the_priors_in_use_are_those_of_the_replayed_servers() -> None:
    """What the code states stands on the page, and is within a tenth of what all sources give."""
    stated = [*PRIORS.widths.values(), *PRIORS.misfit.values()]

    assert _row("in use") == pytest.approx(stated, abs=5e-4)
    assert stated == pytest.approx(_row("(all sources)"), rel=0.1)
