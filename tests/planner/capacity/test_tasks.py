"""Loads of agents' tasks: how their calls come to the rate, and what counts as met."""

from __future__ import annotations

import numpy as np
import pytest

from simserve.planner.capacity.probe import probe_of, ramp_of
from simserve.scenario.finishable import Finishable
from simserve.scenario.schema import Scenario
from simserve.workload.generate import generate

AGENTS = {"calls": 3, "tool_time": "2 s", "subagent_share": 1.0, "subagents": 2, "subagent_calls": 2}


def scenario(**slo: object) -> Scenario:
    """Return tasks of three calls of the main agent and eight of sub-agents, on one GPU."""
    return Scenario.model_validate(
        {
            "name": "tasks",
            "model": "llama-3.1-8b",
            "deployment": {"hardware": "h100-sxm-80gb", "engine": {"name": "vllm", "version": "0.12"}},
            "workload": {
                "arrivals": {"process": "poisson", "rate": 2.0},
                "prompt_tokens": 100,
                "output_tokens": 50,
                "num_requests": 220,
                "agents": AGENTS,
            },
            "slo": slo,
        }
    )


def test_calls_come_along_the_longest_way_of_their_task() -> None:
    """Two tools, of the sub-agents that each wait for the other's end, and six answers before the last call."""
    specs = generate(scenario(task="9 s").workload, seed=1)
    ramp = ramp_of(specs)
    assert ramp is not None

    assert ramp.conversation_seconds == 4.0
    assert ramp.conversation_turns == 7.0
    assert ramp.thinking[:11].tolist() == [0.0, 0.0, 2.0, 0.0, 2.0, 2.0, 2.0, 4.0, 2.0, 4.0, 4.0]


@pytest.mark.parametrize(("limit", "expected"), [("1 s", 0.0), ("1 h", 1.0)])
def test_a_trial_counts_tasks(limit: str, expected: float) -> None:
    """No task is over before its tools, every one is within an hour; each counts once."""
    trial = probe_of(scenario(task=limit), Finishable(rate=1e3, half_width=0.0, requests=0))(2.0, 0, 1000)

    assert (trial.attainment, trial.by_metric["task"]) == (expected, expected)
    assert len(trial.met) < trial.num_simulated / 8
    assert np.mean(trial.met) == expected
