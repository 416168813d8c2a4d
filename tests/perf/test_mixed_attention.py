"""Decodes beside prompts under FlashAttention-2: where they take longer, and by how much."""

from __future__ import annotations

from typing import Any

import pytest

from simserve.perf.operators import PricedDeployment
from simserve.perf.tables import price
from tests.perf.shapes import make_shape


def priced(hardware: str, **changes: Any) -> PricedDeployment:
    """Return Llama-3.1-8B under vLLM 0.19 on one GPU."""
    return price(make_shape(hardware, **{"version": "0.19", **changes}), 600)


@pytest.mark.parametrize(
    ("hardware", "changes"),
    [
        ("h100-sxm-80gb", {}),
        ("b200-sxm-180gb", {}),
        ("a100-sxm-80gb", {"version": "0.6.6"}),
        ("a100-sxm-80gb", {"kv_cache_dtype": "fp8"}),
        ("a100-sxm-80gb", {"engine": "sglang", "version": None}),
        ("v100s-32gb", {}),
    ],
)
def test_other_kernels_decode_alike_beside_prompts(hardware: str, changes: dict[str, Any]) -> None:
    """Hopper, Blackwell, V0, 8-bit KV, other engines, before Ampere."""
    assert priced(hardware, **changes).step_times.mixed_decode_factor == 1.0


@pytest.mark.parametrize(
    ("hardware", "low", "high"),
    [("rtx-pro-6000-96gb", 1.3, 1.9), ("rtx-4090-24gb", 1.6, 2.5), ("a100-sxm-80gb", 1.2, 2.5)],
)
def test_flash_attention_2_computes_a_tile_for_each_decode(hardware: str, low: float, high: float) -> None:
    """Tables of LLMServingSim, 32 to 128 sequences of 512 to 1,024 tokens: 1.3 to 1.7 and 1.6 to 2.5 times as long."""
    assert low < priced(hardware).step_times.mixed_decode_factor < high


def test_more_query_heads_a_key_head_take_more_tiles() -> None:
    """Keys are read once, and each query head has a tile: Llama-3.1-70B has eight to a key head, 8B four."""
    small, large = (
        priced("a100-sxm-80gb", model=model, tensor_parallel_size=ranks).step_times.mixed_decode_factor
        for model, ranks in (("llama-3.1-8b", 1), ("llama-3.1-70b", 4))
    )

    assert large == pytest.approx(2.0 * small, rel=0.35)
