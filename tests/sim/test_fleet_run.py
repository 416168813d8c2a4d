"""Refusals, time limits, retries, pools and streams: compiled they are what they are interpreted, to the bit."""

from __future__ import annotations

import gc
import importlib.util
import json
import logging
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from simserve.engine import admission_control, gateway, state
from simserve.engine.admission_control import AdmissionControl, Bucket
from simserve.engine.compiled import fields as flat
from simserve.engine.plane_state import Clients, ClientState, Delivery, Part, Patience, Shares
from simserve.engine.state import Finishes, Uniforms
from simserve.scenario.schema import Scenario
from simserve.sim import records
from simserve.sim.acceleration import Accelerate
from simserve.sim.control import AdmissionSpec, Control, Limits, RoutingSpec, StreamingSpec
from simserve.sim.fleet_run import FleetRun
from simserve.sim.pools import PoolSetup
from simserve.sim.records import RequestRecords
from simserve.sim.simulate import Deployment, Simulation, _decided, simulate
from simserve.validation import validate
from simserve.workload.class_spec import ClassSpec, RetrySpec
from simserve.workload.requests import RequestSpecs
from tests.agreement import on_both_kernels
from tests.builders import constant_step_times, make_config, make_specs
from tests.engine.strategies import (
    Case,
    cases,
    ordered_cases,
    pressed_cases,
    ranked_cases,
    routings,
    shared_cases,
    speculative_cases,
    step_times,
    swapping_cases,
)
from tests.engine.test_compiled import assert_same_values, is_covered
from tests.engine.test_fuzz import CHECKS
from tests.fuzzing import examples
from tests.theory.builders import make_deployment

needs_numba = pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="numba is not installed")
LIMIT_UNIT = 11.0**0.5 / 4.0
RECORDS = [each.name for each in fields(RequestRecords)]
KINDS = {
    "any": st.one_of(cases(), pressed_cases()),
    "ordered": ordered_cases(),
    "ranked": ranked_cases(),
    "shared": shared_cases(),
    "speculative": speculative_cases(),
    "swapping": swapping_cases(),
}
STORM: Mapping[str, Any] = {
    "arrivals": {"process": "poisson", "rate": 90},
    "prompt_tokens": {"distribution": "lognormal", "mean": 200, "cv": 1.0, "max": 2000},
    "output_tokens": {"distribution": "lognormal", "mean": 150, "cv": 1.0, "max": 600},
    "num_requests": 2000,
    "classes": [
        {"name": "chat", "share": 0.7, "timeout": "6 s", "retries": {"max": 3, "backoff": "200 ms"}},
        {"name": "batch", "share": 0.3, "timeout": "20 s"},
    ],
}
SMALL = {"name": "vllm", "version": "0.12", "max_model_len": 16384, "gpu_memory_utilization": 0.25, "max_num_seqs": 6}


def test_a_run_that_has_ended_leaves_no_requests_in_memory() -> None:
    """A plan of a day makes a hundred of them; Python would keep them all until it has counted enough objects."""
    deployment = make_deployment(make_config(), constant_step_times(0.05))
    deployment = replace(deployment, control=Control(admission=AdmissionSpec(max_queue=2)))
    specs = make_specs([0.1 * each for each in range(20)], 50, 5)
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        simulate(deployment, specs)
        left = [each for each in gc.get_objects() if type(each) is FleetRun]
    finally:
        if was_enabled:
            gc.enable()

    assert not left


@st.composite
def classes(draw: st.DrawFn) -> tuple[ClassSpec, ...]:
    """Draw two classes with or without patience and retries."""
    pauses = [None, 1, {"max": 3, "backoff": "0 s"}, {"max": 2, "backoff": "1.3 s", "max_backoff": "2 s", "jitter": 1}]
    return tuple(
        ClassSpec(
            name=f"class{number}",
            share=0.5,
            timeout=draw(st.sampled_from([None, f"{LIMIT_UNIT} s", f"{5 * LIMIT_UNIT} s", f"{21 * LIMIT_UNIT} s"])),
            retries=draw(st.sampled_from([*pauses, {"max": 4, "backoff": "0.7 s", "honor_retry_after": False}])),
        )
        for number in range(2)
    )


@st.composite
def admission_rules(draw: st.DrawFn) -> AdmissionSpec | None:
    """Draw who is turned away."""
    if draw(st.integers(0, 3)) == 0:
        return None
    rules: dict[str, Any] = {"retry_after": draw(st.sampled_from(["0 s", "1.7 s"]))}
    options: dict[str, Any] = {
        "max_queue": draw(st.integers(0, 3)),
        "kv_headroom": draw(st.sampled_from([0.1, 0.4])),
        "probabilistic_from": draw(st.sampled_from([0.2, 0.7])),
        "deadline_aware": True,
        "token_bucket": {"rate": draw(st.sampled_from([0.9, 4.1])), "burst": draw(st.integers(1, 5))},
    }
    for name in draw(st.lists(st.sampled_from(sorted(options)), min_size=1, max_size=3, unique=True)):
        rules[name] = options[name]
    return validate(AdmissionSpec, rules)


@st.composite
def streams(draw: st.DrawFn) -> StreamingSpec:
    """Draw a way to the client, with or without limits."""
    way: dict[str, Any] = {"network_latency": "0.21 s", "cost_per_event": draw(st.sampled_from(["0 s", "53 ms"]))}
    way["stream"] = draw(st.booleans())
    limit = draw(st.sampled_from([None, 3, 17]))
    return validate(StreamingSpec, way if limit is None else way | {"http_timeout": f"{limit * LIMIT_UNIT} s"})


@st.composite
def deployments(draw: st.DrawFn, kind: str) -> tuple[Deployment, RequestSpecs]:
    """Draw replicas, of one kind or of two, with admission control, and requests whose clients may hang up."""
    case: Case = draw(KINDS[kind].filter(_is_continuous))
    api_seconds = draw(st.sampled_from([0.0, 0.0, 0.61]))
    config = replace(
        case.config,
        async_scheduling=draw(st.booleans()),
        overlaps_results=draw(st.booleans()),
        api_token_seconds=api_seconds,
        tokenization_per_token=draw(st.sampled_from([0.0, 0.0713])),
        frontend_seconds_per_request=draw(st.sampled_from([0.0, 0.0, 0.02939])),
    )
    specs = case.specs
    if specs.concurrency is not None:
        specs = replace(specs, closes_at=draw(st.sampled_from([None, 4.0, 20.0])))
    own = draw(st.lists(st.integers(0, 1), min_size=len(specs), max_size=len(specs)))
    seed = draw(st.integers(0, 9))
    specs = replace(specs, classes=draw(classes()), request_class=np.array(own, dtype=np.int16), seed=seed)
    control = Control(
        routing=draw(routings()),
        admission=draw(admission_rules()),
        limits=(Limits(ttft=2.0), Limits()),
        streaming=draw(streams()) if draw(st.booleans()) else None,
    )
    if control.streaming is not None:
        # What it says of the API server stands in place of the engine's own figure (`simserve.scenario.resolve`).
        config = replace(config, api_token_seconds=0.0)
    deployment = make_deployment(config, case.times, draw(st.integers(1, 3)))
    deployment = replace(deployment, control=control)
    if config.num_speculative_tokens == 0 and draw(st.booleans()):
        other = replace(config, num_blocks=config.num_blocks + draw(st.integers(0, 9)))
        times = (case.times, draw(step_times(other)))
        allowed = draw(st.sampled_from([(), ((0,), (1,)), ((1, 0), (1,))]))
        weights = draw(st.sampled_from([None, None, {"a": 0.7, "b": 0.31}]))
        control = replace(control, routing=control.routing.model_copy(update={"weights": weights}))
        deployment = replace(
            deployment,
            control=replace(control, allowed=allowed),
            pools=tuple(
                PoolSetup(name=name, engine=engine, step_times=own, priced=None, num_replicas=draw(st.integers(1, 2)))
                for name, engine, own in zip("ab", (config, other), times, strict=True)
            ),
        )
    return deployment, specs


def _is_continuous(case: Case) -> bool:
    config = case.config
    return config.batching == "continuous" and config.kv_allocation != "none"


def served(deployment: Deployment, specs: RequestSpecs, how: Accelerate = "off") -> Simulation:
    """Return a run in which something decides, whether or not anything does, compiled or not."""
    assert deployment.control is not None
    return _decided(deployment, deployment.control, specs, None, None, how)


def assert_same_runs(expected: Simulation, actual: Simulation) -> None:
    """Assert that two runs have the same records and counts, to the bit."""
    for name in RECORDS:
        assert_same_values(name, getattr(expected.records, name), getattr(actual.records, name))
    assert expected.timeline is not None
    assert actual.timeline is not None
    for each in fields(expected.timeline):
        assert_same_values(each.name, getattr(expected.timeline, each.name), getattr(actual.timeline, each.name))
    assert expected.end_time == actual.end_time
    assert expected.num_replicas == actual.num_replicas
    assert expected.totals.num_steps == actual.totals.num_steps
    assert expected.totals.itl.count == actual.totals.itl.count
    assert expected.totals.busy_seconds == pytest.approx(actual.totals.busy_seconds, rel=1e-12)
    assert_same_values("stream", expected.stream, actual.stream)
    assert [each.name for each in expected.pools] == [each.name for each in actual.pools]


def assert_compiled_alike(deployment: Deployment, specs: RequestSpecs) -> None:
    """Compiled, every record and total is to the bit what it is interpreted; cases that it lacks are passed by."""
    assume(is_covered(Case(deployment.engine, deployment.priced.step_times, specs)))

    interpreted, compiled = (served(deployment, specs, how) for how in ("off", "on"))

    assert_same_runs(interpreted, compiled)
    assert interpreted.transfers == compiled.transfers
    for each in fields(interpreted.totals):
        assert_same_values(each.name, getattr(interpreted.totals, each.name), getattr(compiled.totals, each.name))


@needs_numba
@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(
    max_examples=examples(60), deadline=None, derandomize=True, suppress_health_check=[*CHECKS, HealthCheck.too_slow]
)
def test_rules_run_compiled_as_they_are(kind: str, data: st.DataObject) -> None:
    """The same cases, compiled: every record and every total is the same, to the bit."""
    deployment, specs = data.draw(deployments(kind))
    assert_compiled_alike(deployment, specs)


def test_who_has_hung_up_does_not_hang_up_again() -> None:
    """Two limits pass while a step runs: the client is gone at the first, and the request with the end of the step."""
    patient, hasty = ClassSpec(name="patient", share=0.5), ClassSpec(name="hasty", share=0.5, timeout="1.2 s")
    specs = make_specs([0.0, 0.1], 4, [9, 2])
    specs = replace(specs, classes=(patient, hasty), request_class=np.array([0, 1], dtype=np.int16))
    streaming = validate(StreamingSpec, {"cost_per_event": "0 s", "http_timeout": "1.4 s"})
    deployment = make_deployment(make_config(max_num_seqs=1), constant_step_times(1.0), 1)

    run = served(replace(deployment, control=Control(streaming=streaming)), specs)

    assert run.records.status.tolist() == [records.COMPLETED, records.TIMED_OUT]
    assert run.records.finish_time[1] == pytest.approx(0.1 + 1.2)


def test_clients_with_patience_wait_for_the_api_server() -> None:
    """Two answers of five tokens take the server 0.9 s a token: the next requests are sent when those have come."""
    specs = replace(make_specs([0.0] * 4, 4, [5] * 4), concurrency=2, think_time=np.full(4, 0.1))
    patient = (ClassSpec(name="patient", share=1.0, timeout="500 s"),)
    specs = replace(specs, classes=patient, request_class=np.zeros(4, dtype=np.int16))
    deployment = make_deployment(make_config(api_token_seconds=0.9), constant_step_times(1.0), 1)

    run = served(replace(deployment, control=Control()), specs)

    assert run.records.finish_time[:2].tolist() == pytest.approx([10.0, 10.0])
    assert run.records.arrival_time[2:].tolist() == pytest.approx([10.1, 10.1])


def test_who_comes_back_is_not_preempted_where_it_was() -> None:
    """Given up in the step that answers and tried again on the other replica: the first one has forgotten it."""
    patient = ClassSpec(name="patient", share=0.5)
    hasty = ClassSpec(
        name="hasty", share=0.5, timeout="4.5 s", retries=validate(RetrySpec, {"max": 1, "backoff": "0 s"})
    )
    specs = make_specs([0.0, 0.0, 0.0, 0.1, 1.1, 1.2, 2.3], [12, 4, 12, 8, 12, 4, 8], [20, 20, 8, 20, 3, 4, 2])
    kinds = np.array([0, 0, 0, 0, 1, 1, 0], dtype=np.int16)
    specs = replace(specs, classes=(patient, hasty), request_class=kinds)
    deployment = make_deployment(make_config(num_blocks=8, max_model_len=32), constant_step_times(1.0), 2)
    control = Control(routing=RoutingSpec(policy="round_robin"))

    run = served(replace(deployment, control=control), specs)

    assert set(run.records.status[kinds == 0]) == {records.COMPLETED}
    assert run.timeline is not None
    assert run.timeline.num_resent == 2


def test_codes_are_those_of_the_records() -> None:
    """The engine, which knows no records, numbers outcomes, reasons and servers as they do."""
    codes = vars(state) | vars(admission_control) | vars(gateway)
    named = ["COMPLETED", "REJECTED", "TIMED_OUT", "FAILED", "UNFINISHED", "REPLICA", "API", "CACHE"]
    reasons = [
        "PROMPT_TOO_LONG",
        "RATE_LIMIT",
        "QUEUE_FULL",
        "KV_HEADROOM",
        "LOAD",
        "DEADLINE",
        "API_LIMIT",
        "TASK_CANCELLED",
    ]

    assert {name: codes[name] for name in named + reasons} == {name: getattr(records, name) for name in named + reasons}
    assert admission_control.GAVE_UP == records.TIMEOUT
    assert [records.STATUSES[codes[name]] for name in named[:5]] == [name.lower() for name in named[:5]]
    assert [records.SERVERS[codes[name]] for name in named[5:]] == [name.lower() for name in named[5:]]
    assert [records.REASONS[codes[name]] for name in reasons] == [name.lower() for name in reasons]


def test_every_field_of_the_rules_has_a_place_in_flat_memory() -> None:
    """What these objects have, compiled code sees."""
    for record, kind in (
        (flat.CLIENT_STATE, ClientState),
        (flat.BUCKET, Bucket),
        (flat.CLIENTS, Clients),
        (flat.DELIVERY, Delivery),
        (flat.ADMISSION_CONTROL, AdmissionControl),
        (flat.FINISHES, Finishes),
        (flat.PART, Part),
        (flat.PATIENCE, Patience),
        (flat.SHARES, Shares),
        (flat.UNIFORMS, Uniforms),
    ):
        # A user's own parts are asked by what is interpreted.
        assert set(record.fields) == set(kind.__slots__) - {"judge"}


@needs_numba
@pytest.mark.parametrize(
    ("deployment", "workload"),
    [
        ({"admission": {"max_queue": 30, "probabilistic_from": 0.9, "token_bucket": {"rate": 60, "burst": 90}}}, {}),
        ({"routing": "power_of_two"}, {}),
        (
            {"routing": "prefix", "admission": {"kv_headroom": 0.05, "retry_after": "2 s"}},
            {
                "sessions": {"turns": {"distribution": "geometric", "mean": 4, "max": 9}, "think_time": "2 s"},
                "shared_prefix": {"num_groups": 3, "tokens": 400},
            },
        ),
        (
            {"streaming": {"network_latency": "20 ms", "http_timeout": "4 s"}},
            {"arrivals": {"process": "poisson", "rate": 30}},
        ),
        ({}, {"arrivals": {"process": "closed_loop", "concurrency": 300}}),
        (
            {"streaming": {"network_latency": "20 ms", "cost_per_event": "1 ms"}},
            {"arrivals": {"process": "closed_loop", "concurrency": 300}},
        ),
    ],
)
def test_overload_runs_compiled(
    deployment: dict[str, Any], workload: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Four replicas that are asked for more than they can do: nothing falls back, and every byte is the same."""
    own = {"hardware": "h100-sxm-80gb", "replicas": 4, "engine": SMALL} | deployment
    scenario = Scenario.model_validate(
        {"name": "storm", "model": "llama-3.1-8b", "deployment": own, "workload": dict(STORM) | workload}
    )
    with caplog.at_level(logging.WARNING):
        runs = on_both_kernels(scenario)

    assert not [message for message in caplog.messages if "interpreted" in message]
    assert (runs[0].requests["status"] != "completed").sum() > 30
    assert json.dumps(dict(runs[0].summary)) == json.dumps(dict(runs[1].summary))
    assert runs[0].requests.equals(runs[1].requests)


@needs_numba
def test_pools_run_compiled_each_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    """Two kinds of GPU behind one router, and a class that only one of them serves."""
    pools = [
        {"name": "large", "replicas": 2, "hardware": "h200-sxm-141gb"},
        {"name": "small", "replicas": 1, "hardware": "l40s-48gb", "engine": SMALL | {"gpu_memory_utilization": 0.9}},
    ]
    workload = dict(STORM) | {
        "arrivals": {"process": "poisson", "rate": 30},
        "classes": [{"name": "chat", "share": 0.8}, {"name": "batch", "share": 0.2, "pool": "small"}],
    }
    deployment = {"hardware": "h100-sxm-80gb", "engine": {"name": "vllm", "version": "0.12"}, "pools": pools}
    scenario = Scenario.model_validate(
        {"name": "pools", "model": "llama-3.1-8b", "deployment": deployment, "workload": workload}
    )
    with caplog.at_level(logging.WARNING):
        runs = on_both_kernels(scenario)

    assert not [message for message in caplog.messages if "interpreted" in message]
    assert set(runs[0].requests["replica_id"]) == {0, 1, 2}
    assert json.dumps(dict(runs[0].summary)) == json.dumps(dict(runs[1].summary))
    assert runs[0].requests.equals(runs[1].requests)
