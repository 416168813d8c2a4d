"""Inter-token gaps without a walk over the batch: the largest per request, and stalls of prefill-first scheduling.

``gap_step_runs`` and ``gap_values`` are a monotonic stack: values fall, so the largest gap since a leap is the first
entry from it on. A request remembers the leap it joined in.
"""

from __future__ import annotations

from bisect import bisect_left

from simserve.engine.state import Replica, RequestTable


def push_gap(replica: Replica, leap: int, gap: float) -> None:
    """Note the largest gap (seconds) that every decoding request had in a leap."""
    gap_values = replica.gap_values
    while gap_values and gap_values[-1] <= gap:
        gap_values.pop()
        replica.gap_step_runs.pop()
    gap_values.append(gap)
    replica.gap_step_runs.append(leap)


def keep_largest_gap(replica: Replica, requests: RequestTable, index: int) -> None:
    """Fold the gaps since a request joined into its ``itl_max``."""
    position = bisect_left(replica.gap_step_runs, requests.joined_leap[index])
    if position < len(replica.gap_values):
        gap = replica.gap_values[position]
        if gap > requests.itl_max[index]:
            requests.itl_max[index] = gap


def note_stall(replica: Replica, num_joined: int) -> None:
    """Prefill-first: decoding requests waited for a prefill step; remember since when, for their next gap."""
    leap = replica.leap_index
    if not replica.stall_step_runs:
        num_before = replica.num_decoding - num_joined
        if num_before:
            add_stall(replica, leap - 1, replica.last_decode_time, num_before)
    if num_joined:
        add_stall(replica, leap, replica.end_time, num_joined)


def add_stall(replica: Replica, leap: int, last_token_time: float, count: int) -> None:
    """Note that so many requests, whose last token came at a time, wait for the end of a stall from a leap on."""
    replica.stall_step_runs.append(leap)
    replica.stall_times.append(last_token_time)
    replica.stall_counts.append(count)


def end_stall(replica: Replica) -> None:
    """The first decode step after a stall ends: every group's gap since its last token."""
    token_time = replica.start_time + replica.first_seconds
    for position in range(len(replica.stall_step_runs)):
        count = replica.stall_counts[position]
        if count:
            gap = token_time - replica.stall_times[position]
            replica.irregular_gaps.extend((gap, count))
            push_gap(replica, replica.stall_step_runs[position], gap)
    replica.stall_step_runs.clear()
    replica.stall_times.clear()
    replica.stall_counts.clear()


def leave_stall(replica: Replica, joined_leap: int) -> None:
    """A stalled request is preempted: its gap will be counted when it comes back."""
    for position in range(len(replica.stall_step_runs) - 1, -1, -1):
        if replica.stall_step_runs[position] <= joined_leap or not position:
            replica.stall_counts[position] -= 1
            return
