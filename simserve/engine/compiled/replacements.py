"""What compiled code calls in place of Python's own lists, and what it never reaches.

Functions of the first kind have the name and the meaning of what they replace. Those named in `UNREACHED` serve
configurations that run interpreted (`simserve.engine.compiled.run.reason_against`); compiled code has an empty function
in their place.

Compiled code keeps replicas in order (`simserve.engine.event_plane`) by tournaments in lists of numbers.

The winner of two is above both, the overall winner at 1, and the entrants are in the second half.
"""

from __future__ import annotations

from typing import Any

from simserve.engine.numbers import SEVERAL
from simserve.engine.state import INFINITY, MASK, SHIFT
from simserve.errors import InvariantError

_MOST = (1 << 62) - 1
"""More than any load with its position."""


def has_order(num_schedulers: int) -> bool:
    """Like `simserve.engine.event_plane.has_order`."""
    return num_schedulers > 1


def arrange_times(order: Any, times: Any) -> None:
    """Like `simserve.engine.event_plane.arrange_times`: a tournament, the earlier of two above both, the first at 1."""
    count = len(times)
    size = 1
    while size < count:
        size *= 2
    order.clear()
    for _ in range(size):
        order.append(INFINITY)
    for position in range(size):
        order.append(times[position] if position < count else INFINITY)
    for position in range(size - 1, 0, -1):
        order[position] = min(order[2 * position], order[2 * position + 1])


def note_time(order: Any, position: int, time: float) -> None:
    """Like `simserve.engine.event_plane.note_time`."""
    place = (len(order) >> 1) + position
    order[place] = time
    while place > 1:
        # Only the other of the two is loaded: no load waits for what has just been stored.
        other = order[place ^ 1]
        time = other if other < time else time
        place >>= 1
        order[place] = time


def first_time(order: Any, times: Any) -> float:
    """Like `simserve.engine.event_plane.first_time`."""
    first: float = order[1]
    return first


def find_first(order: Any, times: Any) -> int:
    """Like `simserve.engine.event_plane.find_first`."""
    size = len(order) >> 1
    first = order[1]
    place = 1
    num_ties = 0
    while place < size:
        place *= 2
        one, other = order[place], order[place + 1]
        num_ties += one == other
        place += one != first
    return SEVERAL if num_ties else place - size


def arrange_loads(order: Any, loads: Any) -> None:
    """Like `simserve.engine.event_plane.arrange_loads`.

    A tournament of loads, each with its position in the lower half.
    """
    count = len(loads)
    size = 1
    while size < count:
        size *= 2
    order.clear()
    for _ in range(size):
        order.append(_MOST)
    for position in range(size):
        order.append(loads[position] << SHIFT | position if position < count else _MOST)
    for position in range(size - 1, 0, -1):
        order[position] = min(order[2 * position], order[2 * position + 1])


def note_load(order: Any, position: int, load: int) -> None:
    """Like `simserve.engine.event_plane.note_load`."""
    place = (len(order) >> 1) + position
    entry = load << SHIFT | position
    order[place] = entry
    while place > 1:
        other = order[place ^ 1]
        entry = other if other < entry else entry
        place >>= 1
        order[place] = entry


def least_load(order: Any, loads: Any) -> int:
    """Like `simserve.engine.event_plane.least_load`."""
    return int(order[1]) & MASK


ORDER = (has_order, arrange_times, note_time, first_time, find_first, arrange_loads, note_load, least_load)


def heappush(heap: Any, item: Any) -> None:
    """Push onto a heap."""
    heap.append(item)
    position = len(heap) - 1
    while position:
        parent = (position - 1) >> 1
        above = heap[parent]
        if not item < above:
            break
        heap[position] = above
        position = parent
    heap[position] = item


def heappop(heap: Any) -> Any:
    """Pop the smallest item off a heap."""
    last = heap.pop()
    size = len(heap)
    if not size:
        return last
    smallest = heap[0]
    sift(heap, 0, size, last)
    return smallest


def sift(heap: Any, position: int, size: int, item: Any) -> None:
    """Put an item at a position or below, moving smaller ones up."""
    last = size - 1
    child = 2 * position + 1
    while child < last:
        # Added, not branched on: the processor cannot predict which of the two is smaller.
        child += heap[child + 1] < heap[child]
        smallest = heap[child]
        if not smallest < item:
            heap[position] = item
            return
        heap[position] = smallest
        position = child
        child = 2 * position + 1
    if child == last and heap[child] < item:
        heap[position] = heap[child]
        position = child
    heap[position] = item


def heapify(heap: Any) -> None:
    """Make a heap of a list."""
    size = len(heap)
    for position in range(size // 2 - 1, -1, -1):
        sift(heap, position, size, heap[position])


def bisect_left(values: Any, value: Any) -> int:
    """Return where a value goes in an ascending list, before equal ones."""
    low, high = 0, len(values)
    while low < high:
        middle = (low + high) // 2
        if values[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low


def sum_around(values: Any, start: int, count: int) -> int:
    """Like `simserve.engine.state.sum_around`."""
    total = 0
    stop = start + count
    around = stop - len(values)
    for position in range(start, stop if around <= 0 else stop - around):
        total += values[position]
    for position in range(around):
        total += values[position]
    return total


def leap_row(*fields: Any) -> Any:
    """Like `simserve.engine.state.leap_row`: numbers are left as they are."""
    return fields


def earliest_of(times: Any) -> float:
    """Like `simserve.engine.numbers.earliest_of`."""
    earliest: float = times[0]
    for position in range(1, len(times)):
        earliest = min(earliest, times[position])
    return earliest


def least_of(loads: Any) -> int:
    """Like `simserve.engine.numbers.least_of`."""
    least = 0
    for position in range(1, len(loads)):
        if loads[position] < loads[least]:
            least = position
    return least


def find_one(times: Any, time: float) -> int:
    """Like `simserve.engine.numbers.find_one`."""
    place = SEVERAL
    for position in range(len(times)):
        if times[position] == time:
            if place != SEVERAL:
                return SEVERAL
            place = position
    return place


def find_all(times: Any, time: float, positions: Any) -> None:
    """Like `simserve.engine.numbers.find_all`."""
    positions.clear()
    for position in range(len(times)):
        if times[position] == time:
            positions.append(position)


def least_among(numbers: Any, loads: Any) -> int:
    """Like `simserve.engine.numbers.least_among`."""
    least: int = numbers[0]
    for position in range(1, len(numbers)):
        number = numbers[position]
        if loads[number] < loads[least]:
            least = number
    return least


def sum_among(numbers: Any, loads: Any) -> int:
    """Like `simserve.engine.numbers.sum_among`."""
    total = 0
    for position in range(len(numbers)):
        total += loads[numbers[position]]
    return total


def copy_into(copy: Any, values: Any) -> None:
    """Like `simserve.engine.numbers.copy_into`."""
    for position in range(len(values)):
        copy[position] = values[position]


def sort_ascending(values: Any) -> None:
    """Like `simserve.engine.numbers.sort_ascending`: by insertion."""
    for position in range(1, len(values)):
        value = values[position]
        before = position - 1
        while before >= 0 and values[before] > value:
            values[before + 1] = values[before]
            before -= 1
        values[before + 1] = value


def remove_all(values: Any, value: int) -> None:
    """Like `simserve.engine.numbers.remove_all`."""
    kept = 0
    for position in range(len(values)):
        each = values[position]
        if each != value:
            values[kept] = each
            kept += 1
    while len(values) > kept:
        values.pop()


def new_slot(cache: Any, segment: int) -> int:
    """Like `simserve.engine.prefix_cache.new_slot`."""
    if cache.free_slots:
        slot: int = cache.free_slots.pop()
        cache.segments[slot] = segment
    else:
        slot = len(cache.held)
        cache.segments.append(segment)
        cache.held.append(0)
        cache.used.append(0)
        cache.users.append(0)
        cache.num_others.append(0)
        cache.shallowest.append(0)
        cache.reach_heads.append(0)
    cache.slots[segment] = slot
    return slot


def add_reach(cache: Any, slot: int, reach: int, count: int) -> None:
    """Like `simserve.engine.prefix_cache.add_reach`."""
    cache.num_others[slot] += count
    reaches = cache.reaches
    head = cache.reach_heads[slot]
    entry = head
    while entry:
        blocks, requests, following = reaches[entry - 1]
        if blocks == reach:
            reaches[entry - 1] = (blocks, requests + count, following)
            return
        entry = following
    entry = cache.free_reach
    if entry:
        cache.free_reach = reaches[entry - 1][2]
        reaches[entry - 1] = (reach, count, head)
    else:
        reaches.append((reach, count, head))
        entry = len(reaches)
    cache.reach_heads[slot] = entry


def drop_reach(cache: Any, slot: int, entry: int) -> None:
    """Take an entry out of the chain of a segment, for use by another."""
    reaches = cache.reaches
    following = reaches[entry - 1][2]
    each = cache.reach_heads[slot]
    if each == entry:
        cache.reach_heads[slot] = following
    else:
        while reaches[each - 1][2] != entry:
            each = reaches[each - 1][2]
        reaches[each - 1] = (reaches[each - 1][0], reaches[each - 1][1], following)
    reaches[entry - 1] = (0, 0, cache.free_reach)
    cache.free_reach = entry


def remove_reach(cache: Any, slot: int, reach: int) -> None:
    """Like `simserve.engine.prefix_cache.remove_reach`."""
    cache.num_others[slot] -= 1
    reaches = cache.reaches
    entry = cache.reach_heads[slot]
    while reaches[entry - 1][0] != reach:
        entry = reaches[entry - 1][2]
    blocks, requests, following = reaches[entry - 1]
    if requests > 1:
        reaches[entry - 1] = (blocks, requests - 1, following)
    else:
        drop_reach(cache, slot, entry)


def take_longest_reach(cache: Any, slot: int) -> tuple[int, int]:
    """Like `simserve.engine.prefix_cache.take_longest_reach`."""
    reaches = cache.reaches
    most = count = longest = 0
    entry = cache.reach_heads[slot]
    while entry:
        blocks, requests, following = reaches[entry - 1]
        if blocks > most:
            most, count, longest = blocks, requests, entry
        entry = following
    drop_reach(cache, slot, longest)
    cache.num_others[slot] -= count
    return most, count


def give_up(idle: Any, slot: int) -> None:
    """Like `simserve.engine.prefix_cache.give_up`."""
    idle.move_to_end(slot)


def least_recent(idle: Any) -> int:
    """Like `simserve.engine.prefix_cache.least_recent`."""
    first: int = idle.first()
    return first


def growth(progress: Any, step: int, num_steps: int) -> int:
    """Like `simserve.engine.progress.Progress.growth`."""
    period, paces, remainders = progress._period, progress.paces, progress.remainders
    taken = progress.pending_blocks + (progress.late_blocks if num_steps > 1 else 0)
    for position in range(len(paces)):
        pace = paces[position]
        cycles, rest = divmod(pace * num_steps, period)
        taken += cycles * progress.counts[pace]
        start = 2 * period * pace + (period - rest - pace * (step - 1 - progress._lag)) % period
        for each in range(start, start + rest):
            taken += remainders[each]
    return int(taken)


def count_pace(progress: Any, base: int, pace: int, change: int) -> None:
    """Like `simserve.engine.progress.Progress._count`."""
    period, counts, remainders = progress._period, progress.counts, progress.remainders
    if not counts[pace]:
        progress.paces.append(pace)
    counts[pace] += change
    if not counts[pace]:
        progress.paces.remove(pace)
    remainder = 2 * period * pace + (base + progress._offset) % period
    remainders[remainder] += change
    remainders[remainder + period] += change


def num_requests(progress: Any) -> int:
    """Like `simserve.engine.progress.Progress.num_requests`."""
    total = 0
    for position in range(len(progress.paces)):
        total += progress.counts[progress.paces[position]]
    return total


def report_stuck(replica: Any) -> None:
    """Like `simserve.engine.kernel.report_stuck`, without the figures."""
    raise InvariantError("requests wait at an empty replica and none can be admitted")


def report_lack(replica: Any, index: int) -> None:
    """Like `simserve.engine.state_cache.report_lack`, without the figures."""
    raise InvariantError("a request needs more blocks than are free")


def _nothing(*arguments: Any) -> None:
    return None


def _zero(*arguments: Any) -> int:
    return 0


def _false(*arguments: Any) -> bool:
    return False


UNREACHED: dict[str, Any] = {
    **dict.fromkeys(
        (
            "leave_batch",
            "leave_uncached",
            "plan_static",
            "plan_uncached",
            "release_range",
            "submit_static",
            "take_judged_seconds",
        ),
        _nothing,
    ),
    **dict.fromkeys(("complete_static", "complete_uncached", "free_tokens", "range_need"), _zero),
    **dict.fromkeys(("judged_choice", "judged_refusal"), _zero),
    "take_range": _false,
}
REPLACED: dict[str, Any] = {
    each.__name__: each
    for each in (
        heappush,
        heappop,
        heapify,
        bisect_left,
        leap_row,
        sum_around,
        earliest_of,
        least_of,
        find_one,
        find_all,
        least_among,
        sum_among,
        copy_into,
        sort_ascending,
        remove_all,
        new_slot,
        add_reach,
        drop_reach,
        remove_reach,
        take_longest_reach,
        give_up,
        least_recent,
        report_lack,
        report_stuck,
        *ORDER,
    )
}
