"""What LoRA adapters did in a run: how often they were on the GPU, and what loading and computing them took."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from simserve.metrics.figures import ratio

if TYPE_CHECKING:
    from simserve.sim.simulate import Simulation
    from simserve.workload.requests import RequestSpecs

LORA_KEYS = (
    "num_adapters",
    "adapters_used",
    "swaps",
    "disk_loads",
    "hit_rate",
    "load_seconds",
    "step_seconds",
    "busy_share",
)
LOADING = "LoRA loads"
"""What binds where steps wait for adapters more than for anything else."""
_NOTICEABLE = 0.05
"""Share of the busy time from which adapters are part of the explanation."""


def lora_figures(simulation: Simulation, specs: RequestSpecs | None, num_adapters: int | None) -> dict[str, Any]:
    """Return `LORA_KEYS`; None without adapters.

    ``swaps`` are loads to a GPU, ``disk_loads`` those from disk; ``hit_rate`` the share of admissions of requests with
    an adapter that found it on the GPU; ``load_seconds`` and ``step_seconds`` what steps of all replicas waited for
    loads, and took longer besides; ``busy_share`` both over the time of all steps.
    """
    loras = simulation.totals.loras
    if loras is None or num_adapters is None:
        return dict.fromkeys(LORA_KEYS)
    drawn = None if specs is None else specs.adapter
    return {
        "num_adapters": num_adapters,
        "adapters_used": None if drawn is None else len(np.unique(drawn[drawn >= 0])),
        "swaps": loras.num_swaps,
        "disk_loads": loras.num_disk_loads,
        "hit_rate": ratio(loras.num_hits, loras.num_asked),
        "load_seconds": loras.load_seconds,
        "step_seconds": loras.step_seconds,
        "busy_share": ratio(loras.load_seconds + loras.step_seconds, simulation.totals.busy_seconds),
    }


def name_loading(found: dict[str, Any], simulation: Simulation) -> None:
    """Let loading adapters be what binds, where steps wait for it half of their time."""
    loras = simulation.totals.loras
    if loras is not None and loras.load_seconds > 0.5 * simulation.totals.busy_seconds:
        found["binding"] = LOADING


def lora_sentences(simulation: Simulation) -> list[str]:
    """Return that steps waited for adapters, where they did for long."""
    loras, busy = simulation.totals.loras, simulation.totals.busy_seconds
    if loras is None or not busy > 0 or loras.load_seconds < _NOTICEABLE * busy:
        return []
    return [f"Steps waited for LoRA adapters to be loaded {loras.load_seconds / busy:.0%} of their time."]
