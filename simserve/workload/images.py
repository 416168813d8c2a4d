"""Images drawn: how many each request has, how large, and which of them the encoder knows. Knows no model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simserve import rng
from simserve.workload.image_spec import ImagesSpec
from simserve.workload.lengths import length_distribution

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
