"""Answers of capacity: what is looked at beside an API, and where a search ends that nothing fails."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from simserve.planner.capacity.answer import _without_api, capacity
from simserve.planner.capacity.probe import probe_of
from simserve.scenario.finishable import Finishable
from simserve.scenario.load import load


def test_what_is_too_much_stays_with_the_replicas() -> None:
    """A queue that overflows at any load has no limit: the API is left out."""
    assert _without_api(load("overflow-to-api")).deployment.overflow is None


@pytest.mark.parametrize(
    ("name", "overrides"),
    [("halve-the-api-bill", []), ("overflow-to-api", ["workload.classes=[{name: a, share: 1.0}]"])],
)
def test_what_rules_and_classes_send_to_the_api_still_goes_there(name: str, overrides: list[str]) -> None:
    """They are no load of the replicas; the limits on queue and rate are gone, and the probe can be made."""
    if overrides:
        overrides = [*overrides, "deployment.overflow.always=[a]", "deployment.overflow.above_rate={rate: 5, burst: 5}"]
    alone = _without_api(load(name, overrides))

    overflow = alone.deployment.overflow
    assert overflow is not None
    assert (overflow.max_queue, overflow.above_rate) == (None, None)
    assert probe_of(alone).slo.attainment == 0.95


def test_a_list_of_requests_has_no_more_clients_than_requests(tmp_path: Path) -> None:
    """Where all of them at once still hold, more clients would find none left, and the search ends."""
    rows = "".join(f"{time},100,20\n" for time in range(7))
    (tmp_path / "seven.csv").write_text("arrival_time,prompt_tokens,output_tokens\n" + rows)
    (tmp_path / "seven.yaml").write_text(
        "name: seven\nmodel: llama-3.1-8b\ndeployment: {hardware: h100-sxm-80gb}\nslo: {ttft: 1 s}\n"
        "workload: {arrivals: {process: closed_loop, concurrency: 2}, trace: {path: seven.csv, format: csv}}\n"
    )
    found = capacity(load(tmp_path / "seven.yaml"))

    assert (found.found.largest.value, found.found.largest.fails_at) == (7, None)
    assert any("all 7 requests" in note for note in found.notes)

    far_below = replace(found.found, finishable=Finishable(rate=10.0, half_width=0.1, requests=4000), capacity=8.0)
    assert any(
        note.startswith("what is promised lies 12.5% below the") for note in replace(found, found=far_below).notes
    )
    near = replace(far_below, capacity=7.2)
    assert not any(note.startswith("what is promised") for note in replace(found, found=near).notes)
