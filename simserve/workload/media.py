"""Images and recordings drawn: how many a request has, how large, which the encoder knows. Knows no model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simserve import rng
from simserve.workload.distributions import length_distribution
from simserve.workload.media_spec import AudioSpec, ImagesSpec

if TYPE_CHECKING:
    from simserve.workload.traces.media import RecordedMedia

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class DrawnImages:
    """The images of some requests, one row an image.

    Attributes:
        owner: Which request it belongs to, ascending.
        sizes: The different sizes, width and height in pixels and the frames of a video (0: an image), shape [S, 3].
        size: Index into ``sizes``.
        is_cached: Whether the encoder's cache has it.
    """

    owner: Integers
    sizes: Integers
    size: Integers
    is_cached: NDArray[np.bool_]


def draw_images(
    spec: ImagesSpec,
    num_requests: int,
    *,
    seed: int,
    replication: int,
    base_path: Path | None,
    suffix: str = "",
    recorded: RecordedMedia | None = None,
) -> DrawnImages:
    """Return the images of so many requests, from the streams ``image_counts image_sizes image_cache``.

    Args:
        spec: What the images are like.
        num_requests: In the order of their rows.
        seed: Of the run.
        replication: Of the run.
        base_path: Folder that relative paths are tried against before the working folder.
        suffix: Of the streams: a class with images of its own has its own.
        recorded: What a trace says of them; what it does not say is drawn.
    """
    counting = rng.stream(seed, f"image_counts{suffix}", replication)
    has_images = counting.random(num_requests) < spec.share
    counts = np.where(has_images, length_distribution(spec.count, base_path).sample(counting, num_requests), 0)
    if recorded is not None:
        counts = recorded.counts
    total = int(counts.sum())
    if recorded is not None and recorded.sizes is not None:
        sizes, size = np.unique(recorded.sizes.astype(np.int64), axis=0, return_inverse=True)
        size = size.reshape(total)
    else:
        kinds = spec.sizes or ()
        sizes = np.array([(each.width, each.height, each.frames or 0) for each in kinds], dtype=np.int64)
        edges = np.cumsum([each.weight for each in kinds])
        uniforms = rng.stream(seed, f"image_sizes{suffix}", replication).random(total) * edges[-1]
        size = np.minimum(np.searchsorted(edges, uniforms, side="right"), len(kinds) - 1).astype(np.int64)
    is_cached = rng.stream(seed, f"image_cache{suffix}", replication).random(total) < spec.cached_share
    return DrawnImages(np.repeat(np.arange(num_requests), counts), sizes, size, is_cached)


@dataclass(frozen=True, slots=True)
class DrawnAudio:
    """The recordings of some requests, one row a recording.

    Attributes:
        owner: Which request it belongs to, ascending.
        seconds: How long it is.
        is_cached: Whether the encoder's cache has it.
    """

    owner: NDArray[np.int64]
    seconds: NDArray[np.float64]
    is_cached: NDArray[np.bool_]


def draw_audio(
    spec: AudioSpec,
    num_requests: int,
    *,
    seed: int,
    replication: int,
    base_path: Path | None,
    suffix: str = "",
    recorded: RecordedMedia | None = None,
) -> DrawnAudio:
    """Return the recordings of so many requests, from the streams ``audio_counts audio_seconds audio_cache``.

    Args:
        spec: What the recordings are like.
        num_requests: In the order of their rows.
        seed: Of the run.
        replication: Of the run.
        base_path: Folder that relative paths are tried against before the working folder.
        suffix: Of the streams: a class with recordings of its own has its own.
        recorded: What a trace says of them, with their lengths; None: they are drawn.
    """
    counting = rng.stream(seed, f"audio_counts{suffix}", replication)
    has_audio = counting.random(num_requests) < spec.share
    counts = np.where(has_audio, length_distribution(spec.count, base_path).sample(counting, num_requests), 0)
    if recorded is not None:
        counts = recorded.counts
    total = int(counts.sum())
    if recorded is not None and recorded.sizes is not None:
        seconds = recorded.sizes[:, 0]
    else:
        assert spec.seconds is not None
        drawing = rng.stream(seed, f"audio_seconds{suffix}", replication)
        seconds = length_distribution(spec.seconds, base_path).sample(drawing, total).astype(np.float64)
    is_cached = rng.stream(seed, f"audio_cache{suffix}", replication).random(total) < spec.cached_share
    return DrawnAudio(np.repeat(np.arange(num_requests), counts), seconds, is_cached)
