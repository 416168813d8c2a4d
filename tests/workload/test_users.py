"""Users as arrivals: what they resolve to, and that they behave as what they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simserve.errors import InputError
from simserve.scenario.load import load
from simserve.scenario.run import run
from simserve.sim.simulate import simulate
from simserve.validation import validate
from simserve.workload.arrival_spec import ClosedLoopArrivals, PoissonArrivals
from simserve.workload.generate import generate
from simserve.workload.spec import WorkloadSpec
from tests.builders import constant_step_times, make_config
from tests.theory.builders import make_deployment

FIXED = {"distribution": "fixed", "value": 5}


def workload(arrivals: dict[str, Any], **others: Any) -> WorkloadSpec:
    """Return a workload of requests of five tokens."""
    lengths = {"prompt_tokens": FIXED, "output_tokens": FIXED, "num_requests": 400}
    return validate(WorkloadSpec, {"arrivals": arrivals, **lengths, **others})


def test_active_users_that_do_not_think_all_wait() -> None:
    """10,000 users, 30 % of them active: 3,000 clients, who begin over a minute."""
    arrivals = workload({"process": "users", "users": 10_000, "active_share": 0.3}).arrivals

    assert isinstance(arrivals, ClosedLoopArrivals)
    assert (arrivals.concurrency, arrivals.think_time, arrivals.ramp_up, arrivals.users) == (3000, 0.0, 60.0, 10_000)


def test_users_that_think_are_clients_that_think() -> None:
    """All of them unless a share is active; exponential times unless told otherwise."""
    arrivals = workload({"process": "users", "users": 200, "think_time": "20 s"}).arrivals
    steady = workload({"process": "users", "users": 200, "think_time": "20 s", "think_time_cv": 0}).arrivals

    assert isinstance(arrivals, ClosedLoopArrivals)
    assert isinstance(steady, ClosedLoopArrivals)
    assert (arrivals.concurrency, arrivals.think_time_cv, arrivals.ramp_up) == (200, 1.0, 20.0)
    assert steady.think_time_cv is None


def test_requests_an_hour_are_a_rate() -> None:
    """10,000 users, 30 % active, 12 requests an hour each, and half as many again in the peak: 15 a second."""
    arrivals = workload(
        {"process": "users", "users": 10_000, "active_share": 0.3, "requests_per_hour": 12, "peak_to_mean": 1.5}
    ).arrivals

    assert isinstance(arrivals, PoissonArrivals)
    assert arrivals.rate == pytest.approx(15.0)


def test_clients_begin_evenly_over_the_ramp_up() -> None:
    """On both data planes, with a stack of conversations too; afterwards each sends when it is answered."""
    spec = workload({"process": "closed_loop", "concurrency": 4, "ramp_up": "8 s"})
    specs = generate(spec, seed=1)
    deployment = make_deployment(make_config(max_num_seqs=4), constant_step_times(1.0, 4), 1)
    talking = generate(
        workload(
            {"process": "closed_loop", "concurrency": 4, "ramp_up": "8 s"}, sessions={"turns": FIXED}, num_requests=40
        ),
        seed=1,
    )

    first = np.sort(simulate(deployment, specs).records.arrival_time)
    begins = simulate(deployment, talking).records

    assert [specs.begins_at(client) for client in range(4)] == [0.0, 2.0, 4.0, 6.0]
    assert set(np.arange(0.0, 8.0, 2.0)) <= set(first.tolist())
    assert np.all(np.diff(first) >= 0)
    assert begins.turn is not None
    assert begins.arrival_time[begins.turn == 1][:4].tolist() == [0.0, 2.0, 4.0, 6.0]


def test_think_times_vary_around_their_mean() -> None:
    """Exponential ones, from a stream of their own; a cv of none leaves them all alike."""
    arrivals = {"process": "closed_loop", "concurrency": 4, "think_time": "20 s", "think_time_cv": 1}
    drawn = generate(workload(arrivals, num_requests=4000), seed=1)
    plain = generate(workload({**arrivals, "think_time_cv": None}), seed=1)

    assert drawn.think_time.mean() == pytest.approx(20.0, abs=4 * 20 / 4000**0.5)
    assert drawn.think_time.std() == pytest.approx(20.0, rel=0.1)
    assert set(plain.think_time) == {20.0}
    assert drawn.output_tokens[:400].tolist() == plain.output_tokens.tolist()


def test_the_result_says_how_many_wait() -> None:
    """Little's law over all users: the pause of those that think is their think time; each way in adds up."""
    few = ["workload.num_requests=3000"]
    thinking = run(load("chatbot", ["workload.arrivals={process: users, users: 100, think_time: 30 s}", *few]))
    waiting = run(load("chatbot", ["workload.arrivals={process: users, users: 100, active_share: 0.3}", *few]))
    users, always = (dict(each.summary["simserve"]["users"]) for each in (thinking, waiting))

    assert users["pause_s"] == pytest.approx(30.0, rel=0.1)
    assert users["clients"] == 100
    assert users["waiting"] == pytest.approx(users["request_rate"] * thinking.summary["mean_e2el_ms"] / 1000)
    assert always["waiting"] == pytest.approx(30.0)
    assert always["waiting_share"] == pytest.approx(0.3)
    assert always["pause_s"] == pytest.approx(waiting.summary["mean_e2el_ms"] / 1000 * (1 / 0.3 - 1))


def test_the_resolved_scenario_holds_what_they_are() -> None:
    """So that it runs again as it did, whatever users become."""
    scenario = load("chatbot", ["workload.arrivals={process: users, users: 100, active_share: 0.3}"])

    assert scenario.as_mapping()["workload"]["arrivals"] == {
        "process": "closed_loop",
        "concurrency": 30,
        "think_time": "0 s",
        "ramp_up": "60 s",
        "users": 100,
    }


@pytest.mark.parametrize(
    ("arrivals", "words"),
    [
        ("{process: users}", "users: is missing"),
        ("{process: users, users: 9, requests_per_hour: 3, think_time: 3 s}", "keep one"),
        ("{process: users, users: 9, peak_to_mean: 2}", "without requests_per_hour"),
        ("{process: users, users: 9, think_time_cv: 1}", "without think_time"),
        ("{process: users, users: 9, think: 1}", "arrivals.think: is not a known key"),
        ("{process: closed_loop, concurrency: 9, think_time_cv: 1}", "without think_time"),
    ],
)
def test_users_that_say_two_things_are_refused(arrivals: str, words: str) -> None:
    """One line with the key."""
    with pytest.raises(InputError, match=words):
        load("chatbot", [f"workload.arrivals={arrivals}"])


@pytest.mark.parametrize(
    ("arrivals", "num_requests"),
    [
        ({"process": "closed_loop", "concurrency": 3000}, 12_000),
        ({"process": "users", "users": 10_000, "active_share": 0.3}, 12_000),
        ({"process": "users", "users": 10_000, "requests_per_hour": 2}, 1000),
        ({"process": "closed_loop", "concurrency": 24}, 1000),
        ({"process": "poisson", "rate": 2}, 1000),
    ],
)
def test_every_client_asks_unless_told_otherwise(arrivals: dict[str, Any], num_requests: int) -> None:
    """A workload without an end has four requests for each client, and 1000 at least."""
    found = validate(WorkloadSpec, {"arrivals": arrivals, "prompt_tokens": FIXED, "output_tokens": FIXED})

    assert found.num_requests == num_requests
    assert workload(arrivals).num_requests == 400
    assert workload(arrivals, num_requests=None, duration="2 min").num_requests is None
