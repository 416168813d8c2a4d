"""One run of a fleet in which something is decided as it goes: the counterpart of the plain run in `simulate`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import simpy
from numpy.typing import NDArray

from simserve.engine.callers import Event
from simserve.engine.conversations import Conversations
from simserve.sim.affinity import affinity_of
from simserve.sim.autoscaler import Autoscaler
from simserve.sim.callers import Callers
from simserve.sim.cluster import end_of
from simserve.sim.control import Control, Limits
from simserve.sim.delivery import delivery_of
from simserve.sim.disaggregation import DisaggregatedFleet
from simserve.sim.fairness import FairQueue
from simserve.sim.faults import Faults
from simserve.sim.fleet import Fleet
from simserve.sim.front import FrontedDisaggregatedFleet, FrontedFleet, FrontTotals
from simserve.sim.gate import Gate
from simserve.sim.handover import Handover
from simserve.sim.liveness import Liveness
from simserve.sim.outages import Outages
from simserve.sim.overflow import Overflow
from simserve.sim.pool_paces import pool_paces, with_any_pace
from simserve.sim.pools import PoolOutcome, PoolSetup, outcomes_of, request_table
from simserve.sim.prefixes import prefix_paths
from simserve.sim.recorder import Recorder, series_sums
from simserve.sim.records import COMPLETED, REASONS, RequestRecords
from simserve.sim.regions import Regions
from simserve.sim.response_cache import ResponseCache
from simserve.sim.routing import Router
from simserve.sim.routing_spec import RoutingSpec
from simserve.sim.rules import rules_of
from simserve.sim.schedulers import each_of
from simserve.sim.series import BinnedSums
from simserve.sim.sessions import Sessions, conversations_of, first_sent, forget_unsent
from simserve.sim.step_log import StepLog
from simserve.sim.streaming import joined
from simserve.sim.timeline import FleetTimeline
from simserve.sim.units import Pool
from simserve.sim.updates import Updates
from simserve.workload.requests import RequestSpecs


class ManagedRun:
    """A fleet, its clients and its control, ready to run.

    Args:
        control: What decides.
        setups: The pools; with disaggregation, those that prefill and those that decode.
        specs: What arrives.
        latency: Seconds from sending to the router, shape [N].
        on_progress: Called now and then with the number of requests that have ended.
        log: Keeps every step; None: nobody asks.
    """

    def __init__(
        self,
        control: Control,
        setups: Sequence[PoolSetup],
        specs: RequestSpecs,
        latency: NDArray[np.float64],
        on_progress: Callable[[int], None] | None,
        log: StepLog | None = None,
    ) -> None:
        paces = pool_paces(setups, specs)
        specs = with_any_pace(specs, paces)
        entrances = [setup.name for setup in setups if setup.role != "decode"]
        self._rules = rules = rules_of(control.rules, control.allowed, entrances, specs)
        self.requests = request_table(setups, specs, *((control.allowed,) if rules is None else rules.for_limits()))
        self.arrival_time = np.array(specs.arrival_time, dtype=np.float64)
        self._control, self._specs = control, specs
        self._updates: Updates | None = None
        sums = series_sums()
        self._setups = tuple(setups)
        self._pools = [_pool(setup, sums, specs, log) for setup in setups]
        for pool, own_paces in zip(self._pools, paces, strict=True):
            pool.requests, pool.paces = self.requests, own_paces
        if not self._pools[0].name:
            # One kind of replica: what decides says how it starts and where it stands.
            only = self._pools[0]
            only.startup_seconds, only.weights_bytes = control.startup_seconds, control.weights_bytes
            only.replicas_per_node = control.replicas_per_node
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
            self._regions = self.fleet.regions = Regions(control.regions, self._pools, self.fleet.units, specs)
            self.fleet.router.near = self._regions.near
            self.fleet.way_back = None if control.streaming is None else [0.0] * len(specs)
        streaming = control.streaming
        self.fleet.callers = Callers(specs, self.requests, events, self.arrival_time, latency, streaming)
        if control.admission is not None:
            self.fleet.gate = Gate(control.admission, control, specs)
        if isinstance(self.fleet, FrontedFleet):
            self._build_front(self.fleet)
        for pool, setup in zip(self._pools, setups, strict=True):
            for place in range(setup.num_replicas):
                self.fleet.launch(pool, 0.0, is_ready=True, place=place)
        self._outages = Outages(self.fleet)
        self._sessions: Sessions | None = None
        conversations = conversations_of(specs, latency, self.arrival_time)
        if conversations is not None:
            send = self.fleet.callers.send
            self._sessions = Sessions(conversations, self.requests, send)
            self.fleet.callers.on_end.append(self._answer)
            for ready_time, index in first_sent(conversations, specs):
                send(index, ready_time)
            self._note_begun(conversations)
        else:
            # One tokeniser, in order: nobody overtakes a long prompt.
            np.frombuffer(self.requests.ready_time)[:] = np.maximum.accumulate(self.arrival_time + latency)
            self.fleet.schedule_all()

    def run(self) -> bool:
        """Run to the end; return whether the user stopped it."""
        env = simpy.Environment()
        control = self._control
        for pool, setup in zip(self._pools, self._setups, strict=True):
            scaling = setup.autoscaling if pool.name else control.autoscaling
            if scaling is not None:
                env.process(Autoscaler(scaling, env, self.fleet, pool, self._meets_slo).run())
        if control.faults:
            Faults(env, self.fleet, self._specs, self._outages).start(control.faults)
        if control.liveness is not None:
            Liveness(control.liveness, env, self.fleet, self._outages)
        if control.updates:
            self._updates = Updates(env, self.fleet)
            self._updates.start(control.updates)
        interval = self._control.routing.update_interval
        if interval:
            env.process(self._renew(env, interval))
        done = env.process(self._data_plane(env))
        try:
            env.run(until=done)
            if self._sessions is not None:
                # A turn that was not sent before a time of its own may never have been.
                forget_unsent((), self.requests, self.arrival_time)
        except KeyboardInterrupt:
            if self._sessions is not None:
                forget_unsent(self.fleet.callers.unsent, self.requests, self.arrival_time)
            else:
                # What was still to come was never sent.
                self.arrival_time[self.fleet.num_arrived :] = np.nan
                np.frombuffer(self.requests.ready_time)[self.fleet.num_arrived :] = np.nan
            return True
        finally:
            self.fleet.flush()
        return False

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
        waits = self._specs.concurrency is not None or self._specs.turn is not None
        return self._control.has_front or (waits and self._control.streaming is not None)

    def _build_front(self, fleet: FrontedFleet) -> None:
        control, specs, requests = self._control, self._specs, self.requests
        if control.streaming is not None and (specs.concurrency is not None or specs.turn is not None):
            fleet.callers.delivery = delivery_of(control.streaming, 0)
        cache, api, fair = control.response_cache, control.overflow, control.fairness
        fleet.build_front(
            cache=None if cache is None else ResponseCache(cache, requests, specs),
            overflow=None if api is None else Overflow(api, requests, specs),
            fair=None if fair is None else FairQueue(fair, requests, specs),
            max_outstanding=None if fair is None else fair.max_outstanding,
            rules=self._rules,
        )

    @property
    def front(self) -> FrontTotals | None:
        """What the front did; None where nothing stands in front of the replicas."""
        names = tuple(each.name for each in self._specs.classes)
        return self.fleet.totals(names) if isinstance(self.fleet, FrontedFleet) else None

    @property
    def served_by(self) -> NDArray[np.int8] | None:
        """Who answered each request, an index into `SERVERS`; None: replicas answered all."""
        if not isinstance(self.fleet, FrontedFleet):
            return None
        return np.frombuffer(self.fleet.served_by, dtype=np.int8)

    def outcomes(self, records: RequestRecords, end_time: float) -> list[PoolOutcome]:
        """Return what each pool did; after `run`."""
        recorders = [pool.recorder for pool in self._pools]
        return outcomes_of(self._setups, recorders, records, end_time, self.timeline)

    @property
    def clocks(self) -> dict[int, NDArray[np.float64]]:
        """The leaps with decodes of every replica; with streaming, after `run`."""
        return {number: clock for pool in self._pools for number, clock in joined(pool.recorder.clocks).items()}

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
    def _ranks(self) -> NDArray[np.int64] | None:
        """Schedulers of every replica; None: one each."""
        counts = np.array([unit.pool.config.data_parallel_size for unit in self.fleet.units], dtype=np.int64)
        return counts if (counts > 1).any() else None

    @property
    def num_units(self) -> int:
        """Schedulers that ever served: replicas, and of each the ranks of data-parallel attention."""
        return sum(len(each_of(unit.replica)) for unit in self.fleet.units)

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
        units, callers = self.fleet.units, self.fleet.callers
        outages = self._outages
        return FleetTimeline(
            launched_at=np.array([unit.launched_at for unit in units]),
            ready_at=np.array([unit.ready_at for unit in units]),
            stopped_at=np.array([unit.stopped_at for unit in units]),
            gpus=np.array([unit.pool.gpus_per_replica for unit in units], dtype=np.int64),
            ranks=self._ranks,
            pool=np.array([self._pools.index(unit.pool) for unit in units], dtype=np.int64),
            pool_regions=tuple(pool.region for pool in self.fleet.pools),
            pool_names=tuple(pool.name for pool in self.fleet.pools),
            lost_since=np.array(outages.lost_since, dtype=np.float64),
            lost_until=np.array(outages.lost_until, dtype=np.float64),
            num_killed=outages.num_killed,
            num_missed=self._num_missed(),
            num_replaced=0 if self._updates is None else self._updates.num_replaced,
            updates=np.array([] if self._updates is None else self._updates.spans, dtype=np.float64).reshape(-1, 2),
            tries=callers.tries,
            refusals={
                reason: count for reason, count in zip(REASONS, self.fleet.refusals, strict=True) if count and reason
            },
            num_resent=callers.num_resent,
            lost_tokens=self.fleet.num_lost_tokens,
        )

    def _num_missed(self) -> int:
        """Return how many faults and updates have a time that the run did not come to."""
        end = end_of(self.requests)
        times = [each.at for each in (*self._control.faults, *self._control.updates)]
        return sum(time is not None and time > end for time in times)

    def _data_plane(self, env: simpy.Environment) -> Generator[simpy.Event, Any, None]:
        """Drive the fleet from decision to decision, until every request has come to its end or nothing is to come."""
        # Whoever starts at time 0 comes first.
        yield env.timeout(0)
        while not self.fleet.is_done:
            until = env.peek()
            self.fleet.drive(until)
            if self.fleet.news:
                yield env.timeout(max(self.fleet.news_time - env.now, 0.0))
                news, self.fleet.news = self.fleet.news, []
                for tell in news:
                    tell()
                yield env.timeout(0)
                continue
            if until == float("inf"):
                return
            yield env.timeout(max(until - env.now, 0.0))

    def _renew(self, env: simpy.Environment, interval: float) -> Generator[simpy.Event, Any, None]:
        """Let the router look at the replicas every so often."""
        while True:
            self.fleet.router.refresh()
            yield env.timeout(interval)

    @property
    def cached_tokens(self) -> NDArray[np.int64] | None:
        """Prompt tokens of each request that were found in the prefix cache of its replica; None without caches."""
        found = [
            np.frombuffer(pool.paths.cached_tokens, dtype=np.int64) for pool in self._pools if pool.paths is not None
        ]
        return np.maximum.reduce(found) if found else None

    def _answer(self, index: int, heard_at: float) -> None:
        assert self._sessions is not None
        self._sessions.answer(index, None if self.fleet.callers.delivery is None else heard_at)
        self._note_begun(self._sessions.conversations)

    def _note_begun(self, conversations: Conversations) -> None:
        """Where clients stop by a time, note how many requests there are in all when the last one has."""
        if conversations.num_idle == self._specs.concurrency:
            self.fleet.callers.num_due = conversations.num_begun

    def _limits(self, index: int) -> Limits:
        """Return the objective of a request's class."""
        limits, classes = self._control.limits, self._specs.request_class
        return limits[0] if classes is None else limits[int(classes[index])]

    def _meets_slo(self, index: int) -> bool:
        """Return whether a request that has ended met its objective."""
        requests, (ttft, tpot, e2e) = self.requests, self._limits(index)
        if requests.status[index] != COMPLETED:
            return False
        sent_at, first, last = self.arrival_time[index], requests.first_token_time[index], requests.finish_time[index]
        gaps = requests.generated_tokens[index] - 1
        return (
            (ttft is None or first - sent_at <= ttft)
            and (e2e is None or last - sent_at <= e2e)
            and (tpot is None or not gaps or last - first <= tpot * gaps)
        )


def _pool(setup: PoolSetup, sums: BinnedSums, specs: RequestSpecs, log: StepLog | None) -> Pool:
    times = setup.step_times.as_lists()
    recorder = Recorder(setup.engine, times, setup.priced, sums, log)
    # What a decode replica takes in has been computed elsewhere.
    paths = recorder.paths = None if setup.role == "decode" else prefix_paths(setup.engine, specs)
    return Pool(
        setup.name,
        setup.engine,
        times,
        recorder,
        setup.gpus_per_replica,
        setup.role,
        paths,
        region=setup.region,
        startup_seconds=setup.startup_seconds,
        weights_bytes=setup.weights_bytes,
        replicas_per_node=setup.replicas_per_node,
        kv_layout=setup.kv_layout,
        kv_bytes_per_token=setup.kv_bytes_per_token,
    )
