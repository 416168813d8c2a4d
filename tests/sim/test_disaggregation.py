"""Prefill replicas that hand over to decode replicas: links, waits, back-pressure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.engine.config import EngineConfig
from simserve.sim.control import Control, DisaggregationSpec, RegionsSpec, Role, RoutingSpec, StreamingSpec
from simserve.sim.fleet_run import FleetRun
from simserve.sim.pools import PoolSetup
from simserve.sim.records import COMPLETED, TIMED_OUT, UNFINISHED
from simserve.sim.simulate import Simulation, simulate
from simserve.validation import validate
from simserve.workload.class_spec import ClassSpec
from simserve.workload.requests import RequestSpecs
from tests.builders import affine_step_times, constant_step_times, make_config, make_faults, make_specs
from tests.fuzzing import examples
from tests.theory.builders import make_deployment

BYTES_PER_TOKEN = 1e9


def handed_over(
    specs: RequestSpecs,
    *,
    prefill: int = 1,
    decode: int = 1,
    decode_config: EngineConfig | None = None,
    config: EngineConfig | None = None,
    times: Any = None,
    **link: Any,
) -> FleetRun:
    """Return a finished run; a step takes a second, and a token 1 GB over a link of 10 GB/s."""
    spec = {"transfer_bandwidth": "10 GB/s", "transfer_latency": "0 s", **link}
    control = Control(disaggregation=validate(DisaggregationSpec, spec), kv_bytes_per_token=BYTES_PER_TOKEN)
    times = times or constant_step_times(1.0)
    first = PoolSetup(
        name="p", engine=config or make_config(), step_times=times, priced=None, num_replicas=prefill, role="prefill"
    )
    second = replace(first, name="d", engine=decode_config or first.engine, num_replicas=decode, role="decode")
    run = FleetRun(control, [first, second], specs, np.zeros(len(specs)), None)
    run.run()
    return run


def in_company(specs: RequestSpecs, pools: Sequence[tuple[str, Role, dict[str, Any]]], **control: Any) -> Simulation:
    """Return a run of pools of one replica each, beside each other; a step takes a second, a token 0.1 s of a link."""
    times = constant_step_times(1.0)
    base = make_deployment(make_config(), times, 1)
    setups = tuple(
        PoolSetup(
            **{"name": name, "role": role, "engine": base.engine, "priced": base.priced, "num_replicas": 1, **rest},
            step_times=times,
        )
        for name, role, rest in pools
    )
    link = validate(DisaggregationSpec, {"transfer_bandwidth": "10 GB/s", "transfer_latency": "0 s"})
    decides = Control(**{"disaggregation": link, "kv_bytes_per_token": BYTES_PER_TOKEN, **control})
    return simulate(replace(base, pools=setups, control=decides), specs)


def rules(*each: dict[str, Any]) -> RoutingSpec:
    """Return a router with rules."""
    return validate(RoutingSpec, {"rules": list(each)})


def test_short_prompts_may_stay_with_replicas_that_do_both() -> None:
    """Conditional disaggregation: five tokens are answered where they arrive, twenty cross a link."""
    pools = [("p", "prefill", {}), ("d", "decode", {}), ("both", "both", {})]
    routing = rules({"pool": "both", "max_prompt_tokens": 10}, {"pool": "p"})
    records = in_company(make_specs([0.0, 0.0], [5, 20], 3), pools, routing=routing).records

    assert records.replica_id.tolist() == [2, 1]
    assert records.finish_time.tolist() == [3.0, 5.0]
    assert records.transfer_end_time is not None
    assert np.isnan(records.transfer_end_time).tolist() == [True, False]
    assert records.prefill_replica_id is not None
    assert records.prefill_replica_id.tolist() == [-1, 0]


def test_a_wrong_guess_may_cost_a_way_over_the_link() -> None:
    """Answered at 3 s by the small pool, then by the large model apart: 1 s of prefill, 1 s of link, two steps."""
    pools = [("p", "prefill", {}), ("d", "decode", {}), ("small", "both", {})]
    routing = rules({"pool": "small", "misclassified": 1.0, "retry_pool": "p"})
    run = in_company(make_specs([0.0], 10, 3), pools, routing=routing)

    assert run.records.status.tolist() == [COMPLETED]
    assert run.records.first_token_time.tolist() == [5.0]
    assert run.records.finish_time.tolist() == [7.0]
    assert run.records.output_tokens.tolist() == [3]
    assert run.front is not None
    assert (run.front.asked_again, run.front.discarded_tokens) == (1, 3)


def test_a_wrong_guess_of_a_split_pool_is_asked_again_of_one_that_does_both() -> None:
    """5 s over the link, then three steps; of the link nothing stays in the records."""
    pools = [("p", "prefill", {}), ("d", "decode", {}), ("large", "both", {})]
    routing = rules({"pool": "p", "misclassified": 1.0, "retry_pool": "large"})
    run = in_company(make_specs([0.0], 20, 3), pools, routing=routing)

    assert run.records.finish_time.tolist() == [5.0 + 3.0]
    assert run.records.replica_id.tolist() == [2]
    assert run.records.transfer_end_time is not None
    assert np.isnan(run.records.transfer_end_time).all()
    assert run.transfers["count"] == 1.0


def test_caches_are_read_by_their_own_model_and_stay_in_their_region() -> None:
    """Two models, and two regions: each request decodes where its cache can be read, whoever has less to do there."""
    for key, values in (("kv_layout", ("a", "b")), ("region", ("eu", "us"))):
        first, second = ({key: value} for value in values)
        pools = [("p", "prefill", first), ("d", "decode", first), ("q", "prefill", second), ("e", "decode", second)]
        routing = rules({"pool": "q", "max_prompt_tokens": 10}, {"pool": "p"})
        regions = None
        if key == "region":
            asked = {"clients": {"us": 1.0}, "latency": {"us": {"eu": "0 s"}}, "within": "0 s"}
            regions = validate(RegionsSpec, asked)
        records = in_company(make_specs([0.0] * 3, [5, 5, 20], 3), pools, routing=routing, regions=regions).records

        assert records.prefill_replica_id is not None
        assert records.prefill_replica_id.tolist() == [2, 2, 0]
        assert records.replica_id.tolist() == [3, 3, 1]


def test_a_cache_waits_for_a_decode_replica_of_its_own() -> None:
    """The only replica that reads it is lost until 10 s: it waits, beside an idle one of another model."""
    pools = [("p", "prefill", {"kv_layout": "a"}), ("d", "decode", {"kv_layout": "a"})]
    pools += [("q", "prefill", {"kv_layout": "b"}), ("e", "decode", {"kv_layout": "b"})]
    fault = {"kind": "replica", "pool": "d", "at": "0.5 s", "duration": "9.5 s"}
    run = in_company(make_specs([0.0], 20, 3), pools, routing=rules({"pool": "p"}), faults=make_faults(fault))

    assert run.records.replica_id.tolist() == [1]
    assert run.records.first_token_time.tolist() == [10.0]


def test_every_pool_says_how_much_a_token_weighs() -> None:
    """A cache of half the bytes crosses in half the time."""
    pools = [("p", "prefill", {"kv_bytes_per_token": BYTES_PER_TOKEN / 2}), ("d", "decode", {})]
    records = in_company(make_specs([0.0], 20, 3), pools).records

    assert records.finish_time.tolist() == [1.0 + 1.0 + 2.0]


def test_the_order_of_pools_does_not_decide_on_lengths() -> None:
    """The decode pool named first is not the one that a class goes to: its limit counts where it decodes."""
    short, long = (make_config(max_model_len=length, num_blocks=64) for length in (48, 96))
    pools = [("d", "decode", {"engine": short}), ("p", "prefill", {"engine": long}), ("both", "both", {"engine": long})]
    routing = rules({"pool": "both", "max_prompt_tokens": 30}, {"pool": "p"})
    records = in_company(make_specs([0.0, 0.0], [30, 40], 50), pools, routing=routing).records

    assert records.output_tokens.tolist() == [50, 8]


def column(run: FleetRun, name: str) -> list[float]:
    """Return a column of the requests."""
    return list(getattr(run.requests, name))


def test_a_request_prefills_crosses_the_link_and_decodes() -> None:
    """One step of prefill, 20 tokens in 2 s, then four steps for the other four tokens."""
    run = handed_over(make_specs([0.0], 20, 5))

    assert column(run, "scheduled_time") == [0.0]
    assert column(run, "first_token_time") == [3.0]
    assert column(run, "finish_time") == [7.0]
    assert column(run, "replica_id") == [1]
    assert column(run, "generated_tokens") == [5]
    assert run.transfers == {"count": 1.0, "link_seconds": 2.0, "waited_seconds": 0.0, "stalled_seconds": 0.0}


def test_a_link_sends_one_cache_after_the_other() -> None:
    """Two prompts of ten tokens end in the same step: the second waits a second for the link."""
    run = handed_over(make_specs([0.0, 0.0], 10, 3), transfer_latency="0.25 s")

    assert column(run, "first_token_time") == [2.25, 3.25]
    assert run.transfers["waited_seconds"] == 1.0


def test_every_prefill_replica_has_its_own_link() -> None:
    """On two of them neither waits."""
    run = handed_over(make_specs([0.0, 0.0], 10, 3), prefill=2)

    assert column(run, "first_token_time") == [2.0, 2.0]


def test_one_token_needs_no_decode_replica() -> None:
    """It is answered where it was computed."""
    run = handed_over(make_specs([0.0, 0.0], 10, [1, 2]))

    assert column(run, "finish_time")[0] == 1.0
    assert run.transfers["count"] == 1.0


def test_one_token_crosses_where_decode_replicas_compute_it_again() -> None:
    """vLLM's, which compute the last token of a prompt: the answer comes a step after its cache; two steps for two."""
    again = make_config(recomputes_last_token=True)
    run = handed_over(make_specs([0.0, 0.0], 10, [1, 2]), decode_config=again)

    assert run.transfers["count"] == 2.0
    assert column(run, "finish_time") == [3.0, 5.0]


def test_decodes_are_never_held_up_by_prompts() -> None:
    """While one request decodes, long prompts come and go on the other replica: its gaps are those of decode steps."""
    times = affine_step_times(step_seconds=0.1, token_seconds=0.1)
    run = handed_over(make_specs([0.0, 1.0, 2.0, 3.0], [4, 30, 30, 30], [40, 2, 2, 2]), times=times)

    assert run.requests.itl_max[0] == pytest.approx(0.1)


def test_a_cache_waits_for_a_seat() -> None:
    """One seat: the second is taken in when the first is done; its first token comes with it."""
    run = handed_over(make_specs([0.0, 0.0], 10, [6, 3]), decode_config=make_config(max_num_seqs=1))

    assert column(run, "finish_time")[0] == 7.0
    assert column(run, "first_token_time")[1] == 7.0


def test_too_many_on_their_way_stop_the_prefill() -> None:
    """With one in transfer at most, the second prompt starts when the first has been taken in."""
    specs = make_specs([0.0, 0.0], 20, 3)
    config = make_config(max_num_batched_tokens=20)
    free, held = (handed_over(specs, config=config, max_in_transfer=most) for most in (64, 1))

    assert column(free, "scheduled_time") == [0.0, 1.0]
    assert column(held, "scheduled_time") == [0.0, 3.0]
    assert held.transfers["stalled_seconds"] == 2.0


def test_a_client_may_hang_up_while_its_cache_is_on_its_way() -> None:
    """Given up at 2: the cache is dropped when it lands, and whoever it held up goes on."""
    own = (ClassSpec(name="all", share=1.0, timeout="2 s"),)
    specs = replace(make_specs([0.0], 30, 3), classes=own, request_class=np.zeros(1, dtype=np.int16))
    run = handed_over(specs, max_in_transfer=1)

    assert column(run, "status") == [TIMED_OUT]
    assert column(run, "finish_time") == [2.0]
    assert not any(run.cluster.plane.loads)


@given(st.data())
@settings(max_examples=examples(80), deadline=None, derandomize=True)
def test_everything_is_accounted_for_between_the_pools(data: st.DataObject) -> None:
    """Any traffic, links and room: every request ends, blocks return on both sides, times are in order."""
    count = data.draw(st.integers(1, 40))
    gaps = data.draw(st.lists(st.sampled_from([0.0, 0.1, 0.9, 4.3]), min_size=count, max_size=count))
    prompts = data.draw(st.lists(st.integers(1, 45), min_size=count, max_size=count))
    outputs = data.draw(st.lists(st.integers(1, 18), min_size=count, max_size=count))
    specs = make_specs(np.cumsum(gaps).tolist(), prompts, outputs)
    timeout = data.draw(st.sampled_from([None, "2 s", "15 s"]))
    own = (ClassSpec(name="all", share=1.0, timeout=timeout, retries=data.draw(st.sampled_from([None, 2]))),)
    specs = replace(specs, classes=own, request_class=np.zeros(count, dtype=np.int16))
    admission = data.draw(st.sampled_from(["on_demand", "reserve", "estimate"]))
    scheduler = data.draw(st.sampled_from(["mixed", "prefill_first"]))
    run = handed_over(
        specs,
        prefill=data.draw(st.integers(1, 3)),
        decode=data.draw(st.integers(1, 2)),
        config=make_config(async_scheduling=data.draw(st.booleans()), scheduler=scheduler),
        decode_config=make_config(num_blocks=data.draw(st.integers(16, 24)), admission=admission, scheduler=scheduler),
        times=affine_step_times(step_seconds=0.2, token_seconds=0.01),
        max_in_transfer=data.draw(st.sampled_from([1, 2, 64])),
        transfer_bandwidth=data.draw(st.sampled_from(["5 GB/s", "100 GB/s"])),
    )

    requests = run.requests
    assert UNFINISHED not in requests.status
    assert not any(run.cluster.plane.loads)
    for replica in run.cluster.replicas:
        for rank in replica.ranks:
            assert rank.free_blocks == rank.num_blocks
            assert (rank.num_running, rank.num_outstanding) == (0, 0)
    done = np.array(requests.status) == COMPLETED
    assert (np.array(requests.generated_tokens)[done] == specs.output_tokens[done]).all()
    assert (np.array(requests.max_tokens) == specs.max_tokens).all()
    for before, after in (("ready_time", "scheduled_time"), ("first_token_time", "finish_time")):
        assert (np.array(getattr(requests, before))[done] <= np.array(getattr(requests, after))[done]).all()


def computed_again(specs: RequestSpecs, *, decode_config: EngineConfig | None = None, **rest: Any) -> FleetRun:
    """Return a run whose decode replica computes the last token of each prompt again, as vLLM's does from 0.9 on."""
    config = decode_config or make_config()
    return handed_over(specs, decode_config=replace(config, recomputes_last_token=True), **rest)


def test_a_decode_replica_that_computes_the_last_token_again_answers_a_step_later() -> None:
    """Idle: TTFT is the prefill, the link and one decode step on the prompt; three tokens take three steps."""
    context_seconds = 0.01
    times = affine_step_times(step_seconds=1.0, token_seconds=0.0, decode_context_seconds=context_seconds)
    run = computed_again(make_specs([0.0], 20, 3), times=times, transfer_latency="0.5 s")
    requests = run.requests

    landed = 1.0 + 2.0 + 0.5
    steps = [1.0 + context_seconds * context for context in (19, 20, 21)]
    assert requests.first_token_time[0] == pytest.approx(landed + steps[0], rel=1e-12)
    assert requests.finish_time[0] == pytest.approx(landed + sum(steps), rel=1e-12)
    assert requests.itl_max[0] == pytest.approx(steps[2], rel=1e-12)
    assert requests.generated_tokens[0] == 3


def test_a_single_token_is_computed_by_the_decode_replica_too() -> None:
    """The prefill server's one token is dropped, however short the answer; where it comes along it is the answer."""
    specs = make_specs([0.0], 20, 1)

    assert list(handed_over(specs).requests.finish_time) == [1.0]
    assert list(computed_again(specs).requests.finish_time) == [1.0 + 2.0 + 1.0]
    assert list(computed_again(specs).requests.first_token_time) == [4.0]


def test_a_first_token_is_no_gap() -> None:
    """Beside one that decodes, the step that brings a first token is a gap of the other alone."""
    times = affine_step_times(step_seconds=1.0, token_seconds=0.0, decode_context_seconds=0.0)
    run = computed_again(make_specs([0.0, 1.0], [10, 10], [6, 2]), times=times)
    requests = run.requests

    # Caches land at 2 and 3 s; the steps of the decode replica end at whole seconds.
    assert list(requests.first_token_time) == [3.0, 4.0]
    assert list(requests.finish_time) == [8.0, 5.0]
    assert list(requests.itl_max) == [1.0, 1.0]


def test_who_is_preempted_before_its_first_token_is_computed_again_in_full() -> None:
    """A decode replica short of blocks: everybody gets every token, and nobody a gap before the first."""
    config = make_config(max_num_seqs=4, num_blocks=14, block_size=4, max_model_len=60)
    specs = make_specs(
        [0.1 * each for each in range(8)], [11, 12, 13, 9, 8, 12, 10, 11], [18, 16, 20, 1, 2, 22, 17, 16]
    )
    requests = computed_again(specs, decode_config=config).requests

    assert list(requests.status) == [COMPLETED] * 8
    assert list(requests.generated_tokens) == specs.output_tokens.tolist()
    assert sum(requests.num_preemptions) > 0
    for index in range(8):
        answering = requests.finish_time[index] - requests.first_token_time[index]
        assert answering >= specs.output_tokens[index] - 1 - 1e-9
        assert (requests.itl_max[index] >= 1.0 - 1e-9) == (specs.output_tokens[index] > 1)


def test_drafts_beside_a_first_token_that_is_computed_again_are_sent_with_it() -> None:
    """At 30 sixteenths of a token a step, 22 tokens come in 12 steps; each is one event, and the first one as well."""
    engine = make_config(num_speculative_tokens=2, recomputes_last_token=True)
    specs = replace(make_specs([0.0], 10, 22), pace=np.array([30]))
    stream = validate(StreamingSpec, {"cost_per_event": "0 s"})

    run = in_company(specs, [("p", "prefill", {}), ("d", "decode", {"engine": engine})], streaming=stream)

    assert run.stream is not None
    assert run.stream.num_events == run.records.finish_time[0] - run.records.first_token_time[0] + 1 == 12
