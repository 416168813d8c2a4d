"""The timeline in Perfetto's own trace processor; `tests.report.test_timeline` checks the format without it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import simserve as ss

pytestmark = pytest.mark.slow

_SHELL = "trace_processor_shell"


@pytest.fixture(scope="module")
def processor() -> type[Any]:
    """Return PyPI's ``perfetto`` bound to the processor of this machine; it is not fetched by a test."""
    api = pytest.importorskip("perfetto.trace_processor", reason="needs pip install perfetto")
    if shutil.which(_SHELL) is None:
        pytest.skip(f"{_SHELL} of perfetto.dev is not on PATH")
    found: type[Any] = api.TraceProcessor
    return found


@pytest.fixture(scope="module", params=["disaggregation", "swap-or-recompute"])
def traced(
    processor: type[Any], request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """Return a run and its timeline as the processor loaded it."""
    from perfetto.trace_processor import TraceProcessorConfig

    folder = tmp_path_factory.mktemp("traced") / "out"
    result = ss.run(ss.load(request.param, ["workload.num_requests=150"]), out=folder, timeline=True)
    file: Path = folder / "timeline.json"
    loaded = processor(trace=str(file), config=TraceProcessorConfig(bin_path=shutil.which(_SHELL)))
    yield result, loaded
    loaded.close()


def row(loaded: Any, query: str) -> Any:
    """Return the one row of a query."""
    return next(iter(loaded.query(query)))


def test_slices_of_threads_are_the_steps(traced: Any) -> None:
    """As many, and as long in sum."""
    result, loaded = traced
    steps = result.summary["simserve"]["steps"]

    found = row(
        loaded, "select count(*) as n, sum(s.dur) as total from slice s join thread_track t on s.track_id = t.id"
    )

    assert found.n == steps["count"]
    assert found.total / 1e9 == pytest.approx(sum(steps["seconds_by_part"].values()), rel=1e-6)


def test_outermost_spans_are_the_requests(traced: Any) -> None:
    """From arrival to the end."""
    result, loaded = traced

    found = row(
        loaded,
        "select count(*) as n, sum(s.dur) as total from slice s left join thread_track t on s.track_id = t.id "
        "where t.id is null and s.depth = 0",
    )

    assert found.n == len(result.requests)
    assert found.total / 1e9 == pytest.approx(float(np.nansum(result.requests["e2el_ms"])) / 1e3, rel=1e-6)


def test_nothing_was_lost_on_the_way_in(traced: Any) -> None:
    """No event that the processor did not understand."""
    _, loaded = traced

    lost = row(loaded, "select coalesce(sum(value), 0) as n from stats where severity in ('error', 'data_loss')")

    assert lost.n == 0
