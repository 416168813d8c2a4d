"""What the LoRA adapters of a run's replicas add up to (`simserve.engine.loras`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from simserve.engine.cache_state import Loras
from simserve.engine.compiled.view import View


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraTotals:
    """Sums over all replicas.

    Attributes:
        num_asked: Admissions of requests with an adapter.
        num_hits: Those that found it on the GPU.
        num_swaps: Adapters that were loaded to a GPU.
        num_disk_loads: Those of them that came from disk.
        load_seconds: Seconds that steps waited for loads.
        step_seconds: Seconds by which adapters made steps longer besides; 0 where nothing says what steps take.
    """

    num_asked: int
    num_hits: int
    num_swaps: int
    num_disk_loads: int
    load_seconds: float
    step_seconds: float = 0.0


_COUNTS = ("num_asked", "num_hits", "num_swaps", "num_disk_loads")


class LoraSums:
    """Adds up the adapters of replicas, one after another or the same again."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._counts = dict.fromkeys(_COUNTS, 0)

    def take(self, loras: Loras | View) -> None:
        """Add what a replica has counted since it was last looked at, and let it count from nothing."""
        for name in _COUNTS:
            self._counts[name] += getattr(loras, name)
            setattr(loras, name, 0)
        self.seconds += loras.load_seconds
        loras.load_seconds = 0.0

    def totals(self, step_seconds: float) -> LoraTotals:
        """Return the sums."""
        return LoraTotals(**self._counts, load_seconds=self.seconds, step_seconds=step_seconds)


def adapted_together(totals: Iterable[LoraTotals | None]) -> LoraTotals | None:
    """Return what the adapters of several pools add up to; None where none has any."""
    found = [each for each in totals if each is not None]
    if not found:
        return None
    return LoraTotals(**{each.name: sum(getattr(one, each.name) for one in found) for each in fields(LoraTotals)})
