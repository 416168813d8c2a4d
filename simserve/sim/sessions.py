"""Conversations: the next turn is sent when the one before it is answered. The data plane calls; no process of SimPy.

A turn that failed is answered too: what follows is sent all the same, and fails in its turn if it must.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from simserve.engine.state import FAILED, Replica, RequestTable
from simserve.workload.requests import RequestSpecs


class Sender(Protocol):
    """Where the turns of conversations go: a cluster, or the clients of a fleet.

    Attributes:
        requests: The table of all requests.
        replicas: Schedulers that must say what they have finished.
        lists_failures: Whether it is told of requests that fail on arrival.
    """

    requests: RequestTable
    replicas: list[Replica]
    lists_failures: bool

    @property
    def unsent(self) -> list[tuple[float, int]]:
        """Requests that were to reach it, and have not: their times and indices."""

    def send(self, index: int, ready_time: float) -> None:
        """Let one request arrive at ``ready_time``."""


class Sessions:
    """The conversations of a run, open or in a closed loop.

    In a closed loop ``concurrency`` clients hold one conversation after another; they begin at 0, or over the ramp-up.

    Args:
        cluster: Where requests go.
        specs: Requests with ``turn``; those of a conversation stand side by side, by turn.
        frontend_latency: Seconds from sending request i to the scheduler, shape [N].
        arrival_time: Filled with when each request was sent, shape [N].

    Attributes:
        num_begun: Closed loop: requests of the conversations that have begun.
        num_idle: Closed loop: clients that begin no further one.
    """

    def __init__(
        self,
        cluster: Sender,
        specs: RequestSpecs,
        frontend_latency: NDArray[np.float64],
        arrival_time: NDArray[np.float64],
    ) -> None:
        assert specs.session is not None
        assert specs.turn is not None
        self.num_begun = self.num_idle = 0
        self._cluster = cluster
        self._concurrency, self._begins_at, self._is_over = specs.concurrency, specs.begins_at, specs.is_over
        self._latency, self._arrival_time = frontend_latency, arrival_time
        self._think_time: list[float] = specs.think_time.tolist()
        # Requests of one turn of one conversation are a group; groups of a conversation are consecutive.
        is_first = np.ones(len(specs), dtype=bool)
        is_first[1:] = (np.diff(specs.session) != 0) | (np.diff(specs.turn) != 0)
        self._group: list[int] = (np.cumsum(is_first) - 1).tolist()
        starts = np.flatnonzero(is_first)
        self._edges: list[int] = [*starts.tolist(), len(specs)]
        self._unanswered: list[int] = np.diff(self._edges).tolist()
        self._begins: list[bool] = [*(specs.turn[starts] == 1).tolist(), True]
        self._beginnings = iter([number for number, begins in enumerate(self._begins[:-1]) if begins])

    def start(self) -> None:
        """Open loop: send the first turns at their times; closed: those that find a client, when it begins."""
        self._cluster.lists_failures = True
        for replica in self._cluster.replicas:
            replica.finished = []
        if self._concurrency is None:
            for group in self._beginnings:
                self._send(group, float(self._arrival_time[self._edges[group]]))
            return
        for client in range(self._concurrency):
            self._begin_next(self._begins_at(client), thinks=False)

    def answer(self, indices: Sequence[int], heard_at: float | None = None) -> None:
        """Send what follows on requests that ended at this instant, in this order.

        Args:
            indices: The requests.
            heard_at: When their clients know; None: when they ended.
        """
        requests = self._cluster.requests
        for index in indices:
            group = self._group[index]
            self._unanswered[group] -= 1
            if self._unanswered[group]:
                continue
            failed = requests.status[index] == FAILED
            ended_at = requests.ready_time[index] if failed else requests.finish_time[index]
            ended_at = ended_at if heard_at is None else heard_at
            if not self._begins[group + 1]:
                self._send(group + 1, ended_at, thinks=True)
            elif self._concurrency is not None:
                self._begin_next(ended_at, thinks=True)

    def forget_unsent(self) -> None:
        """Take back the arrival of what was to be sent, but was not by the time the run ended."""
        for _, index in self._cluster.unsent:
            self._arrival_time[index] = self._cluster.requests.ready_time[index] = np.nan

    def _begin_next(self, time: float, *, thinks: bool) -> None:
        group = next(self._beginnings, None)
        if group is not None:
            first = self._edges[group]
            if not self._is_over(time + self._think_time[first] if thinks else time):
                self.num_begun += self._edges[self._begins.index(True, group + 1)] - first
                self._send(group, time, thinks=thinks)
                return
        self.num_idle += 1

    def _send(self, group: int, time: float, *, thinks: bool = False) -> None:
        for index in range(self._edges[group], self._edges[group + 1]):
            sent_at = time + self._think_time[index] if thinks else time
            self._arrival_time[index] = sent_at
            self._cluster.send(index, sent_at + float(self._latency[index]))
