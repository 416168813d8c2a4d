"""One run of replicas that are there throughout, in one pool or several, whose clients may be refused and hang up.

What decides here are rules that the data plane applies by itself, so that nothing returns to SimPy, and the whole run
can be compiled. Where replicas come and go, or something stands in front of them, it is `simserve.sim.managed`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from simserve.engine.attendance import AT_DOOR, TO_PAUSE, TO_ROUTE, Attendance
from simserve.engine.callers import Callers
from simserve.engine.compiled.run import reason_against
from simserve.engine.data_plane import Part
from simserve.engine.set_up import set_up
from simserve.engine.state import Replica
from simserve.engine.transfers import Transfers
from simserve.sim.acceleration import Accelerate, compiled_for
from simserve.sim.chance import Chance
from simserve.sim.cluster import Cluster, run_to_end
from simserve.sim.control import Control
from simserve.sim.delivery import delivery_of
from simserve.sim.front import FrontTotals
from simserve.sim.gate import door_of
from simserve.sim.patience import callers_of, kinds_of
from simserve.sim.pools import PoolOutcome, PoolSetup, outcomes_of, request_table
from simserve.sim.prefixes import prefix_paths, prefixes_of
from simserve.sim.recorder import Recorder, series_sums
from simserve.sim.records import REASONS, REPLICA, RequestRecords
from simserve.sim.routing import DRAWS, plain_router, shares_of
from simserve.sim.sessions import conversations_of, first_sent, forget_unsent
from simserve.sim.step_log import StepLog
from simserve.sim.streaming import joined
from simserve.sim.timeline import FleetTimeline
from simserve.sim.transfers import transfer_totals, transfers_of, with_transfers
from simserve.workload.requests import RequestSpecs

_NUMBERS_AT_ONCE = 16_384
"""Random numbers that are drawn together where few are taken at a time."""


def is_attended(setups: Sequence[PoolSetup], control: Control) -> bool:
    """Return whether everything that decides in a run is what an `AttendedRun` knows."""
    replicas_change = control.autoscaling or control.faults or control.updates or control.liveness
    return (
        not replicas_change
        and not control.has_front
        and control.regions is None
        and len({each.engine.async_scheduling for each in setups}) == 1
        and all(_is_steady(each) for each in setups)
    )


def _is_steady(setup: PoolSetup) -> bool:
    engine = setup.engine
    serves = engine.batching == "continuous" and engine.kv_allocation != "none" and engine.data_parallel_size == 1
    return serves and setup.autoscaling is None and not setup.acceptance


class AttendedRun:
    """Replicas, their clients and the router between them, ready to run.

    Args:
        control: What decides.
        setups: The pools.
        specs: What arrives.
        latency: Seconds from sending to the router, shape [N].
        on_progress: Called now and then with the number of requests that have ended.
        log: Keeps every step; None: nobody asks.
        accelerate: Whether it runs compiled.
    """

    way_back: NDArray[np.float64] | None = None

    def __init__(
        self,
        control: Control,
        setups: Sequence[PoolSetup],
        specs: RequestSpecs,
        latency: NDArray[np.float64],
        on_progress: Callable[[int], None] | None,
        log: StepLog | None = None,
        accelerate: Accelerate = "off",
    ) -> None:
        obstacles = [reason_against(each.engine, log is not None) for each in setups]
        compiled = compiled_for(accelerate, len(specs), next(filter(None, obstacles), None))
        is_interpreted = compiled is None
        if not any(each.engine.num_offload_blocks for each in setups):
            # Once for caches and router.
            specs = replace(specs, prefixes=prefixes_of(specs))
        self._setups, self._specs = setups, specs
        self.requests = request_table(setups, specs, control.allowed)
        self.arrival_time = np.array(specs.arrival_time, dtype=np.float64)
        sums = series_sums()
        replicas: list[Replica] = []
        self._recorders: list[Recorder] = []
        self._members: list[range] = []
        for setup in setups:
            times = setup.step_times.as_lists() if is_interpreted else setup.step_times
            recorder = Recorder(setup.engine, times, setup.priced, sums, log)
            # What a decode replica takes in has been computed elsewhere.
            takes_in = setup.role == "decode"
            recorder.paths = None if takes_in else prefix_paths(setup.engine, specs, as_lists=is_interpreted)
            if control.streaming is not None:
                recorder.clocks = {}
            self._recorders.append(recorder)
            self._members.append(range(len(replicas), len(replicas) + setup.num_replicas))
            for number in self._members[-1]:
                replica = Replica(number, setup.engine, times)
                set_up(replica, self.requests, recorder.paths)
                recorder.watch(replica)
                replicas.append(replica)
        self._numbers: dict[int, Chance] = {}
        self._attendance = self._attend(control, latency, len(replicas))
        draws_to_route = self._attendance is not None and DRAWS.get(control.routing.policy)
        chance = self._chance(TO_ROUTE, "routing", _NUMBERS_AT_ONCE) if draws_to_route else None
        router = plain_router(control.routing, specs, as_lists=is_interpreted, chance=chance)
        entrances = [number for number, each in enumerate(setups) if each.role != "decode"]
        shares = shares_of(control.routing, [setups[each].name for each in entrances]) if len(setups) > 1 else None
        allowed = control.allowed
        if (shares is not None or len(entrances) < len(setups)) and not allowed:
            allowed = (tuple(range(len(entrances))),) * max(len(specs.classes), 1)
        doors = [self._members[each] for each in entrances]
        parts = [Part([n for pool in each for n in doors[pool]], each) for each in allowed] if len(setups) > 1 else []
        self._cluster = Cluster(
            replicas,
            self.requests,
            list(zip(self._recorders, self._members, strict=True)),
            control.routing,
            router,
            on_progress,
            parts=parts,
            kinds=kinds_of(specs) if parts else (),
            shares=shares,
            pools=[Part(list(each)) for each in doors] if shares is not None else [],
        )
        if self._attendance is not None:
            self._cluster.attend(self._attendance, self._numbers)
        conversations = conversations_of(specs, latency, self.arrival_time)
        if conversations is not None:
            self._cluster.converse(conversations, first_sent(conversations, specs))
        else:
            # One tokeniser, in order: nobody overtakes a long prompt.
            np.frombuffer(self.requests.ready_time)[:] = np.maximum.accumulate(self.arrival_time + latency)
            self._cluster.schedule_all()
        self._cluster.accelerate(compiled)

    def run(self) -> bool:
        """Run to the end; return whether the user stopped it."""
        was_interrupted = run_to_end(self._cluster)
        self._cluster.flush()
        specs = self._specs
        if specs.concurrency is not None or specs.turn is not None:
            forget_unsent(self._cluster.unsent, self.requests, self.arrival_time)
        elif was_interrupted:
            # What was still to come was never sent.
            self.arrival_time[self._cluster.num_arrived :] = np.nan
            np.frombuffer(self.requests.ready_time)[self._cluster.num_arrived :] = np.nan
        return was_interrupted

    def _attend(self, control: Control, latency: NDArray[np.float64], num_replicas: int) -> Attendance | None:
        """Return the clients of the run, None where nobody is refused and nobody hangs up."""
        specs, admission, streaming = self._specs, control.admission, control.streaming
        hangs_up = any(each.timeout is not None for each in specs.classes)
        hangs_up = hangs_up or (streaming is not None and streaming.http_timeout is not None)
        waits = specs.concurrency is not None or specs.turn is not None
        delivery = delivery_of(streaming, num_replicas) if waits and streaming is not None else None
        if admission is None and delivery is None and control.disaggregation is None and not hangs_up:
            return None
        has_retries = any(each.retries is not None for each in specs.classes)
        pauses = self._chance(TO_PAUSE, "retries", len(specs) + 1) if has_retries else Chance(specs, "retries")
        callers = callers_of(specs, streaming, latency, self.arrival_time, pauses.uniforms)
        door = None
        if admission is not None:
            is_drawn = admission.probabilistic_from is not None
            chance = self._chance(AT_DOOR, "admission", _NUMBERS_AT_ONCE) if is_drawn else Chance(specs, "admission")
            door = door_of(admission, control, specs, chance.uniforms)
        attendance = Attendance(callers, door, num_replicas, delivery)
        if control.disaggregation is not None:
            attendance.transfers = transfers_of(
                control.disaggregation, control.kv_bytes_per_token, self._setups, self._members, len(specs)
            )
        return attendance

    def _chance(self, taker: int, name: str, room: int) -> Chance:
        self._numbers[taker] = chance = Chance(self._specs, name, room)
        return chance

    def dressed(self, records: RequestRecords) -> RequestRecords:
        """Return the records, with what else is known of them.

        Who gave the answers, where those are on their way to clients that wait; the way of KV caches between the pools.
        """
        if self._transfers is not None:
            records = with_transfers(records, self._transfers)
        return records if self.front is None else replace(records, served_by=np.full(len(records), REPLICA, np.int8))

    @property
    def _transfers(self) -> Transfers | None:
        return None if self._attendance is None else self._attendance.transfers

    @property
    def transfers(self) -> dict[str, float]:
        """What KV caches did between the pools; empty without disaggregation."""
        return {} if self._transfers is None else transfer_totals(self._transfers)

    @property
    def front(self) -> FrontTotals | None:
        """What the way to clients that wait for answers did, beside delaying them: nothing; None: there is none."""
        return None if self._attendance is None or self._attendance.delivery is None else FrontTotals()

    @property
    def num_units(self) -> int:
        """Replicas that served."""
        return len(self._cluster.replicas)

    def outcomes(self, records: RequestRecords, end_time: float) -> list[PoolOutcome]:
        """Return what each pool did; after `run`."""
        return outcomes_of(self._setups, self._recorders, records, end_time, self.timeline)

    @property
    def cached_tokens(self) -> NDArray[np.int64] | None:
        """Prompt tokens of each request that were found in the prefix cache of its replica; None without caches."""
        paths = [each.paths for each in self._recorders if each.paths is not None]
        found = [np.frombuffer(each.cached_tokens, dtype=np.int64) for each in paths]
        return np.maximum.reduce(found) if found else None

    @property
    def clocks(self) -> dict[int, NDArray[np.float64]]:
        """The leaps with decodes of every replica; with streaming, after `run`."""
        return {number: clock for each in self._recorders for number, clock in joined(each.clocks).items()}

    @property
    def timeline(self) -> FleetTimeline:
        """The lives of the replicas, all of them there throughout, and what requests tried in vain."""
        num_replicas, nothing = self.num_units, np.array([], dtype=np.float64)
        sizes = [len(each) for each in self._members]
        callers = None if self._attendance is None else self._attendance.callers
        refusals = () if self._attendance is None else self._attendance.refusals
        return FleetTimeline(
            launched_at=np.zeros(num_replicas),
            ready_at=np.zeros(num_replicas),
            stopped_at=np.full(num_replicas, np.inf),
            gpus=np.repeat(np.array([each.gpus_per_replica for each in self._setups], dtype=np.int64), sizes),
            pool=np.repeat(np.arange(len(sizes)), sizes),
            pool_regions=tuple(each.region for each in self._setups),
            pool_names=tuple(each.name for each in self._setups),
            lost_since=nothing,
            lost_until=nothing,
            tries=tries_of(callers),
            refusals={reason: count for reason, count in zip(REASONS, refusals, strict=False) if count and reason},
            num_resent=0 if callers is None else callers.num_resent,
            lost_tokens=0 if self._attendance is None else self._attendance.lost_tokens,
        )


def tries_of(callers: Callers | None) -> NDArray[np.float64]:
    """Return every attempt that another one followed: arrival, first step, end, seconds; shape [attempts, 3]."""
    return np.array([] if callers is None else callers.abandoned, dtype=np.float64).reshape(-1, 3)
