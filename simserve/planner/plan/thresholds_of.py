"""The autoscaler of a plan: `simserve.planner.plan.thresholds` for what the search has found, with its command."""

from __future__ import annotations

from typing import Any

from simserve.planner.plan.explain import command
from simserve.planner.plan.findings import Findings
from simserve.planner.plan.thresholds import autoscaler_of
from simserve.planner.space.makeup import merged


def thresholds_of(found: Findings) -> dict[str, Any] | None:
    """Return thresholds for a plan's deployment; None where nothing holds or was confirmed, or no fixed fleet does."""
    if found.fleet is None or found.member is None or found.confirmed is None:
        return None
    fleet, trial = found.fleet, found.confirmed
    price = None if trial.usd_per_hour is None or not trial.mean_gpus else trial.usd_per_hour / trial.mean_gpus
    gpus = trial.num_gpus / trial.replicas
    answer = autoscaler_of(
        found.borne, fleet.overrides, fleet.replicas, usd_per_hour=None if price is None else price * gpus
    )
    if answer is None or answer["best"] is None:
        return answer
    best = answer["best"]
    changes = merged(fleet.overrides, best["overrides"])
    return {**answer, "best": {**best, "overrides": changes, "command": command(found.reference, changes)}}
