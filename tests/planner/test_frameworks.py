"""Frameworks on one workload: their order, the rough size of the ratios, and what is said where they differ."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from simserve.errors import SimserveError
from simserve.planner.frameworks import compare_frameworks, load_publications, ratio_lines, verdict


@cache
def compared(*overrides: str) -> dict[str, Any]:
    """Return the comparison on fewer requests, simulated once."""
    return compare_frameworks(overrides=("workload.num_requests=200", *overrides))


def rate(name: str) -> float:
    """Return the output tokens/s of a framework."""
    return next(each["output_throughput"] for each in compared()["frameworks"] if each["name"] == name)


def ratio(of: str, over: str, *overrides: str) -> dict[str, Any]:
    """Return a ratio of the comparison."""
    return next(each for each in compared(*overrides)["ratios"] if (each["of"], each["over"]) == (of, over))


def test_paged_beats_reserved_beats_static() -> None:
    """The order of the vLLM paper: HF below FasterTransformer, below Orca, below vLLM."""
    assert rate("transformers") < rate("fastertransformer") < rate("orca") < rate("vllm")
    assert rate("llama.cpp") < rate("vllm")
    assert max(rate("sglang"), rate("tensorrt-llm")) > rate("vllm")


def test_ratios_lie_in_or_near_the_published_ranges() -> None:
    """Within them over Orca, the TGI of the time and by TensorRT-LLM; over HF below, within a factor of two."""
    assert ratio("vllm", "orca")["verdict"] == "within"
    assert ratio("vllm", "tgi-0.8")["verdict"] == "within"
    assert 7 < ratio("vllm", "transformers")["simulated"] < 24
    assert 1.0 < ratio("tensorrt-llm", "vllm")["simulated"] < 1.4


def test_with_memory_to_spare_the_others_are_met() -> None:
    """On 80 GB vLLM is 14 to 24 times HF; TensorRT-LLM gains on its host; Orca's reservations hurt less."""
    larger = "deployment.hardware=a100-sxm-80gb"

    assert ratio("vllm", "transformers", larger)["simulated"] > ratio("vllm", "transformers")["simulated"]
    assert ratio("tensorrt-llm", "vllm")["verdict"] == "within"
    assert 1.2 < ratio("tensorrt-llm", "vllm", larger)["simulated"] < 1.6
    assert ratio("vllm", "orca", larger)["simulated"] < ratio("vllm", "orca")["simulated"]


def test_each_framework_names_its_formats() -> None:
    """The same 16-bit weights in all of them, as stored."""
    formats = [each["formats"] for each in compared()["frameworks"]]

    assert {(each["weights"], each["weights_source"]) for each in formats} == {("fp16", "as stored")}


def test_a_ratio_is_tokens_a_step_times_seconds_of_a_step() -> None:
    """The explanation multiplies up to the figure it explains; all requests are there at once, so no step waits."""
    for each in compared()["ratios"]:
        assert each["tokens_per_step_ratio"] * each["step_time_ratio"] == pytest.approx(each["simulated"], rel=0.05)


def test_what_differs_is_said_where_a_ratio_lies_outside() -> None:
    """And only there; the source always."""
    paged = ratio("vllm", "tgi")

    assert paged["verdict"] == "below"
    assert any("before it had paged attention" in line for line in ratio_lines(paged))
    assert not any("other conditions" in line for line in ratio_lines(ratio("vllm", "orca")))
    assert "PagedAttention" in ratio_lines(ratio("vllm", "orca"))[-1]


def test_verdicts() -> None:
    """The ends belong to the range."""
    assert [verdict(value, 2, 4) for value in (1.9, 2, 4, 4.1)] == ["below", "within", "within", "above"]


@pytest.mark.slow
def test_published_throughputs_are_priced() -> None:
    """800, 3,000 and 8,000 tok/s at 2.50, 20 and 32 dollars an hour are $0.87, $1.85 and $1.11 a million."""
    dollars = [round(each["published_usd_per_million_tokens"], 2) for each in compared()["throughputs"]]

    assert dollars == [0.87, 1.85, 1.11]
    assert [each["published_tokens_per_second"] for each in compared()["throughputs"]] == [800, 3000, 8000]
    assert all(
        (each["simulated_replicas"] - 1) * rate("vllm") < each["published_tokens_per_second"]
        for each in compared()["throughputs"]
    )


def test_every_ratio_names_frameworks_of_the_table() -> None:
    """And every framework an engine profile that resolves, by running."""
    known = load_publications()
    names = {each.name for each in known.frameworks}

    assert all({each.of, each.over} <= names for each in known.ratios)
    assert {each["engine"] for each in compared()["frameworks"]} == {
        "transformers", "fastertransformer", "orca", "tgi", "vllm", "sglang", "tensorrt-llm", "llama.cpp",
    }  # fmt: skip


def test_a_bad_override_is_refused() -> None:
    """As in every command."""
    with pytest.raises(SimserveError, match="hardware"):
        compare_frameworks(overrides=["deployment.hardware=h100-typo"])
