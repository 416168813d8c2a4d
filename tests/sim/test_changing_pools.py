"""Pools that change: each scales on its own, breaks, and drafts for itself; links that are slow or down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simserve.engine.plane_state import Transfers
from simserve.engine.progress import GRID
from simserve.sim.control import AutoscalingSpec, Control, DisaggregationSpec, StreamingSpec
from simserve.sim.fleet_run import FleetRun
from simserve.sim.lifecycle import READY
from simserve.sim.pools import PoolSetup
from simserve.sim.records import COMPLETED, FAILED
from simserve.sim.simulate import Simulation, simulate
from simserve.validation import validate
from simserve.workload.class_spec import ClassSpec
from simserve.workload.requests import RequestSpecs
from tests.builders import constant_step_times, make_config, make_faults, make_specs
from tests.theory.builders import make_deployment

SCALING: dict[str, Any] = {
    "metric": "queue_depth",
    "target": 2,
    "max_replicas": 4,
    "interval": "5 s",
    "stabilization": "20 s",
}


def pool(name: str, count: int = 1, *, config: dict[str, Any] | None = None, **rest: Any) -> PoolSetup:
    """Return a pool of one seat a replica, whose steps take a second."""
    engine = make_config(**{"max_num_seqs": 1, "max_model_len": 512, "num_blocks": 2000, **(config or {})})
    times = constant_step_times(1.0)
    priced = make_deployment(engine, times).priced
    return PoolSetup(name=name, engine=engine, step_times=times, priced=priced, num_replicas=count, **rest)


def run_pools(
    specs: RequestSpecs, pools: Sequence[PoolSetup], homes: Sequence[int] | None = None, **control: Any
) -> Simulation:
    """Return a run in which class 0 goes to the first pool and class 1 to the second (``homes``)."""
    if homes is not None:
        classes = tuple(ClassSpec(name=name, share=0.5) for name in ("a", "b"))
        specs = replace(specs, classes=classes, request_class=np.array(homes, dtype=np.int16))
        control["allowed"] = ((0,), (1,))
    deployment = replace(make_deployment(pools[0].engine, pools[0].step_times, 1), pools=tuple(pools))
    return simulate(replace(deployment, control=Control(**control)), specs)


def launched(run: Simulation, number: int) -> int:
    """Return how many replicas of a pool there ever were."""
    assert run.timeline is not None
    return int(np.count_nonzero(run.timeline.pool == number))


def test_each_pool_scales_on_its_own_queue() -> None:
    """Eight wait at the first pool, none at the second; only the first grows, after its own start-up."""
    scaling = validate(AutoscalingSpec, SCALING)
    pools = [pool(name, autoscaling=scaling, startup_seconds=seconds) for name, seconds in (("a", 10.0), ("b", 99.0))]
    run = run_pools(make_specs([0.0] * 9, 1, 20), pools, [0] * 8 + [1])

    assert run.timeline is not None
    assert (launched(run, 0), launched(run, 1)) == (4, 1)
    new = run.timeline.pool == 0
    assert run.timeline.ready_at[new].tolist() == [0.0, 15.0, 15.0, 15.0]


def test_a_pool_without_autoscaling_stays_as_it_is() -> None:
    """Only the second one has rules."""
    pools = [pool("a"), pool("b", autoscaling=validate(AutoscalingSpec, SCALING), startup_seconds=1.0)]
    run = run_pools(make_specs([0.0] * 16, 1, 20), pools, [0] * 8 + [1] * 8)

    assert launched(run, 0) == 1
    assert launched(run, 1) > 1


def test_requests_of_a_pool_at_zero_call_it_back() -> None:
    """The second pool scales to zero, and only its own class brings it back."""
    scaling = validate(AutoscalingSpec, {**SCALING, "min_replicas": 0, "stabilization": "5 s"})
    pools = [pool("a"), pool("b", autoscaling=scaling, startup_seconds=10.0)]
    specs = make_specs([0.0, 0.0, 60.0, 103.0], 1, 1)
    run = run_pools(specs, pools, [0, 1, 0, 1])

    assert run.records.scheduled_time.tolist() == [0.0, 0.0, 60.0, 115.0]


def test_a_fault_strikes_the_pool_that_it_names() -> None:
    """Replica 1 of the second pool; without a name replicas count over both."""
    fault = {"kind": "replica", "replica": 1, "at": "2.5 s", "duration": "9 s"}
    pools = [pool("a", 2), pool("b", 2)]
    specs = make_specs([0.0] * 4, 1, 5)
    named = run_pools(specs, pools, [0, 0, 1, 1], faults=make_faults({**fault, "pool": "b"}))
    counted = run_pools(specs, pools, [0, 0, 1, 1], faults=make_faults({**fault, "replica": 2}))

    assert named.records.status.tolist() == [COMPLETED] * 3 + [FAILED]
    assert counted.records.status.tolist() == [COMPLETED] * 2 + [FAILED, COMPLETED]


def test_a_node_holds_replicas_of_one_pool() -> None:
    """Two replicas of the second pool fill a node: both are gone, the first pool's is not."""
    fault = {"kind": "node", "pool": "b", "at": "2.5 s", "duration": "9 s"}
    pools = [pool("a"), pool("b", 2, replicas_per_node=2)]
    run = run_pools(make_specs([0.0] * 3, 1, 5), pools, [0, 1, 1], faults=make_faults(fault))

    assert run.records.status.tolist() == [COMPLETED, FAILED, FAILED]


def test_random_faults_strike_replicas_that_an_autoscaler_launched() -> None:
    """Four at the peak, one at the start: more than one place fails in the long run."""
    scaling = validate(AutoscalingSpec, {**SCALING, "metric": "running", "target": 1, "stabilization": "500 s"})
    control = Control(
        autoscaling=scaling,
        startup_seconds=3.0,
        faults=make_faults({"kind": "replica", "mtbf": "60 s", "mttr": "10 s", "in_flight": "retry"}),
    )
    specs = make_specs([0.5 * number for number in range(800)], 1, 2)
    config = make_config(max_num_seqs=2, max_model_len=512, num_blocks=2000)
    run = simulate(replace(make_deployment(config, constant_step_times(1.0), 1), control=control), specs)

    assert run.timeline is not None
    assert (run.records.status == COMPLETED).all()
    down = run.timeline.lost_since
    assert len(down) > 400 / 70 * 1.5


def test_an_autoscaler_fills_the_place_of_a_spot_instance() -> None:
    """Taken back at 21 s for 100 s: a new one is there after a look and a start, and the fault brings no fifth."""
    scaling = validate(AutoscalingSpec, {**SCALING, "min_replicas": 2, "max_replicas": 2})
    control = Control(
        autoscaling=scaling,
        startup_seconds=10.0,
        faults=make_faults({"kind": "spot", "at": "21 s", "duration": "100 s", "notice": "2 s", "in_flight": "retry"}),
    )
    config = make_config(max_model_len=512, num_blocks=2000)
    specs = make_specs([1.0 * number for number in range(200)], 1, 1)
    run = simulate(replace(make_deployment(config, constant_step_times(1.0), 2), control=control), specs)

    assert run.timeline is not None
    assert run.timeline.ready_at.tolist() == [0.0, 0.0, 35.0]


def test_pools_draft_at_their_own_pace() -> None:
    """Three tokens a step on the first pool (every draft accepted), one on the second, which does not draft."""
    drafts = {"num_speculative_tokens": 2, "max_num_batched_tokens": 64}
    pools = [pool("a", config=drafts, acceptance=(1.0, 1.0)), pool("b")]
    run = run_pools(make_specs([0.0, 0.0], 1, 31), pools, [0, 1])

    assert run.records.finish_time.tolist() == [11.0, 31.0]
    assert run.totals.speculation is not None
    assert run.totals.speculation.num_tokens == pytest.approx(30.0)


def test_clients_of_a_pool_without_drafts_get_token_by_token() -> None:
    """Beside a pool that drafts: 31 events of the one, 11 of the other."""
    drafts = {"num_speculative_tokens": 2, "max_num_batched_tokens": 64}
    pools = [pool("a", config=drafts, acceptance=(1.0, 1.0)), pool("b")]
    stream = validate(StreamingSpec, {"cost_per_event": "0 s"})
    run = run_pools(make_specs([0.0, 0.0], 1, 31), pools, [0, 1], streaming=stream)

    assert run.stream is not None
    assert run.stream.num_events == 11 + 31
    assert run.records.itl_max.tolist() == [1.0, 1.0]


def test_a_request_that_moves_takes_the_pace_of_where_it_is() -> None:
    """Its replica of the drafting pool is lost after one step; on the other it starts over, token by token."""
    drafts = {"num_speculative_tokens": 2, "max_num_batched_tokens": 64}
    pools = [pool("a", config=drafts, acceptance=(1.0, 1.0)), pool("b")]
    fault = {"kind": "replica", "at": "1.5 s", "duration": "500 s", "in_flight": "retry"}
    run = run_pools(make_specs([0.0], 1, 31), pools, faults=make_faults(fault))

    assert run.records.finish_time.tolist() == [2.0 + 31.0]
    assert GRID > 1


def split(
    specs: RequestSpecs, *faults: dict[str, Any], prefill: int = 1, decode: int = 1, seats: int = 4, **link: Any
) -> FleetRun:
    """Return a finished run with disaggregation; a token is 1 GB, over a link of 10 GB/s, and a step a second."""
    spec = {"transfer_bandwidth": "10 GB/s", "transfer_latency": "0 s", **link}
    control = Control(
        disaggregation=validate(DisaggregationSpec, spec), kv_bytes_per_token=1e9, faults=make_faults(*faults)
    )
    config = {"max_num_seqs": seats}
    pools = [pool("p", prefill, config=config, role="prefill"), pool("d", decode, config=config, role="decode")]
    run = FleetRun(control, pools, specs, np.zeros(len(specs)), None)
    run.run()
    for load, replica in zip(run.cluster.plane.loads, run.cluster.replicas, strict=True):
        (rank,) = replica.ranks
        assert (load, rank.free_blocks) == (0, rank.num_blocks)
    assert run.fleet is None or {replica.state for replica in run.fleet.replicas} == {READY}
    return run


def moves(run: FleetRun) -> Transfers:
    """Return what the plane knows of the KV caches that moved."""
    assert run.client_state.transfers is not None
    return run.client_state.transfers


def test_a_slow_link_delays_what_is_on_it_and_what_comes() -> None:
    """A cache takes two seconds; after the first of them the link is four times as slow, for two seconds."""
    fault = {"kind": "link", "at": "2 s", "duration": "2 s", "factor": 4}
    plain, slow = (split(make_specs([0.0, 0.0], 20, 3), *each, seats=1) for each in ((), (fault,)))

    assert list(plain.requests.first_token_time) == [3.0, 4.0 + 1.0]
    # Half of the first is left at 2 s, a quarter of that crosses until 4 s, the rest at full speed.
    assert list(moves(slow).transfer_end) == [4.5, 6.5]
    assert slow.requests.first_token_time[0] == 4.5


def test_a_link_that_is_down_holds_everything_until_it_is_back() -> None:
    """Nothing crosses from 2 to 12 s; back-pressure keeps the prefill replica from going on."""
    fault = {"kind": "link", "at": "2 s", "duration": "10 s"}
    specs = make_specs([0.0, 0.0, 0.0], 20, 3)
    free, held = (split(specs, fault, max_in_transfer=most, seats=1) for most in (64, 1))

    assert list(moves(free).transfer_end) == [13.0, 15.0, 17.0]
    assert list(moves(free).transfer_start) == [1.0, 13.0, 15.0]
    assert free.transfers["waited_seconds"] == pytest.approx(13.0 - 2.0 + 15.0 - 3.0)
    assert list(held.requests.scheduled_time)[1] == 13.0
    assert held.transfers["stalled_seconds"] > 10.0


def test_losing_a_prefill_replica_loses_what_it_was_sending() -> None:
    """One cache has arrived, one is on its way, one prompt is computed: the first goes on, the others start over."""
    fault = {"kind": "replica", "pool": "p", "at": "3.5 s", "duration": "5 s", "in_flight": "retry"}
    run = split(make_specs([0.0, 0.0, 0.0], 20, 4), fault, seats=1)

    assert (np.array(run.requests.status) == COMPLETED).all()
    assert run.requests.first_token_time[0] == 3.0
    assert min(list(run.requests.scheduled_time)[1:]) == 8.5
    assert list(run.requests.max_tokens) == [4, 4, 4]


def test_losing_a_decode_replica_starts_its_requests_over() -> None:
    """They are prefilled again; caches that land meanwhile wait for a decode replica to be back."""
    fault = {"kind": "replica", "pool": "d", "at": "4.5 s", "duration": "10 s", "in_flight": "retry"}
    run = split(make_specs([0.0, 5.0], 20, 9), fault)

    assert (np.array(run.requests.status) == COMPLETED).all()
    assert min(run.requests.first_token_time) >= 14.5
    assert list(run.requests.generated_tokens) == [9, 9]


def test_a_decode_pool_scales_on_the_caches_that_wait_for_it() -> None:
    """One seat, eight caches: the decode pool grows, the prefill pool does not."""
    scaling = validate(AutoscalingSpec, SCALING)
    spec = validate(DisaggregationSpec, {"transfer_bandwidth": "100 GB/s"})
    pools = [pool("p", role="prefill"), pool("d", role="decode", autoscaling=scaling, startup_seconds=2.0)]
    control = Control(disaggregation=spec, kv_bytes_per_token=1e9)
    run = FleetRun(control, pools, make_specs([0.0] * 12, 2, 30), np.zeros(12), None)
    run.run()

    assert run.fleet is not None
    assert [len(each.replicas) for each in run.fleet.pools] == [1, 4]
    assert (np.array(run.requests.status) == COMPLETED).all()


def test_a_prefill_replica_that_comes_later_sends_on_what_decode_replicas_compute_again() -> None:
    """Answers of one token too, as those of the first replica; it answered them itself."""
    scaling = validate(AutoscalingSpec, {**SCALING, "target": 1})
    spec = validate(DisaggregationSpec, {"transfer_bandwidth": "100 GB/s"})
    decodes = pool("d", role="decode", config={"max_num_seqs": 8, "recomputes_last_token": True})
    pools = [pool("p", role="prefill", autoscaling=scaling, startup_seconds=1.0), decodes]
    control = Control(disaggregation=spec, kv_bytes_per_token=1e6)
    run = FleetRun(control, pools, make_specs([0.4 * each for each in range(40)], 2, 1), np.zeros(40), None)
    run.run()

    assert run.fleet is not None
    assert len(run.fleet.pools[0].replicas) > 1
    assert run.transfers["count"] == 40.0


def test_the_records_hold_the_way_of_every_cache() -> None:
    """Computed, sent, arrived, taken in, in this order; an answer of one token goes no way."""
    spec = validate(DisaggregationSpec, {"transfer_bandwidth": "10 GB/s", "transfer_latency": "0.5 s"})
    pools = [pool("p", role="prefill", config={"max_num_seqs": 4}), pool("d", role="decode")]
    specs = make_specs([0.0, 0.0, 0.0], [10, 10, 10], [5, 5, 1])
    deployment = replace(make_deployment(pools[0].engine, pools[0].step_times, 1), pools=tuple(pools))
    records = simulate(replace(deployment, control=Control(disaggregation=spec, kv_bytes_per_token=1e9)), specs).records

    assert records.prefill_end_time is not None
    assert records.transfer_start_time is not None
    assert records.transfer_end_time is not None
    assert records.prefill_replica_id is not None
    assert records.prefill_end_time[:2].tolist() == [1.0, 1.0]
    assert records.transfer_start_time[:2].tolist() == [1.0, 2.0]
    assert records.transfer_end_time[:2].tolist() == [2.5, 3.5]
    assert (records.transfer_end_time[:2] <= records.first_token_time[:2]).all()
    assert records.prefill_replica_id.tolist() == [0, 0, -1]
    assert np.isnan(records.transfer_end_time[2])
