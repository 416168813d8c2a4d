"""The audio encoder of a model: how many tokens a recording becomes, and the layers that encode it. Knows no seconds
of work."""

from __future__ import annotations

import math
from typing import NamedTuple

from pydantic import PositiveFloat, PositiveInt, model_validator

from simserve.validation import FrozenModel

FRAMES_PER_SECOND = 100
"""Frames of the spectrogram: 160 samples of 16,000 a second (``WhisperFeatureExtractor`` of huggingface/transformers,
which all encoders here begin with)."""


class AudioShape(NamedTuple):
    """What a recording becomes.

    Attributes:
        tokens: Tokens of the prompt.
        positions: Positions that the layers of the encoder compute, silence that fills a window included.
        pairs: Positions that attend to each other, squares of those of each window summed.
    """

    tokens: int
    positions: int
    pairs: int


class Convolution(FrozenModel):
    """A convolution before the layers of an encoder, or the product that brings its output to their width."""

    outputs_per_position: PositiveFloat
    """Places that it computes for a position of the layers."""
    inputs: PositiveInt
    """Numbers that each of them is computed from: those under the kernel, of all channels."""
    channels: PositiveInt
    """Numbers that each of them becomes."""


class AudioTower(FrozenModel):
    """What encodes recordings, and the rule by which they become tokens.

    Frames of 10 ms go through convolutions; positions of a window attend to each other; several become a token.
    """

    source: str
    """Where the numbers are from."""
    stride: PositiveInt
    """Frames that the convolutions make one position of: 2 of Whisper's two, 8 of Qwen3-Omni's three."""
    conv_frames: PositiveInt | None = None
    """Frames that the convolutions take at a time, the positions of each piece rounded up; absent: the whole
    recording."""
    window_frames: PositiveInt
    """Frames whose positions attend to each other: 3,000 (30 s) of Whisper."""
    is_padded: bool
    """Whether the last window is filled with silence, and encoded whole."""
    keeps_padding: bool = False
    """Whether that silence becomes tokens too (Voxtral)."""
    max_frames: PositiveInt | None = None
    """Longer recordings are cut there; absent: they are not."""
    positions_per_token: PositiveInt
    """Positions that are brought together as one token."""
    num_hidden_layers: PositiveInt
    """Layers of the encoder."""
    hidden_size: PositiveInt
    """Its width."""
    num_attention_heads: PositiveInt
    """Its heads."""
    intermediate_size: PositiveInt
    """Width of its MLPs, which have no gate."""
    convolutions: tuple[Convolution, ...] = ()
    """What makes positions of the spectrogram; absent: priced at nothing."""
    num_mergers: PositiveInt = 1
    """MLPs that bring positions to the width of the language model."""

    @model_validator(mode="after")
    def _check_padding(self) -> AudioTower:
        if self.keeps_padding and not self.is_padded:
            raise ValueError("keeps_padding needs is_padded")
        return self

    @property
    def kind(self) -> str:
        """What answers and errors call it."""
        return "audio encoder"

    @property
    def num_parameters(self) -> int:
        """Weights of the layers, convolutions, biases and norms not counted."""
        layer = 4 * self.hidden_size**2 + 2 * self.hidden_size * self.intermediate_size
        return self.num_hidden_layers * layer

    def recording(self, seconds: float) -> AudioShape:
        """Return what a recording of so many seconds becomes."""
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
        """Return the positions that the convolutions make of so many frames."""
        at_once = self.conv_frames or max(frames, 1)
        pieces, rest = divmod(frames, at_once)
        return pieces * math.ceil(at_once / self.stride) + math.ceil(rest / self.stride)
