"""Pricing is kept: equal deployments share a result, different ones never do."""

from __future__ import annotations

from unittest.mock import patch

from simserve.perf.tables import price, price_anew
from tests.perf.shapes import make_hardware, make_shape


def test_an_equal_deployment_is_priced_once() -> None:
    """Also where its profiles were loaded anew."""
    first = price(make_shape(max_num_seqs=7))

    with patch("simserve.perf.tables.price_anew", side_effect=AssertionError("priced again")):
        assert price(make_shape(max_num_seqs=7)) is first


def test_any_other_value_is_priced_anew() -> None:
    """A limit, a format, a stage, or a figure deep in a profile."""
    base = price(make_shape(max_num_seqs=8))
    faster = make_hardware(memory={"bandwidth": 3.36e12})
    others = [
        make_shape(max_num_seqs=9),
        make_shape(max_num_seqs=8, quantization="fp8"),
        make_shape(max_num_seqs=8, pipeline_parallel_size=2),
        make_shape(faster, max_num_seqs=8),
    ]

    assert all(price(other).step_times != base.step_times for other in others)


def test_it_is_what_pricing_returns() -> None:
    """Value by value."""
    shape = make_shape(max_num_seqs=5)

    assert price(shape).step_times == price_anew(shape).step_times
