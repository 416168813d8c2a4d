"""What a run's figures rest on: how much of them was waiting, host time and crowding. Knows records, no error."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simserve.sim.records import RequestRecords

if TYPE_CHECKING:
    from simserve.sim.recorder import RunTotals


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What an error of a run's figures depends on, besides the deployment.

    Attributes:
        in_flight: Requests in the system on average, a replica; NaN where none was answered.
        waiting: Share of the time to first tokens that requests waited for their first step.
        at_once: Share of the requests that arrived in the first instant.
        host: Share of the step time that is host work.
    """

    in_flight: float
    waiting: float
    at_once: float
    host: float


def conditions(records: RequestRecords, totals: RunTotals, num_replicas: int) -> Conditions:
    """Return the conditions of a run.

    Args:
        records: Its requests.
        totals: What its steps add up to.
        num_replicas: Replicas that served it.
    """
    answered = np.isfinite(records.finish_time)
    waited = (records.scheduled_time - records.arrival_time)[answered]
    first = (records.first_token_time - records.arrival_time)[answered]
    return Conditions(
        in_flight=_in_flight(records, answered) / num_replicas,
        waiting=_share(float(np.nansum(waited)), float(np.nansum(first))),
        at_once=_share(float(np.count_nonzero(records.arrival_time == np.nanmin(records.arrival_time))), len(records))
        if answered.any()
        else 0.0,
        host=_share(totals.seconds_by_part["host"], totals.busy_seconds),
    )


def _in_flight(records: RequestRecords, answered: NDArray[np.bool_]) -> float:
    """Return the mean number of requests in the system (Little's law); NaN where none was answered."""
    if not answered.any():
        return math.nan
    seconds = (records.finish_time - records.arrival_time)[answered]
    duration = float(records.finish_time[answered].max() - records.arrival_time[answered].min())
    return float(seconds.sum()) / duration if duration > 0 else math.nan


def _share(part: float, whole: float) -> float:
    return min(max(part / whole, 0.0), 1.0) if whole > 0 else 0.0
