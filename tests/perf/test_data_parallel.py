"""Data-parallel attention: what ranks hold for themselves, what they do together, and what a step then takes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from simserve.perf.memory import kv_bytes_per_token, plan_memory
from simserve.perf.shape import ReplicaShape, weights_bytes_per_gpu
from simserve.perf.stage import stage_of, stage_seconds
from simserve.perf.tables import price
from simserve.profiles.catalog import load_model
from tests.perf.shapes import make_shape


def shape_of(tensor: int, data: int, *, enable_expert_parallel: bool = False) -> ReplicaShape:
    """Return Qwen3-235B in FP8 on 8 H200."""
    return make_shape(
        "h200-sxm-141gb",
        "qwen3-235b-a22b",
        tensor_parallel_size=tensor,
        data_parallel_size=data,
        quantization="fp8",
        enable_expert_parallel=enable_expert_parallel,
    )


def test_experts_are_shared_by_all_ranks_and_attention_by_none() -> None:
    """Eight ranks hold an eighth of the experts each and all of the attention; the rest is the dense share."""
    model = load_model("qwen3-235b-a22b")
    whole, tensor, data = (
        weights_bytes_per_gpu(model, "fp8", ranks, data_parallel_size=groups)
        for ranks, groups in ((1, 1), (8, 1), (1, 8))
    )
    assert model.moe is not None
    up, down = model.expert_gemms(1)
    experts = model.num_moe_layers * model.moe.num_experts * (up.num_weights + down.num_weights)

    assert tensor < data < whole
    assert whole - data == pytest.approx(experts * 7 / 8, rel=1e-3)


def test_a_rank_caches_no_head_twice() -> None:
    """Four KV heads over eight tensor ranks lie twice in memory; a data-parallel rank holds its own requests' alone."""
    tensor, data = shape_of(8, 1), shape_of(1, 8)

    assert kv_bytes_per_token(data) == 4 * kv_bytes_per_token(tensor)
    tokens = [plan_memory(shape).num_kv_blocks * ranks for shape, ranks in ((tensor, 1), (data, 8))]
    assert tokens[1] > 1.4 * tokens[0]


@pytest.mark.parametrize("enable_expert_parallel", [False, True])
def test_what_ranks_do_together_rises_with_the_tokens_of_all(enable_expert_parallel: bool) -> None:
    """From nothing, never falling, in parts that add up; a replica without such ranks has no such table."""
    priced = price(shape_of(1, 8, enable_expert_parallel=enable_expert_parallel))
    shared = np.asarray(priced.step_times.shared_seconds)

    assert shared[0] == 0.0
    assert np.all(np.diff(shared) >= 0.0)
    assert priced.parts.shared.sum(axis=0) == pytest.approx(shared)
    assert priced.step_times.shared_seconds_beyond > 0.0
    assert len(price(shape_of(8, 1)).step_times.shared_seconds) == 0


def test_a_full_step_of_all_ranks_does_the_work_of_a_tensor_parallel_one() -> None:
    """The same experts for the same tokens, and no all-reduce of attention: between half and the whole of its time."""
    tensor, data = price(shape_of(8, 1)).step_times, price(shape_of(1, 8)).step_times

    together = data.token_seconds[1024] + data.shared_seconds[8192]
    assert 0.5 * tensor.token_seconds[8192] < together < tensor.token_seconds[8192]


def test_work_is_counted_once() -> None:
    """Eight ranks in step do the FLOP of one replica, and read at most the weights of eight."""
    tensor, data = price(shape_of(8, 1)).parts, price(shape_of(1, 8)).parts

    assert data.token_flops == pytest.approx(tensor.token_flops, rel=1e-6)
    assert 8 * data.peak_flops == tensor.peak_flops
    assert tensor.weight_bytes[512] < 8 * data.weight_bytes[64] < 3 * tensor.weight_bytes[512]


def test_experts_are_those_that_the_tokens_of_all_ranks_visit() -> None:
    """A token on each of eight ranks reads what eight tokens of one replica do, and each rank counts an eighth."""
    tensor, data = (price(shape_of(*each)).parts.weight_bytes for each in ((8, 1), (1, 8)))

    assert data[2] - data[1] == pytest.approx((tensor[16] - tensor[8]) / 8)


def test_experts_that_ranks_share_need_no_reduction_of_their_own() -> None:
    """Two tensor ranks in each of four groups reduce after attention alone, where a replica reduces twice a layer."""
    tokens = np.array([64.0])
    tensor, data = (
        stage_seconds(dataclasses.replace(stage_of(shape_of(2, groups)), splits_operators=True), tokens).shares
        for groups in (1, 4)
    )

    assert tensor is not None
    assert data is not None
    assert float(data["all_reduce"][0]) == pytest.approx(float(tensor["all_reduce"][0]) / 2)
