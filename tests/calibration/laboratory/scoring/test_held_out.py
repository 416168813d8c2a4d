"""Which measured points constants were fitted to, and which they never saw."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from calibration.laboratory.pools import PoolPair
from calibration.laboratory.scoring.held_out import CONSTANTS, fitted_metrics, held_out_rows
from simserve.planner.validation.prediction import Prediction
from tests.planner.builders import make_point


def predictions(count: int, **changes: object) -> tuple[Prediction, ...]:
    """Return points that are 10 % too high."""
    point = make_point(**changes)
    return tuple(Prediction(point=point, predicted={"tpot": 1.1 * point.measured["tpot"]}) for _ in range(count))


def test_no_test_point_fitted_metrics_to() -> None:
    """In and out of sample are apart for every constant."""
    seen = [
        make_point(source=source, engine=engine, model=model, hardware=hardware, label=label)
        for source in ("inferencex_agg", "nvidia_aic_inhouse_agg", "splitwise_iterations", "apex_plus")
        for engine in ("vllm", "sglang", "tensorrt-llm")
        for model in ("llama-3.1-70b", "deepseek-v3", "llama-3.1-8b", "qwen3-32b", "minimax-m2", "gpt-oss-120b")
        for hardware in ("h100-sxm-80gb", "h200-sxm-141gb", "a100-sxm-80gb")
        for label in ("x_8TP", "x_2DP4TP_0")
    ]
    seen += [
        make_point(source="accelmark", engine="vllm", hardware=hardware, version=version)
        for hardware, version in (("a100-sxm-80gb", "0.7.3"), ("l4-24gb", "0.7.3"), ("a100-sxm-80gb", "0.20.1"))
    ]
    long_prompts = {"workload": {"prompt_tokens": {"distribution": "uniform", "min": 6554, "max": 8192}}}
    seen += [
        make_point(
            source="inferencex_agg", engine="sglang", model=model, hardware="h200-sxm-141gb", scenario=long_prompts
        )
        for model in ("deepseek-r1", "glm-5")
    ]
    seen += [
        make_point(source="splitwise_iterations", engine="vllm", model=model) for model in ("llama-2-70b", "bloom-176b")
    ]
    seen += [make_point(source=source, engine="vllm") for source in ("single_stream", "kaito")]
    seen += [
        make_point(source="trtllm_static_batch", engine="tensorrt-llm", model=model, hardware=hardware, version=version)
        for model in ("llama-2-70b", "mistral-7b", "falcon-180b")
        for hardware in ("h100-sxm-80gb", "a100-sxm-80gb")
        for version in ("0.5.0", "0.9.0")
    ]
    seen += [
        make_point(source=source, engine="llama.cpp", hardware=hardware)
        for source in ("llama_cpp", "single_stream")
        for hardware in ("a100-sxm-80gb", "h100-pcie-80gb", "rtx-4090-24gb", "a40-48gb")
    ]
    seen += [
        make_point(source="mlperf_official", load_kind="offline", hardware=hardware)
        for hardware in ("h200-nvl-141gb", "mi325x-256gb", "h100-nvl-94gb", "mi300x-192gb")
    ]
    seen += [
        make_point(source=source, label="llama-cpp-apple: a figure", engine="llama.cpp", hardware=hardware)
        for source in ("published", "llama_cpp")
        for hardware in ("m1-max-64gb", "m2-ultra-192gb", "m3-max-64gb", "m4-max-128gb")
    ]
    split = {"deployment": {"tensor_parallel_size": 4}}
    seen += [
        make_point(source="nvidia_aic_inhouse_agg", engine=engine, model=model, scenario=split)
        for engine, model in (("vllm", "qwen3-32b"), ("sglang", "llama-3.1-8b"))
    ]
    seen += [
        make_point(source=source, engine="tensorrt-llm", hardware="a100-sxm-80gb", version="0.15.0", scenario=split)
        for source in ("trtllm_perf_overview", "trtllm_online_serving", "trtllm_static_batch")
    ]
    worker: dict[str, Any] = {"workload": {"prompt_tokens": {"max": 8192}}}
    pools = (PoolPair(prefill=worker, decode=worker, num_prefills=1, num_decodes=1),)
    seen += [
        make_point(source="inferencex_disagg", engine=engine, hardware=hardware, pools=pools)
        for engine in ("sglang", "tensorrt-llm")
        for hardware in ("h100-sxm-80gb", "h200-sxm-141gb")
    ]
    for constant in CONSTANTS:
        for _, chosen, metric in constant.tests:
            assert any(chosen(point) for point in seen)
            for point in filter(chosen, seen):
                assert metric not in constant.fitted_metrics or not constant.fitted_to(point)


def test_held_out_rows_are_medians() -> None:
    """Fitted on H100, tested on H200."""
    inside = predictions(3, source="inferencex_agg", engine="vllm", model="llama-3.1-70b")
    outside = [replace(each, point=replace(each.point, hardware="h200-sxm-141gb")) for each in inside]

    row = next(each for each in held_out_rows([*inside, *outside]) if each["fitted"])

    assert (row["fitted"], row["points"], row["metric"]) == (3, 3, "tpot")
    assert row["in_sample"] == pytest.approx(0.1)
    assert row["out_of_sample"] == pytest.approx(0.1)


def test_a_metric_is_fitted_by_itself() -> None:
    """A constant that was fitted to TPOT leaves the TTFT of the same point unseen."""
    point = make_point(
        source="inferencex_agg", engine="vllm", model="llama-3.1-70b", hardware="h100-sxm-80gb", version="0.11"
    )

    assert fitted_metrics(point) == {"tpot"}
