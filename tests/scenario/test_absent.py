"""What the reference page says a key is where it is absent is what it is."""

from __future__ import annotations

import json
import re

import pytest

from simserve.scenario.load import from_mapping
from simserve.scenario.run import run
from simserve.scenario.schema import json_schema
from tests.scenario.builders import scenario_mapping

CROWD = ["deployment.replicas=3", "workload.num_requests=150", "workload.arrivals.rate=80"]
PREFIXES = [*CROWD, "workload.shared_prefix={num_groups: 3, tokens: 64}", "deployment.routing={policy: prefix}"]
CROWDED = [*PREFIXES, "workload.shared_prefix={num_groups: 1, tokens: 640}"]


def said(model: str, field: str) -> float:
    """Return the number that the text of a field names for its absence."""
    text = json_schema()["$defs"][model]["properties"][field]["description"]
    found = re.search(r"Absent: (\d+(?:\.\d+)?)", text)
    assert found is not None, text
    return float(found[1])


def figures(overrides: list[str]) -> str:
    """Return all figures of a run but those of further runs, without what names the scenario."""
    result = run(from_mapping(scenario_mapping(), overrides), explain=False, finishable=None)
    summary = json.loads(json.dumps(result.summary))
    del summary["simserve"]["scenario_hash"]
    return json.dumps(summary)


@pytest.mark.parametrize(
    ("model", "field", "block", "setting", "other"),
    [
        ("RoutingSpec", "cache_threshold", "deployment.routing", PREFIXES, 0.3),
        ("RoutingSpec", "imbalance_guard", "deployment.routing", CROWDED, 3.0),
        ("PricingSpec", "pue", "pricing", [], 1.1),
        ("PricingSpec", "electricity_usd_per_kwh", "pricing", [], 0.2),
        ("PricingSpec", "carbon_g_per_kwh", "pricing", [], 50),
    ],
)
def test_an_absent_key_is_what_its_text_says(
    model: str, field: str, block: str, setting: list[str], other: float
) -> None:
    """Written out it changes nothing; another value does."""
    absent = figures(setting)

    assert figures([*setting, f"{block}.{field}={said(model, field)}"]) == absent
    assert figures([*setting, f"{block}.{field}={other}"]) != absent
