"""Measured figures beside the intervals that were made without their own source. Learns and replays nothing."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simserve.planner.measured.point import MeasuredPoint, Metric
from simserve.planner.measured.reports import OWN, UNSEEN
from simserve.planner.validation.prediction import Prediction
from simserve.profiles.expected_errors import GROUPS, LEVEL, Coverage, ErrorModel, expect

SCORED: tuple[Metric, ...] = ("tpot", "ttft", "throughput")
"""Metrics whose errors are learnt; end-to-end times follow from the first two."""

COPIES = ("published",)
"""Sources whose figures stand in another one too."""

REPORTS = "unseen reports"
"""The group of those that nothing was ever fitted to, however far they are."""


def source_of(point: MeasuredPoint) -> str:
    """Return who measured a point: of the unseen each laboratory is a source, of a user's own each file."""
    return f"{point.source}/{point.laboratory}" if point.laboratory else report_of(point)


def report_of(point: MeasuredPoint) -> str:
    """Return where a point stands: of the unseen and of a user's own, in which file."""
    is_file = point.source in (UNSEEN, OWN)
    return f"{point.source}/{point.label.partition(':')[0]}" if is_file else point.source


def is_scored(each: Prediction, metric: Metric) -> bool:
    """Return whether a figure counts: run, scored by its source, and in no other one."""
    point = each.point
    has_server = each.server is not None and metric in each.predicted
    return has_server and metric not in point.shown_only and point.source not in COPIES


def log_error(each: Prediction, metric: Metric) -> float:
    """Return ``log(predicted / measured)``."""
    return math.log(each.predicted[metric] / each.point.measured[metric])


def interval_score(error: ArrayLike, half: ArrayLike) -> NDArray[np.float64]:
    """Return the interval score of 90 % intervals: width + 2/a times what a figure lies outside, with a = 0.1.

    Gneiting and Raftery, "Strictly proper scoring rules, prediction, and estimation", JASA 102, 2007.

    Args:
        error: How far a figure lies from the middle, in logarithms.
        half: Half-width.
    """
    beyond = np.maximum(np.abs(error) - np.asarray(half), 0.0)
    score: NDArray[np.float64] = 2 * np.asarray(half) + 2 / (1 - LEVEL) * beyond
    return score


@dataclass(frozen=True, slots=True)
class Held:
    """One figure beside the intervals that were made without its own source.

    Attributes:
        source: Who measured it.
        group: How far it is from what the other sources measured, one of `GROUPS`.
        is_fitted: Whether a constant was fitted to it.
        error: ``log(predicted / measured)``.
        center: Middle of the intervals.
        half_50: Half-width of the 50 % interval, in logarithms.
        half_90: Of the 90 % interval.
        constant_center: Middle of one 90 % interval for all.
        constant_90: Half-width of it.
    """

    source: str
    group: str
    is_fitted: bool
    error: float
    center: float
    half_50: float
    half_90: float
    constant_center: float
    constant_90: float

    def scores(self) -> tuple[float, ...]:
        """Return whether 90 % and 50 % hold it; widths; interval scores; the constant's coverage, width and score."""
        distance = abs(self.error - self.center)
        constant = abs(self.error - self.constant_center)
        return (
            float(distance <= self.half_90),
            float(distance <= self.half_50),
            2 * self.half_90,
            float(interval_score(distance, self.half_90)),
            float(constant <= self.constant_90),
            2 * self.constant_90,
            float(interval_score(constant, self.constant_90)),
        )


_SCORES = tuple(Coverage.model_fields)[4:11]
"""What `Held.scores` returns, in its order."""

_DRAWS = 2000
_SEED = 0


def held(predictions: Sequence[Prediction], model: ErrorModel, metric: Metric) -> list[Held]:
    """Return the scored figures of a metric beside the intervals that were made without their own sources."""
    rows = []
    for each in predictions:
        if not is_scored(each, metric) or each.server is None:
            continue
        source = source_of(each.point)
        expected = expect(model, each.server, source)
        own, errors = expected.metrics[metric], model.of_metric(metric, source)
        rows.append(
            Held(
                source,
                expected.group,
                metric in each.point.fitted,
                log_error(each, metric),
                own.center,
                own.half_50,
                own.half_90,
                errors.constant_center,
                errors.constant_90,
            )
        )
    return rows


def coverage_rows(predictions: Sequence[Prediction], model: ErrorModel) -> list[Coverage]:
    """Return how well the intervals hold, by metric and group.

    Only figures that no constant was fitted to count, and every source once.
    """
    rows = []
    for metric in SCORED:
        found = [each for each in held(predictions, model, metric) if not each.is_fitted]
        for group in ("all", *GROUPS, REPORTS):
            members: dict[str, list[tuple[float, ...]]] = defaultdict(list)
            for each in found:
                if group in ("all", each.group) or (group == REPORTS and each.source.startswith(f"{UNSEEN}/")):
                    members[each.source].append(each.scores())
            if members:
                of_sources = np.array([np.mean(scores, axis=0) for scores in members.values()])
                means = of_sources.mean(axis=0)
                rows.append(
                    Coverage(
                        metric=metric,
                        group=group,
                        sources=len(members),
                        figures=sum(map(len, members.values())),
                        range_90=_range(of_sources[:, 0]),
                        **dict(zip(_SCORES, means.tolist(), strict=True)),
                    )
                )
    return rows


def _range(of_sources: NDArray[np.float64]) -> tuple[float, float]:
    """Return between what 90 % of the means of sources lie that are drawn anew, with replacement."""
    drawn = np.random.default_rng(_SEED).choice(of_sources, (_DRAWS, len(of_sources))).mean(axis=1)
    low, high = np.quantile(drawn, (0.05, 0.95)).tolist()
    return low, high
