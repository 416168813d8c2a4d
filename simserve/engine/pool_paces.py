"""Paces of speculative decoding by pool: what a decode step brings each request on the replicas that it may go to."""

from __future__ import annotations

from collections.abc import Sequence

from simserve.engine.state import RequestTable


class PoolPaces:
    """What pools of their own drafts bring each request.

    Attributes:
        paces: Parts of a token (`simserve.engine.progress`) of each request on the first pool, on the second, ...
        offsets: Of each replica, how many entries lie before those of its pool.
    """

    __slots__ = ("offsets", "paces")

    def __init__(self, paces: Sequence[int], offsets: list[int]) -> None:
        self.paces, self.offsets = paces, offsets


def take_pace(pools: PoolPaces, requests: RequestTable, number: int, index: int) -> None:
    """Let a request gain what it does on the replica that it comes to."""
    requests.pace[index] = pools.paces[pools.offsets[number] + index]
