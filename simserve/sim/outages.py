"""Outages: replicas that are down for a while, and since when; what faults and probes share."""

from __future__ import annotations

from collections.abc import Sequence

from simserve.sim.lifecycle import Lifecycle
from simserve.sim.replicas import DOWN, ManagedReplica


class Outages:
    """Takes replicas down and brings them back.

    Args:
        fleet: The replicas.

    Attributes:
        lost_since: When each replica that took no requests went down.
        lost_until: When it was back; as long as it is not, inf.
        num_killed: How many a liveness probe took down.
    """

    def __init__(self, fleet: Lifecycle) -> None:
        self.lost_since: list[float] = []
        self.lost_until: list[float] = []
        self.num_killed = 0
        self._open: dict[int, int] = {}
        self._fleet = fleet

    def lose(self, replicas: Sequence[ManagedReplica], now: float, *, retry: bool) -> None:
        """Lose ready replicas with everything on them; ``retry``: the router sends it elsewhere."""
        # All go before the first one's requests look for another.
        for replica in replicas:
            self._fleet.withdraw(replica, DOWN)
        for replica in replicas:
            self._fleet.lose(replica, now, retry=retry)
            self._open[replica.number] = len(self.lost_since)
            self.lost_since.append(now)
            self.lost_until.append(float("inf"))

    def restore(self, replicas: Sequence[ManagedReplica], now: float) -> None:
        """Bring lost replicas back, but for those that were given back in the meantime."""
        for replica in replicas:
            self.lost_until[self._open.pop(replica.number)] = min(replica.stopped_at, now)
            if replica.state == DOWN:
                self._fleet.ready(replica, now)
