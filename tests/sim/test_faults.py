"""What breaks, and what becomes of the requests on it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import simpy
from pydantic import TypeAdapter

from simserve.metrics.gateway import loss_sentences, replica_figures
from simserve.reference.replica import slowed as slowed_by_walker
from simserve.reference.steps import mixed_seconds
from simserve.sim.control import Control, FaultSpec, RoutingSpec
from simserve.sim.decisions import Faults, Outages, slowed
from simserve.sim.lifecycle import READY, STARTING, STOPPED
from simserve.sim.records import COMPLETED, FAILED, REPLICA_LOST
from simserve.sim.simulate import Simulation, simulate
from simserve.workload.requests import RequestSpecs
from tests.builders import affine_step_times, constant_step_times, make_config, make_faults, make_specs
from tests.theory.builders import make_deployment


def struck(
    specs: RequestSpecs,
    *faults: dict[str, Any],
    replicas: int = 2,
    per_node: int = 1,
    policy: str = "round_robin",
    startup: float = 0.0,
) -> Simulation:
    """Return a run of replicas of four seats; every step takes a second."""
    read = TypeAdapter(tuple[FaultSpec, ...]).validate_python(faults)
    routing = RoutingSpec(policy=policy)
    control = Control(faults=read, replicas_per_node=per_node, routing=routing, startup_seconds=startup)
    config = make_config(max_model_len=512, num_blocks=2000)
    return simulate(replace(make_deployment(config, constant_step_times(1.0), replicas), control=control), specs)


def test_a_crash_loses_what_is_in_flight() -> None:
    """Replica 1 is lost with the step that runs at 4.5; until 14.5 everything goes to the other one."""
    specs = make_specs([0.0, 0.0, 6.0, 7.0, 20.0, 20.0], 1, [3, 10, 2, 2, 1, 1])
    run = struck(specs, {"kind": "replica", "replica": 1, "at": "4.5 s", "duration": "10 s"})

    assert run.records.status.tolist() == [COMPLETED, FAILED, *[COMPLETED] * 4]
    assert run.records.reason[1] == REPLICA_LOST
    assert run.records.finish_time[1] == 5.0
    assert run.records.replica_id[2:].tolist() == [0, 0, 0, 1]
    timeline = [(row["time_s"], row["ready"]) for row in replica_figures(run)["timeline"]]
    assert timeline == [(0.0, 2), (4.5, 1), (14.5, 2)]


def test_the_router_may_try_elsewhere() -> None:
    """The request starts over on the other replica; nothing is lost."""
    fault = {"kind": "replica", "replica": 1, "at": "4.5 s", "duration": "10 s", "in_flight": "retry"}
    run = struck(make_specs([0.0, 0.0], 1, [3, 10]), fault)

    assert run.records.status.tolist() == [COMPLETED, COMPLETED]
    assert run.records.replica_id[1] == 0
    assert run.records.finish_time[1] == 15.0
    assert run.records.output_tokens[1] == 10


def test_a_node_takes_its_replicas_along() -> None:
    """Two replicas a node: both are gone, and their requests wait until they are back."""
    fault = {"kind": "node", "at": "4.5 s", "duration": "10 s", "in_flight": "retry"}
    run = struck(make_specs([0.0, 0.0, 6.0], 1, [9, 9, 1]), fault, per_node=2)

    assert (run.records.status == COMPLETED).all()
    assert run.records.scheduled_time.tolist() == [14.5] * 3


def test_a_notice_lets_short_answers_through() -> None:
    """Taken back at 4 + 6 s: an answer of eight is done by then, one of thirty is not; no new one comes."""
    specs = make_specs([0.0, 1.0, 2.0, 3.0, 5.0, 6.0], 1, [1, 8, 1, 30, 1, 1])
    run = struck(specs, {"kind": "spot", "replica": 1, "at": "4 s", "duration": "20 s", "notice": "6 s"})

    assert run.records.status.tolist() == [COMPLETED, COMPLETED, COMPLETED, FAILED, COMPLETED, COMPLETED]
    assert run.records.replica_id[4:].tolist() == [0, 0]


@pytest.mark.parametrize(("startup", "launched"), [(0.0, 30.0), (8.0, 22.0), (50.0, 10.0)])
def test_what_replaces_a_spot_instance_is_paid_for_from_its_launch(startup: float, launched: float) -> None:
    """Idle at 4 s, taken at 10; another one is ready at 30: it is launched a start before, at most when it can be."""
    specs = make_specs([float(index) for index in range(40)], 1, 1)
    fault = {"kind": "spot", "replica": 1, "at": "4 s", "duration": "20 s", "notice": "6 s"}
    run = struck(specs, fault, startup=startup)

    assert run.timeline is not None
    assert run.timeline.launched_at.tolist() == [0.0, 0.0, launched]
    assert run.timeline.ready_at.tolist() == [0.0, 0.0, 30.0]
    assert run.timeline.stopped_at[1] == 4.0
    assert run.replica_seconds == run.end_time + 4.0 + run.end_time - launched
    assert 2 in run.records.replica_id[31:].tolist()


def test_a_slow_replica_takes_longer_for_every_step() -> None:
    """Four times as long from the step after 4.5 on, until it is over; the parts of the step time still add up."""
    run = struck(make_specs([0.0], 1, 10), {"kind": "slow", "at": "4.5 s", "duration": "6 s", "factor": 4}, replicas=1)

    # Five steps of a second, then two of four (over at 10.5, so the one that runs is finished), then three of one.
    assert run.records.finish_time[0] == 5 + 2 * 4 + 3
    assert sum(run.totals.seconds_by_part.values()) == pytest.approx(run.totals.busy_seconds)


def test_every_part_of_a_step_takes_so_many_times_as_long() -> None:
    """Decodes alone, prompts beside them, and a prompt longer than the table of tokens."""
    times = affine_step_times(
        step_seconds=1.0,
        decode_sequence_seconds=0.2,
        decode_context_seconds=0.03,
        token_seconds=0.004,
        sequence_seconds=0.05,
        decode_attention_seconds=0.006,
        prefill_request_seconds=0.07,
        prefill_pair_seconds=0.0008,
        prefill_context_seconds=0.0009,
    )
    slow = slowed(times, 3.0)

    for contexts, chunks in (([5.0, 9.0], []), ([5.0, 9.0], [(4, 8)]), ([], [(0, 3), (6, 200)])):
        seconds = mixed_seconds(times, contexts, chunks, 1)
        assert mixed_seconds(slow, contexts, chunks, 1) == pytest.approx(3.0 * seconds, rel=1e-12)
    further = ("lora_step_seconds", "lora_adapter_seconds", "lora_token_seconds", "shared_seconds_beyond")
    for adapted in (*further, "launch_seconds"):
        for slow_times in (slowed, slowed_by_walker):
            assert getattr(slow_times(replace(times, **{adapted: 0.5}), 3.0), adapted) == 1.5
    assert slowed(replace(times, shared_seconds=[0.0, 0.5]), 3.0).shared_seconds == [0.0, 1.5]


def test_nodes_are_counted_over_the_pools_and_so_are_replicas() -> None:
    """Three replicas on two nodes, then two on one; beyond them is a place where none will ever be."""
    pools = [
        SimpleNamespace(name=name, role="both", replicas=[object()] * count, replicas_per_node=2)
        for name, count in (("a", 3), ("b", 2))
    ]
    fleet: Any = SimpleNamespace(pools=pools)
    faults = Faults(simpy.Environment(), fleet, make_specs([0.0], 1, 1), Outages(fleet))
    timed = {"at": "1 s", "duration": "1 s"}

    def sites(kind: str, number: int) -> list[tuple[str, int]]:
        asked = make_faults(*({"kind": kind, kind: place, **timed} for place in range(number)))
        return [(pool.name, place) for pool, place in map(faults._site, asked)]

    assert sites("node", 4) == [("a", 0), ("a", 1), ("b", 0), ("b", 2)]
    assert sites("replica", 6) == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1), ("b", 2)]


@pytest.mark.parametrize(("present", "launched"), [(1, [8.0]), (2, [])])
def test_a_spot_instance_is_replaced_if_the_autoscaler_still_wants_it(present: int, launched: list[float]) -> None:
    """Two are wanted, and a start takes two of the ten seconds: nothing is launched where two are there by then."""
    env, found = simpy.Environment(), list[float]()

    def launch(_pool: Any, now: float, *, is_ready: bool, place: int) -> Any:
        assert (is_ready, place) == (False, 7)
        found.append(now)
        return SimpleNamespace(state=STARTING)

    pool = SimpleNamespace(startup_seconds=2.0, wanted=2, present=[object()] * present)
    fleet: Any = SimpleNamespace(launch=launch, ready=lambda _replica, now: found.append(now))
    faults = Faults(env, fleet, make_specs([0.0], 1, 1), Outages(fleet))
    taken: Any = SimpleNamespace(pool=pool, place=7)
    env.run(until=env.process(faults._replace(taken, 10.0)))

    assert found == [*launched, *([10.0] if launched else [])]
    assert env.now == 10.0


def test_an_outage_ends_when_its_replica_is_given_back() -> None:
    """What is given back at 7 s is missed until then, not until 10 s, and does not come back."""
    ready = list[float]()
    fleet: Any = SimpleNamespace(
        withdraw=lambda replica, state: setattr(replica, "state", state),
        lose=lambda _replica, _now, retry: None,
        ready=lambda _replica, now: ready.append(now),
    )
    stays, goes = (SimpleNamespace(number=number, stopped_at=np.inf, state=READY) for number in range(2))
    lost: Any = [stays, goes]
    outages = Outages(fleet)

    outages.lose(lost, 4.0, retry=False)
    goes.state, goes.stopped_at = STOPPED, 7.0
    outages.restore(lost, 10.0)

    assert (outages.lost_since, outages.lost_until, ready) == ([4.0, 4.0], [10.0, 7.0], [10.0])


def test_a_black_hole_takes_requests_until_its_probe_notices() -> None:
    """It hangs at 4.5; probes at 10, 20 and 30 s fail; then it is restarted, and what it had taken is lost."""
    specs = make_specs([float(index) for index in range(50)], 1, 1)
    fault = {"kind": "black_hole", "replica": 1, "at": "4.5 s", "duration": "10 s", "probe": {"period": "10 s"}}
    run = struck(specs, fault)

    lost = np.flatnonzero(run.records.reason == REPLICA_LOST)
    assert lost.tolist() == list(range(5, 30, 2))
    assert (run.records.finish_time[lost] == 30.0).all()
    assert 1 in run.records.replica_id[41:].tolist()


def test_a_shallow_probe_never_notices() -> None:
    """It hangs until it goes on by itself; least outstanding keeps away from it, round robin does not."""
    specs = make_specs([float(index) for index in range(40)], 1, 1)
    fault = {"kind": "black_hole", "replica": 1, "at": "4.5 s", "duration": "30 s", "probe": {"depth": "shallow"}}
    dealt, chosen = (struck(specs, fault, policy=policy) for policy in ("round_robin", "least_outstanding"))

    assert (dealt.records.status == COMPLETED).all()
    waits = [run.records.scheduled_time - run.records.arrival_time for run in (dealt, chosen)]
    assert np.count_nonzero(waits[0] > 1.0) > 12
    assert np.count_nonzero(waits[1] > 1.0) <= 1


def test_random_faults_come_at_their_rate_and_repeat_themselves() -> None:
    """Down for mttr / (mtbf + mttr) of the time within a wide margin; the same seed fails alike."""
    specs = make_specs([1.0 * index for index in range(4000)], 1, 1)
    fault = {"kind": "replica", "mtbf": "80 s", "mttr": "20 s", "in_flight": "retry"}
    first, again = (struck(specs, fault, replicas=3) for _ in range(2))

    assert first.timeline is not None
    down = np.minimum(first.timeline.lost_until, first.end_time) - first.timeline.lost_since
    assert down.sum() / (3 * first.end_time) == pytest.approx(0.2, abs=0.06)
    assert first.records.finish_time.tolist() == again.records.finish_time.tolist()
    assert (first.records.status == COMPLETED).all()


def test_what_was_to_come_after_the_end_is_told() -> None:
    """A run of three seconds: a fault in time, one at the very end, which still begins, and one an hour later."""
    faults = [{"kind": "slow", "at": at, "duration": "1 s"} for at in ("1 s", "3 s", "1 h")]
    run = struck(make_specs([0.0], 1, 2), *faults)

    assert run.timeline is not None
    assert run.timeline.num_missed == 1
    assert "A fault or update was to come after the end of the run, without effect." in loss_sentences(run)
