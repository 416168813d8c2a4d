"""Random clusters on the plane and on the reference: every request fares the same.

Where the two are known to differ, the case is drawn without it, and the reason stands beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from simserve.engine.config import EngineConfig
from simserve.scenario.reference_run import by_reference, uncovered
from simserve.scenario.verify import compared
from simserve.sim.control import Control, DisaggregationSpec, EncoderAutoscalingSpec, RoutingSpec
from simserve.sim.pools import PoolSetup
from simserve.sim.simulate import Deployment, simulate
from simserve.validation import validate
from simserve.workload.class_spec import ClassSpec
from simserve.workload.requests import EncoderPool, RequestSpecs
from tests.builders import affine_step_times, make_config, make_specs
from tests.engine.strategies import earlier_images, stores, tiered_cases
from tests.fuzzing import examples
from tests.properties import test_conservation, test_fleet_conservation
from tests.sim.test_fleet_run import KINDS, deployments
from tests.sim.test_tasks import random_task, tasks
from tests.theory.builders import make_deployment

CHECKS = list(HealthCheck)
TIMES = affine_step_times(step_seconds=0.2017, token_seconds=0.010043, decode_context_seconds=0.0010071)
FRONTEND = {"frontend_latency": 0.0517, "tokenization_per_token": 0.030071}
"""Numbers of which no small sums are equal: at one instant, the plane's order of rounding would decide."""


def assert_alike(deployment: Deployment, specs: RequestSpecs) -> None:
    """Assert that every request fares the same on the plane and on the reference."""
    assert uncovered(deployment) is None
    reference, plane = by_reference(deployment, specs), simulate(deployment, specs).records
    everywhere = set()
    if len(deployment.pools) > 1:
        # The plane keeps the most that any attempt found, where attempts go to several pools.
        everywhere.add("cached_tokens")
    control = deployment.control
    if control is not None and any(fault.kind == "black_hole" for fault in control.faults):
        # The plane leaves the time that a replica hangs out of the gap around it.
        everywhere.add("itl_max")
    found = compared(reference, plane).differing
    left = {index: set(names) - everywhere for index, names in found.items()}
    assert {index: names for index, names in left.items() if names} == {}


def comparable(control: Control) -> Control:
    """Return what decides without what the reference does not cover, and without gauges of KV memory.

    Inside a leap the plane reads KV use off by interpolation, the reference off the blocks that are taken.
    """
    admission = control.admission
    if admission is not None:
        admission = admission.model_copy(update={"kv_headroom": None, "probabilistic_from": None})
    scaling = control.autoscaling
    if scaling is not None and scaling.metric == "kv_usage":
        scaling = scaling.model_copy(update={"metric": "running"})
    return replace(control, admission=admission, autoscaling=scaling)


def own_times(specs: RequestSpecs) -> RequestSpecs:
    """Return the requests, no two of which arrive, or are thought about, at times that small sums make equal.

    A part of the tokens of each is hidden thinking; some have an image to encode.
    """
    generator = np.random.default_rng(len(specs))
    apart = generator.random(len(specs)) * 1e-3
    encoding = np.where(generator.random(len(specs)) < 0.3, 0.0713, 0.0)
    specs = replace(
        specs,
        thinking_tokens=generator.integers(0, specs.output_tokens + 1),
        encoder_seconds=encoding,
        earlier_images=earlier_images(specs.prompt_tokens),
    )
    if specs.concurrency is None and specs.turn is None:
        specs = replace(specs, arrival_time=np.sort(specs.arrival_time + apart))
    elif specs.concurrency is not None and not specs.ramp_up:
        # Alike on two replicas from the first instant on, steps would end together but for rounding.
        specs = replace(specs, ramp_up=0.0173 * specs.concurrency)
    return replace(specs, think_time=specs.think_time + apart if len(specs.think_time) else specs.think_time)


Drawing = Callable[[st.DataObject], tuple[Deployment, RequestSpecs]]


def with_encoders(specs: RequestSpecs, num_workers: int) -> RequestSpecs:
    """Return the requests with an encoder pool, which some of them have one, two or three images for."""
    generator = np.random.default_rng(len(specs) + 1)
    count = generator.integers(0, 4, len(specs))
    pool = EncoderPool(
        num_workers=num_workers,
        seconds=count * 0.3137,
        num_parts=np.maximum(count, 1),
        transfer_seconds=count * 0.0419,
    )
    wait = generator.random(len(specs)) * 0.2
    return replace(specs, encoder_seconds=None, earlier_images=None, encoder_pool=pool, own_wait=wait)


def with_scaling(deployment: Deployment, data: st.DataObject) -> Deployment:
    """Return a deployment whose encoder pool of up to four workers follows its load."""
    rules = {
        "metric": data.draw(st.sampled_from(["queue_depth", "busy"])),
        "target": data.draw(st.sampled_from([0.31, 0.73, 1.0])),
        "max_replicas": 4,
        "interval": data.draw(st.sampled_from(["517.1 ms", "1311.7 ms"])),
        "stabilization": data.draw(st.sampled_from(["0 s", "2511.9 ms"])),
    }
    spec = validate(EncoderAutoscalingSpec, rules)
    control = deployment.control or Control(routing=RoutingSpec(policy=deployment.routing))
    seconds = data.draw(st.sampled_from([0.0, 0.7193]))
    return replace(deployment, control=replace(control, encoder_scaling=spec, encoder_startup_seconds=seconds))


def with_adapters(deployment: Deployment, specs: RequestSpecs) -> tuple[Deployment, RequestSpecs]:
    """Return a deployment whose schedulers hold two adapters each, and requests for four of them or for none."""
    generator = np.random.default_rng(len(specs) + 2)
    own = {"max_loras": 2, "max_cpu_loras": 3, "lora_host_seconds": 0.0531, "lora_disk_seconds": 0.1913}
    pools = tuple(replace(pool, engine=replace(pool.engine, **own)) for pool in deployment.pools)
    deployment = replace(deployment, engine=replace(deployment.engine, **own), pools=pools)
    return deployment, replace(specs, adapter=generator.integers(-1, 4, len(specs)))


def attended(data: st.DataObject, kind: str) -> tuple[Deployment, RequestSpecs]:
    """Draw replicas with admission control and clients who hang up."""
    deployment, specs = data.draw(deployments(kind))
    assert deployment.control is not None
    engine = deployment.engine
    if deployment.control.streaming is not None:
        # Tokens are sent as that says, and by no other server.
        engine = replace(engine, api_token_seconds=0.0)
    # Together with late tokens, or with steps that prefill alone, the plane's API server is another one.
    assume(not (engine.api_token_seconds and (engine.async_output or engine.scheduler == "prefill_first")))
    if specs.turn is not None:
        # The requests of a turn are thought about for times of their own: which of two comes first is no rounding.
        apart = np.random.default_rng(len(specs)).random(len(specs)) * 1e-3
        specs = replace(specs, think_time=specs.think_time + apart)
    own = {**FRONTEND, "api_token_seconds": engine.api_token_seconds}
    pools = tuple(replace(pool, engine=replace(pool.engine, **own)) for pool in deployment.pools)
    deployment = replace(deployment, engine=replace(engine, **own), pools=pools)
    return replace(deployment, control=comparable(deployment.control)), specs


def conserved(data: st.DataObject) -> tuple[Deployment, RequestSpecs]:
    """Draw a fleet with a cache, an API, fair turns, an autoscaler and faults."""
    specs, control = data.draw(test_conservation.traffic()), comparable(data.draw(test_conservation.controls()))
    # There are no pools for rules to name.
    control = replace(control, routing=control.routing.model_copy(update={"rules": None}))
    kind = data.draw(st.sampled_from(["replicas", "ranks"]))
    config = make_config(**FRONTEND, **test_conservation.ENGINES[kind])
    return replace(make_deployment(config, TIMES, 2), control=control), own_times(specs)


def pooled(data: st.DataObject) -> tuple[Deployment, RequestSpecs]:
    """Draw pools that scale, break, are updated and probed, or that prefill and decode apart."""
    specs, cluster = data.draw(test_fleet_conservation.requests()), data.draw(test_fleet_conservation.clusters())
    late = data.draw(st.booleans())
    setups = tuple(
        replace(
            each,
            step_times=TIMES,
            acceptance=(),
            engine=replace(each.engine, num_speculative_tokens=0, releases_late=late, **FRONTEND),
            autoscaling=None if each.autoscaling is None or each.autoscaling.metric == "kv_usage" else each.autoscaling,
        )
        for each in cluster.setups
    )
    deployment = make_deployment(setups[0].engine, TIMES, 1)
    return replace(deployment, control=comparable(cluster.control), pools=setups), own_times(specs)


def cancelling(data: st.DataObject) -> tuple[Deployment, RequestSpecs]:
    """Draw tasks whose clients give up, on replicas that are busy, with limits, retries and refusals beside."""
    random = np.random.default_rng(data.draw(st.integers(0, 2**20)))
    graphs = [
        [(parents, output, float(random.uniform(0.1, 2))) for parents, output, _ in random_task(random, 8)]
        for _ in range(8)
    ]
    concurrency = data.draw(st.sampled_from([None, 3]))
    starts = None if concurrency else np.sort(random.uniform(0, 20, len(graphs))).tolist()
    specs = tasks(graphs, starts, prompt=int(random.integers(4, 40)), concurrency=concurrency)
    specs = specs.within(float(random.uniform(2, 20)))
    own: dict[str, object] = {"timeout": f"{random.uniform(3, 9)} s"} if data.draw(st.booleans()) else {}
    if data.draw(st.booleans()):
        own["retries"] = {"max": 2, "backoff": "0.37 s"}
    classes = (ClassSpec.model_validate({"name": "agents", "share": 1.0, **own}),)
    specs = replace(specs, classes=classes, request_class=np.zeros(len(specs), dtype=np.int16))
    config = make_config(max_num_seqs=int(random.integers(1, 4)), num_blocks=40, max_model_len=64, **FRONTEND)
    return make_deployment(config, TIMES, data.draw(st.integers(1, 2))), own_times(specs)


@given(data=st.data())
@settings(max_examples=examples(40), deadline=None, derandomize=True, suppress_health_check=CHECKS)
def test_tasks_that_clients_give_up_are_those_of_the_plane(data: st.DataObject) -> None:
    """Which calls are hung up and which are never sent, in open and closed loops, with timeouts and retries."""
    assert_alike(*cancelling(data))


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=CHECKS)
def test_replicas_and_clients_are_those_of_the_plane(kind: str, data: st.DataObject) -> None:
    """Any scheduler, router, limit on waiting, patience, retries and pools."""
    assert_alike(*attended(data, kind))


@pytest.mark.parametrize("kind", ["any", "ordered", "swapping"])
@given(data=st.data())
@settings(max_examples=examples(40), deadline=None, derandomize=True, suppress_health_check=CHECKS)
def test_first_tokens_of_decode_replicas_are_those_of_the_plane(kind: str, data: st.DataObject) -> None:
    """With a first token that comes with the KV cache, or a step later: any scheduler, in any shortage of memory."""
    deployment, specs = attended(data, kind)
    assert deployment.control is not None
    engine = replace(deployment.engine, max_loras=0, enable_prefix_caching=False, kv_tiers=())
    assume((engine.batching, engine.scheduler, engine.kv_allocation) == ("continuous", "mixed", "paged"))
    reserved = data.draw(st.sampled_from([0, 3, 9]))
    late = replace(engine, recomputes_last_token=data.draw(st.booleans()), reserved_decode_tokens=reserved)
    count, seconds = data.draw(st.integers(1, 2)), data.draw(st.sampled_from([0.0, 0.00171]))

    assert_alike(apart(deployment, engine, late, count, seconds), specs)


def test_a_prompt_computed_elsewhere_takes_slots_for_the_tokens_that_it_has_here() -> None:
    """Its last token is computed again: three requests fill ten blocks to the last, and none gives way."""
    sizes = {"max_num_seqs": 3, "max_num_batched_tokens": 4, "block_size": 2, "num_blocks": 10, "max_model_len": 20}
    engine = make_config(**sizes, max_chunk_tokens=1, **FRONTEND)
    specs = make_specs([0.0] * 9, [1, 1, 1, 1, 1, 4, 1, 1, 1], [1, 7, 7, 1, 1, 1, 1, 1, 1])
    deployment = make_deployment(engine, TIMES, 1)
    deployment = apart(replace(deployment, control=Control()), engine, replace(engine, recomputes_last_token=True), 1)

    assert_alike(deployment, specs)
    assert simulate(deployment, specs).records.num_preemptions.sum() == 0


def apart(
    deployment: Deployment, engine: EngineConfig, decode: EngineConfig, num_decode: int, landing_seconds: float = 0.0
) -> Deployment:
    """Return a deployment of which one replica prefills, and others decode."""
    assert deployment.control is not None
    first = PoolSetup(
        name="prefill", role="prefill", engine=engine, step_times=TIMES, priced=None, num_replicas=1, acceptance=()
    )
    second = replace(first, name="decode", role="decode", engine=decode, num_replicas=num_decode)
    link = {"transfer_bandwidth": "97 GB/s", "transfer_latency": "0.0713 s", "max_in_transfer": 3}
    control = replace(
        deployment.control,
        routing=RoutingSpec(policy="least_outstanding"),
        allowed=(),
        disaggregation=validate(DisaggregationSpec, link),
        kv_bytes_per_token=1.1e9,
        landing_seconds_per_token=landing_seconds,
    )
    return replace(deployment, engine=engine, pools=(first, second), control=control)


@given(data=st.data(), num_workers=st.integers(1, 3))
@settings(max_examples=examples(30), deadline=None, derandomize=True, suppress_health_check=CHECKS)
def test_encoder_pools_are_those_of_the_plane(data: st.DataObject, num_workers: int) -> None:
    """Images queue for workers before the router sees their requests: of fleets, pools, and tasks that are given up."""
    kind = data.draw(st.sampled_from([conserved, pooled, cancelling]))
    deployment, specs = kind(data)

    assert_alike(deployment, with_encoders(specs, num_workers))


@given(data=st.data(), num_workers=st.integers(1, 4))
@settings(max_examples=examples(60), deadline=None, derandomize=True, suppress_health_check=CHECKS)
def test_encoder_pools_that_follow_their_load_are_those_of_the_plane(data: st.DataObject, num_workers: int) -> None:
    """Workers come and go alike, of fleets, pools, and tasks that are given up."""
    kind = data.draw(st.sampled_from([conserved, pooled, cancelling]))
    deployment, specs = kind(data)
    specs = with_encoders(specs, num_workers)
    assert specs.encoder_pool is not None
    specs = replace(specs, encoder_pool=replace(specs.encoder_pool, max_workers=4))

    assert_alike(with_scaling(deployment, data), specs)


def adapted(deployment: Deployment) -> bool:
    """Whether adapters are simulated with the engines of a deployment."""
    engines = [each.engine for each in deployment.pools] or [deployment.engine]
    return all(
        each.batching == "continuous"
        and each.kv_allocation in ("paged", "static")
        and each.preemption_mode != "swap"
        and not each.priority_preemption
        for each in engines
    )


@pytest.mark.parametrize("kind", [conserved, pooled])
@given(data=st.data())
@settings(max_examples=examples(30), deadline=None, derandomize=True, suppress_health_check=CHECKS)
def test_adapters_of_ranks_and_pools_are_those_of_the_plane(kind: Drawing, data: st.DataObject) -> None:
    """Each rank has slots of its own; a decode replica loads the adapter of a KV cache that was sent to it."""
    deployment, specs = kind(data)
    assume(adapted(deployment))

    assert_alike(*with_adapters(deployment, specs))


@given(data=st.data())
@settings(max_examples=10, deadline=None, derandomize=True, suppress_health_check=CHECKS)
def test_fleets_are_those_of_the_plane(data: st.DataObject) -> None:
    """Any cache, API, fair turns, autoscaler and faults, with ranks too."""
    assert_alike(*conserved(data))


@given(data=st.data())
@settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=CHECKS)
def test_pools_are_those_of_the_plane(data: st.DataObject) -> None:
    """Any links, probes, updates, faults and autoscalers of pools."""
    assert_alike(*pooled(data))


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=examples(60), deadline=None, derandomize=True, suppress_health_check=CHECKS)
def test_replicas_and_clients_are_those_of_the_plane_at_length(data: st.DataObject) -> None:
    """The same as above, with more examples."""
    assert_alike(*attended(data, data.draw(st.sampled_from(sorted(KINDS)))))


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=examples(40), deadline=None, derandomize=True, suppress_health_check=CHECKS)
def test_fleets_are_those_of_the_plane_at_length(data: st.DataObject) -> None:
    """The same as above, with more examples."""
    assert_alike(*data.draw(st.sampled_from([conserved, pooled]))(data))


def storing(data: st.DataObject) -> tuple[Deployment, RequestSpecs]:
    """Draw replicas that share a store of KV blocks, behind tiers of their own or alone."""
    case = data.draw(tiered_cases())
    tiers = (*(tier for tier in case.config.kv_tiers if not tier.is_shared), data.draw(stores()))
    config = replace(case.config, kv_tiers=tiers, **FRONTEND)
    deployment = make_deployment(config, case.times, data.draw(st.integers(2, 3)))
    policy = data.draw(st.sampled_from(["round_robin", "least_outstanding", "prefix"]))
    return replace(deployment, control=Control(routing=RoutingSpec(policy=policy))), own_times(case.specs)


@given(data=st.data())
@settings(max_examples=examples(40), deadline=None, derandomize=True, suppress_health_check=CHECKS)
def test_replicas_that_share_a_store_are_those_of_the_plane(data: st.DataObject) -> None:
    """What one replica writes another loads, queues for, or computes all the same."""
    assert_alike(*storing(data))
