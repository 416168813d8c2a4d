"""What one architecture family's ``config.json`` says in keys of its own, as fields of a model profile.

These fields replace those that are read for all families (`simserve.profiles.hf_config`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from simserve.profiles.hf_families import EXPERT_KEYS, LAYER_KEYS, layer_switches, shared_layers
from simserve.profiles.hf_layers import STATE_BYTES, equal_heads, experts, indexer
from simserve.profiles.hf_reader import ConfigReader


def own_fields(model_type: str, reader: ConfigReader) -> dict[str, Any]:
    """Return the fields that a family's own keys give; empty for most families.

    Raises:
        ProfileError: One of its fields is missing, has a wrong type, or describes layers without a formula here.
    """
    own = _OWN.get(model_type)
    return {} if own is None else own(reader)


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
            "state_element_bytes": STATE_BYTES.get(dtype.removeprefix("torch."), 2.0),
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
        "is_divided": True,
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
        "indexer": indexer(reader) if indexed in ratios[:layers] else None,
        "moe": {**(experts(reader) or {}), "has_router_bias": False},
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
    routed = experts(reader) or {}
    dense = routed.get("first_dense_layers", 0) + len(routed.get("dense_layers", ()))
    normed = routed.get("latent_size") if reader.flag("latent_moe_use_norm") else None
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
            **equal_heads(heads, width),
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
            **equal_heads(heads, width),
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


def _muse_spark(reader: ConfigReader) -> dict[str, Any]:
    """Return what Muse Spark's layers add to attention and experts (``modeling_muse_spark.py`` of transformers).

    One of the four norms of a layer has no weights; both sums with the residual have a gate per channel, the latent
    vector and the output of each expert a norm.
    """
    return {
        "num_other_parameters": reader.integer(*LAYER_KEYS)
        * (reader.integer("hidden_size") + 2 * reader.integer("moe_hidden_size"))
    }


def _qwen4_exp(reader: ConfigReader) -> dict[str, Any]:
    """Return Qwen3.8-Flash-Next's residual streams, indexer and n-grams (``modular_qwen4_exp.py`` of transformers)."""
    fields: dict[str, Any] = {
        "num_residual_streams": reader.integer("hc_count"),
        "stream_rank": reader.integer("hc_lowrank"),
    }
    if reader.value("indexer_n_heads") is not None:
        fields["indexer"] = {
            "num_heads": reader.integer("indexer_n_heads"),
            "head_dim": reader.integer("indexer_head_dim"),
            "topk": reader.integer("indexer_budget"),
            "key_format": "bf16",
            "pooled_tokens": reader.integer("indexer_compress_ratio"),
            "is_mean_pooled": True,
        }
    if layers := reader.sequence("ple_layer_ids"):
        heads = (reader.integer("ngram_size", default=3) - 1) * reader.integer("heads_per_ngram", default=8)
        width = reader.integer("ple_embed_dim", "hidden_size")
        if len(layers) > 1:
            raise reader.refusal("must name one layer; tables of several layers have no formula", "ple_layer_ids")
        fields["ngrams"] = {
            "num_rows": _ngram_rows(reader, heads),
            "row_width": width // heads,
            "num_heads": heads,
            "conv_kernel": reader.integer("ple_conv_kernel_size", default=4),
        }
    return fields


def _ngram_rows(reader: ConfigReader, num_heads: int) -> int:
    """Return the rows of a table of n-grams: as many primes from a number on as there are heads, summed and padded."""
    number, primes = reader.integer("ngram_vocab_size_base", default=20_000_000), list[int]()
    while len(primes) < num_heads:
        if number > 1 and all(number % divisor for divisor in range(2, math.isqrt(number) + 1)):
            primes.append(number)
        number += 1
    multiple = reader.integer("make_ngram_vocab_size_divisible_by", default=128)
    return -(-sum(primes) // multiple) * multiple


_OWN: Mapping[str, Callable[[ConfigReader], dict[str, Any]]] = {
    **dict.fromkeys(("gemma3n", "gemma3n_text"), _gemma3n),
    **dict.fromkeys(("gemma4", "gemma4_text"), _gemma4),
    "bailing_hybrid": _bailing_hybrid,
    # The dense MLP of the first layers; experts have the width that the file names first.
    "cohere2_moe": lambda reader: {
        "intermediate_size": reader.integer("prefix_dense_intermediate_size", "intermediate_size")
    },
    "jamba": _jamba,
    "laguna": _laguna,
    # One norm if a layer is a mixer or an MLP, two if it is both.
    "granitemoehybrid": lambda reader: {"num_norms_per_layer": 1 + (reader.value("layers_block_type") is None)},
    **dict.fromkeys(("minimax", "minimax_m1", "minimax_text_01"), _minimax_01),
    **dict.fromkeys(("minimax_m3", "minimax_m3_vl", "minimax_m3_vl_text"), _minimax_m3),
    "deepseek_v4": _deepseek_v4,
    **dict.fromkeys(("hy_v4", "hy_v4_vl", "hy_v4_vl_text"), _hy_v4),
    **dict.fromkeys(("muse_spark", "muse_spark_text"), _muse_spark),
    # A bias of the gate per head (``BeamAttention`` of transformers).
    "beam": lambda reader: {
        "num_other_parameters": reader.integer(*LAYER_KEYS) * reader.integer("num_attention_heads")
    },
    **dict.fromkeys(("qwen4_exp", "qwen4_exp_text"), _qwen4_exp),
    **dict.fromkeys(
        ("glm5_next", "glm5_next_text"),  # GLM-5.3-Flash
        lambda reader: {
            "num_residual_streams": reader.integer("hc_mult", default=1) if reader.flag("mhc", default=True) else 1
        },
    ),
    "kimi_linear": _kimi_linear,
    **dict.fromkeys(("mimo_v2", "mimo_v2_flash"), _mimo_v2),
    # A low-rank query, which shares one key-value head (``Step3TextAttention`` of vLLM).
    **dict.fromkeys(
        ("step3_text", "step3_vl"), lambda reader: {"query_rank": reader.integer("share_q_dim"), "vision": None}
    ),
    **dict.fromkeys(("step3p5", "step3p7"), _step3p5),
}
