"""Cluster: replicas behind a router, advanced event by event to the next decision.

It is the data plane (`simserve.engine.data_plane`) with what gathers in it; every decision over time is left to
SimPy's side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from simserve.engine.compiled.run import Compiled, Drive
from simserve.engine.conversations import Conversations
from simserve.engine.data_plane import CHORES, DataPlane, driver
from simserve.engine.kernel import complete, plan, seen_time, submit
from simserve.engine.leaps import LEAP_BYTES
from simserve.engine.lockstep import Ranks, complete_ranks, plan_ranks, seen_by_ranks, submit_to_rank
from simserve.engine.routing import Router
from simserve.engine.state import STATIC, Replica, RequestTable
from simserve.sim.recorder import FLUSH_ROWS, Recorder
from simserve.sim.routing_spec import TOKEN_POLICIES, RoutingPolicy, RoutingSpec

Routing = RoutingPolicy
_drive_replicas = driver(submit, complete, plan, seen_time)
_drive_ranks = driver(submit_to_rank, complete_ranks, plan_ranks, seen_by_ranks)


class Cluster:
    """Replicas, what is on its way to them, and the router between them.

    Args:
        replicas: At least one; those of a replica that steps in lockstep stand side by side.
        requests: The table of all requests of the run.
        recorder: Takes the leaps.
        routing: How requests are spread.
        router: What chooses that way (`simserve.sim.routing.plain_router`).
        on_progress: Called now and then with the number of requests that have finished.
        num_ranks: How many of ``replicas`` step together as one replica.
    """

    def __init__(
        self,
        replicas: list[Replica],
        requests: RequestTable,
        recorder: Recorder,
        routing: RoutingSpec,
        router: Router,
        on_progress: Callable[[int], None] | None = None,
        num_ranks: int = 1,
    ) -> None:
        self.replicas = replicas
        starts = range(0, len(replicas), num_ranks)
        # What the router sees: replicas, or the ranks of one together.
        units: list[Any] = list(replicas)
        self._drive = _drive_replicas
        if num_ranks > 1:
            units = [Ranks(replicas[at : at + num_ranks]) for at in starts]
            self._drive = _drive_ranks
        self._plane = DataPlane(
            units,
            router,
            weighs_tokens=routing.policy in TOKEN_POLICIES,
            renew_interval=routing.update_interval,
            schedules_ahead=replicas[0].config.async_scheduling and replicas[0].mode != STATIC,
        )
        if self._plane.notes_finishes:
            self._note_finishes()
        self.requests = requests
        self._recorder = recorder
        self._on_progress = on_progress
        self._compiled: Compiled | None = None

    def accelerate(self, drive: Drive | None) -> None:
        """Let compiled code drive from now on, before the first step; None: nothing changes."""
        if drive is not None:
            self._compiled = Compiled(drive, self._plane, self.replicas, self.requests)

    @property
    def num_arrived(self) -> int:
        """Open loop: requests that have arrived so far."""
        return self._plane.cursor if self._compiled is None else self._compiled.num_arrived

    @property
    def unsent(self) -> list[tuple[float, int]]:
        """Requests that were to reach the cluster, and have not: their times and indices."""
        return list(self._plane.sent) if self._compiled is None else self._compiled.unsent

    def _note_finishes(self) -> None:
        self._plane.notes_finishes = True
        for unit in self._plane.units:
            unit.finished = []
            for rank in unit.ranks if isinstance(unit, Ranks) else ():
                rank.finished = unit.finished

    def converse(self, conversations: Conversations, sent: Iterable[tuple[float, int]]) -> None:
        """Hold conversations; before it is accelerated.

        Args:
            conversations: They.
            sent: Which requests are sent first, and when they reach the router.
        """
        self._note_finishes()
        self._plane.conversations = conversations
        # Sorted, it is a heap.
        self._plane.sent = sorted(sent)
        for ready_time, index in self._plane.sent:
            self.requests.ready_time[index] = ready_time

    def schedule_all(self) -> None:
        """Open loop: every request of the table arrives at its ``ready_time`` (ascending); before it is accelerated."""
        self._plane.num_scheduled = len(self.requests.ready_time)

    def drive(self, until: float) -> None:
        """Advance to ``until`` (exclusive), or until nothing is left to do."""
        plane, requests, compiled = self._plane, self.requests, self._compiled
        while (self._drive(plane, requests, until) if compiled is None else compiled.drive(until)) == CHORES:
            self._do_chores()

    def _do_chores(self) -> None:
        """Hand long lists of leaps to the recorder, and tell how far the run is."""
        if self._compiled is not None:
            self._recorder.flush_compiled(self._compiled, FLUSH_ROWS)
        else:
            limit = FLUSH_ROWS * LEAP_BYTES
            for replica in self.replicas:
                if len(replica.leaps) >= limit:
                    self._recorder.flush(replica)
        if self._on_progress is not None:
            self._on_progress(self._plane.num_finished if self._compiled is None else self._compiled.num_finished)

    def flush(self) -> None:
        """Hand all leaps to the recorder."""
        if self._compiled is not None:
            self._recorder.flush_compiled(self._compiled, 1)
            return
        for replica in self.replicas:
            self._recorder.flush(replica)


def end_of(requests: RequestTable) -> float:
    """Return the last instant at which anything happened to a request, seconds."""
    columns = (np.frombuffer(requests.ready_time), np.frombuffer(requests.finish_time))
    last = float(np.fmax.reduce([np.fmax.reduce(column, initial=np.nan) for column in columns]))
    return 0.0 if np.isnan(last) else last
