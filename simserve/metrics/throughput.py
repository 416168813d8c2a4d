"""Requests and tokens, in total and a second over the measured window, and the users that they come from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.metrics.latency import RequestLatencies
from simserve.metrics.statistics import rows_where
from simserve.metrics.steady_state import Window
from simserve.sim.records import COMPLETED, RequestRecords
from simserve.units import SECONDS_PER_HOUR

USERS_KEYS = ("users", "clients", "request_rate", "waiting", "waiting_share", "pause_s", "requests_per_user_hour")


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Rates over the window, a second: requests completed in it, and their tokens; NaN if it has no length.

    Attributes:
        requests: Requests completed.
        good_requests: Those of them that met every SLO term; NaN without an SLO.
        output_tokens: Tokens generated.
        tokens: Prompt and generated tokens.
    """

    requests: float
    good_requests: float
    output_tokens: float
    tokens: float


def throughput(
    records: RequestRecords,
    window: Window,
    meets_slo: NDArray[np.bool_] | None,
    counted: NDArray[np.bool_] | None = None,
) -> Throughput:
    """Return the rates of the window.

    Args:
        records: One row a request.
        window: What is measured.
        meets_slo: Whether each request met the SLO, shape [requests]; None without one.
        counted: Which requests are looked at, shape [requests]; None: all.
    """
    if not window.seconds > 0:
        return Throughput(requests=np.nan, good_requests=np.nan, output_tokens=np.nan, tokens=np.nan)
    finish = records.finish_time
    done = (records.status == COMPLETED) & (finish >= window.start) & (finish <= window.end)
    if counted is not None:
        done &= counted
    rows = rows_where(done)
    prompt_tokens = int(records.prompt_tokens[rows].sum())
    output_tokens = int(records.output_tokens[rows].sum())
    good = np.nan if meets_slo is None else np.count_nonzero(done & meets_slo) / window.seconds
    return Throughput(
        requests=np.count_nonzero(done) / window.seconds,
        good_requests=good,
        output_tokens=output_tokens / window.seconds,
        tokens=(prompt_tokens + output_tokens) / window.seconds,
    )


def borne(records: RequestRecords, window: Window, meets_slo: NDArray[np.bool_] | None) -> Throughput:
    """Return what a run that keeps up with steady open arrivals serves in the long run: what came, at its rate.

    What is completed in a window of a short run is less: the run begins empty and drains, and windows that are long
    enough are found where less comes than on average.

    Args:
        records: One row a request, not all of which come at one time.
        window: Whose requests say which share meets the SLO.
        meets_slo: Whether each request met it, shape [requests]; None without one.
    """
    arrival, done = records.arrival_time, records.status == COMPLETED
    # The first arrival begins the time in which the others come.
    per_second = (1.0 - 1.0 / len(records)) / float(arrival.max() - arrival.min())
    prompt_tokens, output_tokens = int(records.prompt_tokens[done].sum()), int(records.output_tokens[done].sum())
    good = np.nan
    if meets_slo is not None:
        good = float(np.mean(meets_slo[window.has_arrived])) * len(records) * per_second
    return Throughput(
        requests=np.count_nonzero(done) * per_second,
        good_requests=good,
        output_tokens=output_tokens * per_second,
        tokens=(prompt_tokens + output_tokens) * per_second,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class UsersFacts:
    """The users of a scenario.

    Attributes:
        users: All of them.
        clients: Those that a closed loop holds; None: they come at a rate.
        think_time: Mean seconds between an answer and the next request of a client.
        rate: Requests/s of an open loop; NaN in a closed one.
        classes: Those whose requests are the users', where others are not; None: all are.
    """

    users: int
    clients: int | None
    think_time: float
    rate: float
    classes: tuple[int, ...] | None = None


def users_figures(
    facts: UsersFacts | None,
    latencies: RequestLatencies,
    window: Window,
    request_class: NDArray[np.int16] | None = None,
) -> dict[str, Any]:
    """Return `USERS_KEYS`; None each where the scenario counts no users.

    From the mean E2E latency R of the measured window, by Little's law: ``clients`` that think for Z send
    ``request_rate`` = clients / (R + Z); of all users ``waiting`` = rate x R wait for an answer at any moment, and
    ``pause_s`` = users / rate - R is how long each is content with what it has.
    """
    if facts is None:
        return dict.fromkeys(USERS_KEYS)
    is_counted = window.has_arrived & latencies.is_completed
    if facts.classes is not None and request_class is not None:
        is_counted &= np.isin(request_class, facts.classes)
    counted = latencies.e2e[is_counted]
    seconds = float(np.mean(counted)) if len(counted) else math.nan
    rate = facts.rate if facts.clients is None else facts.clients / (seconds + facts.think_time)
    return {
        "users": facts.users,
        "clients": facts.clients,
        "request_rate": rate,
        "waiting": rate * seconds,
        "waiting_share": rate * seconds / facts.users,
        "pause_s": facts.users / rate - seconds,
        "requests_per_user_hour": rate / facts.users * SECONDS_PER_HOUR,
    }
