"""Drafts of a layer of the model's own (EAGLE, MTP) beside states and windows: what they hold, and what is found."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

from simserve.api import load, verify
from simserve.engine.config import EngineConfig
from simserve.engine.progress import GRID
from simserve.scenario.resolve import resolve
from simserve.sim.simulate import replay
from simserve.workload.requests import RequestSpecs
from tests.agreement import assert_agrees
from tests.builders import constant_step_times, make_specs
from tests.engine import test_state_cache, test_windows_in_blocks
from tests.engine.test_prefix_cache import with_paths
from tests.engine.test_state_cache import BESIDE_BLOCKS, served, stateful
from tests.engine.test_windows_in_blocks import found_by, windowed
from tests.real_engines.compare import RULES, as_vllm, config_of, requests_of, times_of
from tests.real_engines.workloads import OWN_DRAFTS, draw_case

DROPS: dict[str, Any] = {"drops_last_block": True, "keeps_every_state": True}


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({}, [0, 0, 8]),
        ({"hashes_next_token": True}, [0, 0, 4]),
        ({"drops_last_block": True}, [0, 0, 4]),
        ({**DROPS, "max_num_batched_tokens": 8}, [0, 0, 4]),
        # Up to 0.25 the state behind the block that is dropped is used all the same.
        ({**DROPS, "max_num_batched_tokens": 8, "aligns_plainly": True}, [0, 8, 8]),
    ],
)
def test_a_prefix_with_states_is_found_without_its_last_block(fields: dict[str, Any], found: list[int]) -> None:
    """Of two blocks in common: both, one where the token behind them differs, or one where the last is dropped."""
    records = served(stateful(**fields), [19, 19, 19], shared=8)

    assert records.cached_tokens.tolist() == found


@pytest.mark.parametrize(
    ("fields", "shared", "found"),
    [
        ({"hashes_next_token": True}, 12, [0, 0, 8]),
        ({"hashes_next_token": True}, 13, [0, 0, 12]),
        ({"drops_last_block": True}, 13, [0, 0, 8]),
        (DROPS, 13, [0, 8, 8]),
    ],
)
def test_a_prefix_with_windows_is_found_without_its_last_block(
    fields: dict[str, Any], shared: int, found: list[int]
) -> None:
    """A window is looked for one block further and drops it too."""
    assert found_by(windowed(**fields), 3, shared) == found


@pytest.mark.parametrize(
    ("fields", "shared", "found"),
    [
        ({}, 13, [0, 12, 12]),
        ({"hashes_next_token": True}, 12, [0, 8, 8]),
        ({"hashes_next_token": True}, 13, [0, 12, 12]),
        ({"drops_last_block": True}, 13, [0, 8, 8]),
    ],
)
def test_a_prefix_of_attention_alone_is_found_without_its_last_block(
    fields: dict[str, Any], shared: int, found: list[int]
) -> None:
    """Of three blocks in common: all, those in front of the last token in common, or all but the last one."""
    assert found_by(alone(**fields), 3, shared) == found


@pytest.mark.parametrize(
    ("fields", "seated"),
    [
        # Three blocks for 10 tokens, of 9.
        ({"num_lookahead_tokens": 0}, 3),
        # With three slots ahead: four.
        ({}, 2),
        ({"aligns_plainly": True}, 3),
        # Two ranks, each with blocks of its own.
        ({"data_parallel_size": 2}, 4),
        ({"data_parallel_size": 2, "num_blocks": 7}, 2),
    ],
)
def test_drafts_beside_attention_alone_take_slots_ahead(fields: dict[str, Any], seated: int) -> None:
    """Requests are admitted for as many blocks as their first chunk needs with them."""
    config = alone(**{"num_blocks": 9, "max_num_batched_tokens": 40, "max_model_len": 25, **fields})

    assert seated_at_once(config) == seated


def alone(**fields: Any) -> EngineConfig:
    """Return a replica of attention alone with blocks of four tokens and three drafts."""
    drafts = {"num_speculative_tokens": 3, "num_lookahead_tokens": 3}
    return windowed(**{**drafts, "window_groups": 0, "window_tokens": 0, "window_blocks": 0, **fields})


def seated_at_once(config: EngineConfig) -> int:
    """Return how many of four requests of 10 and 2 tokens begin in the first step."""
    specs = replace(with_paths(make_specs([0.0] * 4, [10] * 4, [2] * 4), [[]] * 4), pace=np.full(4, GRID))
    records = replay(config, constant_step_times(), specs).records
    return int((records.scheduled_time == records.scheduled_time.min()).sum())


@pytest.mark.parametrize(
    ("fields", "seated"),
    [
        # Two blocks for 8 tokens and a state each, of 12.
        ({}, 4),
        # With the states of three drafts: six.
        ({"num_draft_states": 3, "window_groups": 4}, 2),
        # With three slots ahead: four.
        ({"num_lookahead_tokens": 3}, 3),
        # The first chunk takes none of them up to 0.24.
        ({"num_lookahead_tokens": 3, "aligns_plainly": True}, 4),
    ],
)
def test_drafts_take_blocks_for_their_states_and_for_what_is_drafted_next(fields: dict[str, Any], seated: int) -> None:
    """Requests are admitted for as many as their first chunk needs with them."""
    config = stateful(num_blocks=12, num_speculative_tokens=3, max_model_len=40, **fields)

    assert seated_at_once(config) == seated


def drawn(seed: int, *, has_states: bool, **fields: Any) -> tuple[EngineConfig, RequestSpecs]:
    """Return a replica short of memory with such drafts, of a release that drops a block or a later one; requests."""
    draw = Random(7 * seed + has_states)
    count = draw.choice([1, 2, 3])
    of_drafts = {"num_speculative_tokens": count, "num_lookahead_tokens": count}
    if has_states:
        config, specs = test_state_cache.drawn(seed, **of_drafts, **fields)
        groups = config.window_groups
        config = replace(
            config,
            num_draft_states=count,
            window_groups=groups * (1 + count),
            num_blocks=config.num_blocks + groups * count,
            enable_prefix_caching=draw.random() < 0.8,
        )
    else:
        config, specs = test_windows_in_blocks.drawn(seed, **of_drafts, max_num_batched_tokens=40, **fields)
    drops = config.aligns_plainly or draw.random() < 0.4
    config = replace(
        config,
        drops_last_block=drops,
        hashes_next_token=not drops,
        caches_results=not drops,
        num_blocks=config.num_blocks + 2 * (1 + config.state_groups),
        max_model_len=config.max_model_len + 2 * count + 1,
    )
    return config, specs


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("has_states", [False, True])
@pytest.mark.parametrize("fields", BESIDE_BLOCKS)
def test_blocks_are_counted_as_the_walker_counts_them(seed: int, has_states: bool, fields: dict[str, Any]) -> None:
    """Ahead or not, whatever else the engine does."""
    config, specs = drawn(seed, has_states=has_states, **fields)

    assert_agrees(config, constant_step_times(), specs)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("fields", BESIDE_BLOCKS)
def test_ranks_count_their_own_blocks_as_the_walker_counts_them(seed: int, fields: dict[str, Any]) -> None:
    """Drafts beside attention alone, on two ranks that step together."""
    config, specs = drawn(seed, has_states=False, **fields)
    config = replace(config, window_groups=0, window_tokens=0, window_blocks=0, data_parallel_size=2)

    assert config.numbers_blocks
    assert_agrees(config, constant_step_times(), specs)


@pytest.mark.parametrize("version", ["0.20.2", "0.33.0"])
@pytest.mark.parametrize("kind", OWN_DRAFTS)
@pytest.mark.parametrize("is_async", [False, True])
def test_workloads_of_the_real_engine_agree(is_async: bool, kind: str, version: str) -> None:
    """The classes that are compared with vLLM's scheduler, on the kernel and the walker."""
    case = as_vllm(draw_case(kind, 41, is_async=is_async), version)

    assert_agrees(config_of(case, RULES[version]), times_of(case), requests_of(case))


@pytest.mark.parametrize(
    "kind", ["states_drafts_prefix_short", "windows_eagle_prefix_short", "eagle_prefix_short", "drafts_short"]
)
@pytest.mark.parametrize(("version", "is_async"), [("0.20.2", False), ("0.33.0", False), ("0.33.0", True)])
def test_compiled_code_counts_them_alike(kind: str, version: str, is_async: bool) -> None:
    """The same records, of replicas short of memory with shared prefixes."""
    case = as_vllm(draw_case(kind, 42, is_async=is_async), version)
    config = config_of(case, RULES[version])
    both = [replay(config, times_of(case), requests_of(case), accelerate=each) for each in ("off", "on")]

    assert both[0].records.finish_time.tolist() == both[1].records.finish_time.tolist()
    assert both[0].records.cached_tokens.tolist() == both[1].records.cached_tokens.tolist()


@pytest.mark.parametrize(
    ("version", "method", "fields"),
    [
        ("0.12", "eagle", (True, False, True)),
        ("0.20.2", "eagle", (True, False, True)),
        ("0.26", "eagle", (True, False, False)),
        ("0.33.0", "eagle", (False, True, False)),
        ("0.33.0", "draft_model", (False, False, False)),
    ],
)
def test_a_release_says_what_drafts_beside_attention_alone_hold(
    version: str, method: str, fields: tuple[bool, bool, bool]
) -> None:
    """vLLM's, of Llama: up to 0.32 the last block is dropped, up to 0.25 the first chunk takes no slots ahead."""
    drafts = f"{{method: {method}, num_speculative_tokens: 3, acceptance_rate: 0.7}}"
    keys = [f"deployment.engine.version={version}", f"deployment.speculative={drafts}"]
    if method == "draft_model":
        keys.append("deployment.speculative.draft_model=llama-3.2-1b")
    config = resolve(load("chatbot", keys)).engine

    assert config.numbers_blocks
    assert config.num_slots_ahead == 3
    assert (config.drops_last_block, config.hashes_next_token, config.aligns_plainly) == fields


@pytest.mark.parametrize("version", ["0.20.2", "0.33.0"])
def test_a_model_that_drafts_is_served_as_the_reference_does(version: str) -> None:
    """Llama and EAGLE with turns of conversations."""
    drafts = "deployment.speculative={method: eagle, num_speculative_tokens: 3, acceptance_rate: 0.7}"
    keys = ["workload.num_requests=40", f"deployment.engine.version={version}", drafts]

    assert verify(load("multi-turn", keys), accelerate="off").is_equal


@pytest.mark.parametrize(("kind", "seed"), [("eagle_short", 121005), ("eagle_prefix_short", 121005)])
def test_drafts_ahead_are_counted_where_memory_nearly_runs_short(kind: str, seed: int) -> None:
    """Nobody seems to wait unless slots ahead count; and a victim's blocks are cached without its unknown tokens."""
    case = as_vllm(draw_case(kind, seed, is_async=True), "0.20.2")

    assert_agrees(config_of(case, RULES["0.20.2"]), times_of(case), requests_of(case))
