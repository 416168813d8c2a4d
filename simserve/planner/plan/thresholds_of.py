"""The autoscaler of a plan: `simserve.planner.plan.thresholds` for what the search has found, with its command."""

from __future__ import annotations

from typing import Any

from simserve.planner.overrides import with_overrides
from simserve.planner.plan.explain import command, describe
from simserve.planner.plan.findings import Findings
from simserve.planner.plan.thresholds import autoscaler_of
from simserve.planner.search.trial import HOURS_PER_MONTH, SECONDS_PER_HOUR
from simserve.planner.space.makeup import merged


def thresholds_of(found: Findings) -> dict[str, Any] | None:
    """Return thresholds for a plan's deployment; None where nothing holds or was confirmed, or no fixed fleet does.

    The best of them has, beside what `autoscaler_of` says, the fleet in words, and the GPUs on average and the dollars
    of its fresh runs, for a month of 30 days.
    """
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
    hours = answer["seconds"] / SECONDS_PER_HOUR
    told = {
        "label": describe(with_overrides(found.borne, changes)),
        "mean_gpus": best["replica_hours"] * gpus / hours,
        "usd_per_month": None if best["usd"] is None else best["usd"] / hours * HOURS_PER_MONTH,
        "overrides": changes,
        "command": command(found.reference, changes),
    }
    return {**answer, "best": {**best, **told}}
