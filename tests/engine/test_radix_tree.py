"""SGLang's radix tree, on cases worked out by hand: what joins it when, what is found, and what gives way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simserve.engine import cache_state
from simserve.engine.config import EngineConfig
from simserve.workload.requests import RequestSpecs
from tests.agreement import assert_agrees
from tests.builders import constant_step_times, make_config, make_specs
from tests.engine.test_prefix_cache import SECOND, served, with_paths

SGLANG: dict[str, Any] = {
    "scheduler": "prefill_first",
    "admission": "estimate",
    "max_model_len": 64,
    "max_num_batched_tokens": 64,
    "new_token_ratio_initial": 0.0,
    "new_token_ratio_minimum": 0.0,
}
"""Beside requests that are expected to end at once."""


@pytest.mark.parametrize(("keeps_radix_tree", "found"), [(False, [0, 16, 16]), (True, [0, 0, 16])])
def test_what_a_step_computes_is_found_when_it_has_ended(keeps_radix_tree: bool, found: list[int]) -> None:
    """Two that are admitted together compute the same beginning; the third, later, finds it."""
    specs = make_specs([0.0, 0.0, 5.0], 20, 2)
    records = served(specs, [[(1, 16)]] * 3, keeps_radix_tree=keeps_radix_tree, **SGLANG).records

    assert records.scheduled_time.tolist() == [0.0, 0.0, 5.0]
    assert records.cached_tokens.tolist() == found


def test_copies_of_what_the_tree_holds_are_free_when_the_step_has_ended() -> None:
    """Two of five blocks each share four after their step: eight of 14 are free, and a third of 21 tokens fits."""
    specs = make_specs([0.0, 0.0, 0.5], 17, [8, 8, 4])
    alike = served(specs, [[(1, 16)], [(1, 16)], []], keeps_radix_tree=True, num_blocks=14, **SGLANG).records
    apart = served(specs, [[], [], []], keeps_radix_tree=True, num_blocks=14, **SGLANG).records

    assert alike.scheduled_time.tolist() == [0.0, 0.0, 1.0]
    assert apart.scheduled_time.tolist()[:2] == [0.0, 0.0]
    assert apart.scheduled_time[2] > 1.0


@pytest.mark.parametrize(("keeps_radix_tree", "found"), [(False, 8), (True, 0)])
def test_a_node_gives_way_whole(keeps_radix_tree: bool, found: int) -> None:
    """Five blocks of seven take two that hold a beginning of four: by segments two are left of it, by nodes none."""
    specs = make_specs([0.0, 10.0, 20.0], [17, 20, 17], 1)
    config = {"num_blocks": 7, "keeps_radix_tree": keeps_radix_tree, **SGLANG}
    records = served(specs, [[(1, 16)], [], [(1, 16)]], **config).records

    assert records.cached_tokens.tolist() == [0, 0, found]


@pytest.mark.parametrize(("evicts_missing", "found"), [(False, 0), (True, 4)])
def test_nodes_give_way_for_a_step_or_for_what_it_is_short_of(evicts_missing: bool, found: int) -> None:
    """Two beginnings of a block each lie idle beside three free blocks, of which a prompt of four is one short."""
    specs = make_specs([0.0, 2.0, 10.0, 20.0], [5, 5, 16, 5], 1)
    prefixes = [[(1, 4)], [(2, 4)], [], [(2, 4)]]
    config = {"num_blocks": 5, "keeps_radix_tree": True, "evicts_missing": evicts_missing, **SGLANG}
    records = served(specs, prefixes, **config).records

    assert records.cached_tokens.tolist() == [0, 0, 0, found]


def test_a_step_that_finds_just_enough_free_blocks_evicts_none() -> None:
    """Three free blocks beside two idle beginnings, and a prompt of three: SGLang evicts only if fewer are free."""
    specs = make_specs([0.0, 2.0, 10.0, 20.0], [5, 5, 12, 5], 1)
    prefixes = [[(1, 4)], [(2, 4)], [], [(2, 4)]]
    records = served(specs, prefixes, num_blocks=5, keeps_radix_tree=True, **SGLANG).records

    assert records.cached_tokens.tolist() == [0, 0, 0, 4]


@pytest.mark.parametrize(("touches_waiting", "found"), [(False, 0), (True, 4)])
def test_the_33rd_look_at_the_queue_uses_what_those_who_wait_would_find(touches_waiting: bool, found: int) -> None:
    """Two beginnings lie idle, and 30 requests without one come after them. Then a long one needs the older's block.

    The last, which waits behind it, begins like the older: its look-up comes first, and the younger gives way.
    """
    arrivals = [0.0, 2.0, *np.arange(10.0, 70.0, 2.0).tolist(), 100.0, 100.0]
    specs = make_specs(arrivals, [5, 5, *[1] * 30, 16, 5], 1)
    prefixes = [[(1, 4)], [(2, 4)], *[[]] * 30, [], [(1, 4)]]
    config = {"num_blocks": 5, "max_num_seqs": 1, "keeps_radix_tree": True, "evicts_missing": True, **SGLANG}
    records = served(specs, prefixes, touches_waiting=touches_waiting, **config).records

    assert records.cached_tokens[-1] == found


@pytest.mark.parametrize(
    ("singles", "outputs", "found"), [(30, 1, 4), (14, 1, 0), (29, 1, 0), (29, 3, 0), (29, 2, 0), (30, 3, 4)]
)
def test_only_every_32nd_look_counts_and_a_queue_without_a_free_seat_is_not_looked_at(
    singles: int, outputs: int, found: int
) -> None:
    """Each request is looked at once, however long it sits in the only seat while the next one waits.

    ``get_new_batch_prefill`` returns before ``calc_priority`` where no request can be allocated.
    """
    between = np.arange(10.0, 10.0 + 2 * singles, 2.0).tolist()
    specs = make_specs(
        [0.0, 2.0, *between, 100.0, 100.0], [5, 5, *[1] * singles, 16, 5], [1, 1, outputs] + [1] * (singles + 1)
    )
    prefixes = [[(1, 4)], [(2, 4)], *[[]] * singles, [], [(1, 4)]]
    config = {"num_blocks": 5, "max_num_seqs": 1, "keeps_radix_tree": True, "evicts_missing": True, **SGLANG}
    records = served(specs, prefixes, touches_waiting=True, **config).records

    assert records.cached_tokens[-1] == found


def test_what_the_head_of_the_queue_would_find_is_used_last() -> None:
    """Behind the long one wait the beginnings of both: that of the first who waits stays, the other gives way."""
    specs = make_specs(
        [0.0, 2.0, *np.arange(10.0, 70.0, 2.0).tolist(), 100.0, 100.0, 100.0], [5, 5, *[1] * 30, 16, 5, 5], 1
    )
    prefixes = [[(2, 4)], [(1, 4)], *[[]] * 30, [], [(1, 4)], [(2, 4)]]
    config = {"num_blocks": 5, "max_num_seqs": 1, "keeps_radix_tree": True, "evicts_missing": True, **SGLANG}
    records = served(specs, prefixes, touches_waiting=True, **config).records

    assert records.cached_tokens[-2:].tolist() == [4, 0]


@pytest.mark.parametrize(("place", "found"), [(127, 4), (128, 0)])
def test_only_the_first_128_of_the_queue_count_as_users(place: int, found: int) -> None:
    """One that begins like the older of two is 128th or 129th in the queue at the 33rd look, behind the long one.

    The others are all in three looks later. Then the long one takes all of the budget, and needs 59 blocks of which 58
    are free beside the two.
    """
    arrivals = [0.0, 2.0, *np.arange(10.0, 70.0, 2.0).tolist(), *[100.0] * (place + 1)]
    specs = make_specs(arrivals, [5, 5, *[1] * (30 + place - 1), 236, 5], 1)
    prefixes = [[(1, 4)], [(2, 4)], *[[]] * (30 + place), [(1, 4)]]
    config = {**SGLANG, "num_blocks": 60, "max_num_seqs": 200, "max_model_len": 240, "max_num_batched_tokens": 236}
    config |= {"keeps_radix_tree": True, "evicts_missing": True, "touches_waiting": True}
    records = assert_agrees(
        make_config(enable_prefix_caching=True, **config), constant_step_times(1.0, 200), with_paths(specs, prefixes)
    ).records

    assert records.cached_tokens[-1] == found


def delayed(specs: RequestSpecs, paths: list[list[tuple[int, int]]], **limits: Any) -> list[int]:
    """Return the tokens that requests find on two ranks whose prompts wait for each other."""
    config = {**SGLANG, "keeps_radix_tree": True, "evicts_missing": True, "data_parallel_size": 2, "max_num_seqs": 2}
    return [int(each) for each in served(specs, paths, **{**config, **limits}).records.cached_tokens]


def test_a_prompt_that_waits_for_other_ranks_keeps_what_it_would_find() -> None:
    """The last one's four tokens, computed at 0.5 s, are looked up while it waits, and others give way first."""
    specs = make_specs([0.0, 4.5, 4.5, 20.5, 20.5], [9, 6, 6, 9, 6], [5, 3, 20, 5, 1])
    paths = [[(3, 8)], [], [], [(2, 4)], [(3, 4)]]

    found = delayed(specs, paths, prefill_delayer_max_delay_passes=4, num_blocks=8, new_token_ratio_initial=0.3)

    assert found == [0, 0, 0, 0, 4]


def test_a_prompt_that_comes_while_all_ranks_compute_others_begins_to_wait_at_once() -> None:
    """Two prompts of 64 in chunks of eight; the third comes in the third step, and waits for others from then on."""
    specs = make_specs([0.0, 0.0, 2.5], [64, 64, 16], [4, 30, 2])
    config = {**SGLANG, "max_num_batched_tokens": 8, "max_model_len": 128, "data_parallel_size": 2, "num_blocks": 60}
    waits = {"prefill_delayer_max_delay_passes": 7, "rotates_ranks": True}
    records = assert_agrees(make_config(**config, **waits), SECOND, specs).records

    assert records.scheduled_time.tolist() == [0.0, 0.0, 9.0]


def test_looks_at_a_queue_that_waits_for_other_ranks_count() -> None:
    """The last one waits for 40 steps; the 32nd look at its queue marks what it would find as used."""
    arrivals = [0.5, 2.5, 2.5, 30.5, 30.5, 33.5, 33.5, 40.5, 40.5]
    specs = make_specs(arrivals, [9, 8, 12, 12, 5, 9, 8, 6, 13], [5, 40, 2, 2, 40, 20, 5, 1, 20])
    paths = [[(1, 4)], [(1, 4)], [(3, 8)], [(1, 8)], [], [(2, 8)], [(2, 4)], [(2, 4)], [(3, 8)]]

    found = delayed(specs, paths, prefill_delayer_max_delay_passes=40, num_blocks=16, touches_waiting=True)

    assert found == [0, 0, 0, 4, 0, 0, 0, 0, 8]


@pytest.mark.parametrize(("keeps_radix_tree", "end"), [(False, 28.0), (True, 30.0)])
def test_who_is_retracted_loses_what_it_has_decoded(keeps_radix_tree: bool, end: float) -> None:
    """Request 1 computes its answer again in chunks of eight; its prompt lies in the tree, as the others' would."""
    config = {"num_blocks": 11, "keeps_radix_tree": keeps_radix_tree, **SGLANG, "max_num_batched_tokens": 8}
    records = served(make_specs([0.0, 0.0], 8, 20), [[], []], **config).records

    assert records.num_preemptions.tolist() == [0, 1]
    assert records.finish_time.tolist() == [21.0, end]


def test_who_is_retracted_stands_behind_its_priority_as_if_it_came_now() -> None:
    """Of the two that matter less request 1 came first, but 2 has waited since 3 s when 1 loses its memory at 15 s."""
    specs = replace(make_specs([0.0, 0.0, 3.0], 8, [20, 20, 4]), priority=np.array([0, 1, 1]))
    config = {**SGLANG, "scheduling_policy": "priority", "num_blocks": 11, "max_num_seqs": 2}
    records = assert_agrees(make_config(**{**config, "max_num_batched_tokens": 16}), SECOND, specs).records

    assert records.num_preemptions.tolist() == [0, 1, 0]
    assert records.scheduled_time.tolist() == [0.0, 1.0, 15.0]
    assert records.finish_time.tolist() == [22.0, 30.0, 19.0]


def test_the_one_with_the_shortest_answer_is_retracted_whatever_its_priority() -> None:
    """Request 1 matters more and came later: it has generated less, and loses its memory."""
    specs = replace(make_specs([0.0, 3.5], 8, 20), priority=np.array([1, 0]))
    config = make_config(**{**SGLANG, "scheduling_policy": "priority", "num_blocks": 11, "max_num_seqs": 2})
    records = assert_agrees(config, SECOND, specs).records

    assert records.num_preemptions.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("states", "found"),
    [({}, [0, 12, 12]), ({"tree_states": 20}, [0, 0, 0]), ({"tree_states": 20, "state_grid": 8}, [0, 0, 8])],
)
def test_a_prefix_is_found_only_where_a_state_is_kept(states: dict[str, int], found: list[int]) -> None:
    """Prompts of 20 begin with the same 12 tokens: states lie at 20, or at 16 and then where they part, at 8."""
    specs = make_specs([0.0, 10.0, 20.0], 20, 2)
    records = served(specs, [[(1, 12)]] * 3, keeps_radix_tree=True, num_blocks=60, **states, **SGLANG).records

    assert records.cached_tokens.tolist() == found


@pytest.mark.parametrize(
    ("states", "found"),
    [
        ({"tree_states": 20}, 24),
        ({"tree_states": 20, "state_grid": 8, "state_interval": 32}, 16),
        ({"tree_states": 20, "state_grid": 8, "state_interval": 8}, 24),
    ],
)
def test_an_answer_leaves_a_state_at_its_end_or_its_last_interval(states: dict[str, int], found: int) -> None:
    """A prompt of 20 with an answer of 6, and a later one that begins with both."""
    specs = make_specs([0.0, 20.0], [20, 40], [6, 1])
    records = served(specs, [[(1, 26)]] * 2, keeps_radix_tree=True, num_blocks=60, **states, **SGLANG).records

    assert records.cached_tokens.tolist() == [0, found]


@pytest.mark.parametrize(("num_states", "found"), [(5, 24), (4, 0)])
def test_the_state_that_was_used_least_recently_gives_way(num_states: int, found: int) -> None:
    """Three conversations would keep two states each: of five, the end of the first answer stays; of four, it goes."""
    specs = make_specs([0.0, 20.0, 40.0, 60.0], [20, 20, 20, 40], [6, 6, 6, 1])
    paths = [[(1, 26)], [(2, 26)], [(3, 26)], [(1, 26)]]
    config = {"tree_states": num_states, "num_blocks": 60, "keeps_radix_tree": True, **SGLANG}
    records = served(specs, paths, **config).records

    assert records.cached_tokens.tolist() == [0, 0, 0, found]


def test_a_leaf_whose_state_gives_way_frees_its_blocks() -> None:
    """Of two states the second conversation takes both: what it evicts of the first one is room for the third."""
    specs = make_specs([0.0, 20.0, 40.0], [20, 20, 20], [6, 6, 6])
    paths = [[(1, 26)], [(2, 26)], [(1, 26)]]
    config = {"tree_states": 3, "seat_states": 1, "num_blocks": 14, "keeps_radix_tree": True, **SGLANG}
    records = served(specs, paths, **config).records

    assert records.cached_tokens.tolist() == [0, 0, 0]
    assert records.scheduled_time.tolist() == [0.0, 20.0, 40.0]


def test_where_prompts_part_counts_only_on_the_grid_of_the_chunk() -> None:
    """The first one leaves states at 8, 20 and 32; the second goes on from 20, and parts at 24, half a grid later."""
    specs = make_specs([0.0, 20.0, 40.0], 40, 1)
    config = {**SGLANG, "max_num_batched_tokens": 12, "tree_states": 20, "state_grid": 8, "num_blocks": 60}
    records = served(specs, [[(1, 28)]] * 3, keeps_radix_tree=True, **config).records

    assert records.cached_tokens.tolist() == [0, 20, 28]


@pytest.mark.parametrize(("keeps_bare_leaves", "found"), [(False, 0), (True, 8)])
def test_a_leaf_that_loses_its_state_is_known_as_a_beginning_if_it_stays(keeps_bare_leaves: bool, found: int) -> None:
    """Two conversations take the first one's states. What is left of its prompt makes the next one leave a state."""
    specs = make_specs([0.0, 20.0, 40.0, 60.0, 80.0], 20, 6)
    paths = [[(1, 26)], [(2, 26)], [(3, 26)], [(1, 12)], [(1, 12)]]
    config = {**SGLANG, "tree_states": 3, "state_grid": 8, "state_interval": 8, "num_blocks": 60}
    records = served(specs, paths, keeps_radix_tree=True, keeps_bare_leaves=keeps_bare_leaves, **config).records

    assert records.cached_tokens.tolist() == [0, 0, 0, 0, found]


def test_a_tree_knows_nothing_of_those_who_have_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts that are computed, retracted and answered: nothing is kept for each, so that long runs take no more."""
    trees: list[cache_state.RadixTree] = []

    class Seen(cache_state.RadixTree):
        def __init__(self, config: EngineConfig) -> None:
            super().__init__(config)
            trees.append(self)

    monkeypatch.setattr(cache_state, "RadixTree", Seen)
    specs = make_specs([0.5 * index for index in range(60)], 20, 30)
    config = {**SGLANG, "tree_states": 12, "state_grid": 8, "num_blocks": 24, "max_num_seqs": 3}
    records = served(specs, [[(index % 4, 12)] for index in range(60)], keeps_radix_tree=True, **config).records

    assert records.num_preemptions.sum() > 0
    assert [(tree.begun, tree.junctions, tree.answering, tree.nodes) for tree in trees] == [({}, {}, {}, {})]
