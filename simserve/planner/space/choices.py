"""A choice among ways to deploy: several keys set at once, and what the choices depend on. Decides nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from simserve.planner.space.traffic import Traffic
from simserve.scenario.objective import objective
from simserve.scenario.schema import Scenario


@dataclass(frozen=True, slots=True)
class Choice:
    """One value of an option.

    Attributes:
        label: In words.
        changes: Dotted key -> value; what is needed beside to make room for it included.
        family: Choices of one family differ in a proportion alone; of these, advice measures the first.
    """

    label: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    family: str = ""


@dataclass(frozen=True, slots=True)
class Option:
    """A dimension of the search whose values set several keys at once.

    Attributes:
        name: What is chosen.
        choices: The plain one first.
        own: Place of what the scenario says itself.
    """

    name: str
    choices: tuple[Choice, ...]
    own: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What choices depend on.

    Attributes:
        scenario: The scenario on the GPU in question.
        traffic: Its traffic.
        wants_latency: Whether latency itself is to be small.
        has_spares: Whether replicas must be to spare.
    """

    scenario: Scenario
    traffic: Traffic
    wants_latency: bool = False
    has_spares: bool = False

    def has_limit(self, *terms: str) -> bool:
        """Return whether any request has a limit on one of these latencies."""
        asked = objective(self.scenario)
        return asked is not None and any(asked.has_bound(term) for term in terms)


LeftOut = str
"""Why an option does not enter; empty where nobody would ask."""
