"""Recordings by the rules of their models: tokens, positions and pairs against what the models' processors say."""

from __future__ import annotations

import pytest

from simserve.errors import ProfileError
from simserve.profiles.catalog import load_model
from simserve.profiles.encoders import AudioTower
from simserve.profiles.hf_config import from_hf_config
from simserve.validation import validate

LAYERS = {"num_hidden_layers": 32, "hidden_size": 1280, "num_attention_heads": 20, "intermediate_size": 5120}
WHISPER = {"source": "Whisper", "stride": 2, "window_frames": 3000, "is_padded": True, **LAYERS}


def tower(name: str) -> AudioTower:
    """Return the audio encoder of a catalogue model."""
    found = load_model(name).audio
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("seconds", "tokens"), [(1.0, 13), (2.0, 26), (30.0, 390), (0.01, 1), (0.99, 13), (1.09, 15), (60.0, 780)]
)
def test_qwen3_makes_thirteen_tokens_a_second(seconds: float, tokens: int) -> None:
    """100 frames become 13 positions, what is left over an eighth, rounded up: the model's own formula."""
    frames = round(100 * seconds)
    left = (frames % 100 - 1) // 2 + 1
    by_formula = ((left - 1) // 2 + 1 - 1) // 2 + 1 + frames // 100 * 13

    assert tower("qwen3-omni-30b-a3b").recording(seconds).tokens == tokens == by_formula


def test_qwen3_attends_within_eight_seconds() -> None:
    """Of 20 s two windows of 104 positions and one of 52."""
    assert tower("qwen3-omni-30b-a3b").recording(20.0) == (260, 260, 2 * 104**2 + 52**2)


@pytest.mark.parametrize(("seconds", "windows"), [(0.5, 1), (30.0, 1), (30.01, 2), (90.0, 3)])
def test_voxtral_fills_recordings_to_thirty_seconds(seconds: float, windows: int) -> None:
    """375 tokens each, of 1,500 positions."""
    assert tower("voxtral-small-24b").recording(seconds) == (375 * windows, 1500 * windows, windows * 1500**2)


@pytest.mark.parametrize(("seconds", "tokens"), [(1.0, 25), (10.0, 250), (30.0, 750), (100.0, 750)])
def test_qwen2_audio_encodes_thirty_seconds_and_keeps_what_was_said(seconds: float, tokens: int) -> None:
    """25 tokens a second; what is longer is cut."""
    audio = validate(AudioTower, {**WHISPER, "max_frames": 3000, "positions_per_token": 2})

    assert audio.recording(seconds) == (tokens, 1500, 1500**2)


def test_silence_that_is_kept_must_be_there() -> None:
    """A rule that contradicts itself is refused."""
    with pytest.raises(ProfileError, match="keeps_padding needs is_padded"):
        validate(
            AudioTower,
            {**WHISPER, "is_padded": False, "keeps_padding": True, "positions_per_token": 4},
            error=ProfileError,
        )


TEXT = {
    "model_type": "llama",
    "hidden_size": 3072,
    "num_hidden_layers": 30,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 8192,
    "vocab_size": 131072,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}


@pytest.mark.parametrize(
    ("block", "tokens"),
    [
        ({"model_type": "voxtral_encoder"}, 375),
        ({"model_type": "qwen2_audio_encoder", "d_model": 1280, "encoder_layers": 32}, 175),
        ({"model_type": "qwen2_5_omni_audio_encoder", "n_window": 100}, 175),
        ({"model_type": "qwen3_omni_moe_audio_encoder"}, 91),
    ],
)
def test_encoders_are_read_from_the_config(block: dict[str, object], tokens: int) -> None:
    """Of 7 s: the rule follows from its kind, the layers from the file."""
    config = {"architectures": ["VoxtralForConditionalGeneration"], "model_type": "voxtral"}
    found = from_hf_config(config | {"text_config": TEXT, "audio_config": block}).audio

    assert found is not None
    assert found.recording(7.0).tokens == tokens
    assert found.num_parameters == 32 * (4 * 1280**2 + 2 * 1280 * 5120)
    alike = "qwen3-omni-30b-a3b" if block["model_type"] == "qwen3_omni_moe_audio_encoder" else "voxtral-mini-3b"
    assert found.convolutions == tower(alike).convolutions


def test_qwen3_omni_is_read_whole() -> None:
    """Its thinker's text, vision tower and audio encoder are those of the catalogue."""
    text = {
        "model_type": "qwen3_omni_moe_text",
        "hidden_size": 2048,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "intermediate_size": 768,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "vocab_size": 152064,
        "max_position_embeddings": 65536,
        "tie_word_embeddings": False,
    }
    vision = {
        "model_type": "qwen3_omni_moe_vision_encoder",
        "patch_size": 16,
        "spatial_merge_size": 2,
        "depth": 27,
        "hidden_size": 1152,
        "num_heads": 16,
        "intermediate_size": 4304,
        "deepstack_visual_indexes": [8, 16, 24],
    }
    audio = {"model_type": "qwen3_omni_moe_audio_encoder", "n_window": 50, "n_window_infer": 800}
    thinker = {"text_config": text, "vision_config": vision, "audio_config": audio}
    config = {"architectures": ["Qwen3OmniMoeForConditionalGeneration"], "model_type": "qwen3_omni_moe"}

    found, kept = from_hf_config(config | {"thinker_config": thinker}), load_model("qwen3-omni-30b-a3b")
    assert found.num_parameters == kept.num_parameters
    assert found.vision is not None
    assert found.audio is not None
    assert found.vision.num_mergers == 4
    for name in ("stride", "conv_frames", "window_frames", "is_padded", "positions_per_token", "convolutions"):
        assert getattr(found.audio, name) == getattr(kept.audio, name)


def test_a_model_with_an_unknown_encoder_hears_nothing() -> None:
    """What nobody has described is left out, not guessed."""
    config = {"architectures": ["VoxtralForConditionalGeneration"], "model_type": "voxtral"}
    found = from_hf_config(config | {"text_config": TEXT, "audio_config": {"model_type": "conformer"}})

    assert found.audio is None
