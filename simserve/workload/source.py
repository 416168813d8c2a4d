"""One source of requests: when they arrive, at which rate, and what they ask for at most."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from simserve import rng
from simserve.errors import InvariantError, ScenarioError
from simserve.workload.arrival_spec import STATIONARY, AllAtOnceArrivals, Arrivals, ClosedLoopArrivals
from simserve.workload.arrivals import arrival_times
from simserve.workload.class_spec import ClassSpec

MODEL_LIMIT = -1
"""Stands in `RequestSpecs.max_tokens` for what the prompt leaves of the model's length."""


def start_times(
    arrivals: Arrivals | None,
    *,
    seed: int,
    replication: int,
    num_requests: int | None,
    duration: float | None,
    suffix: str = "",
) -> NDArray[np.float64]:
    """Return when requests, or conversations, arrive, seconds; NaN where clients of a closed loop send them.

    Args:
        arrivals: The process.
        seed: Of the run.
        replication: Of the run.
        num_requests: How many, or
        duration: seconds after which none arrives.
        suffix: Of the streams ``arrivals`` and ``arrival_phases``: a class with arrivals of its own has its own.

    Raises:
        InvariantError: There are no arrivals.
    """
    match arrivals:
        case ClosedLoopArrivals():
            return np.full(num_requests or 0, np.nan)
        case AllAtOnceArrivals():
            return np.zeros(num_requests or 0)
        case None:
            raise InvariantError("a workload without a trace has arrivals")
    return arrival_times(
        arrivals,
        rng.stream(seed, f"arrivals{suffix}", replication),
        num_requests=num_requests,
        duration=duration,
        phases=rng.stream(seed, f"arrival_phases{suffix}", replication),
    )


def some(times: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return times, of which there are some.

    Raises:
        ScenarioError: There are none.
    """
    if not len(times):
        remedy = "lengthen it or raise the rate"
        raise ScenarioError("is over before the first request arrives", key="workload.duration", remedy=remedy)
    return times


def offered_rate(arrivals: Arrivals, arrival_time: NDArray[np.float64], num_requests: int | None = None) -> float:
    """Return the mean requests a second that are sent, whatever comes of them; NaN where answers set the pace.

    ``num_requests`` are sent on ``arrival_time``, where it is not one at each.
    """
    if isinstance(arrivals, ClosedLoopArrivals | AllAtOnceArrivals):
        return float("nan")
    if isinstance(arrivals, STATIONARY):
        return arrivals.rate
    return (num_requests or len(arrival_time)) / float(arrival_time[-1])


def asked_tokens(asked: int | Literal["exact", "model_limit"], exact: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the most tokens that each request asks for, `MODEL_LIMIT` standing for the model's.

    Args:
        asked: As the workload says.
        exact: What ``exact`` is, of each.
    """
    if asked == "exact":
        return exact
    return np.full(len(exact), MODEL_LIMIT if asked == "model_limit" else asked, dtype=np.int64)


def priorities(classes: Sequence[ClassSpec], request_class: NDArray[np.int16]) -> NDArray[np.int64] | None:
    """Return the place in the queue of each request, 0 where its class says none; None where no class does."""
    if all(each.priority is None for each in classes):
        return None
    return np.array([each.priority or 0 for each in classes], dtype=np.int64)[request_class]
