"""One run of replicas, in one pool or several, that may come and go, and whose clients may be refused and hang up.

What a data plane does by itself is in its rules, so that the whole run can be compiled; SimPy decides which replicas
are there (`simserve.sim.shifts`). What that does not cover (`why_managed`) is a run of `simserve.sim.managed`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from simserve.engine.attendance import AT_DOOR, NUMBERS_TO_ROUTE, TO_PAUSE, TO_ROUTE, Attendance
from simserve.engine.callers import Callers
from simserve.engine.compiled.run import reason_against
from simserve.engine.config import EngineConfig
from simserve.engine.data_parallel import Ranks
from simserve.engine.data_plane import Part
from simserve.engine.gateway import Gateway
from simserve.engine.numbers import column
from simserve.engine.paces import Paces
from simserve.engine.transfers import Transfers
from simserve.sim.acceleration import Accelerate, compiled_for
from simserve.sim.chance import Chance
from simserve.sim.cluster import Cluster, run_to_end
from simserve.sim.control import Control
from simserve.sim.delivery import delivery_of
from simserve.sim.gate import door_of
from simserve.sim.gateway import FrontTotals, front_totals, gateway_of
from simserve.sim.patience import callers_of, kinds_of
from simserve.sim.pool_paces import pool_paces, with_any_pace
from simserve.sim.pool_run import PoolRun
from simserve.sim.pools import PoolSetup, request_table
from simserve.sim.prefixes import prefix_paths, prefixes_of
from simserve.sim.recorder import Recorder, series_sums
from simserve.sim.records import REASONS, REPLICA, RequestRecords
from simserve.sim.regions import Regions
from simserve.sim.routing import DRAWS, plain_router, shares_of
from simserve.sim.rules import rules_of
from simserve.sim.sessions import conversations_of, first_sent
from simserve.sim.step_log import StepLog
from simserve.sim.timeline import FleetTimeline
from simserve.sim.transfers import transfer_totals, transfers_of, with_transfers
from simserve.sim.units import fresh_replica, pool_of

if TYPE_CHECKING:
    from simserve.sim.decisions import Decisions

_NUMBERS_AT_ONCE = 16_384
"""Random numbers that are drawn together where few are taken at a time."""


def why_managed(setups: Sequence[PoolSetup], control: Control) -> str | None:
    """Return what of a run an `AttendedRun` does not know, in a few words; None: it knows all."""
    moves = control.disaggregation is not None
    checks = {
        "a fleet of prefill and decode pools that changes": moves and _has_shifts(setups, control),
    }
    own = [reason_against(each.engine) for each in setups if not _is_steady(each.engine)]
    return next((name for name, applies in checks.items() if applies), next(iter(own), None))


def _is_steady(engine: EngineConfig) -> bool:
    return engine.batching == "continuous" and engine.kv_allocation != "none"


def _has_shifts(setups: Sequence[PoolSetup], control: Control) -> bool:
    """Return whether replicas come and go."""
    return control.changes_fleet or any(each.autoscaling is not None for each in setups)


class AttendedRun(PoolRun):
    """Replicas behind one router on the plain data planes."""

    _regions: Regions | None = None

    def _build(
        self,
        latency: NDArray[np.float64],
        on_progress: Callable[[int], None] | None,
        log: StepLog | None,
        accelerate: Accelerate,
    ) -> None:
        control, setups, specs = self._control, self._setups, self._specs
        obstacles = [reason_against(each.engine) for each in setups]
        compiled = compiled_for(accelerate, len(specs), next(filter(None, obstacles), None))
        is_interpreted = compiled is None
        paces = pool_paces(setups, specs)
        self._specs = specs = with_any_pace(specs, paces)
        if not any(each.engine.num_offload_blocks for each in setups):
            # Once for caches and router.
            self._specs = specs = replace(specs, prefixes=prefixes_of(specs))
        has_shifts = _has_shifts(setups, control)
        entrances = [number for number, each in enumerate(setups) if each.role != "decode"]
        self._rules = rules = rules_of(control.rules, control.allowed, [setups[each].name for each in entrances], specs)
        limited = (control.allowed,) if rules is None else rules.for_limits()
        self.requests = request_table(setups, specs, *limited)
        sums = series_sums()
        units: list[Ranks] = []
        recorders: list[tuple[Recorder, list[int]]] = []
        num_schedulers = 0
        self._members: list[list[int]] = []
        for setup in setups:
            times = setup.step_times.as_lists() if is_interpreted else setup.step_times
            recorder = Recorder(setup.engine, times, setup.priced, sums, log)
            # What a decode replica takes in has been computed elsewhere.
            takes_in = setup.role == "decode"
            recorder.paths = None if takes_in else prefix_paths(setup.engine, specs, as_lists=is_interpreted)
            if control.streaming is not None:
                recorder.clocks = {}
            self._pools.append(pool_of(setup, control, times, recorder, recorder.paths, self.requests))
            self._members.append(list(range(len(units), len(units) + setup.num_replicas)))
            for number in self._members[-1]:
                units.append(fresh_replica(self._pools[-1], number))
            count = setup.num_replicas * setup.engine.data_parallel_size
            recorders.append((recorder, list(range(num_schedulers, num_schedulers + count))))
            num_schedulers += count
        self._numbers: dict[int, Chance] = {}
        self._attendance = self._attend(control, latency, len(units), has_shifts)
        draws_to_route = self._attendance is not None and DRAWS.get(control.routing.policy)
        # Under fair turns many requests may be routed at one instant.
        room = _NUMBERS_AT_ONCE if control.fairness is None else NUMBERS_TO_ROUTE * (len(specs) + 2)
        chance = self._chance(TO_ROUTE, "routing", room) if draws_to_route else None
        router = plain_router(control.routing, specs, as_lists=is_interpreted, chance=chance)
        shares = shares_of(control.routing, [setups[each].name for each in entrances]) if len(setups) > 1 else None
        allowed = control.allowed if rules is None else rules.allowed
        doors = [self._members[each] for each in entrances]
        needs_pools = shares is not None or control.regions is not None
        if not allowed and (needs_pools or has_shifts or len(entrances) < len(setups)):
            allowed = (tuple(range(len(entrances))),) * max(len(specs.classes), 1)
        is_parted = len(setups) > 1 or has_shifts or rules is not None or control.regions is not None
        parts = [Part([n for pool in each for n in doors[pool]], each) for each in allowed] if is_parted else []
        self._cluster = Cluster(
            units,
            self.requests,
            recorders,
            control.routing,
            router,
            on_progress,
            parts=parts,
            kinds=(kinds_of(specs) if rules is None else column(rules.kinds, np.int32)) if parts else None,
            shares=shares,
            pools=[Part(list(each)) for each in doors] if needs_pools else [],
            comes_and_goes=has_shifts,
        )
        if self._attendance is not None:
            self._attendance.paces = self._paces_of(paces)
            self._cluster.attend(self._attendance, self._numbers)
        conversations = conversations_of(specs, latency, self.arrival_time)
        if conversations is not None:
            self._cluster.converse(conversations, first_sent(conversations, specs))
        else:
            # One tokeniser, in order: nobody overtakes a long prompt.
            np.frombuffer(self.requests.ready_time)[:] = np.maximum.accumulate(self.arrival_time + latency)
            self._cluster.schedule_all()
        self._cluster.accelerate(compiled)
        self._decisions: Decisions | None = None
        if has_shifts and self._attendance is not None:
            from simserve.sim.decisions import Decisions
            from simserve.sim.shifts import Shifts

            counts = [each.num_replicas for each in setups]
            fleet = Shifts(self._pools, self._cluster, self._attendance, counts, specs, allowed)
            self._decisions = Decisions(control, setups, fleet, specs, self.arrival_time)

    def run(self) -> bool:
        """Run to the end; return whether the user stopped it."""
        decisions = self._decisions
        was_interrupted = run_to_end(self._cluster) if decisions is None else decisions.run()
        self._cluster.flush()
        cluster = self._cluster
        self._forget_rest(cluster.unsent, cluster.num_arrived, was_interrupted=was_interrupted)
        return was_interrupted

    def _attend(
        self, control: Control, latency: NDArray[np.float64], num_replicas: int, has_shifts: bool
    ) -> Attendance | None:
        """Return the clients of the run, None where nobody is refused, nobody hangs up and no replica goes."""
        specs, admission, streaming = self._specs, control.admission, control.streaming
        hangs_up = any(each.timeout is not None for each in specs.classes)
        hangs_up = hangs_up or (streaming is not None and streaming.http_timeout is not None)
        delivery = delivery_of(streaming, num_replicas) if self._waits and streaming is not None else None
        is_alike = len({each.engine.async_scheduling for each in self._setups}) == 1
        is_alike = is_alike and not any(each.acceptance for each in self._setups) and control.regions is None
        has_ranks = any(each.engine.data_parallel_size > 1 for each in self._setups)
        is_plain = (
            is_alike and not has_ranks and control.disaggregation is None and not has_shifts and not control.has_front
        )
        if admission is None and delivery is None and not hangs_up and is_plain:
            return None
        presence = None
        if has_shifts:
            scalings = [control.autoscaling, *(each.autoscaling for each in self._setups)]
            notes_ends = any(each is not None and each.metric == "slo" for each in scalings)
            from simserve.engine.presence import Presence

            presence = Presence(len(specs), num_replicas, notes_ends=notes_ends)
        has_retries = any(each.retries is not None for each in specs.classes)
        pauses = self._chance(TO_PAUSE, "retries", len(specs) + 1) if has_retries else Chance(specs, "retries")
        callers = callers_of(specs, streaming, latency, self.arrival_time, pauses.uniforms)
        door = None
        if admission is not None:
            is_drawn = admission.probabilistic_from is not None
            chance = self._chance(AT_DOOR, "admission", _NUMBERS_AT_ONCE) if is_drawn else Chance(specs, "admission")
            door = door_of(admission, control, specs, chance.uniforms)
        attendance = Attendance(callers, door, num_replicas, delivery, presence)
        if control.disaggregation is not None:
            attendance.transfers = transfers_of(
                control.disaggregation, control.kv_bytes_per_token, self._setups, self._members, len(specs)
            )
        if control.regions is not None:
            self._regions = Regions(control.regions, self._setups, specs)
            attendance.regions = self._regions.on_plane(self._members, is_streamed=streaming is not None)
        attendance.gateway = gateway_of(control, specs, self._rules, self._numbers)
        return attendance

    def _paces_of(self, paces: Sequence[list[int] | None]) -> Paces | None:
        """Return what a decode step brings each request on each replica; None where no pool drafts for itself."""
        drawn = [each for each in paces if each is not None]
        if not drawn:
            return None
        count = len(self._specs)
        first = [number * count for number, members in enumerate(self._members) for _ in members]
        return Paces(column(np.concatenate(drawn), np.int64), first)

    def _chance(self, taker: int, name: str, room: int) -> Chance:
        self._numbers[taker] = chance = Chance(self._specs, name, room)
        return chance

    def dressed(self, records: RequestRecords) -> RequestRecords:
        """Return the records, with what else is known of them.

        Who gave the answers, where those are on their way to clients that wait; the way of KV caches between the pools.
        """
        if self._regions is not None:
            records = replace(records, client_region=self._regions.home, region_names=self._regions.names)
        if self._transfers is not None:
            records = with_transfers(records, self._transfers)
        if self._gateway is not None:
            return replace(records, served_by=np.frombuffer(self._gateway.served_by, dtype=np.int8))
        return records if self.front is None else replace(records, served_by=np.full(len(records), REPLICA, np.int8))

    @property
    def way_back(self) -> NDArray[np.float64] | None:
        """With regions and streaming: seconds of each answer's way to its client; else None."""
        regions = None if self._attendance is None else self._attendance.regions
        return None if regions is None or not regions.is_streamed else np.array(regions.way_back)

    @property
    def _transfers(self) -> Transfers | None:
        return None if self._attendance is None else self._attendance.transfers

    @property
    def transfers(self) -> dict[str, float]:
        """What KV caches did between the pools; empty without disaggregation."""
        return {} if self._transfers is None else transfer_totals(self._transfers)

    @property
    def _gateway(self) -> Gateway | None:
        return None if self._attendance is None else self._attendance.gateway

    @property
    def front(self) -> FrontTotals | None:
        """What stood in front of the replicas did; the way of answers to clients that wait for them counts too."""
        if self._gateway is not None:
            return front_totals(self._gateway, self._rules, tuple(each.name for each in self._specs.classes))
        return None if self._attendance is None or self._attendance.delivery is None else FrontTotals()

    @property
    def _num_ranks(self) -> list[int]:
        return [unit.num_ranks for unit in self._cluster.units]

    @property
    def timeline(self) -> FleetTimeline:
        """The lives of the replicas, all of them there throughout, and what requests tried in vain."""
        attendance, sizes = self._attendance, [len(each) for each in self._members]
        callers = None if attendance is None else attendance.callers
        refusals = () if attendance is None else attendance.refusals
        tried: dict[str, Any] = {
            "tries": tries_of(callers),
            "refusals": {reason: count for reason, count in zip(REASONS, refusals, strict=False) if count and reason},
            "num_resent": 0 if callers is None else callers.num_resent,
            "lost_tokens": 0 if attendance is None else attendance.lost_tokens,
        }
        if self._decisions is not None:
            return self._decisions.timeline(**tried, ranks=self.ranks)
        num_replicas, nothing = sum(sizes), np.array([], dtype=np.float64)
        return FleetTimeline(
            launched_at=np.zeros(num_replicas),
            ready_at=np.zeros(num_replicas),
            stopped_at=np.full(num_replicas, np.inf),
            ranks=self.ranks,
            gpus=np.repeat(np.array([each.gpus_per_replica for each in self._setups], dtype=np.int64), sizes),
            pool=np.repeat(np.arange(len(sizes)), sizes),
            pool_regions=tuple(each.region for each in self._setups),
            pool_names=tuple(each.name for each in self._setups),
            lost_since=nothing,
            lost_until=nothing,
            **tried,
        )


def tries_of(callers: Callers | None) -> NDArray[np.float64]:
    """Return every attempt that another one followed: arrival, first step, end, seconds; shape [attempts, 3]."""
    return np.array([] if callers is None else callers.abandoned, dtype=np.float64).reshape(-1, 3)
