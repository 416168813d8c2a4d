"""Clients of one's own: SimPy processes that submit requests and wait for their answers."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import pytest

import simserve as ss
from simserve.errors import UsageError
from simserve.scenario.verify import compared

pytestmark = pytest.mark.usefixtures("run_alone")


def simulation(changes: dict[str, Any] | None = None, **how: Any) -> ss.Simulation:
    """Return a simulation of the chatbot with changes."""
    return ss.Simulation(ss.load("chatbot", {"workload.num_requests": 120, **(changes or {})}), **how)


def client(sim: ss.Simulation, count: int, pause: float, **lengths: int) -> Generator[Any, Any, None]:
    """Send one request after the other, with a pause behind each answer."""
    for _ in range(count):
        yield sim.submit(**lengths)
        yield sim.env.timeout(pause)


def run(changes: dict[str, Any] | None = None, clients: int = 6, count: int = 8, **how: Any) -> ss.RunResult:
    """Return a run of several clients with pauses of their own."""
    sim = simulation(changes, **how)
    for number in range(clients):
        sim.env.process(client(sim, count, 0.1 + 0.0173 * number))
    return sim.run()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"deployment.replicas": 2, "deployment.engine.max_num_seqs": 2},
        {"deployment.admission": {"max_queue": 1}, "deployment.engine.max_num_seqs": 2},
        {"workload.shared_prefix": {"num_groups": 2, "tokens": 96}},
    ],
    ids=["plain", "two replicas", "refused", "prefixes"],
)
def test_the_reference_answers_the_same(changes: dict[str, Any]) -> None:
    """Every request fares the same on the plane and on the reference."""
    plane, reference = run(changes, count=4), run(changes, count=4, by_reference=True)

    assert len(plane.requests) == 24
    assert compared(reference.simulation.records, plane.simulation.records).is_equal


def test_clients_of_ones_own_are_those_of_a_closed_loop() -> None:
    """Written as processes, they send and get what the scenario's own clients do."""
    changes = {"workload.num_requests": 60, "workload.arrivals": {"process": "closed_loop", "concurrency": 5}}
    built_in = ss.run(ss.load("chatbot", changes))
    sim = simulation(changes)
    left = iter(range(60))

    def own() -> Generator[Any, Any, None]:
        for _ in left:
            yield sim.submit()

    for _ in range(5):
        sim.env.process(own())
    result = sim.run()

    assert compared(built_in.simulation.records, result.simulation.records).is_equal


def test_an_answer_says_what_became_of_the_request() -> None:
    """And is there at the time at which the request ended."""
    sim, heard = simulation(), []

    def own() -> Generator[Any, Any, None]:
        answer = yield sim.submit(prompt_tokens=300, output_tokens=20)
        heard.append((sim.env.now, answer))

    sim.env.process(own())
    result = sim.run()
    row, (now, answer) = result.requests.iloc[0], heard[0]

    assert answer.status == row["status"] == "completed"
    assert (answer.number, answer.output_tokens, answer.replica_id) == (0, 20, 0)
    assert (row["prompt_tokens"], row["output_tokens"]) == (300, 20)
    assert now == pytest.approx(row["finish_s"])
    assert answer.ttft == pytest.approx(row["ttft_ms"] / 1000)
    assert answer.e2e == pytest.approx(row["e2el_ms"] / 1000)


def test_a_client_hears_that_it_is_refused() -> None:
    """And may do something else then."""
    sim, heard = simulation({"deployment.admission": {"max_queue": 0}, "deployment.engine.max_num_seqs": 1}), []

    def own() -> Generator[Any, Any, None]:
        answers = yield sim.env.all_of([sim.submit() for _ in range(3)])
        heard.extend(each.status for each in answers.values())

    sim.env.process(own())
    result = sim.run()

    assert sorted(heard) == ["completed", "rejected", "rejected"]
    assert result.summary["completed"] == 1


def test_a_run_may_end_at_a_time() -> None:
    """What is under way then is unfinished."""
    sim = simulation()
    sim.env.process(client(sim, 100, 0.0, prompt_tokens=1000, output_tokens=100))
    result = sim.run(until=10.0)
    status = result.requests["status"].astype(str)

    assert (status.iloc[:-1] == "completed").all()
    assert status.iloc[-1] == "unfinished"
    assert np.nanmax(result.requests["finish_s"]) <= 10.0


def test_clients_go_with_other_parts_of_ones_own_and_with_steps() -> None:
    """A router and step times are asked, and the steps are kept."""
    result = run(
        {"deployment.replicas": 2},
        steps=True,
        router=lambda request, _: request.number % 2,
        step_seconds=lambda prompt, decodes, context: 0.01,
    )

    assert (result.requests["replica_id"] == np.arange(48) % 2).all()
    assert (result.steps["seconds"] == 0.01).all()
    assert result.steps["num_finished"].sum() == 48


def test_the_same_clients_give_the_same_run() -> None:
    """To the bit."""
    first, second = run(), run()

    assert first.summary == second.summary


def test_an_autoscaler_beside_the_clients_does_not_keep_the_run_alive() -> None:
    """It ends with the clients, whoever else would go on for ever."""
    scaling = {"metric": "running", "target": 2, "min_replicas": 1, "max_replicas": 3, "interval": "1 s"}
    startup = {"schedule": "1 s", "image": "1 s", "load_bandwidth": "100 GB/s", "engine": "1 s"}
    result = run({"deployment.autoscaling": {**scaling, "startup": startup}})

    assert result.summary["completed"] == 48
    assert result.simulation.timeline is not None
    assert len(result.simulation.timeline.launched_at) == 3


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ({"prompt_tokens": 0}, "submit: prompt_tokens: 0 must be a whole number, 1 or more"),
        ({"output_tokens": 1.5}, "submit: output_tokens: 1.5 must be a whole number"),
    ],
)
def test_a_wrong_length_is_one_clear_line(lengths: dict[str, Any], message: str) -> None:
    """It is told apart from the first."""
    with pytest.raises(UsageError, match=message):
        simulation().submit(**lengths)


def test_a_workload_without_a_request_left_says_so() -> None:
    """And how there are more."""
    sim = simulation({"workload.num_requests": 2})
    sim.env.process(client(sim, 3, 0.0))

    with pytest.raises(UsageError, match=r"submit: has sent all 2 requests .* raise workload.num_requests"):
        sim.run()


def test_a_simulation_is_run_once_and_with_clients() -> None:
    """Twice, or with nobody, says what to do."""
    sim = simulation()
    with pytest.raises(UsageError, match="has no client"):
        sim.run()
    sim.env.process(client(sim, 1, 0.0))
    sim.run()

    with pytest.raises(UsageError, match="has been run; make another Simulation"):
        sim.run()


def test_streaming_does_not_go_with_clients_of_ones_own() -> None:
    """How tokens reach clients is not theirs to say."""
    with pytest.raises(UsageError, match=r"deployment.streaming: does not go with clients of one's own"):
        simulation({"deployment.streaming": {"stream": True}})
