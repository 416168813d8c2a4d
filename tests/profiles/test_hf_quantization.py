"""Number formats as Hugging Face repositories state them: formats, what stays 16-bit, scales, KV."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simserve.errors import ProfileError
from simserve.profiles.catalog import load_model
from simserve.profiles.checkpoint import Checkpoint
from simserve.profiles.hf_config import from_hf_config

CONFIGS = Path(__file__).resolve().parents[2] / "../shared/data/model_configs"

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 100,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
EXPERTS: dict[str, Any] = {
    **LLAMA,
    "model_type": "deepseek_v3",
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "num_nextn_predict_layers": 1,
}
BITS4 = {"num_bits": 4, "type": "float", "group_size": 16}


def stored(
    quantization: dict[str, Any] | None, config: dict[str, Any] = LLAMA, beside: dict[str, Any] | None = None
) -> Checkpoint:
    """Return the checkpoint of a small model whose configuration says so."""
    block = {} if quantization is None else {"quantization_config": quantization}
    return from_hf_config({**config, **block}, beside=beside).stored


def kept(checkpoint: Checkpoint) -> list[tuple[tuple[str, ...], str, tuple[int, ...] | None]]:
    """Return what is in another format than the checkpoint's own."""
    return [(each.parts, each.format, each.layers) for each in checkpoint.other_formats]


def test_without_a_word_weights_are_in_their_dtype() -> None:
    """No quantization_config, nothing beside it."""
    assert stored(None).format == "none"
    assert stored(None).is_wide


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, ("fp8", "block", None)),
        ({"quant_method": "fp8", "activation_scheme": "static"}, ("fp8", "tensor", None)),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, ("gptq-int4", "tensor", 128)),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, ("int8-wo", "tensor", None)),
        ({"quant_method": "gptq", "bits": 3, "group_size": 128}, ("int3", "tensor", 128)),
        ({"quant_method": "awq", "bits": 4, "group_size": 64}, ("awq-int4", "tensor", 64)),
        ({"quant_method": "awq", "bits": 4, "zero_point": True}, ("awq-int4", "tensor", None)),
        ({"quant_method": "awq", "bits": 4, "zero_point": False}, ("awq-int4-gemm", "tensor", None)),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, ("nf4", "tensor", None)),
        ({"quant_method": "mxfp4"}, ("mxfp4", "tensor", None)),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, ("nvfp4", "tensor", None)),
        ({"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4"}, ("nvfp4-wo", "tensor", None)),
        ({"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"}, ("fp8", "block", None)),
        (
            {"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4"}}, "exclude": ["lm_head"]},
            ("mxfp4", "tensor", None),
        ),
    ],
)
def test_a_method_says_the_format(block: dict[str, Any], expected: tuple[str, str, int | None]) -> None:
    """As its tool writes it: format, scales of FP8, group of integers."""
    found = stored(block)

    assert (found.format, found.fp8_scales, found.group_size) == expected


@pytest.mark.parametrize(
    ("weights", "inputs", "expected"),
    [
        ({"num_bits": 8, "type": "float", "strategy": "channel"}, {"num_bits": 8}, ("fp8", "channel", None)),
        ({"num_bits": 8, "type": "float", "strategy": "tensor"}, {"num_bits": 8}, ("fp8", "tensor", None)),
        ({"num_bits": 8, "type": "float", "strategy": "block"}, {"num_bits": 8}, ("fp8", "block", None)),
        (BITS4, {"num_bits": 4}, ("nvfp4", "tensor", None)),
        (BITS4, None, ("nvfp4-wo", "tensor", None)),
        ({**BITS4, "group_size": 32}, None, ("mxfp4", "tensor", None)),
        ({"num_bits": 8, "type": "int"}, {"num_bits": 8}, ("int8", "tensor", None)),
        ({"num_bits": 8, "type": "int"}, None, ("int8-wo", "tensor", None)),
        ({"num_bits": 4, "type": "int", "group_size": 32, "symmetric": True}, None, ("int4", "tensor", 32)),
        ({"num_bits": 4, "type": "int", "group_size": 128, "symmetric": False}, None, ("awq-int4", "tensor", 128)),
    ],
)
def test_compressed_tensors_say_bits_and_groups(
    weights: dict[str, Any], inputs: dict[str, Any] | None, expected: tuple[str, str, int | None]
) -> None:
    """Bits, type and group of weights, and whether inputs are rounded too."""
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    found = stored({"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, "ignore": ["lm_head"]})

    assert (found.format, found.fp8_scales, found.group_size) == expected
    assert kept(found) == []


def test_layers_that_stay_wide_are_named() -> None:
    """As Meta's 405B in FP8: attention of all layers, the MLP of the first and the last."""
    names = [
        *(f"model.layers.{layer}.self_attn.{each}_proj" for layer in range(4) for each in "qkvo"),
        *(f"model.layers.{layer}.mlp.{each}_proj" for layer in (0, 3) for each in ("gate", "up", "down")),
    ]
    block = {"quant_method": "fbgemm_fp8", "modules_to_not_convert": names}

    model = from_hf_config({**LLAMA, "quantization_config": block})

    found = model.stored
    assert (found.format, found.method) == ("fp8", "fbgemm_fp8")
    assert kept(found) == [(("attention", "attention_output"), "none", None), (("mlp",), "none", (0, 3))]
    assert model.formats_in(found, "mlp") == {"none": 0.5, "fp8": 0.5}


def test_a_router_or_a_norm_that_stays_wide_is_no_matrix_of_a_layer() -> None:
    """`mlp.gate` is the router, not the projection `mlp.gate_proj`; a bare `gate` as little."""
    names = ["model.layers.1.mlp.gate", "model.layers.1.input_layernorm", "gate", "lm_head"]

    assert kept(stored({"quant_method": "fp8", "modules_to_not_convert": names}, EXPERTS)) == []


def test_regular_expressions_name_modules() -> None:
    """As Kimi-K2.5: routed experts in groups of 32, all else in 16 bit."""
    group = {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "group_size": 32, "symmetric": True}}
    ignored = ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"]
    found = stored(
        {"quant_method": "compressed-tensors", "config_groups": {"g": group}, "ignore": ignored},
        {**EXPERTS, "num_nextn_predict_layers": 0},
    )

    assert (found.format, found.group_size) == ("int4", 32)
    assert kept(found) == [(("attention", "attention_output", "mlp", "shared_experts"), "none", None)]


def test_modelopt_says_it_beside_the_configuration() -> None:
    """hf_quant_config.json: part of attention, the layer behind the last, FP8 KV."""
    projections = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj")
    excluded = [f"model.layers.{layer}.self_attn.{each}" for layer in range(4) for each in projections]
    algorithm = {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "exclude_modules": [*excluded, "model.layers.4*"]}
    found = stored(None, EXPERTS, {"producer": {"name": "modelopt"}, "quantization": algorithm})

    assert (found.format, found.method, found.kv_cache) == ("nvfp4", "modelopt", "fp8")
    assert kept(found) == [(("attention",), "none", None), (("mtp",), "none", None)]
    assert found.mtp_format == "none"


def test_modelopt_mixes_formats_by_layer() -> None:
    """quantized_layers: attention in FP8, experts in NVFP4, the rest in 16 bit."""
    layers = {
        **{f"model.layers.{n}.self_attn.{each}_proj": {"quant_algo": "FP8"} for n in range(4) for each in "qkvo"},
        **{f"model.layers.{n}.mlp.experts.{e}.up_proj": {"quant_algo": "NVFP4"} for n in range(4) for e in range(8)},
        **{f"model.layers.{n}.mlp.experts.{e}.down_proj": {"quant_algo": "NVFP4"} for n in range(4) for e in range(8)},
        **{f"model.layers.{n}.mlp.experts.{e}.gate_proj": {"quant_algo": "NVFP4"} for n in range(4) for e in range(8)},
    }
    config = {**LLAMA, "model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2}
    found = stored(
        {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers},
        {**config, "moe_intermediate_size": 32},
    )

    assert found.format == "nvfp4"
    assert kept(found) == [(("attention", "attention_output"), "fp8", None)]


def test_layers_of_a_mixed_checkpoint_hold_linear_attention_and_the_head() -> None:
    """As sglang pull request 27906 has it of nvidia/Qwen3.6-35B-A3B-NVFP4; attention in every second of four layers."""
    root = "model.language_model"
    hybrid = {
        **LLAMA,
        "model_type": "qwen3_5_moe_text",
        "head_dim": 16,
        "num_experts": 2,
        "num_experts_per_tok": 1,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
        "full_attention_interval": 2,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
    }
    matrices = ("gate_proj", "up_proj", "down_proj")
    mixers = {1: [f"self_attn.{each}_proj" for each in "qkvo"], 0: ["linear_attn.in_proj_qkv", "linear_attn.out_proj"]}
    narrow = [f"{home}.{each}" for home in ("mlp.experts.0", "mlp.experts.1", "mlp.shared_expert") for each in matrices]
    layers = {
        **{f"{root}.layers.{n}.{each}": {"quant_algo": "FP8"} for n in range(4) for each in mixers[n % 2]},
        **{f"{root}.layers.{n}.{each}": {"quant_algo": "W4A16_NVFP4"} for n in range(4) for each in narrow},
    }
    block = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    beside = {"producer": {"name": "modelopt"}, "quantization": {"kv_cache_quant_algo": "FP8"}}
    headed = {**block, "quantized_layers": {**layers, "lm_head": {"quant_algo": "W4A16_NVFP4"}}}
    plain, mixed = stored(block, hybrid, beside), stored(headed, hybrid, beside)

    assert (mixed.format, mixed.kv_cache) == ("nvfp4-wo", "fp8")
    assert kept(mixed) == [*kept(plain), (("lm_head",), "nvfp4-wo", None)]
    assert {part for parts, kind, _ in kept(mixed) for part in parts if kind == "fp8"} == {
        *("attention", "attention_output", "linear_attention")
    }


def test_the_text_part_may_say_it() -> None:
    """A multimodal configuration holds the block inside text_config."""
    nested = {"model_type": "llama", "text_config": {**LLAMA, "quantization_config": {"quant_method": "fp8"}}}

    assert from_hf_config(nested).stored.format == "fp8"


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({"quant_method": "aqlm"}, "quantization_config.quant_method: 'aqlm' is a number format that simserve has no"),
        ({"quant_algo": "W2A2"}, "quantization_config.quant_algo: 'w2a2' is a number format"),
        ({"quant_method": "gptq", "bits": 5}, "quantization_config.bits: 5 of gptq must be 3, 4 or 8"),
        ({"config_groups": {"g": {"weights": {"num_bits": 6, "type": "float"}}}}, "'float6' is a number format"),
    ],
)
def test_a_format_without_figures_is_refused_by_name(block: dict[str, Any], message: str) -> None:
    """With the key, the value and what to do."""
    with pytest.raises(ProfileError, match=message):
        stored(block)


PUBLISHED: list[tuple[str, str, str, dict[str, str], str | None]] = [
    ("Qwen--Qwen3-235B-A22B-FP8", "fp8", "block", {}, None),
    ("Qwen--Qwen3-32B-FP8-Static-PerTensor", "fp8", "tensor", {}, "fp8"),
    ("deepseek-ai--DeepSeek-R1", "fp8", "block", {}, None),
    ("zai-org--GLM-5-FP8", "fp8", "block", {}, None),
    ("openai--gpt-oss-120b", "mxfp4", "tensor", {"attention": "none", "attention_output": "none"}, None),
    (
        "moonshotai--Kimi-K2.5",
        "int4",
        "tensor",
        dict.fromkeys(("attention", "attention_output", "mlp", "shared_experts"), "none"),
        None,
    ),
    ("nvidia--Llama-3.1-70B-Instruct-FP8", "fp8", "tensor", {}, "fp8"),
    ("nvidia--Qwen3-235B-A22B-NVFP4", "nvfp4", "tensor", {}, "fp8"),
    ("nvidia--DeepSeek-V3.1-NVFP4", "nvfp4", "tensor", {"attention": "none", "mtp": "none"}, "fp8"),
    (
        "nvidia--DeepSeek-V3.2-NVFP4",
        "nvfp4",
        "tensor",
        {"attention": "none", "indexer": "none", "mtp": "none"},
        "fp8",
    ),
    (
        "nvidia--GLM-5-NVFP4",
        "nvfp4",
        "tensor",
        dict.fromkeys(("attention", "attention_output", "indexer", "mtp"), "none"),
        "fp8",
    ),
    ("nvidia--Kimi-K2.5-NVFP4", "nvfp4", "tensor", dict.fromkeys(("attention", "attention_output"), "none"), "fp8"),
    (
        "nvidia--Qwen3.5-397B-A17B-NVFP4",
        "nvfp4",
        "tensor",
        dict.fromkeys(("attention", "attention_output", "linear_attention", "shared_experts", "mtp"), "none"),
        "fp8",
    ),
]


@pytest.mark.parametrize(("name", "form", "scales", "others", "kv_cache"), PUBLISHED)
def test_published_configurations_are_read(
    name: str, form: str, scales: str, others: dict[str, str], kv_cache: str | None
) -> None:
    """What their repositories say, resolved against the modules of their family."""
    path = CONFIGS / f"{name}_config.json"
    if not path.is_file():
        pytest.skip("the reference configurations are not here")
    found = load_model(str(path)).stored

    assert (found.format, found.fp8_scales, found.kv_cache) == (form, scales, kv_cache)
    assert {part: each.format for each in found.other_formats for part in each.parts} == others
    assert all(each.layers is None for each in found.other_formats)


@pytest.mark.parametrize(
    ("repository", "name", "form"),
    [
        ("zai-org/GLM-5", "glm-5", "none"),
        ("zai-org/GLM-5-FP8", "glm-5", "fp8"),
        ("nvidia/Llama-3.1-405B-Instruct-FP8", "llama-3.1-405b", "fp8"),
        ("meta-llama/llama-3.1-405b-instruct-fp8", "llama-3.1-405b", "fp8"),
    ],
)
def test_a_repository_is_the_model_as_it_is_stored_there(repository: str, name: str, form: str) -> None:
    """A short name stands for one checkpoint, a repository for itself."""
    model = load_model(repository)

    assert (model.name, model.stored.format) == (name, form)
    assert model.huggingface_id is not None
    assert model.huggingface_id.lower() == repository.lower()
    assert len(model.checkpoints) == len(load_model(name).checkpoints)


@pytest.mark.parametrize(
    ("block", "stored", "group_size", "kv_cache"),
    [
        (
            {"quant_method": "modelopt", "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}},
            "fp8",
            None,
            "fp8",
        ),
        (
            {
                "quant_method": "torchao",
                "quant_type": {"default": {"_type": "Int4WeightOnlyConfig", "_data": {"group_size": 64}}},
            },
            "int4",
            64,
            None,
        ),
        (
            {"quant_method": "torchao", "quant_type": "int4_weight_only", "quant_type_kwargs": {"group_size": 32}},
            "int4",
            32,
            None,
        ),
        (
            {
                "quant_method": "torchao",
                "quant_type": {"default": {"_type": "Float8DynamicActivationFloat8WeightConfig", "_data": {}}},
            },
            "fp8",
            None,
            None,
        ),
        (
            {"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 4, "group_size": 64}}},
            "int4",
            64,
            None,
        ),
    ],
)
def test_blocks_that_nest_their_arguments_are_read(
    block: dict[str, Any], stored: str, group_size: int | None, kv_cache: str | None
) -> None:
    """ModelOpt's block inside config.json, torchao's by class and by function, and HQQ's."""
    found = from_hf_config({**LLAMA, "quantization_config": block}).stored

    assert (found.format, found.group_size, found.kv_cache) == (stored, group_size, kv_cache)


def test_hqq_names_modules_that_stay_wide_and_formats_by_module() -> None:
    """``skip_modules``, and a ``quant_config`` by name of module, as transformers writes ``dynamic_config``."""
    four, eight = ({"weight_quant_params": {"nbits": bits, "group_size": 64}} for bits in (4, 8))
    skipped = {"quant_method": "hqq", "quant_config": four, "skip_modules": ["lm_head", "self_attn"]}
    by_name = {f"self_attn.{name}_proj": eight for name in "qkvo"} | {
        f"mlp.{name}_proj": four for name in ("gate", "up")
    }

    plain = from_hf_config({**LLAMA, "quantization_config": {**skipped, "skip_modules": ["lm_head"]}}).stored
    wide = from_hf_config({**LLAMA, "quantization_config": skipped})
    named = from_hf_config({**LLAMA, "quantization_config": {"quant_method": "hqq", "quant_config": by_name}})

    assert plain.other_formats == ()
    assert wide.formats_in(wide.stored, "attention") == {"none": 1.0}
    assert wide.formats_in(wide.stored, "mlp") == {"int4": 1.0}
    assert named.formats_in(named.stored, "attention") == {"int8-wo": 1.0}


@pytest.mark.parametrize(
    ("block", "value"),
    [
        ({"quant_method": "torchao", "quant_type": "uintx_weight_only"}, "uintx_weight_only"),
        ({"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 2}}}, "2"),
        ({"quant_method": "exl2", "bits": 4.0}, "exl2"),
    ],
)
def test_formats_without_figures_are_named(block: dict[str, Any], value: str) -> None:
    """What the block says, not who wrote it."""
    with pytest.raises(ProfileError, match=value):
        from_hf_config({**LLAMA, "quantization_config": block})


GRANITE_HYBRID: dict[str, Any] = {
    **LLAMA,
    "model_type": "granitemoehybrid",
    "layer_types": ["mamba", "mamba", "attention", "mamba"],
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "shared_intermediate_size": 64,
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 16,
    "mamba_n_groups": 1,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
}
JAMBA: dict[str, Any] = {
    **LLAMA,
    "model_type": "jamba",
    "attn_layer_offset": 1,
    "attn_layer_period": 4,
    "expert_layer_offset": 1,
    "expert_layer_period": 2,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_dt_rank": 4,
}
FALCON_H1: dict[str, Any] = {
    **LLAMA,
    "model_type": "falcon_h1",
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_ssm": 128,
    "mamba_d_state": 16,
    "mamba_n_groups": 1,
    "mamba_d_conv": 4,
}
LONGCAT: dict[str, Any] = {
    **{key: value for key, value in EXPERTS.items() if key not in ("num_hidden_layers", "intermediate_size")},
    "model_type": "longcat_flash",
    "num_layers": 2,
    "ffn_hidden_size": 64,
    "expert_ffn_hidden_size": 32,
    "moe_topk": 2,
    "num_nextn_predict_layers": 0,
}


@pytest.mark.parametrize(
    ("config", "module", "parts"),
    [
        (JAMBA, "mamba", {"linear_attention"}),
        (JAMBA, "self_attn", {"attention", "attention_output"}),
        (JAMBA, "feed_forward.experts", {"experts"}),
        (FALCON_H1, "mamba", {"linear_attention"}),
        (FALCON_H1, "feed_forward", {"mlp"}),
        (GRANITE_HYBRID, "mamba", {"linear_attention"}),
        (GRANITE_HYBRID, "shared_mlp", {"shared_experts"}),
        (GRANITE_HYBRID, "block_sparse_moe", {"experts"}),
        (LONGCAT, "mlps", {"mlp", "shared_experts"}),
    ],
)
def test_families_of_two_layers_in_one_name_their_modules_in_their_own_way(
    config: dict[str, Any], module: str, parts: set[str]
) -> None:
    """As their modules are named in transformers; a pattern that names one of them holds for it and no other."""
    block = {"quant_method": "fp8", "modules_to_not_convert": [f"re:.*\\.{module.replace('.', chr(92) + '.')}\\."]}
    checkpoint = stored(block, config)
    assert checkpoint.format == ("none" if not parts else "fp8")
    assert {part for each in kept(checkpoint) for part in each[0]} == parts


def test_layers_are_counted_as_the_file_counts_them() -> None:
    """Layer 2 of Granite 4's file is layers 4 and 5 here: attention, and the experts behind it."""
    names = ["model.layers.2.self_attn", "model.layers.2.block_sparse_moe", "model.layers.3.mamba"]
    checkpoint = stored({"quant_method": "fp8", "modules_to_not_convert": names}, GRANITE_HYBRID)
    found = {part: layers for parts, _, layers in kept(checkpoint) for part in parts}
    # The only layer with attention: all that have it.
    assert found == {"attention": None, "attention_output": None, "linear_attention": (6,), "experts": (5,)}
