"""The walker: one replica, one step at a time, as plainly as can be written; it specifies the engine kernel.

It knows no leaps, no heaps of finishes and no closed forms: it looks at every request in every step. It reads
the kernel's inputs (EngineConfig, StepTimes, RequestSpecs) and nothing else of the kernel.
"""

from __future__ import annotations

from simserve.engine.config import EngineConfig
from simserve.engine.tables import StepTimes
from simserve.workload.requests import RequestSpecs
from tests.oracle.continuous import ContinuousReplica
from tests.oracle.lockstep import LockstepRanks
from tests.oracle.outcome import Outcome
from tests.oracle.seconds import mixed_seconds, uncached_seconds
from tests.oracle.static import StaticReplica

__all__ = ["Outcome", "mixed_seconds", "uncached_seconds", "walk"]


def walk(config: EngineConfig, times: StepTimes, specs: RequestSpecs) -> Outcome:
    """Serve ``specs`` on one replica, step by step, until nothing is left."""
    if config.data_parallel_size > 1:
        return LockstepRanks(config, times, specs).run()
    replica = StaticReplica if config.batching == "static" else ContinuousReplica
    return replica(config, times, specs).run()
