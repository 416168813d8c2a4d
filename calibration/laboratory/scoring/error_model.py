"""The model of errors, learnt from a validation with whole sources left out.

The unit is the source: an uncalibrated server is subject to the differences between sources, not to those within one.
Every source counts once, however many figures it has. Replays nothing.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.documents import read_mapping
from simserve.errors import InputError
from simserve.planner.measured.point import Metric
from simserve.planner.measured.reports import UNSEEN
from simserve.planner.validation.prediction import Prediction
from simserve.planner.validation.scoring import (
    COPIES,
    SCORED,
    coverage_rows,
    interval_score,
    is_scored,
    log_error,
    report_of,
    source_of,
)
from simserve.profiles.expected_errors import (
    FEATURES,
    FLOORS,
    LEVEL,
    Attainable,
    Distance,
    ErrorModel,
    Family,
    MetricErrors,
    PairErrors,
    Server,
    distance_of,
    features,
)
from simserve.version import __version__

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

FIRST_REPLAY = Path(__file__).resolve().parents[2] / "first_replay.yaml"

FEWEST_SOURCES = 5
"""Least sources for learning: with fewer, a 90th percentile is the maximum."""

SMALLEST = 0.005
"""Least size of an error; smaller ones count as this, as figures are published in three digits."""

RIDGE = 0.2
"""Penalty on the squared coefficients of the scale, per source's share of the likelihood. Between 0.03 and 1 coverage
and interval score hardly move (calibration/LOG.md)."""

SHRINKING = 5.0
"""Sources of a class of model at which its own middle has half the weight. With 1 instead, scores differ by less than
0.03 (calibration/LOG.md)."""

_NEWTON_STEPS = 40

DRAWS = 40
"""Draws of `attainable`: they determine the median of ratios to about 0.01."""

_SEED = 20

_LEFT_OUT = (
    "figures that a constant was fitted to (calibration/ACCURACY.md, in and out of sample); figures that their source "
    "says carry artefacts; figures that stand in another source too. Errors of unseen reports count as in their first "
    "replay where they are smaller now (calibration/first_replay.yaml)"
)


@dataclass(frozen=True, slots=True)
class _Figures:
    """The figures of one metric, one row each.

    Attributes:
        servers: The server of each figure.
        sources: The source of each.
        errors: Current ``log(predicted / measured)``.
        counted: Errors as they count: in an unseen report that has improved, each is larger by the reduction of its
            median error since the first replay.
        is_learnt: Whether it is used for learning: nothing was fitted to it.
    """

    servers: Sequence[Server]
    sources: NDArray[np.str_]
    errors: Floats
    counted: Floats
    is_learnt: Bools


@dataclass(frozen=True, slots=True)
class _Measured:
    """What was measured: families, and the sources of each unusual mechanism."""

    families: tuple[Family, ...]
    mechanisms: Mapping[str, tuple[str, ...]]


def learn(predictions: Sequence[Prediction], date: str) -> ErrorModel:
    """Return the model of errors.

    Args:
        predictions: Predictions for every available source, including the unseen reports.
        date: Date of the model.

    Raises:
        InputError: There are too few sources.
    """
    lost = first_replay_losses(predictions)
    measured = _Measured(_families(predictions), _mechanisms(predictions))
    metrics: dict[str, MetricErrors] = {}
    without: dict[str, dict[str, MetricErrors]] = defaultdict(dict)
    pairs: dict[str, PairErrors] = {}
    for metric in SCORED:
        found = _figures(predictions, metric, lost)
        of_pairs = _pair_errors(predictions, metric, found)
        if of_pairs is not None:
            pairs[metric] = of_pairs
        names = sorted(set(found.sources[found.is_learnt].tolist()))
        if len(names) < FEWEST_SOURCES:
            raise InputError(
                f"needs {FEWEST_SOURCES} sources with {metric} that nothing was fitted to; here are {len(names)}",
                key="--expected-errors",
                remedy="give the folder of all measurements with --data",
            )
        metrics[metric] = _errors(found, found.is_learnt, measured, "")
        for name in sorted(set(found.sources.tolist())):
            without[name][metric] = _errors(found, found.is_learnt & (found.sources != name), measured, name)
    model = ErrorModel(
        made_by="simserve validate --data DIR --expected-errors FILE --date DATE",
        simserve=__version__,
        date=date,
        left_out=_LEFT_OUT,
        metrics=metrics,
        without={name: without[name] for name in sorted(without)},
        families=measured.families,
        mechanisms=dict(measured.mechanisms),
        pairs=pairs,
        examined=tuple(name for name in sorted(without) if _is_examined(name)),
    )
    rows = coverage_rows(predictions, model, counted_errors(predictions))
    return model.model_copy(update={"coverage": tuple(rows)})


def counted_errors(predictions: Sequence[Prediction]) -> dict[Metric, list[float]]:
    """Return by metric the errors of the scored figures as they count: of the first replay where they are less now."""
    lost = first_replay_losses(predictions)
    return {metric: _figures(predictions, metric, lost).counted.tolist() for metric in SCORED}


def write_error_model(model: ErrorModel, file: Path) -> None:
    """Write the model as JSON."""
    file.write_text(json.dumps(_rounded(model.model_dump(mode="json")), indent=1) + "\n", encoding="utf-8")


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list | tuple) else value


def first_replay_losses(predictions: Sequence[Prediction]) -> dict[tuple[str, Metric], float]:
    """Return report and metric -> what its errors, as logarithms, have lost since the first replay; 0: nothing.

    A recorded error below 0 was of predictions too low: 79 % too low is a logarithm of 1.56. One above 1 was of some
    too high; where neither is known, the error is taken for the logarithm, which lies between the two.
    """
    first: Mapping[str, Mapping[Metric, float]] = read_mapping(FIRST_REPLAY, InputError)["reports"]
    errors: dict[tuple[str, Metric], list[float]] = defaultdict(list)
    for each in predictions:
        for metric in each.predicted:
            if each.point.source == UNSEEN and metric not in each.point.shown_only:
                errors[report_of(each.point), metric].append(abs(log_error(each, metric)))
    return {
        (report, metric): max(
            _as_logarithm(first.get(report.partition("/")[2], {}).get(metric, 0.0)) - float(np.median(values)), 0.0
        )
        for (report, metric), values in errors.items()
    }


def _as_logarithm(error: float) -> float:
    if error < 0:
        return -math.log1p(error)
    return math.log1p(error) if error >= 1 else error


def _figures(predictions: Sequence[Prediction], metric: Metric, lost: Mapping[tuple[str, Metric], float]) -> _Figures:
    rows = [each for each in predictions if is_scored(each, metric)]
    errors = np.array([log_error(each, metric) for each in rows])
    sources = np.array([source_of(each.point) for each in rows])
    reports = np.array([report_of(each.point) for each in rows])
    return _Figures(
        [each.server for each in rows if each.server is not None],
        sources,
        errors,
        as_in_first_replay(errors, reports, {report: size for (report, of), size in lost.items() if of == metric}),
        np.array([metric not in each.point.fitted for each in rows], dtype=np.bool_),
    )


def as_in_first_replay(errors: Floats, reports: NDArray[np.str_], lost: Mapping[str, float]) -> Floats:
    """Return errors whose median size is that of the first replay, by report.

    Each is moved by the same amount: what was fixed since is common to a report, and does not enlarge the rest of its
    errors.
    """
    counted = errors.copy()
    for report, size in lost.items():
        places = reports == report
        counted[places] += np.copysign(size, errors[places])
    return counted


def _families(predictions: Sequence[Prediction]) -> tuple[Family, ...]:
    members: dict[tuple[str, str, bool], list[Prediction]] = defaultdict(list)
    for each in predictions:
        if each.server is not None and each.point.source not in COPIES:
            members[each.server.family].append(each)
    return tuple(
        Family(
            engine=engine,
            hardware=hardware,
            has_experts=has_experts,
            servers={
                metric: len({_server_key(each) for each in group if is_scored(each, metric)})
                for metric in SCORED
                if any(is_scored(each, metric) for each in group)
            },
            sources=tuple(sorted({source_of(each.point) for each in group})),
        )
        for (engine, hardware, has_experts), group in sorted(members.items())
        if any(is_scored(each, metric) for each in group for metric in SCORED)
    )


def _mechanisms(predictions: Sequence[Prediction]) -> dict[str, tuple[str, ...]]:
    found: dict[str, set[str]] = defaultdict(set)
    for each in predictions:
        if each.server is not None and each.server.mechanism and any(is_scored(each, metric) for metric in SCORED):
            found[each.server.mechanism].add(source_of(each.point))
    return {name: tuple(sorted(found[name])) for name in sorted(found)}


def _pair_errors(predictions: Sequence[Prediction], metric: Metric, found: _Figures) -> PairErrors | None:
    """Return the error of the ratio of two servers of one source with one model under one load; None: too few."""
    rows = [each for each in predictions if is_scored(each, metric)]
    alike: dict[str, list[int]] = defaultdict(list)
    for place in np.flatnonzero(found.is_learnt).tolist():
        point = rows[place].point
        asked = [point.model, point.load_kind, str(point.load), point.scenario.get("workload")]
        alike[json.dumps([str(found.sources[place]), *asked], sort_keys=True)].append(place)
    sizes, sources = [], []
    for places in alike.values():
        keys = [rows[place].point.hardware + _server_key(rows[place]) for place in places]
        for (one, first), (other, second) in itertools.combinations(zip(places, keys, strict=True), 2):
            if first != second:
                sizes.append(abs(found.counted[one] - found.counted[other]))
                sources.append(str(found.sources[one]))
    values, names = np.maximum(np.array(sizes), SMALLEST), np.array(sources)
    known = sorted(set(sources))
    if len(known) < FEWEST_SOURCES:
        return None
    weights = _source_weights(names)
    inside = []
    for name in known:
        others = names != name
        limit = weighted_quantile(values[others], _source_weights(names[others]), LEVEL)
        inside.append(float((values[~others] <= limit).mean()))
    return PairErrors(
        p50=weighted_quantile(values, weights, 0.5),
        p90=weighted_quantile(values, weights, LEVEL),
        pairs=len(values),
        sources=len(known),
        coverage_90=float(np.mean(inside)),
    )


def _server_key(each: Prediction) -> str:
    """Return what figures of the same server under different loads have in common."""
    point = each.point
    return json.dumps([source_of(point), point.version, point.model, point.scenario.get("deployment")], sort_keys=True)


def _errors(found: _Figures, chosen: Bools, measured: _Measured, left_out: str) -> MetricErrors:
    """Return what is learnt from some figures, each source counted once."""
    places = np.flatnonzero(chosen)
    has_experts = np.array([found.servers[place].has_experts for place in places.tolist()])
    matrix = _matrix(found, places, measured, left_out)
    return _learnt(found.counted[places], found.sources[places], has_experts, matrix)


def _matrix(found: _Figures, places: NDArray[np.int64], measured: _Measured, left_out: str) -> Floats:
    """Return the features of figures, one row each, none of which uses its own source or the one left out."""
    known: dict[tuple[Any, ...], Distance] = {}
    rows = []
    for place in places.tolist():
        server, source = found.servers[place], str(found.sources[place])
        key = (server.family, server.mechanism, server.is_larger, source)
        if key not in known:
            known[key] = distance_of(
                server, measured.families, measured.mechanisms, (source, left_out), is_examined=_is_examined(source)
            )
        rows.append(features(server, known[key]))
    return np.array(rows)


def _learnt(errors: Floats, sources: NDArray[np.str_], has_experts: Bools, matrix: Floats) -> MetricErrors:
    """Return what is learnt from figures, each source counted once.

    Mixtures of experts and dense models have their own middle, shrunk to that of their kind of source by ``n / (n +
    SHRINKING)`` of their n sources.

    The 90th percentile of a kind of source is half-way, in the logarithm, between its own and that of all: servers that
    nobody looked at have heavier tails, and ten to twenty sources determine a percentile of a kind poorly.

    Args:
        errors: ``log(predicted / measured)`` as they count.
        sources: The source of each.
        has_experts: Whether its model is a mixture of experts.
        matrix: Features, one row each.
    """
    weights = _source_weights(sources)
    all_center = weighted_quantile(errors, weights, 0.5)
    is_examined = np.array([_is_examined(source) for source in sources.tolist()])
    of_kinds = _of_kinds(errors, weights, is_examined, 0.5)
    centers = {
        (kind, experts): center + _shift(errors - center, sources, (is_examined == kind) & (has_experts == experts))
        for kind, center in zip((True, False), of_kinds, strict=True)
        for experts in (True, False)
    }
    middles = np.array([centers[key] for key in zip(is_examined.tolist(), has_experts.tolist(), strict=True)])
    sizes = np.maximum(np.abs(errors - middles), SMALLEST)
    coefficients = fit_scale(matrix, sizes, weights)
    scores = sizes / np.exp(matrix @ coefficients)
    examined_p50, p50 = _of_kinds(scores, weights, is_examined, 0.5)
    of_all = weighted_quantile(scores, weights, LEVEL)
    examined_p90, p90 = (math.sqrt(of_all * own) for own in _of_kinds(scores, weights, is_examined, LEVEL))
    return MetricErrors(
        center=centers[False, False],
        examined_center=centers[True, False],
        experts_center=centers[False, True],
        examined_experts_center=centers[True, True],
        log_scale=dict(zip(FEATURES, coefficients.tolist(), strict=True)),
        p50=p50,
        examined_p50=examined_p50,
        p90=p90,
        examined_p90=examined_p90,
        constant_center=all_center,
        constant_90=weighted_quantile(np.maximum(np.abs(errors - all_center), SMALLEST), weights, LEVEL),
        sources=len(set(sources.tolist())),
        figures=len(errors),
    )


@dataclass(frozen=True, slots=True)
class _Design:
    """What the draws of `attainable` share with the measurements: everything except the errors.

    Attributes:
        sources: The source of each learnt figure.
        is_examined: Whether its figures were known while the simulator was built.
        has_experts: Whether the model is a mixture of experts.
        center: Middle of the errors of their kind.
        scale: Their scale in the model of all.
        floor: Least half-width of the metric's interval.
        members: Source -> indices of its figures.
        matrices: Source -> features of all figures with that source left out.
    """

    sources: NDArray[np.str_]
    is_examined: Bools
    has_experts: Bools
    center: Floats
    scale: Floats
    floor: float
    members: Mapping[str, NDArray[np.int64]]
    matrices: Mapping[str, Floats]


def attainable(predictions: Sequence[Prediction], model: ErrorModel, draws: int = DRAWS) -> tuple[Attainable, ...]:
    """Return how narrow intervals can be, by metric, if errors follow the model.

    Each draw keeps sources, servers and loads. The scaled errors of a source are placed about the middle of one source,
    with the scatter of another and a random sign: the variation between sources stays as large relative to that within
    them. In every draw one forecaster knows the model, and another learns it again with the source left out; both are
    compared with one interval for all, learnt in the same way.

    Args:
        predictions: Predictions from which the model was learnt.
        model: As `learn` returns it.
        draws: Number of draws.
    """
    lost = first_replay_losses(predictions)
    return tuple(_attainable(_figures(predictions, metric, lost), metric, model, draws) for metric in SCORED)


def _attainable(found: _Figures, metric: Metric, model: ErrorModel, draws: int) -> Attainable:
    design = _design(found, metric, model)
    away = found.counted[found.is_learnt] - design.center
    drawn = _drawn_scores(away / design.scale, design, draws)
    half = weighted_quantile(np.abs(drawn).ravel(), np.tile(_source_weights(design.sources), draws), LEVEL)
    ratios = [_beside_constant(design.center + design.scale * scores, design, half) for scores in drawn]
    known, learnt = zip(*ratios, strict=True)
    return Attainable(
        metric=metric,
        draws=draws,
        own_width=_own_width(away, design) / model.metrics[metric].constant_90,
        known_width=_quantiles(known, 0),
        known_score=_quantiles(known, 1),
        learnt_width=_quantiles(learnt, 0),
        learnt_score=_quantiles(learnt, 1),
    )


def _drawn_scores(scores: Floats, design: _Design, draws: int) -> Floats:
    """Return scaled errors of ``draws`` draws: about the middle of one source, with the scatter of another."""
    generator = np.random.default_rng(_SEED)
    of_source = [scores[places] for places in design.members.values()]
    drawn = np.empty((draws, len(scores)))
    for draw in drawn:
        for places in design.members.values():
            middle, around = (of_source[place] for place in generator.integers(0, len(of_source), 2))
            scattered = middle.mean() + generator.choice(around, len(places)) - around.mean()
            draw[places] = generator.choice([-1.0, 1.0]) * scattered
    return drawn


def _design(found: _Figures, metric: Metric, model: ErrorModel) -> _Design:
    places, learnt = np.flatnonzero(found.is_learnt), model.metrics[metric]
    sources = found.sources[places]
    names = sorted(set(sources.tolist()))
    is_examined = np.array([_is_examined(source) for source in sources.tolist()])
    has_experts = np.array([found.servers[place].has_experts for place in places.tolist()])
    coefficients = np.array([learnt.log_scale[name] for name in FEATURES])
    measured = _Measured(model.families, model.mechanisms)
    return _Design(
        sources,
        is_examined,
        has_experts,
        _centers(learnt, has_experts, is_examined),
        np.exp(_matrix(found, places, measured, "") @ coefficients),
        FLOORS[metric],
        {name: np.flatnonzero(sources == name) for name in names},
        {name: _matrix(found, places, measured, name) for name in names},
    )


def _centers(learnt: MetricErrors, has_experts: Bools, is_examined: Bools) -> Floats:
    """Return the middle of the errors of each figure."""
    both = zip(has_experts.tolist(), is_examined.tolist(), strict=True)
    return np.array([learnt.center_of(has_experts=experts, is_examined=examined) for experts, examined in both])


def _beside_constant(errors: Floats, design: _Design, half: float) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return width and interval score relative to one interval for all: if the model is known, and if it is learnt.

    Args:
        errors: Errors of a draw.
        design: The measurements for which they were drawn.
        half: Half-width of the 90 % interval over the scale if the model is known.
    """
    rows = []
    for name, places in design.members.items():
        others = design.sources != name
        matrix = design.matrices[name]
        learnt = _learnt(errors[others], design.sources[others], design.has_experts[others], matrix[others])
        scale = np.exp(matrix[places] @ np.array([learnt.log_scale[each] for each in FEATURES]))
        is_examined = bool(design.is_examined[places[0]])
        center = _centers(learnt, design.has_experts[places], design.is_examined[places])
        tail = learnt.examined_p90 if is_examined else learnt.p90
        halves = (
            (half * design.scale[places], design.center[places]),
            (np.maximum(tail * scale, design.floor), center),
            (np.full(len(places), learnt.constant_90), learnt.constant_center),
        )
        rows.append(
            [(width.mean(), interval_score(errors[places] - middle, width).mean() / 2) for width, middle in halves]
        )
    known, learnt_anew, constant = np.mean(rows, axis=0)
    return tuple((known / constant).tolist()), tuple((learnt_anew / constant).tolist())


def _own_width(away: Floats, design: _Design) -> float:
    """Return the mean over sources of the half-width that holds 90 % of a source's own figures about its kind."""
    return float(
        np.mean(
            [weighted_quantile(np.abs(away[places]), np.ones(len(places)), LEVEL) for places in design.members.values()]
        )
    )


def _quantiles(values: Sequence[tuple[float, float]], column: int) -> tuple[float, float, float]:
    """Return the median of draws and the range of 90 % of them."""
    low, middle, high = np.quantile([each[column] for each in values], (0.05, 0.5, 0.95)).tolist()
    return middle, low, high


def _shift(errors: Floats, sources: NDArray[np.str_], chosen: Bools) -> float:
    """Return the difference of the middle of some figures, shrunk to 0 by the number of their sources."""
    if not chosen.any():
        return 0.0
    number = len(set(sources[chosen].tolist()))
    return weighted_quantile(errors[chosen], _source_weights(sources[chosen]), 0.5) * number / (number + SHRINKING)


def _of_kinds(values: Floats, weights: Floats, is_examined: Bools, share: float) -> tuple[float, float]:
    """Return a quantile of the examined sources and one of the others; of all sources if one kind is missing."""
    of_each = [each if each.any() else np.ones_like(each) for each in (is_examined, ~is_examined)]
    examined, unexamined = (weighted_quantile(values[each], weights[each], share) for each in of_each)
    return examined, unexamined


def _is_examined(source: str) -> bool:
    """Return whether a source's figures were known while the simulator was built."""
    return not source.startswith(f"{UNSEEN}/")


def _source_weights(sources: NDArray[np.str_]) -> Floats:
    """Return weights that sum to 1, equal for all sources."""
    _, places, counts = np.unique(sources, return_inverse=True, return_counts=True)
    weights: Floats = 1.0 / (len(counts) * counts[places])
    return weights


def weighted_quantile(values: Floats, weights: Floats, share: float) -> float:
    """Return the least value at or below which ``share`` of the weight lies."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order]) / weights.sum()
    place = int(np.searchsorted(reached, share - 1e-12))
    return float(values[order][min(place, len(values) - 1)])


def fit_scale(matrix: Floats, sizes: Floats, weights: Floats) -> Floats:
    """Return the coefficients of the logarithm of a Laplace scale, most likely under a ridge penalty.

    The penalty excludes the first column, the constant. All other coefficients are at least 0: no interval is narrower
    further away or under a heavier load. The objective ``sum w (eta + |r| exp(-eta)) + ridge/2 |b|^2`` is convex:
    Newton's method, with negative coefficients held at 0.

    Args:
        matrix: Features, one row per figure.
        sizes: Absolute errors.
        weights: Weights that sum to 1.
    """
    number = matrix.shape[1]
    penalty = np.full(number, RIDGE)
    penalty[0] = 0.0
    is_free = np.ones(number, dtype=np.bool_)
    while True:
        found = _newton(matrix, sizes, weights, penalty, is_free)
        is_negative = (found < 0) & is_free
        is_negative[0] = False
        if not is_negative.any():
            return found
        is_free &= ~is_negative


def _newton(matrix: Floats, sizes: Floats, weights: Floats, penalty: Floats, is_free: Bools) -> Floats:
    found = np.zeros(matrix.shape[1])
    found[0] = math.log(float(weights @ sizes))
    inside = np.ix_(is_free, is_free)
    for _ in range(_NEWTON_STEPS):
        ratios = np.minimum(sizes * np.exp(-(matrix @ found)), 50.0)
        slope = matrix.T @ (weights * (1 - ratios)) + penalty * found
        # Curvature bounded from below: a step that overshoots is shortened.
        curvature = (matrix * (weights * np.maximum(ratios, 0.2))[:, None]).T @ matrix + np.diag(penalty + 1e-9)
        step = np.zeros_like(found)
        step[is_free] = np.clip(np.linalg.solve(curvature[inside], slope[is_free]), -1.0, 1.0)
        found -= step
        if np.abs(step).max() < 1e-8:
            break
    return found
