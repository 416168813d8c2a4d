"""Worked examples, memory wall: a single sequence reads every weight once a token."""

from __future__ import annotations

import numpy as np
import pytest

from simserve.perf.gemm import gemm_work
from simserve.perf.operators import arithmetic_intensity
from simserve.perf.tables import price
from tests.perf.shapes import make_hardware, make_model, make_shape, nominal_a100
from tests.worked_examples.bounds import memory_wall_seconds


@pytest.mark.parametrize(
    ("name", "parameters", "milliseconds", "tokens_per_second"),
    [
        ("llama-2-7b", 7e9, 7.0, 142.9),
        ("llama-2-70b", 70e9, 70.0, 14.3),
        ("llama-3.1-405b", 405e9, 405.0, 2.47),
    ],
)
def test_fp16_weights_at_two_terabytes_a_second(
    name: str, parameters: float, milliseconds: float, tokens_per_second: float
) -> None:
    """2 bytes a parameter over 2.0 TB/s."""
    seconds = memory_wall_seconds(make_model(name, num_parameters_nominal=parameters), nominal_a100(), "fp16")

    assert seconds * 1e3 == pytest.approx(milliseconds, rel=1e-12)
    assert 1 / seconds == pytest.approx(tokens_per_second, rel=3e-3)


def test_seven_billion_on_h100() -> None:
    """14 GB over 3.35 TB/s: 4.18 ms, 239 tok/s (150 to 200 are seen: this is the bound)."""
    h100 = make_hardware("h100-sxm-80gb", memory={"bandwidth": 3.35e12})

    seconds = memory_wall_seconds(make_model("llama-2-7b", num_parameters_nominal=7e9), h100, "fp16")

    assert seconds * 1e3 == pytest.approx(4.18, abs=0.005)
    assert 1 / seconds == pytest.approx(239, abs=0.5)


def test_ridge_point_of_a100() -> None:
    """312 TFLOP/s over 2.0 TB/s are 156 FLOP/byte."""
    assert price(make_shape(nominal_a100())).parts.ridge_point == pytest.approx(156)


def test_ridge_point_of_h100_is_dense() -> None:
    """989 TFLOP/s dense: 295 FLOP/byte. Published "about 600" divides the sparse 1979 TFLOP/s."""
    assert price(make_shape("h100-sxm-80gb")).parts.ridge_point == pytest.approx(295, abs=1.0)


def test_matrix_vector_product_does_one_flop_a_byte() -> None:
    """2 n k FLOP over 2 n k bytes of FP16 weights; activations are a few in ten thousand."""
    work = gemm_work(np.array([1.0]), 8192, 8192, weight_bits=16)

    assert float(arithmetic_intensity(work)[0]) == pytest.approx(1.0, rel=1e-3)
