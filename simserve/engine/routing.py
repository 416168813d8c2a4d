"""Routing: which of some replicas a request goes to and, with regions, which pools and by which way.

The caller passes the loads, as current as it has them, and the random numbers. It knows no clock and no scheduler.
"""

from __future__ import annotations

from simserve.engine.judged import judged_choice
from simserve.engine.numbers import least_among, sum_among
from simserve.engine.plane_state import LEAST, Affinity, DataPlane, Regions, Router, Shares
from simserve.engine.state import INFINITY, RequestTable, take_uniform

ROUND_ROBIN, RANDOM, TWO_CHOICES, JUDGED = range(LEAST + 1, LEAST + 5)
"""In turn; at random; the less loaded of two drawn; by a user's own function."""
NUMBERS = {"round_robin": ROUND_ROBIN, "random": RANDOM, "power_of_two": TWO_CHOICES}
"""Numbers of the policies by their names in scenarios; all others go to the least loaded."""


def deal(shares: Shares, pools: list[int]) -> int:
    """Return the pool that a request goes to by weight: smooth weighted round robin, as in nginx."""
    weights, owed = shares.weights, shares.credits
    total = 0.0
    chosen = pools[0]
    for position in range(len(pools)):
        pool = pools[position]
        owed[pool] += weights[pool]
        total += weights[pool]
        if owed[pool] > owed[chosen]:
            chosen = pool
    owed[chosen] -= total
    return chosen


def choose(router: Router, index: int, ready: list[int], loads: list[int]) -> int:
    """Return which replica a request goes to.

    Args:
        router: The router.
        index: The request.
        ready: Numbers of the replicas it may go to, at least one; ties go to the first.
        loads: Loads of all replicas by number; round robin and random do not use them.
    """
    if router.policy == JUDGED:
        return judged_choice(router, index, ready)
    affinity = router.affinity
    if affinity is not None:
        number = preferred(affinity, index, ready)
        if number < 0 or is_overloaded(router, number, ready, loads, affinity.worth):
            number = least_among(ready, loads)
        remember(affinity, index, number)
        return number
    num_ready = len(ready)
    if num_ready == 1:
        return ready[0]
    if router.policy == LEAST:
        return least_among(ready, loads)
    if router.policy == ROUND_ROBIN:
        turn = router.turn if router.turn < num_ready else 0
        router.turn = turn + 1
        return ready[turn]
    first = draw(router, num_ready)
    if router.policy == RANDOM:
        return ready[first]
    second = draw(router, num_ready - 1)
    if second >= first:
        second += 1
    one, other = ready[min(first, second)], ready[max(first, second)]
    return one if loads[one] <= loads[other] else other


def preferred(affinity: Affinity, index: int, ready: list[int]) -> int:
    """Return the ready replica that knows the longest part of a request; -1: it is new to all."""
    places, keys, ends, least = affinity.places, affinity.keys, affinity.ends, affinity.least[index]
    first = affinity.offsets[index]
    for entry in range(affinity.offsets[index + 1] - 1, first - 1, -1):
        if ends[entry] < least:
            return -1
        key = keys[entry]
        number = places[key]
        if number >= 0 and number in ready:
            worth = min(affinity.known[key], ends[entry])
            affinity.worth = worth
            return number if worth >= least else -1
    return -1


def is_overloaded(router: Router, number: int, ready: list[int], loads: list[int], worth: int) -> bool:
    """Return whether a replica's load is far above the mean, and above the least load by more than ``worth``."""
    own = loads[number]
    if own <= worth:
        return False
    is_far = own > router.guard * sum_among(ready, loads) / len(ready)
    return is_far and own > loads[least_among(ready, loads)] + worth


def remember(affinity: Affinity, index: int, number: int) -> None:
    """Record where a request went, for all its keys: what it computes, and its answer, are kept there.

    If the same replica knew more of a key, it still does; what another one knew no longer counts.
    """
    places, keys, known, ends = affinity.places, affinity.keys, affinity.known, affinity.ends
    for entry in range(affinity.offsets[index], affinity.offsets[index + 1]):
        key = keys[entry]
        known[key] = max(known[key], ends[entry]) if places[key] == number else ends[entry]
        places[key] = number


def draw(router: Router, below: int) -> int:
    """Return a random whole number from 0 up to ``below``, exclusive."""
    return min(int(take_uniform(router.uniforms) * below), below - 1)


def one_way(regions: Regions, index: int, number: int) -> float:
    """Return the seconds between the client of a request and a replica."""
    return regions.seconds[regions.home[index] * regions.num_places + regions.place_of[number]]


def set_off(regions: Regions, index: int, number: int, now: float) -> None:
    """Send a request to a replica, where it arrives later."""
    regions.arrives_at[index] = now + one_way(regions, index, number)


def add_near(plane: DataPlane, regions: Regions, index: int, pools: list[int]) -> None:
    """Add the pools that a request may go to, all of one region; none if none is ready."""
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
    """Return when the answer of a replica reaches its client; if it is not streamed, update its row, too."""
    back = one_way(regions, index, number)
    if regions.is_streamed:
        regions.way_back[index] = back
    else:
        requests.first_token_time[index] += back
        requests.finish_time[index] += back
        if regions.has_thinking:
            requests.answer_time[index] += back
    return now + back
