"""Prefill and decode workers that fill fixed GPUs, the most promising first.

A pair can do at most what each of its roles can do alone. That is bounded for every shape
(`simserve.planner.search.role_bound`), and simulated beside more than enough of the other role before a pair is passed
on; none of the remaining pairs can do more than the best so far.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from simserve.errors import InfeasibleError, InputError
from simserve.planner.overrides import Overrides
from simserve.planner.scaling import scaled_traffic
from simserve.planner.search.roles import AMPLE, Count, Worker, by_kind, by_kv_format, deployed_pair, workers_of
from simserve.planner.search.search import Search
from simserve.planner.search.trial import DOUBT, FIRST_REQUESTS, try_fleet
from simserve.planner.space.roles import DECODE, FORMAT, GPU, KIND_KEYS, PREFILL, Roles, kind_of
from simserve.scenario.schema import objective

MOST_HALVINGS = 5  # Bisections of the load that workers of a role can sustain alone: to a thirtieth of the range.
MOST_DOUBLINGS = 12
LOOK_REQUESTS = 2 * FIRST_REQUESTS
MOST_PAIRS = 24  # Most pairs to pass on with the knobs unchanged, for each weight format of a prefill worker.


@dataclass(slots=True)
class Rates:
    """Rates that prefill and decode workers reach on fixed GPUs."""

    search: Search  # The search, with its space and goal.
    front: Overrides  # What both roles share.
    roles: Roles  # The shapes.
    offered: float  # Requests a second of the scenario.
    _workers: dict[str, list[Worker]] = field(default_factory=dict)
    _known: dict[tuple[str, str], float] = field(default_factory=dict)

    def pairs(self, best: Callable[[], float]) -> Iterator[dict[str, Any]]:
        """Yield the overrides of pairs that fill the GPUs, until no remaining one could do more than the best.

        Args:
            best: Returns the requests a second that the best so far can sustain.
        """
        self._workers = workers_of(self.search, self.front, self.roles)
        heap = list(self._filling())
        heapq.heapify(heap)
        left = MOST_PAIRS * len({pool.get(FORMAT) for pool in self.roles.prefill})
        while heap and left:
            most, number, pair, is_known = heapq.heappop(heap)
            if -most <= best():
                return
            if not is_known:
                heapq.heappush(heap, (-self._sustained(pair), number, pair, True))
                continue
            left -= 1
            yield deployed_pair(self.roles, self.front, *pair)

    def with_other_knobs(self, overrides: Overrides) -> Iterator[dict[str, Any]]:
        """Yield a pair of shapes and numbers with other knob settings of one role or both."""
        chosen = overrides["deployment.pools"]
        shared = {key: overrides.get(f"deployment.{key}", value) for key, value in self.roles.own.items()}
        kinds = [tuple({**shared, **pool}.get(key) for key in KIND_KEYS) for pool in chosen]
        sides = [
            [each for each in self.roles.shapes(pool["role"]) if kind_of({**shared, **each}) == kind]
            for pool, kind in zip(chosen, kinds, strict=True)
        ]
        for one in sides[0]:
            for other in sides[1]:
                counts = [pool["replicas"] for pool in chosen]
                yield self.roles.deployed(self.front, list(zip((one, other), counts, strict=True)))

    def _filling(self) -> Iterator[tuple[float, int, tuple[Count, Count], bool]]:
        """Yield numbers of each pair of sizes on all of the GPUs, with a lower bound on their negative rate."""
        number = 0
        for workers in by_kv_format(self._workers):
            # One knob setting of each kind: the scenario's own if it fits.
            sides = (by_kind(workers[role], lambda worker: worker.pool) for role in (PREFILL, DECODE))
            for (prefill, *_), (decode, *_) in itertools.product(*sides):
                for count, rest in self._counts(prefill, decode):
                    pair = Count(prefill, count), Count(decode, rest)
                    number += 1
                    yield -min(each.number * each.worker.most_rate for each in pair), number, pair, False

    def _counts(self, prefill: Worker, decode: Worker) -> Iterator[tuple[int, int]]:
        """Yield the numbers of workers that fill the GPUs; with two kinds of GPU, each kind is for one role."""
        there, gpus = self.search.goal.gpus_by_kind, self.search.goal.max_gpus
        if not there:
            for count in range(1, (gpus - decode.gpus) // prefill.gpus + 1):
                yield count, (gpus - count * prefill.gpus) // decode.gpus
            return
        kinds = prefill.pool[GPU], decode.pool[GPU]
        counts = there[kinds[0]] // prefill.gpus, there[kinds[1]] // decode.gpus
        if kinds[0] != kinds[1] and all(counts):
            yield counts

    def _sustained(self, pair: tuple[Count, Count]) -> float:
        """Return a rate that a pair cannot exceed: the lower of the loads at which each role fails alone."""
        return min(
            each.number * self._of_one(role, each.worker) for role, each in zip((PREFILL, DECODE), pair, strict=True)
        )

    def _of_one(self, role: str, worker: Worker) -> float:
        """Return the least rate per worker at which workers of a shape failed beside ample others."""
        key = role, repr(worker.pool)
        if key not in self._known:
            number = max(1, self.search.goal.max_gpus // (2 * worker.gpus))
            self._known[key] = self._failing(role, Count(worker, number)) / number
        return self._known[key]

    def _failing(self, role: str, count: Count) -> float:
        low, high = 0.0, count.number * count.worker.most_rate
        if math.isinf(high):
            high = self.offered
            for _ in range(MOST_DOUBLINGS):
                if not self._holds(role, count, high):
                    break
                low, high = high, 2 * high
        for _ in range(MOST_HALVINGS):
            middle = (low + high) / 2
            if self._holds(role, count, middle):
                low = middle
            else:
                high = middle
        return high

    def _holds(self, role: str, count: Count, rate: float) -> bool:
        """Return whether workers of a role meet the SLO at a rate, beside more than enough of the fastest others."""
        scenario = self.search.space.scenario
        asked, traffic = objective(scenario), scaled_traffic(scenario, rate / self.offered)
        other = DECODE if role == PREFILL else PREFILL
        reading = [each for each in self._workers[other] if each.kv_format == count.worker.kv_format]
        fastest = min(reading, key=lambda each: each.idle_seconds)
        ample = Count(fastest, AMPLE * math.ceil(self.search.goal.max_gpus / fastest.gpus))
        pair = (count, ample) if role == PREFILL else (ample, count)
        try:
            assert traffic is not None  # it has a rate
            link = self.roles.link_of([(count.worker.pool, count.number)])
            overrides = deployed_pair(self.roles, self.front, *pair, link)
            trial = try_fleet(traffic, overrides, count.number + ample.number, LOOK_REQUESTS)
        except (InputError, InfeasibleError):
            return False
        assert asked is not None  # as a plan of throughput requires
        return trial.attainment is not None and trial.attainment >= asked.attainment - DOUBT
