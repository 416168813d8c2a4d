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
from simserve.sim.cluster import OwnBlocks
from simserve.sim.simulate import replay
from simserve.workload.requests import RequestSpecs
from tests.agreement import assert_agrees
from tests.builders import constant_step_times, make_config, make_specs
from tests.engine.test_prefix_cache import with_paths
from tests.real_engines.compare import RULES, as_vllm, config_of, requests_of, times_of
from tests.real_engines.workloads import WINDOWED, WINDOWED_CACHED, draw_case


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
    arrivals = sorted(draw.choice([0.0, 1.5, 3.25, 7.5, 12.0]) for _ in range(count))
    paths = [
        [(draw.choice([0, 1]), min(draw.randint(4, 30), prompt + output))] if draw.random() < 0.7 else []
        for prompt, output in zip(prompts, outputs, strict=True)
    ]
    specs = make_specs(arrivals, prompts, outputs)
    if draw.random() < 0.7:
        specs = with_paths(specs, paths)
    priority = np.array([draw.randint(0, 2) for _ in range(count)])
    pace = np.array([int(GRID * (1 + draw.random() * config.num_speculative_tokens)) for _ in range(count)])
    return config, replace(specs, priority=priority, pace=pace if config.num_speculative_tokens else None)


@pytest.mark.parametrize("seed", range(11, 41))
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"pipeline_parallel_size": 2, "samples_in_turn": True, "overlaps_chunks": True},
        {"pipeline_parallel_size": 2, "samples_in_turn": True, "keeps_micro_batches": True},
        {"scheduling_policy": "priority"},
        {"scheduling_policy": "priority", "priority_preemption": True},
        {"num_speculative_tokens": 3, "max_num_batched_tokens": 40},
        {"watermark_blocks": 3},
    ],
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
