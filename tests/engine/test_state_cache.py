"""Cached states of linear attention: where chunks end, what is found, and the reference that says so."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from simserve.api import load, verify
from simserve.engine.config import EngineConfig
from simserve.engine.progress import GRID
from simserve.engine.seats import _pass_seats
from simserve.engine.state import UNFINISHED
from simserve.sim.records import RequestRecords
from simserve.sim.simulate import replay
from simserve.workload.prefixes import PrefixSegments
from simserve.workload.requests import RequestSpecs
from tests.agreement import assert_agrees
from tests.builders import constant_step_times, make_config, make_specs
from tests.engine.test_prefix_cache import with_paths
from tests.real_engines.compare import RULES, as_vllm, config_of, requests_of, times_of
from tests.real_engines.workloads import STATEFUL, draw_case


def stateful(**fields: Any) -> EngineConfig:
    """Return a replica with blocks of four tokens, and a state in the pool that is cached at the ends of blocks."""
    rules = {
        "block_size": 4,
        "num_blocks": 64,
        "max_num_batched_tokens": 100,
        "window_groups": 1,
        "window_blocks": 1,
        **dict.fromkeys(("keeps_states", "caches_states", "enable_prefix_caching", "evicts_by_block"), True),
        **fields,
    }
    return make_config(**rules)


def served(config: EngineConfig, prompts: list[int], shared: int = 0) -> RequestRecords:
    """Return what becomes of prompts a hundred steps apart that have ``shared`` tokens in common."""
    specs = make_specs([100.0 * place for place in range(len(prompts))], prompts, [1] * len(prompts))
    if shared:
        segments = [each for place in range(len(prompts)) for each in (0, place + 1)]
        ends = [each for prompt in prompts for each in (shared, prompt + 1)]
        paths = PrefixSegments(
            offsets=np.arange(0, 2 * len(prompts) + 1, 2), segments=np.array(segments), ends=np.array(ends)
        )
        specs = replace(specs, prefixes=paths)
    return replay(config, constant_step_times(), specs).records


@pytest.mark.parametrize(
    ("prompt", "fields", "steps"),
    [
        (10, {}, 2),
        (8, {}, 2),
        (8, {"keeps_last_state": True}, 1),
        (4, {}, 1),
        (10, {"exports_states": True}, 1),
        (20, {"block_size": 16}, 2),
        (20, {"block_size": 16, "state_block_size": 4, "max_num_batched_tokens": 13}, 3),
        (10, {"block_size": 16, "state_block_size": 4}, 2),
        (10, {"caches_states": False}, 1),
        (10, {"enable_prefix_caching": False}, 1),
        (21, {"max_num_batched_tokens": 10}, 4),
    ],
)
def test_chunks_end_where_states_are_kept(prompt: int, fields: dict[str, Any], steps: int) -> None:
    """The last chunk begins with the last block of a prompt, others end with a whole block."""
    records = served(stateful(**fields), [prompt])

    assert records.first_token_time.tolist() == [float(steps)]


def test_the_third_prompt_finds_what_two_have_in_common() -> None:
    """The first keeps a state at its own end alone; the second, which finds blocks without one, where they part."""
    records = served(stateful(), [19, 19, 19], shared=9)

    assert records.cached_tokens.tolist() == [0, 0, 8]


def test_every_state_is_found_where_all_are_kept() -> None:
    """With a state behind each chunk the second prompt goes on where the first chunk of the first one has ended."""
    config = stateful(max_num_batched_tokens=8, keeps_every_state=True)

    records = served(config, [19, 19], shared=9)

    assert records.cached_tokens.tolist() == [0, 8]


@pytest.mark.parametrize("kind", STATEFUL)
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(("release", "exports"), [("0.33.0", False), ("0.33.0", True), ("0.20.2", False)])
def test_the_kernel_agrees_with_the_walker(kind: str, is_async: bool, release: str, exports: bool) -> None:
    """Prefixes, conversations and preemptions as in the comparison with vLLM's own scheduler.

    The later seeds found copies that stand in for blocks where empty ones age, states of chunks that are not computed,
    decodes that take cached blocks before a prompt gives way, a lone request that gives back states before it asks (200
    took a block that was not there), and requests that are done as they give way.
    """
    for seed in (
        20,
        21,
        *((34, 84, 100, 101, 102, 104, 106, 109, 200, 306) if kind.startswith("states_prefix") else ()),
    ):
        case = as_vllm(draw_case(kind, seed, is_async=is_async), release)
        config = config_of(case, {**RULES[release], "exports_states": exports})

        assert_agrees(config, times_of(case), requests_of(case))


@pytest.mark.parametrize("kind", STATEFUL)
@pytest.mark.parametrize("release", ["0.33.0", "0.20.2"])
def test_blocks_that_ranks_divide_are_cut_where_the_walker_cuts_them(kind: str, release: str) -> None:
    """Chunks end at the blocks of one of two ranks; prefixes are found in blocks of both."""
    for seed in (20, 100):
        case = as_vllm(draw_case(kind, seed, is_async=True), release)
        size = config_of(case, RULES[release]).block_size
        config = config_of(case, {**RULES[release], "state_block_size": size // 2})

        assert_agrees(config, times_of(case), requests_of(case))


def test_a_leap_ends_before_blocks_lack_for_second_states() -> None:
    """Two that decode cross the end of a block in several steps; the walker says when they end."""
    config = stateful(
        **dict.fromkeys(("exports_states", "reserve_full_prompt", "lifts_chunk_limit", "caches_decoded"), True),
        block_size=2,
        num_blocks=29,
        max_num_batched_tokens=16,
        max_model_len=36,
        window_groups=2,
        releases_late=True,
        pads_lone_token=True,
    )
    specs = with_paths(make_specs([0.0] * 3, [8, 9, 21], [7, 5, 5]), [[(0, 9)]] * 3)

    records = assert_agrees(config, constant_step_times(), specs).records

    assert records.finish_time.tolist() == [7.0, 7.0, 11.0]


def test_a_request_that_is_done_holds_no_state_besides_its_own() -> None:
    """The last chunk of request 1 ends with it and with a block: nobody needs a block, and nobody gives way."""
    config = stateful(
        **RULES["0.20.2"],
        async_scheduling=True,
        block_size=2,
        num_blocks=19,
        window_groups=3,
        max_num_seqs=2,
        max_num_batched_tokens=4,
        max_model_len=30,
    )
    specs = with_paths(make_specs([0.0, 8.0], 20, [2, 1]), [[(1, 15)], [(0, 14)]])

    records = assert_agrees(config, constant_step_times(), specs).records

    assert records.finish_time.tolist() == [6.0, 13.0]
    assert records.num_preemptions.tolist()[1] == 0


def test_a_block_that_is_copied_as_its_request_leaves_is_free_again() -> None:
    """Request 0 ends with the block that request 2 has cached: both blocks are counted, and both come back."""
    config = stateful(
        **RULES["0.20.2"],
        async_scheduling=True,
        block_size=8,
        num_blocks=37,
        window_groups=4,
        max_num_seqs=5,
        max_model_len=50,
    )
    paths = [[(100, 9)], [(0, 18)], [(100, 9)], [(0, 18)]]
    specs = with_paths(make_specs([1.125, 2.5, 2.5, 2.5], [5, 39, 14, 31], [4, 3, 2, 5]), paths)

    assert_agrees(config, constant_step_times(), specs)


def test_a_lone_request_gives_way_and_comes_back_as_the_walker_has_it() -> None:
    """Four tokens a step and memory for little more than one request: the last one waits for a seat, and ends last."""
    config = stateful(
        **RULES["0.20.2"],
        async_scheduling=True,
        block_size=2,
        num_blocks=31,
        window_groups=2,
        max_num_batched_tokens=4,
        max_model_len=40,
    )
    specs = with_paths(
        make_specs([4.1, 12.2, 16.3, 16.3], [5, 15, 16, 13], [9, 8, 2, 2]), [[], [], [(0, 12)], [(0, 12)]]
    )

    assert_agrees(config, constant_step_times(), specs)


def drawn_requests(
    draw: Random, config: EngineConfig, prompts: list[int], outputs: list[int], share: float = 1.0
) -> RequestSpecs:
    """Return requests of which most begin with one of two prefixes, in a ``share`` of the draws."""
    arrivals = sorted(draw.choice([0.0, 1.5, 3.25, 7.5, 12.0]) for _ in prompts)
    paths = [
        [(draw.choice([0, 1]), min(draw.randint(4, 30), prompt + output))] if draw.random() < 0.7 else []
        for prompt, output in zip(prompts, outputs, strict=True)
    ]
    specs = make_specs(arrivals, prompts, outputs)
    if share == 1.0 or draw.random() < share:
        specs = with_paths(specs, paths)
    priority = np.array([draw.randint(0, 2) for _ in prompts])
    pace = np.array([int(GRID * (1 + draw.random() * config.num_speculative_tokens)) for _ in prompts])
    return replace(specs, priority=priority, pace=pace if config.num_speculative_tokens else None)


def drawn(seed: int, **fields: Any) -> tuple[EngineConfig, RequestSpecs]:
    """Return a replica short of memory, which holds any request with three states, and requests that share prefixes."""
    draw = Random(seed)
    count, size, groups = draw.randint(3, 9), draw.choice([2, 4, 8]), draw.choice([1, 2, 3])
    prompts = [draw.randint(3, 40) for _ in range(count)]
    outputs = [draw.randint(1, 12) for _ in range(count)]
    longest = max(map(sum, zip(prompts, outputs, strict=True)))
    config = stateful(
        **RULES[draw.choice(["0.33.0", "0.20.2"])],
        async_scheduling=draw.random() < 0.5,
        block_size=size,
        window_groups=groups,
        num_blocks=-(-longest // size) + 3 * groups + draw.randint(2, 12) + fields.get("watermark_blocks", 0),
        max_num_seqs=draw.choice([2, 4, 8]),
        max_num_batched_tokens=max(2 * size, draw.choice([8, 16, 32])),
        max_model_len=longest + size,
    )
    config = replace(config, **fields)
    return config, drawn_requests(draw, config, prompts, outputs)


BESIDE_BLOCKS: list[dict[str, Any]] = [
    {},
    {"pipeline_parallel_size": 2, "samples_in_turn": True, "overlaps_chunks": True},
    {"pipeline_parallel_size": 2, "samples_in_turn": True, "keeps_micro_batches": True},
    {"scheduling_policy": "priority"},
    {"scheduling_policy": "priority", "priority_preemption": True},
    {"watermark_blocks": 3},
]
"""What else an engine does beside blocks that are counted one by one."""


@pytest.mark.parametrize("seed", range(11, 41))
@pytest.mark.parametrize(
    "fields",
    [*BESIDE_BLOCKS, {"num_speculative_tokens": 3}],
)
def test_requests_short_of_memory_are_looked_at_as_the_walker_does(seed: int, fields: dict[str, Any]) -> None:
    """Stages that take turns, victims before the seat that is looked at, and drafts that the budget does not reach."""
    config, specs = drawn(seed, **fields)

    assert_agrees(config, constant_step_times(), specs)


@pytest.mark.parametrize(
    ("seed", "fields"),
    [
        (124, {}),
        (288, {}),
        (386, {}),
        (427, {}),
        (1304, {"num_speculative_tokens": 1, "max_num_batched_tokens": 8, "max_num_seqs": 8}),
        (1341, {"max_num_batched_tokens": 8, "max_num_seqs": 8}),
    ],
)
def test_drafts_scheduled_ahead_are_known_when_the_walker_knows_them(seed: int, fields: dict[str, Any]) -> None:
    """What a step brings is cached once the next one is scheduled; a request that is done has no more than its own."""
    config, specs = drawn(seed, **{"num_speculative_tokens": 3, **fields})

    assert_agrees(replace(config, async_scheduling=True), constant_step_times(), specs)


@pytest.mark.parametrize("seed", [1136, 1233, 1243, 1256])
def test_a_pass_that_ends_with_nobody_served_is_made_again(seed: int) -> None:
    """With priorities, the first request gives up its own blocks, and prompts behind it have seats but no chunk."""
    config, specs = drawn(seed, scheduling_policy="priority")
    config = replace(config, ends_pass=True)

    assert_agrees(config, constant_step_times(), specs)


def test_a_pool_of_prompts_hands_over_the_blocks_of_its_requests() -> None:
    """A stand-in holds them until the next pool has them."""
    hybrid = ["model=nemotron-3-nano-30b-a3b", "deployment.hardware=h100-sxm-80gb", "workload.num_requests=20"]
    engine = [f"deployment.engine.{each}" for each in ("version=0.33.0", "enable_prefix_caching=true")]

    assert verify(load("disaggregation", [*hybrid, *engine]), accelerate="off").is_equal


def test_seats_that_compute_nothing_are_those_of_decodes_that_go_on() -> None:
    """Not that of a prompt, nor that of a request that leaves: one that goes on elsewhere has an unfinished row."""
    replica = SimpleNamespace(running=[3, 0, 1, 2], departing=[1], passed_over=[])
    requests = SimpleNamespace(computed_tokens=[0, 0, 8, 0], status=[UNFINISHED] * 4)

    _pass_seats(replica, requests, 1, 4)  # type: ignore[arg-type]

    assert replica.passed_over == [0]


def test_a_state_that_has_been_found_is_not_cached_again() -> None:
    """Where ranks divide the tokens of a block, a state within the next block stands for the one that was found."""
    config = stateful(state_block_size=2)
    specs = with_paths(
        make_specs([0.0, 100.0, 200.0], [5, 7, 7], [1, 1, 1]), [[(0, 4), (place + 1, 8)] for place in range(3)]
    )

    assert assert_agrees(config, constant_step_times(), specs).records.cached_tokens.tolist() == [0, 4, 4]
