"""Rounds of rollouts: each waits for the last answer of the one before, and finds nothing of its KV cache."""

from typing import Any

import numpy as np
import pytest
import yaml
from pydantic import ValidationError

import simserve as ss
from simserve.scenario.verify import verify
from simserve.workload.spec import WorkloadSpec

ROUNDS = (
    "workload.num_requests=24",
    "workload.arrivals={process: all_at_once, rounds: 3, training_time: 60 s, weight_update: 10 s}",
)
SHORT = ("workload.output_tokens={distribution: lognormal, mean: 60, cv: 1.2, max: 400}",)
ADAPTERS = ("workload.loras={num_adapters: 3, rank: 8}", "deployment.engine.max_loras=2")
ALIKE = (
    "workload.prompt_tokens=40",
    "workload.output_tokens=50",
    "workload.shared_prefix={num_groups: 1, tokens: 600}",
)


def rollouts(*overrides: str) -> ss.Scenario:
    """Return a small run of the bundled rollouts."""
    return ss.load("rl-rollouts", _mapping((*ROUNDS, *overrides)))


def test_a_round_begins_when_the_policy_is_trained_and_its_weights_are_there() -> None:
    """70 s after the last answer of the round before, all its requests at once."""
    requests = ss.run(rollouts(*SHORT), advise=False).requests

    sent, ended = requests.groupby("turn")["arrival_s"], requests.groupby("turn")["finish_s"]
    assert list(sent.count()) == [8, 8, 8]
    assert list(sent.min()) == list(sent.max())
    assert list(sent.min())[1:] == pytest.approx([each + 70.0 for each in list(ended.max())[:-1]], abs=1e-9)


def test_new_weights_make_the_old_kv_void() -> None:
    """Of one prompt for all, each round computes the common beginning anew, and takes as long as the first."""
    requests = ss.run(rollouts(*ALIKE), advise=False).requests

    cached = requests.groupby("turn")["cached_tokens"].sum()
    took = requests.groupby("turn")["finish_s"].max() - requests.groupby("turn")["arrival_s"].min()
    assert cached.nunique() == 1
    assert 0 < cached.iloc[0] < 8 * 600
    assert list(took) == pytest.approx([took.iloc[0]] * 3, rel=1e-9)


def test_rounds_do_not_move_the_draws_of_the_first_one() -> None:
    """The first round is the batch that it would be by itself."""
    alone = ss.load(
        "rl-rollouts", {"workload.num_requests": 8, "workload.arrivals": {"process": "all_at_once"}, **_mapping(SHORT)}
    )
    first = ss.run(rollouts(*SHORT), advise=False).requests.query("turn == 1")
    single = ss.run(alone, advise=False).requests

    assert first["output_tokens"].tolist() == single["output_tokens"].tolist()
    assert first["finish_s"].to_numpy() == pytest.approx(single["finish_s"].to_numpy(), rel=1e-12)


def _mapping(overrides: tuple[str, ...]) -> dict[str, Any]:
    parts = (each.split("=", 1) for each in overrides)
    return {key: yaml.safe_load(value) for key, value in parts}


@pytest.mark.parametrize(
    "more",
    [(), ADAPTERS, ("workload.thinking_tokens=30",)],
    ids=["plain", "adapters", "thinking"],
)
def test_the_reference_agrees(more: tuple[str, ...]) -> None:
    """The plain simulator sends each round when the plane does."""
    found = verify(rollouts(*SHORT, *more))

    assert found.is_equal
    assert found.largest_difference < 1e-9


def test_adapters_are_drawn_request_by_request() -> None:
    """A round is no conversation with one adapter."""
    requests = ss.run(rollouts(*SHORT, *ADAPTERS), advise=False).requests

    assert requests["adapter"].nunique() == 3


def test_figures_of_rounds_are_those_of_its_requests() -> None:
    """Means, tails and dollars, counted again from the table."""
    result = ss.run(rollouts(*SHORT), advise=False)
    rounds, table = result.summary["simserve"]["rounds"], result.requests
    waits = [np.sort(part["finish_s"] - part["arrival_s"].min()) for _, part in table.groupby("turn")]
    lasted = np.array([each[-1] for each in waits])
    per_hour = result.summary["simserve"]["cost"]["usd_per_hour"]

    assert (rounds["begun"], rounds["finished"]) == (3, 3)
    assert rounds["mean_round_s"] == pytest.approx(lasted.mean())
    assert rounds["max_round_s"] == pytest.approx(lasted.max())
    assert rounds["mean_half_s"] == pytest.approx(np.mean([each[3] for each in waits]))
    assert rounds["tail_share"] == pytest.approx(sum(each[-1] - each[7] for each in waits) / lasted.sum())
    assert rounds["generating_share"] == pytest.approx(lasted.mean() / (lasted.mean() + 70.0))
    assert rounds["usd_per_round"] == pytest.approx(per_hour * (lasted.mean() + 70.0) / 3600)


def test_a_batch_by_itself_has_no_rounds() -> None:
    """Null, not one round."""
    alone = ss.load("rl-rollouts", {"workload.num_requests": 8, "workload.arrivals": {"process": "all_at_once"}})

    assert set(ss.run(alone, advise=False).summary["simserve"]["rounds"].values()) == {None}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"num_requests": 10}, "must be of one size"),
        ({"sessions": {"turns": 2, "think_time": "1 s"}}, "rounds and sessions"),
        ({"agents": {"calls": 2}}, "rounds and agents"),
        ({"arrivals": {"process": "all_at_once", "training_time": "5 s"}}, "one round"),
    ],
)
def test_what_rounds_do_not_go_with_is_refused(changes: dict[str, Any], says: str) -> None:
    """One line, with what to change."""
    asked = {
        "arrivals": {"process": "all_at_once", "rounds": 3},
        "prompt_tokens": 10,
        "output_tokens": 10,
        "num_requests": 9,
    }

    with pytest.raises(ValidationError, match=says):
        WorkloadSpec.model_validate(asked | changes)
