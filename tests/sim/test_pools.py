"""Pools of several kinds behind one router: who goes where, under whose limits, and what it adds up to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simserve.sim.control import Control, RoutingSpec
from simserve.sim.pools import PoolSetup
from simserve.sim.records import FAILED
from simserve.sim.simulate import Simulation, simulate
from simserve.sim.totals import OffloadTotals, TierTotals, offloaded_together
from simserve.workload.class_spec import ClassSpec
from simserve.workload.requests import RequestSpecs
from tests.builders import constant_step_times, make_config, make_specs
from tests.theory.builders import make_deployment, split_parts


def mixed(
    specs: RequestSpecs,
    *,
    slow: dict[str, Any] | None = None,
    allowed: tuple[tuple[int, ...], ...] = (),
    **routing: Any,
) -> Simulation:
    """Return a run of a pool of two replicas of 1 s a step, and one of a replica of 2 s a step."""
    pools = []
    for name, seconds, count, config in (("fast", 1.0, 2, {}), ("slow", 2.0, 1, slow or {})):
        engine, times = make_config(**config), constant_step_times(seconds)
        priced = make_deployment(engine, times).priced
        assert split_parts(times) is not None
        pools.append(PoolSetup(name=name, engine=engine, step_times=times, priced=priced, num_replicas=count))
    control = Control(routing=RoutingSpec(**routing), allowed=allowed)
    deployment = make_deployment(pools[0].engine, pools[0].step_times, 1)
    return simulate(replace(deployment, pools=tuple(pools), control=control), specs)


def classed(specs: RequestSpecs, numbers: list[int]) -> RequestSpecs:
    """Return the requests in two classes."""
    classes = (ClassSpec(name="a", share=0.5), ClassSpec(name="b", share=0.5))
    return replace(specs, classes=classes, request_class=np.array(numbers, dtype=np.int16))


def test_one_router_for_all() -> None:
    """Least outstanding over all three; a request takes as long as its pool's steps."""
    run = mixed(make_specs([0.0, 0.0, 0.0], 1, 5))

    assert run.records.replica_id.tolist() == [0, 1, 2]
    assert run.records.finish_time.tolist() == [5.0, 5.0, 10.0]


def test_a_class_goes_to_its_pool() -> None:
    """Class b to the slow one only, class a anywhere."""
    specs = classed(make_specs([0.0] * 6, 1, 5), [1, 1, 1, 0, 0, 0])
    run = mixed(specs, allowed=((0, 1), (1,)))

    assert run.records.replica_id.tolist() == [2, 2, 2, 0, 1, 0]


def test_a_pool_has_its_own_length_limit() -> None:
    """A prompt of 40 tokens is too long for the slow pool, and so for a class that goes there, or anywhere."""
    specs = classed(make_specs([0.0, 0.0], 40, 5), [0, 1])
    apart = mixed(specs, slow={"max_model_len": 32}, allowed=((0,), (1,)))
    anywhere = mixed(specs, slow={"max_model_len": 32})

    assert apart.records.status.tolist() == [0, FAILED]
    assert anywhere.records.status.tolist() == [FAILED, FAILED]


def test_weights_divide_the_traffic() -> None:
    """Three to one, dealt evenly: as for a canary."""
    specs = make_specs([float(index) for index in range(40)], 1, 1)
    run = mixed(specs, weights={"fast": 3, "slow": 1})

    assert np.count_nonzero(run.records.replica_id == 2) == 10
    assert run.records.replica_id.tolist()[:4].count(2) == 1


def test_the_pools_add_up() -> None:
    """Steps, busy seconds, gaps and parts are those of both; each pool has its own."""
    run = mixed(make_specs([0.0] * 9, 4, 5))
    fast, slow = run.pools

    assert (fast.name, fast.num_replicas, slow.num_replicas) == ("fast", 2.0, 1.0)
    assert run.totals.num_steps == fast.totals.num_steps + slow.totals.num_steps
    assert run.totals.busy_seconds == fast.totals.busy_seconds + slow.totals.busy_seconds == 5 + 5 + 10
    assert run.totals.itl.count == 9 * 4
    assert sum(run.totals.seconds_by_part.values()) == pytest.approx(20.0)
    series = run.totals.series
    assert float(series.busy @ np.diff(series.edges)) * 3 == pytest.approx(20.0)
    held = float(series.kv_usage @ np.diff(series.edges)) * run.totals.kv_capacity_tokens
    assert held == pytest.approx(run.totals.kv_reserved_token_seconds)


def test_tiers_of_several_pools_are_told_as_one() -> None:
    """Traffic adds up; room and the most that was held are those of the largest, seconds a token those of the fastest.

    A tier of another name, or one that replicas share, stays by itself."""
    numbers = {"loaded_blocks": 2, "written_blocks": 3, "declined_blocks": 1, "load_seconds": 0.5, "loaded_tokens": 32}
    small, large = (
        TierTotals(name="host", is_shared=False, num_blocks=size, peak_blocks=size - 1, load_token_seconds=s, **numbers)
        for size, s in ((10, 1e-6), (20, 3e-6))
    )
    shared = replace(small, is_shared=True)

    found = offloaded_together(
        [
            OffloadTotals(tiers=(small, shared), token_seconds=2e-4),
            None,
            OffloadTotals(tiers=(large,), token_seconds=1e-4),
        ]
    )

    assert found is not None
    summed = {name: 2 * value for name, value in numbers.items()}
    assert found.tiers == (replace(large, load_token_seconds=1e-6, **summed), shared)
    assert found.token_seconds == 1e-4
