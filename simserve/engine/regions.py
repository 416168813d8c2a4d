"""Regions: which pools are near to whom, when a request goes farther, and how long its way takes."""

from __future__ import annotations

from array import array
from collections.abc import MutableSequence, Sequence

from simserve.engine.data_plane import DataPlane
from simserve.engine.state import INFINITY, RequestTable

ARRIVED = -1.0
"""Instead of a time of arrival: the request is not on its way."""


class Regions:
    """Where clients and replicas are.

    Args:
        home: Of each request, the region of its client; shape [N].
        num_places: Regions that have pools.
        nearest: Of each region of clients, those regions from the nearest to the farthest; one after the other.
        seconds: Of each region of clients, the way to each region of pools, seconds.
        place_of_pool: Of each pool that takes requests, its region.
        place_of: Of each replica, its region.
        spill_above: Requests a replica above which a request goes farther; inf: never.
        is_streamed: Whether answers are on their way token by token, so that the way back is in no row.
        has_thinking: Whether requests think before they answer.

    Attributes:
        arrives_at: When requests arrive that are on their way, seconds; `ARRIVED`: they are not.
        way_back: Of each answer, where they are streamed, the seconds of its way.
    """

    __slots__ = (
        "arrives_at",
        "has_thinking",
        "home",
        "is_streamed",
        "nearest",
        "num_places",
        "place_of",
        "place_of_pool",
        "seconds",
        "spill_above",
        "way_back",
    )

    def __init__(
        self,
        *,
        home: Sequence[int],
        num_places: int,
        nearest: list[int],
        seconds: list[float],
        place_of_pool: list[int],
        place_of: list[int],
        spill_above: float,
        is_streamed: bool,
        has_thinking: bool = False,
    ) -> None:
        self.home, self.num_places, self.nearest, self.seconds = home, num_places, nearest, seconds
        self.place_of_pool, self.place_of = place_of_pool, place_of
        self.spill_above, self.is_streamed, self.has_thinking = spill_above, is_streamed, has_thinking
        self.arrives_at: MutableSequence[float] = array("d", [ARRIVED]) * len(home)
        self.way_back: MutableSequence[float] = array("d", [0.0]) * len(home)


def one_way(regions: Regions, index: int, number: int) -> float:
    """Return the seconds between the client of a request and a replica."""
    return regions.seconds[regions.home[index] * regions.num_places + regions.place_of[number]]


def set_off(regions: Regions, index: int, number: int, now: float) -> None:
    """Send a request to a replica, where it arrives later."""
    regions.arrives_at[index] = now + one_way(regions, index, number)


def add_near(plane: DataPlane, regions: Regions, index: int, pools: list[int]) -> None:
    """Add the pools that a request goes to, all of one region, of those that may serve it; none where none is ready."""
    own, count = plane.parts[plane.kinds[index]].pools, regions.num_places
    chosen, least = -1, INFINITY
    for rank in range(count):
        place = regions.nearest[regions.home[index] * count + rank]
        num_ready = load = 0
        for position in range(len(own)):
            pool = own[position]
            if regions.place_of_pool[pool] == place:
                ready = plane.pools[pool].ready
                num_ready += len(ready)
                for each in range(len(ready)):
                    load += plane.loads[ready[each]]
        if not num_ready:
            continue
        mean = load / num_ready
        if regions.spill_above == INFINITY or mean < regions.spill_above:
            chosen = place
            break
        if mean < least:
            chosen, least = place, mean
    for position in range(len(own)):
        pool = own[position]
        if regions.place_of_pool[pool] == chosen and len(plane.pools[pool].ready):
            pools.append(pool)


def answered_at(regions: Regions, requests: RequestTable, index: int, number: int, now: float) -> float:
    """Return when the answer of a replica is with its client; where it is not streamed, its row says so, too."""
    back = one_way(regions, index, number)
    if regions.is_streamed:
        regions.way_back[index] = back
    else:
        requests.first_token_time[index] += back
        requests.finish_time[index] += back
        if regions.has_thinking:
            requests.answer_time[index] += back
    return now + back
