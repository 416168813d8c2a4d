"""From the name of published weights to the model profile of their architecture, and the format they are stored in."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from simserve.errors import ScenarioError, nearest
from simserve.profiles.catalog import catalogue_models, is_repository, load_model, profile_named_like
from simserve.profiles.model_names import (
    distilled,
    layers_without_formula,
    letters,
    plain_name,
    repository_of_context,
    stored_format,
    tuned_from,
)

_FILES = (".json", ".yaml", ".yml")
"""Ends of the names of files that describe a model."""


@dataclass(frozen=True, slots=True)
class NamedModel:
    """What a name of weights stands for.

    Attributes:
        model: What the `model` key of a scenario says: a profile, a repository or the path of a configuration.
        quantization: Format that the weights are stored in, by the name; None: that of ``model``.
        is_exact: Whether a profile is of these very weights.
    """

    model: str
    quantization: str | None
    is_exact: bool

    def assumption(self, name: str) -> str:
        """Return what is taken of weights that are on record by their architecture alone.

        Args:
            name: How they were named.
        """
        model = load_model(self.model)
        return model.assumption or f"{name} is taken to have the architecture of {model.name}, by its name"


def find_model(name: str, file: object) -> NamedModel:
    """Return what a repository, a file or a folder stands for.

    A name is looked for among the profiles, a repository among those of their checkpoints; then what it is like is
    taken (`profile_named_like`), and a repository stays itself. Blanks, colons and underscores are read as hyphens. A
    local folder with a ``config.json``, that file or a profile of one's own is taken as it is.

    Args:
        name: The repository or path.
        file: Where it was named, for the error.

    Raises:
        ScenarioError: Nothing is near enough; names the nearest and the option that says it.
    """
    if _is_checkpoint(name):
        path = Path(name).expanduser()
        return NamedModel(str(path), stored_format(name), is_exact=True)
    if name.endswith(_FILES) and _is_file(Path(name)):
        return NamedModel(str(Path(name).expanduser()), None, is_exact=True)
    if (repository := distilled(name)) is not None:
        return replace(find_model(repository, file), quantization=stored_format(name), is_exact=False)
    models = catalogue_models()
    for profile, model in models.items():
        published = (*model.checkpoints, *model.tuned_checkpoints)
        repositories = {(each.repository or "").lower(): each.repository for each in published}
        if name.lower() in (profile, (model.huggingface_id or "").lower()):
            return NamedModel(profile, None, is_exact=True)
        if "/" in name and name.lower() in repositories:
            return NamedModel(str(repositories[name.lower()]), None, is_exact=True)
    loosely = next((profile for profile in models if letters(profile) == letters(name)), None)
    if loosely is not None:
        return NamedModel(loosely, None, is_exact=True)
    like, tuned = profile_named_like(name), tuned_from(name)
    if like is not None and is_repository(name):
        return NamedModel(name, None, is_exact=not load_model(name).is_named_like)
    known = repository_of_context(name) or (None if tuned is None else tuned[0])
    if like is not None:
        return NamedModel(known or like, stored_format(name), is_exact=False)
    layers = layers_without_formula(name)
    if layers is not None:
        raise ScenarioError(layers, file=file, key="model", value=name, remedy="simserve models lists those it has")
    raise ScenarioError(
        "is no model that has a profile",
        file=file,
        key="model",
        value=name,
        remedy=f"say which with --model, a profile or a config.json; {_nearest(plain_name(name), list(models))}",
    )


def _is_checkpoint(name: str) -> bool:
    """Return whether a name is a folder with a ``config.json``."""
    return _is_file(Path(name) / "config.json")


def _is_file(path: Path) -> bool:
    """Return whether there is such a file; what can be no path is none."""
    try:
        return path.expanduser().is_file()
    except (OSError, ValueError, RuntimeError):
        return False


def _nearest(wanted: str, profiles: list[str]) -> str:
    remedy = nearest(wanted, profiles)
    return remedy if remedy.startswith("did you mean") else "simserve models lists them"
