"""What a GPU-hour costs where a scenario states a price of its own."""

from __future__ import annotations

from simserve.planner.plan.price import price_of
from simserve.planner.space.space import PRICE_KEY
from tests.scenario.builders import make_scenario


def test_a_price_of_ones_own_is_that_of_ones_own_gpu() -> None:
    """Another GPU has the catalogue's, which replaces it."""
    scenario = make_scenario(pricing={"gpu_hour_usd": 0.01})
    own = price_of(scenario, scenario.deployment.hardware)
    other = price_of(scenario, "b200-sxm-180gb")

    assert (own.usd, own.overrides) == (0.01, {})
    assert other.usd is not None
    assert other.usd > 1
    assert other.overrides == {PRICE_KEY: None}
