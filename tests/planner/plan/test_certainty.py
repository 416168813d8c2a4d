"""How sure a plan is: the probability on a real server, and plans that are sized for it."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import pytest

from simserve.errors import ScenarioError, UsageError
from simserve.planner.plan.infeasible import nearest_miss
from simserve.planner.plan.plan import PlanOptions, plan
from simserve.planner.search.member import Goal, GroupResult
from simserve.planner.search.search import search_group
from simserve.planner.search.trial import Trial, try_fleet
from simserve.planner.space.space import space_on
from simserve.planner.space.traffic import traffic_of
from simserve.profiles.expected_errors import load_error_model
from simserve.scenario.schema import Scenario
from tests.planner.plan.test_plan import SMALL, busy_scenario

ONE_SHAPE = {key: values[:1] for key, values in SMALL.items()} | {
    "deployment.quantization": ["fp8"],
    "deployment.engine.max_num_seqs": [64],
}
LIMITS = {"ttft": "2 s", "tpot": "45 ms", "attainment": 0.95}


def scenario() -> Scenario:
    """Return steady traffic that takes several GPUs, of limits that are near."""
    return busy_scenario(slo=LIMITS)


@cache
def searched(confidence: float | None = None, max_gpus: int = 12) -> GroupResult:
    """Return the search over one shape on one kind of GPU."""
    there = scenario()
    space = space_on(there, "l4-24gb", {}, ONE_SHAPE, traffic_of(there))
    return search_group(space, Goal(objective="gpus", max_gpus=max_gpus, confidence=confidence))


def best(group: GroupResult) -> Trial:
    """Return the run of the best fleet."""
    assert group.best is not None
    assert group.best.trial is not None
    return group.best.trial


def trial(tpot: str, replicas: int = 4, **slo: Any) -> Trial:
    """Return one run under a limit on TPOT."""
    return try_fleet(busy_scenario(slo={"tpot": tpot, "attainment": 0.95, **slo}), {}, replicas)


def test_a_closer_limit_is_less_probable() -> None:
    """The same run under limits from near its TPOT to far above it."""
    found = [trial(limit).probability or 0.0 for limit in ("45 ms", "60 ms", "120 ms", "2 s")]

    assert found == sorted(found)
    assert found[0] < 0.5 < found[2]
    assert found[3] > 0.99


def test_at_the_predicted_median_it_is_one_half_but_for_the_bias() -> None:
    """A limit on the TPOT of the request that decides, corrected by the median error, in an unloaded fleet."""
    center = load_error_model().metrics["tpot"].center
    p95 = trial("1 s", attainment=0.5).latencies["p50_tpot_ms"]
    assert p95 is not None

    found = trial(f"{p95 * math.exp(-center)} ms", attainment=0.5).probability

    assert found == pytest.approx(0.5, abs=0.01)


def test_a_confidence_takes_more_gpus_and_is_kept() -> None:
    """As simulated a fleet holds that does on too few real servers."""
    plain, sure = best(searched()), best(searched(0.8))

    assert plain.probability is not None
    assert sure.probability is not None
    assert plain.probability < 0.8 <= sure.probability
    assert sure.num_gpus > plain.num_gpus


def test_a_confidence_that_nothing_reaches_is_refused_with_the_highest() -> None:
    """Within as few GPUs as hold: the miss says how sure the surest fleet is."""
    goal = Goal(max_gpus=best(searched()).num_gpus, confidence=0.99)

    group = searched(0.99, goal.max_gpus)
    miss = nearest_miss([group], scenario(), goal)

    assert group.best is None
    assert (miss.metric, miss.limit) == ("confidence", 0.99)
    assert miss.reached == miss.highest_probability == max(each.probability or 0.0 for each in group.trials)
    assert miss.relax.startswith("--confidence 0.")


def test_the_same_run_decides_for_any_confidence() -> None:
    """It holds as simulated, and on no more servers than it does."""
    run = best(searched())

    assert run.sure(None) is run
    assert run.probability is not None
    assert run.sure(run.probability).holds
    assert not run.sure(run.probability + 0.01).holds


@pytest.mark.parametrize("share", [0.0, 1.0, 90.0])
def test_a_confidence_is_a_share(share: float) -> None:
    """Between none and all of the servers."""
    with pytest.raises(UsageError, match="between 0 and 1"):
        plan(busy_scenario(), PlanOptions(confidence=share))


def test_a_confidence_needs_an_slo() -> None:
    """Without one there is nothing to be sure of."""
    with pytest.raises(ScenarioError, match="--confidence"):
        plan(busy_scenario(slo=None), PlanOptions(confidence=0.9))


@pytest.mark.slow
def test_a_plan_says_what_measuring_a_server_would_save() -> None:
    """A cheaper fleet that holds as simulated, and is as sure as is asked by the errors of calibrated servers."""
    asked = 0.8
    found = plan(
        scenario(), PlanOptions(hardware=("l4-24gb",), choices=ONE_SHAPE, max_gpus=12, confidence=asked)
    ).summary
    best_found = found["best"]
    measurement = best_found["measurement"]

    unsure = [each for each in searched(asked).trials if each.is_unsure]
    cheapest = min(each.num_gpus for each in unsure if (each.probability_measured or 0.0) >= asked)

    assert best_found["probability"] >= asked
    assert cheapest < best_found["num_gpus"]
    assert measurement["num_gpus"] == cheapest
    assert measurement["saves_gpus"] == best_found["num_gpus"] - cheapest
    assert measurement["probability"] >= asked
    saved = best_found["usd_per_month"] / best_found["num_gpus"] * measurement["saves_gpus"]
    assert measurement["saves_usd_per_month"] == pytest.approx(saved)
    assert measurement["command"].startswith("simserve calibrate loads ")
    assert f"deployment.replicas={cheapest}" in measurement["command"]


def test_a_measured_server_is_surer_where_limits_are_far() -> None:
    """The same run, with narrower errors; of separate workers, which are not calibrated as a whole, with the same."""
    plain = trial("90 ms")
    pools = [{"name": "p", "role": "prefill", "replicas": 2}, {"name": "d", "role": "decode", "replicas": 2}]
    apart = {"deployment.pools": pools, "deployment.disaggregation": {}}
    separate = try_fleet(busy_scenario(slo={"tpot": "90 ms", "attainment": 0.95}), apart, 4)

    assert plain.probability is not None
    assert plain.probability_measured is not None
    assert plain.probability_measured > plain.probability + 0.01
    assert separate.probability_measured == separate.probability
