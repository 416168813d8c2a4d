"""What is in a trace: rate, burstiness, lengths, shared prefixes. Knows the columns, fits nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.workload.traces.trace import Trace

PERCENTILES = (1, 10, 50, 90, 95, 99)
_MINUTE = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalStatistics:
    """When requests arrive.

    Attributes:
        span_s: From the first to the last request, seconds.
        mean_rate: Requests a second over the span; NaN for a single instant.
        peak_rate: Requests a second in the busiest minute, minutes counted from the first request.
        interarrival_cv: Standard deviation of the times between requests over their mean: 1 for Poisson.
        dispersion_index: Variance over mean of the requests a minute: 1 for Poisson, more for bursts that last; NaN
            for less than two whole minutes.
    """

    span_s: float
    mean_rate: float
    peak_rate: float
    interarrival_cv: float
    dispersion_index: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthStatistics:
    """How long prompts or answers are, tokens.

    Attributes:
        total: Sum.
        mean: Mean.
        cv: Standard deviation over the mean.
        minimum: Shortest.
        maximum: Longest.
        percentiles: Percentile -> length.
    """

    total: int
    mean: float
    cv: float
    minimum: int
    maximum: int
    percentiles: dict[int, float]

    def as_mapping(self) -> dict[str, Any]:
        """Return them by name, percentiles as ``p50``."""
        quantiles = {f"p{percentile}": value for percentile, value in self.percentiles.items()}
        return {
            "total": self.total,
            "mean": self.mean,
            "cv": self.cv,
            "min": self.minimum,
            **quantiles,
            "max": self.maximum,
        }


def arrival_statistics(trace: Trace) -> ArrivalStatistics | None:
    """Return when the requests arrive; None where the trace does not say."""
    return beginning_statistics(trace.arrival_time)


def beginning_statistics(arrival_time: NDArray[np.float64]) -> ArrivalStatistics | None:
    """Return when requests, or tasks, begin, of their times in ascending order; None where they are not known."""
    if np.isnan(arrival_time).any():
        return None
    times = arrival_time - arrival_time[0]
    span, gaps = float(times[-1]), np.diff(times)
    counts = np.bincount((times // _MINUTE).astype(np.int64))
    whole = counts[: int(span // _MINUTE)]
    busiest = counts.max() / min(_MINUTE, span) if span > 0 else float("nan")
    return ArrivalStatistics(
        span_s=span,
        mean_rate=len(gaps) / span if span > 0 else float("nan"),
        peak_rate=float(busiest),
        interarrival_cv=_cv(gaps),
        dispersion_index=float(whole.var(ddof=1) / whole.mean()) if len(whole) > 1 and whole.any() else float("nan"),
    )


def length_statistics(lengths: NDArray[np.int64]) -> LengthStatistics:
    """Return how long the prompts or answers are."""
    return LengthStatistics(
        total=int(lengths.sum()),
        mean=float(lengths.mean()),
        cv=_cv(lengths),
        minimum=int(lengths.min()),
        maximum=int(lengths.max()),
        percentiles={each: float(np.percentile(lengths, each)) for each in PERCENTILES},
    )


def _cv(values: NDArray[Any]) -> float:
    """Return the coefficient of variation, NaN for fewer than two values or a mean of 0."""
    mean = float(values.mean()) if len(values) > 1 else 0.0
    return float(values.std(ddof=1)) / mean if mean > 0 else float("nan")
