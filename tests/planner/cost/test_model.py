"""Tests of the staircase against the straight line: break-even, split, years, tornado."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.errors import ScenarioError
from simserve.planner.cost.model import (
    API,
    PEAK_TO_MEAN,
    PEAK_TO_TROUGH,
    Comparison,
    break_even,
    day_shape,
    hybrid,
    outlook,
    saving,
    sensitivity,
    usual_ranges,
)
from simserve.planner.cost.scenario import ladder
from simserve.units import SECONDS_PER_MONTH

_MODEL = Comparison(
    unit_usd_per_month=1000.0,
    gpus_per_unit=2,
    capacity=1.0,
    fixed_usd_per_month=500.0,
    api_usd_per_request=0.001,
    tokens_per_request=700.0,
    requests_per_month=2e6,
)
"""One unit holds 2.592 M requests a month, worth $2,592 at the API."""


def test_the_break_even_is_where_the_line_meets_the_stair() -> None:
    """(500 + 1,000) / 0.001 = 1.5 M requests, on the first unit."""
    found = break_even(_MODEL)

    assert found["requests_per_month"] == pytest.approx(1.5e6)
    assert found["tokens_per_month"] == pytest.approx(1.05e9)
    assert (found["gpus"], found["usd_per_month"]) == (2, 1500.0)


def test_a_stair_can_be_too_low_for_its_unit() -> None:
    """$3,000 of operations need 4 M requests, more than one unit holds: with two it takes 5 M."""
    found = break_even(replace(_MODEL, fixed_usd_per_month=3000.0))

    assert found["requests_per_month"] == pytest.approx(5e6)
    assert found["gpus"] == 4


_SCALED = replace(_MODEL, units=6, unit_usd_per_month=400.0, paid_share=0.4, is_scaled=True)
"""Six units of $1,000 that were there for 0.4 of the day, each."""


def test_the_smallest_unit_of_a_scaled_fleet_costs_what_a_unit_costs() -> None:
    """It was priced at the share of the month for which a unit of the larger fleet is there: $900 instead of $1,500."""
    found = break_even(_SCALED.from_one_unit)

    assert found == break_even(_MODEL)
    assert _SCALED.fleet_usd(6) == 500.0 + 6 * 400.0
    assert replace(_SCALED, spare_units=1).fleet_usd(6) == 500.0 + 6 * 400.0 + 1000.0


def test_a_scaled_fleet_of_another_size_pays_for_the_units_that_each_hour_needs() -> None:
    """Half of the day needs both units, the other half one; the split pays its units whenever the load fills them."""
    day = tuple([1.6] * 12 + [0.4] * 12)
    model = replace(_SCALED, shape=day, fixed_usd_per_month=0.0, requests_per_month=SECONDS_PER_MONTH * 1.25)
    free = model.from_one_unit

    splits = hybrid(free)

    assert free.fleet_usd(2) == pytest.approx(1500.0)
    assert free.fleet_usd(4) == pytest.approx(2500.0)
    assert splits is not None
    # Hours of 2.0 and 0.5 requests/s, of which a unit holds 1.0.
    assert [each["self_host_usd_per_month"] for each in splits["splits"]] == pytest.approx([0.0, 1000.0, 1500.0])


def test_many_units_of_a_scaled_fleet_cost_what_the_mean_hour_fills() -> None:
    """A unit full in the busy half of the day is paid for 0.625 of it: dearer than the API alone, two are cheaper."""
    day = tuple([1.6] * 12 + [0.4] * 12)
    model = replace(_SCALED, shape=day, fixed_usd_per_month=0.0, api_usd_per_request=1300.0 / SECONDS_PER_MONTH)

    found = break_even(model.from_one_unit)

    # $1,500 for two units by day and one by night, where one would cost $1,000 for 0.625 requests/s, worth $812.
    assert found["requests_per_month"] == pytest.approx(SECONDS_PER_MONTH * 1500.0 / 1300.0)
    assert found["gpus"] == 4


def test_the_ladder_of_a_scaled_fleet_begins_with_full_units_at_their_full_price() -> None:
    """Three requests/s fill three units of $1,000; six for 0.4 of the day are $2,400 (the load of its simulated day).

    A spare one is there all month.
    """
    model = replace(_SCALED, spare_units=1, requests_per_month=3.0 * SECONDS_PER_MONTH)

    added = [row["adds_usd_per_month"] for row in ladder(model, assumed=3000.0)]

    assert added == pytest.approx([3000.0, -600.0, 1000.0, 500.0])


def test_the_next_unit_may_bring_the_api_back() -> None:
    """Crossed at 2.5 M on one unit; the second costs 2 x 2,450 + 50 up to 4.95 M, so for good from there."""
    found = break_even(replace(_MODEL, unit_usd_per_month=2450.0, fixed_usd_per_month=50.0))

    assert found["requests_per_month"] == pytest.approx(2.5e6)
    assert found["for_good_requests_per_month"] > 2.592e6


@given(
    unit=st.floats(100, 5000),
    fixed=st.floats(0, 20_000),
    price=st.floats(1e-4, 1e-2),
    spare=st.integers(0, 2),
)
def test_no_volume_below_the_break_even_pays_and_all_beyond_for_good_do(
    unit: float, fixed: float, price: float, spare: int
) -> None:
    """Looked at volume by volume."""
    model = replace(
        _MODEL, unit_usd_per_month=unit, fixed_usd_per_month=fixed, api_usd_per_request=price, spare_units=spare
    )
    found = break_even(model)
    first, good = found["requests_per_month"], found["for_good_requests_per_month"]
    most = 40 * model.capacity_per_month if first is None else 3 * first
    volumes = [most * step / 997 for step in range(1, 997)]

    for volume in volumes:
        pays = saving(replace(model, requests_per_month=volume)) > 1e-6
        if pays:
            assert first is not None
            assert volume >= first * (1 - 1e-9)
        elif good is not None:
            assert volume <= good * (1 + 1e-9)


def test_they_never_cross_where_a_full_unit_is_dearer() -> None:
    """And the answer says why."""
    found = break_even(replace(_MODEL, unit_usd_per_month=2600.0))

    assert found["requests_per_month"] is None
    assert "even fully loaded, 2 GPUs cost $1.003 per 1,000 requests, the API $1.000" in found["why_never"]


@pytest.mark.parametrize(
    ("own", "api", "told"),
    [
        (1e-4, 4.32e-5, "$0.100 per 1,000 requests, the API $0.0432"),
        (1.25, 0.012, "$1,250.00 per 1,000 requests, the API $12.00"),
    ],
)
def test_money_has_cents_or_three_digits(own: float, api: float, told: str) -> None:
    """No ``$0.1``, and no two equal amounts of which one is said to be the larger."""
    per_month = own * _MODEL.capacity_per_month / _MODEL.share
    found = break_even(replace(_MODEL, unit_usd_per_month=per_month, api_usd_per_request=api))

    assert told in found["why_never"]


def test_no_sum_of_a_month_crosses_where_the_fleet_never_does() -> None:
    """The terms of the month say what headline and pictures say."""
    never, once = (replace(_MODEL, unit_usd_per_month=usd, requests_per_month=1e6) for usd in (2600.0, 500.0))

    assert {row["break_even_requests_per_month"] for row in ladder(never, assumed=3000.0)} == {None}
    assert None not in {row["break_even_requests_per_month"] for row in ladder(once, assumed=3000.0)}


def test_the_busiest_hour_sizes_the_fleet() -> None:
    """Twice the mean in the busiest hour takes twice the units."""
    peaky = replace(_MODEL, shape=(2.0,) * 6 + (2 / 3,) * 18)

    assert _MODEL.units_for(2.5e6) == 1
    assert peaky.units_for(2.5e6) == 2


def test_the_best_split_keeps_the_base_and_sends_the_peak_away() -> None:
    """One hour a day of ten times the rest is worth no unit of its own."""
    shape = (10.0,) + (1.0,) * 23
    model = replace(
        _MODEL,
        fixed_usd_per_month=0.0,
        requests_per_month=0.9 * SECONDS_PER_MONTH * 33 / 24,
        shape=tuple(24 * share / 33 for share in shape),
    )

    best = hybrid(model)

    assert best is not None
    assert best["replicas"] == 1
    assert best["api_share"] == pytest.approx((9 - 1) / 24 / (0.9 * 33 / 24))
    assert best["usd_per_month"] == min(split["usd_per_month"] for split in best["splits"])
    assert best["usd_per_month"] < min(best["splits"][0]["usd_per_month"], best["splits"][-1]["usd_per_month"])
    assert best["splits"][-1]["api_share"] == 0.0


def test_a_split_needs_a_capacity() -> None:
    """Without one nothing says what a unit leaves over."""
    assert hybrid(replace(_MODEL, capacity=None)) is None


def test_falling_prices_move_the_sides_and_growth_the_fleet() -> None:
    """Flat prices: 36 equal months. A falling API can take the lead; what is owned keeps its price."""
    flat = outlook(_MODEL, api_fall=0.0, gpu_fall=0.0)
    falling = outlook(_MODEL, api_fall=0.5, gpu_fall=0.0)
    owned = outlook(replace(_MODEL, gpus_fall=False), api_fall=0.0, gpu_fall=0.5)
    growing = outlook(_MODEL, api_fall=0.0, gpu_fall=0.0, growth=1.0)

    assert flat is not None
    assert falling is not None
    assert growing is not None
    assert (flat["self_host_usd"], flat["api_usd"]) == (pytest.approx(36 * 1500), pytest.approx(36 * 2000))
    assert (flat["cheaper"], flat["cheaper_changes_in_months"]) == ("self_host", [])
    assert falling["cheaper_changes_in_months"] == [math.ceil(12 * math.log2(2000 / 1500))]
    assert owned is not None
    assert owned["self_host_usd"] == flat["self_host_usd"]
    assert growing["by_month"][-1]["requests_per_month"] == pytest.approx(16e6)
    assert growing["by_month"][-1]["self_host_usd"] == pytest.approx(500 + 7 * 1000)


def test_the_tornado_leads_with_what_matters_most_and_says_what_flips() -> None:
    """A price that matters twice as much stands first; one that turns the answer is marked."""
    rows = sensitivity(_MODEL, usual_ranges(_MODEL))

    swings = [row["swing_usd_per_month"] for row in rows]
    assert swings == sorted(swings, reverse=True)
    assert next(row for row in rows if row["parameter"] == API)["changes_the_answer"]
    assert sensitivity(replace(_MODEL, requests_per_month=None), usual_ranges(_MODEL)) == []


def test_the_day_has_its_two_ratios_and_a_mean_of_one() -> None:
    """As published, and for other days."""
    for peak, trough in ((PEAK_TO_MEAN, PEAK_TO_TROUGH), (2.8, 34.6), (1.2, 2.0)):
        shape = day_shape(peak_to_mean=peak, peak_to_trough=trough)
        assert len(shape) == 24
        assert sum(shape) / 24 == pytest.approx(1)
        assert max(shape) == pytest.approx(peak, rel=1e-6)
        assert max(shape) / min(shape) == pytest.approx(trough, rel=1e-6)
    assert day_shape(peak_to_mean=1) == (1.0,) * 24
    assert day_shape([2.0] * 12 + [1.0] * 12)[0] == pytest.approx(4 / 3)


def test_a_day_that_cannot_be_is_refused() -> None:
    """A mean below the trough."""
    with pytest.raises(ScenarioError, match="has no wave"):
        day_shape(peak_to_mean=3.0, peak_to_trough=2.0)


def test_a_hybrid_breaks_even_where_its_gpus_pay_for_what_they_take_from_the_api() -> None:
    """Half of every request still goes there: twice the requests, and the month counts that half."""
    half = replace(_MODEL, api=None, overflow_usd_per_request=(_MODEL.api_usd_per_request or 0.0) / 2)
    alone = replace(_MODEL, api=None)
    requests = 1e6

    assert half.self_host_usd(requests) == alone.self_host_usd(requests) + half.api_usd(requests) / 2
    both = (break_even(replace(each, capacity=None))["requests_per_month"] for each in (half.beside_overflow(), alone))
    assert next(both) == pytest.approx(2 * next(both))
    assert alone.beside_overflow() is alone


def test_gpus_that_cost_nothing_are_cheaper_from_the_first_request_on() -> None:
    """A line from zero is never below one that stays there."""
    found = break_even(replace(_MODEL, unit_usd_per_month=0.0, fixed_usd_per_month=0.0))

    assert (found["requests_per_month"], found["for_good_requests_per_month"]) == (0.0, 0.0)


def test_a_spare_unit_is_paid_for_and_takes_nothing_from_the_api() -> None:
    """A third of the hours has 1.5 requests/s: beyond one unit's request a second, half a request/s goes away."""
    day = replace(_MODEL, shape=(1.5,) * 8 + (0.75,) * 16, requests_per_month=1.0 * SECONDS_PER_MONTH)
    plain, spare = (hybrid(replace(day, spare_units=count)) for count in (0, 1))
    assert plain is not None
    assert spare is not None

    for splits in (plain["splits"], spare["splits"]):
        assert splits[1]["api_share"] == pytest.approx(0.5 * 8 / 24)
    assert spare["splits"][1]["self_host_usd_per_month"] - plain["splits"][1]["self_host_usd_per_month"] == 1000.0


def test_what_overflows_gets_cheaper_with_the_api() -> None:
    """A month of $1,500 and 2 M requests at $0.0005 each, half of that after a year."""
    found = outlook(replace(_MODEL, overflow_usd_per_request=0.0005), api_fall=0.5, gpu_fall=0.0)

    assert found is not None
    assert found["by_month"][11]["self_host_usd"] == pytest.approx(1500 + 2e6 * 0.0005 / 2)
