"""Encoders: the workers of an encoder pool, what each has been given, and how their number follows the load."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simserve.reference.clock import Clock, Steps
    from simserve.sim.control import EncoderAutoscalingSpec

TOLERANCE = 0.1
"""Deviation from the target that changes nothing (Kubernetes, ``--horizontal-pod-autoscaler-tolerance``)."""


@dataclass(eq=False)
class Encoder:
    """One worker.

    Attributes:
        launched_at: When it was launched, seconds.
        place: The place that it has among those that take images; None: it does not.
        stopped_at: When it was given back and done; inf: it was not.
        jobs: Start and end of everything that it was given, seconds.
        since: When it was free for the first time: before that it does nothing.
    """

    launched_at: float
    place: int | None = None
    stopped_at: float = math.inf
    jobs: list[tuple[float, float]] = field(default_factory=list)
    since: float = 0.0

    @property
    def free_at(self) -> float:
        """When it is done with all it was given."""
        return self.jobs[-1][1] if self.jobs else self.since


class Encoders:
    """The workers of an encoder pool.

    Args:
        clock: The time.
        num_workers: How many there are at the start.
    """

    def __init__(self, clock: Clock, num_workers: int) -> None:
        self.clock = clock
        self.workers = [Encoder(0.0, place) for place in range(num_workers)]
        self.asked: list[tuple[float, int]] = []

    @property
    def taking(self) -> list[Encoder]:
        """Those that take images, by place."""
        return sorted((one for one in self.workers if one.place is not None), key=lambda one: one.place or 0)

    def give(self, seconds: float, num_parts: int) -> list[tuple[float, float]]:
        """Give equal parts of some work to the workers that are free soonest; return when each part starts and ends."""
        taking, given = self.taking, []
        num_parts = min(num_parts, len(taking))
        for _ in range(num_parts):
            worker = min(taking, key=lambda one: one.free_at)
            start = max(worker.free_at, self.clock.now)
            worker.jobs.append((start, start + seconds / num_parts))
            given.append(worker.jobs[-1])
        return given

    def follow(self, spec: EncoderAutoscalingSpec, startup_seconds: float) -> Steps:
        """Keep the number of workers at what the metric asks for (a SimPy process)."""
        while True:
            yield self.clock.timeout(spec.interval)
            self.scale(spec, startup_seconds, self.clock.now)

    def scale(self, spec: EncoderAutoscalingSpec, startup_seconds: float, now: float) -> None:
        """Grow at once; shrink to the most that was asked for within the stabilisation window."""
        present = [one for one in self.workers if one.stopped_at == math.inf]
        if spec.metric == "busy":
            level = sum(self.busy_share(one, now, spec.interval) for one in present)
        else:
            level = float(sum(start > now for one in self.workers for start, _ in one.jobs))
        asked = len(present)
        if abs(level / (spec.target * len(present)) - 1) > TOLERANCE:
            asked = math.ceil(level / spec.target)
        asked = min(max(asked, spec.min_replicas), spec.max_replicas)
        self.asked = [each for each in self.asked if each[0] >= now - spec.stabilization] + [(now, asked)]
        most = max(each for _, each in self.asked)
        for _ in range(asked - len(present)):
            self.workers.append(Encoder(now))
            self.clock.process(self.start_up(self.workers[-1], startup_seconds))
        if asked <= len(present):
            # Those that start go first, then those with the least to do, the newest of them.
            newest_first = present[::-1]
            order = sorted(newest_first, key=lambda one: (one.place is not None, max(one.free_at - now, 0.0)))
            for worker in order[: max(len(present) - most, 0)]:
                worker.stopped_at = now if worker.place is None else max(worker.free_at, now)
                worker.place = None

    def start_up(self, worker: Encoder, seconds: float) -> Steps:
        """Let a launched worker take images after a time, unless it was given back meanwhile."""
        yield self.clock.timeout(seconds)
        if worker.stopped_at == math.inf:
            taken = {one.place for one in self.workers}
            worker.place = next(place for place in range(len(self.workers)) if place not in taken)
            worker.since = self.clock.now

    @staticmethod
    def busy_share(worker: Encoder, now: float, interval: float) -> float:
        """Return the share of the interval in which a worker encoded."""
        begin = now - interval
        return sum(max(min(end, now) - max(start, begin), 0.0) for start, end in worker.jobs) / interval
