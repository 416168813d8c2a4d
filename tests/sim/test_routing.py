"""Which replica an arrival goes to."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simserve.sim.cluster import Routing
from simserve.sim.control import Control
from simserve.sim.records import RequestRecords
from simserve.sim.routing_spec import RoutingSpec
from simserve.sim.simulate import replay, simulate
from simserve.workload.requests import RequestSpecs
from tests.builders import constant_step_times, make_closed_loop, make_config, make_specs
from tests.theory.builders import make_deployment


def routed(specs: RequestSpecs, num_replicas: int, routing: Routing, seats: int = 4) -> RequestRecords:
    """Return the records behind a router; every step takes a second."""
    config = make_config(max_num_seqs=seats)
    return simulate(make_deployment(config, constant_step_times(1.0), num_replicas, routing), specs).records


def test_round_robin_deals_in_turn() -> None:
    """Whatever their load, replicas take turns in order of arrival."""
    records = routed(make_specs([0.0, 0.1, 9.0, 9.0, 9.5, 30.0, 31.0], 4, [40, 1, 1, 1, 1, 1, 1]), 3, "round_robin")

    assert records.replica_id.tolist() == [0, 1, 2, 0, 1, 2, 0]


def test_a_prompt_that_is_too_long_takes_no_turn() -> None:
    """It fails before it is routed, so the next request takes the turn."""
    records = routed(make_specs([0.0, 1.0, 2.0], [4, 99, 4], 1), 2, "round_robin")

    assert records.replica_id.tolist() == [0, -1, 1]


def test_least_outstanding_goes_where_fewest_are() -> None:
    """Replica 0 works on a long answer, so three short ones find replica 1 no fuller than it."""
    records = routed(make_specs([0.0, 0.5, 5.0, 10.0], 4, [40, 2, 2, 2]), 2, "least_outstanding")

    assert records.replica_id.tolist() == [0, 1, 1, 1]


def test_least_outstanding_counts_the_waiting_too() -> None:
    """One seat each: a queue of one at replica 0 sends the next request to the idle seat, then to the shorter queue."""
    specs = make_specs([0.0, 0.1, 0.2, 0.3, 0.4], 4, [40, 3, 40, 40, 40])
    records = routed(specs, 2, "least_outstanding", seats=1)

    assert records.replica_id.tolist() == [0, 1, 0, 1, 0]


def test_ties_go_to_the_lowest_replica() -> None:
    """Idle replicas are all as good: the first is taken, again and again."""
    records = routed(make_specs([0.0, 10.0, 20.0], 4, 2), 4, "least_outstanding")

    assert records.replica_id.tolist() == [0, 0, 0]


def test_simultaneous_arrivals_spread() -> None:
    """Each counts for the next, though all arrive at one instant."""
    records = routed(make_specs([1.0] * 8, 4, 2), 4, "least_outstanding")

    assert records.replica_id.tolist() == [0, 1, 2, 3, 0, 1, 2, 3]


def test_a_finish_comes_before_an_arrival_at_its_instant() -> None:
    """Replica 1 answers at 2.0; the request that arrives then counts it as empty."""
    records = routed(make_specs([0.0, 0.0, 2.0], 4, [9, 2, 1]), 2, "least_outstanding")

    assert records.replica_id.tolist() == [0, 1, 1]


def test_a_finish_just_after_an_arrival_does_not_count() -> None:
    """A thousandth of a second earlier both hold one, and the tie goes to replica 0."""
    records = routed(make_specs([0.0, 0.0, 1.999], 4, [9, 2, 1]), 2, "least_outstanding")

    assert records.replica_id.tolist() == [0, 1, 0]


@pytest.mark.parametrize("routing", ["round_robin", "least_outstanding"])
def test_one_replica_behind_a_router_is_one_replica(routing: Routing) -> None:
    """Nothing to choose: the records are those of `replay`, to the last bit."""
    specs = make_specs([0.4 * index for index in range(30)], [3, 9, 5] * 10, [7, 2, 12, 1, 4] * 6)
    config, times = make_config(num_blocks=12, max_model_len=24), constant_step_times(1.0)

    routed_records = simulate(make_deployment(config, times, 1, routing), specs).records

    alone = replay(config, times, specs).records
    assert routed_records.finish_time.tolist() == alone.finish_time.tolist()
    assert routed_records.num_preemptions.tolist() == alone.num_preemptions.tolist()


@pytest.mark.parametrize("routing", ["round_robin", "least_outstanding"])
def test_replicas_do_not_know_of_each_other(routing: Routing) -> None:
    """What each replica was given, it serves as if it were alone."""
    specs = make_specs([0.35 * index for index in range(60)], [3, 9, 5] * 20, [7, 2, 12, 1, 4] * 12)
    config, times = make_config(num_blocks=12, max_model_len=24), constant_step_times(1.0)

    records = simulate(make_deployment(config, times, 3, routing), specs).records

    for number in range(3):
        own = records.replica_id == number
        share = make_specs(specs.arrival_time[own].tolist(), specs.prompt_tokens[own], specs.output_tokens[own])
        assert replay(config, times, share).records.finish_time.tolist() == records.finish_time[own].tolist()


def test_least_outstanding_in_a_closed_loop_evens_out() -> None:
    """Eight clients on four replicas: never more than two requests on one."""
    specs = make_closed_loop(8, [4] * 200, [3, 9, 1, 5, 7] * 40)
    records = routed(specs, 4, "least_outstanding")

    for number in range(4):
        own = records.replica_id == number
        arrivals, finishes = records.arrival_time[own], np.sort(records.finish_time[own])
        inside = np.arange(1, own.sum() + 1) - np.searchsorted(finishes, np.sort(arrivals), side="right")
        assert inside.max() == 2


def make_control(policy: str, **routing: float) -> Control:
    """Return a router alone."""
    return Control(routing=RoutingSpec(policy=policy, **routing))


def controlled(specs: RequestSpecs, num_replicas: int, control: Control, seats: int = 4) -> RequestRecords:
    """Return the records behind a router; every step takes a second."""
    config = make_config(max_num_seqs=seats)
    deployment = make_deployment(config, constant_step_times(1.0, max(seats, 8)), num_replicas)
    return simulate(replace(deployment, control=control), specs).records


def test_least_tokens_weighs_requests() -> None:
    """A long request counts for more than two short ones."""
    specs = make_specs([0.0, 0.1, 0.2, 0.3], [20, 4, 4, 4], [30, 5, 5, 5])
    records = controlled(specs, 2, make_control("least_tokens"))

    assert records.replica_id.tolist() == [0, 1, 1, 1]


def test_random_spreads_evenly_and_repeats_itself() -> None:
    """Each replica gets a third within four standard errors; the same seed draws the same."""
    specs = make_specs([0.1 * index for index in range(900)], 1, 1)
    first, again = (controlled(specs, 3, make_control("random")).replica_id.tolist() for _ in range(2))
    other = controlled(replace(specs, seed=7), 3, make_control("random")).replica_id.tolist()

    assert first == again != other
    assert np.bincount(first) == pytest.approx(300, abs=4 * (900 * 2 / 9) ** 0.5)


def test_power_of_two_never_picks_the_fullest() -> None:
    """Of three replicas the one with a long answer is never the less loaded of two."""
    specs = make_specs([0.0, *(1.0 + 3.0 * index for index in range(18))], 1, [60, *[2] * 18])
    records = controlled(specs, 3, make_control("power_of_two"))

    assert records.replica_id[0] not in records.replica_id[1:].tolist()


def test_a_stale_view_sends_everybody_to_the_same_replica() -> None:
    """Until the next look at 10 s all four look empty; then the one with four requests is passed over."""
    specs = make_specs([0.5, 1.0, 2.0, 3.0, 10.5, 11.5], 1, 30)
    records = controlled(specs, 2, make_control("least_outstanding", update_interval="10 s"))

    assert records.replica_id.tolist() == [0, 0, 0, 0, 1, 1]
