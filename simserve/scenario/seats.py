"""Throughput against ``max_num_seqs`` where KV memory runs short: up to which batch does a larger one pay?

A handful of short runs of the same traffic on the same KV memory, all queued at once, with fewer and more seats.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from simserve.metrics.kv_room import requests_in_kv
from simserve.perf.pricing import price
from simserve.scenario.resolve import ResolvedScenario
from simserve.sim.records import COMPLETED
from simserve.sim.simulate import Deployment, Simulation, simulate
from simserve.workload.requests import RequestSpecs

MOST_REQUESTS = 1000
"""Requests of one short run: several times the seats in question, so that filling and draining weigh little."""
STEPS = (0.25, 0.5, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5, 2.0)
"""Seats that are tried, as multiples of the requests that KV memory holds at once."""
LEAST_PREEMPTIONS = 0.01
"""Preemptions a completed request from which the question arises."""


def seats_curve(resolved: ResolvedScenario, simulation: Simulation, specs: RequestSpecs) -> dict[str, Any] | None:
    """Return output tokens/s by ``max_num_seqs`` on one replica with a full queue; None where nobody was preempted.

    Args:
        resolved: The deployment.
        simulation: Its run.
        specs: The traffic of that run; its first thousand requests are used.

    Returns:
        ``max_num_seqs`` and ``output_throughput`` (tokens/s), lists of one length, ``requests`` of each run, and
        ``best_max_num_seqs``.
    """
    room = requests_in_kv(simulation)
    completed = int((simulation.records.status == COMPLETED).sum())
    preemptions = int(simulation.records.num_preemptions.sum())
    if simulation.was_interrupted or room is None or preemptions < max(1.0, LEAST_PREEMPTIONS * completed):
        return None
    budget = resolved.engine.max_num_batched_tokens
    asked = {resolved.engine.max_num_seqs, *(max(1, round(room * step)) for step in STEPS)}
    seats = sorted(each for each in asked if each * resolved.shape.tokens_per_decode <= budget)
    queued = _all_at_once(specs)
    rates = [_throughput(resolved, each, queued) for each in seats]
    return {
        "max_num_seqs": seats,
        "output_throughput": rates,
        "requests": len(queued),
        "best_max_num_seqs": seats[int(np.argmax(rates))],
    }


def limit_gains(resolved: ResolvedScenario, specs: RequestSpecs) -> dict[str, float]:
    """Return by which factor throughput would grow with twice the seats, and with twice the token budget.

    From the step times alone: full decode steps of n and of 2 n sequences at the traffic's mean context, full prefill
    steps of the budget and of twice the budget. KV memory is another limit and not looked at.
    """
    shape, config = resolved.shape, resolved.engine
    if config.kv_allocation == "none" or config.batching == "static":
        return {}
    seats, budget = config.max_num_seqs, config.max_num_batched_tokens * config.pipeline_parallel_size
    tokens = 2 * seats * shape.tokens_per_decode
    wider = {"max_num_seqs": 2 * seats, "max_num_batched_tokens": max(budget, tokens)}
    engine = shape.engine.model_copy(update=wider)
    times = price(replace(shape, engine=engine), max_tokens_in_table=2 * budget).step_times
    context = float(specs.prompt_tokens.mean() + specs.output_tokens.mean() / 2)

    def decode_seconds(sequences: int) -> float:
        return times.decode_base[sequences] + times.decode_slope[sequences] * sequences * context

    return {
        "seats": 2 * decode_seconds(seats) / decode_seconds(2 * seats),
        "budget": 2 * times.token_seconds[budget] / times.token_seconds[2 * budget],
    }


def _all_at_once(specs: RequestSpecs) -> RequestSpecs:
    first = specs.first(MOST_REQUESTS)
    return replace(
        first,
        arrival_time=np.zeros(len(first)),
        think_time=np.empty(0),
        concurrency=None,
        is_stationary=False,
        offered_rate=float("nan"),
        session=None,
        turn=None,
    )


def _throughput(resolved: ResolvedScenario, seats: int, specs: RequestSpecs) -> float:
    shape = replace(resolved.shape, engine=resolved.shape.engine.model_copy(update={"max_num_seqs": seats}))
    deployment = Deployment(
        num_replicas=1,
        engine=replace(resolved.engine, max_num_seqs=seats),
        priced=price(shape),
        routing="round_robin",
    )
    simulation = simulate(deployment, specs)
    if simulation.was_interrupted:
        raise KeyboardInterrupt
    return float(simulation.records.output_tokens.sum()) / simulation.end_time
