"""The figures of users: whose requests they are."""

from __future__ import annotations

import numpy as np
import pytest

from simserve.metrics.latency import request_latencies
from simserve.metrics.steady_state import Window
from simserve.metrics.users import UsersFacts, users_figures
from tests.metrics.builders import make_records


def test_of_several_classes_only_the_users_count() -> None:
    """Two classes alternate, of which the second takes 5 s: 10 users at 1 request/s that take 1 s wait 1 at a time."""
    records = make_records(np.arange(200.0), ttft=0.5, e2e=np.tile([1.0, 5.0], 100).tolist())
    latencies = request_latencies(records)
    whole = Window(start=0.0, end=200.0, has_arrived=np.ones(200, dtype=bool), is_whole_run=True)
    facts = UsersFacts(users=10, clients=None, think_time=0.0, rate=1.0, classes=(0,))

    figures = users_figures(facts, latencies, whole, np.tile([0, 1], 100).astype(np.int16))

    assert figures["waiting"] == pytest.approx(1.0)
    assert figures["pause_s"] == pytest.approx(10 - 1)
    assert figures["requests_per_user_hour"] == pytest.approx(360)
