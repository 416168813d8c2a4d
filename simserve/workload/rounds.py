"""Rounds: batches of which each waits for the last answer of the one before, as rollouts in reinforcement learning do.

Between two rounds the policy is trained and its new weights go to the replicas. Knows no engine.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from simserve.workload.arrival_spec import AllAtOnceArrivals
    from simserve.workload.prefixes import PrefixSegments
    from simserve.workload.requests import RequestSpecs


def in_rounds(specs: RequestSpecs, arrivals: AllAtOnceArrivals) -> RequestSpecs:
    """Return requests that are there at once in the rounds that their arrivals ask for.

    To the clients a round is a turn of one conversation, whose requests are sent together. KV that the old weights have
    made is void: no prompt finds anything of an earlier round.

    Args:
        specs: Requests without conversations; those of a round stand side by side.
        arrivals: The process, of more than one round.
    """
    size = max(len(specs) // arrivals.rounds, 1)
    number = np.arange(len(specs)) // size
    return replace(
        specs,
        arrival_time=np.where(number == 0, 0.0, np.nan),
        think_time=np.where(number == 0, 0.0, arrivals.round_pause or 0.0),
        session=np.zeros(len(specs), dtype=np.int64),
        turn=number + 1,
        prefixes=None if specs.prefixes is None else _told_apart(specs.prefixes, number),
    )


def _told_apart(prefixes: PrefixSegments, number: np.ndarray) -> PrefixSegments:
    """Return segments of which no two rounds share one."""
    owner = np.repeat(number, np.diff(prefixes.offsets))
    apart = prefixes.segments + owner * (int(prefixes.segments.max(initial=0)) + 1)
    return replace(prefixes, segments=np.unique(apart, return_inverse=True)[1].astype(np.int64), is_recorded=True)
