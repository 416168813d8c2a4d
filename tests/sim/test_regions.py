"""Regions: who goes where, when it is worth going farther, and what the way adds as the client sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simserve.metrics.gateway import region_figures
from simserve.metrics.summary import measure
from simserve.sim.control import Control, RegionsSpec, StreamingSpec
from simserve.sim.pools import PoolSetup
from simserve.sim.records import COMPLETED, TIMED_OUT
from simserve.sim.simulate import Simulation, simulate
from simserve.validation import validate
from simserve.workload.class_spec import ClassSpec
from simserve.workload.requests import RequestSpecs
from tests.builders import constant_step_times, make_closed_loop, make_config, make_faults, make_specs
from tests.theory.builders import make_deployment

APART = {"latency": {"eu": {"us": "0.25 s"}}, "within": "0 s"}


def spread(
    specs: RequestSpecs,
    homes: list[int] | None = None,
    *,
    faults: Sequence[dict[str, Any]] = (),
    ahead: bool = False,
    streaming: StreamingSpec | None = None,
    **rules: Any,
) -> Simulation:
    """Return a run with a replica of two seats in each of two regions; ``homes`` are 0 for eu and 1 for us."""
    regions = validate(RegionsSpec, {**APART, **rules})
    config, times = make_config(max_num_seqs=2, async_scheduling=ahead), constant_step_times(1.0)
    deployment = make_deployment(config, times, 1)
    pools = tuple(
        PoolSetup(name=name, engine=config, step_times=times, priced=deployment.priced, num_replicas=1, region=name)
        for name in ("eu", "us")
    )
    if homes is not None:
        classes = tuple(ClassSpec(name=f"in-{name}", share=0.5, region=name, timeout="60 s") for name in ("eu", "us"))
        specs = replace(specs, classes=classes, request_class=np.array(homes, dtype=np.int16))
    control = Control(regions=regions, faults=make_faults(*faults), streaming=streaming)
    return simulate(replace(deployment, pools=pools, control=control), specs)


def test_everybody_goes_to_the_nearest() -> None:
    """No way within a region, whoever is busy there."""
    run = spread(make_specs([0.0] * 4, 1, 2), [0, 1, 1, 1])

    assert run.records.replica_id.tolist() == [0, 1, 1, 1]
    assert run.records.finish_time.tolist() == [2.0, 2.0, 2.0, 4.0]


def test_the_way_there_and_back_is_part_of_what_the_client_sees() -> None:
    """All pools of the client's region are lost: a quarter of a second there, and one back, beside the two steps."""
    fault = {"kind": "node", "pool": "eu", "at": "0 s", "duration": "100 s"}
    run = spread(make_specs([1.0], 1, 2), [0], faults=[fault])

    assert run.records.replica_id.tolist() == [1]
    assert run.records.scheduled_time.tolist() == [1.25]
    assert run.records.first_token_time.tolist() == [2.5]
    assert run.records.finish_time.tolist() == [3.5]


def test_answers_that_were_thought_about_cross_the_way_back_too() -> None:
    """One thought token, then the visible one: at 3.25 s on the replica, and a quarter of a second later here."""
    fault = {"kind": "node", "pool": "eu", "at": "0 s", "duration": "100 s"}
    thinking = replace(make_specs([1.0], 1, 3), thinking_tokens=np.array([1]))
    run = spread(thinking, [0], faults=[fault])

    assert run.records.answer_time is not None
    assert run.records.answer_time.tolist() == [3.5]
    assert run.records.finish_time.tolist() == [4.5]


def test_events_cross_the_way_between_regions_too() -> None:
    """Network 0.1 s and 0.25 s between regions, each way: an event of two tokens, at 2 s + 0.7; gaps are the steps'."""
    fault = {"kind": "node", "pool": "eu", "at": "0 s", "duration": "100 s"}
    way = validate(StreamingSpec, {"network_latency": "0.1 s", "buffer_tokens": 2, "cost_per_event": "0 s"})
    run = spread(make_specs([1.0], 1, 4), [0], faults=[fault], streaming=way)
    records = run.records

    assert records.scheduled_time.tolist() == [1.35]
    assert records.first_token_time.tolist() == [pytest.approx(3.35 + 0.35)]
    assert records.finish_time.tolist() == [pytest.approx(5.35 + 0.35)]
    assert records.itl_max.tolist() == [pytest.approx(2.0)]


def test_a_client_hears_of_an_answer_from_afar_before_it_asks_again() -> None:
    """In a closed loop the next request leaves when the answer has crossed both ways."""
    fault = {"kind": "node", "pool": "eu", "at": "0 s", "duration": "100 s"}
    way = validate(StreamingSpec, {"network_latency": "0.1 s", "cost_per_event": "0 s"})
    run = spread(make_closed_loop(1, [1, 1], [2, 2], 0.0), [0, 0], faults=[fault], streaming=way)

    assert run.records.finish_time[0] == pytest.approx(0.35 + 2.0 + 0.35)
    assert run.records.arrival_time[1] == pytest.approx(2.7)


@pytest.mark.parametrize("ahead", [False, True])
def test_requests_spill_over_where_the_nearest_is_full(ahead: bool) -> None:
    """Two at home, the others across; where all are above the bound, to the one with the fewest."""
    run = spread(make_specs([0.0] * 5, 1, 4), [0] * 5, spill_above=2, ahead=ahead)

    assert run.records.replica_id.tolist() == [0, 0, 1, 1, 0]
    home = run.records.replica_id == 0
    assert (run.records.finish_time[~home] == 4.5).all()


def test_requests_on_their_way_count_as_load() -> None:
    """Both leave before the first has arrived: the second stays at home with the same load there."""
    run = spread(make_specs([0.0, 0.0, 0.1, 0.2], 1, 9), [0] * 4, spill_above=1)

    assert run.records.replica_id.tolist() == [0, 1, 0, 1]


def test_clients_are_drawn_by_their_shares() -> None:
    """Three in ten in eu; the same seed draws the same."""
    specs = make_specs([2.0 * number for number in range(1000)], 1, 1)
    first, again = (spread(specs, clients={"eu": 0.3, "us": 0.7}) for _ in range(2))

    assert first.records.client_region is not None
    assert float((first.records.client_region == 0).mean()) == pytest.approx(0.3, abs=0.05)
    assert first.records.replica_id.tolist() == again.records.replica_id.tolist()
    measured = measure(first, slo=None, warmup="none")
    figures = region_figures(first, measured.latencies, measured.window, None)
    assert {name: each["served_elsewhere"] for name, each in figures.items()} == {"eu": 0.0, "us": 0.0}
    assert figures["eu"]["requests"] + figures["us"]["requests"] == 1000


def test_what_nobody_served_was_served_nowhere() -> None:
    """Of five requests of eu, three at home and two across, one of those at home counts as lost: two of four."""
    run = spread(make_specs([0.0] * 5, 1, 4), [0] * 5, spill_above=2)
    run.records.replica_id[0] = -1
    measured = measure(run, slo=None, warmup="none")

    figures = region_figures(run, measured.latencies, measured.window, None)

    assert figures["eu"]["served_elsewhere"] == 0.5
    assert np.isnan(figures["us"]["served_elsewhere"])


def test_a_client_of_a_closed_loop_sends_when_its_answer_has_arrived() -> None:
    """Two ways of a quarter of a second and a step of a second, again and again."""
    specs = make_closed_loop(1, [1] * 3, 1)
    run = spread(specs, clients={"eu": 1.0}, faults=[{"kind": "node", "pool": "eu", "at": "0 s", "duration": "100 s"}])

    assert run.records.finish_time[-1] == pytest.approx(3 * 1.5)


def test_a_client_may_hang_up_while_its_request_is_on_its_way() -> None:
    """It leaves no trace on the replica that it never reached."""
    retries = {"max": 1, "backoff": "0.05 s"}
    classes = (
        validate(ClassSpec, {"name": "a", "share": 1.0, "region": "eu", "timeout": "0.1 s", "retries": retries}),
    )
    specs = replace(make_specs([1.0, 9.0], 1, 1), classes=classes, request_class=np.zeros(2, dtype=np.int16))
    run = spread(specs, faults=[{"kind": "node", "pool": "eu", "at": "0 s", "duration": "5 s"}])

    assert run.records.status.tolist()[0] == TIMED_OUT
    assert run.end_time < 20.0
    assert (run.records.status != COMPLETED).tolist() == [True, True]


def test_the_next_turn_waits_for_the_answer_that_is_heard_last() -> None:
    """Two answers leave a replica at once; the one with a quarter of a second to go is the one that counts."""
    fault = {"kind": "node", "pool": "us", "at": "0 s", "duration": "100 s"}
    specs = replace(
        make_specs([0.0, 0.0, np.nan], 1, [2, 3, 1]),
        session=np.zeros(3, dtype=np.int64),
        turn=np.array([1, 1, 2]),
        think_time=np.array([0.0, 0.0, 0.5]),
    )
    run = spread(specs, [1, 0, 0], faults=[fault])

    assert run.records.finish_time.tolist()[:2] == [3.25, 3.0]
    assert run.records.arrival_time.tolist() == [0.0, 0.0, 3.75]
