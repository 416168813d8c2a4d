"""Models whose layers are of several kinds: their ``config.json`` is rewritten, and counts as their reports have it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simserve.errors import ProfileError
from simserve.perf.linear_attention import selective_scan_parts
from simserve.perf.stage import stage_of, stage_parts
from simserve.profiles.catalog import load_model
from simserve.profiles.hf_config import from_hf_config
from simserve.profiles.model import ModelProfile
from tests.perf.shapes import make_shape

NOT_ARCHITECTURE = {"architecture", "name", "source", "checkpoints", "num_parameters_advertised"}
GIB = 2**30

FALCON_H1: dict[str, Any] = {
    "model_type": "falcon_h1",
    "architectures": ["FalconH1ForCausalLM"],
    "hidden_size": 3072,
    "num_hidden_layers": 44,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "intermediate_size": 12288,
    "vocab_size": 130049,
    "max_position_embeddings": 262144,
    "mamba_d_ssm": 3072,
    "mamba_n_heads": 24,
    "mamba_d_head": 128,
    "mamba_n_groups": 1,
    "mamba_d_state": 256,
    "mamba_d_conv": 4,
    "mamba_chunk_size": 256,
    "mamba_conv_bias": True,
    "mamba_rms_norm": True,
    "mamba_proj_bias": False,
    "projectors_bias": False,
    "attention_bias": False,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
"""config.json of tiiuae/Falcon-H1-7B-Instruct."""
JAMBA: dict[str, Any] = {
    "model_type": "jamba",
    "architectures": ["JambaForCausalLM"],
    "attn_layer_offset": 4,
    "attn_layer_period": 8,
    "expert_layer_offset": 1,
    "expert_layer_period": 2,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "mamba_conv_bias": True,
    "mamba_d_conv": 4,
    "mamba_d_state": 16,
    "mamba_dt_rank": 256,
    "mamba_expand": 2,
    "mamba_proj_bias": False,
    "max_position_embeddings": 262144,
    "num_attention_heads": 32,
    "num_experts": 16,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 65536,
}
"""config.json of ai21labs/AI21-Jamba-1.5-Mini."""
GEMMA_3N: dict[str, Any] = {
    "model_type": "gemma3n",
    "architectures": ["Gemma3nForConditionalGeneration"],
    "text_config": {
        "model_type": "gemma3n_text",
        "hidden_size": 2048,
        "num_hidden_layers": 35,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "intermediate_size": [16384] * 35,
        "vocab_size": 262400,
        "vocab_size_per_layer_input": 262144,
        "hidden_size_per_layer_input": 256,
        "max_position_embeddings": 32768,
        "layer_types": ["full_attention" if layer % 5 == 4 else "sliding_attention" for layer in range(35)],
        "sliding_window": 512,
        "num_kv_shared_layers": 15,
        "altup_num_inputs": 4,
        "laurel_rank": 64,
    },
}
"""config.json of google/gemma-3n-E4B-it, the part of text."""
LONGCAT: dict[str, Any] = {
    "architectures": ["LongcatFlashForCausalLM"],
    "attention_bias": False,
    "expert_ffn_hidden_size": 2048,
    "ffn_hidden_size": 12288,
    "hidden_size": 6144,
    "kv_lora_rank": 512,
    "max_position_embeddings": 131072,
    "moe_topk": 12,
    "n_routed_experts": 512,
    "num_attention_heads": 64,
    "num_layers": 28,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "torch_dtype": "bfloat16",
    "v_head_dim": 128,
    "vocab_size": 131072,
    "zero_expert_num": 256,
    "zero_expert_type": "identity",
}
"""config.json of meituan-longcat/LongCat-Flash-Chat, which names no type."""
LING_2_6: dict[str, Any] = {
    "architectures": ["BailingMoeV2_5ForCausalLM"],
    "model_type": "bailing_hybrid",
    "first_k_dense_replace": 1,
    "group_norm_size": 4,
    "head_dim": 128,
    "hidden_size": 4096,
    "intermediate_size": 9216,
    "kv_lora_rank": 512,
    "layer_group_size": 8,
    "max_position_embeddings": 131072,
    "moe_intermediate_size": 1024,
    "moe_router_enable_expert_bias": True,
    "moe_shared_expert_intermediate_size": 1024,
    "n_group": 8,
    "num_attention_heads": 32,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "num_kv_heads_for_linear_attn": 32,
    "num_nextn_predict_layers": 1,
    "num_shared_experts": 1,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "topk_group": 4,
    "use_qk_norm": True,
    "v_head_dim": 128,
    "vocab_size": 157184,
}
"""config.json of inclusionAI/Ling-2.6-flash."""
MINIMAX_01: dict[str, Any] = {
    "model_type": "minimax_m1",
    "architectures": ["MiniMaxM1ForCausalLM"],
    "attn_type_list": [0, 0, 0, 0, 0, 0, 0, 1] * 10,
    "head_dim": 128,
    "hidden_size": 6144,
    "intermediate_size": 9216,
    "max_position_embeddings": 10240000,
    "num_attention_heads": 64,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 80,
    "num_key_value_heads": 8,
    "num_local_experts": 32,
    "shared_intermediate_size": 0,
    "tie_word_embeddings": False,
    "vocab_size": 200064,
}
"""config.json of MiniMaxAI/MiniMax-M1-80k."""
PUBLISHED = {
    "falcon-h1-7b": FALCON_H1,
    "jamba-mini-1.7": JAMBA,
    "gemma-3n-e4b": GEMMA_3N,
    "longcat-flash-560b": LONGCAT,
    "ling-2.6-flash": LING_2_6,
    "minimax-text-01": MINIMAX_01,
}


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_a_published_configuration_gives_the_bundled_profile(name: str) -> None:
    """Every field of the architecture."""
    found, bundled = from_hf_config(PUBLISHED[name]), load_model(name)

    excluded = NOT_ARCHITECTURE | {"family"} if name == "minimax-text-01" else NOT_ARCHITECTURE
    assert found.model_dump(exclude=excluded) == bundled.model_dump(exclude=excluded)
    assert not found.is_assumed


def test_a_layer_of_falcon_h1_keeps_keys_and_a_state() -> None:
    """44 layers with two heads of 128 for keys and values, and 24 states of 128 x 256 beside a convolution of four."""
    model = load_model("falcon-h1-7b")

    assert (model.num_attention_layers, model.num_linear_layers, model.num_dense_layers) == (44, 44, 44)
    assert model.layers_with("attention") == model.layers_with("linear_attention") == tuple(range(0, 88, 2))
    assert model.layers_with("mlp") == tuple(range(1, 88, 2))
    assert model.kv_bytes_per_token(2) == 44 * 2 * 2 * 128 * 2
    assert model.state_bytes() == 44 * 2 * (24 * 128 * 256 + 3 * (3072 + 2 * 256))


def test_attention_and_mamba_side_by_side_are_reduced_each() -> None:
    """Their output projections are row-parallel in vLLM, as is the MLP's: three sums a layer of Falcon-H1."""
    tokens = np.array([1024.0])
    falcon, whole = (
        stage_of(make_shape(model=name, tensor_parallel_size=2, max_model_len=8192))
        for name in ("falcon-h1-7b", "llama-3.1-8b")
    )

    a_sum = stage_parts(whole, tokens)[3] / (2 * 32) * 3072 / 4096
    assert stage_parts(falcon, tokens)[3] / (3 * 44) == pytest.approx(a_sum, rel=0.25)
    assert load_model("falcon-h1-7b").reductions_per_layer == 3 / 2


def test_a_width_of_falcon_h1_that_its_heads_do_not_have_is_refused() -> None:
    """The width counts, and the heads must fill it."""
    with pytest.raises(ProfileError, match=r"mamba_d_ssm.*must be mamba_n_heads x mamba_d_head = 3072"):
        from_hf_config({**FALCON_H1, "mamba_d_ssm": 6144})


@pytest.mark.parametrize(("name", "gibibytes"), [("jamba-mini-1.7", 4), ("jamba-large-1.7", 9)])
def test_jamba_s_keys_take_what_its_paper_says(name: str, gibibytes: int) -> None:
    """KV cache at 256K tokens in 16 bit: 4 and 9 GB (arXiv 2408.12570, table 1)."""
    assert load_model(name).kv_bytes_per_token(2) * 256 * 1024 == gibibytes * GIB


def test_jamba_s_layers_alternate_by_two_periods() -> None:
    """Attention in layers 4, 12, 20 and 28, experts in every odd one: never in the same."""
    model = load_model("jamba-mini-1.7")

    pattern = model.layer_pattern or ""
    assert [layer // 2 for layer, letter in enumerate(pattern) if letter == "*"] == [4, 12, 20, 28]
    assert [layer // 2 for layer, letter in enumerate(pattern) if letter == "E"] == list(range(1, 32, 2))
    assert model.num_linear_layers == 28


def test_one_expert_is_an_mlp() -> None:
    """AI21-Jamba-Reasoning-3B says one expert, of which one is chosen: 28 layers, each before an MLP."""
    changes = {"num_experts": 1, "num_experts_per_tok": 1, "attn_layer_period": 14, "attn_layer_offset": 7}

    model = from_hf_config({**JAMBA, **changes, "num_hidden_layers": 28})

    assert model.moe is None
    assert (model.num_attention_layers, model.num_linear_layers, model.num_dense_layers) == (2, 26, 28)


def test_the_state_of_the_first_mamba_is_one_of_every_channel() -> None:
    """8,192 channels of 16 in 16 bit and three inputs of the convolution, in 28 layers; weights by hand."""
    model = load_model("jamba-mini-1.7")

    assert model.state_bytes() == 28 * 2 * (8192 * 16 + 3 * 8192)
    assert [(gemm.name, gemm.out_features, gemm.in_features) for gemm in model.linear_attention_gemms(2)] == [
        ("mamba_in", 8192, 4096),
        ("mamba_parameters", 256 + 2 * 16, 4096),
        ("mamba_time_step", 4096, 256),
        ("mamba_out", 4096, 4096),
    ]


def test_the_first_mamba_scans_outside_tensor_cores() -> None:
    """A token of a prompt takes 9 FLOP for each element of the state in FP32, or the traffic of four vectors."""
    machine, mamba = make_shape(model="jamba-mini-1.7", max_model_len=8192).machine, load_model("jamba-mini-1.7").mamba1
    assert mamba is not None
    tokens = np.array([8192.0, 16384.0])

    with_scan, without = (
        selective_scan_parts(mamba, machine, tokens, 1, has_prompts=has_prompts).sum(axis=0)
        for has_prompts in (True, False)
    )

    a_token = float(np.diff(with_scan - without)[0]) / 8192
    moved = 4 * 8192 * 2 / (machine.bandwidth * machine.memory_efficiency)
    assert a_token == pytest.approx(max(9 * 8192 * 16 / machine.peak("fp32"), moved), rel=1e-6)


def test_longcat_s_active_parameters_are_those_of_its_report() -> None:
    """18.6 B where all twelve chosen experts compute nothing, 31.3 where none does (arXiv 2509.01322, abstract).

    The report leaves the embedding out. In the mean eight compute, as many as their share of the choices.
    """
    model = load_model("longcat-flash-560b")
    assert model.moe is not None

    expert = model.num_moe_layers * sum(gemm.num_parameters for gemm in model.expert_gemms())
    fewest = model.num_active_parameters - 8 * expert - model.num_embedding_parameters
    assert [fewest / 1e9, (fewest + 12 * expert) / 1e9] == pytest.approx([18.6, 31.3], rel=0.01)
    assert model.moe.num_experts_per_tok == 12 * 512 / (512 + 256)
    assert model.mlp_gemms(1)[0].out_features == 512 + 256


def test_longcat_caches_both_attentions_of_a_layer() -> None:
    """56 latents of 576 a token; experts in 28 of the layers that are counted here, an MLP in all."""
    model = load_model("longcat-flash-560b")

    assert (model.num_hidden_layers, model.num_moe_layers) == (56, 28)
    assert model.kv_bytes_per_token(1) == 56 * 576
    dense = {sum(gemm.num_weights for gemm in model.mlp_gemms(layer) if "router" not in gemm.name) for layer in (0, 1)}
    assert dense == {3 * 6144 * 12288}


def copies_of(model: ModelProfile) -> int:
    """Return the parameters that Gemma 3n's copies of the hidden state take, by hand."""
    width, layers = model.hidden_size, model.num_hidden_layers
    around = 2 * 3 * width * width
    a_layer = 4 * width + 2 * 64 * width + 4 * 4 + 4 * 16 + 3 * width
    return around + layers * a_layer


def test_gemma_3n_keeps_four_copies_of_the_hidden_state() -> None:
    """Without them the model is smaller by their projections, routers, coefficients and low-rank paths."""
    model = load_model("gemma-3n-e4b")

    without = model.model_copy(update={"alternating_updates": None})

    assert model.num_parameters - without.num_parameters == copies_of(model)


def test_gemma_3n_s_files_hold_keys_of_layers_that_share_them() -> None:
    """6.87 and 4.46 B in llama.cpp's tables: with the projections of keys and values, and norms, of all layers."""
    for name, billions in (("gemma-3n-e2b", 4.46), ("gemma-3n-e4b", 6.87)):
        model = load_model(name)
        assert model.shared_keys is not None

        unused = model.shared_keys.num_layers * (2 * 2 * 256 * 2048 + 256)

        assert (model.num_parameters + unused) / 1e9 == pytest.approx(billions, abs=0.005), name


def test_mlps_of_gemma_3n_must_be_alike() -> None:
    """Its files list a width a layer."""
    text = {**GEMMA_3N["text_config"], "intermediate_size": [16384] * 34 + [8192]}

    with pytest.raises(ProfileError, match=r"intermediate_size.*must be the same in all layers"):
        from_hf_config({**GEMMA_3N, "text_config": text})


def test_lightning_attention_has_a_state_and_no_convolution() -> None:
    """Ling 2.6 flash: 28 layers of 32 states of 128 x 128 in FP32; queries, keys, values and gate in one product."""
    model = load_model("ling-2.6-flash")

    assert model.state_bytes() == 28 * 32 * 128 * 128 * 4
    assert {gemm.name: gemm.out_features for gemm in model.linear_attention_gemms()} == {
        "linear_qkvz": 4 * 4096,
        "linear_output": 4096,
    }
    assert model.rare_layers == "models with lightning attention"


def test_layers_of_minimax_01_are_read_in_both_spellings() -> None:
    """0 and 1, or types as newer versions of transformers write them."""
    types = ["full_attention" if kind else "linear_attention" for kind in MINIMAX_01["attn_type_list"]]
    renamed = {key: value for key, value in MINIMAX_01.items() if key != "attn_type_list"}

    found = from_hf_config({**renamed, "model_type": "minimax", "layer_types": types})

    assert found.linear_attention == from_hf_config(MINIMAX_01).linear_attention
    assert found.num_attention_layers == 10


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({**MINIMAX_01, "attn_type_list": [0, 1]}, "attn_type_list"),
        ({**LING_2_6, "num_kv_heads_for_linear_attn": 8}, "num_kv_heads_for_linear_attn"),
        ({**JAMBA, "mamba_proj_bias": True}, "mamba_proj_bias"),
        ({**JAMBA, "layers_block_type": ["mamba"] * 3}, "layers_block_type"),
        ({**FALCON_H1, "projectors_bias": True}, "projectors_bias"),
    ],
)
def test_what_has_no_formula_is_refused(config: dict[str, Any], key: str) -> None:
    """By its key."""
    with pytest.raises(ProfileError) as refused:
        from_hf_config(config)

    assert refused.value.key == key
