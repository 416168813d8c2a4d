"""Windows counted block by block: what a prefix needs of them, what is cached, and the reference that says so."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

from simserve.api import load, verify
from simserve.engine.config import EngineConfig
from simserve.engine.progress import GRID
from simserve.errors import InvariantError
from simserve.scenario.resolve import resolve
from simserve.sim.cluster import OwnBlocks
from simserve.sim.simulate import replay
from simserve.workload.requests import RequestSpecs
from tests.agreement import assert_agrees
from tests.builders import constant_step_times, make_config, make_specs
from tests.engine.test_prefix_cache import with_paths
from tests.engine.test_state_cache import BESIDE_BLOCKS, drawn_requests
from tests.real_engines.compare import RULES, as_vllm, config_of, requests_of, times_of
from tests.real_engines.workloads import WINDOWED, WINDOWED_CACHED, draw_case
from tests.sim.test_disaggregation import in_company


def windowed(window: int = 5, **fields: Any) -> EngineConfig:
    """Return a replica with blocks of four tokens, and two groups of layers with a window beside those without."""
    size = fields.get("block_size", 4)
    rules = {
        "block_size": 4,
        "num_blocks": 96,
        "max_num_batched_tokens": 100,
        "window_groups": 2,
        "window_tokens": window,
        "window_blocks": (window - 2) // size + 2,
        **dict.fromkeys(("enable_prefix_caching", "evicts_by_block"), True),
        **fields,
    }
    return make_config(**rules)


def found_by(config: EngineConfig, num_requests: int, shared: int, prompt: int = 20) -> list[int]:
    """Return the cached tokens of prompts a hundred steps apart that have ``shared`` tokens in common."""
    specs = make_specs([100.0 * place for place in range(num_requests)], [prompt] * num_requests, [1] * num_requests)
    specs = with_paths(specs, [[(0, shared), (place + 1, prompt + 1)] for place in range(num_requests)])
    if config.num_speculative_tokens:
        specs = replace(specs, pace=np.full(num_requests, GRID))
    return [int(each) for each in assert_agrees(config, constant_step_times(), specs).records.cached_tokens]


def test_a_prefix_is_found_where_its_last_window_is_cached() -> None:
    """The first prompt keeps the window before its last token, and the second one that before the place they part."""
    assert found_by(windowed(), 3, shared=16) == [0, 16, 16]
    assert found_by(windowed(), 3, shared=12) == [0, 0, 12]


def test_a_release_that_keeps_every_window_finds_all_that_is_shared() -> None:
    """Wherever prompts part, the window before that place is there."""
    assert found_by(windowed(keeps_every_state=True), 3, shared=12) == [0, 12, 12]


def test_a_prefix_shorter_than_a_window_needs_all_of_it() -> None:
    """Of a prompt of 20 tokens, a window of 40 keeps every block."""
    assert found_by(windowed(window=40), 3, shared=12) == [0, 12, 12]


@pytest.mark.parametrize(("window", "found"), [(5, [0, 0, 4]), (6, [0, 4, 4])])
def test_the_token_that_is_computed_is_in_the_window_too(window: int, found: list[int]) -> None:
    """Of a window of five, four tokens before it: one block, and two of a window of six."""
    assert found_by(windowed(window=window), 3, shared=4, prompt=12) == found


@pytest.mark.parametrize(
    ("fields", "fewest"),
    [
        ({}, 18),
        ({"async_scheduling": True}, 22),
        ({"async_scheduling": True, "aligns_plainly": True}, 18),
        ({"pipeline_parallel_size": 2, "samples_in_turn": True}, 22),
    ],
)
def test_a_prompt_is_admitted_for_as_many_blocks_of_a_window_as_it_may_hold(
    fields: dict[str, Any], fewest: int
) -> None:
    """Ten blocks, and in both groups those of four tokens and of the batches of eight under way, and one more."""
    config = windowed(max_num_batched_tokens=8, max_model_len=64, reserve_full_prompt=True, **fields)
    specs = make_specs([0.0], [40], [2])

    assert replay(replace(config, num_blocks=fewest), constant_step_times(), specs).records.scheduled_time[0] == 0.0
    with pytest.raises(InvariantError, match="wait at an empty replica"):
        replay(replace(config, num_blocks=fewest - 1), constant_step_times(), specs)


def test_a_window_that_begins_with_a_block_leaves_one_more_free() -> None:
    """Of six tokens in blocks of four, a layer holds two blocks or three, and a second request fits beside two."""
    config = windowed(window=6, num_blocks=12, max_model_len=24, enable_prefix_caching=False, max_num_seqs=2)
    specs = make_specs([0.1, 1.2], [16, 3], [6, 2])
    counted = assert_agrees(config, constant_step_times(), specs).records.scheduled_time[1]
    together = replay(replace(config, window_tokens=0), constant_step_times(), specs).records.scheduled_time[1]

    assert counted < together


def drawn(seed: int, **fields: Any) -> tuple[EngineConfig, RequestSpecs]:
    """Return a replica that is short of memory or not, and requests of which some share prefixes."""
    draw = Random(seed)
    count, size, groups = draw.randint(3, 9), draw.choice([2, 4, 8]), draw.choice([1, 2, 3])
    prompts = [draw.randint(3, 40) for _ in range(count)]
    outputs = [draw.randint(1, 12) for _ in range(count)]
    longest = max(map(sum, zip(prompts, outputs, strict=True))) + fields.get("num_speculative_tokens", 0)
    spare = draw.choice([draw.randint(2, 12), 200]) + fields.get("watermark_blocks", 0)
    rules = {**RULES[draw.choice(["0.33.0", "0.20.2"])], "enable_prefix_caching": draw.random() < 0.7}
    config = windowed(
        window=draw.randint(2, 24),
        **{**rules, "block_size": size},
        async_scheduling=draw.random() < 0.5,
        window_groups=groups,
        num_blocks=(1 + groups) * (-(-longest // size) + 1) + spare,
        max_num_seqs=draw.choice([2, 4, 8]),
        max_num_batched_tokens=max(2 * size, draw.choice([8, 16, 32])),
        max_model_len=longest + size,
    )
    config = replace(config, **fields)
    return config, drawn_requests(draw, config, prompts, outputs, share=0.7)


@pytest.mark.parametrize("seed", range(11, 41))
@pytest.mark.parametrize(
    "fields",
    [*BESIDE_BLOCKS, {"num_speculative_tokens": 3, "max_num_batched_tokens": 40}],
)
def test_windows_are_counted_as_the_walker_counts_them(seed: int, fields: dict[str, Any]) -> None:
    """Short of memory or not, with a prefix cache or without, whatever else the engine does."""
    config, specs = drawn(seed, **fields)

    assert_agrees(config, constant_step_times(), specs)


@pytest.mark.parametrize("version", ["0.20.2", "0.33.0"])
@pytest.mark.parametrize("kind", [*WINDOWED, *WINDOWED_CACHED])
@pytest.mark.parametrize("is_async", [False, True])
def test_workloads_of_the_real_engine_agree(kind: str, version: str, *, is_async: bool) -> None:
    """The classes that are compared with vLLM's scheduler, on the kernel and the walker."""
    case = as_vllm(draw_case(kind, 40, is_async=is_async), version)

    assert_agrees(config_of(case, RULES[version]), times_of(case), requests_of(case))


def test_a_run_that_memory_suffices_for_counts_windows_together() -> None:
    """One that turns out to be short is repeated; both give what counting block by block gives from the start."""
    for num_blocks in (300, 30):
        config = windowed(num_blocks=num_blocks, max_model_len=32, max_num_seqs=4, max_num_batched_tokens=16)
        specs = make_specs([0.1 * place for place in range(12)], [12] * 12, [12] * 12)
        own = OwnBlocks.of([config], specs, may_return=False)

        assert own.is_assumed
        assert not own.finds_any(config, specs)
        assert own.settled.finds_any(config, specs)
        assert_agrees(config, constant_step_times(), specs)


@pytest.mark.parametrize(
    ("version", "fields", "requests"),
    [
        (
            "0.20.2",
            {"window": 30, "window_groups": 1, "num_blocks": 48, "max_model_len": 145},
            [(0.0, 37, 55, (0, 32)), (1.5, 63, 25, (1, 69)), (1.5, 16, 76, (0, 19)), (61.5, 56, 81, (0, 54))],
        ),
        (
            "0.20.2",
            {"window": 31, "num_blocks": 69, "max_model_len": 164, "async_scheduling": True},
            [
                (0.0, 72, 56, (1, 46)),
                (61.5, 75, 13, (0, 52)),
                (61.5, 79, 77, (1, 59)),
                (61.5, 47, 88, (1, 24)),
                (61.5, 22, 36, (0, 58)),
            ],
        ),
    ],
)
def test_the_steps_of_a_leap_give_back_windows_in_their_order(
    version: str, fields: dict[str, Any], requests: list[tuple[float, int, int, tuple[int, int]]]
) -> None:
    """Long answers, whose windows end between blocks: what is evicted first is what was given back first."""
    config = windowed(**{**RULES[version], "block_size": 8, "max_num_seqs": 4, "max_num_batched_tokens": 64, **fields})
    arrivals, prompts, outputs, paths = map(list, zip(*requests, strict=True))
    specs = with_paths(make_specs(arrivals, prompts, outputs), [[path] for path in paths])

    assert_agrees(config, constant_step_times(), specs)


def test_tokens_are_held_as_if_windows_were_counted_together() -> None:
    """A window that is full grows no further, also where a leap would pass that step; its blocks go sooner."""
    config = windowed(window=6, num_blocks=200, max_model_len=128)
    specs = with_paths(make_specs([0.0, 0.5], [6, 9], [60, 70]), [[(1, 66)], [(2, 79)]])
    counted, together = (
        replay(each, constant_step_times(), specs).totals for each in (config, replace(config, window_tokens=0))
    )

    assert counted.kv_held_token_seconds == together.kv_held_token_seconds
    assert counted.kv_reserved_token_seconds < together.kv_reserved_token_seconds


def short_of_windows() -> tuple[EngineConfig, RequestSpecs]:
    """Return a replica on which nobody waits if windows are counted together: blocks are given back a step late."""
    rules = {"async_scheduling": True, "reserve_full_prompt": True, "enable_prefix_caching": False}
    config = windowed(window=6, num_blocks=37, max_num_seqs=2, max_num_batched_tokens=16, max_model_len=52, **rules)
    return config, make_specs([0.0, *[3.25] * 3], [26, 34, 22, 36], [1, 7, 11, 12])


def test_windows_of_chunks_under_way_may_need_what_is_left() -> None:
    """A run that comes this close to the end of memory is repeated, though nobody has waited."""
    config, specs = short_of_windows()

    assert_agrees(config, constant_step_times(), specs)


def test_pools_beside_each_other_are_as_short_of_windows() -> None:
    """What a cluster decides during the run changes nothing about memory."""
    config, specs = short_of_windows()
    alone = replay(config, constant_step_times(), specs).records
    beside = in_company(specs, [("only", "both", {"engine": config})]).records

    assert beside.scheduled_time.tolist() == alone.scheduled_time.tolist()


@pytest.mark.parametrize(
    ("version", "rules"),
    [
        ("0.20.2", {"keeps_every_state", "aligns_plainly"}),
        ("0.26", {"keeps_every_state"}),
        ("0.29", set()),
    ],
)
def test_a_release_says_which_windows_are_kept_and_when_they_are_passed(version: str, rules: set[str]) -> None:
    """vLLM's, of gpt-oss: the last ones alone from 0.29 on, and a step later from 0.26 on."""
    keys = ["model=gpt-oss-20b", "deployment.hardware=h100-sxm-80gb", f"deployment.engine.version={version}"]
    config = resolve(load("chatbot", keys)).engine

    assert config.numbers_blocks
    assert config.window_tokens == 128
    assert {each for each in ("keeps_every_state", "aligns_plainly") if getattr(config, each)} == rules


def test_compiled_code_counts_them_alike() -> None:
    """The same records, of a replica short of memory with shared prefixes."""
    case = as_vllm(draw_case("windows_prefix_short", 41, is_async=True), "0.33.0")
    config = config_of(case, RULES["0.33.0"])
    both = [replay(config, times_of(case), requests_of(case), accelerate=each) for each in ("off", "on")]

    assert both[0].records.finish_time.tolist() == both[1].records.finish_time.tolist()
    assert both[0].records.cached_tokens.tolist() == both[1].records.cached_tokens.tolist()


def test_a_model_with_windows_is_served_as_the_reference_does() -> None:
    """gpt-oss with turns of conversations, whose prefixes are found by their windows."""
    keys = ["model=gpt-oss-20b", "deployment.hardware=h100-sxm-80gb", "workload.num_requests=40"]

    assert verify(load("multi-turn", [*keys, "deployment.engine.version=0.33.0"]), accelerate="off").is_equal
