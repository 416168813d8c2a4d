"""The options of an engine: declared once, read by everything, refused one by one and in pairs."""

from __future__ import annotations

from typing import Any

import pytest

from simserve.errors import InputError
from simserve.profiles.engine import resolve_engine
from simserve.profiles.engine_options import EngineOptions
from simserve.profiles.engine_profile import load_engine
from simserve.profiles.resolved_engine import ResolvedEngine
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


def sampled(version: str, *, compute_capability: str | None = "9.0", **options: Any) -> ResolvedEngine:
    """Return vLLM as a version of it resolves on an H100, or on a GPU of another maker."""
    return resolve_engine(
        load_engine("vllm"),
        version=version,
        gpu_memory_bytes=85e9,
        gpu_name="h100-sxm-80gb",
        model_max_len=8192,
        options=EngineOptions(**options),
        compute_capability=compute_capability,
    )


def test_flashinfer_samples_where_the_official_image_of_the_version_has_it() -> None:
    """0.9.0 and 0.11.1 to 0.16 sort unless told otherwise; what a logit does not take is the KV cache's."""
    with_it, sorting = ("0.8.0", "0.8.5", "0.9.1", "0.10.2", "0.11.0"), ("0.9.0", "0.11.1", "0.12", "0.16")

    assert {sampled(version).activation_logit_bytes for version in with_it} == {13.5}
    assert {sampled(version).activation_logit_bytes for version in sorting} == {38.3}
    assert sampled("0.11.0", flashinfer_sampler=False).activation_logit_bytes == 38.3
    assert sampled("0.12", flashinfer_sampler=True).activation_logit_bytes == 13.5
    assert sampled("0.11.0", compute_capability=None).activation_logit_bytes == 38.3


def test_flashinfer_sorts_nothing_for_clients_with_top_p() -> None:
    """vLLM pull request 11394: 47.2 of 47.4 requests/s with its kernels, 40.2 with PyTorch's."""
    plain, fused, greedy = (
        sampled("0.12", sampling=sampling, flashinfer_sampler=fused).host_seconds_per_request
        for sampling, fused in (("nucleus", False), ("nucleus", True), ("greedy", False))
    )

    assert plain - fused == pytest.approx(50e-6)
    assert fused == greedy
