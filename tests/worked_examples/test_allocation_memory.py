"""Worked examples, allocation: how many requests the memory of one GPU holds."""

from __future__ import annotations

import pytest

from simserve.perf.memory import plan_memory
from tests.perf.shapes import bare_shape, make_model


def test_static_slots_of_the_longest_request() -> None:
    """80 GB, 14 GB of weights, slots of 4,096 tokens (2.147 GB): 30; at 1,024 tokens each, 76 % is wasted."""
    model = make_model("llama-2-7b", num_parameters_nominal=7e9)

    plan = plan_memory(bare_shape(model, block_size=4096))

    assert plan.weights_bytes == pytest.approx(14e9)
    assert plan.kv_bytes == pytest.approx(66e9)
    assert plan.kv_bytes_per_token * 4096 == pytest.approx(2.147e9, abs=1e6)
    assert plan.num_kv_blocks == 30
    used = plan.num_kv_blocks * 1024 * plan.kv_bytes_per_token
    assert used == pytest.approx(16.1e9, abs=0.05e9)
    assert 1 - used / plan.kv_bytes == pytest.approx(0.76, abs=0.005)


def test_int4_weights_leave_room_for_34_requests() -> None:
    """80 GB, 7 B in INT4, 3 GB of overhead: 73.5 GB for KV, 34 requests of 4,096 tokens."""
    model = make_model("llama-2-7b", num_parameters_nominal=7e9)

    plan = plan_memory(bare_shape(model, quantization="int4", overhead_bytes=3e9))

    assert plan.kv_bytes == pytest.approx(73.5e9)
    assert int(plan.max_concurrent_full_length) == 34


def test_five_gigabytes_a_sequence() -> None:
    """80 GB, 14 GB of weights, 5 GB of KV a sequence: batch 13."""
    model = make_model("llama-2-7b", num_parameters_nominal=7e9, max_position_embeddings=9536)

    plan = plan_memory(bare_shape(model))

    assert plan.kv_bytes_per_token * plan.max_model_len == pytest.approx(5e9, rel=1e-3)
    assert int(plan.max_concurrent_full_length) == 13
