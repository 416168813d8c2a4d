"""Seconds of communication between the GPUs of one replica: all-reduce, all-gather, point to point."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from simserve.perf.efficiency import COLLECTIVE_SHARE, Array
from simserve.profiles.kernel_curves import AllReduceCurve, CollectiveCurves, TransferCurve

NETWORK_RING_SHARE = 0.7
"""Share of the network's bandwidth a GPU that the rings of all-gathers and reduce-scatters over nodes reach."""

NETWORK_RING_HOP = 3.3e-6
"""Seconds from one rank of such a ring to the next. Both fitted to decode steps and prompts of DeepSeek-R1 with
data-parallel attention over 16 H100 in two nodes (InferenceX, TensorRT-LLM 1.2, 9 servers; 400 Gbit/s a GPU)."""

LOW_LATENCY_SHARE = 0.5
"""Share of a link's bandwidth that NCCL's low-latency protocol leaves to data: each word travels with a flag of its
size."""

SIMPLE_START = 2.2
"""Times as long that an all-reduce by NCCL's other protocol takes to start. Fitted to all-reduces over two V100 on PCIe
(APEX+ collective tables, MIT; 19 sizes, 0.5 % in the median and 4.5 % at most), tested over four (6.2 and 13.8 %). One
start and one bandwidth for all sizes are up to 33 and 38 % too fast, between 16 KB and 1 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The slowest link that a group of GPUs talks over.

    Attributes:
        bandwidth: Bytes/s a GPU, one direction.
        latency: Seconds of an all-reduce too small for the bandwidth to matter, over ``reference_ranks``
        GPUs, a network between them crossed once.
        network_latency: What of it is the network, which an all-reduce crosses twice: up the tree, and down again
        (NCCL's double binary trees); 0: the GPUs are in one node.
        reference_ranks: Ranks that ``latency`` is stated for.
        skew: Seconds that ranks reach a collective apart, for each doubling of their number.
        curves: Fitted collectives of this link; none: latency and bandwidth.
        engine: Whose all-reduce of them.
        is_pcie: Whether NCCL reduces over PCIe, by the quicker of its two protocols.
        host_from: Bytes from which an all-reduce also crosses the host link once.
        host_bandwidth: Of that link, bytes/s.
    """

    bandwidth: float
    latency: float
    network_latency: float = 0.0
    reference_ranks: int = 8
    skew: float = 0.0
    curves: CollectiveCurves | None = None
    engine: str = ""
    is_pcie: bool = False
    host_from: float = math.inf
    host_bandwidth: float = math.inf


def ring_bandwidth_seconds(num_bytes: Array | float, num_ranks: int, bandwidth: float) -> Array:
    """Return the bandwidth part of an all-reduce, ``2 (n-1)/n bytes / bandwidth`` (Patarasuk, Yuan 2009)."""
    return np.asarray(2.0 * (num_ranks - 1) / num_ranks * np.asarray(num_bytes, dtype=np.float64) / bandwidth)


def all_reduce_latency(num_ranks: int, link: Link) -> float:
    """Return the seconds of an all-reduce of next to nothing; 0 for one rank.

    ``(latency + network latency) * (1 + log2 n) / (1 + log2 reference) + skew * log2 n``: a fixed start, the depth of a
    tree, and the wait for the last rank. The first term is 2 to 5 us for 2 to 8 ranks on NVLink (AIConfigurator tables,
    H200, CUDA graphs).
    """
    if num_ranks < 2:
        return 0.0
    depth = math.log2(num_ranks)
    reference = math.log2(max(link.reference_ranks, 2))
    latency = link.latency + link.network_latency
    return latency * (1.0 + depth) / (1.0 + reference) + link.skew * depth


def all_reduce_seconds(num_bytes: Array, num_ranks: int, link: Link) -> Array:
    """Return the seconds of an all-reduce; 0 for one rank.

    The fitted curve and the wait for the last rank, or ``latency(n) + 2 (n-1)/n bytes / bandwidth``.
    """
    if link.curves is not None and num_ranks > 1:
        kernel = all_reduce_curve_seconds(link.curves.all_reduce_of(link.engine), num_bytes, num_ranks, link.bandwidth)
        over_host = np.where(num_bytes >= link.host_from, num_bytes / link.host_bandwidth, 0.0)
        return np.asarray(kernel + over_host + link.skew * math.log2(num_ranks))
    transfer = ring_bandwidth_seconds(num_bytes, num_ranks, link.bandwidth * COLLECTIVE_SHARE)
    start = all_reduce_latency(num_ranks, link)
    if not link.is_pcie:
        return start + transfer
    later = (SIMPLE_START - 1) * (start - link.skew * math.log2(max(num_ranks, 1)))
    return start + np.minimum(transfer / LOW_LATENCY_SHARE, later + transfer)


def all_gather_seconds(num_bytes: Array, num_ranks: int, link: Link) -> Array:
    """Return the seconds until every rank holds all ``num_bytes``; 0 for one rank.

    The fitted curve and the wait for the last rank, or half the traffic of an all-reduce.
    """
    return _transfer_seconds("all_gather", num_bytes, num_ranks, link)


def reduce_scatter_seconds(num_bytes: Array, num_ranks: int, link: Link) -> Array:
    """Return the seconds until every rank holds its share of the sum of ``num_bytes``; 0 for one rank.

    As `all_gather_seconds`: the same traffic the other way.
    """
    return _transfer_seconds("reduce_scatter", num_bytes, num_ranks, link)


def _transfer_seconds(
    operation: Literal["all_gather", "reduce_scatter"], num_bytes: Array, num_ranks: int, link: Link
) -> Array:
    curve = link.curves.transfer_of(operation) if link.curves is not None else None
    if curve is not None and num_ranks > 1:
        kernel = transfer_curve_seconds(curve, num_bytes, num_ranks, link.bandwidth)
        return np.asarray(kernel + link.skew * math.log2(num_ranks))
    share, hops = COLLECTIVE_SHARE, 0.0
    if link.network_latency:
        share, hops = NETWORK_RING_SHARE, NETWORK_RING_HOP * (num_ranks - 1)
    transfer = ring_bandwidth_seconds(num_bytes, num_ranks, link.bandwidth * share) / 2.0
    return all_reduce_latency(num_ranks, link) + hops + transfer


def point_to_point_seconds(num_bytes: Array, link: Link) -> Array:
    """Return the seconds of one message to the next pipeline stage; it starts like an all-reduce of two."""
    return all_reduce_latency(2, link) + num_bytes / (link.bandwidth * COLLECTIVE_SHARE)


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
