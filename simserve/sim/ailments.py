"""What can be wrong with a replica short of a loss: it hangs, goes on again, or takes longer for every step."""

from __future__ import annotations

from simserve.engine.data_parallel import break_off, look_again
from simserve.engine.state import INFINITY
from simserve.engine.tables import StepTimes
from simserve.sim.lifecycle import Lifecycle
from simserve.sim.units import Unit


def freeze(fleet: Lifecycle, unit: Unit, now: float) -> None:
    """Let a replica hang from the end of the running step on: it takes requests and does nothing.

    A static batch that hangs begins anew when the replica goes on.
    """
    unit.is_freezing = True
    break_off(unit.replica, now)
    if not fleet.ends_leap(unit, now):
        fleet.complete(unit, now)
        fleet.note_end(unit)


def thaw(fleet: Lifecycle, unit: Unit, now: float) -> None:
    """Let a replica that hangs go on."""
    unit.is_freezing = False
    if unit.is_frozen:
        unit.is_frozen = False
        if unit.replica.end_time != INFINITY:
            look_again(unit.replica, now)
        fleet.note_end(unit)


def change_pace(fleet: Lifecycle, unit: Unit, times: StepTimes, now: float) -> None:
    """Let the steps of a replica take ``times`` after the one that runs."""
    unit.next_times = times
    unit.pool.recorder.scales_parts = True
    if not fleet.ends_leap(unit, now):
        fleet.complete(unit, now)
