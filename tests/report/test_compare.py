"""The sentence of a comparison: what a variant is shown to change."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from simserve.planner.statistics import Difference
from simserve.profiles.expected_errors import load_error_model
from simserve.report.compare import _as_asked, _ranked_lines, _way, comparison_lines

FIGURES = (
    "slo_attainment",
    "mean_tpot_ms",
    "p95_ttft_ms",
    "p99_itl_ms",
    "output_throughput",
    "usd_per_million_output_tokens",
)


def told(
    base: float,
    variant: float,
    width: float = 1.0,
    count: int = 5,
    ends: tuple[float, float] | None = None,
    trace: object = None,
) -> str:
    """Return the sentence of a variant that changes the p99 of ITL alone; ``ends`` of its ratio to the base."""
    same = Difference(mean=0.0, low=0.0, high=0.0, base=1.0, variant=1.0)
    change = variant - base
    low, high = ends or (math.nan, math.nan)
    own = Difference(
        mean=change,
        low=change - width,
        high=change + width,
        base=base,
        variant=variant,
        ratio_low=low,
        ratio_high=high,
    )
    differences = {**dict.fromkeys(FIGURES, same), "p99_itl_ms": own}
    comparison: Any = SimpleNamespace(
        summary={"warnings": []},
        base=SimpleNamespace(summaries=[{}] * count, scenario=SimpleNamespace(workload=SimpleNamespace(trace=trace))),
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
    ("variant", "ends", "change"),
    [
        (20.0, (1.9, 2.1), "+100% [+90, +110]"),
        (99.0, (9.8, 9.95), "+890% [+880, +895]"),
        (1000.0, (95.0, 105.0), "100x [95.0, 105]"),
        (1.2, (0.07, 0.2), "-88% [-93, -80]"),
    ],
)
def test_a_change_of_tenfold_and_more_is_a_factor(variant: float, ends: tuple[float, float], change: str) -> None:
    """Nobody reads +9900%; less stays a percentage, whose interval cannot pass -100%."""
    assert told(10.0, variant, ends=ends) == f"new: p99 ITL {change}."


def test_what_may_be_nothing_is_told_in_parts_of_the_base() -> None:
    """A figure that is zero in some run has no ratio: its difference is told, plus or minus."""
    assert told(10.0, 5.0) == "new: p99 ITL -50% ±10.0."


def test_fewer_than_five_runs_have_no_intervals() -> None:
    """And no change is told from them."""
    assert told(10.0, 147.0, count=4) == "new: too few runs for intervals (--replications 5)."


def test_one_run_of_a_trace_tells_what_changed() -> None:
    """Nothing is drawn, so that a difference is one without an interval."""
    assert told(10.0, 147.0, count=1, trace="t") == "new: p99 ITL +1370% ±10.0 (one run of the trace each)."
    assert told(10.0, 147.0, count=1) == "new: p99 ITL +1370% ±10.0 (one run each)."
    nothing = "new: no difference shown in latency, throughput, attainment or dollars (one run of the trace each)."
    assert told(10.0, 10.0, count=1, trace="t") == nothing


def verdict(slo: object = None, usd: float = 1.0, runs: int = 5, **ratios: float) -> tuple[str, str]:
    """Return the first sentence and what to do, of a variant whose figures are so many times those of the base."""
    differences = {
        name: Difference(mean=(of := ratios.get(name, 1.0)) - 1, low=of - 1, high=of - 1, base=1.0, variant=of)
        for name in FIGURES
    }
    known = {"slo": {"attainment": 1.0}}
    cost: list[Any] = [
        {"simserve": {**known, "cost": {"usd_per_hour": each}}, "mean_tpot_ms": 1.0, "p95_ttft_ms": 1.0}
        for each in (1.0, usd)
    ]
    cost[1] |= {name: differences[name].variant for name in ("mean_tpot_ms", "p95_ttft_ms")}
    base = SimpleNamespace(name="base", summaries=[{}] * runs, summary=cost[0])
    base.scenario = SimpleNamespace(slo=slo, workload=SimpleNamespace(trace="traffic.csv"))
    new = SimpleNamespace(name="new", summary=cost[1], differences=differences, changes={})
    comparison: Any = SimpleNamespace(base=base, variants=(new,))
    return _ranked_lines(comparison)[0], _way(comparison, ["chat.yaml"]).told


def test_a_cheaper_variant_that_misses_the_slo_is_not_said_not_to_be_cheaper() -> None:
    """ "None is cheaper than base" stood above a variant at three quarters of its price."""
    base = SimpleNamespace(scenario=SimpleNamespace(slo=SimpleNamespace(attainment=0.95)), name="base", changes={})
    base.summary = {"simserve": {"slo": {"attainment": 0.99}, "cost": {"usd_per_hour": 4.0}}, "mean_tpot_ms": 1.0}
    new = SimpleNamespace(name="new", differences={"mean_tpot_ms": SimpleNamespace(is_shown=False)}, changes={})
    new.summary = {"simserve": {"slo": {"attainment": 0.84}, "cost": {"usd_per_hour": 3.0}}, "mean_tpot_ms": 1.0}
    comparison: Any = SimpleNamespace(base=base, variants=(new,))

    missed = _way(comparison, ["chat.yaml"]).told
    new.summary["simserve"] = {"slo": {"attainment": 0.99}, "cost": {"usd_per_hour": 5.0}}
    held = _way(comparison, ["chat.yaml"]).told

    assert missed.startswith("None that holds the SLO is cheaper than base, or faster at its price.")
    assert held.startswith("None is cheaper than base, or faster at its price.")


def test_the_faster_of_equal_price_is_taken_in_one_run_of_a_trace() -> None:
    """ "Keep the base" stood before a variant whose tokens took a third of the time: one run has no intervals."""
    asked = SimpleNamespace(attainment=0.95)

    answer, way = verdict(mean_tpot_ms=0.37, slo=asked, runs=1)

    assert answer.startswith("Take new: mean TPOT -63%")
    assert way == "new is better than base. To run it:"
    assert verdict(mean_tpot_ms=0.995, slo=asked, runs=1)[0].startswith("Keep the base.")
    assert verdict(p95_ttft_ms=0.25, slo=asked, runs=1)[0].startswith("Take new: p95 TTFT -75%")
    assert verdict(p95_ttft_ms=0.25, slo=asked)[0].startswith("Take new: p95 TTFT -75%")
    assert verdict(p95_ttft_ms=0.25, mean_tpot_ms=1.1, slo=asked)[0].startswith("Keep the base.")


def test_figures_that_point_both_ways_are_mixed_without_an_slo() -> None:
    """Neither is the better one: each is, in something; a change of less than 1 % decides nothing."""
    answer, way = verdict(mean_tpot_ms=1.134, p95_ttft_ms=0.24, output_throughput=1.048)

    assert answer.startswith("Mixed, and no SLO decides. new: mean TPOT +13.4%")
    assert way == "new is better in p95 TTFT and output tokens/s, base in mean TPOT. To run new:"
    assert verdict(mean_tpot_ms=1.134, output_throughput=1.005)[0].startswith("Keep the base. new: ")
    assert verdict(mean_tpot_ms=1.134, p95_ttft_ms=0.24, slo=SimpleNamespace(attainment=None))[0].startswith("Keep")


def test_fewer_gpus_that_are_slower_are_mixed_without_an_slo() -> None:
    """They cost less; what is lost for it is told."""
    answer, way = verdict(usd=0.5, mean_tpot_ms=1.5, usd_per_million_output_tokens=0.7)

    assert answer.startswith("Mixed")
    assert way.startswith("new is better in dollars a million output tokens, base in mean TPOT.")


def test_too_few_runs_decide_nothing_without_an_slo() -> None:
    """ "Keep the base" was said of a variant whose first tokens came in a quarter of the time; an SLO decides alone."""
    answer, way = verdict(p95_ttft_ms=0.24, runs=2)

    assert answer == "Too few runs to decide. new: no intervals (--replications 5)."
    assert way.startswith("To decide, as without an SLO differences need intervals:")
    variant: Any = SimpleNamespace(
        name="new name", changes={"run.seed": 9, "deployment.engine": "{name: vllm}", "a": None}
    )
    assert _as_asked(variant) == "new name: run.seed=9, deployment.engine={name: vllm}, a=null"
    held = verdict(p95_ttft_ms=0.24, usd=0.5, runs=2, slo=SimpleNamespace(attainment=None))
    assert held[0].startswith("Take new: too few runs")


def test_a_difference_below_the_error_of_such_ratios_says_so() -> None:
    """Half of all ratios of two real servers are further from the simulated one."""
    answer, _ = verdict(mean_tpot_ms=0.958)

    assert answer.startswith("Take new: mean TPOT -4.2%")
    assert "Within the error of such a comparison on real servers: mean TPOT (median error" in answer
    error = load_error_model().pairs["tpot"]
    assert "Within the error" not in verdict(mean_tpot_ms=math.exp(-(error.p50 + error.p90) / 2))[0]
