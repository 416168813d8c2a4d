"""Recordings drawn: how many each request has, how long, and which of them the encoder knows. Knows no model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simserve import rng
from simserve.workload.audio_spec import AudioSpec
from simserve.workload.lengths import length_distribution

if TYPE_CHECKING:
    from simserve.workload.traces.media import RecordedMedia


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
