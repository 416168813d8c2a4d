"""FairQueue: requests that wait in front of the replicas, and which tenant's turn it is. Knows no replica.

The virtual token counter of Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024), with its weights of
1 a prompt token and 2 a generated one. Prompts are charged when a request leaves the queue, answers when they end:
before that nobody in front of the replicas knows how long they are.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Iterator

from simserve.engine.door import Finishes, end_pause, note_finishes
from simserve.engine.state import RequestTable
from simserve.sim.fairness_spec import FairnessSpec
from simserve.workload.requests import RequestSpecs

_OUTPUT_WEIGHT = 2.0


class FairQueue:
    """A queue for each class, served by least service for its share.

    Args:
        spec: The shares.
        requests: The table of all requests.
        specs: What arrives, with its classes.

    Attributes:
        service: What each class has had, prompt tokens plus twice the generated ones; index: of the class.
    """

    def __init__(self, spec: FairnessSpec, requests: RequestTable, specs: RequestSpecs) -> None:
        assert specs.request_class is not None, "checked where the scenario was resolved"
        self._requests = requests
        self._class_of: list[int] = specs.request_class.tolist()
        self._shares = [spec.shares[each.name] for each in specs.classes]
        self._queues: list[OrderedDict[int, None]] = [OrderedDict() for _ in specs.classes]
        self._counters = [0.0] * len(specs.classes)
        self._last_emptied = 0.0
        self._paces = [Finishes(0.0) for _ in specs.classes]
        self.service = [0.0] * len(specs.classes)

    def __len__(self) -> int:
        """Return how many requests wait."""
        return sum(map(len, self._queues))

    def __iter__(self) -> Iterator[int]:
        """Go through those that wait, class by class."""
        return itertools.chain.from_iterable(self._queues)

    def waiting_of(self, index: int) -> int:
        """Return how many requests of the same class as this one wait."""
        return len(self._queues[self._class_of[index]])

    def seconds_before(self, index: int) -> float:
        """Return how long a request would wait: behind those of its class, at the pace at which their turns come."""
        own = self._class_of[index]
        return len(self._queues[own]) * self._paces[own].interval

    def begin_wait(self, index: int, now: float) -> None:
        """Note that the class of a request begins to wait, if nobody of it does."""
        own = self._class_of[index]
        if not self._queues[own]:
            end_pause(self._paces[own], now)

    def take_turn(self, index: int, now: float) -> None:
        """Let a request go whose turn it is."""
        self.remove(index)
        note_finishes(self._paces[self._class_of[index]], 1, 0, now)

    def append(self, index: int) -> None:
        """Let a request wait, behind those of its class."""
        own = self._class_of[index]
        if not self._queues[own]:
            self._lift(own)
        self._queues[own][index] = None

    def remove(self, index: int) -> None:
        """Take a request out, wherever it stands."""
        own = self._class_of[index]
        del self._queues[own][index]
        if not self._queues[own]:
            self._last_emptied = self._counters[own]

    def in_turn(self) -> list[int]:
        """Return the first of each class that waits, whose turn it is first."""
        waiting = [number for number, queue in enumerate(self._queues) if queue]
        waiting.sort(key=lambda number: (self._counters[number], number))
        return [next(iter(self._queues[number])) for number in waiting]

    def charge_prompt(self, index: int) -> None:
        """Count a prompt that goes to a replica."""
        self._charge(index, float(self._requests.prompt_tokens[index]))

    def charge_answer(self, index: int) -> None:
        """Count what was generated for a request that has come to its end."""
        self._charge(index, _OUTPUT_WEIGHT * self._requests.generated_tokens[index])

    def _charge(self, index: int, tokens: float) -> None:
        own = self._class_of[index]
        self.service[own] += tokens
        self._counters[own] += tokens / self._shares[own]

    def _lift(self, own: int) -> None:
        """Let a class that was away start level with those that wait: turns are not saved up."""
        others = [counter for counter, queue in zip(self._counters, self._queues, strict=True) if queue]
        self._counters[own] = max(self._counters[own], min(others, default=self._last_emptied))
