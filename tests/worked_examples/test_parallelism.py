"""Worked examples, parallelism: weights a GPU, all-reduce, pipeline bubble."""

from __future__ import annotations

import numpy as np
import pytest

from simserve.perf.collectives import all_reduce_seconds, ring_bandwidth_seconds
from simserve.perf.pipeline import pipeline_bubble
from simserve.perf.shape import weights_bytes_per_gpu
from tests.perf.shapes import make_model, make_shape


@pytest.mark.parametrize(("ranks", "gigabytes"), [(1, 140.0), (2, 70.0), (4, 35.0), (8, 17.5)])
def test_seventy_billion_fp16_weights_a_gpu(ranks: int, gigabytes: float) -> None:
    """Tensor parallelism divides the weights."""
    model = make_model("llama-2-70b", num_parameters_nominal=70e9)

    assert weights_bytes_per_gpu(model, "fp16", tensor_parallel_size=ranks) / 1e9 == pytest.approx(gigabytes)


def test_bandwidth_part_of_a_small_all_reduce() -> None:
    """Hidden 8192, FP16, one token, TP 4, 450 GB/s: 0.055 us."""
    assert float(ring_bandwidth_seconds(8192 * 2, 4, 450e9)) == pytest.approx(0.055e-6, abs=0.0005e-6)


def test_small_all_reduce_is_latency() -> None:
    """Real all-reduces of that size take 5 to 20 us."""
    link = make_shape("h100-sxm-80gb", "llama-3.1-70b", tensor_parallel_size=4).tensor_link

    assert 5e-6 < float(all_reduce_seconds(np.array([8192 * 2.0]), 4, link)[0]) < 20e-6


def test_pipeline_of_four_with_one_micro_batch_idles_three_quarters() -> None:
    """(p - 1) / (m + p - 1)."""
    assert pipeline_bubble(4, 1) == pytest.approx(0.75)
    assert pipeline_bubble(4, 12) == pytest.approx(0.2)
    assert pipeline_bubble(1, 5) == 0.0
