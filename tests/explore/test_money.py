"""A month on one's own GPUs and at an API, as the page adds it up, on figures that are given."""

from __future__ import annotations

from typing import Any

import pytest

from simserve.explore import money
from simserve.explore.queries import CostQuery
from simserve.units import HOURS_PER_MONTH, SECONDS_PER_MONTH
from tests.explore.builders import no_limit

ROW: dict[str, Any] = {
    "name": "vllm on l4-24gb",
    "framework": "vllm",
    "hardware": "l4-24gb",
    "gpus": 2,
    "output_throughput": 1000.0,
    "usd_per_hour": 4.0,
    "usd_per_million": 2.2,
}


@pytest.mark.parametrize(("fleets", "replicas"), [(0.2, 1), (1.0, 1), (2.5, 3), (3.0, 3)])
def test_replicas_are_whole(fleets: float, replicas: int) -> None:
    """What two and a half would hold takes three, at half of what each can do; dollars are those of three."""
    held = 1000.0 * 0.5 / 100 * SECONDS_PER_MONTH
    query = CostQuery(requests_per_month=fleets * held, utilization=0.5, output_tokens=100, operations_usd=300.0)

    found = money._against(query, dict(ROW))

    assert (found["replicas"], found["fleet_holds"]) == (replicas, pytest.approx(held))
    assert found["self_host"]["usd_per_month"] == pytest.approx(replicas * 4.0 * HOURS_PER_MONTH + 300.0)
    curve = dict(zip(found["curve"]["requests"], found["curve"]["self_host"], strict=True))
    assert curve[0.0] == pytest.approx(4.0 * HOURS_PER_MONTH + 300.0)


def test_a_saved_scenario_has_the_price_of_a_gpu_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica of two GPUs costs four dollars an hour: two dollars each."""
    monkeypatch.setattr(money, "cost", lambda _query, _check: {"chosen": ROW})

    saved = money.chosen_replica(CostQuery(), no_limit)

    assert saved["pricing"]["gpu_hour_usd"] == 2.0
