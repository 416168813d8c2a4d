"""Parts of one's own: Python functions as router, admission control, autoscaler and step times."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import simserve as ss
from simserve.errors import UsageError
from simserve.scenario.verify import compared
from simserve.sim.own_parts import PoolView, ReplicaView, RequestView

pytestmark = pytest.mark.usefixtures("run_alone")

FLEET = {"deployment.replicas": 3, "workload.arrivals.rate": 25.0}
SCALED = {
    "deployment.autoscaling": {
        "metric": "running",
        "target": 20,
        "min_replicas": 1,
        "max_replicas": 4,
        "interval": "2 s",
        "stabilization": "3 s",
        "startup": {"schedule": "1 s", "image": "1 s", "load_bandwidth": "100 GB/s", "engine": "1 s"},
    },
    "workload.arrivals.rate": 20.0,
}
PREFIXES = {**FLEET, "workload.shared_prefix": {"num_groups": 6, "tokens": 800}}
STALE = {**FLEET, "deployment.routing": {"policy": "least_outstanding", "update_interval": "500 ms"}}


def fewest_tokens(_request: RequestView, replicas: tuple[ReplicaView, ...]) -> ReplicaView:
    """Return the replica with the fewest tokens."""
    return min(replicas, key=lambda each: each.tokens)


def knows_most(_request: RequestView, replicas: tuple[ReplicaView, ...]) -> int:
    """Return the number of the replica that knows most of a prompt; of several, the one with the fewest requests."""
    return min(replicas, key=lambda each: (-each.known_prefix, each.running + each.waiting, each.number)).number


def at_most_forty(_request: RequestView, replicas: tuple[ReplicaView, ...]) -> bool:
    """Let a request in while the replicas have fewer than forty."""
    return sum(each.running + each.waiting for each in replicas) < 40


def one_for_ten(pool: PoolView) -> int:
    """Return a replica for every ten requests."""
    return -(-sum(each.running + each.waiting for each in pool.replicas) // 10) or 1


def tenth_of_a_millisecond(prompt: int, decodes: int, context: float) -> float:
    """Return the seconds of a step that takes longer with all it holds."""
    return 0.0101 + 0.00003 * prompt + 0.000107 * decodes + 0.0000001 * context


def run(changes: dict[str, Any], num_requests: int = 150, **how: Any) -> ss.RunResult:
    """Return a run of the chatbot with changes."""
    return ss.run(ss.load("chatbot", {"workload.num_requests": num_requests, **changes}), **how)


CASES: dict[str, tuple[dict[str, Any], dict[str, Callable[..., Any]]]] = {
    "router": (FLEET, {"router": fewest_tokens}),
    "known prefix": (PREFIXES, {"router": knows_most}),
    "old news": (STALE, {"router": fewest_tokens}),
    "admission": (FLEET, {"admission": at_most_forty}),
    "autoscaler": (SCALED, {"autoscaler": one_for_ten}),
    "step times": (FLEET, {"step_seconds": tenth_of_a_millisecond}),
    "all at once": (
        SCALED,
        {
            "router": fewest_tokens,
            "admission": at_most_forty,
            "autoscaler": one_for_ten,
            "step_seconds": tenth_of_a_millisecond,
        },
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_reference_asks_the_same(case: str) -> None:
    """Every request fares the same on the plane and on the reference, and so does every step."""
    changes, parts = CASES[case]
    plane = run(changes, 30, steps=True, **parts)
    reference = run(changes, 30, steps=True, by_reference=True, **parts)

    assert compared(reference.simulation.records, plane.simulation.records).is_equal
    for name in ("replica_id", "num_sequences", "prompt_tokens", "num_admitted", "num_finished"):
        assert (reference.steps[name] == plane.steps[name]).all()


@pytest.mark.parametrize("case", CASES)
def test_a_part_of_ones_own_has_an_effect(case: str) -> None:
    """The run is another one than without it."""
    changes, parts = CASES[case]
    own, plain = run(changes, **parts), run(changes)

    assert not np.array_equal(own.simulation.records.finish_time, plain.simulation.records.finish_time, equal_nan=True)


def test_a_router_that_is_a_policy_of_the_scenario_gives_the_same_run() -> None:
    """Fewest requests, ties to the first: least_outstanding."""
    own = run(FLEET, router=lambda _, replicas: min(replicas, key=lambda each: each.running + each.waiting))
    built_in = run(FLEET)

    assert compared(built_in.simulation.records, own.simulation.records).is_equal


def test_step_times_of_the_profile_as_a_function_give_the_same_run() -> None:
    """A step lasts what the function says, whatever it holds."""
    result = run({}, steps=True, step_seconds=tenth_of_a_millisecond)
    steps = result.steps
    expected = [
        tenth_of_a_millisecond(*each)
        for each in zip(steps["prompt_tokens"], steps["decode_tokens"], steps["context_tokens"], strict=True)
    ]

    assert np.allclose(steps["seconds"], expected, rtol=1e-12)
    assert sum(result.simulation.totals.seconds_by_part.values()) == pytest.approx(steps["seconds"].sum())


def test_a_router_sees_what_is_known() -> None:
    """Requests without the length of their answers, replicas with what they have."""
    seen: list[tuple[RequestView, tuple[ReplicaView, ...]]] = []

    def note(request: RequestView, replicas: tuple[ReplicaView, ...]) -> int:
        seen.append((request, replicas))
        return replicas[0].number

    result = run(PREFIXES, 40, router=note)
    records = result.simulation.records

    assert [request.number for request, _ in seen] == list(range(40))
    assert [request.now for request, _ in seen] == records.admitted_time.tolist()
    assert [request.prompt_tokens for request, _ in seen] == records.prompt_tokens.tolist()
    assert seen[0][1] == tuple(ReplicaView(number, "", 0, 0, 0, 0.0, 0) for number in range(3))
    assert all(each.running == each.tokens == each.known_prefix == 0 for _, replicas in seen for each in replicas[1:])
    assert {replicas[0].known_prefix for _, replicas in seen} == {0, 800}
    assert 0 < max(replicas[0].kv_share for _, replicas in seen) < 1
    assert RequestView._fields == (
        *("number", "now", "class_name", "session", "prompt_tokens", "max_tokens", "priority"),
    )
    assert ReplicaView._fields == ("number", "pool", "running", "waiting", "tokens", "kv_share", "known_prefix")
    assert PoolView._fields == ("name", "now", "size", "replicas", "parked")


def test_news_is_as_old_as_the_update_interval() -> None:
    """Between two looks a router sees the same."""
    seen: dict[int, set[Any]] = {}

    def note(request: RequestView, replicas: tuple[ReplicaView, ...]) -> int:
        seen.setdefault(int(request.now / 0.5), set()).add(replicas)
        return request.number % 3

    run(STALE, router=note)

    assert max(map(len, seen.values())) == 1
    assert len({view for views in seen.values() for view in views}) > 3


def test_an_admission_control_may_say_why() -> None:
    """One of the reasons of `deployment.admission`; False is load."""
    by_load = run(FLEET, admission=lambda request, _: request.number % 2 == 0).summary["simserve"]["rejected"]
    by_deadline = run(FLEET, admission=lambda request, _: request.number % 2 == 0 or "deadline").summary["simserve"]

    assert by_load["by_reason"]["load"] == 75
    assert by_deadline["rejected"]["by_reason"]["deadline"] == 75


def test_the_reference_counts_what_an_admission_control_refuses() -> None:
    """Every second request, where the scenario itself decides nothing; plane and reference say the same."""
    plane, reference = (
        run({}, 20, admission=lambda request, _: request.number % 2 == 0, by_reference=by_reference)
        for by_reference in (False, True)
    )

    assert plane.summary["simserve"]["rejected"]["refusals"] == {"load": 10}
    assert reference.summary["simserve"]["rejected"] == plane.summary["simserve"]["rejected"]


def test_an_autoscaler_stays_within_the_limits_of_the_scenario() -> None:
    """More than ``max_replicas`` are not launched."""
    result = run(SCALED, autoscaler=lambda _: 50)
    timeline = result.simulation.timeline

    assert timeline is not None
    assert len(timeline.launched_at) == 4


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"router": lambda *_: 7}, "router: 7 is none of the replicas offered for request 0; return one of them"),
        ({"router": lambda *_: None}, "router: is none of the replicas offered for request 0|router: None is none"),
        ({"router": lambda *_: True}, "router: True is none of the replicas"),
        ({"admission": lambda *_: 1}, "admission: 1 says nothing of request 0; return True, False, or why"),
        ({"step_seconds": lambda *_: 0.0}, r"step_seconds: 0.0 are no seconds of a step of \(\d+, 0, 0\)"),
        ({"step_seconds": lambda *_: "1 s"}, "step_seconds: '1 s' are no seconds"),
        ({"autoscaler": lambda *_: 1}, "autoscaler: has nothing to decide without deployment.autoscaling"),
        ({"router": "least_tokens"}, "router: 'least_tokens' is not a function"),
    ],
)
def test_a_wrong_answer_is_one_clear_line(parts: dict[str, Any], message: str) -> None:
    """What was returned, for what, and what to return."""
    with pytest.raises(UsageError, match=message):
        run(FLEET, 10, **parts)


def test_a_wrong_number_of_replicas_is_one_clear_line() -> None:
    """As of the other parts."""
    with pytest.raises(UsageError, match=r"autoscaler: 1.5 is no number of replicas; return a whole number"):
        run(SCALED, autoscaler=lambda _: 1.5)


@pytest.mark.parametrize("by_reference", [False, True])
def test_an_error_in_a_function_is_its_own_behind_one_line(
    caplog: pytest.LogCaptureFixture, *, by_reference: bool
) -> None:
    """The traceback is the function's; the line says for whom and when."""

    def broken(request: RequestView, _: tuple[ReplicaView, ...]) -> int:
        return {}[request.number]  # type: ignore[return-value]

    with caplog.at_level(logging.ERROR, logger="simserve"), pytest.raises(KeyError) as error:
        run(FLEET, 10, router=broken, by_reference=by_reference)

    # SimPy raises what a process has raised once more, with the same as its cause.
    cause = error.value.__cause__ or error.value
    names = [each.name for each in traceback.extract_tb(cause.__traceback__)]
    assert names[-1] == "broken"
    assert caplog.messages[0].startswith("simserve: router: broken raised KeyError for request 0 at 0.")


def test_a_result_says_that_parts_were_ones_own() -> None:
    """So that nobody takes it for a run of the scenario alone."""
    result = run(FLEET, 10, router=fewest_tokens)

    assert any("router" in each and "own" in each for each in result.summary["simserve"]["warnings"])


@pytest.mark.parametrize(("max_tokens", "is_told"), [("exact", True), (1000, False)])
@pytest.mark.parametrize("part", [{"router": fewest_tokens}, {"admission": at_most_forty}])
def test_a_result_says_whether_a_policy_knew_how_long_answers_are(
    part: dict[str, Any], max_tokens: object, is_told: bool
) -> None:
    """By default a request asks for the tokens of its answer: a policy that looks at them knows what no router does."""
    result = run({**FLEET, "workload.max_tokens": max_tokens}, 10, **part)

    warnings = result.summary["simserve"]["warnings"]
    assert any("how long answers will be" in each for each in warnings) == is_told


def test_advice_is_not_for_parts_of_ones_own() -> None:
    """It would be made without them."""
    with pytest.raises(UsageError, match="advise"):
        run(FLEET, 10, router=fewest_tokens, advise=True)
