"""What a name of published weights reveals: their number format, and the model without tuning and format.

Knows names of formats and repositories, no profiles.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import BeforeValidator

from simserve.profiles.checkpoint import KVCacheDtype, Quantization, WeightFormatName
from simserve.validation import FrozenModel, read_valid

_KEPT_NAMES = 4096  # Names whose plain form is kept: the catalogue's are compared with every name that is asked for.
_TABLE = Path(__file__).with_suffix(".yaml")
_BITS_ALONE = (("3bit", "int3"), ("4bit", "int4"), ("8bit", "int8-wo"))
"""Parts of a repository's name without any other format -> integers of that width, as MLX names them."""
_OF_THEMSELVES = ("nvfp4", "mxfp4", "fp8", "int8", "int4", "bf16")  # Parts that are format names themselves.
_GGUF_NAME = re.compile(r"(?:i?q[1-8](?:_\w+)?|tq[12]_0|mxfp4_moe)")
_BITS = re.compile(r"(?:int)?([48])[- ]?bits?")
_SUFFIX = re.compile(
    r"[-._](?:instruct|thinking|chat|hf|it|base|text|pretrained|gguf|awq|gptq|marlin|quantized|qat|dynamic|static|pertensor|"
    r"autoround|a?sym|kv|channel|block|(?:ud-)?i?q\d-(?:[0k](?:-(?:x{0,2}[sml]))?|x{0,2}[sml]|nl|\d)|"
    r"(?:int|fp|nvfp|mxfp|bf|q)\d+\w*|w\d+a\d+|\d+bit|bnb|g?128g?|v0\.\d+|\d{4}|tensor|modelopt|latest|cloud|rl|"
    r"unsloth|mlx|mixed|abliterated|gptq-4b|w-mxfp\d-a-\w+|qad|(?<=fp[48]-)(?:v2|preview)|unquantized|i1|dwq|(?<=dwq-)v\d|"
    r"(?<=abliterated-)v\d|gptqmodel)$"
)
"""Names of a tuning or a number format; versions from 1 on name another model, as deepseek-v3 and -v3.2 do."""
_PARTING = re.compile(r"[-_: ]+")
_PREFIX = re.compile(
    r"^(?:(?:qwen|google|mistralai|deepseek-ai|zai-org|openai|nvidia|meta-llama|microsoft|moonshotai|ibm-granite|"
    r"minimaxai|tencent|lgai-exaone|allenai|liquidai|cohereforai|coherelabs)_)?(?:meta-|unsloth-|nvidia-)?"
)
"""Owners before an underscore are those of files of bartowski: ``Qwen_Qwen3-32B-GGUF``."""


class Formulaless(FrozenModel):
    """A model with layers that have no formula here."""

    layers: str  # Those layers, as a clause.
    nearest: str | None = None  # The profile nearest in kind and size, where one is near.


class NameTable(FrozenModel):
    """What ``model_names.yaml`` says; sources stand there."""

    formats: Mapping[str, str]  # Part of a name -> format; the first that is found counts.
    nearest_gguf: Mapping[str, str]
    """Prefix of llama.cpp's name of a format -> the simulated format nearest in size, the first found."""
    same_shape: Mapping[str, str]  # Repositories of weights tuned from another model -> profile with their shape.
    text_only: frozenset[str]  # Those of them without the tower of the model from which they were tuned.
    distilled: Mapping[str, str]  # Size in a tag of Ollama's deepseek-r1 -> its weights.
    without_formula: Mapping[str, Formulaless]  # Prefix of a model's name -> what has no formula.
    contexts: Mapping[str, int]
    """Repositories of weights -> their longest context, tokens, if it differs from the profile of their shape."""
    tunings: tuple[str, ...]  # Repositories with another tuning of a profile's weights, of the same size and context.


@cache
def name_table() -> NameTable:
    """Return what is known of names."""
    return read_valid(NameTable, _TABLE)


def stored_format(name: str) -> str | None:
    """Return the number format that a name of weights states; None: none. A file behind a colon says it first."""
    last = _last_part(name)
    tag = last.rpartition(":")[2] if ":" in last else ""
    if _GGUF_NAME.fullmatch(tag.removeprefix("ud-")):
        return nearest_gguf(tag)
    known = (*name_table().formats.items(), *_BITS_ALONE)
    return next((quantization for part, quantization in known if part in last), None)


def letters(name: str) -> str:
    """Return a name without its word separators: ``llama 3.3:70b`` and ``llama-3.3-70b`` are equal."""
    return _PARTING.sub("", name.lower())


def format_named(text: str) -> str:
    """Return the number format for a short name: ``awq`` is awq-int4. Other texts are returned unchanged.

    Also accepts llama.cpp's names in any case: ``Q6_K`` is gguf-q6_k, ``q4`` gguf-q4_k_m.
    """
    short = text.strip().lower().removeprefix("gguf-")
    named = {part: known for part, known in name_table().formats.items() if part not in _OF_THEMSELVES}
    is_gguf = _GGUF_NAME.fullmatch(short) is not None and is_gguf_name_of(short, nearest_gguf(short))
    return named.get(short, nearest_gguf(short) if is_gguf else text)


def nearest_gguf(name: str) -> str:
    """Return the simulated format nearest in size to one of llama.cpp, given its name there (``Q5_K_S``, ``iq3_m``)."""
    plain = name.lower().removeprefix("ud-")
    return next(known for begin, known in name_table().nearest_gguf.items() if plain.startswith(begin))


def is_gguf_name_of(name: str, known: str) -> bool:
    """Return whether a name of llama.cpp means exactly a simulated format: ``q4`` and ``Q4_K`` are Q4_K_M."""
    own = known.removeprefix("gguf-")
    return name.lower() in (own, own.removesuffix("_m"), own.partition("_")[0])


def meant_format(text: str, *, is_gguf: bool) -> str | None:
    """Return the format that a name most likely means, for an engine of GGUF files or another: ``4bit``, ``Q5_K_S``.

    None: the name gives no hint.
    """
    short = text.strip().lower()
    if _GGUF_NAME.fullmatch(short.removeprefix("ud-")):
        return nearest_gguf(short)
    bits = _BITS.fullmatch(short)
    if bits is None:
        return None
    return {"4": "gguf-q4_k_m", "8": "gguf-q8_0"}[bits[1]] if is_gguf else {"4": "awq-int4", "8": "fp8"}[bits[1]]


def format_of(text: str) -> str | None:
    """Return the format that a name means, including ``auto``: ``Q6_K``, ``awq``, ``FP8``; None: not a format."""
    known, named = ("auto", *get_args(WeightFormatName)), format_named(text)
    return next((each for each in (named, named.strip().lower()) if each in known), None)


def _format_asked(value: Any) -> Any:
    """Return the format that a scenario's text means; other texts are passed on and checked against the formats."""
    if not isinstance(value, str):
        return value
    if (found := format_of(value)) is not None:
        return found
    meant = meant_format(value, is_gguf=True) or ""
    if meant.startswith("gguf") and not value.strip()[0].isdigit():  # 4bit may be any
        raise ValueError(f"is not a known weight format; did you mean '{meant}'?")
    return value


AskedQuantization = Annotated[Quantization, BeforeValidator(_format_asked)]
"""As in scenarios: also by llama.cpp's names and in capitals."""

KV_CACHE_DTYPES = {
    "auto": "auto",
    "float16": "fp16",
    "bfloat16": "bf16",
    "bf16": "bf16",
    "fp8": "fp8",
    "fp8_e4m3": "fp8",
    "fp8_e4m3fn": "fp8",
    "fp8_e5m2": "fp8",
    "int8_per_token_head": "int8",
    "fp8_per_token_head": "fp8",
    "int4_per_token_head": "int4",
}
"""Servers' names of the format of their KV cache -> the scenario's."""
KV_CACHE_TYPES = {"f16": "fp16", "bf16": "bf16", "q8_0": "int8", "q4_0": "int4"}
"""Simulated KV cache types of llama.cpp -> the scenario's."""
_OTHER_KV_CACHE_TYPES = {"f32": "f16", "q4_1": "q4_0", "iq4_nl": "q4_0", "q5_0": "q4_0", "q5_1": "q4_0"}
"""Those that are not simulated (llama.cpp's ``--cache-type-k``) -> the nearest in size that is."""


def _kv_cache_asked(value: Any) -> Any:
    """Return the KV format that a scenario's text means; other texts are passed on and checked against the formats."""
    if not isinstance(value, str):
        return value
    short = value.strip().lower()
    near = _OTHER_KV_CACHE_TYPES.get(short)
    if near is not None:
        raise ValueError(f"is a KV cache type that is not simulated; the nearest is '{near}', {KV_CACHE_TYPES[near]}")
    return {**KV_CACHE_DTYPES, **KV_CACHE_TYPES}.get(short, value)


AskedKVCacheDtype = Annotated[KVCacheDtype, BeforeValidator(_kv_cache_asked)]
"""As in scenarios: also by the names of vLLM, SGLang and TGI (``fp8_e4m3``) and of llama.cpp (``q8_0``)."""


@lru_cache(maxsize=_KEPT_NAMES)
def plain_name(name: str) -> str:
    """Return a name without owner, tuning and number format: ``org/Meta-Llama-3.1-8B-Instruct-FP8`` is llama-3.1-8b."""
    plain = _PREFIX.sub("", name.rstrip("/").rsplit("/", 1)[-1].lower().removesuffix(".gguf"))
    plain = plain.replace("_", "-").replace(":", "-")  # a tag of Ollama, or a file of a repository: ...-GGUF:Q4_K_M
    while (shorter := _SUFFIX.sub("", plain)) != plain:
        plain = shorter
    return plain


_ACTIVE = re.compile(r"(?<=\db)-a\d+(?:\.\d+)?b$")


def without_active(plain: str) -> str:
    """Return a plain name without the parameters that are active, which tags of Ollama leave out: ``qwen3-30b``."""
    return _ACTIVE.sub("", plain)


_DISTILLED_TAG = re.compile(r"deepseek-r1:(\d+(?:\.\d+)?b)(-llama)?(?:-.*)?", re.IGNORECASE)


def distilled(name: str) -> str | None:
    """Return the repository for a tag of Ollama's deepseek-r1: ``deepseek-r1:32b``; None: not such a tag."""
    found = _DISTILLED_TAG.fullmatch(name)
    return None if found is None else name_table().distilled.get(f"{found[1]}{found[2] or ''}".lower())


@cache
def _tuned() -> Mapping[str, tuple[str, str]]:
    """Return the letters of the name without tuning and format, with active parameters and without -> repository and
    profile."""
    return {
        letters(short(plain_name(repository))): (repository, profile)
        for short in (without_active, str)
        for repository, profile in name_table().same_shape.items()
    }


def tuned_from(name: str) -> tuple[str, str] | None:
    """Return the repository of weights tuned from another model, and the profile of their shape; None: not tuned, or
    not known."""
    return _tuned().get(letters(plain_name(name)))


def layers_without_formula(name: str) -> str | None:
    """Return as a clause why a model with this name cannot be simulated; None: not such a model."""
    found = next(_formulaless(name), None)
    return None if found is None else f"has layers that simserve has no formula for: {found.layers}"


def nearest_with_formula(name: str) -> str | None:
    """Return the profile nearest to a model that cannot be simulated; None: none is near."""
    return next((each.nearest for each in _formulaless(name) if each.nearest is not None), None)


def _formulaless(name: str) -> Iterator[Formulaless]:
    plain = plain_name(name)
    return (each for begin, each in name_table().without_formula.items() if plain.startswith(begin))


def repositories_on_record() -> tuple[str, ...]:
    """Return the repositories whose shape is on record although no profile lists them as checkpoints."""
    known = name_table()
    return tuple(dict.fromkeys((*known.same_shape, *known.contexts, *known.tunings)))


def is_on_record(repository: str) -> bool:
    """Return whether the shape of a repository that no profile lists is on record; otherwise its name decides."""
    return repository.lower() in (each.lower() for each in repositories_on_record())


def context_of(name: str) -> int | None:
    """Return the longest context of weights in any format by their name; None: that of their shape."""
    lengths = {_last_part(known): length for known, length in name_table().contexts.items()}
    last = _last_part(name)
    while last not in lengths and (shorter := _SUFFIX.sub("", last)) != last:
        last = shorter
    return lengths.get(last)


def repository_of_context(name: str) -> str | None:
    """Return the repository with its own context that a name without owner means; None: not such a name."""
    return next((known for known in name_table().contexts if _last_part(known) == name.lower()), None)


def _last_part(name: str) -> str:
    return name.rstrip("/").rsplit("/", 1)[-1].lower()
