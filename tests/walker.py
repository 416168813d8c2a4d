"""One replica of the reference, run on its own: what the engine's kernel is compared with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from simserve.engine.config import EngineConfig
from simserve.engine.state import StepTimes
from simserve.reference.cluster import Cluster
from simserve.reference.kv_memory import Scheduler
from simserve.reference.replica import Pool, Replica, scheduler_of
from simserve.reference.steps import Step, mixed_seconds, uncached_seconds
from simserve.scenario.reference_run import records_of
from simserve.sim.control import Control, RoutingSpec
from simserve.sim.records import STATUSES
from simserve.workload.requests import RequestSpecs

__all__ = ["Outcome", "Walk", "mixed_seconds", "uncached_seconds", "walk"]


@dataclass(frozen=True)
class Outcome:
    """What happened to every request (row i is request i) and to the replica.

    Attributes:
        arrival_time: Seconds; nan if never sent.
        ready_time: Seconds at which the scheduler sees the request; nan if never sent.
        scheduled_time: Start of the step that first holds the request, seconds; nan if none did, as below.
        first_token_time: Seconds.
        finish_time: Seconds; nan for a failed request.
        itl_max: Largest gap between two tokens, seconds.
        num_preemptions: Times the request lost its blocks.
        generated_tokens: Tokens it was given.
        status: ``completed`` or ``failed``.
        is_truncated: Whether the model's limit cut what was asked for.
        num_steps: Steps of the engine.
        gaps: Every gap between two consecutive tokens of one request, seconds.
        batches: Of each step (static: each batch) its start, decoding requests, prefill tokens and indices.
        step_ends: End of each step (static: each batch), seconds.
        deadlines: Static: instants at which a batch would start for having waited long enough, seconds.
        cached_tokens: Of each prompt, found in the prefix cache when it was first admitted.
        closest_estimate: ``estimate``: the nearest that the two sides of the admission test came, tokens.
    """

    arrival_time: np.ndarray
    ready_time: np.ndarray
    scheduled_time: np.ndarray
    first_token_time: np.ndarray
    finish_time: np.ndarray
    itl_max: np.ndarray
    num_preemptions: np.ndarray
    generated_tokens: np.ndarray
    status: list[str]
    is_truncated: np.ndarray
    num_steps: int
    gaps: list[float]
    batches: list[tuple[float, int, int, tuple[int, ...]]]
    step_ends: list[float]
    deadlines: list[float]
    closest_estimate: float
    cached_tokens: np.ndarray


class Walk(Cluster):
    """A cluster of one replica whose steps are noted."""

    def __init__(
        self,
        config: EngineConfig,
        times: StepTimes,
        specs: RequestSpecs,
        make_scheduler: Callable[[EngineConfig, StepTimes], Scheduler] = scheduler_of,
    ) -> None:
        self.batches: list[tuple[float, int, int, tuple[int, ...]]] = []
        self.num_steps, self.step_ends = 0, []
        pool = Pool("", config, times, "both", 1, make_scheduler=make_scheduler)
        super().__init__([pool], Control(routing=RoutingSpec(policy="round_robin")), specs)

    def note_step(self, replica: Replica, step: Step) -> None:
        """Note what a step holds."""
        self.num_steps += step.num_steps
        self.step_ends.append(replica.step_ends)
        tokens = sum(chunk for _, chunk in step.chunks)
        indices = tuple(request.index for request in step.requests)
        self.batches.append((step.start, len(step.decoding), tokens, indices))

    def outcome(self) -> Outcome:
        """Run to the end and return the columns of what happened."""
        self.run()
        (replica,) = self.replicas
        config = replica.pool.config
        ranks, is_late = replica.scheduler.schedulers, config.has_overlap or config.decodes_beyond
        while replica.step is not None or (is_late and any(rank.departing for rank in ranks)):
            # Nobody waits for it, but a step beyond the end of the last answer runs.
            self.clock.step()
        records = records_of(self)
        for scheduler in replica.scheduler.schedulers:
            scheduler.release_departing()
        assert replica.scheduler.is_empty
        config = replica.pool.config
        waits = config.static_max_wait if config.batching == "static" else np.inf
        deadlines = records.admitted_time + waits
        return Outcome(
            arrival_time=records.arrival_time,
            ready_time=np.array([request.ready for request in self.requests]),
            scheduled_time=records.scheduled_time,
            first_token_time=records.first_token_time,
            finish_time=records.finish_time,
            itl_max=records.itl_max,
            num_preemptions=records.num_preemptions,
            generated_tokens=records.output_tokens,
            status=[STATUSES[status] for status in records.status],
            is_truncated=records.is_truncated,
            num_steps=self.num_steps,
            gaps=[gap for request in self.requests for gap in request.gaps],
            batches=self.batches,
            step_ends=self.step_ends,
            deadlines=deadlines[np.isfinite(deadlines)].tolist(),
            closest_estimate=replica.scheduler.closest_estimate,
            cached_tokens=records.cached_tokens,
        )


def walk(config: EngineConfig, times: StepTimes, specs: RequestSpecs) -> Outcome:
    """Serve ``specs`` on one replica, step by step, until nothing is left."""
    return Walk(config, times, without_patience(specs)).outcome()


def without_patience(specs: RequestSpecs) -> RequestSpecs:
    """Return the requests without classes, whose clients wait for ever."""
    return replace(specs, classes=(), request_class=None)
