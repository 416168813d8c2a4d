"""Exact ties: events at one instant are ordered finish, arrival, plan. All times are exact in binary."""

from __future__ import annotations

from typing import Any

import pytest

from simserve.sim.records import RequestRecords
from simserve.workload.requests import RequestSpecs
from tests.agreement import assert_agrees
from tests.builders import affine_step_times, constant_step_times, make_closed_loop, make_config, make_specs

QUARTER = constant_step_times(0.25)


def served(specs: RequestSpecs, **overrides: Any) -> RequestRecords:
    """Return the kernel's records for steps of a quarter second, once the walker agrees with them."""
    return assert_agrees(make_config(**overrides), QUARTER, specs).records


def test_an_arrival_at_the_end_of_a_step_joins_the_next_one() -> None:
    """Request 1 arrives as the third step ends, and is scheduled at that instant."""
    records = served(make_specs([0.0, 0.75], 4, 8))

    assert records.scheduled_time.tolist() == [0.0, 0.75]


def test_a_seat_freed_at_an_arrival_is_given_to_it() -> None:
    """One seat: request 0 finishes at 1.0, and request 1, which arrives then, starts then."""
    records = served(make_specs([0.0, 1.0], 4, [4, 1]), max_num_seqs=1)

    assert records.finish_time.tolist() == [1.0, 1.25]
    assert records.scheduled_time.tolist() == [0.0, 1.0]


def test_the_queue_goes_before_an_arrival_at_the_same_instant() -> None:
    """A seat that frees at 1.0 goes to request 1, which waits, not to request 2, which arrives at 1.0."""
    records = served(make_specs([0.0, 0.5, 1.0], 4, [4, 2, 1]), max_num_seqs=1)

    assert records.scheduled_time.tolist() == [0.0, 1.0, 1.5]


def test_an_idle_replica_plans_simultaneous_arrivals_together() -> None:
    """Four requests at one instant fill the four seats of the first step; a fifth one waits."""
    records = served(make_specs([2.0] * 5, 4, 4))

    assert records.scheduled_time.tolist() == [2.0, 2.0, 2.0, 2.0, 3.0]


def test_simultaneous_arrivals_at_the_end_of_a_step_are_planned_together() -> None:
    """Three requests arrive as a step ends and share the next one with the decode."""
    records = served(make_specs([0.0, 0.5, 0.5, 0.5], 4, 8))

    assert records.scheduled_time.tolist() == [0.0, 0.5, 0.5, 0.5]


@pytest.mark.parametrize("scheduler", ["mixed", "prefill_first"])
@pytest.mark.parametrize("kv_allocation", ["paged", "static", "pow2", "oracle", "none"])
def test_every_arrival_on_the_grid_of_steps(scheduler: str, kv_allocation: str) -> None:
    """Arrivals at every end of a step, with queueing: every tie of the run is exact."""
    specs = make_specs([0.25 * index for index in range(24)], [3, 9, 5, 1] * 6, [7, 2, 4, 1, 9, 3] * 4)

    served(specs, scheduler=scheduler, kv_allocation=kv_allocation, max_num_seqs=3, num_blocks=32)


@pytest.mark.parametrize("scheduler", ["mixed", "prefill_first"])
@pytest.mark.parametrize("admission", ["on_demand", "estimate", "reserve"])
def test_every_arrival_on_the_grid_with_scarce_blocks(scheduler: str, admission: str) -> None:
    """The same where requests are preempted."""
    specs = make_specs([0.25 * index for index in range(24)], [3, 9, 5, 1] * 6, [7, 2, 14, 1, 9, 13] * 4)

    served(
        specs,
        scheduler=scheduler,
        admission=admission,
        max_model_len=24,
        num_blocks=7,
        new_token_ratio_initial=0.25,
        new_token_ratio_minimum=0.125,
        new_token_ratio_decay=0.03125,
    )


def test_clients_that_finish_together_send_in_order() -> None:
    """Four clients without think time: those answered at one instant send at it, and are planned with it."""
    specs = make_closed_loop(4, [4] * 12, [2, 2, 3, 1, 4, 1, 1, 2, 3, 1, 1, 2])
    records = served(specs)

    assert records.arrival_time.tolist()[:6] == [0.0, 0.0, 0.0, 0.0, 0.25, 0.5]
    assert records.scheduled_time.tolist() == records.arrival_time.tolist()


def test_a_client_behind_a_frontend_misses_the_next_step() -> None:
    """The follower of request 0 arrives at 0.75 and is ready at 1.0: the step in between runs without it."""
    specs = make_closed_loop(2, [4] * 3, [2, 8, 1])
    records = served(specs, frontend_latency=0.25)

    assert records.arrival_time.tolist() == [0.0, 0.0, 0.75]
    assert records.scheduled_time.tolist() == [0.25, 0.25, 1.0]


def test_think_times_on_the_grid() -> None:
    """Think times of whole steps put every arrival of a closed loop on the end of some step."""
    specs = make_closed_loop(3, [4, 30, 2] * 6, [2, 5, 1] * 6, [0.25, 0.5, 0.0] * 6)

    served(specs, max_num_batched_tokens=8)


def test_a_chain_of_failures_at_one_instant() -> None:
    """Prompts that are too long fail at once, so one client works through them in no time."""
    specs = make_closed_loop(2, [99, 4, 99, 99, 4, 99], [1, 2, 1, 1, 2, 1])
    records = served(specs)

    assert records.arrival_time.tolist() == [0.0, 0.0, 0.0, 0.0, 0.0, 0.5]


def test_a_failure_before_the_end_of_a_step_sends_before_its_finishes() -> None:
    """The failure at 0.125 takes request 2; the answer at 0.25 takes request 3, which comes back later."""
    specs = make_closed_loop(1, [4, 99, 4, 4], [1, 1, 1, 1], [0.0, 0.125, 0.5, 0.0])
    records = served(specs)

    assert records.arrival_time.tolist() == [0.0, 0.375, 0.875, 1.125]


def test_a_static_batch_starts_exactly_at_its_deadline() -> None:
    """The wait of request 0 ends at 1.0; request 1, which arrives then, is still taken, request 2 is not."""
    specs = make_specs([0.0, 1.0, 1.25], 4, 2)
    records = served(specs, batching="static", static_batch_size=4, static_max_wait=1.0)

    assert records.scheduled_time.tolist() == [1.0, 1.0, 2.25]


def test_a_static_batch_fills_at_the_end_of_the_one_before() -> None:
    """The second of two requests arrives as the running batch ends, and both start at once."""
    specs = make_specs([0.0, 0.0, 0.25, 0.5], 4, 2)
    records = served(specs, batching="static", static_batch_size=2, static_max_wait=8.0)

    assert records.scheduled_time.tolist() == [0.0, 0.0, 0.5, 0.5]


@pytest.mark.parametrize("admission", ["on_demand", "estimate"])
def test_slopes_that_are_exact(admission: str) -> None:
    """Steps that grow by powers of two with the contexts, arrivals on the same grid."""
    times = affine_step_times(
        step_seconds=0.25,
        decode_context_seconds=2.0**-6,
        token_seconds=2.0**-5,
        prefill_pair_seconds=2.0**-9,
    )
    specs = make_specs([0.125 * index for index in range(32)], [3, 9, 5, 2] * 8, [7, 2, 12, 1] * 8)
    config = make_config(
        admission=admission, max_model_len=24, num_blocks=8, new_token_ratio_minimum=0.125, max_chunk_tokens=4
    )

    assert_agrees(config, times, specs)


AHEAD: list[dict[str, Any]] = [
    {"releases_late": True},
    {"releases_late": True, "data_parallel_size": 2},
    {"overlaps_results": True, "scheduler": "prefill_first", "admission": "estimate"},
    {"overlaps_results": True, "scheduler": "prefill_first", "admission": "estimate", "data_parallel_size": 2},
]
"""vLLM's and SGLang's loops that schedule a step ahead, with one rank and with two."""


@pytest.mark.parametrize("loop", AHEAD)
@pytest.mark.parametrize("arrival", [0.5 + 2.0**-10, 0.75, 0.75 + 2.0**-10])
def test_who_arrives_as_a_step_ends_is_seen_by_a_scheduler_ahead_like_who_came_before(
    loop: dict[str, Any], arrival: float
) -> None:
    """The step that begins at 0.75 has been scheduled by then, so that both join the next one, at 1.0."""
    records = served(make_specs([0.0, arrival, arrival], 4, 8), async_scheduling=True, **loop)

    assert records.scheduled_time.tolist() == [0.0] + [1.0 if arrival <= 0.75 else 1.25] * 2


@pytest.mark.parametrize("loop", AHEAD[:2])
def test_who_arrives_as_the_last_step_ends_finds_an_idle_scheduler(loop: dict[str, Any]) -> None:
    """Nothing has been scheduled ahead: it begins at once, or so soon after that nobody can tell."""
    records = served(make_specs([0.0, 1.0], 4, [4, 1]), async_scheduling=True, **loop)

    assert records.scheduled_time.tolist() == pytest.approx([0.0, 1.0], abs=1e-12)


@pytest.mark.parametrize("loop", AHEAD)
def test_every_arrival_on_the_grid_of_steps_scheduled_ahead(loop: dict[str, Any]) -> None:
    """As above, with queueing, and clients that send again at the instant at which they are answered."""
    lengths = {"prompt_tokens": [3, 9, 5, 1] * 6, "output_tokens": [7, 2, 4, 1, 9, 3] * 4}
    few = {"max_num_seqs": 3, "num_blocks": 32, "async_scheduling": True}

    served(make_specs([0.25 * index for index in range(24)], *lengths.values()), **few, **loop)
    served(make_closed_loop(4, *lengths.values()), **few, **loop)
