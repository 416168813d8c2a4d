"""PoolRun: what runs of pools have in common, whichever plane serves them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from simserve.engine.state import RequestTable
from simserve.sim.acceleration import Accelerate
from simserve.sim.control import Control
from simserve.sim.own_parts import OwnParts
from simserve.sim.pools import PoolOutcome, PoolSetup, outcomes_of
from simserve.sim.records import RequestRecords
from simserve.sim.sessions import forget_unsent
from simserve.sim.step_log import StepLog
from simserve.sim.streaming import Clocks, joined
from simserve.sim.timeline import FleetTimeline
from simserve.sim.units import Pool
from simserve.workload.requests import RequestSpecs


class PoolRun(ABC):
    """Replicas, their clients and what decides between them, ready to run.

    Args:
        control: What decides.
        setups: The pools; with disaggregation, those that prefill and those that decode.
        specs: What arrives.
        latency: Seconds from sending to the router, shape [N].
        on_progress: Called now and then with the number of requests that have ended.
        log: Keeps every step; None: nobody asks.
        accelerate: Whether it runs compiled, where it can.
        own: A user's own parts; None: there are none.
        has_own_clients: Whether clients of a user's own send the requests, at times of their own.

    Attributes:
        requests: The table of all requests.
        arrival_time: When each was first sent, seconds; filled for a closed loop.
    """

    requests: RequestTable

    def __init__(
        self,
        control: Control,
        setups: Sequence[PoolSetup],
        specs: RequestSpecs,
        latency: NDArray[np.float64],
        on_progress: Callable[[int], None] | None,
        log: StepLog | None = None,
        accelerate: Accelerate = "off",
        own: OwnParts | None = None,
        has_own_clients: bool = False,
    ) -> None:
        self.own, self.has_own_clients = own, has_own_clients
        self._control, self._setups, self._specs = control, tuple(setups), specs
        self._pools: list[Pool] = []
        self.arrival_time = np.array(specs.arrival_time, dtype=np.float64)
        self._build(latency, on_progress, log, accelerate)

    @abstractmethod
    def _build(
        self,
        latency: NDArray[np.float64],
        on_progress: Callable[[int], None] | None,
        log: StepLog | None,
        accelerate: Accelerate,
    ) -> None:
        """Get everything ready."""

    @abstractmethod
    def run(self) -> bool:
        """Run to the end; return whether the user stopped it."""

    @property
    @abstractmethod
    def timeline(self) -> FleetTimeline:
        """The lives of the replicas, and what requests tried in vain."""

    @property
    @abstractmethod
    def _num_ranks(self) -> list[int]:
        """Schedulers of every replica that was ever launched."""

    @property
    def num_units(self) -> int:
        """Schedulers that ever served: replicas, and of each the ranks of data-parallel attention."""
        return sum(self._num_ranks)

    @property
    def ranks(self) -> NDArray[np.int64] | None:
        """Schedulers of every replica; None: one each."""
        counts = np.array(self._num_ranks, dtype=np.int64)
        return counts if (counts > 1).any() else None

    @property
    def _waits(self) -> bool:
        """Whether clients wait for answers before they send more."""
        return self._specs.concurrency is not None or self._specs.turn is not None

    def _forget_rest(self, unsent: Iterable[tuple[float, int]], num_arrived: int, *, was_interrupted: bool) -> None:
        """Take back the arrival of what was to be sent, but was not by the time the run ended."""
        if self._waits:
            # A turn that was not sent before a time of its own may never have been.
            forget_unsent(unsent, self.requests, self.arrival_time)
        elif was_interrupted:
            self.arrival_time[num_arrived:] = np.nan
            np.frombuffer(self.requests.ready_time)[num_arrived:] = np.nan

    def outcomes(self, records: RequestRecords, end_time: float) -> list[PoolOutcome]:
        """Return what each pool did; after `run`."""
        recorders = [pool.recorder for pool in self._pools]
        return outcomes_of(self._setups, recorders, records, end_time, self.timeline)

    @property
    def clocks(self) -> Clocks:
        """The leaps with decodes of every scheduler; with streaming, after `run`."""
        return {number: clock for pool in self._pools for number, clock in joined(pool.recorder.clocks).items()}

    @property
    def cached_tokens(self) -> NDArray[np.int64] | None:
        """Prompt tokens of each request that were found in the prefix cache of its replica; None without caches."""
        paths = [pool.paths for pool in self._pools if pool.paths is not None]
        found = [np.frombuffer(each.cached_tokens, dtype=np.int64) for each in paths]
        return np.maximum.reduce(found) if found else None
