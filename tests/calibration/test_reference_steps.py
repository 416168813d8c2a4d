"""Tables of seconds come back from served steps, and predict loads that no step of them was of."""

from __future__ import annotations

import numpy as np
import pytest

from calibration.reference_server.proof import Load, Server, Traffic, engine_config, simulate_load
from calibration.reference_server.scheduler import Limits, Request, Scheduler
from calibration.reference_server.serving import (
    ProcessorClock,
    ScheduledClients,
    StepRecord,
    VirtualClock,
    serve,
)
from calibration.reference_server.steps import durations, fit_steps
from tests.builders import affine_step_times
from tests.calibration.test_reference_scheduler import seconds_of

LIMITS = Limits(max_num_seqs=8, max_num_batched_tokens=64, block_size=4, num_blocks=200)
TRUTH = affine_step_times(
    max_num_seqs=8,
    step_seconds=2e-3,
    decode_sequence_seconds=3e-4,
    decode_context_seconds=2e-6,
    token_seconds=5e-5,
    decode_attention_seconds=2e-4,
    prefill_request_seconds=1e-4,
    prefill_pair_seconds=1e-7,
)
TRAFFIC = Traffic(prompts=(4, 90), outputs=(2, 20), num_requests=40, vocab_size=16)


def served(requests: list[Request], arrivals: list[float], noise: float = 0.0, seed: int = 0) -> list[StepRecord]:
    """Serve requests on a virtual clock whose steps take what `TRUTH` says, with noise."""
    chance, exact = np.random.default_rng(seed), seconds_of(TRUTH)
    clock = VirtualClock(lambda step: exact(step) * float(np.exp(noise * chance.standard_normal())))
    return serve(Scheduler(LIMITS), ScheduledClients(requests, arrivals), clock)


def measured_batches(noise: float) -> list[list[StepRecord]]:
    """Return the steps of batches of every size that are there at once."""
    batches = []
    for number, (size, prompt) in enumerate([(size, prompt) for size in (1, 2, 4, 8) for prompt in (4, 40, 90)]):
        batches.append(served(TRAFFIC.fixed(size, prompt, 12, seed=number), [0.0] * size, noise, number))
    return [*batches, *(served(TRAFFIC.requests(seed), [0.0] * 40, noise, seed) for seed in range(3))]


def test_tables_come_back_from_noisy_steps() -> None:
    """5 % of noise a step: the fitted tables predict a Poisson load within 2 %, and state the noise as their error."""
    fit = fit_steps(measured_batches(0.05), LIMITS)
    requests = TRAFFIC.requests(99)
    arrivals = np.cumsum(np.random.default_rng(5).exponential(0.05, len(requests))).tolist()
    served(requests, arrivals)
    load = Load(name="poisson", rate=20.0)

    simulated, exact = (simulate_load(LIMITS, times, load, requests) for times in (fit.times, TRUTH))

    for figure in ("mean_ttft", "median_ttft", "mean_tpot", "median_tpot", "output_throughput"):
        assert simulated[figure] == pytest.approx(exact[figure], rel=0.02)
    assert 0.02 < fit.median_error < 0.05
    assert 0.02 < fit.held_out_error < 0.05


def test_a_step_disturbed_by_something_else_does_not_count() -> None:
    """A few steps ten times as long are found and left out."""
    batches = measured_batches(0.02)
    disturbed = [[*batch] for batch in batches]
    for batch in disturbed[:6]:
        first = batch[0]
        batch[0] = StepRecord(first.start - 9 * first.seconds, 10 * first.seconds, first.decodes, first.chunks, 0)

    fit, clean = fit_steps(disturbed, LIMITS), fit_steps(batches, LIMITS)

    assert fit.num_dropped >= clean.num_dropped + 5
    assert fit.times.decode_base[4] == pytest.approx(clean.times.decode_base[4], rel=0.02)


def test_waiting_for_a_request_is_no_part_of_a_step() -> None:
    """The pause to the next step counts while the server is busy, not while it is idle."""
    records = [StepRecord(start, 0.01, ((0, 1),), (), 0) for start in (0.0, 0.0103, 0.5)]

    assert durations(records).tolist() == pytest.approx([0.0103, 0.01, 0.01])


def test_the_simulator_gets_the_same_limits() -> None:
    """Chunking, seats, budget and blocks."""
    config = engine_config(Limits(**{**_fields(), "enable_chunked_prefill": False}))

    assert (config.max_num_seqs, config.max_num_batched_tokens, config.num_blocks) == (8, 64, 200)
    assert not config.enable_chunked_prefill


def _fields() -> dict[str, int]:
    return {"max_num_seqs": 8, "max_num_batched_tokens": 64, "block_size": 4, "num_blocks": 200}


def test_the_processor_clock_jumps_over_idle_time() -> None:
    """It moves on its own while something is computed, and ahead where nothing is."""
    clock = ProcessorClock()
    before = clock.now()
    clock.pass_until(before + 100.0)

    assert clock.now() >= before + 100.0
    assert clock.now() < before + 101.0


def test_a_server_on_the_wall_has_the_wall_s_clock() -> None:
    """And one on the processor's has that."""
    server = Server(LIMITS, lambda step: None, is_wall_clock=False)

    assert isinstance(server.clock(), ProcessorClock)
    assert not isinstance(Server(LIMITS, lambda step: None).clock(), ProcessorClock)
