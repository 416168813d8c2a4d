"""Latent keys of earlier tokens are expanded by each chunk of a prompt, and a chunk's own once."""

from __future__ import annotations

import numpy as np
import pytest

from simserve.perf.latent_context import FEW_TOKENS, expansion_of
from simserve.perf.shape import ReplicaShape
from simserve.perf.stage import stage_of
from simserve.perf.tables import price
from tests.perf.shapes import make_shape

PROMPT, CHUNK = 32_768, 8192


def latent_shape(model: str = "deepseek-v3", engine: str = "vllm") -> ReplicaShape:
    """Return a deployment over eight H200."""
    return make_shape("h200-sxm-141gb", model, engine=engine, tensor_parallel_size=8)


def test_a_key_is_a_product_and_its_copies() -> None:
    """61 layers, 16 heads of 256 from 512 in 16 bit, and 21 KB moved: between its peaks and three times as long."""
    expansion = expansion_of(stage_of(latent_shape()))

    assert 1.0 < expansion.product / (61 * 2 * 512 * 16 * 256 / 989.4e12) < 3.0
    copied = 2 * 576 + 2 * 576 + 2 * 16 * (2 * 128 + 64)
    assert 1.0 < expansion.copies / (61 * copied / 4.8e12) < 3.0


@pytest.mark.parametrize(
    ("model", "engine"), [("llama-3.1-70b", "vllm"), ("deepseek-v3.2", "vllm"), ("deepseek-v2-lite", "llama.cpp")]
)
def test_keys_that_are_read_as_they_are_stored_are_not_expanded(model: str, engine: str) -> None:
    """Heads, sparse attention, and engines that attend to latent keys."""
    ranks = {"deepseek-v2-lite": 1}.get(model, 8)
    shape = make_shape("h200-sxm-141gb", model, engine=engine, tensor_parallel_size=ranks)

    assert expansion_of(stage_of(shape)).seconds == 0.0


def test_chunks_expand_earlier_tokens_and_their_own_no_second_time() -> None:
    """Four chunks read 49,152 earlier keys; what they read of their own is in the products of their tokens."""
    shape = latent_shape()
    times, stage = price(shape, CHUNK).step_times, stage_of(shape)
    expansion = expansion_of(stage)
    charged, own = stage.nothing(1), np.array([float(CHUNK)])
    expansion.take_own(charged, own)

    few = FEW_TOKENS * expansion.seconds
    assert charged.parts.sum() + CHUNK * expansion.seconds == pytest.approx(few)
    assert times.prefill_context_seconds > expansion.seconds
    earlier = sum(range(0, PROMPT, CHUNK)) * expansion.seconds
    pairs = times.prefill_pair_seconds * PROMPT * (PROMPT + 1) / 2
    assert 0.01 < earlier / (4 * times.token_seconds[CHUNK] + pairs) < 0.05


def test_more_tokens_take_no_less_time() -> None:
    """With the keys that they read, steps of prompts grow with their tokens."""
    times = price(latent_shape(), 4096).step_times
    tokens = np.arange(1, 4097)

    assert np.all(np.diff(np.array(times.token_seconds)[tokens] + times.prefill_context_seconds * tokens) > -1e-9)
