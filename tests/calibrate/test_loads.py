"""Which loads are worth measuring."""

from __future__ import annotations

import numpy as np
import pytest

import simserve as ss
from simserve.calibrate.loads import Proposal, benchmark_command, client_counts, propose
from simserve.calibrate.simulated import ServingModel
from simserve.errors import ScenarioError
from simserve.workload.generate import generate
from tests.calibrate.builders import chat


@pytest.fixture(scope="module")
def model() -> ServingModel:
    """Return a deployment with few seats, so that few loads are tried."""
    return ServingModel(chat(max_num_seqs=16))


@pytest.fixture(scope="module")
def proposal(model: ServingModel) -> Proposal:
    """Return what is proposed for it."""
    return propose(model)


def test_each_load_leaves_less_open_than_before_it(proposal: Proposal) -> None:
    """Two different loads; of TPOT and TTFT together less is open after each, and calibrated servers err less."""
    steps = (proposal.open_before, *(each.deviations for each in proposal.loads))

    opened = [sum(share**2 for share in step.values()) for step in steps]

    assert len({each.num_clients for each in proposal.loads}) == 2
    assert opened == sorted(opened, reverse=True)
    assert opened[-1] < 0.7 * opened[0]
    for metric in ("tpot", "ttft"):
        assert proposal.calibrated.metrics[metric].half_90 < proposal.expected.metrics[metric].half_90


def test_loads_are_those_that_the_engine_has_seats_for(model: ServingModel) -> None:
    """Powers of four up to max_num_seqs; the command sends requests as long as the traffic's."""
    specs = generate(model.scenario.workload, seed=1)

    command = benchmark_command("me/mine", specs, 4)

    assert client_counts(model) == [1, 4, 16]
    assert "--model me/mine" in command
    assert "--max-concurrency 4 --num-prompts 16" in command
    assert f"--random-input-len {round(float(np.mean(specs.prompt_tokens)))}" in command


def test_pools_are_refused() -> None:
    """What is calibrated is one server."""
    with pytest.raises(ScenarioError, match="is not calibrated as a whole"):
        propose(ServingModel(ss.load("two-pools")))
