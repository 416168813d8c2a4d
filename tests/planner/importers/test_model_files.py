"""A model that is said by a file (its config.json, or a profile of one's own) or by a tag."""

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


@pytest.mark.parametrize(
    ("tag", "model"),
    [
        ("deepseek-r1:7b", "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B"),
        ("deepseek-r1:8b", "deepseek-ai/DeepSeek-R1-0528-Qwen3-8B"),
        ("deepseek-r1:8b-llama-distill-q4_K_M", "deepseek-ai/DeepSeek-R1-Distill-Llama-8B"),
        ("deepseek-r1:14b", "deepseek-ai/DeepSeek-R1-Distill-Qwen-14B"),
        ("deepseek-r1:32b", "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B"),
        ("deepseek-r1:70b", "deepseek-ai/DeepSeek-R1-Distill-Llama-70B"),
        ("deepseek-r1:671b", "deepseek-r1"),
        ("qwen3.8:27b", "Qwen/Qwen3.8-27B"),
    ],
)
def test_tags_of_ollama_name_tuned_models(tag: str, model: str) -> None:
    """What was distilled from a model is not that model."""
    assert find_model(tag, "command").model == model
