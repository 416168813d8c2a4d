"""Tests of `simserve cost` with a scenario: what the simulated day comes to in dollars."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from simserve.errors import InfeasibleError, InputError, UsageError
from simserve.metrics.cost import PricingSpec
from simserve.metrics.result import RunResult
from simserve.planner import load_curve
from simserve.planner.cost.cost import USUAL_UTILIZATION, cost_summary
from simserve.planner.cost.model import PEAK_TO_MEAN, Comparison
from simserve.planner.cost.scenario import (
    _enlarged,
    _held_nowhere,
    _least_break_even,
    _Together,
    _whole_fleet,
    _with_traffic,
)
from simserve.report.cost import cost_brief
from simserve.report.quantities import number
from simserve.scenario.finishable import Finishable
from simserve.scenario.resolve import resolve
from simserve.scenario.schema import Scenario
from tests.scenario.builders import make_scenario

_BASE = [
    "slo={ttft: 500 ms, tpot: 50 ms, attainment: 0.9}",
    "workload.num_requests=200",
    "deployment.engine.max_num_seqs=1",
    "workload.arrivals={process: poisson, rate: 2}",
    "pricing.gpu_hour_usd=2",
    "pricing.api=gpt-4o",
]


_RUNS: dict[str, RunResult] = {}


@pytest.fixture(scope="module", autouse=True)
def _runs_are_shared() -> Iterator[None]:
    """Simulate each load of each deployment once: what is tested here is what its dollars come to."""
    real = load_curve.run

    def once(scenario: Scenario, **search: Finishable) -> RunResult:
        key = scenario.model_copy(update={"pricing": PricingSpec(gpu_hour_usd=1.0)}).hash
        if key not in _RUNS:
            _RUNS[key] = real(scenario, **search)
        return _RUNS[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load_curve, "run", once)
        yield
    _RUNS.clear()


def cost(*overrides: str, **arguments: Any) -> dict[str, Any]:
    """Return the summary of the small scenario with an objective and prices."""
    kept = [each for each in _BASE if not any(each.split("=")[0] == other.split("=")[0] for other in overrides)]
    return cost_summary(make_scenario([*kept, *overrides]), **arguments)


@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
    """Return the cost of the small scenario as it is."""
    return cost()


def test_of_a_day_the_scenario_s_rate_is_that_of_the_busiest_hour(plain: dict[str, Any]) -> None:
    """Or, where asked for, the mean; without a day it is the rate all through."""
    peak, mean = cost("pricing.daily={}"), cost("pricing.daily={rate_is: mean}")

    assert peak["day"]["peak_rate"] == pytest.approx(2.0)
    assert peak["day"]["mean_rate"] == pytest.approx(2.0 / PEAK_TO_MEAN)
    assert mean["day"]["mean_rate"] == pytest.approx(2.0)
    assert plain["day"]["mean_rate"] == plain["day"]["peak_rate"] == pytest.approx(2.0)


def test_the_month_is_gpus_and_people(plain: dict[str, Any]) -> None:
    """Every part is charged, and the total is their sum."""
    more = cost(
        "pricing.operations_hours_per_month=20",
        "pricing.engineer_usd_per_hour=100",
        "pricing.platform_usd_per_month=300",
        "pricing.spare_replicas=1",
    )["self_host"]

    assert plain["self_host"]["usd_per_month"] == pytest.approx(2 * 720)
    assert more["usd_per_month"] == pytest.approx(2 * 2 * 720 + 2000 + 300)
    assert (more["gpus"], more["operations_usd_per_month"], more["platform_usd_per_month"]) == (2, 2000.0, 300.0)


def test_dollars_a_token_and_a_request_are_the_month_over_its_traffic(plain: dict[str, Any]) -> None:
    """On both sides."""
    requests = plain["day"]["requests_per_month"]
    for side in (plain["self_host"], plain["api"]):
        assert side["usd_per_request"] * requests == pytest.approx(side["usd_per_month"])
        assert side["usd_per_million_tokens"] * plain["api"]["tokens_per_month"] / 1e6 == pytest.approx(
            side["usd_per_month"]
        )
    api = plain["api"]
    assert api["input_usd_per_month"] == pytest.approx(requests * api["prompt_tokens"] * 2.5 / 1e6)
    assert api["input_usd_per_month"] + api["output_usd_per_month"] == pytest.approx(api["usd_per_month"])


def test_utilization_is_the_mean_load_over_what_the_fleet_holds(plain: dict[str, Any]) -> None:
    """Simulated: the capacity is the highest rate that keeps the objective."""
    capacity = plain["day"]["capacity_rate_per_replica"]

    assert plain["self_host"]["utilization"] == pytest.approx(plain["day"]["mean_rate"] / capacity)
    assert 0 < plain["self_host"]["busy"] <= 1


def test_a_volume_beyond_the_fleet_takes_whole_replicas(plain: dict[str, Any]) -> None:
    """As many as the busiest hour needs, and the answer says so."""
    held = plain["day"]["capacity_rate_per_replica"] * 720 * 3600

    more = cost(requests_per_month=2.5 * held)

    assert more["self_host"]["replicas"] == 3
    assert more["self_host"]["usd_per_month"] == pytest.approx(3 * 2 * 720)
    assert any("takes 3 replicas" in caveat for caveat in more["caveats"])


def test_a_sharper_day_lowers_the_utilization(plain: dict[str, Any]) -> None:
    """The same busiest hour, less around it."""
    sharp = cost("pricing.daily={peak_to_mean: 3}")
    hourly = cost("pricing.daily={hourly: [" + ", ".join(["1"] * 23 + ["3"]) + "]}")

    assert sharp["self_host"]["utilization"] < plain["self_host"]["utilization"]
    assert hourly["day"]["mean_rate"] == pytest.approx(2.0 * (26 / 24) / 3)


def test_the_api_s_terms_follow_the_scenario(plain: dict[str, Any]) -> None:
    """A batch share takes its discount; another API its price; a given price wins over the scenario's."""
    batch = cost("pricing.batch_share=0.5")
    other = cost(api="gpt-4o-mini")

    assert batch["api"]["usd_per_month"] == pytest.approx(0.75 * plain["api"]["usd_per_month"])
    assert other["api"]["name"] == "gpt-4o-mini"
    assert other["api"]["usd_per_month"] < plain["api"]["usd_per_month"]


def test_what_overflows_is_part_of_the_month(plain: dict[str, Any]) -> None:
    """A class that always goes to the API is paid there; all of it there is what the month is compared with."""
    classes = "workload.classes=[{name: here, share: 0.5}, {name: there, share: 0.5}]"
    hybrid = cost(classes, "deployment.overflow={api: gpt-4o, always: [there], ttft: 50 ms}", "pricing.api=null")
    own, api = hybrid["self_host"], hybrid["api"]

    assert api["name"] == "gpt-4o"
    assert own["overflow_usd_per_month"] == pytest.approx(api["usd_per_month"] / 2, rel=0.2)
    assert own["usd_per_month"] == pytest.approx(own["fleet_usd_per_month"] + own["overflow_usd_per_month"])
    assert hybrid["saving_usd_per_month"] == pytest.approx(api["usd_per_month"] - own["usd_per_month"])
    assert plain["self_host"]["overflow_usd_per_month"] == 0
    assert any("compared with all of it at gpt-4o" in each for each in hybrid["caveats"])


def test_without_an_api_the_same_weights_are_looked_for() -> None:
    """Else the fallback; either is said."""
    same = cost("pricing.api=null")

    assert same["api"]["name"] == "deepinfra-llama-3.1-8b" or "gpt-4o" in same["api"]["name"]
    assert any("no API is named" in caveat for caveat in same["caveats"])


def test_quality_is_never_promised(plain: dict[str, Any]) -> None:
    """The first caveat is about the answers, not the dollars."""
    assert "prices say nothing of the answers" in plain["caveats"][0]


def test_how_far_to_trust_the_capacity_is_said(plain: dict[str, Any]) -> None:
    """A GPU without fitted curves rests on its datasheet; what was never measured says so, with a number."""
    bound = cost("deployment.hardware=rtx-6000-ada-48gb", "slo={ttft: 2 s}")

    assert (plain["fidelity"], bound["fidelity"]) == ("fitted", "roofline")
    assert "curves fitted to measurements" in plain["caveats"][-1]
    assert "a roofline of datasheet peaks; the throughput of 9 in 10 real servers is within" in bound["caveats"][-1]
    assert "(no measurement of dense models on rtx-6000-ada-48gb" in bound["caveats"][-1]
    assert bound["expected_error"]["throughput"]["servers"] == 0


def test_the_break_even_starts_from_one_replica() -> None:
    """A fleet of two is not the least a small volume takes."""
    two = cost("deployment.replicas=2")

    assert two["self_host"]["gpus"] == 2
    assert two["break_even"]["gpus"] == 1


def test_the_yearly_falls_are_the_scenario_s() -> None:
    """And what is left out is named."""
    flat = cost("pricing.api_price_fall_per_year=0", "pricing.gpu_price_fall_per_year=0")
    growing = cost("pricing.traffic_growth_per_year=0.5")
    terms = ("pricing.gpu_hour_usd=null", "pricing.gpu_price_fall_per_year=0.5")
    owned, rented = (cost(f"pricing.purchase={each}", *terms) for each in ("owned", "on_demand"))

    assert flat["outlook"]["api_usd"] == pytest.approx(36 * flat["api"]["usd_per_month"])
    assert flat["outlook"]["self_host_usd"] == pytest.approx(36 * flat["self_host"]["usd_per_month"])
    assert growing["outlook"]["traffic_growth_per_year"] == 0.5
    assert owned["outlook"]["self_host_usd"] == pytest.approx(36 * owned["self_host"]["usd_per_month"])  # it is paid
    assert rented["outlook"]["self_host_usd"] < 20 * rented["self_host"]["usd_per_month"]


def test_the_ladder_climbs_from_full_gpus_to_what_is_paid(plain: dict[str, Any]) -> None:
    """The last counted row is the month; operations are shown though none are given."""
    counted = [row for row in plain["left_out"] if row["is_counted"]]

    assert counted[-1]["self_host_usd_per_month"] == pytest.approx(plain["self_host"]["usd_per_month"])
    assert {row["term"] for row in plain["left_out"] if not row["is_counted"]} == {
        "operations (assumed: 30 hours at $100)",
        "one spare replica",
    }


def test_a_batch_is_priced_round_the_clock() -> None:
    """At its own throughput, which is the capacity."""
    batch = cost("workload.arrivals={process: all_at_once}", "workload.num_requests=100")

    assert batch["self_host"]["utilization"] == pytest.approx(1.0)
    assert any("round the clock" in caveat for caveat in batch["caveats"])


def test_the_same_scenario_gives_the_same_summary(plain: dict[str, Any]) -> None:
    """To the bit."""
    assert cost() == plain


@pytest.mark.parametrize(
    ("overrides", "arguments", "said"),
    [
        (["pricing.api=gpt-5000"], {}, "is not a known api"),
        (["pricing.gpu_hour_usd=null", "deployment.hardware=m2-max-96gb"], {}, "gpu_hour_usd"),
        (["pricing.daily={peak_to_mean: 3, peak_to_trough: 2}"], {}, "has no wave"),
    ],
)
def test_what_cannot_be_priced_is_said(overrides: list[str], arguments: dict[str, Any], said: str) -> None:
    """With the key."""
    with pytest.raises(InputError, match=said):
        cost(*overrides, **arguments)


def test_an_objective_that_no_load_keeps_is_infeasible() -> None:
    """Exit code 3, as for a plan that holds nowhere."""
    with pytest.raises(InfeasibleError, match=r"is held at no load: at .* requests/s, 0\.0% of requests meet it"):
        cost("slo={ttft: 1 us}")


@pytest.mark.parametrize(("clients", "said"), [(1, "at 1 client, 20.0% of"), (21, "at 21 clients, 20.0% of")])
def test_the_load_that_does_not_hold_is_counted_in_clients(clients: int, said: str) -> None:
    """One of them is one client, and 21 are not 21 client."""
    lowest = SimpleNamespace(load=float(clients), attainment=0.2, lost=0.0)
    curve: Any = SimpleNamespace(levels={clients: lowest, 2 * clients: None}, is_closed=True)

    assert said in str(_held_nowhere(curve))


def test_clients_whose_slo_is_missed_pay_for_the_replicas_that_they_need() -> None:
    """40 clients, of which one replica with four seats serves a few in time: as many replicas as there are such groups,
    and the requests that the clients then send. What one replica answers was taken for all that they ask."""
    closed = "workload.arrivals={process: closed_loop, concurrency: 40}"
    seats, slo = "deployment.engine.max_num_seqs=4", "slo={ttft: 200 ms, tpot: 50 ms, attainment: 0.9}"

    own = cost(closed, seats, slo, "workload.num_requests=400")

    few = max(each["load"] for each in own["load_levels"] if each["holds"])
    held = next(each for each in own["load_levels"] if each["load"] == few)
    missed = next(each for each in own["load_levels"] if each["load"] == 40)
    assert not missed["holds"]
    assert own["self_host"]["replicas"] == math.ceil(40 / few)
    assert own["day"]["mean_rate"] == pytest.approx(held["rate"] * 40 / few)
    assert own["day"]["mean_rate"] > missed["rate"]


_TALKS = (
    "workload.sessions={turns: {distribution: fixed, value: 6}, think_time: 1 s}",
    "workload.prompt_tokens={distribution: fixed, value: 1500}",
    "workload.output_tokens={distribution: fixed, value: 20}",
    "workload.num_requests=600",
    "deployment.engine.max_num_seqs=8",
)


_IN_TIME = (*_TALKS, "slo={ttft: 400 ms, attainment: 0.9}", "workload.arrivals={process: poisson, rate: 4}")


def test_a_fleet_of_conversations_is_simulated_as_a_whole() -> None:
    """Two replicas between which the turns of a conversation alternate hold less than twice what one holds."""
    alone = cost(*_IN_TIME)
    asked = 1.5 * alone["day"]["capacity_rate_per_replica"] * 720 * 3600

    spread = cost(*_IN_TIME, "deployment.routing=round_robin", requests_per_month=asked)

    assert spread["day"]["capacity_rate_per_replica"] < 0.95 * alone["day"]["capacity_rate_per_replica"]
    assert any("--routing prefix sends requests" in each for each in spread["warnings"])


@pytest.mark.parametrize(("share", "least"), [(0.5, None), (0.9, 0.9), (1.5, None)])
def test_a_lower_bound_is_told_where_one_replica_alone_pays_for_itself(share: float, least: float | None) -> None:
    """A replica costs as much as the API for a share of what it holds alone; of a fleet each holds 0.8 of that.

    Below 0.8 the break-even is the bound; above 1 no replica ever pays for itself."""
    month = 1000.0 * 720 * 3600
    together = _Together(fleet="2 replicas", routing="round_robin", before="one alone", alone=1000.0, each=800.0)
    model = Comparison(unit_usd_per_month=1.0, gpus_per_unit=1, capacity=800.0, api_usd_per_request=1 / (share * month))

    found = _least_break_even(model, together)

    assert found == (None if least is None else pytest.approx(least * month))
    assert _least_break_even(model, replace(together, each=990.0)) is None


def test_the_break_even_of_a_fleet_that_loses_hits_has_a_lower_bound() -> None:
    """Each replica is taken for one of the priced fleet; fewer lose less, so that it may lie as low as one alone says.
    Of a fleet that loses nothing there is no other bound."""
    alone = cost(*_IN_TIME)
    held = alone["day"]["capacity_rate_per_replica"] * 720 * 3600
    words = (*_IN_TIME, f"pricing.gpu_hour_usd={0.98 * held * alone['api']['usd_per_request'] / 720}")

    spread = cost(*words, "deployment.routing=round_robin", requests_per_month=1.5 * held)["break_even"]
    kept = cost(*words, "deployment.routing=prefix", requests_per_month=1.5 * held)["break_even"]

    assert spread["least_requests_per_month"] == pytest.approx(0.98 * held, rel=0.1)
    assert (spread["requests_per_month"] or math.inf) > held
    assert kept["least_requests_per_month"] is None


@pytest.mark.parametrize(
    ("fleet", "times", "told"),
    [
        (
            "deployment.pools=[{name: a, replicas: 1}, {name: b, replicas: 1}]",
            1.3,
            "the pools 2 times, simulated together and routed by round_robin, hold",
        ),
        pytest.param(
            "deployment.autoscaling={metric: running, target: 4, min_replicas: 1, max_replicas: 2}",
            3.2,
            " replicas, simulated together and routed by round_robin, hold",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_pools_and_scaled_fleets_of_conversations_are_simulated_as_a_whole(fleet: str, times: float, told: str) -> None:
    """At a volume beyond them, in as many replicas as are paid: each holds less, so that more of them are."""
    words = (*_IN_TIME, fleet, "deployment.routing=round_robin", "workload.num_requests=300")
    own = cost(*words)
    each, replicas = own["day"]["capacity_rate_per_replica"], own["self_host"]["replicas"]

    more = cost(*words, requests_per_month=times * each * replicas * 720 * 3600)

    (said,) = [line for line in more["warnings"] if "simulated together" in line]
    assert not any("simulated together" in line for line in (*own["warnings"], *own["caveats"]))
    assert told in said
    assert more["day"]["capacity_rate_per_replica"] < 0.9 * each
    assert more["self_host"]["replicas"] >= math.ceil(times * replicas)


def test_a_larger_fleet_has_the_rules_of_the_scenario() -> None:
    """Its pools so many times each, scaled ends too; or a scaled fleet of at most so many replicas."""
    scaled = "{metric: running, target: 4, min_replicas: 1, max_replicas: 2}"
    pools = make_scenario([f"deployment.pools=[{{name: a, replicas: 2}}, {{name: b, autoscaling: {scaled}}}]"])
    fleet = make_scenario([f"deployment.autoscaling={scaled}"])

    first, second = _enlarged(pools, 3).deployment.pools

    assert (first.replicas, second.replicas) == (6, 3)
    assert second.autoscaling is not None
    assert (second.autoscaling.min_replicas, second.autoscaling.max_replicas) == (3, 6)
    larger = _enlarged(fleet, 5).deployment
    assert larger.autoscaling is not None
    assert (larger.replicas, larger.autoscaling.min_replicas, larger.autoscaling.max_replicas) == (1, 1, 5)
    assert _enlarged(make_scenario(), 4).deployment.replicas == 4


def test_a_fleet_is_simulated_whole_in_its_busiest_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which has its number from there: at the mean rate prefix caches would hold more of it."""
    rates: list[float] = []

    def stopped(_: Scenario, rate: float) -> Scenario:
        rates.append(rate)
        raise InfeasibleError("enough is known")

    monkeypatch.setattr("simserve.planner.cost.scenario._with_traffic", stopped)
    day: Any = SimpleNamespace(capacity=1.0, units=4, mean_rate=2.0, shape=(0.5, 1.5))
    curve: Any = None  # what it was found on is not asked

    with pytest.raises(InfeasibleError, match="enough is known"):
        _whole_fleet(resolve(make_scenario()), curve, day)

    assert rates == [3.0]


def test_more_traffic_lasts_as_long_as_the_scenario_s() -> None:
    """So many times the rate are so many times the requests; those of a time are more by themselves."""
    counted = make_scenario(["workload.num_requests=200", "workload.arrivals={process: poisson, rate: 2}"])
    timed = make_scenario(["workload.num_requests=null", "workload.duration=10 min"])

    more, longer = (_with_traffic(each, 5.0).workload for each in (counted, timed))

    assert [getattr(each.arrivals, "rate", None) for each in (more, longer)] == [5.0, 5.0]
    assert (more.num_requests, longer.num_requests) == (500, None)


@pytest.mark.slow
def test_a_fleet_that_loses_prefix_hits_is_priced_as_it_holds() -> None:
    """Conversations whose turns go to any of four replicas: each holds less than one alone, and more are priced. By
    their number alone, the fleet that is priced missed its SLO."""
    alone = cost(*_IN_TIME)
    asked = 4 * alone["day"]["capacity_rate_per_replica"] * 720 * 3600

    spread = cost(*_IN_TIME, "deployment.routing=round_robin", requests_per_month=asked)
    kept = cost(*_IN_TIME, "deployment.routing=prefix", requests_per_month=asked)

    assert spread["self_host"]["replicas"] > kept["self_host"]["replicas"] >= 4
    assert spread["day"]["capacity_rate_per_replica"] < 0.95 * alone["day"]["capacity_rate_per_replica"]
    assert any("--routing prefix sends requests" in each for each in spread["warnings"])
    assert not any("--routing prefix" in each for each in kept["warnings"])


def test_a_scaled_fleet_pays_for_the_hours_it_has() -> None:
    """Over the day between its fewest and its most replicas: less than the most, more than the fewest."""
    scaling = "{metric: running, target: 4, min_replicas: 1, max_replicas: 6}"
    arrivals = "{process: poisson, rate: 6.0}"

    asked = (f"deployment.autoscaling={scaling}", f"workload.arrivals={arrivals}", "workload.num_requests=1000")

    own, spare = cost(*asked), cost(*asked, "pricing.spare_replicas=1")

    side = own["self_host"]
    assert spare["self_host"]["gpus_paid_on_average"] == pytest.approx(side["gpus_paid_on_average"] + 1)
    assert 1 <= side["gpus_paid_on_average"] < side["gpus"] == 6
    assert side["gpu_usd_per_month"] == pytest.approx(side["gpus_paid_on_average"] * side["gpu_hour_usd"] * 720)
    assert any("scaled from 1 to 6 replicas" in each for each in own["caveats"])
    gpu = side["gpu_hour_usd"] * 720
    assert next(each for each in own["left_out"] if "spare" in each["term"])["adds_usd_per_month"] == pytest.approx(gpu)
    assert own["break_even"]["usd_per_month"] == pytest.approx(own["break_even"]["gpus"] * gpu)
    cost_line = next(fact.text for fact in cost_brief(own).facts if fact.label == "Cost")
    assert f"{number(side['gpus_paid_on_average'])} of 6 GPUs on average" in cost_line


_TWO_POOLS = (
    "deployment.pools=[{{name: large, replicas: {large}, autoscaling: {scaling}}}, "
    "{{name: small, hardware: l4-24gb, replicas: {small}}}]"
)
_OF_POOLS = [
    "pricing.gpu_hour_usd=null",
    "deployment.engine.max_num_seqs=4",
    "workload.arrivals={process: poisson, rate: 4.0}",
]


@pytest.mark.parametrize("owner", ["pool", "deployment"])
def test_pools_that_may_not_follow_their_load_cost_what_as_many_replicas_do(owner: str) -> None:
    """Each at the price of its own GPU; the autoscaler is that of the pool, or of the deployment for every pool."""
    scaling = "{metric: running, target: 2, min_replicas: 3, max_replicas: 3}"
    own, common = (scaling, "null") if owner == "pool" else ("null", scaling)
    small = 1 if owner == "pool" else 3

    fixed = cost(_TWO_POOLS.format(large=3, small=small, scaling="null"), *_OF_POOLS)["self_host"]
    scaled = cost(_TWO_POOLS.format(large=1, small=1, scaling=own), f"deployment.autoscaling={common}", *_OF_POOLS)

    for name in ("usd_per_month", "gpus", "gpus_paid_on_average", "gpu_hour_usd", "gpu_usd_per_month"):
        assert scaled["self_host"][name] == pytest.approx(fixed[name], rel=1e-9), name
    assert any("the pool large is scaled from 3 to 3 replicas" in each for each in scaled["caveats"])


def test_a_single_pool_that_follows_its_load_is_paid_for() -> None:
    """A run tells nothing by pool where there is one: it was priced at no GPU, and at $0."""
    one = "deployment.pools=[{name: a, autoscaling: {metric: running, target: 2, min_replicas: 2, max_replicas: 2}}]"

    own = cost(one, "deployment.engine.max_num_seqs=4")["self_host"]

    assert own["gpus_paid_on_average"] == pytest.approx(2.0)
    assert own["gpu_usd_per_month"] == pytest.approx(2.0 * own["gpu_hour_usd"] * 720)


def test_a_pool_that_follows_its_load_is_paid_by_the_hours_of_its_own_gpus() -> None:
    """Dollars are those of each pool's mean number of GPUs, counted by hand from when its replicas came and went."""
    scaling = "{metric: running, target: 2, max_replicas: 6}"
    scenario = make_scenario(
        [*_BASE[:2], _TWO_POOLS.format(large=1, small=1, scaling=scaling), *_OF_POOLS, "pricing.api=gpt-4o"]
    )

    side = cost_summary(scenario)["self_host"]

    curve = load_curve.LoadCurve(scenario)
    curve.as_it_is()
    simulation = curve.first()[0].simulation
    timeline, end = simulation.timeline, simulation.end_time
    assert timeline is not None
    held = np.minimum(timeline.stopped_at, end) - timeline.launched_at
    prices = [resolve(scenario).pools[number].gpu_hour_usd for number in timeline.pool]
    by_hand = sum(seconds * price for seconds, price in zip(held, prices, strict=True) if price is not None) / end
    assert 2 < side["gpus_paid_on_average"] < side["gpus"] == 7
    assert side["gpus_paid_on_average"] == pytest.approx(held.sum() / end)
    assert side["gpu_usd_per_month"] == pytest.approx(
        by_hand * 720, rel=0.01
    )  # a run's price counts from its first arrival


def test_what_overflows_to_an_api_is_on_the_bill() -> None:
    """The replicas stay as many as they are; the API's dollars stand beside theirs."""
    overflow = "{api: deepinfra-llama-3.1-8b, max_queue: 0}"

    without, own = cost(), cost(f"deployment.overflow={overflow}", "deployment.engine.max_num_seqs=2")

    side = own["self_host"]
    assert side["overflow_usd_per_month"] > 0 == without["self_host"]["overflow_usd_per_month"]
    assert side["replicas"] == 1
    assert side["usd_per_month"] == pytest.approx(
        side["gpu_usd_per_month"] + side["operations_usd_per_month"] + side["overflow_usd_per_month"]
    )


def test_terms_are_for_arithmetic() -> None:
    """A scenario has its own; a term nobody knows names the nearest."""
    with pytest.raises(UsageError, match="without a scenario"):
        cost(terms={"gpus": 2})
    with pytest.raises(UsageError, match="did you mean 'gpu_hour_usd'"):
        cost_summary(terms={"gpu_hours_usd": 2})


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        ({"gpu_hour_usd": 1.0, "gpus": 0.0}, "gpus: 0.0 must be above 0"),
        ({"gpu_hour_usd": float("inf")}, "gpu_hour_usd: inf must be above 0 and finite"),
        ({"gpu_hour_usd": 1.0, "share": 2.0}, "share: 2.0 is a share"),
        ({"gpu_hour_usd": 1.0, "requests_per_month": -1.0}, "requests_per_month: -1.0 must be above 0"),
    ],
)
def test_terms_that_are_no_amounts_are_refused(terms: dict[str, float], said: str) -> None:
    """In Python as on the command line."""
    requests = terms.pop("requests_per_month", None)

    with pytest.raises(UsageError, match=said):
        cost_summary(requests_per_month=requests, terms=terms)


def test_a_fleet_at_half_use_costs_twice_as_much_a_request() -> None:
    """4 GPUs at $2 an hour for 1 request/s: $5,760 over 2.592 M requests, or over half of them."""
    terms = {"gpus": 4.0, "gpu_hour_usd": 2.0, "requests_per_second": 1.0}
    full, half = (cost_summary(terms={**terms, "utilization": share})["self_host"] for share in (1.0, 0.5))

    assert full["usd_per_request"] == pytest.approx(5760 / 2.592e6)
    assert half["usd_per_request"] == pytest.approx(2 * 5760 / 2.592e6)


def test_what_a_comparison_leaves_out_adds_to_the_month_one_by_one_and_together() -> None:
    """4 GPUs for $5,760: a fifth one is $1,440; with people at $3,000 all of it is for the lowest use of five."""
    rows = cost_summary(terms={"gpus": 4.0, "gpu_hour_usd": 2.0})["left_out"]
    added = {row["term"].split(" (")[0].split(",")[0]: row["adds_usd_per_month"] for row in rows}

    low = min(USUAL_UTILIZATION)
    assert added["one more GPU"] == pytest.approx(1440)
    assert added[f"utilization of {low:.0%}"] == pytest.approx(5760 / low - 5760)
    assert added["all of these"] == pytest.approx(3000 + (5760 + 1440) / low - 5760)


def test_gpus_that_miss_the_slo_do_not_break_even_at_more_of_the_traffic() -> None:
    """A spike has no rate to raise: what was not held is not promised for more of it."""
    spike = "workload.arrivals={process: spike, rate: 1, factor: 6, at: 10 s, spike_duration: 20 s}"
    dear = "pricing.gpu_hour_usd=9"
    missed, held = (cost(spike, dear, f"slo={{ttft: {limit}, tpot: 50 ms}}") for limit in ("20 ms", "60 s"))
    requests = missed["day"]["requests_per_month"]

    assert held["break_even"]["requests_per_month"] > requests
    assert not held["break_even"]["is_simulated"]
    assert "; that these serve so much is not simulated" in str(cost_brief(held).facts)
    assert missed["break_even"]["requests_per_month"] is None
    assert missed["break_even"]["as_deployed_requests_per_month"] is None
    assert re.match(r"at [\d.]+ M requests a month these miss the SLO", missed["break_even"]["why_never"])
    assert all(row["break_even_requests_per_month"] is None for row in missed["left_out"])
    assert missed["outlook"]["by_month"][-1]["break_even_requests_per_month"] is None


def test_every_deployment_that_is_compared_is_priced_for_this_traffic() -> None:
    """The brief answer says so too, not only from what volume on each is cheapest."""
    two = cost_summary(make_scenario([*_BASE]), variants={"two": ["deployment.replicas=2"]})

    usd = 2 * two["self_host"]["usd_per_month"]
    assert [(each["name"], each["gpus"]) for each in two["options"]] == [("the scenario", 1.0), ("two", 2.0)]
    assert two["options"][1]["usd_per_month"] == pytest.approx(usd)
    assert f"two: ${usd:,.0f} a month on 2 GPUs for this traffic" in str(cost_brief(two).facts)


def test_spot_gpus_are_said_to_be_taken_back() -> None:
    """Unless that is simulated."""
    spot = cost_summary(make_scenario([*(each for each in _BASE if "gpu_hour" not in each), "pricing.purchase=spot"]))

    assert any("spot GPUs may be taken back at any time" in each for each in spot["caveats"])
    assert " a month on 1 spot GPU; " in str(cost_brief(spot).facts)
    assert not any("taken back" in each for each in cost()["caveats"])
