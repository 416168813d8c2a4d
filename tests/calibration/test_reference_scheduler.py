"""On a virtual clock the reference server and the simulator schedule the same batches in the same order.

The reference scheduler walks step by step over real block tables; the simulator's kernel leaps over counts. They
share no code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from calibration.reference_server.scheduler import Limits, Request, Scheduler, Step
from calibration.reference_server.serving import ScheduledClients, StepRecord, VirtualClock, serve
from simserve.engine.config import EngineConfig
from simserve.engine.kernel import complete, plan, submit
from simserve.engine.state import MASK, Replica, RequestTable, StepTimes
from simserve.reference.steps import mixed_seconds
from simserve.sim.simulate import replay
from simserve.workload.requests import RequestSpecs
from tests.builders import affine_step_times, make_closed_loop, make_config, make_specs

NUM_WORKLOADS = 48

Batch = tuple[tuple[int, ...], tuple[tuple[int, int], ...]]
"""Indices of the decoding requests, ascending, and index and tokens of each chunk, in order."""


@dataclass(frozen=True)
class Workload:
    """A replica, the seconds of its steps, and what arrives."""

    config: EngineConfig
    times: StepTimes
    specs: RequestSpecs


def workload(seed: int) -> Workload:
    """Draw one: short of blocks, of seats or of budget, chunked or not, bursts and gaps."""
    chance = np.random.default_rng(seed)
    block_size = int(chance.choice([1, 4, 16]))
    is_chunked = bool(chance.random() < 0.7)
    budget = int(chance.choice([8, 24, 64])) if is_chunked else 64
    count = int(chance.integers(5, 40))
    prompts = chance.integers(1, 41, count)
    outputs = chance.integers(1, 24, count)
    fewest = -(-int((prompts + outputs).max()) // block_size)
    config = make_config(
        max_num_seqs=int(min(chance.integers(1, 12), budget)),
        max_num_batched_tokens=budget,
        max_model_len=64,
        block_size=block_size,
        num_blocks=fewest + int(chance.choice([0, 2, 200 // block_size])),
        enable_chunked_prefill=is_chunked,
        reserve_full_prompt=bool(chance.random() < 0.3),
    )
    times = affine_step_times(
        max_num_seqs=12,
        step_seconds=0.1 * 2.0**0.5,
        decode_sequence_seconds=0.01 * 3.0**0.5,
        decode_context_seconds=0.001 * 5.0**0.5,
        token_seconds=0.004 * 7.0**0.5,
        sequence_seconds=0.003 * 11.0**0.5,
        decode_attention_seconds=0.002 * 13.0**0.5,
        prefill_request_seconds=0.002 * 17.0**0.5,
        prefill_pair_seconds=0.0001 * 19.0**0.5,
        prefill_context_seconds=0.0002 * 23.0**0.5,
    )
    gaps = chance.exponential(float(chance.choice([0.05, 0.4, 2.0])), count)
    return Workload(config, times, make_specs(np.cumsum(gaps).tolist(), prompts.tolist(), outputs.tolist()))


def limits_of(config: EngineConfig) -> Limits:
    """Return the same limits for the reference scheduler."""
    return Limits(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        block_size=config.block_size,
        num_blocks=config.num_blocks,
        enable_chunked_prefill=config.enable_chunked_prefill,
        reserve_full_prompt=config.reserve_full_prompt,
    )


def requests_of(specs: RequestSpecs) -> list[Request]:
    """Return the requests of a workload."""
    lengths = zip(specs.prompt_tokens.tolist(), specs.output_tokens.tolist(), strict=True)
    return [Request(index, prompt, output) for index, (prompt, output) in enumerate(lengths)]


def seconds_of(times: StepTimes) -> Callable[[Step], float]:
    """Return the seconds of a step, written out from the documentation of the tables."""

    def seconds(step: Step) -> float:
        # The step has been booked when its time passes: what it computed is in the counts already.
        contexts = [float(request.num_computed_tokens - 1) for request in step.decodes]
        chunks = [(request.num_computed_tokens - tokens, tokens) for request, tokens in step.chunks]
        return mixed_seconds(times, contexts, chunks, 1)

    return seconds


def reference(case: Workload, frontend_latency: float = 0.0) -> tuple[list[StepRecord], list[Request]]:
    """Serve a workload on a virtual clock."""
    requests = requests_of(case.specs)
    scheduler = Scheduler(limits_of(case.config))
    arrivals = None if case.specs.concurrency is not None else case.specs.arrival_time.tolist()
    clients = ScheduledClients(requests, arrivals, case.specs.concurrency or 0, frontend_latency)
    records = serve(scheduler, clients, VirtualClock(seconds_of(case.times)))
    assert len(scheduler.free_blocks) == case.config.num_blocks
    assert sorted(scheduler.free_blocks) == list(range(case.config.num_blocks))
    return records, requests


def batches(records: list[StepRecord]) -> list[Batch]:
    """Return what the steps held."""
    return [
        (
            tuple(sorted(index for index, _ in record.decodes)),
            tuple((index, tokens) for index, _, tokens in record.chunks),
        )
        for record in records
    ]


def simulated_batches(case: Workload) -> list[Batch]:
    """Drive the simulator's kernel and spread its leaps out into steps."""
    specs = case.specs
    table = RequestTable(specs.prompt_tokens, specs.output_tokens, specs.max_tokens, case.config)
    replica = Replica(0, case.config, case.times.as_lists())
    coming, found = list(enumerate(specs.arrival_time.tolist())), []
    while coming or replica.end_time < float("inf"):
        if coming and coming[0][1] < replica.end_time:
            index, moment = coming.pop(0)
            submit(replica, table, index, moment)
            continue
        if replica.num_steps:
            decoding = tuple(sorted(entry & MASK for entry in replica.finish_heap))
            chunks = tuple(zip(replica.chunk_requests, replica.chunk_tokens, strict=True))
            found += [(decoding if replica.num_scheduled_decodes else (), chunks)] * replica.num_steps
        complete(replica, table)
        plan(replica, table)
    return found


@pytest.mark.parametrize("seed", range(NUM_WORKLOADS))
def test_both_schedule_the_same_batches_in_the_same_order(seed: int) -> None:
    """Step for step: who decodes, who prefills how many tokens, in which order."""
    case = workload(seed)

    records, _ = reference(case)

    assert batches(records) == simulated_batches(case)


@pytest.mark.parametrize("seed", range(NUM_WORKLOADS))
def test_both_give_the_same_times(seed: int) -> None:
    """First and last token of every request, and its preemptions, within rounding."""
    case = workload(seed)

    _, requests = reference(case)
    simulated = replay(case.config, case.times, case.specs).records

    assert [each.token_times[0] for each in requests] == pytest.approx(simulated.first_token_time.tolist(), rel=1e-9)
    assert [each.token_times[-1] for each in requests] == pytest.approx(simulated.finish_time.tolist(), rel=1e-9)
    assert [each.num_preemptions for each in requests] == simulated.num_preemptions.tolist()


def test_the_workloads_come_across_everything() -> None:
    """Preemption, split prompts, steps that decode and prefill, full seats: the comparison has seen them all."""
    records = [record for seed in range(NUM_WORKLOADS) for record in reference(workload(seed))[0]]

    assert sum(record.num_preempted > 0 for record in records) > 50
    assert sum(any(done for _, done, _ in record.chunks) for record in records) > 50
    assert sum(bool(record.decodes and record.chunks) for record in records) > 200
    assert sum(len(record.chunks) > 1 for record in records) > 50


@pytest.mark.parametrize("concurrency", [1, 3, 7])
def test_a_closed_loop_gives_the_same_times(concurrency: int) -> None:
    """A client sends again when it is answered, and reaches the scheduler the frontend's latency later."""
    case = workload(4)
    count = len(case.specs)
    specs = make_closed_loop(concurrency, case.specs.prompt_tokens.tolist(), case.specs.output_tokens.tolist())
    latency = 0.003 * 29.0**0.5
    config = make_config(
        max_num_seqs=4, max_num_batched_tokens=24, max_model_len=64, num_blocks=64, frontend_latency=latency
    )

    _, requests = reference(Workload(config, case.times, specs), latency)
    simulated = replay(config, case.times, specs).records

    assert [each.sent for each in requests] == pytest.approx(simulated.arrival_time.tolist(), abs=1e-9)
    assert [each.token_times[0] for each in requests] == pytest.approx(simulated.first_token_time.tolist(), rel=1e-9)
    assert len(requests) == count


def test_what_can_never_be_served_is_refused() -> None:
    """A request beyond the cache, and an unsplit prompt beyond the budget."""
    limits = Limits(max_num_seqs=2, max_num_batched_tokens=8, block_size=4, num_blocks=4, enable_chunked_prefill=False)

    with pytest.raises(ValueError, match="does not fit in the KV cache"):
        Scheduler(limits).add(Request(0, 8, 10))
    with pytest.raises(ValueError, match="may not be split"):
        Scheduler(limits).add(Request(0, 5, 5))
