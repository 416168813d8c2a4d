"""Errors of predictions against measurements: step times, KV room, and intervals made without their own source."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simserve.errors import SimserveError
from simserve.perf.memory import MemoryPlan
from simserve.planner.measured.point import COMPUTED, METRICS, NO_RECIPE, MeasuredMemory, MeasuredPoint, Metric
from simserve.planner.measured.reports import OWN, UNSEEN
from simserve.planner.validation.prediction import Prediction, reason_of
from simserve.profiles import catalog
from simserve.profiles.expected_errors import CONCURRENCY_BANDS, GROUPS, LEVEL, Coverage, ErrorModel, band_of, expect
from simserve.scenario.load import from_mapping
from simserve.scenario.resolve import resolve
from simserve.units import GIB

Part = Callable[[MeasuredPoint], str]  # What the points of a group share.
CORE_GPUS = ("h100", "h200", "a100")
"""Beginnings of the names of the GPUs whose measurements the simulator should cover."""
SCORED: tuple[Metric, ...] = ("tpot", "ttft", "throughput")
"""Metrics whose errors are learned; end-to-end times follow from the first two."""
COPIES = ("published",)  # Sources whose figures also appear in another source.
REPORTS = "unseen reports"
"""Group of the reports that nothing was ever fitted to, however far they are from the other sources."""
_SCORES = tuple(Coverage.model_fields)[4:11]  # What `Held.scores` returns, in that order.
_NUM_DRAWS = 2000
_SEED = 0  # Draws of sources, with replacement, that give the range of a coverage; and their seed.
OF_GPU = 0.01  # Largest error allowed in the KV room, as a share of the GPU's memory.
OF_KV = 0.03  # Largest error allowed in the KV room, as a share of itself, where KV takes `MUCH_KV` of the GPU.
MUCH_KV = 1.0 / 3.0


def relative_error(predicted: float, measured: float) -> float:
    """Return (predicted - measured) / measured."""
    return (predicted - measured) / measured


def error_summary(errors: Sequence[float]) -> dict[str, float | int]:
    """Return median, mean and 90th percentile of the absolute relative errors, and their signed mean.

    They are shares: 0.05 is 5 %. ``bias`` above 0 means that the simulator is too high. ``points`` is the denominator.
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
    """Return the relative errors of a metric for the points where it is scored (or only shown)."""
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


def in_order_of_load(groups: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return groups by source, engine and concurrency: sources in their own order, and bands from few to many."""
    bands = [band_of(highest) for highest in (*CONCURRENCY_BANDS, math.inf)]
    sources = list(dict.fromkeys(group["source"] for group in groups))

    def place(group: dict[str, Any]) -> tuple[int, str, int, str]:
        band = group["concurrency"]
        rank = bands.index(band) if band in bands else len(bands)
        return sources.index(group["source"]), group["engine"], rank, band

    return sorted(groups, key=place)


def grouped(predictions: Sequence[Prediction], *names: str, **others: Part) -> list[dict[str, Any]]:
    """Return one mapping for each group, in order of first appearance.

    Args:
        predictions: Predictions of all points, run or not.
        names: What the points of a group share: fields of a point, or ``concurrency``, the band of its load.
        others: Name -> what else they share.

    Returns:
        ``names``, ``points``, ``covered``, ``metrics`` {metric: errors} and ``shown_only`` (the same, of
        metrics that are compared but not scored).
    """
    parts: dict[str, Part] = {name: attrgetter(name) for name in names} | others
    if "concurrency" in parts:
        parts["concurrency"] = concurrency_band
    members: dict[tuple[str, ...], list[Prediction]] = {}
    for each in predictions:
        members.setdefault(tuple(part(each.point) for part in parts.values()), []).append(each)
    return [
        {
            **dict(zip(parts, values, strict=True)),
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


def not_covered(predictions: Sequence[Prediction], memory: Sequence[MemoryComparison] = ()) -> list[dict[str, Any]]:
    """Return why points could not be run, by source, the most frequent reasons first; then KV rooms not planned."""
    counts = Counter((each.point.source, each.reason) for each in predictions if not each.is_covered)
    rows = [{"source": source, "reason": reason, "points": count} for (source, reason), count in counts.most_common()]
    rooms = [(f"logged KV cache size, {each.measured.label}", each.reason) for each in memory if each.reason]
    return rows + [{"source": source, "reason": reason, "points": 1} for source, reason in rooms]


def coverage(predictions: Sequence[Prediction]) -> dict[str, Any]:
    """Return how many of the points on `CORE_GPUS` of models in the catalogue were run.

    Returns:
        ``points covered share`` of those, ``share`` None if there are none; and ``disaggregated``, the points of
        separate prefill and decode pools with an unknown number of workers, which are not among them. Rows that nobody
        measured are in neither.
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
    return f"Of the points of supported models on H100, H200 and A100, {rows} were run{others}."


def _summaries(group: Sequence[Prediction], *, is_scored: bool) -> dict[str, dict[str, float | int]]:
    errors = {metric: errors_of(group, metric, is_scored=is_scored) for metric in METRICS}
    return {metric: error_summary(values) for metric, values in errors.items() if values}


def source_of(point: MeasuredPoint) -> str:
    """Return who measured a point: each laboratory is a source of the unseen, each file a source of a user's own."""
    return f"{point.source}/{point.laboratory}" if point.laboratory else report_of(point)


def report_of(point: MeasuredPoint) -> str:
    """Return where a point comes from; for the unseen and a user's own, also from which file."""
    is_file = point.source in (UNSEEN, OWN)
    return f"{point.source}/{point.label.partition(':')[0]}" if is_file else point.source


def is_scored(each: Prediction, metric: Metric) -> bool:
    """Return whether a figure counts: it was run, its source scores it, and it is not a copy of another source's."""
    point = each.point
    has_server = each.server is not None and metric in each.predicted
    return has_server and metric not in point.shown_only and point.source not in COPIES


def log_error(each: Prediction, metric: Metric) -> float:
    """Return ``log(predicted / measured)``."""
    return math.log(each.predicted[metric] / each.point.measured[metric])


def interval_score(error: ArrayLike, half: ArrayLike) -> NDArray[np.float64]:
    """Return the interval score of 90 % intervals: width + 2/a times how far a figure is outside, with a = 0.1.

    Gneiting and Raftery, "Strictly proper scoring rules, prediction, and estimation", JASA 102, 2007.

    Args:
        error: Distance of a figure from the middle, in logarithms.
        half: Half-width.
    """
    beyond = np.maximum(np.abs(error) - np.asarray(half), 0.0)
    score: NDArray[np.float64] = 2 * np.asarray(half) + 2 / (1 - LEVEL) * beyond
    return score


@dataclass(frozen=True, slots=True)
class Held:
    """One figure and the intervals that were made without its own source."""

    source: str  # Who measured it.
    group: str  # How far it is from what the other sources measured, one of `GROUPS`.
    is_fitted: bool  # Whether a constant was fitted to it.
    error: float  # ``log(predicted / measured)``.
    center: float  # Middle of the intervals.
    half_50: float  # Half-width of the 50 % interval, in logarithms.
    half_90: float  # Half-width of the 90 % interval.
    constant_center: float  # Middle of one 90 % interval for all.
    constant_90: float  # Half-width of that interval.

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


def held(
    predictions: Sequence[Prediction], model: ErrorModel, metric: Metric, counted: Sequence[float] | None = None
) -> list[Held]:
    """Return the scored figures of a metric with the intervals that were made without their own sources.

    Args:
        counted: The error of each scored figure as it counts, in order; None: today's.
    """
    rows, scored = [], [each for each in predictions if is_scored(each, metric)]
    errors = [log_error(each, metric) for each in scored] if counted is None else counted
    for each, error in zip(scored, errors, strict=True):
        if each.server is None:
            continue
        source = source_of(each.point)
        expected = expect(model, each.server, source)
        own, of_all = expected.metrics[metric], model.of_metric(metric, source)
        learnt, constant = (own.center, own.half_50, own.half_90), (of_all.constant_center, of_all.constant_90)
        rows.append(Held(source, expected.group, metric in each.point.fitted, float(error), *learnt, *constant))
    return rows


def coverage_rows(
    predictions: Sequence[Prediction], model: ErrorModel, counted: Mapping[Metric, Sequence[float]] | None = None
) -> list[Coverage]:
    """Return how well the intervals hold, by metric and group.

    Only figures that no constant was fitted to count, and every source counts once.

    Args:
        counted: By metric, the error of each scored figure as it counts; None: today's.
    """
    rows = []
    for metric in SCORED:
        errors = None if counted is None else counted[metric]
        found = [each for each in held(predictions, model, metric, errors) if not each.is_fitted]
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
    """Return the range of 90 % of the means of sources that are drawn again, with replacement."""
    drawn = np.random.default_rng(_SEED).choice(of_sources, (_NUM_DRAWS, len(of_sources))).mean(axis=1)
    low, high = np.quantile(drawn, (0.05, 0.95)).tolist()
    return low, high


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryComparison:
    """KV memory of one deployment, measured and predicted; bytes are those of one GPU."""

    measured: MeasuredMemory  # What the log says.
    measured_bytes: float = math.nan  # KV bytes in the log.
    predicted_bytes: float = math.nan  # KV bytes in the plan; where the log gives tokens, those that it would count.
    gpu_bytes: float = math.nan  # Memory of the GPU.
    is_own_count: bool = False
    """Whether the log gives tokens of layers that do not hold them all, which each release counts in its own way."""
    reason: str = ""
    """Why the deployment was refused, so that nothing could be compared; "": it was not."""

    @property
    def error_of_kv(self) -> float:
        """Predicted over measured KV, minus 1."""
        return self.predicted_bytes / self.measured_bytes - 1.0

    @property
    def error_of_gpu(self) -> float:
        """The difference as a share of the GPU's memory."""
        return (self.predicted_bytes - self.measured_bytes) / self.gpu_bytes

    @property
    def is_within(self) -> bool:
        """Whether both limits are met."""
        is_much = self.measured_bytes > MUCH_KV * self.gpu_bytes
        return abs(self.error_of_gpu) <= OF_GPU and (not is_much or abs(self.error_of_kv) <= OF_KV)

    @property
    def summary(self) -> dict[str, Any]:
        """The row as results show it."""
        return {
            **{name: getattr(self.measured, name) for name in ("label", "engine", "version", "hardware", "model")},
            "measured_kv_gib": self.measured_bytes / GIB,
            "predicted_kv_gib": self.predicted_bytes / GIB,
            "error_of_kv": self.error_of_kv,
            "error_of_gpu": self.error_of_gpu,
            "is_within": self.is_within,
            "is_own_count": self.is_own_count,
        }


def compare_memory(measured: Iterable[MeasuredMemory]) -> tuple[MemoryComparison, ...]:
    """Return every deployment compared with its memory plan, or with the reason why it was refused."""
    return tuple(_compared(each) for each in measured)


def _compared(measured: MeasuredMemory) -> MemoryComparison:
    try:
        resolved = resolve(from_mapping(measured.scenario))
    except SimserveError as failure:
        return MemoryComparison(measured=measured, reason=reason_of(failure))
    plan: MemoryPlan = resolved.memory
    model = resolved.shape.model
    says_tokens = math.isnan(measured.kv_bytes)
    return MemoryComparison(
        measured=measured,
        measured_bytes=measured.kv_tokens * plan.kv_bytes_per_token if says_tokens else measured.kv_bytes,
        predicted_bytes=plan.logged_tokens * plan.kv_bytes_per_token if says_tokens else plan.kv_bytes,
        gpu_bytes=plan.total_bytes,
        is_own_count=says_tokens
        and (plan.windows is not None or model.has_states or model.compressed_attention is not None),
    )
