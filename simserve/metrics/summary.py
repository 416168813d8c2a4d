"""One run in figures: exactly what `result.json` holds. Knows records and totals; no file, no picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from simserve.metrics.bottleneck import LimitGain, bottleneck
from simserve.metrics.cost import Grid, board_watts, cost, energy
from simserve.metrics.features import (
    SpeculationFacts,
    TierPrices,
    class_figures,
    encoder_utilization,
    hit_rates,
    lora_figures,
    lora_sentences,
    mean_encoders,
    media_figures,
    name_encoders,
    name_loading,
    name_offload,
    offload_figures,
    offload_sentences,
    reasoning_figures,
    round_figures,
    speculation_summary,
    task_figures,
    tier_figures,
    unused_tiers,
)
from simserve.metrics.gateway import (
    drafted,
    gateway_figures,
    gateway_sentences,
    loss_sentences,
    mean_gpu_hour_usd,
    mean_gpus,
    name_api_server,
    overflow_figures,
    overflow_share,
    pool_figures,
    pool_sentences,
    reasons,
    region_figures,
    region_sentences,
    replica_figures,
    statuses,
    stream_figures,
    transfer_figures,
)
from simserve.metrics.latency import (
    NAMED_TERMS,
    SLO,
    RequestLatencies,
    attainment,
    further_latencies,
    latency_summary,
    request_latencies,
    requests_meeting,
)
from simserve.metrics.real_server import prediction_interval
from simserve.metrics.result import Figures, evaluate_thresholds
from simserve.metrics.statistics import in_json, ratio, rows_where
from simserve.metrics.steady_state import (
    Offered,
    Sojourns,
    Stability,
    Throughput,
    UsersFacts,
    Window,
    borne,
    find_window,
    sojourns,
    stability,
    throughput,
    users_figures,
    waiting_share,
)
from simserve.profiles.expected_errors import Expectation
from simserve.sim.records import COMPLETED, UNFINISHED, RequestRecords

if TYPE_CHECKING:
    from simserve.metrics.api_cost import ApiPrices
    from simserve.perf.memory import MemoryPlan
    from simserve.sim.recorder import RunTotals
    from simserve.sim.simulate import Simulation
    from simserve.workload.requests import RequestSpecs

_MEMORY_KEYS = (
    "fits",
    "total_bytes",
    "usable_bytes",
    "weights_bytes",
    "draft_weights_bytes",
    "states_bytes",
    "lora_bytes",
    "kv_bytes",
    "activation_bytes",
    "non_torch_bytes",
    "cuda_graph_bytes",
    "kv_bytes_per_token",
    "draft_kv_bytes_per_token",
    "num_kv_blocks",
    "block_size",
    "max_concurrent_full_length",
    "longest_sequence",
    "shortage_bytes",
    "host_bytes",
)


MEMORIES_PER_RUN = 12
"""How many times the memory of its queue a run must last to be called settled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What a summary says besides what happened in the run.

    Attributes:
        version: Of simserve.
        seed: Of the run.
        scenario_hash: Identifies the resolved scenario.
        scenario_name: Its name.
        fidelity: ``roofline``, ``fitted`` or ``measured``.
        fidelity_by_operator: The same of each operator.
        expectation: Errors to expect of a real server.
        engine_resolved: Every knob of the engine as it was used.
        formats: Number formats of weights and KV cache, and where they come from; over several pools the first one's,
            with those of each below ``pools``.
        memory: Where the bytes of one GPU went.
        num_gpus: GPUs of the fleet.
        gpu_hour_usd: Price of one GPU for an hour, None if unknown.
        gpu_hour_source: Where that price is from.
        pays_electricity: Whether electricity comes on top of it.
        grid: Where electricity comes from.
        idle_watts: Power of one GPU without work.
        board_watts: The most it draws.
        slo: Objective, None if there is none.
        warmup: ``auto``, ``none`` or seconds.
        peak_flops: Of one replica in the dtype it computes in, FLOP/s.
        peak_bandwidth: Of one replica, bytes/s.
        thresholds: Metric -> expressions.
        quality: Published figures of the number formats, see `simserve.profiles.checkpoint`.
        overflow: What the API charges that requests overflow to, None without one.
        limit_gains: What a larger limit of the scheduler would bring, see `simserve.metrics.bottleneck`.
        speculation: What is known of speculative decoding, None without it.
        pool_gpu_hour_usd: Price of one GPU for an hour by pool, where there are several.
        gpus_per_replica: GPUs of one replica.
        users: How many users send the requests, None where the scenario does not say.
        warnings: What a reader has to know before all else, such as a model whose architecture is assumed.
        num_adapters: LoRA adapters that requests ask for, None without.
        round_pause: Seconds between two rounds of rollouts; None: there are no rounds.
        tier_prices: What KV tiers cost beside the GPUs.
        encoders_usd_per_hour: What the GPUs of an encoder pool cost; NaN: they have no price.
        encoder_power: Power of one of those without work, and the most it draws, watts; None: there is no such pool.
        offered: How the traffic compares with what the deployment can finish; None where it is not offered at a rate.
        finishable: Requests a second that it finishes with its queue never empty; None likewise.
        waiting: Share of the time to first tokens that requests waited for their first step.
        tells_operators: Whether the seconds of steps are told by operator, which trials of a search have no use for.
    """

    version: str
    seed: int
    scenario_hash: str
    scenario_name: str
    fidelity: str
    expectation: Expectation
    engine_resolved: dict[str, Any]
    formats: dict[str, Any]
    memory: MemoryPlan
    num_gpus: int
    gpu_hour_usd: float | None
    gpu_hour_source: str
    pays_electricity: bool
    grid: Grid
    idle_watts: float
    board_watts: float
    slo: SLO | None
    warmup: str | float
    peak_flops: float
    peak_bandwidth: float
    thresholds: Mapping[str, Sequence[str]]
    fidelity_by_operator: Mapping[str, str] = field(default_factory=dict)
    quality: Sequence[Mapping[str, Any]] = ()
    overflow: ApiPrices | None = None
    limit_gains: Mapping[str, LimitGain] = field(default_factory=dict)
    speculation: SpeculationFacts | None = None
    pool_gpu_hour_usd: Mapping[str, float | None] = field(default_factory=dict)
    gpus_per_replica: int = 1
    users: UsersFacts | None = None
    warnings: Sequence[str] = ()
    num_adapters: int | None = None
    round_pause: float | None = None
    tier_prices: TierPrices = field(default_factory=TierPrices)
    encoders_usd_per_hour: float = 0.0
    encoder_power: tuple[float, float] | None = None
    offered: Offered | None = None
    finishable: float | None = None
    waiting: float = 0.0
    tells_operators: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The run as its figures need it.

    Attributes:
        latencies: Of every request.
        sojourns: Of the requests that were sent.
        verdict: Whether the run kept up with its traffic.
        window: What of it is measured.
        meets_slo: Whether each request met every bound, shape [requests]; None without an SLO.
    """

    latencies: RequestLatencies
    sojourns: Sojourns
    verdict: Stability
    window: Window
    meets_slo: NDArray[np.bool_] | None


def summarize(
    simulation: Simulation, facts: RunFacts, measured: Measured | None = None, specs: RequestSpecs | None = None
) -> dict[str, Any]:
    """Return the figures of one run, every key always there, None where a figure is undefined.

    ``duration completed failed total_*`` cover the whole run: from the first arrival to the last departure,
    and the tokens of completed requests; ``failed`` counts rejected, timed out and failed ones. Latencies,
    rates, attainment and dollars cover ``simserve.window`` (see `simserve.metrics.steady_state.find_window`),
    except ITL, which pools the whole run. Shares of the fleet and of its memory (``utilization``, ``kv``)
    cover the simulation from 0 to its last event.

    Args:
        simulation: The run.
        facts: What there is to say besides.
        measured: What `measure` returned of it; None: it is measured here.
        specs: What arrived, for the prompt cache of an API that requests overflow to; None: it caches nothing.
    """
    measured = measured or measure(simulation, slo=facts.slo, warmup=facts.warmup, offered=facts.offered)
    headline = _headline(simulation, facts, measured, specs)
    summary = {key: in_json(value) for key, value in headline.items()}
    add_interval(summary, facts)
    return summary


def add_interval(summary: dict[str, Any], facts: RunFacts) -> None:
    """Put what a real server would show beside the figures of a summary."""
    summary["simserve"]["prediction_interval"] = prediction_interval(summary, facts.expectation, facts.waiting)


def measure(
    simulation: Simulation, *, slo: SLO | None, warmup: str | float, offered: Offered | None = None
) -> Measured:
    """Return latencies, stability, the measured window, and which requests met the objective.

    Args:
        simulation: The run.
        slo: Objective, None if there is none.
        warmup: ``auto``, ``none`` or seconds.
        offered: How the traffic compares with what the deployment can finish; None: not known.
    """
    records = simulation.records
    latencies = request_latencies(records)
    stayed = sojourns(records, simulation.end_time)
    verdict = stability(
        stayed, is_open_loop=simulation.is_open_loop, is_stationary=simulation.is_stationary, offered=offered
    )
    is_steady, changes = simulation.is_stationary and verdict != "overloaded", simulation.has_changing_fleet
    slowness = 1.0 if offered is None or offered.mean >= 1 else 2 / (1 - offered.mean)
    return Measured(
        latencies=latencies,
        sojourns=stayed,
        verdict=verdict,
        window=find_window(
            records,
            latencies,
            stayed,
            warmup=warmup,
            is_steady=is_steady,
            has_changing_fleet=changes,
            slowness=slowness,
        ),
        meets_slo=None if slo is None else requests_meeting(latencies, slo),
    )


def _headline(
    simulation: Simulation, facts: RunFacts, measured: Measured, specs: RequestSpecs | None
) -> dict[str, Any]:
    records = simulation.records
    rates = throughput(records, measured.window, measured.meets_slo)
    totals = _whole_run(records, measured.sojourns) | {
        "request_throughput": rates.requests,
        "request_goodput": rates.good_requests,
        "output_throughput": rates.output_tokens,
        "total_token_throughput": rates.tokens,
    }
    in_window, timeline = measured.window.has_arrived, simulation.timeline
    money = _money(simulation, facts, measured, rates, specs)
    objective = _slo(facts.slo, measured)
    figures = Figures(
        latencies=latency_values(measured) if facts.thresholds else {},
        itl=simulation.totals.itl,
        slo_attainment=objective["attainment"],
        scalars=totals | money.dollars,
    )
    block_bytes = facts.memory.kv_bytes_per_token * facts.memory.block_size * facts.gpus_per_replica
    return {
        **totals,
        **latency_summary(measured.latencies, in_window, simulation.totals.itl),
        "simserve": {
            **_identity(facts, simulation),
            "load": _load(simulation),
            **further_latencies(records, measured.latencies, in_window),
            "stability": measured.verdict,
            **_load_ratio(facts),
            "settled": settled(measured, facts.offered),
            "bottleneck": _bottleneck(simulation, facts, measured),
            "utilization": _utilization(simulation, facts),
            "kv": kv_figures(
                simulation,
                facts.memory.num_kv_blocks,
                block_bytes,
                caches_prefixes=facts.engine_resolved.get("enable_prefix_caching") is not False,
            ),
            "window": _window(measured.window),
            "slo": objective,
            "classes": class_figures(records, measured.latencies, measured.window, facts.slo),
            "cost": {
                **money.dollars,
                "gpu_hour_usd": money.gpu_hour_usd,
                "gpu_hour_source": facts.gpu_hour_source,
            },
            "energy": money.energy,
            "steps": _steps(simulation.totals, facts),
            "speculation": speculation_summary(facts.speculation, drafted(simulation), simulation.totals),
            "reasoning": reasoning_figures(
                records, measured.latencies, in_window, money.dollars["usd_per_million_output_tokens"]
            ),
            "images": media_figures(
                simulation, specs, specs.images if specs else None, measured.latencies, in_window, "images"
            ),
            "audio": media_figures(
                simulation, specs, specs.audio if specs else None, measured.latencies, in_window, "recordings"
            ),
            "confidence_intervals": None,
            "prediction_interval": None,
            "pools": pool_figures(simulation, measured.window, measured.meets_slo, facts.pool_gpu_hour_usd),
            "transfers": transfer_figures(simulation),
            "regions": region_figures(simulation, measured.latencies, measured.window, measured.meets_slo),
            "offload": offload_figures(simulation, block_bytes),
            "loras": lora_figures(simulation, specs, facts.num_adapters),
            "streaming": stream_figures(simulation),
            "overflow": money.overflow,
            **gateway_figures(simulation),
            "users": users_figures(facts.users, measured.latencies, measured.window, records.request_class),
            "tasks": task_figures(records, measured.window, facts.slo, money.dollars["usd_per_hour"]),
            "rounds": round_figures(records, facts.round_pause, money.dollars["usd_per_hour"]),
            "replicas": replica_figures(simulation, facts.num_gpus),
            "requests": {**statuses(records), "resent": 0 if timeline is None else timeline.num_resent},
            "rejected": {"by_reason": reasons(records), "refusals": {} if timeline is None else timeline.refusals},
            "memory": {key: getattr(facts.memory, key) for key in _MEMORY_KEYS},
            "quality": list(facts.quality),
            "thresholds": evaluate_thresholds(facts.thresholds, figures),
        },
    }


def _load_ratio(facts: RunFacts) -> dict[str, float | None]:
    """Return offered over finishable load, of varying rates that of the highest five minutes too."""
    offered = facts.offered
    return {
        "load_ratio": None if offered is None else offered.mean,
        "peak_load_ratio": None if offered is None else offered.peak,
        "finishable_throughput": facts.finishable,
    }


def settled(measured: Measured, offered: Offered | None) -> bool | None:
    """Return whether the measured requests are many enough for their latencies to be those of a steady state.

    They are where the window outlasts the memory of the queue by far. That memory is about ``4 r / (1 - r)^2``
    requests at the load ratio r (the relaxation time of M/M/c in heavy traffic, ``1 / (c mu (1 - sqrt r)^2)``; Cohen,
    "The Single Server Queue", 1982, III.7.3), and at least what is in the system at once. None without a load ratio of
    a steady rate.
    """
    if offered is None or offered.peak is not None:
        return None
    in_system = float(np.mean(measured.sojourns.num_in_system_at_arrivals())) if len(measured.sojourns) else 0.0
    return bool(np.count_nonzero(measured.window.has_arrived) >= settling_requests(offered.mean, in_system))


def settling_requests(load_ratio: float, in_system: float) -> float:
    """Return how many measured requests make a run settled (see `settled`); inf at a load ratio of 1 and more."""
    if load_ratio >= 1:
        return math.inf
    return MEMORIES_PER_RUN * max(4 * load_ratio / (1 - load_ratio) ** 2, in_system)


def _load(simulation: Simulation) -> str:
    """Return ``open``, ``closed``, or ``mixed`` where clients of a closed loop stand beside open arrivals."""
    if not simulation.is_open_loop:
        return "closed"
    return "mixed" if simulation.has_clients else "open"


@dataclass(frozen=True, slots=True)
class _Money:
    """What a run costs: dollars, energy, and what an API took over; with the price of a GPU-hour on average."""

    dollars: dict[str, float]
    energy: dict[str, float]
    overflow: dict[str, Any]
    gpu_hour_usd: float | None


def _money(
    simulation: Simulation, facts: RunFacts, measured: Measured, rates: Throughput, specs: RequestSpecs | None
) -> _Money:
    gpus = mean_gpus(simulation, measured.window, facts.num_gpus)
    energy = _energy(simulation, facts, rates, gpus, specs)
    overflow = overflow_figures(simulation.records, measured.window, facts.overflow, simulation.front, specs)
    gpu_hour_usd = mean_gpu_hour_usd(simulation, measured.window, facts.pool_gpu_hour_usd, facts.gpu_hour_usd)
    dollars = cost(
        num_gpus=gpus,
        gpu_hour_usd=gpu_hour_usd,
        throughput=rates,
        electricity_usd_per_hour=energy["electricity_usd_per_hour"] if facts.pays_electricity else 0.0,
        api_usd_per_hour=overflow["usd_per_hour"] or 0.0,
        tiers_usd_per_hour=facts.tier_prices.usd_per_hour(gpus),
        encoders_usd_per_hour=_encoders_usd_per_hour(simulation, facts, measured.window, specs),
    )
    return _Money(dollars, energy, overflow, gpu_hour_usd)


def _encoders_usd_per_hour(
    simulation: Simulation, facts: RunFacts, window: Window, specs: RequestSpecs | None
) -> float:
    """Return what the GPUs of an encoder pool cost in the window, those that were there; as `RunFacts` says it."""
    if simulation.encoder_lives is None or specs is None or specs.encoder_pool is None:
        return facts.encoders_usd_per_hour
    pool = specs.encoder_pool
    mean = mean_encoders(simulation, pool, window.start, window.end)
    return facts.encoders_usd_per_hour / pool.num_workers * mean


def _identity(facts: RunFacts, simulation: Simulation) -> dict[str, Any]:
    return {
        "warnings": [*facts.warnings, *unused_tiers(simulation)],
        "version": facts.version,
        "seed": facts.seed,
        "scenario_name": facts.scenario_name,
        "scenario_hash": facts.scenario_hash,
        "fidelity": facts.fidelity,
        "fidelity_by_operator": dict(facts.fidelity_by_operator),
        "expected_error": facts.expectation.shares,
        "engine_resolved": facts.engine_resolved,
        "formats": facts.formats,
    }


def _whole_run(records: RequestRecords, stayed: Sojourns) -> dict[str, float]:
    completed = records.status == COMPLETED
    rows = rows_where(completed)
    sent = np.isfinite(records.arrival_time)
    return {
        "duration": stayed.run_end - float(stayed.arrival[0]) if len(stayed) else math.nan,
        "completed": _count(completed),
        "failed": _count(sent & ~completed & (records.status != UNFINISHED)),
        "total_input_tokens": int(records.prompt_tokens[rows].sum()),
        "total_output_tokens": int(records.output_tokens[rows].sum()),
    }


def latency_values(measured: Measured) -> dict[str, NDArray[np.float64]]:
    """Return TTFT, TPOT and E2E of the completed requests of the window, seconds, where they are defined."""
    counted = measured.window.has_arrived & measured.latencies.is_completed
    columns = {
        "ttft_ms": measured.latencies.ttft,
        "tpot_ms": measured.latencies.tpot,
        "e2el_ms": measured.latencies.e2e,
    }
    return {name: column[counted & ~np.isnan(column)] for name, column in columns.items()}


def steady_rates(simulation: Simulation, measured: Measured) -> dict[str, float]:
    """Return the four rates in the long run of one that keeps up with steady open arrivals; else none."""
    records = simulation.records
    is_steady = simulation.is_stationary and not simulation.has_changing_fleet and records.turn is None
    if not is_steady or measured.verdict == "overloaded" or not np.ptp(records.arrival_time) > 0:
        return {}
    rates = borne(records, measured.window, measured.meets_slo)
    return {
        "request_throughput": rates.requests,
        "request_goodput": rates.good_requests,
        "output_throughput": rates.output_tokens,
        "total_token_throughput": rates.tokens,
    }


def _slo(slo: SLO | None, measured: Measured) -> dict[str, Any]:
    if slo is None:
        return {"attainment": math.nan, "by_metric": dict.fromkeys(NAMED_TERMS, math.nan)}
    shares = attainment(measured.latencies, slo, measured.window.has_arrived)
    return {"attainment": shares.all_terms, "by_metric": shares.by_metric}


def _bottleneck(simulation: Simulation, facts: RunFacts, measured: Measured) -> dict[str, Any]:
    totals, records = simulation.totals, simulation.records
    found = bottleneck(
        seconds_by_part=totals.seconds_by_part,
        blocked_seconds=totals.blocked_seconds,
        busy_share=simulation.busy_share,
        waiting_share=waiting_share(measured.sojourns),
        preemptions_per_request=ratio(float(records.num_preemptions.sum()), _count(records.status == COMPLETED)),
        mean_batch=ratio(totals.sequence_steps, totals.num_steps),
        max_batch=int(facts.engine_resolved["max_num_seqs"]),
        is_static=facts.engine_resolved.get("batching") == "static",
        limit_gains=facts.limit_gains,
        load_ratio=None if facts.offered is None else facts.offered.mean,
        swaps=facts.engine_resolved.get("preemption_mode") == "swap",
    )
    sentences = (
        *pool_sentences(simulation),
        *region_sentences(simulation),
        *offload_sentences(simulation),
        *lora_sentences(simulation),
        *loss_sentences(simulation),
        *gateway_sentences(simulation),
    )
    found["explanation"] = " ".join([found["explanation"], *sentences])
    if facts.overflow is not None:
        share = overflow_share(records)
        found["explanation"] += f" {share:.0%} of the requests went to {facts.overflow.name}."
    name_offload(found, simulation)
    name_loading(found, simulation)
    name_api_server(found, simulation)
    name_encoders(found, simulation, measured.latencies)
    return found


def _utilization(simulation: Simulation, facts: RunFacts) -> dict[str, float]:
    """Return ``busy``, the share of the run with a step running, and ``mfu mbu``, of the peak while busy."""
    totals, pools = simulation.totals, simulation.pools
    flops, moved = facts.peak_flops * totals.busy_seconds, facts.peak_bandwidth * totals.busy_seconds
    if pools:
        flops = sum(pool.peak_flops * pool.totals.busy_seconds for pool in pools)
        moved = sum(pool.peak_bandwidth * pool.totals.busy_seconds for pool in pools)
    return {
        "busy": simulation.busy_share,
        "mfu": ratio(totals.flops, flops),
        "mbu": ratio(totals.bytes, moved),
    }


def _energy(
    simulation: Simulation, facts: RunFacts, rates: Throughput, gpus: float, specs: RequestSpecs | None
) -> dict[str, float]:
    """Return power and energy: how busy the GPUs were over the whole run, a token at the rates of the window."""
    totals = simulation.totals
    watts = board_watts(facts.idle_watts, facts.board_watts, simulation.busy_share, totals.seconds_by_part)
    encoders, num_encoders = 0.0, 0.0
    if facts.encoder_power is not None and specs is not None and specs.encoder_pool is not None:
        num_encoders = mean_encoders(simulation, specs.encoder_pool, 0.0, simulation.end_time)
        # An encoder computes: its batches are as long as prompts.
        encoders = board_watts(*facts.encoder_power, encoder_utilization(simulation, specs), {"compute": 1.0})
    return energy(
        num_encoders=num_encoders,
        watts_per_encoder=encoders,
        num_gpus=gpus,
        watts_per_gpu=watts,
        grid=facts.grid,
        tokens_per_second=rates.tokens,
        output_tokens_per_second=rates.output_tokens,
    )


def _window(window: Window) -> dict[str, float]:
    return {"start_s": window.start, "end_s": window.end, "requests": _count(window.has_arrived)}


def _steps(totals: RunTotals, facts: RunFacts) -> dict[str, Any]:
    return {
        "count": totals.num_steps,
        "mean_batch": ratio(totals.sequence_steps, totals.num_steps),
        "seconds_by_part": dict(totals.seconds_by_part),
        "seconds_by_operator": totals.seconds_by_operator if facts.tells_operators else {},
    }


def _count(selected: NDArray[np.bool_]) -> int:
    return int(np.count_nonzero(selected))


def kv_figures(simulation: Simulation, num_blocks: int, block_bytes: float, *, caches_prefixes: bool) -> dict[str, Any]:
    """Return the use of the KV pools, averaged over time.

    ``usage_*``: share of the capacity that is reserved. ``internal_waste``: share of what is reserved that
    holds no token. ``external_waste``: share of the capacity that is free, but in pieces too small for the
    request that waits for it. ``prefix_hit_rate gpu_hit_rate offload_hit_rate``: share of prompt tokens found in the
    prefix cache, in all, on the GPU and in the tiers behind it, over the requests that were scheduled. ``tiers``: of
    each of those, as `tier_figures` has them.

    Args:
        simulation: The run.
        num_blocks: KV blocks of a replica.
        block_bytes: Of one of them, over all GPUs of a replica.
        caches_prefixes: Whether there is a prefix cache.
    """
    totals, records = simulation.totals, simulation.records
    capacity_seconds = totals.kv_capacity_tokens * simulation.end_time
    hits = hit_rates(simulation, caches_prefixes=caches_prefixes)
    return {
        "num_blocks": num_blocks,
        "usage_mean": ratio(totals.kv_reserved_token_seconds, capacity_seconds),
        "usage_peak": totals.kv_peak_share if totals.kv_capacity_tokens > 0 else math.nan,
        "internal_waste": 1 - ratio(totals.kv_held_token_seconds, totals.kv_reserved_token_seconds),
        "external_waste": ratio(totals.kv_unusable_token_seconds, capacity_seconds),
        "prefix_hit_rate": hits["prefix_hit_rate"],
        "preemptions": int(records.num_preemptions.sum()),
        "gpu_hit_rate": hits["gpu_hit_rate"],
        "offload_hit_rate": hits["offload_hit_rate"],
        "tiers": tier_figures(simulation, block_bytes),
    }
