"""Rolling updates: who is drained when, what the hole or the surge is, and what is cut off."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from simserve.metrics.gateway import replica_figures
from simserve.sim.control import AutoscalingSpec, Control, UpdateSpec
from simserve.sim.records import COMPLETED, DRAINED
from simserve.sim.simulate import Simulation, simulate
from simserve.validation import validate
from simserve.workload.requests import RequestSpecs
from tests.builders import constant_step_times, make_config, make_faults, make_specs
from tests.theory.builders import make_deployment

STARTUP = {"schedule": "1 s", "image": "2 s", "load_bandwidth": "1 GB/s", "engine": "3 s"}


def updated(specs: RequestSpecs, replicas: int = 3, control: Control | None = None, **rules: Any) -> Simulation:
    """Return a run of replicas of four seats, updated at 10.5 s; a start takes six seconds and four for 4 GB."""
    spec = validate(UpdateSpec, {"at": "10.5 s", "startup": STARTUP, **rules})
    control = replace(control or Control(), updates=(spec,), weights_bytes=4e9)
    config = make_config(max_model_len=512, num_blocks=2000)
    return simulate(replace(make_deployment(config, constant_step_times(1.0), replicas), control=control), specs)


def steady(count: int = 200) -> RequestSpecs:
    """Return one request a second of three steps each."""
    return make_specs([float(number) for number in range(count)], 1, 3)


def timeline(run: Simulation) -> list[tuple[float, int, int]]:
    """Return when the number of replicas changed: seconds, launched, ready."""
    return [(row["time_s"], row["launched"], row["ready"]) for row in replica_figures(run)["timeline"]]


def test_one_after_another_is_drained_and_started_again() -> None:
    """Two ready of three until all are replaced; three are paid for throughout; nobody is lost."""
    run = updated(steady())

    figures = replica_figures(run)
    (update,) = figures["updates"]
    assert (update["start_s"], update["ready_before"], update["fewest_ready"]) == (10.5, 3, 2)
    assert 10.5 + 3 * 10 <= update["end_s"] <= 10.5 + 3 * (10 + 4)
    assert figures["replaced"] == 3
    assert {launched for _, launched, _ in timeline(run)} == {3}
    assert (run.records.status == COMPLETED).all()
    after = run.records.arrival_time > update["end_s"]
    assert sorted(set(run.records.replica_id[after].tolist())) == [3, 4, 5]


def test_a_surge_leaves_no_hole_and_takes_a_replica_more() -> None:
    """The new one is ready before the old one goes: never below three, four paid for in between."""
    run = updated(steady(), max_unavailable=0, max_surge=1)

    (update,) = replica_figures(run)["updates"]
    assert update["fewest_ready"] == 3
    assert max(launched for _, launched, _ in timeline(run)) == 4
    slow, fast = replica_figures(updated(steady()))["gpu_hours"], replica_figures(run)["gpu_hours"]
    assert fast > slow


def test_more_at_a_time_is_over_sooner_with_a_deeper_hole() -> None:
    """All three at once: nothing is ready for a start, and who comes then waits for it."""
    run = updated(steady(), max_unavailable=3)

    (update,) = replica_figures(run)["updates"]
    assert update["fewest_ready"] == 0
    assert update["end_s"] < 10.5 + 2 * 10
    assert (run.records.status == COMPLETED).all()
    waits = run.records.scheduled_time - run.records.arrival_time
    assert waits.max() > 7.0


def test_what_is_not_done_in_its_grace_period_is_cut_off() -> None:
    """An answer of a hundred steps does not survive five seconds; with two hundred seconds it holds up the rest."""
    specs = make_specs([0.0, *[0.5 + number for number in range(150)]], 1, [100, *[2] * 150])
    hasty, patient = (updated(specs, grace_period=f"{seconds} s") for seconds in (5, 200))

    assert np.flatnonzero(hasty.records.reason == DRAINED).tolist() == [0]
    assert (patient.records.status == COMPLETED).all()
    ends = [replica_figures(run)["updates"][0]["end_s"] for run in (hasty, patient)]
    assert ends[1] > 100.0 > ends[0]


def test_a_replica_that_is_down_at_its_turn_is_replaced_too() -> None:
    """Lost before the update and back only after it: its place has a new replica long before."""
    control = Control(
        faults=make_faults({"kind": "replica", "replica": 2, "at": "5 s", "duration": "150 s", "in_flight": "retry"})
    )
    run = updated(steady(), control=control)

    (update,) = replica_figures(run)["updates"]
    assert update["end_s"] < 60.0
    assert replica_figures(run)["replaced"] == 3
    assert timeline(run)[-1][1:] == (3, 3)


def test_an_autoscaler_knows_that_the_missing_one_will_be_back() -> None:
    """At a constant load it launches nothing for the hole, and gives nothing back for the surge."""
    rules = {"target": 5, "min_replicas": 3, "max_replicas": 8, "interval": "1 s", "stabilization": "0 s"}
    scaling = validate(AutoscalingSpec, rules)
    control = Control(autoscaling=scaling, startup_seconds=10.0)
    for pace in ({}, {"max_unavailable": 0, "max_surge": 1}):
        run = updated(steady(), control=control, **pace)

        assert replica_figures(run)["launched"] == 3 + 3
        assert (run.records.status == COMPLETED).all()
