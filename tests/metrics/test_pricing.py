"""Tests of what a GPU-hour costs on the scenario's terms."""

from __future__ import annotations

import pytest

from simserve.errors import InputError, ScenarioError
from simserve.metrics.cost import PricingSpec, gpu_hour
from simserve.planner.space.makeup import makeup_of
from simserve.profiles.gpu_prices import GpuPrice
from simserve.profiles.hardware import load_hardware
from simserve.scenario.load import load
from simserve.scenario.resolve import resolve
from simserve.scenario.run import run
from tests.scenario.builders import make_scenario


def hour(*overrides: str) -> tuple[float | None, str]:
    """Return the price of the small scenario's GPU, an H100, and where it is from."""
    resolved = resolve(make_scenario([each[3:] if each.startswith("../") else f"pricing.{each}" for each in overrides]))
    return resolved.gpu_hour_usd, resolved.gpu_hour_source


@pytest.mark.parametrize("spelled", ["Nebius", "nebius", "NEBIUS"])
def test_a_provider_s_own_price(spelled: str) -> None:
    """Whatever the case of its letters; the result names it."""
    assert hour(f"provider={spelled}") == (4.5, "on-demand price of h100-sxm-80gb at Nebius, seen 2026-10-24")


def test_spot_and_reserved_have_their_prices() -> None:
    """Fitted at a class of sellers, or one seller's, with the term that it binds for."""
    usd, source = hour("purchase=spot")
    assert usd == pytest.approx(((1.25 / 1.143) * (6.571 / 2.500)) ** 0.5, abs=0.005)
    assert (
        source
        == "fitted spot price of h100-sxm-80gb at specialised clouds, from 2 offers (1 there), seen 2026 to 2026-09-26"
    )
    assert hour("purchase=spot", "provider=Google Cloud")[0] == 6.571
    usd, source = hour("purchase=reserved", "provider=AWS")
    assert usd == 4.916
    assert "capacity block" in source


def test_reserved_gpus_are_cheaper_than_on_demand_at_every_class_of_sellers() -> None:
    """Whoever sells them: a reservation of AWS is set against on-demand prices of its own class."""
    for at in ("specialised cloud", "hyperscaler", "marketplace"):
        on_demand, reserved = hour(f"provider={at}")[0], hour(f"provider={at}", "purchase=reserved")[0]

        assert reserved is not None
        assert on_demand is not None
        assert reserved < on_demand


def test_a_class_of_sellers_has_a_price_where_none_of_them_offers_the_gpu() -> None:
    """From what the others ask for it; the result says so."""
    usd, source = hour("provider=hyperscaler", "../deployment.hardware=rtx-4090-24gb")

    assert usd == pytest.approx((0.74 * 0.682 / 0.922) ** 0.5 * (1.769 * 2.988 * 2.500 * 2.170) ** 0.25, abs=0.005)
    assert "at hyperscalers, from 2 offers (none there), seen 2026" in source


def test_what_is_owned_is_written_off_over_its_years() -> None:
    """(40,000 - 10 %) / (4 years x 12 months x 720 hours) + 72 / 720."""
    owned = "owned={gpu_usd: 40000, years: 4, residual_share: 0.1, hosting_usd_per_gpu_month: 72}"

    assert hour("purchase=owned", owned)[0] == pytest.approx(36000 / 34560 + 0.1)
    assert hour("purchase=owned")[0] == pytest.approx(39625 / 34560)


def test_electricity_is_charged_on_what_is_owned_alone() -> None:
    """At the power the run drew; its price, PUE and host power count."""
    own = ["pricing.purchase=owned", "pricing.owned={gpu_usd: 34560}"]

    rented = run(make_scenario(["pricing.gpu_hour_usd=1"])).summary["simserve"]
    owned = run(make_scenario(own)).summary["simserve"]
    dear = run(
        make_scenario(
            [*own, "pricing.electricity_usd_per_kwh=0.8", "pricing.pue=2", "pricing.host_watts_per_gpu=200 W"]
        )
    ).summary["simserve"]

    gpus = 1
    assert rented["cost"]["usd_per_hour"] == pytest.approx(gpus)
    assert owned["cost"]["usd_per_hour"] == pytest.approx(gpus + owned["energy"]["watts_mean"] / 1000 * 0.08)
    watts = gpus * (dear["energy"]["watts_per_gpu"] + 200) * 2
    assert dear["cost"]["usd_per_hour"] == pytest.approx(gpus + watts / 1000 * 0.8)


def test_carbon_follows_the_grid() -> None:
    """Twice the grams a kWh are twice the grams a token."""
    grams = [
        run(make_scenario([f"pricing.carbon_g_per_kwh={value}"])).summary["simserve"]["energy"][
            "grams_co2_per_thousand_tokens"
        ]
        for value in (100, 200)
    ]

    assert grams[1] == pytest.approx(2 * grams[0])


def test_a_gpu_without_a_price_has_none() -> None:
    """Until the scenario names one; on asked terms it is an error."""
    laptop = make_scenario(["deployment.hardware=m2-max-96gb"])

    price = gpu_hour(laptop.pricing, resolve(laptop).shape.hardware)

    assert price.usd is None
    assert "set pricing.gpu_hour_usd" in price.source


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["provider=Lamda"], "--set pricing.provider: 'Lamda' has no price: h100-sxm-80gb has no on_demand price"),
        (["purchase=spot", "provider=AWS"], "it has on_demand (AWS"),
        (["purchase=leased"], "purchase"),
        (["gpu_hour_usd=1", "provider=AWS"], "keep one of the two"),
        (["owned={years: 3}"], "without purchase: owned"),
        (["purchase=owned", "provider=AWS"], "leave provider out"),
        (["operations_hours_per_month=5"], "needs both operations_hours_per_month and engineer_usd_per_hour"),
        (["batch_share=0.5"], "without an api"),
        (["daily={hourly: [1, 2]}"], "must be 24 numbers"),
        (["daily={hourly: [" + "1, " * 23 + "1], peak_to_mean: 2}"], "keep one of the two"),
    ],
)
def test_terms_that_have_no_price_or_contradict_are_refused(overrides: list[str], said: str) -> None:
    """In one line that names the key and what there is."""
    with pytest.raises(InputError) as failure:
        hour(*overrides)

    assert said in str(failure.value)


def test_an_unowned_gpu_cannot_be_bought_without_a_price() -> None:
    """The remedy is its price."""
    with pytest.raises(ScenarioError, match=r"no purchase price; set pricing\.owned\.gpu_usd"):
        resolve(make_scenario(["deployment.hardware=l4-24gb", "pricing.purchase=owned"]))


def test_a_link_that_is_billed_apart_adds_to_the_gpus_of_its_workers() -> None:
    """By the hour, in the run and in what a plan weighs."""
    price = 0.5
    asked = [f"deployment.disaggregation.usd_per_gpu_hour={price}"]
    plain, linked = (resolve(load("disaggregation", changes)) for changes in ([], asked))

    assert linked.gpu_hour_usd == pytest.approx((plain.gpu_hour_usd or 0) + price)
    assert "$0.5 for the link" in linked.gpu_hour_source
    assert makeup_of(linked).usd_per_hour(4) == pytest.approx(makeup_of(plain).usd_per_hour(4) + 4 * price)


def test_several_offers_of_a_seller_on_one_day_are_taken_at_their_median() -> None:
    """$2, $3 and $10 an hour: one dear region does not make the GPU dear."""
    seller = {"provider": "Lambda", "kind": "on_demand", "date": "2099-01-01", "source": "a test"}
    prices = tuple(GpuPrice.model_validate({**seller, "usd_per_hour": each}) for each in (10.0, 2.0, 3.0))
    hardware = load_hardware("h100-sxm-80gb").model_copy(update={"prices": prices})

    assert gpu_hour(PricingSpec(provider="Lambda"), hardware).usd == 3.0
