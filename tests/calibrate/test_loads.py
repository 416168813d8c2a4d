"""Which loads are worth measuring."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import simserve as ss
from simserve.calibrate import loads
from simserve.calibrate.factors import PRIORS
from simserve.calibrate.loads import (
    FIGURES,
    Proposal,
    benchmark_command,
    client_counts,
    closed_loop,
    inner_clients,
    propose,
)
from simserve.calibrate.simulated import ServingModel
from simserve.cli.observe import DEFAULT_CLIENTS
from simserve.errors import ScenarioError
from simserve.profiles.engine_options import FACTORS
from simserve.scenario.load import from_mapping
from simserve.workload.generate import generate
from tests.builders import make_specs
from tests.calibrate.builders import CHAT, chat


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


def test_inner_clients_stand_for_a_range_by_their_logarithm() -> None:
    """Of evenly drawn logarithms mean and deviation are those of the two, to what whole clients allow."""
    for most in (16, 32, 256):
        logs = np.log(np.geomspace(1, most, 10_001))

        found = np.log(inner_clients(most))

        assert found.mean() == pytest.approx(logs.mean(), abs=0.08)
        assert found.std() == pytest.approx(logs.std(), abs=0.08)

    assert inner_clients(32) == pytest.approx(DEFAULT_CLIENTS, abs=1)
    assert inner_clients(1) == inner_clients(4) == (1, 3)


def test_loads_are_those_that_the_engine_has_seats_for(model: ServingModel) -> None:
    """Powers of four up to max_num_seqs; the command sends requests as long as the traffic's."""
    specs = generate(model.scenario.workload, seed=1)

    command = benchmark_command("me/mine", specs, 4)

    assert client_counts(model) == [1, 4, 16]
    assert "--model me/mine" in command
    assert "--max-concurrency 4 --num-prompts 16" in command
    assert f"--random-input-len {round(float(np.mean(specs.prompt_tokens)))}" in command


def test_lengths_of_the_command_spread_as_those_that_spread_more() -> None:
    """Equal prompts, and answers that are 60 or 100 long: 20 of 80 either way, of which sqrt(3) is 0.43."""
    specs = make_specs([0.0, 0.0], 500, [60, 100])

    assert "--random-range-ratio 0.43" in benchmark_command("m", specs, 4)
    assert "--random-range-ratio 0.00" in benchmark_command("m", make_specs([0.0, 0.0], 500, 80), 4)


def test_who_leaves_at_an_instant_is_gone_before_the_next_one_comes() -> None:
    """Two at a time at most, on two replicas; one that was never answered is not in flight."""
    records = SimpleNamespace(
        arrival_time=np.array([0.0, 0.0, 5.0, 1.0]), finish_time=np.array([5.0, 9.0, 8.0, np.nan])
    )
    own: Any = SimpleNamespace(records=records, num_replicas=2)

    assert loads._most_in_flight(own) == 1.0


def test_pools_are_refused() -> None:
    """What is calibrated is one server."""
    with pytest.raises(ScenarioError, match="is not calibrated as a whole"):
        propose(ServingModel(ss.load("two-pools")))


@pytest.mark.slow
def test_of_two_loads_the_first_leaves_least_open(model: ServingModel, proposal: Proposal) -> None:
    """By slopes of our own, over runs 5 % slower and faster, and the covariance that one measurement leaves."""
    specs = generate(model.scenario.workload, seed=model.scenario.run.seed)
    names, step = list(FACTORS), 0.05
    prior = PRIORS.covariance()

    def slopes(num_clients: int) -> np.ndarray:
        replay = closed_loop(model, specs, num_clients)
        columns = []
        for name in names:
            slower, faster = (
                model.predict_slowed(replay, dict.fromkeys(names, 1.0) | {name: np.exp(sign * step)})
                for sign in (1, -1)
            )
            columns.append([np.log(slower[each] / faster[each]) / (2 * step) for each in FIGURES.values()])
        return np.array(columns).T

    def noise(load: np.ndarray) -> np.ndarray:
        steps = np.abs(load[:, names.index("gpu")]) + np.abs(load[:, names.index("host")])
        tpot = np.hypot(0.02, PRIORS.misfit["tpot"] * max(steps[0], 1.0))
        ttft = np.sqrt(0.05**2 + PRIORS.misfit["ttft"] ** 2 + (PRIORS.misfit["tpot"] * steps[1]) ** 2)
        return np.array([[tpot], [ttft]])

    records = ss.run(model.scenario).requests
    duration = records["finish_s"].max() - records["arrival_s"].min()
    target = slopes(round((records["finish_s"] - records["arrival_s"]).sum() / duration))
    left = {}
    for count in inner_clients(proposal.most_clients):
        load = slopes(count)
        known = load / noise(load)
        after = np.linalg.inv(np.linalg.inv(prior) + known.T @ known)
        left[count] = float(np.trace(target @ after @ target.T))

    assert proposal.loads[0].num_clients == min(left, key=lambda count: left[count])
    found = sum(share**2 for share in proposal.loads[0].deviations.values())
    assert found == pytest.approx(min(left.values()), rel=0.25)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "metrics"),
    [
        ("cold-start", {"tpot", "ttft"}),  # replicas come and go
        ("lost-replica", {"tpot", "ttft"}),  # the second of them breaks
        ("speculative-decoding", {"tpot", "ttft"}),  # each request has a pace of its own
        ("embeddings", {"ttft"}),  # nothing is decoded
    ],
)
def test_loads_are_proposed_for_one_server_of_any_fleet(name: str, metrics: set[str]) -> None:
    """One replica of it, by what its requests have."""
    small = {"deployment.engine.max_num_seqs": 8}

    found = propose(ServingModel(ss.load(name, small)))

    assert len(found.loads) == 2
    assert set(found.open_before) == metrics
    assert all(set(each.deviations) == metrics for each in found.loads)


@pytest.mark.slow
def test_no_more_is_promised_than_a_calibrated_run_will_say() -> None:
    """No measured server decodes speculatively: two loads of one leave its errors as wide as they were."""
    found = propose(ServingModel(ss.load("speculative-decoding", {"deployment.engine.max_num_seqs": 4})))

    assert found.calibrated == found.expected


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize(
    "coming_and_going",
    [
        {"autoscaling": {"metric": "running", "target": 4, "min_replicas": 1, "max_replicas": 4, "interval": "15 s"}},
        {"faults": [{"kind": "replica", "replica": 0, "at": "5 s", "duration": "1 min"}]},
        {},
    ],
    ids=["autoscaling", "a fault", "neither"],
)
def test_one_replica_neither_comes_nor_goes(replicas: int, coming_and_going: dict[str, Any]) -> None:
    """Whether the scenario has one or several; one that is fixed already stays the same object."""
    asked = CHAT["deployment"] | {"replicas": replicas} | coming_and_going
    model = ServingModel(from_mapping(CHAT | {"deployment": asked}))

    alone = model.of_one_replica().scenario.deployment

    assert (alone.replicas, alone.autoscaling, alone.faults, alone.updates) == (1, None, (), ())
    assert (model.of_one_replica() is model) == (replicas == 1 and not coming_and_going)
