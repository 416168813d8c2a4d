"""The knobs of the engine that a report names."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from simserve.report.knobs import important_knobs


def _names(resolved: dict[str, Any]) -> list[str]:
    """Return the knobs named of an engine as resolved."""
    result: Any = SimpleNamespace(summary={"simserve": {"engine_resolved": resolved}})
    return [knob.name for knob in important_knobs(result)]


@pytest.mark.parametrize("batching", ["continuous", "static"])
def test_whatever_the_scenario_sets_is_named_once(batching: str) -> None:
    """Also an option that no list of usual ones has; a default of it is not."""
    usual = {"batching": batching, "block_size": 16, "max_model_len": 4096}
    sources = {"max_loras": "scenario", "max_model_len": "scenario", "max_lora_rank": "vllm 0.20 default"}

    names = _names({**usual, "max_loras": 4, "max_lora_rank": 16, "sources": sources, "notes": []})

    assert sorted(names) == ["batching", "block_size", "max_loras", "max_model_len"]
