"""What to buy over months, against arithmetic by hand and against every purchase there is."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest

from simserve.errors import UsageError
from simserve.planner.plan.options import COMMITMENTS, Horizon, Interruptions, horizon_of
from simserve.planner.plan.purchase import Need, bought, own_usd, purchase
from simserve.report.purchase import purchase_lines, purchase_sketch, purchase_table
from simserve.report.quantities import dollars
from simserve.units import HOURS_PER_MONTH

DAY = (0.5,) * 12 + (1.5,) * 12
"""Half of the day at a third of the other half's traffic."""


def need(**changed: Any) -> Need:
    """Return ten requests/s of a mean hour, replicas that take two and cost $4 an hour."""
    return replace(
        Need(
            rate=10.0,
            shape=DAY,
            capacity=2.0,
            spare_replicas=0,
            gpus_per_replica=2,
            usd_per_hour=4.0,
        ),
        **changed,
    )


def horizon(months: int = 12, **changed: Any) -> Horizon:
    """Return a year with commitments a quarter below on demand."""
    return replace(Horizon(months=months, commitments={1: 0.25}, is_assumed=False), **changed)


def test_a_year_is_what_a_hand_finds() -> None:
    """Ten requests/s: 2.5, so 3 replicas by night and 7.5, so 8 by day; half of the hours are too few to commit to."""
    answer = purchase(need(), horizon())

    by_night, by_day = math.ceil(10 * 0.5 / 2), math.ceil(10 * 1.5 / 2)
    always, half = by_night, by_day - by_night
    month = always * 720 * 3.0 + half * 360 * 4.0
    assert (by_night, by_day) == (3, 8)
    assert answer["total_usd"] == pytest.approx(12 * month)
    assert answer["all_on_demand_usd"] == pytest.approx(12 * (3 * 720 + 5 * 360) * 4.0)
    assert answer["committed_at_peak_usd"] == pytest.approx(12 * 8 * 720 * 3.0)
    first = answer["months"][0]
    assert (first["committed"], first["on_demand_replicas"]) == ({"1": 3}, 5)
    assert first["on_demand_hours"] == 5 * 360
    assert first["requests"] == pytest.approx(10 * 30 * 86_400)
    assert first["mean_replicas"] == 5.5


def test_a_year_that_grows_is_what_a_hand_finds() -> None:
    """Level traffic that grows by a tenth a month: a replica is committed to from the start of what is left of it."""
    given = need(shape=(1.0,) * 24, growth=0.1, price_decline=0.02, rate=1.9)
    answer = purchase(given, horizon(24))

    dollars = 0.0
    for level in range(1, 60):
        needed = [math.ceil(1.9 * 1.1**month / 2) >= level for month in range(24)]
        least = [0.0] * 25
        for month in range(23, -1, -1):
            price = 4.0 * 0.98**month
            least[month] = least[month + 1] + (720 * price if needed[month] else 0.0)
            if month + 12 <= 24:
                least[month] = min(least[month], least[month + 12] + 12 * 720 * price * 0.75)
        dollars += least[0]
    assert answer["total_usd"] == pytest.approx(dollars)
    assert sum(row["usd"] for row in answer["months"]) == pytest.approx(dollars)


def test_no_other_purchase_is_cheaper() -> None:
    """Whatever is committed to of few replicas in three years, month by month, costs at least as much."""
    given = need(shape=(1.0,) * 24, rate=3.0, growth=0.04, price_decline=0.03)
    ahead = horizon(36, commitments={1: 0.2, 3: 0.42})
    needed = [math.ceil(3.0 * 1.04**month / 2) for month in range(36)]
    starts = range(0, 36, 6)
    offers = [(years, start) for years in (1, 3) for start in starts if start + 12 * years <= 36]
    found = own_usd(given, ahead)

    for bundle in itertools.chain.from_iterable(itertools.combinations_with_replacement(offers, n) for n in range(4)):
        usd = 0.0
        for month in range(36):
            held = [(years, at) for years, at in bundle if at <= month < at + 12 * years]
            usd += sum(HOURS_PER_MONTH * 4.0 * 0.97**at * (1 - ahead.commitments[years]) for years, at in held)
            usd += max(needed[month] - len(held), 0) * HOURS_PER_MONTH * 4.0 * 0.97**month
        assert found <= usd * (1 + 1e-12)


def test_a_year_with_spot_is_what_a_hand_finds() -> None:
    """Three replicas are always needed and five more by day; four on spot have a spare one, five of them two."""
    given = need(spot_usd_per_hour=2.6, reserve=(0, 1, 1, 1, 1, 2, 2, 2, 2))
    answer = purchase(given, horizon())

    always = 3 * 720 * 3.0
    by_day = {"all spot": (5 + 2) * 2.6, "all on demand": 5 * 4.0, "four spot": (4 + 1) * 2.6 + 4.0}
    month = always + 360 * min(by_day.values())
    everything_spot = 360 * ((3 + 1) + (8 + 2)) * 2.6
    assert min(by_day, key=lambda way: by_day[way]) == "four spot"
    assert month < everything_spot
    assert answer["total_usd"] == pytest.approx(12 * month)
    first = answer["months"][0]
    assert (first["committed"], first["on_demand_replicas"]) == ({"1": 3}, 1)
    assert (first["spot_replicas"], first["spot_reserve"]) == (5, 1)
    assert (first["spot_hours"], first["on_demand_hours"]) == (5 * 360, 360)
    assert answer["without_spot_usd"] == pytest.approx(12 * (always + 360 * by_day["all on demand"]))
    assert answer["all_on_demand_usd"] == pytest.approx(12 * (3 * 720 + 5 * 360) * 4.0)


@pytest.mark.parametrize("spot", [1.0, 1.9, 2.4, 3.1, 3.9])
@pytest.mark.parametrize("reserve", [(0, 1, 1, 2, 2), (0, 1, 2), (0, 2, 2, 2, 2)])
def test_no_other_purchase_with_spot_is_much_cheaper(spot: float, reserve: tuple[int, ...]) -> None:
    """Of every number that is committed to, and every split of each hour, the cheapest costs at most 2 % less."""
    shape = tuple(0.3 + 1.4 * hour / 23 for hour in range(24))
    given = need(spot_usd_per_hour=spot, reserve=reserve, shape=shape)
    day = given.replicas(1.0)

    def hour(count: int) -> float:
        return min(
            (count - served) * 4.0 + (served + given.reserve_of(served)) * spot if served else count * 4.0
            for served in range(count + 1)
        )

    best = min(
        12 * (held * 720 * 3.0 + 30 * sum(hour(max(count - held, 0)) for count in day)) for held in range(max(day) + 1)
    )
    assert best * (1 - 1e-9) <= own_usd(given, horizon()) <= 1.02 * best


def test_spot_that_costs_as_much_with_its_reserve_is_not_bought() -> None:
    """A reserve as large as what serves, at more than half the price."""
    answer = purchase(need(spot_usd_per_hour=2.1, reserve=(0, 1, 2, 3, 4)), horizon(commitments={}))

    assert {row["spot_replicas"] for row in answer["months"]} == {0}
    assert answer["total_usd"] == answer["all_on_demand_usd"]


def test_a_term_that_outlasts_the_horizon_is_not_bought() -> None:
    """A year needs twelve months, three years 36."""
    for months, terms in ((11, set()), (12, {"1"}), (36, {"3"})):
        answer = purchase(need(), horizon(months, commitments={1: 0.25, 3: 0.45}))

        assert {term for row in answer["months"] for term in row["committed"]} == terms


def test_spares_are_bought_like_the_others() -> None:
    """One on top of every hour's replicas."""
    plain, spared = (bought(need(spare_replicas=spares), horizon()) for spares in (0, 1))

    assert sum(spared.usd) - sum(plain.usd) == pytest.approx(12 * 720 * 3.0)


@pytest.mark.slow
def test_flips_are_where_both_cost_the_same() -> None:
    """At the growth, the GPU price and the traffic that are said, the purchase costs what the API asks."""
    given = need(growth=0.03, api_usd_per_request=6e-4, api_decline=0.02, fixed_usd_per_month=500.0)
    flips = purchase(given, horizon())["flips"]

    assert flips["gpu_price_factor"] is not None
    factor = flips["gpu_price_factor"]
    dearer = replace(given, usd_per_hour=4.0 * factor)
    again = purchase(dearer, horizon())
    assert again["total_usd"] == pytest.approx(again["api_usd"], rel=1e-6)
    assert flips["traffic_factor"] is not None
    other = purchase(replace(given, rate=10.0 * flips["traffic_factor"]), horizon())
    assert other["total_usd"] == pytest.approx(other["api_usd"], rel=0.1)
    assert (other["total_usd"] < other["api_usd"]) != (purchase(given, horizon())["cheaper"] == "self_host")


def test_the_page_says_the_difference_and_heads_its_columns_in_words() -> None:
    """Dollars between the purchase and the API, and traffic that shrinks instead of a growth below none."""
    found = dict(
        purchase(need(growth=0.03, api_usd_per_request=6e-4), horizon()), assumes=[], api="some-api", spot=None
    )
    turned = found | {"flips": dict.fromkeys(found["flips"]) | {"growth_per_month": -0.012}}

    lines = purchase_lines(turned)
    header, (*_, totals) = purchase_table(turned)
    less = "more" if found["cheaper"] == "self_host" else "less"
    apart = dollars(abs(found["api_usd"] - found["total_usd"]))
    assert any(line.endswith(f"for the same requests, {apart} {less}.") for line in lines)
    other = "The API" if found["cheaper"] == "self_host" else "Buying GPUs"
    assert f"{other} would cost no more with traffic that shrinks by 1.2% a month." in lines
    assert header[:4] == ("month", "million requests", "replicas for 1 year", "replicas on demand")
    assert header[4:] == ("to pay", "all on demand", "the API")
    sums = ("total_usd", "all_on_demand_usd", "api_usd")
    assert totals == ("all 12", totals[1], "", "", *(dollars(found[key]) for key in sums))


@pytest.mark.parametrize(("budget", "is_drawn"), [(30_000.0, True), (1e9, False), (None, False)])
def test_the_picture_has_the_budget_where_it_is_near(budget: float | None, is_drawn: bool) -> None:
    """A line beside the months, unless it lies so high that they would be flat."""
    found = dict(purchase(need(growth=0.03), horizon(budget=budget)), assumes=["a", "b"], api=None, spot=None)

    labels = [getattr(mark, "label", "") for mark in purchase_sketch(found).marks]

    assert ("budget" in labels) is is_drawn
    assert purchase_lines(found)[-1] == "Assumed: a; b."


def test_a_budget_is_passed_in_the_first_month_above_it() -> None:
    """Traffic that doubles each month does so soon."""
    given = need(growth=1.0)
    answer = purchase(given, horizon(commitments={}, budget=30_000.0))

    dear = [row["month"] for row in answer["months"] if row["usd"] > 30_000]
    assert answer["over_budget_from"] == dear[0] > 1
    assert purchase(given, horizon(2, budget=1e9))["over_budget_from"] is None


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (("12mo",), Horizon(months=12)),
        (("3y", "60%/year"), Horizon(months=36, growth=1.6 ** (1 / 12) - 1)),
        (("18 months", "-5%/month", "20%/year"), Horizon(months=18, growth=-0.05, price_decline=1 - 0.8 ** (1 / 12))),
        (("1y", None, None, "$20,000/month"), Horizon(months=12, budget=20_000.0)),
        (("1y", None, None, "20k"), Horizon(months=12, budget=20_000.0)),
        (
            ("1y", None, None, None, "1y=30%,3y=50%"),
            Horizon(months=12, commitments={1: 0.3, 3: 0.5}, offers_spot=False, is_assumed=False),
        ),
        (("1y", None, None, None, "none"), Horizon(months=12, commitments={}, offers_spot=False, is_assumed=False)),
        (
            ("1y", None, None, None, "spot=60%", "mtbf=6h,notice=2min"),
            Horizon(
                months=12,
                commitments={},
                spot_below=0.6,
                interruptions=Interruptions(mtbf=21_600.0, notice=120.0, is_assumed=False),
                is_assumed=False,
            ),
        ),
    ],
)
def test_options_are_read(said: tuple[str | None, ...], meant: Horizon) -> None:
    """In months or years, shares of a month or of a year, dollars with commas or k."""
    found = horizon_of(*said)

    assert found is not None
    assert found.months == meant.months
    assert found.growth == pytest.approx(meant.growth) if meant.growth is not None else found.growth is None
    assert found.price_decline == pytest.approx(meant.price_decline) if meant.price_decline else True
    assert (found.budget, found.commitments, found.is_assumed) == (meant.budget, meant.commitments, meant.is_assumed)
    assert (found.offers_spot, found.spot_below) == (meant.offers_spot, meant.spot_below)
    assert found.interruptions == meant.interruptions


@pytest.mark.parametrize(
    ("said", "key"),
    [
        (("12",), "--horizon"),
        (("0mo",), "--horizon"),
        (("11y",), "--horizon"),
        (("12mo", "5"), "--growth"),
        (("12mo", "5%"), "--growth"),
        (("12mo", "-95%/month"), "--growth"),
        (("12mo", None, "95%/month"), "--price-decline"),
        (("12mo", None, None, "lots"), "--budget"),
        (("12mo", None, None, "0"), "--budget"),
        (("12mo", None, None, None, "1y"), "--commitments"),
        (("12mo", None, None, None, "0y=30%"), "--commitments"),
        (("12mo", None, None, None, "spot=x"), "--commitments"),
        (("12mo", None, None, None, None, "24h"), "--interruptions"),
        (("12mo", None, None, None, None, "mtbf=0s"), "--interruptions"),
        (("12mo", None, None, None, None, "mtbf=24"), "--interruptions"),
        (("12mo", None, None, None, "1y=30%", "mtbf=24h"), "--interruptions"),
        ((None, None, None, None, None, "mtbf=24h"), "--interruptions"),
        ((None, "5%/month"), "--growth"),
        ((None, None, None, None, "1y=3%"), "--commitments"),
    ],
)
def test_what_cannot_be_read_is_named(said: tuple[str | None, ...], key: str) -> None:
    """By the option that says it."""
    with pytest.raises(UsageError) as caught:
        horizon_of(*said)

    assert caught.value.key == key


def test_nothing_is_bought_unasked() -> None:
    """Without a horizon there is none, and the assumed commitments have a source."""
    assert horizon_of(None) is None
    assert set(COMMITMENTS) == {1, 3}


def test_an_hour_without_traffic_has_a_replica_and_the_spares() -> None:
    """Nobody scales to zero: by night one replica and two spares, by day ceil(20 / 2) and two."""
    silent = need(shape=(0.0,) * 12 + (2.0,) * 12, spare_replicas=2)

    assert silent.replicas(1.0) == [3] * 12 + [12] * 12


def test_what_is_had_from_the_first_day_for_the_peak_does_not_grow() -> None:
    """15 requests/s at the peak grow by a tenth a month to 42.8: 22 replicas all year, on the year's terms."""
    answer = purchase(need(growth=0.1), horizon())

    assert math.ceil(15 * 1.1**11 / 2) == 22
    assert answer["committed_at_peak_usd"] == pytest.approx(12 * 22 * 720 * 3.0)
