"""What a Hugging Face ``model_type`` implies that its ``config.json`` does not say. A table, no reading.

Sources: ``configuration_*.py`` and ``modeling_*.py`` of huggingface/transformers for each type (5.23 for the newest),
and for ``minimax_m2``, ``kimi_k2`` and ``deepseek_v32`` the modelling files beside their checkpoints and vLLM's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

SlidingRule = Literal["all", "above_max_window_layers", "alternating", "pattern", "chunked"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Facts of one architecture family.

    Attributes:
        fields: Fields of `ModelProfile` that are fixed for the family.
        defaults: Values of configuration keys that files of this family leave out. ``has_*`` and
            ``num_extra_positions`` stand for what the family's code does and no file says.
        has_attention_bias_flag: Whether ``attention_bias`` switches the biases of all four projections.
        sliding: Which layers slide where ``layer_types`` does not say: ``all``; those from
            ``max_window_layers`` on (Qwen); every second one (gpt-oss, Gemma 2); all but every
            ``sliding_window_pattern``-th (Gemma 3); all but every fourth, in chunks (Llama 4).
        reads: Keys among `UNSUPPORTED_KEYS` that are read in this family.
    """

    fields: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    has_attention_bias_flag: bool = True
    sliding: SlidingRule = "all"
    reads: frozenset[str] = frozenset()


_TIED = {"tie_word_embeddings": True}
_PLAIN = {"is_gated_mlp": False, "norm": "layer"}
_ALL_BIASES = {"has_qkv_bias": True, "has_output_bias": True, "has_mlp_bias": True}
_QWEN_BIAS = Family(fields={"has_qkv_bias": True}, has_attention_bias_flag=False, sliding="above_max_window_layers")
_QWEN3 = Family(fields={"qk_norm": "per_head"}, sliding="above_max_window_layers")
_HYBRID = {"full_attention_interval": 4, "linear_conv_kernel_dim": 4}
_HYBRID_MOE = {**_HYBRID, "num_shared_experts": 1, "has_shared_expert_gate": True}
_GATED = {"qk_norm": "per_head", "has_attention_gate": True}
_QWEN3_HYBRID = Family(fields=_GATED, defaults=_HYBRID)
_QWEN3_HYBRID_MOE = Family(fields=_GATED, defaults=_HYBRID_MOE)
_GLM4_MOE = Family(fields={"has_output_bias": False}, defaults={"qk_norm_type": "per_head", "has_router_bias": True})
_DEEPSEEK = Family()
_GEMMA = {"max_position_embeddings": 8192, **_TIED}
_GEMMA3 = Family(
    fields={"qk_norm": "per_head", "num_norms_per_layer": 4},
    defaults={
        "vocab_size": 262208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
        **_TIED,
    },
    sliding="pattern",
)
_LLAMA4 = Family(
    defaults={"attention_chunk_size": 8192, "interleave_moe_layer_step": 1, "n_shared_experts": 1},
    sliding="chunked",
)
_GEMMA4 = Family(
    fields={"qk_norm": "per_head"},
    defaults={"sliding_window": 512, **_TIED},
)
_MINIMAX_M3 = Family(
    fields={"qk_norm": "per_head"}, defaults={"use_routing_bias": True}, reads=frozenset({"sparse_attention_config"})
)
_DEEPSEEK_V4 = Family(defaults={"compress_rate": 4, "tie_word_embeddings": False}, reads=frozenset({"compress_ratios"}))
_NEMOTRON_H = Family(
    fields={"is_gated_mlp": False, "num_norms_per_layer": 1},
    defaults={"has_router_bias": True},
    reads=frozenset({"mamba_num_heads", "ssm_state_size", "hybrid_override_pattern"}),
)
_MIMO_V2 = Family(defaults={"n_shared_experts": 0})
_STEP3P5 = Family(
    fields={"qk_norm": "per_head", "has_head_gate": True}, defaults={"has_router_bias": True, "num_shared_experts": 1}
)
_LAYER_NORM = {"norm": "layer"}
_ONE_NORM = {"num_norms_per_layer": 1, "has_parallel_attention": True}
_BIAS_BUT_OUTPUT = Family(fields={"has_output_bias": False})
_COHERE = Family(fields=_ONE_NORM, defaults={"qk_norm_type": "per_layer", **_TIED})
_FALCON = Family(
    fields={**_PLAIN, "has_parallel_attention": True},
    defaults={"max_position_embeddings": 2048, **_TIED},
    has_attention_bias_flag=False,
)

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "llama": Family(),
        "granite": Family(),
        "granitemoe": Family(),
        "granitemoeshared": Family(),
        "smollm3": Family(),
        "granitemoehybrid": Family(defaults=_TIED, reads=frozenset({"mamba_num_heads", "ssm_state_size"})),
        "seed_oss": _BIAS_BUT_OUTPUT,
        "olmo2": Family(fields={"qk_norm": "full"}),
        "olmo3": Family(fields={"qk_norm": "full"}, defaults={"sliding_window_pattern": 4}, sliding="pattern"),
        "exaone4": Family(fields={"qk_norm": "per_head"}, sliding="pattern"),
        "hunyuan_v1_moe": Family(fields={"qk_norm": "per_head"}),
        "glm4": Family(fields={"has_output_bias": False, "num_norms_per_layer": 4}),
        "ernie4_5_moe": Family(defaults={"has_router_bias": True}),
        "nemotron": Family(fields=_PLAIN),
        "cohere": _COHERE,
        "cohere2": Family(fields=_ONE_NORM, defaults={"sliding_window_pattern": 4, **_TIED}, sliding="pattern"),
        "phi": Family(fields={**_PLAIN, **_ALL_BIASES, **_ONE_NORM, "has_lm_head_bias": True}),
        "phimoe": Family(fields={**_LAYER_NORM, "has_lm_head_bias": True}),
        "starcoder2": Family(fields={**_PLAIN, **_ALL_BIASES}, defaults=_TIED),
        "mistral": Family(has_attention_bias_flag=False),
        "ministral3": Family(has_attention_bias_flag=False),
        "mixtral": Family(has_attention_bias_flag=False),
        "qwen2": _QWEN_BIAS,
        "qwen2_vl": _QWEN_BIAS,
        "qwen2_vl_text": _QWEN_BIAS,
        "qwen2_5_vl": _QWEN_BIAS,
        "qwen2_5_vl_text": _QWEN_BIAS,
        "mimo": _QWEN_BIAS,
        "qwen2_moe": Family(
            fields={"has_qkv_bias": True},
            has_attention_bias_flag=False,
            sliding="above_max_window_layers",
            defaults={"num_shared_experts": 1, "has_shared_expert_gate": True},
        ),
        "qwen3": _QWEN3,
        "qwen3_moe": _QWEN3,
        "qwen3_vl_text": _QWEN3,
        "qwen3_vl_moe_text": _QWEN3,
        "qwen3_omni_moe_text": _QWEN3,
        "qwen3_next": _QWEN3_HYBRID_MOE,
        "qwen3_5": _QWEN3_HYBRID,
        "qwen3_5_text": _QWEN3_HYBRID,
        "qwen3_5_moe": _QWEN3_HYBRID_MOE,
        "qwen3_5_moe_text": _QWEN3_HYBRID_MOE,
        "glm4_moe": _GLM4_MOE,
        "glm4_moe_lite": Family(defaults={"has_router_bias": True}),
        "deepseek": _DEEPSEEK,
        "deepseek_v2": _DEEPSEEK,
        "deepseek_v3": _DEEPSEEK,
        "deepseek_v32": _DEEPSEEK,
        "kimi_k2": _DEEPSEEK,
        "glm_moe_dsa": _DEEPSEEK,
        "llama4": _LLAMA4,
        "llama4_text": _LLAMA4,
        "gpt_oss": Family(
            fields={"has_attention_sinks": True},
            defaults={"has_router_bias": True, "has_expert_bias": True},
            sliding="alternating",
        ),
        "deepseek_v4": _DEEPSEEK_V4,
        "minimax_m2": Family(has_attention_bias_flag=False),
        "minimax_m3": _MINIMAX_M3,
        "minimax_m3_vl": _MINIMAX_M3,
        "minimax_m3_vl_text": _MINIMAX_M3,
        "mimo_v2_flash": _MIMO_V2,
        "nemotron_h": _NEMOTRON_H,
        "step3p5": _STEP3P5,
        "step3p7": _STEP3P5,
        "phi3": Family(has_attention_bias_flag=False),
        "gemma": Family(defaults=_GEMMA),
        "gemma2": Family(
            fields={"num_norms_per_layer": 4},
            defaults={**_GEMMA, "sliding_window": 4096},
            sliding="alternating",
        ),
        "gemma3": _GEMMA3,
        "gemma3_text": _GEMMA3,
        "gemma4": _GEMMA4,
        "gemma4_text": _GEMMA4,
        "falcon": _FALCON,
        "RefinedWeb": _FALCON,
        "RefinedWebModel": _FALCON,
        "gpt2": Family(
            fields={**_PLAIN, **_ALL_BIASES},
            defaults={"has_learned_positions": True, **_TIED},
            has_attention_bias_flag=False,
        ),
        "gptj": Family(
            fields={
                **_PLAIN,
                "has_mlp_bias": True,
                "has_lm_head_bias": True,
                "num_norms_per_layer": 1,
                "has_parallel_attention": True,
            },
            has_attention_bias_flag=False,
        ),
        "opt": Family(
            fields={**_PLAIN, **_ALL_BIASES},
            defaults={"has_learned_positions": True, "num_extra_positions": 2, **_TIED},
            has_attention_bias_flag=False,
        ),
        "bloom": Family(
            fields={**_PLAIN, **_ALL_BIASES, "has_embedding_norm": True},
            defaults={"max_position_embeddings": 2048, **_TIED},
            has_attention_bias_flag=False,
        ),
    }
)

# Architectures whose files may carry a ``model_type`` of another's making (conversions by sgl-project).
FAMILY_OF_ARCHITECTURE: Mapping[str, str] = MappingProxyType({"DeepseekV4ForCausalLM": "deepseek_v4"})

# Classes of conversions -> what the engines' registries of models call them.
REGISTERED_ARCHITECTURE: Mapping[str, str] = MappingProxyType(
    {
        "MiniMaxM3ForCausalLM": "MiniMaxM3SparseForConditionalGeneration",
        "Step3p7FlashForCausalLM": "Step3p7ForConditionalGeneration",
    }
)

# What the counts and widths of experts are called where they are read (`simserve.profiles.hf_config`).
EXPERT_KEYS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")

# Keys that mean layers this module has no formula for, when present and not null, false, 0 or empty.
UNSUPPORTED_KEYS = (
    "is_encoder_decoder",
    "encoder_layers",
    "num_encoder_layers",
    "cross_attention_layers",
    "linear_attn_config",
    "mamba_d_state",
    "mamba_num_heads",
    "ssm_state_size",
    "ssm_cfg",
    "state_size",
    "hybrid_override_pattern",
    "attn_layer_period",
    "compress_ratios",
    "sparse_attention_config",
    "num_kv_shared_layers",
    "hidden_size_per_layer_input",
    "num_key_value_heads_per_layer",
    "block_configs",
)
