"""Rounds of rollouts in figures: how long they take, their long tails, and what of the time the replicas generate."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from simserve.metrics.figures import ratio
from simserve.sim.records import COMPLETED, RequestRecords

_SECONDS_PER_HOUR = 3600.0
_TAIL = 0.9
ROUND_KEYS = (
    "begun",
    "finished",
    "mean_round_s",
    "max_round_s",
    "mean_half_s",
    "tail_share",
    "generating_share",
    "usd_per_round",
)


def round_figures(records: RequestRecords, pause: float | None, usd_per_hour: float | None) -> dict[str, Any]:
    """Return `ROUND_KEYS`; None each without rounds.

    A round lasts from its sending to its last answer, and has finished if all its requests were answered; times are
    those of such rounds. ``mean_half_s`` is when half of the answers are there, ``tail_share`` the part of the rounds
    in which fewer than a tenth are still missing, ``generating_share`` what rounds are of rounds and pauses, and
    ``usd_per_round`` what the deployment costs over both.

    Args:
        records: One row a request; the turn is the round.
        pause: Seconds from the last answer of a round to the next one; None: there are no rounds.
        usd_per_hour: Of the deployment; None or NaN without a price.
    """
    if pause is None or records.turn is None:
        return dict.fromkeys(ROUND_KEYS)
    sent = records.turn[np.isfinite(records.arrival_time)]
    lasted, halves, tails = [], [], []
    for number in np.unique(sent).tolist():
        rows = records.turn == number
        if (records.status[rows] != COMPLETED).any():
            continue
        answered = np.sort(records.finish_time[rows]) - records.arrival_time[rows].min()
        lasted.append(float(answered[-1]))
        halves.append(float(answered[(len(answered) - 1) // 2]))
        tails.append(float(answered[-1] - answered[math.ceil(_TAIL * len(answered)) - 1]))
    mean = float(np.mean(lasted)) if lasted else math.nan
    return {
        "begun": len(np.unique(sent)),
        "finished": len(lasted),
        "mean_round_s": mean,
        "max_round_s": max(lasted, default=math.nan),
        "mean_half_s": float(np.mean(halves)) if lasted else math.nan,
        "tail_share": ratio(sum(tails), sum(lasted)),
        "generating_share": ratio(mean, mean + pause),
        "usd_per_round": math.nan if usd_per_hour is None else usd_per_hour * (mean + pause) / _SECONDS_PER_HOUR,
    }
