"""Finding and reading a model: a bundled profile, a profile file, or a Hugging Face ``config.json``.

What a model is stands in `simserve.profiles.architecture`; this module only loads one.
"""

from __future__ import annotations

import os
from pathlib import Path

from simserve import documents
from simserve.errors import ProfileError
from simserve.profiles import catalog
from simserve.profiles.architecture import ModelProfile
from simserve.profiles.attention_layers import AttentionLayers
from simserve.profiles.model_blocks import LatentAttention, LinearAttention, Mamba2, MixtureOfExperts, SparseIndexer
from simserve.profiles.model_shapes import Gemm
from simserve.validation import validate

__all__ = [
    "AttentionLayers",
    "Gemm",
    "LatentAttention",
    "LinearAttention",
    "Mamba2",
    "MixtureOfExperts",
    "ModelProfile",
    "SparseIndexer",
    "load_model",
]

_CONFIG_NAME = "config.json"


def load_model(name: str, relative_to: Path | None = None) -> ModelProfile:
    """Return a model.

    Args:
        name: A catalogue name (``llama-3.1-8b``), the path of a profile, the path of a Hugging Face
            ``config.json``, or of the folder that holds one.
        relative_to: Folder that a relative path is tried against first, then the working folder.

    Raises:
        ProfileError: There is no such model, or its file is invalid; names the file, the key and the rule.
    """
    path = _config_in_folder(name, relative_to) or catalog.find("model", name, relative_to)
    profile = _read(path)
    if path.suffix != ".json" and path.stem == name and profile.name != name:
        raise ProfileError("must be the name of its file", file=path, key="name", value=profile.name)
    return profile


@catalog.remembered
def _read(path: Path) -> ModelProfile:
    mapping = documents.read_mapping(path, ProfileError)
    if path.suffix == ".json":
        from simserve.profiles.hf_config import from_hf_config

        return from_hf_config(mapping, path)
    return validate(ModelProfile, mapping, file=path, error=ProfileError)


def _config_in_folder(name: str, relative_to: Path | None) -> Path | None:
    """Return the ``config.json`` of the folder ``name``; a catalogue name wins over a folder of that name."""
    if catalog.has("model", name):
        return None
    folder = Path(name).expanduser()
    candidates = [folder] if folder.is_absolute() or relative_to is None else [relative_to / folder, folder]
    for candidate in candidates:
        if os.path.isdir(candidate):
            if os.path.isfile(candidate / _CONFIG_NAME):
                return candidate / _CONFIG_NAME
            raise ProfileError(f"is a folder without a {_CONFIG_NAME}", file=candidate)
    return None
