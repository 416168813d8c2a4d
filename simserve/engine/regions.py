"""Regions: which pools are near to whom, when a request goes farther, and how long its way takes."""

from __future__ import annotations

from simserve.engine.plane_state import DataPlane, Regions
from simserve.engine.state import INFINITY, RequestTable


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
