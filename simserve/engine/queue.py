"""OrderedQueue: waiting requests by priority or by size instead of by arrival. Knows no blocks and no clock.

It has the methods of the deque that the kernel uses for first come, first served, so that the kernel need not know
which of the two it has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simserve.engine.config import EngineConfig


class OrderedQueue:
    """A heap of ``(rank, ready time, index)``; the smallest is the head.

    The rank is fixed while a request waits. ``priority``: its priority, the smallest first, plus with ageing its
    arrival time divided by `EngineConfig.priority_ageing`: waiting that long outweighs one level, whenever two are
    compared. ``shortest_first``: prompt plus ``max_tokens``, the part of its size that is known before it runs.

    Attributes:
        ranks: Rank of every request, before ageing.
        ageing: Rank per second of waiting: it is added for the time at which a request came.
    """

    __slots__ = ("_heap", "_ready_time", "ageing", "ranks")

    def __init__(
        self,
        config: EngineConfig,
        ready_time: Sequence[float],
        priority: Sequence[int],
        prompt_tokens: Sequence[int],
        max_tokens: Sequence[int],
    ) -> None:
        self._heap: list[tuple[float, float, int]] = []
        self._ready_time = ready_time
        self.ranks: Sequence[float] = priority
        self.ageing = 0.0
        if config.scheduling_policy == "shortest_first":
            self.ranks = [a + b for a, b in zip(prompt_tokens, max_tokens, strict=True)]
        elif config.priority_ageing:
            self.ageing = 1.0 / config.priority_ageing

    def append(self, index: int) -> None:
        """Queue a request at its place in the order."""
        heappush(self._heap, (self.rank(index), self._ready_time[index], index))

    appendleft = append

    def requeue(self, index: int, time: float) -> None:
        """Queue a request after those of its rank that came before ``time``."""
        heappush(self._heap, (self.rank(index), time, index))

    def rank(self, index: int) -> float:
        """Return the rank of a request, which orders it before its ready time does."""
        return self.ranks[index] + self._ready_time[index] * self.ageing

    def popleft(self) -> int:
        """Remove and return the head."""
        return heappop(self._heap)[2]

    def remove(self, index: int) -> None:
        """Remove a request, wherever it is.

        Raises:
            ValueError: It does not wait here.
        """
        position = [entry[2] for entry in self._heap].index(index)
        del self._heap[position]
        heapify(self._heap)

    def __len__(self) -> int:
        """Return how many requests wait."""
        return len(self._heap)

    def __getitem__(self, position: int) -> int:
        """Return the head, at position 0: no other position is in order."""
        return self._heap[position][2]

    def __iter__(self) -> Iterator[int]:
        """Yield the waiting requests, the head first."""
        return (entry[2] for entry in sorted(self._heap))
