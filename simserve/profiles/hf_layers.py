"""Which layers of a Hugging Face configuration slide, and which keep a dense MLP. Knows only layers."""

from __future__ import annotations

from simserve.profiles.hf_families import SlidingRule
from simserve.profiles.hf_reader import ConfigReader

_LAYER_KEYS = ("num_hidden_layers", "n_layer", "num_layers")
_LINEAR_TYPE = "linear_attention"
_WINDOW_TYPES = ("sliding_attention", "chunked_attention")
_FULL_TYPES = ("full_attention", "global_attention", "attention")
_LLAMA4_FULL_EVERY = 4  # Llama4TextConfig: every fourth layer is without rotation and sees everything


def sliding_layers(reader: ConfigReader, rule: SlidingRule) -> tuple[int | None, int]:
    """Return the window and the number of layers it limits; ``(None, 0)`` where every layer sees everything.

    A window as long as the model's longest context limits nothing and is left out.

    Raises:
        ProfileError: ``layer_types`` holds a type there is no formula for, or not one entry a layer.
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


def _listed(reader: ConfigReader) -> int | None:
    types = reader.sequence("layer_types")
    if types is None:
        return None
    for kind in types:
        is_linear = kind == _LINEAR_TYPE and reader.value("linear_num_value_heads") is not None
        if kind not in _WINDOW_TYPES + _FULL_TYPES and not is_linear:
            raise reader.refusal(f"has layers of the type {kind!r}, for which simserve has no formula", "layer_types")
    if len(types) != reader.integer(*_LAYER_KEYS):
        raise reader.refusal(f"must have one entry a layer, has {len(types)}", "layer_types")
    return sum(kind in _WINDOW_TYPES for kind in types)


def linear_layers(reader: ConfigReader) -> int:
    """Return the layers of a gated delta rule: those that ``layer_types`` says, else all but every so many-th.

    Raises:
        ProfileError: The configuration gives the heads of such layers, and does not say which layers they are.
    """
    if reader.value("linear_num_value_heads") is None:
        return 0
    types = reader.sequence("layer_types")
    if types is not None:
        _listed(reader)
        return types.count(_LINEAR_TYPE)
    layers = reader.integer(*_LAYER_KEYS)
    return layers - layers // reader.integer("full_attention_interval")


def _by_rule(reader: ConfigReader, rule: SlidingRule) -> int:
    layers = reader.integer(*_LAYER_KEYS)
    if rule == "above_max_window_layers":
        return max(0, layers - reader.integer("max_window_layers", default=0, minimum=0))
    if rule == "alternating":
        return (layers + 1) // 2
    if rule == "pattern":
        return layers - layers // reader.integer("sliding_window_pattern")
    if rule == "chunked":
        return layers - layers // _LLAMA4_FULL_EVERY
    return layers


def dense_layers(reader: ConfigReader) -> tuple[int, ...]:
    """Return the layers, from 0, that keep a dense MLP: in ``mlp_only_layers``, or not in ``moe_layers``.

    Raises:
        ProfileError: A list holds something else than layer numbers.
    """
    layers = range(reader.integer(*_LAYER_KEYS))
    for key in ("mlp_only_layers", "moe_layers"):
        for layer in reader.sequence(key) or []:
            if layer not in layers or isinstance(layer, bool):
                raise reader.refusal(f"must list layers from 0 to {layers[-1]}", key)
    dense = set(reader.sequence("mlp_only_layers") or [])
    with_experts = reader.sequence("moe_layers")
    if with_experts is not None:
        dense |= set(layers) - set(with_experts)
    return tuple(sorted(dense))
