"""Prefill and decode pools: compiled they are what they are interpreted, to the bit, whatever breaks."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simserve.engine.compiled import fields as flat
from simserve.engine.plane_state import Port, Transfers
from simserve.scenario.schema import Scenario
from simserve.sim.control import DisaggregationSpec, Role
from simserve.sim.pools import PoolSetup
from simserve.sim.simulate import Deployment
from simserve.validation import validate
from simserve.workload.requests import RequestSpecs
from tests.agreement import on_both_kernels
from tests.engine.strategies import step_times
from tests.engine.test_fuzz import CHECKS
from tests.fuzzing import examples
from tests.sim.test_fleet_run import (
    SMALL,
    STORM,
    assert_compiled_alike,
    deployments,
    needs_numba,
)

ORDER_OF_POOLS: tuple[tuple[Role, ...], ...] = (
    ("prefill", "decode"),
    ("decode", "prefill"),
    ("prefill", "decode", "both"),
    ("prefill", "prefill", "decode", "decode"),
)


@st.composite
def split_deployments(draw: st.DrawFn, kind: str) -> tuple[Deployment, RequestSpecs]:
    """Draw pools that prefill, decode or do both, with links, admission control, and clients that may hang up."""
    deployment, specs = draw(deployments(kind))
    assert deployment.control is not None
    config = deployment.engine
    is_computed_again = draw(st.booleans())
    extra = draw(st.integers(0, 9))
    reserved = draw(st.sampled_from([0, 0, 1, 7]))
    room = replace(
        config,
        num_blocks=config.num_blocks + extra,
        recomputes_last_token=is_computed_again,
        reserved_decode_tokens=reserved,
    )
    times = deployment.priced.step_times
    roles = draw(st.sampled_from(ORDER_OF_POOLS))
    layouts = draw(st.sampled_from(["aaaa", "abab"])) if len(roles) == 4 else "aaaa"
    pools = tuple(
        PoolSetup(
            name=f"pool{number}",
            role=role,
            engine=room if role == "decode" else config,
            step_times=draw(step_times(config)) if draw(st.booleans()) else times,
            priced=None,
            num_replicas=draw(st.integers(1, 2)),
            kv_layout=layout,
            kv_bytes_per_token=draw(st.sampled_from([None, 3e8])),
        )
        for number, (role, layout) in enumerate(zip(roles, layouts, strict=False))
    )
    links = {
        "transfer_bandwidth": draw(st.sampled_from(["7 GB/s", "90 GB/s"])),
        "transfer_latency": draw(st.sampled_from(["0 s", "0.13 s"])),
        "max_in_transfer": draw(st.sampled_from([1, 2, 64])),
    }
    entrances = [pool.name for pool in pools if pool.role != "decode"]
    weights = dict(zip(entrances, (0.7, 0.31), strict=False)) if len(entrances) > 1 and draw(st.booleans()) else None
    control = replace(
        deployment.control,
        routing=deployment.control.routing.model_copy(update={"weights": weights}),
        disaggregation=validate(DisaggregationSpec, links),
        kv_bytes_per_token=1.1e9,
        landing_seconds_per_token=draw(st.sampled_from([0.0, 0.011])),
        allowed=draw(st.sampled_from([(), ((0,), tuple(range(len(entrances))))])),
    )
    return replace(deployment, pools=pools, control=control), specs


@needs_numba
@pytest.mark.parametrize("kind", ["any", "ordered", "shared", "speculative", "swapping"])
@given(data=st.data())
@settings(
    max_examples=examples(60), deadline=None, derandomize=True, suppress_health_check=[*CHECKS, HealthCheck.too_slow]
)
def test_split_pools_run_compiled_as_they_are(kind: str, data: st.DataObject) -> None:
    """The same cases, compiled: every record and every total is the same, to the bit."""
    deployment, specs = data.draw(split_deployments(kind))
    assert_compiled_alike(deployment, specs)


def test_every_field_between_the_pools_has_a_place_in_flat_memory() -> None:
    """What these objects have, compiled code sees."""
    assert set(flat.PORT.fields) == set(Port.__slots__)
    assert set(flat.TRANSFERS.fields) == set(Transfers.__slots__)


@pytest.mark.slow
@needs_numba
@pytest.mark.parametrize(
    ("deployment", "workload"),
    [
        ({}, {}),
        ({"disaggregation": {"transfer_bandwidth": "2 GB/s", "max_in_transfer": 3}}, {}),
        (
            {"streaming": {"network_latency": "20 ms", "cost_per_event": "1 ms"}},
            {"arrivals": {"process": "closed_loop", "concurrency": 300}},
        ),
        (
            {"routing": "prefix", "admission": {"max_queue": 40, "retry_after": "2 s"}},
            {
                "sessions": {"turns": {"distribution": "geometric", "mean": 4, "max": 9}, "think_time": "2 s"},
                "shared_prefix": {"num_groups": 3, "tokens": 400},
            },
        ),
    ],
)
def test_split_pools_under_overload_run_compiled(
    deployment: dict[str, Any], workload: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """More than they can do: caches queue, prefills stall, clients hang up on the way; every byte is the same."""
    own: dict[str, Any] = {
        "hardware": "h100-sxm-80gb",
        "engine": SMALL,
        "pools": [{"name": "p", "role": "prefill", "replicas": 2}, {"name": "d", "role": "decode", "replicas": 3}],
        "disaggregation": {"transfer_latency": "2 ms"},
    }
    scenario = Scenario.model_validate(
        {"name": "split", "model": "llama-3.1-8b", "deployment": own | deployment, "workload": dict(STORM) | workload}
    )
    with caplog.at_level(logging.WARNING):
        runs = on_both_kernels(scenario)

    assert not [message for message in caplog.messages if "interpreted" in message]
    assert (runs[0].requests["status"] != "completed").sum() > 30
    assert runs[0].summary["simserve"]["pools"] is not None
    assert json.dumps(dict(runs[0].summary)) == json.dumps(dict(runs[1].summary))
    assert runs[0].requests.equals(runs[1].requests)
