"""Throughput against ``max_num_seqs`` when KV memory runs short: up to which batch size does a larger one help?

A few short runs of the same traffic on the same KV memory, all queued at once, with fewer and more seats.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from simserve.metrics.throughput import LimitGain, requests_in_kv
from simserve.perf.tables import price
from simserve.scenario.resolve import ResolvedScenario
from simserve.sim.records import COMPLETED
from simserve.sim.simulate import Deployment, Simulation, simulate
from simserve.workload.requests import RequestSpecs

MOST_REQUESTS = 1000
"""Requests of one short run: several times the seats examined, so that filling and draining matter little."""
STEPS = (0.25, 0.5, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5, 2.0)
"""Numbers of seats to try, as multiples of the requests that KV memory holds at once."""
LEAST_PREEMPTIONS = 0.01  # Preemptions per completed request from which the curve is computed.
_LARGER = (2, 4, 8)  # Factors on the number of seats that are examined.


def seats_curve(resolved: ResolvedScenario, simulation: Simulation, specs: RequestSpecs) -> dict[str, Any] | None:
    """Return output tokens/s by ``max_num_seqs`` on one replica with a full queue; None if none was preempted.

    Args:
        specs: The traffic of that run; its first thousand requests are used.

    Returns:
        ``max_num_seqs`` and ``output_throughput`` (tokens/s), lists of equal length, ``requests`` of each run, and
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


def limit_gains(resolved: ResolvedScenario, specs: RequestSpecs) -> dict[str, LimitGain]:
    """Return the factors by which throughput would grow with more seats, and with a larger token budget.

    From the step times alone, for the traffic's mean request on a replica whose queue is never empty: its share of full
    decode steps at its mean context, plus its prompt's share of full prefill steps. The number of concurrent requests
    is limited to those that fit in KV memory.
    """
    shape, config = resolved.shape, resolved.engine
    if config.kv_allocation == "none" or config.batching == "static":
        return {}
    seats, budget = config.max_num_seqs, config.max_num_batched_tokens * config.pipeline_parallel_size
    most = _LARGER[-1]
    tokens = most * seats * shape.tokens_per_decode
    wider = {"max_num_seqs": most * seats, "max_num_batched_tokens": max(budget, tokens)}
    engine = shape.engine.model_copy(update=wider)
    times = price(replace(shape, engine=engine), max_tokens_in_table=2 * budget).step_times
    prompt, output = float(specs.prompt_tokens.mean()), float(specs.output_tokens.mean())
    context = prompt + output / 2
    room = max(int(resolved.memory.num_kv_blocks * resolved.memory.block_size / context), 1)

    def seconds(sequences: int, in_a_step: int) -> float:
        sequences = min(sequences, max(room, seats))
        alike = sequences * (shape.pipeline_parallel_size if shape.samples_in_turn else 1)
        decode = times.decode_base[alike] + times.decode_slope[alike] * alike * context
        return float(output * decode / sequences + prompt * times.token_seconds[in_a_step] / in_a_step)

    own = seconds(seats, budget)
    by_seats = [own / seconds(factor * seats, budget) for factor in _LARGER]
    by_budget = own / seconds(seats, 2 * budget)  # Whole prompts make a step as long as they are: more gains nothing.
    return {
        "seats": LimitGain(twice=by_seats[0], most=max(by_seats)),
        "budget": LimitGain(twice=by_budget, most=by_budget),
    }


def _all_at_once(specs: RequestSpecs) -> RequestSpecs:
    first = specs.first(MOST_REQUESTS)
    return replace(
        first,
        arrival_time=np.zeros(len(first)),
        think_time=np.empty(0),
        concurrency=None,
        own_wait=None,
        encoder_pool=None,
        is_stationary=False,
        offered_rate=float("nan"),
        session=None,
        turn=None,
    )


def _throughput(resolved: ResolvedScenario, seats: int, specs: RequestSpecs) -> float:
    shape = replace(resolved.shape, engine=resolved.shape.engine.model_copy(update={"max_num_seqs": seats}))
    deployment = Deployment(
        num_replicas=1, engine=replace(resolved.engine, max_num_seqs=seats), priced=price(shape), routing="round_robin"
    )
    simulation = simulate(deployment, specs)
    if simulation.was_interrupted:
        raise KeyboardInterrupt
    return float(simulation.records.output_tokens.sum()) / simulation.end_time
