"""Tests of the rows in which the kernel writes down its leaps."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from numpy.typing import NDArray

from simserve.engine.state import LEAP_BYTES, LEAP_FIELDS, LEAP_WIDTH, end_row, leap_row, take_step_runs

FIRST = (0.5, 3, 0.01, 1e-5, 2, 70.0, 0, 0, 2, 0, 0.0, 0.0, 2, 2, 70.0, 80, 96, 0.0, 0)
SECOND = (0.75, 1, 0.02, 0.0, 3, 99.0, 512, 1, 515, 8, 1e5, 512.0, 3, 3, 611.0, 640, 2**40, 0.25, 3)


def taken_from(step_runs: bytearray) -> NDArray[np.float64]:
    """Return leaps, shape [fields, leaps], and forget them."""
    rows = np.full((LEAP_WIDTH, len(step_runs) // LEAP_BYTES), np.nan)
    take_step_runs(step_runs, rows)
    return rows


def test_rows_come_back_field_by_field_and_are_forgotten() -> None:
    """Whole numbers and floats alike, in the order in which they were written."""
    step_runs = bytearray()
    for row in (FIRST, SECOND):
        step_runs.extend(leap_row(*row))

    taken = taken_from(step_runs)

    assert taken.tolist() == np.array([FIRST, SECOND]).T.tolist()
    assert not step_runs


def test_many_rows_come_back_in_their_order() -> None:
    """More than are turned together."""
    step_runs = bytearray()
    for number in range(1000):
        step_runs.extend(leap_row(float(number), number, *FIRST[2:]))

    taken = taken_from(step_runs)

    assert taken[0].tolist() == taken[1].tolist() == list(range(1000))


def test_what_is_taken_does_not_change_with_what_is_written_later() -> None:
    """One leap, of which numpy would rather show the bytes than copy them."""
    step_runs = bytearray(leap_row(*FIRST))

    taken = taken_from(step_runs)
    step_runs.extend(leap_row(*SECOND))

    assert taken[:, 0].tolist() == list(FIRST)
    assert len(step_runs) == LEAP_BYTES == 8 * LEAP_WIDTH == 8 * len(LEAP_FIELDS)


def test_the_end_of_the_last_row_is_written_anew() -> None:
    """Who waited is known only when a batch ends; the rows before it stay."""
    step_runs = bytearray(leap_row(*FIRST))
    step_runs.extend(leap_row(*SECOND))

    end_row(step_runs, 7.5, 1)

    assert taken_from(step_runs).tolist() == np.array([FIRST, (*SECOND[:-2], 7.5, 1)]).T.tolist()


def test_a_count_that_is_no_whole_number_is_refused() -> None:
    """It would lose its fraction."""
    with pytest.raises(struct.error):
        leap_row(0.5, 2.5, *FIRST[2:])
