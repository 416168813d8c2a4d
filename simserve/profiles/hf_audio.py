"""The audio encoder that a Hugging Face ``config.json`` describes beside the language model. Knows no recordings."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from simserve.profiles.hf_reader import ConfigReader

WHISPER_FRAMES = 3000
"""Frames of Whisper's window of 30 s; its two convolutions make half as many positions (``max_source_positions``)."""
QWEN3_CONV_STRIDE = 8
"""Three convolutions of stride 2 (``Qwen3OmniMoeAudioEncoder`` of huggingface/transformers)."""
VOXTRAL_POSITIONS = 4
"""Positions that ``VoxtralMultiModalProjector`` of huggingface/transformers takes side by side."""


def audio_tower(reader: ConfigReader) -> dict[str, Any] | None:
    """Return the fields of `simserve.profiles.audio.AudioTower`; None without an encoder, or of an unknown kind.

    Args:
        reader: The language model's fields, over those of the whole.

    Raises:
        ProfileError: A size of the encoder is missing or has a wrong type.
    """
    block = reader.mapping("audio_config")
    if not block:
        return None
    kind = _ENCODERS.get(str(block.get("model_type") or ""))
    return None if kind is None else kind(ConfigReader(block, reader.file))


def _qwen3(encoder: ConfigReader) -> dict[str, Any]:
    """Return Qwen3-Omni's: convolutions over ``2 n_window`` frames at a time, attention in windows of 8 s."""
    return {
        "source": "audio_config of the file",
        "stride": QWEN3_CONV_STRIDE,
        "conv_frames": 2 * encoder.integer("n_window", default=50),
        "window_frames": encoder.integer("n_window_infer", default=800),
        "is_padded": False,
        "positions_per_token": 1,
        **_sizes(encoder),
        "convolutions": _in_two_dimensions(encoder),
    }


def _qwen25(encoder: ConfigReader) -> dict[str, Any]:
    """Return Qwen2.5-Omni's: Whisper's layers, attention within ``2 n_window`` frames, two positions a token."""
    return {
        "source": "audio_config of the file",
        "stride": 2,
        "window_frames": 2 * encoder.integer("n_window", default=100),
        "is_padded": False,
        "positions_per_token": 2,
        **_sizes(encoder),
        "convolutions": _in_one_dimension(encoder),
    }


def _qwen2(encoder: ConfigReader) -> dict[str, Any]:
    """Return Qwen2-Audio's: one window of 30 s, encoded whole, of which the tokens of what was said are kept."""
    return {
        "source": "audio_config of the file",
        "stride": 2,
        "window_frames": WHISPER_FRAMES,
        "is_padded": True,
        "max_frames": WHISPER_FRAMES,
        "positions_per_token": 2,
        **_sizes(encoder),
        "convolutions": _in_one_dimension(encoder),
    }


def _voxtral(encoder: ConfigReader) -> dict[str, Any]:
    """Return Voxtral's: as many windows of 30 s as it takes, each of which is 375 tokens."""
    return {
        "source": "audio_config of the file",
        "stride": 2,
        "window_frames": WHISPER_FRAMES,
        "is_padded": True,
        "keeps_padding": True,
        "positions_per_token": VOXTRAL_POSITIONS,
        **_sizes(encoder),
        "convolutions": _in_one_dimension(encoder),
    }


def _in_two_dimensions(encoder: ConfigReader) -> list[dict[str, Any]]:
    """Return Qwen3-Omni's: three of 3 x 3 and stride 2 over time and frequency, then a product to the layers' width."""
    frames, bins = 2 * encoder.integer("n_window", default=50), encoder.integer("num_mel_bins", default=128)
    channels, width = encoder.integer("downsample_hidden_size", default=480), _sizes(encoder)["hidden_size"]
    rows, inputs = [], 1
    for _ in range(3):
        frames, bins = math.ceil(frames / 2), math.ceil(bins / 2)
        rows.append((frames * bins, 9 * inputs, channels))
        inputs = channels
    rows.append((frames, bins * channels, width))
    return [
        {"outputs_per_position": float(f"{places / frames:.6g}"), "inputs": taken, "channels": made}
        for places, taken, made in rows
    ]


def _in_one_dimension(encoder: ConfigReader) -> list[dict[str, Any]]:
    """Return Whisper's: two of 3 frames, of which the second has stride 2."""
    bins, width = encoder.integer("num_mel_bins", default=128), _sizes(encoder)["hidden_size"]
    return [
        {"outputs_per_position": 2.0, "inputs": 3 * bins, "channels": width},
        {"outputs_per_position": 1.0, "inputs": 3 * width, "channels": width},
    ]


def _sizes(encoder: ConfigReader) -> dict[str, Any]:
    """Return the sizes of the layers, of Whisper's large encoder where the file leaves one out."""
    return {
        "num_hidden_layers": encoder.integer("encoder_layers", "num_hidden_layers", default=32),
        "hidden_size": encoder.integer("d_model", "hidden_size", default=1280),
        "num_attention_heads": encoder.integer("encoder_attention_heads", "num_attention_heads", default=20),
        "intermediate_size": encoder.integer("encoder_ffn_dim", "intermediate_size", default=5120),
    }


_ENCODERS: Mapping[str, Callable[[ConfigReader], dict[str, Any]]] = {
    "qwen3_omni_moe_audio_encoder": _qwen3,
    "qwen2_5_omni_audio_encoder": _qwen25,
    "qwen2_audio_encoder": _qwen2,
    "voxtral_encoder": _voxtral,
}
"""``model_type`` of the encoder -> its reader."""
