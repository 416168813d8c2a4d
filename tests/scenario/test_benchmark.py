"""The requests of a benchmark whose file says only means, or no process: what is drawn in their place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simserve.scenario.benchmark import arrivals_of, lengths_of
from simserve.workload.benchmarks.result import BenchResult
from tests.scenario.builders import make_scenario


def result(**changes: Any) -> BenchResult:
    """Return a run of four requests of 100 and 20 tokens, of which the means are known."""
    known: dict[str, Any] = {
        "label": "a",
        "file": "a.json",
        "tool": "",
        "arrivals": {},
        "num_requests": 4,
        "prompt_tokens": np.array([100.0]),
        "output_tokens": np.array([20.0]),
        "measured": {},
    }
    return BenchResult(**{**known, **changes})


def test_lengths_in_a_range_are_evenly_spread_over_it() -> None:
    """From half to one and a half times the mean: four requests at its eighths 1, 3, 5 and 7."""
    found = lengths_of(result(length_range=(0.5, 1.5)), None, [])

    assert sorted(found.prompt_tokens.tolist()) == [62, 88, 112, 138]
    assert sorted(found.output_tokens.tolist()) == [12, 18, 22, 28]


def test_lengths_of_a_scenario_are_scaled_to_the_means_of_the_file() -> None:
    """Uniform from 50 to 150 beside a mean of 250: every length 2.5 times as long, nearly, as many are drawn."""
    spread = {"distribution": "uniform", "min": 50, "max": 150}
    scenario = make_scenario(["workload.output_tokens=20"], workload={**_WORKLOAD, "prompt_tokens": spread})
    own = lengths_of(result(num_requests=400, prompt_tokens=np.array([])), scenario, []).prompt_tokens
    found = lengths_of(result(num_requests=400, prompt_tokens=np.array([250.0])), scenario, [])

    assert found.prompt_source == "scaled"
    np.testing.assert_allclose(found.prompt_tokens, own * (250.0 / own.mean()), atol=0.5)
    assert found.scale == {"prompt_tokens": pytest.approx(250.0 / own.mean()), "output_tokens": 1.0}


@pytest.mark.parametrize(
    ("lengths", "mean", "source"),
    [
        (100, 95.5, "drawn"),  # within 5 %
        (100, 106.0, "scaled"),
        ({"distribution": "uniform", "min": 1, "max": 399}, 225.0, "drawn"),  # the mean of 16 scatters by 29
        ({"distribution": "uniform", "min": 1, "max": 399}, 400.0, "scaled"),
    ],
)
def test_lengths_near_those_of_the_scenario_are_drawn_as_it_says(lengths: Any, mean: float, source: str) -> None:
    """Within 5 % of the file's mean, or where chance explains more, within three standard errors."""
    scenario = make_scenario(workload={**_WORKLOAD, "prompt_tokens": lengths})
    few = {"num_requests": 16, "prompt_tokens": np.array([mean])}

    assert lengths_of(result(**few), scenario, []).prompt_source == source


@pytest.mark.parametrize(
    ("own", "taken"),
    [
        ({"process": "gamma", "rate": 9.0, "cv": 2.0}, {"process": "gamma", "rate": 3.0, "cv": 2.0}),
        ({"process": "constant", "rate": 9.0}, {"process": "constant", "rate": 3.0}),
        ({"process": "closed_loop", "concurrency": 9}, {"process": "poisson", "rate": 3.0}),
    ],
)
def test_a_rate_without_a_process_takes_that_of_the_scenario(own: dict[str, Any], taken: dict[str, Any]) -> None:
    """With its burstiness, where that is a process of a rate."""
    scenario = make_scenario(workload={**_WORKLOAD, "arrivals": own})

    assert arrivals_of(result(arrivals={"rate": 3.0}), scenario, []) == taken


_WORKLOAD: dict[str, Any] = {
    "arrivals": {"process": "poisson", "rate": 5.0},
    "prompt_tokens": 100,
    "output_tokens": 20,
    "num_requests": 20,
}
