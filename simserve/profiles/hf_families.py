"""What a Hugging Face ``model_type`` implies beyond its ``config.json``: the families of ``hf_families.yaml``, and
their kinds of layers: with a window, with an indexer, linear ones, ones with a dense MLP. Sources stand in the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from pydantic import Field

from simserve.profiles.hf_reader import ConfigReader
from simserve.validation import FrozenModel, read_valid

SlidingRule = Literal["all", "above_max_window_layers", "alternating", "pattern", "chunked"]
_TABLE = Path(__file__).with_suffix(".yaml")
# Names of the counts and widths of experts (`simserve.profiles.hf_config`).
EXPERT_KEYS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
GATED = ("gate_proj", "up_proj", "down_proj")
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


class Family(FrozenModel):
    """Facts of one architecture family."""

    types: tuple[str, ...] = ()  # Values of ``model_type`` that mean the same.
    fields: Mapping[str, Any] = Field(default_factory=dict)  # Fields of `ModelProfile` that are fixed for the family.
    defaults: Mapping[str, Any] = Field(default_factory=dict)
    """Values of configuration keys that files of this family leave out. ``has_*`` and ``num_extra_positions``
    describe behaviour of the family's code that no file states."""
    has_attention_bias_flag: bool = True  # Whether ``attention_bias`` switches the biases of all four projections.
    sliding: SlidingRule = "all"
    """Which layers have a window if ``layer_types`` is absent: ``all``; those from ``max_window_layers`` on (Qwen);
    every second one (gpt-oss, Gemma 2); all but every ``sliding_window_pattern``-th (Gemma 3); all but every fourth,
    in chunks (Llama 4)."""
    reads: frozenset[str] = frozenset()  # Keys among `FamilyTable.unsupported_keys` that this family supports.


class StoredModules(FrozenModel):
    """Where an architecture's checkpoints keep the matrices of a layer, below ``layers.N``.

    From the names in their ``model.safetensors.index.json``; ``{}`` in a path stands for a matrix's name.
    """

    attention: str = "self_attn"
    linear_attention: str = "linear_attn"
    mlp: str = "mlp"
    shared: tuple[str, ...] = ("mlp.shared_experts", "mlp.shared_expert")
    experts: tuple[str, ...] = ("mlp.experts.0", "mlp.experts")
    matrices: tuple[str, ...] = GATED  # Matrices of an expert.
    gated: tuple[str, ...] = GATED  # Matrices of an MLP and of a shared expert.


class FamilyTable(FrozenModel):
    """What ``hf_families.yaml`` says."""

    families: tuple[Family, ...]
    of_architecture: Mapping[str, str]
    """Architectures whose files may have another maker's ``model_type``, or none -> their type."""
    registered_as: Mapping[str, str]  # Classes of conversions -> their names in the engines' registries of models.
    unsupported_keys: tuple[str, ...]
    """Keys of layers without a formula here, if present and not null, false, 0 or empty."""
    modules: Mapping[str, StoredModules]  # Beginning of a ``model_type`` -> where its checkpoints keep matrices.


@cache
def family_table() -> FamilyTable:
    """Return the table of families."""
    return read_valid(FamilyTable, _TABLE)


@cache
def families() -> Mapping[str, Family]:
    """Return ``model_type`` -> the facts of its family."""
    return MappingProxyType({name: each for each in family_table().families for name in each.types})


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
        with_experts = _enumerated(reader, layers)
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


def _enumerated(reader: ConfigReader, layers: range) -> list[int]:
    """Return layers given as a text with commas or a list (Step-3.5)."""
    value = reader.value("moe_layers_enum")
    listed: list[Any] = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else [None]
    try:
        numbers = [int(each) for each in listed]
    except (TypeError, ValueError):
        raise reader.refusal("must list layers, with commas between", "moe_layers_enum") from None
    return [layer for layer in numbers if layer in layers]
