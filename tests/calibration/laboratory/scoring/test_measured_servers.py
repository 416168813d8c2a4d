"""A sample of measured servers against their measurements: what a wrong constant would move.

At few clients a step is mostly weights, starts of kernels, all-reduces and the host: every constant of an engine, a
kernel or a node is a large share of something, and a hundred servers take seconds. Eight of each other kind of
measurement hold the rest: old engines, other GPUs, static and offline batches. The data are in ../shared/data.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest

from calibration.laboratory.sources import read_points
from simserve.planner.measured.point import Metric
from simserve.planner.validation.prediction import Prediction, Pricer, predict

_DATA = Path(__file__).resolve().parents[5] / "shared" / "data"
MOST_CLIENTS = 8
SAMPLE = 8

pytestmark = pytest.mark.skipif(not _DATA.is_dir(), reason="needs the measurements in ../shared/data")


@pytest.fixture(scope="module")
def predictions() -> list[Prediction]:
    """Return every server with so few clients, replayed."""
    pricer = Pricer()
    points = [point for point in read_points(_DATA, ("inferencex_agg",)) if point.load <= MOST_CLIENTS]
    return [predict(point, pricer) for point in points]


def bias(predictions: list[Prediction], engine: str, hardware: str, model: str, metric: Metric) -> float:
    """Return the median of predicted over measured, less 1, of servers of one kind."""
    chosen = [
        each
        for each in predictions
        if (each.point.engine, each.point.hardware, each.point.model) == (engine, f"{hardware}gb", model)
    ]
    assert len(chosen) >= 4
    return median(each.predicted[metric] / each.point.measured[metric] for each in chosen) - 1.0


@pytest.mark.parametrize(
    ("engine", "hardware", "model", "tpot", "ttft"),
    [
        ("vllm", "h100-sxm-80", "llama-3.1-70b", 0.04, 0.06),
        ("vllm", "h200-sxm-141", "llama-3.1-70b", 0.04, 0.07),
        ("vllm", "h200-sxm-141", "gpt-oss-120b", 0.04, 0.06),
        ("vllm", "h100-sxm-80", "minimax-m2", 0.09, 0.09),
        ("vllm", "h200-sxm-141", "minimax-m2", 0.05, 0.07),
        ("sglang", "h200-sxm-141", "deepseek-r1", 0.1, 0.1),
        ("sglang", "h200-sxm-141", "glm-5", 0.08, 0.18),
        ("sglang", "h200-sxm-141", "qwen3.5-397b-a17b", 0.09, 0.12),
        ("tensorrt-llm", "h200-sxm-141", "deepseek-v3", 0.06, 0.16),
        ("tensorrt-llm", "h200-sxm-141", "gpt-oss-120b", 0.04, 0.06),
    ],
)
def test_first_and_further_tokens_are_neither_early_nor_late(
    predictions: list[Prediction], engine: str, hardware: str, model: str, tpot: float, ttft: float
) -> None:
    """The median server of a kind is off by no more than its kind was when this was written, and a few percent."""
    assert abs(bias(predictions, engine, hardware, model, "tpot")) <= tpot
    assert abs(bias(predictions, engine, hardware, model, "ttft")) <= ttft


@pytest.mark.parametrize(
    ("source", "engine", "hardware", "metric", "most"),
    [
        ("accelmark", "vllm", "rtx-4090-24", "throughput", 0.09),
        ("accelmark", "vllm", "v100s-32", "throughput", 0.08),
        ("apex_plus", "vllm", "h100-sxm-80", "tpot", 0.05),
        ("apex_plus", "vllm", "h100-sxm-80", "ttft", 0.05),
        ("llama_cpp", "llama.cpp", "a40-48", "tpot", 0.06),
        ("llama_cpp", "llama.cpp", "rtx-3090-24", "tpot", 0.06),
        ("llama_cpp", "llama.cpp", "rtx-4090-24", "tpot", 0.06),
        ("llama_cpp", "llama.cpp", "rtx-5000-ada-32", "tpot", 0.05),
        ("llama_cpp", "llama.cpp", "rtx-6000-ada-48", "tpot", 0.05),
        ("lmdeploy", "lmdeploy", "a100-sxm-80", "throughput", 0.05),
        ("mlperf_official", "tensorrt-llm", "h100-sxm-80", "throughput", 0.05),
        ("mlperf_official", "tensorrt-llm", "h200-nvl-141", "throughput", 0.05),
        ("mlperf_official", "vllm", "mi325x-256", "throughput", 0.06),
        ("single_stream", "llama.cpp", "a100-sxm-80", "tpot", 0.06),
        ("splitwise_iterations", "vllm", "a100-sxm-80", "tpot", 0.09),
        ("splitwise_iterations", "vllm", "h100-sxm-80", "tpot", 0.05),
        ("splitwise_iterations", "vllm", "h100-sxm-80", "ttft", 0.08),
        ("trtllm_online_serving", "tensorrt-llm", "h100-sxm-80", "tpot", 0.05),
        ("trtllm_perf_overview", "tensorrt-llm", "a100-sxm-80", "throughput", 0.09),
        ("trtllm_perf_overview", "tensorrt-llm", "h100-sxm-80", "throughput", 0.05),
        ("trtllm_static_batch", "tensorrt-llm", "a100-sxm-80", "throughput", 0.06),
        ("vllm_itl", "vllm", "h100-sxm-80", "tpot", 0.07),
    ],
)
def test_a_sample_of_a_kind_is_neither_too_fast_nor_too_slow(
    source: str, engine: str, hardware: str, metric: Metric, most: float
) -> None:
    """Every so many-th of the measurements of a kind, eight of them."""
    of_kind = [
        point
        for point in read_points(_DATA, (source,))
        if (point.engine, point.hardware) == (engine, f"{hardware}gb") and not point.reason
    ]
    pricer = Pricer()
    sample = [predict(point, pricer) for point in of_kind[:: max(1, len(of_kind) // SAMPLE)][:SAMPLE]]
    ratios = [each.predicted[metric] / each.point.measured[metric] for each in sample if metric in each.predicted]

    assert len(ratios) >= SAMPLE // 2
    assert abs(median(ratios) - 1.0) <= most
