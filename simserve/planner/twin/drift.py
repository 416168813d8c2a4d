"""Whether traffic is still what a scenario says: sequential tests of counts, with a known false-alarm rate.

Page's CUSUM of likelihood ratios ("Continuous inspection schemes", 1954): while nothing has changed, the time to an
alarm at the threshold ``log A`` is at least A observations on average (Lorden, "Procedures for reacting to a change
in distribution", 1971). It only requires that the ratio's mean is at most 1 while nothing has changed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simserve.observe.windows import Counts

FALSE_ALARM_SECONDS = 30 * 86_400.0  # Least mean time between two false alarms of all tests together: 30 days.
NUM_TESTS = 6  # Tests of rate, prompts and answers, each up and down.
CHANGE = 1.25  # Factor, up or down, that a test looks for; changes under half of it, on the logarithm, are ignored.
_SMOOTHING = 1e-3  # Share of lengths that may be in any bucket, whatever the scenario says.
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Alarm:
    """A change that was detected."""

    flagged: int  # Index of the observation at which it was detected.
    since: int  # Index of the observation after which the change is estimated to have come: the first after it.


def threshold_of(
    observation_seconds: float, mean_seconds: float = FALSE_ALARM_SECONDS, num_tests: int = NUM_TESTS
) -> float:
    """Return ``log A`` of one test such that all tests together have false alarms no more often than asked.

    Args:
        observation_seconds: Time between two observations.
        mean_seconds: Least mean time between two false alarms.
        num_tests: Number of tests that are made at once.
    """
    return math.log(max(num_tests * mean_seconds / max(observation_seconds, 1e-9), 2.0))


def first_alarm(up: Sequence[float] | Floats, down: Sequence[float] | Floats, threshold: float) -> Alarm | None:
    """Return the first alarm of two tests over the same observations; None: there is none.

    Args:
        up: Logarithm of the likelihood ratio of more against the same, one for each observation.
        down: The same for less.
        threshold: As returned by `threshold_of`.
    """
    found = []
    for ratios in (up, down):
        total, since = 0.0, 0
        for index, ratio in enumerate(ratios):
            if total <= 0.0:
                total, since = 0.0, index
            total += ratio
            if total >= threshold:
                found.append(Alarm(index, since))
                break
    return min(found, key=lambda each: each.flagged, default=None)


def rate_ratios(counts: Floats, expected: Floats, factor: float, dispersion: float = 1.0) -> Floats:
    """Return log likelihood ratios of Poisson counts at ``factor`` times the rate.

    Args:
        counts: Arrivals of each observation.
        expected: Their means if nothing has changed.
        factor: Factor of the change.
        dispersion: Variance of the counts over their mean, at least 1; 1 for Poisson arrivals, for which the rate of
            false alarms is exact.
    """
    return (counts * math.log(factor) - expected * (factor - 1.0)) / max(dispersion, 1.0)


def length_ratios(histograms: Sequence[Counts | None], lengths: Floats, factor: float) -> Floats:
    """Return log likelihood ratios of lengths that are ``factor`` times as long as a scenario's."""
    ratios = np.zeros(len(histograms))
    bounds: tuple[float, ...] = ()
    weights = np.zeros(0)
    for index, counts in enumerate(histograms):
        if counts is None or not counts.count:
            continue
        own = tuple(counts.bounds().tolist())
        if own != bounds:
            bounds = own
            before, after = _shares(lengths, bounds), _shares(lengths * factor, bounds)
            weights = np.log(after / before) + math.log1p(-_SMOOTHING)
        ratios[index] = float((counts.values() * weights).sum())
    return ratios


def _shares(lengths: Floats, bounds: Sequence[float]) -> Floats:
    """Return the shares of lengths in buckets, none of them 0."""
    below = np.searchsorted(np.sort(np.maximum(np.rint(lengths), 1.0)), np.array(bounds), side="right")
    shares = np.diff(np.concatenate([[0], below])) / len(lengths)
    return np.asarray((1 - _SMOOTHING) * shares + _SMOOTHING / len(bounds), dtype=np.float64)
