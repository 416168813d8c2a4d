"""Converts a Hugging Face ``config.json`` to a model profile: aliases, family defaults, refusals by name.

Reads raw JSON, not through transformers, which renames fields on the way. Knows no weights.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from simserve.errors import ProfileError
from simserve.profiles.hf_encoders import audio_tower, vision_tower
from simserve.profiles.hf_families import (
    EXPERT_KEYS,
    FAMILIES,
    FAMILY_OF_ARCHITECTURE,
    LAYER_KEYS,
    MTP_KEYS,
    REGISTERED_ARCHITECTURE,
    UNSUPPORTED_KEYS,
    Family,
    check_softmax_layers,
    convolution_layers,
    dense_layers,
    indexer_layers,
    layer_pattern,
    layer_switches,
    linear_layers,
    shared_layers,
    sliding_layers,
)
from simserve.profiles.hf_quantization import read_checkpoint
from simserve.profiles.hf_reader import ConfigReader
from simserve.profiles.hf_rewriting import rewritten
from simserve.profiles.model import ModelProfile
from simserve.validation import validate

_WIDTH_KEYS = ("intermediate_size", "ffn_hidden_size", "ffn_dim", "n_inner")
_SHARED_WIDTH_KEYS = (
    "shared_expert_intermediate_size",
    "shared_intermediate_size",
    "moe_shared_expert_intermediate_size",
    "share_expert_dim",
)
_CHOSEN_KEYS = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "experts_per_token",
    "moe_k",
    "moe_top_k",
    "moe_topk",
    "top_k_experts",
)
_LATENT_KEYS = ("moe_latent_size", "routed_expert_hidden_size")
_PLAIN_MLP_FACTOR = 4  # MLP width over hidden_size if GPT-2, GPT-J, BLOOM or Falcon omit it
_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "auto": "bf16"}
_STATE_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0}
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_EXPERT_COUNT = re.compile(r"experts|^moe_|_moe_")
# What a config of an unknown architecture must state to be read as a Llama with other sizes.
_GENERIC_KEYS = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
    "rms_norm_eps",
    "tie_word_embeddings",
)


def from_hf_config(
    mapping: Mapping[str, Any], file: object = None, beside: Mapping[str, Any] | None = None
) -> ModelProfile:
    """Return the profile of a Hugging Face configuration.

    Reads the text part of a multimodal model (``text_config``, ``thinker_config.text_config``). A ``model_type``
    outside `FAMILIES` is read as a Llama with other sizes if it states every size.

    Args:
        mapping: The parsed ``config.json``.
        file: File it was read from; names the profile, and the place of errors.
        beside: The ``hf_quant_config.json`` of the same repository; None: no such file.

    Raises:
        ProfileError: A field is missing, has a wrong type, or describes layers without a formula here.
    """
    config = rewritten(_text_part(mapping, file), file)
    model_type = _model_type(config)
    family = FAMILIES.get(model_type)
    _check_unsupported(ConfigReader(config, file), family)
    if family is None:
        _check_generic(config, model_type, file)
    rules = family or Family()
    pattern = layer_pattern(ConfigReader(config, file))
    counted = {} if pattern is None else {"num_hidden_layers": len(pattern)}
    reader = ConfigReader({**rules.defaults, **counted, **_present(config), "model_type": model_type}, file)
    fields = {
        "name": _name(config, file),
        "family": model_type or "unknown",
        "architecture": _architecture(mapping),
        "is_assumed": family is None,
        "source": _source(model_type, file),
        **_sizes(reader),
        **_attention(reader, rules),
        **_biases(reader, rules),
        **rules.fields,
        **_falcon(reader),
        "moe": _experts(reader),
        "linear_attention": _linear_attention(reader),
        "layer_pattern": pattern,
        "mamba": _mamba(reader),
        "short_convolution": _short_convolution(reader),
        "vision": vision_tower(reader),
        "audio": audio_tower(reader),
        "num_mtp_layers": reader.integer(*MTP_KEYS, default=0, minimum=0),
    }
    own = _OWN.get(model_type)
    fields |= own(reader) if own else {}
    model = validate(ModelProfile, fields, file=file, error=ProfileError)
    repository = _huggingface_id(config, file)
    stored = read_checkpoint(
        {**config, "model_type": model_type}, model, repository=repository, beside=beside, file=file
    )
    return model.model_copy(update={"checkpoints": (stored,)})


def _model_type(config: Mapping[str, Any]) -> str:
    """Return the family; by the architecture if the ``model_type`` is unknown."""
    model_type = str(config.get("model_type") or "")
    listed = config.get("architectures")
    named = [FAMILY_OF_ARCHITECTURE.get(str(name)) for name in listed] if isinstance(listed, list) else []
    return model_type if model_type in FAMILIES else next((name for name in named if name), model_type)


def _architecture(config: Mapping[str, Any]) -> str | None:
    """Return the class of the whole model, vision tower included, as engines name it; None if the file names none."""
    listed = config.get("architectures")
    named = str(listed[0]) if isinstance(listed, list) and listed else None
    return REGISTERED_ARCHITECTURE.get(named or "", named)


def _check_unsupported(reader: ConfigReader, family: Family | None) -> None:
    read = frozenset() if family is None else family.reads
    for key in UNSUPPORTED_KEYS:
        if key not in read and reader.value(key):
            raise reader.refusal("means layers that simserve has no formula for", key)
    if "attn_type_list" not in read:
        check_softmax_layers(reader)


def _mamba(reader: ConfigReader) -> dict[str, Any] | None:
    """Return the Mamba-2 layers (Nemotron-H, Granite 4, Falcon-H1); None if there are none."""
    if reader.value("mamba_num_heads") is None:
        return None
    for key in ("use_bias", "mamba_proj_bias", "projectors_bias"):
        if reader.flag(key):
            raise reader.refusal("with Mamba-2 has no formula", key)
    dtype = str(reader.value("dtype", "torch_dtype") or "bfloat16").removeprefix("torch.")
    return {
        "num_heads": reader.integer("mamba_num_heads"),
        "head_dim": reader.integer("mamba_head_dim"),
        "state_size": reader.integer("ssm_state_size"),
        "num_groups": reader.integer("n_groups", default=1),
        "conv_kernel": reader.integer("conv_kernel", default=4),
        "has_conv_bias": reader.flag("use_conv_bias", default=True),
        "has_gated_norm": reader.flag("mamba_rms_norm", default=True),
        "chunk_size": reader.integer("chunk_size", default=128),
        "state_element_bytes": reader.choice(_STATE_BYTES, "mamba_ssm_cache_dtype", default=dtype),
    }


def _short_convolution(reader: ConfigReader) -> dict[str, Any] | None:
    """Return the short convolutions of LFM2; None if there are none."""
    if reader.value("conv_L_cache") is None:
        return None
    return {
        "num_layers": convolution_layers(reader),
        "width": reader.integer("hidden_size"),
        "conv_kernel": reader.integer("conv_L_cache"),
        "has_bias": reader.flag("conv_bias"),
    }


def _granite_hybrid_norms(reader: ConfigReader) -> dict[str, Any]:
    """Return the norms per layer: one if a layer is a mixer or an MLP, two if it is both."""
    return {"num_norms_per_layer": 2 if reader.value("layers_block_type") is None else 1}


def _gemma4(reader: ConfigReader) -> dict[str, Any]:
    """Return the two kinds of heads, the norms and the router's scales of Gemma 4.

    Layers without a window have heads of another width, and their values are their keys before the norm. With experts,
    every token also passes the dense MLP (``modeling_gemma4.py``). One scalar per layer is stored too.
    """
    heads, kv_heads = reader.integer("num_attention_heads"), reader.integer("num_key_value_heads")
    width, layers = reader.integer("head_dim"), reader.integer(*LAYER_KEYS)
    is_shared = reader.flag("attention_k_eq_v")
    fields: dict[str, Any] = {
        "num_key_value_heads": reader.integer("num_global_key_value_heads", default=kv_heads)
        if is_shared
        else kv_heads,
        "head_dim": reader.integer("global_head_dim", default=width),
        "has_value_projection": not is_shared,
        "sliding_heads": {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": width},
        "num_norms_per_layer": 4,
        "num_other_parameters": layers,
    }
    shared, windows = shared_layers(reader)
    if shared:
        wide = 2 * reader.integer("intermediate_size") if reader.flag("use_double_wide_mlp") else None
        fields["shared_keys"] = {"num_layers": shared, "num_sliding_layers": windows, "intermediate_size": wide}
    if inputs := reader.integer("hidden_size_per_layer_input", default=0, minimum=0):
        rows = reader.integer("vocab_size_per_layer_input", "vocab_size")
        fields["layer_inputs"] = {"width": inputs, "vocab_size": rows}
    if not reader.flag("enable_moe_block"):
        return fields | {"moe": None}
    scales = reader.integer("hidden_size") + reader.integer("num_experts")
    return fields | {"num_norms_per_layer": 7, "num_other_parameters": layers * (1 + scales)}


def _gemma3n(reader: ConfigReader) -> dict[str, Any]:
    """Return what Gemma 3n's layers add to attention and MLP, and those that share keys (``modeling_gemma3n.py``).

    Heads are the same in layers with and without a window. Values have a norm without weights.
    """
    heads, kv_heads = reader.integer("num_attention_heads"), reader.integer("num_key_value_heads")
    fields: dict[str, Any] = {
        "sliding_heads": {
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "head_dim": reader.integer("head_dim"),
        },
        "layer_inputs": {
            "width": reader.integer("hidden_size_per_layer_input"),
            "vocab_size": reader.integer("vocab_size_per_layer_input", "vocab_size"),
        },
        "alternating_updates": {
            "num_inputs": reader.integer("altup_num_inputs"),
            "laurel_rank": reader.integer("laurel_rank"),
        },
    }
    shared, windows = shared_layers(reader)
    return fields | ({"shared_keys": {"num_layers": shared, "num_sliding_layers": windows}} if shared else {})


def _jamba(reader: ConfigReader) -> dict[str, Any]:
    """Return Jamba's layers of Mamba-1 (``JambaConfig``, ``JambaMambaMixer`` of transformers)."""
    if reader.flag("mamba_proj_bias"):
        raise reader.refusal("with Mamba has no formula", "mamba_proj_bias")
    width, dtype = reader.integer("hidden_size"), str(reader.value("dtype", "torch_dtype") or "bfloat16")
    rank = reader.value("mamba_dt_rank")
    return {
        "mamba1": {
            "inner_width": reader.integer("mamba_expand", default=2) * width,
            "state_size": reader.integer("mamba_d_state", default=16),
            "time_step_rank": -(-width // 16) if rank in (None, "auto") else reader.integer("mamba_dt_rank"),
            "conv_kernel": reader.integer("mamba_d_conv", default=4),
            "has_conv_bias": reader.flag("mamba_conv_bias", default=True),
            "state_element_bytes": _STATE_BYTES.get(dtype.removeprefix("torch."), 2.0),
        }
    }


def _minimax_m3(reader: ConfigReader) -> dict[str, Any]:
    """Return MiniMax-M3's dense MLP and the indexer of its sparse layers, whose keys stay in BF16.

    A query attends to a fixed number of key blocks (``minimax_m3.py`` of SGLang 0.5.23).
    """
    fields: dict[str, Any] = {"intermediate_size": reader.integer("dense_intermediate_size", "intermediate_size")}
    block = reader.mapping("sparse_attention_config")
    if not block or not block.get("use_sparse_attention", True):
        return fields
    sparse = ConfigReader({"num_hidden_layers": reader.integer(*LAYER_KEYS), **block}, reader.file)
    layers = layer_switches(sparse, "sparse_attention_freq")
    if layers is not None and layers != sorted(layers):
        raise sparse.refusal("must have its layers without sparse attention first", "sparse_attention_freq")
    fields["indexer"] = {
        "num_heads": sparse.integer("sparse_num_index_heads"),
        "head_dim": sparse.integer("sparse_index_dim"),
        "topk": sparse.integer("sparse_topk_blocks") * sparse.integer("sparse_block_size"),
        "num_unsparse_layers": 0 if layers is None else layers.count(0),
        "key_format": "bf16",
    }
    return fields


def _deepseek_v4(reader: ConfigReader) -> dict[str, Any]:
    """Return DeepSeek-V4's compressed attention and residual streams (``modeling_deepseek_v4.py`` of transformers).

    The first layers choose experts by the token alone and have no score correction.
    """
    layers, ratios = reader.integer(*LAYER_KEYS), reader.sequence("compress_ratios") or []
    if len(ratios) < layers or any(isinstance(ratio, bool) or not isinstance(ratio, int) for ratio in ratios):
        raise reader.refusal(f"must give tokens an entry for each of {layers} layers", "compress_ratios")
    indexed = reader.integer("compress_rate")
    hashed = reader.integer("num_hash_layers", default=3, minimum=0)
    return {
        "sliding_window": None,
        "num_sliding_layers": 0,
        "num_residual_streams": reader.integer("hc_mult"),
        "compressed_attention": {
            "q_lora_rank": reader.integer("q_lora_rank"),
            "qk_rope_head_dim": reader.integer("qk_rope_head_dim"),
            "num_output_groups": reader.integer("o_groups"),
            "output_lora_rank": reader.integer("o_lora_rank"),
            "window": reader.integer("sliding_window"),
            "indexed_ratio": indexed,
            "ratios": ratios[:layers],
        },
        "indexer": _indexer(reader) if indexed in ratios[:layers] else None,
        "moe": {**(_experts(reader) or {}), "has_router_bias": False},
        "num_other_parameters": max(layers - hashed, 0) * reader.integer(*EXPERT_KEYS),
    }


def _mimo_v2(reader: ConfigReader) -> dict[str, Any]:
    """Return the heads of MiMo-V2's layers with a window, and which layers have learned sinks."""
    if reader.flag("add_full_attention_sink_bias") and not reader.flag("add_swa_attention_sink_bias"):
        raise reader.refusal("without add_swa_attention_sink_bias has no formula", "add_full_attention_sink_bias")
    sliding = "sliding" if reader.flag("add_swa_attention_sink_bias") else False
    return {
        "v_head_dim": reader.integer("v_head_dim", default=reader.integer("head_dim")),
        "has_attention_sinks": reader.flag("add_full_attention_sink_bias") or sliding,
        "sliding_heads": {
            "num_attention_heads": reader.integer("swa_num_attention_heads", "num_attention_heads"),
            "num_key_value_heads": reader.integer("swa_num_key_value_heads", "num_key_value_heads"),
            "head_dim": reader.integer("swa_head_dim", "head_dim"),
            "v_head_dim": reader.integer("swa_v_head_dim", "v_head_dim"),
        },
    }


def _step3p5(reader: ConfigReader) -> dict[str, Any]:
    """Return the heads of Step-3.5's layers with a window if the file gives them separately."""
    block = reader.mapping("attention_other_setting") or {}
    count = reader.integer("num_sliding_attention_heads", default=0, minimum=0)
    if not block and not count:
        return {}
    own = {"num_attention_heads": count} if count else {}
    other = ConfigReader({**own, **block}, reader.file)
    width, kv_heads = reader.integer("head_dim"), reader.integer("num_key_value_heads", "num_attention_groups")
    return {
        "sliding_heads": {
            "num_attention_heads": other.integer("num_attention_heads"),
            "num_key_value_heads": other.integer("num_attention_groups", default=kv_heads),
            "head_dim": other.integer("head_dim", default=width),
        }
    }


def _kimi_linear(reader: ConfigReader) -> dict[str, Any]:
    """Return what Kimi-K3 adds to Kimi Linear: a gate of latent attention, residuals by blocks, a norm of the experts'
    latent vector (``modeling_kimi_linear.py`` beside its checkpoint)."""
    experts = _experts(reader) or {}
    dense = experts.get("first_dense_layers", 0) + len(experts.get("dense_layers", ()))
    normed = experts.get("latent_size") if reader.flag("latent_moe_use_norm") else None
    return {
        "has_attention_gate": reader.flag("mla_use_output_gate"),
        "residual_block_layers": reader.value("attn_res_block_size"),
        "num_other_parameters": (reader.integer(*LAYER_KEYS) - dense) * (normed or 0),
    }


def _bailing_hybrid(reader: ConfigReader) -> dict[str, Any]:
    """Return Ling 3's Kimi Delta Attention and the gate of its latent attention (``bailing_moe_v3.py`` of vLLM), or the
    lightning attention of Ling 2.5 and 2.6 (``bailing_moe_linear.py`` of vLLM).

    Every ``layer_group_size``-th layer has latent attention, and so do layers after the last complete group.
    """
    layers, group = reader.integer(*LAYER_KEYS), reader.integer("layer_group_size")
    heads, width, linear = reader.integer("num_attention_heads"), reader.integer("head_dim"), layers // group
    if not reader.flag("no_kda_lora"):
        return _lightning(reader, linear * (group - 1))
    gate = reader.value("gated_attention_proj_granularity_type")
    return {
        "has_head_gate": gate == "head_wise",
        "has_attention_gate": gate == "element_wise",
        "linear_attention": {
            "num_layers": linear * (group - 1),
            "num_key_heads": heads,
            "num_value_heads": heads,
            "key_head_dim": width,
            "value_head_dim": width,
            "conv_kernel": reader.integer("short_conv_kernel_size", default=4),
            "has_full_rank_decay": True,
            "has_bounded_decay": reader.flag("kda_safe_gate", default=True),
        },
    }


def _lightning(reader: ConfigReader, num_layers: int) -> dict[str, Any]:
    """Return that many layers of lightning attention, whose queries and keys may have norms per head."""
    heads, width = reader.integer("num_attention_heads"), reader.integer("head_dim")
    if reader.integer("num_kv_heads_for_linear_attn", default=heads) != heads:
        raise reader.refusal(
            f"must be the {heads} attention heads; others have no formula", "num_kv_heads_for_linear_attn"
        )
    normed = 2 * width if reader.flag("use_qk_norm") else 0
    return {
        "qk_norm": "none",
        "num_other_parameters": num_layers * normed,
        "linear_attention": {
            "num_layers": num_layers,
            "num_key_heads": heads,
            "num_value_heads": heads,
            "key_head_dim": width,
            "value_head_dim": width,
            "conv_kernel": 1,
            "has_fixed_decay": True,
        },
    }


def _minimax_01(reader: ConfigReader) -> dict[str, Any]:
    """Return the lightning attention of MiniMax-Text-01 and M1, 0 in ``attn_type_list``."""
    kinds = reader.sequence("attn_type_list") or []
    if len(kinds) != reader.integer(*LAYER_KEYS) or set(kinds) - {0, 1}:
        raise reader.refusal("must list 0 or 1 for each layer", "attn_type_list")
    return _lightning(reader, kinds.count(0)) if 0 in kinds else {}


def _cohere2_moe(reader: ConfigReader) -> dict[str, Any]:
    """Return the dense MLP of the first layers; experts have the width that the file names first."""
    return {"intermediate_size": reader.integer("prefix_dense_intermediate_size", "intermediate_size")}


def _laguna(reader: ConfigReader) -> dict[str, Any]:
    """Return the gate of Laguna's attention and the query heads of its layers with a window (vLLM, ``laguna.py``)."""
    kinds = {"per-head": "has_head_gate", "per-element": "has_attention_gate"}
    fields: dict[str, Any] = {reader.choice(kinds, "gating"): True}
    heads, types = reader.sequence("num_attention_heads_per_layer"), reader.sequence("layer_types")
    if heads is None or types is None:
        return fields
    of_kind = {kind: {each for each, other in zip(heads, types, strict=False) if other == kind} for kind in set(types)}
    if len(heads) != len(types) or any(len(each) > 1 for each in of_kind.values()):
        raise reader.refusal("must be the same in all layers of a type", "num_attention_heads_per_layer")
    if "sliding_attention" in of_kind:
        fields["sliding_heads"] = {
            "num_attention_heads": of_kind["sliding_attention"].pop(),
            "num_key_value_heads": reader.integer("num_key_value_heads"),
            "head_dim": reader.integer("head_dim"),
        }
    if "full_attention" in of_kind:
        fields["num_attention_heads"] = of_kind["full_attention"].pop()
    return fields


def _hy_v4(reader: ConfigReader) -> dict[str, Any]:
    """Return the gate of Hy4's latent attention and its residual streams (vLLM, models/hy_v4)."""
    is_gated, kind = reader.flag("gated_mla", default=True), reader.value("gating_type") or "elementwise"
    return {
        "has_attention_gate": is_gated and kind == "elementwise",
        "has_head_gate": is_gated and kind == "headwise",
        "num_residual_streams": reader.integer("hc_mult", default=4),
    }


def _glm5_next(reader: ConfigReader) -> dict[str, Any]:
    """Return the residual streams of GLM-5.3-Flash."""
    return {"num_residual_streams": reader.integer("hc_mult", default=1) if reader.flag("mhc", default=True) else 1}


_OWN: Mapping[str, Callable[[ConfigReader], dict[str, Any]]] = {
    "gemma3n": _gemma3n,
    "gemma3n_text": _gemma3n,
    "gemma4": _gemma4,
    "gemma4_text": _gemma4,
    "bailing_hybrid": _bailing_hybrid,
    "cohere2_moe": _cohere2_moe,
    "jamba": _jamba,
    "laguna": _laguna,
    "granitemoehybrid": _granite_hybrid_norms,
    "minimax": _minimax_01,
    "minimax_m1": _minimax_01,
    "minimax_text_01": _minimax_01,
    "minimax_m3": _minimax_m3,
    "minimax_m3_vl": _minimax_m3,
    "minimax_m3_vl_text": _minimax_m3,
    "deepseek_v4": _deepseek_v4,
    "hy_v4": _hy_v4,
    "glm5_next": _glm5_next,
    "glm5_next_text": _glm5_next,
    "kimi_linear": _kimi_linear,
    "mimo_v2_flash": _mimo_v2,
    "mimo_v2": _mimo_v2,
    "step3p5": _step3p5,
    "step3p7": _step3p5,
}


def _linear_attention(reader: ConfigReader) -> dict[str, Any] | None:
    """Return the layers of a gated delta rule (Qwen3-Next, Qwen3.5, Kimi Linear); None if there are none."""
    delta = reader.mapping("linear_attn_config")
    if delta is not None:
        return _kimi_delta_attention(ConfigReader(delta, reader.file), reader)
    count = linear_layers(reader)
    if not count:
        return None
    return {
        "num_layers": count,
        "num_key_heads": reader.integer("linear_num_key_heads"),
        "num_value_heads": reader.integer("linear_num_value_heads"),
        "key_head_dim": reader.integer("linear_key_head_dim"),
        "value_head_dim": reader.integer("linear_value_head_dim"),
        "conv_kernel": reader.integer("linear_conv_kernel_dim", default=4),
        "state_element_bytes": reader.choice(_STATE_BYTES, "mamba_ssm_dtype", default="float32"),
    }


def _kimi_delta_attention(delta: ConfigReader, reader: ConfigReader) -> dict[str, Any]:
    """Return the layers of Kimi Delta Attention (vLLM, layers/kda.py): heads alike, projections as narrow as one."""
    heads, width = delta.integer("num_heads"), delta.integer("head_dim")
    return {
        "num_layers": len(delta.sequence("kda_layers") or []),
        "num_key_heads": heads,
        "num_value_heads": heads,
        "key_head_dim": width,
        "value_head_dim": width,
        "conv_kernel": delta.integer("short_conv_kernel_size", default=4),
        "state_element_bytes": reader.choice(_STATE_BYTES, "mamba_ssm_dtype", default="float32"),
        "decay_rank": width,
        "has_low_rank_gate": not delta.flag("use_full_rank_gate"),
        "has_bounded_decay": delta.value("gate_lower_bound") is not None,
    }


def _present(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if value is not None}


def _text_part(mapping: Mapping[str, Any], file: object) -> dict[str, Any]:
    """Return the language model's fields, on top of those of the whole (``tie_word_embeddings``, ``dtype``)."""
    config = dict(mapping)
    for key in ("thinker_config", "text_config", "llm_config", "language_config"):
        inner = config.pop(key, None)
        if inner is None:
            continue
        if not isinstance(inner, Mapping):
            raise ProfileError("must be a mapping", file=file, key=key, value=inner)
        config |= inner
    return config


def _check_generic(config: Mapping[str, Any], model_type: str, file: object) -> None:
    missing = [key for key in _GENERIC_KEYS if config.get(key) is None]
    if missing:
        raise ProfileError(
            "is not a known architecture, and to read it as a Llama with other sizes the file lacks "
            + ", ".join(missing),
            file=file,
            key="model_type",
            value=model_type or None,
            remedy="known are " + ", ".join(sorted(FAMILIES)) + "; or write a model profile",
        )
    named = [key for key, value in config.items() if _EXPERT_COUNT.search(key) and type(value) is int and value > 0]
    if named and not any(config.get(key) for key in EXPERT_KEYS):
        raise ProfileError(
            f"speaks of experts under a name that is not known of the model_type {model_type}",
            file=file,
            key=named[0],
            value=config[named[0]],
            remedy="experts are read under " + ", ".join(EXPERT_KEYS) + "; or write a model profile",
        )


def _name(config: Mapping[str, Any], file: object) -> str:
    if file is None:
        return str(config.get("_name_or_path") or config.get("model_type") or "model").rsplit("/", 1)[-1]
    path = Path(str(file))
    stem = path.resolve().parent.name if path.name == "config.json" else path.stem.removesuffix("_config")
    return stem.rsplit("--", 1)[-1] or "model"


def _huggingface_id(config: Mapping[str, Any], file: object) -> str | None:
    """Return the repository stated in the file or its name: ``org--name_config.json`` is org/name."""
    named = config.get("_name_or_path")
    if isinstance(named, str) and _REPOSITORY.fullmatch(named):
        return named
    path = Path(str(file)) if file is not None else Path("config.json")
    stem = path.resolve().parent.name if path.name == "config.json" else path.stem.removesuffix("_config")
    repository = stem.removeprefix("models--").replace("--", "/")
    return repository if "--" in stem and _REPOSITORY.fullmatch(repository) else None


def _source(model_type: str, file: object) -> str:
    where = Path(str(file)).name if file is not None else "config.json"
    if model_type in FAMILIES:
        return f"{where} (Hugging Face, model_type {model_type})"
    return f"{where} (Hugging Face, unknown model_type {model_type!r} read as a Llama with other sizes)"


def _sizes(reader: ConfigReader) -> dict[str, Any]:
    hidden_size = reader.integer("hidden_size", "n_embd", "n_embed", "d_model")
    if reader.integer("word_embed_proj_dim", default=hidden_size) != hidden_size:
        raise reader.refusal("must equal hidden_size; other widths have no formula", "word_embed_proj_dim")
    positions = _context(reader)
    is_plain = reader.value("model_type") in (
        "gpt2",
        "gptj",
        "bloom",
        "falcon",
        "RefinedWeb",
        "RefinedWebModel",
    )
    width = _PLAIN_MLP_FACTOR * hidden_size if is_plain else None
    if reader.value(*EXPERT_KEYS) and reader.value("moe_intermediate_size"):
        # No layer keeps a dense MLP: use the width of all experts that a token visits.
        width = reader.integer("moe_intermediate_size") * reader.integer(*_CHOSEN_KEYS)
    width = reader.integer("intermediate_size_mlp", *_WIDTH_KEYS, default=width)
    has_learned_positions = reader.flag("has_learned_positions")
    return {
        "dtype": reader.choice(_DTYPES, "dtype", "torch_dtype", default="bfloat16"),
        "hidden_size": hidden_size,
        "num_hidden_layers": reader.integer(*LAYER_KEYS),
        "intermediate_size": width,
        "vocab_size": reader.integer("vocab_size"),
        "max_position_embeddings": positions,
        "tie_word_embeddings": reader.flag("tie_word_embeddings"),
        "num_learned_positions": (
            positions + reader.integer("num_extra_positions", default=0, minimum=0) if has_learned_positions else 0
        ),
    }


def _context(reader: ConfigReader) -> int:
    """Return the longest context, which engines extend for linear or dynamic scaling of positions.

    vLLM config.py, _get_and_verify_max_len; for other scalings (llama3, yarn) the file states the extended length.
    """
    positions = reader.integer(
        "max_position_embeddings", "n_positions", "n_ctx", "seq_length", "max_seq_len", "model_max_length"
    )
    scaling = reader.mapping("rope_scaling") or {}
    factor = scaling.get("factor")
    is_stretched = scaling.get("rope_type", scaling.get("type")) in ("linear", "dynamic")
    return int(positions * factor) if is_stretched and isinstance(factor, int | float) else positions


def _attention(reader: ConfigReader, family: Family) -> dict[str, Any]:
    heads = reader.integer("num_attention_heads", "n_head")
    window, num_sliding_layers = sliding_layers(reader, family.sliding)
    fields: dict[str, Any] = {
        "num_attention_heads": heads,
        "num_key_value_heads": reader.integer(
            "num_key_value_heads", "num_kv_heads", "n_head_kv", "num_attention_groups", default=heads
        ),
        "sliding_window": window,
        "num_sliding_layers": num_sliding_layers,
    }
    if reader.value("kv_lora_rank") is not None:
        return fields | _latent(reader, heads)
    if reader.flag("use_qk_norm") and reader.value("qk_norm_type") is not None:
        fields["qk_norm"] = reader.choice({"per_layer": "full", "per_head": "per_head"}, "qk_norm_type")
    head_dim = reader.integer("head_dim", "attention_head_dim", default=0, minimum=0)
    if not head_dim:
        hidden_size = reader.integer("hidden_size", "n_embd", "n_embed", "d_model")
        if hidden_size % heads:
            raise reader.refusal(
                f"is missing, and {heads} attention heads do not divide the hidden_size {hidden_size}",
                "head_dim",
            )
        head_dim = hidden_size // heads
    return fields | {"head_dim": head_dim}


def _latent(reader: ConfigReader, heads: int) -> dict[str, Any]:
    if reader.flag("attention_bias"):
        raise reader.refusal("with latent attention has no formula", "attention_bias")
    rope, nope = reader.integer("qk_rope_head_dim", minimum=0), reader.integer("qk_nope_head_dim")
    q_lora_rank = reader.integer("q_lora_rank", default=0, minimum=0)
    fields: dict[str, Any] = {
        "num_key_value_heads": heads,
        "head_dim": rope + nope,
        "mla": {
            "kv_lora_rank": reader.integer("kv_lora_rank"),
            "q_lora_rank": q_lora_rank or None,
            "qk_rope_head_dim": rope,
            "qk_nope_head_dim": nope,
            "v_head_dim": reader.integer("v_head_dim"),
        },
    }
    if reader.value("index_topk") is not None:
        fields["indexer"] = _indexer(reader) | {"num_layers": indexer_layers(reader)}
    return fields


def _indexer(reader: ConfigReader) -> dict[str, Any]:
    return {
        "num_heads": reader.integer("index_n_heads"),
        "head_dim": reader.integer("index_head_dim"),
        "topk": reader.integer("index_topk"),
        "pooled_tokens": reader.integer("index_kpool", default=1),
    }


def _biases(reader: ConfigReader, family: Family) -> dict[str, Any]:
    attention = family.has_attention_bias_flag and reader.flag("attention_bias")
    return {
        "has_qkv_bias": attention,
        "has_output_bias": attention,
        "has_mlp_bias": reader.flag("mlp_bias"),
    }


def _falcon(reader: ConfigReader) -> dict[str, Any]:
    """Return what the Falcon switches mean: ``configuration_falcon.py`` and ``modeling_falcon.py``."""
    if FAMILIES.get(str(reader.value("model_type"))) is not FAMILIES["falcon"]:
        return {}
    is_new = reader.flag("new_decoder_architecture") or reader.value("model_type") == "RefinedWeb"
    is_parallel = is_new or reader.flag("parallel_attn", default=True)
    norms = reader.integer("num_ln_in_parallel_attn", default=2 if is_new or not is_parallel else 1)
    has_bias = reader.flag("bias")
    fields: dict[str, Any] = {
        "has_parallel_attention": is_parallel,
        "num_norms_per_layer": norms,
        **dict.fromkeys(("has_qkv_bias", "has_output_bias", "has_mlp_bias"), has_bias),
    }
    if not is_new and reader.flag("multi_query", default=True):
        fields["num_key_value_heads"] = 1
    return fields


def _experts(reader: ConfigReader) -> dict[str, Any] | None:
    num_experts = reader.integer(*EXPERT_KEYS, default=0, minimum=0)
    if not num_experts:
        return None
    if layer_switches(reader, "moe_layer_freq") is None and reader.value("moe_layer_freq") not in (None, 1):
        raise reader.refusal("must be 1 or one switch a layer; other spacings have no formula", "moe_layer_freq")
    width = reader.integer("moe_intermediate_size", "intermediate_size")
    shared, shared_width = _shared_experts(reader, width)
    first = reader.integer("first_k_dense_replace", "moe_layer_start_index", "num_dense_layers", default=0, minimum=0)
    dense = dense_layers(reader)
    if not first and dense == tuple(range(len(dense))):
        first, dense = len(dense), ()
    chosen, zero = reader.integer(*_CHOSEN_KEYS), reader.integer("zero_expert_num", default=0, minimum=0)
    return {
        "num_experts": num_experts,
        # The router's bias keeps choices balanced: this number of the chosen compute (arXiv 2509.01322, section 2.1).
        "num_experts_per_tok": max(round(chosen * num_experts / (num_experts + zero)), 1),
        "num_zero_experts": zero,
        "moe_intermediate_size": width,
        "num_shared_experts": shared,
        "shared_intermediate_size": shared_width,
        "first_dense_layers": first,
        "layer_step": reader.integer(
            "decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval", default=1
        ),
        "dense_layers": dense,
        "num_router_groups": reader.integer("n_group", "num_expert_group", default=1),
        "num_router_groups_per_tok": reader.integer("topk_group", default=1),
        "has_router_bias": (
            reader.flag("has_router_bias")
            or reader.flag("use_routing_bias")
            or reader.value("topk_method") == "noaux_tc"
        ),
        "has_expert_bias": reader.flag("has_expert_bias"),
        "has_shared_expert_gate": reader.flag("has_shared_expert_gate"),
        "latent_size": reader.value(*_LATENT_KEYS) and reader.integer(*_LATENT_KEYS),
    }


def _shared_experts(reader: ConfigReader, width: int) -> tuple[int, int]:
    """Return the number of shared experts per layer, and the width of one."""
    own_width = reader.integer(*_SHARED_WIDTH_KEYS, default=0, minimum=0)
    if reader.flag("enable_moe_block"):
        return 1, reader.integer("intermediate_size")  # Gemma 4's dense MLP, besides the experts
    default = 1 if own_width else 0
    count = reader.integer(
        "n_shared_experts",
        "num_shared_experts",
        "num_shared_expert",
        "moe_num_shared_experts",
        default=default,
        minimum=0,
    )
    return count, (own_width or width) if count else 0
