"""OrderedQueue: waiting requests by priority or by size instead of by arrival. Knows no blocks and no clock.

It has the methods of the deque that the kernel uses for first come, first served, so that the kernel does not ask
which of the two it holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simserve.engine.config import EngineConfig


class OrderedQueue:
    """A heap of ``(rank, ready time, index)``; the smallest is the head.

    The rank is fixed while a request waits. ``priority``: its priority, the smaller the sooner, plus with ageing
    the time at which it came over `EngineConfig.priority_ageing`: waiting so long outweighs one level, whenever two are
    compared. ``shortest_first``: prompt plus ``max_tokens``, what is known of its size before it runs.

    Attributes:
        ranks: Of every request, before ageing.
        ageing: What a second of waiting takes off a rank: it is added for the time at which a request came.
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
        """Queue a request where it belongs."""
        heappush(self._heap, (self.rank(index), self._ready_time[index], index))

    appendleft = append

    def requeue(self, index: int, time: float) -> None:
        """Queue a request behind those of its rank that came before a time."""
        heappush(self._heap, (self.rank(index), time, index))

    def rank(self, index: int) -> float:
        """Return what a request is ordered by before its ready time."""
        return self.ranks[index] + self._ready_time[index] * self.ageing

    def popleft(self) -> int:
        """Return the head and take it out."""
        return heappop(self._heap)[2]

    def remove(self, index: int) -> None:
        """Take a request out, wherever it stands.

        Raises:
            ValueError: It does not wait here.
        """
        position = [entry[2] for entry in self._heap].index(index)
        del self._heap[position]
        heapify(self._heap)

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._heap)

    def __getitem__(self, position: int) -> int:
        """Return the head, 0, the only position that has an order of its own."""
        return self._heap[position][2]

    def __iter__(self) -> Iterator[int]:
        """Yield those who wait, the head first."""
        return (entry[2] for entry in sorted(self._heap))
