"""One run of a fleet in which something is decided as it goes: the counterpart of the plain run in `simulate`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import simpy
from numpy.typing import NDArray

from simserve.engine.callers import Event
from simserve.engine.conversations import Conversations
from simserve.engine.gateway import Gateway
from simserve.sim.acceleration import Accelerate, compiled_for
from simserve.sim.affinity import affinity_of
from simserve.sim.attended import why_managed
from simserve.sim.callers import Callers
from simserve.sim.chance import Chance
from simserve.sim.decisions import Decisions
from simserve.sim.delivery import delivery_of
from simserve.sim.disaggregation import DisaggregatedFleet
from simserve.sim.fleet import Fleet
from simserve.sim.front import FrontedDisaggregatedFleet, FrontedFleet
from simserve.sim.gate import Gate
from simserve.sim.gateway import FrontTotals, front_totals, gateway_of
from simserve.sim.handover import Handover
from simserve.sim.own_parts import Judge
from simserve.sim.pool_paces import pool_paces, with_any_pace
from simserve.sim.pool_run import PoolRun
from simserve.sim.pools import PoolSetup, request_table
from simserve.sim.prefixes import prefix_paths
from simserve.sim.recorder import Recorder, series_sums
from simserve.sim.records import REASONS, RequestRecords
from simserve.sim.regions import Regions
from simserve.sim.routing import Router
from simserve.sim.routing_spec import RoutingSpec
from simserve.sim.rules import rules_of
from simserve.sim.series import BinnedSums
from simserve.sim.sessions import Sessions, conversations_of, first_sent
from simserve.sim.step_log import StepLog
from simserve.sim.timeline import FleetTimeline
from simserve.sim.units import Pool, pool_of


class ManagedRun(PoolRun):
    """A fleet that something stands in front of, or between; or whose schedulers no plain plane knows."""

    def _build(
        self,
        latency: NDArray[np.float64],
        on_progress: Callable[[int], None] | None,
        log: StepLog | None,
        accelerate: Accelerate,
    ) -> None:
        control, setups = self._control, self._setups
        compiled_for(accelerate, len(self._specs), why_managed(setups, control) or "a run with parts of one's own")
        paces = pool_paces(setups, self._specs)
        self._specs = specs = with_any_pace(self._specs, paces)
        entrances = [setup.name for setup in setups if setup.role != "decode"]
        self._rules = rules = rules_of(control.rules, control.allowed, entrances, specs)
        self.requests = request_table(setups, specs, *((control.allowed,) if rules is None else rules.for_limits()))
        sums = series_sums()
        self._pools = [self._pool(setup, sums, log) for setup in setups]
        for pool, own_paces in zip(self._pools, paces, strict=True):
            pool.paces = own_paces
        if control.streaming is not None:
            for pool in self._pools:
                pool.recorder.clocks = {}
        events: list[Event] = []
        self.fleet = self._fleet(events, on_progress)
        first = [pool for pool in self._pools if pool.role != "decode"]
        affinity = affinity_of(control.routing, specs)
        allowed, kinds = (control.allowed, None) if rules is None else (rules.allowed, rules.kinds.tolist())
        self.fleet.router = Router(control.routing, self.fleet.units, first, specs, allowed, affinity, kinds)
        self._regions: Regions | None = None
        if control.regions is not None:
            self._regions = self.fleet.regions = Regions(control.regions, self._pools, specs)
            self._regions.units = self.fleet.units
            self.fleet.router.near = self._regions.near
            self.fleet.way_back = None if control.streaming is None else [0.0] * len(specs)
        streaming = control.streaming
        self.fleet.callers = Callers(specs, self.requests, events, self.arrival_time, latency, streaming)
        judge = None
        if self.own is not None:
            judge = Judge(self.own, specs, is_stale=control.routing.update_interval > 0)
            self.fleet.judge = self.fleet.router.judge = judge
            self.fleet.router.max_tokens = self.requests.max_tokens
        if control.admission is not None:
            self.fleet.gate = Gate(control.admission, control, specs)
        if isinstance(self.fleet, FrontedFleet):
            self._build_front(self.fleet)
        for pool, setup in zip(self._pools, setups, strict=True):
            for place in range(setup.num_replicas):
                self.fleet.launch(pool, 0.0, is_ready=True, place=place)
        self._decisions = Decisions(control, self._setups, self.fleet, specs, self.arrival_time)
        self._decisions.judge = judge
        self._sessions: Sessions | None = None
        if self.has_own_clients:
            return
        conversations = conversations_of(specs, latency, self.arrival_time)
        if conversations is not None:
            send = self.fleet.callers.send
            self._sessions = Sessions(conversations, send)
            self.fleet.callers.on_end.append(self._answer)
            for ready_time, index in first_sent(conversations, specs):
                send(index, ready_time)
            self._note_begun(conversations)
        else:
            # One tokeniser, in order: nobody overtakes a long prompt.
            np.frombuffer(self.requests.ready_time)[:] = np.maximum.accumulate(self.arrival_time + latency)
            self.fleet.schedule_all()

    def start(self, env: simpy.Environment) -> None:
        """Let everybody begin who decides, on a clock of somebody else's."""
        self._decisions.start(env)

    def run(self) -> bool:
        """Run to the end; return whether the user stopped it."""
        was_interrupted = self._decisions.run()
        self.fleet.flush()
        unsent = self.fleet.callers.unsent if was_interrupted else ()
        self._forget_rest(unsent, self.fleet.num_arrived, was_interrupted=was_interrupted)
        return was_interrupted

    def _fleet(self, events: list[Event], on_progress: Callable[[int], None] | None) -> Fleet:
        control = self._control
        if control.disaggregation is None:
            plain = FrontedFleet if self._has_front else Fleet
            return plain(self._pools, self.requests, events, on_progress)
        kind = FrontedDisaggregatedFleet if self._has_front else DisaggregatedFleet
        fleet = kind(self._pools, self.requests, events, on_progress)
        fleet.landed = deque()
        fleet.handover = Handover(control.disaggregation, control.kv_bytes_per_token, self.requests, events)
        decoding = [pool for pool in self._pools if pool.role == "decode"]
        fleet.decode_router = Router(RoutingSpec(), fleet.units, decoding, self._specs)
        fleet.decode_router.near = fleet.readers
        return fleet

    @property
    def _has_front(self) -> bool:
        """Whether anything is in front of the replicas; the way of answers to clients that wait for them counts too."""
        return self._control.has_front or (self._waits and self._control.streaming is not None)

    def _build_front(self, fleet: FrontedFleet) -> None:
        control, specs = self._control, self._specs
        if control.streaming is not None and self._waits:
            fleet.callers.delivery = delivery_of(control.streaming, 0)
        numbers: dict[int, Chance] = {}
        front = gateway_of(control, specs, self._rules, numbers)
        count = len(specs)
        fleet.build_front(front or Gateway(count, None, None, None, [], ()), self._rules, numbers)

    @property
    def front(self) -> FrontTotals | None:
        """What the front did; None where nothing stands in front of the replicas."""
        names = tuple(each.name for each in self._specs.classes)
        return front_totals(self.fleet.front, self._rules, names) if isinstance(self.fleet, FrontedFleet) else None

    @property
    def served_by(self) -> NDArray[np.int8] | None:
        """Who answered each request, an index into `SERVERS`; None: replicas answered all."""
        if not isinstance(self.fleet, FrontedFleet):
            return None
        return np.frombuffer(self.fleet.front.served_by, dtype=np.int8)

    @property
    def transfers(self) -> dict[str, float]:
        """What KV caches did between the pools; empty without disaggregation."""
        if not isinstance(self.fleet, DisaggregatedFleet):
            return {}
        handover = self.fleet.handover
        return {
            "count": float(handover.num_transfers),
            "link_seconds": handover.seconds,
            "waited_seconds": handover.waited,
            "stalled_seconds": handover.stalled,
        }

    @property
    def _num_ranks(self) -> list[int]:
        return [unit.replica.num_ranks for unit in self.fleet.units]

    @property
    def way_back(self) -> NDArray[np.float64] | None:
        """With regions and streaming: seconds of each answer's way to its client; else None."""
        return None if self.fleet.way_back is None else np.array(self.fleet.way_back)

    def dressed(self, records: RequestRecords) -> RequestRecords:
        """Return the records with who answered, where clients are, and the way of KV caches between the pools."""
        return replace(self._with_regions(self._with_transfers(records)), served_by=self.served_by)

    def _with_regions(self, records: RequestRecords) -> RequestRecords:
        """Return the records with the region of every client; as they are without regions."""
        if self._regions is None:
            return records
        return replace(records, client_region=self._regions.home, region_names=self._regions.names)

    def _with_transfers(self, records: RequestRecords) -> RequestRecords:
        """Return the records with the way of every KV cache between the pools; as they are without disaggregation."""
        if not isinstance(self.fleet, DisaggregatedFleet):
            return records
        handover = self.fleet.handover
        return replace(
            records,
            prefill_end_time=np.array(handover.prefill_end),
            transfer_start_time=np.array(handover.transfer_start),
            transfer_end_time=np.array(handover.transfer_end),
            prefill_replica_id=np.array(handover.prefill_replica, dtype=np.int32),
        )

    @property
    def timeline(self) -> FleetTimeline:
        """The lives of the replicas."""
        callers, refusals = self.fleet.callers, zip(REASONS, self.fleet.refusals, strict=True)
        return self._decisions.timeline(
            callers.tries,
            {reason: count for reason, count in refusals if count and reason},
            callers.num_resent,
            self.fleet.num_lost_tokens,
            self.ranks,
        )

    def _answer(self, index: int, heard_at: float) -> None:
        assert self._sessions is not None
        self._sessions.answer(index, heard_at)
        self._note_begun(self._sessions.conversations)

    def _note_begun(self, conversations: Conversations) -> None:
        """Where clients stop by a time, note how many requests there are in all when the last one has."""
        if conversations.num_idle == self._specs.concurrency:
            self.fleet.callers.num_due = conversations.num_begun

    def _pool(self, setup: PoolSetup, sums: BinnedSums, log: StepLog | None) -> Pool:
        times = setup.step_times.as_lists()
        recorder = Recorder(setup.engine, times, setup.priced, sums, log)
        recorder.scales_parts = self.own is not None and self.own.step_seconds is not None
        # What a decode replica takes in has been computed elsewhere.
        paths = recorder.paths = None if setup.role == "decode" else prefix_paths(setup.engine, self._specs)
        return pool_of(setup, self._control, times, recorder, paths, self.requests)
