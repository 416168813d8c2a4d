"""A model that is said by a file: its config.json, or a profile of one's own."""

from pathlib import Path

import pytest

from simserve.errors import ScenarioError
from simserve.planner.importers.model_names import find_model

RECORDED = Path(__file__).resolve().parents[3] / "calibration/runs/vllm-cpu-2026-11-24-scrapes"


def test_a_configuration_is_taken_as_it_is() -> None:
    """As the error about a name that is unknown says; its folder is, too."""
    for path in (RECORDED / "config.json", RECORDED):
        found = find_model(str(path), "command")

        assert found.model == str(path)
        assert found.is_exact


@pytest.mark.parametrize("name", ["missing/config.json", "tiny.yaml", "\0.json", "x" * 5000 + ".json"])
def test_a_file_that_is_none_is_no_model(name: str) -> None:
    """One line, whatever the name."""
    with pytest.raises(ScenarioError, match="is no model that has a profile"):
        find_model(name, "command")
