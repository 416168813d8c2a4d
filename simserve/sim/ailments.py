"""What can be wrong with a replica short of a loss: it hangs, goes on again, or takes longer for every step."""

from __future__ import annotations

from simserve.engine.data_parallel import break_off, look_again
from simserve.engine.state import INFINITY
from simserve.engine.tables import StepTimes
from simserve.sim.lifecycle import Lifecycle
from simserve.sim.replicas import ManagedReplica


def freeze(fleet: Lifecycle, replica: ManagedReplica, now: float) -> None:
    """Let a replica hang from the end of the running step on: it takes requests and does nothing.

    A static batch that hangs begins anew when the replica goes on.
    """
    replica.is_freezing = True
    break_off(replica.schedulers, now)
    if not fleet.ends_leap(replica, now):
        fleet.complete(replica, now)
        fleet.note_end(replica)


def thaw(fleet: Lifecycle, replica: ManagedReplica, now: float) -> None:
    """Let a replica that hangs go on."""
    replica.is_freezing = False
    if replica.is_frozen:
        replica.is_frozen = False
        if replica.schedulers.end_time != INFINITY:
            look_again(replica.schedulers, now)
        fleet.note_end(replica)


def change_pace(fleet: Lifecycle, replica: ManagedReplica, times: StepTimes, now: float) -> None:
    """Let the steps of a replica take ``times`` after the one that runs."""
    replica.next_times = times
    replica.pool.recorder.scales_parts = True
    if not fleet.ends_leap(replica, now):
        fleet.complete(replica, now)
