"""The load that most real servers bear, between the loads that a capacity search has run, with a few runs more."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from simserve.planner.capacity.found import Found
from simserve.planner.capacity.level import Prober, Trial
from simserve.planner.capacity.search import FIRST_FRESH

CONFIDENCE = 0.9
"""Share of real servers on which the objective holds."""
MOST_RUNS = 2
"""Runs beside those of the search, where one of its loads holds with that confidence."""
MOST_RUNS_BELOW = 4
"""The same where none does."""
CLOSE = 1.02
"""Ratio of a load that does not to one that does at which nothing further is tried."""
BELOW = 0.995
"""Of where a line between two loads leads, what is tried."""
_SUREST = 0.999
_STEEPEST, _FLATTEST = 0.98, 0.25
"""How far below the lowest load the next one lies, at least and at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sustained:
    """The load that most real servers bear.

    Attributes:
        load: The highest load at which the objective was seen to hold on `CONFIDENCE` of them, by the errors to expect;
            never above what holds as simulated. None where it did at no load.
        lowest: The lowest load that was looked at.
        basis: What the errors rest on, in words.
        trial: The run at that load; None without one.
    """

    load: float | None
    lowest: float
    basis: str
    trial: Trial | None = None


def sustained(probe: Prober, found: Found, *, is_whole: bool, confidence: float = CONFIDENCE) -> Sustained | None:
    """Return the load that nine in ten real servers bear; None where the objective holds at no load as simulated.

    The probability of each load is that of a run there; between two loads it is taken to fall evenly in quantiles of a
    normal distribution over the logarithm of the load, and one or two runs settle it.

    Args:
        probe: Runs the deployment.
        found: What the search found.
        is_whole: Whether loads are whole numbers.
        confidence: Share of real servers that must sustain it.

    Raises:
        KeyboardInterrupt: The user stopped it.
    """
    most = found.largest.value
    seen = {level.load: _judged(level.trials) for level in found.levels if 0 < level.load <= most}
    trials = {load: trial for load, trial in seen.items() if trial is not None}
    if not most or not trials:
        return None
    known = {load: trial.probability for load, trial in trials.items()}
    for _ in range(MOST_RUNS_BELOW if _held(known, confidence) is None else MOST_RUNS):
        load = _next(known, confidence, is_whole=is_whole)
        if load is None:
            break
        trials[load] = probe(load, FIRST_FRESH, found.num_requests)
        known[load] = trials[load].probability
    held = _held(known, confidence)
    basis = next(iter(trials.values())).error_basis
    return Sustained(load=held, lowest=min(known), basis=basis, trial=None if held is None else trials[held])


def _judged(trials: Sequence[Trial]) -> Trial | None:
    return next((trial for trial in trials if not math.isnan(trial.probability)), None)


def _held(known: Mapping[float, float], confidence: float) -> float | None:
    """Return the highest load that holds, and every lower one with it; None if none does."""
    held = None
    for load in sorted(known):
        if known[load] < confidence:
            break
        held = load
    return held


def _next(known: Mapping[float, float], confidence: float, *, is_whole: bool) -> float | None:
    """Return the load to be tried; None where what is known is close enough."""
    held = _held(known, confidence)
    above = [load for load in sorted(known) if held is None or load > held]
    if not above:
        return None
    failed = above[0]
    if held is not None:
        if failed <= CLOSE * held or (is_whole and failed - held <= 1):
            return None
        high, low = quantile(known[held]), quantile(known[failed])
        part = (high - quantile(confidence)) / (high - low) if high > low else 0.5
        load = min(max(BELOW * held * (failed / held) ** part, held * math.sqrt(CLOSE)), failed / math.sqrt(CLOSE))
        return float(min(max(math.floor(load), held + 1), failed - 1)) if is_whole else load
    factor = _FLATTEST
    if len(above) > 1:
        fall = (quantile(known[failed]) - quantile(known[above[1]])) / math.log(above[1] / failed)
        gap = quantile(confidence) - quantile(known[failed])
        factor = BELOW * math.exp(-gap / fall) if fall > 0 else _FLATTEST
    load = failed * min(max(factor, _FLATTEST), _STEEPEST)
    if is_whole:
        load = float(math.floor(load))
        return load if load >= 1 else None
    return load


def quantile(probability: float) -> float:
    """Return the quantile of a normal distribution at a probability, which never quite is 0 or 1."""
    return NormalDist().inv_cdf(min(max(probability, 1 - _SUREST), _SUREST))
