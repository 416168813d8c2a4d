"""Known constants come back within their intervals, odd calls do not pull the curve, and nothing is fitted in vain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simserve.calibrate import curve_forms as forms
from simserve.calibrate.curve_regressor import CurveRegressor, SoftFit, _standard_errors, soft_fit
from simserve.errors import InputError
from simserve.perf.efficiency import Array
from tests.calibrate.synthetic_run import COMPUTE, MEMORY, START, TRUTHS, calls_of, noisy_seconds

DRAWS = 40
LEAST_HITS = 34
WIDEST = 0.10
QUICK = ("decode attention", "element-wise")
SIZES = np.geomspace(1.0, 1e4, 40)
TRUE = np.array([3.0, 0.02])


def check_recovery(name: str) -> None:
    """Fit forty noisy tables of one kind and compare each constant with the truth."""
    form, _, _, truth = TRUTHS[name]
    calls = calls_of(name)
    core = list(form.start) + ([forms.WAVE] if truth.get(forms.WAVE) else [])
    hits: Counter[str] = Counter()
    for seed in range(DRAWS):
        found = CurveRegressor(form, num_folds=0).fit(calls, noisy_seconds(name, calls, seed))
        for constant in found.fitted_:
            low, high = found.intervals_[constant]
            hits[constant] += low <= truth[constant] <= high
            if constant in core:
                assert (high - low) / 2.0 <= WIDEST * found.constants_[constant], (constant, low, high)
    assert all(hits[constant] >= LEAST_HITS for constant in core), hits


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_known_constants_come_back(name: str) -> None:
    """Within their 95 % intervals in 34 of 40 draws at least, and no interval is wider than 10 % either side."""
    check_recovery(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(TRUTHS) - set(QUICK)))
def test_known_constants_of_every_kind_come_back(name: str) -> None:
    """The same for the kinds that the quick tier leaves out."""
    check_recovery(name)


def test_fit_returns_itself_and_what_it_found_ends_in_an_underscore() -> None:
    """The conventions of scikit-learn: nothing is known before the fit."""
    form = TRUTHS["copies"][0]
    calls = calls_of("copies")
    regressor = CurveRegressor(form)
    before = set(vars(regressor))

    returned = regressor.fit(calls, noisy_seconds("copies", calls, 1))

    assert returned is regressor
    assert before == {"form", "num_folds"}
    assert all(name.endswith("_") for name in set(vars(regressor)) - before)
    assert regressor.predict(calls) == pytest.approx(form.predict(calls, regressor.constants_))


def test_what_is_in_the_table_is_read_once_a_search() -> None:
    """From the grid, from each of three places, and for the errors; not for each of the constants that are tried."""
    form, calls, read, priced = TRUTHS["element-wise"][0], calls_of("element-wise"), [], []

    def noted(table: Any) -> tuple[Array, ...]:
        read.append(len(table))
        return form.read(table)

    def timed(sizes: tuple[Array, ...], values: Mapping[str, float]) -> Array:
        priced.append(values)
        return form.seconds(sizes, values)

    watched = replace(form, read=noted, seconds=timed)
    CurveRegressor(watched, num_folds=0).fit(calls, noisy_seconds("element-wise", calls, 1))

    assert len(read) == 5
    assert len(priced) > 50


def test_one_slow_call_does_not_pull_the_curve() -> None:
    """A call that took ten times as long counts by its size, not its square."""
    form, _, _, truth = TRUTHS["element-wise"]
    calls = calls_of("element-wise")
    seconds = noisy_seconds("element-wise", calls, 2, noise=0.01)
    seconds[3] *= 10.0

    found = CurveRegressor(form, num_folds=0).fit(calls, seconds)

    assert found.constants_[MEMORY] == pytest.approx(truth[MEMORY], rel=0.05)
    assert found.constants_[START] == pytest.approx(truth[START], rel=0.15)


def test_a_further_constant_is_fitted_only_where_it_shows() -> None:
    """The sustained rate of long products is there in one table and not in the other."""
    form, _, _, truth = TRUTHS["products bfloat16"]
    calls = calls_of("products bfloat16")
    steady = noisy_seconds("products bfloat16", calls, 3)
    falling = form.predict(calls, {**truth, forms.SUSTAINED: 0.7})

    found = [CurveRegressor(form).fit(calls, seconds) for seconds in (steady, falling)]

    assert [forms.SUSTAINED in each.fitted_ for each in found] == [False, True]
    assert found[0].constants_[forms.SUSTAINED] == 1.0
    assert found[1].constants_[forms.SUSTAINED] == pytest.approx(0.7, rel=0.02)
    assert found[1].constants_[COMPUTE] == pytest.approx(truth[COMPUTE], rel=0.01)


def test_the_held_out_error_is_of_calls_that_the_fit_did_not_see() -> None:
    """It is near the noise where the form is right, and far above it where small batches take twice as long."""
    form = TRUTHS["decode attention"][0]
    calls = calls_of("decode attention")
    right = noisy_seconds("decode attention", calls, 4)
    wrong = right * (1.0 + (calls["batch_size"] <= 2).to_numpy())

    errors = [CurveRegressor(form).fit(calls, seconds) for seconds in (right, wrong)]

    assert errors[0].held_out_error_ == pytest.approx(0.6745 * 0.05, rel=0.4)
    assert errors[0].held_out_error_ < errors[1].held_out_p90_error_
    assert errors[1].held_out_p90_error_ > 0.3
    assert CurveRegressor(form, num_folds=0).fit(calls, right).held_out_error_ is None


def test_too_few_calls_are_refused() -> None:
    """Two constants cannot be had from two calls."""
    calls = calls_of("copies").head(2)

    with pytest.raises(InputError, match="too few for 2 constants"):
        CurveRegressor(TRUTHS["copies"][0]).fit(calls, np.array([1e-6, 2e-6]))


def test_a_constant_that_no_call_shows_has_no_interval() -> None:
    """No residual moves with the second constant: nothing is known of it, which is not an error of zero."""
    jacobian = np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])

    first, second = _standard_errors(jacobian, np.array([0.02, -0.01, -0.01]))

    assert 0.0 < first < 0.05
    assert second == np.inf


def line(values: Array) -> Array:
    """Return a start and a slope over the sizes."""
    return np.asarray(values[0] + values[1] * SIZES)


def found(measured: Array, high: tuple[float, float] = (100.0, 1.0)) -> SoftFit:
    """Return the fit of a line to times."""
    return soft_fit(
        line, measured, first=np.array([1.0, 0.1]), low=np.array([1e-3, 1e-6]), high=np.array(high), soft_error=0.05
    )


def test_calls_without_noise_give_their_constants() -> None:
    """At no cost."""
    fit = found(line(TRUE))

    assert fit.values == pytest.approx(TRUE, rel=1e-5)
    assert fit.cost == pytest.approx(0.0, abs=1e-8)


def test_one_odd_call_hardly_pulls() -> None:
    """A kernel ten times as slow at one size; squares would move the start by far more."""
    measured = line(TRUE)
    measured[5] *= 10.0

    fit = found(measured)

    assert fit.values == pytest.approx(TRUE, rel=0.02)
    assert fit.cost > 0.01


def test_bounds_hold() -> None:
    """A start that may be 2 at most is 2 where the calls ask for 3."""
    fit = found(line(TRUE), high=(2.0, 1.0))

    assert fit.values[0] == pytest.approx(2.0, rel=1e-3)
