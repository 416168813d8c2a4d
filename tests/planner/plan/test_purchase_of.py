"""The purchase of a plan: its figures are those of the plan, and what cannot be bought is refused."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import pytest

from simserve.errors import UsageError
from simserve.planner.plan.findings import Findings
from simserve.planner.plan.options import horizon_of
from simserve.planner.plan.plan import PlanOptions, plan
from simserve.planner.plan.purchase import purchase_of
from simserve.report.page import render_page
from simserve.report.plan import plan_page, plan_sections
from simserve.scenario.schema import Scenario
from tests.planner.plan.test_certainty import ONE_SHAPE
from tests.planner.plan.test_plan import busy_scenario

DAY = {"daily": {"peak_to_mean": 1.7}}


def scenario(**changes: Any) -> Scenario:
    """Return steady traffic that takes several small GPUs, with a day."""
    return busy_scenario(slo={"ttft": "2 s", "tpot": "45 ms", "attainment": 0.95}, pricing=DAY, **changes)


@cache
def found() -> tuple[Findings, dict[str, Any]]:
    """Return what is known of the plan on one shape of one GPU, and the plan with what to buy for 24 months."""
    options = PlanOptions(hardware=("l4-24gb",), choices=ONE_SHAPE, trials=0, horizon=horizon_of("24mo", "4%/month"))
    known: list[Findings] = []

    def buying(findings: Findings, *rest: Any) -> dict[str, Any]:
        known.append(findings)
        return purchase_of(findings, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("simserve.planner.plan.plan.purchase_of", buying)
        patch.setattr("simserve.planner.plan.plan.levers_of", lambda *_: [])
        patch.setattr("simserve.planner.plan.plan.changes_of", lambda _: ())
        summary = dict(plan(scenario(), options).summary)
    return known[0], summary


def planned() -> dict[str, Any]:
    """Return the plan, with what to buy for 24 months."""
    return found()[1]


def purchased(horizon: str, growth: str, **more: str) -> dict[str, Any]:
    """Return what else would be bought for the same plan."""
    return dict(purchase_of(*found(), horizon_of(horizon, growth, **more)))


@pytest.mark.slow
def test_it_buys_what_the_plan_deploys() -> None:
    """The first month's busiest hour takes the plan's replicas at the load that they can sustain."""
    summary = planned()
    best, bought = summary["best"], summary["purchase"]
    rate = scenario().workload.arrivals.rate  # type: ignore[union-attr]
    capacity = rate * best["traffic_sustained"] / best["replicas_needed"]
    first = bought["months"][0]

    assert bought["capacity_per_replica"] == pytest.approx(capacity)
    assert first["peak_replicas"] == math.ceil(rate / capacity) <= best["replicas"]
    assert first["requests"] == pytest.approx(rate / 1.7 * 30 * 86_400, rel=0.02)
    by_hour = next(term for term in bought["terms"] if term["years"] == 0)
    assert by_hour["usd_per_gpu_hour"] == pytest.approx(best["usd_per_gpu_hour"])
    assert bought["months"][-1]["requests"] == pytest.approx(first["requests"] * 1.04**23)
    assert bought["total_usd"] <= bought["all_on_demand_usd"]


@pytest.mark.slow
def test_what_is_assumed_is_said() -> None:
    """Terms, terms that are too long, prices that fall, and replicas that follow the day."""
    said = " ".join(planned()["purchase"]["assumes"])

    assert "25% (1 y)" in said
    assert "3 years would outlast" in said
    assert "cheaper a month" in said
    assert "start-up is not counted" in said
    assert "--commitments" not in " ".join(purchased("24mo", "4%/month", commitments="1y=30%")["assumes"])


@pytest.mark.slow
def test_the_page_shows_it_month_by_month() -> None:
    """With a table and two pictures; without a horizon there is none of it."""
    summary = planned()
    titles = [each.title for each in plan_sections(summary)]
    page = render_page(plan_page(summary, ""))

    assert "What to buy for 24 months, while traffic grows by 4.0% a month" in titles
    assert "Replicas by term" in page
    assert "To buy" in page
    plain = {key: value for key, value in summary.items() if key != "purchase"}
    assert not any(each.title.startswith("What to buy") for each in plan_sections(plain))


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"pricing": {"purchase": "owned"}}, "are owned"),
        ({"workload": {"arrivals": {"process": "closed_loop", "concurrency": 4}}}, "arrive at a rate"),
    ],
)
def test_what_cannot_be_bought_is_refused_before_anything_runs(changes: dict[str, Any], rule: str) -> None:
    """GPUs that are there already, and traffic that has no rate to grow."""
    there = scenario()
    for key, value in changes.items():
        mapping = there.as_mapping()
        inner = mapping.get(key) or {}
        mapping[key] = {**inner, **value} if key == "workload" else value
        from simserve.scenario.load import from_mapping

        there = from_mapping(mapping)

    with pytest.raises(UsageError, match=rule):
        plan(there, PlanOptions(hardware=("l4-24gb",), choices=ONE_SHAPE, trials=0, horizon=horizon_of("12mo")))


def test_throughput_buys_nothing() -> None:
    """Its GPUs are there."""
    with pytest.raises(UsageError, match="--horizon"):
        plan(scenario(), PlanOptions(objective="throughput", max_gpus=2, horizon=horizon_of("12mo")))


@pytest.mark.slow
def test_spot_replicas_are_in_the_mix_with_their_simulated_reserve() -> None:
    """At the share below on demand that is said, taken back as is said; and what is assumed of them is said."""
    bought = purchased("12mo", "1%/month", commitments="1y=25%,spot=60%", interruptions="mtbf=48h,mttr=10min")

    hourly, spot, year = bought["terms"]
    assert (hourly["is_spot"], spot["is_spot"], year["years"]) == (False, True, 1)
    assert spot["usd_per_gpu_hour"] == pytest.approx(0.4 * hourly["usd_per_gpu_hour"])
    assert (bought["spot"]["mtbf_s"], bought["spot"]["mttr_s"], bought["spot"]["notice_s"]) == (172_800.0, 600.0, 30.0)
    sizes = bought["spot"]["reserves"]
    assert sizes[-1]["replicas"] >= max(row["peak_replicas"] for row in bought["months"])
    assert all(each["attainment"] >= each["asked"] for each in sizes)
    assert any(row["spot_replicas"] for row in bought["months"])
    assert bought["total_usd"] < bought["without_spot_usd"] <= bought["all_on_demand_usd"]
    said = " ".join(bought["assumes"])
    assert "taken back every 48 h on average" in said
    assert "--interruptions" not in said


def test_without_spot_nothing_is_taken_back() -> None:
    """Terms that name no spot price offer none, and that is said."""
    bought = purchased("12mo", "1%/month", commitments="1y=25%")

    assert bought["spot"] is None
    assert {row["spot_replicas"] for row in bought["months"]} == {0}
    assert bought["total_usd"] == bought["without_spot_usd"]
    assert "no spot replica is on offer" in " ".join(bought["assumes"])


@pytest.mark.slow
@pytest.mark.usefixtures("headroom_alone")
def test_a_plan_at_spot_prices_is_still_bought_on_every_term() -> None:
    """Commitments lie below the price on demand, and spot hours are those of the market it was planned on."""
    options = PlanOptions(
        hardware=("h100-sxm-80gb",), choices=ONE_SHAPE, trials=0, market="spot", horizon=horizon_of("12mo")
    )
    summary = plan(scenario(), options).summary
    by_hour, spot, *_ = summary["purchase"]["terms"]

    assert spot["is_spot"]
    assert spot["usd_per_gpu_hour"] == pytest.approx(summary["best"]["usd_per_gpu_hour"])
    assert by_hour["usd_per_gpu_hour"] > spot["usd_per_gpu_hour"]
