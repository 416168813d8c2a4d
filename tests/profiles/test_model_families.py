"""The importer and the bundled profiles agree: one ``config.json`` of every architecture family gives its profile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from simserve.errors import ProfileError
from simserve.profiles import catalog
from simserve.profiles.catalog import load_model
from simserve.profiles.hf_config import from_hf_config
from simserve.profiles.model import ModelProfile
from simserve.validation import validate

CONFIGS = Path(__file__).resolve().parents[2] / "../shared/data/model_configs"
NOT_ARCHITECTURE = {"architecture", "name", "source", "tuned", "checkpoints", "num_parameters_advertised", "vision"}
"""Beside what a configuration gives: bundled profiles alone describe vision towers."""

# Reference configuration -> bundled profile. A configuration of another release of the same architecture may
# differ in the context it is made for.
REFERENCES = [
    ("deepseek-ai--DeepSeek-R1", "deepseek-r1", ()),
    ("deepseek-ai--DeepSeek-R1", "deepseek-v3", ()),
    ("mistralai--Mixtral-8x7B-v0.1", "mixtral-8x7b", ()),
    ("Qwen--Qwen3-30B-A3B-FP8", "qwen3-30b-a3b", ()),
    ("Qwen--Qwen3-235B-A22B-FP8", "qwen3-235b-a22b", ()),
    ("Qwen--Qwen3-32B-FP8-Static-PerTensor", "qwen3-32b", ()),
    ("openai--gpt-oss-20b", "gpt-oss-20b", ()),
    ("openai--gpt-oss-120b", "gpt-oss-120b", ()),
    ("meta-llama--Llama-4-Scout-17B-16E-Instruct", "llama-4-scout", ()),
    ("MiniMaxAI--MiniMax-M2.5", "minimax-m2", ()),
    ("moonshotai--Kimi-K2-Instruct", "kimi-k2", ()),
    ("moonshotai--Kimi-K2.5", "kimi-k2", ("max_position_embeddings",)),
    ("zai-org--GLM-5-FP8", "glm-5", ()),
    ("deepseek-ai--DeepSeek-V3.2", "deepseek-v3.2", ()),
    ("deepseek-ai--DeepSeek-V4-Flash", "deepseek-v4-flash", ()),
    ("sgl-project--DeepSeek-V4-Flash-FP8", "deepseek-v4-flash", ()),
    ("deepseek-ai--DeepSeek-V4-Pro", "deepseek-v4-pro", ()),
    ("zai-org--GLM-5.1", "glm-5.1", ()),
    ("zai-org--GLM-5.2-FP8", "glm-5.2", ()),
    ("zai-org--GLM-5.3-FP8", "glm-5.3", ()),
    ("Qwen--Qwen3.5-27B", "qwen3.5-27b", ()),
    ("Qwen--Qwen3.5-35B-A3B", "qwen3.5-35b-a3b", ()),
    ("Qwen--Qwen3.5-122B-A10B", "qwen3.5-122b-a10b", ()),
    ("MiniMaxAI--MiniMax-M2.7", "minimax-m2.7", ()),
    ("MiniMaxAI--MiniMax-M3", "minimax-m3", ()),
    ("nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "nemotron-3-nano-30b-a3b", ()),
    ("nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-FP8", "nemotron-3-super-120b-a12b", ()),
    ("nvidia--NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16", "nemotron-3-ultra-550b-a55b", ()),
    ("XiaomiMiMo--MiMo-V2-Flash", "mimo-v2-flash", ()),
    ("stepfun-ai--Step-3.7-Flash", "step-3.7-flash", ("sliding_heads", "max_position_embeddings")),
    ("nvidia--Gemma-4-26B-A4B-NVFP4", "gemma-4-26b-a4b", ()),
    ("nvidia--Gemma-4-31B-IT-NVFP4", "gemma-4-31b", ()),
    ("Qwen--Qwen3-VL-235B-A22B-Instruct", "qwen3-vl-235b-a22b", ()),
    ("Qwen--Qwen3-VL-32B-Instruct", "qwen3-vl-32b", ()),
    ("Qwen--Qwen3-Coder-480B-A35B-Instruct", "qwen3-coder-480b-a35b", ()),
]

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}

# The fields of published config.json files, by the profile they give.
PUBLISHED: dict[str, dict[str, Any]] = {
    "llama-3.2-3b": {
        **LLAMA,
        "head_dim": 128,
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "max_position_embeddings": 131072,
        "num_attention_heads": 24,
        "num_hidden_layers": 28,
        "num_key_value_heads": 8,
        "tie_word_embeddings": True,
        "vocab_size": 128256,
    },
    "codellama-34b": {
        **LLAMA,
        "hidden_size": 8192,
        "intermediate_size": 22016,
        "max_position_embeddings": 16384,
        "num_attention_heads": 64,
        "num_hidden_layers": 48,
        "num_key_value_heads": 8,
        "vocab_size": 32000,
    },
    "mixtral-8x22b": {
        **LLAMA,
        "model_type": "mixtral",
        "hidden_size": 6144,
        "intermediate_size": 16384,
        "max_position_embeddings": 65536,
        "num_attention_heads": 48,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 56,
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "sliding_window": None,
        "vocab_size": 32000,
    },
    "qwen2.5-72b": {
        **LLAMA,
        "model_type": "qwen2",
        "hidden_size": 8192,
        "intermediate_size": 29568,
        "max_position_embeddings": 32768,
        "max_window_layers": 70,
        "num_attention_heads": 64,
        "num_hidden_layers": 80,
        "num_key_value_heads": 8,
        "sliding_window": 131072,
        "use_sliding_window": False,
        "vocab_size": 152064,
    },
    "gemma-3-27b": {
        "model_type": "gemma3",
        "torch_dtype": "bfloat16",
        "text_config": {
            "model_type": "gemma3_text",
            "head_dim": 128,
            "hidden_size": 5376,
            "intermediate_size": 21504,
            "num_attention_heads": 32,
            "num_hidden_layers": 62,
            "num_key_value_heads": 16,
            "query_pre_attn_scalar": 168,
            "sliding_window": 1024,
        },
    },
    "phi-4": {
        **LLAMA,
        "model_type": "phi3",
        "hidden_size": 5120,
        "intermediate_size": 17920,
        "max_position_embeddings": 16384,
        "num_attention_heads": 40,
        "num_hidden_layers": 40,
        "num_key_value_heads": 10,
        "sliding_window": None,
        "vocab_size": 100352,
    },
    "phi-4-mini": {
        **LLAMA,
        "model_type": "phi3",
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "max_position_embeddings": 131072,
        "num_attention_heads": 24,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "sliding_window": 262144,
        "tie_word_embeddings": True,
        "vocab_size": 200064,
    },
    "gpt-j-6b": {
        "model_type": "gptj",
        "n_embd": 4096,
        "n_head": 16,
        "n_inner": None,
        "n_layer": 28,
        "n_positions": 2048,
        "rotary_dim": 64,
        "tie_word_embeddings": False,
        "torch_dtype": "float16",
        "vocab_size": 50400,
    },
    "opt-66b": {
        "model_type": "opt",
        "ffn_dim": 36864,
        "hidden_size": 9216,
        "max_position_embeddings": 2048,
        "num_attention_heads": 72,
        "num_hidden_layers": 64,
        "torch_dtype": "float16",
        "vocab_size": 50272,
        "word_embed_proj_dim": 9216,
    },
    "falcon-180b": {
        "model_type": "falcon",
        "bias": False,
        "hidden_size": 14848,
        "multi_query": True,
        "new_decoder_architecture": True,
        "num_attention_heads": 232,
        "num_hidden_layers": 80,
        "num_kv_heads": 8,
        "parallel_attn": True,
        "torch_dtype": "bfloat16",
        "vocab_size": 65024,
    },
    "bloom-176b": {
        "model_type": "bloom",
        "hidden_size": 14336,
        "n_head": 112,
        "n_layer": 70,
        "seq_length": 2048,
        "torch_dtype": "bfloat16",
        "vocab_size": 250880,
    },
    "deepseek-v4-flash": {
        "model_type": "deepseek_ref",
        "architectures": ["DeepseekV4ForCausalLM"],
        "compress_ratios": [0, 0, *[4, 128] * 20, 4, 0],
        "hc_mult": 4,
        "head_dim": 512,
        "hidden_size": 4096,
        "index_head_dim": 128,
        "index_n_heads": 64,
        "index_topk": 512,
        "max_position_embeddings": 1048576,
        "moe_intermediate_size": 2048,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_attention_heads": 64,
        "num_experts_per_tok": 6,
        "num_hash_layers": 3,
        "num_hidden_layers": 43,
        "num_key_value_heads": 1,
        "num_nextn_predict_layers": 1,
        "o_groups": 8,
        "o_lora_rank": 1024,
        "q_lora_rank": 1024,
        "qk_rope_head_dim": 64,
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
        "sliding_window": 128,
        "topk_method": "noaux_tc",
        "torch_dtype": "bfloat16",
        "vocab_size": 129280,
    },
    "glm-5.2": {
        "model_type": "glm_moe_dsa",
        "dtype": "bfloat16",
        "first_k_dense_replace": 3,
        "hidden_size": 6144,
        "index_head_dim": 128,
        "index_n_heads": 32,
        "index_skip_topk_offset": 3,
        "index_topk": 2048,
        "index_topk_freq": 4,
        "intermediate_size": 12288,
        "kv_lora_rank": 512,
        "max_position_embeddings": 1048576,
        "moe_intermediate_size": 2048,
        "moe_layer_freq": 1,
        "n_group": 1,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_attention_heads": 64,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 78,
        "num_key_value_heads": 64,
        "num_nextn_predict_layers": 1,
        "q_lora_rank": 2048,
        "qk_nope_head_dim": 192,
        "qk_rope_head_dim": 64,
        "tie_word_embeddings": False,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "v_head_dim": 256,
        "vocab_size": 154880,
    },
    "minimax-m3": {
        "model_type": "minimax_m3",
        "text_config": {
            "dense_intermediate_size": 12288,
            "dtype": "bfloat16",
            "head_dim": 128,
            "hidden_size": 6144,
            "intermediate_size": 3072,
            "max_position_embeddings": 1048576,
            "moe_layer_freq": [0] * 3 + [1] * 57,
            "n_shared_experts": 1,
            "num_attention_heads": 64,
            "num_experts_per_tok": 4,
            "num_hidden_layers": 60,
            "num_key_value_heads": 4,
            "num_local_experts": 128,
            "num_nextn_predict_layers": 1,
            "shared_intermediate_size": 3072,
            "sparse_attention_config": {
                "sparse_attention_freq": [0] * 3 + [1] * 57,
                "sparse_block_size": 128,
                "sparse_index_dim": 128,
                "sparse_num_index_heads": 4,
                "sparse_topk_blocks": 16,
                "use_sparse_attention": True,
            },
            "tie_word_embeddings": False,
            "use_qk_norm": True,
            "qk_norm_type": "per_head",
            "use_routing_bias": True,
            "vocab_size": 200064,
        },
    },
    "mimo-v2-flash": {
        "model_type": "mimo_v2_flash",
        "add_full_attention_sink_bias": False,
        "add_swa_attention_sink_bias": True,
        "attention_bias": False,
        "attention_chunk_size": 128,
        "head_dim": 192,
        "hidden_size": 4096,
        "hybrid_layer_pattern": [0, 1, 1, 1, 1, *[0, 1, 1, 1, 1, 1] * 7, 0],
        "intermediate_size": 16384,
        "max_position_embeddings": 262144,
        "moe_intermediate_size": 2048,
        "moe_layer_freq": [0] + [1] * 47,
        "n_routed_experts": 256,
        "n_shared_experts": None,
        "num_attention_heads": 64,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 48,
        "num_key_value_heads": 4,
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
        "sliding_window": 128,
        "swa_head_dim": 192,
        "swa_num_attention_heads": 64,
        "swa_num_key_value_heads": 8,
        "swa_v_head_dim": 128,
        "tie_word_embeddings": False,
        "topk_method": "noaux_tc",
        "torch_dtype": "bfloat16",
        "v_head_dim": 128,
        "vocab_size": 152576,
    },
    "step-3.7-flash": {
        "model_type": "step3p7",
        "text_config": {
            "model_type": "step3p7",
            "attention_other_setting": {"num_attention_heads": 96, "num_attention_groups": 8, "head_dim": 128},
            "head_dim": 128,
            "hidden_size": 4096,
            "intermediate_size": 11264,
            "layer_types": [*(["full_attention"] + ["sliding_attention"] * 3) * 12],
            "max_position_embeddings": 262144,
            "moe_intermediate_size": 1280,
            "moe_layers_enum": ",".join(map(str, range(3, 45))),
            "moe_num_experts": 288,
            "moe_top_k": 8,
            "num_attention_groups": 8,
            "num_attention_heads": 64,
            "num_hidden_layers": 45,
            "num_nextn_predict_layers": 3,
            "share_expert_dim": 1280,
            "sliding_window": 512,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
            "vocab_size": 128896,
        },
    },
    "gemma-4-26b-a4b": {
        "model_type": "gemma4",
        "text_config": {
            "model_type": "gemma4_text",
            "attention_bias": False,
            "attention_k_eq_v": True,
            "dtype": "bfloat16",
            "enable_moe_block": True,
            "global_head_dim": 512,
            "head_dim": 256,
            "hidden_size": 2816,
            "hidden_size_per_layer_input": 0,
            "intermediate_size": 2112,
            "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 5,
            "max_position_embeddings": 262144,
            "moe_intermediate_size": 704,
            "num_attention_heads": 16,
            "num_experts": 128,
            "num_global_key_value_heads": 2,
            "num_hidden_layers": 30,
            "num_key_value_heads": 8,
            "num_kv_shared_layers": 0,
            "sliding_window": 1024,
            "top_k_experts": 8,
            "vocab_size": 262144,
        },
    },
    "nemotron-3-super-120b-a12b": {
        "model_type": "nemotron_h",
        "attention_bias": False,
        "chunk_size": 128,
        "conv_kernel": 4,
        "dtype": "bfloat16",
        "head_dim": 128,
        "hidden_size": 4096,
        "intermediate_size": 2688,
        "layers_block_type": [
            {"M": "mamba", "*": "attention", "E": "moe"}[letter]
            for letter in "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME"
        ],
        "mamba_head_dim": 64,
        "mamba_num_heads": 128,
        "mamba_ssm_cache_dtype": "float32",
        "max_position_embeddings": 262144,
        "mlp_bias": False,
        "moe_intermediate_size": 2688,
        "moe_latent_size": 1024,
        "moe_shared_expert_intermediate_size": 5376,
        "n_group": 1,
        "n_groups": 8,
        "n_routed_experts": 512,
        "n_shared_experts": 1,
        "num_attention_heads": 32,
        "num_experts_per_tok": 22,
        "num_key_value_heads": 2,
        "num_nextn_predict_layers": 1,
        "ssm_state_size": 128,
        "tie_word_embeddings": False,
        "topk_group": 1,
        "use_bias": False,
        "use_conv_bias": True,
        "vocab_size": 131072,
    },
}


def architecture(model: ModelProfile, *beside: str) -> dict[str, Any]:
    """Return all that a profile says about the architecture, without the fields of ``beside``."""
    counted = {"moe": {"routing_decay", "routing_repeats"}}  # Of trained weights, which no configuration tells.
    return model.model_dump(exclude=dict.fromkeys(NOT_ARCHITECTURE, True) | counted | dict.fromkeys(beside, True))


@pytest.mark.parametrize(("config", "name", "beside"), REFERENCES)
def test_a_reference_configuration_gives_the_bundled_profile(config: str, name: str, beside: tuple[str, ...]) -> None:
    """Imported and bundled agree in every field of the architecture."""
    path = CONFIGS / f"{config}_config.json"
    if not path.is_file():
        pytest.skip(f"no reference configuration at {path}")

    assert architecture(load_model(str(path)), *beside) == architecture(load_model(name), *beside)


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_a_published_configuration_gives_the_bundled_profile(name: str) -> None:
    """The fields that the publisher states, with the defaults of the family, are the bundled profile."""
    assert architecture(from_hf_config(PUBLISHED[name])) == architecture(load_model(name))


@pytest.mark.parametrize(
    ("name", "fields", "key"),
    [
        ("deepseek-v4-flash", {"compress_ratios": [4] * 42}, "compress_ratios"),
        ("glm-5.2", {"indexer_types": ["full"] * 77}, "indexer_types"),
        ("glm-5.2", {"indexer_types": ["half"] * 78}, "indexer_types"),
        ("glm-5.2", {"mlp_layer_types": ["dense"] * 3}, "mlp_layer_types"),
        ("mimo-v2-flash", {"hybrid_layer_pattern": [0, 1]}, "hybrid_layer_pattern"),
        ("mimo-v2-flash", {"moe_layer_freq": [2] * 48}, "moe_layer_freq"),
        (
            "mimo-v2-flash",
            {"add_full_attention_sink_bias": True, "add_swa_attention_sink_bias": False},
            "add_full_attention_sink_bias",
        ),
        ("nemotron-3-super-120b-a12b", {"layers_block_type": ["lstm"]}, "layers_block_type"),
        ("nemotron-3-super-120b-a12b", {"hybrid_override_pattern": "MEX"}, "hybrid_override_pattern"),
        ("nemotron-3-super-120b-a12b", {"use_bias": True}, "use_bias"),
        ("deepseek-v4-flash", {"model_type": "deepseek_v3", "architectures": []}, "compress_ratios"),
    ],
)
def test_fields_of_a_family_that_make_no_model_are_named(name: str, fields: dict[str, Any], key: str) -> None:
    """Wrong lengths, unknown layers and switches without a formula are refused by the name of the field."""
    with pytest.raises(ProfileError) as refused:
        from_hf_config({**PUBLISHED[name], **fields})

    assert refused.value.key == key


@pytest.mark.parametrize(
    ("fields", "is_read"), [({"attn_type_list": [1] * 32}, True), ({"attn_type_list": [1, 0] * 16}, False)]
)
def test_softmax_layers_are_read_and_linear_ones_of_minimax_are_not(fields: dict[str, Any], is_read: bool) -> None:
    """MiniMax-M2 lists 1 for each layer; 0 is the linear attention of MiniMax-Text-01."""
    config = {**PUBLISHED["llama-3.2-3b"], **fields}

    if is_read:
        assert from_hf_config(config).num_attention_layers == 28
    else:
        with pytest.raises(ProfileError, match="linear attention"):
            from_hf_config(config)


@pytest.mark.parametrize("key", ["num_kv_shared_layers", "hidden_size_per_layer_input"])
def test_shared_keys_and_embeddings_of_layers_are_refused_where_no_family_has_them(key: str) -> None:
    """Of Gemma 4 and 3n they are read; of another family there is no formula, and no silent miscount."""
    text = {**PUBLISHED["gemma-4-26b-a4b"]["text_config"], "model_type": "gemma3_text", key: 20}

    with pytest.raises(ProfileError) as refused:
        from_hf_config({"model_type": "gemma3", "text_config": text})

    assert refused.value.key == key


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_what_is_imported_can_be_read_again(name: str) -> None:
    """A profile written as YAML and read gives the same model."""
    model = from_hf_config(PUBLISHED[name])

    assert validate(ModelProfile, yaml.safe_load(yaml.safe_dump(model.model_dump(mode="json")))) == model


CONFIG_FILES = sorted(path for path in CONFIGS.glob("*_config.json") if "hf_quant" not in path.name)


@pytest.mark.skipif(not CONFIG_FILES, reason="../shared/data is not here")
@pytest.mark.parametrize("path", CONFIG_FILES, ids=[path.name.removesuffix("_config.json") for path in CONFIG_FILES])
def test_every_public_configuration_is_read(path: Path) -> None:
    """None of the folder is refused, taken for a Llama, or without KV of its own."""
    model = load_model(str(path))

    assert not model.is_assumed
    assert model.kv_bytes_per_token(2) > 0


@pytest.mark.parametrize(("name", "like"), [("llama-3.3-70b", "llama-3.1-70b"), ("deepseek-v3", "deepseek-r1")])
def test_later_training_keeps_the_architecture(name: str, like: str) -> None:
    """A model trained further has the architecture of its base."""
    assert architecture(load_model(name)) == architecture(load_model(like))


def test_a_bundled_profile_names_the_repository_its_source_names() -> None:
    """Except models whose weights nobody can download."""
    for name in catalog.names("model"):
        model = load_model(name)

        if name in ("gpt-3-175b", "opt-175b"):
            assert model.huggingface_id is None, name
        else:
            assert model.huggingface_id in model.source, name


GRANITE = {
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "model_type": "granitemoehybrid",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "shared_intermediate_size": 8192,
    "layer_types": ["attention" if layer % 10 == 5 else "mamba" for layer in range(40)],
    "mamba_chunk_size": 256,
    "mamba_conv_bias": True,
    "mamba_d_conv": 4,
    "mamba_d_head": 64,
    "mamba_d_state": 128,
    "mamba_expand": 2,
    "mamba_n_groups": 1,
    "mamba_n_heads": 64,
    "mamba_proj_bias": False,
    "max_position_embeddings": 131072,
    "num_attention_heads": 32,
    "num_experts_per_tok": 0,
    "num_hidden_layers": 40,
    "num_key_value_heads": 8,
    "num_local_experts": 0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "vocab_size": 100352,
}
"""config.json of ibm-granite/granite-4.0-h-micro: 36 layers of Mamba-2 and 4 of attention, each before an MLP."""


@pytest.mark.parametrize(
    ("changes", "parameters", "active", "kinds"),
    [
        ({}, 3.19e9, 3.19e9, "M*-"),
        (
            {
                "hidden_size": 4096,
                "intermediate_size": 768,
                "shared_intermediate_size": 1536,
                "mamba_n_heads": 128,
                "num_local_experts": 72,
                "num_experts_per_tok": 10,
            },
            32.2e9,
            8.8e9,
            "M*E",
        ),
        (
            {
                "hidden_size": 1536,
                "intermediate_size": 512,
                "shared_intermediate_size": 1024,
                "mamba_d_head": "auto",
                "mamba_n_heads": 48,
                "num_attention_heads": 12,
                "num_key_value_heads": 4,
                "num_local_experts": 64,
                "num_experts_per_tok": 6,
            },
            6.94e9,
            1.47e9,
            "M*E",
        ),
    ],
)
def test_granite_4_is_read(changes: dict[str, Any], parameters: float, active: float, kinds: str) -> None:
    """H-Micro (3 B), H-Small (32 B, 9 B active) and H-Tiny (7 B, 1 B active), as their names and cards say."""
    model = from_hf_config({**GRANITE, **changes})

    assert model.num_parameters == pytest.approx(parameters, rel=0.005)
    assert model.num_active_parameters == pytest.approx(active, rel=0.005)
    assert (model.num_attention_layers, model.num_linear_layers) == (4, 36)
    assert set(model.layer_pattern or "") == set(kinds)
    assert not model.is_assumed


@pytest.mark.parametrize("model_type", ["granite", "granitemoehybrid"])
def test_granite_4_without_mamba_is_a_llamas(model_type: str) -> None:
    """Granite 4 Micro: sizes of Mamba-2 in the file, and no such layer."""
    sizes = {"hidden_size": 2560, "num_attention_heads": 40, "layer_types": ["attention"] * 40, "mamba_d_state": 256}

    model = from_hf_config({**GRANITE, **sizes, "model_type": model_type})

    assert model.num_parameters == pytest.approx(3.4e9, rel=0.005)
    assert model.layer_pattern is None
    assert model.mamba is None
    assert model.kv_bytes_per_token(2) == 40 * 2 * 8 * 64 * 2


def test_granite_4_says_which_layers_it_has() -> None:
    """As many types as layers, each with a formula."""
    with pytest.raises(ProfileError, match=r"layer_types.*must have one entry a layer, has 39"):
        from_hf_config({**GRANITE, "layer_types": GRANITE["layer_types"][:-1]})
    with pytest.raises(ProfileError, match=r"layers_block_type.* a block 'lstm'"):
        from_hf_config({**GRANITE, "layer_types": [*GRANITE["layer_types"][:-1], "lstm"]})


def _swa(layers: int) -> list[str]:
    return ["full_attention" if layer % 4 == 3 else "sliding_attention" for layer in range(layers)]


OLMO_3 = {
    "architectures": ["Olmo3ForCausalLM"],
    "model_type": "olmo3",
    "hidden_size": 5120,
    "intermediate_size": 27648,
    "layer_types": _swa(64),
    "max_position_embeddings": 65536,
    "num_attention_heads": 40,
    "num_hidden_layers": 64,
    "num_key_value_heads": 8,
    "sliding_window": 4096,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
    "vocab_size": 100278,
}
"""config.json of allenai/Olmo-3.1-32B-Instruct."""
EXAONE_4 = {
    **OLMO_3,
    "architectures": ["Exaone4ForCausalLM"],
    "model_type": "exaone4",
    "head_dim": 128,
    "intermediate_size": 27392,
    "max_position_embeddings": 131072,
    "sliding_window_pattern": "LLLG",
    "vocab_size": 102400,
}
"""config.json of LGAI-EXAONE/EXAONE-4.0-32B."""
DEVSTRAL_2 = {
    "architectures": ["Ministral3ForCausalLM"],
    "model_type": "ministral3",
    "head_dim": 128,
    "hidden_size": 12288,
    "intermediate_size": 28672,
    "max_position_embeddings": 262144,
    "num_attention_heads": 96,
    "num_hidden_layers": 88,
    "num_key_value_heads": 8,
    "quantization_config": {
        "activation_scheme": "static",
        "modules_to_not_convert": ["model.vision_tower", "model.multi_modal_projector", "lm_head"],
        "quant_method": "fp8",
        "weight_block_size": None,
    },
    "sliding_window": None,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
    "vocab_size": 131072,
}
"""config.json of mistralai/Devstral-2-123B-Instruct-2512."""
HUNYUAN = {
    "architectures": ["HunYuanMoEV1ForCausalLM"],
    "model_type": "hunyuan_v1_moe",
    "attention_head_dim": 128,
    "hidden_size": 4096,
    "intermediate_size": 3072,
    "max_position_embeddings": 262144,
    "moe_intermediate_size": [3072] * 32,
    "moe_topk": [8] * 32,
    "num_attention_heads": 32,
    "num_experts": 64,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "num_shared_expert": [1] * 32,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "vocab_size": 128167,
}
"""config.json of tencent/Hunyuan-A13B-Instruct: what experts there are stands in lists, one number a layer."""


@pytest.mark.parametrize(
    ("config", "profile"),
    [
        (OLMO_3, "olmo-3-32b"),
        (EXAONE_4, "exaone-4.0-32b"),
        (DEVSTRAL_2, "devstral-2-123b"),
        (HUNYUAN, "hunyuan-a13b"),
    ],
)
def test_a_configuration_gives_what_its_profile_says(config: dict[str, Any], profile: str) -> None:
    """OLMo 3, EXAONE 4, Ministral 3 and Hunyuan: read as what they are, not as a Llama with other sizes."""
    read, known = from_hf_config(config), load_model(profile)

    assert read.num_parameters == known.num_parameters
    assert read.num_active_parameters == known.num_active_parameters
    assert read.kv_bytes_per_token(2) == known.kv_bytes_per_token(2)
    assert (read.num_sliding_layers, read.sliding_window) == (known.num_sliding_layers, known.sliding_window)
    assert read.stored.format == known.stored.format
    assert not read.is_assumed


def test_olmo_3_slides_in_three_of_four_layers_where_its_file_lists_none() -> None:
    """The default of ``Olmo3Config``."""
    unlisted = {key: value for key, value in OLMO_3.items() if key != "layer_types"}

    assert from_hf_config(unlisted).num_sliding_layers == 48


def test_experts_that_differ_by_layer_are_refused() -> None:
    """Hunyuan's lists may hold anything; all of its files hold one number."""
    with pytest.raises(ProfileError, match=r"moe_topk.*must be the same in all layers"):
        from_hf_config({**HUNYUAN, "moe_topk": [8] * 31 + [4]})


QWEN_2_5_VL = {
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "max_position_embeddings": 128000,
    "max_window_layers": 28,
    "model_type": "qwen2_5_vl",
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
    "vision_config": {
        "depth": 32,
        "hidden_size": 1280,
        "intermediate_size": 3420,
        "num_heads": 16,
        "out_hidden_size": 3584,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "window_size": 112,
        "fullatt_block_indexes": [7, 15, 23, 31],
    },
    "vocab_size": 152064,
}
"""config.json of Qwen/Qwen2.5-VL-7B-Instruct, whose tower does not name its type."""


def test_the_tower_of_qwen_2_5_vl_is_read() -> None:
    """That of its profile, but for the source."""
    read, known = from_hf_config(QWEN_2_5_VL).vision, load_model("qwen2.5-vl-7b").vision

    assert read is not None
    assert known is not None
    assert read.model_dump(exclude={"source"}) == known.model_dump(exclude={"source"})
