"""Models named since summer 2026: their ``config.json`` gives the bundled profile, whose layers count as their code has
them."""

from __future__ import annotations

from typing import Any

import pytest

from simserve.errors import ProfileError
from simserve.profiles.catalog import load_model
from simserve.profiles.hf_config import from_hf_config
from tests.profiles.test_models_of_2026 import NOT_ARCHITECTURE

SLIDING = ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"]
OPT: dict[str, Any] = {"model_type": "opt", "vocab_size": 50272, "max_position_embeddings": 2048, "dtype": "float16"}
NEOX: dict[str, Any] = {
    "model_type": "gpt_neox",
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "dtype": "float16",
}
PUBLISHED: dict[str, dict[str, Any]] = {
    "mellum2-12b-a2.5b": {
        "model_type": "mellum",
        "vocab_size": 98304,
        "hidden_size": 2304,
        "intermediate_size": 7168,
        "num_hidden_layers": 28,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": False,
        "sliding_window": 1024,
        "moe_intermediate_size": 896,
        "num_experts_per_tok": 8,
        "num_experts": 64,
        "layer_types": SLIDING * 7,
        "mlp_layer_types": ["sparse"] * 28,
    },
    "muse-glimmer-30b": {
        "model_type": "muse_glimmer",
        "text_config": {
            "model_type": "muse_glimmer_text",
            "vocab_size": 202048,
            "hidden_size": 6656,
            "intermediate_size": 19968,
            "num_hidden_layers": 52,
            "num_attention_heads": 32,
            "num_key_value_heads": 2,
            "head_dim": 128,
            "max_position_embeddings": 131072,
            "tie_word_embeddings": False,
            "sliding_window": 2048,
            "layer_types": SLIDING * 13,
        },
        "vision_config": {
            "model_type": "muse_glimmer_vision",
            "patch_size": 14,
            "pos_emb_height": 32,
            "pos_emb_width": 32,
            "num_attention_heads": 16,
            "num_hidden_layers": 50,
            "hidden_size": 1536,
            "intermediate_size": 8960,
            "merge_size": 2,
        },
    },
    "exaone-4.5-33b": {
        "model_type": "exaone4_5",
        "tie_word_embeddings": False,
        "vocab_size": 153600,
        "text_config": {
            "model_type": "exaone4_5_text",
            "hidden_size": 5120,
            "intermediate_size": 27392,
            "num_hidden_layers": 64,
            "num_attention_heads": 40,
            "num_key_value_heads": 8,
            "max_position_embeddings": 262144,
            "sliding_window": 4096,
            "sliding_window_pattern": "LLLG",
            "layer_types": SLIDING * 16,
            "num_nextn_predict_layers": 1,
        },
        "vision_config": {
            "model_type": "exaone4_5_vision",
            "depth": 28,
            "fullatt_block_indexes": [6, 13, 20, 27],
            "hidden_size": 2048,
            "intermediate_size": 5120,
            "num_heads": 32,
            "num_key_value_heads": 8,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "window_size": 112,
        },
    },
    "olmo-hybrid-7b": {
        "model_type": "olmo_hybrid",
        "vocab_size": 100352,
        "hidden_size": 3840,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 30,
        "num_key_value_heads": 30,
        "max_position_embeddings": 65536,
        "tie_word_embeddings": False,
        "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 8,
        "linear_num_key_heads": 30,
        "linear_num_value_heads": 30,
        "linear_key_head_dim": 96,
        "linear_value_head_dim": 192,
        "linear_conv_kernel_dim": 4,
    },
    "bamba-9b": {
        "model_type": "bamba",
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "tie_word_embeddings": False,
        "attn_layer_indices": [9, 18, 27],
        "mamba_n_heads": 128,
        "mamba_d_head": 64,
        "mamba_n_groups": 1,
        "mamba_d_state": 128,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_conv_bias": True,
        "mamba_proj_bias": False,
    },
    "hy4-preview": {
        "model_type": "hy_v4",
        "vocab_size": 120832,
        "hidden_size": 6144,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "num_hidden_layers": 78,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "q_lora_rank": 2048,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 192,
        "qk_rope_head_dim": 64,
        "v_head_dim": 256,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "mlp_layer_types": ["dense"] + ["sparse"] * 77,
        "layer_types": ["indexed_attention"] * 78,
        "index_topk": 2048,
        "index_head_dim": 128,
        "index_n_heads": 32,
        "indexer_types": ["full"] + ["full", "shared", "shared", "shared"] * 19 + ["full"],
        "hc_mult": 4,
        "max_position_embeddings": 1048576,
        "num_nextn_predict_layers": 1,
    },
    "nemotron-3-nano-4b": {
        "model_type": "nemotron_h",
        "vocab_size": 131072,
        "hidden_size": 3136,
        "intermediate_size": 12544,
        "num_hidden_layers": 42,
        "hybrid_override_pattern": "M-M-M-MM-M-M*-M-M*-M-M-M*-M-M-MM*-MMM-M-M-",
        "mamba_num_heads": 96,
        "mamba_head_dim": 80,
        "n_groups": 8,
        "ssm_state_size": 128,
        "conv_kernel": 4,
        "chunk_size": 256,
        "mamba_ssm_cache_dtype": "float32",
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 262144,
        "tie_word_embeddings": False,
    },
    "lfm2.5-8b-a1b": {
        "model_type": "lfm2_moe",
        "vocab_size": 128000,
        "hidden_size": 2048,
        "intermediate_size": 7168,
        "num_hidden_layers": 24,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "layer_types": ["full_attention" if layer in (2, 6, 10, 14, 18, 21) else "conv" for layer in range(24)],
        "conv_L_cache": 3,
        "conv_bias": False,
        "max_position_embeddings": 128000,
        "num_experts": 32,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 1792,
        "num_dense_layers": 2,
        "use_expert_bias": True,
    },
    "gpt-neox-20b": {
        **NEOX,
        "hidden_size": 6144,
        "intermediate_size": 24576,
        "num_hidden_layers": 44,
        "num_attention_heads": 64,
        "vocab_size": 50432,
    },
    "pythia-12b": {
        **NEOX,
        "hidden_size": 5120,
        "intermediate_size": 20480,
        "num_hidden_layers": 36,
        "num_attention_heads": 40,
        "vocab_size": 50688,
    },
    "opt-125m": {**OPT, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "ffn_dim": 3072},
    "opt-30b": {**OPT, "hidden_size": 7168, "num_hidden_layers": 48, "num_attention_heads": 56, "ffn_dim": 28672},
    "falcon-7b": {
        "model_type": "falcon",
        "bias": False,
        "hidden_size": 4544,
        "multi_query": True,
        "new_decoder_architecture": False,
        "num_attention_heads": 71,
        "num_hidden_layers": 32,
        "parallel_attn": True,
        "vocab_size": 65024,
    },
}


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_a_published_configuration_gives_the_bundled_profile(name: str) -> None:
    """Every field of the architecture; the sources of a tower's figures are words."""
    found, bundled = (model.model_dump(exclude=NOT_ARCHITECTURE) for model in _both(name))

    for each in (found, bundled):
        each["vision"] = {key: value for key, value in (each["vision"] or {}).items() if key != "source"}
    assert found == bundled


def _both(name: str) -> tuple[Any, Any]:
    return from_hf_config(PUBLISHED[name]), load_model(name)


def test_independent_streams_are_not_mixed_with_each_other() -> None:
    """Hy4: a weight to collapse and one to expand each of 4 streams, 8 rows; DeepSeek-V4 has 16 more to mix them."""
    independent, mixed = load_model("hy4-preview"), load_model("deepseek-v4-flash")

    rows = [{gemm.out_features for gemm in model.stream_gemms()} for model in (independent, mixed)]

    assert rows == [{8}, {24}]
    assert independent.residual_passes == mixed.residual_passes == 14


@pytest.mark.parametrize(
    ("changes", "gates"),
    [
        ({}, (True, False)),
        ({"gating_type": "headwise"}, (False, True)),
        ({"gated_mla": False}, (False, False)),
    ],
)
def test_the_gate_of_hy4_is_as_its_file_says(changes: dict[str, Any], gates: tuple[bool, bool]) -> None:
    """One number a value, one a head, or none."""
    model = from_hf_config({**PUBLISHED["hy4-preview"], **changes})

    assert (model.has_attention_gate, model.has_head_gate) == gates


@pytest.mark.parametrize(("name", "published"), [("exaone-4.5-33b", 1.2e9), ("muse-glimmer-30b", 1.92e9)])
def test_a_tower_has_the_published_weights(name: str, published: float) -> None:
    """EXAONE 4.5: 1.2 B, with 8 key-value heads for 32; Muse Glimmer: 1.92 B, with the projector."""
    tower = load_model(name).vision

    assert tower is not None
    assert tower.num_parameters == pytest.approx(published, rel=0.05)


def test_fewer_key_value_heads_make_a_tower_smaller() -> None:
    """Two of four matrices of attention shrink to a quarter."""
    tower = load_model("exaone-4.5-33b").vision
    assert tower is not None

    whole = tower.model_copy(update={"num_key_value_heads": None})

    assert whole.num_parameters - tower.num_parameters == 28 * 2 * (1 - 0.25) * 2048**2


def test_a_bamba_without_attention_is_refused() -> None:
    """Mamba-2 alone has no formula."""
    with pytest.raises(ProfileError, match="must have a layer of attention"):
        from_hf_config({**PUBLISHED["bamba-9b"], "attn_layer_indices": []})
