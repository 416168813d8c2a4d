"""A fleet beyond its knee is found out by long runs; what cannot be made longer is left as it is."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from simserve.planner.plan.plan import PlanOptions, plan
from simserve.planner.search.lasting import is_steady, lasts
from simserve.planner.search.trial import try_fleet
from simserve.scenario.load import load
from tests.scenario.builders import make_scenario


def make_traffic(rate: float) -> Any:
    """Return a run too short for its queue to grow much: 400 requests of an 8B model on an L4."""
    return make_scenario(
        model="llama-3.1-8b",
        deployment={"hardware": "l4-24gb", "engine": {"name": "vllm", "version": "0.12", "max_model_len": 4096}},
        workload={
            "arrivals": {"process": "poisson", "rate": rate},
            "prompt_tokens": {"distribution": "fixed", "value": 400},
            "output_tokens": {"distribution": "fixed", "value": 100},
            "num_requests": 400,
        },
        slo={"ttft": "20 s", "attainment": 0.95},
    )


@cache
def just_beyond() -> float:
    """Return the first rate, to a quarter of a request/s, at which a replica does not hold for long."""
    return next(each / 4 for each in range(12, 80) if not lasts(make_traffic(each / 4), {}, 1, num_runs=1))


def test_a_short_run_beyond_the_knee_does_not_last() -> None:
    """Its limit is met while the queue is short; later it is not."""
    rate = just_beyond()
    scenario = make_traffic(rate)

    assert try_fleet(scenario, {}, 1).holds
    assert lasts(make_traffic(0.7 * rate), {}, 1, num_runs=2)


@pytest.mark.parametrize(("name", "steady"), [("chatbot", True), ("multi-turn", False), ("cold-start", False)])
def test_only_steady_traffic_is_made_longer(name: str, steady: bool) -> None:
    """Conversations and patterns in time are as long as they are."""
    assert is_steady(load(name)) is steady


def test_a_plan_does_not_buy_what_holds_for_a_short_time() -> None:
    """The fleet that holds for 400 requests alone is passed over."""
    rate = just_beyond()
    options = PlanOptions(
        hardware=("l4-24gb",),
        max_gpus=4,
        keep=("engine",),
        trials=0,
        choices={
            "deployment.tensor_parallel_size": [1],
            "deployment.pipeline_parallel_size": [1],
            "deployment.quantization": ["none"],
            "deployment.kv_cache_dtype": ["auto"],
        },
    )

    best = plan(make_traffic(rate), options).summary["best"]

    assert best["replicas"] == 2
