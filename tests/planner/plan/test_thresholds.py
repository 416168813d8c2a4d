"""Thresholds of an autoscaler: what they cost beside who knows the load, and where they hold."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from simserve.errors import UsageError
from simserve.planner.overrides import with_overrides
from simserve.planner.plan.plan import PlanOptions, plan
from simserve.planner.plan.thresholds import FRESH_RUNS, autoscaler_of, check_autoscaler
from simserve.report.sketch import Steps
from simserve.report.thresholds import thresholds_lines, thresholds_sketch, thresholds_table
from simserve.scenario.load import from_mapping
from simserve.scenario.run import run
from simserve.scenario.schema import Scenario

FAST_START = {"schedule": "5 s", "image": "5 s", "load_bandwidth": "20 GB/s", "engine": "5 s"}


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
    scaling = {"metric": "running", "target": 8, "max_replicas": 8, "startup": FAST_START}
    lengths = {"workload.output_tokens": 100, "workload.prompt_tokens": 400}
    return day(1, 4.0, **{"deployment.autoscaling": scaling, "deployment.replicas": 1, **lengths})


@cache
def answered() -> dict[str, Any]:
    """Return the thresholds of the short day."""
    answer = autoscaler_of(short_day(), {}, 3, usd_per_hour=2.0, metrics=("running",))
    assert answer is not None
    return answer


def test_thresholds_hold_at_less_than_a_fixed_fleet() -> None:
    """On every fresh seed, between the load known ahead and the fleet that is there all the time."""
    best, fixed, known = (answered()[key] for key in ("best", "fixed", "clairvoyant"))

    assert best["holds"]
    assert best["fresh_runs"] == FRESH_RUNS
    assert best["attainment"]["least"] >= 0.95
    assert best["replica_hours"] < fixed["replica_hours"]
    assert best["of_clairvoyant"] == pytest.approx(best["replica_hours"] / known["replica_hours"])
    assert known["usd"] == pytest.approx(2 * known["replica_hours"])


def test_the_startup_of_the_scenario_decides() -> None:
    """Here seconds: 15 of its own, and 8 GB at 20 GB/s."""
    assert 15 < answered()["startup_s"] < 17
    assert answered()["best"]["overrides"]["deployment.autoscaling"]["startup"]["engine"] == pytest.approx(5.0)


def test_what_is_answered_runs_as_it_says() -> None:
    """The setting on the first fresh seed gives the replicas over time, and no more hours than the worst of all."""
    overrides = answered()["best"]["overrides"]
    result = run(with_overrides(short_day(), {**overrides, "run.seed": short_day().run.seed + 1}), explain=False)
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
    assert f"on {FRESH_RUNS} fresh seeds" in lines[1]
    assert "who knows the load ahead" in lines[2]
    assert table is not None
    assert table[1][0][0] == "running requests"
    assert [mark.label for mark in sketch.marks if isinstance(mark, Steps)][-1] == "autoscaler"
    assert "keep" in thresholds_lines(none)[0]
    assert thresholds_table(none) is None
    assert thresholds_lines(None)[0].startswith("No fixed number")
    Console(quiet=True).print(lines)


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"workload.arrivals": {"process": "poisson", "rate": 2.0}}, "a load that changes"),
        ({"workload.arrivals": {"process": "closed_loop", "concurrency": 4}}, "arrive by themselves"),
        ({"slo": None}, "needs an SLO"),
        ({"deployment.faults": [{"kind": "replica", "at": "1 min", "replica": 0}]}, "one pool of equal replicas"),
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


@pytest.mark.slow
def test_a_day_costs_at_most_a_tenth_more_than_who_knows_it() -> None:
    """Peak four times the trough, at least eight replicas at the peak, real starts; it holds on ten fresh seeds."""
    answer = autoscaler_of(day(24, 1.05), {}, 9, metrics=("running",))
    assert answer is not None
    best = answer["best"]

    assert answer["clairvoyant"]["peak_replicas"] >= 8
    assert answer["startup_s"] > 120
    assert best["holds"]
    assert best["fresh_runs"] == 10
    assert best["of_clairvoyant"] <= 1.1
    assert best["replica_hours"] < 0.8 * answer["fixed"]["replica_hours"]
