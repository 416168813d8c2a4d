"""Verification: the fast plane and the reference on the same requests, compared one by one. Mends nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from simserve.errors import ScenarioError
from simserve.scenario.reference import cluster_of, records_of
from simserve.scenario.replication import replicate
from simserve.scenario.resolve import ResolvedScenario, resolve
from simserve.scenario.run import deploy
from simserve.sim.records import RequestRecords

if TYPE_CHECKING:
    from simserve.scenario.schema import Scenario
    from simserve.sim.acceleration import Accelerate
    from simserve.sim.simulate import Deployment
    from simserve.workload.requests import RequestSpecs

NEAR = 1e-9
"""Times that differ by no more, in seconds and relative to themselves, are equal: the two sum steps in another order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What the comparison of two runs found.

    Attributes:
        requests: How many were compared.
        differing: Numbers of those that fared differently, ascending, with the columns that differ.
        largest_difference: Of any two times that should be equal, seconds; inf: one of the two is undefined.
    """

    requests: int
    differing: dict[int, tuple[str, ...]]
    largest_difference: float

    @property
    def is_equal(self) -> bool:
        """Whether every request fared the same."""
        return not self.differing

    @property
    def figures(self) -> dict[str, Any]:
        """The keys of the command's JSON."""
        columns = sorted({name for names in self.differing.values() for name in names})
        return {
            "requests": self.requests,
            "equal": self.is_equal,
            "largest_difference_s": self.largest_difference if math.isfinite(self.largest_difference) else None,
            "num_different": len(self.differing),
            "different_columns": columns,
            "first_different": next(iter(self.differing), None),
        }


def compared(reference: RequestRecords, plane: RequestRecords) -> Verification:
    """Compare two runs of the same requests, row by row and column by column."""
    differing: dict[int, list[str]] = {}
    largest = 0.0
    for each in fields(RequestRecords):
        expected, actual = getattr(reference, each.name), getattr(plane, each.name)
        if not isinstance(expected, np.ndarray) or not isinstance(actual, np.ndarray):
            continue
        if expected.dtype.kind == "f":
            is_other = ~np.isclose(actual, expected, rtol=NEAR, atol=NEAR, equal_nan=True)
            largest = max(largest, _largest_gap(expected, actual))
        else:
            is_other = expected != actual
        for index in np.flatnonzero(is_other).tolist():
            differing.setdefault(index, []).append(each.name)
    found = {index: tuple(differing[index]) for index in sorted(differing)}
    return Verification(requests=len(reference), differing=found, largest_difference=largest)


def _largest_gap(expected: NDArray[np.float64], actual: NDArray[np.float64]) -> float:
    """Return by how much two columns of times differ at most; inf where only one of the two has a time."""
    if (np.isnan(expected) != np.isnan(actual)).any():
        return math.inf
    return float(np.nanmax(np.abs(expected - actual), initial=0.0))


def uncovered(deployment: Deployment) -> str | None:
    """Return the key of a deployment that the reference does not cover; None: it covers all."""
    control, engines = deployment.control, [each.engine for each in deployment.pools] or [deployment.engine]
    if control is None:
        return None
    is_static = any(each.batching == "static" for each in engines)
    is_scaled = any(each.autoscaling is not None for each in deployment.pools)
    found = {
        "streaming": control.streaming is not None,
        "regions": control.regions is not None,
        "routing.rules": bool(control.routing.rules),
        "engine.batching": is_static and (control.changes_fleet or is_scaled or control.admission is not None),
        "engine.kv_allocation": control.disaggregation is not None
        and any(each.kv_allocation != "paged" or each.batching == "static" for each in engines),
        "pools.speculative": any(each.acceptance for each in deployment.pools),
    }
    return next((key for key, applies in found.items() if applies), None)


def refuse_uncovered(deployment: Deployment, scenario: Scenario) -> None:
    """Refuse what the reference does not cover.

    Raises:
        ScenarioError: The key, and what to do without it.
    """
    key = uncovered(deployment)
    if key is not None:
        with scenario.blaming("deployment"):
            raise ScenarioError(
                "is not covered by the reference yet",
                key=key,
                remedy="leave it out to verify the rest, or run the scenario without --reference",
            )


def by_reference(deployment: Deployment, specs: RequestSpecs) -> RequestRecords:
    """Return what becomes of requests by the reference."""
    cluster = cluster_of(deployment, specs)
    cluster.run()
    records = records_of(cluster)
    ordered = records.by_arrival() if specs.sends_out_of_order else records
    return ordered if specs.closes_at is None else ordered.sent()


def verify(
    asked: Scenario | ResolvedScenario, *, num_requests: int | None = None, accelerate: Accelerate = "auto"
) -> Verification:
    """Run a scenario on the fast plane and by the reference, and compare every request.

    Args:
        asked: What to run.
        num_requests: How many requests are drawn; None: as the scenario says.
        accelerate: Whether the plane runs compiled.

    Raises:
        ScenarioError: The reference does not cover it.
        InfeasibleError: The model does not fit.
    """
    resolved = resolve(asked)
    deployment, scenario = deploy(resolved), resolved.scenario
    refuse_uncovered(deployment, scenario)
    if num_requests is not None:
        workload = scenario.workload.model_copy(update={"num_requests": num_requests, "duration": None})
        scenario = scenario.model_copy(update={"workload": workload})
    specs, simulation = replicate(deployment, scenario, 0, accelerate=accelerate)
    return compared(by_reference(deployment, replace(specs)), simulation.records)
