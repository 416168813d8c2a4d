"""The serving simulator of the page: every control does what physics says."""

from __future__ import annotations

from functools import cache
from typing import Any, get_args

import pytest

from simserve.explore.queries import Against, FilmQuery, SimulatorQuery
from simserve.explore.simulator import _finishable, _whatever_comes, film, simulator
from simserve.report.answer import answer
from simserve.scenario.finishable import find_finishable
from simserve.scenario.resolve import resolve
from simserve.scenario.run import deploy, run
from tests.explore.builders import no_limit

_MOVES: dict[str, tuple[dict[str, Any], dict[str, Any], str, int]] = {
    "more traffic waits longer": ({}, {"rate": 40.0}, "p95_ttft_ms", 1),
    "more traffic makes tokens cheaper": ({}, {"rate": 20.0}, "usd_per_million_output_tokens", -1),
    "more GPUs share the load": ({"rate": 30.0}, {"rate": 30.0, "gpus": 8}, "p95_tpot_ms", -1),
    "tensor parallelism shortens steps": ({}, {"tensor_parallel_size": 4}, "p50_tpot_ms", -1),
    "16-bit weights are read longer": ({"quantization": "int8"}, {"quantization": "none"}, "p50_tpot_ms", 1),
    "a faster GPU": ({}, {"hardware": "h100-sxm-80gb"}, "p50_tpot_ms", -1),
    "a smaller model": ({}, {"model": "llama-2-7b"}, "p50_tpot_ms", -1),
    "longer prompts": ({}, {"prompt_tokens": 1500}, "p50_ttft_ms", 1),
    "longer answers": ({}, {"output_tokens": 600}, "p50_e2el_ms", 1),
    "a small batch limit queues": ({"rate": 30.0}, {"rate": 30.0, "max_num_seqs": 8}, "p95_ttft_ms", 1),
    "a wide spread has a longer tail": ({"length_cv": 0.0}, {"length_cv": 2.0}, "p99_e2el_ms", 1),
    "a strict objective is missed": ({}, {"slo_tpot_ms": 10.0}, "attainment", -1),
    "a strict TTFT is missed": ({}, {"slo_ttft_ms": 50.0}, "attainment", -1),
    "8-bit KV takes half the memory": (
        {"hardware": "h100-sxm-80gb"},
        {"hardware": "h100-sxm-80gb", "kv_cache_dtype": "fp8"},
        "kv_usage_mean",
        -1,
    ),
    "without continuous batching answers come together": ({}, {"continuous_batching": False}, "p50_ttft_ms", 1),
    "reserved KV is mostly empty": ({}, {"paged_kv": False}, "kv_waste", 1),
    "without a KV cache everything is computed again": ({"rate": 1.0}, {"rate": 1.0, "kv_cache": False}, "mbu", -1),
    "whole prompts hold decodes up": (
        {"prompt_tokens": 1500, "rate": 15.0, "max_num_batched_tokens": 512},
        {"prompt_tokens": 1500, "rate": 15.0, "max_num_batched_tokens": 512, "chunked_prefill": False},
        "p50_ttft_ms",
        -1,
    ),
    "standard attention moves its scores": (
        {"prompt_tokens": 1500},
        {"prompt_tokens": 1500, "flash_attention": False},
        "p50_ttft_ms",
        1,
    ),
    "kernels launched one by one": (
        {"quantization": "int8"},
        {"quantization": "int8", "cuda_graphs": False},
        "p50_tpot_ms",
        1,
    ),
    "the host in the way of the GPU": ({}, {"async_scheduling": False}, "p50_tpot_ms", 1),
    "drafts": ({}, {"speculative_decoding": True}, "p50_tpot_ms", -1),
    "better drafts": (
        {"speculative_decoding": True, "acceptance_rate": 0.4},
        {"speculative_decoding": True, "acceptance_rate": 0.9},
        "p50_tpot_ms",
        -1,
    ),
    "more drafts that are right": (
        {"speculative_decoding": True, "acceptance_rate": 0.9, "num_speculative_tokens": 1},
        {"speculative_decoding": True, "acceptance_rate": 0.9, "num_speculative_tokens": 4},
        "p50_tpot_ms",
        -1,
    ),
    "what prompts share is computed once": (
        {"shared_prefix_tokens": 1500, "prefix_caching": False, "rate": 4.0},
        {"shared_prefix_tokens": 1500, "rate": 4.0},
        "p50_ttft_ms",
        -1,
    ),
    "a longer sequence is reserved": (
        {"paged_kv": False},
        {"paged_kv": False, "max_model_len": 4000},
        "kv_usage_mean",
        -1,
    ),
}  # fmt: skip


@cache
def figures(**changes: Any) -> dict[str, Any]:
    """Return the figures of the defaults, changed."""
    asked = {"num_requests": 300, **changes}
    return dict(simulator(SimulatorQuery(**asked), lambda _done, _total: None)["figures"])


@pytest.mark.parametrize("case", _MOVES)
def test_a_control_moves_the_figures_as_physics_says(case: str) -> None:
    """The direction of one figure."""
    before, after, name, direction = _MOVES[case]

    change = figures(**after)[name] - figures(**before)[name]

    assert change * direction > 0


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"shared_prefix_tokens": 500, "gpus": 2}, {"continuous_batching": False}])
def test_a_rate_after_another_is_answered_as_if_it_were_the_first(changes: dict[str, Any]) -> None:
    """What a deployment finishes is looked for once for all rates, and is that of each."""
    for rate in (2.0, 12.0):
        query = SimulatorQuery(num_requests=200, rate=rate, slo_tpot_ms=40.0 + rate, **changes)

        shown = simulator(query, no_limit)

        whole = run(query.scenario(), explain=False)
        assert shown["answer"] == answer(whole)
        assert shown["figures"]["attainment"] == whole.summary["simserve"]["slo"]["attainment"]
        assert shown["stability"] == whole.summary["simserve"]["stability"]
        assert _finishable(_whatever_comes(query)) == find_finishable(
            resolve(query.scenario()), deploy(resolve(query.scenario()))
        )


def test_another_seed_is_another_draw() -> None:
    """Of the same traffic."""
    assert figures(seed=2)["p95_ttft_ms"] != figures()["p95_ttft_ms"]


def test_a_step_is_the_sum_of_its_parts() -> None:
    """And the equation says so; series end with the run."""
    found = simulator(SimulatorQuery(num_requests=100), lambda _done, _total: None)

    assert found["step"]["ms"] == pytest.approx(sum(found["step"]["parts"].values()))
    assert found["equations"][0]["numbers"].endswith(f"= {found['step']['ms']:.3g} ms")
    series, spread = found["series"], found["spread"]
    assert len(series["edges"]) == len(series["running"]) + 1
    assert spread["ttft_ms"] == sorted(spread["ttft_ms"])


def _never(_finished: int, _all: int) -> None:
    """Let a run take as long as it takes."""


def shown(**values: Any) -> dict[str, Any]:
    """Return the answer of the tab."""
    return film(FilmQuery(num_requests=60, **values), _never)


def test_pipeline_stages_play_beside_tensor_parallelism() -> None:
    """On the same GPUs: one has rounds by stage, the other has none."""
    found = shown(gpus=2, tensor_parallel_size=2, against="pipeline stages")
    tensor, pipeline = (scene["replicas"][0]["pipeline"] for scene in found["film"]["scenes"])

    assert tensor is None
    assert len(pipeline["layers"]) == 2
    assert len(pipeline["rounds"]) > 10


def test_pipeline_stages_take_all_gpus_where_a_replica_has_one() -> None:
    """And a pipeline can be watched alone."""
    other = FilmQuery(gpus=4, against="pipeline stages").other()
    assert other is not None
    alone = FilmQuery(gpus=2, tensor_parallel_size=2, pipeline=True, against="nothing").scenario()

    assert other.scenario().deployment.pipeline_parallel_size == 4
    assert (alone.deployment.pipeline_parallel_size, alone.deployment.tensor_parallel_size) == (2, 1)


def test_one_gpu_is_no_pipeline() -> None:
    """The answer says what to change."""
    with pytest.raises(ValueError, match="2 or more"):
        shown(gpus=1, against="pipeline stages")


def test_drafts_are_accepted_in_one_of_two_films() -> None:
    """Of the run with drafts."""
    found = shown(against="drafts", rate=2.0)
    plain, drafted = (scene["replicas"][0]["drafts"] for scene in found["film"]["scenes"])

    assert plain is None
    assert sum(drafted["accepted"]) > 0


@pytest.mark.parametrize("against", [each for each in get_args(Against) if each not in ("nothing", "pipeline stages")])
def test_everything_that_can_be_set_beside_it_differs(against: str) -> None:
    """In the scenario that runs."""
    query = FilmQuery(against=against)
    other = query.other()

    assert other is not None
    assert other.scenario() != query.scenario()
