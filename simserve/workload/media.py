"""Draws images and recordings: how many a request has, their sizes, and which are cached. Knows no model."""

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
    """The images of some requests, one row per image.

    Attributes:
        owner: The request it belongs to, ascending.
        sizes: Distinct sizes: width and height in pixels, and the frames of a video (0: an image), shape [S, 3].
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
    """Return the images of requests, from the streams ``image_counts image_sizes image_cache``.

    Args:
        spec: The images of the workload, or of a class.
        num_requests: Number of requests.
        seed: Seed of the run.
        replication: Replication of the run.
        base_path: Folder in which relative paths are looked up before the working folder.
        suffix: Suffix of the streams, for a class with its own images.
        recorded: Images according to a trace; what it does not say is drawn.
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
    """The recordings of some requests, one row per recording.

    Attributes:
        owner: The request it belongs to, ascending.
        seconds: Its length.
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
    """Return the recordings of requests, from the streams ``audio_counts audio_seconds audio_cache``.

    Args:
        spec: The recordings of the workload, or of a class.
        num_requests: Number of requests.
        seed: Seed of the run.
        replication: Replication of the run.
        base_path: Folder in which relative paths are looked up before the working folder.
        suffix: Suffix of the streams, for a class with its own recordings.
        recorded: Recordings according to a trace, with their lengths; None: they are drawn.
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
