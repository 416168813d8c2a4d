"""Models of 2026: their ``config.json`` gives the bundled profile, whose layers count as their code has them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simserve import api
from simserve.errors import ProfileError
from simserve.perf.stage import stage_of, stage_seconds
from simserve.profiles.catalog import load_model
from simserve.profiles.hf_config import from_hf_config
from simserve.scenario.resolve import resolve
from tests.profiles.test_catalogue_runs import smallest_fit

NOT_ARCHITECTURE = {"architecture", "name", "source", "checkpoints", "num_parameters_advertised"}
GEMMA_4_E: dict[str, Any] = {
    "model_type": "gemma4_text",
    "num_attention_heads": 8,
    "head_dim": 256,
    "global_head_dim": 512,
    "num_global_key_value_heads": None,
    "attention_k_eq_v": False,
    "enable_moe_block": False,
    "sliding_window": 512,
    "vocab_size": 262144,
    "vocab_size_per_layer_input": 262144,
    "hidden_size_per_layer_input": 256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
}
LING_3: dict[str, Any] = {
    "model_type": "bailing_hybrid",
    "head_dim": 128,
    "vocab_size": 157184,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "short_conv_kernel_size": 4,
    "no_kda_lora": True,
    "kda_safe_gate": True,
    "kda_lower_bound": -5.0,
    "gated_attention_proj_granularity_type": "head_wise",
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "kv_lora_rank": 512,
    "use_qk_norm": True,
    "num_shared_experts": 1,
    "num_experts_per_tok": 8,
    "n_group": 8,
    "topk_group": 4,
}
AFMOE: dict[str, Any] = {
    "model_type": "afmoe",
    "global_attn_every_n_layers": 4,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "n_group": 1,
    "num_expert_groups": 1,
    "num_limited_groups": 1,
    "num_shared_experts": 1,
    "topk_group": 1,
    "tie_word_embeddings": False,
    "vocab_size": 200192,
}
LAGUNA: dict[str, Any] = {
    "model_type": "laguna",
    "vocab_size": 100352,
    "head_dim": 128,
    "num_key_value_heads": 8,
    "tie_word_embeddings": False,
    "attention_bias": False,
}
LFM2: dict[str, Any] = {
    "model_type": "lfm2",
    "block_auto_adjust_ff_dim": True,
    "block_ffn_dim_multiplier": 1.0,
    "block_multiple_of": 256,
    "conv_L_cache": 3,
    "conv_bias": False,
    "full_attn_idxs": [2, 5, 8, 10, 12, 14],
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "vocab_size": 65536,
    "max_position_embeddings": 128000,
}
WINDOWED = ["full_attention", "sliding_attention", "sliding_attention", "sliding_attention"]
SEEING = (0, 7, 15, 23, 31, 39, 47, 55, 62, 69)

PUBLISHED: dict[str, dict[str, Any]] = {
    "gemma-4-e2b": {
        "model_type": "gemma4",
        "text_config": {
            **GEMMA_4_E,
            "hidden_size": 1536,
            "num_hidden_layers": 35,
            "num_key_value_heads": 1,
            "num_kv_shared_layers": 20,
            "use_double_wide_mlp": True,
            "intermediate_size": 6144,
            "layer_types": [
                "sliding_attention",
                "sliding_attention",
                "sliding_attention",
                "sliding_attention",
                "full_attention",
            ]
            * 7,
        },
    },
    "gemma-4-e4b": {
        "model_type": "gemma4",
        "text_config": {
            **GEMMA_4_E,
            "hidden_size": 2560,
            "num_hidden_layers": 42,
            "num_key_value_heads": 2,
            "num_kv_shared_layers": 18,
            "use_double_wide_mlp": False,
            "intermediate_size": 10240,
            "layer_types": [
                "sliding_attention",
                "sliding_attention",
                "sliding_attention",
                "sliding_attention",
                "sliding_attention",
                "full_attention",
            ]
            * 7,
        },
    },
    "ling-3.0-flash": {
        **LING_3,
        "hidden_size": 2560,
        "num_hidden_layers": 42,
        "intermediate_size": 6144,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "layer_group_size": 6,
        "first_k_dense_replace": 2,
        "num_experts": 512,
        "moe_intermediate_size": 768,
        "moe_shared_expert_intermediate_size": 768,
        "q_lora_rank": None,
        "num_nextn_predict_layers": 1,
    },
    "ling-3.0-tiny": {
        **LING_3,
        "hidden_size": 1536,
        "num_hidden_layers": 24,
        "intermediate_size": 4608,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "layer_group_size": 4,
        "first_k_dense_replace": 1,
        "num_experts": 128,
        "moe_intermediate_size": 512,
        "moe_shared_expert_intermediate_size": 512,
        "q_lora_rank": 256,
    },
    "qwen3.8-2.4t-a95b": {
        "model_type": "qwen3_5_moe_text",
        "num_hidden_layers": 92,
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "hidden_size": 8192,
        "moe_intermediate_size": 2048,
        "shared_expert_intermediate_size": 2048,
        "full_attention_interval": 4,
        "num_attention_heads": 64,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_key_head_dim": 128,
        "linear_num_value_heads": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "vocab_size": 248320,
        "max_position_embeddings": 262144,
        "mtp_num_hidden_layers": 1,
        "tie_word_embeddings": False,
    },
    "mimo-v2.5-pro": {
        "model_type": "mimo_v2",
        "add_full_attention_sink_bias": False,
        "add_swa_attention_sink_bias": True,
        "attention_bias": False,
        "attention_chunk_size": 128,
        "head_dim": 192,
        "hidden_size": 6144,
        "hybrid_layer_pattern": [int(layer not in SEEING) for layer in range(70)],
        "intermediate_size": 16384,
        "max_position_embeddings": 1048576,
        "moe_intermediate_size": 2048,
        "moe_layer_freq": [0] + [1] * 69,
        "n_group": 1,
        "n_routed_experts": 384,
        "n_shared_experts": None,
        "num_attention_heads": 128,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 70,
        "num_key_value_heads": 8,
        "sliding_window": 128,
        "sliding_window_size": 128,
        "swa_head_dim": 192,
        "swa_num_attention_heads": 128,
        "swa_num_key_value_heads": 8,
        "swa_v_head_dim": 128,
        "tie_word_embeddings": False,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "v_head_dim": 128,
        "vocab_size": 152576,
    },
    "trinity-nano-6b": {
        **AFMOE,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "moe_intermediate_size": 256,
        "num_attention_heads": 8,
        "num_dense_layers": 2,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 56,
        "num_key_value_heads": 2,
        "sliding_window": 2048,
    },
    "trinity-mini-26b": {
        **AFMOE,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 1024,
        "num_attention_heads": 32,
        "num_dense_layers": 2,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 32,
        "num_key_value_heads": 4,
        "sliding_window": 2048,
    },
    "trinity-large-400b": {
        **AFMOE,
        "hidden_size": 3072,
        "intermediate_size": 12288,
        "moe_intermediate_size": 3072,
        "num_attention_heads": 48,
        "num_dense_layers": 6,
        "num_experts": 256,
        "num_experts_per_tok": 4,
        "num_hidden_layers": 60,
        "num_key_value_heads": 8,
        "sliding_window": 4096,
    },
    "north-mini-code-1.0": {
        "model_type": "cohere2_moe",
        "hidden_size": 2048,
        "head_dim": 128,
        "num_hidden_layers": 49,
        "intermediate_size": 768,
        "prefix_dense_intermediate_size": 3072,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "vocab_size": 262144,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "num_shared_experts": 0,
        "first_k_dense_replace": 1,
        "sliding_window": 4096,
        "max_position_embeddings": 500000,
        "use_parallel_block": True,
        "use_qk_norm": False,
        "tie_word_embeddings": None,
        "layer_types": WINDOWED * 12 + ["full_attention"],
    },
    "command-a-plus": {
        "model_type": "cohere2_vision",
        "text_config": {
            "model_type": "cohere2_moe",
            "hidden_size": 4096,
            "num_hidden_layers": 32,
            "num_attention_heads": 128,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "vocab_size": 262144,
            "intermediate_size": 4096,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "num_shared_experts": 4,
            "sliding_window": 4096,
            "max_position_embeddings": 200000,
            "first_k_dense_replace": 0,
            "tie_word_embeddings": True,
            "use_qk_norm": False,
            "attention_bias": False,
            "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"] * 8,
        },
    },
    "laguna-xs-2.1": {
        **LAGUNA,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 40,
        "num_attention_heads": 48,
        "sliding_window": 512,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "mlp_only_layers": [0],
        "gating": "per-head",
        "max_position_embeddings": 262144,
        "layer_types": WINDOWED * 10,
        "mlp_layer_types": ["dense"] * 1 + ["sparse"] * 39,
        "num_attention_heads_per_layer": [48, 64, 64, 64] * 10,
    },
    "laguna-m.1": {
        **LAGUNA,
        "hidden_size": 4096,
        "intermediate_size": 16384,
        "num_hidden_layers": 70,
        "num_attention_heads": 64,
        "gating": "per-element",
        "num_experts": 256,
        "num_experts_per_tok": 16,
        "moe_intermediate_size": 1024,
        "shared_expert_intermediate_size": 1024,
        "mlp_layer_types": ["dense"] * 3 + ["sparse"] * 67,
        "max_position_embeddings": 262144,
    },
    "laguna-s-2.1": {
        **LAGUNA,
        "hidden_size": 3072,
        "intermediate_size": 12288,
        "num_hidden_layers": 48,
        "num_attention_heads": 48,
        "sliding_window": 512,
        "num_experts": 256,
        "num_experts_per_tok": 10,
        "moe_intermediate_size": 1024,
        "shared_expert_intermediate_size": 1024,
        "mlp_only_layers": [0],
        "gating": "per-head",
        "max_position_embeddings": 1048576,
        "layer_types": WINDOWED * 12,
        "mlp_layer_types": ["dense"] * 1 + ["sparse"] * 47,
        "num_attention_heads_per_layer": [48, 72, 72, 72] * 12,
    },
    "lfm2-8b-a1b": {
        "model_type": "lfm2_moe",
        "vocab_size": 65536,
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
    "lfm2-1.2b": {**LFM2, "block_ff_dim": 12288, "hidden_size": 2048, "num_attention_heads": 32},
    "lfm2-350m": {**LFM2, "block_ff_dim": 6656, "hidden_size": 1024, "num_attention_heads": 16},
}


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_a_published_configuration_gives_the_bundled_profile(name: str) -> None:
    """Every field of the architecture."""
    found, bundled = from_hf_config(PUBLISHED[name]), load_model(name)

    assert found.model_dump(exclude=NOT_ARCHITECTURE) == bundled.model_dump(exclude=NOT_ARCHITECTURE)


def test_layers_that_share_keys_project_queries_alone_and_cache_nothing() -> None:
    """Gemma 4 E2B: 15 of 35 layers cache, 12 of them a window; the other 20 read what two of these have cached."""
    groups = {
        (each.shares_keys, bool(each.num_sliding_layers)): each for each in load_model("gemma-4-e2b").attention_layers
    }

    assert {kind: each.num_layers for kind, each in groups.items()} == {
        (False, False): 3,
        (False, True): 12,
        (True, False): 4,
        (True, True): 16,
    }
    own, shared = groups[False, True], groups[True, True]
    assert [own.gemms()[0].out_features, shared.gemms()[0].out_features] == [(8 + 2) * 256, 8 * 256]
    assert [own.kv_bytes_per_token(2), shared.kv_bytes_per_token(2)] == [1024, 0]
    assert own.entry_bytes(2) == shared.entry_bytes(2) == own.read_bytes(2) == shared.read_bytes(2) == 1024


def test_the_layers_that_share_keys_have_a_wide_mlp_in_gemma_4_e2b() -> None:
    """Twice 6,144 in the last 20 of 35; those of E4B are alike."""
    small, large = load_model("gemma-4-e2b"), load_model("gemma-4-e4b")

    widths = [
        [(model.mlp_gemms(layer)[1].in_features, count) for layer, count in model.mlp_kinds()]
        for model in (small, large)
    ]

    assert widths == [[(6144, 15), (12288, 20)], [(10240, 42)]]


def test_the_embedding_of_layers_is_no_part_of_the_effective_size() -> None:
    """2.3 B effective of E2B, 4.6 of E4B (4.5 in its model card); the table is an embedding, cut over the ranks."""
    models = [load_model("gemma-4-e2b"), load_model("gemma-4-e4b")]

    tables = [262144 * 256 * model.num_hidden_layers for model in models]

    assert [model.num_embedding_parameters - 262144 * model.hidden_size for model in models] == tables
    effective = [(model.num_parameters - table) / 1e9 for model, table in zip(models, tables, strict=True)]
    assert effective == pytest.approx([2.3, 4.64], rel=0.01)


def test_layers_that_share_keys_take_no_blocks_of_vllm_s_pool() -> None:
    """Three layers that see everything make a group of Gemma 4 E2B, and twelve with a window four more."""
    windows = resolve(api.load("chatbot", ["model=gemma-4-e2b", "deployment.engine.version=0.33"])).memory.windows

    assert windows is not None
    assert (windows.full_groups, windows.window_groups) == (1, 4)
    assert "(3 layers x " in windows.lines[0]


@pytest.mark.parametrize("name", ["gemma-4-e2b", "lfm2-1.2b", "gemma-3n-e4b", "falcon-h1-7b"])
def test_a_step_takes_at_least_its_weights(name: str) -> None:
    """Of every matrix that a token passes: those of layer inputs, copies and convolutions, not the table."""
    shape, _ = smallest_fit("h200-sxm-141gb", name, "vllm")
    stage, model = stage_of(shape), shape.model

    seconds = stage_seconds(stage, np.array([1.0]), has_prompts=False).parts.sum()

    weights = sum(count * gemm.num_weights for count, gemm in model.gemms_beside_experts()) * 2
    assert weights / stage.machine.bandwidth < seconds < 5 * weights / stage.machine.bandwidth


def test_a_short_convolution_keeps_two_inputs_a_channel() -> None:
    """LFM2-1.2B: ten layers of 2,048 channels in 16 bit, whatever the length; six layers cache keys of eight heads."""
    model = load_model("lfm2-1.2b")

    assert model.state_bytes() == 10 * 2048 * 2 * 2
    assert model.kv_bytes_per_token(2) == 6 * 2 * 8 * 64 * 2
    assert [(gemm.name, gemm.out_features, gemm.in_features) for gemm in model.linear_attention_gemms(2)] == [
        ("conv_in", 3 * 1024, 2048),
        ("conv_out", 2048, 1024),
    ]


def test_ling_3_projects_the_decay_of_every_channel_at_once() -> None:
    """Of 35 layers: queries, keys, values and gate, a number a head, a decay a channel; 7 have a gate a head."""
    model = load_model("ling-3.0-flash")

    delta = {gemm.name: gemm.out_features for gemm in model.linear_attention_gemms()}
    latent = {gemm.name: gemm.out_features for gemm in model.attention_gemms()}

    assert delta == {"linear_qkvz": 4 * 4096, "linear_b": 32, "linear_decay": 4096, "linear_output": 2560}
    assert latent["head_gate"] == 32
    assert model.rare_layers == "models with Kimi Delta Attention"


def test_layers_that_share_keys_are_told_apart_by_their_types() -> None:
    """Without them a file does not say which of the last layers have a window."""
    text = {key: value for key, value in PUBLISHED["gemma-4-e4b"]["text_config"].items() if key != "layer_types"}

    with pytest.raises(ProfileError) as refused:
        from_hf_config({"model_type": "gemma4", "text_config": text})

    assert refused.value.key == "layer_types"


def test_the_heads_of_laguna_must_be_alike_in_layers_of_a_type() -> None:
    """Others have no formula."""
    heads = [48] * 39 + [64]

    with pytest.raises(ProfileError) as refused:
        from_hf_config({**PUBLISHED["laguna-xs-2.1"], "num_attention_heads_per_layer": heads})

    assert refused.value.key == "num_attention_heads_per_layer"
