"""Worked examples, section "KV cache": bytes of keys and values, recomputation and score matrices."""

from __future__ import annotations

import math

import pytest

from simserve.perf.attention import score_bytes
from simserve.profiles.catalog import load_model
from simserve.profiles.hf_config import from_hf_config
from simserve.profiles.model import ModelProfile
from simserve.sim.simulate import replay
from simserve.validation import validate
from tests.builders import affine_step_times, make_config, make_specs

FP16 = 2
INT8 = 1
INT4 = 0.5


def kv_bytes(model: str | ModelProfile, num_tokens: int, bytes_per_element: float = FP16) -> float:
    """Return the KV bytes of so many tokens of a model."""
    profile = load_model(model) if isinstance(model, str) else model
    return num_tokens * profile.kv_bytes_per_token(bytes_per_element)


def with_kv_heads(name: str, num_kv_heads: int, num_heads: int | None = None) -> ModelProfile:
    """Return a bundled model with another number of key-value (and query) heads."""
    model = load_model(name)
    fields = {
        "num_key_value_heads": num_kv_heads,
        "num_attention_heads": num_heads or model.num_attention_heads,
    }
    return validate(ModelProfile, model.model_dump() | fields)


@pytest.mark.parametrize("name", ["llama-2-70b", "llama-3-70b"])
@pytest.mark.parametrize(
    ("num_tokens", "gigabytes"), [(2048, 0.671), (32 * 2048, 21.5), (4096, 1.342), (131_072, 42.95)]
)
def test_grouped_query_70b(name: str, num_tokens: int, gigabytes: float) -> None:
    """Llama-2/3-70B, 8 KV heads, FP16: 327,680 bytes a token."""
    assert load_model(name).kv_bytes_per_token(FP16) == 327_680
    assert kv_bytes(name, num_tokens) == pytest.approx(gigabytes * 1e9, rel=2e-3)


def test_multi_head_70b() -> None:
    """The same with 64 KV heads: 10.74 GB at 4,096 tokens."""
    assert kv_bytes(with_kv_heads("llama-3-70b", 64), 4096) == pytest.approx(10.74e9, rel=1e-3)


@pytest.mark.parametrize("num_requests", [1, 10, 50])
@pytest.mark.parametrize(("num_tokens", "gigabytes"), [(512, 0.268), (2048, 1.07), (4096, 2.147), (8192, 4.29)])
def test_llama_2_7b(num_tokens: int, gigabytes: float, num_requests: int) -> None:
    """Llama-2-7B, 32 KV heads, FP16: 524,288 bytes a token; so many requests take so many times it."""
    assert load_model("llama-2-7b").kv_bytes_per_token(FP16) == 524_288
    total = kv_bytes("llama-2-7b", num_requests * num_tokens)
    assert total == pytest.approx(num_requests * gigabytes * 1e9, rel=4e-3)


def test_llama_3_8b() -> None:
    """131,072 bytes a token: 0.537 GB at 4,096 tokens, 17.18 GB (16 GiB, published as "16 GB") at 131,072."""
    assert load_model("llama-3-8b").kv_bytes_per_token(FP16) == 131_072
    assert kv_bytes("llama-3-8b", 4096) == pytest.approx(0.537e9, rel=1e-3)
    assert kv_bytes("llama-3-8b", 131_072) == 16 * 2**30


def test_gpt_3() -> None:
    """GPT-3 175B: 4,718,592 bytes a token; 19.3 GB at 4,096 tokens, 618 GB at 131,072."""
    assert load_model("gpt-3-175b").kv_bytes_per_token(FP16) == 4_718_592
    assert kv_bytes("gpt-3-175b", 4096) == pytest.approx(19.3e9, rel=2e-3)
    assert kv_bytes("gpt-3-175b", 131_072) == pytest.approx(618e9, rel=2e-3)


def test_gpt_3_batch_of_16() -> None:
    """GPT-3 175B, 16 sequences of 4,096 tokens take 309 GB; the published 24 GB is 13 times too low."""
    total = kv_bytes("gpt-3-175b", 16 * 4096)

    assert total == pytest.approx(309e9, rel=2e-3)
    assert total / 24e9 == pytest.approx(13, rel=0.01)


def test_latent_attention() -> None:
    """DeepSeek-V3, BF16: 70,272 bytes a token, the same on every tensor-parallel rank."""
    config = {
        "model_type": "deepseek_v3",
        "hidden_size": 7168,
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "intermediate_size": 18432,
        "vocab_size": 129280,
        "max_position_embeddings": 163840,
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
    }
    model = from_hf_config(config)

    assert {model.kv_bytes_per_token(2, ranks) for ranks in (1, 2, 4, 8, 16)} == {70_272}


def test_multi_query_against_multi_head() -> None:
    """64 heads: one KV head is 64 times smaller."""
    multi_head, multi_query = with_kv_heads("llama-2-70b", 64), with_kv_heads("llama-2-70b", 1)

    assert multi_head.kv_bytes_per_token(FP16) / multi_query.kv_bytes_per_token(FP16) == 64


def test_four_groups_against_multi_head() -> None:
    """32 heads: four KV heads are 8 times smaller."""
    multi_head, grouped = load_model("llama-2-7b"), with_kv_heads("llama-2-7b", 4)

    assert multi_head.kv_bytes_per_token(FP16) / grouped.kv_bytes_per_token(FP16) == 8


def test_kv_against_int4_weights() -> None:
    """One request's KV exceeds 7e9 INT4 weights from 6,676 tokens; published "at 4K", where it is 2.15 GB."""
    nominal = load_model("llama-2-7b").model_dump() | {"num_parameters_nominal": 7e9}
    model = validate(ModelProfile, nominal)
    weights_bytes = model.num_linear_parameters * INT4

    assert weights_bytes == 3.5e9
    assert math.ceil(weights_bytes / model.kv_bytes_per_token(FP16)) == 6676
    assert kv_bytes(model, 4096) == pytest.approx(2.15e9, rel=2e-3)


def test_llama_2_13b() -> None:
    """Llama-2-13B, 40 KV heads, 4,096 tokens: 3.36 GB FP16, 1.68 INT8; published 1 and 0.5 are wrong."""
    assert kv_bytes("llama-2-13b", 4096, FP16) == pytest.approx(3.36e9, rel=2e-3)
    assert kv_bytes("llama-2-13b", 4096, INT8) == pytest.approx(1.68e9, rel=2e-3)


def test_the_hidden_size_formula_is_for_multi_head_only() -> None:
    """``2 x layers x hidden x length`` is 8 times too high for a GQA 70B, of which 32 x 4,096 take 43 GB."""
    grouped, multi_head = load_model("llama-3-70b"), with_kv_heads("llama-3-70b", 64)
    formula = 2 * grouped.num_hidden_layers * grouped.hidden_size * FP16

    assert multi_head.kv_bytes_per_token(FP16) == formula
    assert formula / grouped.kv_bytes_per_token(FP16) == 8
    assert kv_bytes(grouped, 32 * 4096) == pytest.approx(43e9, rel=2e-3)


def seconds_of_one_token_each(kv_allocation: str) -> float:
    """Return how long 100 tokens from a prompt of one take where a token computed is a second."""
    config = make_config(kv_allocation=kv_allocation, max_model_len=128, max_num_seqs=1, max_num_batched_tokens=128)
    times = affine_step_times(
        max_num_seqs=1, step_seconds=0.0, token_seconds=1.0, decode_sequence_seconds=1.0, num_table_tokens=128
    )
    return float(replay(config, times, make_specs([0.0], 1, 100)).records.finish_time[0])


def test_generating_without_a_cache() -> None:
    """100 tokens from one: 5,050 token computations without a cache against 100 with it, 50 times."""
    without, with_cache = seconds_of_one_token_each("none"), seconds_of_one_token_each("paged")

    assert (without, with_cache) == (5050, 100)
    assert without / with_cache == pytest.approx(50, rel=0.02)


def test_attention_matrix_of_a_standard_kernel() -> None:
    """4,096 tokens, 32 heads, FP32: 2.15 GB; 131,072 tokens, one head, FP16: 34.4 GB."""
    assert score_bytes(4096, 4096, 32, 4) == pytest.approx(2.15e9, rel=2e-3)
    assert score_bytes(131_072, 131_072, 1, FP16) == pytest.approx(34.4e9, rel=2e-3)
