"""Attention layers in groups that are alike: heads, matrices, what the KV cache keeps of each."""

from __future__ import annotations

from typing import Any

import pytest

from simserve.errors import ProfileError
from simserve.profiles.catalog import load_model
from simserve.profiles.model_blocks import AttentionLayers
from tests.profiles.test_model import make_model

MAMBA = {"num_heads": 8, "head_dim": 8, "state_size": 16}
COMPRESSED = {
    "q_lora_rank": 16,
    "qk_rope_head_dim": 4,
    "num_output_groups": 2,
    "output_lora_rank": 8,
    "window": 8,
    "indexed_ratio": 4,
    "ratios": [0, 4, 8, 4],
}
INDEXER = {"num_heads": 2, "head_dim": 4, "topk": 8}
MOE = {"num_experts": 4, "num_experts_per_tok": 1, "moe_intermediate_size": 32}


def groups_of(name: str) -> dict[str, AttentionLayers]:
    """Return the groups of a catalogue model by their names."""
    return {layers.name: layers for layers in load_model(name).attention_layers}


def test_a_model_with_one_kind_of_attention_has_one_group() -> None:
    """Layers of a window with the heads of the others are counted in their group; linear layers are in none."""
    plain, windowed, hybrid = (
        load_model(name).attention_layers for name in ("llama-3-8b", "gpt-oss-120b", "qwen3.5-27b")
    )

    assert [len(groups) for groups in (plain, windowed, hybrid)] == [1, 1, 1]
    assert (windowed[0].num_layers, windowed[0].num_sliding_layers, windowed[0].sliding_window) == (36, 18, 128)
    assert hybrid[0].num_layers == 16


def test_layers_of_a_window_may_have_heads_of_their_own() -> None:
    """MiMo-V2-Flash: 9 layers with 4 key-value heads, 39 with 8 and sinks; keys of 192, values of 128."""
    groups = groups_of("mimo-v2-flash")
    full, sliding = groups["full"], groups["sliding"]

    assert (full.num_layers, full.num_kv_heads, full.sliding_window, full.has_sinks) == (9, 4, None, False)
    assert (sliding.num_layers, sliding.num_kv_heads, sliding.sliding_window, sliding.has_sinks) == (39, 8, 128, True)
    assert full.kv_bytes_per_token(2) == 4 * (192 + 128) * 2
    assert sliding.kv_bytes_per_token(2, 4) == 2 * (192 + 128) * 2
    assert [(gemm.out_features, gemm.in_features) for gemm in full.gemms()] == [
        (64 * 192 + 4 * (192 + 128), 4096),
        (4096, 64 * 128),
    ]


def test_values_may_be_the_keys_before_their_norm() -> None:
    """Gemma 4, 26B-A4B: wide heads without a value projection in 5 layers, whose values are cached all the same."""
    groups = groups_of("gemma-4-26b-a4b")

    assert groups["full"].gemms()[0].out_features == (16 + 2) * 512
    assert groups["sliding"].gemms()[0].out_features == (16 + 2 * 8) * 256
    assert groups["full"].kv_bytes_per_token(2) == 2 * 2 * 512 * 2


def test_a_head_may_have_a_gate_of_one_number() -> None:
    """Step-3.7-Flash: 96 gates in layers of a window, 64 in the others, split over the ranks."""
    gates = {
        name: [gemm.out_features for gemm in layers.gemms(8) if gemm.name == "head_gate"]
        for name, layers in groups_of("step-3.7-flash").items()
    }

    assert gates == {"full": [8], "sliding": [12]}


def test_layers_may_take_the_choice_of_another_layer() -> None:
    """GLM-5.2: an indexer with its matrices and its key of 132 bytes in 21 of 78 layers, 2,048 tokens in all."""
    with_indexer, without = load_model("glm-5.2").attention_layers

    assert (with_indexer.num_layers, without.num_layers) == (21, 57)
    assert with_indexer.kv_bytes_per_token(2) - without.kv_bytes_per_token(2) == 132
    assert len(with_indexer.gemms()) - len(without.gemms()) == 3
    assert with_indexer.topk == without.topk == 2048


def test_sparse_attention_keeps_all_keys_and_those_of_its_indexer() -> None:
    """MiniMax-M3: 57 layers choose 16 blocks of 128 and cache an index key of 128 in BF16; the first 3 see all."""
    groups = groups_of("minimax-m3")
    sparse, full = groups["sparse"], groups["full"]

    assert (sparse.num_layers, full.num_layers, sparse.topk, full.topk) == (57, 3, 2048, None)
    assert full.kv_bytes_per_token(2) == 2 * 4 * 128 * 2
    assert sparse.kv_bytes_per_token(1) == 2 * 4 * 128 + 256
    assert sparse.entry_bytes(1) == 2 * 4 * 128
    assert [(gemm.name, gemm.out_features) for gemm in sparse.gemms()[2:]] == [("index_q", 512), ("index_k", 128)]


def test_compressed_attention_keeps_an_entry_for_many_tokens() -> None:
    """DeepSeek-V4-Flash: 584 bytes for 4 tokens with an index key of 132, or for 128; whatever the cache's format."""
    groups = groups_of("deepseek-v4-flash")

    assert {name: layers.num_layers for name, layers in groups.items()} == {
        "window": 2,
        "compressed 4:1": 21,
        "compressed 128:1": 20,
    }
    assert groups["window"].kv_bytes_per_token(2) == 0
    assert groups["compressed 4:1"].kv_bytes_per_token(2) == (584 + 132) / 4
    assert groups["compressed 128:1"].kv_bytes_per_token(1, 8) == 584 / 128


def test_the_window_of_compressed_attention_is_a_state() -> None:
    """128 tokens of 584 bytes, and FP32 vectors and weights of the 8 or 128 tokens that are pooled next."""
    groups = groups_of("deepseek-v4-flash")
    window = 128 * 584
    fine = window + 8 * 2 * 2 * (512 + 128) * 4
    coarse = window + 128 * 2 * 512 * 4

    assert [layers.state_bytes for layers in groups.values()] == [window, fine, coarse]
    assert load_model("deepseek-v4-flash").state_bytes(8) == 2 * window + 21 * fine + 20 * coarse


def test_the_matrices_of_compressed_attention() -> None:
    """A layer of 4:1 on 8 ranks: 8 heads and a group of outputs each; all that makes vectors is on every rank."""
    gemms = {
        gemm.name: (gemm.out_features, gemm.in_features)
        for gemm in groups_of("deepseek-v4-flash")["compressed 4:1"].gemms(8)
    }

    assert gemms == {
        "q_a": (1024, 4096),
        "kv_a": (512, 4096),
        "q_b": (8 * 512, 1024),
        "output_a": (1024, 8 * 512),
        "output": (4096, 1024),
        "compressor": (2 * 2 * 512, 4096),
        "index_q": (64 * 128, 1024),
        "index_weights": (64, 4096),
        "index_compressor": (2 * 2 * 128, 4096),
    }


def test_mamba_layers_have_states_and_no_keys() -> None:
    """Nemotron 3 Nano: 64 heads of 64 with states of 128 in FP32, and 3 tokens of 6,144 channels, in 23 layers."""
    model = load_model("nemotron-3-nano-30b-a3b")
    gemms = model.linear_attention_gemms()

    assert (model.num_linear_layers, model.num_attention_layers, model.num_moe_layers) == (23, 6, 23)
    assert model.num_dense_layers == 0
    assert model.state_bytes(1) == 23 * (64 * 64 * 128 * 4 + 3 * (4096 + 2 * 8 * 128) * 2)
    assert [(gemm.out_features, gemm.in_features) for gemm in gemms] == [(2 * 4096 + 2048 + 64, 2688), (2688, 4096)]


def test_routed_experts_may_see_a_narrower_state() -> None:
    """Nemotron 3 Super: experts of 2,688 over 1,024 channels, which two matrices on every rank make of 4,096."""
    model = load_model("nemotron-3-super-120b-a12b")
    latent = [gemm for gemm in model.mlp_gemms(1, 8) if gemm.name.startswith("latent")]

    assert [(gemm.out_features, gemm.in_features, gemm.split) for gemm in latent] == [
        (1024, 4096, "replicated"),
        (4096, 1024, "replicated"),
    ]
    assert [(gemm.out_features, gemm.in_features) for gemm in model.expert_gemms()] == [(2688, 1024), (1024, 2688)]
    assert model.mlp_gemms(0) == []


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"layer_pattern": "M*M*", "moe": MOE}, "mamba and layers M"),
        ({"layer_pattern": "M*M", "mamba": MAMBA}, "4 letters"),
        ({"layer_pattern": "M*MX", "mamba": MAMBA}, "4 letters"),
        ({"layer_pattern": "M-M-", "mamba": MAMBA}, "a layer of attention"),
        ({"layer_pattern": "M*ME", "mamba": MAMBA}, "moe and layers E"),
        ({"mamba": MAMBA}, "mamba and layers M"),
        (
            {"sliding_heads": {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 8}},
            "needs sliding_window",
        ),
        ({"has_attention_sinks": "sliding"}, "needs sliding_heads"),
        ({"compressed_attention": COMPRESSED}, "indexer and layers of"),
        ({"compressed_attention": COMPRESSED | {"ratios": [0, 4]}, "indexer": INDEXER}, "one entry a layer"),
        (
            {"compressed_attention": COMPRESSED, "indexer": INDEXER, "sliding_window": 8, "num_sliding_layers": 2},
            "do not go together",
        ),
        ({"indexer": INDEXER, "sliding_window": 8, "num_sliding_layers": 2}, "does not go with sliding_window"),
    ],
)
def test_kinds_that_make_no_model_are_refused(fields: dict[str, Any], rule: str) -> None:
    """A profile names the two fields that contradict each other."""
    with pytest.raises(ProfileError, match=rule):
        make_model(**fields)
