"""Continuous batching whose clients hang up: what a request holds is free after the step that runs."""

from __future__ import annotations

from simserve.engine.config import EngineConfig
from simserve.engine.tables import StepTimes
from simserve.workload.requests import RequestSpecs
from tests.oracle.continuous import ContinuousReplica, Step
from tests.oracle.outcome import Outcome


class CancellingReplica(ContinuousReplica):
    """Every request has a time limit, from its arrival to its last token."""

    def __init__(self, config: EngineConfig, times: StepTimes, specs: RequestSpecs, limits: list[float]) -> None:
        super().__init__(config, times, specs)
        self.limits = limits
        self.num_cancelled = 0

    def complete(self, step: Step, end: float) -> None:
        """End the step, then let go of those who have waited too long; an answer that came too late is none."""
        super().complete(step, end)
        for index, request in self.requests.items():
            deadline = max(request.arrival + self.limits[index], request.ready)
            if deadline > end or request.status in ("failed", "timed_out"):
                continue
            if request.status == "completed" and request.finish <= deadline:
                continue
            if request.status != "completed":
                self.let_go(request)
            request.status, request.finish = "timed_out", deadline
            self.num_cancelled += 1

    def let_go(self, request: object) -> None:
        """Take a request from the queue or from the batch."""
        if request in self.waiting:
            self.waiting.remove(request)
        elif request in self.running:
            self.running.remove(request)
            self.release(request)
        else:
            raise AssertionError("a request is nowhere")


def walk_with_limits(
    config: EngineConfig, times: StepTimes, specs: RequestSpecs, limits: list[float]
) -> tuple[Outcome, int]:
    """Serve ``specs`` whose clients wait ``limits`` seconds; return what happened and how many hung up."""
    replica = CancellingReplica(config, times, specs, limits)
    outcome = replica.run()
    return outcome, replica.num_cancelled
