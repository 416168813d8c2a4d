"""The tier behind the prefix cache, on cases worked out by hand: what comes back, what it takes, what is forgotten."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from simserve.engine.config import KVTierConfig
from simserve.sim.control import Control
from simserve.sim.simulate import Replay, simulate
from simserve.workload.requests import RequestSpecs
from tests.agreement import assert_agrees
from tests.builders import affine_step_times, make_config, make_faults, make_specs
from tests.engine.test_prefix_cache import with_paths
from tests.theory.builders import make_deployment

TIMES = affine_step_times(step_seconds=1.0, token_seconds=0.1)
PATHS = [[(segment, 16)] for segment in (1, 2, 3, 1)]
"""Nine blocks hold two of these prompts: the first one's blocks have given way when it comes again."""


def served(specs: RequestSpecs, paths: Sequence[Sequence[tuple[int, int]]], **config: Any) -> Replay:
    """Return what kernel and walker agree on: blocks of four tokens, each of them half a second to load."""
    values = {"num_blocks": 9, "max_model_len": 28, "kv_tiers": [{}], **config}
    values["kv_tiers"] = tiers(*values["kv_tiers"])
    return assert_agrees(make_config(enable_prefix_caching=True, **values), TIMES, with_paths(specs, paths))


def tiers(*changes: dict[str, Any]) -> tuple[KVTierConfig, ...]:
    """Return tiers of a hundred blocks, half a second each, with changes."""
    names = ("host", "disk", "remote")
    return tuple(
        KVTierConfig(**{"name": name, "num_blocks": 100, "block_seconds": 0.5, **each})
        for name, each in zip(names, changes, strict=False)
    )


def four() -> RequestSpecs:
    """Return four requests of 17 tokens, long after each other."""
    return make_specs([0.0, 10.0, 20.0, 30.0], 17, 1)


def test_what_gave_way_is_loaded_instead_of_computed() -> None:
    """Four blocks in two seconds and one token, instead of 17 tokens; without a tier nothing is found."""
    run = served(four(), PATHS)
    records = run.records

    assert records.cached_tokens.tolist() == [0, 0, 0, 16]
    seconds = (records.first_token_time - records.scheduled_time).tolist()
    assert seconds == pytest.approx([2.7, 2.7, 2.7, 1.1 + 4 * 0.5])
    assert served(four(), PATHS, kv_tiers=[]).records.cached_tokens.tolist() == [0, 0, 0, 0]
    totals = run.totals.offload
    assert totals is not None
    assert (totals.loaded_blocks, totals.loaded_tokens, totals.load_seconds) == (4, 16, 2.0)


def test_a_latency_is_waited_for_once_a_step() -> None:
    """Two requests load in one step: eight blocks and one latency."""
    specs = make_specs([0.0, 10.0, 20.0, 30.0, 40.0, 40.0], 17, 1)
    paths = [[(segment, 16)] for segment in (1, 2, 3, 4, 1, 2)]
    run = served(specs, paths, kv_tiers=[{"latency": 3.0}], num_blocks=11)

    assert run.records.cached_tokens[-2:].tolist() == [16, 16]
    assert (run.records.first_token_time - run.records.scheduled_time)[-1] == pytest.approx(1.2 + 3.0 + 8 * 0.5)


def test_a_tier_that_is_full_forgets_what_came_least_recently() -> None:
    """Room for two of the four blocks: the beginning of the prompt is kept, which came last."""
    assert served(four(), PATHS, kv_tiers=[{"num_blocks": 2}]).records.cached_tokens.tolist() == [0, 0, 0, 8]


def test_a_prefix_may_lie_partly_on_the_gpu() -> None:
    """A prompt of its own pushes two of the four blocks out: two are found at once, two are loaded."""
    specs = make_specs([0.0, 10.0, 20.0], [17, 25, 17], 1)
    run = served(specs, [[(1, 16)], [], [(1, 16)]])

    assert run.records.cached_tokens.tolist() == [0, 0, 16]
    assert run.totals.offload is not None
    assert run.totals.offload.loaded_blocks == 2


def test_loaded_blocks_leave_the_tier_and_come_back_when_they_give_way() -> None:
    """The first prompt is loaded, gives way again, and is loaded again."""
    specs = make_specs([10.0 * number for number in range(7)], 17, 1)
    paths = [[(segment, 16)] for segment in (1, 2, 3, 1, 2, 3, 1)]
    run = served(specs, paths)

    assert run.records.cached_tokens.tolist() == [0, 0, 0, 16, 16, 16, 16]
    assert run.totals.offload is not None
    assert run.totals.offload.loaded_blocks == 16
    assert run.totals.offload.peak_blocks <= 4 + 4 + 4


def test_a_preempted_request_loads_what_it_had_computed() -> None:
    """Its blocks gave way to the one that went on; instead of being computed again they come back."""
    specs = make_specs([0.0, 0.0], [8, 8], [24, 24])
    config: dict[str, Any] = {"num_blocks": 10, "max_model_len": 40, "max_num_batched_tokens": 16}
    kept, lost = (served(specs, [[], []], kv_tiers=each, **config) for each in ([{}], []))

    assert kept.records.num_preemptions.tolist() == lost.records.num_preemptions.tolist() == [0, 1]
    assert kept.totals.offload is not None
    assert kept.totals.offload.loaded_blocks > 0
    assert kept.totals.offload.loaded_tokens == 0


def test_what_gives_way_in_one_tier_goes_to_the_next() -> None:
    """Room for two of the four blocks in host memory: the other two of them come from the disk, more slowly."""
    run = served(four(), PATHS, kv_tiers=[{"num_blocks": 2}, {"block_seconds": 0.75}])

    assert run.records.cached_tokens.tolist() == [0, 0, 0, 16]
    assert run.totals.offload is not None
    host, disk = run.totals.offload.tiers
    assert (host.loaded_tokens, disk.loaded_tokens) == (8, 8)
    assert (host.load_seconds, disk.load_seconds) == (1.0, 1.5)
    assert (run.records.first_token_time - run.records.scheduled_time)[3] == pytest.approx(1.1 + 2.5)


def test_who_has_the_choice_loads_only_what_is_faster() -> None:
    """A block takes 4 x 0.131 s to compute: half a second to load pays, 0.6 does not, nor does a long latency."""
    fast, slow, far = (
        served(four(), PATHS, kv_tiers=[{"has_choice": True, **each}])
        for each in ({}, {"block_seconds": 0.6}, {"latency": 0.2})
    )

    assert fast.records.cached_tokens.tolist() == [0, 0, 0, 16]
    for run in (slow, far):
        assert run.records.cached_tokens.tolist() == [0, 0, 0, 0]
        assert run.totals.offload is not None
        (tier,) = run.totals.offload.tiers
        assert (tier.loaded_blocks, tier.declined_blocks) == (0, 4)


def test_a_tier_was_as_full_as_it_ever_was() -> None:
    """Twelve blocks while the first beginning is computed again, which takes its four out; later one comes in."""
    specs = make_specs([0.0, 10.0, 20.0, 30.0, 40.0, 50.0], [17, 17, 17, 17, 17, 5], 1)
    paths = [[(segment, 16)] for segment in (1, 2, 3, 4, 1)]
    run = served(specs, [*paths, []], kv_tiers=[{"has_choice": True, "block_seconds": 0.6}])

    assert run.totals.offload is not None
    (tier,) = run.totals.offload.tiers
    assert (tier.peak_blocks, tier.loaded_blocks) == (12, 0)


@pytest.mark.parametrize(("latency", "found"), [(0.08, 16), (0.12, 0)])
def test_a_load_in_two_pieces_waits_for_the_latency_once(latency: float, found: int) -> None:
    """Two beginnings of two blocks: four that load 0.025 s faster than they are computed, less one latency."""
    paths = [[(segment, 8), (10 * segment, 16)] for segment in (1, 2, 3, 1)]
    run = served(four(), paths, kv_tiers=[{"has_choice": True, "latency": latency}])

    assert run.records.cached_tokens.tolist() == [0, 0, 0, found]


def test_what_lies_behind_more_tokens_is_computed_more_slowly() -> None:
    """Two blocks are on the GPU: the next two attend to 8 x 8 + 36 pairs, 0.8 s and 0.4 s, and are loaded in one.

    Their 36 pairs alone would take 0.144 s, and computing would be faster.
    """
    times = affine_step_times(step_seconds=0.0, token_seconds=0.1, prefill_pair_seconds=0.004)
    config = {"num_blocks": 9, "max_model_len": 28, "kv_tiers": tiers({"has_choice": True})}
    specs = with_paths(make_specs([0.0, 10.0, 20.0], [17, 25, 17], 1), [[(1, 16)], [], [(1, 16)]])
    run = assert_agrees(make_config(enable_prefix_caching=True, **config), times, specs)

    assert run.records.cached_tokens.tolist() == [0, 0, 16]
    assert run.totals.offload is not None
    assert run.totals.offload.loaded_blocks == 2


@pytest.mark.parametrize(("comes", "found"), [(True, 0), (False, 16)])
def test_a_prompt_that_waits_keeps_its_beginning_in_the_store(comes: bool, found: int) -> None:
    """Two beginnings fill the store, and a third is written while the first one's next prompt waits, if it has come.

    Then the second gives way, and a prompt that needs it finds nothing; else the first does.
    """
    arrivals = [0.0, 10.0, 20.0, 20.5 if comes else 23.25, 23.5]
    specs = make_specs(arrivals, 17, [1, 1, 4, 1, 1])
    paths = [[(segment, 16)] for segment in (1, 2, 3, 1, 2)]
    store = {"is_shared": True, "num_blocks": 8}
    run = served(specs, paths, kv_tiers=[store], max_num_seqs=1)

    assert run.records.scheduled_time[2] == 20.0
    assert run.records.first_token_time[2] < 23.25
    assert run.records.cached_tokens[4] == found


def test_loads_that_overlap_cost_what_outlasts_the_step() -> None:
    """Four blocks in two seconds beside a step of 1.1."""
    run = served(four(), PATHS, kv_tiers=[{"overlaps": True}])

    assert (run.records.first_token_time - run.records.scheduled_time)[3] == pytest.approx(2.0)
    assert run.totals.offload is not None
    assert run.totals.offload.load_seconds == pytest.approx(0.9)


def test_a_store_knows_what_another_replica_computed() -> None:
    """Two replicas take turns: the second prompt is the first one's, and lies in the store alone."""
    tier = KVTierConfig(name="remote", num_blocks=100, block_seconds=0.5, is_shared=True)
    config = make_config(enable_prefix_caching=True, num_blocks=9, max_model_len=28, kv_tiers=(tier,))
    deployment = replace(make_deployment(config, TIMES, 2), routing="round_robin")
    specs = with_paths(make_specs([0.0, 10.0], 17, 1), [[(1, 16)], [(1, 16)]])

    result = simulate(deployment, specs)

    assert result.records.replica_id.tolist() == [0, 1]
    assert result.records.cached_tokens.tolist() == [0, 16]
    assert (result.records.first_token_time - result.records.scheduled_time)[1] == pytest.approx(1.1 + 2.0)


def test_replicas_queue_for_the_bandwidth_of_a_store() -> None:
    """Two replicas ask at once for four blocks that take the link a second each: one waits four, the other eight."""
    tier = KVTierConfig(name="remote", num_blocks=100, block_seconds=0.5, is_shared=True, store_block_seconds=1.0)
    config = make_config(enable_prefix_caching=True, num_blocks=9, max_model_len=28, kv_tiers=(tier,))
    deployment = replace(make_deployment(config, TIMES, 3), routing="round_robin")
    specs = with_paths(make_specs([0.0, 10.0, 10.0], 17, 1), [[(1, 16)]] * 3)

    records = simulate(deployment, specs).records

    assert (records.first_token_time - records.scheduled_time)[1:].tolist() == pytest.approx([1.1 + 4.0, 1.1 + 8.0])


def test_waiting_for_loads_is_part_of_the_step_time() -> None:
    """The seconds by part add up to those of the steps, also on a replica that is slow for a while."""
    config = make_config(enable_prefix_caching=True, num_blocks=9, max_model_len=28, kv_tiers=tiers({}))
    deployment = make_deployment(config, TIMES, 1)
    slow = Control(faults=make_faults({"kind": "slow", "at": "15 s", "duration": "9 s", "factor": 2}))
    for each in (deployment, replace(deployment, control=slow)):
        totals = simulate(each, with_paths(four(), PATHS)).totals

        assert sum(totals.seconds_by_part.values()) == pytest.approx(totals.busy_seconds)
        assert totals.offload is not None
        assert totals.offload.load_seconds == 2.0


def test_who_gives_way_before_its_last_token_is_known_leaves_what_is_known() -> None:
    """Fourteen blocks of a token, steps scheduled ahead: the second is done as the first needs one more block.

    It had four tokens of prompt and three of answer, of which two are known, and the last of these is not computed yet:
    five go to host memory, where the third, which begins like it, finds five of the six that it could.
    """
    ahead = {"async_scheduling": True, "releases_late": True, "max_num_seqs": 2, "max_num_batched_tokens": 64}
    config = make_config(
        enable_prefix_caching=True, block_size=1, num_blocks=14, max_model_len=14, kv_tiers=tiers({}), **ahead
    )
    specs = with_paths(make_specs([0.25, 1.25, 1.25], [4, 4, 7], [6, 3, 6]), [[], [(2, 7)], [(2, 13)]])

    records = assert_agrees(config, affine_step_times(), specs).records

    assert records.num_preemptions.tolist() == [0, 1, 0]
    assert records.cached_tokens.tolist() == [0, 0, 5]
