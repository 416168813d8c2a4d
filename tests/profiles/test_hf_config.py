"""Hugging Face configurations become model profiles, or an error that names the field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simserve.errors import ProfileError
from simserve.perf.shape import weights_bytes
from simserve.profiles.catalog import load_model
from simserve.profiles.hf_config import from_hf_config
from simserve.profiles.model import ModelProfile

CONFIGS = Path(__file__).resolve().parents[2] / "../shared/data/model_configs"

LLAMA_3_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}

# Name of the file, parameters without the vision tower or multi-token prediction, 16-bit KV bytes a token.
PUBLISHED = [
    ("deepseek-ai--DeepSeek-R1", 671_026_419_200, 70_272),
    ("Qwen--Qwen3-30B-A3B-FP8", 30_532_122_624, 98_304),
    ("Qwen--Qwen3-235B-A22B-FP8", 235_093_634_560, 192_512),
    ("Qwen--Qwen3-32B-FP8-Static-PerTensor", 32_762_123_264, 262_144),
    ("mistralai--Mixtral-8x7B-v0.1", 46_702_792_704, 131_072),
    ("meta-llama--Llama-4-Scout-17B-16E-Instruct", 107_769_861_120, 196_608),
    ("openai--gpt-oss-120b", 116_829_156_672, 73_728),
    ("openai--gpt-oss-20b", 20_914_757_184, 49_152),
    ("moonshotai--Kimi-K2-Instruct", 1_026_408_232_448, 70_272),
    ("moonshotai--Kimi-K2.5", 1_026_408_232_448, 70_272),
    ("MiniMaxAI--MiniMax-M2.5", 228_689_764_864, 253_952),
]

# What publishers state, with the tolerance of their rounding: total and active, billions.
ADVERTISED = [
    ("zai-org--GLM-5-FP8", 744, 40, 0.05),
    ("deepseek-ai--DeepSeek-R1", 671, 37, 0.02),
    ("Qwen--Qwen3-30B-A3B-FP8", 30.5, 3.3, 0.02),
    ("Qwen--Qwen3-235B-A22B-FP8", 235, 22, 0.01),
    ("meta-llama--Llama-4-Scout-17B-16E-Instruct", 108, 17, 0.02),
    ("moonshotai--Kimi-K2-Instruct", 1026, 32, 0.03),
    ("MiniMaxAI--MiniMax-M2.5", 229, 11, 0.01),
]


def read(name: str) -> ModelProfile:
    """Return the profile of a configuration file of the reference data."""
    path = CONFIGS / f"{name}_config.json"
    if not path.is_file():
        pytest.skip(f"no reference configuration at {path}")
    return load_model(str(path))


def make_config(**fields: Any) -> dict[str, Any]:
    """Return the configuration of Llama-3-8B with fields replaced; ``...`` removes one."""
    return {key: value for key, value in (LLAMA_3_8B | fields).items() if value is not ...}


@pytest.mark.parametrize(("name", "parameters", "kv_bytes"), PUBLISHED)
def test_published_configurations_count_exactly(name: str, parameters: int, kv_bytes: int) -> None:
    """Parameters equal the published checkpoint's, and KV bytes the golden vectors."""
    model = read(name)

    assert model.num_parameters == parameters
    assert model.kv_bytes_per_token(2) == kv_bytes


@pytest.mark.parametrize(("name", "total", "active", "tolerance"), ADVERTISED)
def test_total_and_active_sizes_are_the_advertised_ones(
    name: str, total: float, active: float, tolerance: float
) -> None:
    """Totals within 1 %, active parameters within the publisher's rounding."""
    model = read(name)

    assert model.num_parameters == pytest.approx(total * 1e9, rel=0.01)
    assert model.num_active_parameters == pytest.approx(active * 1e9, rel=tolerance)


def test_latent_attention_is_the_same_on_every_rank() -> None:
    """DeepSeek caches one latent vector for all heads: 70,272 bytes on each of eight ranks."""
    model = read("deepseek-ai--DeepSeek-R1")

    assert [model.kv_bytes_per_token(2, ranks) for ranks in (1, 2, 8, 128)] == [70_272] * 4


def test_latent_attention_projections_split_over_ranks() -> None:
    """Down-projections are replicated; heads are divided over the ranks."""
    gemms = {gemm.name: gemm for gemm in read("deepseek-ai--DeepSeek-R1").attention_gemms(8)}

    assert {name: (gemm.out_features, gemm.in_features, gemm.split) for name, gemm in gemms.items()} == {
        "q_a": (1536, 7168, "replicated"),
        "q_b": (16 * 192, 1536, "column"),
        "kv_a": (576, 7168, "replicated"),
        "kv_b": (16 * 256, 512, "column"),
        "output": (7168, 16 * 128, "row"),
    }


def test_the_first_layers_of_deepseek_are_dense() -> None:
    """Three dense layers, then 58 with 256 experts and a shared one."""
    model = read("deepseek-ai--DeepSeek-R1")

    assert (model.num_dense_layers, model.num_moe_layers) == (3, 58)
    assert [gemm.name for gemm in model.mlp_gemms(0)] == ["gate_up", "down"]
    assert [gemm.name for gemm in model.mlp_gemms(3)] == ["router", "shared_gate_up", "shared_down"]


def test_deepseek_chooses_groups_of_experts_first() -> None:
    """4 of 8 groups; Kimi K2 writes the same keys and has one group."""
    models = [read(name).moe for name in ("deepseek-ai--DeepSeek-R1", "moonshotai--Kimi-K2-Instruct")]

    assert [moe.router_groups for moe in models if moe is not None] == [(8, 4), (1, 1)]


def test_a_sparse_indexer_caches_a_key_of_its_own() -> None:
    """DeepSeek-V3.2: 132 bytes a token and layer beside the latent vector, in FP8 whatever the cache."""
    dense, sparse = read("deepseek-ai--DeepSeek-R1"), read("deepseek-ai--DeepSeek-V3.2")

    assert sparse.kv_bytes_per_token(2) - dense.kv_bytes_per_token(2) == 61 * 132
    assert sparse.kv_bytes_per_token(1) - dense.kv_bytes_per_token(1) == 61 * 132
    assert sparse.indexer is not None
    assert sparse.indexer.topk == 2048


def test_gpt_oss_alternates_and_keeps_its_head_dim() -> None:
    """gpt-oss-120b: every second layer sees 128 tokens; heads of 64, not 2880 / 64; stored in MXFP4."""
    model = read("openai--gpt-oss-120b")

    assert (model.sliding_window, model.num_sliding_layers, model.head_dim) == (128, 18, 64)
    assert model.stored.format == "mxfp4"


def test_classes_of_conversions_are_those_that_engines_register() -> None:
    """Engines know Step-3.7 and MiniMax-M3 by the class of the repository, whatever a copy of its file names."""
    step = from_hf_config({**LLAMA_3_8B, "architectures": ["Step3p7FlashForCausalLM"]})

    assert step.architecture == "Step3p7ForConditionalGeneration"
    assert from_hf_config(LLAMA_3_8B).architecture == "LlamaForCausalLM"


def test_llama_4_reads_the_text_part() -> None:
    """Llama-4 Scout: nested text_config; three of four layers attend in chunks of 8,192."""
    model = read("meta-llama--Llama-4-Scout-17B-16E-Instruct")

    assert (model.sliding_window, model.num_sliding_layers, model.num_moe_layers) == (8192, 36, 48)
    assert model.intermediate_size == 16_384


def test_a_configuration_agrees_with_the_bundled_profile() -> None:
    """Mixtral's config.json gives the bundled profile, except for name and source."""
    model, bundled = read("mistralai--Mixtral-8x7B-v0.1"), load_model("mixtral-8x7b")

    ignored = {"name", "source", "checkpoints", "num_parameters_advertised"}
    assert model.model_dump(exclude=ignored) == bundled.model_dump(exclude=ignored)


SIGLIP = {
    "model_type": "siglip_vision_model",
    "hidden_size": 1152,
    "image_size": 896,
    "intermediate_size": 4304,
    "num_attention_heads": 16,
    "num_hidden_layers": 27,
    "patch_size": 14,
}
"""The ``vision_config`` of Gemma 3."""
PIXTRAL = {
    "model_type": "pixtral",
    "hidden_size": 1024,
    "image_size": 1540,
    "intermediate_size": 4096,
    "num_attention_heads": 16,
    "num_hidden_layers": 24,
    "patch_size": 14,
}
"""The ``vision_config`` of Mistral Small 3.1."""
LLAMA4_TOWER = {
    "model_type": "llama4_vision_model",
    "hidden_size": 1408,
    "image_size": 336,
    "intermediate_size": 5632,
    "num_attention_heads": 16,
    "num_hidden_layers": 34,
    "patch_size": 14,
    "pixel_shuffle_ratio": 0.5,
}
"""The ``vision_config`` of Llama 4."""


@pytest.mark.parametrize(
    ("name", "bundled"),
    [
        ("Qwen--Qwen3-VL-32B-Instruct", "qwen3-vl-32b"),
        ("Qwen--Qwen3-VL-235B-A22B-Instruct", "qwen3-vl-235b-a22b"),
        ("Qwen--Qwen3.5-35B-A3B", "qwen3.5-35b-a3b"),
        ("nvidia--Gemma-4-31B-IT-NVFP4", "gemma-4-31b"),
        ("nvidia--Gemma-4-26B-A4B-NVFP4", "gemma-4-26b-a4b"),
    ],
)
def test_a_configuration_brings_the_vision_tower_of_the_bundled_profile(name: str, bundled: str) -> None:
    """Published configurations, except for the source."""
    tower, known = read(name).vision, load_model(bundled).vision

    assert tower is not None
    assert known is not None
    assert tower.model_dump(exclude={"source"}) == known.model_dump(exclude={"source"})


@pytest.mark.parametrize(
    ("fields", "bundled"),
    [
        ({"vision_config": SIGLIP, "mm_tokens_per_image": 256}, "gemma-3-27b"),
        ({"vision_config": LLAMA4_TOWER}, "llama-4-scout"),
        ({"vision_config": PIXTRAL, "spatial_merge_size": 2}, "mistral-small-24b"),
    ],
)
def test_a_vision_block_is_read_as_the_bundled_profile_has_it(fields: dict[str, Any], bundled: str) -> None:
    """Gemma 3's, Llama 4's and Pixtral's, beside any language model."""
    tower, known = from_hf_config(make_config(**fields)).vision, load_model(bundled).vision

    assert tower is not None
    assert known is not None
    assert tower.model_dump(exclude={"source"}) == known.model_dump(exclude={"source"})


@pytest.mark.parametrize("block", [{}, SIGLIP, {"model_type": "step3_vision_encoder", "num_hidden_layers": 63}])
def test_a_tower_of_an_unknown_kind_is_left_out(block: dict[str, Any]) -> None:
    """Sizes of an image that nothing says, or a merge: the language model is read all the same."""
    assert from_hf_config(make_config(vision_config=block)).vision is None


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({"model_type": "qwen3_vl", "depth": 27}, "patch_size: is missing"),
        ({"model_type": "qwen2_5_vl", "depth": 32, "patch_size": 14}, "spatial_merge_size: is missing"),
        (LLAMA4_TOWER | {"pixel_shuffle_ratio": 0}, "pixel_shuffle_ratio.*must be a number above 0"),
        ("none", "vision_config.*must be a mapping"),
    ],
)
def test_a_broken_vision_block_is_refused(block: object, message: str) -> None:
    """By its key."""
    with pytest.raises(ProfileError, match=message):
        from_hf_config(make_config(vision_config=block))


def test_a_folder_with_a_config_is_a_model(tmp_path: Path) -> None:
    """The folder of a downloaded model names the profile."""
    folder = tmp_path / "my-llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA_3_8B))

    by_folder, by_file = load_model(str(folder)), load_model("my-llama/config.json", relative_to=tmp_path)

    assert by_folder == by_file
    assert by_folder.name == "my-llama"
    assert by_folder.num_parameters == 8_030_261_248


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    """The error says what the folder lacks."""
    with pytest.raises(ProfileError, match=r"without a config\.json"):
        load_model(str(tmp_path))


@pytest.mark.parametrize("absent", [..., None])
def test_missing_kv_heads_mean_multi_head(absent: object) -> None:
    """No num_key_value_heads, or a null, means as many as query heads."""
    assert from_hf_config(make_config(num_key_value_heads=absent)).num_key_value_heads == 32


def test_head_dim_is_read_before_it_is_derived() -> None:
    """A stated head_dim wins over hidden_size / heads; a missing one or 0 is derived."""
    assert from_hf_config(make_config(head_dim=256)).head_dim == 256
    assert from_hf_config(make_config(head_dim=0)).head_dim == 128


def test_newer_names_of_fields_are_read() -> None:
    """``dtype`` replaced ``torch_dtype``."""
    assert from_hf_config(make_config(torch_dtype=..., dtype="float16")).dtype == "fp16"


def test_nested_text_configurations_are_read() -> None:
    """``thinker_config.text_config`` and ``text_config`` give the same model as the plain file."""
    plain = from_hf_config(LLAMA_3_8B)

    for nested in ({"text_config": LLAMA_3_8B}, {"thinker_config": {"text_config": LLAMA_3_8B}}):
        model = from_hf_config({"model_type": "omni", **nested})
        assert model.num_parameters == plain.num_parameters


def test_qwen_ignores_a_window_it_does_not_use() -> None:
    """``use_sliding_window: false`` wins over ``sliding_window``."""
    config = make_config(model_type="qwen2", sliding_window=4096, use_sliding_window=False)

    model = from_hf_config(config)

    assert model.sliding_window is None
    assert model.has_qkv_bias


def test_qwen_slides_above_its_window_layers() -> None:
    """With ``use_sliding_window`` the layers from ``max_window_layers`` on slide."""
    config = make_config(model_type="qwen2", sliding_window=4096, use_sliding_window=True, max_window_layers=28)

    assert from_hf_config(config).num_sliding_layers == 4


def test_falcon_switches_are_read() -> None:
    """Falcon-40B from its own field names gives the bundled profile; the old architecture has one KV head."""
    config = {
        "model_type": "falcon",
        "hidden_size": 8192,
        "num_attention_heads": 128,
        "num_hidden_layers": 60,
        "num_kv_heads": 8,
        "new_decoder_architecture": True,
        "vocab_size": 65024,
        "bias": False,
        "torch_dtype": "bfloat16",
    }
    old = {"hidden_size": 4544, "num_attention_heads": 71, "num_hidden_layers": 32, "num_kv_heads": 71}

    model = from_hf_config(config)
    falcon_7b = from_hf_config(config | old | {"new_decoder_architecture": False, "multi_query": True})

    ignored = {"name", "architecture", "source", "checkpoints", "num_parameters_advertised"}
    assert model.model_dump(exclude=ignored) == load_model("falcon-40b").model_dump(exclude=ignored)
    assert falcon_7b.num_parameters == 6_921_720_704
    assert falcon_7b.kv_bytes_per_token(2) == 32 * 2 * 64 * 2


def test_gpt_2_style_names_are_read() -> None:
    """GPT-2: other field names, a 4x MLP that is not stated, learned positions, tied head."""
    config = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024}

    assert from_hf_config(config | {"vocab_size": 50257}).num_parameters == 124_439_808


def test_opt_is_read() -> None:
    """OPT-13B: biases everywhere, two positions more than the context, tied head."""
    config = {
        "model_type": "opt",
        "hidden_size": 5120,
        "num_hidden_layers": 40,
        "num_attention_heads": 40,
        "ffn_dim": 20480,
        "vocab_size": 50272,
        "max_position_embeddings": 2048,
        "word_embed_proj_dim": 5120,
        "torch_dtype": "float16",
    }

    assert from_hf_config(config).num_parameters == 12_853_473_280


def test_gemma_2_is_read() -> None:
    """Gemma-2-27B: four norms a layer, tied head, alternating window."""
    config = {
        "model_type": "gemma2",
        "hidden_size": 4608,
        "num_hidden_layers": 46,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "head_dim": 128,
        "intermediate_size": 36864,
        "vocab_size": 256000,
    }

    model = from_hf_config(config)

    assert model.num_parameters == 27_227_128_320
    assert (model.sliding_window, model.num_sliding_layers) == (4096, 23)


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"hidden_size": ...}, "hidden_size"),
        ({"num_hidden_layers": "32"}, "num_hidden_layers"),
        ({"num_hidden_layers": True}, "num_hidden_layers"),
        ({"vocab_size": -1}, "vocab_size"),
        ({"hidden_size": 4100}, "head_dim"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings"),
        ({"torch_dtype": "int3"}, "torch_dtype"),
        ({"layer_types": ["linear_attention"] * 32}, "layer_types"),
        ({"layer_types": ["full_attention"] * 3, "sliding_window": 128}, "layer_types"),
        ({"layer_types": ["sliding_attention"] * 32}, "sliding_window"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder"),
        ({"linear_num_value_heads": 32}, "full_attention_interval"),
        ({"num_local_experts": 8}, "num_experts_per_tok"),
        ({"num_local_experts": 8, "num_experts_per_tok": 2, "moe_layer_freq": 2}, "moe_layer_freq"),
        ({"num_local_experts": 8, "num_experts_per_tok": 2, "mlp_only_layers": [32]}, "mlp_only_layers"),
        ({"kv_lora_rank": 512}, "qk_rope_head_dim"),
        ({"text_config": 3}, "text_config"),
    ],
)
def test_what_is_not_understood_is_named(fields: dict[str, Any], key: str) -> None:
    """A missing, wrong or unknown field is an error in one line that names it."""
    with pytest.raises(ProfileError) as refused:
        from_hf_config(make_config(**fields), "config.json")

    assert refused.value.key == key
    assert "\n" not in str(refused.value)


def test_an_unknown_type_with_every_size_is_read_as_a_llama() -> None:
    """The source says that the architecture was assumed."""
    model = from_hf_config(make_config(model_type="novel"))

    assert model.num_parameters == 8_030_261_248
    assert "unknown model_type 'novel'" in model.source


def test_an_unknown_type_without_every_size_is_refused() -> None:
    """The error names the type and what is missing."""
    with pytest.raises(ProfileError, match=r"'novel'.*lacks num_key_value_heads, rms_norm_eps") as refused:
        from_hf_config(make_config(model_type="novel", num_key_value_heads=..., rms_norm_eps=...))

    assert refused.value.key == "model_type"


@pytest.mark.parametrize(
    ("key", "largest"),
    [("num_hidden_layers", "10,000"), ("num_attention_heads", "100,000"), ("vocab_size", "1,099,511,627,776")],
)
def test_a_size_that_no_model_has_is_refused(key: str, largest: str) -> None:
    """Layers are counted one by one: 10^12 of them would never end."""
    config = make_config(**{key: 10**13, "num_experts": 8, "num_experts_per_tok": 2, "mlp_only_layers": [0]})

    with pytest.raises(ProfileError, match=f"{key}: 10000000000000 must be at most {largest}"):
        from_hf_config(config)


def test_the_repository_is_what_the_file_or_its_name_says(tmp_path: Path) -> None:
    """`_name_or_path`, a download's `org--name` folder or file; nothing is made of anything else."""
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "vocab_size": 100,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
    }

    assert from_hf_config(config).huggingface_id is None
    assert from_hf_config({**config, "_name_or_path": "org/name"}).huggingface_id == "org/name"
    assert from_hf_config({**config, "_name_or_path": "/mnt/name"}).huggingface_id is None
    assert from_hf_config(config, tmp_path / "org--name_config.json").huggingface_id == "org/name"
    assert from_hf_config(config, tmp_path / "models--org--name" / "config.json").huggingface_id == "org/name"
    assert from_hf_config(config, tmp_path / "name" / "config.json").huggingface_id is None


@pytest.mark.parametrize(("layers", "expected"), [(None, 0), (0, 0), (1, 1)])
def test_layers_for_multi_token_prediction_are_counted_apart(layers: int | None, expected: int) -> None:
    """``num_nextn_predict_layers``, null and 0 for none; they are no hidden layers."""
    model = from_hf_config({**LLAMA_3_8B, "num_nextn_predict_layers": layers})

    assert model.num_mtp_layers == expected
    assert model.num_hidden_layers == 32


QWEN3_NEXT: dict[str, Any] = {
    "model_type": "qwen3_next",
    "full_attention_interval": 4,
    "head_dim": 256,
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "max_position_embeddings": 262144,
    "moe_intermediate_size": 512,
    "num_attention_heads": 16,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "num_hidden_layers": 48,
    "num_key_value_heads": 2,
    "shared_expert_intermediate_size": 512,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 151936,
}


def test_a_hybrid_of_linear_attention_is_read() -> None:
    """Qwen3-Next: states in 36 of 48 layers, keys in 12; what the configuration says is the bundled profile."""
    model, bundled = from_hf_config(QWEN3_NEXT), load_model("qwen3-next-80b-a3b")

    ignored = {"name", "architecture", "source", "checkpoints", "num_parameters_advertised", "num_mtp_layers", "tuned"}
    assert model.model_dump(exclude=ignored) == bundled.model_dump(exclude=ignored)
    assert model.num_parameters == pytest.approx(80e9, rel=0.01)
    assert model.num_active_parameters == pytest.approx(3.9e9, rel=0.02)
    assert model.kv_bytes_per_token(2) == 12 * 2 * 2 * 256 * 2


FULL_K3 = [*range(4, 93, 4), 93]
KIMI_K3 = {
    "architectures": ["KimiK3ForConditionalGeneration"],
    "model_type": "kimi_k3",
    "text_config": {
        "model_type": "kimi_linear",
        "attn_res_block_size": 12,
        "dtype": "bfloat16",
        "first_k_dense_replace": 1,
        "hidden_size": 7168,
        "intermediate_size": 33792,
        "kv_lora_rank": 512,
        "latent_moe_use_norm": True,
        "linear_attn_config": {
            "full_attn_layers": FULL_K3,
            "gate_lower_bound": -5.0,
            "head_dim": 128,
            "kda_layers": [layer for layer in range(1, 94) if layer not in FULL_K3],
            "num_heads": 96,
            "short_conv_kernel_size": 4,
            "use_full_rank_gate": True,
        },
        "max_position_embeddings": 1048576,
        "mla_use_nope": True,
        "mla_use_output_gate": True,
        "moe_intermediate_size": 3072,
        "moe_layer_freq": 1,
        "num_attention_heads": 96,
        "num_expert_group": 1,
        "num_experts": 896,
        "num_experts_per_token": 16,
        "num_hidden_layers": 93,
        "num_key_value_heads": 96,
        "num_shared_experts": 2,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "quantization_config": {
            "config_groups": {
                "group_0": {
                    "format": "mxfp4-pack-quantized",
                    "targets": ["Linear"],
                    "weights": {"group_size": 32, "num_bits": 4, "type": "float"},
                }
            },
            "format": "mxfp4-pack-quantized",
            "ignore": ["re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"],
            "quant_method": "compressed-tensors",
        },
        "routed_expert_hidden_size": 3584,
        "topk_group": 1,
        "v_head_dim": 128,
        "vocab_size": 163840,
    },
}
GLM_NEXT = {
    "architectures": ["Glm5NextForConditionalGeneration"],
    "model_type": "glm5_next",
    "text_config": {
        "model_type": "glm5_next_text",
        "dtype": "bfloat16",
        "first_k_dense_replace": 3,
        "hc_mult": 4,
        "hidden_size": 4096,
        "index_head_dim": 128,
        "index_kpool": 4,
        "index_n_heads": 32,
        "index_topk": 2048,
        "intermediate_size": 12288,
        "kv_lora_rank": 512,
        "layer_types": ["deepseek_sparse_attention" if layer % 4 == 3 else "linear_attention" for layer in range(45)],
        "linear_attn_config": {
            "gate_lower_bound": -5.0,
            "head_dim": 128,
            "kda_layers": [layer for layer in range(45) if layer % 4 != 3],
            "num_heads": 64,
            "short_conv_kernel_size": 4,
        },
        "max_position_embeddings": 1048576,
        "mhc": True,
        "mlp_layer_types": ["dense"] * 3 + ["sparse"] * 42,
        "moe_intermediate_size": 2048,
        "n_group": 1,
        "n_routed_experts": 288,
        "n_shared_experts": 1,
        "num_attention_heads": 64,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 45,
        "num_key_value_heads": 64,
        "num_nextn_predict_layers": 1,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 256,
        "qk_rope_head_dim": 0,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "v_head_dim": 256,
        "vocab_size": 154880,
    },
}
KIMI_LINEAR = {
    "architectures": ["KimiLinearForCausalLM"],
    "model_type": "kimi_linear",
    "dtype": "bfloat16",
    "first_k_dense_replace": 1,
    "head_dim": 72,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "kv_lora_rank": 512,
    "linear_attn_config": {
        "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
        "head_dim": 128,
        "kda_layers": [1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15, 17, 18, 19, 21, 22, 23, 25, 26],
        "num_heads": 32,
        "short_conv_kernel_size": 4,
    },
    "mla_use_nope": True,
    "model_max_length": 1048576,
    "moe_intermediate_size": 1024,
    "moe_layer_freq": 1,
    "num_attention_heads": 32,
    "num_expert_group": 1,
    "num_experts": 256,
    "num_experts_per_token": 8,
    "num_hidden_layers": 27,
    "num_key_value_heads": 32,
    "num_shared_experts": 1,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "topk_group": 1,
    "v_head_dim": 128,
    "vocab_size": 163840,
}


@pytest.mark.parametrize(
    ("config", "name"), [(KIMI_LINEAR, "kimi-linear-48b-a3b"), (KIMI_K3, "kimi-k3"), (GLM_NEXT, "glm-5.3-flash")]
)
def test_kimi_delta_attention_beside_latent_attention_is_read(config: dict[str, Any], name: str) -> None:
    """What the configuration says is the bundled profile."""
    model, bundled = from_hf_config(config), load_model(name)

    # The vision tower has a configuration of its own.
    ignored = {"name", "source", "checkpoints", "num_parameters_advertised", "vision"}
    assert model.model_dump(exclude=ignored) == bundled.model_dump(exclude=ignored)


def test_the_experts_of_kimi_k3_alone_are_in_mxfp4() -> None:
    """As its quantization_config says; 1.56 TB in all, as its model card."""
    stored, model = from_hf_config(KIMI_K3).stored, load_model("kimi-k3")

    parts = {part for other in stored.other_formats for part in other.parts if other.format == "none"}
    assert stored.format == "mxfp4"
    assert parts == {"attention", "attention_output", "linear_attention", "mlp", "shared_experts"}
    assert weights_bytes(model, "mxfp4") == pytest.approx(1.56e12, rel=0.005)


def test_the_checkpoints_of_models_with_kimi_delta_attention_have_their_published_bytes() -> None:
    """Kimi Linear 91.5 GiB; GLM-5.3-Flash 642.7 GB, 14.9 of them a layer for multi-token prediction, and a tower."""
    assert weights_bytes(load_model("kimi-linear-48b-a3b")) == pytest.approx(91.5 * 2**30, rel=1e-3)
    assert weights_bytes(load_model("glm-5.3-flash"), "none") == pytest.approx(642.7e9 - 14.9e9 - 1.2e9, rel=1e-3)


def test_layer_types_say_which_layers_are_linear() -> None:
    """Qwen3.5 lists its layers in the text part, and has no dense MLP to give the width of."""
    types = (["linear_attention"] * 3 + ["full_attention"]) * 12
    text = {
        key: value for key, value in QWEN3_NEXT.items() if key not in ("full_attention_interval", "intermediate_size")
    }
    nested = {
        "model_type": "qwen3_5_moe",
        "text_config": {**text, "model_type": "qwen3_5_moe_text", "layer_types": types},
    }

    model = from_hf_config(nested)

    assert (model.num_linear_layers, model.num_attention_layers) == (36, 12)
    assert model.intermediate_size == 10 * 512
    assert model.moe is not None
    assert model.moe.num_shared_experts == 1
    assert model.has_attention_gate


def test_linear_layers_without_their_heads_are_refused() -> None:
    """Another architecture's linear attention has no formula here."""
    types = ["linear_attention"] * 16 + ["full_attention"] * 16

    with pytest.raises(ProfileError, match="'linear_attention'") as refused:
        from_hf_config(make_config(layer_types=types, sliding_window=4096))

    assert refused.value.key == "layer_types"


def test_glm_4_has_biases_of_queries_alone_and_norms_of_heads() -> None:
    """GLM-4.5: 355 B parameters, 32 B active; a bias of the projections but not of the output."""
    config = make_config(
        model_type="glm4_moe",
        hidden_size=5120,
        num_hidden_layers=92,
        num_attention_heads=96,
        num_key_value_heads=8,
        head_dim=128,
        intermediate_size=12288,
        vocab_size=151552,
        n_routed_experts=160,
        n_shared_experts=1,
        num_experts_per_tok=8,
        moe_intermediate_size=1536,
        first_k_dense_replace=3,
        attention_bias=True,
        use_qk_norm=True,
    )

    model = from_hf_config(config)

    assert model.num_parameters == pytest.approx(355e9, rel=0.01)
    assert model.num_active_parameters == pytest.approx(32e9, rel=0.06)
    assert (model.has_qkv_bias, model.has_output_bias, model.qk_norm) == (True, False, "per_head")


ARCHITECTURES: list[tuple[str, dict[str, Any], float, float]] = [
    (
        "nemotron",  # Nemotron-4 340B
        {
            "hidden_size": 18432,
            "intermediate_size": 73728,
            "max_position_embeddings": 4096,
            "num_attention_heads": 96,
            "num_hidden_layers": 96,
            "vocab_size": 256000,
            "head_dim": 192,
            "rms_norm_eps": ...,
        },
        341e9,
        341e9,
    ),
    (
        "cohere",  # Command R+
        {
            "hidden_size": 12288,
            "intermediate_size": 33792,
            "num_attention_heads": 96,
            "num_hidden_layers": 64,
            "vocab_size": 256000,
            "use_qk_norm": True,
            "rms_norm_eps": ...,
            "tie_word_embeddings": ...,
        },
        104e9,
        104e9,
    ),
    (
        "cohere2",  # Command A
        {
            "hidden_size": 12288,
            "intermediate_size": 36864,
            "max_position_embeddings": 131072,
            "num_attention_heads": 96,
            "num_hidden_layers": 64,
            "vocab_size": 256000,
            "sliding_window": 4096,
            "rms_norm_eps": ...,
            "tie_word_embeddings": ...,
        },
        111e9,
        111e9,
    ),
    (
        "phi",  # Phi-2
        {
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "num_key_value_heads": ...,
            "vocab_size": 51200,
            "rms_norm_eps": ...,
        },
        2.78e9,
        2.78e9,
    ),
    (
        "phimoe",  # Phi-3.5-MoE
        {
            "intermediate_size": 6400,
            "max_position_embeddings": 131072,
            "num_experts_per_tok": 2,
            "num_local_experts": 16,
            "vocab_size": 32064,
            "attention_bias": True,
        },
        41.9e9,
        6.6e9,
    ),
    (
        "ernie4_5_moe",  # ERNIE-4.5-300B-A47B
        {
            "hidden_size": 8192,
            "intermediate_size": 28672,
            "moe_intermediate_size": 3584,
            "moe_k": 8,
            "moe_num_experts": 64,
            "moe_layer_start_index": 3,
            "num_attention_heads": 64,
            "num_hidden_layers": 54,
            "vocab_size": 103424,
        },
        300e9,
        47e9,
    ),
    (
        "granitemoe",  # Granite-3.1-3B-A800M
        {
            "hidden_size": 1536,
            "intermediate_size": 512,
            "num_attention_heads": 24,
            "num_experts_per_tok": 8,
            "num_local_experts": 40,
            "vocab_size": 49155,
            "tie_word_embeddings": True,
        },
        3.3e9,
        0.88e9,
    ),
    (
        "glm4",  # GLM-4-9B-0414
        {
            "intermediate_size": 13696,
            "num_hidden_layers": 40,
            "num_key_value_heads": 2,
            "vocab_size": 151552,
            "attention_bias": True,
            "head_dim": 128,
        },
        9.4e9,
        9.4e9,
    ),
]


@pytest.mark.parametrize(
    ("model_type", "fields", "total", "active"), ARCHITECTURES, ids=[case[0] for case in ARCHITECTURES]
)
def test_other_architectures_have_their_published_sizes(
    model_type: str, fields: dict[str, Any], total: float, active: float
) -> None:
    """Sizes as publishers state them, within their rounding; none of them is read as something else."""
    model = from_hf_config(make_config(model_type=model_type, **fields))

    assert model.num_parameters == pytest.approx(total, rel=0.01)
    assert model.num_active_parameters == pytest.approx(active, rel=0.03)
    assert "unknown" not in model.source


def test_parallel_layers_have_one_norm_and_slide_but_every_fourth() -> None:
    """Command A: attention beside the MLP behind one norm, windows in three of four layers."""
    name, fields, _, _ = ARCHITECTURES[2]

    model = from_hf_config(make_config(model_type=name, **fields))

    assert (model.has_parallel_attention, model.num_norms_per_layer) == (True, 1)
    assert (model.sliding_window, model.num_sliding_layers) == (4096, 48)


def test_a_multimodal_qwen_is_its_text_part() -> None:
    """Qwen3-VL: norms of heads as in Qwen3."""
    text = {key: value for key, value in LLAMA_3_8B.items() if key != "tie_word_embeddings"}
    nested = {
        "model_type": "qwen3_vl",
        "tie_word_embeddings": True,
        "text_config": text | {"model_type": "qwen3_vl_text"},
    }

    model = from_hf_config(nested)

    assert (model.family, model.qk_norm, model.tie_word_embeddings) == ("qwen3_vl_text", "per_head", True)


def test_experts_under_unknown_names_are_refused() -> None:
    """An unknown architecture whose experts nobody would read is no dense Llama."""
    with pytest.raises(ProfileError, match="speaks of experts") as refused:
        from_hf_config(make_config(model_type="new_moe", router_num_experts=64))

    assert refused.value.key == "router_num_experts"


def test_layers_without_a_formula_are_named_before_what_is_missing() -> None:
    """Nemotron-NAS: its blocks differ, which is why it gives no key-value heads."""
    with pytest.raises(ProfileError, match="no formula for") as refused:
        from_hf_config(make_config(model_type="nemotron-nas", block_configs=[{}], num_key_value_heads=...))

    assert refused.value.key == "block_configs"


@pytest.mark.parametrize(
    ("scaling", "context"),
    [
        ({"type": "linear", "factor": 4.0}, 32768),
        ({"rope_type": "dynamic", "factor": 2}, 16384),
        ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}, 8192),
        ({"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}, 8192),
        (None, 8192),
    ],
)
def test_engines_stretch_contexts_that_are_scaled_plainly(scaling: dict[str, Any] | None, context: int) -> None:
    """deepseek-coder's 16,384 with a factor of 4 are 65,536 in vLLM; other scalings name the stretched length."""
    assert from_hf_config({**LLAMA_3_8B, "rope_scaling": scaling}).max_position_embeddings == context
