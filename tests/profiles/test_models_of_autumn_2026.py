"""Models of autumn 2026: their ``config.json`` gives the bundled profile, whose layers count as their code has them."""

from __future__ import annotations

from typing import Any

import pytest

from simserve.errors import ProfileError
from simserve.profiles.catalog import load_model
from simserve.profiles.hf_config import from_hf_config
from tests.profiles.published import assert_bundled

KOLIBRI: dict[str, Any] = {
    "model_type": "kolibri1",
    "architectures": ["Kolibri1ForCausalLM"],
    "vocab_size": 128000,
    "hidden_size": 2560,
    "num_hidden_layers": 50,
    "num_attention_heads": 48,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "max_position_embeddings": 262144,
    "tie_word_embeddings": False,
    "sliding_window": 513,
    "moe_intermediate_size": 512,
    "num_experts_per_tok": 6,
    "num_experts": 384,
    "shared_expert_intermediate_size": 512,
    "dtype": "bfloat16",
}
BEAM: dict[str, Any] = {
    "model_type": "beam",
    "architectures": ["BeamForCausalLM"],
    "vocab_size": 151936,
    "hidden_size": 5120,
    "intermediate_size": 20480,
    "num_hidden_layers": 52,
    "num_attention_heads": 48,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 262144,
    "sliding_window": 512,
    "moe_intermediate_size": 2560,
    "num_experts_per_tok": 8,
    "num_experts": 256,
    "n_group": 8,
    "topk_group": 4,
    "mlp_layer_types": [*["dense"] * 3, *["sparse"] * 49],
    "dtype": "bfloat16",
}
MUSE_SPARK: dict[str, Any] = {
    "model_type": "muse_spark",
    "architectures": ["MuseSparkForConditionalGeneration"],
    "text_config": {
        "model_type": "muse_spark_text",
        "vocab_size": 202048,
        "hidden_size": 8192,
        "intermediate_size": 16384,
        "num_hidden_layers": 62,
        "num_attention_heads": 128,
        "num_key_value_heads": 16,
        "head_dim": 64,
        "max_position_embeddings": 1048576,
        "sliding_window": 2048,
        "moe_intermediate_size": 4096,
        "num_local_experts": 256,
        "num_experts_per_tok": 8,
        "moe_hidden_size": 4096,
        "dtype": "bfloat16",
    },
    "vision_config": {
        "model_type": "muse_spark_vision",
        "patch_size": 14,
        "pos_emb_height": 32,
        "pos_emb_width": 32,
        "num_attention_heads": 16,
        "num_hidden_layers": 50,
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "merge_size": 2,
    },
}
YOUTU: dict[str, Any] = {
    "model_type": "youtu",
    "architectures": ["YoutuForCausalLM"],
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 32,
    "num_attention_heads": 16,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "max_position_embeddings": 131072,
    "dtype": "bfloat16",
}
CWM: dict[str, Any] = {
    "model_type": "cwm",
    "architectures": ["CwmForCausalLM"],
    "vocab_size": 128256,
    "hidden_size": 6144,
    "intermediate_size": 21504,
    "num_hidden_layers": 64,
    "num_attention_heads": 48,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "sliding_window": 8192,
    "dtype": "bfloat16",
}
IQUEST: dict[str, Any] = {
    "model_type": "iquestcoder",
    "architectures": ["IQuestCoderForCausalLM"],
    "vocab_size": 76800,
    "hidden_size": 5120,
    "intermediate_size": 27648,
    "num_hidden_layers": 80,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
}
PUBLISHED = {
    "kolibri-1": KOLIBRI,
    "beam-1.0-501b-a23b": BEAM,
    "muse-spark-open-816b-a42b": MUSE_SPARK,
    "youtu-llm-2b": YOUTU,
    "cwm-32b": CWM,
    "iquest-coder-v1-40b": IQUEST,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_config_gives_the_bundled_profile(name: str) -> None:
    """Every field of the architecture."""
    assert_bundled(PUBLISHED[name], name)


def test_kolibri_has_as_many_parameters_as_its_card_says() -> None:
    """In all, and those of a token without the embedding that it looks up."""
    model = load_model("kolibri-1")

    assert model.num_parameters == 78_103_074_560
    assert model.num_active_parameters - 128_000 * 2560 == pytest.approx(3_457_573_120, abs=50 * 384)


def test_layers_without_a_window_are_named_where_the_file_leaves_them_out() -> None:
    """Beam's every sixth and its last; Muse Spark's every fourth, counted from the last; Kolibri's every fifth."""
    windowed = {name: load_model(name).num_sliding_layers for name in ("beam-1.0-501b-a23b", "kolibri-1")}

    assert windowed == {"beam-1.0-501b-a23b": 52 - 9, "kolibri-1": 50 - 10}
    listed = {**BEAM, "layer_types": [*["sliding_attention"] * 50, *["full_attention"] * 2]}
    assert from_hf_config(listed).num_sliding_layers == 50


def test_experts_of_muse_spark_work_in_half_of_the_width() -> None:
    """Into 4,096 and back, on every rank; no expert is shared."""
    model = load_model("muse-spark-open-816b-a42b")

    gemms = {gemm.name: (gemm.in_features, gemm.out_features) for gemm in model.mlp_gemms(0)}
    experts = [(gemm.in_features, gemm.out_features) for gemm in model.expert_gemms()]

    assert gemms == {"router": (8192, 256), "latent_in": (8192, 4096), "latent_out": (4096, 8192)}
    assert experts == [(4096, 8192), (4096, 4096)]


def test_granite_4_2_is_granite_4_1_with_a_head_of_its_own() -> None:
    """100,352 rows of 4,096 more."""
    older, newer = load_model("granite-4.1-30b"), load_model("granite-4.2-30b")

    assert newer.num_parameters - older.num_parameters == 100_352 * 4096


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("nvidia/NVIDIA-Nemotron-3.5-Super-VL-120B-A12B-NVFP4", "nemotron-3-super-120b-a12b"),
        ("nvidia/Nemotron-3-Nano-Omni-30B-A3B-Reasoning-FP8", "nemotron-3-nano-30b-a3b"),
        ("deepseek-ai/DeepSeek-V4-Flash-Vision-Exp", "deepseek-v4-flash"),
        ("inclusionAI/Ling-3.0-flash-VL-fp8", "ling-3.0-flash"),
        ("tencent/Hy4", "hy4-preview"),
        ("IFM/Jais-3-32B", "k2-horizon-32b"),
        ("IFM/Jais-3-7B", "k2-horizon-7b"),
    ],
)
def test_weights_around_a_known_language_model_have_its_shape(name: str, shape: str) -> None:
    """On record, so that no warning says that the name decides."""
    model = load_model(name)

    assert model.shape_of == shape


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("LiquidAI/LFM3-1.7B", "short convolutions"),
        ("IFM/Jais-3-MoVA-36B-A4B", "MoVA"),
        ("skt/A.X-K2-NVFP4", "Gated Norm"),
        ("thinkingmachines/Inkling-2-Small-MXFP8", "relative positions"),
    ],
)
def test_what_cannot_be_counted_is_refused_for_its_layers(name: str, layers: str) -> None:
    """Never counted as another model with a similar name."""
    with pytest.raises(ProfileError, match=layers):
        load_model(name)
