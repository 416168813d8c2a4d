"""Where a router sends what it has seen before, and when it does not."""

from __future__ import annotations

from typing import Any

from simserve.sim.affinity import PrefixAffinity, SessionAffinity
from simserve.sim.recorder import Recorder
from simserve.sim.routing import Router
from simserve.sim.routing_spec import RoutingSpec
from simserve.sim.units import Pool, Unit
from tests.builders import constant_step_times, make_config, make_specs


def make_router(affinity: Any, loads: list[int], **spec: Any) -> Router:
    """Return a router over replicas of these loads."""
    config, times = make_config(), constant_step_times().as_lists()
    pool = Pool("", config, times, Recorder(config, times, None))
    units = [Unit(number, pool, 0.0) for number in range(len(loads))]
    for unit, load in zip(units, loads, strict=True):
        unit.load = load
    pool.ready = list(range(len(loads)))
    specs = make_specs([0.0], 1, 1)
    return Router(RoutingSpec(policy="session", **spec), units, [pool], specs, affinity=affinity)


def test_a_session_stays_where_it_began() -> None:
    """Its first request goes to the least loaded, the next ones there too; another session to its own."""
    router = make_router(SessionAffinity([7, 7, 8, 7]), [3, 1, 2])

    assert [router.choose(index) for index in (0, 1)] == [1, 1]
    router._units[1].load = 5
    assert [router.choose(index) for index in (2, 3)] == [2, 1]


def test_a_session_moves_when_its_replica_is_gone() -> None:
    """And stays where it moved to."""
    router = make_router(SessionAffinity([7, 7, 7]), [3, 1, 2])
    assert router.choose(0) == 1

    router._pools[0].ready = [0, 2]
    assert router.choose(1) == 2
    router._pools[0].ready = [0, 1, 2]
    assert router.choose(2) == 2


def test_the_longest_known_prefix_decides() -> None:
    """Request 3 begins as 0 and 1 do, and goes on as 1 does."""
    affinity = PrefixAffinity([0, 2, 5, 6, 9], [1, 10, 1, 2, 11, 5, 1, 2, 12])
    router = make_router(affinity, [0, 9, 9])
    assert router.choose(0) == 0
    affinity.routed(1, 2)
    affinity.routed(2, 1)

    assert affinity.preferred(3, [0, 1, 2]) == 2
    assert affinity.preferred(3, [0, 1]) is None


def test_a_replica_that_is_too_full_is_passed_over() -> None:
    """More than 1.5 times the mean, and more than four above the least: then the least loaded one takes it."""
    affinity = SessionAffinity([7, 7, 7])
    affinity.routed(0, 1)

    assert make_router(affinity, [8, 12, 10]).choose(1) == 1
    assert make_router(affinity, [0, 4, 0]).choose(1) == 1
    assert make_router(affinity, [8, 30, 10]).choose(1) == 0
    affinity.routed(0, 1)
    assert make_router(affinity, [8, 30, 10], imbalance_guard=3.0).choose(1) == 1
