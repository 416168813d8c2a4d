"""Preemption by swap, on cases worked out by hand with steps of one second and copies of an eighth a block."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from simserve.engine.kernel import cancel, complete, plan, submit
from simserve.engine.state import Replica, RequestTable
from simserve.sim.simulate import Replay, replay
from simserve.workload.requests import RequestSpecs
from tests.agreement import assert_agrees
from tests.builders import constant_step_times, make_config, make_specs

COPYING = replace(constant_step_times(1.0), swap_block_seconds=0.125)
SHORT: dict[str, Any] = {"num_blocks": 4, "max_model_len": 16}


def served(specs: RequestSpecs, num_swap_blocks: int = 8, **config: Any) -> Replay:
    """Return what kernel and walker agree on."""
    config = {"preemption_mode": "swap", "num_swap_blocks": num_swap_blocks, **SHORT, **config}
    return assert_agrees(make_config(**config), COPYING, specs)


def test_a_victim_comes_back_with_its_tokens() -> None:
    """Four blocks for two requests of three: two blocks of the second are copied out, and back when the first ends."""
    replayed = served(make_specs([0.0, 0.0], [7, 7], [4, 4]))
    records = replayed.records

    assert records.num_preemptions.tolist() == [0, 1]
    # Prefill and one decode, a step of 1.25 s that copies out, the last of the first; then 1.25 s and 1 s alone.
    assert records.finish_time.tolist() == [4.25, 6.5]
    assert records.itl_max.tolist() == [1.25, 3.5]
    assert replayed.totals.swapped_blocks == 4
    assert replayed.totals.num_steps == 6


def test_nothing_is_computed_again() -> None:
    """Recomputing takes a prefill step with the same number of tokens; the swapped request needs none."""
    specs = make_specs([0.0, 0.0], [7, 7], [4, 4])
    swapped = served(specs).totals.series
    again = replay(make_config(**SHORT), COPYING, specs).totals.series

    def prefilled(series: Any) -> float:
        return float((series.prefill_tokens_per_s * (series.edges[1:] - series.edges[:-1])).sum())

    assert round(prefilled(swapped)) == 14
    assert round(prefilled(again)) > 14


def test_a_request_that_is_cancelled_while_swapped_out_frees_host_memory() -> None:
    """And the queue, where it stands."""
    config = make_config(preemption_mode="swap", num_swap_blocks=8, **SHORT)
    specs = make_specs([0.0, 0.0], [7, 7], [4, 4])
    requests = RequestTable(specs.prompt_tokens, specs.output_tokens, specs.max_tokens, config)
    replica = Replica(0, config, COPYING)
    for index in range(2):
        submit(replica, requests, index, 0.0)
    while not requests.swapped_tokens[1]:
        complete(replica, requests)
        if not requests.swapped_tokens[1]:
            plan(replica, requests)
    complete(replica, requests)
    assert replica.free_swap_blocks == 6

    cancel(replica, requests, 1)

    assert replica.free_swap_blocks == 8
    assert not len(replica.waiting)


def test_a_full_host_memory_means_computing_again() -> None:
    """One block of host memory does not hold the two of the victim."""
    replayed = served(make_specs([0.0, 0.0], [7, 7], [4, 4]), num_swap_blocks=1)

    assert replayed.records.num_preemptions.tolist() == [0, 1]
    assert replayed.totals.swapped_blocks == 0


def test_a_swapped_request_goes_before_those_who_wait() -> None:
    """The third request arrives while the second is swapped out, and is admitted with it, not before."""
    records = served(make_specs([0.0, 0.0, 2.5], [7, 7, 4], [4, 4, 1])).records

    assert records.scheduled_time.tolist() == [0.0, 0.0, 4.25]
    assert records.finish_time.tolist()[1] > 4.25
