"""Operators on the roofline: below the limits of the GPU, on the side of the ridge where they belong."""

from __future__ import annotations

import pytest

from simserve import api
from simserve.perf.roofline import Roofline, roofline
from simserve.perf.tables import price
from simserve.scenario.resolve import resolve


def find(*overrides: str, decoding: int = 16, context_tokens: int = 1000, prompt_tokens: int = 1000) -> Roofline:
    """Return the operators of the chatbot, changed."""
    shape = resolve(api.load("chatbot", overrides)).shape
    return roofline(shape, price(shape), decoding=decoding, context_tokens=context_tokens, prompt_tokens=prompt_tokens)


_DEPLOYMENTS = {
    "dense": (),
    "sixteen bit": ("deployment.quantization=none",),
    "pipeline": ("deployment.tensor_parallel_size=2", "deployment.pipeline_parallel_size=2"),
    "experts": ("model=qwen3-30b-a3b", "deployment.quantization=none", "deployment.tensor_parallel_size=2"),
    "latent attention": (
        "model=deepseek-v3",
        "deployment.hardware=h200-sxm-141gb",
        "deployment.tensor_parallel_size=8",
    ),
    "standard attention": ("deployment.attention=standard",),
    "drafts": (
        "deployment.speculative={method: draft_model, draft_model: llama-3.2-1b, num_speculative_tokens: 3, "
        "acceptance_rate: 0.7}",
        "deployment.engine.version='0.20'",
        "deployment.quantization=none",
    ),
}


@pytest.mark.parametrize("name", _DEPLOYMENTS)
def test_no_operator_is_above_the_roof(name: str) -> None:
    """Neither the arithmetic nor the memory of a GPU is exceeded, and every call takes time."""
    found = find(*_DEPLOYMENTS[name])

    assert {"decode", "prefill"} == {point.phase for point in found.points}
    for point in found.points:
        roof = min(found.bandwidth * point.intensity, max(found.peaks.values()))
        assert 0 < point.flops_per_second <= roof, point
        assert point.seconds > 0


def test_decoding_is_bound_by_memory_and_a_prompt_by_arithmetic() -> None:
    """The matrix products of a few sequences lie left of the ridge, those of a prompt right of it."""
    found = find("deployment.quantization=none")
    ridge = found.peaks["bf16"] / found.bandwidth
    products = [point for point in found.points if point.name in ("qkv", "gate_up", "down")]

    assert all((point.intensity > ridge) == (point.phase == "prefill") for point in products)


def test_the_intensity_of_a_product_is_its_rows() -> None:
    """16-bit weights of 2 bytes and 2 FLOP a row: 16 rows are 16 FLOP a byte, less the activations."""
    gate_up = next(point for point in find("deployment.quantization=none").points if point.name == "gate_up")

    assert gate_up.intensity == pytest.approx(16, rel=0.01)


def test_more_sequences_use_the_weights_better_and_their_keys_no_better() -> None:
    """Products gain intensity with the batch; attention reads each context for itself."""
    few, many = (
        {point.name: point for point in find(decoding=decoding).points if point.phase == "decode"}
        for decoding in (8, 64)
    )

    assert many["gate_up"].intensity > 7 * few["gate_up"].intensity
    assert many["attention"].intensity == pytest.approx(few["attention"].intensity)
