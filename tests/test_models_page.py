"""The page of models says what the code counts."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from simserve.profiles import catalog
from simserve.profiles.catalog import load_model
from simserve.profiles.model import ModelProfile
from tests.profiles.test_model import ROUNDING, STORED_BESIDE

_DOCS = Path(__file__).resolve().parents[1] / "docs"


def writer() -> ModuleType:
    """Return the module that writes the page."""
    spec = importlib.util.spec_from_file_location("write_models", _DOCS / "write_models.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


WRITER = writer()
CONFIGS = sorted(path for path in WRITER.CONFIGS.glob("*_config.json") if "hf_quant" not in path.name)


def test_the_catalogue_on_the_page_is_the_catalogue() -> None:
    """Written anew with: python docs/write_models.py."""
    lines = (_DOCS / "models.md").read_text().splitlines()
    start = lines.index(WRITER.CATALOGUE)

    assert lines[start : lines.index(WRITER.CONFIGURATIONS) - 1] == WRITER.catalogue_lines()


@pytest.mark.slow
@pytest.mark.skipif(not CONFIGS, reason="../shared/data is not here")
def test_the_configurations_on_the_page_are_those_that_are_read() -> None:
    """Written anew with: python docs/write_models.py."""
    assert (_DOCS / "models.md").read_text() == WRITER.page()


@cache
def known() -> dict[int, ModelProfile]:
    """Return the models of the catalogue by their number of parameters."""
    return {load_model(name).num_parameters: load_model(name) for name in catalog.names("model")}


@pytest.mark.parametrize("path", CONFIGS, ids=[path.name.removesuffix("_config.json") for path in CONFIGS])
def test_a_configuration_has_the_published_size(path: Path) -> None:
    """Text parameters within 1 % of what the publisher states of the language model, vision tower apart."""
    model = load_model(str(path))
    size, same = WRITER.published(model, known()), known().get(model.num_parameters)

    assert size is not None
    name = "" if same is None else same.name
    assert model.num_parameters + STORED_BESIDE.get(name, 0) == pytest.approx(size, rel=ROUNDING.get(name, 0.01))
