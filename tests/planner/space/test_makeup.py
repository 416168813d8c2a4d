"""What a number of replicas stands for: dealt over pools, or a fleet that is scaled."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.planner.search.trial import deployed
from simserve.planner.space.makeup import Makeup, dealt, fewest_of, makeup_of, merged, settings, smallest_fleet
from simserve.scenario.load import load
from simserve.scenario.resolve import resolve
from tests.scenario.builders import make_scenario


@given(st.lists(st.integers(1, 12), min_size=1, max_size=5), st.integers(0, 40))
def test_a_larger_number_takes_nothing_away(weights: list[int], more: int) -> None:
    """What a search over one number leans on: every pool grows or stays, and all of the number is dealt."""
    replicas = len(weights) + more

    here, next_up = dealt(tuple(weights), replicas), dealt(tuple(weights), replicas + 1)

    assert sum(here) == replicas
    assert all(one <= two for one, two in zip(here, next_up, strict=True))
    assert min(here) >= 1


@given(st.lists(st.integers(1, 12), min_size=1, max_size=5))
def test_the_own_number_is_dealt_as_it_stands(weights: list[int]) -> None:
    """The proportions themselves come out at their own sum."""
    assert dealt(tuple(weights), sum(weights)) == tuple(weights)


def test_a_scaled_fleet_keeps_its_share() -> None:
    """2 of 8 is a quarter; one replica is always there, unless none was asked for."""
    assert [fewest_of((2, 8), most) for most in (1, 4, 8, 12)] == [1, 1, 2, 3]
    assert fewest_of((0, 8), 8) == 0


def test_settings_deploy_the_number() -> None:
    """Replicas, pools, or bounds of the autoscaler; the scenario that comes out has them."""
    pools = {"hardware": "h100-sxm-80gb", "pools": [{"name": "a", "replicas": 2}, {"name": "b"}]}
    scaling = {"metric": "queue_depth", "target": 5, "min_replicas": 1, "max_replicas": 4}
    plain, pooled = make_scenario(), make_scenario(deployment=pools)
    scaled = make_scenario(deployment={"hardware": "h100-sxm-80gb", "autoscaling": scaling})

    assert settings(plain.deployment, 3) == {"deployment.replicas": 3}
    assert [pool.replicas for pool in deployed(pooled, {}, 6).deployment.pools] == [4, 2]
    there = deployed(scaled, {}, 8).deployment
    assert there.autoscaling is not None
    assert (there.replicas, there.autoscaling.min_replicas, there.autoscaling.max_replicas) == (2, 2, 8)


def test_what_lies_below_a_block_is_set_inside_of_it() -> None:
    """One override instead of two; the block that was given stays as it was."""
    block = {"deployment.pools": [{"name": "a", "replicas": 1}, {"name": "b", "replicas": 1}], "x": 1}

    found = merged(block, {"deployment.pools.1.replicas": 3, "y": 2})

    assert found == {"deployment.pools": [{"name": "a", "replicas": 1}, {"name": "b", "replicas": 3}], "x": 1, "y": 2}
    assert block["deployment.pools"][1]["replicas"] == 1  # type: ignore[index]


def test_dollars_are_those_of_the_pools() -> None:
    """Each at its own price; GPUs are counted pool by pool."""
    makeup = makeup_of(resolve(load("two-pools")))
    small, large = makeup.usd_per_gpu_hour

    assert makeup.counts(3) == (2, 1)
    assert makeup.num_gpus(3) == 2 * 1 + 1 * 2
    assert small is not None
    assert large is not None
    assert makeup.usd_per_hour(3) == pytest.approx(2 * small + 2 * large)
    assert makeup.most(5) == 4
    assert makeup.most(1) == 0


def test_only_what_is_always_there_bounds_the_bill() -> None:
    """Of a scaled fleet the fewest replicas; it costs at least that, and all of it counts as GPUs."""
    makeup = Makeup(weights=(1,), gpus=(2,), usd_per_gpu_hour=(3.0,), idle_watts=(50.0,), scaled=(1, 4))

    assert makeup.usd_per_hour(8) == 2 * 2 * 3.0
    assert makeup.watts(8) == 2 * 2 * 50.0
    assert makeup.num_gpus(8) == 16
    unknown = Makeup(weights=(1,), gpus=(2,), usd_per_gpu_hour=(None,), idle_watts=(50.0,))
    assert math.isinf(unknown.usd_per_hour(1))


def test_an_encoder_pool_is_there_whatever_the_replicas() -> None:
    """Its GPUs, dollars and watts come once, and leave fewer GPUs for replicas."""
    makeup = makeup_of(resolve(load("encoder-pool")))
    alone = makeup.without_encoders()

    assert (makeup.encoders, alone.encoders) == (2, 0)
    assert [makeup.num_gpus(count) - alone.num_gpus(count) for count in (1, 5)] == [2, 2]
    assert makeup.usd_per_hour(3) - alone.usd_per_hour(3) == pytest.approx(makeup.encoders_usd_per_hour)
    assert makeup.encoders_usd_per_hour > 0
    assert makeup.watts(3) - alone.watts(3) == pytest.approx(makeup.encoders_watts)
    assert makeup.encoders_watts > 0
    assert (makeup.most(8), alone.most(8)) == (3, 4)
    assert makeup.most(1) == 0


def test_a_fault_needs_the_replica_it_names() -> None:
    """A fleet without it cannot be simulated."""
    assert smallest_fleet(load("lost-replica").deployment) == 2
    assert smallest_fleet(load("two-pools").deployment) == 2
    assert smallest_fleet(load("chatbot").deployment) == 1


def test_bounds_of_pools_grow_with_the_number() -> None:
    """No number costs less than a smaller one."""
    makeup = Makeup(weights=(3, 1), gpus=(1, 4), usd_per_gpu_hour=(1.0, 2.0), idle_watts=(50.0, 80.0))

    dollars = [makeup.usd_per_hour(replicas) for replicas in range(2, 30)]

    assert all(one < two for one, two in itertools.pairwise(dollars))
