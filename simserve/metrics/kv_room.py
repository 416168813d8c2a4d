"""How many requests of a run's traffic the KV memory of one replica holds at once. Knows one run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from simserve.sim.simulate import Simulation


def requests_in_kv(simulation: Simulation) -> float | None:
    """Return about how many requests of this traffic the KV memory of one replica holds at once.

    Its capacity over the mean reservation of a running request; None without a KV cache or a finished request.
    """
    records, totals = simulation.records, simulation.totals
    running_seconds = float(np.nansum(records.finish_time - records.scheduled_time))
    if totals.kv_reserved_token_seconds <= 0 or running_seconds <= 0:
        return None
    reservation = totals.kv_reserved_token_seconds / running_seconds
    return totals.kv_capacity_tokens / simulation.num_replicas / reservation
