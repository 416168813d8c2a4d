"""LoRA adapters on cases worked out by hand: who is passed over, what is loaded, what is forgotten, what steps take."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings

from simserve.engine.state import StepTimes
from simserve.sim.simulate import Replay, replay
from simserve.workload.requests import RequestSpecs
from tests.agreement import NEAR, assert_agrees, closest_tie
from tests.builders import affine_step_times, make_config, make_specs
from tests.engine.strategies import Case, adapted_cases
from tests.engine.test_fuzz import CHECKS
from tests.fuzzing import examples
from tests.walker import Walk

TIMES = affine_step_times(step_seconds=1.0, token_seconds=0.0)


def with_adapters(specs: RequestSpecs, adapters: list[int]) -> RequestSpecs:
    """Return requests with these adapters."""
    return replace(specs, adapter=np.array(adapters, dtype=np.int64))


def served(specs: RequestSpecs, times: StepTimes = TIMES, **config: Any) -> Replay:
    """Return what kernel and walker agree on: loads take a quarter of a second from host memory, 2 s more from disk."""
    values = {"max_loras": 1, "max_cpu_loras": 1, "lora_host_seconds": 0.25, "lora_disk_seconds": 2.0, **config}
    return assert_agrees(make_config(**values), times, specs)


def first_steps(run: Replay) -> list[float]:
    """Return when the step began that first held each request, seconds."""
    return run.records.scheduled_time.tolist()


def test_who_needs_another_adapter_is_passed_over_and_keeps_its_place() -> None:
    """The second waits for the first's seat; the third has its adapter, the fourth none: both go before it."""
    specs = with_adapters(make_specs([0.0, 0.1, 0.2, 0.3], 4, 6), [0, 1, 0, -1])
    run = served(specs, lora_host_seconds=0.0, lora_disk_seconds=0.0)
    begun = first_steps(run)

    assert begun[0] == 0.0
    assert begun[2] == begun[3] == pytest.approx(1.0)
    assert begun[1] == pytest.approx(7.0), "when the last with the other adapter is done"


def test_the_step_that_admits_a_request_waits_for_its_adapter() -> None:
    """From disk 2.25 s, from host memory 0.25 s, and nothing while it has its slot."""
    specs = with_adapters(make_specs([0.0, 10.0, 20.0, 30.0], 4, 1), [0, 0, 1, 0])
    run = served(specs, max_cpu_loras=2)
    seconds = run.records.first_token_time - run.records.scheduled_time

    assert seconds.tolist() == pytest.approx([3.25, 1.0, 3.25, 1.25])
    loras = run.totals.loras
    assert loras is not None
    assert (loras.num_asked, loras.num_hits, loras.num_swaps, loras.num_disk_loads) == (4, 1, 3, 2)
    assert loras.load_seconds == pytest.approx(2 * 2.25 + 0.25)


def test_the_adapter_used_least_recently_gives_way() -> None:
    """Two slots, no more in host memory: after 0, 1, 0 and 2, adapter 0 is there and 1 is not."""
    specs = with_adapters(make_specs([0.0, 10.0, 20.0, 30.0, 40.0, 50.0], 4, 1), [0, 1, 0, 2, 0, 1])
    run = served(specs, max_loras=2, max_cpu_loras=2)
    seconds = run.records.first_token_time - run.records.scheduled_time

    assert seconds.tolist() == pytest.approx([3.25, 3.25, 1.0, 3.25, 1.0, 3.25])


def test_steps_take_the_kernels_the_adapters_and_the_tokens_longer() -> None:
    """A prompt of 4 tokens and a decode step, with one adapter and with two; without any they take a second."""
    times = replace(TIMES, lora_step_seconds=0.5, lora_adapter_seconds=0.125, lora_token_seconds=0.0625)
    one = served(with_adapters(make_specs([0.0], 4, 2), [0]), times, lora_disk_seconds=0.0, lora_host_seconds=0.0)
    specs = with_adapters(make_specs([0.0, 0.0, 0.0], 4, 2), [0, 1, -1])
    two = served(specs, times, lora_disk_seconds=0.0, lora_host_seconds=0.0, max_loras=2, max_cpu_loras=2)

    assert one.records.finish_time.tolist() == pytest.approx([(1.625 + 0.25) + (1.625 + 0.0625)])
    assert two.records.finish_time.tolist() == pytest.approx(3 * [(1.75 + 0.5) + (1.75 + 0.125)])


def test_a_mixed_step_reads_the_adapters_of_all_that_have_a_seat() -> None:
    """Whole blocks of four, eight tokens a step: 4 of both prompts, then the last 6 of one, and none of the other.

    Either step takes a second, half a second, and an eighth for each of the two adapters.
    """
    times = replace(TIMES, lora_step_seconds=0.5, lora_adapter_seconds=0.125)
    config = {"max_loras": 2, "max_cpu_loras": 2, "lora_disk_seconds": 0.0, "lora_host_seconds": 0.0}
    config |= {"max_num_batched_tokens": 8, "max_chunk_tokens": 6, "aligns_chunks": True}
    run = served(with_adapters(make_specs([0.0, 0.0], [10, 9], 1), [0, 1]), times, **config)

    assert run.records.first_token_time.tolist() == pytest.approx([2 * 1.75, 2 * 1.75 + 1.625])


def test_one_adapter_for_all_is_none_but_for_its_cost() -> None:
    """Issue: one adapter that costs nothing changes nothing, in no column."""
    specs = make_specs(np.arange(40) * 0.37, 5, 9)
    plain = replay(make_config(max_num_seqs=4), TIMES, specs)
    adapted = replay(make_config(max_num_seqs=4, max_loras=1, max_cpu_loras=1), TIMES, with_adapters(specs, [0] * 40))

    for name in ("scheduled_time", "first_token_time", "finish_time", "itl_max"):
        np.testing.assert_array_equal(getattr(adapted.records, name), getattr(plain.records, name))


def test_who_waits_for_an_adapter_says_so() -> None:
    """The time in the queue counts as waiting for adapters, not for seats or blocks."""
    specs = with_adapters(make_specs([0.0, 0.5], 4, 8), [0, 1])
    run = served(specs, lora_host_seconds=0.0, lora_disk_seconds=0.0)

    waited = run.totals.blocked_seconds
    assert waited["loras"] == pytest.approx(7.0)
    assert waited["seats"] == waited["blocks"] == 0.0


@given(adapted_cases())
@settings(max_examples=examples(60), deadline=None, derandomize=True, suppress_health_check=CHECKS)
def test_loads_are_those_that_the_walker_counts(case: Case) -> None:
    """Admissions, hits, loads, those from disk, and their seconds, on random replicas."""
    walk = Walk(case.config, case.times, case.specs)
    outcome = walk.outcome()
    assume(outcome.closest_estimate > NEAR and closest_tie(outcome, case.config, case.specs) > NEAR)
    (scheduler,) = walk.replicas[0].scheduler.schedulers
    loras = replay(case.config, case.times, case.specs).totals.loras

    assert loras is not None
    assert (loras.num_asked, loras.num_hits) == (scheduler.adapters_asked, scheduler.adapter_hits)
    assert (loras.num_swaps, loras.num_disk_loads) == (scheduler.adapter_swaps, scheduler.adapters_from_disk)
    assert loras.load_seconds == pytest.approx(scheduler.adapter_seconds, abs=1e-9)
