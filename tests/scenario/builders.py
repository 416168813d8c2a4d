"""Small scenarios: every test states only what it is about."""

from __future__ import annotations

from typing import Any

from simserve.scenario.load import Overrides, from_mapping
from simserve.scenario.schema import Scenario


def scenario_mapping(**changes: Any) -> dict[str, Any]:
    """Return a scenario of 20 requests that runs in milliseconds, with top-level keys replaced."""
    return {
        "name": "small",
        "model": "llama-3.2-1b",
        "deployment": {"hardware": "h100-sxm-80gb", "engine": {"name": "vllm", "version": "0.12"}},
        "workload": {
            "arrivals": {"process": "poisson", "rate": 5.0},
            "prompt_tokens": {"distribution": "fixed", "value": 100},
            "output_tokens": {"distribution": "fixed", "value": 20},
            "num_requests": 20,
        },
        **changes,
    }


def make_scenario(overrides: Overrides = (), **changes: Any) -> Scenario:
    """Return the small scenario, with top-level keys replaced, then overridden."""
    return from_mapping(scenario_mapping(**changes), overrides)
