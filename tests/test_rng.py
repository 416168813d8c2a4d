"""Named random streams."""

from __future__ import annotations

import numpy as np
import pytest

from simserve.rng import stream


def test_a_stream_repeats() -> None:
    """Seed, name and replication decide every number."""
    assert stream(3, "arrivals", 2).random(5).tolist() == stream(3, "arrivals", 2).random(5).tolist()


@pytest.mark.parametrize("other", [(4, "arrivals", 2), (3, "lengths", 2), (3, "arrivals", 3)])
def test_another_seed_name_or_replication_is_another_stream(other: tuple[int, str, int]) -> None:
    """Changing one of the three changes the first number already."""
    assert stream(3, "arrivals", 2).random() != stream(*other).random()


def test_a_stream_is_the_same_on_every_platform() -> None:
    """The numbers that results depend on: PCG64 behind SeedSequence, keyed by SHA-256 of the name."""
    assert stream(0, "arrivals").integers(0, 1000, 5).tolist() == [369, 982, 61, 706, 993]


def test_drawing_from_one_stream_moves_no_other() -> None:
    """Streams share no state."""
    untouched = stream(1, "output_tokens").random(3)
    stream(1, "arrivals").random(1_000)

    assert stream(1, "output_tokens").random(3).tolist() == untouched.tolist()


def test_streams_are_uncorrelated() -> None:
    """Neighbouring seeds, replications and names: correlations of 10,000 numbers stay within 4 standard errors."""
    streams = [stream(seed, name, k) for seed in (0, 1) for name in ("a", "b") for k in (0, 1)]
    correlations = np.corrcoef([each.random(10_000) for each in streams])

    off_diagonal = correlations[~np.eye(len(streams), dtype=bool)]
    assert np.abs(off_diagonal).max() < 4 / np.sqrt(10_000)


def test_the_replication_is_zero_unless_given() -> None:
    """A single run is replication 0."""
    assert stream(5, "arrivals").random() == stream(5, "arrivals", 0).random()
