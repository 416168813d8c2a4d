"""Leaps as the kernel writes them down: one row each, packed into bytes from Python, numbers in compiled code.

A packed row takes a fifth of the memory of eighteen Python numbers, and is an array without looking at each of them.
"""

from __future__ import annotations

from struct import Struct

import numpy as np
from numpy.typing import NDArray

LEAP_FIELDS = (
    "start_time",  # seconds
    "num_steps",
    "first_seconds",  # duration of the first step
    "increment_seconds",  # by how much each further step is longer
    "num_decoding",  # sequences that decode in the step
    "context_tokens",  # their tokens in the KV cache, at the first step
    "prefill_tokens",  # a step
    "num_prefilling",  # requests with a chunk in the step
    "priced_tokens",  # x of StepTimes
    "attended_pairs",  # P of StepTimes, at the first step
    "attended_keys",  # C of StepTimes, at the first step
    "first_gaps",  # requests whose inter-token gap is the first step
    "further_gaps",  # requests whose inter-token gap is each further step
    "held_tokens",  # tokens in the KV cache before the leap
    "used_before",  # KV tokens reserved before the leap
    "used_after",  # KV tokens reserved in its last step
    "waiting_seconds",  # requests waiting, summed over the seconds of the leap
    "blocked_by",  # what kept the head of the queue out
)
LEAP_WIDTH = len(LEAP_FIELDS)

_ROW = Struct("dqddqdqqqddqqdqqdq")
"""Floats, and whole numbers as such: a float is made of neither."""
_END = Struct("dq")
_WHOLE = [position for position, code in enumerate(_ROW.format) if code == "q"]
LEAP_BYTES = _ROW.size
_BLOCK = 256
"""Rows that are turned together: as many as stay in the processor's first cache."""

leap_row = _ROW.pack
"""Return a leap, its fields given in order, as `take_step_runs` reads it."""


def end_row(step_runs: bytearray, waiting_seconds: float, blocked_by: int) -> None:
    """Write the last two fields of the last leap anew."""
    _END.pack_into(step_runs, len(step_runs) - _END.size, waiting_seconds, blocked_by)


def take_step_runs(step_runs: bytearray, rows: NDArray[np.float64]) -> None:
    """Put leaps into ``rows``, shape [fields, leaps], and forget them."""
    turn_into(rows, np.frombuffer(step_runs).reshape(-1, LEAP_WIDTH))
    step_runs.clear()
    for position in _WHOLE:
        rows[position] = rows[position].view(np.int64)


def turn_into(columns: NDArray[np.float64], rows: NDArray[np.float64]) -> None:
    """Write a table, shape [leaps, fields], row by row into columns, shape [fields, leaps]."""
    for start in range(0, len(rows), _BLOCK):
        columns[:, start : start + _BLOCK] = rows[start : start + _BLOCK].T
