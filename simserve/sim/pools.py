"""PoolSetup: a pool before the run; the table of requests that several pools share; and the sum of their totals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from simserve.engine.config import EngineConfig
from simserve.engine.state import RequestTable, StepTimes
from simserve.perf.operators import PricedDeployment
from simserve.sim.control import AutoscalingSpec, Role
from simserve.sim.recorder import FleetTimeline, Recorder, RunTotals
from simserve.sim.records import Histogram, RequestRecords, table_for
from simserve.sim.totals import added, offloaded_together
from simserve.workload.requests import RequestSpecs

_LIMITED = ("output_tokens", "max_tokens", "is_truncated", "status", "reason")
"""Columns of the table that depend on the length limits of an engine."""
_SUMMED = (
    *("num_steps", "sequence_steps", "busy_seconds", "flops", "bytes", "swapped_blocks", "kv_capacity_tokens"),
    *("kv_reserved_token_seconds", "kv_held_token_seconds", "kv_unusable_token_seconds"),
)
"""Totals of a run that are the sums of those of its pools."""
_BOUNDLESS = 2**40  # Longest request of a server without a limit, tokens.


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSetup:
    """Equal replicas, before the run."""

    name: str  # Its name in results; empty if there is only one pool.
    engine: EngineConfig  # Scheduler settings of each replica.
    step_times: StepTimes  # Seconds of a step.
    priced: PricedDeployment | None  # Breakdown of those seconds; None: steps are not broken down.
    num_replicas: int  # Number of replicas at the start.
    gpus_per_replica: int = 1  # GPUs of each.
    role: Role = "both"  # Whether they prefill, decode, or both.
    autoscaling: AutoscalingSpec | None = None  # How their number follows the load; None: it is fixed.
    startup_seconds: float = 0.0  # From the launch of a replica to its first request.
    weights_bytes: float = 0.0  # Weights of one replica over all its GPUs.
    replicas_per_node: int = 1  # Replicas on a full node.
    acceptance: tuple[float, ...] = ()
    """Speculative decoding: probability that each draft is accepted, given that all before it were; empty: requests
    have paces of their own, or nothing drafts."""
    region: str = ""  # Where they are; empty: regions do not matter.
    kv_layout: str = ""  # Model and format of their KV caches.
    kv_bytes_per_token: float | None = None  # Of the whole model, in this format; None: that of `Control`.


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOutcome:
    """What a pool did in a run."""

    name: str  # Its name.
    role: Role  # Whether it prefills, decodes, or both.
    totals: RunTotals  # Sums over its replicas.
    num_replicas: float  # Mean number of replicas over the run.
    num_gpus: float  # Mean number of GPUs over the run.
    peak_flops: float  # Of one replica in the dtype it computes in, FLOP/s.
    peak_bandwidth: float  # Of one replica, bytes/s.
    num_ranks: int = 1  # Schedulers of a replica: ranks of data-parallel attention.

    @property
    def num_schedulers(self) -> float:
        """Mean number of schedulers over the run."""
        return self.num_replicas * self.num_ranks


def outcomes_of(
    setups: Sequence[PoolSetup],
    recorders: Sequence[Recorder],
    records: RequestRecords,
    end_time: float,
    timeline: FleetTimeline,
) -> list[PoolOutcome]:
    """Return what each pool did, from the sums of its recorder; after the run."""
    found = []
    for number, (setup, recorder) in enumerate(zip(setups, recorders, strict=True)):
        schedulers = timeline.mean_schedulers(0.0, end_time, number)
        priced = setup.priced
        found.append(
            PoolOutcome(
                name=setup.name,
                role=setup.role,
                totals=recorder.totals(schedulers, records, end_time, timeline),
                num_replicas=timeline.mean_replicas(0.0, end_time, number),
                num_ranks=setup.engine.data_parallel_size,
                num_gpus=timeline.mean_gpus(0.0, end_time, number),
                peak_flops=priced.parts.peak_flops if priced is not None else 0.0,
                peak_bandwidth=priced.parts.peak_bandwidth if priced is not None else 0.0,
            )
        )
    return found


def request_table(
    pools: Sequence[PoolSetup],
    specs: RequestSpecs,
    allowed: Sequence[Sequence[int]] = (),
    kinds: NDArray[np.int16] | None = None,
) -> RequestTable:
    """Return the table of all requests, each with the length limits of the strictest pool that may serve it.

    Args:
        pools: One or more.
        allowed: For each class, indices among the pools that take requests; empty: all pools for all classes. A class
            without pools is served elsewhere.
        kinds: Index of each request into ``allowed``; None: its class.
    """
    classes = specs.request_class if kinds is None else kinds
    if classes is None or not allowed or (len(pools) == 1 and all(allowed)):
        return _table(specs, pools, pools[0].engine)
    entrances = [pool for pool in pools if pool.role != "decode"]
    tables = [
        _table(specs, _serving([entrances[number] for number in each], pools), pools[0].engine) for each in allowed
    ]
    merged, rows = tables[0], np.arange(len(specs))
    for name in _LIMITED:
        np.asarray(getattr(merged, name))[:] = np.stack([getattr(table, name) for table in tables])[classes, rows]
    return merged


def _serving(entrances: Sequence[PoolSetup], pools: Sequence[PoolSetup]) -> list[PoolSetup]:
    """Return pools together with those that decode what they prefill."""
    keys = {(pool.kv_layout, pool.region) for pool in entrances if pool.role == "prefill"}
    return [*entrances, *(pool for pool in pools if pool.role == "decode" and (pool.kv_layout, pool.region) in keys)]


def _table(specs: RequestSpecs, pools: Sequence[PoolSetup], elsewhere: EngineConfig) -> RequestTable:
    if not pools:
        return table_for(specs, replace(elsewhere, max_model_len=_BOUNDLESS, enable_chunked_prefill=True))
    configs = [pool.engine for pool in pools]
    longest = min(config.max_model_len for config in configs)
    # Only a pool that prefills limits the prompt to what fits in a step.
    unchunked = [pool.engine for pool in pools if pool.role != "decode" and not pool.engine.enable_chunked_prefill]
    strictest = min(unchunked, key=lambda config: config.max_num_batched_tokens, default=configs[0])
    return table_for(specs, replace(strictest, max_model_len=longest))


def together(outcomes: Sequence[PoolOutcome]) -> RunTotals:
    """Return the sum of the totals of a run's pools; their time series already cover all of them."""
    totals = [each.totals for each in outcomes]
    first = totals[0]
    if len(totals) == 1:
        return first
    itl = Histogram()
    for each in totals:
        itl.merge(each.itl)
    capacity = sum(each.kv_capacity_tokens for each in totals)
    # The series of each pool divides the KV tokens of all pools by its own capacity per replica.
    num_schedulers = outcomes[0].num_schedulers
    present = sum(each.num_schedulers for each in outcomes)
    own = first.kv_capacity_tokens / num_schedulers * present if num_schedulers else 0.0
    return RunTotals(
        **{name: sum(getattr(each, name) for each in totals) for name in _SUMMED},
        seconds_by_part={part: sum(each.seconds_by_part[part] for each in totals) for part in first.seconds_by_part},
        blocked_seconds={
            reason: sum(each.blocked_seconds[reason] for each in totals) for reason in first.blocked_seconds
        },
        kv_peak_share=max(each.kv_peak_share for each in totals),
        itl=itl,
        series=replace(first.series, kv_usage=first.series.kv_usage * (own / capacity if capacity else np.nan)),
        offload=offloaded_together(each.offload for each in totals),
        loras=added(each.loras for each in totals),
        speculation=added(each.speculation for each in totals),
        accounts=tuple(account for each in totals for account in each.accounts),
    )
