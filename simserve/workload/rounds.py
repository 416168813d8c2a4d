"""Rounds: batches of which each waits for the last answer of the one before, as rollouts in reinforcement learning do.

Between two rounds the policy is trained and its new weights go to the replicas. Knows no engine.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from simserve.workload.arrival_spec import AllAtOnceArrivals, Arrivals

if TYPE_CHECKING:
    from simserve.workload.prefixes import PrefixSegments
    from simserve.workload.requests import RequestSpecs


def in_rounds(specs: RequestSpecs, arrivals: Arrivals | None) -> RequestSpecs:
    """Return requests that are there at once in the rounds that their arrivals ask for; others as they are.

    To the clients a round is a turn of one conversation, whose requests are sent together. KV that the old weights have
    made is void: no prompt finds anything of an earlier round.

    Args:
        specs: Requests without conversations; those of a round stand side by side.
        arrivals: The process.
    """
    pause = round_pause(arrivals)
    if pause is None or not isinstance(arrivals, AllAtOnceArrivals):
        return specs
    size = max(len(specs) // arrivals.rounds, 1)
    number = np.arange(len(specs)) // size
    return replace(
        specs,
        arrival_time=np.where(number == 0, 0.0, np.nan),
        think_time=np.where(number == 0, 0.0, pause),
        session=np.zeros(len(specs), dtype=np.int64),
        turn=number + 1,
        prefixes=None if specs.prefixes is None else _told_apart(specs.prefixes, number),
    )


def round_pause(arrivals: Arrivals | None) -> float | None:
    """Return the seconds from the last answer of a round to the next round; None where nothing comes in rounds."""
    return arrivals.pause if isinstance(arrivals, AllAtOnceArrivals) and arrivals.rounds > 1 else None


def _told_apart(prefixes: PrefixSegments, number: np.ndarray) -> PrefixSegments:
    """Return segments of which no two rounds share one."""
    owner = np.repeat(number, np.diff(prefixes.offsets))
    apart = prefixes.segments + owner * (int(prefixes.segments.max(initial=0)) + 1)
    return replace(prefixes, segments=np.unique(apart, return_inverse=True)[1].astype(np.int64), is_recorded=True)
