"""Delivery: when a client has heard the answer it waits for, so that it sends the next request no sooner.

Only for clients that wait for answers. The API server of a replica is a fluid queue here: tokens of a leap come evenly,
and of the last step, which come together, half are before a client's own. What a client then measures is counted
event by event after the run (`simserve.sim.streaming`).
"""

from __future__ import annotations

from simserve.engine.data_parallel import DataParallelReplica, num_decodes_of, num_steps_of, start_time_of
from simserve.engine.outcomes import TIMED_OUT
from simserve.engine.state import COMPLETED, RequestTable


class Delivery:
    """The way of answers from the replicas to their clients.

    Args:
        num_replicas: How many send them.
        network_latency: From a server to its client, seconds.
        cost: Seconds that an event adds to what its API server has to do.
        cost_per_token: The same of a token, where those are sent as they come.
        streams: Whether they are; if not, whole answers are the only events.

    Attributes:
        backlog: Of the API server of each replica, seconds of work, as of ``seen_at``.
        seen_at: When its replica last ended a leap, seconds.
        batch: Seconds of work that a step of that leap made.
    """

    __slots__ = ("backlog", "batch", "cost", "cost_per_token", "network_latency", "seen_at", "streams")

    def __init__(
        self, num_replicas: int, network_latency: float, cost: float, cost_per_token: float, streams: bool
    ) -> None:
        self.streams = streams
        self.network_latency, self.cost, self.cost_per_token = network_latency, cost, cost_per_token
        self.backlog = [0.0] * num_replicas
        self.seen_at = [0.0] * num_replicas
        self.batch = [0.0] * num_replicas


def note_leap(delivery: Delivery, number: int, replica: DataParallelReplica, now: float) -> None:
    """Send what a replica has generated in the leap that ends ``now``, before it is completed.

    Args:
        delivery: The API servers.
        number: Of the replica.
        replica: It.
        now: Seconds.
    """
    num_steps = num_steps_of(replica)
    if not num_steps:
        return
    start = start_time_of(replica)
    idle = max(0.0, start - delivery.seen_at[number])
    backlog = max(0.0, delivery.backlog[number] - idle)
    delivery.batch[number] = delivery.cost_per_token * num_decodes_of(replica)
    work = delivery.batch[number] * num_steps
    delivery.backlog[number] = max(0.0, backlog + work - (now - start))
    delivery.seen_at[number] = now


def seconds_to_client(delivery: Delivery, requests: RequestTable, index: int) -> float:
    """Return how long after its end at the server a client hears of a request."""
    status = requests.status[index]
    if status == TIMED_OUT:
        return 0.0
    number = requests.replica_id[index]
    if status != COMPLETED or number < 0:
        return delivery.network_latency
    waiting = delivery.backlog[number] + 0.5 * delivery.batch[number]
    if not delivery.streams:
        # Whole answers queue behind each other.
        delivery.backlog[number] += delivery.cost
    return delivery.network_latency + waiting + delivery.cost
