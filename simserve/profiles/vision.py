"""The vision tower of a model: how many tokens an image becomes, and the layers that encode it. Knows no seconds."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from pydantic import NonNegativeInt, PositiveInt, model_validator

from simserve.validation import FrozenModel


class ImageShape(NamedTuple):
    """What an image becomes.

    Attributes:
        tokens: Tokens of the prompt.
        pieces: Pieces that attend to themselves alone in the tower: one, or tiles.
        patches: Patches of each piece.
    """

    tokens: int
    pieces: int
    patches: int


class VisionTower(FrozenModel):
    """What encodes images, and the rule by which they are cut."""

    source: str
    """Where the numbers are from."""
    rule: Literal["grid", "tiles", "fixed"]
    """`grid`: the image is scaled to whole patches, `merge` x `merge` of which become a token (Qwen-VL). `tiles`: it
    is cut into tiles of `image_size`, with the whole image as one more (Llama 4). `fixed`: it is scaled to
    `image_size`, and becomes `tokens` (Gemma)."""
    patch_size: PositiveInt
    """Pixels of a side of a patch."""
    merge: PositiveInt
    """Patches of a side of what becomes one token."""
    min_pixels: PositiveInt | None = None
    """`grid`: smaller images are scaled up to so many pixels."""
    max_pixels: PositiveInt | None = None
    """`grid`: larger images are scaled down to so many pixels."""
    image_size: PositiveInt | None = None
    """`tiles`, `fixed`: pixels of a side of a tile, or of the image; `fixed`, absent: the patches follow from the
    tokens."""
    max_tiles: PositiveInt | None = None
    """`tiles`: most tiles of an image, the whole image not counted."""
    tokens: PositiveInt | None = None
    """`fixed`: tokens of every image."""
    num_hidden_layers: PositiveInt
    """Layers of the tower."""
    hidden_size: PositiveInt
    """Its width."""
    num_attention_heads: PositiveInt
    """Its heads."""
    intermediate_size: PositiveInt
    """Width of its MLPs."""
    is_gated_mlp: bool = False
    """Whether its MLPs have a gate (Qwen2.5-VL: three matrices) or not (two)."""
    window: PositiveInt | None = None
    """Patches that attend to each other in the layers of a window; null: every layer attends to the whole image."""
    num_full_layers: PositiveInt | None = None
    """Layers that attend to the whole image where the others have a window."""
    num_mergers: NonNegativeInt = 1
    """MLPs that bring merged patches to the width of the language model: one, and one for each layer whose output is
    handed over too (Qwen3-VL's deepstack)."""

    @model_validator(mode="after")
    def _check_rule(self) -> VisionTower:
        needs = {
            "grid": ("min_pixels", "max_pixels"),
            "tiles": ("image_size", "max_tiles"),
            "fixed": ("tokens",),
        }[self.rule]
        if (self.window is None) != (self.num_full_layers is None):
            raise ValueError("window and num_full_layers go together")
        if self.num_full_layers is not None and self.num_full_layers > self.num_hidden_layers:
            raise ValueError(f"num_full_layers must not exceed num_hidden_layers (={self.num_hidden_layers})")
        lacking = [name for name in needs if getattr(self, name) is None]
        if lacking:
            raise ValueError(f"rule {self.rule} needs {lacking[0]}")
        return self

    @property
    def kind(self) -> str:
        """What answers and errors call it."""
        return "vision tower"

    @property
    def positions_per_token(self) -> int:
        """Patches that become one token."""
        return self.merge**2

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def num_parameters(self) -> int:
        """Weights of the layers of the tower, biases and norms not counted."""
        matrices = 3 if self.is_gated_mlp else 2
        layer = 4 * self.hidden_size**2 + matrices * self.hidden_size * self.intermediate_size
        return self.num_hidden_layers * layer

    @property
    def largest(self) -> ImageShape:
        """What the largest image becomes."""
        if self.rule == "grid":
            assert self.max_pixels is not None
            side = math.isqrt(self.max_pixels)
            return self._in_grid(side, side)
        if self.rule == "tiles":
            assert self.image_size is not None
            assert self.max_tiles is not None
            return self._in_tiles(self.image_size * self.max_tiles, self.image_size)
        return self.image(1, 1)

    def pairs(self, image: ImageShape) -> float:
        """Return the pairs of patches of an image that attend to each other in a layer, the mean of all layers."""
        whole = image.pieces * image.patches**2
        if self.window is None or self.num_full_layers is None:
            return whole
        windowed = image.pieces * image.patches * min(self.window, image.patches)
        layers = self.num_hidden_layers - self.num_full_layers
        return (self.num_full_layers * whole + layers * windowed) / self.num_hidden_layers

    def image(self, width: int, height: int) -> ImageShape:
        """Return what an image of so many pixels becomes."""
        if self.rule == "grid":
            return self._in_grid(width, height)
        if self.rule == "tiles":
            return self._in_tiles(width, height)
        assert self.tokens is not None
        patches = self.tokens * self.merge**2
        if self.image_size is not None:
            patches = (self.image_size // self.patch_size) ** 2
        return ImageShape(self.tokens, 1, patches)

    def _in_grid(self, width: int, height: int) -> ImageShape:
        """Return the image scaled to whole patches, its sides in proportion (``smart_resize`` of Qwen2-VL's
        processor).
        """
        assert self.min_pixels is not None
        assert self.max_pixels is not None
        side, area = self.patch_size * self.merge, width * height
        sides = [max(round(each / side), 1) for each in (width, height)]
        if sides[0] * sides[1] * side**2 > self.max_pixels:
            scale = math.sqrt(self.max_pixels / area)
            sides = [max(math.floor(each * scale / side), 1) for each in (width, height)]
        elif sides[0] * sides[1] * side**2 < self.min_pixels:
            scale = math.sqrt(self.min_pixels / area)
            sides = [math.ceil(each * scale / side) for each in (width, height)]
        tokens = sides[0] * sides[1]
        return ImageShape(tokens, 1, tokens * self.merge**2)

    def _in_tiles(self, width: int, height: int) -> ImageShape:
        """Return the image on the canvas of tiles that it fills best.

        Of the canvases on which it is not scaled down that which scales it up least, else that which scales it down
        least; of equal ones the smaller (``get_best_fit`` of Llama 4's processor).
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
        pieces = best[1] + (best[1] > 1)
        patches = (self.image_size // self.patch_size) ** 2
        return ImageShape(pieces * (patches // self.merge**2), pieces, patches)
