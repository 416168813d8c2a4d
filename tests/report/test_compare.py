"""The sentence of a comparison: what a variant is shown to change."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from simserve.planner.statistics import Difference
from simserve.report.compare import comparison_lines

FIGURES = (
    "slo_attainment",
    "mean_tpot_ms",
    "p95_ttft_ms",
    "p99_itl_ms",
    "output_throughput",
    "usd_per_million_output_tokens",
)


def told(base: float, variant: float, width: float = 1.0) -> str:
    """Return the sentence of a variant that changes the p99 of ITL alone."""
    same = Difference(mean=0.0, low=0.0, high=0.0, base=1.0, variant=1.0)
    change = variant - base
    own = Difference(mean=change, low=change - width, high=change + width, base=base, variant=variant)
    differences = {**dict.fromkeys(FIGURES, same), "p99_itl_ms": own}
    comparison: Any = SimpleNamespace(
        summary={"warnings": []},
        base=SimpleNamespace(summaries=[{}, {}]),
        variants=[SimpleNamespace(name="new", differences=differences)],
    )
    return comparison_lines(comparison)[0]


@pytest.mark.parametrize(("base", "variant"), [(10.0, 147.0), (147.0, 10.0)])
def test_gaps_that_doubled_or_halved_are_a_headline(base: float, variant: float) -> None:
    """It is what long prompts in a step, chunks and separate pools change first."""
    assert told(base, variant).startswith("new: p99 ITL ")


def test_gaps_that_moved_little_or_by_chance_are_none() -> None:
    """TPOT says the same, or nothing is shown."""
    nothing = "new: no difference shown in latency, throughput, attainment or dollars."

    assert told(10.0, 15.0) == nothing
    assert told(10.0, 30.0, width=50.0) == nothing


@pytest.mark.parametrize(
    ("variant", "change"), [(20.0, "+100% ±10.0"), (99.0, "+890% ±10.0"), (1000.0, "100x ±0.1"), (5.0, "-50% ±10.0")]
)
def test_a_change_of_tenfold_and_more_is_a_factor(variant: float, change: str) -> None:
    """Nobody reads +9900%; less stays a percentage, which cannot pass -100%."""
    assert told(10.0, variant) == f"new: p99 ITL {change}."
