"""The liveness probe: it mends a replica that hangs, and kills one that is busy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from simserve.sim.control import Control, LivenessSpec, RoutingSpec
from simserve.sim.lifecycle import MOST_LOSSES
from simserve.sim.records import COMPLETED, REPLICA_LOST
from simserve.sim.simulate import Simulation, simulate
from simserve.validation import validate
from simserve.workload.requests import RequestSpecs
from tests.builders import constant_step_times, make_config, make_faults, make_specs
from tests.reference.test_rules import in_classes
from tests.theory.builders import make_deployment


def probed(specs: RequestSpecs, *, replicas: int = 1, seats: int = 1, **rules: Any) -> Simulation:
    """Return a run under a probe every ten seconds that waits three, twice; a restart takes twenty."""
    faults = rules.pop("faults", ())
    spec = validate(LivenessSpec, {"period": "10 s", "timeout": "3 s", "threshold": 2, "restart": "20 s", **rules})
    control = Control(liveness=spec, faults=faults, routing=RoutingSpec(policy="round_robin"))
    config = make_config(max_num_seqs=seats, max_model_len=512, num_blocks=2000)
    return simulate(replace(make_deployment(config, constant_step_times(1.0), replicas), control=control), specs)


def lost_since(run: Simulation) -> list[float]:
    """Return when replicas went down."""
    assert run.timeline is not None
    assert run.timeline.num_killed == len(run.timeline.lost_since)
    return list(run.timeline.lost_since.tolist())


def test_a_queue_longer_than_the_timeout_kills_the_replica() -> None:
    """Requests of 30 steps one after another: probes at 7 and 17 s are late at 10 and 20 s; what is there is lost."""
    run = probed(make_specs([0.0, 0.0, 0.0, 25.0], 1, [30, 30, 30, 1]))

    assert lost_since(run)[0] == 20.0
    assert np.flatnonzero(run.records.reason == REPLICA_LOST).tolist() == [0, 1, 2]
    assert run.records.scheduled_time[3] == 40.0


def test_a_busy_replica_without_a_queue_answers_its_probe() -> None:
    """With a seat for each the probe's request comes into the next step."""
    run = probed(make_specs([0.0, 0.0, 0.0], 1, 30), seats=4)

    assert lost_since(run) == []
    assert (run.records.status == COMPLETED).all()


def test_a_patient_probe_lets_the_queue_pass() -> None:
    """The queue lasts twelve seconds: one late answer, and two are needed."""
    specs = make_specs([0.0, 0.0, 0.0, 0.0, 40.0], 1, [5, 5, 5, 5, 1])
    hasty, patient = (probed(specs, threshold=count) for count in (1, 2))

    assert lost_since(hasty) == [10.0]
    assert lost_since(patient) == []


def test_a_probe_queues_behind_the_last_of_those_that_are_still_there() -> None:
    """The last to come has hung up by the probe at 7 s; the one before it waits behind the first, and is late twice."""
    specs = in_classes(make_specs([0.0, 0.0, 1.0], 1, [60, 1, 1]), [0, 0, 1], {}, {"timeout": "4 s"})

    assert lost_since(probed(specs)) == [20.0]


def test_a_replica_that_hangs_is_found_and_restarted() -> None:
    """It hangs at 12.5, with nothing queued: probes are late at 20 and 30; its requests go elsewhere."""
    fault = {"kind": "black_hole", "replica": 1, "at": "12.5 s", "duration": "500 s", "probe": {"depth": "shallow"}}
    specs = make_specs([float(number) for number in range(100)], 1, 1)
    run = probed(specs, replicas=2, seats=4, faults=make_faults(fault), in_flight="retry")

    assert lost_since(run) == [30.0]
    assert (run.records.status == COMPLETED).all()
    assert run.records.finish_time.max() < 120.0
    assert 1 in run.records.replica_id[55:].tolist()


def test_who_is_lost_ten_times_is_tried_no_more() -> None:
    """A queue that the probe takes for a dead replica for ever: without a bound such a run has no end."""
    specs = make_specs([0.0] * 4, 1, [200] * 4)

    run = probed(specs, in_flight="retry")

    assert (run.records.reason == REPLICA_LOST).all()
    assert len(lost_since(run)) == MOST_LOSSES
    assert run.end_time < 1000.0
