"""Verification: the fast plane and the reference on the same requests, compared one by one. Corrects nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from simserve.scenario.reference_run import by_reference, refuse, uncovered
from simserve.scenario.replication import replicate, traffic
from simserve.scenario.resolve import ResolvedScenario, resolve
from simserve.scenario.run import deploy
from simserve.sim.records import RequestRecords
from simserve.sim.simulate import simulate

if TYPE_CHECKING:
    from simserve.scenario.schema import Scenario
    from simserve.sim.acceleration import Accelerate
    from simserve.workload.requests import RequestSpecs

NEAR = 1e-9
"""Times that differ by no more than this, in seconds or relatively, are equal: the two sum in a different order."""

MOST_REQUESTS, FEWEST_REQUESTS, MOST_TOKENS = 500, 20, 50_000
"""Default number of requests compared; fewer (at least the second) if they generate more tokens than the third: it
takes some seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What the comparison of two runs found."""

    requests: int  # How many were compared.
    differing: dict[int, tuple[str, ...]]
    """Numbers of the requests that differ, ascending, with the columns that differ."""
    largest_difference: float
    """Largest difference of two times that should be equal, seconds; inf: one of them is undefined."""
    drawn: int = 0  # How many the scenario has; the first of them were compared.
    formats: Mapping[str, Any] = field(default_factory=dict)
    """Number formats of the run, as in `result.json`; empty: only records were compared."""

    @property
    def is_equal(self) -> bool:
        """Whether every request has equal results."""
        return not self.differing

    @property
    def figures(self) -> dict[str, Any]:
        """The keys of the command's JSON."""
        columns = sorted({name for names in self.differing.values() for name in names})
        return {
            "requests": self.requests,
            "requests_drawn": self.drawn,
            "equal": self.is_equal,
            "largest_difference_s": self.largest_difference if math.isfinite(self.largest_difference) else None,
            "num_different": len(self.differing),
            "different_columns": columns,
            "first_different": next(iter(self.differing), None),
            "formats": dict(self.formats),
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
    count = len(reference)
    return Verification(requests=count, differing=found, largest_difference=largest, drawn=count)


def _largest_gap(expected: NDArray[np.float64], actual: NDArray[np.float64]) -> float:
    """Return the largest difference between two columns of times; inf if only one of the two has a time."""
    if (np.isnan(expected) != np.isnan(actual)).any():
        return math.inf
    return float(np.nanmax(np.abs(expected - actual), initial=0.0))


def verify(
    asked: Scenario | ResolvedScenario, *, num_requests: int | None = None, accelerate: Accelerate = "auto"
) -> Verification:
    """Run a scenario on the fast plane and by the reference, and compare every request.

    Args:
        num_requests: How many requests are compared; None: all that the scenario draws, or the first of them
            (`MOST_REQUESTS`, `MOST_TOKENS`).
        accelerate: Whether the plane runs compiled.

    Raises:
        ScenarioError: The reference does not cover the scenario.
        InfeasibleError: The model does not fit.
    """
    resolved = resolve(asked)
    deployment, scenario = deploy(resolved), resolved.scenario
    refuse(scenario, uncovered(deployment), "leave it out to verify the rest")
    if num_requests is not None:
        scenario = scenario.of_length(num_requests)
    drawn = traffic(scenario, 0)
    most = affordable(drawn) if num_requests is None else num_requests
    if most < len(drawn):
        specs = beginning(drawn, most)
        simulation = simulate(deployment, specs, accelerate=accelerate)
    else:
        specs, simulation = replicate(deployment, scenario, 0, accelerate=accelerate)
    found = compared(by_reference(deployment, specs), simulation.records)
    return replace(found, formats=resolved.formats, drawn=max(len(drawn), len(specs)))


def affordable(specs: RequestSpecs) -> int:
    """Return how many requests the reference can serve within seconds."""
    by_tokens = int(np.searchsorted(np.cumsum(specs.output_tokens), MOST_TOKENS, side="right"))
    return max(min(by_tokens, MOST_REQUESTS), FEWEST_REQUESTS)


def beginning(specs: RequestSpecs, num_requests: int) -> RequestSpecs:
    """Return about the first ``num_requests`` requests: whole conversations and tasks, a part of each loop."""
    rows = np.arange(len(specs))
    first = rows
    if specs.session is not None:
        # Requests of a conversation are adjacent.
        first = np.maximum.accumulate(np.where(np.diff(specs.session, prepend=specs.session[0] - 1) != 0, rows, 0))
    source = np.zeros(len(specs), dtype=np.int64)
    if specs.loop is not None:
        classes = 0 if specs.request_class is None else specs.request_class
        source = np.unique(np.stack([specs.loop, classes + 0 * specs.loop]), axis=1, return_inverse=True)[1].reshape(-1)
    rank = np.empty(len(specs))
    for each in np.unique(source):
        own = np.flatnonzero(source == each)
        rank[own] = np.arange(len(own)) / len(own)
    return specs.of_rows(np.flatnonzero(rank[first] < num_requests / len(specs)))
