"""Tests of changed traffic: how often they cry wolf, and how soon they see one."""

from __future__ import annotations

import math

import numpy as np
import pytest

from simserve.observe.windows import Counts
from simserve.planner.twin.drift import CHANGE, first_alarm, length_ratios, rate_ratios, threshold_of

_BOUNDS = (50.0, 100.0, 200.0, 500.0, 1000.0, math.inf)
_MEAN_WINDOWS = 100.0


def _histogram(lengths: np.ndarray) -> Counts:
    below = np.searchsorted(np.sort(lengths), np.array(_BOUNDS), side="right")
    return Counts(dict(zip(_BOUNDS, np.diff([0, *below]).tolist(), strict=True)), float(lengths.sum()), len(lengths))


def _run_length(up: np.ndarray, down: np.ndarray) -> float:
    """Return the windows until the first alarm, of two tests that share a false-alarm rate."""
    alarm = first_alarm(up, down, threshold_of(1.0, _MEAN_WINDOWS, num_tests=2))
    return float(len(up) if alarm is None else alarm.flagged + 1)


@pytest.mark.parametrize("mean", [3.0, 15.0, 60.0])
def test_false_alarms_of_an_unchanged_rate_are_as_rare_as_stated(mean: float) -> None:
    """Over 200 series, the mean time to an alarm is no shorter than the one the threshold is for."""
    lengths = []
    for seed in range(200):
        counts = np.random.default_rng(seed).poisson(mean, 2_000).astype(float)
        expected = np.full(len(counts), mean)
        lengths.append(_run_length(*(rate_ratios(counts, expected, factor) for factor in (CHANGE, 1 / CHANGE))))

    error = np.std(lengths) / math.sqrt(len(lengths))
    assert np.mean(lengths) >= _MEAN_WINDOWS - 2 * error


@pytest.mark.slow
def test_false_alarms_of_unchanged_lengths_are_as_rare_as_stated() -> None:
    """The same of histograms of heavy-tailed lengths, whose means jump about."""
    drawn = np.random.default_rng(0).lognormal(5.0, 1.0, 50_000)
    lengths = []
    for seed in range(40):
        generator = np.random.default_rng(seed + 1)
        histograms = [_histogram(np.maximum(np.rint(generator.lognormal(5.0, 1.0, 40)), 1)) for _ in range(400)]
        lengths.append(_run_length(*(length_ratios(histograms, drawn, factor) for factor in (CHANGE, 1 / CHANGE))))

    assert np.mean(lengths) >= _MEAN_WINDOWS


def test_a_rate_half_as_high_again_is_seen_in_five_minutes() -> None:
    """At four requests a second and a scrape every 15 s, whatever the seed."""
    for seed in range(50):
        generator = np.random.default_rng(seed)
        counts = np.concatenate([generator.poisson(60, 240), generator.poisson(90, 40)]).astype(float)
        expected = np.full(len(counts), 60.0)
        ratios = [rate_ratios(counts, expected, factor) for factor in (CHANGE, 1 / CHANGE)]
        alarm = first_alarm(*ratios, threshold_of(15.0))

        assert alarm is not None
        assert alarm == first_alarm(ratios[0], [], threshold_of(15.0))
        assert 240 <= alarm.flagged < 260
        assert abs(alarm.since - 240) <= 4


def test_shorter_answers_are_seen_and_told_from_longer_ones() -> None:
    """Answers 30 % shorter end in the test that looks for less."""
    generator = np.random.default_rng(3)
    drawn = generator.lognormal(5.0, 1.0, 50_000)
    histograms = [_histogram(0.7 * generator.lognormal(5.0, 1.0, 60)) for _ in range(40)]
    ratios = [length_ratios(histograms, drawn, factor) for factor in (CHANGE, 1 / CHANGE)]

    alarm = first_alarm(*ratios, threshold_of(15.0))

    assert alarm is not None
    assert alarm == first_alarm([], ratios[1], threshold_of(15.0))
