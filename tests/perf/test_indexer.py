"""The indexer of sparse attention costs a step kernels, and each key and pair a little."""

from __future__ import annotations

import numpy as np
import pytest

from simserve.perf.efficiency import start_latency
from simserve.perf.indexer import index_key_seconds, index_pair_seconds, indexer_parts
from simserve.perf.pricing import price
from simserve.profiles.model import load_model
from tests.perf.shapes import make_shape

SERVED = {"engine": "sglang", "tensor_parallel_size": 8, "quantization": "fp8"}
SPARSE = make_shape("h200-sxm-141gb", "glm-5", **SERVED)
MACHINE = SPARSE.machine


def test_a_layer_takes_ten_kernels_at_least() -> None:
    """Eight element-wise ones and two that walk the context: 27 us on an H200."""
    indexer = load_model("glm-5").indexer
    assert indexer is not None

    one = float(indexer_parts(indexer, MACHINE, np.ones(1)).sum())

    small, large = start_latency(MACHINE, "elementwise"), start_latency(MACHINE, "attention_decode")
    assert one == pytest.approx(8 * small + 2 * large, rel=0.01)


def test_keys_move_their_fp8_bytes_and_two_scores() -> None:
    """132 + 8 bytes a key of a decode step; pairs of prompts pay for products too; nothing without an indexer."""
    indexer = load_model("glm-5").indexer

    assert index_key_seconds(indexer, MACHINE) >= 140 / MACHINE.bandwidth
    assert index_pair_seconds(indexer, MACHINE) > 2 * 32 * 128 / MACHINE.peak("fp8")
    assert index_key_seconds(None, MACHINE) == index_pair_seconds(None, MACHINE) == 0


def test_every_step_of_a_sparse_model_pays_for_it() -> None:
    """GLM-5 without its indexer decodes more than 2 ms sooner, and reads contexts and prompts faster."""
    plain = load_model("glm-5").model_copy(update={"indexer": None})
    with_it, without = (price(shape).step_times for shape in (SPARSE, make_shape("h200-sxm-141gb", plain, **SERVED)))

    assert with_it.decode_base[4] - without.decode_base[4] > 2e-3
    assert with_it.decode_slope[4] > without.decode_slope[4]
    assert with_it.prefill_pair_seconds > without.prefill_pair_seconds
