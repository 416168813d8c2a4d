"""The reader of the models that releases have code for: from which version to which, in either engine's way."""

from __future__ import annotations

from pathlib import Path

from calibration.engine_models import model_code

_VLLM = """
_TEXT_MODELS = {names}
_PREVIOUSLY_SUPPORTED_MODELS = {gone}
"""


def _release(folder: Path, file: str, text: str) -> Path:
    place = folder / file
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    return folder


def test_versions_of_vllm_are_read_from_its_registry(tmp_path: Path) -> None:
    """What is new, what was removed and says so; what is only called otherwise since says nothing."""
    registries = {
        "0.9.0": (["OldForCausalLM", "GoneForCausalLM"], []),
        "0.10.0": (["OldForCausalLM", "GoneForCausalLM", "NewForCausalLM", "RenamedForCausalLM", "NewMTP"], []),
        "0.11.0": (["OldForCausalLM", "NewForCausalLM"], ["GoneForCausalLM"]),
    }
    folders = {
        version: _release(
            tmp_path / version,
            "vllm/model_executor/models/registry.py",
            _VLLM.format(names={name: ("module", name) for name in names}, gone=dict.fromkeys(gone, "0.10")),
        )
        for version, (names, gone) in registries.items()
    }

    assert model_code("vllm", folders, "0") == [
        {"since": "0", "until": "0.11", "architectures": ["GoneForCausalLM"]},
        {"since": "0.10", "until": None, "architectures": ["NewForCausalLM"]},
    ]


def test_post_releases_of_sglang_count_as_what_they_mend(tmp_path: Path) -> None:
    """A class that came with 0.5.3.post1 runs from 0.5.3 on: the number that a user names."""
    text = {
        "0.5.2": "EntryClass = OldForCausalLM",
        "0.5.3": "EntryClass = OldForCausalLM",
        "0.5.3.post1": "EntryClass = [OldForCausalLM, NewForCausalLM]",
    }
    folders = {key: _release(tmp_path / key, "sglang/srt/models/new.py", value) for key, value in text.items()}

    assert model_code("sglang", folders, "0") == [
        {"since": "0.5.3", "until": None, "architectures": ["NewForCausalLM"]}
    ]


def test_versions_of_lmdeploy_are_read_from_the_list_of_turbomind(tmp_path: Path) -> None:
    """What it says it does not run is no class of it; what the oldest release has is named where that is asked for."""
    lists = {
        "0.3.0": "_SUPPORTED_ARCHS = dict(LlamaForCausalLM=True, MistralForCausalLM=False)",
        "0.5.0": "SUPPORTED_ARCHS = dict(LlamaForCausalLM='llama', MistralForCausalLM='llama', Qwen3MTP='qwen')",
    }
    folders = {
        version: _release(tmp_path / version, "lmdeploy/turbomind/supported_models.py", text)
        for version, text in lists.items()
    }
    newer = {"since": "0.5", "until": None, "architectures": ["MistralForCausalLM"]}

    assert model_code("lmdeploy", folders, "0.3") == [newer]
    assert model_code("lmdeploy", folders, "0.3", keeps_oldest=True) == [
        {"since": "0", "until": None, "architectures": ["LlamaForCausalLM"]},
        newer,
    ]
