"""The page of models says what the code counts."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from docs import write_models
from simserve.profiles import catalog
from simserve.profiles.catalog import load_model
from simserve.profiles.model import ModelProfile
from tests.profiles.test_model import ROUNDING, STORED_BESIDE

_DOCS = Path(__file__).resolve().parents[1] / "docs"


CONFIGS = sorted(path for path in write_models.CONFIGS.glob("*_config.json") if "hf_quant" not in path.name)


def test_the_catalogue_on_the_page_is_the_catalogue() -> None:
    """Written anew with: python docs/write_models.py."""
    lines = (_DOCS / "models.md").read_text().splitlines()
    start = lines.index(write_models.CATALOGUE)

    assert lines[start : lines.index(write_models.CONFIGURATIONS) - 1] == write_models.catalogue_lines()


@pytest.mark.slow
@pytest.mark.skipif(not CONFIGS, reason="../shared/data is not here")
def test_the_configurations_on_the_page_are_those_that_are_read() -> None:
    """Written anew with: python docs/write_models.py."""
    assert (_DOCS / "models.md").read_text() == write_models.page()


@cache
def known() -> dict[int, ModelProfile]:
    """Return the models of the catalogue by their number of parameters."""
    return {load_model(name).num_parameters: load_model(name) for name in catalog.names("model")}


@pytest.mark.parametrize("path", CONFIGS, ids=[path.name.removesuffix("_config.json") for path in CONFIGS])
def test_a_configuration_has_the_published_size(path: Path) -> None:
    """Text parameters within 1 % of what the publisher states of the language model, vision tower apart."""
    model = load_model(str(path))
    size, same = write_models.published(model, known()), known().get(model.num_parameters)

    assert size is not None
    name = "" if same is None else same.name
    assert model.num_parameters + STORED_BESIDE.get(name, 0) == pytest.approx(size, rel=ROUNDING.get(name, 0.01))
