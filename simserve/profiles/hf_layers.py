"""Reads the kinds of layers that a Hugging Face ``config.json`` names: experts, latent, sparse and linear attention.

Gives fields of `simserve.profiles.model.ModelProfile`; what one family alone has is in
`simserve.profiles.hf_own_fields`.
"""

from __future__ import annotations

from typing import Any

from simserve.profiles.hf_families import (
    EXPERT_KEYS,
    convolution_layers,
    dense_layers,
    indexer_layers,
    layer_switches,
    linear_layers,
)
from simserve.profiles.hf_reader import ConfigReader

_SHARED_WIDTH_KEYS = (
    "shared_expert_intermediate_size",
    "shared_intermediate_size",
    "moe_shared_expert_intermediate_size",
    "share_expert_dim",
)
CHOSEN_KEYS = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "experts_per_token",
    "moe_k",
    "moe_top_k",
    "moe_topk",
    "top_k_experts",
)
_LATENT_KEYS = ("moe_latent_size", "routed_expert_hidden_size", "moe_hidden_size")
STATE_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0}


def latent_attention(reader: ConfigReader, heads: int) -> dict[str, Any]:
    """Return latent attention (MLA), with its indexer if it has one.

    Args:
        heads: Query heads.

    Raises:
        ProfileError: A width is missing or has a wrong type, or the projections have biases.
    """
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
        fields["indexer"] = indexer(reader) | {"num_layers": indexer_layers(reader)}
    return fields


def indexer(reader: ConfigReader) -> dict[str, Any]:
    """Return the indexer of sparse attention (DeepSeek-V3.2)."""
    return {
        "num_heads": reader.integer("index_n_heads"),
        "head_dim": reader.integer("index_head_dim"),
        "topk": reader.integer("index_topk"),
        "pooled_tokens": reader.integer("index_kpool", default=1),
    }


def experts(reader: ConfigReader) -> dict[str, Any] | None:
    """Return the routed and shared experts; None for a dense model.

    Raises:
        ProfileError: A field is missing or has a wrong type, or the layers with experts have no formula here.
    """
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
    chosen, zero = reader.integer(*CHOSEN_KEYS), reader.integer("zero_expert_num", default=0, minimum=0)
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
        "image_intermediate_size": reader.value("image_expert_width") and reader.integer("image_expert_width"),
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


def linear_attention(reader: ConfigReader) -> dict[str, Any] | None:
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
        "state_element_bytes": reader.choice(STATE_BYTES, "mamba_ssm_dtype", default="float32"),
    }


def equal_heads(heads: int, width: int) -> dict[str, int]:
    """Return the heads of linear attention whose keys and values are alike."""
    counts = dict.fromkeys(("num_key_heads", "num_value_heads"), heads)
    return counts | dict.fromkeys(("key_head_dim", "value_head_dim"), width)


def _kimi_delta_attention(delta: ConfigReader, reader: ConfigReader) -> dict[str, Any]:
    """Return the layers of Kimi Delta Attention (vLLM, layers/kda.py): heads alike, projections as narrow as one."""
    heads, width = delta.integer("num_heads"), delta.integer("head_dim")
    return {
        "num_layers": len(delta.sequence("kda_layers") or []),
        **equal_heads(heads, width),
        "conv_kernel": delta.integer("short_conv_kernel_size", default=4),
        "state_element_bytes": reader.choice(STATE_BYTES, "mamba_ssm_dtype", default="float32"),
        "decay_rank": width,
        "has_low_rank_gate": not delta.flag("use_full_rank_gate"),
        "has_bounded_decay": delta.value("gate_lower_bound") is not None,
    }


def mamba(reader: ConfigReader) -> dict[str, Any] | None:
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
        "state_element_bytes": reader.choice(STATE_BYTES, "mamba_ssm_cache_dtype", default=dtype),
    }


def short_convolution(reader: ConfigReader) -> dict[str, Any] | None:
    """Return the short convolutions of LFM2; None if there are none."""
    if reader.value("conv_L_cache") is None:
        return None
    return {
        "num_layers": convolution_layers(reader),
        "width": reader.integer("hidden_size"),
        "conv_kernel": reader.integer("conv_L_cache"),
        "has_bias": reader.flag("conv_bias"),
    }
