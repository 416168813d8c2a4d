"""Delivery: when a client has heard the answer it waits for, so that it sends the next request no sooner.

Only for clients that wait for answers. The API server of a replica is a fluid queue here: tokens of a leap come evenly,
and of the last step, which come together, half are before a client's own. What a client then measures is counted
event by event after the run (`simserve.sim.streaming`).
"""

from __future__ import annotations

from simserve.engine.state import COMPLETED, RequestTable
from simserve.sim.records import TIMED_OUT
from simserve.sim.streaming_spec import StreamingSpec
from simserve.sim.units import Unit


class Delivery:
    """The way of answers from the replicas to their clients.

    Args:
        spec: How tokens are sent.
        requests: The table of all requests.
    """

    def __init__(self, spec: StreamingSpec, requests: RequestTable) -> None:
        self._spec, self._requests = spec, requests
        self._cost = spec.cost_per_event / spec.api_servers
        self._cost_per_token = self._cost / spec.buffer_tokens if spec.stream else 0.0
        self._backlog: dict[int, float] = {}
        self._seen_at: dict[int, float] = {}
        self._batch: dict[int, float] = {}

    def note_leap(self, unit: Unit, now: float) -> None:
        """Send what a replica has generated in the leap that ends ``now``, before it is completed."""
        replica, number = unit.replica, unit.number
        if not replica.num_steps:
            return
        idle = max(0.0, replica.start_time - self._seen_at.get(number, 0.0))
        backlog = max(0.0, self._backlog.get(number, 0.0) - idle)
        self._batch[number] = self._cost_per_token * replica.num_scheduled_decodes
        work = self._batch[number] * replica.num_steps
        self._backlog[number] = max(0.0, backlog + work - (now - replica.start_time))
        self._seen_at[number] = now

    def seconds(self, index: int) -> float:
        """Return how long after its end at the server a client hears of it."""
        status = self._requests.status[index]
        if status == TIMED_OUT:
            return 0.0
        number = self._requests.replica_id[index]
        if status != COMPLETED or number < 0:
            return self._spec.network_latency
        waiting = self._backlog.get(number, 0.0) + 0.5 * self._batch.get(number, 0.0)
        if not self._spec.stream:
            # Whole answers are the only events; they queue behind each other.
            self._backlog[number] = self._backlog.get(number, 0.0) + self._cost
        return self._spec.network_latency + waiting + self._cost
