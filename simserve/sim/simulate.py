"""One run: requests through a deployment on SimPy's clock.

SimPy runs all decisions over time; one data-plane process drives the cluster to the next decision, so a run costs
SimPy events per decision, not per request or token. It knows no YAML and no file.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from simserve.engine.compiled.run import reason_against
from simserve.engine.state import PROMPT_TOO_LONG, RequestTable
from simserve.sim.acceleration import Accelerate, compiled_for
from simserve.sim.cluster import (
    CameAgain,
    Cluster,
    OwnBlocks,
    Routing,
    end_of,
    frontend_spacing,
    new_replica,
    plain_clients,
    router_of,
    run_to_end,
)
from simserve.sim.control import OF_FLEET, OF_GATEWAY, OF_REQUESTS, Control, RoutingSpec
from simserve.sim.plane import prefix_paths, prefixes_of
from simserve.sim.pools import PoolSetup, together
from simserve.sim.recorder import Recorder, RunTotals
from simserve.sim.records import RequestRecords, answer_columns, table_for
from simserve.workload.requests import RequestSpecs

if TYPE_CHECKING:
    from simserve.engine.config import EngineConfig
    from simserve.engine.state import StepTimes
    from simserve.perf.operators import PricedDeployment
    from simserve.sim.autoscaler import EncoderLives
    from simserve.sim.control import StreamingSpec
    from simserve.sim.fleet_run import FleetRun
    from simserve.sim.gateway import FrontTotals
    from simserve.sim.own_parts import OwnParts
    from simserve.sim.pools import PoolOutcome
    from simserve.sim.recorder import FleetTimeline
    from simserve.sim.step_log import KeptSteps, StepLog
    from simserve.sim.streaming import StreamTotals

Progress = Callable[[int, int], None]  # Called with the number of finished requests and of all requests.


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """What serves the requests: equal replicas behind one router, and what else decides (None: nothing).

    With ``pools``, those serve, and the replicas named first are what a summary compares them with.
    """

    num_replicas: int
    engine: EngineConfig
    priced: PricedDeployment
    routing: Routing = "least_outstanding"
    gpus_per_replica: int = 1
    control: Control | None = None
    pools: tuple[PoolSetup, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """What a run produced."""

    records: RequestRecords  # One row per request.
    totals: RunTotals  # Sums over all replicas.
    end_time: float  # The last event, seconds.
    num_replicas: int  # Schedulers that served: replicas times the ranks of data-parallel attention in each.
    is_open_loop: bool  # Whether all or some arrivals did not wait for answers.
    is_stationary: bool  # Whether arrivals were open-loop at a constant mean rate, so that a warm-up may be cut.
    offered_rate: float  # Requests/s asked for; NaN where undefined.
    was_interrupted: bool  # Whether the user stopped it; requests may be unfinished.
    has_clients: bool = False
    """Whether clients of a closed loop sent requests, alone or in addition to open arrivals."""
    has_changing_fleet: bool = False
    """Whether replicas came and went, or broke: the effects of a start or a loss are part of the answer, so no
    warm-up is cut."""
    steps: KeptSteps | None = None  # Every step, if requested.
    timeline: FleetTimeline | None = None
    """When replicas came and went, if something decides in a run; None: all were there throughout."""
    pools: tuple[PoolOutcome, ...] = ()  # What each pool did, if there are several; else empty.
    transfers: Mapping[str, float] = field(default_factory=dict)
    """KV transfers between replicas: ``count link_seconds waited_seconds stalled_seconds``; empty: none."""
    stream: StreamTotals | None = None
    """What was sent to the clients, if requested; None: tokens reached them at once."""
    front: FrontTotals | None = None  # What the parts in front of the replicas did, if there are any; else None.
    encoder_wait: NDArray[np.float64] | None = None
    """Seconds that the images of each request waited for a worker of the encoder pool, in the order in which requests
    were drawn, NaN: none were encoded there; None: there is no such pool."""
    encoder_parts: NDArray[np.int64] | None = None  # Number of workers that they were divided over, in that order.
    encoder_lives: EncoderLives | None = None  # When each worker was there; None: all throughout.
    api_token_seconds: float = 0.0
    """Time that the API server of a replica takes per token, by the engine's own figure, the least of all pools; 0:
    unknown."""

    @property
    def replica_seconds(self) -> float:
        """Seconds of all schedulers together, from the launch of their replica to the end."""
        if self.timeline is None:
            return self.num_replicas * self.end_time
        return self.timeline.mean_schedulers(0.0, self.end_time) * self.end_time

    @property
    def busy_share(self) -> float:
        """Share of ``replica_seconds`` with a step running; a step that outlasts the last request counts to the end."""
        return min(self.totals.busy_seconds / self.replica_seconds, 1.0) if self.replica_seconds > 0 else math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What replicas did with a list of requests (see `replay`)."""

    records: RequestRecords
    totals: RunTotals


def simulate(
    deployment: Deployment,
    specs: RequestSpecs,
    *,
    progress: Progress | None = None,
    keep_steps: bool = False,
    accelerate: Accelerate = "auto",
    own: OwnParts | None = None,
) -> Simulation:
    """Serve ``specs`` to the end.

    Args:
        keep_steps: Whether to keep every step, for a timeline.
        accelerate: Whether to run the kernel compiled: if it pays, whenever possible, or never.
        own: A user's own parts: the run is then interpreted, with one event per arrival.

    Raises:
        UsageError: It must be compiled, and there is no working numba.
    """
    log = None
    if keep_steps:
        from simserve.sim.step_log import StepLog

        log = StepLog()
    engine, priced = deployment.engine, deployment.priced
    control = deployment.control or Control(routing=RoutingSpec(policy=deployment.routing))
    if own is not None or has_decisions(deployment, control, specs):
        return _decided(deployment, control, specs, progress, log, accelerate, own)
    records, totals, end_time, was_interrupted = _run(
        engine, priced.step_times, priced, deployment.num_replicas, control.routing, specs, progress, log, accelerate
    )
    return Simulation(
        records=_in_order(records, specs, log),
        totals=totals,
        end_time=end_time,
        num_replicas=deployment.num_replicas * engine.data_parallel_size,
        is_open_loop=specs.has_open_arrivals,
        has_clients=specs.concurrency is not None,
        is_stationary=specs.is_stationary,
        offered_rate=specs.offered_rate,
        was_interrupted=was_interrupted,
        steps=log,
        api_token_seconds=engine.api_token_seconds,
    )


def has_decisions(deployment: Deployment, control: Control, specs: RequestSpecs) -> bool:
    """Return whether anything is decided in the run beyond where a request goes."""
    has_patience = any(each.timeout is not None or each.retries is not None for each in specs.classes)
    is_told = specs.time_limit is not None or specs.encoder_pool is not None
    deciders = (*OF_GATEWAY(control), *OF_FLEET(control), *OF_REQUESTS(control))
    return has_patience or is_told or bool(deployment.pools) or any(deciders)


def _as_seen(spec: StreamingSpec, simulation: Simulation, run: FleetRun) -> Simulation:
    """Return the run as the clients see it."""
    from simserve.sim.streaming import Drafted, SendAll, client_view

    drafted = None
    if len(run.requests.pace):
        pace = np.frombuffer(run.requests.pace, dtype=np.int64)
        drafted = Drafted(pace, run.tokens_before_decode(simulation.records))
    rank = np.frombuffer(run.requests.rank, dtype=np.int32).astype(np.int64)
    if run.ranks is not None and len(rank):
        # If a replica has one scheduler, the value is a rank of another replica, which had the request before.
        rank[run.ranks[simulation.records.replica_id] == 1] = 0
    send_all: SendAll | None = None
    if run.is_compiled:
        from simserve.engine.compiled import loader

        send_all = loader.send_all
    view = client_view(spec, simulation.records, run.clocks, simulation.end_time, rank, drafted, run.way_back, send_all)
    totals = replace(simulation.totals, itl=view.itl)
    return replace(simulation, records=view.records, totals=totals, stream=view.totals)


def _decided(
    deployment: Deployment,
    control: Control,
    specs: RequestSpecs,
    progress: Progress | None,
    log: StepLog | None,
    accelerate: Accelerate,
    own: OwnParts | None = None,
) -> Simulation:
    """Serve ``specs`` with decisions during the run."""
    from simserve.sim.fleet_run import FleetRun

    streaming, setups = control.streaming, setups_of(deployment)
    latency = frontend_latency(deployment.engine, specs) + (0.0 if streaming is None else streaming.network_latency)
    blocks = OwnBlocks.of([each.engine for each in setups], specs, may_return=_may_return(control, setups))
    if own is not None or log is not None:
        # A user's own parts are called once, and steps are kept once.
        blocks = blocks.settled

    def serve(blocks: OwnBlocks) -> Simulation:
        def check() -> None:
            blocks.check(run.requests, np.frombuffer(run.client_state.clients.tries, dtype=np.int32))

        def on_progress(num_ended: int) -> None:
            check()
            if progress is not None:
                progress(num_ended, len(specs))

        run = FleetRun(control, setups, specs, latency, on_progress, log, accelerate, own, own_blocks=blocks)
        was_interrupted = run.run()
        check()
        for setup, recorder in run.recorders:
            if setup.role != "decode":
                blocks.check_room(setup.engine, recorder)
        return simulation_of(run, specs, control, setups, log, was_interrupted=was_interrupted)

    try:
        return serve(blocks)
    except CameAgain:
        return serve(blocks.settled)
    finally:
        # Replicas, pools and control refer to each other, and hold the arrays of every request. Python counts objects,
        # not bytes: it would keep hundreds of such runs before it looks for cycles.
        gc.collect(1)


def _may_return(control: Control, setups: Sequence[PoolSetup]) -> bool:
    """Return whether lost requests may continue on other replicas, or blocks count that no request looks for."""
    return bool(control.faults or control.liveness) or any(each.engine.kv_tiers for each in setups)


def simulation_of(
    run: FleetRun,
    specs: RequestSpecs,
    control: Control,
    setups: Sequence[PoolSetup],
    log: StepLog | None,
    *,
    was_interrupted: bool,
) -> Simulation:
    """Return what a run of pools produced, once it is over."""
    streaming = control.streaming
    records = run.dressed(_records(run.requests, run.arrival_time, specs, run.cached_tokens))
    end_time = end_of(run.requests)
    outcomes = run.outcomes(records, end_time)
    simulation = Simulation(
        records=records,
        totals=together(outcomes),
        end_time=end_time,
        num_replicas=run.num_schedulers,
        is_open_loop=specs.has_open_arrivals,
        has_clients=specs.concurrency is not None,
        is_stationary=specs.is_stationary,
        offered_rate=specs.offered_rate,
        was_interrupted=was_interrupted,
        has_changing_fleet=control.changes_fleet or any(setup.autoscaling is not None for setup in setups),
        steps=log,
        timeline=run.timeline,
        pools=tuple(outcomes) if len(outcomes) > 1 else (),
        transfers=run.transfers,
        front=run.front,
        encoder_wait=None if specs.encoder_pool is None else np.array(run.client_state.clients.encoder_wait),
        encoder_parts=None if specs.encoder_pool is None else np.array(run.client_state.clients.encoder_parts),
        encoder_lives=run.encoder_lives,
        api_token_seconds=min(setup.engine.api_token_seconds for setup in setups),
    )
    if streaming is not None:
        simulation = _as_seen(streaming, simulation, run)
    if log is not None:
        log.keep_paces(run.requests)
    return replace(simulation, records=_in_order(simulation.records, specs, log))


def setups_of(deployment: Deployment) -> tuple[PoolSetup, ...]:
    """Return the pools of a deployment; equal replicas form one."""
    one = PoolSetup(
        name="",
        engine=deployment.engine,
        step_times=deployment.priced.step_times,
        priced=deployment.priced,
        num_replicas=deployment.num_replicas,
        gpus_per_replica=deployment.gpus_per_replica,
    )
    return deployment.pools or (one,)


def _in_order(records: RequestRecords, specs: RequestSpecs, log: StepLog | None) -> RequestRecords:
    """Return the records in order of arrival, and reorder the log; drops what stopped clients never sent."""
    if not specs.sends_out_of_order and specs.closes_at is None:
        return records
    order = np.arange(len(records))
    if specs.sends_out_of_order:
        order = np.argsort(records.arrival_time, kind="stable")
    if specs.closes_at is not None:
        order = order[np.isfinite(records.arrival_time[order])]
    if log is not None:
        log.renumber(order)
    return records.rows(order)


def frontend_latency(config: EngineConfig, specs: RequestSpecs) -> NDArray[np.float64]:
    """Return the seconds that each request takes from sending to the end of the tokeniser."""
    tokens = specs.prompt_tokens.astype(np.float64)
    base = config.frontend_latency + config.frontend_seconds_per_request
    latency: NDArray[np.float64] = base + config.tokenization_per_token * tokens
    return latency


def replay(
    config: EngineConfig,
    step_times: StepTimes,
    specs: RequestSpecs,
    *,
    num_replicas: int = 1,
    routing: Routing | RoutingSpec = "round_robin",
    accelerate: Accelerate = "off",
) -> Replay:
    """Serve ``specs`` on replicas with given step times, without a priced deployment."""
    spec = routing if isinstance(routing, RoutingSpec) else RoutingSpec(policy=routing)
    records, totals, _, _ = _run(config, step_times, None, num_replicas, spec, specs, None, accelerate=accelerate)
    return Replay(records=records, totals=totals)


def _run(
    config: EngineConfig,
    times: StepTimes,
    priced: PricedDeployment | None,
    num_replicas: int,
    routing: RoutingSpec,
    specs: RequestSpecs,
    progress: Progress | None,
    log: StepLog | None = None,
    accelerate: Accelerate = "off",
) -> tuple[RequestRecords, RunTotals, float, bool]:
    """Serve ``specs`` with no decisions other than those of a router."""
    serve = partial(_run_with, config, times, priced, num_replicas, routing, specs, progress, log, accelerate)
    own = OwnBlocks.of((config,), specs, may_return=False)
    try:
        return serve(own if log is None else own.settled)
    except CameAgain:
        return serve(own.settled)


def _run_with(
    config: EngineConfig,
    times: StepTimes,
    priced: PricedDeployment | None,
    num_replicas: int,
    routing: RoutingSpec,
    specs: RequestSpecs,
    progress: Progress | None,
    log: StepLog | None,
    accelerate: Accelerate,
    own: OwnBlocks,
) -> tuple[RequestRecords, RunTotals, float, bool]:
    compiled = None if accelerate == "off" else compiled_for(accelerate, len(specs), reason_against(config))
    times = times.as_lists() if compiled is None else times
    requests = table_for(specs, config, is_lean=True)
    recorder = Recorder(config, times, priced, log=log)
    recorder.encodes_images = specs.encoder_seconds is not None
    if specs.prefixes is not None and not config.kv_tiers:
        # Computed once, for caches and router.
        specs = replace(specs, prefixes=prefixes_of(specs))
    paths = prefix_paths(config, specs, as_lists=compiled is None) if own.finds_any(config, specs) else None
    recorder.paths = paths
    replicas = [new_replica(number, config, times, requests, paths) for number in range(num_replicas)]
    num_schedulers = num_replicas * config.data_parallel_size
    if log is not None:
        log.watch([rank for replica in replicas for rank in replica.ranks])

    def on_progress(num_ended: int, requests: RequestTable = requests) -> None:
        own.check(requests)
        if progress is not None:
            progress(num_ended, len(specs))

    router = router_of(routing, specs, as_lists=compiled is None)
    arrival_time = np.array(specs.arrival_time, dtype=np.float64)
    latency = frontend_latency(config, specs)
    spacing = frontend_spacing(config, num_replicas)
    clients = plain_clients(specs, latency, arrival_time, num_replicas, spacing)
    recorders = [(recorder, range(num_schedulers))]
    cluster = Cluster(replicas, requests, recorders, routing, router, clients, on_progress=on_progress)
    cluster.expect(specs, arrival_time)
    cluster.accelerate(compiled)
    was_interrupted = run_to_end(cluster)
    own.check(requests)
    cluster.flush()
    if config.window_tokens or config.num_lookahead_tokens:
        own.check_room(config, recorder)
    cluster.forget_unsent(arrival_time)
    if log is not None:
        log.keep_paces(requests)
    cached = None if paths is None else np.frombuffer(paths.cached_tokens, dtype=np.int64)
    records = _records(requests, arrival_time, specs, cached)
    end_time = end_of(requests)
    # Frees what only the scheduler needed before the totals are computed.
    del cluster, router, requests, replicas, on_progress
    return records, recorder.totals(num_schedulers, records, end_time), end_time, was_interrupted


def _records(
    requests: RequestTable,
    arrival_time: np.ndarray[Any, np.dtype[np.float64]],
    specs: RequestSpecs,
    cached_tokens: NDArray[np.int64] | None,
) -> RequestRecords:
    itl_max = np.frombuffer(requests.itl_max)
    itl_max[itl_max < 0] = np.nan
    admitted_time = np.frombuffer(requests.ready_time)
    # Prompts too long for the model never reach a queue; requests lost later did.
    never_queued = np.frombuffer(requests.reason, dtype=np.int8) == PROMPT_TOO_LONG
    if never_queued.any():
        admitted_time = np.where(never_queued, np.nan, admitted_time)
    num_requests = len(arrival_time)
    return RequestRecords(
        arrival_time=arrival_time,
        admitted_time=admitted_time,
        scheduled_time=np.frombuffer(requests.scheduled_time),
        first_token_time=np.frombuffer(requests.first_token_time),
        finish_time=np.frombuffer(requests.finish_time),
        prompt_tokens=np.asarray(specs.prompt_tokens, dtype=np.int64),
        output_tokens=specs.visible_output(np.frombuffer(requests.generated_tokens, dtype=np.int64)),
        cached_tokens=np.zeros(num_requests, dtype=np.int64) if cached_tokens is None else cached_tokens,
        num_preemptions=np.frombuffer(requests.num_preemptions, dtype=np.int32),
        replica_id=np.frombuffer(requests.replica_id, dtype=np.int32),
        itl_max=itl_max,
        status=np.frombuffer(requests.status, dtype=np.int8),
        reason=np.frombuffer(requests.reason, dtype=np.int8),
        is_truncated=np.frombuffer(requests.is_truncated, dtype=np.bool_),
        request_class=specs.request_class,
        class_names=tuple(each.name for each in specs.classes),
        session=specs.session,
        turn=specs.turn,
        task=specs.task,
        adapter=specs.adapter,
        **answer_columns(requests, specs),
    )
