"""Static batching in the simulation: what is written down, and what becomes of a batch that is broken off."""

from __future__ import annotations

import numpy as np
import pytest

from simserve.sim.simulate import replay
from tests.builders import constant_step_times, make_config, make_specs


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
