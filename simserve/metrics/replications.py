"""From several independent runs of one scenario to one summary with confidence intervals.

Knows summaries only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.metrics.latency import LATENCIES, MS, PERCENTILES
from simserve.metrics.statistics import t_quantile
from simserve.metrics.thresholds import parse_threshold
from simserve.sim.records import Histogram

PILOT_RUNS = 5  # Runs before the width of an interval is judged: with fewer, the spread is mostly chance.
ATTAINMENT_HALF_WIDTH = 0.01
"""Largest half width of the interval of the attainment, whatever the precision asked of latencies: one percentage
point."""
_CONFIDENCE = 0.95
_SHOWN_STATISTICS = ("mean", "median", "p90", "p95", "p99")
_LEVELS = {"median": 50, "p90": 90, "p95": 95, "p99": 99}  # Percentiles among them.
POOLED_STATISTICS = ("mean", "median", "std", "p50", "p90", "p95", "p99")
_DESCRIBED = ("mean", "std", *(f"p{q}" for q in PERCENTILES))
POOLED_RATES = ("request_throughput", "request_goodput", "output_throughput", "total_token_throughput")
_TOTALS = frozenset(
    {
        *("duration", "completed", "failed", "total_input_tokens", "total_output_tokens", "simserve.kv.preemptions"),
        *("simserve.steps.count", "simserve.replicas.gpu_hours"),
        *(f"simserve.speculation.{name}" for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens")),
        *("simserve.speculation.draft_seconds", "simserve.reasoning.thinking_tokens"),
        *("simserve.reasoning.visible_tokens", "simserve.reasoning.num_without_answer"),
        *("simserve.images.requests", "simserve.images.images", "simserve.images.tokens"),
        *("simserve.audio.requests", "simserve.audio.recordings", "simserve.audio.tokens"),
    }
)
_TOTAL_GROUPS = (
    "simserve.steps.seconds_by_part.",
    "simserve.steps.seconds_by_operator.",
    "simserve.requests.",
    "simserve.rejected.by_reason.",
    "simserve.rejected.refusals.",
)
_FACTS = (
    *("simserve.warnings", "simserve.version", "simserve.seed", "simserve.scenario_", "simserve.fidelity"),
    *("simserve.expected_error", "simserve.prediction_interval", "simserve.engine_resolved", "simserve.formats"),
    *("simserve.load_ratio", "simserve.peak_load_ratio", "simserve.finishable_throughput", "simserve.memory"),
    "simserve.kv.num_blocks",
    *("simserve.speculation.num_speculative_tokens", "simserve.speculation.expected_acceptance_length"),
)
_SEVERITY = ("stable", "backlogged", "overloaded")


@dataclass(frozen=True, slots=True)
class Sample:
    """The latencies of one replication."""

    values: Mapping[str, NDArray[np.float64]]
    """``ttft_ms tpot_ms e2el_ms`` -> values of the measured requests, seconds, in any order."""
    itl: Histogram  # Every gap between tokens, seconds.
    rates: Mapping[str, float] = field(default_factory=dict)
    """The four rates of a run that keeps up with steady open arrivals (`steady_throughput`); empty: those of its
    summary hold."""

    def share_above(self, latency: str, seconds: float) -> float:
        """Return the share of the values of a latency above a value; NaN: there are none."""
        if latency == "itl_ms":
            return self.itl.share_above(seconds)
        values = self.values[latency]
        return float(np.mean(values > seconds)) if len(values) else math.nan


def confidence_intervals(
    summaries: Sequence[Mapping[str, Any]], samples: Sequence[Sample] = ()
) -> dict[str, dict[str, float | None]]:
    """Return 95 % intervals of the headline figures over independent replications.

    The headline figures are all statistics of the four latencies, the four rates, and ``slo_attainment``. Each has
    ``mean half_width low high replications``. Rates and attainment: Student's t on the values of the replications in
    which they are defined; if all replications keep up with steady open arrivals, rates are those of the arrivals.
    Latencies, if there are samples: the figure of all requests together, and the jackknife that leaves out one
    replication at a time (Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 11): a percentile of
    a short run is biased, and so is the mean of such percentiles. The interval is None for fewer than two replications,
    and if runs are too short to have settled at their load.

    Args:
        summaries: What `simserve.metrics.summary.summarize` returned, one a replication.
        samples: Their latencies, in the same order; empty if only the summaries are known.
    """
    names = (*POOLED_RATES, *(f"{statistic}_{latency}" for latency in LATENCIES for statistic in POOLED_STATISTICS))
    columns = {name: [summary[name] for summary in summaries] for name in names}
    columns["slo_attainment"] = [summary["simserve"]["slo"]["attainment"] for summary in summaries]
    found = {name: _interval([value for value in values if value is not None]) for name, values in columns.items()}
    if len(samples) > 1:
        found |= _jackknifed(samples)
        for name in _common_rates(samples):
            found[name] = _interval([each.rates[name] for each in samples if not math.isnan(each.rates[name])])
    if have_settled(summaries) is False:
        found = {name: {**each, "half_width": None, "low": None, "high": None} for name, each in found.items()}
    return found


def _common_rates(samples: Sequence[Sample]) -> tuple[str, ...]:
    """Return the names of the rates known in the long run; none if a replication falls behind."""
    return POOLED_RATES if all(sample.rates for sample in samples) else ()


def _jackknifed(samples: Sequence[Sample]) -> dict[str, dict[str, float | None]]:
    """Return the intervals of every statistic of the four latencies over pooled requests, ms."""
    found = {}
    for latency in LATENCIES:
        if latency == "itl_ms":
            whole, without, each = _gaps(samples)
        else:
            whole, without = _left_out([sample.values[latency] for sample in samples])
            each = [_described(np.sort(sample.values[latency])) for sample in samples]
        for place, statistic in enumerate(_DESCRIBED):
            found[f"{statistic}_{latency}"] = _of_jackknife(
                whole[place], [row[place] for row in without], [row[place] for row in each]
            )
        found[f"median_{latency}"] = found[f"p50_{latency}"]
    return found


def _of_jackknife(whole: float, without: Sequence[float], each: Sequence[float]) -> dict[str, float | None]:
    """Return the interval (ms) from the figures of all samples, of all but each, and of each alone (seconds).

    Student's t on the pseudo-values, moved for their skewness (Johnson, "Modified t tests and confidence intervals for
    asymmetrical populations", JASA 73, 1978): a few congested runs make the tail. The spread is then known from those
    few runs only: the degrees of freedom are those of a variance with that kurtosis (Satterthwaite, "An approximate
    distribution of estimates of variance components", Biometrics Bulletin 2, 1946). The spread of the runs' own figures
    is a lower bound: far out in the tail pseudo-values understate it.
    """
    kept = np.array([value for value in without if not math.isnan(value)])
    count = len(kept)
    if math.isnan(whole):
        return _interval([])
    if count < 2:
        return _interval([whole * MS])
    pseudo = (count - 1) * (kept.mean() - kept)
    spread = max(float(np.std(pseudo, ddof=1)), float(np.nanstd(each, ddof=1)))
    if not spread > 0:
        return _interval([whole * MS] * count)
    quantile = t_quantile(count - 1, _CONFIDENCE)
    half_width = t_quantile(_degrees_of_freedom(pseudo), _CONFIDENCE) * spread / math.sqrt(count)
    skewness = float(np.mean(pseudo**3)) / spread**3
    moved = spread * skewness * (1 + 2 * quantile**2) / (6 * count)
    ends = {"half_width": half_width, "low": whole + moved - half_width, "high": whole + moved + half_width}
    return {"mean": whole * MS, **{name: value * MS for name, value in ends.items()}, "replications": count}


def _degrees_of_freedom(values: NDArray[np.float64]) -> float:
    """Return the degrees of freedom of a sample variance, from the kurtosis of the values: ``n - 1`` if that is 3.

    The variance of a sample variance is ``sigma^4 (kurtosis / n - (n - 3) / (n (n - 1)))``; for Student's t it is ``2
    sigma^4 / degrees``.
    """
    count, deviations = len(values), values - values.mean()
    variance = float(np.mean(deviations**2))
    if not variance > 0:
        return count - 1
    excess = float(np.mean(deviations**4)) / variance**2 - (count - 3) / (count - 1)
    return min(count - 1.0, 2 * count / excess) if excess > 0 else count - 1.0


def _left_out(columns: Sequence[NDArray[np.float64]]) -> tuple[list[float], list[list[float]]]:
    """Return mean, standard deviation and percentiles of all values, and without each column in turn, seconds."""
    values = np.concatenate(columns)
    owner = np.repeat(np.arange(len(columns)), [len(column) for column in columns])
    order = np.argsort(values, kind="stable")
    values, owner = values[order], owner[order]
    places_of = np.split(np.argsort(owner, kind="stable"), np.cumsum([len(column) for column in columns])[:-1])
    center = float(values[len(values) // 2]) if len(values) else 0.0
    sums = _powers(values, center)
    return _described(values), [_described_without(values, places, center, sums) for places in places_of]


def _powers(values: NDArray[np.float64], center: float) -> tuple[float, float]:
    """Return the sum of the deviations from a centre, and that of their squares."""
    deviations = values - center
    return float(np.sum(deviations)), float(np.sum(deviations**2))


def _described_without(
    ascending: NDArray[np.float64], places: NDArray[np.int64], center: float, sums: tuple[float, float]
) -> list[float]:
    """Return `_described` of the values except those at ``places``, which ascend too, without copying them all.

    ``sums`` are `_powers` of all of them around ``center``.
    """
    left = len(ascending) - len(places)
    if not left:
        return _described(np.zeros(0))
    # The r-th kept value is preceded by as many dropped ones as have fewer than r + 1 kept values before them.
    kept_before = places - np.arange(len(places))
    at = (left - 1) * np.array(PERCENTILES) / 100
    low = np.floor(at).astype(np.int64)
    high = np.minimum(low + 1, left - 1)
    lower, upper = (ascending[ranks + np.searchsorted(kept_before, ranks, side="right")] for ranks in (low, high))
    dropped = _powers(ascending[places], center)
    mean = (sums[0] - dropped[0]) / left
    std = math.sqrt(max(0.0, (sums[1] - dropped[1]) / left - mean**2))
    return [center + mean, std, *(lower + (at - low) * (upper - lower)).tolist()]


def _described(ascending: NDArray[np.float64]) -> list[float]:
    """Return mean, standard deviation and percentiles of values; NaN without any."""
    if not len(ascending):
        return [math.nan] * len(_DESCRIBED)
    places = (len(ascending) - 1) * np.array(PERCENTILES) / 100
    low = np.floor(places).astype(np.int64)
    high = np.minimum(low + 1, len(ascending) - 1)
    between = ascending[low] + (places - low) * (ascending[high] - ascending[low])
    return [float(ascending.mean()), float(ascending.std()), *between.tolist()]


def _gaps(samples: Sequence[Sample]) -> tuple[list[float], list[list[float]], list[list[float]]]:
    """Return the same for the gaps between tokens, and also for each sample alone."""
    together = Histogram()
    for sample in samples:
        together.merge(sample.itl)
    nothing, each = Histogram(), [sample.itl for sample in samples]
    rows = [_gap_figures(together, left_out) for left_out in each]
    return _gap_figures(together, nothing), rows, [_gap_figures(itl, nothing) for itl in each]


def _gap_figures(itl: Histogram, left_out: Histogram) -> list[float]:
    counts = np.maximum(itl.counts - left_out.counts, 0.0)
    count = float(counts.sum())
    if not count > 0:
        return [math.nan] * len(_DESCRIBED)
    mean = (itl.total - left_out.total) / count
    std = math.sqrt(max(0.0, (itl.total_squares - left_out.total_squares) / count - mean**2))
    return [mean, std, *itl.percentiles_of(counts, PERCENTILES)]


def pool(summaries: Sequence[Mapping[str, Any]], samples: Sequence[Sample] = ()) -> dict[str, Any]:
    """Return the summary of all replications together, with their confidence intervals.

    Totals of a whole run (``duration completed failed total_*``, requests, reasons, preemptions, steps) are added up.
    Latencies, if there are samples, are those of all requests together. Every other figure is the mean over the
    replications in which it is defined. The stability is the worst one; the bottleneck and the description of the
    scenario are those of the first replication; thresholds are judged on the pooled figures.

    Args:
        summaries: One a replication, at least one.
        samples: The latencies of each; empty: percentiles are means of those of the summaries.
    """
    pooled: dict[str, Any] = _pool("", [dict(summary) for summary in summaries])
    inner = pooled["simserve"]
    if inner["window"]["requests"] is not None:
        inner["window"]["requests"] = round(inner["window"]["requests"])
    inner["stability"] = max((each["simserve"]["stability"] for each in summaries), key=_SEVERITY.index)
    inner["settled"] = have_settled(summaries)
    inner["confidence_intervals"] = confidence_intervals(summaries, samples)
    if len(samples) > 1:
        pooled |= {
            name: interval["mean"]
            for name, interval in inner["confidence_intervals"].items()
            if (name.endswith(LATENCIES) or name in _common_rates(samples)) and name in pooled
        }
    inner["thresholds"] = _pool_thresholds([each["simserve"]["thresholds"] for each in summaries])
    return pooled


def have_settled(summaries: Sequence[Mapping[str, Any]]) -> bool | None:
    """Return whether at least half of the runs are long enough for their load; None where that is not known.

    How much of a run counts is random: of runs that are barely long enough, some lose more to the warm-up.
    """
    verdicts = [summary["simserve"]["settled"] for summary in summaries]
    return None if None in verdicts else 2 * sum(verdicts) >= len(verdicts)


@dataclass(frozen=True, slots=True)
class Width:
    """How wide the interval of one figure is."""

    metric: str  # The figure, such as `p99_ttft_ms`.
    half_width: float
    """Half the interval over the mean (of the attainment: half the interval); inf if the figure is defined in fewer
    than two runs."""
    allowed: float  # Its largest allowed value.
    is_of_share: bool = False
    """Whether it is that of the share of the values above a percentile, over that share, which is narrower."""

    @property
    def is_narrow(self) -> bool:
        """Whether the figure is as precise as asked."""
        return self.half_width <= self.allowed


def widest(summaries: Sequence[Mapping[str, Any]], precision: float, samples: Sequence[Sample] = ()) -> Width | None:
    """Return the figure furthest from the precision asked, see `widths`; None if none is defined."""
    found = widths(summaries, precision, samples)
    return max(found, key=lambda width: width.half_width / width.allowed, default=None)


def widths(summaries: Sequence[Mapping[str, Any]], precision: float, samples: Sequence[Sample] = ()) -> list[Width]:
    """Return how wide the interval is of mean, median, p90, p95 and p99 of every latency, and of the attainment.

    Where few values lie near a percentile, as between the gaps of decode steps and those of steps with a prompt, it
    moves far with a little of the share above it, and its interval takes runs without end to narrow. That share is
    known by then; a percentile is as precise as asked if either is.

    Args:
        summaries: What `simserve.metrics.summary.summarize` returned, one a replication.
        precision: The half width asked of latencies, over their mean, or over the share of values above a percentile.
        samples: The latencies of each.
    """
    intervals = confidence_intervals(summaries, samples)
    widths = []
    for latency in LATENCIES:
        for statistic in _SHOWN_STATISTICS:
            interval = intervals[f"{statistic}_{latency}"]
            if not interval["replications"]:
                continue
            width = Width(f"{statistic}_{latency}", _relative(interval), precision)
            if statistic in _LEVELS and precision < width.half_width < math.inf and len(samples) > 1:
                of_share = _width_of_share(samples, latency, interval["mean"] or 0.0, 1 - _LEVELS[statistic] / 100)
                if of_share < width.half_width:
                    width = Width(width.metric, of_share, precision, is_of_share=True)
            widths.append(width)
    attainment = intervals["slo_attainment"]
    if attainment["replications"]:
        half_width = attainment["half_width"]
        widths.append(Width("slo_attainment", math.inf if half_width is None else half_width, ATTAINMENT_HALF_WIDTH))
    return widths


def _width_of_share(samples: Sequence[Sample], latency: str, value_ms: float, share: float) -> float:
    """Return half the interval of the share of the values above one over ``share``, from those of each sample."""
    each = [sample.share_above(latency, value_ms / MS) for sample in samples]
    half_width = _interval([one for one in each if not math.isnan(one)])["half_width"]
    return math.inf if half_width is None else half_width / share


def _relative(interval: Mapping[str, float | None]) -> float:
    mean, half_width = interval["mean"], interval["half_width"]
    if mean is None or half_width is None:
        return math.inf
    return half_width / mean if mean else 0.0


def _interval(values: Sequence[float]) -> dict[str, float | None]:
    count, mean = len(values), float(np.mean(values)) if values else None
    if mean is None or count < 2:
        return {"mean": mean, "half_width": None, "low": None, "high": None, "replications": count}
    half_width = t_quantile(count - 1, _CONFIDENCE) * float(np.std(values, ddof=1)) / math.sqrt(count)
    ends = {"low": mean - half_width, "high": mean + half_width}
    return {"mean": mean, "half_width": half_width, **ends, "replications": count}


def _pool(path: str, values: Sequence[Any]) -> Any:
    """Pool the values at one key path; ``path`` is dotted, and empty at the top."""
    first = values[0]
    if path.startswith(_FACTS):
        return first
    if isinstance(first, Mapping):
        keys = dict.fromkeys(key for value in values for key in value)
        return {key: _pool(f"{path}.{key}".lstrip("."), [value.get(key) for value in values]) for key in keys}
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if not numbers:
        return first
    if path in _TOTALS or path.startswith(_TOTAL_GROUPS):
        return sum(numbers)
    # The mean of equal numbers is the number itself, so that a count stays an integer.
    return numbers[0] if min(numbers) == max(numbers) else float(np.mean(numbers))


def _pool_thresholds(replications: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    pooled = []
    for results in zip(*replications, strict=True):
        defined = [result["value"] for result in results if result["value"] is not None]
        value = float(np.mean(defined)) if defined else None
        metric, expression = results[0]["metric"], results[0]["expression"]
        is_met = value is not None and parse_threshold(metric, expression).holds(value)
        pooled.append({"metric": metric, "expression": expression, "value": value, "ok": is_met})
    return pooled
