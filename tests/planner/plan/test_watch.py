"""What a plan says about itself while it is being made."""

from __future__ import annotations

from typing import Any

import pytest

from simserve.planner.plan.plan import PlanOptions, plan
from simserve.planner.plan.watch import best_in_words
from simserve.planner.search.member import Objective
from simserve.planner.search.trial import Trial, try_fleet
from tests.planner.plan.test_certainty import ONE_SHAPE
from tests.scenario.builders import make_scenario

TWO_FORMATS = {**ONE_SHAPE, "deployment.quantization": ["none", "fp8"]}


def test_stages_come_with_the_best_fleet_so_far() -> None:
    """Each before the count of what is done; no fleet until one holds, then its price, in the end the plan's own."""
    told: list[tuple[Any, ...]] = []
    options = PlanOptions(hardware=("h100-sxm-80gb", "l40s-48gb"), choices=ONE_SHAPE, max_gpus=2, trials=0)
    found = plan(
        make_scenario(["slo={ttft: 1 s, tpot: 60 ms}"]),
        options,
        progress=lambda done, known: told.append((done, known)),
        on_stage=lambda doing, best: told.append((doing, best)),
    )

    stages, counts = told[::2], told[1::2]
    doing = list(dict.fromkeys(stage for stage, _ in stages))
    assert doing[:2] == ["deployments on h100-sxm-80gb", "deployments on l40s-48gb"]
    assert doing[-1] == "what would change the plan"
    assert stages[0] == (doing[0], "")
    assert counts[0] == (0, 1)
    assert counts[-1][0] == counts[-1][1]
    assert all(0 <= done <= known for done, known in counts)
    assert any(best.startswith("best so far: ") for _, best in stages)
    assert stages[-1][1].startswith("confirmed: 1 x ")
    assert stages[-1][1].endswith(f", ${found.summary['best']['usd_per_hour']:.2f}/h")


def test_what_fixed_gpus_can_do_tells_how_many_fleets_it_has_tried() -> None:
    """Within its first stage, which is one task for one kind of GPU."""
    told: list[str] = []
    scenario = make_scenario(["slo={ttft: 1 s, tpot: 60 ms}"])
    options = PlanOptions(hardware=("l40s-48gb",), choices=TWO_FORMATS, max_gpus=1, trials=0, objective="throughput")

    plan(scenario, options, on_stage=lambda doing, detail: told.append(f"{doing}: {detail}"))

    assert "deployments: " in told
    assert any(each.startswith("deployments: 2 fleets tried") for each in told)


@pytest.fixture(scope="module")
def trials() -> tuple[Trial, Trial]:
    """Return one replica and two."""
    scenario = make_scenario(["slo={ttft: 1 s, tpot: 60 ms}"])
    return try_fleet(scenario, {}, 1), try_fleet(scenario, {}, 2)


@pytest.mark.parametrize(
    ("objective", "ends"),
    [("cost", "/h"), ("gpus", "/h"), ("energy", " W"), ("latency", " s")],
)
def test_the_best_is_told_in_the_figure_that_is_minimised(
    objective: Objective, ends: str, trials: tuple[Trial, Trial]
) -> None:
    """Two replicas cost more and draw more power; the lower latency wins; what is confirmed comes first."""
    scenario = make_scenario(["slo={ttft: 1 s, tpot: 60 ms}"])
    best = best_in_words(scenario, objective, trials, None)
    confirmed = best_in_words(scenario, objective, trials[:1], trials[1])

    latencies = [trial.latencies["p95_e2el_ms"] or 0.0 for trial in trials]
    has_two = objective == "latency" and latencies[1] < latencies[0]
    assert best.startswith("best so far: 2 x (1 x h100" if has_two else "best so far: 1 x h100")
    assert best.endswith(ends)
    assert confirmed.startswith("confirmed: 2 x (1 x h100")
    assert best_in_words(scenario, objective, (), None) == ""
