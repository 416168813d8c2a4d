"""FleetRun: one run of replicas, in one pool or several. Replicas may come and go; clients may be refused, hang up, or
wait for answers.

What a data plane does by itself is in its rules, so that the whole run can be compiled; SimPy decides which replicas
are there (`simserve.sim.lifecycle`). The plane calls a user's own parts (`simserve.engine.judged`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import simpy
from numpy.typing import NDArray

from simserve import rng
from simserve.engine.admission_control import ANY_NUMBER, AdmissionControl, Bucket
from simserve.engine.client_state import AT_ADMISSION, NUMBERS_TO_ROUTE, TO_PAUSE, TO_ROUTE
from simserve.engine.compiled.run import reason_against
from simserve.engine.decoding import Paces
from simserve.engine.gateway import Gateway
from simserve.engine.plane_state import (
    ASKS_ADMISSION,
    ASKS_SECONDS,
    Clients,
    ClientState,
    Delivery,
    FleetState,
    Part,
    Router,
    Transfers,
)
from simserve.engine.progress import GRID
from simserve.engine.routing import JUDGED
from simserve.engine.state import INFINITY, DataParallelReplica, RequestTable, Uniforms, column
from simserve.sim.acceleration import Accelerate, compiled_for
from simserve.sim.autoscaler import EncoderLives
from simserve.sim.cluster import (
    DRAWS,
    KEPT,
    Cluster,
    OwnBlocks,
    clients_of,
    frontend_spacing,
    kinds_of,
    router_of,
    run_to_end,
    shares_of,
)
from simserve.sim.control import AdmissionSpec, Control, StreamingSpec
from simserve.sim.decisions import Decisions
from simserve.sim.gateway import FrontTotals, gateway_of, gateway_totals
from simserve.sim.lifecycle import Lifecycle, Pool, fresh_replica, pool_of
from simserve.sim.own_parts import Judge, OwnParts
from simserve.sim.plane import Chance, Regions, prefix_paths, prefixes_of, rules_of
from simserve.sim.pools import PoolOutcome, PoolSetup, outcomes_of, request_table
from simserve.sim.recorder import FleetTimeline, Recorder, series_sums
from simserve.sim.records import REASONS, REPLICA, RequestRecords
from simserve.sim.step_log import StepLog
from simserve.sim.streaming import Clocks, joined
from simserve.sim.transfers import transfer_totals, transfers_of, with_transfers
from simserve.workload.acceptance import draw_paces
from simserve.workload.requests import RequestSpecs

_NUMBERS_AT_ONCE = 16_384  # Random numbers drawn together if few are taken at a time.


class FleetRun:
    """Replicas, their clients and the rules between them, ready to run.

    Args:
        setups: The pools; with disaggregation, those that prefill and those that decode.
        latency: Seconds from sending to the router, shape [N].
        on_progress: Called now and then with the number of requests that have ended.
        log: Keeps every step; None: steps are not kept.
        accelerate: Whether to run compiled if possible.
        own: A user's own parts; None: there are none.
        has_own_clients: Whether a user's own clients send the requests, at times they choose.
        own_blocks: Whether requests that share nothing may find their own earlier blocks.

    Attributes:
        requests: The table of all requests.
        arrival_time: When each was first sent, seconds; filled in during a closed loop.
        cluster: The plane.
        client_state: What it knows of the clients.
        is_compiled: Whether it runs compiled.
        fleet: The replicas, as decision makers see them; None: all are there throughout.
    """

    requests: RequestTable
    fleet: Lifecycle | None = None
    _regions: Regions | None = None
    _decisions: Decisions | None = None

    def __init__(
        self,
        control: Control,
        setups: Sequence[PoolSetup],
        specs: RequestSpecs,
        latency: NDArray[np.float64],
        on_progress: Callable[[int], None] | None = None,
        log: StepLog | None = None,
        accelerate: Accelerate = "off",
        own: OwnParts | None = None,
        has_own_clients: bool = False,
        own_blocks: OwnBlocks = KEPT,
    ) -> None:
        self.own, self._has_own_clients, self._own_blocks = own, has_own_clients, own_blocks
        self._control, self._setups, self._specs = control, tuple(setups), specs
        self._pools: list[Pool] = []
        self.arrival_time = np.array(specs.arrival_time, dtype=np.float64)
        self._changes_fleet = own is not None or has_own_clients or control.changes_fleet
        self._changes_fleet = self._changes_fleet or any(each.autoscaling is not None for each in setups)
        self._build(latency, on_progress, log, accelerate)

    def _build(
        self,
        latency: NDArray[np.float64],
        on_progress: Callable[[int], None] | None,
        log: StepLog | None,
        accelerate: Accelerate,
    ) -> None:
        control, setups, specs, own = self._control, self._setups, self._specs, self.own
        judge = None if own is None else Judge(own, specs, is_stale=control.routing.update_interval > 0)
        obstacles = [reason_against(each.engine) for each in setups]
        obstacles += ["a run with parts of one's own"] if own is not None or self._has_own_clients else []
        compiled = compiled_for(accelerate, len(specs), next(filter(None, obstacles), None))
        self.is_compiled = compiled is not None
        paces = pool_paces(setups, specs)
        self._specs = specs = with_any_pace(specs, paces)
        if not any(each.engine.kv_tiers for each in setups):
            # Computed once, for caches and router.
            self._specs = specs = replace(specs, prefixes=prefixes_of(specs))
        entrances = [number for number, each in enumerate(setups) if each.role != "decode"]
        self._rules = rules = rules_of(control.rules, control.allowed, [setups[each].name for each in entrances], specs)
        limited = (control.allowed,) if rules is None else rules.for_limits()
        self.requests = request_table(setups, specs, *limited)
        replicas, recorders = self._replicas(log, not self.is_compiled)
        self._numbers: dict[int, Chance] = {}
        self.client_state = self._attend(control, latency, len(replicas))
        self.client_state.paces = self._paces_of(paces)
        router = self._router(not self.is_compiled)
        shares = shares_of(control.routing, [setups[each].name for each in entrances]) if len(setups) > 1 else None
        allowed = control.allowed if rules is None else rules.allowed
        members = [self._members[each] for each in entrances]
        needs_pools = shares is not None or control.regions is not None
        if not allowed and (needs_pools or self._changes_fleet or len(entrances) < len(setups)):
            allowed = (tuple(range(len(entrances))),) * max(len(specs.classes), 1)
        is_parted = len(setups) > 1 or self._changes_fleet or rules is not None or control.regions is not None
        parts = [Part([n for pool in each for n in members[pool]], each) for each in allowed] if is_parted else []
        self.cluster = Cluster(
            replicas,
            self.requests,
            recorders,
            control.routing,
            router,
            self.client_state,
            self._numbers,
            on_progress,
            parts=parts,
            kinds=(kinds_of(specs) if rules is None else column(rules.kinds, np.int32)) if parts else None,
            shares=shares,
            pools=[Part(list(each)) for each in members] if needs_pools else [],
            comes_and_goes=self._changes_fleet,
            counts_tokens=own is not None,
        )
        if not self._has_own_clients:
            self.cluster.expect(specs, self.arrival_time)
        self.cluster.accelerate(compiled)
        if self._changes_fleet:
            counts = [each.num_replicas for each in setups]
            self.fleet = Lifecycle(
                self._pools, self.cluster, self.client_state, counts, specs, allowed, control.kv_bytes_per_token
            )
            self._decisions = Decisions(
                control, setups, self.fleet, specs, self.arrival_time, self.client_state.clients
            )
            if judge is not None:
                self._ask(judge, self.fleet, self.client_state, router)

    def _replicas(
        self, log: StepLog | None, is_interpreted: bool
    ) -> tuple[list[DataParallelReplica], list[tuple[Recorder, list[int]]]]:
        """Return the initial replicas, pool by pool, and for each pool a recorder with the schedulers it records."""
        control, specs, sums = self._control, self._specs, series_sums()
        replicas: list[DataParallelReplica] = []
        recorders: list[tuple[Recorder, list[int]]] = []
        num_schedulers = 0
        self._members: list[list[int]] = []
        for setup in self._setups:
            times = setup.step_times.as_lists() if is_interpreted else setup.step_times
            recorder = Recorder(setup.engine, times, setup.priced, sums, log)
            # The KV caches that a decode replica receives were computed elsewhere.
            if setup.role != "decode" and self._own_blocks.finds_any(setup.engine, specs):
                recorder.paths = prefix_paths(setup.engine, specs, as_lists=is_interpreted)
            recorder.encodes_images = specs.encoder_seconds is not None
            recorder.scales_parts = self.own is not None and self.own.step_seconds is not None
            if control.streaming is not None:
                recorder.clocks = {}
            self._pools.append(pool_of(setup, control, times, recorder, recorder.paths, self.requests))
            self._members.append(list(range(len(replicas), len(replicas) + setup.num_replicas)))
            for number in self._members[-1]:
                replicas.append(fresh_replica(self._pools[-1], number))
            count = setup.num_replicas * setup.engine.data_parallel_size
            recorders.append((recorder, list(range(num_schedulers, num_schedulers + count))))
            num_schedulers += count
        return replicas, recorders

    def _router(self, is_interpreted: bool) -> Router:
        control, specs = self._control, self._specs
        is_own = self.own is not None and self.own.router is not None
        chance = None
        if DRAWS.get(control.routing.policy) and not is_own:
            # With fairness, many requests may be routed at one instant.
            room = _NUMBERS_AT_ONCE if control.fairness is None else NUMBERS_TO_ROUTE * (len(specs) + 2)
            chance = self._chance(TO_ROUTE, "routing", room)
        router = router_of(control.routing, specs, as_lists=is_interpreted, chance=chance)
        if is_own:
            router.policy, router.affinity = JUDGED, None
        return router

    def _ask(self, judge: Judge, fleet: Lifecycle, client_state: ClientState, router: Router) -> None:
        asked = AskedOnPlane(judge, fleet)
        fleet.judge = judge
        router.judge = client_state.judge = asked
        client_state.asks = ASKS_ADMISSION * (judge.parts.admission is not None)
        client_state.asks += ASKS_SECONDS * (judge.parts.step_seconds is not None)

    def start(self, env: simpy.Environment) -> None:
        """Start all decision makers on a clock that the caller owns."""
        assert self._decisions is not None
        self._decisions.start(env)

    @property
    def recorders(self) -> list[tuple[PoolSetup, Recorder]]:
        """The recorder of each pool, with what the pool is."""
        return [(setup, pool.recorder) for setup, pool in zip(self._setups, self._pools, strict=True)]

    def flush(self) -> None:
        """Pass what the schedulers have written to the recorders."""
        self.cluster.flush()

    def run(self) -> bool:
        """Run to the end; return whether the user stopped it."""
        decisions = self._decisions
        was_interrupted = run_to_end(self.cluster) if decisions is None else decisions.run()
        self.cluster.flush()
        self.cluster.forget_unsent(self.arrival_time)
        return was_interrupted

    @property
    def _waits(self) -> bool:
        """Whether clients wait for answers before they send more."""
        return self._specs.concurrency is not None or self._specs.turn is not None

    def outcomes(self, records: RequestRecords, end_time: float) -> list[PoolOutcome]:
        """Return what each pool did; after `run`."""
        recorders = [pool.recorder for pool in self._pools]
        return outcomes_of(self._setups, recorders, records, end_time, self.timeline)

    @property
    def clocks(self) -> Clocks:
        """Leaps with decodes of every scheduler; only with streaming, after `run`."""
        return {number: clock for pool in self._pools for number, clock in joined(pool.recorder.clocks).items()}

    def tokens_before_decode(self, records: RequestRecords) -> NDArray[np.int64]:
        """Return how many tokens each request had before its first decode step, shape [N]; after `run`, with streaming.

        The one that its prompt brings; none at replicas that compute the last token of a prompt again. Those decode
        what others prefill, so what they answer came with its KV cache.
        """
        again = [pool for pool in self._pools if pool.config.has_late_first_token]
        late = [number for pool in again for number, _ in pool.recorder.clocks or ()]
        return np.where(np.isin(records.replica_id, late), 0, 1)

    @property
    def cached_tokens(self) -> NDArray[np.int64] | None:
        """Prompt tokens of each request found in the prefix cache of its replica; None without caches."""
        paths = [pool.paths for pool in self._pools if pool.paths is not None]
        found = [np.frombuffer(each.cached_tokens, dtype=np.int64) for each in paths]
        return np.maximum.reduce(found) if found else None

    def _attend(self, control: Control, latency: NDArray[np.float64], num_replicas: int) -> ClientState:
        """Return the plane's state of the clients, and of everything between them and the replicas."""
        specs, admission, streaming = self._specs, control.admission, control.streaming
        delivery = delivery_of(streaming, num_replicas) if self._waits and streaming is not None else None
        fleet_state = None
        if self._changes_fleet:
            scalings = [control.autoscaling, *(each.autoscaling for each in self._setups)]
            notes_ends = self._has_own_clients or any(each is not None and each.metric == "slo" for each in scalings)
            fleet_state = FleetState(len(specs), num_replicas, notes_ends=notes_ends, tells_ends=self._has_own_clients)
        has_retries = any(each.retries is not None for each in specs.classes)
        pauses = self._chance(TO_PAUSE, "retries", len(specs) + 1) if has_retries else Chance(specs, "retries")
        first = self._setups[0]
        spacing = frontend_spacing(first.engine, first.num_replicas)
        clients = clients_of(specs, streaming, latency, self.arrival_time, pauses.uniforms, spacing)
        admission_control = None
        if admission is not None:
            is_drawn = admission.probabilistic_from is not None
            chance = (
                self._chance(AT_ADMISSION, "admission", _NUMBERS_AT_ONCE) if is_drawn else Chance(specs, "admission")
            )
            admission_control = admission_control_of(admission, control, specs, chance.uniforms)
        client_state = ClientState(clients, admission_control, num_replicas, delivery, fleet_state)
        if control.disaggregation is not None:
            client_state.transfers = transfers_of(
                *(control.disaggregation, control.kv_bytes_per_token, self._setups, self._members, len(specs)),
                control.landing_seconds_per_token,
            )
            client_state.transfers.notes_sends = self._changes_fleet
        if control.regions is not None:
            self._regions = Regions(control.regions, self._setups, specs)
            client_state.regions = self._regions.on_plane(self._members, is_streamed=streaming is not None)
        client_state.gateway = gateway_of(control, specs, self._rules, self._numbers)
        return client_state

    def _paces_of(self, paces: Sequence[list[int] | None]) -> Paces | None:
        """Return the pace of each request on each replica; None if no pool has drafts of its own."""
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
        """Return the records with the optional columns: region of the client, KV transfers, who answered."""
        if self._regions is not None:
            records = replace(records, client_region=self._regions.home, region_names=self._regions.names)
        if self._transfers is not None:
            records = with_transfers(records, self._transfers)
        if self._gateway is not None:
            return replace(records, served_by=np.frombuffer(self._gateway.served_by, dtype=np.int8))
        return records if self.front is None else replace(records, served_by=np.full(len(records), REPLICA, np.int8))

    @property
    def way_back(self) -> NDArray[np.float64] | None:
        """With regions and streaming: seconds from each request's replica back to its client; else None."""
        regions = self.client_state.regions
        return None if regions is None or not regions.is_streamed else np.array(regions.way_back)

    @property
    def _transfers(self) -> Transfers | None:
        return self.client_state.transfers

    @property
    def transfers(self) -> dict[str, float]:
        """Totals of KV transfers between the pools; empty without disaggregation."""
        return {} if self._transfers is None else transfer_totals(self._transfers)

    @property
    def _gateway(self) -> Gateway | None:
        return self.client_state.gateway

    @property
    def front(self) -> FrontTotals | None:
        """Totals of the gateway; without one, empty totals if answers take time to reach waiting clients, else None."""
        if self._gateway is not None:
            return gateway_totals(self._gateway, self._rules, tuple(each.name for each in self._specs.classes))
        return None if self.client_state.delivery is None else FrontTotals()

    @property
    def num_schedulers(self) -> int:
        """Schedulers that ever served: the ranks of data-parallel attention of all replicas."""
        return sum(replica.num_ranks for replica in self.cluster.replicas)

    @property
    def encoder_lives(self) -> EncoderLives | None:
        """When the workers of an encoder pool were there; None if their number is fixed."""
        return None if self._decisions is None else self._decisions.encoder_lives

    @property
    def ranks(self) -> NDArray[np.int64] | None:
        """Number of schedulers of each replica; None: one each."""
        counts = np.array([replica.num_ranks for replica in self.cluster.replicas], dtype=np.int64)
        return counts if (counts > 1).any() else None

    @property
    def timeline(self) -> FleetTimeline:
        """When replicas came and went, and failed attempts of requests."""
        client_state, sizes = self.client_state, [len(each) for each in self._members]
        clients, refusals = client_state.clients, client_state.refusals
        tried: dict[str, Any] = {
            "tries": tries_of(clients),
            "refusals": {reason: count for reason, count in zip(REASONS, refusals, strict=False) if count and reason},
            "num_resent": clients.num_resent,
            "lost_tokens": client_state.lost_tokens,
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
            lost_since=nothing,
            lost_until=nothing,
            **tried,
        )


def tries_of(clients: Clients) -> NDArray[np.float64]:
    """Return each attempt that was followed by another: arrival, first step, end, seconds; shape [attempts, 3]."""
    return np.array(clients.abandoned, dtype=np.float64).reshape(-1, 3)


class AskedOnPlane:
    """A user's own parts, in the form in which the plane calls them."""

    def __init__(self, judge: Judge, fleet: Lifecycle) -> None:
        self._judge, self._fleet = judge, fleet

    def choice(self, index: int, ready: Sequence[int]) -> int:
        """Return which of the ready replicas a request goes to."""
        fleet = self._fleet
        return self._judge.route(index, fleet.time, fleet.requests.max_tokens[index], fleet.gauges(ready))

    def refusal(self, index: int, now: float) -> int:
        """Return why a request is refused, an index into `REASONS`; 0: it is not."""
        fleet = self._fleet
        gauges = fleet.gauges(fleet.open_to(index))
        return REASONS.index(self._judge.refusal(index, now, fleet.requests.max_tokens[index], gauges))

    def step_seconds(self, prompt_tokens: int, decode_tokens: int, context_tokens: float, now: float) -> float:
        """Return how long a step takes."""
        return self._judge.seconds(prompt_tokens, decode_tokens, context_tokens, now)


def delivery_of(spec: StreamingSpec, num_replicas: int) -> Delivery:
    """Return how answers travel from ``num_replicas`` replicas to their clients."""
    cost = spec.cost_per_event / spec.api_servers
    per_token = cost / spec.tokens_per_event if spec.stream else 0.0
    return Delivery(num_replicas, spec.network_latency, cost, per_token, spec.stream)


def pool_paces(setups: Sequence[PoolSetup], specs: RequestSpecs) -> list[list[int] | None]:
    """Return the pace of every request on each pool, in parts of a token; None: no pool has drafts of its own.

    It is one token a step on a pool that does not draft. All others are drawn from the same uniforms: a request that is
    lucky on one pool is lucky on the others.
    """
    asked = np.where(specs.max_tokens > 0, specs.max_tokens, specs.output_tokens)
    tokens = np.minimum(specs.output_tokens, asked)
    found: list[list[int] | None] = []
    for setup in setups:
        if not setup.acceptance:
            found.append([GRID] * len(specs) if any(each.acceptance for each in setups) else None)
            continue
        generator = rng.stream(specs.seed, "speculation", specs.replication)
        found.append(draw_paces(tokens, setup.acceptance, generator, GRID).tolist())
    return found


def with_any_pace(specs: RequestSpecs, paces: Sequence[list[int] | None]) -> RequestSpecs:
    """Return the requests with room for a pace each; the right one is written when a request joins a pool."""
    drawn = next((each for each in paces if each is not None), None)
    return specs if drawn is None else replace(specs, pace=np.array(drawn, dtype=np.int64))


def admission_control_of(
    spec: AdmissionSpec, control: Control, specs: RequestSpecs, uniforms: Uniforms
) -> AdmissionControl:
    """Return the admission control of a run.

    Args:
        specs: What arrives, and how long clients wait.
    """
    patience = [INFINITY]
    if spec.deadline_aware:
        patience = [_patience(control, specs, kind) for kind in range(max(len(specs.classes), 1))]
    bucket = spec.token_bucket
    return AdmissionControl(
        bucket=None if bucket is None else Bucket(bucket.rate, bucket.burst),
        max_queue=ANY_NUMBER if spec.max_queue is None else spec.max_queue,
        kv_headroom=spec.kv_headroom or 0.0,
        probabilistic_from=INFINITY if spec.probabilistic_from is None else spec.probabilistic_from,
        patience=column(patience),
        kinds=kinds_of(specs),
        has_patience=min(patience) < INFINITY,
        retry_after=spec.retry_after,
        uniforms=uniforms,
    )


def _patience(control: Control, specs: RequestSpecs, kind: int) -> float:
    """Return the seconds from arrival within which the first token must come; inf: no limit."""
    classes = specs.classes
    ttft = control.limits[kind if specs.request_class is not None else 0].ttft
    if ttft is not None:
        return ttft
    timeout = None if specs.request_class is None else classes[kind].timeout
    return INFINITY if timeout is None else timeout
