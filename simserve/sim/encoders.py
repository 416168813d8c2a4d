"""Encoders: a SimPy process that keeps an encoder pool at the size that its load asks for, and its workers' lives.

The plane gives images to the workers whose column says when they are free (`simserve.engine.clients`); one that takes
nothing is free never.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
import simpy
from numpy.typing import NDArray

from simserve.engine.clients import Clients
from simserve.sim.autoscaler import Stabilization, replicas_for
from simserve.sim.control import EncoderAutoscalingSpec


def _shared(column: Any) -> NDArray[np.float64]:
    """Return a column of the plane as an array of the same memory."""
    return np.frombuffer(column, dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderLives:
    """When the workers of an encoder pool were there, a row a worker.

    Attributes:
        launched_at: Seconds; paid for from then on.
        stopped_at: When it was given back and had encoded what it was given; inf: never.
    """

    launched_at: NDArray[np.float64]
    stopped_at: NDArray[np.float64]

    def mean(self, start: float, end: float) -> float:
        """Return the mean number of workers that are paid for between two instants."""
        if not end > start:
            return float(np.count_nonzero((self.launched_at <= start) & (self.stopped_at > start)))
        overlap = np.minimum(self.stopped_at, end) - np.maximum(self.launched_at, start)
        return float(np.clip(overlap, 0.0, None).sum()) / (end - start)

    def most(self, end: float) -> int:
        """Return the most workers that are paid for at once, until ``end``."""
        launches = self.launched_at[self.launched_at <= end]
        return max(
            (
                int(np.count_nonzero((launches <= each) & (self.stopped_at[: len(launches)] > each)))
                for each in launches
            ),
            default=0,
        )


@dataclass(slots=True, kw_only=True)
class _Worker:
    """A worker; ``place`` in the columns of the plane once it is ready."""

    launched_at: float
    place: int | None = None
    stopped_at: float = inf
    busy_before: float = 0.0


class EncoderAutoscaler:
    """Keeps an encoder pool at the size that its metric asks for.

    Args:
        spec: The rules.
        startup_seconds: From the launch of a worker to its first image.
        clients: What the plane knows of the workers; as many take images as are there at the start.
        env: SimPy's clock.
    """

    def __init__(
        self, spec: EncoderAutoscalingSpec, startup_seconds: float, clients: Clients, env: simpy.Environment
    ) -> None:
        self._spec, self._startup_seconds, self._env = spec, startup_seconds, env
        # Compiled code fills these columns where they are.
        self._free_at = _shared(clients.encoders)
        self._given = _shared(clients.encoder_given)
        self._starts = _shared(clients.encoder_starts)
        self._num_seen, self._later = 0, np.array([], dtype=np.float64)
        self._stabilization = Stabilization(spec)
        places = np.flatnonzero(np.isfinite(self._free_at)).tolist()
        self._workers = [_Worker(launched_at=0.0, place=place) for place in places]

    @property
    def lives(self) -> EncoderLives:
        """When each worker was there, in the order of their launch."""
        return EncoderLives(
            launched_at=np.array([each.launched_at for each in self._workers]),
            stopped_at=np.array([each.stopped_at for each in self._workers]),
        )

    def run(self) -> Generator[simpy.Event, Any, None]:
        """Look at the metric for ever."""
        while True:
            yield self._env.timeout(self._spec.interval)
            self._scale(self._env.now)

    def _scale(self, now: float) -> None:
        present = [each for each in self._workers if each.stopped_at == inf]
        wanted = replicas_for(self._level(present, now), len(present), self._spec.target, is_used=True)
        asked, most = self._stabilization.ask(wanted, now)
        for _ in range(asked - len(present)):
            self._workers.append(_Worker(launched_at=now))
            self._env.process(self._start(self._workers[-1]))
        if asked <= len(present):
            for worker in self._least_needed(present, now)[: max(len(present) - most, 0)]:
                self._give_back(worker, now)

    def _level(self, present: list[_Worker], now: float) -> float:
        """Return the metric, summed over the workers."""
        if self._spec.metric == "busy":
            return sum(self._busy_share(each, now) for each in present)
        num_given = int(np.count_nonzero(np.isfinite(self._starts[self._num_seen :])))
        later = np.concatenate([self._later, self._starts[self._num_seen : self._num_seen + num_given]])
        self._num_seen += num_given
        self._later = later[later > now]
        return float(len(self._later))

    def _busy_share(self, worker: _Worker, now: float) -> float:
        """Return the share of the interval in which a worker encoded; one is busy without a pause until it is free."""
        if worker.place is None:
            return 0.0
        busy = self._given[worker.place] - max(self._free_at[worker.place] - now, 0.0)
        before, worker.busy_before = worker.busy_before, busy
        return min(float(busy - before) / self._spec.interval, 1.0)

    def _least_needed(self, present: list[_Worker], now: float) -> list[_Worker]:
        """Return workers in the order in which they go: those that start, then those with the least to do."""
        left = [0.0 if each.place is None else max(self._free_at[each.place] - now, 0.0) for each in present]
        order = sorted(range(len(present)), key=lambda each: (present[each].place is not None, left[each], -each))
        return [present[each] for each in order]

    def _start(self, worker: _Worker) -> Generator[simpy.Event, Any, None]:
        yield self._env.timeout(self._startup_seconds)
        if worker.stopped_at == inf:
            worker.place = int(np.flatnonzero(np.isinf(self._free_at))[0])
            self._free_at[worker.place] = self._env.now
            worker.busy_before = float(self._given[worker.place])

    def _give_back(self, worker: _Worker, now: float) -> None:
        worker.stopped_at = now
        if worker.place is not None:
            worker.stopped_at = max(float(self._free_at[worker.place]), now)
            self._free_at[worker.place] = inf
