"""Proven lower bounds on the latencies of a deployment and on its number of replicas.

They come from the priced step tables and the requests of the run, without simulating. The planner drops a deployment
only if a bound proves that no schedule of these requests meets the SLO on it; each function gives its proof, and a
property test simulates what was dropped.

The proofs assume (`simserve.engine.state.StepTimes`) that ``token_seconds``, ``sequence_seconds``, ``decode_base`` and
``decode_attention_base`` never fall with their index, no entry is negative, and a token is computed by one step or not
at all. A scenario that uses a feature beyond them (see `is_covered`) gets no bound.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simserve.engine.config import EngineConfig, limited
from simserve.engine.state import LONGEST, StepTimes
from simserve.metrics.latency import SLO
from simserve.perf.tables import in_arrays
from simserve.scenario.schema import Scenario, objective
from simserve.workload.requests import RequestSpecs

Array = NDArray[np.float64]
MORE_CHUNKS = 8  # Numbers of chunks beyond the fewest for which a prompt's first token is bounded individually.
WINDOW_STARTS = 8  # Number of starts of the measured window for which the number of replicas is bounded.
BUSY_BINS = 32
BUSY_LENGTHS = (1, 2, 4, 8)
"""Lengths of the busiest stretches for which the number of replicas is bounded, in bins of the run (`BUSY_BINS`)."""
SHOWN_SHARE = 0.95  # Share of the requests for which the bounds on latencies are shown if no SLO names one.
ROUNDING = 1.0 - 1e-9  # Factor that lowers bounds, since they are summed in another order than in the simulation.
_KNOWN_BLOCKS = {"name", "model", "deployment", "workload", "slo", "thresholds", "pricing", "run", "cost"}
_KNOWN_DEPLOYMENT = {
    "hardware",
    "gpus_per_node",
    "replicas",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "enable_expert_parallel",
    "quantization",
    "kv_cache_dtype",
    "attention",
    "engine",
    "routing",
    "admission",
    "autoscaling",
    "faults",
    "encoder_disaggregation",
    "speculative",
}
_LOSING_DEPLOYMENT = {"admission", "autoscaling", "faults"}  # Requests may be refused or cut off.
_KNOWN_ENGINE = {
    *("name", "version", "batching", "scheduler", "scheduling_policy", "priority_ageing"),
    *("priority_preemption", "admission", "kv_allocation", "max_num_seqs", "max_num_batched_tokens"),
    *("enable_chunked_prefill", "enable_prefix_caching", "gpu_memory_utilization", "block_size"),
    *("max_model_len", "async_scheduling", "sampling", "endpoint", "frontend_latency"),
}
_KNOWN_WORKLOAD = {
    *("arrivals", "prompt_tokens", "output_tokens", "max_tokens"),
    *("num_requests", "duration", "trace", "classes", "images", "audio"),
}
_KNOWN_COLUMNS = {
    *("arrival_time", "pace", "prompt_tokens", "output_tokens", "max_tokens", "think_time"),
    *("concurrency", "ramp_up", "is_stationary", "offered_rate", "seed", "replication", "classes"),
    *("request_class", "priority", "recorded_images", "recorded_audio", "counts_media"),
    *("images", "audio", "encoder_seconds", "encoder_pool", "own_wait"),
}
"""The last five come with images and recordings: their tokens are in ``prompt_tokens``; the rest only adds time."""
CLIENT_PREFIXES = 8  # Numbers of first requests of a closed loop for which the number of replicas is bounded.
TOKEN_PRICES = (1.0, 0.85, 0.5, 0.25)
"""Prices of a prompt token that are tried, as shares of the highest feasible one."""
MEMORY_PRICES = (0.0, 1.0, 3.0)
"""Prices of a context token beyond the seconds of reading it that are tried, as multiples of what fills the step."""
PACE_PRICES = (0.0, 0.5, 2.0)
"""Prices of a decoding second of a request that are tried, divided by the requests whose step takes a typical gap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Lower bounds on latencies, whatever the number of replicas, and on that number."""

    out_of_reach: str | None
    """SLO term that too many requests must miss with any number of replicas (``ttft``, ``tpot``, ``e2e``, or ``slo``
    if only their combination is out of reach); None if there is none."""
    least_replicas: int  # Fewer replicas cannot meet the SLO; at least 1.
    ttft: float  # Least seconds to the first token of the slowest request in the required share.
    tpot: float  # Likewise, for a further token.
    e2e: float  # Likewise, for its last token.
    replica_seconds: float  # Least seconds of one replica for all requests together.
    is_proven: bool = True  # Whether the proofs cover the deployment; if not, there are no bounds.

    def of(self, term: str) -> float:
        """Return the bound on ``ttft``, ``tpot`` or ``e2e``, seconds."""
        return float(getattr(self, term))


NO_BOUND = Bound(out_of_reach=None, least_replicas=1, ttft=0.0, tpot=0.0, e2e=0.0, replica_seconds=0.0, is_proven=False)
"""Bounds nothing, so it drops nothing."""


def loosest_limits(scenario: Scenario) -> SLO | None:
    """Return the loosest objective that every request must meet: with classes, the widest limit on each latency."""
    asked = objective(scenario)
    classes = scenario.workload.classes
    if asked is None or not classes:
        return asked
    owners = [asked.by_class.get(each.name, asked) for each in classes]
    widest: dict[str, float | None] = {}
    for term in ("ttft", "tpot", "e2e"):
        limits = [getattr(owner, term) for owner in owners]
        widest[term] = None if any(limit is None for limit in limits) else max(limits)
    return SLO(ttft=widest["ttft"], tpot=widest["tpot"], e2e=widest["e2e"], attainment=asked.attainment)


def fleet_bound(scenario: Scenario, config: EngineConfig, times: StepTimes, specs: RequestSpecs) -> Bound:
    """Return the bounds of a deployment under the requests of one run.

    Args:
        scenario: States the SLO; with classes the widest limits are used, which each class must meet.
    """
    if config.batching != "continuous" or config.kv_allocation == "none" or not is_covered(scenario, specs):
        return NO_BOUND
    times = in_arrays(times)
    cut = limited(specs.prompt_tokens, specs.output_tokens, specs.max_tokens, config)
    prompt, fails = np.minimum(specs.prompt_tokens, LONGEST).astype(np.float64), cut.is_too_long
    output = np.maximum(cut.output_tokens, 1).astype(np.float64)
    ttft = first_token_seconds(prompt, config, times) * ROUNDING
    further = further_token_seconds(prompt, config, times) * ROUNDING
    num_steps = np.ceil((output - 1) / (config.num_speculative_tokens + 1))
    e2e, slo = ttft + num_steps * further, loosest_limits(scenario)
    # A first token may be handed over as late as what the second step gives: one step less counts.
    counted = np.maximum(num_steps - config.async_output, 0.0)
    tpot = further * counted / np.maximum(output - 1, 1.0)
    share = SHOWN_SHARE if slo is None else slo.attainment
    steps = Steps(config, times)
    work, _ = least_replica_seconds(prompt, 1.0 + num_steps, None, steps)
    bound = Bound(
        out_of_reach=None,
        least_replicas=1,
        ttft=float(np.quantile(ttft, share)),
        tpot=float(np.quantile(tpot, share)),
        e2e=float(np.quantile(e2e, share)),
        replica_seconds=max(float(work[~fails].sum()), 0.0) * ROUNDING,
    )
    if slo is None or not any(slo.has_bound(term) for term in ("ttft", "tpot", "e2e")):
        return bound
    latest_start = latest_window_start(scenario, specs, int(fails.sum()))
    missed = term_out_of_reach(slo, {"ttft": ttft, "tpot": tpot, "e2e": e2e}, fails, latest_start)
    if missed is not None:
        return dataclasses.replace(bound, out_of_reach=missed)
    limits = _deadlines(slo, output, ttft)
    if limits is None:
        return bound
    deadline, decoding = limits
    answers = np.ones(len(prompt)) if decoding is None else 1.0 + counted
    work, _ = least_replica_seconds(prompt, answers, decoding, steps)
    replicas = _replicas_in_time(slo, specs, np.where(fails, np.inf, work), deadline, latest_start)
    if slo.ttft is not None and decoding is not None and not specs.is_stationary:
        # What comes at once is to be read within the limit on TTFT, whenever it is answered.
        work, _ = least_replica_seconds(prompt, np.ones(len(prompt)), None, steps)
        work = np.where(fails, np.inf, work)
        first = np.full(len(prompt), slo.ttft)
        replicas = max(replicas, _replicas_in_time(slo, specs, work, first, latest_start, answered=deadline))
    return dataclasses.replace(bound, least_replicas=replicas)


def first_token_seconds(prompt: Array, config: EngineConfig, times: StepTimes) -> Array:
    """Return the least time from arrival to the first token of each prompt, on any schedule.

    The prompt of p tokens is computed in k chunks, k at least p over the largest chunk. A step with a chunk of c
    tokens holds at least these, in each of the s pipeline stages one after another, so it takes at least ``t(c) +
    sequence_seconds[1]`` with ``t(c) = token_seconds[s c]``. (Where chunks overlap in the stages, c beyond a
    micro-batch only counts once, and attention takes at least its share of one stage.) One of k chunks has at least
    p / k tokens and the others at least one, hence ``t(p / k) + (k - 1) t(1)``; and with r the least of ``t(c) / c``,
    the chunks together take at least ``r p``. The larger holds for each k; the least over k is the bound. Larger k
    than those tried take at least ``max(r p, k t(1))``. The attended pairs of the chunks sum to ``p (p + 1) / 2`` for
    any split, the keys to at least p. Waiting, other requests and recomputed tokens only add time.
    """
    chunk = config.max_num_batched_tokens if config.lifts_chunk_limit else config.max_chunk_tokens
    largest = max(chunk if config.enable_chunked_prefill else int(prompt.max()), 1)
    stages = config.pipeline_parallel_size
    if config.overlaps_chunks and config.lifts_chunk_limit:
        largest *= stages
    sizes = np.arange(max(int(prompt.max()), largest) + 1)
    together = config.max_chunk_tokens // stages if config.overlaps_chunks else int(sizes[-1])
    seconds = _step_token_seconds(times, int(sizes[-1]) * stages)[
        np.maximum(sizes, stages * np.minimum(sizes, together))
    ]
    rate = _least_rate(seconds)
    lengths, place = np.unique(prompt, return_inverse=True)
    fewest = np.ceil(lengths / largest)
    head = times.sequence_seconds[1]
    beyond = fewest + MORE_CHUNKS + 1
    least = np.maximum(rate * lengths, beyond * seconds[1]) + beyond * head
    for extra in range(MORE_CHUNKS + 1):
        chunks = fewest + extra
        largest_of = np.ceil(lengths / chunks).astype(np.int64)
        one_by_one = seconds[largest_of] + (chunks - 1) * seconds[1]
        least = np.minimum(least, np.maximum(rate * lengths, one_by_one) + chunks * head)
    attention = (
        times.prefill_pair_seconds * lengths * (lengths + 1) / 2 + times.prefill_context_seconds * lengths
    ) / np.where(lengths > together, stages, 1) + times.prefill_request_seconds
    return np.asarray((config.frontend_latency + least + attention)[place])


def further_token_seconds(prompt: Array, config: EngineConfig, times: StepTimes) -> Array:
    """Return the least time of each further token of a request, on any schedule.

    Every further token ends a separate step. That step decodes the request, whose context is at least its prompt: a
    decode-only step takes at least ``decode_base[1] + slope p``, one that also has prompts at least
    ``token_seconds[1] + sequence_seconds[1] + slope p``. Or, after a preemption, it recomputes prompt and answer: at
    least the rate r for p tokens, with their pairs and keys. The least of the three holds for all.
    """
    slope = float(np.min(times.decode_slope[1:])) * prompt
    seconds = _step_token_seconds(times, config.max_num_batched_tokens * config.pipeline_parallel_size)
    rate = _least_rate(seconds)
    head = times.sequence_seconds[1]
    decoded = min(times.decode_base[1], seconds[1] + head) + slope
    computed_again = (
        np.maximum(seconds[1], rate * prompt)
        + head
        + times.prefill_context_seconds * prompt
        + times.prefill_pair_seconds * prompt * (prompt + 1) / 2
    )
    return np.asarray(np.minimum(decoded, computed_again))


def _step_token_seconds(times: StepTimes, last: int) -> Array:
    """Return ``token_seconds`` of 0 to ``last`` tokens, extrapolated linearly beyond the table."""
    table = np.asarray(times.token_seconds, dtype=np.float64)
    if last < len(table):
        return table[: last + 1]
    beyond = np.arange(1.0, last - len(table) + 2)
    return np.concatenate((table, table[-1] + times.token_seconds_beyond * beyond))


def _least_rate(seconds: Array) -> float:
    """Return the least seconds of a token over all sizes of a step, from those of 0, 1, 2 ... tokens."""
    return float((seconds[1:] / np.arange(1, len(seconds))).min())


def latest_window_start(scenario: Scenario, specs: RequestSpecs, num_failed: int) -> int:
    """Return the last request that the measured window can start with.

    The warm-up is at most half of the completed requests (`simserve.metrics.throughput`), or the seconds that the
    scenario sets; a run without its own arrival times is measured whole.
    """
    count = len(specs)
    warmup = scenario.run.warmup
    if specs.concurrency is not None:
        return 0 if isinstance(warmup, str) else count - 1
    if not isinstance(warmup, str):
        after = specs.arrival_time < specs.arrival_time[0] + warmup
        return min(int(np.count_nonzero(after)), count - 1)
    return min(count // 2 + num_failed, count - 1) if specs.is_stationary and warmup == "auto" else 0


def term_out_of_reach(slo: SLO, least: dict[str, Array], fails: NDArray[np.bool_], latest_start: int) -> str | None:
    """Return the term that too many requests miss in any window; the one furthest from its limit first.

    The window holds all requests from its first on. A request whose bound lies above a limit misses it, so if the
    share of these exceeds the share that may miss, for every start, the SLO cannot be met.
    """
    limits = {term: getattr(slo, term) for term in least if getattr(slo, term) is not None}
    misses = {term: (least[term] > limit) | fails for term, limit in limits.items()}
    excess = {term: float(np.quantile(least[term], slo.attainment)) / limit for term, limit in limits.items()}
    for term in sorted(misses, key=lambda each: -excess[each]):
        if _is_too_many(misses[term], slo.attainment, latest_start):
            return term
    combined = np.logical_or.reduce([fails, *misses.values()])
    return "slo" if _is_too_many(combined, slo.attainment, latest_start) else None


def _is_too_many(misses: NDArray[np.bool_], attainment: float, latest_start: int) -> bool:
    from_here = np.cumsum(misses[::-1])[::-1][: latest_start + 1]
    requests = len(misses) - np.arange(latest_start + 1)
    # As in the simulation: met over submitted, against the required share.
    return bool(np.all((requests - from_here) / requests < attainment))


def _deadlines(slo: SLO, output: Array, ttft: Array) -> tuple[Array, Array | None] | None:
    """Return when a request that meets the SLO must be done, and how long its decoding may take; None: no limit.

    Args:
        output: Output tokens of each request.
        ttft: Least seconds to the first token of each.

    Returns:
        Seconds after the arrival of each, and seconds from the first token to the last; the latter is None if no limit
        applies to it.
    """
    if slo.ttft is None and slo.e2e is None:
        return None
    decoding = None if slo.tpot is None else slo.tpot * np.maximum(output - 1, 0.0)
    if slo.e2e is not None:
        left = np.maximum(slo.e2e - ttft, 0.0)
        return np.full(len(output), slo.e2e), left if decoding is None else np.minimum(decoding, left)
    assert slo.ttft is not None
    return slo.ttft + (np.zeros(len(output)) if decoding is None else decoding), decoding


def _replicas_in_time(
    slo: SLO,
    specs: RequestSpecs,
    work: Array,
    deadline: Array,
    latest_start: int,
    answered: Array | None = None,
) -> int:
    """Return the replicas below which too few requests can meet the SLO, with work to be done by a deadline.

    Args:
        slo: The objective.
        specs: The requests.
        work: Least replica seconds of each by its deadline; infinite if it fails.
        deadline: Seconds after it was sent.
        latest_start: Last request that a measured window may begin with.
        answered: Seconds after which one that meets the SLO has its whole answer; None: its deadline.
    """
    if specs.concurrency is None:
        return replicas_needed(slo.attainment, specs.arrival_time, work, specs.arrival_time + deadline, latest_start)
    if latest_start:
        return 1
    ends_answer = slo.e2e is not None or slo.tpot is not None
    occupied = (deadline if answered is None else answered) if ends_answer else np.full(len(work), np.inf)
    return replicas_for_clients(slo.attainment, specs, work, deadline, occupied)


def replicas_for_clients(attainment: float, specs: RequestSpecs, work: Array, deadline: Array, occupied: Array) -> int:
    """Return the replicas below which too few requests of a closed loop can meet the SLO.

    The first request of each client is sent when it begins. Rows after these are taken in order, by clients that have
    their answers. Until the time T at which the first k rows are taken, each of C clients is yet to begin, thinks, or
    has one of these rows. A row that meets the SLO keeps its client for a known time, and each of the m others for at
    most T, hence ``(C - m) T`` is at most the sum of the waits to begin, of the times of thinking and of the known
    times. Those of the k rows that meet the SLO are processed between 0 and the last deadline, by n replicas.

    Args:
        attainment: Share of the requests that must meet the SLO.
        specs: The requests, of clients that go on to the last one.
        work: Least replica seconds of each; infinite if it fails.
        deadline: Seconds from sending within which one that meets the SLO is processed that far.
        occupied: Seconds within which it is answered; infinite without a limit.
    """
    clients, count, least = specs.concurrency, len(work), 1.0
    assert clients is not None
    misses = count - math.ceil(attainment * count - 1e-9)
    waits, begun = clients * specs.begins_at(clients) / 2, specs.begins_at(clients)
    busy, order = np.cumsum(specs.think_time + occupied), np.argsort(work)
    for taken in np.unique(np.linspace(min(clients, count), count, CLIENT_PREFIXES).astype(np.int64)):
        last = begun
        if taken > clients:
            if clients <= misses:
                break
            last = max(begun, (waits + busy[taken - 1]) / (clients - misses)) + float(specs.think_time.max())
        cheapest = work[order[order < taken]]
        least = max(least, _replicas_from(cheapest, last + deadline[:taken], 0.0, int(taken) - misses))
    return max(1, math.ceil(least * ROUNDING))


def replicas_needed(attainment: float, arrival_time: Array, work: Array, ends: Array, latest_start: int) -> int:
    """Return the replicas below which too few requests can meet the SLO.

    A request that meets it is done by a known deadline after its arrival. Those that arrive from request s on and
    meet it are processed between the arrival of s and the last deadline E, by n replicas for at most ``n (E -
    arrival_s)`` seconds together. They take at least the work of as many of the cheapest (`least_replica_seconds`).
    The window starts anywhere up to ``latest_start``; between two of the starts tried, at most the requests between
    them are lost from the count. The same holds for any later stretch of requests, except for the misses that the
    whole window may have: the busiest stretches are tried.

    Args:
        attainment: Share of the requests that must meet the SLO.
        arrival_time: Arrival of each, seconds, ascending.
        work: Least replica seconds of each; infinite if it fails.
        ends: Deadline of each, seconds.
        latest_start: Last request that a measured window may begin with.
    """
    least, count, order = math.inf, len(work), np.argsort(work)
    starts = np.unique(np.linspace(0, latest_start + 1, WINDOW_STARTS + 1).astype(np.int64))
    for first, after in itertools.pairwise(int(each) for each in starts):
        start = after - 1
        num_good = math.ceil(attainment * (count - first) - 1e-9) - (start - first)
        cheapest = work[order[order >= start]]
        least = min(least, _replicas_from(cheapest, ends[start:], float(arrival_time[start]), num_good))
    misses = count - math.ceil(attainment * count - 1e-9)
    busiest = _replicas_when_busiest(work, ends, arrival_time, latest_start, misses)
    least = max(least, busiest) if math.isfinite(least) else busiest
    return max(1, math.ceil(least * ROUNDING))


def _replicas_when_busiest(work: Array, ends: Array, arrival_time: Array, latest_start: int, misses: int) -> float:
    """Return the replicas that the busiest stretches of a window need if ``misses`` of its requests may miss."""
    arrivals = arrival_time[latest_start:]
    edges = np.searchsorted(arrivals, np.linspace(arrivals[0], arrivals[-1], BUSY_BINS + 1)[:-1])
    edges = np.append(edges, len(arrivals)) + latest_start
    most = 0.0
    for length in BUSY_LENGTHS:
        sizes = edges[length:] - edges[:-length]
        place = int(np.argmax(sizes))
        start, end = int(edges[place]), int(edges[place + length])
        if end > start:
            good = end - start - misses
            cheapest = np.sort(work[start:end])
            most = max(most, _replicas_from(cheapest, ends[start:end], float(arrival_time[start]), good))
    return most


def _replicas_from(cheapest: Array, ends: Array, start: float, num_good: int) -> float:
    """Return the replicas that at least ``num_good`` requests need from ``start`` on; their seconds are ascending."""
    if num_good < 1:
        return 0.0
    sums = np.cumsum(cheapest)
    seconds = float(np.max(ends)) - start
    return max(float(np.min(sums[num_good - 1 :])), 0.0) / seconds if seconds > 0 else 0.0


def is_covered(scenario: Scenario, specs: RequestSpecs) -> bool:
    """Return whether the proofs hold for everything the scenario uses.

    A key that they do not cover disables them if it is not at its default: shared prefixes compute fewer tokens, a
    second pool prefills elsewhere, an API serves some requests. With drafts a step gives at most one token more than
    its drafts, and takes no less time than one without.

    Features that refuse, cut off or repeat requests are covered: requests that meet their limits are computed whole, by
    one of the replicas, between their first arrival and their deadline, whatever happens to the others; and an
    autoscaled fleet never has more than its most replicas. Only if the measured window may start late, after any number
    of refused requests, it is unknown how many requests it holds.
    """
    used = scenario.model_dump(exclude_unset=True, exclude_defaults=True)
    deployment = used["deployment"]
    known = (
        (used, _KNOWN_BLOCKS),
        (deployment, _KNOWN_DEPLOYMENT),
        (deployment.get("engine") or {}, _KNOWN_ENGINE),
        (used["workload"], _KNOWN_WORKLOAD),
    )
    if any(set(block) - keys for block, keys in known):
        return False
    if scenario.workload.has_media and specs.images is None and specs.audio is None:
        return False
    if specs.is_stationary and scenario.run.warmup != "none" and _may_lose(scenario):
        return False
    columns = {each.name: getattr(specs, each.name) for each in dataclasses.fields(specs)}
    return all(name in _KNOWN_COLUMNS or _is_unused(value) for name, value in columns.items())


def _is_unused(value: object) -> bool:
    is_empty = isinstance(value, tuple) and not value
    return value is None or is_empty or (isinstance(value, float) and value == 0.0)


def _may_lose(scenario: Scenario) -> bool:
    deployment = scenario.deployment
    patience = [each.timeout for each in scenario.workload.classes or ()]
    return any(getattr(deployment, key) for key in _LOSING_DEPLOYMENT) or any(each is not None for each in patience)


def least_replica_seconds(
    prompt: Array,
    output: Array,
    decode_limit: Array | None,
    steps: Steps,
    *,
    computes_prompts: bool = True,
) -> tuple[Array, float]:
    """Return the least seconds of one replica for each request, such that sums over any of them are bounds.

    A single value may be below 0; only the sum over a set of requests is a lower bound on the seconds in which that
    set is processed.

    Take a step with n decoding requests whose contexts sum to S and c prompt tokens. If prices a, b, g, l >= 0 (b of
    any sign) exist with ::

        seconds(n, c, S) (1 + l n) >= a c + b n + g S      for every step that the engine can take

    then the steps that process a set of requests take together at least ``a`` per prompt token, ``b`` per further
    token and ``g`` per token of context of each further token, less ``l`` times the seconds that requests spend
    decoding, which ``decode_limit`` bounds for those that meet their SLO. (Weak duality of the linear programme that
    packs tokens into steps.) Requests outside the set make a step longer, never shorter, since no table falls with
    its index. S is at most the KV memory, n the seats, n + c the token budget. For given a, g, l the best b is a
    minimum over n; several a, g, l are tried and the largest sum is taken, as all are bounds.

    After a preemption a further token comes from computing the request again: at least ``prompt + 1`` tokens at
    price a. So b of a request is at most ``(a - g) (prompt + 1)``, and g at most a.

    Args:
        prompt: Prompt tokens, shape [requests].
        output: Output tokens; 1 if only the first token counts.
        decode_limit: Seconds from first to last token that each request may take; None: no limit.
        steps: Every step that the replica can take.
        computes_prompts: Whether prompts are computed here; otherwise their KV caches come from elsewhere.

    Returns:
        The seconds of each request, and the price of a prompt token.
    """
    gaps, times = np.maximum(output - 1, 0.0), steps.times
    contexts = gaps * prompt + gaps * np.maximum(gaps - 1, 0.0) / 2
    stages = steps.config.pipeline_parallel_size
    computed = prompt if computes_prompts else np.zeros(len(prompt))
    fixed = (
        times.prefill_pair_seconds * computed * (computed + 1) / 2 + times.prefill_context_seconds * computed
    ) / stages + (times.prefill_request_seconds if computes_prompts else 0.0)
    limit = None
    num_gaps = float(gaps.sum())
    if decode_limit is not None and np.all(np.isfinite(decode_limit)) and num_gaps > 0:
        limit = decode_limit
    left = 0.0 if limit is None else float(limit.sum())
    sums = float(fixed.sum()), float(computed.sum()), float(contexts.sum()), left
    best = _best_prices(steps, prompt, gaps, sums, None if limit is None else left / num_gaps)
    if best is None:
        return fixed, 0.0
    (token, memory, pace), further = best
    each = np.minimum(further, (token - memory) * (prompt + 1))
    seconds = fixed + token * computed + each * gaps + memory * contexts
    if limit is not None and pace:
        seconds = seconds - pace * limit
    return seconds, token


def _best_prices(
    steps: Steps, prompt: Array, gaps: Array, sums: tuple[float, float, float, float], typical_gap: float | None
) -> tuple[tuple[float, float, float], float] | None:
    """Return the prices at which all requests together take longest, and the price of a further token at these.

    Args:
        gaps: Further tokens of each request.
        sums: Of all requests: seconds at no price, prompt tokens that are computed, contexts of their further tokens,
            and seconds that their decoding may take.
        typical_gap: Seconds that a further token may take on average; None: no limit.

    Returns:
        None if no prices give more than the seconds at no price.
    """
    shortest, num_gaps = float(prompt.min(initial=math.inf)), float(gaps.sum())
    longest, best = sums[0], None
    for prices in _prices(steps, has_gaps=num_gaps > 0, typical_gap=typical_gap):
        token, memory, pace = prices
        further = steps.further_token_price(*prices) if num_gaps else 0.0
        of_gaps = further * num_gaps
        if not further <= (token - memory) * (shortest + 1):
            of_gaps = float((np.minimum(further, (token - memory) * (prompt + 1)) * gaps).sum())
        total = sums[0] + token * sums[1] + of_gaps + memory * sums[2] - pace * sums[3]
        if total > longest:
            longest, best = total, (prices, further)
    return best


class Steps:
    """Every step that a replica can take, as the prices of its tokens need it.

    Attributes:
        config: Seats, token budget, KV memory.
        times: What its steps take, with tables as arrays.
    """

    def __init__(self, config: EngineConfig, times: StepTimes) -> None:
        self.config, self.times = config, times
        seats = min(config.max_num_seqs, len(times.decode_base) - 1)
        budget = max(config.max_num_batched_tokens * config.pipeline_parallel_size, seats + 1)
        if not config.enable_chunked_prefill:
            budget = max(budget, config.max_model_len)
        self.num = np.arange(1.0, seats + 1)
        self.decode = np.asarray(times.decode_base[1 : seats + 1])
        slopes = np.asarray(times.decode_slope[1 : seats + 1])
        # For a step with more requests than counted: the least slope from here on.
        self.slope = np.minimum.accumulate(slopes[::-1])[::-1]
        head = np.asarray(times.sequence_seconds)
        self.mixed = head[np.minimum(np.arange(1, seats + 1) + 1, len(head) - 1)] + np.asarray(
            times.decode_attention_base[1 : seats + 1]
        )
        self.token = _step_token_seconds(times, budget)
        self.tokens = np.arange(budget + 1.0)
        # Most contexts: layers with a window hold less of each, and if all have one, only the seats limit them.
        blocks = config.num_blocks * config.block_size
        self.capacity = float(blocks if config.full_groups else config.max_num_seqs * config.max_model_len)
        self.highest_token_price = float(((self.token[1:] + head[1]) / self.tokens[1:]).min())
        self._least_left: dict[float, Array] = {}
        self._uncached: dict[tuple[float, float], Array] = {}
        self._read: dict[tuple[float, float], Array] = {}
        self._prices: dict[tuple[float, float, float], float] = {}

    def further_token_price(self, token: float, memory: float, pace: float) -> float:
        """Return the largest price of a further token that every step covers."""
        prices = token, memory, pace
        if prices not in self._prices:
            left = self._without_contexts(token, pace) + self._of_contexts(memory, pace)
            self._prices[prices] = float((left / self.num).min())
        return self._prices[prices]

    def _without_contexts(self, token: float, pace: float) -> Array:
        """Return what steps leave for their further tokens, by their number, before contexts are counted."""
        if (token, pace) not in self._uncached:
            if token not in self._least_left:
                left = self.token - token * self.tokens
                place = np.minimum(self.num.astype(np.int64) + 1, len(left) - 1)
                self._least_left[token] = np.asarray(np.minimum.accumulate(left[::-1])[::-1][place])
            stretch = 1.0 + pace * self.num
            # (1 + l n) t - a x >= (1 + l n) (t - a x) + l n a n, as x > n.
            mixed = stretch * (self._least_left[token] + self.mixed)
            beside = mixed + pace * self.num * token * self.num + token * self.num
            self._uncached[token, pace] = np.minimum(self.decode * stretch, beside)
        return self._uncached[token, pace]

    def _of_contexts(self, memory: float, pace: float) -> Array:
        """Return what contexts that fill the KV memory leave of it, 0 at most, by the number of requests."""
        if (memory, pace) not in self._read:
            per_token = self.slope * (1.0 + pace * self.num) - memory
            self._read[memory, pace] = np.minimum(0.0, per_token) * self.capacity
        return self._read[memory, pace]


def _prices(steps: Steps, *, has_gaps: bool, typical_gap: float | None) -> Iterator[tuple[float, float, float]]:
    """Yield prices of a prompt token, a context token and a second of decoding."""
    highest = steps.highest_token_price
    if not has_gaps:
        yield highest, 0.0, 0.0
        return
    reading = float(steps.slope.min())
    filling = float(steps.decode[0]) / steps.capacity if steps.capacity > 0 else 0.0
    paces: tuple[float, ...] = (0.0,)
    if typical_gap is not None:
        fitting = max(int(np.searchsorted(steps.decode, typical_gap)), 1)
        paces = tuple(pace / fitting for pace in PACE_PRICES)
    for token in (share * highest for share in TOKEN_PRICES):
        for memory in (min(reading + share * filling, token) for share in MEMORY_PRICES):
            for pace in paces:
                yield token, memory, pace
