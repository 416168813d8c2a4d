"""The encoders of a model: the tokens of an image or a recording, and the layers that encode it."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from simserve.validation import FrozenModel

TIME_TOKENS = 7
"""Tokens per moment of a video besides the digits of its seconds: ``<``, the point, a tenth, ``seconds`` and ``>``, and
both ends of its patches."""
FRAMES_PER_SECOND = 100
"""Frames of the spectrogram: 160 samples of 16,000 a second (``WhisperFeatureExtractor`` of huggingface/transformers,
which all encoders here use first)."""
_WHOLE_TOWERS = {
    "vllm": ("llama4", "qwen2_5_vl", "qwen3_vl", "qwen3_5", "glm4v"),
    "sglang": ("qwen2_5_vl", "qwen3_vl", "glm4v"),
}
_WHOLE_TOWERS_BEFORE = ("kimi_k2", "deepseek_v3", "qwen2", "qwen3", "qwen3_moe")
"""Beginnings of families of models whose image tower an engine can hold whole on each rank, and families of language
models behind such towers (Kimi-K2.5, Kimi-VL, InternVL): vLLM 0.32.0 model_executor/models,
``supports_encoder_tp_data``; SGLang 0.5.23 srt/models, ``mm_enable_dp_encoder``."""


class ImageShape(NamedTuple):
    """The result of encoding an image."""

    tokens: int  # Tokens in the prompt.
    pieces: int  # Pieces that attend only to themselves in the tower: one, tiles, or moments of a video.
    patches: int  # Patches per piece.


class VisionTower(FrozenModel):
    """An encoder of images, and the rule by which it splits them."""

    source: str
    """Where the numbers come from."""
    rule: Literal["grid", "tiles", "proportions", "fixed"]
    """`grid`: the image is scaled to whole patches, and `merge` x `merge` of them become a token (Qwen-VL). `tiles`: it
    is split into tiles of `image_size`, plus the whole image as one more (Llama 4). `proportions`: likewise, on the
    canvas whose proportions are nearest to its own (InternVL). `fixed`: it is scaled to `image_size`, and becomes
    `tokens` (Gemma)."""
    patch_size: PositiveInt
    """Side of a patch, pixels."""
    merge: PositiveInt
    """Patches per side of the square that becomes one token."""
    min_pixels: PositiveInt | None = None
    """`grid`: images with fewer pixels are scaled up to this number."""
    max_pixels: PositiveInt | None = None
    """`grid`: images with more pixels are scaled down to this number."""
    frames_per_patch: PositiveInt | None = None
    """`grid`: frames of a video that are encoded together; absent: no videos."""
    min_video_pixels: PositiveInt | None = None
    """`grid`: videos with fewer pixels in all frames together are scaled up."""
    max_video_pixels: PositiveInt | None = None
    """`grid`: videos with more pixels are scaled down."""
    image_size: PositiveInt | None = None
    """`tiles`, `proportions`, `fixed`: side of a tile, or of the image, pixels; if absent with `fixed`, the patches
    follow from the tokens."""
    max_tiles: PositiveInt | None = None
    """`tiles`, `proportions`: most tiles per image, not counting the whole image."""
    tokens: PositiveInt | None = None
    """`fixed`: tokens per image."""
    num_hidden_layers: PositiveInt
    """Layers of the tower."""
    hidden_size: PositiveInt
    """Its width."""
    num_attention_heads: PositiveInt
    """Its heads."""
    num_key_value_heads: PositiveInt | None = None
    """Its key-value heads; null: as many as heads."""
    intermediate_size: PositiveInt
    """Width of its MLPs."""
    is_gated_mlp: bool = False
    """Whether its MLPs have a gate (Qwen2.5-VL: three matrices) or not (two)."""
    window: PositiveInt | None = None
    """Patches that attend to each other in layers with a window; null: every layer attends to the whole image."""
    num_full_layers: PositiveInt | None = None
    """Layers that attend to the whole image if the others have a window."""
    num_mergers: NonNegativeInt = 1
    """MLPs that project merged patches to the width of the language model: one, and one per layer whose output is also
    passed on (Qwen3-VL's deepstack)."""

    @model_validator(mode="after")
    def _check_rule(self) -> VisionTower:
        needs = {
            "grid": ("min_pixels", "max_pixels"),
            "tiles": ("image_size", "max_tiles"),
            "proportions": ("image_size", "max_tiles"),
            "fixed": ("tokens",),
        }[self.rule]
        if (self.window is None) != (self.num_full_layers is None):
            raise ValueError("window and num_full_layers go together")
        if self.num_full_layers is not None and self.num_full_layers > self.num_hidden_layers:
            raise ValueError(f"num_full_layers must not exceed num_hidden_layers (={self.num_hidden_layers})")
        of_videos = (self.frames_per_patch, self.min_video_pixels, self.max_video_pixels)
        if len({each is None for each in of_videos}) > 1 or (self.frames_per_patch is not None and self.rule != "grid"):
            raise ValueError("frames_per_patch, min_video_pixels and max_video_pixels go together, with rule grid")
        lacking = [name for name in needs if getattr(self, name) is None]
        if lacking:
            raise ValueError(f"rule {self.rule} needs {lacking[0]}")
        return self

    @property
    def kind(self) -> str:
        """Its name in answers and errors."""
        return "vision tower"

    @property
    def positions_per_token(self) -> int:
        """Patches per token."""
        return self.merge**2

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def num_parameters(self) -> int:
        """Weights of the layers of the tower, without biases and norms."""
        matrices = 3 if self.is_gated_mlp else 2
        layer = (2 + 2 * self.kv_share) * self.hidden_size**2 + matrices * self.hidden_size * self.intermediate_size
        return int(self.num_hidden_layers * layer)

    @property
    def kv_share(self) -> float:
        """Key-value heads per head."""
        return (self.num_key_value_heads or self.num_attention_heads) / self.num_attention_heads

    @property
    def largest(self) -> ImageShape:
        """The result for the largest image."""
        if self.rule == "grid":
            assert self.max_pixels is not None
            side = math.isqrt(self.max_pixels)
            return self._in_grid(side, side)
        if self.rule in ("tiles", "proportions"):
            assert self.image_size is not None
            assert self.max_tiles is not None
            return self.image(self.image_size * self.max_tiles, self.image_size)
        return self.image(1, 1)

    def pairs(self, image: ImageShape) -> float:
        """Return the pairs of patches of an image that attend to each other per layer, the mean of all layers."""
        whole = image.pieces * image.patches**2
        if self.window is None or self.num_full_layers is None:
            return whole
        windowed = image.pieces * image.patches * min(self.window, image.patches)
        layers = self.num_hidden_layers - self.num_full_layers
        return (self.num_full_layers * whole + layers * windowed) / self.num_hidden_layers

    def image(self, width: int, height: int) -> ImageShape:
        """Return the result for an image of that many pixels."""
        if self.rule == "grid":
            return self._in_grid(width, height)
        if self.rule == "tiles":
            return self._in_tiles(width, height)
        if self.rule == "proportions":
            return self._in_proportion(width, height)
        assert self.tokens is not None
        patches = self.tokens * self.merge**2
        if self.image_size is not None:
            patches = (self.image_size // self.patch_size) ** 2
        return ImageShape(self.tokens, 1, patches)

    def video(self, width: int, height: int, frames: int) -> ImageShape:
        """Return the result for a number of video frames, one piece per moment of `frames_per_patch` frames.

        Each moment is written before its patches, ``<1.5 seconds>``, one token per digit, and has a token at both ends
        (vLLM 0.32.0, qwen3_vl.py). Two frames a second are assumed for that.
        """
        assert self.frames_per_patch is not None
        assert self.min_video_pixels is not None
        assert self.max_video_pixels is not None
        moments = math.ceil(frames / self.frames_per_patch)
        tokens = self._merged(width, height, self.min_video_pixels, self.max_video_pixels, frames)
        times = sum(TIME_TOKENS + len(str(math.floor(number * self.frames_per_patch / 2))) for number in range(moments))
        return ImageShape(moments * tokens + times, moments, tokens * self.merge**2)

    def _in_grid(self, width: int, height: int) -> ImageShape:
        """Return the image scaled to whole patches, keeping its proportions."""
        assert self.min_pixels is not None
        assert self.max_pixels is not None
        tokens = self._merged(width, height, self.min_pixels, self.max_pixels)
        return ImageShape(tokens, 1, tokens * self.merge**2)

    def _merged(self, width: int, height: int, fewest: int, most: int, frames: int = 1) -> int:
        """Return the tokens of an image, or of a moment of a video, with its pixels limited to a range.

        ``smart_resize`` of Qwen2-VL's processor, and Qwen3-VL's for videos, whose pixels are counted over all frames.
        """
        side, area = self.patch_size * self.merge, frames * width * height
        sides = [max(round(each / side), 1) for each in (width, height)]
        together = 1 if self.frames_per_patch is None or frames == 1 else self.frames_per_patch
        pixels = math.ceil(frames / together) * together * sides[0] * sides[1] * side**2
        if pixels > most:
            scale = math.sqrt(most / area)
            sides = [max(math.floor(each * scale / side), 1) for each in (width, height)]
        elif pixels < fewest:
            scale = math.sqrt(fewest / area)
            sides = [math.ceil(each * scale / side) for each in (width, height)]
        return sides[0] * sides[1]

    def _in_tiles(self, width: int, height: int) -> ImageShape:
        """Return the image on the best-fitting canvas of tiles.

        Prefers the canvas that scales the image up least, if any does not scale it down, otherwise the one that scales
        it down least; of equals the smaller (``get_best_fit`` of Llama 4's processor).
        """
        assert self.image_size is not None
        assert self.max_tiles is not None
        canvases = [
            (min(columns * self.image_size / width, rows * self.image_size / height), columns * rows)
            for columns in range(1, self.max_tiles + 1)
            for rows in range(1, self.max_tiles // columns + 1)
        ]
        larger = [each for each in canvases if each[0] >= 1.0]
        best = min(larger) if larger else min(canvases, key=lambda each: (-each[0], each[1]))
        return self._cut_into(best[1])

    def _in_proportion(self, width: int, height: int) -> ImageShape:
        """Return the image on the canvas of tiles whose proportions are nearest to its own.

        Of canvases alike, a larger one if the image has more than half of its pixels (``find_closest_aspect_ratio`` of
        InternVL's code and of vLLM's internvl.py).
        """
        assert self.image_size is not None
        assert self.max_tiles is not None
        best, least = 1, math.inf
        for count in range(1, self.max_tiles + 1):
            for columns in (each for each in range(1, count + 1) if count % each == 0):
                rows = count // columns
                off = abs(width / height - columns / rows)
                is_filled = width * height > count * self.image_size**2 / 2
                if off < least or (off == least and is_filled):
                    best, least = count, off
        return self._cut_into(best)

    def _cut_into(self, num_tiles: int) -> ImageShape:
        """Return an image cut into that many tiles, with the whole image as one more where there are several."""
        assert self.image_size is not None
        pieces = num_tiles + (num_tiles > 1)
        patches = (self.image_size // self.patch_size) ** 2
        return ImageShape(pieces * (patches // self.merge**2), pieces, patches)


class AudioShape(NamedTuple):
    """The result of encoding a recording."""

    tokens: int  # Tokens in the prompt.
    positions: int  # Positions that the layers of the encoder compute, including silence that fills a window.
    pairs: int  # Pairs of positions that attend to each other: the squares of each window's positions, summed.


class Convolution(FrozenModel):
    """A convolution before the layers of an encoder, or the product that projects its output to their width."""

    outputs_per_position: PositiveFloat
    """Outputs computed per position of the layers."""
    inputs: PositiveInt
    """Inputs of each output: those under the kernel, of all channels."""
    channels: PositiveInt
    """Channels of each output."""


class AudioTower(FrozenModel):
    """An encoder of recordings, and the rule by which they become tokens.

    Frames of 10 ms go through convolutions; positions of a window attend to each other; several become a token.
    """

    source: str
    """Where the numbers come from."""
    stride: PositiveInt
    """Frames per position after the convolutions: 2 with Whisper's two, 8 with Qwen3-Omni's three."""
    conv_frames: PositiveInt | None = None
    """Frames that the convolutions process at a time, rounding up each piece's positions; absent: the whole
    recording."""
    window_frames: PositiveInt
    """Frames whose positions attend to each other: 3,000 (30 s) in Whisper."""
    is_padded: bool
    """Whether the last window is filled with silence and encoded completely."""
    keeps_padding: bool = False
    """Whether that silence becomes tokens too (Voxtral)."""
    max_frames: PositiveInt | None = None
    """Longer recordings are truncated to this; absent: they are not."""
    positions_per_token: PositiveInt
    """Positions combined into one token."""
    num_hidden_layers: PositiveInt
    """Layers of the encoder."""
    hidden_size: PositiveInt
    """Its width."""
    num_attention_heads: PositiveInt
    """Its heads."""
    intermediate_size: PositiveInt
    """Width of its MLPs, which have no gate."""
    convolutions: tuple[Convolution, ...] = ()
    """The convolutions that turn the spectrogram into positions; absent: priced at nothing."""
    num_mergers: PositiveInt = 1
    """MLPs that project positions to the width of the language model."""

    @model_validator(mode="after")
    def _check_padding(self) -> AudioTower:
        if self.keeps_padding and not self.is_padded:
            raise ValueError("keeps_padding needs is_padded")
        return self

    @property
    def kind(self) -> str:
        """Its name in answers and errors."""
        return "audio encoder"

    @property
    def num_parameters(self) -> int:
        """Weights of the layers, without convolutions, biases and norms."""
        layer = 4 * self.hidden_size**2 + 2 * self.hidden_size * self.intermediate_size
        return self.num_hidden_layers * layer

    def recording(self, seconds: float) -> AudioShape:
        """Return the result for a recording of that many seconds."""
        frames = max(math.ceil(seconds * FRAMES_PER_SECOND), 1)
        if self.max_frames is not None:
            frames = min(frames, self.max_frames)
        encoded = frames
        if self.is_padded:
            encoded = math.ceil(frames / self.window_frames) * self.window_frames
        num_whole, rest = divmod(encoded, self.window_frames)
        whole, last = self._positions(self.window_frames), self._positions(rest)
        positions = num_whole * whole + last
        kept = positions if self.keeps_padding else self._positions(frames)
        tokens = max(kept // self.positions_per_token, 1)
        return AudioShape(tokens, positions, num_whole * whole**2 + last**2)

    def _positions(self, frames: int) -> int:
        """Return the number of positions that the convolutions make of a number of frames."""
        at_once = self.conv_frames or max(frames, 1)
        pieces, rest = divmod(frames, at_once)
        return pieces * math.ceil(at_once / self.stride) + math.ceil(rest / self.stride)


def can_keep_tower_whole(engine: str, family: str) -> bool:
    """Return whether an engine can hold the image tower of a family's models whole on each rank."""
    is_behind_one = engine in _WHOLE_TOWERS and family in _WHOLE_TOWERS_BEFORE
    return is_behind_one or family.startswith(_WHOLE_TOWERS.get(engine, ()))
