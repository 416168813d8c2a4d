"""generate: columns, streams, reproducibility, the shape of each arrival process, rounds."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from typing import Any

import numpy as np
import pytest
import yaml
from pydantic import ValidationError

import simserve as ss
from simserve.errors import ScenarioError
from simserve.scenario.verify import verify
from simserve.validation import validate
from simserve.workload.generate import generate
from simserve.workload.spec import WorkloadSpec

COLUMNS = ("arrival_time", "prompt_tokens", "output_tokens", "max_tokens", "think_time")
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


def make_workload(**changes):
    """Return a small Poisson workload with some keys changed; None removes one."""
    keys = {
        "arrivals": {"process": "poisson", "rate": 4.0},
        "prompt_tokens": {"distribution": "lognormal", "mean": 1155, "cv": 1.0, "max": 8000},
        "output_tokens": {"distribution": "lognormal", "mean": 211, "cv": 0.8, "max": 1000},
        "num_requests": 500,
    } | changes
    return validate(WorkloadSpec, {key: value for key, value in keys.items() if value is not None})


def bytes_of(requests):
    """Return the bytes of every column by its name."""
    return {column: getattr(requests, column).tobytes() for column in COLUMNS}


def test_the_same_seed_gives_the_same_bytes():
    """Twice the same call, twice the same columns; another seed or replication gives others."""
    first = bytes_of(generate(make_workload(), seed=1))

    assert bytes_of(generate(make_workload(), seed=1)) == first
    for other in (generate(make_workload(), seed=2), generate(make_workload(), seed=1, replication=1)):
        assert all(bytes_of(other)[column] != first[column] for column in COLUMNS[:4])


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("arrivals", {"process": "gamma", "rate": 9.0, "cv": 3.0}),
        ("prompt_tokens", {"distribution": "uniform", "min": 5, "max": 50}),
        ("output_tokens", {"distribution": "geometric", "mean": 40}),
    ],
)
def test_changing_one_part_moves_no_other(part, value):
    """Common random numbers: the other columns keep their bytes."""
    before = bytes_of(generate(make_workload(), seed=3))
    after = bytes_of(generate(make_workload(**{part: value}), seed=3))

    moved = {column for column in COLUMNS if before[column] != after[column]}
    expected = {"arrivals": {"arrival_time"}, "prompt_tokens": {"prompt_tokens"}}
    assert moved == expected.get(part, {"output_tokens", "max_tokens"})


def test_more_requests_begin_with_the_same_requests():
    """A longer run is the shorter one continued."""
    short, long = generate(make_workload(), seed=1), generate(make_workload(num_requests=900), seed=1)

    assert np.array_equal(long.prompt_tokens[:500], short.prompt_tokens)
    assert np.allclose(long.arrival_time[:500], short.arrival_time, rtol=1e-12)


def test_streams_are_uncorrelated():
    """Arrivals, prompts and answers are independent, within 4 standard errors."""
    requests = generate(make_workload(num_requests=20_000), seed=1)

    columns = [np.diff(requests.arrival_time, prepend=0.0), requests.prompt_tokens, requests.output_tokens]
    correlations = np.corrcoef(columns) - np.eye(3)
    assert np.abs(correlations).max() < 4 / np.sqrt(20_000)


def test_an_open_loop_is_stationary_with_its_rate():
    """Every column is full, think times are empty, the client asks for the answer's exact length."""
    requests = generate(make_workload(), seed=1)

    assert len(requests) == 500
    assert requests.is_stationary
    assert requests.offered_rate == 4.0
    assert requests.concurrency is None
    assert len(requests.think_time) == 0
    assert (np.diff(requests.arrival_time) >= 0).all()
    assert np.array_equal(requests.max_tokens, requests.output_tokens)


def test_a_closed_loop_has_clients_instead_of_arrival_times():
    """Arrival times are undefined until a client sends; the think time is fixed."""
    arrivals = {"process": "closed_loop", "concurrency": 16, "think_time": "250 ms"}

    requests = generate(make_workload(arrivals=arrivals), seed=1)
    assert np.isnan(requests.arrival_time).all()
    assert requests.think_time.tolist() == [0.25] * 500
    assert requests.concurrency == 16
    assert not requests.is_stationary
    assert np.isnan(requests.offered_rate)


def test_all_at_once_arrives_at_zero():
    """An offline batch has no rate and no steady state."""
    requests = generate(make_workload(arrivals={"process": "all_at_once"}), seed=1)

    assert requests.arrival_time.tolist() == [0.0] * 500
    assert not requests.is_stationary
    assert np.isnan(requests.offered_rate)


@pytest.mark.parametrize(("asked", "column"), [(64, 64), ("model_limit", -1)])
def test_max_tokens_is_what_the_client_asks_for(asked, column):
    """A number for everyone, or the model's limit; the answers the model would give stay."""
    requests = generate(make_workload(max_tokens=asked), seed=1)

    assert set(requests.max_tokens.tolist()) == {column}
    assert np.array_equal(requests.output_tokens, generate(make_workload(), seed=1).output_tokens)


def test_a_duration_ends_the_arrivals():
    """As many requests as arrive in time, all columns equally long."""
    requests = generate(make_workload(num_requests=None, duration="10 min"), seed=1)

    assert requests.arrival_time[-1] <= 600.0
    assert abs(len(requests) - 2400) < 4 * np.sqrt(2400)
    assert len(requests.prompt_tokens) == len(requests.max_tokens) == len(requests.arrival_time)


def test_a_duration_without_any_arrival_is_an_error():
    """An empty run has no result to report."""
    arrivals = {"process": "constant", "rate": 0.01}

    with pytest.raises(ScenarioError, match=r"workload.duration: is over before the first request arrives"):
        generate(make_workload(arrivals=arrivals, num_requests=None, duration="10 s"), seed=1)


def test_a_million_requests_are_drawn_together():
    """Python calls no function for each of them."""
    calls = Counter()
    sys.setprofile(lambda frame, event, _: calls.update([event]))
    try:
        requests = generate(make_workload(num_requests=1_000_000), seed=1)
    finally:
        sys.setprofile(None)

    assert len(requests) == 1_000_000
    assert calls["call"] < 20_000


def test_importing_and_drawing_the_usual_workload_needs_neither_scipy_nor_pandas():
    """They would cost every run a good part of its start-up."""
    program = (
        "import sys; from simserve.workload.generate import generate; "
        "from simserve.workload.arrival_spec import *; from simserve.workload.length_spec import *; "
        "from simserve.workload.spec import *; "
        "lengths = LognormalLength(mean=100, cv=1, max=1000); "
        "generate(WorkloadSpec(arrivals=PoissonArrivals(rate=1), prompt_tokens=lengths, "
        "output_tokens=lengths, num_requests=10), seed=1); "
        "print([name for name in ('scipy', 'pandas') if name in sys.modules])"
    )

    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert output.stdout.strip() == "[]"


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


def test_no_prompt_shares_a_segment_with_an_earlier_round() -> None:
    """Whichever groups a round has; within a round they share theirs."""
    arrivals = {"process": "all_at_once", "rounds": 3}
    requests = generate(
        make_workload(arrivals=arrivals, shared_prefix={"num_groups": 2, "tokens": 600}, num_requests=24), seed=1
    )
    prefixes = requests.prefixes
    assert prefixes is not None

    owners = np.repeat(requests.turn, np.diff(prefixes.offsets))
    rounds = [set(prefixes.segments[owners == turn].tolist()) for turn in (1, 2, 3)]

    assert sum(map(len, rounds)) == len(set.union(*rounds)) < len(prefixes.segments)


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
