"""The vision tower that a Hugging Face ``config.json`` describes beside the language model. Knows no images.

Limits of an image's size stand in a processor's file, which is not read: those of the family's published processors.
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
LLAMA4_MAX_TILES = 16
"""``max_patches`` of the processor of meta-llama/Llama-4-Scout-17B-16E-Instruct."""

KIMI_MAX_PATCHES = 16384
"""``in_patch_limit`` of the processor of moonshotai/Kimi-K2.5."""


def vision_tower(reader: ConfigReader) -> dict[str, Any] | None:
    """Return the fields of `simserve.profiles.vision.VisionTower`; None without a tower, or of an unknown kind.

    Args:
        reader: The language model's fields, over those of the whole.

    Raises:
        ProfileError: A size of the tower is missing or has a wrong type.
    """
    block = reader.mapping("vision_config")
    if not block:
        return None
    if "vt_hidden_size" in block:
        return _kimi(ConfigReader(block, reader.file))
    kind = _TOWERS.get(str(block.get("model_type") or reader.value("model_type")))
    return None if kind is None else kind(reader, ConfigReader(block, reader.file))


def _qwen3(_: ConfigReader, tower: ConfigReader) -> dict[str, Any]:
    """Return Qwen3-VL's tower, and Qwen3.5's, which hands over the output of its last layer alone.

    Qwen3-Omni's takes videos by another rule, with their sound, and has none here.
    """
    videos = {
        "frames_per_patch": QWEN3_FRAMES,
        "min_video_pixels": QWEN3_MIN_VIDEO_PIXELS,
        "max_video_pixels": QWEN3_MAX_VIDEO_PIXELS,
    }
    return {
        "source": "vision_config of the file; pixels of an image by the processor of Qwen3-VL",
        "rule": "grid",
        "patch_size": tower.integer("patch_size"),
        "merge": tower.integer("spatial_merge_size"),
        "min_pixels": QWEN3_MIN_PIXELS,
        "max_pixels": QWEN3_MAX_PIXELS,
        **({} if "omni" in str(tower.value("model_type")) else videos),
        "num_hidden_layers": tower.integer("depth"),
        "hidden_size": tower.integer("hidden_size"),
        "num_attention_heads": tower.integer("num_heads"),
        "intermediate_size": tower.integer("intermediate_size"),
        "num_mergers": 1 + len(tower.sequence("deepstack_visual_indexes") or ()),
    }


def _kimi(tower: ConfigReader) -> dict[str, Any]:
    """Return Kimi-K2.5's tower, whose file names its own sizes alone."""
    patch, merge = tower.integer("patch_size"), (tower.sequence("merge_kernel_size") or [2])[0]
    sizes = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")
    return {
        "source": "vision_config of the file; pixels of an image by the processor of Kimi-K2.5",
        "rule": "grid",
        "patch_size": patch,
        "merge": merge,
        "min_pixels": (merge * patch) ** 2,
        "max_pixels": KIMI_MAX_PATCHES * patch**2,
        **{name: tower.integer(f"vt_{name}") for name in sizes},
    }


def _qwen2_5(_: ConfigReader, tower: ConfigReader) -> dict[str, Any]:
    """Return Qwen2.5-VL's tower: gated MLPs, and windows in all layers but those of ``fullatt_block_indexes``."""
    patch = tower.integer("patch_size")
    return {
        "source": "vision_config of the file; pixels of an image by the processor of Qwen2.5-VL",
        "rule": "grid",
        "patch_size": patch,
        "merge": tower.integer("spatial_merge_size"),
        "min_pixels": QWEN2_5_MIN_PIXELS,
        "max_pixels": QWEN2_5_MAX_PIXELS,
        "num_hidden_layers": tower.integer("depth"),
        "hidden_size": tower.integer("hidden_size"),
        "num_attention_heads": tower.integer("num_heads"),
        "intermediate_size": tower.integer("intermediate_size"),
        "is_gated_mlp": True,
        "window": (tower.integer("window_size") // patch) ** 2,
        "num_full_layers": len(tower.sequence("fullatt_block_indexes") or ()),
    }


def _gemma4(reader: ConfigReader, tower: ConfigReader) -> dict[str, Any]:
    """Return Gemma 4's tower: of some proportions an image becomes a few tokens less."""
    most = tower.integer("default_output_length", default=280)
    return {
        "source": "vision_config of the file: the most tokens that an image becomes",
        "rule": "fixed",
        "patch_size": tower.integer("patch_size"),
        "merge": tower.integer("pooling_kernel_size"),
        "tokens": reader.integer("vision_soft_tokens_per_image", default=most),
        **_sizes(tower),
    }


def _gemma3(reader: ConfigReader, tower: ConfigReader) -> dict[str, Any] | None:
    """Return Gemma 3's tower, whose images are scaled to one size, without pan and scan; None of another model's."""
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
        **_sizes(tower),
    }


def _pixtral(reader: ConfigReader, tower: ConfigReader) -> dict[str, Any]:
    """Return Pixtral's tower, also Mistral Small 3.1's and Ministral 3's, which limits an image's longer side."""
    merge = reader.integer("spatial_merge_size", default=1)
    patch = tower.integer("patch_size")
    return {
        "source": "vision_config of the file, without the tokens that end a row of patches",
        "rule": "grid",
        "patch_size": patch,
        "merge": merge,
        "min_pixels": (patch * merge) ** 2,
        "max_pixels": tower.integer("image_size") ** 2,
        "is_gated_mlp": True,
        **_sizes(tower),
    }


def _llama4(_: ConfigReader, tower: ConfigReader) -> dict[str, Any]:
    """Return Llama 4's tower, whose pixel shuffle of a half puts 2 x 2 patches into a token."""
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
        **_sizes(tower),
    }


def _sizes(tower: ConfigReader) -> dict[str, Any]:
    names = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")
    return {name: tower.integer(name) for name in names}


_TOWERS: Mapping[str, Callable[[ConfigReader, ConfigReader], dict[str, Any] | None]] = {
    "qwen2_5_vl": _qwen2_5,
    "qwen3_vl": _qwen3,
    "qwen3_vl_moe": _qwen3,
    "qwen3_5": _qwen3,
    "qwen3_5_moe": _qwen3,
    "qwen3_omni_moe_vision_encoder": _qwen3,
    "gemma4_vision": _gemma4,
    "siglip_vision_model": _gemma3,
    "llama4_vision_model": _llama4,
    "pixtral": _pixtral,
}
"""``model_type`` of the tower -> its reader. Others have layers or limits that no rule here describes: MiniMax's sizes
of an image."""
