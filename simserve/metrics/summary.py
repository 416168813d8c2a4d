"""The figures of one run: exactly what `result.json` holds. Knows records and totals; knows no files and no plots."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from simserve.metrics import features, gateway
from simserve.metrics.cost import Grid, board_watts, cost, energy
from simserve.metrics.latency import (
    NAMED_TERMS,
    SLO,
    RequestLatencies,
    attainment,
    further_latencies,
    latency_summary,
    request_latencies,
    requests_meeting,
    rows_where,
)
from simserve.metrics.thresholds import Figures, evaluate_thresholds
from simserve.metrics.throughput import (
    LimitGain,
    Offered,
    Sojourns,
    Stability,
    Throughput,
    UsersFacts,
    Window,
    bottleneck,
    find_window,
    ratio,
    sojourns,
    stability,
    steady_throughput,
    throughput,
    users_figures,
    waiting_share,
)
from simserve.profiles.expected_errors import Expectation, prediction_interval
from simserve.sim.records import COMPLETED, REASONS, STATUSES, UNFINISHED, RequestRecords, on_replicas
from simserve.units import SECONDS_PER_HOUR

if TYPE_CHECKING:
    from simserve.metrics.api_cost import ApiPrices
    from simserve.perf.memory import MemoryPlan
    from simserve.sim.simulate import Simulation
    from simserve.workload.requests import RequestSpecs

_NOT_TOLD = ("max_model_len", "windows", "most_seats", "shape", "parts")
"""Fields of `simserve.perf.memory.MemoryPlan` that a summary leaves out."""
MEMORIES_PER_RUN = 12  # A run counts as settled if it lasts this many times the memory of its queue.


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What a summary states besides what happened in the run."""

    version: str  # Of simserve.
    seed: int  # Of the run.
    scenario_hash: str  # Identifies the resolved scenario.
    scenario_name: str  # Its name.
    fidelity: str  # ``roofline``, ``fitted`` or ``measured``.
    expectation: Expectation  # Errors to expect of a real server.
    engine_resolved: dict[str, Any]  # Every knob of the engine as it was used.
    formats: dict[str, Any]
    """Number formats of weights and KV cache, and where they come from; with several pools those of the first, and
    those of each under ``pools``."""
    memory: MemoryPlan  # Where the bytes of one GPU went.
    num_gpus: int  # GPUs of the fleet.
    gpu_hour_usd: float | None  # Price of one GPU for an hour, None if unknown.
    gpu_hour_source: str  # Where that price is from.
    pays_electricity: bool  # Whether electricity is charged on top of it.
    grid: Grid  # Where electricity comes from.
    idle_watts: float  # Power of one GPU without work.
    board_watts: float  # The most it draws.
    slo: SLO | None  # Objective, None if there is none.
    warmup: str | float  # ``auto``, ``none`` or seconds.
    peak_flops: float  # Of one replica, in the dtype in which it computes, FLOP/s.
    peak_bandwidth: float  # Of one replica, bytes/s.
    thresholds: Mapping[str, Sequence[str]]  # Metric -> expressions.
    fidelity_by_operator: Mapping[str, str] = field(default_factory=dict)  # The same for each operator.
    quality: Sequence[Mapping[str, Any]] = ()
    """Published figures of the number formats, see `simserve.profiles.model`."""
    overflow: ApiPrices | None = None  # Prices of the API that requests overflow to, None without one.
    limit_gains: Mapping[str, LimitGain] = field(default_factory=dict)
    """What a larger limit of the scheduler would gain, see `simserve.metrics.throughput`."""
    speculation: features.SpeculationFacts | None = None  # What is known about speculative decoding, None without it.
    pool_gpu_hour_usd: Mapping[str, float | None] = field(default_factory=dict)
    """Price of one GPU for an hour by pool, where there are several."""
    pool_memory: Mapping[str, MemoryPlan] = field(default_factory=dict)
    """Where the bytes of one GPU went by pool, where there are several."""
    gpus_per_replica: int = 1  # GPUs of one replica.
    users: UsersFacts | None = None  # How many users send the requests, None where the scenario does not say.
    warnings: Sequence[str] = ()
    """What a reader must know first, such as that the architecture of the model is assumed."""
    num_adapters: int | None = None  # LoRA adapters that requests ask for, None without.
    round_pause: float | None = None  # Seconds between two rounds of rollouts, None without rounds.
    tier_prices: features.TierPrices | None = None  # Cost of KV tiers on top of the GPUs, None without tiers.
    encoders_usd_per_hour: float = 0.0  # Cost of the GPUs of an encoder pool, NaN without a price.
    encoder_power: tuple[float, float] | None = None
    """Idle and maximum power of one of those GPUs, watts; None without an encoder pool."""
    offered: Offered | None = None
    """How the traffic compares with what the deployment can finish; None where requests do not arrive at a rate."""
    finishable: float | None = None
    """Requests a second that it finishes while its queue is never empty; None likewise."""
    waiting: float = 0.0  # Share of the time to first token that requests spent waiting for their first step.
    tells_operators: bool = True
    """Whether the seconds of steps are broken down by operator; trials of a search do not need that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What the figures of a run are computed from."""

    latencies: RequestLatencies  # Of every request.
    sojourns: Sojourns  # Of the requests that were sent.
    verdict: Stability  # Whether the run kept up with its traffic.
    window: Window  # The measured part of the run.
    meets_slo: NDArray[np.bool_] | None
    """Whether each request met every bound, shape [requests]; None without an SLO."""


def summarize(
    simulation: Simulation, facts: RunFacts, measured: Measured | None = None, specs: RequestSpecs | None = None
) -> dict[str, Any]:
    """Return the figures of one run: every key is always present, and an undefined figure is None.

    ``duration completed failed total_*`` cover the whole run: from the first arrival to the last departure,
    and the tokens of completed requests; ``failed`` counts rejected, timed out and failed ones. Latencies,
    rates, attainment and dollars cover ``simserve.window`` (see `simserve.metrics.throughput.find_window`),
    except ITL, which pools the whole run. Shares of the fleet and of its memory (``utilization``, ``kv``)
    cover the simulation from 0 to its last event.

    Args:
        measured: What `measure` returned for it; None to measure it here.
        specs: The requests drawn, for the prompt cache of an API that requests overflow to; None if it caches nothing.
    """
    measured = measured or measure(simulation, slo=facts.slo, warmup=facts.warmup, offered=facts.offered)
    headline = _headline(simulation, facts, measured, specs)
    summary = {key: in_json(value) for key, value in headline.items()}
    add_interval(summary, facts)
    return summary


def add_interval(summary: dict[str, Any], facts: RunFacts) -> None:
    """Add the prediction intervals of a real server to the figures of a summary."""
    summary["simserve"]["prediction_interval"] = prediction_interval(summary, facts.expectation, facts.waiting)


def measure(
    simulation: Simulation, *, slo: SLO | None, warmup: str | float, offered: Offered | None = None
) -> Measured:
    """Return latencies, stability, the measured window, and which requests met the objective.

    Args:
        slo: Objective, None if there is none.
        warmup: ``auto``, ``none`` or seconds.
        offered: How the traffic compares with what the deployment can finish, None if unknown.
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
    totals = _whole_run(records, measured.sojourns) | rates.by_name
    window, timeline, steps = measured.window, simulation.timeline, simulation.totals
    money = _money(simulation, facts, measured, rates, specs)
    objective = _slo(facts.slo, measured)
    block_bytes = facts.memory.kv_bytes_per_token * facts.memory.block_size * facts.gpus_per_replica
    own = _of_features(simulation, facts, measured, money.dollars, specs, block_bytes)
    fleet = _of_fleet(simulation, facts, measured)
    return {
        **totals,
        **latency_summary(measured.latencies, window.has_arrived, steps.itl),
        "simserve": {
            **_identity(facts, simulation),
            "load": _load(simulation),
            **further_latencies(records, measured.latencies, window.has_arrived),
            "stability": measured.verdict,
            "load_ratio": None if facts.offered is None else facts.offered.mean,
            "peak_load_ratio": None if facts.offered is None else facts.offered.peak,
            "finishable_throughput": facts.finishable,
            "settled": settled(measured, facts.offered),
            "bottleneck": _bottleneck(simulation, facts, measured),
            "utilization": _utilization(simulation, facts),
            "kv": kv_figures(
                simulation,
                facts.memory.num_kv_blocks,
                block_bytes,
                caches_prefixes=facts.engine_resolved.get("enable_prefix_caching") is not False,
            ),
            "window": {"start_s": window.start, "end_s": window.end, "requests": _count(window.has_arrived)},
            "slo": objective,
            "classes": own["classes"],
            "cost": {**money.dollars, "gpu_hour_usd": money.gpu_hour_usd, "gpu_hour_source": facts.gpu_hour_source},
            "energy": money.energy,
            "steps": {
                "count": steps.num_steps,
                "mean_batch": ratio(steps.sequence_steps, steps.num_steps),
                "seconds_by_part": dict(steps.seconds_by_part),
                "seconds_by_operator": steps.seconds_by_operator if facts.tells_operators else {},
            },
            **{name: own[name] for name in ("speculation", "reasoning", "images", "audio")},
            "confidence_intervals": None,
            "prediction_interval": None,
            **{name: fleet[name] for name in ("pools", "transfers", "regions")},
            "offload": own["offload"],
            "loras": own["loras"],
            "streaming": fleet["streaming"],
            "overflow": money.overflow,
            **{name: fleet[name] for name in ("response_cache", "asked_again", "fairness")},
            "users": users_figures(facts.users, measured.latencies, measured.window, records.request_class),
            "tasks": own["tasks"],
            "rounds": own["rounds"],
            "replicas": _replicas(simulation, facts.num_gpus),
            "requests": {**statuses(records), "resent": 0 if timeline is None else timeline.num_resent},
            "rejected": {"by_reason": reasons(records), "refusals": {} if timeline is None else timeline.refusals},
            "memory": _memory(facts.memory),
            "quality": list(facts.quality),
            "thresholds": _thresholds(simulation, facts, measured, objective["attainment"], totals | money.dollars),
        },
    }


def _memory(plan: MemoryPlan) -> dict[str, Any]:
    return {each.name: getattr(plan, each.name) for each in fields(plan) if each.name not in _NOT_TOLD}


def _thresholds(
    simulation: Simulation, facts: RunFacts, measured: Measured, attained: float, scalars: Mapping[str, float]
) -> list[dict[str, Any]]:
    """Return the results of the scenario's thresholds, if it has any."""
    if not facts.thresholds:
        return []
    figures = Figures(
        latencies=latency_values(measured), itl=simulation.totals.itl, slo_attainment=attained, scalars=scalars
    )
    return evaluate_thresholds(facts.thresholds, figures)


def _of_features(
    simulation: Simulation,
    facts: RunFacts,
    measured: Measured,
    dollars: Mapping[str, float],
    specs: RequestSpecs | None,
    block_bytes: float,
) -> dict[str, Any]:
    """Return the blocks of optional features, each filled where the run uses it."""
    records, totals, latencies, window = simulation.records, simulation.totals, measured.latencies, measured.window
    found = dict(features.WITHOUT)
    if records.request_class is not None:
        found["classes"] = features.class_figures(records, latencies, window, facts.slo)
    drafted = gateway.drafted(simulation) if simulation.pools else totals.speculation
    if facts.speculation is not None and drafted is not None:
        found["speculation"] = features.speculation_summary(facts.speculation, drafted, totals)
    if records.thinking_tokens is not None:
        usd, thought = dollars["usd_per_million_output_tokens"], records.thinking_tokens
        found["reasoning"] = features.reasoning_figures(records, thought, latencies, window.has_arrived, usd)
    if specs is not None and specs.images is not None:
        media = (specs, specs.images, latencies, window.has_arrived, "images")
        found["images"] = features.media_figures(simulation, *media)
    if specs is not None and specs.audio is not None:
        media = (specs, specs.audio, latencies, window.has_arrived, "recordings")
        found["audio"] = features.media_figures(simulation, *media)
    if totals.offload is not None:
        found["offload"] = features.offload_figures(totals.offload, block_bytes)
    if totals.loras is not None and facts.num_adapters is not None:
        found["loras"] = features.lora_figures(totals.loras, specs, facts.num_adapters, totals.busy_seconds)
    if records.task is not None:
        found["tasks"] = features.task_figures(records, window, facts.slo, dollars["usd_per_hour"])
    if facts.round_pause is not None and records.turn is not None:
        found["rounds"] = features.round_figures(records, records.turn, facts.round_pause, dollars["usd_per_hour"])
    return found


def _of_fleet(simulation: Simulation, facts: RunFacts, measured: Measured) -> dict[str, Any]:
    """Return the blocks of what is between clients and replicas, each filled where the run uses it."""
    found = dict(gateway.WITHOUT)
    if simulation.pools:
        prices = facts.pool_gpu_hour_usd
        found["pools"] = {
            name: {**figures, "memory": _memory(facts.pool_memory[name])}
            for name, figures in gateway.pool_figures(simulation, measured.window, measured.meets_slo, prices).items()
        }
    if simulation.transfers:
        found["transfers"] = {key: simulation.transfers.get(key) for key in gateway.TRANSFER_KEYS}
    if simulation.records.client_region is not None:
        asked = (measured.latencies, measured.window, measured.meets_slo)
        found["regions"] = gateway.region_figures(simulation, *asked)
    if simulation.stream is not None:
        found["streaming"] = gateway.stream_figures(simulation.stream)
    if simulation.front is not None:
        found |= gateway.gateway_figures(simulation.front, simulation.records)
    return found


def _replicas(simulation: Simulation, num_gpus: int) -> dict[str, Any]:
    """Return the figures of `simserve.metrics.gateway.replica_figures`, also for a fleet that never changes."""
    count, end = simulation.num_replicas, simulation.end_time
    if simulation.timeline is not None:
        return gateway.replica_figures(simulation)
    hours, timeline = num_gpus * end / SECONDS_PER_HOUR, [{"time_s": 0.0, "launched": count, "ready": count}]
    found = {"mean": float(count), "peak": count, "launched": count, "gpu_hours": hours, "timeline": timeline}
    return {**found, "killed": 0, "replaced": 0, "updates": []}


def statuses(records: RequestRecords) -> dict[str, int]:
    """Return how many requests were sent, how each ended, and how many were cut at the model's length limit."""
    sent = np.isfinite(records.arrival_time)
    counts = np.bincount(records.status[rows_where(sent)], minlength=len(STATUSES))
    by_status = {status: int(count) for status, count in zip(STATUSES, counts, strict=True)}
    truncated = int(np.count_nonzero(records.is_truncated & sent))
    return {"submitted": int(np.count_nonzero(sent)), **by_status, "truncated": truncated}


def reasons(records: RequestRecords) -> dict[str, int]:
    """Return how many requests were lost for each reason; those without a known reason count under their status."""
    lost = np.isfinite(records.arrival_time) & (records.status != COMPLETED) & (records.status != UNFINISHED)
    counts = np.bincount(records.reason[lost], minlength=len(REASONS))
    by_reason = {reason: int(count) for reason, count in zip(REASONS, counts, strict=True) if reason}
    unexplained = np.bincount(records.status[lost & (records.reason == 0)], minlength=len(STATUSES))
    return by_reason | {STATUSES[index]: int(unexplained[index]) for index in np.flatnonzero(unexplained)}


def settled(measured: Measured, offered: Offered | None) -> bool | None:
    """Return whether enough requests are measured for their latencies to be those of a steady state.

    They are if the window is much longer than the memory of the queue. That memory is about ``4 r / (1 - r)^2``
    requests at the load ratio r (the relaxation time of M/M/c in heavy traffic, ``1 / (c mu (1 - sqrt r)^2)``; Cohen,
    "The Single Server Queue", 1982, III.7.3), and at least the number in the system. None without a load ratio of a
    steady rate.
    """
    if offered is None or offered.peak is not None:
        return None
    in_system = float(np.mean(measured.sojourns.num_in_system_at_arrivals())) if len(measured.sojourns) else 0.0
    return bool(np.count_nonzero(measured.window.has_arrived) >= settling_requests(offered.mean, in_system))


def settling_requests(load_ratio: float, in_system: float) -> float:
    """Return how many measured requests make a run settled (see `settled`); inf at a load ratio of 1 or more."""
    if load_ratio >= 1:
        return math.inf
    return MEMORIES_PER_RUN * max(4 * load_ratio / (1 - load_ratio) ** 2, in_system)


def _load(simulation: Simulation) -> str:
    """Return ``open``, ``closed``, or ``mixed`` where there are both closed-loop clients and open arrivals."""
    if not simulation.is_open_loop:
        return "closed"
    return "mixed" if simulation.has_clients else "open"


@dataclass(frozen=True, slots=True)
class _Money:
    """What a run costs: dollars, energy, the share served by an API, and the mean price of a GPU-hour."""

    dollars: dict[str, float]
    energy: dict[str, float]
    overflow: dict[str, Any]
    gpu_hour_usd: float | None


def _money(
    simulation: Simulation, facts: RunFacts, measured: Measured, rates: Throughput, specs: RequestSpecs | None
) -> _Money:
    window, gpus, overflow = measured.window, float(facts.num_gpus), gateway.WITHOUT["overflow"]
    if simulation.timeline is not None:
        gpus = gateway.mean_gpus(simulation.timeline, window, facts.num_gpus)
    # From the busy share of the whole run, and a token at the rates of the window.
    totals, (encoders, num_encoders) = simulation.totals, (0.0, 0.0)
    if facts.encoder_power is not None and specs is not None and specs.encoder_pool is not None:
        num_encoders = features.mean_encoders(simulation, specs.encoder_pool, 0.0, simulation.end_time)
        # An encoder is limited by compute: its batches are as long as prompts.
        encoders = board_watts(*facts.encoder_power, features.encoder_utilization(simulation, specs), {"compute": 1.0})
    energy_figures = energy(
        num_encoders=num_encoders,
        watts_per_encoder=encoders,
        num_gpus=gpus,
        watts_per_gpu=board_watts(facts.idle_watts, facts.board_watts, simulation.busy_share, totals.seconds_by_part),
        grid=facts.grid,
        tokens_per_second=rates.tokens,
        output_tokens_per_second=rates.output_tokens,
    )
    if facts.overflow is not None:
        overflow = gateway.overflow_figures(simulation.records, window, facts.overflow, simulation.front, specs)
    gpu_hour_usd = facts.gpu_hour_usd
    if simulation.pools:
        gpu_hour_usd = gateway.mean_gpu_hour_usd(simulation, window, facts.pool_gpu_hour_usd, gpu_hour_usd)
    dollars = cost(
        num_gpus=gpus,
        gpu_hour_usd=gpu_hour_usd,
        throughput=rates,
        electricity_usd_per_hour=energy_figures["electricity_usd_per_hour"] if facts.pays_electricity else 0.0,
        api_usd_per_hour=overflow["usd_per_hour"] or 0.0,
        tiers_usd_per_hour=0.0 if facts.tier_prices is None else facts.tier_prices.usd_per_hour(gpus),
        encoders_usd_per_hour=_encoders_usd_per_hour(simulation, facts, window, specs),
    )
    return _Money(dollars, energy_figures, overflow, gpu_hour_usd)


def _encoders_usd_per_hour(
    simulation: Simulation, facts: RunFacts, window: Window, specs: RequestSpecs | None
) -> float:
    """Return the dollars an hour of the encoder GPUs that were present in the window, as in `RunFacts`."""
    if simulation.encoder_lives is None or specs is None or specs.encoder_pool is None:
        return facts.encoders_usd_per_hour
    pool = specs.encoder_pool
    mean = features.mean_encoders(simulation, pool, window.start, window.end)
    return facts.encoders_usd_per_hour / pool.num_workers * mean


def _identity(facts: RunFacts, simulation: Simulation) -> dict[str, Any]:
    offload = simulation.totals.offload
    return {
        "warnings": [*facts.warnings, *([] if offload is None else features.unused_tiers(offload))],
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
    """Return the four long-run rates of a run that keeps up with steady open arrivals; of any other, none."""
    records = simulation.records
    is_steady = simulation.is_stationary and not simulation.has_changing_fleet and records.turn is None
    if not is_steady or measured.verdict == "overloaded" or not np.ptp(records.arrival_time) > 0:
        return {}
    return steady_throughput(records, measured.window, measured.meets_slo).by_name


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
    found["explanation"] = " ".join([found["explanation"], *_sentences(simulation)])
    if facts.overflow is not None:
        share = gateway.overflow_share(records)
        found["explanation"] += f" {share:.0%} of the requests went to {facts.overflow.name}."
    if totals.offload is not None:
        features.name_offload(found, totals.offload, totals)
    if totals.loras is not None:
        features.name_loading(found, totals.loras, totals.busy_seconds)
    if simulation.stream is not None or simulation.api_token_seconds:
        gateway.name_api_server(found, simulation)
    if simulation.encoder_wait is not None:
        features.name_encoders(found, simulation.encoder_wait, measured.latencies)
    return found


def _sentences(simulation: Simulation) -> list[str]:
    """Return sentences on what limited a run besides its steps."""
    records, totals, found = simulation.records, simulation.totals, list[str]()
    if simulation.pools:
        found += gateway.pool_sentences(simulation)
    if records.client_region is not None:
        found += gateway.region_sentences(simulation)
    if totals.offload is not None:
        found += features.offload_sentences(totals.offload, totals.busy_seconds)
    if totals.loras is not None:
        found += features.lora_sentences(totals.loras, totals.busy_seconds)
    if simulation.timeline is not None:
        found += gateway.loss_sentences(simulation)
    if simulation.front is not None:
        found += gateway.gateway_sentences(simulation.front, records)
    return found


def _utilization(simulation: Simulation, facts: RunFacts) -> dict[str, float]:
    """Return ``busy``, the share of the run with a step running, and ``mfu mbu``, shares of the peaks while busy."""
    totals, pools = simulation.totals, simulation.pools
    flops, moved = facts.peak_flops * totals.busy_seconds, facts.peak_bandwidth * totals.busy_seconds
    if pools:
        flops = sum(pool.peak_flops * pool.totals.busy_seconds for pool in pools)
        moved = sum(pool.peak_bandwidth * pool.totals.busy_seconds for pool in pools)
    return {"busy": simulation.busy_share, "mfu": ratio(totals.flops, flops), "mbu": ratio(totals.bytes, moved)}


def _count(selected: NDArray[np.bool_]) -> int:
    return int(np.count_nonzero(selected))


def kv_figures(simulation: Simulation, num_blocks: int, block_bytes: float, *, caches_prefixes: bool) -> dict[str, Any]:
    """Return the use of the KV pools, averaged over time.

    ``usage_*``: share of the capacity that is reserved. ``internal_waste``: share of what is reserved that holds no
    token. ``external_waste``: share of the capacity that is free, but in pieces too small for the request that waits
    for it. ``prefix_hit_rate gpu_hit_rate offload_hit_rate``: share of prompt tokens found in the prefix cache, in all,
    on the GPU and in the tiers behind it, over the requests that were scheduled. ``tiers``: the figures of each tier,
    see `tier_figures`.

    Args:
        block_bytes: Bytes of one block, over all GPUs of a replica.
        caches_prefixes: Whether there is a prefix cache.
    """
    totals, records = simulation.totals, simulation.records
    capacity_seconds = totals.kv_capacity_tokens * simulation.end_time
    hits = _hit_rates(simulation, caches_prefixes=caches_prefixes)
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
        "tiers": [] if totals.offload is None else features.tier_figures(totals.offload, records, block_bytes),
    }


def _hit_rates(simulation: Simulation, *, caches_prefixes: bool) -> dict[str, float]:
    """Return ``prefix_hit_rate`` and its parts, ``gpu_hit_rate`` and ``offload_hit_rate``.

    Shares of the prompt tokens of the requests that were scheduled; the last is NaN without a second tier.
    """
    records, offload = simulation.records, simulation.totals.offload
    scheduled = on_replicas(records)
    cached, prompt = float(records.cached_tokens[scheduled].sum()), float(records.prompt_tokens[scheduled].sum())
    if not caches_prefixes or prompt <= 0:
        return dict.fromkeys(("prefix_hit_rate", "gpu_hit_rate", "offload_hit_rate"), math.nan)
    loaded = 0.0 if offload is None else min(float(offload.loaded_tokens), cached)
    return {
        "prefix_hit_rate": cached / prompt,
        "gpu_hit_rate": (cached - loaded) / prompt,
        "offload_hit_rate": math.nan if offload is None else loaded / prompt,
    }


def or_null(figure: float) -> float | None:
    """Return a figure for JSON: None where it is undefined or infinite."""
    return figure if math.isfinite(figure) else None


_PLAIN = frozenset({str, int, bool})  # Types that JSON takes as they are: most of a summary, and cheap to recognise.


def in_json(value: Any) -> Any:
    """Return a value for JSON: undefined and infinite numbers become None, numpy scalars plain numbers."""
    if value is None or type(value) in _PLAIN:
        return value
    if type(value) is float:
        return or_null(value)
    if type(value) is FrozenDict:
        return value  # plain already
    if type(value) is dict or isinstance(value, Mapping):
        return {str(key): in_json(each) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [in_json(each) for each in value]
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return or_null(float(value))
    return value


class FrozenDict(dict[str, Any]):
    """A dictionary that cannot be changed, so that a summary stays as the run returned it."""

    def _refuse(self, *_arguments: Any, **_keywords: Any) -> NoReturn:
        raise TypeError("a summary is read-only; copy it with copy.deepcopy or dict(...)")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenDict, (dict(self),)

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        return {key: _thaw(value) for key, value in self.items()}


_UNCHANGING = frozenset({str, int, float, bool})
"""Types of most of a summary; checked by type, since a check against an abstract class takes ten times as long."""


def frozen(summary: Mapping[str, Any]) -> FrozenDict:
    """Return a summary that cannot be changed at any level; lists become tuples."""
    return FrozenDict({key: _frozen(each) for key, each in summary.items()})


def _frozen(value: Any) -> Any:
    if value is None or type(value) in _UNCHANGING:
        return value
    if isinstance(value, FrozenDict):
        # A result made from another: everything in it is frozen already.
        return value
    if type(value) is dict or isinstance(value, Mapping):
        return frozen(value)
    if isinstance(value, list | tuple):
        return tuple(_frozen(each) for each in value)
    return value


def _thaw(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _thaw(each) for key, each in value.items()}
    return [_thaw(each) for each in value] if isinstance(value, tuple) else value
