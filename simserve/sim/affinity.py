"""Affinity: the replica that has probably kept what a request begins with, as a router remembers it.

A router does not ask the replicas: it knows where it sent what, and not what they have evicted since (as SGLang's and
the vLLM production stack's routers do). Knows no load.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from simserve.sim.routing_spec import RoutingSpec
from simserve.workload.requests import RequestSpecs

DEFAULT_CACHE_THRESHOLD = 0.5
"""Share of the prompt that must be known (as ``cache_threshold`` of SGLang's router)."""
LEAST_EXCESS = 4
"""Requests more than the least loaded one, below which the replica of a session is not passed over."""


class Affinity(Protocol):
    """What a router remembers of the requests it has routed.

    Attributes:
        worth: How much more load than the least loaded replica, in the router's unit, the one preferred last may have.
    """

    worth: int

    def preferred(self, index: int, ready: Sequence[int]) -> int | None:
        """Return the replica of ``ready`` that a request should go to; None: it is new to all."""

    def routed(self, index: int, number: int) -> None:
        """Remember that a request went to replica ``number``."""


class SessionAffinity:
    """Every request of a session goes where the one before it went.

    Args:
        sessions: Session of each request; negative: none.
    """

    def __init__(self, sessions: Sequence[int]) -> None:
        self._sessions = sessions
        # How long what is kept is, is not known.
        self.worth = LEAST_EXCESS
        self._place: dict[int, int] = {}

    def preferred(self, index: int, ready: Sequence[int]) -> int | None:
        """Return where the session's last request went, if that replica is ready."""
        number = self._place.get(self._sessions[index])
        return number if number in ready else None

    def routed(self, index: int, number: int) -> None:
        """Remember it for the session's next request."""
        if self._sessions[index] >= 0:
            self._place[self._sessions[index]] = number


class PrefixAffinity:
    """A request goes where the longest part of what it begins with was served last.

    Equal segment numbers mean equal tokens from the first one on, so one number stands for the whole path to it. Too
    short a part is not worth a detour: a system prompt that all have in common would send everybody to one replica.

    Args:
        offsets: Request i has the entries ``offsets[i] .. offsets[i + 1] - 1``.
        segments: Number of each segment, in order within a request.
        ends: Token of the request before which it ends.
        least: Tokens of each request that must be known to a replica at least.
    """

    def __init__(
        self, offsets: Sequence[int], segments: Sequence[int], ends: Sequence[int], least: Sequence[float]
    ) -> None:
        self._offsets, self._segments, self._ends, self._least = offsets, segments, ends, least
        self._place: dict[int, int] = {}
        # The tokens that need not be computed there.
        self.worth = 0

    def preferred(self, index: int, ready: Sequence[int]) -> int | None:
        """Return where the longest known path went, of those whose replica is ready."""
        place, ends, least = self._place, self._ends, self._least[index]
        for entry in range(self._offsets[index + 1] - 1, self._offsets[index] - 1, -1):
            if ends[entry] < least:
                return None
            number = place.get(self._segments[entry])
            if number is not None and number in ready:
                self.worth = ends[entry]
                return number
        return None

    def routed(self, index: int, number: int) -> None:
        """Remember it for all its segments: what the request computes, and its answer, are kept there."""
        self._place.update(dict.fromkeys(self._segments[self._offsets[index] : self._offsets[index + 1]], number))


def affinity_of(routing: RoutingSpec, specs: RequestSpecs) -> Affinity | None:
    """Return what the router remembers under its policy; None where it goes by load alone, or has nothing to go by."""
    if routing.policy == "session" and specs.session is not None:
        return SessionAffinity(specs.session.tolist())
    if routing.policy == "prefix" and specs.prefixes is not None:
        prefixes = specs.prefixes
        threshold = DEFAULT_CACHE_THRESHOLD if routing.cache_threshold is None else routing.cache_threshold
        least = threshold * specs.prompt_tokens
        return PrefixAffinity(
            prefixes.offsets.tolist(), prefixes.segments.tolist(), prefixes.ends.tolist(), least.tolist()
        )
    return None
