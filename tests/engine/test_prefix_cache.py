"""The prefix cache, on cases worked out by hand: what is found, what it saves, and what gives way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from simserve.engine.cache_state import PrefixPaths
from simserve.engine.config import finds_itself
from simserve.engine.prefix_cache import cached_tokens
from simserve.engine.state import Replica, RequestTable
from simserve.sim.cluster import set_up
from simserve.sim.simulate import Replay, replay
from simserve.workload.generate import generate
from simserve.workload.prefixes import PrefixSegments, own_prefixes
from simserve.workload.requests import RequestSpecs
from simserve.workload.spec import WorkloadSpec
from tests.agreement import assert_agrees, assert_same_records
from tests.builders import constant_step_times, make_config, make_specs
from tests.engine.strategies import Case, shared_cases
from tests.engine.test_fuzz import CHECKS
from tests.fuzzing import examples
from tests.walker import walk

SECOND = constant_step_times(1.0)
MOONCAKE = Path(__file__).resolve().parents[2] / "../shared/data/traces/mooncake/conversation_trace.jsonl.gz"
ALIKE = [[(1, 16)]] * 5
TENSORRT_LLM = {
    "waits_for_prefix": True,
    "admission": "reserve",
    "evicts_by_block": True,
    "ages_empty_blocks": True,
    "max_num_seqs": 8,
}
TENSORRT_LLM |= {"max_num_batched_tokens": 64, "num_blocks": 64}


def with_paths(specs: RequestSpecs, paths: Sequence[Sequence[tuple[int, int]]]) -> RequestSpecs:
    """Return requests with these segments and ends; what is behind the last is each one's own."""
    rows = [
        [*path, (1000 + index, int(specs.prompt_tokens[index] + specs.output_tokens[index]))]
        for index, path in enumerate(paths)
    ]
    return replace(
        specs,
        prefixes=PrefixSegments(
            offsets=np.cumsum([0, *map(len, rows)]),
            segments=np.array([segment for row in rows for segment, _ in row], dtype=np.int64),
            ends=np.array([end for row in rows for _, end in row], dtype=np.int64),
        ),
    )


def served(specs: RequestSpecs, paths: Sequence[Sequence[tuple[int, int]]], **config: Any) -> Replay:
    """Return what kernel and walker agree on, with blocks of four tokens."""
    return assert_agrees(make_config(enable_prefix_caching=True, **config), SECOND, with_paths(specs, paths))


def test_a_shared_beginning_is_computed_once() -> None:
    """16 of 20 tokens are found, so the budget of 8 tokens takes one step instead of three."""
    specs = make_specs([0.0, 10.0], 20, 2)
    records = served(specs, [[(1, 16)], [(1, 16)]], max_num_batched_tokens=8).records

    assert records.cached_tokens.tolist() == [0, 16]
    assert (records.first_token_time - records.scheduled_time).tolist() == [3.0, 1.0]


def test_a_preempted_request_finds_its_own_blocks_where_nothing_is_shared() -> None:
    """Ten blocks are too few for both: the second computes one block again, not its whole prompt three times over."""
    specs = make_specs([0.0, 0.5], 16, 12)
    short = {"num_blocks": 10, "max_num_seqs": 2, "max_num_batched_tokens": 8, "max_model_len": 64}
    uncached = assert_agrees(make_config(**short), SECOND, specs).records
    cached = assert_agrees(make_config(enable_prefix_caching=True, **short), SECOND, specs).records

    assert uncached.num_preemptions.tolist() == [0, 3]
    assert uncached.finish_time.tolist() == [13.0, 24.0]
    assert cached.num_preemptions.tolist() == [0, 1]
    assert cached.finish_time.tolist() == [13.0, 23.0]
    assert cached.cached_tokens.tolist() == [0, 0]


@given(case=shared_cases().filter(lambda case: case.specs.turn is None and case.specs.concurrency is None))
@settings(max_examples=examples(60), deadline=None, derandomize=True, suppress_health_check=CHECKS)
def test_requests_that_share_nothing_are_those_with_segments_of_their_own(case: Case) -> None:
    """Kernel and walker agree on them, short of memory or not, and naming each request's own tokens changes nothing."""
    alone = replace(case.specs, prefixes=None)
    named = replace(alone, prefixes=own_prefixes(alone.prompt_tokens + alone.output_tokens))

    assert_same_records(walk(case.config, case.times, named), assert_agrees(case.config, case.times, alone))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, False),
        ({"num_blocks": 11}, True),
        ({"num_blocks": 11, "max_num_seqs": 1}, False),
        ({"num_blocks": 11, "admission": "reserve"}, False),
        ({"num_blocks": 11, "enable_prefix_caching": False}, False),
        ({"scheduling_policy": "priority", "priority_preemption": True}, True),
    ],
)
def test_a_cache_that_nobody_can_use_is_not_kept(changes: dict[str, Any], expected: bool) -> None:
    """Two requests of six blocks: there is one where they do not fit together, and where the more urgent preempt."""
    config = make_config(**{"enable_prefix_caching": True, "num_blocks": 12, "max_num_seqs": 4, **changes})

    assert finds_itself(config, np.array([20, 20])) is expected


def test_only_full_blocks_are_shared() -> None:
    """Of 15 equal tokens three blocks of four are found."""
    records = served(make_specs([0.0, 10.0], 20, 1), [[(1, 15)], [(1, 15)]]).records

    assert records.cached_tokens.tolist() == [0, 12]


def test_the_last_token_is_always_computed() -> None:
    """A prompt that is cached to its end still computes its last block."""
    records = served(make_specs([0.0, 10.0], 16, 1), [[(1, 16)], [(1, 16)]]).records

    assert records.cached_tokens.tolist() == [0, 12]


def test_a_request_shares_what_the_same_step_computes() -> None:
    """Two requests that arrive together: the second finds what the first is about to compute."""
    records = served(make_specs([0.0, 0.0], 20, 1), [[(1, 16)], [(1, 16)]]).records

    assert records.cached_tokens.tolist() == [0, 16]


def test_shared_blocks_leave_room_for_more_requests() -> None:
    """Eleven blocks hold one request of nine blocks without sharing, and three that share eight."""
    specs = make_specs([0.0, 1.5, 1.5], 33, 3)
    alone = served(specs, [[], [], []], num_blocks=11, max_num_batched_tokens=64).records
    sharing = served(specs, [[(1, 32)]] * 3, num_blocks=11, max_num_batched_tokens=64).records

    assert alone.scheduled_time.tolist() == [0.0, 3.0, 6.0]
    assert sharing.scheduled_time.tolist() == [0.0, 2.0, 2.0]


def test_what_was_used_least_recently_gives_way_first() -> None:
    """Room for two prompts: the third evicts the first, so the first again finds nothing and the third does."""
    specs = make_specs([0.0, 10.0, 20.0, 30.0, 40.0], 17, 1)
    paths = [[(segment, 16)] for segment in (1, 2, 3, 3, 1)]
    records = served(specs, paths, num_blocks=9, max_model_len=20).records

    assert records.cached_tokens.tolist() == [0, 0, 0, 16, 0]


def test_using_a_prefix_keeps_it() -> None:
    """The first prompt is used again before the third comes, so the second gives way."""
    specs = make_specs([0.0, 10.0, 20.0, 30.0, 40.0], 17, 1)
    paths = [[(segment, 16)] for segment in (1, 2, 1, 3, 1)]
    records = served(specs, paths, num_blocks=9, max_model_len=20).records

    assert records.cached_tokens.tolist() == [0, 0, 16, 0, 16]


def test_the_end_of_a_prefix_gives_way_before_its_beginning() -> None:
    """A prompt of its own takes two of the four cached blocks: the first two are found."""
    specs = make_specs([0.0, 10.0, 20.0], [17, 25, 17], 1)
    records = served(specs, [[(1, 16)], [], [(1, 16)]], num_blocks=9, max_model_len=28).records

    assert records.cached_tokens.tolist() == [0, 0, 8]


def test_a_preempted_request_finds_its_own_blocks() -> None:
    """It computes again only what gave way; without a cache all of it."""
    specs = make_specs([0.0, 0.0], [8, 8], [8, 8])
    config: dict[str, Any] = {"num_blocks": 7, "max_model_len": 20, "max_num_batched_tokens": 16}
    cached = served(specs, [[], []], **config)
    plain = replay(make_config(**config), SECOND, specs)

    assert cached.records.num_preemptions.tolist() == plain.records.num_preemptions.tolist() == [0, 1]
    assert cached.totals.num_steps == plain.totals.num_steps


def test_reserving_admission_reserves_what_is_not_shared() -> None:
    """All of prompt and answer, nine blocks, but for the eight that are in use."""
    specs = make_specs([0.0, 1.5], 33, 3)
    records = served(specs, [[(1, 32)]] * 2, num_blocks=10, max_num_batched_tokens=64, admission="reserve").records

    assert records.scheduled_time.tolist() == [0.0, 2.0]
    assert records.cached_tokens.tolist() == [0, 32]


def test_a_router_may_ask_what_is_cached() -> None:
    """Before and after a request has gone through the replica."""
    specs = with_paths(make_specs([0.0, 0.0], 20, 1), [[(1, 16)], [(1, 16)]])
    config = make_config(enable_prefix_caching=True)
    table = RequestTable(specs.prompt_tokens, specs.output_tokens, specs.max_tokens, config)
    replica = Replica(0, config, SECOND)
    assert cached_tokens(replica, table, 1) == 0
    prefixes = specs.prefixes
    assert prefixes is not None
    set_up(replica, table, PrefixPaths(prefixes.offsets, prefixes.segments, prefixes.ends, config.block_size))

    before = cached_tokens(replica, table, 1)
    from simserve.engine.kernel import complete, plan, submit

    submit(replica, table, 0, 0.0)
    plan(replica, table)
    complete(replica, table)

    assert before == 0
    assert cached_tokens(replica, table, 1) == 16


@pytest.mark.skipif(not MOONCAKE.exists(), reason="needs ../shared/data")
def test_the_hit_rate_of_a_real_trace_rises_to_that_of_an_endless_cache() -> None:
    """Mooncake's conversations one after another, by the size of the cache; the end is counted without an engine."""
    import gzip
    import json

    workload = {"trace": {"path": str(MOONCAKE), "format": "mooncake"}}
    specs = generate(WorkloadSpec.model_validate(workload), seed=1)
    seen: set[int] = set()
    found = 0
    with gzip.open(MOONCAKE, "rt") as lines:
        for row in map(json.loads, lines):
            blocks = row["hash_ids"]
            known = next((number for number, each in enumerate(blocks) if each not in seen), len(blocks))
            seen.update(blocks)
            found += min(known * 512, (row["input_length"] - 1) // 16 * 16)

    rates = []
    for num_blocks in (20_000, 200_000, 500_000, 1_000_000, 30_000_000):
        config = make_config(
            max_num_seqs=64,
            max_num_batched_tokens=1_000_000,
            max_model_len=200_000,
            block_size=16,
            num_blocks=num_blocks,
            enable_prefix_caching=True,
        )
        records = replay(config, constant_step_times(1e-5, 64), specs, accelerate="auto").records
        rates.append(float(records.cached_tokens.sum() / records.prompt_tokens.sum()))

    assert rates == sorted(rates)
    assert rates[0] < 0.1
    assert rates[-1] == pytest.approx(found / specs.prompt_tokens.sum(), rel=1e-12)


@pytest.mark.parametrize(("caches_decoded", "found"), [(False, 4), (True, 12)])
def test_what_a_running_request_decodes_is_found_at_once(caches_decoded: bool, found: int) -> None:
    """A prompt begins with another's and with eight tokens of its answer, of which 20 have been decoded."""
    specs = make_specs([0.0, 20.5], [4, 20], [40, 1])
    records = served(specs, [[(1, 12), (2, 44)], [(1, 12)]], caches_decoded=caches_decoded).records

    assert records.cached_tokens.tolist() == [0, found]


@pytest.mark.parametrize(("ages_empty_blocks", "found"), [(False, 8), (True, 4)])
def test_free_blocks_that_hold_nothing_wait_for_their_turn(ages_empty_blocks: bool, found: int) -> None:
    """Three requests of a block each reuse what was given up first: two empty blocks, then the end of a prefix."""
    specs = make_specs([0.0, 10.0, 20.0, 30.0, 40.0], [9, 3, 3, 3, 9], 1)
    config = {"num_blocks": 4, "max_model_len": 16, "evicts_by_block": True, "ages_empty_blocks": ages_empty_blocks}
    records = served(specs, [[(1, 8)], [], [], [], [(1, 8)]], **config).records

    assert records.cached_tokens.tolist()[-1] == found


@pytest.mark.parametrize(("lifts_chunk_limit", "first_tokens"), [(False, [4.0, 2.0]), (True, [3.0, 2.0])])
def test_a_lone_request_is_not_held_to_the_chunk_limit(lifts_chunk_limit: bool, first_tokens: list[float]) -> None:
    """Alone it has the budget of 16 tokens; beside another, which is there for a step, it has 8."""
    config = make_config(max_num_batched_tokens=16, max_chunk_tokens=8, lifts_chunk_limit=lifts_chunk_limit)
    records = assert_agrees(config, SECOND, make_specs([0.0, 0.5], [32, 8], 1)).records

    assert records.first_token_time.tolist() == first_tokens


def test_who_comes_while_the_last_step_of_all_runs_joins_the_next() -> None:
    """Nothing could be scheduled ahead behind a step that ends all, so the queue and the newcomer start together."""
    config = make_config(max_num_seqs=2, async_scheduling=True, releases_late=True)
    records = assert_agrees(config, SECOND, make_specs([0.0, 0.0, 0.5, 1.5], 4, [2, 2, 1, 1])).records

    assert records.scheduled_time.tolist() == pytest.approx([0.0, 0.0, 2.0, 2.0])


def test_a_copy_of_a_cached_block_is_found_once_that_one_has_gone() -> None:
    """Request 0 fills, at 2 s, the block that the prompt of request 1 has cached at 0 s: a second copy of it.

    Request 2 evicts the first at 4 s, long before request 0 ends; request 3 finds what that one leaves.
    """
    specs = make_specs([0.0, 0.0, 3.5, 30.0], [2, 5, 16, 5], [11, 1, 1, 1])

    records = served(specs, [[(7, 4)], [(7, 4)], [], [(7, 4)]], num_blocks=6, caches_decoded=True).records

    assert records.scheduled_time.tolist() == [0.0, 0.0, 4.0, 30.0]
    assert records.cached_tokens.tolist() == [0, 0, 0, 4]


def test_who_was_admitted_first_gives_way_first_of_those_that_end_together() -> None:
    """At 3 s both are done, request 1 with its prompt: request 2 takes the blocks that request 0 has left, not its."""
    specs = make_specs([0.0, 1.5, 3.5, 30.0, 60.0], [8, 8, 20, 9, 9], [3, 1, 1, 1, 1])

    records = served(specs, [[(7, 8)], [(8, 8)], [], [(8, 8)], [(7, 8)]], num_blocks=7).records

    assert records.finish_time.tolist()[:2] == [3.0, 3.0]
    assert records.cached_tokens.tolist() == [0, 0, 0, 8, 0]


def starts(specs: RequestSpecs, paths: Sequence[Sequence[tuple[int, int]]], **config: Any) -> list[float]:
    """Return when each request has its first step, where every step takes a second."""
    return served(specs, paths, **(TENSORRT_LLM | config)).records.scheduled_time.tolist()


def test_alike_prompts_wait_for_the_first() -> None:
    """Four wait while one computes what all begin with, then find it; they would compute it together otherwise."""
    specs = make_specs([0.0] * 5, 17, 4)

    assert starts(specs, ALIKE) == [0.0, 1.0, 1.0, 1.0, 1.0]
    assert starts(specs, ALIKE, waits_for_prefix=False) == [0.0] * 5
    assert served(specs, ALIKE, **TENSORRT_LLM).records.cached_tokens.tolist() == [0, 16, 16, 16, 16]


def test_scheduled_ahead_a_second_one_computes_it_again() -> None:
    """The first prompt is computed when the second is scheduled, but not in the cache before the step after that."""
    specs = make_specs([0.0] * 5, 17, 4)
    records = served(specs, ALIKE, async_scheduling=True, **TENSORRT_LLM).records

    assert records.scheduled_time.tolist() == [0.0, 1.0, 2.0, 2.0, 2.0]
    assert records.cached_tokens.tolist() == [0, 0, 16, 16, 16]


def test_before_prompts_were_cached_alike_ones_ran_one_by_one() -> None:
    """TensorRT-LLM pull request 6683 shows it: of five equal prompts one a step, each computed whole."""
    specs = make_specs([0.0] * 5, 17, 10)
    records = served(specs, ALIKE, async_scheduling=True, caches_at_end=True, **TENSORRT_LLM).records

    assert records.scheduled_time.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert records.cached_tokens.tolist() == [0] * 5


def test_a_prompt_in_chunks_keeps_alike_ones_waiting_to_its_end() -> None:
    """It takes three steps; a prompt of another beginning goes first, though it came last."""
    specs = make_specs([0.0, 0.5, 0.6], 17, 2)
    paths = [[(1, 16)], [(1, 16)], [(2, 16)]]

    assert starts(specs, paths, max_chunk_tokens=6, enable_chunked_prefill=True) == [0.0, 3.0, 1.0]


@pytest.mark.parametrize(("shared", "start"), [(3, 0.0), (4, 1.0)])
def test_less_than_a_block_is_nothing_to_wait_for(shared: int, start: float) -> None:
    """Blocks hold four tokens; only full ones are shared."""
    specs = make_specs([0.0, 0.0], 17, 2)

    assert starts(specs, [[(1, shared)], [(1, shared)]])[1] == start


def test_who_waits_for_a_prefix_holds_a_seat() -> None:
    """TensorRT-LLM's scheduler only looks at as many requests as there are seats: the third waits for the first."""
    specs = make_specs([0.0, 0.0, 0.0], 17, 4)
    paths = [[(1, 16)], [(1, 16)], [(2, 16)]]

    assert starts(specs, paths, max_num_seqs=2) == [0.0, 1.0, 4.0]
    assert starts(specs, paths) == [0.0, 1.0, 0.0]


def test_a_finished_request_keeps_its_seat_for_a_step() -> None:
    """The next step is launched before the results of the last: its successor starts a step late."""
    specs = make_specs([0.0, 0.0, 0.0], 17, [2, 9, 2])
    ahead = {"async_scheduling": True, "max_num_seqs": 2}

    assert starts(specs, [[], [], []], **ahead) == [0.0, 0.0, 2.0]
    assert starts(specs, [[], [], []], releases_late=True, **ahead) == [0.0, 0.0, 3.0]


@pytest.mark.parametrize(("aligns_chunks", "first_token"), [(False, 2.0), (True, 3.0)])
def test_chunks_are_whole_blocks(aligns_chunks: bool, first_token: float) -> None:
    """With a budget of ten tokens, a prompt of twenty is computed as 8, 8 and 4 tokens instead of 10 and 10."""
    engine = TENSORRT_LLM | {"max_num_batched_tokens": 10, "max_chunk_tokens": 10, "enable_chunked_prefill": True}
    records = served(make_specs([0.0], 20, 1), [[]], aligns_chunks=aligns_chunks, **engine).records

    assert records.first_token_time.tolist() == [first_token]


def test_a_short_prompt_takes_what_is_left_of_the_budget() -> None:
    """Two tokens are left beside a chunk of eight: no block for the second prompt, but all of the third."""
    specs = make_specs([0.0, 0.0, 0.0], [20, 12, 2], 1)
    chunked = {"max_num_batched_tokens": 10, "max_chunk_tokens": 10, "enable_chunked_prefill": True}

    assert starts(specs, [[], [], []], aligns_chunks=True, **chunked) == [0.0, 2.0, 0.0]


def test_reserved_blocks_hold_a_prefix_until_they_are_taken() -> None:
    """Nine of ten blocks are reserved for request 1, which takes two: both blocks of the prefix stay."""
    specs = make_specs([0.0, 10.0, 30.0], [8, 4, 9], [1, 3, 1])
    specs = replace(specs, max_tokens=np.array([1, 32, 1]))
    paths = [[(1, 8)], [], [(1, 8)]]
    engine = TENSORRT_LLM | {"num_blocks": 10, "max_model_len": 40}

    assert served(specs, paths, **engine).records.cached_tokens.tolist() == [0, 0, 8]
    assert served(specs, paths, **engine | {"waits_for_prefix": False}).records.cached_tokens.tolist() == [0, 0, 4]


def test_who_has_waited_for_a_prefix_goes_before_running_prompts_of_later_ones() -> None:
    """Its four tokens leave twelve for the third prompt; that one first, and they would leave it less than a block."""
    specs = make_specs([0.0, 0.0, 0.0], [16, 20, 40], 4)
    paths = [[(1, 16)], [(1, 16)], [(2, 40)]]
    chunked = {"max_num_batched_tokens": 20, "max_chunk_tokens": 20, "enable_chunked_prefill": True}

    assert starts(specs, paths, aligns_chunks=True, **chunked) == [0.0, 1.0, 0.0]


@pytest.mark.parametrize(("allocates_prompt", "start"), [(False, 2.0), (True, 6.0)])
def test_under_max_utilization_a_prompt_takes_its_blocks_at_once(allocates_prompt: bool, start: float) -> None:
    """Two of seven blocks are free from the third step on: enough for a chunk, not for the prompt of three blocks."""
    specs = make_specs([0.0, 0.0], [16, 12], [5, 1])
    engine = {"admission": "on_demand", "waits_for_prefix": False, "enable_chunked_prefill": True, "num_blocks": 7}
    budget = {"max_num_batched_tokens": 8, "max_chunk_tokens": 8, "enable_prefix_caching": False}

    records = replay(
        make_config(**TENSORRT_LLM | engine | budget | {"aligns_chunks": True, "allocates_prompt": allocates_prompt}),
        SECOND,
        specs,
    ).records
    assert records.scheduled_time.tolist() == [0.0, start]


def test_under_max_utilization_who_has_waited_for_a_prefix_takes_the_blocks_of_the_last_to_arrive() -> None:
    """The second prompt lacks a block beside the third, which has overtaken it: that one is preempted for it."""
    specs = make_specs([0.0, 0.0, 0.1], 17, [6, 2, 6])
    paths = [[(1, 16)], [(1, 16)], [(2, 16)]]
    engine = {"admission": "on_demand", "allocates_prompt": True, "num_blocks": 10, "max_num_seqs": 3}
    records = served(specs, paths, **TENSORRT_LLM | engine).records

    assert records.num_preemptions.tolist() == [0, 0, 1]
    assert records.scheduled_time.tolist()[1] < records.finish_time.tolist()[0]


@pytest.mark.parametrize(("ignores_found", "start"), [(False, 10.0), (True, 11.0)])
def test_before_1_3_found_tokens_counted_against_the_budget(ignores_found: bool, start: float) -> None:
    """Two prompts compute a token each; whole, they exceed the budget of twenty."""
    specs = make_specs([0.0, 10.0, 10.0], 17, 1)

    engine = {"max_num_batched_tokens": 20, "enable_chunked_prefill": False, "max_chunk_tokens": 20}
    assert starts(specs, [[(1, 16)]] * 3, ignores_found=ignores_found, **engine) == [0.0, 10.0, start]


def test_what_follows_a_copy_of_a_cached_block_is_cached_when_its_request_ends() -> None:
    """Both compute the same 16 tokens, one step apart; the answer of the second is found by its next turn."""
    specs = make_specs([0.0, 0.0, 30.0], [17, 17, 29], [2, 12, 1])
    paths = [[(1, 16)], [(1, 16), (2, 28)], [(1, 16), (2, 28)]]

    records = served(specs, paths, async_scheduling=True, releases_late=True, **TENSORRT_LLM).records

    assert records.cached_tokens.tolist() == [0, 0, 28]
