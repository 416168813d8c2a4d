"""Errors of predictions against measurements: arithmetic and grouping. Runs nothing."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from simserve.planner.measured.point import COMPUTED, METRICS, NO_RECIPE, MeasuredPoint, Metric
from simserve.planner.validation.prediction import Prediction
from simserve.profiles import catalog
from simserve.profiles.expected_errors import CONCURRENCY_BANDS, band_of

CORE_GPUS = ("h100", "h200", "a100")
"""Beginnings of the GPUs whose measurements the simulator is to cover."""

GroupKey = Callable[[MeasuredPoint], tuple[str, ...]]


def relative_error(predicted: float, measured: float) -> float:
    """Return (predicted - measured) / measured."""
    return (predicted - measured) / measured


def error_summary(errors: Sequence[float]) -> dict[str, float | int]:
    """Return median, mean and 90th percentile of the absolute relative errors, and their mean with sign.

    Shares, 0.05 is 5 %; ``bias`` above 0 says the simulator is too high. ``points`` is the denominator.
    """
    signed = np.asarray(errors, dtype=np.float64)
    absolute = np.abs(signed)
    return {
        "points": len(signed),
        "median_ape": float(np.median(absolute)),
        "mean_ape": float(absolute.mean()),
        "p90_ape": float(np.percentile(absolute, 90)),
        "bias": float(signed.mean()),
    }


def errors_of(predictions: Iterable[Prediction], metric: Metric, *, is_scored: bool = True) -> list[float]:
    """Return the relative errors of a metric, of the points where it is scored (or only shown)."""
    return [
        relative_error(each.predicted[metric], each.point.measured[metric])
        for each in predictions
        if metric in each.predicted and (metric not in each.point.shown_only) == is_scored
    ]


def concurrency_band(point: MeasuredPoint) -> str:
    """Return the band of a point's load: ``5-16``, ``>256``, or what the load is instead."""
    if point.load_kind not in ("concurrency", "batch") or math.isnan(point.load):
        return point.load_kind
    return band_of(point.load)


def by_model(point: MeasuredPoint) -> tuple[str, ...]:
    """Return source, engine, hardware and model of a point."""
    return (point.source, point.engine, point.hardware, point.model)


def by_band(point: MeasuredPoint) -> tuple[str, ...]:
    """Return source, engine and band of concurrency of a point."""
    return (point.source, point.engine, concurrency_band(point))


def in_order_of_load(groups: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return groups `by_band`: sources as they come, their engines, and bands from few to many requests."""
    bands = [band_of(highest) for highest in (*CONCURRENCY_BANDS, math.inf)]
    sources = list(dict.fromkeys(group["source"] for group in groups))

    def place(group: dict[str, Any]) -> tuple[int, str, int, str]:
        band = group["concurrency"]
        rank = bands.index(band) if band in bands else len(bands)
        return sources.index(group["source"]), group["engine"], rank, band

    return sorted(groups, key=place)


def by_source(point: MeasuredPoint) -> tuple[str, ...]:
    """Return the source of a point."""
    return (point.source,)


def grouped(predictions: Sequence[Prediction], key: GroupKey, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return one mapping a group, in order of first appearance.

    Args:
        predictions: Of every point, run or not.
        key: What the points of a group share.
        names: Keys of what ``key`` returns.

    Returns:
        ``names``, ``points``, ``covered``, ``metrics`` {metric: errors} and ``shown_only`` (the same, of
        metrics that are compared but not scored).
    """
    members: dict[tuple[str, ...], list[Prediction]] = {}
    for each in predictions:
        members.setdefault(key(each.point), []).append(each)
    return [
        {
            **dict(zip(names, values, strict=True)),
            "points": len(group),
            "covered": sum(each.is_covered for each in group),
            "metrics": _summaries(group, is_scored=True),
            "shown_only": _summaries(group, is_scored=False),
        }
        for values, group in members.items()
    ]


def overall(predictions: Sequence[Prediction]) -> dict[str, dict[str, float | int]]:
    """Return metric -> errors over every scored point."""
    return _summaries(predictions, is_scored=True)


def not_covered(predictions: Sequence[Prediction]) -> list[dict[str, Any]]:
    """Return why points could not be run, by source, the most frequent reasons first."""
    counts = Counter((each.point.source, each.reason) for each in predictions if not each.is_covered)
    return [{"source": source, "reason": reason, "points": count} for (source, reason), count in counts.most_common()]


def coverage(predictions: Sequence[Prediction]) -> dict[str, Any]:
    """Return how many of the points on `CORE_GPUS` of models in the catalogue were run.

    Returns:
        ``points covered share`` of those, ``share`` None without any; and ``disaggregated``, the points of separate
        prefill and decode pools of which nobody says how many workers they had, which are not among them. Rows that
        nobody measured are in neither.
    """
    known = frozenset(catalog.names("model"))
    core = [p for p in predictions if p.point.hardware.startswith(CORE_GPUS) and p.point.model in known]
    core = [each for each in core if each.reason != COMPUTED]
    single = [each for each in core if each.reason != NO_RECIPE]
    covered = sum(each.is_covered for each in single)
    return {
        "points": len(single),
        "covered": covered,
        "share": covered / len(single) if single else None,
        "disaggregated": len(core) - len(single),
    }


def coverage_sentence(coverage: Mapping[str, Any]) -> str:
    """Return what share of the H100, H200 and A100 points of supported models was run, in words."""
    if coverage["share"] is None:
        return "None of them is of a supported model on H100, H200 or A100."
    rows = f"{coverage['covered']} of {coverage['points']} ({100 * coverage['share']:.1f} %)"
    pools = coverage["disaggregated"]
    others = f", beside {pools} of separate prefill and decode pools, which cannot be run" if pools else ""
    return f"Of those on H100, H200 and A100 of supported models {rows} were run{others}."


def _summaries(group: Sequence[Prediction], *, is_scored: bool) -> dict[str, dict[str, float | int]]:
    errors = {metric: errors_of(group, metric, is_scored=is_scored) for metric in METRICS}
    return {metric: error_summary(values) for metric, values in errors.items() if values}
