"""Tests of dollars by the token."""

from __future__ import annotations

import pytest

from simserve.metrics.api_cost import ApiPrices
from simserve.profiles.api import PeakHours, PromptTier, TokenPrice, VolumeDiscount, load_api


def prices(**changes: object) -> ApiPrices:
    """Return prices of 2 and 10 dollars a million, cached input at 1."""
    return ApiPrices(name="test", price=TokenPrice(input=2.0, cached_input=1.0, output=10.0), **changes)  # type: ignore[arg-type]


def test_prompt_cached_prompt_and_output_have_their_prices() -> None:
    """400 new at 2, 600 cached at 1, 100 out at 10."""
    inputs, outputs = prices().tokens_usd(1000, 100, 600)

    assert inputs[0] == pytest.approx((400 * 2 + 600 * 1) / 1e6)
    assert outputs[0] == pytest.approx(100 * 10 / 1e6)


def test_a_long_prompt_pays_its_tier_for_all_tokens() -> None:
    """At the limit still the lower one, of one request as of many."""
    tiered = prices(prompt_tiers=[PromptTier(above_prompt_tokens=200, input=4.0, output=20.0)])

    inputs, outputs = tiered.tokens_usd([200, 201], [10, 10])

    assert inputs.tolist() == pytest.approx([200 * 2 / 1e6, 201 * 4 / 1e6])
    assert outputs.tolist() == pytest.approx([10 * 10 / 1e6, 10 * 20 / 1e6])


def test_the_batch_discount_covers_its_share() -> None:
    """A half off for half of the requests is a quarter off; without an offer nothing."""
    assert prices(batch_discount=0.5).batch_factor(0.5) == 0.75
    assert prices().batch_factor(0.5) == 1.0


def test_peak_hours_cost_their_share_of_an_even_week() -> None:
    """DeepSeek: twice the price in 35 of 168 hours, of prompts, cached prompts and answers alike."""
    profile = load_api("deepseek-v4-pro")
    mean = 1 + 35 / 168

    inputs, outputs = ApiPrices.of(profile).tokens_usd(1000, 100, 600)

    assert inputs[0] == pytest.approx(mean * (400 * 0.66 + 600 * 0.022) / 1e6)
    assert outputs[0] == pytest.approx(mean * 100 * 1.98 / 1e6)


def test_peak_hours_cost_as_much_more_for_long_prompts() -> None:
    """Three times the price in half of the week is twice the price, in the tier of long prompts too."""
    profile = load_api("gemini-2.5-pro")
    peak = PeakHours(factor=3.0, hours_per_week=84.0, source="a test")

    plain, dearer = (
        ApiPrices.of(each).tokens_usd([100_000, 300_000], [50, 50], [10_000, 20_000])
        for each in (profile, profile.model_copy(update={"peak_hours": peak}))
    )

    for before, after in zip(plain, dearer, strict=True):
        assert after.tolist() == pytest.approx((2.0 * before).tolist())


def test_volume_discounts_cover_what_lies_above_and_invert() -> None:
    """10 % off above $1,000, 20 % off above $5,000."""
    bulk = prices(
        volume_discounts=[
            VolumeDiscount(above_usd_per_month=1000, discount=0.1),
            VolumeDiscount(above_usd_per_month=5000, discount=0.2),
        ]
    )

    assert bulk.net(800.0) == 800.0
    assert bulk.net(6000.0) == pytest.approx(1000 + 4000 * 0.9 + 1000 * 0.8)
    for gross in (500.0, 3000.0, 9000.0):
        assert bulk.gross(bulk.net(gross)) == pytest.approx(gross)


def test_published_tiers_are_used() -> None:
    """Gemini 2.5 Pro above 200,000 prompt tokens."""
    gemini = ApiPrices.of(load_api("gemini-2.5-pro"))

    inputs, _ = gemini.tokens_usd([100_000, 300_000], [0, 0])

    assert inputs.tolist() == pytest.approx([0.125, 0.75])
