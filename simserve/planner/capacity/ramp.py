"""How traffic of conversations grows to its rate: the first turns come at once, the tenth after nine pauses.

A run that ends before the longest conversations are over has not seen the rate that it was asked for: of turns 20 s
apart, five on average, 30 a second begin as 6 a second and are 27 after some four minutes. Simulates nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simserve.workload.dependencies import Dependencies
from simserve.workload.requests import RequestSpecs

REACHED = 0.995
"""Share of the rate from which on a run is measured. So late because prefix caches fill with the long conversations:
measured from 90 % on, `scenarios/prefix-routing.yaml` bears a fifth more than it does in the long run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ramp:
    """When the requests of a conversation come, counted from its first.

    Attributes:
        thinking: Pauses of its client, or tools, before each request, seconds, shape [R].
        answers: Answers that it waits for first, shape [R].
        conversation_seconds: Pauses of a mean conversation, or task.
        conversation_turns: Turns of it.
    """

    thinking: NDArray[np.float64]
    answers: NDArray[np.float64]
    conversation_seconds: float
    conversation_turns: float

    def seconds(self, stay: float) -> float:
        """Return after how long `REACHED` of the rate is reached, if an answer takes ``stay`` seconds."""
        return float(np.quantile(self._offsets(stay), REACHED))

    def window(self, stay: float) -> float:
        """Return how long to measure from then on at least: a mean conversation."""
        return self.conversation_seconds + self.conversation_turns * stay

    def _offsets(self, stay: float) -> NDArray[np.float64]:
        return self.thinking + stay * self.answers


def mean_rate(specs: RequestSpecs, start: float, stay: float) -> float:
    """Return the requests a second from ``start`` until the last conversation begins, if an answer takes ``stay``."""
    ramp = ramp_of(specs)
    assert ramp is not None  # as the caller knows
    begins = np.maximum.accumulate(np.nan_to_num(specs.arrival_time, nan=0.0))
    end = float(begins[-1])
    if not end > start:
        return 0.0
    arrivals = begins + ramp.thinking + stay * ramp.answers
    return float(np.count_nonzero((arrivals >= start) & (arrivals <= end))) / (end - start)


def ramp_of(specs: RequestSpecs) -> Ramp | None:
    """Return how the traffic grows; None without conversations, or where clients hold them in a closed loop."""
    if specs.session is None or specs.turn is None or specs.concurrency is not None or not len(specs):
        return None
    if specs.dependencies is not None:
        return _ramp_of_tasks(specs, specs.dependencies)
    begins = np.flatnonzero(np.diff(specs.session, prepend=specs.session[0] - 1))
    is_turn = np.diff(specs.turn, prepend=0) != 0
    is_turn[begins] = True
    pauses = np.cumsum(np.where(is_turn, specs.think_time, 0.0))
    of_row = np.repeat(begins, np.diff(begins, append=len(specs)))
    lengths = np.diff(begins, append=len(specs))
    last = begins + lengths - 1
    # The last conversation may be cut off by the number of requests: of one alone there is nothing else.
    whole = slice(None, -1) if len(begins) > 1 else slice(None)
    return Ramp(
        thinking=pauses - pauses[of_row],
        answers=(specs.turn - 1).astype(np.float64),
        conversation_seconds=float(np.mean((pauses[last] - pauses[begins])[whole])),
        conversation_turns=float(np.mean(specs.turn[last][whole])),
    )


def _ramp_of_tasks(specs: RequestSpecs, graph: Dependencies) -> Ramp:
    """Return how the traffic of tasks grows: along the longest way to each call."""
    assert specs.session is not None
    begins = np.flatnonzero(np.diff(specs.session, prepend=specs.session[0] - 1))
    thinking = graph.longest(np.where(graph.num_parents > 0, specs.think_time, 0.0))
    answers = (graph.depths() - 1).astype(np.float64)
    whole = slice(None, -1) if len(begins) > 1 else slice(None)
    return Ramp(
        thinking=thinking,
        answers=answers,
        conversation_seconds=float(np.mean(np.maximum.reduceat(thinking, begins)[whole])),
        conversation_turns=float(np.mean(np.maximum.reduceat(answers, begins)[whole])) + 1.0,
    )
