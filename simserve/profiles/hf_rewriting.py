"""Rewrites configurations of families with several kinds of layers in terms of supported families.

A layer of Granite 4, Bamba, Falcon-H1 and Jamba becomes two, as Nemotron-H lists them; the two attentions of a layer of
LongCat-Flash become two layers. Knows how files name and list their layers, not what such layers are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from simserve.profiles.hf_families import LAYER_KEYS, family_table
from simserve.profiles.hf_reader import ConfigReader


def rewritten(config: Mapping[str, Any], file: object) -> Mapping[str, Any]:
    """Return a configuration whose layers are named and counted as `simserve.profiles.hf_config` reads them.

    Raises:
        ProfileError: A field of its layers is missing, has a wrong type, or describes layers without a formula here.
    """
    rewrite = _REWRITING.get(model_type_of(config))
    return _same_in_all_layers(config if rewrite is None else rewrite(config, file), file)


def model_type_of(config: Mapping[str, Any]) -> str:
    """Return the ``model_type``; for a file without one, the type known for its architecture."""
    return str(config.get("model_type") or named_by_architecture(config) or "")


def named_by_architecture(config: Mapping[str, Any]) -> str | None:
    """Return the type known for the first known architecture of a file; None: it names none."""
    listed = config.get("architectures")
    named = (family_table().of_architecture.get(str(name)) for name in listed) if isinstance(listed, list) else ()
    return next((name for name in named if name), None)


_MAMBA_KEYS = {
    "mamba_n_heads": "mamba_num_heads",
    "mamba_d_head": "mamba_head_dim",
    "mamba_d_state": "ssm_state_size",
    "mamba_n_groups": "n_groups",
    "mamba_d_conv": "conv_kernel",
    "mamba_conv_bias": "use_conv_bias",
    "mamba_chunk_size": "chunk_size",
}
"""Names of the sizes of Mamba-2 in Granite 4 and Falcon-H1, and in Nemotron-H."""
_TWO_IN_ONE = {"layers_in_one": 2}
"""Number of layers as which one layer of the file is read; names of its modules count these as one."""
_GRANITE_BLOCKS = {"linear_attention": "mamba", "full_attention": "attention"}
"""Types of layers as named in newer versions of transformers."""


def _granite_hybrid(config: Mapping[str, Any], file: object) -> Mapping[str, Any]:
    """Return the configuration of a Granite 4 as that of a Nemotron-H.

    A layer is a mixer (Mamba-2 or attention) followed by experts beside a shared MLP, or by that MLP alone
    (``modeling_granitemoehybrid.py`` of transformers, ``granitemoehybrid.py`` of vLLM 0.33): here two layers. Models
    without Mamba-2 layers are Llama's, even if their file gives its sizes (Granite 4 Micro).
    """
    if "layer_types" not in config:
        return config
    reader = ConfigReader(config, file)
    kinds = [_GRANITE_BLOCKS.get(str(kind), str(kind)) for kind in reader.sequence("layer_types") or ()]
    read = {_MAMBA_KEYS.get(key, key): value for key, value in config.items() if key != "layer_types"}
    if not read.get("num_local_experts") and "shared_intermediate_size" in read:
        read["intermediate_size"] = read.pop("shared_intermediate_size")
    if "mamba" not in kinds:
        return {key: value for key, value in read.items() if key not in _MAMBA_KEYS.values()}
    width = reader.integer("mamba_expand", default=2) * reader.integer("hidden_size")
    if read.get("mamba_head_dim") in (None, "auto"):
        read["mamba_head_dim"] = width // reader.integer("mamba_n_heads")
    behind = "moe" if read.get("num_local_experts") else "mlp"
    blocks = [block for kind in kinds for block in (kind, behind)]
    if len(kinds) != reader.integer(*LAYER_KEYS):
        raise reader.refusal(f"must have one entry a layer, has {len(kinds)}", "layer_types")
    return {**read, **_TWO_IN_ONE, "num_hidden_layers": len(blocks), "layers_block_type": blocks}


def _bamba(config: Mapping[str, Any], file: object) -> Mapping[str, Any]:
    """Return the configuration of a Bamba as that of a Nemotron-H; its file lists the layers with attention."""
    reader = ConfigReader(config, file)
    chosen = reader.sequence("attn_layer_indices") or []
    kinds = ["attention" if layer in chosen else "mamba" for layer in range(reader.integer(*LAYER_KEYS))]
    return _granite_hybrid({"mamba_chunk_size": 256, **config, "layer_types": kinds}, file)


def _lfm2(config: Mapping[str, Any], file: object) -> Mapping[str, Any]:
    """Return the configuration of an LFM2 with a type for each layer and the width of its MLP.

    Older files list only the layers with attention, and the width before it is reduced to two thirds and rounded up
    (``Lfm2Config`` and ``Lfm2MLP`` of transformers).
    """
    reader, read = ConfigReader(config, file), dict(config)
    chosen = reader.sequence("full_attn_idxs")
    if config.get("layer_types") is None and chosen is not None:
        layers = range(reader.integer(*LAYER_KEYS))
        read["layer_types"] = ["full_attention" if layer in chosen else "conv" for layer in layers]
    if config["model_type"] == "lfm2":
        width = reader.integer("block_ff_dim", "intermediate_size")
        if reader.flag("block_auto_adjust_ff_dim", default=True):
            multiple, factor = reader.integer("block_multiple_of", default=256), config.get("block_ffn_dim_multiplier")
            width = int((factor or 1.0) * int(2 * width / 3))
            width = -(-width // multiple) * multiple
        read["intermediate_size"] = width
    return read


def _falcon_h1(config: Mapping[str, Any], file: object) -> Mapping[str, Any]:
    """Return the configuration of a Falcon-H1 as that of a Nemotron-H.

    A layer is Mamba-2 and attention side by side, which read one norm and are summed, followed by an MLP
    (``FalconH1ParallelHybrid`` of vLLM): here two layers.
    """
    reader = ConfigReader(config, file)
    layers, heads = reader.integer(*LAYER_KEYS), reader.integer("mamba_n_heads")
    expanded = reader.integer("mamba_expand", default=2) * reader.integer("hidden_size")
    width = reader.integer("mamba_d_ssm", default=expanded)
    read = {"chunk_size": 256} | {_MAMBA_KEYS.get(key, key): value for key, value in config.items()}
    if read.get("mamba_head_dim") in (None, "auto"):
        read["mamba_head_dim"] = width // heads
    if read["mamba_head_dim"] * heads != width:
        raise reader.refusal(f"must be mamba_n_heads x mamba_d_head = {heads * read['mamba_head_dim']}", "mamba_d_ssm")
    return {
        **read,
        **_TWO_IN_ONE,
        "num_hidden_layers": 2 * layers,
        "layers_block_type": ["attention_mamba", "mlp"] * layers,
    }


def _jamba(config: Mapping[str, Any], file: object) -> Mapping[str, Any]:
    """Return the configuration of a Jamba as that of a Nemotron-H, with layers of Mamba-1.

    A layer is a mixer (Mamba-1, or attention at a fixed interval) followed by experts (at a fixed interval) or an MLP
    (``modeling_jamba.py`` of transformers): here two layers. A single expert is an MLP.
    """
    reader = ConfigReader(config, file)
    layers = range(reader.integer(*LAYER_KEYS))
    mixers = reader.sequence("layers_block_type")
    if mixers is None:
        period, first = (
            reader.integer("attn_layer_period", default=8),
            reader.integer("attn_layer_offset", default=4, minimum=0),
        )
        mixers = ["attention" if layer % period == first else "mamba" for layer in layers]
    if len(mixers) != len(layers):
        raise reader.refusal(f"must have one entry a layer, has {len(mixers)}", "layers_block_type")
    count = reader.integer("num_experts", default=16)
    period = reader.integer("expert_layer_period", default=2)
    first = reader.integer("expert_layer_offset", default=1, minimum=0)
    behind = ["moe" if count > 1 and layer % period == first else "mlp" for layer in layers]
    read = {key: value for key, value in config.items() if key not in ("attn_layer_period", "attn_layer_offset")}
    blocks = [block for pair in zip(mixers, behind, strict=True) for block in pair]
    experts = {"num_experts": count if count > 1 else 0, "num_experts_per_tok": config.get("num_experts_per_tok") or 2}
    return {**read, **experts, **_TWO_IN_ONE, "num_hidden_layers": len(blocks), "layers_block_type": blocks}


def _longcat_flash(config: Mapping[str, Any], file: object) -> Mapping[str, Any]:
    """Return the configuration of a LongCat-Flash with a layer for each of its attentions.

    A layer is two attentions, each before a dense MLP, and experts that read the first MLP's input
    (``modeling_longcat_flash.py`` of transformers) and whose sum is added after the second. Here they are beside the
    second, as a shared expert; that they travel while it computes is not modelled.
    """
    reader = ConfigReader(config, file)
    layers, width = reader.integer("num_layers", "num_hidden_layers"), reader.integer("ffn_hidden_size")
    return {
        **config,
        **_TWO_IN_ONE,
        "num_hidden_layers": 2 * layers,
        "intermediate_size": width,
        "moe_intermediate_size": reader.integer("expert_ffn_hidden_size"),
        "n_shared_experts": 1,
        "shared_expert_intermediate_size": width,
        "decoder_sparse_step": 2,
    }


def _ernie_vl(config: Mapping[str, Any], file: object) -> Mapping[str, Any]:
    """Return the configuration of an ERNIE 4.5 VL, whose lists name experts for text first and for images second."""
    reader = ConfigReader(config, file)
    widths, counts = reader.sequence("moe_intermediate_size") or [], config.get("moe_num_experts")
    if len(widths) != 2 or (isinstance(counts, list) and len(set(counts)) != 1):
        raise reader.refusal("must be two widths, of as many experts each", "moe_intermediate_size")
    keys = ("moe_num_experts", "moe_layer_start_index", "moe_layer_end_index")
    first = {key: config[key][0] for key in keys if isinstance(config.get(key), list)}
    return {**config, **first, "moe_intermediate_size": widths[0], "image_expert_width": widths[1]}


def _minimax(config: Mapping[str, Any], file: object) -> Mapping[str, Any]:
    """Return the configuration of a MiniMax-01 with its layer types as in its first files, 0 and 1."""
    types = ConfigReader(config, file).sequence("layer_types")
    if types is None:
        return config
    read = {key: value for key, value in config.items() if key != "layer_types"}
    return {**read, "attn_type_list": [int(kind == "full_attention") for kind in types]}


def _with_types(is_full: Callable[[int, int], bool]) -> Callable[[Mapping[str, Any], object], Mapping[str, Any]]:
    """Return a rewriting that names the layers with and without a window where the file leaves ``layer_types`` out.

    Args:
        is_full: Whether a layer, counted from 0, of so many sees everything.
    """

    def rewrite(config: Mapping[str, Any], file: object) -> Mapping[str, Any]:
        if config.get("layer_types") is not None:
            return config
        count = ConfigReader(config, file).integer(*LAYER_KEYS)
        kinds = ["full_attention" if is_full(layer, count) else "sliding_attention" for layer in range(count)]
        return {**config, "layer_types": kinds}

    return rewrite


_LISTED_KEYS = ("moe_topk", "num_shared_expert", "moe_intermediate_size", "intermediate_size")
"""Keys that files of Hunyuan and Gemma 3n list per layer."""


def _same_in_all_layers(config: Mapping[str, Any], file: object) -> Mapping[str, Any]:
    """Return a configuration whose lists by layer become the one value of all layers (Hunyuan-A13B, Gemma 3n)."""
    listed = {key: config[key] for key in _LISTED_KEYS if isinstance(config.get(key), list)}
    for key, values in listed.items():
        if len(set(map(str, values))) != 1:
            raise ConfigReader(config, file).refusal("must be the same in all layers; others have no formula", key)
    return {**config, **{key: values[0] for key, values in listed.items()}}


_REWRITING: Mapping[str, Callable[[Mapping[str, Any], object], Mapping[str, Any]]] = {
    "granite": _granite_hybrid,
    "granitemoehybrid": _granite_hybrid,
    "bamba": _bamba,
    "falcon_h1": _falcon_h1,
    "jamba": _jamba,
    "longcat_flash": _longcat_flash,
    "ernie4_5_moe_vl": _ernie_vl,
    "ernie4_5_vl_moe_text": _ernie_vl,
    "minimax": _minimax,
    "lfm2": _lfm2,
    "lfm2_moe": _lfm2,
    # Every sixth layer and the last (``BeamConfig``); every fourth from the last on (``MuseSparkTextConfig``).
    "beam": _with_types(lambda layer, count: (layer + 1) % 6 == 0 or layer + 1 == count),
    "muse_spark_text": _with_types(lambda layer, count: (count - 1 - layer) % 4 == 0),
}
