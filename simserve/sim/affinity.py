"""Affinity: what a router goes by to send a request where what it begins with has probably been kept.

It is remembered and looked up by `simserve.engine.routing`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from simserve.engine.numbers import as_column
from simserve.engine.plane_state import Affinity
from simserve.sim.prefixes import prefixes_of
from simserve.sim.routing_spec import RoutingSpec
from simserve.workload.requests import RequestSpecs

DEFAULT_CACHE_THRESHOLD = 0.5
"""Share of the prompt that must be known (as ``cache_threshold`` of SGLang's router)."""
LEAST_EXCESS = 4
"""Requests more than the least loaded one, below which the replica of a session or adapter is not passed over."""


def session_affinity(sessions: Sequence[int] | NDArray[np.int64], as_lists: bool = True) -> Affinity:
    """Return that every request of a session goes where the one before it went.

    How long what is kept is, is not known: it is worth `LEAST_EXCESS`.

    Args:
        sessions: Session of each request; negative: none.
        as_lists: Whether it is read from Python, not from compiled code.
    """
    numbers = np.asarray(sessions, dtype=np.int64)
    has_session = numbers >= 0
    offsets = np.concatenate([[0], np.cumsum(has_session)])
    keys = numbers[has_session]
    return _affinity(offsets, keys, np.full(len(keys), LEAST_EXCESS), np.zeros(len(numbers)), as_lists)


def prefix_affinity(
    offsets: Sequence[int] | NDArray[np.int64],
    segments: Sequence[int] | NDArray[np.int64],
    ends: Sequence[int] | NDArray[np.int64],
    least: Sequence[float] | NDArray[np.floating],
    as_lists: bool = True,
) -> Affinity:
    """Return that a request goes where the longest part of what it begins with was served last.

    Equal segment numbers mean equal tokens from the first one on, so one number stands for the whole path to it. What
    is known is worth the tokens that need not be computed. Too short a part is not worth a detour: a system prompt that
    all have in common would send everybody to one replica.

    Args:
        offsets: Request i has the entries ``offsets[i] .. offsets[i + 1] - 1``.
        segments: Number of each segment, in order within a request.
        ends: Token of the request before which it ends.
        least: Tokens of each request that must be known to a replica at least.
        as_lists: Whether it is read from Python, not from compiled code.
    """
    return _affinity(np.asarray(offsets), np.asarray(segments), np.asarray(ends), np.asarray(least), as_lists)


def _affinity(
    offsets: NDArray[np.int64],
    numbers: NDArray[np.int64],
    ends: NDArray[np.int64],
    least: NDArray[np.floating],
    as_lists: bool,
) -> Affinity:
    keys, num_keys = dense(numbers)
    starts, values, worth = (as_column(each, as_lists) for each in (offsets, keys, ends))
    return Affinity(starts, values, worth, as_column(least.astype(np.float64), as_lists), num_keys)


def affinity_of(routing: RoutingSpec, specs: RequestSpecs, as_lists: bool = True) -> Affinity | None:
    """Return what the router remembers under its policy; None where it goes by load alone, or has nothing to go by."""
    if routing.policy == "session" and specs.session is not None:
        return session_affinity(specs.session, as_lists)
    if routing.policy == "lora" and specs.adapter is not None:
        # As a session that goes on: its replica has the adapter in a slot, or at least in host memory.
        return session_affinity(specs.adapter, as_lists)
    prefixes = prefixes_of(specs) if routing.policy == "prefix" else None
    if prefixes is not None:
        threshold = DEFAULT_CACHE_THRESHOLD if routing.cache_threshold is None else routing.cache_threshold
        least = threshold * specs.prompt_tokens
        return prefix_affinity(prefixes.offsets, prefixes.segments, prefixes.ends, least, as_lists)
    return None


def dense(numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
    """Return numbers from 0 up that are equal where ``numbers`` are, and one more than the largest."""
    if not len(numbers):
        return numbers, 0
    if numbers.min() >= 0 and numbers.max() < _SPARSE * len(numbers):
        return numbers, int(numbers.max()) + 1
    distinct, inverse = np.unique(numbers, return_inverse=True)
    return inverse.astype(np.int64), len(distinct)


_SPARSE = 4
"""Numbers are dense enough to be used as they are while there are at least one in so many."""
