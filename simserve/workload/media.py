"""Draws images and recordings: how many a request has, their sizes, and which are cached. Knows no model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simserve.workload.distributions import Draws, length_distribution
from simserve.workload.media_spec import AudioSpec, ImagesSpec

if TYPE_CHECKING:
    from simserve.workload.traces.media import RecordedMedia

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class DrawnImages:
    """The images of some requests, one row per image."""

    owner: Integers  # The request it belongs to, ascending.
    sizes: Integers
    """Distinct sizes: width and height in pixels, and the frames of a video (0: an image), shape [S, 3]."""
    size: Integers  # Index into ``sizes``.
    is_cached: NDArray[np.bool_]  # Whether the encoder's cache has it.


def draw_images(
    spec: ImagesSpec, num_requests: int, draws: Draws, recorded: RecordedMedia | None = None
) -> DrawnImages:
    """Return the images of requests, from the streams ``image_counts image_sizes image_cache``.

    Args:
        spec: The images of the workload, or of a class.
        num_requests: Number of requests.
        draws: The run's draws, for a class with its own images those of the class.
        recorded: Images according to a trace; what it does not say is drawn.
    """
    counts, is_cached = _counts(spec, "image", num_requests, draws, recorded)
    total = len(is_cached)
    if recorded is not None and recorded.sizes is not None:
        sizes, size = np.unique(recorded.sizes.astype(np.int64), axis=0, return_inverse=True)
        size = size.reshape(total)
    else:
        kinds = spec.sizes or ()
        sizes = np.array([(each.width, each.height, each.frames or 0) for each in kinds], dtype=np.int64)
        edges = np.cumsum([each.weight for each in kinds])
        uniforms = draws.stream("image_sizes").random(total) * edges[-1]
        size = np.minimum(np.searchsorted(edges, uniforms, side="right"), len(kinds) - 1).astype(np.int64)
    return DrawnImages(np.repeat(np.arange(num_requests), counts), sizes, size, is_cached)


def _counts(
    spec: ImagesSpec | AudioSpec, kind: str, num_requests: int, draws: Draws, recorded: RecordedMedia | None
) -> tuple[Integers, NDArray[np.bool_]]:
    """Return the number of images, or recordings, of each request, and whether the encoder's cache has each of them."""
    if recorded is None:
        counting = draws.stream(f"{kind}_counts")
        has_any = counting.random(num_requests) < spec.share
        drawn = length_distribution(spec.count, draws.base_path).sample(counting, num_requests)
        counts = np.where(has_any, drawn, 0)
    else:
        counts = recorded.counts
    return counts, draws.stream(f"{kind}_cache").random(int(counts.sum())) < spec.cached_share


@dataclass(frozen=True, slots=True)
class DrawnAudio:
    """The recordings of some requests, one row per recording."""

    owner: NDArray[np.int64]  # The request it belongs to, ascending.
    seconds: NDArray[np.float64]  # Its length.
    is_cached: NDArray[np.bool_]  # Whether the encoder's cache has it.


def draw_audio(spec: AudioSpec, num_requests: int, draws: Draws, recorded: RecordedMedia | None = None) -> DrawnAudio:
    """Return the recordings of requests, from the streams ``audio_counts audio_seconds audio_cache``.

    Args:
        spec: The recordings of the workload, or of a class.
        num_requests: Number of requests.
        draws: The run's draws, for a class with its own recordings those of the class.
        recorded: Recordings according to a trace, with their lengths; None: they are drawn.
    """
    counts, is_cached = _counts(spec, "audio", num_requests, draws, recorded)
    if recorded is not None and recorded.sizes is not None:
        seconds = recorded.sizes[:, 0]
    else:
        assert spec.seconds is not None
        seconds = draws.lengths(spec.seconds, "audio_seconds", len(is_cached)).astype(np.float64)
    return DrawnAudio(np.repeat(np.arange(num_requests), counts), seconds, is_cached)
