"""Models added in November 2026: their ``config.json`` gives the bundled profile, whose layers count as their code has
them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simserve.errors import ProfileError
from simserve.perf.shape import weights_bytes, weights_bytes_per_gpu
from simserve.perf.stage import stage_of, stage_seconds
from simserve.profiles.catalog import load_model
from tests.perf.shapes import make_shape
from tests.profiles.published import assert_bundled

FLASH_NEXT: dict[str, Any] = {
    "model_type": "qwen4_exp",
    "architectures": ["Qwen4ExpForConditionalGeneration"],
    "tie_word_embeddings": False,
    "text_config": {
        "model_type": "qwen4_exp_text",
        "attention_bias": False,
        "dtype": "bfloat16",
        "full_attention_interval": 4,
        "hc_count": 4,
        "hc_lowrank": 320,
        "head_dim": 256,
        "heads_per_ngram": 8,
        "hidden_size": 2560,
        "indexer_budget": 2048,
        "indexer_compress_ratio": 4,
        "indexer_head_dim": 128,
        "indexer_kv_heads": 1,
        "indexer_n_heads": 4,
        "layer_types": [*["linear_attention"] * 3, "full_attention"] * 12,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 48,
        "make_ngram_vocab_size_divisible_by": 128,
        "mamba_ssm_dtype": "float32",
        "max_position_embeddings": 262144,
        "moe_intermediate_size": 640,
        "shared_expert_intermediate_size": 640,
        "mtp_num_hidden_layers": 1,
        "ngram_size": 3,
        "ngram_vocab_size_base": 20000000,
        "num_attention_heads": 24,
        "num_key_value_heads": 2,
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "num_hidden_layers": 48,
        "ple_layer_ids": [2],
        "ple_embed_dim": 2560,
        "ple_conv_kernel_size": 4,
        "vocab_size": 248320,
        "tie_word_embeddings": False,
    },
    "vision_config": {
        "model_type": "qwen4_exp",
        "depth": 27,
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_heads": 16,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "out_hidden_size": 2560,
        "num_position_embeddings": 2304,
        "deepstack_visual_indexes": [],
    },
}
STEP3: dict[str, Any] = {
    "model_type": "step3_vl",
    "architectures": ["Step3VLForConditionalGeneration"],
    "text_config": {
        "model_type": "step3_text",
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "num_hidden_layers": 61,
        "num_attention_heads": 64,
        "num_attention_groups": 1,
        "head_dim": 256,
        "share_q_dim": 2048,
        "moe_num_experts": 48,
        "moe_top_k": 3,
        "moe_intermediate_size": 5120,
        "share_expert_dim": 5120,
        "moe_layers_enum": ",".join(str(layer) for layer in range(4, 60)),
        "vocab_size": 128815,
        "max_seq_len": 65536,
        "torch_dtype": "bfloat16",
    },
    "vision_config": {"model_type": "step3_vision_encoder", "hidden_size": 1792, "num_hidden_layers": 63},
}
ERNIE_VL: dict[str, Any] = {
    "model_type": "ernie4_5_moe_vl",
    "architectures": ["Ernie4_5_VLMoeForConditionalGeneration"],
    "hidden_size": 2560,
    "intermediate_size": 12288,
    "num_hidden_layers": 28,
    "num_attention_heads": 20,
    "num_key_value_heads": 4,
    "vocab_size": 103424,
    "max_position_embeddings": 131072,
    "moe_num_experts": [64, 64],
    "moe_k": 6,
    "moe_intermediate_size": [1536, 512],
    "moe_num_shared_experts": 2,
    "moe_layer_start_index": [1, 1],
    "moe_layer_end_index": [29, 28],
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": True,
}
GLM_4_1V: dict[str, Any] = {
    "model_type": "glm4v",
    "architectures": ["Glm4vForConditionalGeneration"],
    "text_config": {
        "model_type": "glm4v_text",
        "hidden_size": 4096,
        "num_hidden_layers": 40,
        "num_attention_heads": 32,
        "num_key_value_heads": 2,
        "intermediate_size": 13696,
        "vocab_size": 151552,
        "max_position_embeddings": 65536,
        "attention_bias": True,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
    },
    "vision_config": {
        "model_type": "glm4v_vision",
        "depth": 24,
        "hidden_size": 1536,
        "intermediate_size": 13696,
        "num_heads": 12,
        "out_hidden_size": 4096,
        "patch_size": 14,
        "spatial_merge_size": 2,
    },
}
KIMI_VL: dict[str, Any] = {
    "model_type": "kimi_vl",
    "architectures": ["KimiVLForConditionalGeneration"],
    "text_config": {
        "model_type": "deepseek_v3",
        "hidden_size": 2048,
        "num_hidden_layers": 27,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "q_lora_rank": None,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "intermediate_size": 11264,
        "moe_intermediate_size": 1408,
        "n_routed_experts": 64,
        "num_experts_per_tok": 6,
        "n_shared_experts": 2,
        "first_k_dense_replace": 1,
        "vocab_size": 163840,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": False,
        "topk_method": "noaux_tc",
    },
    "vision_config": {
        "model_type": "moonvit",
        "hidden_size": 1152,
        "num_hidden_layers": 27,
        "num_attention_heads": 16,
        "intermediate_size": 4304,
        "patch_size": 14,
        "merge_kernel_size": [2, 2],
    },
}
INTERNVL: dict[str, Any] = {
    "model_type": "internvl_chat",
    "architectures": ["InternVLChatModel"],
    "downsample_ratio": 0.5,
    "force_image_size": 448,
    "max_dynamic_patch": 12,
    "llm_config": {
        "model_type": "qwen3",
        "hidden_size": 4096,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 12288,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "tie_word_embeddings": False,
    },
    "vision_config": {
        "model_type": "intern_vit_6b",
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
        "patch_size": 14,
        "image_size": 448,
    },
}
PUBLISHED = {
    "qwen3.8-flash-next": FLASH_NEXT,
    "step3": STEP3,
    "ernie-4.5-vl-28b-a3b": ERNIE_VL,
    "glm-4.1v-9b": GLM_4_1V,
    "kimi-vl-a3b": KIMI_VL,
    "internvl3.5-8b": INTERNVL,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_config_gives_the_bundled_profile(name: str) -> None:
    """Every field of the architecture."""
    assert_bundled(PUBLISHED[name], name)


def test_flash_next_has_as_many_parameters_as_its_checkpoint() -> None:
    """Of 179,999,981,424: the tower with its merger, and a layer for multi-token prediction that repeats a layer of the
    model. What remains is the language model, with 320,001,536 rows of n-grams: 16 primes above 20 million, in blocks
    of 128."""
    model = load_model("qwen3.8-flash-next")
    tower, prediction = 448_931_056, 2_607_150_848

    assert model.num_parameters == 179_999_981_424 - tower - prediction
    assert model.ngrams is not None
    assert 16 * 20_000_000 < model.ngrams.num_rows < 16 * 20_000_000 * 1.0001
    assert model.ngrams.num_rows % 128 == 0


def test_streams_of_low_rank_are_gated_through_their_rank() -> None:
    """From 4 streams of 2,560 to 320, with 4 weights that expand, and back, before attention and before the experts."""
    widths = [(gemm.in_features, gemm.out_features) for gemm in load_model("qwen3.8-flash-next").stream_gemms()]

    assert widths == [(4 * 2560, 320 + 4), (320, 4 * 2560)] * 2


def test_a_table_of_ngrams_is_held_and_not_multiplied() -> None:
    """51.2 B parameters of the 176.9 B: no token is active in them, and ranks split them."""
    model = load_model("qwen3.8-flash-next")
    without = model.model_copy(update={"ngrams": None})

    held = [
        weights_bytes_per_gpu(model, "none", ranks) - weights_bytes_per_gpu(without, "none", ranks) for ranks in (1, 2)
    ]
    table = 320_001_536 * 160 * 2

    assert model.num_parameters - without.num_parameters == pytest.approx(table / 2, rel=0.001)
    assert model.num_active_parameters - without.num_active_parameters < 50e6
    assert held[0] == pytest.approx(table, rel=0.001)
    assert held[1] == pytest.approx(table / 2, rel=0.002)


def test_the_first_stage_of_a_pipeline_holds_the_table_of_ngrams() -> None:
    """Two stages: one has all of it."""
    model = load_model("qwen3.8-flash-next")
    without = model.model_copy(update={"ngrams": None})

    held = [weights_bytes_per_gpu(each, "none", pipeline_parallel_size=2) for each in (model, without)]

    assert held[0] - held[1] == pytest.approx(320_001_536 * 160 * 2, rel=0.01)


def test_looking_up_ngrams_costs_no_pass_over_the_table() -> None:
    """A step with one token takes less than 2 % longer with a table that is a third of the weights."""
    shape = make_shape("b300-sxm-270gb", model="qwen3.8-flash-next", tensor_parallel_size=2)
    without = replace(shape, model=shape.model.model_copy(update={"ngrams": None}))

    with_table, alone = (float(stage_seconds(stage_of(each), np.array([1.0])).parts.sum()) for each in (shape, without))

    assert alone < with_table < 1.02 * alone


@pytest.mark.parametrize(
    ("repository", "gib"),
    [("Qwen/Qwen3.8-Flash-Next", 335.3), ("Qwen/Qwen3.8-Flash-Next-FP8", 172.8)],
)
def test_the_files_of_flash_next_have_their_published_size(repository: str, gib: float) -> None:
    """With the tower in 16 bit, and the layer for multi-token prediction in the format of the experts."""
    model = load_model(repository)
    quantization = model.stored.format

    text = weights_bytes(model, quantization)
    prediction = 2_607_150_848 * (2 if quantization == "none" else 1)

    assert (text + 448_931_056 * 2 + prediction) / 2**30 == pytest.approx(gib, rel=0.005)


def test_step3_shares_one_head_of_keys_and_a_latent_of_queries() -> None:
    """512 values of a layer a token, which 64 heads of 256 read; the query's latent is on every rank."""
    model = load_model("step3")

    gemms = {gemm.name: gemm for layers in model.attention_layers for gemm in layers.gemms(4)}

    assert model.kv_bytes_per_token(2) == 61 * 2 * 256 * 2
    assert (gemms["qkv"].out_features, gemms["qkv"].in_features) == (2048 + 512, 7168)
    assert (gemms["q_b"].out_features, gemms["q_b"].in_features) == (64 * 256 // 4, 2048)


@pytest.mark.parametrize("changes", [{"sliding_window": 4096, "num_sliding_layers": 30}, {"has_attention_gate": True}])
def test_a_low_rank_query_beside_a_window_or_a_gate_is_refused(changes: dict[str, Any]) -> None:
    """No published model has both, so no formula counts both."""
    model = load_model("step3")

    with pytest.raises(ValueError, match="query_rank is for layers of plain attention"):
        type(model).model_validate({**model.model_dump(exclude_unset=True), **changes})


def test_experts_for_images_are_held_and_not_active() -> None:
    """ERNIE 4.5 VL: 27 layers of 64 experts of 512, with a router, beside ERNIE 4.5 21B-A3B."""
    plain, with_images = load_model("ernie-4.5-21b-a3b"), load_model("ernie-4.5-vl-28b-a3b")

    added = 27 * (64 * 3 * 2560 * 512 + 64 * 2560 + 64)

    assert with_images.num_parameters - plain.num_parameters == added
    assert with_images.num_active_parameters == plain.num_active_parameters
    held = weights_bytes(with_images, "none") - weights_bytes(plain, "none")
    assert held == pytest.approx(2 * added, rel=1e-3)


@pytest.mark.parametrize(
    ("width", "height", "tiles"),
    [(448, 448, 1), (300, 200, 7), (896, 896, 5), (1344, 448, 4), (4000, 4000, 10), (4032, 3024, 13), (448, 8000, 13)],
)
def test_internvl_cuts_an_image_into_tiles_of_its_proportions(width: int, height: int, tiles: int) -> None:
    """256 tokens a tile; with several, the whole image is one more (``find_closest_aspect_ratio``)."""
    tower = load_model("internvl3.5-8b").vision
    assert tower is not None

    shape = tower.image(width, height)

    assert (shape.tokens, shape.tokens // 256) == (tiles * 256, tiles)


@pytest.mark.parametrize(
    ("name", "size", "tokens"),
    [
        ("glm-4.1v-9b", 1120, 1600),
        ("kimi-vl-a3b", 448, 256),
        ("kimi-vl-a3b", 4000, 1024),
        ("kimi-vl-a3b-thinking-2506", 4000, 4096),
        ("pixtral-large", 1024, 4096),
    ],
)
def test_a_square_image_becomes_its_tokens(name: str, size: int, tokens: int) -> None:
    """Patches of 14 in groups of four, scaled down to the most pixels; Pixtral's of 16 one by one."""
    tower = load_model(name).vision
    assert tower is not None

    assert tower.image(size, size).tokens == tokens


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("qwen3.8-flash-next", 0.45e9),
        ("kimi-vl-a3b", 0.4e9),
        ("internvl3.5-8b", 0.304e9),
    ],
)
def test_a_tower_has_the_published_weights(name: str, published: float) -> None:
    """As the model cards say, to the digits that they give."""
    tower = load_model(name).vision

    assert tower is not None
    assert tower.num_parameters == pytest.approx(published, rel=0.1)


def test_pixtral_large_has_124_billion_with_its_tower() -> None:
    """A decoder of 123 B, 40 layers of 1,408, and a projector of two matrices."""
    model = load_model("pixtral-large")
    assert model.vision is not None

    projector = 1408 * 12288 + 12288**2

    assert model.num_parameters + model.vision.num_parameters + projector == pytest.approx(124e9, rel=0.002)


@pytest.mark.parametrize(
    ("name", "layers"),
    [("mistralai/Mistral-Large-4-Instruct", "latents"), ("baidu/ERNIE-4.5-VL-424B-A47B-PT", "experts for images")],
)
def test_what_cannot_be_counted_is_refused_for_its_layers(name: str, layers: str) -> None:
    """Never counted as another model with a similar name."""
    with pytest.raises(ProfileError, match=layers):
        load_model(name)
