"""Converts a Hugging Face repository's statements about number formats to a `Checkpoint`.

Reads ``quantization_config`` or ``compression_config`` of ``config.json`` and ``hf_quant_config.json`` beside it
(ModelOpt), and resolves the modules they name against those of the architecture. Knows no bytes.
"""

from __future__ import annotations

import fnmatch
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from simserve.errors import ProfileError
from simserve.profiles.checkpoint import WIDE_FORMATS, Checkpoint, Fp8Scales, OtherFormat, WeightFormatName
from simserve.profiles.hf_families import StoredModules, family_table
from simserve.profiles.hf_reader import ConfigReader
from simserve.profiles.model import ModelProfile
from simserve.profiles.model_blocks import PARTS, Part

_BLOCKS = ("quantization_config", "compression_config", "hf_quant_config.json")
_ALGORITHMS: Mapping[str, WeightFormatName] = {
    **dict.fromkeys(("fp8", "fp8_per_channel_per_token", "fp8_pb_wo", "mxfp8"), "fp8"),
    **dict.fromkeys(("nvfp4", "nvfp4_awq"), "nvfp4"),
    "w4a16_nvfp4": "nvfp4-wo",
    **dict.fromkeys(("mxfp4", "w4a8_mxfp4_fp8", "w4a16_mxfp4"), "mxfp4"),
    **dict.fromkeys(("w4a16", "w4a16_gptq"), "gptq-int4"),
    **dict.fromkeys(("w4a16_awq", "w4a8_awq"), "awq-int4"),
    "w8a16": "int8-wo",
    **dict.fromkeys(("w8a8_sq_per_channel", "int8_sq"), "int8"),
}
"""ModelOpt's ``quant_algo`` (its documentation and TensorRT-LLM's precision matrix) -> format. MXFP8 adds a scale of 8
bits per 32 weights, 3 %, which is left out."""
_METHODS: Mapping[str, WeightFormatName] = {"fp8": "fp8", "fbgemm_fp8": "fp8", "mxfp4": "mxfp4", "eetq": "int8-wo"}
"""``quant_method`` that determines the format by itself."""
_TORCHAO: Mapping[str, WeightFormatName] = {
    **dict.fromkeys(("Int4WeightOnlyConfig", "int4_weight_only"), "int4"),
    **dict.fromkeys(("Int8WeightOnlyConfig", "int8_weight_only"), "int8-wo"),
    **dict.fromkeys(("Int8DynamicActivationInt8WeightConfig", "int8_dynamic_activation_int8_weight"), "int8"),
    **dict.fromkeys(("Float8DynamicActivationFloat8WeightConfig", "float8_dynamic_activation_float8_weight"), "fp8"),
    **dict.fromkeys(("Float8WeightOnlyConfig", "float8_weight_only"), "fp8"),
}
"""``quant_type`` of torchao (docs.pytorch.org/ao, quantize_ API) -> format."""
_HQQ: Mapping[object, WeightFormatName] = {3: "int3", 4: "int4", 8: "int8-wo"}
"""``nbits`` of HQQ (github.com/mobiusml/hqq) -> format."""
_EXCLUSIONS = (
    *("modules_to_not_convert", "ignore", "exclude_modules", "exclude"),
    *("llm_int8_skip_modules", "skip_modules"),
)
"""Keys that name the modules that stay 16-bit; the last two are bitsandbytes' and HQQ's (transformers,
utils/quantization_config.py)."""
_BLOCK_SCALED = ("fp8_pb_wo",)
_HEAD: Final = "lm_head"
_NVFP4_GROUP, _MXFP4_GROUP = 16, 32
"""Weights per scale, which tells the two 4-bit floats apart (NVIDIA's; OCP Microscaling formats 1.0)."""

_INPUTS = ("q_proj", "k_proj", "v_proj")
_LATENT_INPUTS = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj")


@dataclass(slots=True)
class _Rule:
    """How one repository stores its modules."""

    base: WeightFormatName  # Format of a linear layer that no other rule covers.
    groups: list[tuple[Sequence[str], WeightFormatName]] = field(default_factory=list)
    """Target patterns and the format of modules that match; later ones win."""
    excluded: list[str] = field(default_factory=list)  # Patterns of modules that stay 16-bit.
    named: Mapping[str, WeightFormatName] = field(default_factory=dict)  # Module below ``layers.`` -> its format.
    lists_modules: bool = False
    """Whether ``groups`` lists the stored modules; of a matrix with several names, the listed one then counts."""
    head: WeightFormatName = "none"  # Format of the LM head.
    roots: Sequence[str] = ("model.",)
    _spelt_out: frozenset[str] | None = field(default=None, init=False)
    _patterns: Sequence[str] = field(default=(), init=False)

    def format_of(self, module: str) -> WeightFormatName:
        """Return the format of a module, whose name begins at ``layers.``."""
        if self.named:
            below = module.removeprefix("layers.")
            while below:
                if below in self.named:
                    return self.named[below]
                below = below.rpartition(".")[0]
        names = [root + module for root in self.roots]
        if any(self._sojourns(name) for name in names):
            return "none"
        found = self.base
        for targets, stored in self.groups:
            if any(target == "Linear" or _matches(target, name) for target in targets for name in names):
                found = stored
        return found

    def _sojourns(self, name: str) -> bool:
        """Return whether a module stays 16-bit; literal names, maybe thousands, are looked up, not searched."""
        if self._spelt_out is None:
            self._spelt_out = frozenset(each for each in self.excluded if not _is_pattern(each))
            self._patterns = tuple(each for each in self.excluded if _is_pattern(each))
        words = name.split(".")
        parts = (".".join(words[start:end]) for end in range(len(words) + 1) for start in range(end))
        return not self._spelt_out.isdisjoint(parts) or any(_matches(each, name) for each in self._patterns)


def read_checkpoint(
    config: Mapping[str, Any],
    model: ModelProfile,
    *,
    repository: str | None = None,
    beside: Mapping[str, Any] | None = None,
    file: object = None,
) -> Checkpoint:
    """Return the checkpoint that a configuration describes.

    Its format is the low-bit one of the routed experts, or in a dense model of the MLP: of most weights.

    Args:
        config: ``config.json``, the text part's fields on top of those of the whole.
        model: The architecture read from it.
        repository: Its repository on huggingface.co.
        beside: ``hf_quant_config.json`` of the same folder; None: no such file.
        file: File it was read from, for errors.

    Raises:
        ProfileError: simserve has no figures for the format; names the formats that it has.
    """
    key, block = _block(config, beside, file)
    if block is None:
        return Checkpoint(format="none", repository=repository, source=f"{model.source}, no quantization_config")
    rule, group_size = _rule(block, key, file)
    # If a layer of the file is read as several (`simserve.profiles.hf_rewriting`), its modules keep its number.
    in_one = ConfigReader(config, file).integer("layers_in_one", default=1)
    if str(config.get("expert_dtype")) == "fp4" and not rule.named:
        rule.named = _mxfp4_experts(model, str(config.get("model_type") or ""))
    homes = _homes(str(config.get("model_type") or ""))
    stored = {
        part: [_format_of(rule, f"layers.{layer // in_one}", _leaves(part, homes, model)) for layer in layers]
        for part, layers in _parts(model).items()
    }
    main = _main_format(stored)
    others = list(_others(stored, model, main))
    if model.num_mtp_layers:
        mtp = _mtp_format(rule, model, homes)
        others += [] if mtp == main else [OtherFormat(parts=("mtp",), format=mtp)]
    if rule.head != "none":
        others.append(OtherFormat(parts=(_HEAD,), format=rule.head))
    return Checkpoint(
        format=main,
        repository=repository,
        method=_method(block),
        other_formats=tuple(others),
        fp8_scales=_fp8_scales(block),
        group_size=group_size if "int" in main else None,
        kv_cache="fp8" if _has_narrow_kv(block, beside) else None,
        source=f"{key} of {model.source}",
    )


def _main_format(stored: Mapping[Part, Sequence[WeightFormatName]]) -> WeightFormatName:
    """Return the low-bit format of most layers of the experts, else of the MLP, else of the rest; ``none``: 16 bit."""
    for parts in (("experts",), ("mlp",), PARTS):
        narrow = [each for part in parts for each in stored.get(part, ()) if each not in WIDE_FORMATS]
        if narrow:
            return Counter(narrow).most_common(1)[0][0]
    return "none"


def _block(
    config: Mapping[str, Any], beside: Mapping[str, Any] | None, file: object
) -> tuple[str, Mapping[str, Any] | None]:
    """Return the block that says how the weights are stored, and its key; None: there is none."""
    inner = None if beside is None else beside.get("quantization", beside)
    for key, value in zip(_BLOCKS, (config.get(_BLOCKS[0]), config.get(_BLOCKS[1]), inner), strict=True):
        if value is None:
            continue
        if not isinstance(value, Mapping):
            raise ProfileError("must be a mapping", file=file, key=key, value=value)
        if value:
            inner = value.get("quantization")
            return key, {**value, **inner} if isinstance(inner, Mapping) else value
    return _BLOCKS[0], None


def _method(block: Mapping[str, Any]) -> str:
    """Return the checkpoint's method as engines tell methods apart; ModelOpt's files sometimes leave it out."""
    is_modelopt = "quant_algo" in block and "quant_method" not in block
    producer = block.get("producer")
    if is_modelopt or (isinstance(producer, Mapping) and producer.get("name") == "modelopt"):
        return "modelopt"
    return str(block.get("quant_method") or "unknown").lower()


def _algorithm(block: Mapping[str, Any]) -> str:
    return str(block.get("quant_algo") or "").lower()


def _rule(block: Mapping[str, Any], key: str, file: object) -> tuple[_Rule, int | None]:
    """Return how a repository stores its modules, and the group size of its integer formats."""
    method = _method(block)
    excluded = [str(name) for names in _EXCLUSIONS for name in block.get(names) or ()]
    excluded += [f"re:{name[2:]}" for name in block.get("dynamic") or () if str(name).startswith("-:")]
    named = block.get("quantized_layers")
    group_size = block.get("group_size", _own_arguments(block, method).get("group_size"))
    groups = [_group(each, file, key) for each in (block.get("config_groups") or {}).values()]
    groups += _hqq_groups(block, method, file, key)
    if isinstance(named, Mapping) and named:
        modules = {
            name.partition("layers.")[2]: _known(str(each.get("quant_algo")), key, file)
            for name, each in named.items()
            if "layers." in name
        }
        # A ModelOpt checkpoint made from an FP8 one (quant_method fp8) leaves the rest in FP8.
        is_over_fp8 = str(block.get("quant_method") or "").lower() == "fp8"
        rule = _Rule("fp8" if is_over_fp8 else "none", excluded=[] if is_over_fp8 else excluded, named=modules)
        heads = [each for name, each in named.items() if name.rpartition(".")[2] == _HEAD]
        rule.head = _known(str(heads[0].get("quant_algo")), key, file) if heads else "none"
    elif groups:
        rule = _Rule("none", groups=[(targets, stored) for targets, stored, _ in groups], excluded=excluded)
        rule.lists_modules = method == "hqq"
        group_size = next((size for _, _, size in groups if size), None)
    else:
        rule = _Rule(_format(block, method, key, file), excluded=excluded)
    rule.roots = _roots([*excluded, *(target for targets, _ in rule.groups for target in targets)])
    return rule, group_size if isinstance(group_size, int) and group_size > 0 else None


def _format(block: Mapping[str, Any], method: str, key: str, file: object) -> WeightFormatName:
    """Return the format of a repository with one format for all linear layers."""
    if _algorithm(block):
        return _known(_algorithm(block), key, file)
    if method in _METHODS:
        return _METHODS[method]
    if method == "bitsandbytes":
        return "nf4" if block.get("load_in_4bit") or block.get("_load_in_4bit") else "int8-wo"
    if method in ("gptq", "awq", "auto-round", "intel/auto-round"):
        bits = block.get("bits", 4)
        # Marlin takes AWQ only with zero points (vLLM awq_marlin.py, check_marlin_supported with has_zp).
        awq: WeightFormatName = "awq-int4-gemm" if block.get("zero_point") is False else "awq-int4"
        wide: Mapping[object, WeightFormatName] = {3: "int3", 4: awq if method == "awq" else "gptq-int4", 8: "int8-wo"}
        if bits in wide:
            return wide[bits]
        raise ProfileError(f"of {method} must be 3, 4 or 8", file=file, key=f"{key}.bits", value=bits)
    if method == "quark":
        weights = (block.get("global_quant_config") or {}).get("weight") or {}
        weights = weights[0] if isinstance(weights, list) and weights else weights
        named = str(weights.get("dtype") if isinstance(weights, Mapping) else "")
        quark: Mapping[str, WeightFormatName] = {"fp8_e4m3": "fp8", "fp4": "mxfp4", "int8": "int8", "int4": "int4"}
        if named in quark:
            return quark[named]
    if method == "torchao":
        kind = _torchao_kind(block)
        if kind in _TORCHAO:
            return _TORCHAO[kind]
        raise _unknown(kind, f"{key}.quant_type", file)
    if method == "hqq":
        return _hqq_format(_own_arguments(block, method), f"{key}.quant_config", file)
    raise _unknown(method, f"{key}.quant_method", file)


def _hqq_format(weights: Mapping[str, Any], key: str, file: object) -> WeightFormatName:
    bits = weights.get("nbits")
    if bits in _HQQ:
        return _HQQ[bits]
    raise ProfileError("of hqq must be 3, 4 or 8", file=file, key=key, value=bits)


def _hqq_groups(
    block: Mapping[str, Any], method: str, file: object, key: str
) -> list[tuple[Sequence[str], WeightFormatName, int | None]]:
    """Return how HQQ stores modules that its file lists by name (transformers, ``dynamic_config``), if any."""
    named = block.get("quant_config")
    if method != "hqq" or not isinstance(named, Mapping) or "weight_quant_params" in named:
        return []
    found = {str(name): each.get("weight_quant_params") for name, each in named.items() if isinstance(each, Mapping)}
    weights = {name: each for name, each in found.items() if isinstance(each, Mapping)}
    return [
        ((name,), _hqq_format(each, f"{key}.quant_config.{name}", file), each.get("group_size"))
        for name, each in weights.items()
    ]


def _torchao_kind(block: Mapping[str, Any]) -> str:
    """Return torchao's name for the storage of all layers: a function's in older files, a class's in newer ones."""
    kind = block.get("quant_type")
    default = kind.get("default") if isinstance(kind, Mapping) else None
    return str(default.get("_type") if isinstance(default, Mapping) else kind)


def _own_arguments(block: Mapping[str, Any], method: str) -> Mapping[str, Any]:
    """Return the block in which torchao and HQQ write bits and group size; empty for other methods."""
    if method == "torchao":
        kind = block.get("quant_type")
        default = kind.get("default") if isinstance(kind, Mapping) else None
        found = default.get("_data") if isinstance(default, Mapping) else block.get("quant_type_kwargs")
    else:
        found = (block.get("quant_config") or {}).get("weight_quant_params") if method == "hqq" else None
    return found if isinstance(found, Mapping) else {}


def _known(algorithm: str, key: str, file: object) -> WeightFormatName:
    if algorithm.lower() not in _ALGORITHMS:
        raise _unknown(algorithm, f"{key}.quant_algo", file)
    return _ALGORITHMS[algorithm.lower()]


def _unknown(name: str, key: str, file: object) -> ProfileError:
    rule = "is a number format that simserve has no figures for"
    remedy = "take the quantization block out of a copy of the file and say deployment.quantization"
    return ProfileError(rule, file=file, key=key, value=name, remedy=remedy)


def _group(group: Mapping[str, Any], file: object, key: str) -> tuple[Sequence[str], WeightFormatName, int | None]:
    """Return the targets of a group of compressed-tensors, its format and its group size."""
    weights, inputs = group.get("weights"), group.get("input_activations")
    targets = [str(each) for each in group.get("targets") or ("Linear",)]
    if not isinstance(weights, Mapping):
        return targets, "none", None
    kind, bits, size = str(weights.get("type") or "int"), weights.get("num_bits"), weights.get("group_size")
    size = size if isinstance(size, int) and size > 0 else None
    formats: Mapping[tuple[str, object], WeightFormatName] = {
        ("float", 8): "fp8",
        ("float", 4): "mxfp4" if size == _MXFP4_GROUP else "nvfp4" if isinstance(inputs, Mapping) else "nvfp4-wo",
        ("int", 8): "int8" if isinstance(inputs, Mapping) else "int8-wo",
        ("int", 4): "int4" if weights.get("symmetric", True) else "awq-int4",
        ("int", 3): "int3",
    }
    if (kind, bits) not in formats:
        raise _unknown(f"{kind}{bits}", f"{key}.config_groups", file)
    return targets, formats[kind, bits], size


def _fp8_scales(block: Mapping[str, Any]) -> Fp8Scales:
    """Return the range of an FP8 scale according to a quantisation block; by default a tensor."""
    groups = (each.get("weights") for each in (block.get("config_groups") or {}).values())
    strategies = {each.get("strategy") for each in groups if isinstance(each, Mapping)}
    if block.get("weight_block_size") or _algorithm(block) in _BLOCK_SCALED or "block" in strategies:
        return "block"
    return "channel" if "channel" in strategies else "tensor"


def _has_narrow_kv(block: Mapping[str, Any], beside: Mapping[str, Any] | None) -> bool:
    """Return whether a checkpoint asks for an 8-bit KV cache."""
    inner = {} if beside is None else beside.get("quantization") or {}
    named = block.get("kv_cache_quant_algo") or inner.get("kv_cache_quant_algo")
    scheme = block.get("kv_cache_scheme")
    if isinstance(scheme, Mapping):
        return bool(scheme.get("num_bits") == 8 and scheme.get("type") == "float")
    return str(named or scheme or "").upper() == "FP8"


def _is_pattern(text: str) -> bool:
    """Return whether an entry is a pattern rather than the name of a module or part of one."""
    return text.startswith("re:") or "*" in text


def _matches(pattern: str, name: str) -> bool:
    """Return whether a pattern matches a module: a regular expression, a glob, or a name or part of one."""
    if pattern.startswith("re:"):
        return re.match(pattern[3:], name) is not None
    if "*" in pattern:
        return fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(name, f"{pattern}.*")
    return f".{pattern}." in f".{name}."


def _roots(patterns: Sequence[str]) -> Sequence[str]:
    """Return the prefixes before ``layers.`` in names that patterns spell out."""
    found = (each.partition("layers.")[0] for each in patterns if "layers." in each and not each.startswith("re:"))
    return tuple(dict.fromkeys(("model.", *(root for root in found if "mtp" not in root))))


def _homes(model_type: str) -> StoredModules:
    known = family_table().modules
    fitting = [name for name in known if model_type.startswith(name)]
    return known[max(fitting, key=len)] if fitting else StoredModules()


def _leaves(part: Part, homes: StoredModules, model: ModelProfile) -> list[list[str]]:
    """Return the modules of a part inside a layer: each matrix under all its names."""
    if part == "attention":
        fused = "qkv_proj" if model.mla is None else "fused_qkv_a_proj_with_mqa"
        inputs = _INPUTS if model.mla is None else _LATENT_INPUTS
        return [[f"{homes.attention}.{each}", f"{homes.attention}.{fused}"] for each in inputs]
    if part == "attention_output":
        return [[f"{homes.attention}.{each}" for each in ("o_proj", "out_proj", "dense")]]
    if part == "indexer":
        spelt = {"indexer.wq_b": "index_q_proj", "indexer.wk": "index_k_proj"}
        return [[f"{homes.attention}.{each}" for each in both] for both in spelt.items()]
    if part == "linear_attention":
        names: Sequence[Sequence[str]] = (("in_proj_qkvz", "in_proj_qkv", "in_proj"), ("out_proj",))
        if homes.linear_attention == homes.attention == "self_attn":
            names = [(each,) for each in (*_INPUTS, "o_proj")]
        return [[f"{homes.linear_attention}.{each}" for each in spelled] for spelled in names]
    if part == "mlp":
        return [[f"{homes.mlp}.{each}"] for each in homes.gated]
    places, matrices = (homes.shared, homes.gated) if part == "shared_experts" else (homes.experts, homes.matrices)
    return [[f"{place}.{each}" for place in places] for each in dict.fromkeys((*matrices,))]


def _parts(model: ModelProfile) -> dict[Part, Sequence[int]]:
    """Return the parts of a model, each with the layers that have it or, in hybrids, may have it."""
    has = {
        "indexer": model.indexer is not None,
        "linear_attention": model.num_linear_layers > 0,
        "mlp": model.num_dense_layers > 0,
        "shared_experts": model.moe is not None and model.moe.num_shared_experts > 0,
        "experts": model.moe is not None,
    }
    return {part: model.layers_with(part) for part in PARTS if has.get(part, True)}


def _format_of(rule: _Rule, layer: str, leaves: Sequence[Sequence[str]]) -> WeightFormatName:
    """Return the format of most matrices of a part in a layer; for a matrix with several names, the rarer format."""
    found = []
    for names in leaves:
        formats = [rule.format_of(f"{layer}.{name}") for name in names]
        odd = [each for each in formats if each != rule.base]
        plain = "none" if "none" in formats else formats[0]
        found.append(odd[0] if (rule.named or rule.lists_modules) and odd else plain)
    return Counter(found).most_common(1)[0][0]


def _others(
    stored: Mapping[Part, Sequence[WeightFormatName]], model: ModelProfile, main: WeightFormatName
) -> Iterator[OtherFormat]:
    """Yield the parts in another format than the main one, grouped by format and layers."""
    together: dict[tuple[WeightFormatName, tuple[int, ...] | None], list[Part]] = {}
    for part, formats in stored.items():
        layers = _parts(model)[part]
        for kind in dict.fromkeys(formats):
            chosen = tuple(layer for layer, each in zip(layers, formats, strict=True) if each == kind)
            if kind != main:
                everywhere = len(chosen) >= _num_layers(part, model)
                together.setdefault((kind, None if everywhere else chosen), []).append(part)
    for (kind, chosen_layers), parts in together.items():
        yield OtherFormat(parts=tuple(parts), format=kind, layers=chosen_layers)


def _num_layers(part: Part, model: ModelProfile) -> int:
    """Return the number of layers that have a part."""
    if part == "linear_attention":
        return model.num_linear_layers
    return model.num_attention_layers if part.startswith("attention") else len(model.layers_with(part))


def _mtp_format(rule: _Rule, model: ModelProfile, homes: StoredModules) -> WeightFormatName:
    """Return the format of the layers for multi-token prediction, which are named after the last layer or ``mtp``."""
    part: Part = "experts" if model.moe is not None else "mlp"
    leaves = _leaves(part, homes, model)
    last = _format_of(rule, f"layers.{model.num_hidden_layers}", leaves)
    apart = [pattern for pattern in rule.excluded if pattern.startswith(("mtp", "re:.*mtp", "re:mtp", "model.mtp"))]
    return "none" if apart else last


def _mxfp4_experts(model: ModelProfile, model_type: str) -> dict[str, WeightFormatName]:
    """Return the format of the routed experts of every layer, by their modules below ``layers.``."""
    homes = _homes(model_type).experts
    return {f"{layer}.{home}": "mxfp4" for layer in model.layers_with("experts") for home in homes}
