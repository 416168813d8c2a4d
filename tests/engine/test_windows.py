"""Windows by hand: what requests hold, who waits, who is preempted; walker and kernel alike."""

from __future__ import annotations

from typing import Any

import pytest

from simserve.engine.config import EngineConfig
from simserve.workload.requests import RequestSpecs
from tests.agreement import assert_agrees
from tests.builders import constant_step_times, make_config, make_specs
from tests.walker import Outcome, walk

SECOND = constant_step_times(1.0)


def served(config: EngineConfig, specs: RequestSpecs) -> Outcome:
    """Return what happens, the same in the walker and in the kernel."""
    outcome = walk(config, SECOND, specs)
    assert_agrees(config, SECOND, specs, outcome)
    return outcome


def windowed(**rest: Any) -> EngineConfig:
    """Return a replica with blocks of one token, and layers that hold three tokens of a request."""
    return make_config(**{"block_size": 1, "max_model_len": 16, "window_blocks": 3, "window_groups": 1, **rest})


def test_a_full_window_takes_no_more_blocks() -> None:
    """Two requests of 4 + 6 tokens hold 9 + 3 blocks each at their end: 24 do, 23 do not, and 36 without windows."""
    specs = make_specs([0.0, 0.0], 4, 6)

    def preemptions(num_blocks: int, window_blocks: int) -> int:
        config = windowed(num_blocks=num_blocks, window_blocks=window_blocks)
        return int(served(config, specs).num_preemptions.sum())

    assert preemptions(24, 3) == 0
    assert preemptions(23, 3) == 1
    assert preemptions(24, 16) > 0
    assert preemptions(36, 16) == 0


def test_a_chunk_needs_its_blocks_in_every_layer() -> None:
    """A prompt of 8 in one chunk takes 8 + 8 blocks, and leaves 8 + 3 when its step ends."""

    def scheduled(num_blocks: int) -> list[float]:
        specs = make_specs([0.0, 0.0], [8, 2], [2, 1])
        return served(windowed(num_blocks=num_blocks), specs).scheduled_time.tolist()

    assert scheduled(20) == [0.0, 0.0]
    assert scheduled(19) == [0.0, 1.0]


def test_a_chunk_makes_no_state_longer() -> None:
    """A prompt of 8 in one chunk takes 8 blocks, and 2 for its state from first to last; the next 2 + 2."""

    def scheduled(num_blocks: int, *, keeps_states: bool = True) -> list[float]:
        specs = make_specs([0.0, 0.0], [8, 2], [1, 1])
        config = windowed(num_blocks=num_blocks, window_groups=2, window_blocks=1, keeps_states=keeps_states)
        return served(config, specs).scheduled_time.tolist()

    assert scheduled(14) == [0.0, 0.0]
    assert scheduled(13) == [0.0, 1.0]
    assert scheduled(24, keeps_states=False) == [0.0, 1.0]


def test_states_keep_others_out_as_long_as_their_requests_run() -> None:
    """Each of three requests of a token and its answer needs 3 blocks at the end, one of them for the tokens alone."""
    config = windowed(num_blocks=6, window_groups=2, window_blocks=1, keeps_states=True, block_size=4)

    scheduled = served(config, make_specs([0.0] * 3, 1, 3)).scheduled_time.tolist()

    assert scheduled == [0.0, 0.0, 3.0]


def test_a_pool_of_its_own_admits_by_both() -> None:
    """The pool of the others has room for two prompts of 3; that of the windows for one."""

    def scheduled(num_window_blocks: int) -> list[float]:
        config = windowed(num_blocks=32, window_groups=0, num_window_blocks=num_window_blocks)
        return served(config, make_specs([0.0, 0.0], 3, 2)).scheduled_time.tolist()

    assert scheduled(6) == [0.0, 0.0]
    assert scheduled(5) == [0.0, 2.0]


def test_the_estimate_sees_the_smaller_pool() -> None:
    """SGLang expects 3 + 4 tokens more of the second request; 12 free ones do, 7 do not."""

    def scheduled(num_window_blocks: int) -> float:
        config = windowed(
            num_blocks=32,
            window_groups=0,
            num_window_blocks=num_window_blocks,
            admission="estimate",
            scheduler="prefill_first",
            new_token_ratio_initial=1.0,
            new_token_ratio_minimum=1.0,
        )
        return float(served(config, make_specs([0.0, 0.5], 3, 4)).scheduled_time[1])

    assert scheduled(16) == 1.0
    assert scheduled(7) > 1.0


def test_layers_with_a_window_alone_hold_no_more_however_long_the_answer() -> None:
    """Where no layer sees everything, 3 blocks carry a request of 16 tokens."""
    config = windowed(full_groups=0, num_blocks=3, max_chunk_tokens=1, max_num_batched_tokens=4)
    outcome = served(config, make_specs([0.0], 2, 13))

    assert outcome.num_preemptions.tolist() == [0]
    assert outcome.generated_tokens.tolist() == [13]


@pytest.mark.parametrize(("is_full", "expected"), [(False, 1.0), (True, 3.0)])
def test_a_whole_prompt_is_checked_with_its_window(is_full: bool, expected: float) -> None:
    """A prompt of 8 in chunks of 2 needs 8 + 5 blocks in all; beside 3 + 3 of 18 only its first chunk fits."""
    config = windowed(num_blocks=18, max_chunk_tokens=2, reserve_full_prompt=is_full, max_num_seqs=2)
    outcome = served(config, make_specs([0.0, 0.5], [2, 8], [3, 1]))

    assert outcome.scheduled_time[1] == expected
