"""Prompts that begin alike under TensorRT-LLM's rule, on cases worked out by hand: who waits for whom, and how long."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from simserve.workload.requests import RequestSpecs
from tests.builders import make_specs
from tests.engine.test_prefix_cache import served

ALIKE = [[(1, 16)]] * 5
TENSORRT_LLM = {"waits_for_prefix": True, "admission": "reserve", "max_num_seqs": 8}
TENSORRT_LLM |= {"max_num_batched_tokens": 64, "num_blocks": 64}


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
