"""What a published `config.json` has to give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simserve.profiles.catalog import load_model
from simserve.profiles.hf_config import from_hf_config
from tests.profiles.test_models_of_2026 import NOT_ARCHITECTURE


def assert_bundled(config: Mapping[str, Any], name: str) -> None:
    """Assert that a configuration gives a bundled profile in every field of the architecture.

    The sources of a tower's figures are words, as is the name of the family.
    """
    found, bundled = (
        model.model_dump(exclude={*NOT_ARCHITECTURE, "family"}) for model in (from_hf_config(config), load_model(name))
    )

    for each in (found, bundled):
        each["vision"] = {key: value for key, value in (each["vision"] or {}).items() if key != "source"}
    assert found == bundled
