"""Servers at low load against their measurements: what a wrong constant of an engine, a kernel or a node would move.

Few clients, so that a step is mostly weights, starts of kernels, all-reduces and the host: every constant is a large
share of something here, and a hundred servers take seconds. The figures are InferenceX's (../shared/data), means over
closed loops of 4 and 8 clients.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest

from simserve.planner.measured.point import Metric
from simserve.planner.measured.sources import read_points
from simserve.planner.validation.prediction import Prediction, Pricer, predict

_DATA = Path(__file__).resolve().parents[4] / "shared" / "data"
MOST_CLIENTS = 8

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
