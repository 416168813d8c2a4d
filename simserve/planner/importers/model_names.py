"""Finds the model profile and the stored format of published weights by their name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from simserve.errors import ScenarioError, nearest
from simserve.planner.importers.pasted import is_file
from simserve.profiles.catalog import (
    catalogue_models,
    is_repository,
    load_model,
    profile_named_like,
    similar_model,
    tuned_of_family,
)
from simserve.profiles.model_names import (
    distilled,
    layers_without_formula,
    letters,
    plain_name,
    repository_of_context,
    stored_format,
    tuned_from,
)

_FILES = (".json", ".yaml", ".yml")  # Endings of the names of files that describe a model.


@dataclass(frozen=True, slots=True)
class NamedModel:
    """What a name of weights stands for."""

    model: str  # Value for the `model` key of a scenario: a profile, a repository or the path of a configuration.
    quantization: str | None  # Format of the stored weights, from the name; None: that of ``model``.
    is_exact: bool  # Whether there is a profile of exactly these weights.

    def assumption(self, name: str) -> str:
        """Return the assumption made for weights of which only the architecture is known."""
        model = load_model(self.model)
        return model.assumption or f"{name} is taken to have the architecture of {model.name}, by its name"


def find_model(name: str, file: object) -> NamedModel:
    """Return what a repository, a file or a folder stands for.

    A name is looked up among the profiles, a repository among those of their checkpoints. Otherwise the profile with
    the most similar name is used (`profile_named_like`); a repository is kept as it is. Blanks, colons and underscores
    are read as hyphens. A local folder with a ``config.json``, that file or the user's own profile is used unchanged.

    Raises:
        ScenarioError: No profile is similar enough; names the most similar one, and the option that sets it.
    """
    if is_file(f"{name}/config.json"):
        path = Path(name).expanduser()
        return NamedModel(str(path), stored_format(name), is_exact=True)
    if name.endswith(_FILES) and is_file(name):
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
        raise ScenarioError(layers, file=file, key="model", value=name, remedy=similar_model(name))
    close = nearest(plain_name(name), tuned_of_family(name) or list(models))
    close = close if close.startswith("did you mean") else "simserve models lists them"
    remedy = f"say which with --model, a profile or a config.json; {close}"
    raise ScenarioError("is no model that has a profile", file=file, key="model", value=name, remedy=remedy)
