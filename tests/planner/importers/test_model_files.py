"""A model that is said by a file (its config.json, or a profile of one's own) or by a tag."""

from pathlib import Path

import pytest

from simserve.errors import ScenarioError
from simserve.planner.importers.model_names import find_model
from simserve.profiles import catalog, model_names

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


@pytest.mark.parametrize(
    ("tag", "model", "quantization"),
    [
        ("deepseek-v4-flash:0731", "deepseek-v4-flash", None),
        ("deepseek-v3.2:cloud", "deepseek-v3.2", None),
        ("nemotron-3-nano:30b", "nemotron-3-nano-30b-a3b", None),
        ("phi4:14b", "phi-4", None),
        ("llama3.3", "llama-3.3-70b", None),
        ("qwen3-coder:30b", "Qwen/Qwen3-Coder-30B-A3B-Instruct", None),
        ("muse-spark-open:816b", "muse-spark-open-816b-a42b", None),
        ("kolibri-1:q4_k_m", "kolibri-1", "gguf-q4_k_m"),
        ("hf.co/unsloth/Qwen3-32B-GGUF:UD-Q4_K_XL", "qwen3-32b", "gguf-q4_k_m"),
        ("hf.co/bartowski/Llama-3.2-3B-Instruct-GGUF:IQ3_M", "llama-3.2-3b", "gguf-q3_k_m"),
    ],
)
def test_tags_say_size_and_format(tag: str, model: str, quantization: str | None) -> None:
    """A size without the active parameters, a date, and the file behind a colon, as Ollama and llama.cpp take them."""
    found = find_model(tag, "command")

    assert (found.model, found.quantization) == (model, quantization)


def test_a_family_that_only_tuned_weights_have_names_them() -> None:
    """Qwen3.6 has the shapes of Qwen3.5, and the most similar profile would be one of Qwen3."""
    with pytest.raises(ScenarioError, match=r"did you mean 'Qwen/Qwen3\.6-27B' or 'Qwen/Qwen3\.6-35B-A3B'"):
        find_model("qwen3.6", "command")


@pytest.mark.parametrize("tag", ["qwen3.6", "gemma4", "phi4:70b"])
def test_a_tag_that_several_sizes_or_none_have_is_refused(tag: str) -> None:
    """None of them is chosen."""
    with pytest.raises(ScenarioError, match="is no model that has a profile"):
        find_model(tag, "command")


@pytest.mark.parametrize(
    ("name", "layers", "near"),
    [
        ("LiquidAI/LFM3-40B-A4B", "windows beside short convolutions", "lfm2-24b-a2b"),
        ("Zyphra/Zamba2-7B-Instruct", "Mamba-2 beside attention that layers share", "falcon-h1-7b"),
        ("mistral-large-4", "latents that layers share", "mistral-large-3"),
    ],
)
def test_a_model_without_a_formula_names_its_layers_and_the_nearest(name: str, layers: str, near: str) -> None:
    """The nearest in kind and size, which a user may take instead."""
    with pytest.raises(ScenarioError, match=f"{layers}.*the nearest in simserve models is {near}"):
        find_model(name, "command")


def test_every_nearest_model_can_be_simulated() -> None:
    """A remedy names no model that is refused as well."""
    for begin, told in model_names.name_table().without_formula.items():
        assert model_names.layers_without_formula(begin) is not None, begin
        assert told.nearest is None or catalog.has("model", told.nearest), told.nearest
