"""Pricing is kept: equal deployments share a result, different ones never do."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np

from simserve.perf.tables import in_arrays, price, price_anew, step_times_of
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


def test_step_times_are_kept_longer_than_all_that_is_priced() -> None:
    """The same values, as arrays; equal deployments share them."""
    expected = in_arrays(price_anew(make_shape(max_num_seqs=6)).step_times)

    found = step_times_of(make_shape(max_num_seqs=6))

    assert step_times_of(make_shape(max_num_seqs=6)) is found
    for name in ("decode_base", "decode_slope", "token_seconds", "sequence_seconds", "decode_attention_base"):
        assert np.array_equal(getattr(found, name), getattr(expected, name))
    assert found.prefill_pair_seconds == expected.prefill_pair_seconds
