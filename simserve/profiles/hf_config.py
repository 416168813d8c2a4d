"""Converts a Hugging Face ``config.json`` to a model profile: aliases, family defaults, refusals by name.

Reads raw JSON, not through transformers, which renames fields on the way. Knows no weights.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simserve.errors import ProfileError
from simserve.profiles.hf_encoders import audio_tower, vision_tower
from simserve.profiles.hf_families import (
    EXPERT_KEYS,
    LAYER_KEYS,
    MTP_KEYS,
    Family,
    check_softmax_layers,
    families,
    family_table,
    layer_pattern,
    sliding_layers,
)
from simserve.profiles.hf_layers import (
    CHOSEN_KEYS,
    experts,
    latent_attention,
    linear_attention,
    mamba,
    short_convolution,
)
from simserve.profiles.hf_own_fields import own_fields
from simserve.profiles.hf_quantization import read_checkpoint
from simserve.profiles.hf_reader import ConfigReader
from simserve.profiles.hf_rewriting import named_by_architecture, rewritten
from simserve.profiles.model import ModelProfile
from simserve.validation import validate

_WIDTH_KEYS = ("intermediate_size", "ffn_hidden_size", "ffn_dim", "n_inner")
_PLAIN_MLP_FACTOR = 4  # MLP width over hidden_size if GPT-2, GPT-J, BLOOM or Falcon omit it
_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "auto": "bf16"}
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
    outside `families` is read as a Llama with other sizes if it states every size.

    Args:
        mapping: The parsed ``config.json``.
        file: File it was read from; names the profile, and the place of errors.
        beside: The ``hf_quant_config.json`` of the same repository; None: no such file.

    Raises:
        ProfileError: A field is missing, has a wrong type, or describes layers without a formula here.
    """
    config = rewritten(_text_part(mapping, file), file)
    model_type = _model_type(config)
    family = families().get(model_type)
    _check_unsupported(ConfigReader(config, file), family)
    if family is None:
        _check_generic(config, model_type, file)
    rules = family or Family()
    pattern = layer_pattern(ConfigReader(config, file))
    counted = {} if pattern is None else {"num_hidden_layers": len(pattern)}
    given = {key: value for key, value in config.items() if value is not None}
    reader = ConfigReader({**rules.defaults, **counted, **given, "model_type": model_type}, file)
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
        "moe": experts(reader),
        "linear_attention": linear_attention(reader),
        "layer_pattern": pattern,
        "mamba": mamba(reader),
        "short_convolution": short_convolution(reader),
        "vision": vision_tower(reader),
        "audio": audio_tower(reader),
        "num_mtp_layers": reader.integer(*MTP_KEYS, default=0, minimum=0),
    }
    fields |= own_fields(model_type, reader)
    model = validate(ModelProfile, fields, file=file, error=ProfileError)
    repository = _huggingface_id(config, file)
    stored = read_checkpoint(
        {**config, "model_type": model_type}, model, repository=repository, beside=beside, file=file
    )
    return model.model_copy(update={"checkpoints": (stored,)})


def _model_type(config: Mapping[str, Any]) -> str:
    """Return the family; by the architecture if the ``model_type`` is unknown."""
    model_type = str(config.get("model_type") or "")
    return model_type if model_type in families() else named_by_architecture(config) or model_type


def _architecture(config: Mapping[str, Any]) -> str | None:
    """Return the class of the whole model, vision tower included, as engines name it; None if the file names none."""
    listed = config.get("architectures")
    named = str(listed[0]) if isinstance(listed, list) and listed else None
    return family_table().registered_as.get(named or "", named)


def _check_unsupported(reader: ConfigReader, family: Family | None) -> None:
    read = frozenset() if family is None else family.reads
    for key in family_table().unsupported_keys:
        if key not in read and reader.value(key):
            raise reader.refusal("means layers that simserve has no formula for", key)
    if "attn_type_list" not in read:
        check_softmax_layers(reader)


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
            remedy="known are " + ", ".join(sorted(families())) + "; or write a model profile",
        )
    named = [key for key, value in config.items() if _EXPERT_COUNT.search(key) and type(value) is int and value > 0]
    if named and not any(config.get(key) for key in EXPERT_KEYS):
        rule = f"speaks of experts under a name that is not known of the model_type {model_type}"
        remedy = "experts are read under " + ", ".join(EXPERT_KEYS) + "; or write a model profile"
        raise ProfileError(rule, file=file, key=named[0], value=config[named[0]], remedy=remedy)


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
    if model_type in families():
        return f"{where} (Hugging Face, model_type {model_type})"
    return f"{where} (Hugging Face, unknown model_type {model_type!r} read as a Llama with other sizes)"


def _sizes(reader: ConfigReader) -> dict[str, Any]:
    hidden_size = reader.integer("hidden_size", "n_embd", "n_embed", "d_model")
    if reader.integer("word_embed_proj_dim", default=hidden_size) != hidden_size:
        raise reader.refusal("must equal hidden_size; other widths have no formula", "word_embed_proj_dim")
    positions = _context(reader)
    is_plain = reader.value("model_type") in ("gpt2", "gptj", "bloom", "falcon", "RefinedWeb", "RefinedWebModel")
    width = _PLAIN_MLP_FACTOR * hidden_size if is_plain else None
    if reader.value(*EXPERT_KEYS) and reader.value("moe_intermediate_size"):
        # No layer keeps a dense MLP: use the width of all experts that a token visits.
        width = reader.integer("moe_intermediate_size") * reader.integer(*CHOSEN_KEYS)
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
        return fields | latent_attention(reader, heads)
    if reader.flag("use_qk_norm") and reader.value("qk_norm_type") is not None:
        fields["qk_norm"] = reader.choice({"per_layer": "full", "per_head": "per_head"}, "qk_norm_type")
    head_dim = reader.integer("head_dim", "attention_head_dim", default=0, minimum=0)
    if not head_dim:
        hidden_size = reader.integer("hidden_size", "n_embd", "n_embed", "d_model")
        if hidden_size % heads:
            rule = f"is missing, and {heads} attention heads do not divide the hidden_size {hidden_size}"
            raise reader.refusal(rule, "head_dim")
        head_dim = hidden_size // heads
    return fields | {"head_dim": head_dim}


def _biases(reader: ConfigReader, family: Family) -> dict[str, Any]:
    attention = family.has_attention_bias_flag and reader.flag("attention_bias")
    return {"has_qkv_bias": attention, "has_output_bias": attention, "has_mlp_bias": reader.flag("mlp_bias")}


def _falcon(reader: ConfigReader) -> dict[str, Any]:
    """Return what the Falcon switches mean: ``configuration_falcon.py`` and ``modeling_falcon.py``."""
    if families().get(str(reader.value("model_type"))) is not families()["falcon"]:
        return {}
    is_new = reader.flag("new_decoder_architecture") or reader.value("model_type") == "RefinedWeb"
    is_parallel = is_new or reader.flag("parallel_attn", default=True)
    norms = reader.integer("num_ln_in_parallel_attn", default=2 if is_new or not is_parallel else 1)
    fields = {"has_parallel_attention": is_parallel, "num_norms_per_layer": norms}
    fields |= dict.fromkeys(("has_qkv_bias", "has_output_bias", "has_mlp_bias"), reader.flag("bias"))
    if not is_new and reader.flag("multi_query", default=True):
        fields["num_key_value_heads"] = 1
    return fields
