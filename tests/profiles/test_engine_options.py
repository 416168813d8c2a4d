"""The options of an engine: declared once, read by everything, refused one by one and in pairs."""

from __future__ import annotations

from typing import Any

import pytest

from simserve.errors import InputError
from simserve.profiles.engine import ResolvedEngine
from simserve.profiles.engine_options import EngineOptions
from simserve.scenario.deployment_spec import EngineSpec
from simserve.validation import validate


def test_options_are_the_keys_of_a_scenario_and_of_a_resolved_engine() -> None:
    """The scenario adds only which engine, which version, what stands behind the cache and where adapters lie."""
    assert EngineSpec.model_fields.keys() - EngineOptions.model_fields.keys() == {
        "name",
        "version",
        "kv_offload",
        "kv_tiers",
        "lora_load",
    }
    assert EngineOptions.model_fields.keys() <= ResolvedEngine.model_fields.keys()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"scheduling_policy": "longest_first"},
            r"scheduling_policy: 'longest_first' must be 'fcfs', 'priority' or 'shortest_first'",
        ),
        ({"preemption_mode": "drop"}, r"preemption_mode: 'drop' must be 'recompute' or 'swap'"),
        ({"gpu_memory_utilization": 0.0}, r"gpu_memory_utilization: 0.0 must be greater than 0"),
        ({"gpu_memory_utilization": 1.1}, r"gpu_memory_utilization: 1.1 must be less than or equal to 1"),
        ({"max_num_seqs": 0}, r"max_num_seqs: 0 must be greater than or equal to 1"),
        ({"block_size": -16}, r"block_size: -16 must be"),
        ({"frontend_latency": 1.0}, r"frontend_latency: 1.0 needs a unit of time"),
        ({"batching": "dynamic"}, r"batching: 'dynamic' must be 'continuous' or 'static'"),
        ({"max_batch": 3}, r"max_batch: is not a known key"),
    ],
)
def test_values_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    """The error names the key, the value and the rule."""
    with pytest.raises(InputError, match=message):
        validate(EngineOptions, options)


def test_only_what_is_set_overrides() -> None:
    """Switches that are off and zeros are set; what is absent is not."""
    options = validate(EngineOptions, {"enforce_eager": False, "swap_space": "0 GiB", "max_num_seqs": None})

    assert options.overrides() == {"enforce_eager": False, "swap_space": 0.0}


@pytest.mark.parametrize(("value", "size"), [(2_000_000_000, 2 * 10**9), ("2 GB", 2 * 10**9), ("1.5GiB", 3 * 2**29)])
def test_kv_memory_is_a_number_of_bytes_or_says_its_unit(value: object, size: int) -> None:
    """A key that names its unit takes a bare number, as vLLM does, and a text with a unit, as every other size."""
    options = validate(EngineOptions, {"kv_cache_memory_bytes": value}, error=InputError)

    assert options.kv_cache_memory_bytes == size


@pytest.mark.parametrize("value", [2.5, 0, "0 GB", "2 apples", "two", True])
def test_kv_memory_that_is_no_size_is_refused(value: object) -> None:
    """With the key; half a byte, none, and what has no unit of bytes."""
    with pytest.raises(InputError, match="kv_cache_memory_bytes"):
        validate(EngineOptions, {"kv_cache_memory_bytes": value}, error=InputError)
