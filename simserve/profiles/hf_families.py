"""What a Hugging Face ``model_type`` implies beyond its ``config.json``: a table of families and their kinds of layers.

The kinds: layers with a window, with an indexer, linear ones, ones with a dense MLP. Sources: ``configuration_*.py``
and ``modeling_*.py`` of huggingface/transformers for each type (5.24 for the newest), and for ``minimax_m2``,
``kimi_k2`` and ``deepseek_v32`` the modelling files beside their checkpoints and vLLM's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

from simserve.profiles.hf_reader import ConfigReader

SlidingRule = Literal["all", "above_max_window_layers", "alternating", "pattern", "chunked"]
LAYER_KEYS = ("num_hidden_layers", "n_layer", "num_layers")
MTP_KEYS = ("num_nextn_predict_layers", "mtp_num_hidden_layers")
_LINEAR_TYPE = "linear_attention"
_CONVOLUTION_TYPE = "conv"
_WINDOW_TYPES = ("sliding_attention", "chunked_attention")
_FULL_TYPES = (
    *("full_attention", "global_attention", "attention", "deepseek_sparse_attention", "indexed_attention"),
    "hybrid_indexed",
)
_SOFTMAX = 1  # of MiniMax's attn_type_list; 0 is linear attention (MiniMax-Text-01)
_BLOCK_LETTERS = {"mamba": "M", "attention": "*", "moe": "E", "mlp": "-", "attention_mamba": "H"}
_NEMOTRON_LETTERS = frozenset("M*E-")
_LLAMA4_FULL_EVERY = 4  # Llama4TextConfig: every fourth layer is without rotation and sees everything


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Facts of one architecture family."""

    fields: Mapping[str, Any] = field(default_factory=dict)  # Fields of `ModelProfile` that are fixed for the family.
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Values of configuration keys that files of this family leave out. ``has_*`` and ``num_extra_positions``
    describe behaviour of the family's code that no file states."""
    has_attention_bias_flag: bool = True  # Whether ``attention_bias`` switches the biases of all four projections.
    sliding: SlidingRule = "all"
    """Which layers have a window if ``layer_types`` is absent: ``all``; those from ``max_window_layers`` on (Qwen);
    every second one (gpt-oss, Gemma 2); all but every ``sliding_window_pattern``-th (Gemma 3); all but every fourth,
    in chunks (Llama 4)."""
    reads: frozenset[str] = frozenset()  # Keys among `UNSUPPORTED_KEYS` that this family supports.


_TIED = {"tie_word_embeddings": True}
_UNTIED = {"tie_word_embeddings": False}
_PLAIN = {"is_gated_mlp": False, "norm": "layer"}
_ALL_BIASES = {"has_qkv_bias": True, "has_output_bias": True, "has_mlp_bias": True}
_HEAD_NORMS = {"qk_norm": "per_head"}
_ROUTER_BIAS = {"has_router_bias": True}
_HYBRID = {"full_attention_interval": 4, "linear_conv_kernel_dim": 4}
_HYBRID_MOE = {**_HYBRID, "num_shared_experts": 1, "has_shared_expert_gate": True}
_GATED = {**_HEAD_NORMS, "has_attention_gate": True}
_GEMMA = {"max_position_embeddings": 8192, **_TIED}
_SMALL_GEMMA = Family(
    defaults={"sliding_window": 512, **_TIED}, reads=frozenset({"num_kv_shared_layers", "hidden_size_per_layer_input"})
)
_EVERY_FOURTH = {"sliding_window_pattern": 4}
_ONE_NORM = {"num_norms_per_layer": 1, "has_parallel_attention": True}
_MAMBA = frozenset({"mamba_num_heads", "ssm_state_size"})
_LONG = {"max_position_embeddings": 262144}
_BIASED = Family(fields={**_PLAIN, **_ALL_BIASES}, has_attention_bias_flag=False)
_FAMILIES: Mapping[tuple[str, ...], Family] = {
    (
        *("llama", "granite", "granitemoe", "granitemoeshared", "smollm3", "k2_horizon", "step3_text", "step3_vl"),
        *("deepseek", "deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "glm_moe_dsa", "iquestcoder"),
    ): Family(),
    ("youtu",): Family(defaults=_TIED),
    ("cwm",): Family(defaults={**_EVERY_FOURTH, **_UNTIED}, sliding="pattern"),
    ("kolibri1",): Family(
        fields={**_HEAD_NORMS, "num_norms_per_layer": 4},
        defaults={**_ROUTER_BIAS, **_UNTIED, "sliding_window_pattern": 5},
        sliding="pattern",
    ),
    ("beam",): Family(
        fields={**_GATED, "num_norms_per_layer": 4},
        defaults={**_ROUTER_BIAS, **_UNTIED, "n_group": 8, "topk_group": 4, "first_k_dense_replace": 3},
    ),
    ("muse_spark", "muse_spark_text"): Family(
        fields={"has_attention_gate": True, "num_norms_per_layer": 4}, defaults={**_ROUTER_BIAS, **_UNTIED}
    ),
    ("falcon_h1",): Family(fields={"num_norms_per_layer": 1}, defaults={"mamba_rms_norm": False}, reads=_MAMBA),
    ("granitemoehybrid",): Family(defaults=_TIED, reads=_MAMBA),
    ("bamba",): Family(fields={"num_norms_per_layer": 1}, defaults=_LONG, reads=_MAMBA),
    ("jamba",): Family(fields={"num_norms_per_layer": 1}, defaults=_LONG, reads=frozenset({"mamba_d_state"})),
    ("nemotron_h",): Family(
        fields={"is_gated_mlp": False, "num_norms_per_layer": 1},
        defaults=_ROUTER_BIAS,
        reads=_MAMBA | {"hybrid_override_pattern"},
    ),
    ("seed_oss",): Family(fields={"has_output_bias": False}),
    ("olmo2", "olmo_hybrid"): Family(fields={"qk_norm": "full"}),
    ("olmo3",): Family(fields={"qk_norm": "full"}, defaults=_EVERY_FOURTH, sliding="pattern"),
    ("exaone4", "exaone4_5", "exaone4_5_text"): Family(fields=_HEAD_NORMS, sliding="pattern"),
    ("muse_glimmer", "muse_glimmer_text"): Family(
        fields={"has_attention_gate": True, "num_norms_per_layer": 4}, defaults=_EVERY_FOURTH, sliding="pattern"
    ),
    ("mellum",): Family(fields=_HEAD_NORMS, defaults=_EVERY_FOURTH, sliding="pattern"),
    ("hunyuan_v1_dense", "hunyuan_v1_moe", "laguna"): Family(fields=_HEAD_NORMS),
    ("longcat_flash", "bailing_hybrid"): Family(defaults={**_ROUTER_BIAS, **_UNTIED}),
    ("kimi_linear",): Family(defaults={**_ROUTER_BIAS, **_UNTIED}, reads=frozenset({"linear_attn_config"})),
    ("glm5_next", "glm5_next_text"): Family(defaults=_UNTIED, reads=frozenset({"linear_attn_config"})),
    ("glm4", "glm4v", "glm4v_text"): Family(fields={"has_output_bias": False, "num_norms_per_layer": 4}),
    ("glm4_moe",): Family(fields={"has_output_bias": False}, defaults={"qk_norm_type": "per_head", **_ROUTER_BIAS}),
    ("ernie4_5_moe", "glm4_moe_lite"): Family(defaults=_ROUTER_BIAS),
    ("ernie4_5_moe_vl", "ernie4_5_vl_moe", "ernie4_5_vl_moe_text"): Family(defaults={**_ROUTER_BIAS, **_TIED}),
    ("nemotron",): Family(fields=_PLAIN),
    ("cohere",): Family(fields=_ONE_NORM, defaults={"qk_norm_type": "per_layer", **_TIED}),
    ("cohere2", "cohere2_moe"): Family(fields=_ONE_NORM, defaults={**_EVERY_FOURTH, **_TIED}, sliding="pattern"),
    ("phi",): Family(fields={**_PLAIN, **_ALL_BIASES, **_ONE_NORM, "has_lm_head_bias": True}),
    ("phimoe",): Family(fields={"norm": "layer", "has_lm_head_bias": True}),
    ("starcoder2",): Family(fields={**_PLAIN, **_ALL_BIASES}, defaults=_TIED),
    ("mistral", "ministral3", "mixtral", "minimax_m2", "phi3"): Family(has_attention_bias_flag=False),
    ("qwen2", "qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text", "mimo"): Family(
        fields={"has_qkv_bias": True}, has_attention_bias_flag=False, sliding="above_max_window_layers"
    ),
    ("qwen2_moe",): Family(
        fields={"has_qkv_bias": True},
        has_attention_bias_flag=False,
        sliding="above_max_window_layers",
        defaults={"num_shared_experts": 1, "has_shared_expert_gate": True},
    ),
    ("qwen3", "qwen3_moe", "qwen3_vl_text", "qwen3_vl_moe_text", "qwen3_omni_moe_text"): Family(
        fields=_HEAD_NORMS, sliding="above_max_window_layers"
    ),
    ("qwen3_5", "qwen3_5_text"): Family(fields=_GATED, defaults=_HYBRID),
    ("qwen3_next", "qwen3_5_moe", "qwen3_5_moe_text"): Family(fields=_GATED, defaults=_HYBRID_MOE),
    ("qwen4_exp", "qwen4_exp_text"): Family(fields=_GATED, defaults={**_HYBRID_MOE, "hc_count": 4, "hc_lowrank": 320}),
    ("hy_v4", "hy_v4_vl", "hy_v4_vl_text"): Family(
        fields={"has_attention_sinks": True, "has_independent_streams": True}, defaults={**_ROUTER_BIAS, **_UNTIED}
    ),
    ("llama4", "llama4_text"): Family(
        defaults={"attention_chunk_size": 8192, "interleave_moe_layer_step": 1, "n_shared_experts": 1},
        sliding="chunked",
    ),
    ("gpt_oss",): Family(
        fields={"has_attention_sinks": True}, defaults={**_ROUTER_BIAS, "has_expert_bias": True}, sliding="alternating"
    ),
    ("deepseek_v4",): Family(defaults={"compress_rate": 4, **_UNTIED}, reads=frozenset({"compress_ratios"})),
    ("minimax", "minimax_m1", "minimax_text_01"): Family(
        has_attention_bias_flag=False, reads=frozenset({"attn_type_list"})
    ),
    ("minimax_m3", "minimax_m3_vl", "minimax_m3_vl_text"): Family(
        fields=_HEAD_NORMS, defaults={"use_routing_bias": True}, reads=frozenset({"sparse_attention_config"})
    ),
    ("mimo_v2", "mimo_v2_flash"): Family(defaults={"n_shared_experts": 0}),
    ("afmoe",): Family(
        fields={**_GATED, "num_norms_per_layer": 4}, defaults={**_ROUTER_BIAS, **_EVERY_FOURTH}, sliding="pattern"
    ),
    ("lfm2",): Family(fields=_HEAD_NORMS, defaults=_TIED),
    ("lfm2_moe",): Family(fields=_HEAD_NORMS, defaults={**_ROUTER_BIAS, **_TIED}),
    ("step3p5", "step3p7"): Family(
        fields={**_HEAD_NORMS, "has_head_gate": True}, defaults={**_ROUTER_BIAS, "num_shared_experts": 1}
    ),
    ("gemma",): Family(defaults=_GEMMA),
    ("gemma2",): Family(
        fields={"num_norms_per_layer": 4}, defaults={**_GEMMA, "sliding_window": 4096}, sliding="alternating"
    ),
    ("gemma3", "gemma3_text"): Family(
        fields={**_HEAD_NORMS, "num_norms_per_layer": 4},
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
    ),
    ("gemma3n", "gemma3n_text"): replace(_SMALL_GEMMA, fields={**_HEAD_NORMS, "num_norms_per_layer": 4}),
    ("gemma4", "gemma4_text"): replace(_SMALL_GEMMA, fields=_HEAD_NORMS),
    ("falcon", "RefinedWeb", "RefinedWebModel"): Family(
        fields={**_PLAIN, "has_parallel_attention": True},
        defaults={"max_position_embeddings": 2048, **_TIED},
        has_attention_bias_flag=False,
    ),
    ("gpt2",): replace(_BIASED, defaults={"has_learned_positions": True, **_TIED}),
    ("gpt_neox",): replace(_BIASED, fields={**_BIASED.fields, "has_parallel_attention": True}),
    ("gptj",): Family(
        fields={**_PLAIN, **_ONE_NORM, "has_mlp_bias": True, "has_lm_head_bias": True}, has_attention_bias_flag=False
    ),
    ("opt",): replace(_BIASED, defaults={"has_learned_positions": True, "num_extra_positions": 2, **_TIED}),
    ("bloom",): replace(
        _BIASED,
        fields={**_BIASED.fields, "has_embedding_norm": True},
        defaults={"max_position_embeddings": 2048, **_TIED},
    ),
}
"""Types that mean the same -> their facts."""
FAMILIES: Mapping[str, Family] = MappingProxyType({name: each for names, each in _FAMILIES.items() for name in names})
# Architectures whose files may have another maker's ``model_type`` (conversions by sgl-project), or none.
FAMILY_OF_ARCHITECTURE: Mapping[str, str] = MappingProxyType(
    {"DeepseekV4ForCausalLM": "deepseek_v4", "LongcatFlashForCausalLM": "longcat_flash"}
)
# Classes of conversions -> their names in the engines' registries of models.
REGISTERED_ARCHITECTURE: Mapping[str, str] = MappingProxyType(
    {
        "MiniMaxM3ForCausalLM": "MiniMaxM3SparseForConditionalGeneration",
        "Step3p7FlashForCausalLM": "Step3p7ForConditionalGeneration",
    }
)
# Names of the counts and widths of experts (`simserve.profiles.hf_config`).
EXPERT_KEYS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
# Keys of layers without a formula here, if present and not null, false, 0 or empty.
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
    "mova_num_experts",
    "attention_gate_func",
    "query_key_norm",
)


def sliding_layers(reader: ConfigReader, rule: SlidingRule) -> tuple[int | None, int]:
    """Return the window and the number of layers that it limits; ``(None, 0)`` if every layer sees everything.

    A window as long as the model's longest context has no effect and is left out.

    Raises:
        ProfileError: ``layer_types`` has a type without a formula here, or not one entry per layer.
    """
    key = "attention_chunk_size" if rule == "chunked" else "sliding_window"
    if reader.value(key) is None or not reader.flag("use_sliding_window", default=True):
        count = _listed(reader)
        if count and reader.flag("use_sliding_window", default=True):
            raise reader.refusal("is missing, while layer_types has layers that slide", key)
        return None, 0
    window = reader.integer(key)
    longest = reader.integer("max_position_embeddings", "n_positions", default=window + 1)
    if window >= longest:
        return None, 0
    count = _listed(reader)
    if count is None:
        count = _by_rule(reader, rule)
    return (window, count) if count else (None, 0)


def _types(reader: ConfigReader) -> list[Any] | None:
    """Return ``layer_types``, without those of later multi-token-prediction layers (Step-3.5); None if absent."""
    types = reader.sequence("layer_types")
    layers = reader.integer(*LAYER_KEYS)
    if types is not None and len(types) == layers + reader.integer(*MTP_KEYS, default=0, minimum=0):
        return types[:layers]
    return types


def _listed(reader: ConfigReader) -> int | None:
    types = _types(reader)
    if types is None:
        pattern = layer_switches(reader, "hybrid_layer_pattern")
        return None if pattern is None else sum(pattern)
    for kind in types:
        is_linear = kind == _LINEAR_TYPE and reader.value("linear_num_value_heads", "linear_attn_config") is not None
        is_linear |= kind == _CONVOLUTION_TYPE and reader.value("conv_L_cache") is not None
        if kind not in _WINDOW_TYPES + _FULL_TYPES and not is_linear:
            raise reader.refusal(f"has layers of the type {kind!r}, for which simserve has no formula", "layer_types")
    if len(types) != reader.integer(*LAYER_KEYS):
        raise reader.refusal(f"must have one entry a layer, has {len(types)}", "layer_types")
    return sum(kind in _WINDOW_TYPES for kind in types)


def linear_layers(reader: ConfigReader) -> int:
    """Return the number of layers with a gated delta rule: as ``layer_types`` says, else all except every n-th.

    Raises:
        ProfileError: The configuration gives the heads of such layers, but not which layers they are.
    """
    if reader.value("linear_num_value_heads") is None:
        return 0
    types = _types(reader)
    if types is not None:
        _listed(reader)
        return types.count(_LINEAR_TYPE)
    layers = reader.integer(*LAYER_KEYS)
    return layers - layers // reader.integer("full_attention_interval")


def convolution_layers(reader: ConfigReader) -> int:
    """Return the number of short-convolution layers (LFM2).

    Raises:
        ProfileError: ``layer_types`` has a type without a formula here, or not one entry per layer.
    """
    _listed(reader)
    return (_types(reader) or []).count(_CONVOLUTION_TYPE)


def shared_layers(reader: ConfigReader) -> tuple[int, int]:
    """Return how many last layers use the keys and values of others, and how many of them have a window.

    Raises:
        ProfileError: The file does not list the types of its layers.
    """
    count, types = reader.integer("num_kv_shared_layers", default=0, minimum=0), _types(reader)
    if count and types is None:
        raise reader.refusal("is missing, by which layers that share keys are told apart", "layer_types")
    return count, sum(kind in _WINDOW_TYPES for kind in (types or [])[len(types or []) - count :])


def _by_rule(reader: ConfigReader, rule: SlidingRule) -> int:
    layers = reader.integer(*LAYER_KEYS)
    if rule == "above_max_window_layers":
        return max(0, layers - reader.integer("max_window_layers", default=0, minimum=0))
    if rule == "alternating":
        return (layers + 1) // 2
    if rule == "pattern":
        return layers - layers // reader.integer("sliding_window_pattern")
    if rule == "chunked":
        return layers - layers // _LLAMA4_FULL_EVERY
    return layers


def layer_switches(reader: ConfigReader, key: str) -> list[int] | None:
    """Return a list of 0 and 1, one per layer; None if the key is absent or not a list.

    Raises:
        ProfileError: It has other values, or not one entry per layer.
    """
    if not isinstance(reader.value(key), list):
        return None
    switches = reader.sequence(key) or []
    if any(isinstance(switch, bool) or switch not in (0, 1) for switch in switches):
        raise reader.refusal("must list 0 or 1 for each layer", key)
    if len(switches) != reader.integer(*LAYER_KEYS):
        raise reader.refusal(f"must have one entry a layer, has {len(switches)}", key)
    return switches


def layer_pattern(reader: ConfigReader) -> str | None:
    """Return the letters of Nemotron-H's layers, from ``hybrid_override_pattern`` or ``layers_block_type``.

    Raises:
        ProfileError: A letter or block has no formula here.
    """
    pattern = reader.value("hybrid_override_pattern")
    if pattern is not None:
        if not isinstance(pattern, str) or set(pattern) - _NEMOTRON_LETTERS:
            raise reader.refusal("must be letters of M, *, E and -", "hybrid_override_pattern")
        return pattern
    blocks = reader.sequence("layers_block_type")
    if blocks is None:
        return None
    for block in blocks:
        if block not in _BLOCK_LETTERS:
            raise reader.refusal(f"has a block {block!r}, for which simserve has no formula", "layers_block_type")
    return "".join(_BLOCK_LETTERS[block] for block in blocks)


def indexer_layers(reader: ConfigReader) -> int | None:
    """Return the number of layers that choose tokens; None: all. Each other layer uses the last choice (GLM-5.2).

    Raises:
        ProfileError: ``indexer_types`` has a type without a formula here, or not one entry per layer.
    """
    layers, types = reader.integer(*LAYER_KEYS), reader.sequence("indexer_types")
    if types is None:
        freq, first = reader.integer("index_topk_freq", default=1), reader.integer("index_skip_topk_offset", default=1)
        own = sum(layer < first or (layer - first + 1) % freq == 0 for layer in range(layers))
        return None if own == layers else own
    if any(kind not in ("full", "shared") for kind in types) or len(types) != layers:
        raise reader.refusal(f"must be full or shared for each of {layers} layers", "indexer_types")
    return None if types.count("full") == layers else types.count("full")


def check_softmax_layers(reader: ConfigReader) -> None:
    """Refuse layers of MiniMax's linear attention.

    Raises:
        ProfileError: ``attn_type_list`` has a layer that is not softmax attention.
    """
    if any(kind != _SOFTMAX for kind in reader.sequence("attn_type_list") or []):
        raise reader.refusal("has layers of linear attention (0), for which simserve has no formula", "attn_type_list")


def dense_layers(reader: ConfigReader) -> tuple[int, ...]:
    """Return the layers, from 0, that keep a dense MLP.

    Those in ``mlp_only_layers``, not in ``moe_layers`` or ``moe_layers_enum``, 0 in ``moe_layer_freq``, or ``dense`` in
    ``mlp_layer_types``.

    Raises:
        ProfileError: A list has entries other than layer numbers, switches or types.
    """
    layers = range(reader.integer(*LAYER_KEYS))
    for key in ("mlp_only_layers", "moe_layers"):
        for layer in reader.sequence(key) or []:
            if layer not in layers or isinstance(layer, bool):
                raise reader.refusal(f"must list layers from 0 to {layers[-1]}", key)
    dense = set(reader.sequence("mlp_only_layers") or [])
    with_experts = reader.sequence("moe_layers")
    if with_experts is None and reader.value("moe_layers_enum") is not None:
        with_experts = _enumerated(reader, "moe_layers_enum", layers)
    if with_experts is not None:
        dense |= set(layers) - set(with_experts)
    switches = layer_switches(reader, "moe_layer_freq") or []
    dense |= {layer for layer, switch in enumerate(switches) if not switch}
    types = reader.sequence("mlp_layer_types") or []
    if any(kind not in ("dense", "sparse") for kind in types) or len(types) not in (0, len(layers)):
        raise reader.refusal(f"must be dense or sparse for each of {len(layers)} layers", "mlp_layer_types")
    dense |= {layer for layer, kind in enumerate(types) if kind == "dense"}
    first = reader.integer("first_k_dense_replace", default=0, minimum=0)
    return tuple(sorted(layer for layer in dense if layer >= first))


def _enumerated(reader: ConfigReader, key: str, layers: range) -> list[int]:
    """Return layers given as a text with commas or a list (Step-3.5)."""
    value = reader.value(key)
    listed: list[Any] = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else [None]
    try:
        numbers = [int(each) for each in listed]
    except (TypeError, ValueError):
        raise reader.refusal("must list layers, with commas between", key) from None
    return [layer for layer in numbers if layer in layers]
