"""Seconds of communication between GPUs: all-reduce, all-gather, point to point, and the all-to-all of experts.

The all-to-all uses DeepEP or NVLink: tokens go to the ranks that hold their experts, sums return. Its constants are
fitted by `calibration.laboratory.fits.exchange_fit` and `nvlink_exchange_fit`. Knows tokens, ranks and links, no model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from simserve.perf.efficiency import COLLECTIVE_SHARE, Array
from simserve.profiles.kernel_curves import AllReduceCurve, CollectiveCurves, TransferCurve

ExchangeMode = Literal["deepep_low_latency", "deepep_high_throughput", "nvlink_one_sided", "nvlink_two_sided"]
"""DeepEP's kernels: a message for each expert of a token, or one for each node and rank that holds any of them.
TensorRT-LLM's over NVLink between hosts (MNNVL): one for each rank that holds any, written into its memory by the
sender, or after both have agreed on its place."""
All2AllBackend = Literal[
    "allgather_reducescatter", "deepep_low_latency", "deepep_high_throughput", "nvlink_one_sided", "nvlink_two_sided"
]
"""How tokens reach the ranks that hold their experts: every rank gets all, or an exchange sends each to its ranks."""
NETWORK_RING_SHARE = 0.7
"""Share of the network bandwidth per GPU that the rings of all-gathers and reduce-scatters over nodes reach."""
NETWORK_RING_HOP = 3.3e-6
"""Seconds from one rank of such a ring to the next. Both fitted to decode steps and prompts of DeepSeek-R1 with
data-parallel attention over 16 H100 in two nodes (InferenceX, TensorRT-LLM 1.2, 9 servers; 400 Gbit/s a GPU)."""
HOST_SKEWS = {"sglang": 30e-6}
"""Engine -> further seconds between the arrivals of ranks of several hosts at an all-reduce, compared with one host.
Fitted to the TPOT and tokens/s of DeepSeek-R1 under SGLang over 16 H100 in two nodes (InferenceX, 33 servers: TPOT -12
-> -0 %). In nccl-tests over two nodes, whose ranks start together, it is absent (37 to 58 us for 16 KB, 58 priced).
TensorRT-LLM has none there (20 servers); others were not measured over two nodes."""
LOW_LATENCY_SHARE = 0.5
"""Share of a link's bandwidth that NCCL's low-latency protocol leaves to payload: each word is sent with a flag of the
same size."""
SIMPLE_START = 2.2
"""Factor on the start-up of an all-reduce by NCCL's other protocol. Fitted to all-reduces over two V100 on PCIe (APEX+
collective tables, MIT; 19 sizes, 0.5 % in the median and 4.5 % at most), tested over four (6.2 and 13.8 %). A single
start and bandwidth for all sizes are up to 33 and 38 % too fast, between 16 KB and 1 MB."""
RING_START = 6.6e-6
"""Seconds of an all-reduce by NCCL's low-latency protocol before its first hop, of which a ring or chain of n ranks has
2 (n - 1) (NVIDIA/nccl src/graph/tuning.cc, baseLat; 3.6 in versions before NVLS trees). Between cards without NVLink
hops are slow enough to count: two V100 take 12 us and four 23, 2.7 a hop both times (APEX+ collective tables, MIT). RTX
PRO 6000 take 19.0 us for 16 KB over four, 37.6 over eight, and 58.7 over eight in a captured step (nccl-tests of a
public report on Kimi-Linear-48B, 2026-09, calibration/unseen)."""
SWITCH_RANKS = 8
"""Ranks from which NCCL reduces in the NVSwitch: at 1 GB the tables of H100 and H200 show 470 GB/s of bus
bandwidth over 8 ranks, more than a ring can, and 333 to 355 over 2 and 4."""
NCCL = "nccl"  # Whose all-reduce a GPU's curves name so.
ALIGNED_BYTES = 16
"""Bytes of which an all-reduce by SGLang's own kernel is a multiple (custom_all_reduce.py, should_custom_ar). vLLM's
has the same rule, but kernels of its own for such sums in its later releases, which was not looked at."""
SCALE_BLOCK, SCALE_BYTES = 128, 4.0
"""Elements that share a scale of a token sent in FP8, and bytes per scale: MXFP8's, one byte per 32, total the same."""
FP4_TOKEN_BYTES = 0.5625  # Bytes per element of a token sent in FP4, with its scale of one byte per 16.
COMBINED_BYTES = 2.0  # Bytes per element on the way back: sums travel in BF16.
EXCHANGING_MULTIPROCESSORS: dict[str, int] = {"deepep_low_latency": 0, "deepep_high_throughput": 20}
"""Multiprocessors that an exchange takes from the arithmetic beside it: low latency leaves its messages to the network
cards, high throughput ran on DeepEP's default of 20 in the fitted rows. Only DeepEP's overlap with arithmetic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The slowest link over which a group of GPUs communicates."""

    bandwidth: float  # Bytes/s per GPU, one direction.
    latency: float
    """Seconds of an all-reduce too small for the bandwidth to matter, over ``reference_ranks`` GPUs, with a network
    between them crossed once."""
    network_latency: float = 0.0
    """The network's part of it, which an all-reduce crosses twice: up the tree, and down again (NCCL's double binary
    trees); 0: the GPUs are in one node."""
    reference_ranks: int = 8  # Number of ranks to which ``latency`` refers.
    skew: float = 0.0  # Seconds between the arrivals of ranks at a collective, per doubling of their number.
    curves: CollectiveCurves | None = None  # Fitted collectives of this link; None: latency and bandwidth.
    engine: str = ""  # Engine whose all-reduce is taken from them.
    is_pcie: bool = False  # Whether NCCL reduces over PCIe, by the faster of its two protocols.
    is_ring: bool = False  # Whether the latency of an all-reduce grows with every rank, not with their doublings.
    host_from: float = math.inf  # Bytes from which an all-reduce also crosses the host link once.
    host_bandwidth: float = math.inf  # Bandwidth of that link, bytes/s.
    host_skew: float = 0.0  # Further seconds between the arrivals of ranks of several hosts at an all-reduce.


def ring_bandwidth_seconds(num_bytes: Array | float, num_ranks: int, bandwidth: float) -> Array:
    """Return the bandwidth part of an all-reduce, ``2 (n-1)/n bytes / bandwidth`` (Patarasuk, Yuan 2009)."""
    return np.asarray(2.0 * (num_ranks - 1) / num_ranks * np.asarray(num_bytes, dtype=np.float64) / bandwidth)


def all_reduce_latency(num_ranks: int, link: Link) -> float:
    """Return the seconds of an all-reduce of almost nothing; 0 for one rank.

    ``(latency + network latency) * (1 + log2 n) / (1 + log2 reference) + skew * log2 n``: a fixed start, the depth of a
    tree, and the wait for the last rank. The first term is 2 to 5 us for 2 to 8 ranks on NVLink (AIConfigurator tables,
    H200, CUDA graphs). In a ring it is ``start + (latency - start) * (n - 1) / (reference - 1)``.
    """
    if num_ranks < 2:
        return 0.0
    depth, reference_ranks = math.log2(num_ranks), max(link.reference_ranks, 2)
    latency = link.latency + link.network_latency
    if link.is_ring:
        start = min(RING_START, latency)
        return start + (latency - start) * (num_ranks - 1) / (reference_ranks - 1) + link.skew * depth
    return latency * (1.0 + depth) / (1.0 + math.log2(reference_ranks)) + link.skew * depth


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
        return start + transfer + (link.host_skew if num_ranks > 1 else 0.0)
    later = (SIMPLE_START - 1) * (start - link.skew * math.log2(max(num_ranks, 1)))
    return start + np.minimum(transfer / LOW_LATENCY_SHARE, later + transfer)


def sums_seconds(num_bytes: Array, num_ranks: int, link: Link, *, is_aligned: bool) -> Array:
    """Return the seconds of an all-reduce of a few numbers a token; 0 for one rank.

    Args:
        num_bytes: Their bytes.
        num_ranks: Ranks.
        link: Link between the ranks.
        is_aligned: Whether the engine's kernel takes multiples of `ALIGNED_BYTES` alone; NCCL has what it refuses.
    """
    own = all_reduce_seconds(num_bytes, num_ranks, link)
    if not is_aligned:
        return own
    others = all_reduce_seconds(num_bytes, num_ranks, replace(link, engine=NCCL))
    return np.where(num_bytes % ALIGNED_BYTES > 0, np.maximum(own, others), own)


def all_gather_seconds(num_bytes: Array, num_ranks: int, link: Link) -> Array:
    """Return the seconds until every rank holds all ``num_bytes``; 0 for one rank.

    The fitted curve and the wait for the last rank, or half the traffic of an all-reduce.
    """
    return _transfer_seconds("all_gather", num_bytes, num_ranks, link)


def reduce_scatter_seconds(num_bytes: Array, num_ranks: int, link: Link) -> Array:
    """Return the seconds until every rank holds its share of the sum of ``num_bytes``; 0 for one rank.

    As `all_gather_seconds`: the same traffic in the other direction.
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


def all_reduce_curve_seconds(curve: AllReduceCurve, num_bytes: Array, num_ranks: int, bandwidth: float) -> Array:
    """Return the seconds of an all-reduce: the least over the algorithms; 0 for one rank.

    One-shot moves ``(n-1) m`` bytes per rank, two-shot and ring ``2 (n-1)/n m``, the switch ``m``.

    Args:
        num_bytes: Message m per rank.
        num_ranks: Ranks n.
        bandwidth: Link bandwidth per GPU, one direction, bytes/s.
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


@dataclass(frozen=True, slots=True)
class ExchangeCurve:
    """One direction of an exchange.

    ``start + network_start + start_per_doubling log2(nodes) + max(bytes inside the node, bytes between nodes)`` over
    their bandwidths; the second and third terms only if ranks span nodes. Over NVLink alone the doublings are of ranks.
    """

    start: float  # Seconds of an empty exchange in one node.
    network_start: float  # Further seconds if it spans nodes.
    start_per_doubling: float  # Further seconds for each doubling of the nodes, or of the ranks over NVLink alone.
    local_share: float  # Share of the bandwidth reached inside a node.
    network_share: float  # Share of the network bandwidth reached per GPU.


CURVES: dict[ExchangeMode, dict[Literal["dispatch", "combine"], ExchangeCurve]] = {
    "deepep_low_latency": {
        "dispatch": ExchangeCurve(14.65e-6, 2.28e-6, 3.82e-6, 0.553, 0.956),
        "combine": ExchangeCurve(11.21e-6, 13.0e-6, 0.79e-6, 0.463, 0.927),
    },
    "deepep_high_throughput": {
        "dispatch": ExchangeCurve(33.79e-6, 0.0, 29.34e-6, 0.567, 0.906),
        "combine": ExchangeCurve(48.58e-6, 22.18e-6, 26.08e-6, 0.475, 0.885),
    },
    "nvlink_one_sided": {
        "dispatch": ExchangeCurve(12.68e-6, 0.0, 1.52e-6, 0.705, 0.0),
        "combine": ExchangeCurve(11.35e-6, 0.0, 3.65e-6, 0.739, 0.0),
    },
    "nvlink_two_sided": {
        "dispatch": ExchangeCurve(22.34e-6, 0.0, 1.19e-6, 0.570, 0.0),
        "combine": ExchangeCurve(8.47e-6, 0.0, 1.57e-6, 0.565, 0.0),
    },
}
"""DeepEP between H100 with eight per node and one 400 Gbit/s port per GPU (AIConfigurator tables, Apache-2.0, SGLang
0.5.6, 256 and 288 experts; high throughput on 20 multiprocessors). NVLink: GB200 in one NVL72, one-sided 2 to 32 ranks,
two-sided 8 to 64 (TensorRT-LLM 1.2.0rc6 in the same tables; the preparing call counts as part of the dispatch). Errors
on left-out numbers of nodes and ranks are in calibration/attention_collectives.md."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeLinks:
    """Links over which ranks exchange tokens."""

    num_ranks: int  # Ranks that share the experts.
    ranks_per_node: int  # Number of them in one node.
    local_bandwidth: float  # Bytes/s per GPU inside a node, one direction.
    network_bandwidth: float  # Bytes/s per GPU between nodes.

    @property
    def num_nodes(self) -> int:
        """Nodes that the ranks span."""
        return -(-self.num_ranks // self.ranks_per_node)


def dispatched_bytes(hidden_size: float, *, element_bytes: float = 1.0) -> float:
    """Return the bytes of one token on its way to an expert: FP4 or FP8 with scales, or 16 bit.

    Args:
        hidden_size: Elements of the token.
        element_bytes: Bytes per element, without scales; below 1: FP4, from 2: 16 bit.
    """
    if element_bytes >= COMBINED_BYTES:
        return hidden_size * COMBINED_BYTES
    return hidden_size * (1.0 + SCALE_BYTES / SCALE_BLOCK if element_bytes >= 1.0 else FP4_TOKEN_BYTES)


def exchange_seconds(
    mode: ExchangeMode, curve: ExchangeCurve, tokens: Array, token_bytes: float, chosen: int, links: ExchangeLinks
) -> Array:
    """Return the seconds of one direction of an exchange; 0 for one rank.

    Args:
        tokens: Tokens per rank.
        token_bytes: Bytes per token.
        chosen: Experts per token.
    """
    count = np.asarray(tokens, dtype=np.float64)
    if links.num_ranks < 2:
        return np.zeros_like(count)
    local, remote = messages(mode, chosen, links)
    inside = local * token_bytes / (links.local_bandwidth * curve.local_share) if local else 0.0
    start, nodes, between = curve.start, links.num_nodes, 0.0
    if mode.startswith("nvlink"):
        start += curve.start_per_doubling * math.log2(links.num_ranks)
    elif nodes > 1:
        start += curve.network_start + curve.start_per_doubling * math.log2(nodes)
        between = remote * token_bytes / (links.network_bandwidth * curve.network_share)
    return np.asarray(start + count * max(inside, between))


def messages(mode: ExchangeMode, chosen: int, links: ExchangeLinks) -> tuple[float, float]:
    """Return the copies of a token that cross NVLink and the network, with experts drawn uniformly.

    Low latency: one for each expert on another rank, over NVLink in its own node and over the network beyond. High
    throughput: one to each other node that holds one of its experts, from where NVLink carries it to each rank there; a
    rank forwards as many tokens of others as it sends. Over NVLink alone: one to each other rank that holds any of its
    experts. Between nodes of one GPU nothing crosses NVLink.
    """
    ranks, nodes, k = links.num_ranks, links.num_nodes, chosen
    if mode == "deepep_low_latency":
        same = min(links.ranks_per_node, ranks)
        return k * (same - 1) / ranks, k * (ranks - same) / ranks
    reached = nodes * (1.0 - (1.0 - 1.0 / nodes) ** k)
    targets = ranks * (1.0 - (1.0 - 1.0 / ranks) ** k)
    inside = targets * (1.0 - 1.0 / ranks) if links.ranks_per_node > 1 else 0.0
    return inside, 0.0 if mode.startswith("nvlink") else reached * (1.0 - 1.0 / nodes)
