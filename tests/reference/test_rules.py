"""Rules of the cluster at their edges, on the plane and on the reference alike: by how much, from when, up to what."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from simserve.engine.plane_state import Router as PlaneRouter
from simserve.engine.routing import is_overloaded
from simserve.reference.router import Router
from simserve.scenario.reference_run import by_reference
from simserve.scenario.verify import compared
from simserve.sim.control import (
    AdmissionSpec,
    AutoscalingSpec,
    Control,
    DisaggregationSpec,
    EncoderAutoscalingSpec,
    FairnessSpec,
    Limits,
    OverflowSpec,
    ResponseCacheSpec,
    RoutingSpec,
)
from simserve.sim.plane import prefixes_of
from simserve.sim.pools import PoolSetup
from simserve.sim.records import CACHE, REASONS, TIMED_OUT, RequestRecords
from simserve.sim.simulate import Deployment, simulate
from simserve.validation import validate
from simserve.workload.class_spec import ClassSpec
from simserve.workload.prefixes import PrefixSegments, system_prompts
from simserve.workload.requests import EncoderPool, RequestSpecs
from tests.builders import constant_step_times, make_closed_loop, make_config, make_faults, make_specs
from tests.sim.test_tasks import tasks
from tests.theory.builders import make_deployment

SECOND = constant_step_times(1.0)


def deployed(control: Control, num_replicas: int = 1, **limits: Any) -> Deployment:
    """Return replicas whose every step takes a second."""
    return replace(make_deployment(make_config(**limits), SECOND, num_replicas), control=control)


def both(deployment: Deployment, specs: RequestSpecs) -> RequestRecords:
    """Return what becomes of requests, which is the same on the plane and on the reference."""
    records = simulate(deployment, specs).records
    assert compared(by_reference(deployment, specs), records).differing == {}
    return records


def in_classes(specs: RequestSpecs, kinds: list[int], *classes: dict[str, Any]) -> RequestSpecs:
    """Return the requests with their classes."""
    given = tuple(
        validate(ClassSpec, {"name": f"c{number}", "share": 1 / len(classes), **each})
        for number, each in enumerate(classes)
    )
    return replace(specs, classes=given, request_class=np.array(kinds, dtype=np.int16))


def reasons(records: RequestRecords) -> list[str]:
    """Return why each request was not completed."""
    return [REASONS[reason] for reason in records.reason]


def test_an_idle_replica_takes_a_request_though_nobody_may_wait() -> None:
    """The first begins at once, so it does not wait; whoever comes while a step runs would."""
    control = Control(admission=validate(AdmissionSpec, {"max_queue": 0}))

    records = both(deployed(control), make_specs([0.0, 0.5, 9.25], 4, 2))

    assert reasons(records) == ["", "queue_full", ""]


def test_shedding_looks_at_kv_memory() -> None:
    """One request of four seats fills all 32 tokens of KV from the start of its step: load 1, so all are refused."""
    control = Control(admission=validate(AdmissionSpec, {"probabilistic_from": 0.5}))
    specs = make_specs([0.0, 0.25], [32, 4], 1)

    records = both(deployed(control, num_blocks=8, max_model_len=33), specs)

    assert reasons(records) == ["", "load"]


def test_back_off_stops_growing_at_its_cap() -> None:
    """Refused at 0.5 s, it tries again after 1 s and three times 1.5 s, and gives up at 6 s."""
    retries = {"max": 4, "backoff": "1 s", "max_backoff": "1.5 s", "jitter": 0}
    control = Control(admission=validate(AdmissionSpec, {"max_queue": 0, "retry_after": "0 s"}))
    specs = in_classes(make_specs([0.0, 0.5], 4, [30, 2]), [0, 1], {}, {"retries": retries})

    records = both(deployed(control), specs)

    assert reasons(records) == ["", "queue_full"]
    assert records.finish_time[1] == 0.5 + 1.0 + 3 * 1.5


@pytest.mark.parametrize(("limit", "num_waiting"), [(1.1, 2), (1.9, 2), (3.5, 4)])
def test_the_first_finish_counts_for_all_that_run(limit: float, num_waiting: int) -> None:
    """Of four that began together one finishes after 4 s: one a second, so ``n`` that wait will wait ``n`` seconds."""
    control = Control(admission=validate(AdmissionSpec, {"deadline_aware": True}), limits=(Limits(ttft=limit),))
    arrivals = [0.0] * 4 + [4.25] + [5.125 + 0.125 * number for number in range(6)]

    records = both(deployed(control), make_specs(arrivals, 4, [4, 20, 20, 20, 30] + [2] * 6))

    assert reasons(records)[5:].index("deadline") == num_waiting


def test_a_class_that_returns_has_saved_up_no_turns() -> None:
    """Both have had 12 tokens each when b goes; a goes on alone, and when b is back they take turns one by one."""
    control = Control(fairness=validate(FairnessSpec, {"shares": {"c0": 1.0, "c1": 1.0}, "max_outstanding": 1}))
    arrivals = [0.0, 0.0, *[0.125] * 8, *[17.5] * 3]
    kinds = [0, 1, *[0] * 8, *[1] * 3]
    specs = in_classes(make_specs(arrivals, 4, 4), kinds, {}, {})

    records = both(deployed(control, max_num_seqs=1), specs)

    order = [kinds[index] for index in np.argsort(records.scheduled_time, kind="stable")]
    assert order[order.index(1) + 1 :][4:9] in ([1, 0, 1, 0, 1], [0, 1, 0, 1, 0])


@pytest.mark.parametrize(
    ("own", "other", "guard", "worth", "expected"),
    [
        (9, 3, 1.5, 4, False),
        (10, 3, 1.5, 4, True),
        (6, 2, 1.25, 4, False),
        (7, 2, 1.25, 4, True),
        (4, 0, 1.5, 4, False),
    ],
)
def test_the_guard_passes_over_who_is_beyond_it(own: int, other: int, guard: float, worth: int, expected: bool) -> None:
    """At the guard times the mean, or at the least load and the worth, a replica is not passed over yet."""
    replicas = [SimpleNamespace(number=number, load=load, tokens=load) for number, load in enumerate((own, other))]
    router: Any = Router(RoutingSpec(policy="session", imbalance_guard=guard), [], (), make_specs([0.0], 1, 1), [])

    assert router.is_overloaded(replicas[0], replicas, worth) is expected
    assert is_overloaded(PlaneRouter(3, guard=guard), 0, [0, 1], [own, other], worth) is expected


@pytest.mark.parametrize(("asked_at", "is_held"), [(5.75, True), (6.0, True), (6.25, False)])
def test_an_answer_holds_until_it_is_as_old_as_its_expiry(asked_at: float, is_held: bool) -> None:
    """Made at 2 s with an expiry of 4 s, it is given at 6 s for the last time."""
    cache = {"hit_share": 1.0, "questions": 1, "expiry": "4 s", "latency": "0 s"}
    control = Control(response_cache=validate(ResponseCacheSpec, cache))

    records = both(deployed(control), make_specs([0.0, asked_at], 4, 2))

    assert records.served_by is not None
    assert (records.served_by[1] == CACHE) is np.bool_(is_held)


def test_an_answer_that_is_given_again_grows_no_younger() -> None:
    """Made at 2 s with an expiry of 4 s and given at 5 s, it is too old at 7."""
    cache = {"hit_share": 1.0, "questions": 1, "expiry": "4 s", "latency": "0 s"}
    control = Control(response_cache=validate(ResponseCacheSpec, cache))

    records = both(deployed(control), make_specs([0.0, 5.0, 7.0], 4, 2))

    assert records.served_by is not None
    assert [server == CACHE for server in records.served_by] == [False, True, False]


def test_whoever_hangs_up_as_the_cache_answers_has_heard_nothing() -> None:
    """Waits for a second and reaches the router after two, where an answer of three tokens takes no time."""
    control = Control(response_cache=validate(ResponseCacheSpec, {"hit_share": 1.0, "latency": "0 s"}))
    impatient = (ClassSpec.model_validate({"name": "impatient", "share": 1.0, "timeout": "1 s"}),)
    specs = replace(make_specs([0.0], 4, 3), classes=impatient, request_class=np.zeros(1, dtype=np.int16))

    records = both(deployed(control), replace(specs, own_wait=np.array([2.0])))

    assert records.status.tolist() == [TIMED_OUT]
    assert records.output_tokens.tolist() == [0]
    assert np.isnan(records.first_token_time).all()


def test_two_requests_of_one_turn_that_compute_the_same_leave_it_apart() -> None:
    """Each token is a block and a step. Both requests of a second turn compute what follows the first, one caches it.

    That one has gone at 6 s, a conversation beside it at 8, the other at 9: what begins both was used last, the other
    conversation before that, what follows on the beginning before both. That gives way to a prompt of seven, and the
    third turn finds the three tokens of the beginning, and of what follows none.
    """
    rows = {"t1": (2, [(1, 3)]), "t2a": (9, [(1, 3), (2, 6), (4, 10)]), "t2b": (7, [(1, 3), (2, 6), (3, 8)])}
    rows |= {"t3": (11, [(1, 3), (2, 6), (4, 10), (5, 12)]), "beside": (6, [(6, 7)]), "after": (7, [(7, 8)])}
    prompts, every = [prompt for prompt, _ in rows.values()], [path for _, path in rows.values()]
    prefixes = PrefixSegments(
        offsets=np.cumsum([0, *(len(path) for path in every)]),
        segments=np.array([segment for path in every for segment, _ in path]),
        ends=np.array([end for path in every for _, end in path]),
    )
    specs = replace(
        make_specs([0.0] * 6, prompts, [1] * 6),
        arrival_time=np.array([0.0, np.nan, np.nan, np.nan, 2.0, 9.0]),
        think_time=np.array([0.0, 0.0, 0.0, 8.5, 0.0, 0.0]),
        session=np.array([0, 0, 0, 0, 1, 2]),
        turn=np.array([1, 2, 2, 3, 1, 1]),
        prefixes=prefixes,
    )
    limits = {"block_size": 1, "num_blocks": 16, "max_chunk_tokens": 1, "enable_prefix_caching": True}

    records = both(deployed(Control(), **limits), specs)

    assert records.cached_tokens is not None
    assert records.cached_tokens.tolist() == [0, 2, 3, 0, 0, 3]
    assert prefixes_of(specs) is prefixes


def test_a_peak_counts_until_the_window_has_passed() -> None:
    """Three replicas asked for at 2 s are kept at 6 s, with a window of 4 s, and given back at 8 s."""
    scaling = {
        "metric": "running",
        "target": 1,
        "max_replicas": 3,
        "interval": "2 s",
        "stabilization": "4 s",
        "startup": {"schedule": "0 s", "image": "0 s", "engine": "0 s", "load_bandwidth": "1 GB/s"},
    }
    control = Control(autoscaling=validate(AutoscalingSpec, scaling))
    deployment = deployed(control)
    specs = make_specs([0.0, 0.0, 0.0, 13.0], 4, [3, 3, 3, 1])

    both(deployment, specs)
    timeline = simulate(deployment, specs).timeline

    assert timeline is not None
    assert timeline.stopped_at[np.isfinite(timeline.stopped_at)].tolist() == [8.0, 8.0]


@pytest.mark.parametrize(("shared", "replica"), [(3, 1), (4, 0), (5, 0)])
def test_half_of_a_prompt_is_enough_to_be_known_by(shared: int, replica: int) -> None:
    """Where at least the threshold of 0.5 of eight tokens is known, a request goes there; below, to the idle one."""
    specs = make_specs([0.0, 0.25], 8, 4)
    prefixes = system_prompts(np.zeros(2, dtype=np.int64), 1, np.full(2, shared), np.full(2, 12))
    control = Control(routing=validate(RoutingSpec, {"policy": "prefix", "imbalance_guard": 10}))

    records = both(deployed(control, num_replicas=2), replace(specs, prefixes=prefixes))

    assert records.replica_id.tolist() == [0, replica]


def test_a_prefill_replica_orders_by_what_is_asked_of_it() -> None:
    """Shortest first there is the shortest prompt and one token: the answer is computed elsewhere."""
    link = validate(DisaggregationSpec, {"transfer_bandwidth": "10 GB/s", "transfer_latency": "0 s"})
    deployment = deployed(Control(disaggregation=link, kv_bytes_per_token=1e6))
    own = make_config(max_num_seqs=1, scheduling_policy="shortest_first")
    first = PoolSetup(name="p", engine=own, step_times=SECOND, priced=None, num_replicas=1, role="prefill")
    pools = (first, replace(first, name="d", engine=make_config(), role="decode"))

    records = both(replace(deployment, pools=pools), make_specs([0.0, 0.25, 0.5], [4, 6, 4], [2, 2, 10]))

    assert np.argsort(records.first_token_time).tolist() == [0, 2, 1]


def test_pools_of_equal_weight_take_turns_from_the_first_one_on() -> None:
    """Who is owed as much as another comes after it."""
    deployment = deployed(Control(routing=validate(RoutingSpec, {"weights": {"a": 1, "b": 1}})))
    pools = tuple(
        PoolSetup(name=name, engine=deployment.engine, step_times=SECOND, priced=None, num_replicas=1) for name in "ab"
    )

    records = both(replace(deployment, pools=pools), make_specs([0.0, 0.25, 0.5, 0.75], 4, 2))

    assert records.replica_id.tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize("is_ahead", [False, True])
def test_a_lost_replica_leaves_the_tokens_that_were_sent(is_ahead: bool) -> None:
    """Lost in the fourth step: the client has three tokens, or four with the step that runs, one second apart."""
    faults = make_faults({"kind": "replica", "at": "3.5 s", "duration": "9 s", "replica": 0})
    control = Control(faults=faults)

    records = both(deployed(control, async_scheduling=is_ahead), make_specs([0.0], 4, 9))

    assert reasons(records) == ["replica_lost"]
    assert (records.output_tokens[0], records.itl_max[0]) == (4, 1.0)


def test_a_lost_replica_loses_what_its_scheduler_had_not_seen_yet() -> None:
    """The second comes at 1.25 s, to be seen after 2 s, when the replica is gone."""
    faults = make_faults({"kind": "replica", "at": "1.5 s", "duration": "9 s", "replica": 0})
    deployment = deployed(Control(faults=faults), async_scheduling=True)

    records = both(deployment, make_specs([0.0, 1.25], 4, 9))

    assert reasons(records) == ["replica_lost", "replica_lost"]


@pytest.mark.parametrize(("num_losses", "reason"), [(9, ""), (10, "replica_lost")])
def test_a_request_is_lost_with_its_tenth_replica(num_losses: int, reason: str) -> None:
    """Each of its replicas is lost in the second step; nine times it begins anew on the next one."""
    faults = [{"kind": "replica", "at": f"{1.5 + 3 * number} s", "duration": "1 s"} for number in range(num_losses)]
    control = Control(faults=make_faults(*({**each, "replica": 0, "in_flight": "retry"} for each in faults)))

    records = both(deployed(control), make_specs([0.0], 4, 9))

    assert reasons(records) == [reason]


def test_the_next_cache_is_taken_in_when_the_first_one_is_given_up() -> None:
    """Its client hangs up in front of a full decode replica; the one behind it is smaller, and fits at once."""
    link = validate(DisaggregationSpec, {"transfer_bandwidth": "10 GB/s", "transfer_latency": "0 s"})
    deployment = deployed(Control(disaggregation=link, kv_bytes_per_token=1.0))
    prefills = make_config(max_num_seqs=4, num_blocks=40)
    first = PoolSetup(name="p", engine=prefills, step_times=SECOND, priced=None, num_replicas=1, role="prefill")
    pools = (first, replace(first, name="d", engine=make_config(num_blocks=8, max_model_len=32), role="decode"))
    specs = in_classes(make_specs([0.0, 1.25, 2.25], [12, 20, 4], [12, 2, 2]), [0, 1, 0], {}, {"timeout": "4.5 s"})

    records = both(replace(deployment, pools=pools), specs)

    assert reasons(records) == ["", "timeout", ""]
    assert records.finish_time[2] < records.finish_time[0]


@pytest.mark.parametrize(("reserved", "second"), [(0, 2.0), (8, 2.0), (12, 5.0)])
def test_a_decode_replica_takes_another_request_if_its_reserve_stays_free(reserved: int, second: float) -> None:
    """Of 32 tokens the first request holds two blocks of 4 when the other comes, whose prompt has one block.

    The 24 that are free hold its prompt and 8 tokens for each of the two, not 12 for each: then it waits until the
    first has ended, and is alone.
    """
    link = validate(DisaggregationSpec, {"transfer_bandwidth": "10 GB/s", "transfer_latency": "0 s"})
    deployment = deployed(Control(disaggregation=link, kv_bytes_per_token=1.0))
    first = PoolSetup(name="p", engine=make_config(), step_times=SECOND, priced=None, num_replicas=1, role="prefill")
    reading = make_config(num_blocks=8, max_model_len=32, reserved_decode_tokens=reserved)
    pools = (first, replace(first, name="d", engine=reading, role="decode"))

    records = both(replace(deployment, pools=pools), make_specs([0.0, 0.25], 4, [5, 2]))

    assert records.first_token_time == pytest.approx([1.0, second], abs=1e-6)


def test_all_ranks_of_a_prefill_replica_go_on_when_a_cache_is_taken_in() -> None:
    """It stands still behind two caches; the second is taken in at 3 s, the very moment at which request 4 comes."""
    link = validate(DisaggregationSpec, {"transfer_bandwidth": "4 GB/s", "transfer_latency": "0 s"})
    link = link.model_copy(update={"max_in_transfer": 1})
    deployment = deployed(Control(disaggregation=link, kv_bytes_per_token=1e9))
    engine = make_config(num_blocks=40, data_parallel_size=2)
    first = PoolSetup(name="p", engine=engine, step_times=SECOND, priced=None, num_replicas=1, role="prefill")
    pools = (first, replace(first, name="d", engine=make_config(num_blocks=40), role="decode"))

    records = both(replace(deployment, pools=pools), make_specs([0.0, 0.0, 0.25, 0.25, 3.0], 4, 2))

    assert records.scheduled_time.tolist()[:4] == [0.0, 0.0, 3.0, 3.0]


def test_a_landed_cache_gets_the_blocks_of_who_is_done_a_step_later() -> None:
    """The first is done at 4 s and keeps its blocks for the step that is scheduled already: the third has them at 5."""
    link = validate(DisaggregationSpec, {"transfer_bandwidth": "10 GB/s", "transfer_latency": "0 s"})
    deployment = deployed(Control(disaggregation=link, kv_bytes_per_token=1.0))
    engine = make_config(num_blocks=40)
    first = PoolSetup(name="p", engine=engine, step_times=SECOND, priced=None, num_replicas=1, role="prefill")
    ahead = make_config(num_blocks=8, max_model_len=32, async_scheduling=True, releases_late=True)
    pools = (first, replace(first, name="d", engine=ahead, role="decode"))

    records = both(replace(deployment, pools=pools), make_specs([0.0, 1.25, 2.25], [12, 4, 16], [4, 9, 3]))

    assert records.finish_time[0] == pytest.approx(4.0, abs=1e-6)
    assert records.first_token_time[2] == pytest.approx(5.0, abs=1e-6)


def test_a_cache_lands_once_though_its_link_changes_pace_and_back() -> None:
    """Sent from 1 to 5 s at a quarter of the pace, timed twice for one end, it waits for a decode replica until 8."""
    link = validate(DisaggregationSpec, {"transfer_bandwidth": "4 GB/s", "transfer_latency": "0 s"})
    slow = [{"kind": "link", "at": "0.5 s", "duration": f"{6 + number} s", "factor": 4} for number in range(2)]
    lost = {"kind": "replica", "at": "0.25 s", "duration": "7.75 s", "replica": 0, "pool": "d"}
    faults = make_faults(*slow, {"kind": "link", "at": "1.5 s", "duration": "6 s", "factor": 4}, lost)
    deployment = deployed(Control(disaggregation=link, kv_bytes_per_token=1e9, faults=faults))
    engine = make_config(num_blocks=40)
    first = PoolSetup(name="p", engine=engine, step_times=SECOND, priced=None, num_replicas=1, role="prefill")
    pools = (first, replace(first, name="d", engine=replace(engine, data_parallel_size=2), role="decode"))

    records = both(replace(deployment, pools=pools), make_specs([0.0], 4, 9))

    assert records.first_token_time[0] == 8.0
    assert records.finish_time[0] == 16.0


def test_a_prefill_replica_caches_what_it_has_computed() -> None:
    """The first prompt has 12 of the 20 tokens that both begin with; the other 8 are decoded elsewhere."""
    link = validate(DisaggregationSpec, {"transfer_bandwidth": "10 GB/s", "transfer_latency": "0 s"})
    deployment = deployed(Control(disaggregation=link, kv_bytes_per_token=1.0))
    ahead = make_config(num_blocks=40, enable_prefix_caching=True, async_scheduling=True, releases_late=True)
    first = PoolSetup(name="p", engine=ahead, step_times=SECOND, priced=None, num_replicas=1, role="prefill")
    pools = (first, replace(first, name="d", engine=make_config(num_blocks=40), role="decode"))
    prefixes = system_prompts(np.zeros(2, dtype=np.int64), 1, np.full(2, 20), np.array([21, 30]))

    records = both(
        replace(deployment, pools=pools), replace(make_specs([0.0, 12.5], [12, 24], [9, 2]), prefixes=prefixes)
    )

    assert records.cached_tokens.tolist() == [0, 12]


@pytest.mark.parametrize("releases_late", [False, True])
def test_prompts_that_end_together_and_go_on_leave_all_their_blocks(releases_late: bool) -> None:
    """Twice two prompts wait for a step to end and then take one together, in a cache that holds little more."""
    link = validate(DisaggregationSpec, {"transfer_bandwidth": "10 GB/s", "transfer_latency": "0 s"})
    deployment = deployed(Control(disaggregation=link, kv_bytes_per_token=1.0))
    ahead = {"async_scheduling": releases_late, "releases_late": releases_late}
    own = make_config(num_blocks=6, max_num_batched_tokens=32, enable_prefix_caching=True, **ahead)
    first = PoolSetup(name="p", engine=own, step_times=SECOND, priced=None, num_replicas=1, role="prefill")
    pools = (first, replace(first, name="d", engine=make_config(num_blocks=40), role="decode"))
    prompts = np.array([3, 7, 7] * 2)
    prefixes = system_prompts(np.arange(6), 6, np.full(6, 3), prompts + 3)
    specs = replace(make_specs([0.0, 0.5, 0.5, 20.0, 20.5, 20.5], prompts, [3] * 6), prefixes=prefixes)

    records = both(replace(deployment, pools=pools), specs)

    first_tokens = (records.first_token_time - records.arrival_time).round(6).reshape(2, 3)
    assert first_tokens[:, 1].tolist() == first_tokens[:, 2].tolist()
    assert first_tokens[0].tolist() == first_tokens[1].tolist()


def test_a_decode_takes_its_block_before_who_is_done_gives_any_back() -> None:
    """Two blocks are cached; in one step two of who is done and three of who goes on leave room for one of them."""
    engine = {"num_blocks": 6, "enable_prefix_caching": True, "async_scheduling": True, "releases_late": True}
    prompts = np.array([8, 4, 7, 12])
    prefixes = system_prompts(np.array([0, 1, 2, 0]), 3, np.array([8, 4, 4, 8]), prompts + 8)
    specs = replace(make_specs([0.0, 5.25, 5.25, 20.25], prompts, [1, 2, 6, 1]), prefixes=prefixes)

    records = both(deployed(Control(), max_model_len=24, **engine), specs)

    assert records.cached_tokens.tolist() == [0, 0, 0, 4]


def test_a_fault_after_the_last_request_is_no_part_of_the_run() -> None:
    """The only request is answered at 2 s; the replica that would be lost a second later was never down."""
    faults = make_faults({"kind": "replica", "at": "3 s", "duration": "9 s", "replica": 0})

    timeline = simulate(deployed(Control(faults=faults)), make_specs([0.0], 4, 2)).timeline

    assert timeline is not None
    assert (timeline.lost_since.tolist(), timeline.num_missed) == ([], 1)


def test_nobody_overtakes_a_long_prompt_in_a_closed_loop() -> None:
    """Sent together, 8 and 1 tokens reach the router when the long one does; sent 0.5 s behind it, too."""
    specs = replace(make_closed_loop(3, [8, 1, 1, 1], 3), ramp_up=1.5)

    records = both(deployed(Control(), frontend_latency=0.25, tokenization_per_token=0.25), specs)

    assert records.arrival_time.tolist()[:3] == [0.0, 0.5, 1.0]
    assert records.admitted_time.tolist()[:3] == [2.25, 2.25, 2.25]


@pytest.mark.parametrize(("num_replicas", "expected"), [(1, [1.75, 1.75, 1.75]), (2, [1.25, 1.25, 1.25])])
def test_api_servers_hand_over_together_what_came_together(num_replicas: int, expected: list[float]) -> None:
    """Three requests of 0.5 s each, sent together: one event loop is done with all after 1.5 s, two after 1.25."""
    for specs in (make_specs([0.0, 0.0, 0.0], [4, 4, 4], 2), make_closed_loop(3, [4, 4, 4], 2)):
        config = {"frontend_latency": 0.25, "frontend_seconds_per_request": 0.5}
        deployment = replace(deployed(Control(), **config), num_replicas=num_replicas)

        assert both(deployment, specs).admitted_time.tolist() == expected


def test_who_comes_while_the_api_server_works_is_taken_on_next() -> None:
    """One at 0 is handed over at 0.75; two that came meanwhile together at 1.75; one at 9 is alone again."""
    specs = make_specs([0.0, 0.125, 0.25, 9.0], [4, 4, 4, 4], 2)

    records = both(deployed(Control(), frontend_latency=0.25, frontend_seconds_per_request=0.5), specs)

    assert records.admitted_time.tolist() == [0.75, 1.75, 1.75, 9.75]


def test_a_retry_takes_its_turn_at_the_api_server() -> None:
    """Refused at 1.25 and sent again at 2.25, it is taken on with those that came during the one before."""
    retries = {"max": 1, "backoff": "1 s", "jitter": 0}
    control = Control(admission=validate(AdmissionSpec, {"max_queue": 0, "retry_after": "0 s"}))
    specs = in_classes(
        make_specs([0.0, 0.875, 2.125, 2.375, 2.5, 9.5], [1] * 6, [2] * 6), [0, 1, 0, 0, 0, 0], {}, {"retries": retries}
    )

    records = both(deployed(control, frontend_latency=0.125, frontend_seconds_per_request=0.25), specs)

    assert records.admitted_time.tolist()[1:] == [3.0, 2.5, 3.0, 3.25, 9.875]


def test_a_retry_is_tokenised_between_open_arrivals() -> None:
    """Refused at 1.25 and sent again at 2.25, the long prompt holds up who is sent after it, not who was before."""
    retries = {"max": 1, "backoff": "1 s", "jitter": 0}
    control = Control(admission=validate(AdmissionSpec, {"max_queue": 0, "retry_after": "0 s"}))
    specs = in_classes(
        make_specs([0.0, 0.125, 2.125, 2.375, 9.5], [1, 8, 2, 1, 1], [2, 2, 2, 2, 2]),
        [0, 1, 0, 0, 0],
        {},
        {"retries": retries},
    )

    records = both(deployed(control, frontend_latency=0.125, tokenization_per_token=0.125), specs)

    assert records.admitted_time.tolist()[1:] == [3.375, 2.5, 3.375, 9.75]


def test_who_waits_behind_the_tokeniser_is_overtaken() -> None:
    """The first waits 2 s for its images by itself, the second follows it through the tokeniser and passes it then."""
    for specs in (make_specs([0.0, 0.25], [4, 1], 2), make_closed_loop(2, [4, 1], 2)):
        waiting = replace(specs, own_wait=np.array([2.0, 0.0]))

        records = both(deployed(Control(), frontend_latency=0.25, tokenization_per_token=0.25), waiting)

        assert records.admitted_time.tolist() == [3.25, 1.25]


def test_images_queue_for_the_workers_of_an_encoder_pool() -> None:
    """Two workers: the first request has two images of 2 s, one each; the second and the third wait for a worker each.

    The fourth has no images, and passes them all.
    """
    pool = EncoderPool(
        num_workers=2,
        seconds=np.array([4.0, 1.0, 0.5, 0.0]),
        num_parts=np.array([2, 1, 1, 1]),
        transfer_seconds=np.array([0.25, 0.125, 0.0625, 0.0]),
    )
    specs = replace(make_specs([0.0, 0.5, 1.0, 1.5], [4] * 4, 2), encoder_pool=pool, own_wait=np.zeros(4))
    deployment = deployed(Control())

    records = both(deployment, specs)

    assert records.admitted_time.tolist() == [2.25, 3.125, 2.5625, 1.5]
    assert simulate(deployment, specs).encoder_wait == pytest.approx([0.0, 1.5, 1.0, math.nan], nan_ok=True)


@pytest.mark.parametrize(
    ("rules", "launched", "stopped", "admitted"),
    [
        # At 4 s three images wait for the one worker: two more, ready at 5 s. At 8 s one waits: the newest two go.
        ({"target": 1.0}, [0, 4, 4], [math.inf, 8, 8], 7.5),
        # Busy all the time, it makes two; at 8 s both together are busy 1.5 of 2, which makes three; at 12 s one.
        ({"metric": "busy", "target": 0.5}, [0, 4, 8], [math.inf, math.inf, 12], 7.5),
        # A third of what waits is enough, and nobody is there before the request comes.
        ({"target": 3.0}, [0], [math.inf], 14.0),
        # The three of 4 s count for a minute: the newest two stay.
        ({"target": 1.0, "stabilization": "1 min"}, [0, 4, 4], [math.inf] * 3, 7.5),
        # Nobody is ready in time: at 8 s two wait, and the newest of those that start goes; at 12 s none: all.
        ({"target": 1.0, "startup": {"schedule": "1 min"}}, [0, 4, 4], [math.inf, 12, 8], 14.0),
    ],
)
def test_the_workers_of_an_encoder_pool_follow_their_load(
    rules: dict[str, Any], launched: list[float], stopped: list[float], admitted: float
) -> None:
    """Six images of 2 s at 0 s and one at 5.5 s, looked at every 4 s; what is given to a worker stays with it."""
    startup = {"schedule": "1 s", "image": "0 s", "engine": "0 s"}
    given = {"max_replicas": 3, "interval": "4 s", "stabilization": "0 s", **rules}
    spec = validate(EncoderAutoscalingSpec, {**given, "startup": {**startup, **given.get("startup", {})}})
    pool = EncoderPool(
        num_workers=1,
        seconds=np.full(7, 2.0),
        num_parts=np.ones(7, dtype=np.int64),
        transfer_seconds=np.zeros(7),
        max_workers=3,
    )
    specs = replace(make_specs([0.0] * 6 + [5.5], [4] * 7, 2), encoder_pool=pool, own_wait=np.zeros(7))
    deployment = deployed(Control(encoder_scaling=spec, encoder_startup_seconds=spec.startup.seconds(0.0)))

    records = both(deployment, specs)
    lives = simulate(deployment, specs).encoder_lives

    assert records.admitted_time.tolist() == [2.0, 4.0, 6.0, 8.0, 10.0, 12.0, admitted]
    assert lives is not None
    assert (lives.launched_at.tolist(), lives.stopped_at.tolist()) == (launched, stopped)


def test_a_worker_that_is_given_back_encodes_what_it_was_given() -> None:
    """At 4 s nobody waits: of three one stays, the idle one stops at once, and the one with least to do when done.

    The image of 5 s waits for the one that is left.
    """
    spec = validate(
        EncoderAutoscalingSpec, {"target": 1.0, "max_replicas": 3, "interval": "4 s", "stabilization": "0 s"}
    )
    pool = EncoderPool(
        num_workers=3,
        seconds=np.array([9.0, 6.0, 1.0]),
        num_parts=np.ones(3, dtype=np.int64),
        transfer_seconds=np.zeros(3),
        max_workers=3,
    )
    specs = replace(make_specs([0.0, 0.0, 5.0], [4] * 3, 2), encoder_pool=pool, own_wait=np.zeros(3))
    deployment = deployed(Control(encoder_scaling=spec))

    records = both(deployment, specs)
    lives = simulate(deployment, specs).encoder_lives

    assert records.admitted_time.tolist() == [9.0, 6.0, 10.0]
    assert lives is not None
    assert lives.stopped_at.tolist() == [math.inf, 6.0, 4.0]
    assert (lives.mean(0.0, 10.0), lives.most(10.0)) == (pytest.approx(2.0), 3)


def test_a_further_try_finds_its_images_encoded() -> None:
    """Refused at 3 s, when its images have been encoded, it is at the router as soon as it is sent again."""
    pool = EncoderPool(
        num_workers=1,
        seconds=np.array([0.0, 2.0]),
        num_parts=np.ones(2, dtype=np.int64),
        transfer_seconds=np.array([0.0, 1.0]),
    )
    retries = {"max": 1, "backoff": "8 s", "jitter": 0}
    specs = in_classes(make_specs([0.0, 0.0], [4, 4], [6, 2]), [0, 1], {}, {"retries": retries})
    specs = replace(specs, encoder_pool=pool, own_wait=np.zeros(2))
    control = Control(admission=validate(AdmissionSpec, {"max_queue": 0, "retry_after": "0 s"}))

    records = both(deployed(control, max_num_seqs=1), specs)

    assert records.admitted_time.tolist() == [0.0, 11.0]


def test_a_decode_replica_loads_the_adapter_of_a_cache_that_it_is_sent() -> None:
    """A step is a second there and here; loading takes half of one, and another adapter has no seat meanwhile."""
    own = {"max_loras": 1, "max_cpu_loras": 1, "lora_host_seconds": 0.5}
    config = make_config(max_num_seqs=4, num_blocks=64, max_model_len=64, **own)
    first = PoolSetup(name="p", engine=config, step_times=SECOND, priced=None, num_replicas=2, role="prefill")
    pools = (first, replace(first, name="d", num_replicas=1, role="decode"))
    control = Control(disaggregation=validate(DisaggregationSpec, {"transfer_latency": "0 s"}))
    specs = replace(make_specs([0.0, 0.0], [4, 4], [4, 2]), adapter=np.array([0, 1]))

    records = both(replace(deployed(control), engine=config, pools=pools), specs)

    assert records.first_token_time.tolist() == [1.5, 5.0]
    assert records.finish_time.tolist() == [5.0, 6.5]


@pytest.mark.parametrize("admission", [None, {"max_queue": 9}])
def test_a_scheduler_that_works_ahead_sees_requests_as_they_come(admission: dict[str, Any] | None) -> None:
    """Two clients think for 1.75 and 1.25 s, and their next requests, 3 and 4, come in one step of the third client's.

    One seat is free: number 4, which came before number 3, takes it.
    """
    specs = replace(make_closed_loop(3, [4] * 5, [1, 1, 40, 2, 2]), think_time=np.array([0.0, 0.0, 0.0, 1.75, 1.25]))

    control = Control(admission=None if admission is None else validate(AdmissionSpec, admission))

    records = both(deployed(control, async_scheduling=True, max_num_seqs=2), specs)

    assert records.admitted_time[4] < records.admitted_time[3]
    assert records.scheduled_time[4] < records.scheduled_time[3]


def test_who_comes_while_a_step_runs_misses_the_next_one_though_another_hangs_up() -> None:
    """Both seats are taken when it comes at 3.25; one is free at 4, when the step until 5 has been scheduled."""
    specs = in_classes(make_specs([0.0, 0.0, 3.25], 4, [20, 20, 2]), [0, 1, 0], {}, {"timeout": "3.5 s"})

    records = both(deployed(Control(), max_num_seqs=2, async_scheduling=True), specs)

    assert records.scheduled_time[2] == 5.0


def test_what_left_off_decoding_counts_as_it_left_though_it_is_tried_again() -> None:
    """At 6 one is gone that might have generated 14 tokens more, and queues for 20: 52 - 14 - 14 leaves room for 20."""
    retries = {"max": 1, "backoff": "0 s", "jitter": 0}
    specs = make_specs([0.0, 0.0, 5.25], 4, [20, 20, 16])
    specs = in_classes(specs, [0, 1, 0], {}, {"timeout": "5.5 s", "retries": retries})
    estimate = {"admission": "estimate", "new_token_ratio_initial": 1.0, "new_token_ratio_minimum": 1.0}

    records = both(deployed(Control(), num_blocks=16, max_model_len=32, **estimate), specs)

    assert records.scheduled_time[2] == 6.0


def test_an_unused_bucket_holds_its_burst_and_no_more() -> None:
    """After nine quiet seconds at 1 request/s two of three pass, as at the start."""
    control = Control(admission=validate(AdmissionSpec, {"token_bucket": {"rate": 1, "burst": 2}}))

    records = both(deployed(control), make_specs([0.0, 0.0, 0.0, 9.25, 9.25, 9.25], 4, 2))

    assert reasons(records) == ["", "", "rate_limit"] * 2


def test_who_is_refused_for_the_queue_takes_nothing_from_the_bucket() -> None:
    """Of two tokens one is left when the second request is refused, so that a third passes once the seat is free."""
    rules = {"token_bucket": {"rate": 0.001, "burst": 2}, "max_queue": 0}
    control = Control(admission=validate(AdmissionSpec, rules))

    records = both(deployed(control), make_specs([0.0, 0.5, 9.25, 19.25], 4, 2))

    assert reasons(records) == ["", "queue_full", "", "rate_limit"]


def test_as_many_wait_in_front_of_replicas_that_are_not_there_as_may() -> None:
    """The only replica is lost at 0.5 s; of three that come then, a queue of two lets two wait."""
    faults = make_faults({"kind": "replica", "at": "0.5 s", "duration": "9 s", "replica": 0})
    control = Control(admission=validate(AdmissionSpec, {"max_queue": 2}), faults=faults)

    records = both(deployed(control), make_specs([1.25, 1.5, 1.75], 4, 2))

    assert reasons(records) == ["", "", "queue_full"]


def test_after_a_pause_the_first_finish_counts_for_all_that_run_again() -> None:
    """One finish a second before the pause, and 4 s for the first of four behind it, which is one a second too."""
    control = Control(admission=validate(AdmissionSpec, {"deadline_aware": True}), limits=(Limits(ttft=4.5),))
    arrivals = [0.0, *[10.0] * 4, 10.25, *(14.125 + 0.125 * number for number in range(7))]

    records = both(deployed(control, max_num_seqs=4), make_specs(arrivals, 4, [1, 4, 20, 20, 20, 30] + [2] * 7))

    assert reasons(records)[6:].index("deadline") == 5


def test_a_tenth_of_the_mean_between_finishes_is_new() -> None:
    """Finishes after 5 s and 15 s more make a mean of 6 s: behind two that wait it is 12 s, behind three 18."""
    control = Control(admission=validate(AdmissionSpec, {"deadline_aware": True}), limits=(Limits(ttft=13.0),))
    specs = make_specs([0.0, 0.25, 0.5, 20.5, 20.75, 21.0, 21.25], 4, [5, 15, 40, 2, 2, 2, 2])

    records = both(deployed(control, max_num_seqs=1, max_model_len=64), specs)

    assert reasons(records) == [""] * 6 + ["deadline"]


def test_who_would_wait_too_long_for_its_turn_is_refused() -> None:
    """Turns of the class come every 3.775 s on average: behind two that wait it is 7.55 s, behind three 11.3."""
    control = Control(
        admission=validate(AdmissionSpec, {"deadline_aware": True}),
        fairness=validate(FairnessSpec, {"shares": {"c0": 1.0, "c1": 1.0}, "max_outstanding": 1}),
        limits=(Limits(ttft=10.0), Limits(ttft=10.0)),
    )
    specs = in_classes(make_specs([0.0, 0.25, 0.5, 8.25, 8.5, 8.75, 9.0], 4, 4), [0] * 7, {}, {})

    records = both(deployed(control, max_num_seqs=1), specs)

    assert reasons(records) == [""] * 6 + ["deadline"]


def test_more_tokens_than_a_minute_allows_pass_a_limit_that_nobody_has_used() -> None:
    """A request of 14 tokens passes a limit of 12 a minute when that is full; the next waits until it is so again."""
    api = {"api": "gpt-5-mini", "always": ["c0"], "tokens_per_minute": 12, "when_limited": "wait"}
    api |= {"ttft": "0.5 s", "ttft_cv": 0, "tokens_per_second": 4}
    control = Control(overflow=validate(OverflowSpec, api))
    specs = in_classes(make_specs([0.0, 1.0], 12, 2), [0, 0], {})

    records = both(deployed(control), specs)

    assert records.first_token_time.tolist() == pytest.approx([0.5, 70.5])


@pytest.mark.parametrize(("is_honored", "again_at"), [(True, 5.5), (False, 1.5)])
def test_a_client_waits_as_long_as_a_refusal_says_if_it_honors_that(is_honored: bool, again_at: float) -> None:
    """Refused at 0.5 s with Retry-After 5 s, where its own pause is 1 s; refused again, it gives up."""
    retries = {"max": 1, "backoff": "1 s", "jitter": 0, "honor_retry_after": is_honored}
    control = Control(admission=validate(AdmissionSpec, {"max_queue": 0, "retry_after": "5 s"}))
    specs = in_classes(make_specs([0.0, 0.5], 4, [30, 2]), [0, 1], {}, {"retries": retries})

    records = both(deployed(control), specs)

    assert records.finish_time[1] == again_at


def test_a_further_try_comes_when_the_server_has_let_go() -> None:
    """Given up at 2.5 s in a step that ends at 3 s, and sent again at once."""
    own = {"timeout": "2.5 s", "retries": {"max": 1, "backoff": "0 s", "jitter": 0}}

    records = both(deployed(Control()), in_classes(make_specs([0.0], 4, 30), [0], own))

    assert records.admitted_time[0] == 3.0


def test_a_pause_ends_with_the_limit_of_the_task() -> None:
    """Hung up at 3 s, the call would be sent again at 7 s; its client gives the task up at 5 s."""
    retries = {"max": 2, "backoff": "4 s", "jitter": 0}
    specs = tasks([[((), 20, 0.0)]], [0.0], prompt=4).within(5.0)
    specs = in_classes(specs, [0], {"timeout": "3 s", "retries": retries})

    records = both(deployed(Control()), specs)

    assert (reasons(records), records.finish_time.tolist()) == (["task_cancelled"], [5.0])


def test_of_two_drawn_that_are_as_busy_the_lower_is_chosen() -> None:
    """Both replicas are idle whenever a request comes."""
    control = Control(routing=validate(RoutingSpec, {"policy": "power_of_two"}))

    records = both(deployed(control, num_replicas=2), make_specs([0.0, 5.25, 10.25, 15.25], 4, 2))

    assert records.replica_id.tolist() == [0, 0, 0, 0]


def test_turns_begin_anew_where_there_are_fewer_replicas_than_the_next_one() -> None:
    """After a request for each of three the last one is lost: the next goes to the first."""
    faults = make_faults({"kind": "replica", "at": "5 s", "duration": "60 s", "replica": 2})
    control = Control(routing=validate(RoutingSpec, {"policy": "round_robin"}), faults=faults)

    records = both(deployed(control, num_replicas=3), make_specs([0.0, 0.25, 0.5, 10.25, 10.5], 4, 2))

    assert records.replica_id.tolist() == [0, 1, 2, 0, 1]


def test_as_much_free_memory_as_is_asked_for_is_enough() -> None:
    """A prompt fills half of the KV memory, and half must be free; behind a longer one the next is refused."""
    control = Control(admission=validate(AdmissionSpec, {"kv_headroom": 0.5}))
    half, more = (
        both(deployed(control, num_blocks=8, max_model_len=32), make_specs([0.0, 0.25], [prompt, 4], 1))
        for prompt in (16, 20)
    )

    assert reasons(half) == ["", ""]
    assert reasons(more) == ["", "kv_headroom"]


def test_a_quiet_time_is_no_wait_for_turns() -> None:
    """Turns came every 3.75 s, and do so again after a minute and a half: behind two that wait it is 7.5 s, not 27."""
    control = Control(
        admission=validate(AdmissionSpec, {"deadline_aware": True}),
        fairness=validate(FairnessSpec, {"shares": {"c0": 1.0, "c1": 1.0}, "max_outstanding": 1}),
        limits=(Limits(ttft=10.0), Limits(ttft=10.0)),
    )
    arrivals = [0.0, 0.25, 100.0, 100.25, 104.25, 104.5, 104.75, 105.0]

    records = both(
        deployed(control, max_num_seqs=1), in_classes(make_specs(arrivals, 4, 4), [0] * len(arrivals), {}, {})
    )

    assert reasons(records) == [""] * 7 + ["deadline"]


def test_who_comes_to_empty_queues_starts_level_with_who_left_last() -> None:
    """a has had four turns when b comes for the first time: from then on they take turns."""
    control = Control(fairness=validate(FairnessSpec, {"shares": {"c0": 1.0, "c1": 1.0}, "max_outstanding": 1}))
    kinds = [0] * 4 + [1] * 4 + [0] * 4
    specs = in_classes(make_specs([0.0] * 4 + [13.0] * 4 + [13.125] * 4, 4, 4), kinds, {}, {})

    records = both(deployed(control, max_num_seqs=1), specs)

    order = [kinds[index] for index in np.argsort(records.scheduled_time, kind="stable")]
    assert sum(order[4:8]) in (2, 3)


def test_a_class_with_three_times_the_share_has_three_turns_to_one() -> None:
    """Both have more waiting than is served; of the first eight of equal length six are of the larger share."""
    control = Control(fairness=validate(FairnessSpec, {"shares": {"c0": 3.0, "c1": 1.0}, "max_outstanding": 1}))
    kinds = [0, 1] * 12
    specs = in_classes(make_specs([0.0] * 24, 4, 4), kinds, {}, {})

    records = both(deployed(control, max_num_seqs=1), specs)

    first = np.argsort(records.scheduled_time, kind="stable")[:8]
    assert [kinds[index] for index in first].count(0) == 6


def test_a_generated_token_counts_as_two_of_a_prompt() -> None:
    """12 + 2 x 4 tokens a request against 4 + 2 x 12: seven turns to five."""
    control = Control(fairness=validate(FairnessSpec, {"shares": {"c0": 1.0, "c1": 1.0}, "max_outstanding": 1}))
    kinds = [0, 1] * 12
    specs = in_classes(make_specs([0.0] * 24, [12, 4] * 12, [4, 12] * 12), kinds, {}, {})

    records = both(deployed(control, max_num_seqs=1), specs)

    first = np.argsort(records.scheduled_time, kind="stable")[:12]
    assert [kinds[index] for index in first].count(0) == 7


def test_who_comes_starts_level_with_the_least_of_those_that_wait() -> None:
    """At 45 s the first class has had 16 tokens and the second 84: a third that comes then has the next turn, at 48."""
    shares = {"c0": 1.0, "c1": 1.0, "c2": 1.0}
    control = Control(fairness=validate(FairnessSpec, {"shares": shares, "max_outstanding": 1}))
    kinds = [0] * 10 + [1] * 2 + [2]
    specs = in_classes(make_specs([0.0] * 12 + [45.5], 4, [4] * 10 + [40] * 2 + [4]), kinds, {}, {}, {})

    records = both(deployed(control, max_num_seqs=1), specs)

    assert records.scheduled_time[12] == 48.0


def test_of_classes_that_have_had_as_much_the_first_one_goes() -> None:
    """While the first class runs, the third comes and then the second; neither has had anything."""
    shares = {"c0": 1.0, "c1": 1.0, "c2": 1.0}
    control = Control(fairness=validate(FairnessSpec, {"shares": shares, "max_outstanding": 1}))
    specs = in_classes(make_specs([0.0, 0.125, 0.25], 4, 4), [0, 2, 1], {}, {}, {})

    records = both(deployed(control, max_num_seqs=1), specs)

    assert records.scheduled_time.tolist() == [0.0, 8.0, 4.0]


@pytest.mark.parametrize(("is_overlapped", "scheduled"), [(True, 3.0), (False, 2.25)])
def test_who_is_done_decodes_once_more_where_results_are_known_late(is_overlapped: bool, scheduled: float) -> None:
    """The first is done at 2 s, which its server does not know yet: the second waits for a step of nobody else."""
    engine = {"scheduler": "prefill_first", "admission": "estimate", "async_scheduling": True}

    records = both(deployed(Control(), overlaps_results=is_overlapped, **engine), make_specs([0.0, 2.25], 4, 2))

    assert records.finish_time[0] == pytest.approx(2.0, abs=1e-6)
    assert records.scheduled_time[1] == pytest.approx(scheduled, abs=1e-6)


ESTIMATE: dict[str, Any] = {"scheduler": "prefill_first", "admission": "estimate", "new_token_ratio_minimum": 0.0}
"""SGLang's way to admit."""


@pytest.mark.parametrize(("max_tokens", "scheduled"), [(2, 2.25), (9, 3.0)])
def test_nobody_decodes_beyond_what_it_asked_for(max_tokens: int, scheduled: float) -> None:
    """SGLang 0.5.22: the first is done at 2 s. Had it asked for more, its server would not know that yet."""
    engine = {**ESTIMATE, "async_scheduling": True, "overlaps_results": True, "skips_ended": True}
    specs = replace(make_specs([0.0, 2.25], 4, 2), max_tokens=np.array([max_tokens, 2]))

    records = both(deployed(Control(), **engine), specs)

    assert records.finish_time[0] == pytest.approx(2.0, abs=1e-6)
    assert records.scheduled_time[1] == pytest.approx(scheduled, abs=1e-6)


@pytest.mark.parametrize(("strikes_at_once", "scheduled"), [(True, 3.0), (False, 4.0)])
def test_who_is_done_leaves_its_batch_at_once_or_with_the_next_decode_step(
    strikes_at_once: bool, scheduled: float
) -> None:
    """Two seats; the first is done at 3 s, and its seat is free for the third then, or once the second has decoded."""
    specs = make_specs([0.0, 0.0, 0.5], 4, [3, 9, 2])

    records = both(deployed(Control(), max_num_seqs=2, strikes_at_once=strikes_at_once, **ESTIMATE), specs)

    assert records.finish_time[0] == 3.0
    assert records.scheduled_time[2] == scheduled


@pytest.mark.parametrize(("skips_ended", "scheduled"), [(True, 4.0), (False, 5.0)])
def test_who_is_not_decoded_beyond_its_end_has_left_as_the_others_decode(skips_ended: bool, scheduled: float) -> None:
    """Two seats, results a step late (SGLang 0.5.22): the first is done at 3 s, and the third begins a step later."""
    engine = {**ESTIMATE, "async_scheduling": True, "overlaps_results": True, "max_num_seqs": 2}

    records = both(deployed(Control(), skips_ended=skips_ended, **engine), make_specs([0.0, 0.0, 0.5], 4, [3, 9, 2]))

    assert records.finish_time[0] == pytest.approx(3.0, abs=1e-6)
    assert records.scheduled_time[2] == pytest.approx(scheduled, abs=1e-6)


@pytest.mark.parametrize("keeps_ratio", [True, False])
def test_an_empty_batch_begins_the_estimate_anew_or_not(keeps_ratio: bool) -> None:
    """SGLang 0.5.11 keeps what four decode steps have left of the ratio: two wait, and both find room at once."""
    engine = {**ESTIMATE, "block_size": 1, "num_blocks": 40, "keeps_ratio": keeps_ratio}
    engine |= {"new_token_ratio_initial": 1.0, "new_token_ratio_decay": 0.15, "new_token_ratio_minimum": 0.0}
    specs = replace(make_specs([0.0, 0.5, 0.5], 4, [5, 9, 3]), max_tokens=np.array([30, 20, 20]))

    records = both(deployed(Control(), **engine), specs)

    waited = records.scheduled_time[2] - records.scheduled_time[1]
    assert (waited < 3) == keeps_ratio


@pytest.mark.parametrize(("skips_ended", "num_preemptions"), [(True, 0), (False, 1)])
def test_a_step_waits_for_the_blocks_of_those_that_are_done(skips_ended: bool, num_preemptions: int) -> None:
    """Five blocks for answers that need six: the first is done as the second lacks one, soon to be had."""
    engine = {**ESTIMATE, "async_scheduling": True, "overlaps_results": True, "num_blocks": 5, "block_size": 4}
    engine["new_token_ratio_initial"] = 0.0
    specs = make_specs([0.0, 0.25], [4, 4], [6, 7])

    records = both(deployed(Control(), skips_ended=skips_ended, **engine), specs)

    assert int(records.num_preemptions.sum()) == num_preemptions


@pytest.mark.parametrize(("rule", "scheduled"), [({}, 1.0), ({"expects_max_tokens": True}, 8.0)])
def test_who_ignores_the_end_is_expected_to_take_all_that_it_asked_for(rule: dict[str, bool], scheduled: float) -> None:
    """Of four blocks the first holds one and will take three: with a ratio of 0 the second finds room beside it."""
    engine = {**ESTIMATE, "new_token_ratio_initial": 0.0, "num_blocks": 4, "block_size": 4, "strikes_at_once": True}

    records = both(deployed(Control(), **engine, **rule), make_specs([0.0, 0.5], [4, 4], [8, 2]))

    assert records.scheduled_time[1] == scheduled


@pytest.mark.parametrize(("reserves_page", "scheduled"), [(True, 3.0), (False, 1.0)])
def test_admission_may_ask_for_a_block_beyond_the_tokens_of_a_request(reserves_page: bool, scheduled: float) -> None:
    """Of four blocks three are free: enough for seven tokens and a little, not for a block more."""
    engine = {**ESTIMATE, "new_token_ratio_initial": 0.0, "num_blocks": 4, "block_size": 4, "strikes_at_once": True}

    records = both(deployed(Control(), reserves_page=reserves_page, **engine), make_specs([0.0, 0.5], [2, 7], [3, 2]))

    assert records.scheduled_time[1] == scheduled
