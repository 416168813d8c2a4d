"""The kernel against the walker: random replicas and workloads go through both and must agree.

Cases in which rounding decides who comes first are discarded: an arrival within 1e-9 s of the end of a step, or
an ``estimate`` that admits by less than 1e-9 tokens. Exact ties are in ``test_ties.py``.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from simserve.engine.config import EngineConfig
from simserve.workload.prefixes import PrefixSegments
from tests.agreement import NEAR, assert_agrees, closest_tie
from tests.builders import affine_step_times, constant_step_times, make_closed_loop, make_config, make_specs
from tests.engine.strategies import (
    PASSING_RULES,
    TREE_RULES,
    WAITING_RULES,
    Case,
    adapted_cases,
    cases,
    delayed_tree_cases,
    delays_of_prompts,
    in_lockstep,
    offloading_cases,
    ordered_cases,
    passing_cases,
    pressed_cases,
    ranked_cases,
    shared_cases,
    speculative_cases,
    stateful_tree_cases,
    suspending_cases,
    swapping_cases,
    tiered_cases,
    windowed_cases,
)
from tests.fuzzing import FEW, examples
from tests.walker import walk

CHECKS = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]


@given(cases())
@settings(max_examples=examples(150, FEW), deadline=None, derandomize=True, suppress_health_check=CHECKS)
def test_the_kernel_agrees_with_the_walker(case: Case) -> None:
    """Any replica and any workload: every count and every time agree."""
    agree_or_discard(case)


@given(pressed_cases())
@settings(max_examples=examples(150, FEW), deadline=None, derandomize=True, suppress_health_check=CHECKS)
def test_the_kernel_agrees_with_the_walker_when_memory_runs_out(case: Case) -> None:
    """The same where blocks are scarce and preemption is common."""
    agree_or_discard(case)


@given(st.one_of(cases(), pressed_cases(), shared_cases(), speculative_cases(), ordered_cases()))
@settings(max_examples=examples(120, FEW), deadline=None, derandomize=True, suppress_health_check=CHECKS)
def test_the_kernel_agrees_with_the_walker_when_it_schedules_ahead(case: Case) -> None:
    """Arrivals join a step later, and who is done keeps seat and blocks until the next step is scheduled."""
    config = case.config
    assume(config.batching == "continuous" and config.kv_allocation == "paged" and config.data_parallel_size == 1)
    is_vllm = config.admission == "on_demand" and config.preemption_mode == "recompute"
    agree_or_discard(replace(case, config=replace(config, async_scheduling=True, releases_late=is_vllm)))


@given(
    st.one_of(
        cases(TREE_RULES, is_alone=True),
        pressed_cases(TREE_RULES, is_alone=True),
        shared_cases(TREE_RULES, is_alone=True),
        ordered_cases(TREE_RULES, is_alone=True),
    ).filter(lambda case: has_overlap(case))
)
@settings(max_examples=examples(150, FEW), deadline=None, derandomize=True, suppress_health_check=CHECKS)
def test_the_kernel_agrees_with_the_walker_where_results_are_known_late(case: Case) -> None:
    """SGLang's overlapped loop: who is done decodes once more, and who is retracted loses the token on its way."""
    agree_or_discard(replace(case, config=overlapped(case.config)))


@given(stateful_tree_cases(), st.booleans())
@settings(max_examples=examples(150, FEW), deadline=None, derandomize=True, suppress_health_check=CHECKS)
def test_the_kernel_agrees_with_the_walker_on_states_in_a_tree(case: Case, is_late: bool) -> None:
    """A prefix is found where its state is kept; states of those who leave, or were found least recently, give way."""
    agree_or_discard(replace(case, config=overlapped(case.config)) if is_late and has_overlap(case) else case)


def overlapped(config: EngineConfig) -> EngineConfig:
    """Return an engine that launches a step before it knows what the one before it has brought."""
    return replace(config, async_scheduling=True, overlaps_results=True)


def has_overlap(case: Case) -> bool:
    """Whether the engine of a case can."""
    return overlapped(case.config).has_overlap


@given(adapted_cases())
@settings(max_examples=examples(150, FEW), deadline=None, derandomize=True, suppress_health_check=CHECKS)
def test_the_kernel_agrees_with_the_walker_on_adapters(case: Case) -> None:
    """The same where requests have LoRA adapters, and the batch has seats for a few of them."""
    agree_or_discard(case)


@given(ranked_cases())
@settings(max_examples=examples(100, FEW), deadline=None, derandomize=True, suppress_health_check=CHECKS)
def test_ranks_in_lockstep_agree_with_the_walker(case: Case) -> None:
    """The same for the ranks of data-parallel attention: all take as long as the slowest."""
    agree_or_discard(case)


@given(ranked_cases(waits=delays_of_prompts))
@settings(max_examples=examples(150, FEW), deadline=None, derandomize=True, suppress_health_check=CHECKS)
def test_delayed_prompts_agree_with_the_walker(case: Case) -> None:
    """The same where ranks agree before each step whether prompts may begin, as by SGLang's delayer."""
    agree_or_discard(case)


@given(delayed_tree_cases())
@settings(max_examples=examples(60, FEW), deadline=None, derandomize=True, suppress_health_check=CHECKS)
def test_delayed_prompts_agree_with_the_walker_where_a_tree_is_kept(case: Case) -> None:
    """The same where looks at a queue that waits count as uses of prefixes."""
    agree_or_discard(case)


@given(
    st.one_of(
        ranked_cases(TREE_RULES, lambda: st.just({})),
        ranked_cases(TREE_RULES, delays_of_prompts),
        delayed_tree_cases(),
        delayed_tree_cases(lambda: st.just({})),
    ).filter(lambda case: has_overlap(case))
)
@settings(max_examples=examples(200, FEW), deadline=None, derandomize=True, suppress_health_check=CHECKS)
def test_ranks_agree_with_the_walker_where_results_are_known_late(case: Case) -> None:
    """SGLang's overlapped loop of ranks: each plans, and all agree on prompts, before results are known."""
    agree_or_discard(replace(case, config=overlapped(case.config)))


@given(speculative_cases(PASSING_RULES, is_alone=True).flatmap(lambda case: in_lockstep(case, lambda: st.just({}))))
@settings(max_examples=examples(60, FEW), deadline=None, derandomize=True, suppress_health_check=CHECKS)
def test_ranks_that_draft_ahead_agree_with_the_walker(case: Case) -> None:
    """vLLM's asynchronous ranks: who is done keeps seat and blocks until the next step is scheduled."""
    agree_or_discard(replace(case, config=replace(case.config, async_scheduling=True, releases_late=True)))


@given(speculative_cases())
@settings(max_examples=examples(150, FEW), deadline=None, derandomize=True, suppress_health_check=CHECKS)
def test_the_kernel_agrees_with_the_walker_when_it_speculates(case: Case) -> None:
    """The same where a step brings each request a number of tokens of its own."""
    agree_or_discard(case)


@given(shared_cases())
@settings(max_examples=examples(150, FEW), deadline=None, derandomize=True, suppress_health_check=CHECKS)
def test_the_kernel_agrees_with_the_walker_when_prompts_begin_alike(case: Case) -> None:
    """The same with a prefix cache: system prompts, branches, conversations whose turns wait for answers."""
    agree_or_discard(case)


@given(shared_cases(TREE_RULES).filter(lambda case: case.config.has_radix_tree))
@settings(max_examples=examples(120, FEW), deadline=None, derandomize=True, suppress_health_check=CHECKS)
def test_the_kernel_agrees_with_the_walker_where_a_tree_is_kept(case: Case) -> None:
    """The same where steps add what they computed to a tree, whose nodes are cut, shared and give way whole."""
    agree_or_discard(case)


@given(shared_cases(WAITING_RULES).filter(lambda case: waiting(case.config).has_prefix_waits), st.booleans())
@settings(max_examples=examples(200, FEW), deadline=None, derandomize=True, suppress_health_check=CHECKS)
def test_the_kernel_agrees_with_the_walker_where_requests_wait_for_prefixes(case: Case, is_ahead: bool) -> None:
    """The same where a request waits for a prompt that another computes (TensorRT-LLM), with steps ahead or not."""
    config = replace(
        waiting(case.config), async_scheduling=is_ahead, releases_late=is_ahead and case.config.admission != "estimate"
    )
    agree_or_discard(replace(case, config=config))


@given(st.one_of(cases(PASSING_RULES), pressed_cases(PASSING_RULES)), st.booleans())
@settings(max_examples=examples(150, FEW), deadline=None, derandomize=True, suppress_health_check=CHECKS)
def test_the_kernel_agrees_with_the_walker_where_prompts_take_their_blocks_at_once(case: Case, is_ahead: bool) -> None:
    """The same under TensorRT-LLM's MAX_UTILIZATION, where the last to arrive is preempted, with steps ahead or not."""
    config = replace(
        case.config,
        allocates_prompt=True,
        aligns_chunks=case.config.reserve_full_prompt,
        async_scheduling=is_ahead,
        releases_late=is_ahead,
    )
    agree_or_discard(replace(case, config=config))


@given(suspending_cases(), st.booleans())
@settings(max_examples=examples(200, FEW), deadline=None, derandomize=True, suppress_health_check=CHECKS)
def test_the_kernel_agrees_with_the_walker_where_requests_are_suspended(case: Case, is_ahead: bool) -> None:
    """The same under TensorRT-LLM's second KV cache manager, with steps ahead or not."""
    agree_or_discard(replace(case, config=replace(case.config, async_scheduling=is_ahead, releases_late=is_ahead)))


def waiting(config: EngineConfig) -> EngineConfig:
    """Return an engine whose requests wait for what others compute."""
    return replace(
        config,
        waits_for_prefix=True,
        caches_decoded=False,
        evicts_by_block=True,
        allocates_prompt=True,
        checkpoint_tokens=0,
        last_checkpoint_tokens=0,
    )


@given(ordered_cases())
@settings(max_examples=examples(120, FEW), deadline=None, derandomize=True, suppress_health_check=CHECKS)
def test_the_kernel_agrees_with_the_walker_on_other_queue_orders(case: Case) -> None:
    """The same with priorities, ageing, requests that make way for better ones, and the shortest first."""
    agree_or_discard(case)


@given(passing_cases())
@settings(max_examples=examples(150, FEW), deadline=None, derandomize=True, suppress_health_check=CHECKS)
def test_the_kernel_agrees_with_the_walker_when_steps_pass_over_requests(case: Case) -> None:
    """The same where who preempts itself ends the pass over those that run, or the pass misses one."""
    agree_or_discard(case)


@given(swapping_cases())
@settings(max_examples=examples(100, FEW), deadline=None, derandomize=True, suppress_health_check=CHECKS)
def test_the_kernel_agrees_with_the_walker_when_it_swaps(case: Case) -> None:
    """The same where victims keep their KV in host memory, as long as there is room."""
    agree_or_discard(case)


@given(offloading_cases())
@settings(max_examples=examples(120, FEW), deadline=None, derandomize=True, suppress_health_check=CHECKS)
def test_the_kernel_agrees_with_the_walker_when_blocks_go_to_a_second_tier(case: Case) -> None:
    """The same where cached blocks that give way go to host memory, and come back over its link."""
    agree_or_discard(case)


@given(tiered_cases())
@settings(max_examples=examples(200, FEW), deadline=None, derandomize=True, suppress_health_check=CHECKS)
def test_the_kernel_agrees_with_the_walker_when_blocks_go_down_several_tiers(case: Case) -> None:
    """The same with host, disk and a store: what gives way, what is loaded, computed all the same, or overlapped."""
    agree_or_discard(case)


@given(windowed_cases())
@settings(max_examples=examples(60, FEW), deadline=None, derandomize=True, suppress_health_check=CHECKS)
def test_the_kernel_agrees_with_the_walker_when_layers_keep_a_window(case: Case) -> None:
    """The same where some layers hold no more of a request than its window, and the chunk that is being computed."""
    agree_or_discard(case)


@pytest.mark.slow
@given(
    st.one_of(
        cases(),
        pressed_cases(),
        ranked_cases(),
        speculative_cases(),
        shared_cases(),
        ordered_cases(),
        swapping_cases(),
        offloading_cases(),
        tiered_cases(),
        windowed_cases(),
    )
)
@settings(max_examples=examples(1500), deadline=None, derandomize=True, suppress_health_check=CHECKS)
def test_the_kernel_agrees_with_the_walker_at_length(case: Case) -> None:
    """All kinds together.

    Derandomised: a test run that is repeated tries the same examples. A change to the code may bring others, because
    Hypothesis also draws the constants of the package's modules that are loaded: a failure that comes with a change may
    have been there before it.
    """
    agree_or_discard(case)


def agree_or_discard(case: Case) -> None:
    """Compare kernel and walker, unless rounding decides an order."""
    outcome = walk(case.config, case.times, case.specs)
    assume(outcome.closest_estimate > NEAR)
    assume(closest_tie(outcome, case.config, case.specs) > NEAR)
    assert_agrees(case.config, case.times, case.specs, outcome)


def test_a_head_refused_beside_windows_waits_until_the_batch_shrinks() -> None:
    """SGLang's estimate, all layers windowed: blocks do not grow and there would be room at the sixth step.

    Who was refused is not asked before the first long request has left, at the sixteenth.
    """
    config = make_config(
        admission="estimate",
        max_num_seqs=3,
        max_num_batched_tokens=30,
        max_chunk_tokens=30,
        max_model_len=30,
        enable_chunked_prefill=False,
        block_size=1,
        num_blocks=30,
        full_groups=0,
        window_groups=1,
        window_blocks=1,
        new_token_ratio_initial=0.1,
        new_token_ratio_minimum=0.0,
        new_token_ratio_decay=0.0010033333,
    )
    specs = make_specs([0.0] * 14, [1] * 14, [1] * 12 + [12, 27])
    times = constant_step_times(1.0)

    outcome = walk(config, times, specs)

    assert outcome.scheduled_time[13] == 16.0
    assert_agrees(config, times, specs, outcome)


def test_the_copy_of_who_decodes_takes_the_place_of_one_that_gives_way() -> None:
    """vLLM keeps both: what the fourth had cached makes room for the sixth, and the seventh finds the third's own."""
    config = make_config(
        max_num_seqs=3,
        max_num_batched_tokens=25,
        max_chunk_tokens=25,
        max_model_len=25,
        enable_chunked_prefill=False,
        enable_prefix_caching=True,
        caches_decoded=True,
        evicts_by_block=True,
        async_scheduling=True,
        releases_late=True,
        block_size=2,
        num_blocks=17,
    )
    ends = [23, 24, 23, 25, 2, 7, 2, 4, 6, 23, 25, 2, 4]
    prefixes = PrefixSegments(
        offsets=np.array([0, 2, 4, 6, 8, 9, 11, 13]),
        segments=np.array([0, 1, 0, 100, 200, 201, 200, 300, 400, 0, 500, 200, 600]),
        ends=np.array(ends),
    )
    specs = replace(make_closed_loop(2, [23, 24, 1, 3, 4, 24, 3], [1, 1, 6, 1, 2, 1, 1]), prefixes=prefixes)
    times = constant_step_times(1.0)

    outcome = walk(config, times, specs)

    assert outcome.cached_tokens.tolist() == [0, 22, 0, 0, 0, 20, 2]
    assert_agrees(config, times, specs, outcome)


def test_chunks_repeat_only_while_sglangs_estimate_leaves_room_for_the_last_of_them() -> None:
    """Those before it take whole blocks: of the last, six tokens long, the estimate leaves room for five."""
    config = make_config(
        admission="estimate",
        max_num_seqs=3,
        max_num_batched_tokens=7,
        max_chunk_tokens=6,
        max_model_len=37,
        block_size=16,
        num_blocks=4,
        new_token_ratio_initial=0.31830988,
        new_token_ratio_minimum=0.0,
        new_token_ratio_decay=0.0010033333,
        transfer_step_seconds=0.01,
        transfer_request_seconds=0.003,
    )
    times = affine_step_times(max_num_seqs=3, step_seconds=0.1, prefill_context_seconds=0.002)
    specs = make_closed_loop(3, [1] * 6, [1, 1, 1, 34, 32, 36])

    outcome = walk(config, times, specs)

    assert [prefilled for _, _, prefilled, who in outcome.batches if who == (5, 4)] == [6, 6, 6, 5, 6, 3]
    assert_agrees(config, times, specs, outcome)
