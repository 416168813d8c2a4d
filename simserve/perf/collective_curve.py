"""Seconds of collectives inside a node from fitted curves. Knows messages and ranks, no model.

Monotone in the message; not in the ranks: eight reduce in the switch, four pass a ring.
"""

from __future__ import annotations

import math

import numpy as np

from simserve.perf.efficiency import Array
from simserve.profiles.kernel_curves import AllReduceCurve, TransferCurve

SWITCH_RANKS = 8
"""Ranks from which NCCL reduces in the NVSwitch: at 1 GB the tables of H100 and H200 show 470 GB/s of bus
bandwidth over 8 ranks, more than a ring can, and 333 to 355 over 2 and 4."""


def all_reduce_curve_seconds(curve: AllReduceCurve, num_bytes: Array, num_ranks: int, bandwidth: float) -> Array:
    """Return the seconds of an all-reduce: the least over the algorithms; 0 for one rank.

    One-shot moves ``(n-1) m`` bytes a rank, two-shot and ring ``2 (n-1)/n m``, the switch ``m``.

    Args:
        curve: Constants.
        num_bytes: Message m of a rank.
        num_ranks: Ranks n.
        bandwidth: Link bandwidth a GPU, one direction, bytes/s.
    """
    message = np.asarray(num_bytes, dtype=np.float64)
    if num_ranks < 2:
        return np.zeros_like(message)
    doublings = math.log2(num_ranks)
    ring_bytes = 2.0 * (num_ranks - 1) / num_ranks * message
    two_shot = curve.two_shot_start_per_doubling * doublings + ring_bytes / (bandwidth * curve.two_shot)
    one_shot = (num_ranks - 1) * message / (bandwidth * curve.one_shot)
    least = np.minimum(one_shot, two_shot)
    least = np.minimum(least, curve.ring_start + ring_bytes / (bandwidth * curve.ring))
    if curve.switch is not None and num_ranks >= SWITCH_RANKS:
        least = np.minimum(least, curve.ring_start + message / (bandwidth * curve.switch))
    return np.asarray(curve.start + curve.start_per_doubling * doublings + least)


def transfer_curve_seconds(curve: TransferCurve, num_bytes: Array, num_ranks: int, bandwidth: float) -> Array:
    """Return the seconds of another collective over ``num_bytes`` in all; 0 for one rank.

    A rank sends ``(n-1)/n`` of them in an all-gather, a reduce-scatter and an all-to-all.
    """
    message = np.asarray(num_bytes, dtype=np.float64)
    if num_ranks < 2:
        return np.zeros_like(message)
    doublings = math.log2(num_ranks)
    moved = (num_ranks - 1) / num_ranks * message
    small = moved / (bandwidth * curve.small)
    large = curve.large_start + moved / (bandwidth * curve.large)
    return np.asarray(curve.start + curve.start_per_doubling * doublings + np.minimum(small, large))
