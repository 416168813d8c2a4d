"""Worked examples, batching: static and continuous batches of given lengths, in steps of constant length."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simserve import rng
from simserve.sim.simulate import Replay, replay
from tests.builders import affine_step_times, constant_step_times, make_config, make_specs

STEP_SECONDS = 0.01
AMPLE = {"max_model_len": 4096, "num_blocks": 2**20, "block_size": 16, "max_num_batched_tokens": 64}


def served(outputs: list[int], batch: int, batching: str, **overrides: Any) -> Replay:
    """Return the run of prompts of one token, all there at once, in steps of 10 ms.

    Args:
        outputs: Output tokens of each request.
        batch: Seats, and the size of a static batch.
        batching: ``static`` or ``continuous``.
        **overrides: Of the replica.
    """
    values = AMPLE | {"batching": batching, "max_num_seqs": batch, "static_batch_size": batch} | overrides
    specs = make_specs([0.0] * len(outputs), 1, outputs)
    return replay(make_config(**values), constant_step_times(STEP_SECONDS, batch), specs)


def tokens_per_second(run: Replay) -> float:
    """Return output tokens over the time to the last answer."""
    return float(run.records.output_tokens.sum() / run.records.finish_time.max())


def sequences_per_step(run: Replay) -> float:
    """Return finished requests over steps."""
    return len(run.records) / run.totals.num_steps


def test_a_static_batch_takes_as_long_as_its_longest() -> None:
    """Lengths 10, 50, 200, 500: 500 steps, 0.008 sequences a step, and everyone is answered at the end."""
    run = served([10, 50, 200, 500], 4, "static")

    assert run.totals.num_steps == 500
    assert sequences_per_step(run) == pytest.approx(0.008)
    assert run.records.finish_time.tolist() == pytest.approx([5.0] * 4)


def test_static_against_a_full_queue() -> None:
    """7 x 50 and 1 x 500 tokens, 10 ms a step: 850 tokens in 5 s = 170 tok/s; continuous 800 tok/s, 4.7x."""
    batches = [50] * 7 + [500]

    static = served(batches * 400, 8, "static")
    continuous = served(batches * 400, 8, "continuous")

    assert tokens_per_second(static) == pytest.approx(170.0)
    assert tokens_per_second(continuous) == pytest.approx(800.0, rel=0.01)
    assert tokens_per_second(continuous) / tokens_per_second(static) == pytest.approx(4.7, abs=0.05)


def test_slot_steps_that_padding_wastes() -> None:
    """7 x 20 and 1 x 500: of 8 x 500 slot-steps 3,360 make no token."""
    run = served([20] * 7 + [500], 8, "static")

    assert run.totals.sequence_steps - run.records.output_tokens.sum() == 3360


@pytest.mark.parametrize("scheduler", ["mixed", "prefill_first"])
def test_equal_lengths_agree(scheduler: str) -> None:
    """Equal lengths, prefill as long as any step: static and continuous answer every request at the same time."""
    static = served([200] * 64, 8, "static", scheduler=scheduler)
    continuous = served([200] * 64, 8, "continuous", scheduler=scheduler)

    np.testing.assert_allclose(continuous.records.finish_time, static.records.finish_time, rtol=1e-12)
    assert continuous.totals.num_steps == static.totals.num_steps


def test_equal_lengths_agree_with_prefill_that_costs() -> None:
    """Real prompts and contexts, equal lengths: every answer at the same time all the same."""
    times = affine_step_times(
        max_num_seqs=8,
        step_seconds=0.02,
        decode_context_seconds=1e-7,
        token_seconds=1e-4,
        num_table_tokens=1024,
    )
    specs = make_specs([0.0] * 64, 100, 200)
    values = AMPLE | {"max_num_batched_tokens": 1024, "max_num_seqs": 8, "static_batch_size": 8}

    static, continuous = (
        replay(make_config(**values, batching=batching), times, specs) for batching in ("static", "continuous")
    )

    np.testing.assert_allclose(continuous.records.finish_time, static.records.finish_time, rtol=1e-9)


def test_high_variance_gains_threefold() -> None:
    """Lognormal answers, mean 250, cv 1.5, 32 seats, prefill at its cost: continuous makes over 3x the tokens."""
    outputs = np.clip(rng.stream(1, "outputs").lognormal(4.93, 1.086, 1_600), 1, 3_000).astype(np.int64)
    times = affine_step_times(
        max_num_seqs=32,
        step_seconds=0.02,
        decode_context_seconds=1e-7,
        token_seconds=1e-4,
        num_table_tokens=4096,
    )
    specs = make_specs([0.0] * len(outputs), 128, outputs)
    values = AMPLE | {"max_num_batched_tokens": 4096, "max_num_seqs": 32, "static_batch_size": 32}

    static, continuous = (
        replay(make_config(**values, batching=batching), times, specs) for batching in ("static", "continuous")
    )

    assert tokens_per_second(continuous) >= 3 * tokens_per_second(static)


def test_mean_200_longest_800() -> None:
    """A static batch of 8, mean 200, longest 800 steps: 0.01 sequences a step; continuous 0.04."""
    batches = [100] * 6 + [200] + [800]

    static = served(batches * 400, 8, "static")
    continuous = served(batches * 400, 8, "continuous")

    assert sequences_per_step(static) == pytest.approx(0.01)
    assert sequences_per_step(continuous) == pytest.approx(0.04, rel=0.01)


def answered_in_batches(rate: float, batch: int, max_wait: float) -> tuple[float, float]:
    """Return answers a second and the longest latency of 3,200 arrivals at even gaps, 50 ms a batch."""
    arrivals = np.arange(3_200) / rate
    config = make_config(
        **AMPLE, batching="static", max_num_seqs=batch, static_batch_size=batch, static_max_wait=max_wait
    )
    records = replay(config, constant_step_times(0.05, batch), make_specs(arrivals.tolist(), 1, 1)).records
    latency = records.finish_time - records.arrival_time
    return len(records) / float(records.finish_time.max()), float(latency.max())


def test_one_request_at_a_time() -> None:
    """50 ms each, whatever arrives: 20 requests/s."""
    throughput, _ = answered_in_batches(rate=320.0, batch=1, max_wait=0.0)

    assert throughput == pytest.approx(20.0)


def test_a_batch_of_32_every_100_ms() -> None:
    """Collecting for 100 ms, then 50 ms of work: 320 requests/s with at most 150 ms."""
    throughput, longest = answered_in_batches(rate=320.0, batch=32, max_wait=0.1)

    assert throughput == pytest.approx(320.0, rel=0.01)
    assert longest <= 0.15


def test_a_batch_of_32_as_soon_as_the_last_is_done() -> None:
    """Free again after 50 ms, it takes 640 requests/s."""
    throughput, longest = answered_in_batches(rate=640.0, batch=32, max_wait=0.1)

    assert throughput == pytest.approx(640.0, rel=0.02)
    assert longest <= 0.15


def test_throughput_rises_flattens_and_falls() -> None:
    """KV memory short by choice: more seats help until requests evict each other (published 10, 80, 60 tok/s)."""
    generator = rng.stream(1, "lengths")
    prompts, outputs = generator.integers(64, 257, 600), generator.integers(100, 700, 600)
    specs = make_specs([0.0] * 600, prompts, outputs)
    throughput, preemptions = {}, {}
    for num_seats in (1, 4, 8, 16, 20, 32, 64):
        times = affine_step_times(max_num_seqs=num_seats, step_seconds=0.02, token_seconds=3e-4, num_table_tokens=2048)
        config = make_config(
            max_num_seqs=num_seats,
            max_num_batched_tokens=2048,
            max_model_len=1024,
            block_size=16,
            num_blocks=500,
        )
        run = replay(config, times, specs)
        throughput[num_seats] = tokens_per_second(run)
        preemptions[num_seats] = int(run.records.num_preemptions.sum())

    assert throughput[4] > 3.5 * throughput[1]
    assert throughput[8] > 1.8 * throughput[4]
    assert throughput[16] < throughput[20] < 1.15 * throughput[16]
    assert throughput[32] < 0.95 * throughput[20]
    assert throughput[64] <= 1.01 * throughput[32]
    assert preemptions[8] == 0
    assert preemptions[16] < preemptions[20] < preemptions[32]
