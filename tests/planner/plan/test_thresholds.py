"""Thresholds of an autoscaler: what they cost beside who knows the load, and where they hold."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from simserve.errors import UsageError
from simserve.planner.overrides import Overrides, with_overrides
from simserve.planner.plan import thresholds
from simserve.planner.plan.findings import Findings
from simserve.planner.plan.fleet import Fleet
from simserve.planner.plan.plan import PlanOptions, plan
from simserve.planner.plan.thresholds import autoscaler_of, check_autoscaler
from simserve.planner.search.member import Goal, Member
from simserve.planner.search.trial import try_fleet
from simserve.report.sketch import Steps
from simserve.report.thresholds import load_sketch, thresholds_lines, thresholds_sketch, thresholds_table
from simserve.scenario.load import from_mapping
from simserve.scenario.run import run
from simserve.scenario.schema import Scenario

FAST_START = {"schedule": "5 s", "image": "5 s", "load_bandwidth": "20 GB/s", "engine": "5 s"}
SOME = 3
"""Fresh runs of the short day."""


def day(hours: float, rate: float, **changes: Any) -> Scenario:
    """Return chat on small GPUs over a day, as long as asked, whose peak is four times its trough."""
    daily = {"process": "daily", "rate": rate, "peak_to_mean": 1.6, "day": f"{hours} h"}
    return from_mapping(
        {
            "name": "day",
            "model": "llama-3.1-8b",
            "deployment": {
                "hardware": "l4-24gb",
                "quantization": "fp8",
                "kv_cache_dtype": "fp8",
                "replicas": 9,
                "engine": {"name": "vllm", "version": "0.12", "max_num_seqs": 128, "max_model_len": 8192},
            },
            "workload": {
                "arrivals": daily,
                "duration": f"{hours} h",
                "prompt_tokens": {"distribution": "lognormal", "mean": 500, "cv": 0.6, "max": 2000},
                "output_tokens": {"distribution": "lognormal", "mean": 2500, "cv": 0.4, "max": 6000},
            },
            "slo": {"ttft": "5 s", "tpot": "60 ms", "attainment": 0.95},
        },
        changes,
    )


def short_day() -> Scenario:
    """Return an hour that goes through a day, with short answers and starts of seconds."""
    scaling = {"metric": "running", "target": 8, "max_replicas": 8, "interval": "30 s", "startup": FAST_START}
    lengths = {"workload.output_tokens": 100, "workload.prompt_tokens": 400}
    return day(1, 4.0, **{"deployment.autoscaling": scaling, "deployment.replicas": 1, **lengths})


@cache
def answered() -> dict[str, Any]:
    """Return the thresholds of the short day."""
    answer = autoscaler_of(short_day(), {}, 3, usd_per_hour=2.0, metrics=("running",), fresh_runs=SOME)
    assert answer is not None
    return answer


@pytest.mark.slow
def test_thresholds_hold_at_less_than_a_fixed_fleet() -> None:
    """On every fresh seed, between the load known ahead and the fleet that is there all the time."""
    best, fixed, known = (answered()[key] for key in ("best", "fixed", "clairvoyant"))

    assert best["holds"]
    assert len(set(best["fresh_seeds"]) - {short_day().run.seed}) == SOME
    assert best["attainment"]["least"] >= 0.95
    assert best["replica_hours"] < fixed["replica_hours"]
    assert best["of_clairvoyant"] == pytest.approx(best["replica_hours"] / known["replica_hours"])
    assert known["usd"] == pytest.approx(2 * known["replica_hours"])


def test_the_startup_of_the_scenario_decides() -> None:
    """Here seconds: 15 of its own, and 8 GB at 20 GB/s."""
    assert 15 < answered()["startup_s"] < 16
    scaling = with_overrides(short_day(), answered()["best"]["overrides"]).deployment.autoscaling
    assert scaling is not None
    assert scaling.startup.engine == 5
    assert scaling.interval == 30


def test_what_is_answered_runs_as_it_says() -> None:
    """The setting on the first fresh seed gives the replicas over time, and holds the SLO there."""
    best = answered()["best"]
    asked = with_overrides(short_day(), {**best["overrides"], "run.seed": best["fresh_seeds"][0]})
    result = run(asked, explain=False)
    hours = result.summary["simserve"]["replicas"]["gpu_hours"]
    shown = np.array([each["replicas"] for each in answered()["over_time"]])

    assert result.summary["simserve"]["slo"]["attainment"] >= 0.95
    assert shown.mean() * answered()["seconds"] / 3600 == pytest.approx(hours, rel=0.02)


def test_the_highest_target_that_holds_is_the_cheapest() -> None:
    """Of the settings with one window and minimum a higher target takes fewer replica-hours."""
    first = answered()["tried"][0]
    alike = ("stabilization_s", "min_replicas")
    tried = [each for each in answered()["tried"] if all(each[key] == first[key] for key in alike) and each["holds"]]
    ordered = sorted(tried, key=lambda each: float(each["target"]))

    assert len(ordered) > 1
    assert ordered[-1]["replica_hours"] <= ordered[0]["replica_hours"]


def test_it_is_said_in_lines_a_table_and_a_picture() -> None:
    """What to set, that it holds, and what it costs beside the others; and where nothing held, that."""
    lines, table = thresholds_lines(answered()), thresholds_table(answered())
    sketch = thresholds_sketch(answered())
    none = {**answered(), "best": None, "tried": [{**each, "holds": False} for each in answered()["tried"]]}

    assert lines[0].startswith("Scale on running requests: ")
    assert f"on {SOME} fresh seeds" in lines[1]
    assert "a load known ahead" in lines[2]
    assert table is not None
    assert table[1][0][0] == "running requests"
    assert [mark.label for mark in sketch.marks if isinstance(mark, Steps)][-1] == "autoscaler"
    load = next(mark for mark in load_sketch(answered()).marks if isinstance(mark, Steps))
    assert load.values.max() / load.values.min() == pytest.approx(4.0, rel=0.1)
    assert "keep" in thresholds_lines(none)[0]
    assert thresholds_table(none) is None
    assert thresholds_lines(None)[0].startswith("No fixed number")


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"workload.arrivals": {"process": "poisson", "rate": 2.0}}, "a load that changes"),
        ({"workload.arrivals": {"process": "closed_loop", "concurrency": 4}}, "arrive by themselves"),
        ({"slo": None}, "needs an SLO"),
        (
            {"deployment.faults": [{"kind": "replica", "at": "1 min", "duration": "1 min", "replica": 0}]},
            "one pool of equal replicas",
        ),
    ],
)
def test_what_has_no_thresholds_is_refused_in_a_line(changes: dict[str, Any], rule: str) -> None:
    """A level load, clients that wait, no SLO, replicas that fail."""
    with pytest.raises(UsageError, match=rule):
        check_autoscaler(with_overrides(day(1, 2.0), changes))


@pytest.mark.parametrize(
    "changes", [{"spare_replicas": 1}, {"confidence": 0.9}, {"objective": "throughput", "max_gpus": 2}]
)
def test_options_that_it_would_ignore_are_refused(changes: dict[str, Any]) -> None:
    """Before anything runs."""
    with pytest.raises(UsageError, match="--autoscaler"):
        plan(day(1, 2.0), PlanOptions(autoscaler=True, **changes))


def test_a_plan_says_them_for_what_it_deploys(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its price, its deployment, and the command that runs it."""
    asked: dict[str, Any] = {}

    def answer_of(scenario: Scenario, overrides: Overrides, replicas: int, *, usd_per_hour: float) -> dict[str, Any]:
        asked.update(replicas=replicas, usd_per_hour=usd_per_hour)
        return answered()

    monkeypatch.setattr(thresholds, "autoscaler_of", answer_of)
    scenario, cache_dtype = short_day(), {"deployment.kv_cache_dtype": "auto"}
    trial = try_fleet(scenario, {**cache_dtype, "deployment.autoscaling": None}, 2, 200)
    member = Member(overrides=cache_dtype, status="tried", trial=trial)
    found = Findings(
        scenario=scenario, planned=scenario, goal=Goal(objective="cost", max_gpus=8), reference=("day.yaml",)
    )
    found.fleet, found.confirmed, found.member = (
        Fleet(scenario=scenario, overrides=cache_dtype, replicas=2),
        trial,
        member,
    )
    answer = thresholds.thresholds_of(found)

    assert asked == {"replicas": 2, "usd_per_hour": pytest.approx(trial.usd_per_hour / 2)}
    assert answer is not None
    assert answer["best"]["command"].startswith("simserve run day.yaml --set 'deployment.autoscaling={")
    assert answer["best"]["overrides"]["deployment.kv_cache_dtype"] == "auto"
    assert answer["best"]["label"] == "1 to 3 x (1 x l4-24gb, fp8), scaled on running"
    assert answer["best"]["mean_gpus"] == pytest.approx(answer["best"]["replica_hours"])  # an hour, one GPU each
    assert answer["best"]["usd_per_month"] == pytest.approx(answer["best"]["usd"] * 720)


@pytest.mark.slow
def test_a_day_costs_at_most_a_tenth_more_than_who_knows_it() -> None:
    """Peak four times the trough, at least eight replicas at the peak, real starts; it holds on ten fresh seeds."""
    scaling = {"metric": "running", "target": 30, "max_replicas": 12, "interval": "60 s"}
    scenario = day(24, 1.05, **{"deployment.autoscaling": scaling})
    answer = autoscaler_of(scenario, {}, 8, metrics=("running",))
    assert answer is not None
    best = answer["best"]

    assert answer["clairvoyant"]["peak_replicas"] >= 8
    assert answer["startup_s"] > 120
    assert best["holds"]
    assert len(best["fresh_seeds"]) == 10
    assert best["of_clairvoyant"] <= 1.1
    assert best["replica_hours"] < 0.8 * answer["fixed"]["replica_hours"]
