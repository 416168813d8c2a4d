"""Affinity: the replica that has probably kept what a request begins with, as a router remembers it.

A router does not ask the replicas: it knows where it sent what, and not what they have evicted since (as SGLang's and
the vLLM production stack's routers do). Knows no load.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from simserve.sim.routing_spec import RoutingSpec
from simserve.workload.requests import RequestSpecs


class Affinity(Protocol):
    """What a router remembers of the requests it has routed."""

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

    Equal segment numbers mean equal tokens from the first one on, so one number stands for the whole path to it.

    Args:
        offsets: Request i has the entries ``offsets[i] .. offsets[i + 1] - 1``.
        segments: Number of each segment, in order within a request.
    """

    def __init__(self, offsets: Sequence[int], segments: Sequence[int]) -> None:
        self._offsets, self._segments = offsets, segments
        self._place: dict[int, int] = {}

    def preferred(self, index: int, ready: Sequence[int]) -> int | None:
        """Return where the longest known path went, of those whose replica is ready."""
        place = self._place
        for segment in reversed(self._segments[self._offsets[index] : self._offsets[index + 1]]):
            if segment in place and place[segment] in ready:
                return place[segment]
        return None

    def routed(self, index: int, number: int) -> None:
        """Remember it for all its segments: what the request computes, and its answer, are kept there."""
        self._place.update(dict.fromkeys(self._segments[self._offsets[index] : self._offsets[index + 1]], number))


def affinity_of(routing: RoutingSpec, specs: RequestSpecs) -> Affinity | None:
    """Return what the router remembers under its policy; None where it goes by load alone, or has nothing to go by."""
    if routing.policy == "session" and specs.session is not None:
        return SessionAffinity(specs.session.tolist())
    if routing.policy == "prefix" and specs.prefixes is not None:
        return PrefixAffinity(specs.prefixes.offsets.tolist(), specs.prefixes.segments.tolist())
    return None
