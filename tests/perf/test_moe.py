"""Kernels of routed experts where a GPU has no table of its own."""

from __future__ import annotations

from simserve.perf.operators import PART_NAMES
from simserve.perf.tables import price
from tests.perf.shapes import make_shape


def test_marlin_stands_in_for_mxfp4_experts_where_no_table_is() -> None:
    """An A100 decodes 16 sequences of gpt-oss-20b with the INT4 kernels: no tiles of 64 rows for one row an expert."""
    small, large = (
        price(make_shape(name, "gpt-oss-20b", quantization="mxfp4"), 64).step_times.decode_base[16]
        for name in ("h100-sxm-80gb", "a100-sxm-80gb")
    )

    assert small < large < 2.0 * small


def test_experts_of_blackwell_are_one_operator() -> None:
    """A prompt under SGLang waits for 1.7 ms a layer of Triton kernels in 16 bit, not in FP8."""
    plain, narrow = (
        price(make_shape("b200-sxm-180gb", "qwen3-30b-a3b", engine="sglang", quantization=name), 64)
        for name in ("none", "fp8")
    )
    host = PART_NAMES.index("host")

    assert plain.parts.token[host, 64] > 5.0 * narrow.parts.token[host, 64]
