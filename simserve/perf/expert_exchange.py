"""Seconds of experts' all-to-all by DeepEP or over NVLink: tokens to the ranks that hold their experts, sums back.

Knows tokens, ranks and links, no model. The constants are fitted by
`calibration.laboratory.fits.exchange_fit` and `nvlink_exchange_fit`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from simserve.perf.efficiency import Array

ExchangeMode = Literal["deepep_low_latency", "deepep_high_throughput", "nvlink_one_sided", "nvlink_two_sided"]
"""DeepEP's kernels: a message for each expert of a token, or one for each node and rank that holds any of them.
TensorRT-LLM's over NVLink between hosts (MNNVL): one for each rank that holds any, which the sender writes into its
memory, or for which both agree first where it goes."""

All2AllBackend = Literal[
    "allgather_reducescatter", "deepep_low_latency", "deepep_high_throughput", "nvlink_one_sided", "nvlink_two_sided"
]
"""How tokens reach the ranks that hold their experts: every rank gets all, or an exchange sends each where it goes."""

SCALE_BLOCK, SCALE_BYTES = 128, 4.0
"""Elements that share a scale of a token sent in FP8, and bytes of a scale: MXFP8's, one byte for 32, are as many."""

FP4_TOKEN_BYTES = 0.5625
"""Bytes of an element of a token sent in FP4, with its scale of a byte for 16."""

COMBINED_BYTES = 2.0
"""Bytes of an element on the way back: sums travel in BF16."""


@dataclass(frozen=True, slots=True)
class ExchangeCurve:
    """One direction of an exchange.

    ``start + network_start + start_per_doubling log2(nodes) + max(bytes inside the node, bytes between nodes)`` over
    their bandwidths; the second and third only where ranks span nodes. Over NVLink alone the doublings are of ranks.

    Attributes:
        start: Seconds of an exchange of nothing in one node.
        network_start: Further seconds once it spans nodes.
        start_per_doubling: Further seconds for each doubling of the nodes, or of the ranks over NVLink alone.
        local_share: Share of the bandwidth inside a node that it reaches.
        network_share: Share of the network's bandwidth a GPU.
    """

    start: float
    network_start: float
    start_per_doubling: float
    local_share: float
    network_share: float


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
"""DeepEP between H100 with eight to a node and one 400 Gbit/s port a GPU (AIConfigurator tables, Apache-2.0, SGLang
0.5.6, 256 and 288 experts; high throughput on 20 multiprocessors). NVLink: GB200 in one NVL72, one-sided 2 to 32 ranks,
two-sided 8 to 64 (TensorRT-LLM 1.2.0rc6 in the same tables; the call that prepares counts as a part of the dispatch).
Errors on numbers of nodes and ranks left out in calibration/attention_collectives.md."""


EXCHANGING_MULTIPROCESSORS: dict[str, int] = {"deepep_low_latency": 0, "deepep_high_throughput": 20}
"""Multiprocessors that an exchange keeps from the arithmetic beside it: low latency leaves its messages to the network
cards, high throughput ran on DeepEP's default of 20 in the fitted rows. Only DeepEP's run beside arithmetic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeLinks:
    """What ranks exchange tokens over.

    Attributes:
        num_ranks: Ranks that share the experts.
        ranks_per_node: Of them, those in one node.
        local_bandwidth: Bytes/s a GPU inside a node, one direction.
        network_bandwidth: Bytes/s a GPU between nodes.
    """

    num_ranks: int
    ranks_per_node: int
    local_bandwidth: float
    network_bandwidth: float

    @property
    def num_nodes(self) -> int:
        """Nodes that the ranks span."""
        return -(-self.num_ranks // self.ranks_per_node)


def dispatched_bytes(hidden_size: float, *, element_bytes: float = 1.0) -> float:
    """Return the bytes of one token on the way to an expert: FP4 or FP8 with its scales, or 16 bit.

    Args:
        hidden_size: Its elements.
        element_bytes: Of one of them, without scales; below 1: FP4, from 2 on: 16 bit.
    """
    if element_bytes >= COMBINED_BYTES:
        return hidden_size * COMBINED_BYTES
    return hidden_size * (1.0 + SCALE_BYTES / SCALE_BLOCK if element_bytes >= 1.0 else FP4_TOKEN_BYTES)


def exchange_seconds(
    mode: ExchangeMode, curve: ExchangeCurve, tokens: Array, token_bytes: float, chosen: int, links: ExchangeLinks
) -> Array:
    """Return the seconds of one direction of an exchange; 0 for one rank.

    Args:
        mode: Kernels.
        curve: Their constants in this direction.
        tokens: Tokens of each rank.
        token_bytes: Bytes of one of them.
        chosen: Experts of a token.
        links: What they travel over.
    """
    count = np.asarray(tokens, dtype=np.float64)
    if links.num_ranks < 2:
        return np.zeros_like(count)
    local, remote = messages(mode, chosen, links)
    inside = local * token_bytes / (links.local_bandwidth * curve.local_share)
    start, nodes, between = curve.start, links.num_nodes, 0.0
    if mode.startswith("nvlink"):
        start += curve.start_per_doubling * math.log2(links.num_ranks)
    elif nodes > 1:
        start += curve.network_start + curve.start_per_doubling * math.log2(nodes)
        between = remote * token_bytes / (links.network_bandwidth * curve.network_share)
    return np.asarray(start + count * max(inside, between))


def messages(mode: ExchangeMode, chosen: int, links: ExchangeLinks) -> tuple[float, float]:
    """Return the copies of a token that cross NVLink and the network, experts being drawn alike.

    Low latency: one for each expert on another rank, over NVLink in its own node and over the network beyond.
    High throughput: one to each other node that holds one of its experts, from where NVLink takes it to each rank
    there; a rank forwards as many tokens of others as it sends. Over NVLink alone: one to each other rank that holds
    any.
    """
    ranks, nodes, k = links.num_ranks, links.num_nodes, chosen
    if mode == "deepep_low_latency":
        same = min(links.ranks_per_node, ranks)
        return k * (same - 1) / ranks, k * (ranks - same) / ranks
    reached = nodes * (1.0 - (1.0 - 1.0 / nodes) ** k)
    targets = ranks * (1.0 - (1.0 - 1.0 / ranks) ** k)
    return targets * (1.0 - 1.0 / ranks), 0.0 if mode.startswith("nvlink") else reached * (1.0 - 1.0 / nodes)
