"""Capacity beside an API: what is too much for the replicas is left out, what always goes to the API is not."""

from __future__ import annotations

import pytest

from simserve.planner.capacity.answer import _without_api
from simserve.planner.capacity.probe import probe_of
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
