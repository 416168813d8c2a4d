"""Contexts are cut as the launch rules say, and no count falls as work grows."""

from __future__ import annotations

import numpy as np
import pytest

from simserve.perf.thread_blocks import cut_blocks, further_waves, imbalance, is_one_wave, loop_keys

SMS = 132


def test_xqa_cuts_up_to_eight_blocks_a_multiprocessor() -> None:
    """One context of 512 keys: 4 pieces; of 8,192: 22 by the root; a full GPU is not cut."""
    assert cut_blocks(1 / SMS, 512) * SMS == pytest.approx(4)
    assert cut_blocks(1 / SMS, 8192) * SMS == pytest.approx(np.sqrt(8 * 64))
    assert cut_blocks(6.0, 8192) == 8.0
    assert cut_blocks(20.0, 8192) == 20.0
    assert cut_blocks(0.5, 100) == 0.5


def test_mmha_keeps_a_pass_of_keys_a_block() -> None:
    """512 keys of heads of 128; widths are padded to a power of two."""
    assert [float(loop_keys(width)) for width in (64, 80, 128, 192, 256)] == [1024, 512, 512, 256, 256]


def test_most_small_batches_of_mmha_leave_a_second_wave() -> None:
    """Four heads are cut in 33 pieces and fill 132 multiprocessors; eight are cut in 17, which is 136."""
    assert further_waves(4.0, 65536.0, 128.0, SMS) == 0
    assert further_waves(8.0, 65536.0, 128.0, SMS) == 1
    assert is_one_wave(8.0, 8192.0, 128.0, SMS)
    assert further_waves(8.0, 8192.0, 128.0, SMS) == 0
    assert further_waves(2112.0, 64.0, 128.0, SMS) == 3


def test_a_lone_wave_costs_most_where_it_is_nearly_empty() -> None:
    """136 pieces over 132 multiprocessors: 4 of them run alone, 0.7 of a wave late; 64 in three pieces each, less."""
    assert imbalance(4.0, 0.7, SMS) == 1.0
    assert imbalance(8.0, 0.7, SMS) == pytest.approx(1 + (0.7 - 4 / 132) / (136 / 132))
    assert imbalance(64.0, 0.7, SMS) < imbalance(32.0, 0.7, SMS) < imbalance(8.0, 0.7, SMS)
    assert imbalance(500.0, 0.7, SMS) == 1.0


@pytest.mark.parametrize("tail", [0.0, 0.5, 1.0])
def test_time_and_waves_never_fall_with_batch_or_context(tail: float) -> None:
    """Over every batch to 1,200 heads, and contexts to 65,536."""
    blocks, context = np.arange(1.0, 1200.0)[:, None], 2.0 ** np.arange(17)[None, :]
    waves = further_waves(blocks, context, 128.0, SMS)

    assert (np.diff(waves, axis=0) >= 0).all()
    assert (np.diff(waves, axis=1) >= 0).all()
    assert (np.diff(blocks[:, 0] * imbalance(blocks[:, 0], tail, SMS)) >= -1e-12).all()
    assert (np.diff(cut_blocks(blocks / SMS, context), axis=0) >= 0).all()
