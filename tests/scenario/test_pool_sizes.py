"""Pools with parallel sizes and experts of their own: resolved, simulated as the reference does, and exported."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from simserve.errors import ScenarioError
from simserve.planner.export.export import export
from simserve.scenario.load import from_mapping
from simserve.scenario.resolve import resolve
from simserve.scenario.schema import Scenario
from simserve.scenario.verify import verify

PREFILL = {"name": "prefill", "role": "prefill", "tensor_parallel_size": 2, "enable_expert_parallel": True}
DECODE = {"name": "decode", "role": "decode", "data_parallel_size": 4, "enable_expert_parallel": True, "replicas": 2}


def apart(**decode: Any) -> Scenario:
    """Return prefill workers of two tensor ranks and decode workers of four data-parallel ones."""
    return from_mapping(
        {
            "name": "apart",
            "model": "qwen3-30b-a3b",
            "deployment": {
                "hardware": "h100-sxm-80gb",
                "engine": {"name": "vllm", "version": "0.12", "max_model_len": 8192},
                "pools": [PREFILL, {**DECODE, **decode}],
                "disaggregation": {},
            },
            "workload": {
                "arrivals": {"process": "poisson", "rate": 8.0},
                "prompt_tokens": {"distribution": "lognormal", "mean": 1000, "cv": 0.5, "max": 4000},
                "output_tokens": {"distribution": "lognormal", "mean": 40, "cv": 0.5, "max": 200},
                "num_requests": 60,
            },
        }
    )


def test_a_pool_has_sizes_of_its_own() -> None:
    """What a pool says counts for it alone: 2 GPUs that prefill and 2 x 4 that decode."""
    scenario = apart()

    prefill, decode = resolve(scenario).pools

    assert scenario.deployment.num_gpus == 10
    assert (prefill.shape.tensor_parallel_size, prefill.shape.data_parallel_size) == (2, 1)
    assert (decode.shape.tensor_parallel_size, decode.shape.data_parallel_size) == (1, 4)
    assert decode.engine.data_parallel_size == 4
    assert prefill.shape.enable_expert_parallel
    assert decode.shape.enable_expert_parallel


def test_how_experts_are_reached_is_up_to_the_pool() -> None:
    """Two-batch overlap, DeepEP and spare experts of one pool leave the other as it is."""
    own = {"all2all_backend": "deepep_low_latency", "num_redundant_experts": 8, "enable_two_batch_overlap": False}

    prefill, decode = resolve(apart(**own)).pools

    assert (decode.shape.all2all_backend, decode.shape.num_redundant_experts) == ("deepep_low_latency", 8)
    assert (prefill.shape.all2all_backend, prefill.shape.num_redundant_experts) == ("allgather_reducescatter", None)


def test_what_a_pool_cannot_have_is_refused() -> None:
    """Sent tokens need whole experts, also where a pool alone asks for them."""
    with pytest.raises(ScenarioError, match="needs enable_expert_parallel"):
        resolve(apart(all2all_backend="deepep_low_latency", enable_expert_parallel=False))


def test_ranks_of_a_pool_agree_with_the_reference() -> None:
    """Every time of every request is that of the plain simulator."""
    found = verify(apart())

    assert found.largest_difference < 1e-9
    assert found.requests == 60


def test_each_worker_is_exported_with_its_own_flags() -> None:
    """Dynamo starts each role with its own sizes."""
    written = export(apart(), "dynamo")
    (graph,) = yaml.safe_load_all(written.files[written.main_file or ""])
    words = {
        each["name"]: " ".join(map(str, each["podTemplate"]["spec"]["containers"][0]["args"]))
        for each in graph["spec"]["components"]
        if each["type"] != "frontend"
    }

    assert sorted(
        ("--tensor-parallel-size 2" in each, "--data-parallel-size 4" in each) for each in words.values()
    ) == [
        (False, True),
        (True, False),
    ]
