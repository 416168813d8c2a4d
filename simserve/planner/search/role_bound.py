"""The fewest workers of one role: the bounds of `simserve.planner.search.bound` for one part of each request.

A prefill worker computes only prompts; a decode worker receives their KV caches and computes the further tokens. The
bounds on the work of a replica that does both bound each role with the other's part left out. Simulates nothing.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np

from simserve.engine.config import EngineConfig
from simserve.engine.state import StepTimes
from simserve.metrics.latency import SLO
from simserve.perf.tables import in_arrays
from simserve.planner.overrides import with_overrides
from simserve.planner.search.bound import (
    ROUNDING,
    Array,
    Steps,
    first_token_seconds,
    further_token_seconds,
    is_covered,
    latest_window_start,
    least_replica_seconds,
    loosest_limits,
    replicas_needed,
    term_out_of_reach,
)
from simserve.planner.space.roles import PREFILL
from simserve.scenario.schema import Scenario
from simserve.workload.requests import RequestSpecs

KEPT_UP = 0.95
"""Least share of the offered work that workers must be able to do: a growing queue is refused, and what is finished is
known to 3 % (`simserve.scenario.finishable.HALF_WIDTH`)."""
TINY = 1e-12  # Seconds that prevent a division by 0.
_COVERED_WITHOUT = {
    "deployment.data_parallel_size": 1,
    "deployment.all2all_backend": "auto",
    "deployment.num_redundant_experts": None,
    "deployment.enable_two_batch_overlap": None,
}
"""Keys that the bounds of roles handle themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleBound:
    """Bounds on what workers of a shape can do, and on their number."""

    out_of_reach: bool = False  # Whether too many requests miss the role's limit with any number of workers.
    needed_workers: float = 0.0
    """Fewest workers that can do the work in time; a fraction, to be rounded up to whole workers."""
    idle_seconds: float = 0.0
    """Least seconds of a first token on a prefill worker, or of a further one on a decode worker: the mean over the
    requests, an estimate if the proofs do not cover the scenario."""
    most_rate: float = math.inf  # Most requests a second of steady traffic that one worker can serve.


def covers_roles(alone: Scenario, specs: RequestSpecs) -> bool:
    """Return whether the bounds hold for everything that a worker's scenario uses, whatever its sizes."""
    return is_covered(with_overrides(alone, _COVERED_WITHOUT), specs)


def role_bound(
    role: str, alone: Scenario, config: EngineConfig, times: StepTimes, specs: RequestSpecs, *, is_proven: bool = True
) -> RoleBound:
    """Return the bound of a role under the requests of one run.

    With drafts a step gives at most one token more than its drafts and takes no less time than one without. Ranks that
    step together each spend the shared time, which is at least a line below its table: ``shared(T) >= a + b T`` for
    the tokens T of all ranks, so a rank with t tokens spends at least ``a + b t`` on them, and accounts for ``a + n b
    t`` of the seconds of all n ranks.

    Args:
        role: ``prefill`` or ``decode``.
        alone: The scenario with only one worker.
        is_proven: Whether the proofs cover the scenario (`covers_roles`); if not, only the time of an idle worker is
            used.
    """
    times, ranks = in_arrays(times), config.data_parallel_size
    prompt, output = specs.prompt_tokens.astype(np.float64), specs.output_tokens.astype(np.float64)
    gaps = np.maximum(output - 1, 0.0)
    # A first token may be handed over as late as what the second step gives: one step less counts.
    steps = np.maximum(np.ceil(gaps / (config.num_speculative_tokens + 1)) - config.async_output, 0.0)
    latency = _with_shared(times, 1)
    if role == PREFILL:
        least = {"ttft": first_token_seconds(prompt, config, latency) * ROUNDING}
    else:
        each = further_token_seconds(prompt, config, latency) * ROUNDING
        least = {"tpot": each * steps / np.maximum(gaps, 1.0)}
    idle, slo = float(np.mean(next(iter(least.values())))), loosest_limits(alone)
    if slo is None or not is_proven:
        return RoleBound(idle_seconds=idle)
    no_fails = np.zeros(len(prompt), dtype=np.bool_)
    latest_start = latest_window_start(alone, specs, 0)
    if term_out_of_reach(slo, least, no_fails, latest_start) is not None:
        return RoleBound(out_of_reach=True, idle_seconds=idle)
    paced, anyhow = _work(role, (prompt, 1.0 + steps), None if slo.tpot is None else slo.tpot * gaps, config, times)
    # All are served, and enough of them within the limit.
    keeping = np.sort(paced)[: math.ceil(slo.attainment * len(paced))]
    per_request = max(KEPT_UP * float(anyhow.mean()), float(keeping.sum()) / len(paced) * ROUNDING, TINY)
    needed = float(_in_time(role, paced, slo, gaps, specs, latest_start))
    if specs.is_stationary and specs.concurrency is None:
        needed = max(needed, specs.offered_rate * per_request)
    return RoleBound(needed_workers=needed / ranks, idle_seconds=idle, most_rate=ranks / per_request)


def _work(
    role: str, lengths: tuple[Array, Array], decode_limit: Array | None, config: EngineConfig, times: StepTimes
) -> tuple[Array, Array]:
    """Return the least seconds of a rank for each request: if it meets its limit on TPOT, and at any pace.

    The lengths are those of prompts and outputs; the limit is the most seconds of decoding.
    """
    prompt, output = lengths
    priced, is_prefill = _with_shared(times, config.data_parallel_size), role == PREFILL
    output = np.ones(len(prompt)) if is_prefill else output
    steps = Steps(config, priced)
    anyhow, _ = least_replica_seconds(prompt, output, None, steps, computes_prompts=is_prefill)
    if is_prefill or decode_limit is None:
        return anyhow, anyhow
    paced, _ = least_replica_seconds(prompt, output, decode_limit, steps, computes_prompts=False)
    return paced, anyhow


def _in_time(role: str, paced: Array, slo: SLO, gaps: Array, specs: RequestSpecs, latest_start: int) -> int:
    """Return the ranks below which too few requests can meet their limits."""
    decoding = None if slo.tpot is None else slo.tpot * gaps
    if specs.concurrency is not None or (slo.ttft is None and slo.e2e is None):
        return 1
    if slo.ttft is None or (role != PREFILL and decoding is None):
        ends = np.full(len(gaps), slo.e2e if slo.e2e is not None else np.inf)
    else:
        ends = slo.ttft + (np.zeros(len(gaps)) if role == PREFILL or decoding is None else decoding)
    if not np.all(np.isfinite(ends)):
        return 1
    return replicas_needed(slo.attainment, specs.arrival_time, paced, specs.arrival_time + ends, latest_start)


def _with_shared(times: StepTimes, ranks: int) -> StepTimes:
    """Return the seconds of a rank plus at least those shared by all ranks, with the tokens counted ``ranks`` times."""
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
