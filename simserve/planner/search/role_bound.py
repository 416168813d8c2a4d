"""How many workers of one role at least: the bounds of `simserve.planner.search.bound` for half of a request's life.

A prefill worker computes prompts and nothing else, a decode worker takes in their KV caches and computes the further
tokens. What bounds the work of a replica that does both bounds each role with the other's part left out. Simulates
nothing.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np

from simserve.engine.config import EngineConfig
from simserve.engine.tables import StepTimes
from simserve.metrics.slo import SLO
from simserve.planner.overrides import with_overrides
from simserve.planner.search.bound import (
    ROUNDING,
    Array,
    first_token_seconds,
    further_token_seconds,
    in_arrays,
    latest_window_start,
    loosest_limits,
    replicas_needed,
    term_out_of_reach,
)
from simserve.planner.search.bound_covered import is_covered
from simserve.planner.search.bound_work import least_replica_seconds
from simserve.planner.space.roles import PREFILL
from simserve.scenario.schema import Scenario
from simserve.workload.requests import RequestSpecs

KEPT_UP = 0.95
"""Share of the offered work that workers must be able to do at least: a queue that grows is refused, and what is
finished is known to 3 % (`simserve.scenario.finishable.HALF_WIDTH`)."""
TINY = 1e-12
"""Seconds, so that nothing is divided by 0."""
_COVERED_WITHOUT = {
    "deployment.speculative": None,
    "deployment.data_parallel_size": 1,
    "deployment.all2all_backend": "auto",
    "deployment.num_redundant_experts": None,
    "deployment.enable_two_batch_overlap": None,
}
"""What the bounds of roles allow for by themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleBound:
    """What no number of workers of a shape, or no smaller one, can do.

    Attributes:
        out_of_reach: Whether too many requests miss the role's limit whatever the number of workers.
        needed_workers: No fewer can do the work in time; a fraction, which whole workers are rounded up from.
        idle_seconds: A first token takes at least on a prefill worker, or a further one on a decode worker: the mean
            over the requests, an estimate where the proofs do not cover the scenario.
        most_rate: Requests a second of steady traffic that one worker can do at most.
    """

    out_of_reach: bool = False
    needed_workers: float = 0.0
    idle_seconds: float = 0.0
    most_rate: float = math.inf


def role_bound(role: str, alone: Scenario, config: EngineConfig, times: StepTimes, specs: RequestSpecs) -> RoleBound:
    """Return the bound of a role under the requests of one run.

    With drafts a step gives at most one token more than it has drafts and takes no less time than one without. Ranks
    that step together each take what they share, at least a line below its table: ``shared(T) >= a + b T`` for the
    tokens T of all ranks, so a rank with t tokens spends ``a + b t`` at least on them, and of the seconds of all n
    ranks ``a + n b t`` fall to its share.

    Args:
        role: ``prefill`` or ``decode``.
        alone: The scenario as if one worker were all there is.
        config: Limits and rules of the worker's scheduler.
        times: Seconds of its steps.
        specs: The requests.
    """
    times, ranks = in_arrays(times), config.data_parallel_size
    prompt, output = specs.prompt_tokens.astype(np.float64), specs.output_tokens.astype(np.float64)
    gaps = np.maximum(output - 1, 0.0)
    # A first token may be handed over as late as the second: one gap less counts.
    counted = np.maximum(gaps - 1, 0.0) if config.async_output else gaps
    steps = np.ceil(counted / (config.num_speculative_tokens + 1))
    latency = _with_shared(times, 1)
    if role == PREFILL:
        least = {"ttft": first_token_seconds(prompt, config, latency) * ROUNDING}
    else:
        each = further_token_seconds(prompt, config, latency) * ROUNDING
        least = {"tpot": each * steps / np.maximum(gaps, 1.0)}
    idle = float(np.mean(next(iter(least.values()))))
    slo = loosest_limits(alone)
    if slo is None or not is_covered(with_overrides(alone, _COVERED_WITHOUT), specs):
        return RoleBound(idle_seconds=idle)
    no_fails = np.zeros(len(prompt), dtype=np.bool_)
    latest_start = latest_window_start(alone, specs, 0)
    if term_out_of_reach(slo, least, no_fails, latest_start) is not None:
        return RoleBound(out_of_reach=True, idle_seconds=idle)
    work = _Work(role, prompt, 1.0 + steps, config, _with_shared(times, ranks))
    needed = max(_in_time(work, slo, gaps, specs, latest_start), _kept_up(work, specs))
    return RoleBound(
        needed_workers=needed / ranks,
        idle_seconds=idle,
        most_rate=ranks / _least_seconds(work, slo, gaps),
    )


def _least_seconds(work: _Work, slo: SLO, gaps: Array) -> float:
    """Return the seconds of a rank that a request takes at least on average, where enough of them keep their pace."""
    all_of_them = KEPT_UP * float(work.seconds(None).mean())
    if slo.tpot is None:
        return max(all_of_them, TINY)
    paced = np.sort(work.seconds(slo.tpot * gaps))
    keeping = float(paced[: math.ceil(slo.attainment * len(paced))].sum()) / len(paced)
    return max(all_of_them, keeping * ROUNDING, TINY)


@dataclass(frozen=True, slots=True)
class _Work:
    """The work of a role: seconds of a rank that each request takes at least."""

    role: str
    prompt: Array
    output: Array
    config: EngineConfig
    times: StepTimes

    def seconds(self, decode_limit: Array | None) -> Array:
        """Return them where requests may take so long from first to last token; None: any time."""
        is_prefill = self.role == PREFILL
        found, _ = least_replica_seconds(
            self.prompt,
            np.ones(len(self.output)) if is_prefill else self.output,
            None if is_prefill else decode_limit,
            self.config,
            self.times,
            computes_prompts=is_prefill,
        )
        return found


def _in_time(work: _Work, slo: SLO, gaps: Array, specs: RequestSpecs, latest_start: int) -> int:
    """Return the ranks below which too few requests can meet their limits."""
    decoding = None if slo.tpot is None else slo.tpot * gaps
    if specs.concurrency is not None or (slo.ttft is None and slo.e2e is None):
        return 1
    if slo.ttft is None or (work.role != PREFILL and decoding is None):
        ends = np.full(len(gaps), slo.e2e if slo.e2e is not None else np.inf)
    else:
        ends = slo.ttft + (np.zeros(len(gaps)) if work.role == PREFILL or decoding is None else decoding)
    if not np.all(np.isfinite(ends)):
        return 1
    seconds = work.seconds(decoding)
    return replicas_needed(slo.attainment, specs.arrival_time, seconds, specs.arrival_time + ends, latest_start)


def _kept_up(work: _Work, specs: RequestSpecs) -> float:
    """Return the ranks below which the queue of steady traffic grows."""
    if not specs.is_stationary or specs.concurrency is not None:
        return 1.0
    return KEPT_UP * specs.offered_rate * max(float(work.seconds(None).mean()), 0.0)


def _with_shared(times: StepTimes, ranks: int) -> StepTimes:
    """Return the seconds of a rank with those that all ranks share, at least, ``ranks`` of them counted for each."""
    shared = np.asarray(times.shared_seconds, dtype=np.float64)
    if len(shared) < 2:
        return times
    tokens = np.arange(1.0, len(shared))
    slope = float(times.shared_seconds_beyond)
    if len(tokens) > 1:
        slope = min(slope, float(((shared[2:] - shared[1]) / (tokens[1:] - 1)).min()))
    slope = max(slope, 0.0)
    fixed = max(float(shared[1]) - slope, 0.0)

    def added(table: Array) -> Array:
        more = fixed + ranks * slope * np.arange(float(len(table)))
        more[0] = 0.0
        return np.asarray(table + more)

    return dataclasses.replace(
        times,
        decode_base=added(np.asarray(times.decode_base)),  # type: ignore[arg-type]
        token_seconds=added(np.asarray(times.token_seconds)),  # type: ignore[arg-type]
        token_seconds_beyond=times.token_seconds_beyond + ranks * slope,
    )
