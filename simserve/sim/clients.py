"""Closed-loop clients as SimPy processes: each sends its next request when the last one is answered."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import simpy
from numpy.typing import NDArray

from simserve.engine.state import FAILED
from simserve.sim.cluster import Cluster


@dataclass(slots=True)
class ClosedLoop:
    """A population of clients that share one list of requests.

    Times of answers are exact to the last bit: a client reckons from the finish time it is told, not from the
    clock's rounding of it.

    Attributes:
        env: SimPy's clock.
        cluster: Where requests go.
        think_time: Seconds between an answer and the sending of request i, shape [N].
        begins_at: From a client, counted from 0, to when it sends its first request.
        is_over: From when a request would be sent to whether clients have stopped by then.
        frontend_latency: Seconds from sending request i to the scheduler, shape [N].
        arrival_time: Filled with when each request was sent, shape [N].
    """

    env: simpy.Environment
    cluster: Cluster
    think_time: NDArray[np.float64]
    frontend_latency: NDArray[np.float64]
    arrival_time: NDArray[np.float64]
    begins_at: Callable[[int], float]
    is_over: Callable[[float], bool]
    _answers: dict[int, simpy.Event] = field(default_factory=dict)

    def start(self, concurrency: int) -> None:
        """Let ``concurrency`` clients begin, at time 0 or over the ramp-up."""
        self.cluster.listen()
        indices = iter(range(len(self.think_time)))
        for client in range(concurrency):
            index = next(indices, None)
            if index is not None:
                self.env.process(self._client(index, self.begins_at(client), indices))

    def answer(self, indices: list[int]) -> None:
        """Wake the clients whose requests have finished, in this order."""
        for index in indices:
            self._answers.pop(index).succeed(self.cluster.requests.finish_time[index])

    def _client(self, first: int, begins_at: float, indices: Iterator[int]) -> Generator[simpy.Event, Any, None]:
        sent_at, index = begins_at, first
        requests = self.cluster.requests
        if begins_at > 0.0 and not self.is_over(begins_at):
            yield self.env.timeout(begins_at)
        while not self.is_over(sent_at):
            self.arrival_time[index] = sent_at
            ready_time = sent_at + float(self.frontend_latency[index])
            if requests.status[index] == FAILED:
                requests.ready_time[index] = answered_at = ready_time
                yield self.env.timeout(max(ready_time - self.env.now, 0.0))
            else:
                answer = self._answers[index] = self.env.event()
                self.cluster.send(index, ready_time)
                answered_at = yield answer
            following = next(indices, None)
            if following is None:
                return
            index = following
            sent_at = answered_at + float(self.think_time[index])
            if sent_at > self.env.now and not self.is_over(sent_at):
                yield self.env.timeout(sent_at - self.env.now)
