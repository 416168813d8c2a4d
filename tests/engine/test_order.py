"""Tests of the order of replicas: heaps and tournaments answer what a look at all of them does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.engine import event_plane
from simserve.engine.compiled import replacements
from simserve.engine.numbers import SEVERAL
from simserve.engine.state import INFINITY
from simserve.sim.records import RequestRecords
from simserve.sim.simulate import replay
from tests.builders import constant_step_times, make_config, make_specs

FORMS = pytest.mark.parametrize("form", [event_plane, replacements], ids=["heap", "tournament"])
TIMES = st.sampled_from([1.0, 1.5, 2.0, 3.0, 4.0, INFINITY])
CHANGES = st.lists(st.tuples(st.integers(0, 99), TIMES), max_size=30)


@FORMS
@given(times=st.lists(TIMES, min_size=2, max_size=9), changes=CHANGES)
def test_the_earliest_and_where_it_stands(form: Any, times: list[float], changes: list[tuple[int, float]]) -> None:
    """After every change: the smallest time, and its place, or that it stands in several."""
    kept: list[Any] = []
    form.arrange_times(kept, times)
    for number, time in [(0, times[0]), *changes]:
        times[number % len(times)] = time
        form.note_time(kept, number % len(times), time)

        first = form.first_time(kept, times)

        assert first == min(times)
        if first == INFINITY:
            continue
        places = [place for place, each in enumerate(times) if each == first]
        assert form.find_first(kept, times) == (places[0] if len(places) == 1 else SEVERAL)
        for place in places:
            # It has been forgotten.
            times[place] += 0.25
            form.note_time(kept, place, times[place])


@FORMS
@given(
    loads=st.lists(st.integers(0, 3), min_size=2, max_size=9),
    changes=st.lists(st.tuples(st.integers(0, 99), st.integers(0, 4))),
)
def test_the_least_loaded_is_the_first_of_several(form: Any, loads: list[int], changes: list[tuple[int, int]]) -> None:
    """After every change."""
    kept: list[int] = []
    form.arrange_loads(kept, loads)
    for number, load in [(0, loads[0]), *changes]:
        loads[number % len(loads)] = load
        form.note_load(kept, number % len(loads), load)

        assert form.least_load(kept, loads) == loads.index(min(loads))


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_an_order_changes_no_result(monkeypatch: pytest.MonkeyPatch, async_scheduling: bool) -> None:
    """Thirty replicas whose steps end together, and requests that arrive as they end: with heaps, and without."""
    config = make_config(async_scheduling=async_scheduling)
    generator = np.random.default_rng(5)
    arrivals = np.sort(generator.integers(0, 400, 3000) / 8.0)
    specs = make_specs(arrivals.tolist(), 5, generator.integers(1, 60, 3000).tolist())

    def served() -> RequestRecords:
        return replay(config, constant_step_times(0.25), specs, num_replicas=30, routing="least_outstanding").records

    with_heaps = served()
    monkeypatch.setattr(event_plane, "_LEAST_UNITS", 1000)
    without = served()

    assert len(set(with_heaps.replica_id.tolist())) == 30
    assert with_heaps.replica_id.tolist() == without.replica_id.tolist()
    assert with_heaps.finish_time.tolist() == without.finish_time.tolist()
