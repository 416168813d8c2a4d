"""Everything at once on random clusters: no request is lost, no block, and no time runs backwards."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from simserve.sim.control import (
    AdmissionSpec,
    AutoscalingSpec,
    Control,
    FairnessSpec,
    FaultSpec,
    Limits,
    OverflowSpec,
    ResponseCacheSpec,
    RoutingSpec,
    StreamingSpec,
)
from simserve.sim.fleet_run import FleetRun
from simserve.sim.lifecycle import STOPPED
from simserve.sim.pools import PoolSetup
from simserve.sim.records import COMPLETED, REASONS, REPLICA, UNFINISHED
from simserve.sim.simulate import simulate
from simserve.validation import validate
from simserve.workload.class_spec import ClassSpec
from simserve.workload.prefixes import system_prompts
from simserve.workload.requests import ClientLoop, RequestSpecs
from tests.builders import affine_step_times, make_closed_loop, make_config, make_specs
from tests.fuzzing import examples
from tests.theory.builders import make_deployment

CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large]


@st.composite
def classes(draw: st.DrawFn) -> tuple[ClassSpec, ...]:
    """Draw two classes with or without patience and retries."""
    count = 2
    return tuple(
        ClassSpec(
            name=f"class{number}",
            share=1 / count,
            timeout=draw(st.sampled_from([None, "3 s", "20 s"])),
            retries=draw(
                st.sampled_from([None, 1, {"max": 4, "backoff": "0 s"}, {"max": 2, "backoff": "5 s", "jitter": 1}])
            ),
        )
        for number in range(count)
    )


@st.composite
def traffic(draw: st.DrawFn) -> RequestSpecs:
    """Draw an open or a closed loop of some dozens of requests of two classes."""
    count = draw(st.integers(1, 60))
    prompts = draw(st.lists(st.integers(1, 45), min_size=count, max_size=count))
    outputs = draw(st.lists(st.integers(1, 18), min_size=count, max_size=count))
    if draw(st.booleans()):
        gaps = draw(st.lists(st.sampled_from([0.0, 0.1, 0.3, 2.7]), min_size=count, max_size=count))
        specs = make_specs(np.cumsum(gaps).tolist(), prompts, outputs)
    else:
        specs = make_closed_loop(draw(st.integers(1, 12)), prompts, outputs, draw(st.sampled_from([0.0, 1.3])))
        closes_at = draw(st.sampled_from([None, 0.0, 4.0, 20.0]))
        specs = replace(specs, ramp_up=draw(st.sampled_from([None, 5.0])), closes_at=closes_at)
    if draw(st.booleans()):
        specs = in_conversations(specs, draw(st.integers(1, 4)))
        if specs.concurrency is None and draw(st.booleans()):
            specs = beside_clients(specs, draw(st.integers(0, count - 1)), draw(st.sampled_from([None, 4.0, 20.0])))
    own = draw(st.lists(st.integers(0, 1), min_size=count, max_size=count))
    if draw(st.booleans()):
        groups = np.array(draw(st.lists(st.integers(0, 2), min_size=count, max_size=count)))
        shared = draw(st.integers(1, 20))
        lengths = np.maximum(specs.prompt_tokens, shared + 1)
        prefixes = system_prompts(groups, 3, np.full(len(groups), shared), lengths + specs.output_tokens)
        specs = replace(specs, prompt_tokens=lengths, prefixes=prefixes)
    numbers = np.array(own, dtype=np.int16)
    return replace(specs, classes=draw(classes()), request_class=numbers, seed=draw(st.integers(0, 9)))


def in_conversations(specs: RequestSpecs, turns: int) -> RequestSpecs:
    """Return the same requests as conversations of so many turns, with half a second of thought."""
    place = np.arange(len(specs))
    turn = place % turns + 1
    starts = specs.arrival_time[place - place % turns] if specs.concurrency is None else specs.arrival_time
    return replace(
        specs,
        session=place // turns,
        turn=turn,
        arrival_time=np.where(turn == 1, starts, np.nan),
        think_time=np.full(len(specs), 0.5),
    )


def beside_clients(specs: RequestSpecs, first: int, closes_at: float | None) -> RequestSpecs:
    """Return the same conversations, of which the last (those from about ``first`` on) are held by two closed loops."""
    assert specs.session is not None
    begins = np.flatnonzero(specs.turn == 1)
    edges = begins[np.searchsorted(begins, [first, (first + len(specs)) // 2]).clip(max=len(begins) - 1)]
    loop = np.searchsorted(edges, np.arange(len(specs)), side="right") - 1
    return replace(
        specs,
        arrival_time=np.where(loop >= 0, np.nan, specs.arrival_time),
        loop=loop.astype(np.int8),
        loops=(ClientLoop(1), ClientLoop(2, ramp_up=5.0)),
        concurrency=3,
        closes_at=closes_at,
    )


@st.composite
def controls(draw: st.DrawFn) -> Control:
    """Draw a router, admission control, an autoscaler and faults."""
    admission_control: dict[str, Any] = {
        "retry_after": draw(st.sampled_from(["0 s", "2 s"])),
        "max_queue": draw(st.integers(0, 9)),
    }
    if draw(st.booleans()):
        admission_control |= {
            "deadline_aware": True,
            "probabilistic_from": 0.6,
            "token_bucket": {"rate": 2.0, "burst": 8},
        }
    scaling = {
        "metric": draw(st.sampled_from(["queue_depth", "running", "kv_usage", "busy", "slo"])),
        "target": draw(st.sampled_from([0.2, 0.9])),
        "min_replicas": draw(st.integers(0, 1)),
        "max_replicas": 4,
        "interval": "2 s",
        "stabilization": draw(st.sampled_from(["0 s", "6 s"])),
        "grace_period": draw(st.sampled_from(["0 s", "4 s"])),
    }
    faults = draw(st.lists(fault_mappings(), max_size=3))
    policies = ["round_robin", "random", "least_outstanding", "least_tokens", "power_of_two", "prefix"]
    routing: dict[str, Any] = {
        "policy": draw(st.sampled_from(policies)),
        "update_interval": draw(st.sampled_from(["0 s", "3 s"])),
    }
    if draw(st.booleans()):
        by_length = {"max_prompt_tokens": 20, "misclassified": 0.4, "retry_pool": "large"}
        routing["rules"] = [{"pool": "small", **by_length}, {"pool": "large", "classes": ["class1"]}]
    api = validate(OverflowSpec, draw(overflows())) if draw(st.booleans()) else None
    if api is not None and "rules" in routing and draw(st.booleans()):
        routing["rules"][0]["retry_pool"] = "api"
        routing["rules"][1]["pool"] = draw(st.sampled_from(["api", "large"]))
    return Control(
        routing=validate(RoutingSpec, routing),
        admission=validate(AdmissionSpec, admission_control) if draw(st.booleans()) else None,
        autoscaling=validate(AutoscalingSpec, scaling) if draw(st.booleans()) else None,
        overflow=api,
        streaming=validate(StreamingSpec, draw(streams())) if draw(st.booleans()) else None,
        response_cache=validate(ResponseCacheSpec, draw(caches())) if draw(st.booleans()) else None,
        fairness=validate(FairnessSpec, draw(fair_turns())) if draw(st.booleans()) else None,
        startup_seconds=draw(st.sampled_from([0.0, 3.0])),
        faults=TypeAdapter(tuple[FaultSpec, ...]).validate_python(faults),
        limits=(Limits(ttft=2.0, e2e=12.0), Limits(tpot=3.0)),
    )


@st.composite
def overflows(draw: st.DrawFn) -> dict[str, Any]:
    """Draw an API with or without limits, by queue, rate or class."""
    api: dict[str, Any] = {"api": "any", "max_queue": draw(st.integers(1, 6)), "tokens_per_second_cv": 0.5}
    if draw(st.booleans()):
        api |= {"always": ["class0"], "never": ["class1"]}
    if draw(st.booleans()):
        api["above_rate"] = {"rate": 1.5, "burst": 2}
    if draw(st.booleans()):
        limited = draw(st.sampled_from(["stay", "wait", "refuse"]))
        api |= {"requests_per_minute": 30, "tokens_per_minute": 900, "when_limited": limited}
    return api


@st.composite
def streams(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a way to the client."""
    way: dict[str, Any] = {"network_latency": "0.2 s", "cost_per_event": draw(st.sampled_from(["0 s", "50 ms"]))}
    if draw(st.booleans()):
        return way | {"stream": draw(st.booleans()), "http_timeout": draw(st.sampled_from(["2 s", "30 s"]))}
    return way | {"buffer_tokens": draw(st.integers(1, 4))}


@st.composite
def caches(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a response cache with a fixed share of hits, or one that fills and forgets."""
    share = draw(st.sampled_from([0.3, {"class1": 0.9}]))
    filling = {"questions": 3, "expiry": "4 s"} if draw(st.booleans()) else {}
    return {"hit_share": share, "latency": draw(st.sampled_from(["0 s", "5 ms", "5 s"])), **filling}


@st.composite
def fair_turns(draw: st.DrawFn) -> dict[str, Any]:
    """Draw shares, and how many requests a replica may hold."""
    return {
        "shares": {"class0": draw(st.sampled_from([1.0, 5.0])), "class1": 1.0},
        "max_outstanding": draw(st.sampled_from([1, 3, None])),
    }


@st.composite
def fault_mappings(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a fault of any kind."""
    kind = draw(st.sampled_from(["replica", "node", "spot", "slow", "black_hole"]))
    fault: dict[str, Any] = {"kind": kind}
    if draw(st.booleans()):
        fault |= {"at": f"{draw(st.integers(0, 30))} s", "duration": f"{draw(st.integers(1, 20))} s"}
        if kind != "node":
            fault["replica"] = draw(st.integers(0, 1))
    else:
        fault |= {"mtbf": "15 s", "mttr": "3 s"}
    if kind != "slow":
        fault["in_flight"] = draw(st.sampled_from(["lost", "retry"]))
    if kind == "black_hole":
        fault["probe"] = {"depth": draw(st.sampled_from(["deep", "shallow"])), "period": "2 s"}
    return fault


ENGINES: dict[str, dict[str, Any]] = {
    "replicas": {"enable_prefix_caching": True},
    "ranks": {"enable_prefix_caching": True, "data_parallel_size": 2},
    "batches": {"batching": "static", "static_batch_size": 3, "static_max_wait": 0.7},
    "batches without a cache": {"batching": "static", "static_batch_size": 3, "kv_allocation": "none"},
    "no cache": {"kv_allocation": "none"},
}
"""What a replica may be."""


@given(traffic(), controls(), st.booleans(), st.sampled_from(["replicas", *ENGINES]))
@settings(max_examples=examples(160), deadline=None, derandomize=True, suppress_health_check=CHECKS)
def test_everything_is_accounted_for(specs: RequestSpecs, control: Control, is_ahead: bool, kind: str) -> None:
    """Every request comes to one end; blocks return; times are in order; the same seed gives the same bytes."""
    is_ahead = is_ahead and "batching" not in ENGINES[kind]
    config = make_config(async_scheduling=is_ahead, frontend_latency=0.05, **ENGINES[kind])
    if control.streaming is not None and kind != "replicas":
        control = replace(control, streaming=control.streaming.model_copy(update={"stream": False}))
    times = affine_step_times(step_seconds=0.2, token_seconds=0.01, decode_context_seconds=0.001)
    run = FleetRun(control, pools_of(control, config, times), specs, np.full(len(specs), 0.05), None)

    run.run()

    check_ends(specs, run)
    for replica in run.cluster.ranks:
        assert (replica.num_running, replica.num_outstanding, replica.num_decoding) == (0, 0, 0)
        assert replica.free_blocks == replica.num_blocks
        assert not replica.waiting
        assert replica.cache is None or not (any(replica.cache.used) or any(replica.cache.num_others))
        assert (replica.context_sum, replica.context_squares) == (0, 0) or kind == "replicas"
    assert {*run.cluster.plane.loads, *run.cluster.plane.tokens} == {0}
    for replica in () if run.fleet is None else run.fleet.replicas:
        assert replica.launched_at <= replica.stopped_at or replica.state != STOPPED
    check_times(specs, control, config, times)


def check_ends(specs: RequestSpecs, run: FleetRun) -> None:
    """Assert that what was sent has come to an end, and that all of it was sent unless clients stopped before."""
    status = np.frombuffer(run.requests.status, dtype=np.int8)
    sent = np.isfinite(run.arrival_time)
    assert (status[sent] != UNFINISHED).all()
    assert specs.closes_at is not None or sent.all()
    assert specs.closes_at is None or specs.turn is not None or (run.arrival_time[sent] < specs.closes_at).all()
    assert run.fleet is None or run.fleet.is_done
    assert run.cluster.num_ended == sent.sum()


def pools_of(control: Control, config: Any, times: Any) -> list[PoolSetup]:
    """Return one pool of two replicas, or under rules a pool of each size."""
    priced = make_deployment(config, times).priced
    names = ("small", "large") if control.routing.rules else ("",)
    size = 2 // len(names)
    return [PoolSetup(name=name, engine=config, step_times=times, priced=priced, num_replicas=size) for name in names]


def check_times(specs: RequestSpecs, control: Control, config: Any, times: Any) -> None:
    """Assert on the records of the same run, twice."""
    pools = tuple(pools_of(control, config, times)) if control.routing.rules else ()
    deployment = replace(make_deployment(config, times, 2), control=control, pools=pools)
    first, again = (simulate(deployment, specs) for _ in range(2))
    records = first.records

    assert first.records.finish_time.tobytes() == again.records.finish_time.tobytes()
    sent = np.isfinite(records.arrival_time)
    assert sent.all()
    done = records.status == COMPLETED
    if not specs.sends_out_of_order and specs.closes_at is None:
        assert (records.output_tokens[done] == specs.output_tokens[done]).all()
    assert (records.arrival_time[done] <= records.admitted_time[done]).all()
    assert (records.admitted_time[done] <= records.scheduled_time[done]).all()
    assert (records.scheduled_time[done] <= records.first_token_time[done]).all()
    steps = done if records.served_by is None else done & (records.served_by == REPLICA)
    assert (records.scheduled_time[steps] < records.first_token_time[steps]).all()
    assert (records.first_token_time[done] <= records.finish_time[done]).all()
    ended = records.finish_time[records.reason != REASONS.index("prompt_too_long")]
    assert np.isfinite(ended).all()
    assert (records.finish_time >= records.arrival_time)[np.isfinite(records.finish_time)].all()
    assert first.timeline is None or (first.timeline.tries[:, 2] >= first.timeline.tries[:, 0]).all()
