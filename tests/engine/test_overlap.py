"""SGLang's overlapped loop, on cases worked out by hand: what is expected, kept and lost before results are known."""

from __future__ import annotations

from typing import Any

import pytest

from tests.agreement import assert_agrees
from tests.builders import constant_step_times, make_config, make_specs
from tests.engine.test_prefix_cache import with_paths

SECOND = constant_step_times(1.0)
SGLANG: dict[str, Any] = {
    "scheduler": "prefill_first",
    "admission": "estimate",
    "max_num_batched_tokens": 64,
    "max_num_seqs": 2,
    "new_token_ratio_initial": 0.0,
    "new_token_ratio_minimum": 0.0,
    "async_scheduling": True,
    "overlaps_results": True,
}


def test_a_token_that_is_not_known_counts_for_nobody_when_a_request_is_retracted() -> None:
    """At 2 s both are to decode into a block each, and one is free: the one with the fewest tokens gives way.

    Each has one, but that of request 1, its last, is of the step that ends at 2 s: so far it has none. Were they equal,
    request 0 would give way, whose prompt is longer.
    """
    config = make_config(**SGLANG, block_size=2, num_blocks=11, max_model_len=22)
    records = assert_agrees(config, SECOND, make_specs([0.0, 0.0], [16, 4], [2, 1])).records

    assert records.scheduled_time.tolist() == [0.0, 1.0]
    assert records.num_preemptions.tolist() == [0, 1]
    assert records.finish_time.tolist() == [3.0, 2.0]


@pytest.mark.parametrize(("overlaps", "found"), [(True, 4), (False, 3)])
def test_who_decodes_once_more_leaves_its_last_token_in_the_tree(overlaps: bool, found: int) -> None:
    """Two tokens of prompt and two of answer, with which the second request begins; the last is computed by then."""
    config = {**SGLANG, "overlaps_results": overlaps, "block_size": 1, "num_blocks": 12, "max_model_len": 12}
    specs = with_paths(make_specs([0.0, 4.5], [2, 6], 2), [[(1, 4)], [(1, 4)]])
    tree = make_config(**config, enable_prefix_caching=True, keeps_radix_tree=True)

    assert assert_agrees(tree, SECOND, specs).records.cached_tokens.tolist() == [0, found]


@pytest.mark.parametrize(("asked", "scheduled"), [(12, 4.0), (14, 5.0)])
def test_a_budget_that_a_running_prompt_has_spent_does_not_hide_that_memory_is_short(
    asked: int, scheduled: float
) -> None:
    """Chunks of four: request 0 has its token at 2 s, request 1 its own at 4 s, and the budget is spent until then.

    At 3 s eight of 13 blocks of four are free, of which the others are expected to take 3, and 2 and a block: 23. For
    request 2, 6 + 12 tokens and a block are less, and it starts at 4 s. 6 + 14 and a block are more: nobody is asked
    again before the two have decoded.
    """
    config = {**SGLANG, "async_scheduling": False, "max_num_batched_tokens": 4, "max_num_seqs": 3}
    config |= {"reserves_page": True, "expects_max_tokens": True}
    specs = make_specs([0.0, 0.0, 0.0], [7, 9, 6], [2, 2, 1], [4, 2, asked])
    records = assert_agrees(make_config(**config, num_blocks=13, max_model_len=40), SECOND, specs).records

    assert records.scheduled_time.tolist() == [0.0, 1.0, scheduled]


def test_a_first_token_waits_while_the_host_hands_over_that_of_who_decodes_once_more() -> None:
    """The step that hands it over decodes both, though request 1 is done: 0.01 s, and 0.1 s for either."""
    host = {"async_output": True, "transfer_step_seconds": 0.01, "transfer_request_seconds": 0.1}
    specs = make_specs([2.25, 2.25], 1, [2, 1])
    records = assert_agrees(make_config(**SGLANG, **host), SECOND, specs).records

    assert records.first_token_time.tolist() == pytest.approx([3.25 + 0.01 + 2 * 0.1, 3.25])


@pytest.mark.parametrize(("arrival", "waits"), [(4.5, False), (5.25, True)])
def test_the_ratio_begins_anew_only_if_nothing_comes_while_the_last_step_runs(arrival: float, waits: bool) -> None:
    """Request 0 ends at 4 s and decodes beyond its end until 5 s, when the ratio is down to nothing.

    Request 1 has decoded once when request 2 is looked at: it may take 6 more tokens of the 9 that are free, and
    request 2 asks for 6. There is room if none of the 6 is expected; after a pause 0.6 of each is.
    """
    ratio = {"new_token_ratio_initial": 1.0, "new_token_ratio_minimum": 0.0, "new_token_ratio_decay": 0.4}
    config = make_config(**{**SGLANG, **ratio, "block_size": 1, "num_blocks": 12, "max_model_len": 12})
    specs = make_specs([0.0, arrival, 5.5], [2, 2, 2], [4, 8, 4])
    records = assert_agrees(config, SECOND, specs).records

    first = max(arrival, 5.0)
    assert records.scheduled_time[1] == pytest.approx(first)
    assert (records.scheduled_time[2] > first + 2.5) == waits


@pytest.mark.parametrize(
    ("arrivals", "prompts", "outputs", "limits", "finishes"),
    [
        (  # who does not fit into the next step is retracted before the last one's results are known
            *([0.0, 4.1, 4.1], [1, 10, 12], [7, 7, 5]),
            {"max_num_batched_tokens": 8, "block_size": 4, "num_blocks": 9, "strikes_at_once": True},
            [9.0, 16.0, 19.0],
        ),
        (  # a retraction raises what others are expected to generate: it comes back behind the fourth
            *([0.0, 4.1, 4.1, 14.4], [1, 10, 12, 5], [7, 7, 5, 7]),
            {"max_num_batched_tokens": 8, "block_size": 4, "num_blocks": 9, "strikes_at_once": True}
            | {"reserves_page": True, "new_token_ratio_decay": 0.017320508},
            [9.0, 16.0, 27.0, 24.0],
        ),
        (  # nobody is retracted while the blocks of one that max_tokens has ended are about to be free
            *([0.0, 1.1], [7, 8], [6, 5]),
            {"max_num_batched_tokens": 4, "block_size": 4, "num_blocks": 7, "skips_ended": True, "max_num_seqs": 3},
            [9.0, 9.0],
        ),
        (  # the last step runs as the fourth comes: the ratio goes on falling, and the fifth is let in at once
            *([0.0, 0.0, 0.0, 8.1, 10.3], [9, 5, 1, 11, 5], [7, 6, 1, 10, 9]),
            {"max_num_batched_tokens": 16, "block_size": 2, "num_blocks": 16, "skips_ended": True, "max_num_seqs": 3}
            | {"reserves_page": True, "new_token_ratio_initial": 0.7, "new_token_ratio_decay": 0.2236068},
            [8.0, 7.0, 9.0, 20.0, 21.0],
        ),
    ],
)
def test_loads_in_which_a_retraction_decides(
    arrivals: list[float], prompts: list[int], outputs: list[int], limits: dict[str, Any], finishes: list[float]
) -> None:
    """Found by a search for small loads that differ where the rule is left out; the walker says when they end."""
    config = make_config(**{**SGLANG, "max_model_len": 24, **limits})

    records = assert_agrees(config, SECOND, make_specs(arrivals, prompts, outputs)).records

    assert records.finish_time.tolist() == pytest.approx(finishes)


def test_a_retraction_of_who_has_ended_raises_the_ratio() -> None:
    """Where prompts are delayed: request 2 has ended, is retracted before that is known, and the ratio rises.

    Request 3 then waits for all that others may still generate. With the ratio as it was it would end at 31 s.
    """
    config = make_config(
        **{**SGLANG, "max_num_seqs": 4, "max_model_len": 21, "block_size": 1, "num_blocks": 20, "max_chunk_tokens": 4}
        | {"new_token_ratio_initial": 0.1},
        strikes_at_once=True,
        prefill_delayer_max_delay_passes=2,
        new_token_ratio_decay=0.001,
    )
    specs = make_specs([0.0, 1.0, 3.25, 3.75], [2, 3, 1, 1], [14, 8, 8, 14], [15, 11, 9, 14])

    records = assert_agrees(config, SECOND, specs).records

    assert records.finish_time.tolist() == [15.0, 10.0, 24.0, 39.0]
