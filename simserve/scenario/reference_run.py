"""A deployment served by the reference instead of the fast plane: its cluster, records and totals. Decides nothing."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from simserve.engine.state import (
    BLOCKED_BY_BLOCKS,
    BLOCKED_BY_BUDGET,
    BLOCKED_BY_LORAS,
    BLOCKED_BY_NOTHING,
    BLOCKED_BY_PREFIX,
    BLOCKED_BY_SCATTER,
    BLOCKED_BY_SEATS,
    LEAP_WIDTH,
)
from simserve.errors import ScenarioError
from simserve.reference.cluster import Cluster
from simserve.reference.replica import Pool, Replica
from simserve.reference.request import ONE_TOKEN, Request
from simserve.reference.steps import Step, priced_chunks
from simserve.reference.streaming import Sent, busy_share, is_sent_by, send
from simserve.scenario.combinations import tiers_key
from simserve.sim.autoscaler import EncoderLives
from simserve.sim.control import Control, RoutingSpec
from simserve.sim.gateway import FrontTotals
from simserve.sim.own_parts import Judge, OwnParts
from simserve.sim.pools import PoolSetup, outcomes_of, together
from simserve.sim.recorder import FleetTimeline, Recorder, RunTotals, series_sums
from simserve.sim.records import REASONS, SERVERS, STATUSES, Histogram, RequestRecords
from simserve.sim.simulate import Simulation, has_decisions, setups_of
from simserve.sim.step_log import COLUMNS, StepTable
from simserve.sim.streaming import ClientView, StreamTotals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simserve.reference.kv_memory import Scheduler
    from simserve.scenario.deployment_spec import DeploymentSpec
    from simserve.scenario.schema import Scenario
    from simserve.sim.simulate import Deployment
    from simserve.workload.requests import RequestSpecs

_BLOCKED = {
    "": BLOCKED_BY_NOTHING,
    "seats": BLOCKED_BY_SEATS,
    "blocks": BLOCKED_BY_BLOCKS,
    "budget": BLOCKED_BY_BUDGET,
    "scatter": BLOCKED_BY_SCATTER,
    "loras": BLOCKED_BY_LORAS,
    "prefix": BLOCKED_BY_PREFIX,
}
_SCALING = ("autoscaling", "startup_seconds", "weights_bytes", "replicas_per_node")
_OF_POOLS = ("name", "role", "num_replicas", "kv_layout", "region")  # Fields that pools have in both simulators.
_WAITING, _BLOCKED_BY = -2, -1  # Columns of a row that are known once its step has ended.


def uncovered(deployment: Deployment) -> str | None:
    """Return the key of a deployment that the reference does not cover; None: it covers all."""
    control, engines = deployment.control, [each.engine for each in deployment.pools] or [deployment.engine]
    if control is None:
        return None
    is_static = any(each.batching == "static" for each in engines)
    is_scaled = any(each.autoscaling is not None for each in deployment.pools)
    found = {
        "engine.batching": is_static and (control.changes_fleet or is_scaled or control.admission is not None),
        "engine.kv_allocation": control.disaggregation is not None
        and any(each.kv_allocation != "paged" or each.batching == "static" for each in engines),
        "pools.speculative": any(each.acceptance for each in deployment.pools),
    }
    return next((key for key, applies in found.items() if applies), None)


def uncounted(deployment: Deployment, asked: DeploymentSpec) -> str | None:
    """Return the key of a deployment that the reference serves without computing totals; None: there is none.

    Args:
        asked: What the scenario says of it.
    """
    engines = [each.engine for each in deployment.pools] or [deployment.engine]
    found = {
        "engine.batching": any(each.batching == "static" for each in engines),
        "engine.max_loras": any(each.max_loras for each in engines),
    }
    tiers = tiers_key(asked) if any(each.kv_tiers for each in engines) else None
    return uncovered(deployment) or next((key for key, applies in found.items() if applies), tiers)


def refuse(scenario: Scenario, key: str | None, remedy: str) -> None:
    """Refuse what the reference does not cover.

    Raises:
        ScenarioError: ``key`` is not None.
    """
    if key is not None:
        with scenario.blaming("deployment"):
            named = f"deployment.{key}" if "." in key else key
            raise ScenarioError("is not covered by the reference", key=named, remedy=remedy)


@dataclass(frozen=True, slots=True)
class NotedSteps:
    """The steps of a run by the reference, shape [columns of a `StepTable`, steps]."""

    rows: NDArray[np.float64]

    def table(self) -> StepTable:
        """Return the steps as a table."""
        return StepTable.of([self.rows], self.rows.shape[1])


class NotedCluster(Cluster):
    """A cluster that records its steps, for the totals of a result.

    Attributes:
        rows: By pool and scheduler, one row per step with the fields of `simserve.engine.state.LEAP_FIELDS`.
        advances: Likewise, the tokens that each step adds to the contexts.
        steps: One row per step of a scheduler, with the columns of `simserve.sim.step_log.StepTable`.
    """

    def __init__(
        self, pools: Sequence[Pool], control: Control, specs: RequestSpecs, judge: Judge | None = None
    ) -> None:
        self.rows: dict[tuple[int, int], list[list[float]]] = defaultdict(list)
        self.advances: dict[tuple[int, int], list[float]] = defaultdict(list)
        self.num_moved_blocks: dict[int, int] = defaultdict(int)
        self.steps: list[list[float]] = []
        self._counted: dict[Scheduler, tuple[int, int]] = {}
        self._last: dict[Replica, list[float]] = {}
        super().__init__(pools, control, specs, judge)

    def note_step(self, replica: Replica, step: Step) -> None:
        """Record what every scheduler of a replica does in a step."""
        for scheduler, part in _parts(replica, step):
            key = self.key_of(replica, scheduler)
            row, advance = _row(scheduler, part, step.seconds)
            self.rows[key].append(row)
            self.advances[key].append(advance)
            self.num_moved_blocks[key[0]] += part.moved_blocks
            counts = scheduler.num_admitted, scheduler.num_preempted
            admitted, preempted = (
                now - before for now, before in zip(counts, self._counted.get(scheduler, (0, 0)), strict=True)
            )
            self._counted[scheduler] = counts
            start, seconds = step.start, step.seconds
            own = [float(replica.number), start, seconds, *_tokens(scheduler, part), admitted, preempted, 0]
            self._last[replica] = own
            self.steps.append(own)

    def note_finished(self, replica: Replica, num_finished: int) -> None:
        """Record how many requests finished with the last step of a replica."""
        self._last[replica][-1] = num_finished

    def note_step_end(self, replica: Replica, step: Step) -> None:
        """Record how long requests waited in a step."""
        end = replica.step_ends
        for scheduler, part in _parts(replica, step):
            waited = sum(end - max(step.start, request.ready) for request in scheduler.waiting)
            row = self.rows[self.key_of(replica, scheduler)][-1]
            row[_WAITING], row[_BLOCKED_BY] = waited, _BLOCKED[part.blocked_by]

    def key_of(self, replica: Replica, scheduler: Scheduler) -> tuple[int, int]:
        """Return the pool and the number of a scheduler."""
        return self.pools.index(replica.pool), replica.number * 1000 + replica.scheduler.schedulers.index(scheduler)


def _parts(replica: Replica, step: Step) -> list[tuple[Scheduler, Step]]:
    """Return the schedulers of a replica with what each does in a step."""
    if not step.parts:
        return [(replica.scheduler, step)]
    own = replica.scheduler.of_rank  # type: ignore[attr-defined]
    return [(rank, part) for rank, part in own if part is not None]


def _tokens(scheduler: Scheduler, step: Step) -> tuple[float, float, float, float]:
    """Return a step's prompt tokens, its decoding sequences' tokens and context tokens, and its number of sequences."""
    config, decoding = scheduler.config, step.decoding
    prompt = sum(chunk for _, chunk in step.chunks)
    contexts = sum(request.computed + request.fraction for request in decoding)
    if config.kv_allocation == "none":
        # Every sequence is computed again.
        return prompt + contexts + len(decoding), 0.0, 0.0, len(step.requests)
    return prompt, (1 + config.num_speculative_tokens) * len(decoding), contexts, len(step.requests)


def _row(scheduler: Scheduler, step: Step, seconds: float) -> tuple[list[float], float]:
    """Return a step as a leap of one step, and the tokens that it adds to the contexts."""
    config, chunks = scheduler.config, step.chunks
    decoded = (1 + config.num_speculative_tokens) * len(step.decoding)
    prompts = [(request.computed, chunk) for request, chunk in chunks]
    passing = step.passing(config)
    priced, *shared = priced_chunks(prompts, config.pipeline_parallel_size, decoded, passing)
    alike = config.pipeline_parallel_size * passing.largest if passing.largest > 1 else len(step.decoding)
    context = sum(request.computed + request.fraction for request in step.decoding)
    held = sum(request.computed + request.fraction for request in scheduler.running)
    used = float(scheduler.used_tokens)
    prefill = sum(chunk for _, chunk in chunks)
    row = [step.start, 1.0, seconds, 0.0, len(step.decoding), context, prefill, len(chunks), priced]
    advance = sum(request.pace for request in step.decoding) / ONE_TOKEN
    return [*row, alike, *shared, 0.0, 0.0, held, used, used, 0.0, 0.0], advance


def pools_of(deployment: Deployment, control: Control) -> tuple[list[PoolSetup], list[Pool]]:
    """Return the pools of a deployment, and the same pools as the reference has them."""
    setups = list(setups_of(deployment))
    if not deployment.pools:
        # Without pools, the deployment's control says how replicas scale and start.
        setups = [replace(each, **{name: getattr(control, name) for name in _SCALING}) for each in setups]
    return setups, [
        Pool(
            # What a decode replica receives has been computed elsewhere.
            config=replace(each.engine, enable_prefix_caching=False, window_tokens=0)
            if each.role == "decode"
            else each.engine,
            times=each.step_times.as_lists(),
            kv_bytes_per_token=each.kv_bytes_per_token or control.kv_bytes_per_token,
            **{name: getattr(each, name) for name in (*_OF_POOLS, *_SCALING)},
        )
        for each in setups
    ]


def _control(deployment: Deployment) -> Control:
    return deployment.control or Control(routing=RoutingSpec(policy=deployment.routing))


def by_reference(deployment: Deployment, specs: RequestSpecs) -> RequestRecords:
    """Return the records of requests served by the reference."""
    control = _control(deployment)
    cluster = Cluster(pools_of(deployment, control)[1], control, specs)
    cluster.run()
    return _in_order(seen(cluster, records_of(cluster))[0], specs)


def noted(deployment: Deployment, specs: RequestSpecs, own: OwnParts | None) -> tuple[NotedCluster, list[PoolSetup]]:
    """Return a cluster of the reference that records its steps, and the pools of the deployment."""
    control = _control(deployment)
    setups, pools = pools_of(deployment, control)
    judge = None if own is None else Judge(own, specs, is_stale=control.routing.update_interval > 0)
    return NotedCluster(pools, control, specs, judge), setups


def simulate_by_reference(
    deployment: Deployment, specs: RequestSpecs, *, keep_steps: bool = False, own: OwnParts | None = None
) -> Simulation:
    """Serve ``specs`` to the end by the reference, with everything that a result needs."""
    cluster, setups = noted(deployment, specs, own)
    cluster.run()
    return simulation_of(cluster, deployment, setups, keep_steps=keep_steps)


def simulation_of(
    cluster: NotedCluster,
    deployment: Deployment,
    setups: Sequence[PoolSetup],
    *,
    keep_steps: bool,
    is_fed: bool = False,
) -> Simulation:
    """Return what a cluster's run produced, once it is over; ``is_fed``: a user's own clients sent its requests."""
    control, specs, own = cluster.control, cluster.specs, None if cluster.judge is None else cluster.judge.parts
    records = records_of(cluster)
    last = np.fmax(records.admitted_time, records.finish_time)
    end_time = float(np.nanmax(last, initial=0.0))
    timeline = _timeline(cluster, setups, end_time)
    recorders = _recorders(cluster, setups, has_own_seconds=own is not None and own.step_seconds is not None)
    outcomes = outcomes_of(setups, recorders, records, end_time, timeline)
    is_decided = own is not None or is_fed or has_decisions(deployment, control, specs)
    totals: RunTotals = together(outcomes)
    records, stream = seen(cluster, records, end_time)
    if stream is not None:
        totals = replace(totals, itl=stream.itl)
    pool, waits, parts = specs.encoder_pool, cluster.clients.encoder_wait, cluster.clients.encoder_parts
    split = [] if pool is None else [parts.get(row, most) for row, most in enumerate(pool.num_parts.tolist())]
    num_schedulers = sum(len(replica.scheduler.schedulers) for replica in cluster.replicas)
    return Simulation(
        records=_in_order(records, specs),
        totals=totals,
        end_time=end_time,
        num_replicas=num_schedulers,
        is_open_loop=specs.has_open_arrivals,
        has_clients=specs.concurrency is not None,
        is_stationary=specs.is_stationary,
        offered_rate=specs.offered_rate,
        was_interrupted=False,
        has_changing_fleet=control.changes_fleet or any(each.autoscaling is not None for each in setups),
        timeline=timeline if is_decided else None,
        pools=tuple(outcomes) if len(outcomes) > 1 else (),
        transfers=_transfer_sums(cluster),
        stream=None if stream is None else stream.totals,
        front=_front(cluster),
        encoder_wait=None if pool is None else np.array([waits.get(row, math.nan) for row in range(len(specs))]),
        encoder_parts=None if pool is None else np.array(split),
        encoder_lives=_encoder_lives(cluster),
        steps=NotedSteps(np.array(cluster.steps, dtype=np.float64).reshape(-1, len(COLUMNS)).T) if keep_steps else None,
        api_token_seconds=min(each.engine.api_token_seconds for each in setups),
    )


def _in_order(records: RequestRecords, specs: RequestSpecs) -> RequestRecords:
    ordered = records.by_arrival() if specs.sends_out_of_order else records
    return ordered if specs.closes_at is None else ordered.sent()


def _recorders(cluster: NotedCluster, setups: Sequence[PoolSetup], *, has_own_seconds: bool) -> list[Recorder]:
    """Return the totals of each pool over its steps."""
    sums, recorders = series_sums(), []
    pools = [cluster.pools.index(each.pool) for each in cluster.replicas]
    # The first pool counts as that of requests that none decoded.
    decoded_by = [(one, 0 if one.replica < 0 else pools[one.replica]) for one in cluster.requests]
    for number, setup in enumerate(setups):
        recorder = Recorder(setup.engine, setup.step_times.as_lists(), setup.priced, sums)
        recorder.encodes_images = cluster.specs.encoder_seconds is not None
        recorder.scales_parts = has_own_seconds or any(fault.kind == "slow" for fault in cluster.control.faults)
        own = sorted(key for key in cluster.rows if key[0] == number)
        gaps = [gap for one, pool in decoded_by if pool == number for gap in one.past_gaps + one.gaps]
        rows = [row for key in own for row in cluster.rows[key]]
        recorder.add_steps(
            np.array(rows, dtype=np.float64).reshape(-1, LEAP_WIDTH).T.copy(),
            np.array([each for key in own for each in cluster.advances[key]]),
            [len(cluster.rows[key]) for key in own],
            np.array(gaps),
            cluster.num_moved_blocks[number],
        )
        recorders.append(recorder)
    return recorders


def _timeline(cluster: Cluster, setups: Sequence[PoolSetup], end_time: float) -> FleetTimeline:
    replicas, fleet, control = cluster.replicas, cluster.fleet, cluster.control
    ranks = np.array([replica.pool.config.data_parallel_size for replica in replicas])
    times = [each.at for each in (*control.faults, *control.updates)]
    downtimes = np.array(fleet.downtimes, dtype=np.float64).reshape(-1, 2)
    pools = [cluster.pools.index(replica.pool) for replica in replicas]
    return FleetTimeline(
        launched_at=np.array([replica.launched_at for replica in replicas]),
        ready_at=np.array([replica.ready_at for replica in replicas]),
        stopped_at=np.array([replica.stopped_at for replica in replicas]),
        gpus=np.array([setups[number].gpus_per_replica for number in pools], dtype=np.int64),
        ranks=ranks if (ranks > 1).any() else None,
        pool=np.array(pools, dtype=np.int64),
        pool_regions=tuple(each.region for each in setups),
        lost_since=downtimes[:, 0],
        lost_until=downtimes[:, 1],
        num_killed=fleet.num_killed,
        num_missed=sum(time is not None and time > end_time for time in times),
        num_replaced=fleet.num_replaced,
        updates=np.array(fleet.updates, dtype=np.float64).reshape(-1, 2),
        tries=np.array(cluster.clients.tries, dtype=np.float64).reshape(-1, 3),
        refusals={name: cluster.gateway.refusals[name] for name in REASONS if name in cluster.gateway.refusals},
        num_resent=cluster.clients.num_resent,
        lost_tokens=cluster.num_lost_tokens,
    )


def _front(cluster: Cluster) -> FrontTotals | None:
    gateway, rules = cluster.gateway, cluster.rules
    if not cluster.control.has_gateway:
        return None if cluster.delivery is None else FrontTotals()
    asks_twice = rules is not None and any(each.misclassified is not None for each in rules.rules)
    names = [each.name for each in cluster.specs.classes]
    return FrontTotals(
        first_questions=None if gateway.cache is None else gateway.cache.num_first,
        expired=0 if gateway.cache is None else gateway.cache.num_expired,
        limited=0 if gateway.api is None else gateway.api.num_limited,
        asked_again=rules.num_asked_again if rules is not None and asks_twice else None,
        discarded_tokens=0 if rules is None else rules.num_discarded_tokens,
        service={} if gateway.fair is None else dict(zip(names, gateway.fair.service, strict=True)),
    )


def _encoder_lives(cluster: Cluster) -> EncoderLives | None:
    """Return when the workers of an encoder pool existed; None if their number does not change."""
    if cluster.control.encoder_scaling is None or cluster.specs.encoder_pool is None:
        return None
    workers = cluster.clients.encoders.workers
    return EncoderLives(
        launched_at=np.array([each.launched_at for each in workers]),
        stopped_at=np.array([each.stopped_at for each in workers]),
    )


def _transfer_sums(cluster: Cluster) -> dict[str, float]:
    """Return the totals of KV transfers between the pools; empty without disaggregation."""
    if cluster.control.disaggregation is None:
        return {}
    transfers = cluster.transfers
    return {
        "count": float(len(transfers.sent)),
        "link_seconds": sum(each.end - each.start for each in transfers.sent if math.isfinite(each.end)),
        "waited_seconds": sum(each.start - each.computed_at for each in transfers.sent if math.isfinite(each.start)),
        "stalled_seconds": transfers.stalled_seconds,
    }


def records_of(cluster: Cluster) -> RequestRecords:
    """Return what happened to every request, as columns; after the run."""
    requests, specs = cluster.requests, cluster.specs

    def column(name: str, kind: type[np.generic] = np.float64) -> np.ndarray[Any, Any]:
        return np.array([getattr(request, name) for request in requests], dtype=kind)

    says_who = cluster.control.has_gateway or cluster.delivery is not None
    servers = np.array([SERVERS.index(one.server) for one in requests], dtype=np.int8)
    return RequestRecords(
        arrival_time=column("arrival"),
        admitted_time=np.array([math.nan if one.reason == "prompt_too_long" else one.ready for one in requests]),
        scheduled_time=column("scheduled"),
        first_token_time=column("first_token"),
        finish_time=column("finish"),
        prompt_tokens=np.asarray(specs.prompt_tokens, dtype=np.int64),
        output_tokens=specs.visible_output(column("generated", np.int64)),
        cached_tokens=column("cached_tokens", np.int64),
        num_preemptions=column("num_preemptions", np.int32),
        replica_id=column("replica", np.int32),
        itl_max=column("itl_max"),
        status=np.array([STATUSES.index(one.status) for one in requests], dtype=np.int8),
        reason=np.array([REASONS.index(one.reason) for one in requests], dtype=np.int8),
        is_truncated=column("is_truncated", np.bool_),
        request_class=specs.request_class,
        class_names=tuple(each.name for each in specs.classes),
        session=specs.session,
        turn=specs.turn,
        task=specs.task,
        served_by=servers if says_who else None,
        **_region_columns(cluster),
        thinking_tokens=None if specs.thinking_tokens is None else column("tokens_thought", np.int64),
        answer_time=None if specs.thinking_tokens is None else column("first_visible_token"),
        **(_transfer_columns(cluster) if cluster.control.disaggregation is not None else {}),
    )


def seen(cluster: Cluster, records: RequestRecords, end_time: float = 0.0) -> tuple[RequestRecords, ClientView | None]:
    """Return the records as the clients see them, and what was sent; without streaming they see the server's times.

    Args:
        end_time: End of the run, seconds: the share of busy servers refers to it.
    """
    spec = cluster.control.streaming
    if spec is None:
        return records, None
    answers: dict[Request, Sent] = {}
    busiest = 0.0
    for replica in cluster.replicas:
        sent = send((each for each in cluster.requests if is_sent_by(each, replica.number)), spec)
        busiest = max(busiest, busy_share(list(sent.values()), spec, end_time))
        answers |= sent
    first, finish, itl_max = records.first_token_time.copy(), records.finish_time.copy(), records.itl_max.copy()
    answer = None if records.answer_time is None else records.answer_time.copy()
    itl_max[records.replica_id >= 0] = math.nan
    for request, own in answers.items():
        row = request.index
        first[row], finish[row] = own.times[0], own.times[-1]
        itl_max[row] = max(own.gaps, default=math.nan)
        if answer is not None:
            answer[row] = own.answer_time
    way = spec.network_latency + np.array([request.way_back for request in cluster.requests])
    itl = Histogram()
    itl.add(np.array([gap for own in answers.values() for gap in own.gaps]))
    count = sum(len(own.times) for own in answers.values())
    totals = StreamTotals(
        num_events=count,
        num_tokens=sum(request.generated for request in answers),
        busy_seconds=spec.cost_per_event * count,
        delay_seconds=max(sum(own.delay for own in answers.values()), 0.0),
        busiest_share=busiest,
    )
    records = replace(
        records,
        first_token_time=first + way,
        finish_time=finish + way,
        itl_max=itl_max,
        answer_time=None if answer is None else answer + way,
    )
    return records, ClientView(records=records, itl=itl, totals=totals)


def _region_columns(cluster: Cluster) -> dict[str, Any]:
    """Return where clients are; empty without regions."""
    regions = cluster.router.regions
    if regions is None:
        return {}
    homes = np.array([regions.names.index(request.home) for request in cluster.requests], dtype=np.int16)
    return {"client_region": homes, "region_names": regions.names}


def _transfer_columns(cluster: Cluster) -> dict[str, Any]:
    """Return the times and replicas of every KV transfer between the pools."""
    found = [cluster.transfers.by_request.get(request) for request in cluster.requests]
    times = {
        "prefill_end_time": [math.inf if each is None else each.computed_at for each in found],
        "transfer_start_time": [math.inf if each is None else each.start for each in found],
        "transfer_end_time": [math.inf if each is None else each.lands_at for each in found],
    }
    columns: dict[str, Any] = {name: np.array(values, dtype=np.float64) for name, values in times.items()}
    for values in columns.values():
        values[np.isinf(values)] = np.nan
    sources = [-1 if each is None else each.source.number for each in found]
    return {**columns, "prefill_replica_id": np.array(sources, dtype=np.int32)}
