"""Self-host or API for a scenario: its deployment simulated at the loads of a day."""

from __future__ import annotations

from typing import Any

from simserve.metrics.api_cost import ApiPrices
from simserve.scenario.run import Progress
from simserve.scenario.schema import Scenario


def cost_of_scenario(
    scenario: Scenario,
    *,
    api: str | ApiPrices | None,
    requests_per_month: float | None,
    progress: Progress | None,
) -> dict[str, Any]:
    """Return."""
    raise NotImplementedError
