"""Worked examples, quantisation: bytes of the weights and the bound they set at 2.0 TB/s."""

from __future__ import annotations

import pytest

from simserve.perf.quantization import quantize_symmetric, weight_bits
from simserve.perf.shape import weights_bytes
from tests.perf.shapes import make_model, nominal_a100
from tests.worked_examples.bounds import memory_wall_seconds


@pytest.mark.parametrize(
    ("weight_format", "gigabytes", "tokens_per_second"),
    [
        ("fp32", 280.0, 7.1),
        ("fp16", 140.0, 14.3),
        ("bf16", 140.0, 14.3),
        ("int8", 70.0, 28.6),
        ("int8-wo", 70.0, 28.6),
        ("fp8", 70.0, 28.6),
        ("int4", 35.0, 57.1),
        ("gguf-q4_k_m", 42.0, 47.6),
        ("gguf-q2_k", 22.75, 87.9),
    ],
)
def test_seventy_billion_weights_and_single_stream_bound(
    weight_format: str, gigabytes: float, tokens_per_second: float
) -> None:
    """Bits a weight set the bytes, and the bytes the bound."""
    model = make_model("llama-2-70b", num_parameters_nominal=70e9)

    assert weights_bytes(model, weight_format) / 1e9 == pytest.approx(gigabytes)
    assert 1 / memory_wall_seconds(model, nominal_a100(), weight_format) == pytest.approx(tokens_per_second, abs=0.05)


def test_group_scales_count() -> None:
    """Groups of 128: 4.125 bit with an FP16 scale, 4.156 with a 4-bit zero point as well."""
    assert weight_bits("gptq-int4", "fp16") == (4.125, 16.0)
    assert weight_bits("awq-int4", "fp16")[0] == pytest.approx(4.156, abs=0.0005)


def test_symmetric_int4_of_four_values() -> None:
    """Scale 0.1186, codes 1 -7 4 -2, largest error 0.027."""
    rounded = quantize_symmetric([0.12, -0.83, 0.45, -0.21], bits=4)

    assert rounded.scale == pytest.approx(0.1186, abs=5e-5)
    assert rounded.codes == (1, -7, 4, -2)
    assert rounded.largest_error == pytest.approx(0.027, abs=5e-4)
