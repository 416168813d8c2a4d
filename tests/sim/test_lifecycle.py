"""Replicas that come and go: compiled they are what they are interpreted, to the bit."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from simserve.engine.clients import abandon
from simserve.engine.compiled import fields as flat
from simserve.engine.compiled.layout import Memory, View, fill
from simserve.engine.plane_state import FleetState
from simserve.engine.state import RequestTable, Uniforms
from simserve.scenario.schema import Scenario
from simserve.sim import records
from simserve.sim.acceleration import Accelerate
from simserve.sim.cluster import clients_of
from simserve.sim.control import AdmissionSpec, AutoscalingSpec, Control, LivenessSpec, UpdateSpec
from simserve.sim.simulate import Deployment
from simserve.validation import validate
from simserve.workload.class_spec import ClassSpec
from simserve.workload.requests import RequestSpecs
from tests.agreement import on_both_kernels
from tests.builders import constant_step_times, make_config, make_faults, make_specs
from tests.engine.test_fuzz import CHECKS
from tests.fuzzing import examples
from tests.sim.test_fleet_run import (
    KINDS,
    SMALL,
    STORM,
    assert_compiled_alike,
    deployments,
    needs_numba,
    served,
)
from tests.theory.builders import make_deployment

STARTUP: Mapping[str, Any] = {"schedule": "1 s", "image": "0 s", "engine": "0.7 s"}
"""With weights of no bytes."""


@st.composite
def seconds(draw: st.DrawFn, most: int = 15) -> str:
    """Draw a time that may coincide with the end of a step, or hardly ever does."""
    return f"{draw(st.integers(0, most)) + draw(st.sampled_from([0.0, 0.0, 0.3713]))} s"


@st.composite
def scalings(draw: st.DrawFn) -> AutoscalingSpec | None:
    """Draw how the number of replicas follows the load."""
    if draw(st.booleans()):
        return None
    metric = draw(st.sampled_from(["queue_depth", "running", "kv_usage", "busy", "slo"]))
    share = metric in ("kv_usage", "busy", "slo")
    rules = {
        "metric": metric,
        "target": draw(st.sampled_from([0.2, 0.9] if share else [0.4, 2.0])),
        "min_replicas": draw(st.integers(0, 1)),
        "max_replicas": draw(st.integers(1, 4)),
        "interval": draw(st.sampled_from(["1 s", "2.3 s"])),
        "stabilization": draw(st.sampled_from(["0 s", "5 s"])),
        "grace_period": draw(st.sampled_from(["0 s", "1.9 s", "30 s"])),
    }
    return validate(AutoscalingSpec, rules)


@st.composite
def faults(draw: st.DrawFn) -> dict[str, Any]:
    """Draw what goes wrong, at a time or at random."""
    kind = draw(st.sampled_from(["replica", "node", "spot", "slow", "black_hole"]))
    fault: dict[str, Any] = {"kind": kind}
    is_timed = draw(st.booleans())
    if is_timed:
        fault |= {"at": draw(seconds()), "duration": draw(st.sampled_from(["0.02 s", "1 s", "4.1 s", "30 s"]))}
        fault["node" if kind == "node" else "replica"] = draw(st.integers(0, 2))
    else:
        fault |= {"mtbf": draw(st.sampled_from(["2 s", "9 s"])), "mttr": draw(st.sampled_from(["0.1 s", "3 s"]))}
    if kind == "slow":
        return fault | {"factor": draw(st.sampled_from([1.5, 4.0]))}
    if kind == "spot":
        fault["notice"] = draw(st.sampled_from(["0 s", "2 s", "20 s"]))
    if kind == "black_hole":
        depth = draw(st.sampled_from(["deep", "shallow"]))
        fault["probe"] = {"depth": depth, "period": "1.1 s", "threshold": draw(st.integers(1, 2))}
    # Faults at random could send a request back for ever.
    return fault | {"in_flight": draw(st.sampled_from(["lost", "retry"])) if is_timed else "lost"}


@st.composite
def shifting(draw: st.DrawFn, kind: str) -> tuple[Deployment, RequestSpecs]:
    """Draw any run of the event plane, and what changes its replicas."""
    deployment, specs = draw(deployments(kind))
    assert deployment.control is not None
    liveness, updates = None, []
    if draw(st.integers(0, 2)) == 0:
        rules = {"period": "1.5 s", "timeout": "0.6 s", "threshold": draw(st.integers(1, 2)), "restart": "1 s"}
        liveness = validate(LivenessSpec, rules)
    for _ in range(draw(st.integers(0, 2))):
        unavailable = draw(st.integers(0, 2))
        surge = draw(st.integers(0 if unavailable else 1, 2))
        rules = {"at": draw(seconds()), "max_unavailable": unavailable, "max_surge": surge, "startup": STARTUP}
        updates.append(validate(UpdateSpec, rules | {"grace_period": draw(st.sampled_from(["0 s", "2 s", "30 s"]))}))
    control = replace(
        deployment.control,
        autoscaling=None if deployment.pools else draw(scalings()),
        startup_seconds=draw(st.sampled_from([0.0, 1.7])),
        replicas_per_node=draw(st.integers(1, 2)),
        faults=make_faults(*draw(st.lists(faults(), max_size=3))),
        liveness=liveness,
        updates=tuple(updates),
    )
    pools = tuple(
        replace(each, autoscaling=draw(scalings()), startup_seconds=draw(st.sampled_from([0.0, 1.7])))
        for each in deployment.pools
    )
    scaled = [control.autoscaling, *(each.autoscaling for each in pools)]
    assume(control.changes_fleet or any(each is not None for each in scaled))
    return replace(deployment, control=control, pools=pools), specs


@needs_numba
@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(
    max_examples=examples(24), deadline=None, derandomize=True, suppress_health_check=[*CHECKS, HealthCheck.too_slow]
)
def test_replicas_come_and_go_in_compiled_code(kind: str, data: st.DataObject) -> None:
    """The same cases, compiled: every record and every total is the same, to the bit."""
    deployment, specs = data.draw(shifting(kind))
    assert_compiled_alike(deployment, specs)


def test_every_field_has_a_place_in_flat_memory() -> None:
    """What a plane knows of replicas that come and go, compiled code sees."""
    assert set(flat.FLEET_STATE.fields) == set(FleetState.__slots__)


SHIFTS: Mapping[str, Mapping[str, Any]] = {
    "scaling": {"autoscaling": {"metric": "running", "target": 4, "max_replicas": 8, "interval": "3 s"}},
    "scaling by slo": {"autoscaling": {"metric": "slo", "target": 0.9, "max_replicas": 8, "interval": "3 s"}},
    "losses": {
        "faults": [
            {"kind": "replica", "replica": 1, "at": "4 s", "duration": "6 s", "in_flight": "retry"},
            {"kind": "slow", "replica": 2, "at": "7 s", "duration": "9 s", "factor": 3},
            {"kind": "black_hole", "replica": 3, "at": "9 s", "duration": "5 s", "probe": {"period": "2 s"}},
            {"kind": "spot", "replica": 0, "at": "11 s", "duration": "9 s", "notice": "2 s"},
        ],
        "admission": {"probabilistic_from": 0.9, "max_queue": 30},
        "routing": "power_of_two",
    },
    "update": {"updates": [{"at": "5 s", "max_surge": 1, "startup": {"schedule": "1 s", "image": "1 s"}}]},
    "probes": {"liveness": {"period": "3 s", "timeout": "1 s", "threshold": 2, "restart": "5 s"}},
}


@needs_numba
@pytest.mark.parametrize("name", SHIFTS)
@pytest.mark.parametrize("routing", ["least_outstanding", {"policy": "least_tokens", "update_interval": "0.7 s"}])
def test_a_fleet_that_changes_runs_compiled(name: str, routing: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Overloaded replicas that come and go: nothing falls back, and every byte is the same."""
    deployment = {"hardware": "h100-sxm-80gb", "replicas": 4, "engine": SMALL, "routing": routing, **SHIFTS[name]}
    scenario = Scenario.model_validate(
        {
            "name": "shifts",
            "model": "llama-3.1-8b",
            "deployment": deployment,
            "workload": dict(STORM),
            "slo": {"ttft": "1 s"},
        }
    )
    with caplog.at_level(logging.WARNING):
        runs = on_both_kernels(scenario)

    assert not [message for message in caplog.messages if "interpreted" in message]
    assert json.dumps(dict(runs[0].summary)) == json.dumps(dict(runs[1].summary))
    assert runs[0].requests.equals(runs[1].requests)
    events = runs[0].summary["simserve"]["replicas"]["timeline"]
    assert len(events) > 1 or name == "probes"


PLANES = ["off", pytest.param("on", marks=needs_numba)]


@pytest.mark.parametrize("how", PLANES)
def test_a_client_whose_request_was_lost_sends_the_next_when_it_knows(how: Accelerate) -> None:
    """The replica is lost with the step that ends at 3; only then does the one client think, and go on."""
    fault = {"kind": "replica", "at": "2.5 s", "duration": "1 s"}
    specs = replace(make_specs([np.nan] * 2, 1, [9, 2]), concurrency=1, think_time=np.array([0.0, 0.5]))
    deployment = make_deployment(make_config(), constant_step_times(1.0), 1)

    run = served(replace(deployment, control=Control(faults=make_faults(fault))), specs, how)

    assert run.records.status.tolist() == [records.FAILED, records.COMPLETED]
    assert run.records.arrival_time.tolist() == [0.0, 3.5]


@pytest.mark.parametrize("how", PLANES)
def test_a_client_goes_on_when_its_api_server_has_sent_the_answer(how: Accelerate) -> None:
    """The API server takes two seconds a token, twice as long as a step: the next request is sent after the answer."""
    config = make_config(api_token_seconds=2.0)
    patient = ClassSpec(name="patient", share=1.0, timeout="99 s")
    specs = replace(make_specs([np.nan] * 2, 1, 3), concurrency=1, think_time=np.zeros(2), classes=(patient,))
    specs = replace(specs, request_class=np.zeros(2, dtype=np.int16))
    deployment = make_deployment(config, constant_step_times(1.0), 1)

    run = served(replace(deployment, control=Control()), specs, how)

    assert run.records.arrival_time[1] == run.records.finish_time[0] > 3.0


@pytest.mark.parametrize("how", PLANES)
def test_requests_wait_in_front_of_no_replica(how: Accelerate) -> None:
    """While the one replica is down one may wait, the other is refused; whoever waits too long is gone."""
    fault = {"kind": "replica", "at": "2.5 s", "duration": "10 s"}
    hasty = ClassSpec(name="hasty", share=1.0, timeout="3 s")
    specs = replace(make_specs([4.0, 5.0, 11.0], 1, 1), classes=(hasty,), request_class=np.zeros(3, dtype=np.int16))
    control = Control(faults=make_faults(fault), admission=validate(AdmissionSpec, {"max_queue": 1}))
    deployment = make_deployment(make_config(), constant_step_times(1.0), 1)

    run = served(replace(deployment, control=control), specs, how)

    assert run.records.status.tolist() == [records.TIMED_OUT, records.REJECTED, records.COMPLETED]
    assert run.records.finish_time.tolist() == [7.0, 5.0, 13.5]


@pytest.mark.parametrize("how", PLANES)
def test_two_updates_wait_for_the_same_replica(how: Accelerate) -> None:
    """Both have started another in its place, and both go on when it is gone; the later one replaces that one too."""
    rules = {"max_unavailable": 0, "max_surge": 1, "startup": STARTUP}
    updates = tuple(validate(UpdateSpec, {**rules, "at": at}) for at in ("1 s", "2 s"))
    deployment = make_deployment(make_config(), constant_step_times(1.0), 1)

    run = served(replace(deployment, control=Control(updates=updates)), make_specs([0.0, 5.0, 20.0], 1, [6, 1, 1]), how)

    assert run.timeline is not None
    assert run.timeline.num_replaced == 3
    assert np.isfinite(run.timeline.updates).all()


def test_an_attempt_that_is_given_up_leaves_nothing_in_host_memory() -> None:
    """What was swapped out on a replica that is gone is not there for the next attempt."""
    requests = RequestTable(*[np.ones(1, dtype=np.int64)] * 3, make_config(preemption_mode="swap"))
    requests.swapped_tokens[0] = 7
    patience = clients_of(make_specs([0.0], 1, 1), None, np.zeros(1), np.zeros(1), Uniforms(0))

    abandon(patience, requests, 0, 1.0)

    assert requests.swapped_tokens[0] == 0


def test_flat_memory_grows_and_forgets() -> None:
    """A record more keeps the others; a view reads and writes numbers and lists in place."""
    memory = Memory(flat.FLEET_STATE)
    for name, value in (("marks", [1, 2]), ("busy_seconds", [0.5])):
        memory.put(name, value)

    assert memory.grow() == 1
    first = View(memory)
    first.marks.append(4)
    first.marks[0] = 8
    first.time = 2.5
    fill(first.busy_seconds, [])

    assert list(first.marks) == [8, 2, 4]
    assert first.time == memory.get("time") == 2.5
    assert len(first.busy_seconds) == 0
    memory.clear(0)
    assert len(first.marks) == 0
