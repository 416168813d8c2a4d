"""Static batching in the simulation: what is written down, and what becomes of a batch that is broken off."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simserve.sim.control import AdmissionSpec, Control
from simserve.sim.records import COMPLETED, FAILED, REJECTED, TIMED_OUT
from simserve.sim.simulate import Simulation, replay, simulate
from simserve.validation import validate
from simserve.workload.class_spec import ClassSpec
from simserve.workload.requests import RequestSpecs
from tests.builders import constant_step_times, make_config, make_faults, make_specs
from tests.theory.builders import make_deployment

PAIRS = {"batching": "static", "static_batch_size": 2, "static_max_wait": 4.0}


def decided(
    specs: RequestSpecs, timeout: str | None = None, engine: dict[str, Any] = PAIRS, **control: Any
) -> Simulation:
    """Return a run of one replica with steps of a second, by default with batches of two, after at most 4 s."""
    spec = validate(ClassSpec, {"name": "all", "share": 1.0, "timeout": timeout})
    specs = replace(specs, classes=(spec,), request_class=np.zeros(len(specs), dtype=np.int16))
    config = make_config(max_model_len=512, num_blocks=2000, **engine)
    deployment = make_deployment(config, constant_step_times(1.0), 1)
    return simulate(replace(deployment, control=Control(**control)), specs)


def test_leaps_may_be_collected_while_a_batch_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long run hands over what it has written down now and then: nothing is lost, and the rest goes on."""
    config = make_config(batching="static", static_batch_size=2, static_max_wait=1.0)
    specs = make_specs(np.arange(40.0).tolist(), 5, 3)
    whole = replay(config, constant_step_times(0.4), specs)
    monkeypatch.setattr("simserve.engine.data_plane.EVENTS_BETWEEN_CHORES", 1)
    monkeypatch.setattr("simserve.sim.cluster.FLUSH_ROWS", 0)
    in_pieces = replay(config, constant_step_times(0.4), specs)

    assert in_pieces.totals.num_steps == whole.totals.num_steps
    assert in_pieces.totals.busy_seconds == pytest.approx(whole.totals.busy_seconds, rel=1e-12)
    assert in_pieces.totals.blocked_seconds == pytest.approx(whole.totals.blocked_seconds, rel=1e-12)
    np.testing.assert_array_equal(in_pieces.records.finish_time, whole.records.finish_time)


def test_who_hangs_up_in_the_queue_leaves_it_and_in_a_batch_keeps_his_place() -> None:
    """Two answers take 10 s; their clients give up at 8 s, who waits behind them at 9 s; the batch goes on."""
    run = decided(make_specs([0.0, 0.0, 1.0, 5.0], 4, [10, 10, 2, 2]), timeout="8 s")

    assert run.records.status.tolist() == [TIMED_OUT, TIMED_OUT, TIMED_OUT, COMPLETED]
    assert run.records.finish_time.tolist() == [8.0, 8.0, 9.0, 12.0]
    assert run.records.scheduled_time[3] == 10.0


def test_a_batch_is_lost_with_its_replica_at_the_step_that_runs() -> None:
    """At 4.5 s of 10: both are lost at 5; what comes later is served when the replica is back."""
    faults = make_faults({"kind": "replica", "at": "4.5 s", "duration": "3 s"})
    run = decided(make_specs([0.0, 0.0, 6.0, 6.0], 4, [10, 10, 2, 2]), faults=faults)

    assert run.records.status.tolist() == [FAILED, FAILED, COMPLETED, COMPLETED]
    assert run.records.finish_time.tolist() == [5.0, 5.0, 9.5, 9.5]
    assert run.totals.num_steps == 5 + 2
    assert run.totals.busy_seconds == pytest.approx(7.0)


def test_a_batch_that_hangs_begins_anew() -> None:
    """It hangs from 3 s on and goes on at 12.5 s: the answers of 4 steps are there at 16.5 s."""
    fault = {"kind": "black_hole", "at": "2.5 s", "duration": "10 s", "probe": {"depth": "shallow"}}
    run = decided(make_specs([0.0, 0.0], 4, 4), faults=make_faults(fault))

    assert run.records.finish_time.tolist() == [16.5, 16.5]
    assert run.totals.num_steps == 3 + 4


def test_a_full_queue_behind_a_batch_refuses() -> None:
    """Two are served, two wait, the fifth is one too many; who waits for a batch to fill waits too."""
    admission_control = validate(AdmissionSpec, {"max_queue": 2})
    run = decided(make_specs([0.0, 0.0, 1.0, 2.0, 3.0], 4, [10, 10, 2, 2, 2]), admission=admission_control)

    assert run.records.status.tolist() == [COMPLETED] * 4 + [REJECTED]


def test_a_batch_takes_memory_while_it_runs() -> None:
    """Half of it by two sequences of 500 tokens: who comes is refused until the answers are there."""
    admission_control = validate(AdmissionSpec, {"kv_headroom": 0.6})
    engine = PAIRS | {"num_blocks": 125, "block_size": 16}
    specs = make_specs([0.0, 0.0, 5.0, 12.0], [490, 490, 4, 4], [10, 10, 2, 2])
    config = make_config(max_model_len=512, **engine)
    deployment = replace(
        make_deployment(config, constant_step_times(1.0), 1), control=Control(admission=admission_control)
    )

    assert simulate(deployment, specs).records.status.tolist() == [COMPLETED, COMPLETED, REJECTED, COMPLETED]


def test_without_a_cache_who_hangs_up_is_computed_no_more() -> None:
    """Each step takes a second a token: the second request, of 4 tokens, leaves after 3 s."""
    run = decided(make_specs([0.0, 0.0], 4, [8, 8]), timeout="3 s", engine={"kv_allocation": "none"})
    alone = decided(make_specs([0.0], 4, [8]), engine={"kv_allocation": "none"})

    assert run.records.status.tolist() == [TIMED_OUT, TIMED_OUT]
    assert run.records.output_tokens.tolist() == [3, 3]
    assert run.totals.num_steps == 3
    assert alone.totals.num_steps == 8


def test_who_leaves_a_rank_makes_room_there() -> None:
    """Ranks of one seat each: the third request waits behind the first, whose client hangs up after 6 s."""
    engine = {"data_parallel_size": 2, "max_num_seqs": 1}
    run = decided(make_specs([0.0, 0.0, 4.0], 4, [20, 5, 2]), timeout="5.5 s", engine=engine)

    assert run.records.status.tolist() == [TIMED_OUT, COMPLETED, COMPLETED]
    assert run.records.scheduled_time.tolist() == [0.0, 0.0, 6.0]
    assert run.num_replicas == 2
    assert run.busy_share <= 1.0
