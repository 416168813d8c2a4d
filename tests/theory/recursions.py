"""Waits of given arrivals and services by textbook recursion, for many runs at once. No batch, no event, no leap.

Arrays are shaped ``[num_requests, num_runs]``, first come first served, every run starts empty.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


def one_seat(arrival_time: Floats, num_steps: Integers, step_seconds: float) -> Floats:
    """Return the waits for a single seat: Lindley's ``W' = max(0, W + S - gap)``."""
    service = num_steps * step_seconds
    gaps = np.diff(arrival_time, axis=0)
    waits = np.zeros_like(arrival_time)
    for index in range(1, len(waits)):
        np.maximum(waits[index - 1] + service[index - 1] - gaps[index - 1], 0.0, out=waits[index])
    return waits


def round_robin(arrival_time: Floats, num_steps: Integers, step_seconds: float, num_replicas: int) -> Floats:
    """Return the waits behind one seat each on ``num_replicas``, dealt in turn."""
    waits = np.empty_like(arrival_time)
    for first in range(num_replicas):
        own = slice(first, None, num_replicas)
        waits[own] = one_seat(arrival_time[own], num_steps[own], step_seconds)
    return waits


def shared_seats(arrival_time: Floats, num_steps: Integers, step_seconds: float, num_seats: int) -> Floats:
    """Return the waits for ``num_seats`` of one replica: Kiefer and Wolfowitz, on the replica's clock.

    All seats step together: a request that finds a free seat at a busy replica joins at the next end of a
    step. Steps are counted from the arrival that found the replica idle.
    """
    free_time = np.zeros((arrival_time.shape[1], num_seats))
    clock_start = np.zeros(arrival_time.shape[1])
    waits = np.empty_like(arrival_time)
    for index, now in enumerate(arrival_time):
        is_idle = free_time[:, -1] <= now
        clock_start = np.where(is_idle, now, clock_start)
        next_step = clock_start + np.ceil((now - clock_start) / step_seconds) * step_seconds
        start = np.where(is_idle, now, np.maximum(free_time[:, 0], next_step))
        waits[index] = start - now
        free_time[:, 0] = start + num_steps[index] * step_seconds
        free_time.sort(axis=1)
    return waits
