"""Who was waiting and who was in the system when, from the times of the requests. Knows no verdict on it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simserve.sim.records import UNFINISHED, RequestRecords
from simserve.sim.series import ascending


@dataclass(frozen=True, slots=True, kw_only=True)
class Sojourns:
    """When each request that was sent arrived, left the queue and left the system; in order of arrival.

    Attributes:
        arrival: Seconds on the simulation clock, ascending.
        queue_exit: When a step first worked on it, or it left without that; inf if it still waits.
        system_exit: When it was answered, refused or given up; inf if it is still there.
        end_time: When the simulation stopped looking, seconds.
        last_beginning: The last arrival that waited for no answer: turns of conversations come after it, fewer and
            fewer; NaN if nothing was sent.
    """

    arrival: NDArray[np.float64]
    queue_exit: NDArray[np.float64]
    system_exit: NDArray[np.float64]
    end_time: float
    last_beginning: float

    def __len__(self) -> int:
        """Return the number of requests sent."""
        return len(self.arrival)

    @property
    def run_end(self) -> float:
        """The last arrival or departure; where requests are left unfinished, the end of the simulation."""
        if not len(self):
            return float("nan")
        last = max(float(self.system_exit.max()), float(self.arrival[-1]))
        return last if np.isfinite(last) else self.end_time

    def waits(self) -> NDArray[np.float64]:
        """Return the seconds from arrival to the first step, up to ``end_time`` for those that still wait.

        A wait after a preemption is not in it.
        """
        return np.minimum(self.queue_exit, self.end_time) - self.arrival

    def times_in_system(self) -> NDArray[np.float64]:
        """Return the seconds from arrival to departure, up to ``end_time`` for those that are still there."""
        return np.minimum(self.system_exit, self.end_time) - self.arrival

    def num_in_system_at_arrivals(self) -> NDArray[np.float64]:
        """Return the number of earlier requests that each request met in the system."""
        departed = np.searchsorted(ascending(self.system_exit), self.arrival, side="right")
        present: NDArray[np.int64] = np.arange(len(self)) - departed
        return np.maximum(present, 0).astype(np.float64)


def sojourns(records: RequestRecords, end_time: float) -> Sojourns:
    """Return the stays of all requests that were sent.

    A request without a finish time that is not unfinished was refused where it stood: it leaves when it
    arrives.
    """
    is_sent = np.isfinite(records.arrival_time)
    sent = slice(None) if is_sent.all() else np.flatnonzero(is_sent)
    ordered = records.arrival_time[sent]
    if (ordered[1:] < ordered[:-1]).any():
        sent = np.arange(len(is_sent))[sent]
        sent = sent[np.argsort(ordered, kind="stable")]
    arrival, finish = records.arrival_time[sent], records.finish_time[sent]
    stayed = np.where(records.status[sent] == UNFINISHED, np.inf, arrival)
    system_exit = np.where(np.isfinite(finish), finish, stayed)
    queue_exit = np.fmin(records.scheduled_time[sent], system_exit)
    beginnings = arrival if records.turn is None else arrival[records.turn[sent] <= 1]
    return Sojourns(
        arrival=arrival,
        queue_exit=queue_exit,
        system_exit=system_exit,
        end_time=end_time,
        last_beginning=float(beginnings[-1]) if len(beginnings) else float("nan"),
    )


def num_present(
    arrival: NDArray[np.float64], leave: NDArray[np.float64], grid: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Return how many have arrived and not left at each time of ``grid`` (ascending, seconds)."""
    return _count_until(arrival, grid) - _count_until(leave, grid)


def _count_until(times: NDArray[np.float64], grid: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.searchsorted(ascending(times), grid, side="right")
