"""Masks: what is filled behind the GPU shows only where it takes longer, what is not is always seen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simserve.perf.shape import Masks, exposed_mask_seconds
from simserve.perf.tables import price
from tests.perf.shapes import make_shape

WAITED = Masks(share=0.5, mask_seconds=2e-5, advance_seconds=1e-5, is_overlapped=False)
HIDDEN = replace(WAITED, is_overlapped=True)


def test_masks_that_are_waited_for_add_up() -> None:
    """Half of 100 sequences: 50 masks of 20 us, and 50 tokens of 10 us; four times that with three drafts."""
    sequences, gpu = np.array([0.0, 100.0]), np.array([0.0, 1.0])

    assert exposed_mask_seconds(WAITED, sequences, gpu).tolist() == pytest.approx([0.0, 1.5e-3])
    assert exposed_mask_seconds(WAITED, sequences, gpu, 4).tolist() == pytest.approx([0.0, 6e-3])


def test_masks_behind_the_gpu_show_beyond_it() -> None:
    """Of 1 ms of masks, 0.4 ms are left beside 0.6 ms of work; the tokens' 0.5 ms are always seen."""
    sequences, gpu = np.array([100.0, 100.0]), np.array([6e-4, 1.0])

    assert exposed_mask_seconds(HIDDEN, sequences, gpu).tolist() == pytest.approx([9e-4, 5e-4])


def test_nothing_is_added_where_nothing_is_constrained() -> None:
    """Prices are those of a deployment that knows no grammars."""
    plain = make_shape()
    masked = price(replace(plain, masks=WAITED))

    assert exposed_mask_seconds(None, np.ones(3), np.ones(3)).tolist() == [0.0, 0.0, 0.0]
    added = np.array(masked.step_times.decode_base) - np.array(price(plain).step_times.decode_base)
    sequences = np.arange(len(added))
    np.testing.assert_allclose(added, 1.5e-5 * sequences, atol=1e-12)
    assert any("grammars" in note for note in masked.notes)
