"""Model profiles out of Hugging Face configurations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simserve.errors import ProfileError
from simserve.planner.importers.hf_config import import_hf_config
from simserve.profiles.catalog import load_model
from simserve.profiles.hf_config import from_hf_config

CONFIG = {
    "model_type": "mixtral",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 100,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "torch_dtype": "bfloat16",
}


def test_the_written_profile_reads_back_as_the_configuration(tmp_path: Path) -> None:
    """Under the name of its file."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")

    profile, text = import_hf_config(tmp_path / "config.json", "tiny")
    (tmp_path / "tiny.yaml").write_text(text, encoding="utf-8")
    read = load_model(str(tmp_path / "tiny.yaml"))
    assert read == profile
    own = from_hf_config(CONFIG, tmp_path / "config.json")
    assert read.model_copy(update={"name": own.name}) == own
    assert text.startswith("# ")
    assert "of them used by a token" in text.splitlines()[0]


def test_a_folder_is_its_config_and_gives_the_name(tmp_path: Path) -> None:
    """In lower case."""
    folder = tmp_path / "Tiny Model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")

    assert import_hf_config(folder)[0].name == "tiny-model"


def test_what_is_no_configuration_is_refused(tmp_path: Path) -> None:
    """Missing, a folder without one, another file."""
    (tmp_path / "model.yaml").write_text("name: x\n", encoding="utf-8")

    with pytest.raises(ProfileError, match="no such file"):
        import_hf_config(tmp_path / "none.json")
    with pytest.raises(ProfileError, match=r"is a folder without a config\.json"):
        import_hf_config(tmp_path)
    with pytest.raises(ProfileError, match=r"is not a config\.json"):
        import_hf_config(tmp_path / "model.yaml")
