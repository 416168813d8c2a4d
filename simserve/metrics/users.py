"""What a number of users comes to: how many of them wait at any moment, how often each asks. Knows no scheduler."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.metrics.latency import RequestLatencies
from simserve.metrics.steady_state import Window

USERS_KEYS = ("users", "clients", "request_rate", "waiting", "waiting_share", "pause_s", "requests_per_user_hour")
_SECONDS_PER_HOUR = 3600.0


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
        "requests_per_user_hour": rate / facts.users * _SECONDS_PER_HOUR,
    }
