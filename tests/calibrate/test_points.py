"""What is measured, and that any beginning of it is spread over all of it."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from simserve.calibrate.kernels.points import (
    COLLECTIVES,
    COPY,
    DECODE,
    FIRST,
    GEMM,
    LAUNCH,
    LAYER,
    MOE,
    PREFILL,
    plan_points,
    product_shapes,
    refinement,
)
from simserve.profiles.catalog import load_model

LLAMA = load_model("llama-3.1-8b")


@pytest.mark.parametrize("count", [0, 1, 2, 3, 10, 115])
def test_refinement_visits_everything_once(count: int) -> None:
    """No index is lost or seen twice."""
    assert sorted(refinement(count)) == list(range(count))


def test_refinement_halves_the_gaps() -> None:
    """After 2^n + 1 places no two neighbours are further apart than the whole over 2^n."""
    for places in (3, 5, 9, 17):
        seen = sorted(refinement(129)[:places])

        assert max(high - low for low, high in pairwise(seen)) <= 128 / (places - 1)


def test_products_are_those_of_the_model() -> None:
    """Fused QKV, output, gate and up, down, LM head; in every format but for the head."""
    shapes = product_shapes(LLAMA)
    points = [point for point in plan_points([LLAMA]) if point.table == GEMM]

    assert shapes == [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096)]
    for name in ("bfloat16", "fp8", "sq", "int8_wo", "int4_wo"):
        measured = {(p.sizes["n"], p.sizes["k"]) for p in points if p.sizes["gemm_dtype"] == name}
        assert measured >= set(shapes[:-1])
        assert (shapes[-1] in measured) == (name == "bfloat16")


def test_no_point_is_planned_twice() -> None:
    """Also not for two models that share shapes."""
    points = plan_points([LLAMA, load_model("llama-3-8b")])

    assert max(Counter(point.key for point in points).values()) == 1


def test_every_kind_gets_what_a_fit_needs_before_any_gets_more() -> None:
    """A short budget is spread over all kinds, and over small and large calls of each."""
    begun = [point for point in plan_points([LLAMA], formats=("bfloat16",)) if point.is_first]
    counted = Counter(point.table for point in begun)

    assert max(counted.values()) <= FIRST
    assert all(counted[table] >= 10 for table in (GEMM, PREFILL, DECODE, COPY, LAYER))
    rows = sorted(int(point.sizes["m"]) for point in begun if point.table == GEMM)
    assert rows[0] == 1
    assert rows[-1] >= 4096


def test_experts_and_collectives_are_measured_where_there_are_any() -> None:
    """A dense model on one GPU has neither."""
    dense = {point.table for point in plan_points([LLAMA])}
    sparse = {point.table for point in plan_points([load_model("qwen3-30b-a3b")], num_devices=2)}

    assert not dense & {MOE, *COLLECTIVES}
    assert sparse >= {MOE, *COLLECTIVES}


def test_graphs_are_planned_where_there_are_any() -> None:
    """A CPU launches layers and kernels one by one."""
    modes = {
        has_graphs: {p.sizes["mode"] for p in plan_points([LLAMA], has_graphs=has_graphs) if p.table in (LAYER, LAUNCH)}
        for has_graphs in (True, False)
    }

    assert modes == {True: {"eager", "graph"}, False: {"eager"}}


def test_work_of_a_point() -> None:
    """Flops and bytes by hand: a product, a decode step."""
    by_key = {point.key: point for point in plan_points([LLAMA])}
    product = next(p for p in by_key.values() if p.sizes.get("gemm_dtype") == "fp8" and p.sizes["m"] == 64)
    decode = next(
        p for p in by_key.values() if p.table == DECODE and (p.sizes["batch_size"], p.sizes["step"]) == (8, 1023)
    )

    m, n, k = (int(product.sizes[name]) for name in ("m", "n", "k"))
    assert product.flops == 2 * m * n * k
    assert product.num_bytes == n * k + m * (k + 2 * n)
    assert decode.flops == 4 * 32 * 128 * 8 * 1024
    assert decode.num_bytes == 8 * 1024 * 2 * 8 * 128 * 2 + 2 * 8 * 32 * 128 * 2
