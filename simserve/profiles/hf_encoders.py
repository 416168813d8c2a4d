"""The vision tower and the audio encoder that a Hugging Face ``config.json`` describes. Knows no requests.

Limits of an image's size are in a processor's file, which is not read: the family's published processors are used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from simserve.profiles.hf_reader import ConfigReader

QWEN3_MIN_PIXELS, QWEN3_MAX_PIXELS = 65_536, 16_777_216
"""``shortest_edge`` and ``longest_edge`` of the preprocessor_config.json of Qwen/Qwen3-VL-32B-Instruct and
Qwen/Qwen3.5-35B-A3B on huggingface.co."""
QWEN3_FRAMES, QWEN3_MIN_VIDEO_PIXELS, QWEN3_MAX_VIDEO_PIXELS = 2, 4_096, 25_165_824
"""``temporal_patch_size``, ``shortest_edge`` and ``longest_edge`` of the video_preprocessor_config.json of Qwen3-VL and
Qwen3.5 (copies of Qwen3-VL-8B-Instruct, Qwen3-VL-4B-Instruct and Qwen3.5-9B on huggingface.co)."""
QWEN2_5_MIN_PIXELS, QWEN2_5_MAX_PIXELS = 3_136, 12_845_056
"""``min_pixels`` and ``max_pixels`` of the preprocessor_config.json of Qwen/Qwen2.5-VL-7B-Instruct (Hugging Face)."""
GLM4V_MIN_PIXELS, GLM4V_MAX_PIXELS = 12_544, 9_633_792
"""``shortest_edge`` and ``longest_edge`` of the preprocessor_config.json of GLM-4.1V-9B-Thinking and GLM-4.6V-Flash
(copies on huggingface.co)."""
MOONVIT_MAX_PATCHES = 4_096
"""``in_token_limit`` of the preprocessor_config.json of MoonViT-SO-400M, the tower of Kimi-VL (a copy on
huggingface.co)."""
MUSE_MAX_TOKENS = 4096  # ``max_image_tokens`` of ``MuseGlimmerImageProcessor`` of huggingface/transformers.
LLAMA4_MAX_TILES = 16  # ``max_patches`` of the processor of meta-llama/Llama-4-Scout-17B-16E-Instruct.
KIMI_MAX_PATCHES = 16384  # ``in_patch_limit`` of the processor of moonshotai/Kimi-K2.5.
WHISPER_FRAMES = 3000
"""Frames of Whisper's window of 30 s; its two convolutions make half as many positions (``max_source_positions``)."""
QWEN3_CONV_STRIDE = 8  # Three convolutions of stride 2 (``Qwen3OmniMoeAudioEncoder`` of huggingface/transformers).
VOXTRAL_POSITIONS = 4  # Positions that ``VoxtralMultiModalProjector`` of huggingface/transformers combines.


def vision_tower(reader: ConfigReader) -> dict[str, Any] | None:
    """Return the fields of `simserve.profiles.encoders.VisionTower`; None without a tower, or for an unknown kind.

    Args:
        reader: The language model's fields, on top of those of the whole.

    Raises:
        ProfileError: A size of the tower is missing or has a wrong type.
    """
    block = reader.mapping("vision_config")
    if not block:
        return None
    if "vt_hidden_size" in block:
        return _moonvit(ConfigReader(block, reader.file), "Kimi-K2.5", KIMI_MAX_PATCHES, prefix="vt_")
    kind = _TOWERS.get(str(block.get("model_type") or reader.value("model_type")))
    return None if kind is None else kind(reader, ConfigReader(block, reader.file))


def _grid(
    patch: int, note: str, merge: int, pixels: tuple[int, int], sizes: Mapping[str, Any], **others: Any
) -> dict[str, Any]:
    """Return a tower whose images keep their proportions, with the fewest and most pixels of an image."""
    return {
        "source": f"vision_config of the file{note}",
        "rule": "grid",
        "patch_size": patch,
        "merge": merge,
        "min_pixels": pixels[0],
        "max_pixels": pixels[1],
        **sizes,
        **others,
    }


def _qwen(tower: ConfigReader, processor: str, pixels: tuple[int, int]) -> dict[str, Any]:
    """Return a tower whose sizes have the names of Qwen's."""
    patch, merge = tower.integer("patch_size"), tower.integer("spatial_merge_size")
    names = {"num_hidden_layers": "depth", "hidden_size": "hidden_size", "num_attention_heads": "num_heads"}
    sizes = {name: tower.integer(key) for name, key in names.items()}
    return _grid(patch, f"; pixels of an image by the processor of {processor}", merge, pixels, sizes)


def _qwen3_tower(_: ConfigReader, tower: ConfigReader) -> dict[str, Any]:
    """Return Qwen3-VL's tower, and Qwen3.5's, which passes on only the output of its last layer.

    Qwen3-Omni's takes videos by another rule, with their sound, and accepts none here.
    """
    videos = {
        "frames_per_patch": QWEN3_FRAMES,
        "min_video_pixels": QWEN3_MIN_VIDEO_PIXELS,
        "max_video_pixels": QWEN3_MAX_VIDEO_PIXELS,
    }
    return {
        **_qwen(tower, "Qwen3-VL", (QWEN3_MIN_PIXELS, QWEN3_MAX_PIXELS)),
        "intermediate_size": tower.integer("intermediate_size"),
        "num_mergers": 1 + len(tower.sequence("deepstack_visual_indexes") or ()),
        **({} if "omni" in str(tower.value("model_type")) else videos),
    }


def _moonvit(tower: ConfigReader, processor: str, most: int, prefix: str = "") -> dict[str, Any]:
    """Return a MoonViT of at most ``most`` patches an image, whose sizes are named with a prefix."""
    patch, merge = tower.integer("patch_size"), (tower.sequence("merge_kernel_size") or [2])[0]
    note = f"; pixels of an image by the processor of {processor}"
    return _grid(patch, note, merge, ((merge * patch) ** 2, most * patch**2), _tower_sizes(tower, prefix))


def _qwen2_5_tower(_: ConfigReader, tower: ConfigReader) -> dict[str, Any]:
    """Return Qwen2.5-VL's tower: gated MLPs, and windows in all layers except ``fullatt_block_indexes``.

    EXAONE 4.5's has fewer key-value heads (``Exaone4_5_VisionConfig`` of transformers).
    """
    return {
        **_qwen(tower, "Qwen2.5-VL", (QWEN2_5_MIN_PIXELS, QWEN2_5_MAX_PIXELS)),
        **({"num_key_value_heads": tower.integer("num_key_value_heads")} if tower.value("num_key_value_heads") else {}),
        "intermediate_size": tower.integer("intermediate_size"),
        "is_gated_mlp": True,
        "window": (tower.integer("window_size") // tower.integer("patch_size")) ** 2,
        "num_full_layers": len(tower.sequence("fullatt_block_indexes") or ()),
    }


def _glm4v_tower(_: ConfigReader, tower: ConfigReader) -> dict[str, Any]:
    """Return GLM-4.1V's tower, whose MLPs are as wide as the language model (``Glm4vVisionMLP`` of transformers)."""
    of_qwen = _qwen(tower, "GLM-4.1V", (GLM4V_MIN_PIXELS, GLM4V_MAX_PIXELS))
    return {**of_qwen, "intermediate_size": tower.integer("out_hidden_size"), "is_gated_mlp": True}


def _intern_tower(reader: ConfigReader, tower: ConfigReader) -> dict[str, Any]:
    """Return InternVL's tower, whose pixel shuffle puts 2 x 2 patches into a token (``InternVLChatModel``)."""
    ratio = reader.value("downsample_ratio") or 0.5
    return {
        "source": "vision_config of the file; tiles of an image by the file's max_dynamic_patch",
        "rule": "proportions",
        "patch_size": tower.integer("patch_size"),
        "merge": max(round(1 / ratio), 1),
        "image_size": reader.integer("force_image_size", default=tower.integer("image_size")),
        "max_tiles": reader.integer("max_dynamic_patch", default=12),
        **_tower_sizes(tower),
    }


def _muse_tower(_: ConfigReader, tower: ConfigReader) -> dict[str, Any]:
    """Return the tower of Muse Glimmer and Muse Spark: windows as large as its table of positions, but in every fourth
    and the last layer (``MuseGlimmerVisionModel`` of transformers)."""
    layers, patch, merge = tower.integer("num_hidden_layers"), tower.integer("patch_size"), tower.integer("merge_size")
    fewest = (merge * patch) ** 2
    return _grid(
        patch,
        "; pixels of an image by the processor of Muse Glimmer",
        merge,
        (fewest, MUSE_MAX_TOKENS * fewest),
        _tower_sizes(tower),
        window=tower.integer("pos_emb_height") * tower.integer("pos_emb_width"),
        num_full_layers=layers // 4 + (1 if layers % 4 else 0),
    )


def _gemma4_tower(reader: ConfigReader, tower: ConfigReader) -> dict[str, Any]:
    """Return Gemma 4's tower; with some proportions an image becomes slightly fewer tokens."""
    most = tower.integer("default_output_length", default=280)
    return {
        "source": "vision_config of the file: the most tokens that an image becomes",
        "rule": "fixed",
        "patch_size": tower.integer("patch_size"),
        "merge": tower.integer("pooling_kernel_size"),
        "tokens": reader.integer("vision_soft_tokens_per_image", default=most),
        **_tower_sizes(tower),
    }


def _gemma3_tower(reader: ConfigReader, tower: ConfigReader) -> dict[str, Any] | None:
    """Return Gemma 3's tower, with images scaled to one size, without pan and scan; None for other models'."""
    if reader.value("mm_tokens_per_image") is None:
        return None
    tokens = reader.integer("mm_tokens_per_image")
    side, patch = tower.integer("image_size"), tower.integer("patch_size")
    return {
        "source": "vision_config and mm_tokens_per_image of the file, without pan and scan",
        "rule": "fixed",
        "patch_size": patch,
        "merge": max(round(side / patch / math.sqrt(tokens)), 1),
        "image_size": side,
        "tokens": tokens,
        **_tower_sizes(tower),
    }


def _pixtral_tower(reader: ConfigReader, tower: ConfigReader) -> dict[str, Any]:
    """Return Pixtral's tower, also Mistral Small 3.1's and Ministral 3's, which limits an image's longer side."""
    merge, patch = reader.integer("spatial_merge_size", default=1), tower.integer("patch_size")
    pixels = (patch * merge) ** 2, tower.integer("image_size") ** 2
    note = ", without the tokens that end a row of patches"
    return _grid(patch, note, merge, pixels, _tower_sizes(tower), is_gated_mlp=True)


def _llama4_tower(_: ConfigReader, tower: ConfigReader) -> dict[str, Any]:
    """Return Llama 4's tower, whose pixel shuffle of 0.5 puts 2 x 2 patches into a token."""
    ratio = tower.value("pixel_shuffle_ratio")
    if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 < ratio <= 1:
        raise tower.refusal("must be a number above 0, at most 1", "pixel_shuffle_ratio")
    return {
        "source": "vision_config of the file; tiles of an image by the processor of Llama 4 Scout",
        "rule": "tiles",
        "patch_size": tower.integer("patch_size"),
        "merge": max(round(1 / ratio), 1),
        "image_size": tower.integer("image_size"),
        "max_tiles": LLAMA4_MAX_TILES,
        **_tower_sizes(tower),
    }


def _tower_sizes(tower: ConfigReader, prefix: str = "") -> dict[str, Any]:
    names = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")
    return {name: tower.integer(prefix + name) for name in names}


_QWEN3 = ("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "qwen4_exp", "qwen4_exp_vision")
_TOWERS: Mapping[str, Callable[[ConfigReader, ConfigReader], dict[str, Any] | None]] = {
    **dict.fromkeys(("qwen2_5_vl", "exaone4_5_vision"), _qwen2_5_tower),
    **dict.fromkeys(("glm4v", "glm4v_vision"), _glm4v_tower),
    "moonvit": lambda _, tower: _moonvit(tower, "MoonViT", MOONVIT_MAX_PATCHES),
    "intern_vit_6b": _intern_tower,
    "muse_glimmer_vision": _muse_tower,
    "muse_spark_vision": _muse_tower,
    **dict.fromkeys((*_QWEN3, "qwen3_omni_moe_vision_encoder"), _qwen3_tower),
    "gemma4_vision": _gemma4_tower,
    "siglip_vision_model": _gemma3_tower,
    "llama4_vision_model": _llama4_tower,
    "pixtral": _pixtral_tower,
}
"""``model_type`` of the tower -> its reader. Others have layers or limits without a rule here, such as MiniMax's image
sizes."""


def audio_tower(reader: ConfigReader) -> dict[str, Any] | None:
    """Return the fields of `simserve.profiles.encoders.AudioTower`; None without an encoder, or for an unknown kind.

    Args:
        reader: The language model's fields, on top of those of the whole.

    Raises:
        ProfileError: A size of the encoder is missing or has a wrong type.
    """
    block = reader.mapping("audio_config")
    if not block:
        return None
    kind = _ENCODERS.get(str(block.get("model_type") or ""))
    return None if kind is None else kind(ConfigReader(block, reader.file))


def _qwen3_encoder(encoder: ConfigReader) -> dict[str, Any]:
    """Return Qwen3-Omni's: convolutions over ``2 n_window`` frames at a time, attention in windows of 8 s."""
    return {
        "source": "audio_config of the file",
        "stride": QWEN3_CONV_STRIDE,
        "conv_frames": 2 * encoder.integer("n_window", default=50),
        "window_frames": encoder.integer("n_window_infer", default=800),
        "is_padded": False,
        "positions_per_token": 1,
        **_encoder_sizes(encoder),
        "convolutions": _in_two_dimensions(encoder),
    }


def _whisper(encoder: ConfigReader, window: int, positions: int, *, is_padded: bool, **others: Any) -> dict[str, Any]:
    """Return an encoder with Whisper's layers, windows of some frames and that many positions per token."""
    return {
        "source": "audio_config of the file",
        "stride": 2,
        "window_frames": window,
        "is_padded": is_padded,
        "positions_per_token": positions,
        **_encoder_sizes(encoder),
        "convolutions": _in_one_dimension(encoder),
        **others,
    }


def _in_two_dimensions(encoder: ConfigReader) -> list[dict[str, Any]]:
    """Return Qwen3-Omni's: three of 3 x 3 and stride 2 over time and frequency, then a product to the layers' width."""
    frames, bins = 2 * encoder.integer("n_window", default=50), encoder.integer("num_mel_bins", default=128)
    channels, width = encoder.integer("downsample_hidden_size", default=480), _encoder_sizes(encoder)["hidden_size"]
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
    bins, width = encoder.integer("num_mel_bins", default=128), _encoder_sizes(encoder)["hidden_size"]
    return [
        {"outputs_per_position": 2.0, "inputs": 3 * bins, "channels": width},
        {"outputs_per_position": 1.0, "inputs": 3 * width, "channels": width},
    ]


def _encoder_sizes(encoder: ConfigReader) -> dict[str, Any]:
    """Return the sizes of the layers; those of Whisper's large encoder if the file leaves one out."""
    return {
        "num_hidden_layers": encoder.integer("encoder_layers", "num_hidden_layers", default=32),
        "hidden_size": encoder.integer("d_model", "hidden_size", default=1280),
        "num_attention_heads": encoder.integer("encoder_attention_heads", "num_attention_heads", default=20),
        "intermediate_size": encoder.integer("encoder_ffn_dim", "intermediate_size", default=5120),
    }


_ENCODERS: Mapping[str, Callable[[ConfigReader], dict[str, Any]]] = {
    "qwen3_omni_moe_audio_encoder": _qwen3_encoder,
    # Attention within ``2 n_window`` frames, two positions per token.
    "qwen2_5_omni_audio_encoder": lambda encoder: _whisper(
        encoder, 2 * encoder.integer("n_window", default=100), 2, is_padded=False
    ),
    # One window of 30 s, completely encoded, of which the tokens of the recording are kept.
    "qwen2_audio_encoder": lambda own: _whisper(own, WHISPER_FRAMES, 2, is_padded=True, max_frames=WHISPER_FRAMES),
    # As many windows of 30 s as needed, 375 tokens each.
    "voxtral_encoder": lambda encoder: _whisper(
        encoder, WHISPER_FRAMES, VOXTRAL_POSITIONS, is_padded=True, keeps_padding=True
    ),
}
"""``model_type`` of the encoder -> its reader."""
