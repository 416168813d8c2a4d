"""Figures that may be undefined."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from simserve.metrics.latency import rows_where
from simserve.metrics.summary import in_json, or_null
from simserve.metrics.thresholds import at, figure_at
from simserve.metrics.throughput import ratio


def test_a_ratio_to_nothing_is_undefined() -> None:
    """Never 0, which would read as a measurement."""
    assert ratio(3, 2) == 1.5
    assert math.isnan(ratio(3, 0))


def test_where_all_count_nothing_is_copied() -> None:
    """A slice shows the rows themselves; else the mask selects."""
    values, mask = np.arange(3.0), np.array([True, False, True])

    assert np.shares_memory(values[rows_where(np.ones(3, dtype=np.bool_))], values)
    assert values[rows_where(mask)].tolist() == [0.0, 2.0]


def test_what_is_undefined_leaves_as_null() -> None:
    """JSON knows neither NaN nor infinity; numpy's scalars and tuples become plain."""
    value = {1: (np.float64("nan"), np.int64(3)), "b": [np.bool_(True), math.inf, "text", None, 2.5]}

    assert in_json(value) == {"1": [None, 3], "b": [True, None, "text", None, 2.5]}
    assert json.dumps(in_json(value), allow_nan=False)
    assert (or_null(math.nan), or_null(1.5)) == (None, 1.5)


def test_a_key_is_read_by_its_dots() -> None:
    """Null stays None; a key that is not there is the caller's mistake."""
    summary = {"a": {"b": 2, "c": None}}

    assert at(summary, "a") == {"b": 2, "c": None}
    assert (figure_at(summary, "a.b"), figure_at(summary, "a.c")) == (2.0, None)
    with pytest.raises(KeyError):
        at(summary, "a.d")
