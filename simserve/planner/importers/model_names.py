"""From the name of published weights to the model profile of their architecture, and the format they are stored in."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from simserve.errors import ScenarioError, nearest
from simserve.profiles import catalog
from simserve.profiles.model import load_model

_FORMATS = (
    ("bnb-4bit", "nf4"),
    ("awq", "awq-int4"),
    ("gptq", "gptq-int4"),
    ("q4_k_m", "gguf-q4_k_m"),
    ("q2_k", "gguf-q2_k"),
    ("q8_0", "gguf-q8_0"),
    ("q4_0", "gguf-q4_0"),
    ("gguf", "gguf-q4_k_m"),
    ("nvfp4", "nvfp4"),
    ("fp4", "nvfp4"),
    ("mxfp4", "mxfp4"),
    ("w4a16", "int4"),
    ("w8a16", "int8-wo"),
    ("w8a8-fp8", "fp8"),
    ("fp8", "fp8"),
    ("w8a8", "int8"),
    ("int8", "int8"),
    ("int4", "int4"),
    ("bf16", "none"),
)
"""Part of a name -> format, the first that is found."""
_OF_THEMSELVES = ("nvfp4", "mxfp4", "fp8", "int8", "int4", "bf16")
"""Parts that are formats themselves."""
_SUFFIX = re.compile(
    r"[-._](?:instruct|thinking|chat|hf|it|base|text|pretrained|gguf|awq|gptq|marlin|quantized|dynamic|static|pertensor|"
    r"kv|channel|block|i?q\d-(?:[0k](?:-[sml])?|\d)|(?:int|fp|nvfp|mxfp|bf|q)\d+\w*|w\d+a\d+|\d+bit|bnb|g?128g?|v0\.\d+|\d{4}|tensor|modelopt)$"
)
"""What names a tuning or a number format; versions from 1 on name another model, as deepseek-v3 and -v3.2 do."""
_PARTING = re.compile(r"[-_: ]+")
_PREFIX = re.compile(r"^(?:meta-|unsloth-|nvidia-)")
_SAME_SHAPE = {
    "deepseek-v3.1": "deepseek-v3",
    "deepseek-v3.1-terminus": "deepseek-v3",
    "deepseek-v3.2-exp": "deepseek-v3.2",
    "deepseek-v3.2-speciale": "deepseek-v3.2",
    "kimi-k2.6": "kimi-k2.5",
    "kimi-k2.7-code": "kimi-k2.5",
    "minimax-m2.1": "minimax-m2",
    "minimax-m2.5": "minimax-m2",
    "mistral-small-3.1-24b": "mistral-small-24b",
    "qwen3-coder-30b-a3b": "qwen3-30b-a3b",
    "deepseek-r1-distill-llama-8b": "llama-3.1-8b",
    "deepseek-r1-distill-llama-70b": "llama-3.3-70b",
    "deepseek-r1-distill-qwen-7b": "qwen2.5-7b",
    "deepseek-r1-distill-qwen-14b": "qwen2.5-14b",
    "deepseek-r1-distill-qwen-32b": "qwen2.5-32b",
    "hermes-3-llama-3.1-8b": "llama-3.1-8b",
    "hermes-3-llama-3.1-70b": "llama-3.1-70b",
    "hermes-3-llama-3.1-405b": "llama-3.1-405b",
    "qwen2.5-coder-7b": "qwen2.5-7b",
    "qwen2.5-coder-14b": "qwen2.5-14b",
    "qwen2.5-coder-32b": "qwen2.5-32b",
    "qwq-32b": "qwen2.5-32b",
}
"""Weights tuned from another model, by name without tuning and format -> profile of their shape (config.json)."""


@dataclass(frozen=True, slots=True)
class NamedModel:
    """What a name of weights stands for.

    Attributes:
        model: What the `model` key of a scenario says: a profile or the path of a configuration.
        quantization: Format that the weights are stored in, by the profile or by the name; None: that of the profile.
        is_exact: Whether the profile is of this very repository.
    """

    model: str
    quantization: str | None
    is_exact: bool


def find_model(name: str, file: object) -> NamedModel:
    """Return the profile for a repository, a file or a folder.

    A repository is looked for among the profiles' own, then without what names a tuning or a number format, then as
    the beginning of one profile's name: ``Mistral-Small``. Blanks, colons and underscores are read as hyphens. A
    local folder with a ``config.json`` is taken as it is.

    Args:
        name: The repository or path.
        file: Where it was named, for the error.

    Raises:
        ScenarioError: Nothing is near enough; names the nearest and the option that says it.
    """
    if _is_checkpoint(name):
        path = Path(name).expanduser()
        return NamedModel(str(path), stored_format(name), is_exact=True)
    models = {each: load_model(each) for each in catalog.names("model")}
    repositories = {each: model.huggingface_id for each, model in models.items()}
    for profile, model in models.items():
        if name.lower() == profile:
            return NamedModel(profile, None, is_exact=True)
        of_name = next((each for each in model.checkpoints if (each.repository or "").lower() == name.lower()), None)
        if of_name is not None:
            return NamedModel(profile, None if of_name is model.stored else of_name.format, is_exact=True)
    loosely = next((profile for profile in models if _letters(profile) == _letters(name)), None)
    if loosely is not None:
        return NamedModel(loosely, None, is_exact=True)
    wanted = _plain(name)
    if wanted in _SAME_SHAPE:
        return NamedModel(_SAME_SHAPE[wanted], stored_format(name), is_exact=False)
    for profile, repository in repositories.items():
        # A tag of Ollama parts the size by a colon alone: ``llama3.1:8b-instruct-q4_K_M``.
        if _letters(wanted) in (_letters(_plain(profile)), _letters(_plain(repository or profile))):
            return NamedModel(profile, stored_format(name), is_exact=False)
    begun = [profile for profile in models if profile.startswith(f"{wanted.replace(' ', '-')}-")]
    if len(begun) == 1:
        return NamedModel(begun[0], stored_format(name), is_exact=False)
    raise ScenarioError(
        "is no model that has a profile",
        file=file,
        key="model",
        value=name,
        remedy=f"say which with --model, a profile or a config.json; {_nearest(wanted, list(repositories))}",
    )


def _is_checkpoint(name: str) -> bool:
    """Return whether a name is a folder with a ``config.json``; what can be no path is none."""
    try:
        return (Path(name).expanduser() / "config.json").is_file()
    except (OSError, ValueError, RuntimeError):
        return False


def _nearest(wanted: str, profiles: list[str]) -> str:
    remedy = nearest(wanted, profiles)
    return remedy if remedy.startswith("did you mean") else "simserve models lists them"


def stored_format(name: str) -> str | None:
    """Return the number format that a name of weights tells of; None: none."""
    last = name.rstrip("/").rsplit("/", 1)[-1].lower()
    return next((quantization for part, quantization in _FORMATS if part in last), None)


def _letters(name: str) -> str:
    """Return a name without what parts its words: ``llama 3.3:70b`` and ``llama-3.3-70b`` are one."""
    return _PARTING.sub("", name.lower())


def format_named(text: str) -> str:
    """Return the number format that a short name stands for: ``awq`` is awq-int4; what is none stays as it is."""
    return {part: known for part, known in _FORMATS if part not in _OF_THEMSELVES}.get(text.lower(), text)


def _plain(name: str) -> str:
    """Return a name without owner, tuning and number format: ``org/Meta-Llama-3.1-8B-Instruct-FP8`` is llama-3.1-8b."""
    plain = _PREFIX.sub("", name.rstrip("/").rsplit("/", 1)[-1].lower().removesuffix(".gguf")).replace("_", "-")
    while (shorter := _SUFFIX.sub("", plain)) != plain:
        plain = shorter
    return plain
