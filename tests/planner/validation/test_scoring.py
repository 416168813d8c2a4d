"""Errors: the arithmetic, the bands, the groups, what is covered, and when memory counts as right."""

from __future__ import annotations

import pytest

from simserve.planner.measured.point import COMPUTED, NO_RECIPE, MeasuredMemory
from simserve.planner.validation.prediction import Prediction
from simserve.planner.validation.scoring import (
    MemoryComparison,
    concurrency_band,
    coverage,
    coverage_sentence,
    error_summary,
    grouped,
    not_covered,
)
from tests.planner.builders import make_point, make_prediction


def test_errors_are_relative_to_the_measurement() -> None:
    """Median, mean and 90th percentile of the absolute error; the bias keeps the sign."""
    summary = error_summary([-0.1, 0.3, 0.2])

    assert summary["points"] == 3
    assert summary["median_ape"] == pytest.approx(0.2)
    assert summary["mean_ape"] == pytest.approx(0.2)
    assert summary["p90_ape"] == pytest.approx(0.28)
    assert summary["bias"] == pytest.approx(0.4 / 3)


@pytest.mark.parametrize(
    ("load", "band"), [(1, "1-4"), (4, "1-4"), (5, "5-16"), (64, "17-64"), (256, "65-256"), (257, ">256")]
)
def test_bands_of_concurrency_hold_both_ends(load: float, band: str) -> None:
    """Four clients are in the band up to four."""
    assert concurrency_band(make_point(load=load)) == band


def test_other_loads_are_a_band_of_their_own() -> None:
    """A rate is no number of clients."""
    assert concurrency_band(make_point(load_kind="rate", load=4.0)) == "rate"


def test_a_group_counts_what_did_not_run() -> None:
    """Points are all of them, covered those with a prediction, metrics say their own denominators."""
    predictions = [
        make_prediction({"tpot": 0.011}),
        make_prediction({"tpot": 0.009}),
        make_prediction({}, reason="does not fit"),
    ]

    (group,) = grouped(predictions, "source", "engine", "hardware", "model")

    assert list(group) == ["source", "engine", "hardware", "model", "points", "covered", "metrics", "shown_only"]
    assert (group["points"], group["covered"]) == (3, 2)
    assert group["metrics"]["tpot"]["median_ape"] == pytest.approx(0.1)
    assert group["metrics"]["tpot"]["bias"] == pytest.approx(0.0)
    assert not_covered(predictions) == [{"source": "made_up", "reason": "does not fit", "points": 1}]


def test_what_is_only_shown_is_not_scored() -> None:
    """It has errors, under another key."""
    prediction = make_prediction(
        {"tpot": 0.01, "ttft": 0.2}, measured={"tpot": 0.01, "ttft": 0.1}, shown_only=frozenset({"ttft"})
    )

    (group,) = grouped([prediction], "source")

    assert list(group["metrics"]) == ["tpot"]
    assert group["shown_only"]["ttft"]["bias"] == pytest.approx(1.0)


def test_coverage_is_of_hopper_and_a100_and_models_of_the_catalogue() -> None:
    """Other GPUs, unknown models and separate pools are not in the denominator; pools are counted beside it."""
    known = {"hardware": "h100-sxm-80gb", "model": "llama-3.1-8b"}
    predictions = [
        Prediction(point=make_point(**known), predicted={"tpot": 0.01}),
        Prediction(point=make_point(**known), reason="does not fit"),
        Prediction(point=make_point(**known), reason=NO_RECIPE),
        Prediction(point=make_point(**known), reason=COMPUTED),
        Prediction(point=make_point(**{**known, "hardware": "l4-24gb"}), reason="does not fit"),
        Prediction(point=make_point(**{**known, "model": "nobody-1b"}), reason="is not a known model"),
    ]

    assert coverage(predictions) == {"points": 2, "covered": 1, "share": 0.5, "disaggregated": 1}
    assert "1 of 2 (50.0 %)" in coverage_sentence(coverage(predictions))
    assert coverage([])["share"] is None


@pytest.mark.parametrize(
    ("measured", "predicted", "is_within"),
    [(10.0, 10.9, True), (10.0, 11.1, False), (40.0, 40.9, True), (40.0, 38.7, False)],
)
def test_what_counts_as_within(measured: float, predicted: float, is_within: bool) -> None:
    """1 % of a GPU of 100; 3 % of the KV too where that is over a third."""
    log = MeasuredMemory(
        label="a row", engine="vllm", version="0.12.0", hardware="h100-sxm-80gb", model="llama-3.1-8b", scenario={}
    )

    compared = MemoryComparison(
        measured=log, measured_bytes=measured, predicted_bytes=predicted, gpu_bytes=100.0 if is_within else 99.0
    )

    assert compared.is_within is is_within
