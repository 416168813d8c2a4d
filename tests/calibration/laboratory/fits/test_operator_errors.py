"""Operators of H200 on GPUs that no fit has seen, on the published tables: the goals, and which are missed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from calibration.laboratory.fits.operator_errors import LIMITS, operator_errors
from simserve.errors import InputError

KERNELS = Path(__file__).resolve().parents[5] / "shared" / "data" / "kernels"


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    """Return the errors of vLLM's operators, fitted anew."""
    if not KERNELS.is_dir():
        pytest.skip("needs ../shared/data/kernels")
    return operator_errors(KERNELS, ["vllm"])


@pytest.mark.slow
def test_vllms_operators_carry_over_from_h200_to_h100(rows: list[dict[str, Any]]) -> None:
    """BF16 products within 6 %, FP8 10, decode attention 8, prefill 10, all-reduce 12; some 10,000 calls each."""
    on_h100 = {row["operator"]: row for row in rows if row["tested"] == "h100-sxm-80gb"}

    assert set(on_h100) == {
        "GEMM bfloat16",
        "GEMM fp8",
        "decode attention, 16-bit KV",
        "prefill attention, 16-bit KV",
        "decode attention, 8-bit KV",
        "prefill attention, 8-bit KV",
        "all-reduce",
    }
    assert {name: row["median_ape"] for name, row in on_h100.items() if row["median_ape"] >= row["limit"]} == {}
    assert all(row["points"] > 10_000 for name, row in on_h100.items() if name != "all-reduce")
    assert on_h100["GEMM bfloat16"]["limit"] == LIMITS["bfloat16"] == 0.06


@pytest.mark.slow
def test_one_scale_from_a_tenth_of_the_rows_carries_bf16_to_a100(rows: list[dict[str, Any]]) -> None:
    """Tested on the nine tenths that the scale has not seen."""
    (scaled,) = (row for row in rows if row["tested"] == "a100-sxm-80gb")

    assert scaled["median_ape"] < 0.10
    assert 1.0 < scaled["scale"] < 1.3
    assert scaled["points"] > 5_000


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    """With what to give instead."""
    with pytest.raises(InputError, match="kernels/"):
        operator_errors(tmp_path)
