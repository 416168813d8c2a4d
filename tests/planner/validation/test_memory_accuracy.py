"""Measured KV rooms beside the plan's: which differences are small enough."""

from __future__ import annotations

import pytest

from simserve.planner.measured.point import MeasuredMemory
from simserve.planner.validation.memory_accuracy import MemoryComparison


@pytest.mark.parametrize(
    ("measured", "predicted", "is_within"),
    [(10.0, 10.9, True), (10.0, 11.1, False), (40.0, 40.9, True), (40.0, 38.7, False)],
)
def test_what_counts_as_within(measured: float, predicted: float, is_within: bool) -> None:
    """1 % of a GPU of 100; 3 % of the KV too where that is over a third."""
    log = MeasuredMemory(
        label="a row", engine="vllm", version="0.12.0", hardware="h100-sxm-80gb", model="llama-3.1-8b", scenario={}
    )

    compared = MemoryComparison(
        measured=log, measured_bytes=measured, predicted_bytes=predicted, gpu_bytes=100.0 if is_within else 99.0
    )

    assert compared.is_within is is_within
