"""Tests of what a GPU costs at a class of sellers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml

from simserve.errors import ProfileError
from simserve.profiles import catalog
from simserve.profiles.gpu_prices import (
    DEFAULT_CLASS,
    SELLERS,
    GpuPrice,
    RentalKind,
    class_price,
    dear_reservation,
    offers,
    seller_class,
)
from simserve.profiles.hardware import load_hardware


def price(usd: float, provider: str, kind: RentalKind = "on_demand", date: str = "2026") -> GpuPrice:
    """Return an offer."""
    return GpuPrice(usd_per_hour=usd, provider=provider, kind=kind, date=date, source="a test")


def fitted_levels(rows: list[tuple[str, str, float]]) -> dict[str, float]:
    """Return each seller's level of prices, from (GPU, seller, dollars): log(dollars) = GPU + seller."""
    gpus, sellers = (sorted({row[column] for row in rows}) for column in (0, 1))
    factors, logs = np.zeros((len(rows) + 1, len(gpus) + len(sellers))), np.zeros(len(rows) + 1)
    for number, (gpu, seller, dollars) in enumerate(rows):
        factors[number, [gpus.index(gpu), len(gpus) + sellers.index(seller)]] = 1.0
        logs[number] = np.log(dollars)
    factors[-1, len(gpus) :] = [SELLERS[each].kind == DEFAULT_CLASS for each in sellers]
    found = np.linalg.lstsq(factors, logs)[0]
    return dict(zip(sellers, np.exp(found[len(gpus) :]).tolist(), strict=True))


def test_the_levels_are_those_of_the_committed_prices() -> None:
    """Fitted anew, to 3 %: who adds prices that move them more writes the levels printed here into SELLERS."""
    rows = [
        (name, each.provider, each.usd_per_hour)
        for name in catalog.names("hardware")
        for each in offers(load_hardware(name).prices, "on_demand")
    ]

    levels = fitted_levels(rows)

    assert levels == pytest.approx({name: seller.level for name, seller in SELLERS.items()}, rel=0.03), levels


def test_gpus_are_ordered_as_every_common_seller_orders_them() -> None:
    """Whoever sells two of them asks more for the newer one, and 40 to 56 % of an H100 for an A100."""
    order = (
        "t4-16gb",
        "l4-24gb",
        "a100-sxm-40gb",
        "a100-sxm-80gb",
        "h100-sxm-80gb",
        "h200-sxm-141gb",
        "b200-sxm-180gb",
    )
    usd = [load_hardware(name).default_price or 0.0 for name in order]

    assert usd == sorted(usd)
    assert 0.40 <= usd[3] / usd[4] <= 0.56


def test_the_default_is_near_the_median_of_the_market() -> None:
    """An H100 at Civo, Massed Compute, Jarvis Labs, Scaleway, OVHcloud, Together AI, DigitalOcean and CoreWeave.

    Means of their offers on 2026-10-24 (renshuBTC/compute-screener, data/gpu_providers_latest.csv); the fit knows none.
    """
    asked = [2.9572, 3.3482, 3.49, 3.7969, 3.8883, 3.99, 5.373, 6.155]

    assert load_hardware("h100-sxm-80gb").default_price == pytest.approx(np.median(asked), rel=0.1)


def test_a_price_does_not_depend_on_who_happens_to_sell_the_gpu() -> None:
    """Offers that a seller's level explains alone give one price, whoever is left out."""
    prices = [price(3.0 * seller.level, name) for name, seller in SELLERS.items()]

    for kept in (prices, prices[:1], prices[-1:], prices[3:7]):
        found = class_price(kept)
        assert found is not None
        assert found.usd_per_hour == 3.0


def test_a_class_is_priced_at_its_sellers_mean_level() -> None:
    """One offer of a specialised cloud says what the GPU costs at hyperscalers: 2.3 times as much."""
    found = class_price([price(1.143, "Nebius")], at="hyperscaler")

    assert found is not None
    assert found.usd_per_hour == pytest.approx((1.769 * 2.988 * 2.500 * 2.170) ** 0.25, abs=0.005)
    assert found.num_there == 0


def test_a_list_of_sellers_nobody_knows_is_taken_at_its_median() -> None:
    """A user's own prices have no level; beside known sellers they count only where they are named."""
    own = [price(1.0, "one"), price(2.0, "two"), price(9.0, "three")]
    found, beside = class_price(own), class_price([*own, price(1.143, "Nebius")])

    assert found is not None
    assert beside is not None
    assert (found.usd_per_hour, found.is_fitted) == (2.0, False)
    assert (beside.usd_per_hour, beside.is_fitted) == (1.0, True)


def test_nobody_s_price_is_none() -> None:
    """Not 0, and not another kind's."""
    assert class_price([]) is None
    assert class_price([price(1.0, "AWS", "spot")]) is None


@pytest.mark.parametrize(
    ("name", "expected"), [(None, DEFAULT_CLASS), ("Hyperscaler", "hyperscaler"), ("AWS", None), ("marketplace",) * 2]
)
def test_a_class_is_named_in_any_case(name: str | None, expected: str | None) -> None:
    """What is no class is a seller."""
    assert seller_class(name) == expected


def test_reserved_gpus_cost_no_more_than_the_same_seller_asks_on_demand() -> None:
    """Of each kind the newest price counts."""
    cheap = [price(2.0, "AWS"), price(3.0, "AWS", date="2025"), price(2.0, "AWS", "reserved"), price(1.0, "Nebius")]

    assert dear_reservation(cheap) is None
    assert dear_reservation([*cheap, price(2.5, "Nebius", "reserved")]) is not None


def test_a_profile_with_a_dear_reservation_is_refused(tmp_path: Path) -> None:
    """In one line that names seller and prices."""
    profile = yaml.safe_load(catalog.find("hardware", "l4-24gb").read_text(encoding="utf-8"))
    profile["prices"].append({**profile["prices"][0], "kind": "reserved", "usd_per_hour": 0.9})
    file = tmp_path / "dear.yaml"
    file.write_text(yaml.safe_dump(profile), encoding="utf-8")

    with pytest.raises(ProfileError, match=r"reserved price of AWS \(\$0\.9\) above its on-demand price \(\$0\.8048\)"):
        load_hardware(str(file))
