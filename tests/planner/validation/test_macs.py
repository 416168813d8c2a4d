"""llama.cpp on Macs against its own table: chips that no constant was fitted to."""

from __future__ import annotations

from statistics import median

import pytest

from simserve.planner.measured.point import Metric
from simserve.planner.measured.shipped import read_published
from simserve.planner.validation.prediction import Pricer, predict

METRICS: tuple[Metric, ...] = ("tpot", "ttft")


@pytest.mark.parametrize(
    ("chip", "tpot", "ttft"), [("m1-pro-32gb", 0.1, 0.05), ("m3-max-128gb", 0.04, 0.04), ("m4-max-128gb", 0.04, 0.05)]
)
def test_a_chip_that_nothing_was_fitted_to_is_met(chip: str, tpot: float, ttft: float) -> None:
    """F16, Q8_0 and Q4_0, a token of a stream and a prompt of 512: the median error of each is a few percent."""
    points = [point for point in read_published() if point.hardware == chip]
    pricer = Pricer()
    predictions = [predict(point, pricer) for point in points]
    ratios = {
        metric: [
            each.predicted[metric] / each.point.measured[metric] for each in predictions if metric in each.predicted
        ]
        for metric in METRICS
    }
    errors = {metric: [abs(ratio - 1.0) for ratio in each] for metric, each in ratios.items()}

    assert [len(each) for each in errors.values()] == [3, 3]
    assert median(errors["tpot"]) <= tpot
    assert median(errors["ttft"]) <= ttft


def test_the_points_that_constants_were_fitted_to_are_the_rows_of_the_m2() -> None:
    """24 of the shipped points, as their source says; the metric that each has."""
    fitted = [point for point in read_published() if point.fitted]

    assert len(fitted) == 24
    assert all(point.hardware.startswith("m2") and point.fitted == set(point.measured) for point in fitted)
