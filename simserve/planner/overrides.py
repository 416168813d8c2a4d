"""Overrides: dotted keys of a scenario, texts with several values, and a scenario with others set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simserve.scenario.load import from_mapping
from simserve.scenario.schema import RunSpec, Scenario

Overrides = Mapping[str, Any]  # Dotted key -> value.
ONE_RUN: Mapping[str, Any] = {
    "replications": 1,
    "precision": None,
    "max_replications": RunSpec.model_fields["max_replications"].default,
}
"""Keys of ``run`` for a scenario that is run once: without a precision there is no largest number of runs either."""
ONCE: Overrides = {f"run.{name}": value for name, value in ONE_RUN.items()}


def with_overrides(scenario: Scenario, overrides: Overrides) -> Scenario:
    """Return a scenario with dotted keys replaced.

    Raises:
        InputError: A value is invalid.
    """
    return scenario if not overrides else from_mapping(scenario.as_mapping(), overrides, folder=scenario.folder)


def value_of(scenario: Scenario, key: str) -> Any:
    """Return the value at a dotted key; None if there is none."""
    value: Any = scenario.as_mapping()
    for part in key.split("."):
        if isinstance(value, list):
            value = value[int(part)] if part.isdecimal() and int(part) < len(value) else None
        else:
            value = value.get(part) if isinstance(value, Mapping) else None
    return value


def with_seed(scenario: Scenario, seed: int) -> Scenario:
    """Return the scenario with its requests drawn from a seed; the same one if that is its seed."""
    if scenario.run.seed == seed:
        return scenario
    return scenario.model_copy(update={"run": scenario.run.model_copy(update={"seed": seed})})


def split_values(text: str) -> list[str]:
    """Return the parts between commas outside brackets and quotes, without surrounding blanks."""
    parts: list[str] = []
    depth, quote, start = 0, "", 0
    for place, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character in "{[(":
            depth += 1
        elif character in "}])":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(text[start:place])
            start = place + 1
    return [part.strip() for part in (*parts, text[start:])]
