"""RecordedMedia: the images, or recordings, of requests according to a trace, and their columns. Knows no model."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simserve.errors import TraceError
from simserve.workload.dependencies import ranges

MEDIA_COLUMNS = ("num_images", "image_sizes", "audio_seconds")  # Columns of a table about them.
MOST_PIECES = 1_000  # Most images, or recordings, of one row.
MOST_PIXELS, MOST_SECONDS, MOST_FRAMES = 100_000, 1_000_000, 10_000
"""Most pixels on a side of an image, seconds of a recording, and frames of a video."""
_SIZE = re.compile(r"(\d{1,6})\s*[xX*]\s*(\d{1,6})(?:\s*[xX*]\s*(\d{1,6}))?")
Refusal = Callable[[int, str, str, str | None], TraceError]


@dataclass(frozen=True, slots=True)
class RecordedMedia:
    """The images, or the recordings, of some requests."""

    counts: NDArray[np.int64]  # Number in each request, int64, shape [N].
    sizes: NDArray[np.float64] | None = None
    """Sizes of all of them, in the order of the requests, float64: width and height in pixels and the frames of a
    video (0: an image), shape [M, 3], or seconds, shape [M, 1]; None: the trace gives only their numbers."""

    def of_rows(self, rows: NDArray[np.int64]) -> RecordedMedia:
        """Return those of some requests, in that order."""
        counts = self.counts[rows]
        if self.sizes is None:
            return RecordedMedia(counts)
        first = np.cumsum(self.counts) - self.counts
        return RecordedMedia(counts, self.sizes[ranges(first[rows], counts)])

    def first(self, num_requests: int) -> RecordedMedia:
        """Return those of the first requests."""
        return self.of_rows(np.arange(min(num_requests, len(self.counts))))

    def frozen(self) -> RecordedMedia:
        """Return the same with read-only arrays."""
        for column in (self.counts, self.sizes):
            if column is not None:
                column.flags.writeable = False
        return self


def read_media(
    columns: Mapping[str, Sequence[str]], error: Refusal, unit: float
) -> tuple[RecordedMedia | None, RecordedMedia | None]:
    """Return the images and the recordings in the columns of a table; None for each that no column describes.

    A row with empty cells has none. A cell contains one value, or several separated by semicolons.

    Args:
        columns: Cells of those `MEDIA_COLUMNS` that the table has.
        error: Makes the error about a cell from its row (counted from 0), its column, the rule and the remedy.
        unit: Seconds per unit of ``audio_seconds``.

    Raises:
        TraceError: A cell does not fit its column, or the number of images in a row differs from its number of sizes.
    """
    counts = _counts(columns["num_images"], error) if "num_images" in columns else None
    images = None if counts is None else RecordedMedia(counts)
    if "image_sizes" in columns:
        images = _pieces("image_sizes", columns["image_sizes"], error, 1.0)
        if counts is not None and (counts != images.counts).any():
            index = int(np.flatnonzero(counts != images.counts)[0])
            rule = f"is not the number of the row's image sizes, {images.counts[index]}"
            raise error(index, "num_images", rule, None)
    audio = None
    if "audio_seconds" in columns:
        audio = _pieces("audio_seconds", columns["audio_seconds"], error, unit)
    return images, audio


def _counts(cells: Sequence[str], error: Refusal) -> NDArray[np.int64]:
    found = np.zeros(len(cells), dtype=np.int64)
    for index, cell in enumerate(cells):
        try:
            value = float(cell) if cell.strip() else 0.0
        except ValueError:
            value = -1.0
        if not (0 <= value <= MOST_PIECES and value.is_integer()):
            rule = f"is not a whole number of images, {MOST_PIECES:,} at most"
            raise error(index, "num_images", rule, "name the column that counts images: --columns num_images=NAME")
        found[index] = int(value)
    return found


def _pieces(what: str, cells: Sequence[str], error: Refusal, unit: float) -> RecordedMedia:
    read, width, rule, remedy = _KINDS[what]
    counts, sizes = np.zeros(len(cells), dtype=np.int64), list[tuple[float, ...]]()
    for index, cell in enumerate(cells):
        for part in filter(None, (each.strip() for each in cell.split(";"))):
            size = read(part, unit)
            counts[index] += 1
            if size is None or counts[index] > MOST_PIECES:
                raise error(index, what, rule, remedy)
            sizes.append(size)
    return RecordedMedia(counts, np.array(sizes, dtype=np.float64).reshape(len(sizes), width))


def _pixels(part: str, _unit: float) -> tuple[float, ...] | None:
    match = _SIZE.fullmatch(part)
    if match is None or not all(1 <= int(side) <= MOST_PIXELS for side in match.groups()[:2]):
        return None
    if match[3] is not None and not 2 <= int(match[3]) <= MOST_FRAMES:
        return None
    return float(match[1]), float(match[2]), float(match[3] or 0)


def _audio_seconds(part: str, unit: float) -> tuple[float, ...] | None:
    try:
        seconds = float(part) * unit
    except ValueError:
        return None
    return (seconds,) if 0 < seconds <= MOST_SECONDS else None


_KINDS: Mapping[str, tuple[Callable[[str, float], tuple[float, ...] | None], int, str, str]] = {
    "image_sizes": (
        _pixels,
        3,
        f"is not a list of sizes of images, {MOST_PIECES:,} at most, of {MOST_PIXELS:,} pixels a side at most",
        "write width x height, of a video x frames, several with semicolons: 1920x1080; 1280x720x64",
    ),
    "audio_seconds": (
        _audio_seconds,
        1,
        f"is not a list of lengths of recordings, {MOST_PIECES:,} at most, of {MOST_SECONDS:,} s each at most",
        "write seconds, several with semicolons: 12.5; 30",
    ),
}
"""Column -> parser of a value (None: invalid), numbers per value, the rule that invalid ones break, the remedy."""
