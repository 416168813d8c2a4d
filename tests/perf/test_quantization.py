"""Weight and KV formats: what they are stored in, what they compute in, what is refused."""

from __future__ import annotations

import pytest

from simserve.errors import InputError
from simserve.perf.quantization import kv_element_bytes, quantize_symmetric, weight_bits
from tests.perf.shapes import make_shape


def test_w8a8_computes_in_its_dtype_where_the_gpu_has_it() -> None:
    """FP8 on H100 multiplies in FP8 and quantises activations; embeddings stay 16-bit."""
    precision = make_shape("h100-sxm-80gb", quantization="fp8").precision

    assert (precision.arithmetic, precision.wide_arithmetic) == ("fp8", "bf16")
    assert (precision.weight_bits, precision.other_bits) == (8.0, 16.0)
    assert precision.is_quantizing_activations
    assert precision.note == ""


def test_fp8_on_a100_is_weight_only_under_vllm() -> None:
    """8-bit weights, 16-bit arithmetic, and the result says so."""
    precision = make_shape("a100-sxm-80gb", quantization="fp8").precision

    assert (precision.arithmetic, precision.weight_bits, precision.input_bytes) == ("bf16", 8.0, 2.0)
    assert "no fp8 arithmetic" in precision.note


def test_fp8_on_a100_is_refused_by_tensorrt_llm() -> None:
    """The error names what the GPU supports."""
    shape = make_shape("a100-sxm-80gb", engine="tensorrt-llm", quantization="fp8")

    with pytest.raises(InputError, match=r"fp8 arithmetic.*a100-sxm-80gb has .*int8.*choose from") as failure:
        _ = shape.precision

    assert "int8" in str(failure.value.remedy)
    assert "fp8" not in str(failure.value.remedy)


def test_unknown_formats_name_the_nearest() -> None:
    """A typing error is answered with the name that was meant."""
    with pytest.raises(InputError, match="gptq-int4"):
        weight_bits("gptq-int3", "bf16")
    with pytest.raises(InputError, match="fp8"):
        kv_element_bytes("fp7")


def test_a_format_the_engine_does_not_run_is_refused() -> None:
    """The engine profile decides, and the error names what it runs here."""
    shape = make_shape(engine="fastertransformer", quantization="awq-int4")

    with pytest.raises(InputError, match=r"does not run under fastertransformer; choose from none, .*int8-wo"):
        _ = shape.precision


@pytest.mark.parametrize(("name", "size"), [("auto", 2.0), ("bf16", 2.0), ("fp8", 1.0), ("int8", 1.0)])
def test_kv_element_bytes(name: str, size: float) -> None:
    """Bits over eight; 16-bit by default."""
    assert kv_element_bytes(name) == size


def test_int4_kv_counts_its_scales() -> None:
    """4 bits and an FP16 scale for 128 elements."""
    assert kv_element_bytes("int4") == 4.125 / 8


def test_only_zeros_quantise_to_zeros() -> None:
    """No division by a scale of zero."""
    assert quantize_symmetric([0.0, 0.0], 8).codes == (0, 0)
