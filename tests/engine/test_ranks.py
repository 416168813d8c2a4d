"""Prompts that wait for those of other ranks, as by SGLang's delayer: every step takes a second."""

from __future__ import annotations

import numpy as np
import pytest

from simserve.sim.simulate import replay
from simserve.workload.requests import RequestSpecs
from tests.agreement import assert_agrees
from tests.builders import constant_step_times, make_config, make_specs
from tests.walker import walk


def first_tokens(specs: RequestSpecs, **rules: object) -> list[float]:
    """Return when the first tokens come from two ranks whose prompts go first, the same by the walker."""
    limits = {"scheduler": "prefill_first", "data_parallel_size": 2, "prefill_delayer_max_delay_passes": 4} | rules
    config = make_config(**limits)
    times = constant_step_times(1.0, config.max_num_seqs)
    records = replay(config, times, specs).records

    assert np.allclose(walk(config, times, specs).first_token_time, records.first_token_time, atol=1e-9)
    return [round(each, 9) for each in records.first_token_time]


def test_a_prompt_waits_for_one_at_the_other_rank() -> None:
    """The second goes to the idle rank at 1, where it waits in three steps of the first; the third lets both begin."""
    alone, joined = make_specs([0.0, 0.5], 4, [20, 2]), make_specs([0.0, 0.5, 2.5], 4, [20, 2, 2])

    assert first_tokens(alone, prefill_delayer_max_delay_passes=0) == [1.0, 2.0]
    assert first_tokens(alone) == [1.0, 5.0]
    assert first_tokens(joined) == [1.0, 4.0, 4.0]


@pytest.mark.parametrize(("in_turn", "begins"), [(True, 10.0), (False, 5.0)])
def test_the_rank_whose_turn_it_is_gets_a_request_however_many_it_has(in_turn: bool, begins: float) -> None:
    """The first runs until 10 s and the second until 2 s, each in the one seat of its rank; the third comes later."""
    specs = make_specs([0.0, 0.0, 4.5], 4, [10, 2, 1])

    times = first_tokens(specs, max_num_seqs=1, prefill_delayer_max_delay_passes=0, rotates_ranks=in_turn)

    assert times == [1.0, 1.0, begins + 1.0]


def test_prompts_that_follow_wait_anew() -> None:
    """Each for at most three steps of its own, however long others have waited."""
    specs = make_specs([0.0, 0.5, 5.5], 4, [30, 2, 2])

    assert first_tokens(specs) == [1.0, 5.0, 10.0]


def test_nothing_waits_where_nothing_runs() -> None:
    """Two at an idle replica, one of them alone, begin at once."""
    assert first_tokens(make_specs([0.0], 4, [2])) == [1.0]
    assert first_tokens(make_specs([0.0, 0.0, 0.0], 4, [2, 2, 2]))[:2] == [1.0, 1.0]


def test_a_rank_with_little_in_memory_does_not_wait() -> None:
    """It is empty, so below any watermark."""
    specs = make_specs([0.0, 0.5], 4, [20, 2])

    assert first_tokens(specs, prefill_delayer_token_usage_low_watermark=0.1) == [1.0, 2.0]


@pytest.mark.parametrize(
    ("rules", "begins"),
    [
        ({}, 5.0),
        ({"delays_for_seats": True}, 10.0),
        ({"delays_for_seats": True, "bounds_prompt_delay": True}, 8.0),
        ({"delays_for_seats": True, "bounds_prompt_delay": True, "prefill_delayer_max_delay_passes": 3}, 7.0),
    ],
)
def test_prompts_wait_for_as_many_seats_as_the_largest_batch_took(rules: dict[str, object], begins: float) -> None:
    """Six begin together. One of each rank ends at 3, whose seat is given away the first time, and again at 5.

    From then on the next two wait until the others end at 10, or for three steps.
    """
    lengths = [3, 3, 9, 9, 9, 9, 2, 2, 2, 2]
    specs = make_specs([0.0] * 6 + [0.5] * 4, 4, lengths)

    times = first_tokens(specs, max_num_seqs=3, max_num_batched_tokens=12, **rules)

    assert times[:6] == [1.0] * 6
    assert times[6:8] == [4.0, 4.0]
    assert times[8:] == [begins + 1.0] * 2


def test_the_largest_batch_decays_step_by_step() -> None:
    """Ten of each rank begin together. One seat is given away the first time, at 3; from 5 on eight are free.

    Ten times 0.998 to the 53rd is the first below nine, and as many as eight seats are enough.
    """
    lengths = [3] * 2 + [5] * 16 + [200] * 2 + [200] * 2 + [2] * 2
    specs = make_specs([0.0] * 20 + [0.5] * 4, 4, lengths)
    rules = {"delays_for_seats": True, "bounds_prompt_delay": True, "prefill_delayer_max_delay_passes": 100}

    times = first_tokens(specs, max_num_seqs=10, max_num_batched_tokens=40, **rules)

    assert times[:20] == [1.0] * 20
    assert times[20:22] == [4.0, 4.0]
    assert times[22:] == [54.0, 54.0]


def test_a_rank_forgets_all_but_its_last_sixteen_batches() -> None:
    """As above; of the sixteen, one begins at 3 and fifteen wait from 6 on; at 21 the ten are forgotten."""
    lengths = [3] * 2 + [5] * 16 + [200] * 2 + [200] * 2 + [2] * 2
    specs = make_specs([0.0] * 20 + [0.5] * 4, 4, lengths)
    rules = {"delays_for_seats": True, "bounds_prompt_delay": True, "forgets_batches": True}
    limits = {"max_num_seqs": 10, "max_num_batched_tokens": 40, "prefill_delayer_max_delay_passes": 100}

    times = first_tokens(specs, **limits, **rules)

    assert times[20:] == [4.0, 4.0, 22.0, 22.0]


def test_waits_without_work_push_larger_batches_out() -> None:
    """A prompt that comes while nothing runs counts as often as it would have had to wait: two of 0 are forgotten at 2.

    At 11 one seat is free at the fuller rank, as many as the largest batch since then took.
    """
    specs = make_specs([0.0] * 3 + [2.0, 2.5, 2.5] + [10.0, 10.5, 10.5], 4, [1] * 3 + [3] * 3 + [5] * 3)
    rules = {"delays_for_seats": True, "bounds_prompt_delay": True, "forgets_batches": True}

    times = first_tokens(specs, max_num_seqs=2, prefill_delayer_max_delay_passes=20, **rules)

    assert times == [1.0, 1.0, 1.0, 3.0, 4.0, 4.0, 11.0, 12.0, 12.0]


RELEASES = [{}, {"delays_for_seats": True}, {"delays_for_seats": True, "bounds_prompt_delay": True}]
"""Rules of SGLang 0.5.9, 0.5.10 and 0.5.17."""


@pytest.mark.parametrize(("rules", "begins"), list(zip(RELEASES, [4.0, 1.0, 4.0], strict=True)))
def test_a_rank_that_lacks_memory_has_no_prompt(rules: dict[str, object], begins: float) -> None:
    """The third request finds no room beside the first, so that the fourth waits for three steps, but in 0.5.10."""
    specs = make_specs([0.0, 0.0, 0.5, 0.5], 4, [20, 6, 8, 2])
    limits = {"admission": "estimate", "new_token_ratio_initial": 1.0, "num_blocks": 8}

    assert first_tokens(specs, **limits, **rules)[3] == begins + 1.0


@pytest.mark.parametrize(("rules", "begins"), list(zip(RELEASES, [5.0, 5.0, 2.0], strict=True)))
def test_a_rank_amid_a_prompt_has_one(rules: dict[str, object], begins: float) -> None:
    """The first needs four steps for its prompt. The third comes in the second one, and waits up to 0.5.16."""
    specs = make_specs([0.0, 0.0, 1.5], [16, 4, 4], [10, 1, 2])

    assert first_tokens(specs, max_num_batched_tokens=4, **rules)[2] == begins + 1.0


def test_as_many_seats_as_the_largest_batch_took_are_enough() -> None:
    """Two of each rank begin together, and a third in the last seat. When the two have ended, the next begins."""
    specs = make_specs([0.0] * 4 + [0.5] * 2 + [10.5] * 2, 4, [10] * 4 + [60] * 2 + [2] * 2)

    times = first_tokens(specs, max_num_seqs=3, delays_for_seats=True)

    assert times == [1.0] * 4 + [2.0] * 2 + [12.0] * 2


@pytest.mark.parametrize(
    ("seats", "passes", "tokens", "load", "begins"),
    [
        (
            *(1, 2, 16),
            "0:12:7 0:4:1 0:4:7 0:4:5 1.486:4:2 3.818:4:8 3.857:12:5 6.991:12:5 7.993:12:7 9.623:12:4 10.072:4:3",
            [1.0, 1.0, 8.0, 2.0, 7.0, 15.0, 9.0, 23.0, 14.0, 21.0, 28.0],
        ),
        (
            *(3, 3, 8),
            "0:12:4 0:4:4 0:4:3 0:4:1 0:4:2 0:4:6 0:12:2 0:4:5 6.602:4:7 11.872:4:8",
            [2.0, 1.0, 2.0, 1.0, 6.0, 2.0, 8.0, 6.0, 11.0, 16.0],
        ),
    ],
)
def test_seats_of_those_that_have_ended_are_not_free_before_the_next_step(
    seats: int, passes: int, tokens: int, load: str, begins: list[float]
) -> None:
    """Where steps are scheduled ahead, ranks agree before they know of it: such a rank lacks a seat, or has fewer."""
    rows = [[float(part) for part in each.split(":")] for each in load.split()]
    arrivals, prompts, outputs = (list(column) for column in zip(*rows, strict=True))
    specs = make_specs(arrivals, [int(each) for each in prompts], [int(each) for each in outputs])
    limits = {"max_num_seqs": seats, "max_num_batched_tokens": tokens, "prefill_delayer_max_delay_passes": passes}
    late = {"scheduler": "mixed", "async_scheduling": True, "releases_late": True, "delays_for_seats": True}

    assert first_tokens(specs, **limits, **late) == begins


NEWEST = {"delays_for_seats": True, "bounds_prompt_delay": True, "forgets_batches": True}
"""Rules of SGLang from 0.5.18 on."""
DECAYING: dict[str, object] = {
    "admission": "estimate",
    "keeps_ratio": True,
    "new_token_ratio_minimum": 0.1,
    "new_token_ratio_decay": 0.1,
    "max_num_seqs": 3,
    "prefill_delayer_max_delay_passes": 3,
}
"""A replica whose expectation of answers falls with every step."""


@pytest.mark.parametrize(
    ("arrivals", "prompts", "outputs", "limits", "begins"),
    [
        (  # a batch counts no more requests than there are seats
            [0.0, 0.0, 0.0, 1.5, 2.5, 4.5, 4.5, 20.5],
            [8, 4, 8, 12, 2, 12, 12, 12],
            [3, 2, 3, 20, 2, 1, 20, 20],
            NEWEST | {"prefill_delayer_max_delay_passes": 3, "max_num_seqs": 2, "max_num_batched_tokens": 4},
            [2.0, 1.0, 4.0, 5.0, 7.0, 9.0, 11.0, 26.0],
        ),
        (  # one that begins counts the requests that begin
            [0.0, 0.5, 1.5, 2.5, 2.5, 2.5, 12.5],
            [12, 2, 12, 12, 2, 4, 4],
            [8, 1, 3, 20, 8, 2, 20],
            NEWEST
            | {"max_num_seqs": 2, "max_num_batched_tokens": 4}
            | {"admission": "estimate", "new_token_ratio_initial": 0.3, "num_blocks": 8},
            [3.0, 2.0, 6.0, 6.0, 10.0, 10.0, 19.0],
        ),
        (  # the chunk that comes next takes its blocks first
            [0.0, 0.0, 0.0, 1.5, 12.5],
            [12, 2, 12, 2, 4],
            [8, 3, 3, 8, 20],
            {"prefill_delayer_max_delay_passes": 3, "max_num_seqs": 3, "max_num_batched_tokens": 8}
            | {"admission": "estimate", "new_token_ratio_initial": 1.0, "num_blocks": 8},
            [2.0, 1.0, 14.0, 5.0, 16.0],
        ),
        (  # and its request the tokens that it may come to
            [0.5, 1.5, 1.5, 8.5, 20.5],
            [12, 8, 12, 4, 4],
            [8, 1, 20, 2, 3],
            {"max_num_seqs": 2, "max_num_batched_tokens": 8}
            | {"admission": "estimate", "new_token_ratio_initial": 1.0, "num_blocks": 12},
            [2.5, 5.5, 11.5, 10.5, 24.5],
        ),
        (  # where nothing runs, ranks that all have a prompt do not look at seats
            [0.0, 0.0, 0.0, 0.5, 1.5, 1.5, 4.5, 12.5, 20.5],
            [8, 12, 8, 8, 2, 12, 12, 12, 8],
            [3, 3, 8, 2, 20, 20, 2, 1, 3],
            NEWEST
            | {"prefill_delayer_max_delay_passes": 20, "max_num_seqs": 2, "max_num_batched_tokens": 40}
            | {"admission": "estimate", "new_token_ratio_initial": 1.0, "num_blocks": 12},
            [1.0, 1.0, 1.0, 5.0, 5.0, 5.0, 25.0, 25.0, 27.0],
        ),
        (  # requests that are retracted meanwhile go behind those that wait
            [0.0, 0.5, 4.5, 4.5, 4.5, 12.5, 12.5, 20.5, 20.5],
            [2, 4, 4, 4, 8, 8, 4, 4, 4],
            [20, 2, 2, 20, 1, 20, 8, 2, 8],
            NEWEST
            | {"max_num_seqs": 3, "max_num_batched_tokens": 40}
            | {"admission": "estimate", "new_token_ratio_initial": 0.3, "num_blocks": 8},
            [1.0, 5.0, 6.0, 6.0, 6.0, 26.0, 17.0, 28.0, 28.0],
        ),
        (  # a rank whose batch turns out to be empty idles along, and looks again with the others
            [2.5, 8.5, 12.5],
            [12, 12, 12],
            [20, 20, 20],
            {"prefill_delayer_max_delay_passes": 3, "max_num_seqs": 3, "max_num_batched_tokens": 40}
            | {"admission": "estimate", "new_token_ratio_initial": 0.3, "num_blocks": 12},
            [3.5, 11.5, 26.5],
        ),
        (  # a ratio that is kept begins anew only where nobody waits
            [0.0, 4.5, 8.5, 8.5, 12.5],
            [12, 4, 8, 8, 4],
            [5, 5, 5, 2, 5],
            DECAYING
            | {"delays_for_seats": True, "bounds_prompt_delay": True, "new_token_ratio_initial": 1.0}
            | {"max_num_batched_tokens": 8, "num_blocks": 6},
            [2.0, 7.0, 12.0, 14.0, 14.0],
        ),
        (  # a refusal by memory amid a prompt holds once that has ended
            [0.5, 2.5, 2.5, 2.5, 12.5],
            [4, 8, 4, 4, 8],
            [2, 20, 2, 20, 5],
            DECAYING | NEWEST | {"new_token_ratio_initial": 0.6, "max_num_batched_tokens": 4, "num_blocks": 12},
            [1.5, 4.5, 3.5, 8.5, 16.5],
        ),
        (  # a budget that the chunk of a running prompt spends hides that memory is short: the rank has a prompt
            [0.0, 0.0, 0.0],
            [8, 1, 8],
            [7, 1, 9],
            {"prefill_delayer_max_delay_passes": 3, "max_num_seqs": 3, "max_num_batched_tokens": 4, "block_size": 2}
            | {"admission": "estimate", "new_token_ratio_initial": 0.7, "new_token_ratio_minimum": 0.7}
            | {"num_blocks": 16, "max_model_len": 24, "strikes_at_once": True}
            | {"async_scheduling": True, "overlaps_results": True},
            [2.0, 1.0, 5.0],
        ),
        (  # a token that is on its way is still expected: memory refuses the prompt, and the rank has none
            [0.0, 2.1, 2.1],
            [7, 1, 6],
            [8, 1, 3],
            {"prefill_delayer_max_delay_passes": 5, "max_num_seqs": 2, "max_num_batched_tokens": 40, "block_size": 1}
            | {"admission": "estimate", "new_token_ratio_initial": 0.31830988, "new_token_ratio_minimum": 0.042}
            | {"new_token_ratio_decay": 0.0010033333, "num_blocks": 25, "max_model_len": 24, "reserves_page": True}
            | {"expects_max_tokens": True, "delays_for_seats": True, "bounds_prompt_delay": True}
            | {"async_scheduling": True, "overlaps_results": True},
            [1.0, 9.0, 11.0],
        ),
    ],
)
def test_loads_in_which_one_rule_decides(
    arrivals: list[float], prompts: list[int], outputs: list[int], limits: dict[str, object], begins: list[float]
) -> None:
    """Found by a search for small loads that differ where the rule is left out; the walker says when they begin."""
    assert first_tokens(make_specs(arrivals, prompts, outputs), **limits) == begins


LATE: dict[str, object] = {
    "admission": "estimate",
    "async_scheduling": True,
    "overlaps_results": True,
    "new_token_ratio_initial": 0.0,
    "new_token_ratio_minimum": 0.0,
}
"""SGLang's overlapped loop."""


@pytest.mark.parametrize(("skips_ended", "begins"), [(False, 4.0), (True, 3.0)])
def test_a_prompt_waits_for_a_request_that_decodes_beyond_its_end(skips_ended: bool, begins: float) -> None:
    """The first has its last token at 3, which is not known when the next step is launched: it decodes once more.

    Up to 0.5.21. Later releases know it, launch nothing, and agree again at 3, when nothing runs.
    """
    specs = make_specs([0.0, 0.5], 4, [3, 2])

    assert first_tokens(specs, **LATE, skips_ended=skips_ended) == [1.0, begins + 1.0]


def test_a_rank_that_waits_for_blocks_idles_along() -> None:
    """Nine blocks: those of the third are free when it has ended at 5, and the first, at its rank, idles until 6.

    It has tokens at 1 and 2, waits for the prompt of the third until 3, and has more at 4, 5, 7, 8 and 9.
    """
    limits = {"scheduler": "prefill_first", "data_parallel_size": 2, "block_size": 1, "num_blocks": 9}
    config = make_config(**LATE, **limits, max_model_len=9, skips_ended=True)
    specs = make_specs([0.0, 0.0, 0.5], 2, [7, 7, 3])

    replayed = assert_agrees(config, constant_step_times(1.0, config.max_num_seqs), specs)

    assert replayed.records.finish_time.tolist() == [9.0, 7.0, 5.0]
    assert replayed.totals.itl.total == 8.0 + 6.0 + 2.0
