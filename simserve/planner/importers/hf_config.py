"""Turns a Hugging Face ``config.json`` into the YAML of a model profile."""

from __future__ import annotations

import re
from pathlib import Path

from simserve.documents import yaml_text
from simserve.errors import ProfileError
from simserve.profiles.catalog import load_model
from simserve.profiles.model import ModelProfile

_WIDTH = 110


def import_hf_config(path: Path, name: str | None = None) -> tuple[ModelProfile, str]:
    """Return the profile of a configuration, and its YAML text.

    Args:
        path: The ``config.json``, or the folder that holds it.
        name: Name of the profile, which is also that of its file; None: derived from the model's name.

    Raises:
        ProfileError: There is no such file, or simserve has no formula for the architecture.
    """
    if not path.exists():
        raise ProfileError("no such file", file=path)
    if path.is_file() and path.suffix != ".json":
        raise ProfileError("is not a config.json", file=path)
    read = load_model(str(path) if path.is_absolute() else f"./{path}")  # not the name of a repository
    named = read.model_copy(update={"name": name or re.sub(r"[^a-z0-9._-]+", "-", read.name.lower()).strip("-")})
    document = {"name": named.name, **named.model_dump(mode="json", exclude_defaults=True)}
    count = f"{named.num_parameters / 1e9:.4g} B parameters"
    active = "" if named.moe is None else f", {named.num_active_parameters / 1e9:.4g} B of them used by a token"
    comment = f"# {count}{active}, by the architecture.\n"
    return named, comment + yaml_text(document, default_flow_style=None, width=_WIDTH)
