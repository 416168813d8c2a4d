"""What a run adds up to: by hand on tiny runs, and totals that must agree with each other on longer ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simserve.sim.recorder import RunTotals
from simserve.sim.simulate import replay, simulate
from tests.builders import affine_step_times, constant_step_times, make_closed_loop, make_config, make_specs
from tests.theory.builders import make_deployment

# Binary fractions, so that sums by hand are exact.
TIMES = affine_step_times(
    step_seconds=1.0,
    decode_sequence_seconds=1 / 4,
    decode_context_seconds=1 / 64,
    token_seconds=1 / 8,
    sequence_seconds=1 / 16,
    decode_attention_seconds=1 / 32,
    prefill_request_seconds=1 / 4,
    prefill_pair_seconds=1 / 128,
    prefill_context_seconds=1 / 256,
    num_table_tokens=12,
)
ARRIVALS = [0.0, 0.0, 0.5, 4.0, 7.5, 7.5, 30.0, 31.0, 60.0, 60.1]
PROMPTS, OUTPUTS = [5, 20, 3, 9, 1, 30, 4, 7, 12, 2], [9, 2, 14, 1, 20, 6, 3, 11, 5, 8]
REPLICAS = {
    "mixed": {},
    "chunks": {"max_chunk_tokens": 4, "max_num_batched_tokens": 8},
    "preempting": {"num_blocks": 10, "max_model_len": 40},
    "prefill first": {"scheduler": "prefill_first", "num_blocks": 10, "max_model_len": 40},
    "estimate": {"admission": "estimate", "num_blocks": 16},
    "reserve": {"admission": "reserve"},
    "slots": {"kv_allocation": "static"},
    "pow2": {"kv_allocation": "pow2"},
    "oracle": {"kv_allocation": "oracle"},
    "no cache": {"kv_allocation": "none"},
    "static batches": {"batching": "static", "static_batch_size": 3, "static_max_wait": 2.0},
    "static batches, no cache": {"batching": "static", "static_batch_size": 3, "kv_allocation": "none"},
    "two stages": {"pipeline_parallel_size": 2},
}
any_replica = pytest.mark.parametrize("overrides", REPLICAS.values(), ids=REPLICAS.keys())


def totals_of(overrides: dict[str, Any], num_replicas: int = 2, **work: Any) -> RunTotals:
    """Return the totals of ten requests on replicas with every kind of step time."""
    deployment = make_deployment(make_config(**overrides), TIMES, num_replicas, **work)
    return simulate(deployment, make_specs(ARRIVALS, PROMPTS, OUTPUTS)).totals


def alone(prompt: int, output: int, **overrides: Any) -> RunTotals:
    """Return the totals of one request; every step takes a second."""
    return replay(make_config(**overrides), constant_step_times(1.0), make_specs([0.0], prompt, output)).totals


@any_replica
def test_parts_sum_to_the_busy_time(overrides: dict[str, Any]) -> None:
    """Every second of every step belongs to a part; none to drafts, where there are none."""
    totals = totals_of(overrides)

    assert sum(totals.seconds_by_part.values()) == pytest.approx(totals.busy_seconds, rel=1e-12)
    assert totals.seconds_by_part["draft"] == 0
    assert min(seconds for part, seconds in totals.seconds_by_part.items() if part != "draft") > 0


def test_parts_by_hand() -> None:
    """A prompt of 4 and 3 tokens: a prefill step of 4 tokens, then decodes over 4 and 5 tokens of context.

    The tables' 1.5 + 0.0625 and twice 1.25 are split 0.4 : 0.3 : 0.2 : 0.1 by the builder. Ten pairs and the
    request are compute; four keys read and nine of context are KV.
    """
    deployment = make_deployment(make_config(), TIMES, 1)

    totals = simulate(deployment, make_specs([0.0], 4, 3)).totals

    assert totals.seconds_by_part == pytest.approx(
        {
            "weights": 0.4 * 4.0625,
            "kv": 4 / 256 + 9 / 64,
            "compute": 0.3 * 4.0625 + 1 / 4 + 10 / 128,
            "communication": 0.2 * 4.0625,
            "host": 0.1 * 4.0625,
            "draft": 0.0,
        }
    )
    assert totals.busy_seconds == pytest.approx(4.546875)


def test_work_by_hand() -> None:
    """The same request: 6 tokens, 3 of them sampled, 10 + 5 + 6 pairs; weights three times, KV of 9 + 4 + 6 tokens."""
    work = {
        "token_flops": 1e6,
        "sequence_flops": 1e4,
        "pair_flops": 1.0,
        "weight_bytes": np.arange(13) * 1e6,
        "token_bytes": 1e3,
        "kv_bytes_per_token": 1.0,
    }
    deployment = make_deployment(make_config(), TIMES, 1, **work)

    totals = simulate(deployment, make_specs([0.0], 4, 3)).totals

    assert totals.flops == pytest.approx(6e6 + 3e4 + 21.0)
    assert totals.bytes == pytest.approx((4 + 1 + 1) * 1e6 + 6e3 + 19.0)


def test_steps_by_hand() -> None:
    """Requests of 3 and 5 tokens: five steps, of two sequences in the first three."""
    totals = replay(make_config(), constant_step_times(0.5), make_specs([0.0, 0.0], 4, [3, 5])).totals

    assert totals.num_steps == 5
    assert totals.sequence_steps == 8
    assert totals.busy_seconds == 2.5


@pytest.mark.parametrize(
    ("overrides", "reserved"),
    [
        ({"admission": "reserve"}, 8),
        ({"kv_allocation": "static"}, 64),
        ({"kv_allocation": "pow2"}, 7),
        ({"kv_allocation": "oracle"}, 6),
        ({"batching": "static"}, 8),
    ],
    ids=["reserve", "static", "pow2", "oracle", "static batch"],
)
def test_reserved_memory_by_hand(overrides: dict[str, Any], reserved: int) -> None:
    """3 + 3 tokens: two blocks of 4, a slot of 64, 3 + 4 tokens, or exactly 6, for three steps; 3, 4, 5 are held."""
    totals = alone(3, 3, **overrides)

    assert totals.kv_reserved_token_seconds == 3 * reserved
    assert totals.kv_held_token_seconds == 3 + 4 + 5
    assert totals.kv_peak_share == reserved / 128


def test_who_is_done_before_its_static_batch_holds_what_it_has_until_the_end() -> None:
    """Prompts of 3 and 5 tokens, answers of 2 and 3: 3, 4, 4 and 5, 6, 7 tokens are held; padding holds none."""
    config = make_config(batching="static", static_batch_size=2)
    totals = replay(config, constant_step_times(1.0), make_specs([0.0, 0.0], [3, 5], [2, 3])).totals

    assert totals.kv_held_token_seconds == (3 + 4 + 4) + (5 + 6 + 7)


@pytest.mark.parametrize("policy", ["fcfs", "shortest_first"])
def test_seconds_by_what_was_waited_for_add_up_to_the_waits(policy: str) -> None:
    """However many come while a step runs: from the queue to the first step, over all requests."""
    specs = make_specs([0.0, 0.25, 0.5, 1.75, 9.5, 9.75], 4, [3, 2, 5, 1, 2, 2])
    run = replay(make_config(max_num_seqs=1, scheduling_policy=policy), constant_step_times(1.0), specs)
    waits = run.records.scheduled_time - run.records.admitted_time

    assert waits.sum() > 15.0
    assert sum(run.totals.blocked_seconds.values()) == pytest.approx(waits.sum(), rel=1e-12)


def test_growing_memory_by_hand() -> None:
    """4 + 5 tokens in blocks of 4: one block for the prompt, a second one for the four tokens after it."""
    totals = alone(4, 5)

    assert totals.kv_held_token_seconds == 4 + 5 + 6 + 7 + 8
    assert totals.kv_peak_share == 2 / 32


@pytest.mark.parametrize("admission", ["on_demand", "estimate"])
def test_blocks_of_one_token_are_never_empty(admission: str) -> None:
    """With blocks of one token all that is reserved holds a token, in every step of every leap."""
    specs = make_specs(ARRIVALS, PROMPTS, OUTPUTS)

    totals = replay(make_config(block_size=1, num_blocks=80, admission=admission), TIMES, specs).totals

    assert totals.kv_held_token_seconds > 0
    assert totals.kv_reserved_token_seconds == pytest.approx(totals.kv_held_token_seconds, rel=1e-12)


@pytest.mark.parametrize(
    "overrides",
    [pytest.param(values, id=name) for name, values in REPLICAS.items()],
)
def test_no_more_is_held_than_reserved_nor_reserved_than_there_is(overrides: dict[str, Any]) -> None:
    """Held, reserved and capacity are ordered, over the run and at the peak; without a cache all are zero."""
    totals = totals_of(overrides)

    capacity = totals.kv_capacity_tokens
    assert capacity == (0 if overrides.get("kv_allocation") == "none" else 2 * make_config(**overrides).num_blocks * 4)
    assert totals.kv_held_token_seconds <= totals.kv_reserved_token_seconds
    assert totals.kv_reserved_token_seconds <= capacity * totals.busy_seconds
    assert (totals.kv_peak_share > 0) == (capacity > 0)
    assert totals.kv_peak_share <= 1


def test_memory_that_is_too_scattered() -> None:
    """Of 16 tokens, 4 + 4 + 4 are in use; the first goes and leaves 4 + 4 free, not in one piece, for a head of 6.

    It waits until the second, its neighbour, goes a step later.
    """
    specs = make_specs([0.0, 0.0, 0.0, 0.5], [3, 2, 1, 3], [1, 2, 3, 3])
    config = make_config(kv_allocation="oracle", num_blocks=4)

    run = replay(config, constant_step_times(1.0), specs)

    assert run.records.scheduled_time.tolist() == [0.0, 0.0, 0.0, 2.0]
    assert run.totals.kv_unusable_token_seconds == 8.0


def test_memory_in_one_piece_is_not_scattered() -> None:
    """Of 16 tokens 10 are in use and 6 free in one range: the head, which needs 8, lacks memory, not order."""
    config = make_config(kv_allocation="oracle", num_blocks=4)

    run = replay(config, constant_step_times(1.0), make_specs([0.0, 0.0], [8, 6], 2))

    assert run.records.scheduled_time.tolist() == [0.0, 2.0]
    assert run.totals.kv_unusable_token_seconds == 0.0


@pytest.mark.parametrize(
    ("overrides", "reason", "seconds"),
    [
        ({"max_num_seqs": 1}, "seats", 4.0),
        ({"num_blocks": 2, "admission": "reserve"}, "blocks", 4.0),
        ({"max_num_batched_tokens": 4}, "budget", 1.0),
    ],
)
def test_what_the_queue_waits_for(overrides: dict[str, Any], reason: str, seconds: float) -> None:
    """Two requests of 4 + 4 tokens at once: what is scarce keeps the second one out for so many steps."""
    run = replay(make_config(**overrides), constant_step_times(1.0), make_specs([0.0, 0.0], 4, 4))

    expected = {"seats": 0.0, "blocks": 0.0, "budget": 0.0, "step": 0.0} | {reason: seconds}
    assert run.totals.blocked_seconds == expected
    assert run.records.scheduled_time[1] == seconds


@pytest.mark.parametrize("num_seats", [1, 2])
def test_waiting_by_reason_is_the_waiting_of_the_requests(num_seats: int) -> None:
    """Arrivals in mid-step and mid-leap included: the reasons share out exactly what the requests waited."""
    specs = make_specs([0.0, 0.25, 1.5, 2.0, 2.25, 11.5], 4, [6, 4, 3, 5, 1, 2])

    run = replay(make_config(max_num_seqs=num_seats), constant_step_times(1.0), specs)

    waited = run.records.scheduled_time - run.records.admitted_time
    assert sum(run.totals.blocked_seconds.values()) == pytest.approx(waited.sum())


def test_a_request_that_waits_for_the_only_seat_waits_for_seats() -> None:
    """It arrives while an answer of ten steps is under way and nobody waits yet."""
    run = replay(make_config(max_num_seqs=1), constant_step_times(1.0), make_specs([0.0, 5.5], 4, [10, 1]))

    assert run.totals.blocked_seconds["seats"] == pytest.approx(4.5)


@any_replica
def test_series_integrate_to_the_totals(overrides: dict[str, Any]) -> None:
    """Busy time, reserved memory and tokens over time add up to those of the run."""
    totals = totals_of(overrides)
    series, seconds = totals.series, np.diff(totals.series.edges)

    reserved = float(series.kv_usage @ seconds) * totals.kv_capacity_tokens
    assert float(series.busy @ seconds) * 2 == pytest.approx(totals.busy_seconds, rel=1e-9)
    assert reserved == pytest.approx(totals.kv_reserved_token_seconds, rel=1e-9)


def test_series_hold_every_token() -> None:
    """Without preemption: prompts once, and all tokens but each request's first, which its prefill makes."""
    series = totals_of({}).series
    seconds = np.diff(series.edges)

    assert float(series.prefill_tokens_per_s @ seconds) == pytest.approx(sum(PROMPTS))
    assert float(series.decode_tokens_per_s @ seconds) == pytest.approx(sum(OUTPUTS) - len(OUTPUTS))


def test_series_end_with_the_run() -> None:
    """The last edge is the last event, also of a run much longer than its bins."""
    specs = make_closed_loop(2, [4] * 300, 50, 100.0)

    run = replay(make_config(), constant_step_times(1.0), specs)

    edges = run.totals.series.edges
    assert edges[0] == 0
    assert edges[-1] == run.records.finish_time.max()
    assert len(edges) <= 1025


@pytest.mark.parametrize("scheduler", ["mixed", "prefill_first"])
def test_gaps_of_all_replicas_are_pooled(scheduler: str) -> None:
    """One gap fewer than tokens for each request, whoever served it, and their sum is the time between the ends."""
    deployment = make_deployment(make_config(scheduler=scheduler), TIMES, 3)

    run = simulate(deployment, make_specs(ARRIVALS, PROMPTS, OUTPUTS))

    spans = run.records.finish_time - run.records.first_token_time
    assert run.totals.itl.count == sum(OUTPUTS) - len(OUTPUTS)
    assert run.totals.itl.total == pytest.approx(spans.sum(), rel=1e-9)
    assert run.totals.itl.maximum == pytest.approx(np.nanmax(run.records.itl_max), rel=1e-9)
