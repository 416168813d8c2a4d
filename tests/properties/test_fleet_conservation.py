"""Random clusters of pools that scale, break, are updated and probed, in regions or apart by role.

What `tests/properties/test_conservation.py` draws for admission control, clients and router is drawn here too.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.engine.config import EngineConfig, KVTierConfig
from simserve.engine.plane_state import AT_REPLICA
from simserve.engine.state import Replica
from simserve.sim.control import (
    AutoscalingSpec,
    Control,
    DisaggregationSpec,
    LivenessSpec,
    RegionsSpec,
    Role,
    RoutingSpec,
    UpdateSpec,
)
from simserve.sim.fleet_run import FleetRun
from simserve.sim.lifecycle import STOPPED
from simserve.sim.pools import PoolSetup
from simserve.sim.records import COMPLETED, REASONS
from simserve.sim.simulate import Simulation, simulate
from simserve.validation import validate
from simserve.workload.requests import RequestSpecs
from tests.builders import affine_step_times, make_config, make_faults
from tests.engine.strategies import conversations
from tests.fuzzing import FEW, examples
from tests.properties.test_conservation import CHECKS, check_ends, classes, controls, fault_mappings, traffic
from tests.theory.builders import make_deployment

TIMES = affine_step_times(step_seconds=0.2, token_seconds=0.01, decode_context_seconds=0.001)


@dataclass(frozen=True)
class Cluster:
    """What serves, and what decides."""

    control: Control
    setups: tuple[PoolSetup, ...]


@st.composite
def engines(draw: st.DrawFn) -> EngineConfig:
    """Draw a replica with a prefix cache, with or without a tier behind it and a queue order of its own."""
    return make_config(
        async_scheduling=draw(st.booleans()),
        frontend_latency=0.05,
        enable_prefix_caching=True,
        num_blocks=draw(st.sampled_from([17, 24, 32])),
        scheduler=draw(st.sampled_from(["mixed", "prefill_first"])),
        scheduling_policy=draw(st.sampled_from(["fcfs", "shortest_first"])),
        data_parallel_size=draw(st.sampled_from([1, 1, 2])),
        kv_tiers=draw(
            st.sampled_from([0, 5, 1000]).map(
                lambda size: (KVTierConfig(num_blocks=size, block_seconds=0.01, latency=0.05),) if size else ()
            )
        ),
    )


@st.composite
def setups(draw: st.DrawFn, name: str, role: Role, region: str) -> PoolSetup:
    """Draw a pool of one or two replicas, that may scale, and may draft."""
    config, acceptance = draw(engines()), ()
    if role != "prefill" and draw(st.booleans()):
        config = replace(config, num_speculative_tokens=2, num_blocks=config.num_blocks + 1)
        acceptance = (0.8, 0.5)
    if role == "decode":
        config = replace(config, recomputes_last_token=draw(st.booleans()))
    rules = {
        "metric": draw(st.sampled_from(["queue_depth", "running", "kv_usage", "busy", "slo"])),
        "target": draw(st.sampled_from([0.2, 0.9])),
        "min_replicas": draw(st.integers(0, 1)),
        "max_replicas": 3,
        "interval": "2 s",
        "stabilization": draw(st.sampled_from(["0 s", "6 s"])),
        "grace_period": "2 s",
    }
    return PoolSetup(
        name=name,
        engine=config,
        step_times=TIMES,
        priced=make_deployment(config, TIMES).priced,
        num_replicas=draw(st.integers(1, 2)),
        role=role,
        autoscaling=validate(AutoscalingSpec, rules) if draw(st.booleans()) else None,
        startup_seconds=draw(st.sampled_from([0.0, 3.0])),
        weights_bytes=1e9,
        replicas_per_node=draw(st.integers(1, 2)),
        acceptance=acceptance,
        region=region,
    )


SHAPES: dict[str, tuple[tuple[str, Role, str], ...]] = {
    "pools": (("small", "both", ""), ("large", "both", "")),
    "regions": (("small", "both", "eu"), ("large", "both", "us")),
    "split": (("small", "prefill", ""), ("decode", "decode", "")),
    "mixed": (("decode", "decode", ""), ("small", "both", ""), ("large", "prefill", "")),
    "split regions": (
        ("small", "prefill", "eu"),
        ("decode-eu", "decode", "eu"),
        ("large", "prefill", "us"),
        ("decode-us", "decode", "us"),
    ),
    "two models": (
        ("small", "prefill", ""),
        ("decode-a", "decode", ""),
        ("large", "prefill", ""),
        ("decode-b", "decode", ""),
    ),
}
"""Pools of each kind of cluster: name, role, region."""


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """Draw pools behind one router: alike, in two regions, or some that prefill and some that decode."""
    shape = draw(st.sampled_from(sorted(SHAPES)))
    is_split = any(role == "prefill" for _, role, _ in SHAPES[shape])
    control = replace(draw(controls()), autoscaling=None)
    if shape == "split":
        control = replace(control, routing=within(control.routing, "small"))
    pools = tuple(draw(setups(name, role, region)) for name, role, region in SHAPES[shape])
    if shape == "two models":
        # Of one model are the first two, of another the last two.
        pools = tuple(replace(pool, kv_layout=str(number // 2)) for number, pool in enumerate(pools))
    names = [name for name, _, _ in SHAPES[shape]]
    mappings = draw(st.lists(pool_faults(names, is_split=is_split), max_size=3))
    liveness = {"period": "4 s", "timeout": "1 s", "threshold": 2, "restart": "3 s"}
    liveness |= {"in_flight": draw(st.sampled_from(["lost", "retry"]))}
    update: dict[str, Any] = {
        "at": f"{draw(st.integers(0, 12))} s",
        "grace_period": draw(st.sampled_from(["0 s", "5 s"])),
        "startup": {"schedule": "1 s", "image": "0 s", "load_bandwidth": "1 GB/s", "engine": "1 s"},
    }
    update |= draw(
        st.sampled_from([{}, {"max_unavailable": 0, "max_surge": 1}, {"max_unavailable": 2, "max_surge": 1}])
    )
    regions = {"clients": {"eu": 0.6, "us": 0.4}, "latency": {"eu": {"us": "0.3 s"}}, "within": "0.01 s"}
    link = {"transfer_bandwidth": draw(st.sampled_from(["5 GB/s", "100 GB/s"])), "max_in_transfer": 2}
    control = replace(
        control,
        faults=make_faults(*mappings),
        liveness=validate(LivenessSpec, liveness) if draw(st.booleans()) else None,
        updates=(validate(UpdateSpec, update),) if draw(st.booleans()) else (),
        regions=validate(RegionsSpec, {**regions, **draw(st.sampled_from([{}, {"spill_above": 2}]))})
        if "regions" in shape
        else None,
        disaggregation=validate(DisaggregationSpec, link) if is_split else None,
        kv_bytes_per_token=1e9,
    )
    return Cluster(control, pools)


def within(routing: RoutingSpec, pool: str) -> RoutingSpec:
    """Return the same router for a cluster in which one pool takes requests: a second answer comes from it too."""
    rules = tuple(
        rule.model_copy(
            update={name: pool for name in ("pool", "retry_pool") if getattr(rule, name) not in (None, "api")}
        )
        for rule in routing.rules or ()
    )
    return routing.model_copy(update={"rules": rules})


@st.composite
def pool_faults(draw: st.DrawFn, names: list[str], *, is_split: bool) -> dict[str, Any]:
    """Draw a fault of any kind, on one pool or counted over all."""
    fault: dict[str, Any] = draw(fault_mappings())
    if draw(st.booleans()):
        fault |= {"pool": draw(st.sampled_from(names)), **({} if fault["kind"] == "node" else {"replica": 0})}
    if is_split and draw(st.booleans()):
        kept = {key: value for key, value in fault.items() if key in ("at", "duration", "mtbf", "mttr")}
        fault = {"kind": "link", **kept, **draw(st.sampled_from([{}, {"factor": 5}]))}
    if "mtbf" in fault:
        fault.pop("replica", None)
    return fault


@st.composite
def requests(draw: st.DrawFn) -> RequestSpecs:
    """Draw requests of two classes: each on its own, or turns of conversations that wait for answers."""
    if draw(st.integers(0, 2)):
        return draw(traffic())
    specs = draw(conversations(make_config()))
    own = draw(st.lists(st.integers(0, 1), min_size=len(specs), max_size=len(specs)))
    return replace(specs, classes=draw(classes()), request_class=np.array(own, dtype=np.int16))


def check_plane(run: FleetRun) -> None:
    """Assert that nobody is anywhere any more, and that nothing is on its way."""
    client_state, plane = run.client_state, run.cluster.plane
    assert {*plane.loads, *plane.tokens} == {0}
    assert {*client_state.num_leaving, *client_state.has_left} == {0}
    assert not client_state.leaving
    assert set(client_state.place) <= set(range(-1, len(plane.replicas)))
    if client_state.fleet_state is not None:
        assert [*client_state.fleet_state.parked, *client_state.fleet_state.calls] == []
    transfers = client_state.transfers
    if transfers is not None:
        assert set(transfers.stage) == {AT_REPLICA}
        assert {*transfers.is_counted, *transfers.asked_output} == {0}
        assert not transfers.stranded
        assert {(port.num_on_way, len(port.landed)) for port in transfers.ports} == {(0, 0)}


def check_scheduler(replica: Replica) -> None:
    """Assert the same of one scheduler."""
    assert (replica.num_running, replica.num_outstanding, replica.num_decoding) == (0, 0, 0)
    assert replica.free_blocks == replica.num_blocks
    assert not replica.waiting
    cache = replica.cache
    if cache is None:
        return
    assert not any(cache.used)
    assert not any(cache.reaches.values())
    assert cache.num_idle == sum(cache.held) <= replica.num_blocks
    for tier in cache.tiers:
        assert tier.num_stored == sum(tier.held) <= tier.num_blocks


@given(requests(), clusters())
@settings(max_examples=examples(100, FEW), deadline=None, derandomize=True, suppress_health_check=CHECKS)
def test_everything_is_accounted_for_in_any_cluster(specs: RequestSpecs, cluster: Cluster) -> None:
    """Every request comes to one end; blocks return on every replica there ever was; what was asked for stays."""
    run = FleetRun(cluster.control, cluster.setups, specs, np.full(len(specs), 0.05), None)

    run.run()

    rows = run.requests
    check_ends(specs, run)
    asked = FleetRun(cluster.control, cluster.setups, specs, np.zeros(len(specs)), None).requests
    assert list(rows.max_tokens) == list(asked.max_tokens)
    check_plane(run)
    for each in run.cluster.ranks:
        check_scheduler(each)
    for replica in () if run.fleet is None else run.fleet.replicas:
        assert replica.launched_at <= replica.stopped_at or replica.state != STOPPED


@given(requests(), clusters())
@settings(max_examples=examples(60, FEW), deadline=None, derandomize=True, suppress_health_check=CHECKS)
def test_no_time_runs_backwards_in_any_cluster(specs: RequestSpecs, cluster: Cluster) -> None:
    """The steps of every request are in order, its transfer among them; the same seed gives the same bytes."""
    deployment = make_deployment(cluster.setups[0].engine, TIMES, 1)
    deployment = replace(deployment, control=cluster.control, pools=cluster.setups)

    first, again = (simulate(deployment, specs) for _ in range(2))

    assert first.records.finish_time.tobytes() == again.records.finish_time.tobytes()
    check_times(first)


def check_times(run: Simulation) -> None:
    """Assert on the records of a run."""
    records, timeline = run.records, run.timeline
    done = (records.status == COMPLETED) & (records.replica_id >= 0)
    steps = [records.arrival_time, records.admitted_time, records.scheduled_time]
    if records.transfer_start_time is not None:
        assert records.prefill_end_time is not None
        assert records.transfer_end_time is not None
        moved = done & np.isfinite(records.transfer_end_time)
        way = (records.prefill_end_time, records.transfer_start_time, records.transfer_end_time)
        for before, after in zip((records.scheduled_time, *way), (*way, records.first_token_time), strict=True):
            assert (before[moved] <= after[moved]).all()
    steps += [records.first_token_time, records.finish_time]
    for before, after in itertools.pairwise(steps):
        assert (before[done] <= after[done]).all()
    ended = records.finish_time[
        (records.reason != REASONS.index("prompt_too_long")) & np.isfinite(records.arrival_time)
    ]
    assert np.isfinite(ended).all()
    assert timeline is not None
    assert (timeline.tries[:, 2] >= timeline.tries[:, 0]).all()
    assert (timeline.lost_until >= timeline.lost_since).all()
    assert (timeline.ready_at >= timeline.launched_at).all()
    assert (timeline.stopped_at >= timeline.launched_at).all()
    assert sum(run.totals.seconds_by_part.values()) >= 0.0
