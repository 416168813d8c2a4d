"""What a simulation is made of as plain JSON values, and back: known records, arrays, histograms; nothing else.

Only the classes listed here are ever made from what a file says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import Any

import numpy as np

from simserve.engine.histogram import Histogram
from simserve.errors import InputError

_HOMES: Mapping[str, str] = {
    "RunTotals": "simserve.sim.recorder",
    "TimeSeries": "simserve.sim.series",
    "SpeculationTotals": "simserve.sim.drafts",
    "OffloadTotals": "simserve.sim.offload",
    "LoraTotals": "simserve.sim.loras",
    "TierTotals": "simserve.sim.offload",
    "PoolOutcome": "simserve.sim.pools",
    "StreamTotals": "simserve.sim.streaming",
    "FrontTotals": "simserve.sim.gateway",
    "FleetTimeline": "simserve.sim.timeline",
    "EncoderLives": "simserve.sim.encoders",
    "SLO": "simserve.metrics.slo",
}
"""The records that are known, and the module of each: most results hold two of them, and import no more."""
_KIND = "kind"
_MOMENTS = ("count", "total", "total_squares", "minimum", "maximum")


def encoded(value: Any) -> Any:
    """Return a value as JSON values; a record carries its kind.

    Raises:
        TypeError: It is of a kind that is not listed.
    """
    if isinstance(value, Histogram):
        filled = np.flatnonzero(value.counts)
        moments = {name: float(getattr(value, name)) for name in _MOMENTS}
        return {_KIND: "Histogram", "bins": filled.tolist(), "counts": value.counts[filled].tolist(), **moments}
    if isinstance(value, np.ndarray):
        return {_KIND: "array", "dtype": value.dtype.str, "shape": list(value.shape), "cells": value.ravel().tolist()}
    if isinstance(value, np.generic):
        return value.item()
    if is_dataclass(value) and not isinstance(value, type):
        name = type(value).__name__
        if _HOMES.get(name) != type(value).__module__:
            raise TypeError(f"{name} has no place in the metadata of a result")
        return {_KIND: name, **{field: encoded(getattr(value, field)) for field in stored_fields(value)}}
    if isinstance(value, Mapping):
        return {str(key): encoded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [encoded(each) for each in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{type(value).__name__} has no place in the metadata of a result")


def stored_fields(record: Any) -> list[str]:
    """Return the fields of a record that its metadata do not keep out of files."""
    return [each.name for each in fields(record) if each.metadata.get("is_stored", True)]


def decoded(value: Any) -> Any:
    """Return what `encoded` was given; lists come back as tuples.

    Raises:
        InputError: The file was written by a version whose records are others.
    """
    if isinstance(value, list):
        return tuple(decoded(each) for each in value)
    if not isinstance(value, dict):
        return value
    kind = value.get(_KIND)
    if kind is None:
        return {key: decoded(each) for key, each in value.items()}
    try:
        if kind == "array":
            return np.array(value["cells"], dtype=np.dtype(value["dtype"])).reshape(value["shape"])
        if kind == "Histogram":
            return _histogram(value)
        return getattr(import_module(_HOMES[kind]), kind)(
            **{name: decoded(each) for name, each in value.items() if name != _KIND}
        )
    except (KeyError, TypeError, ValueError):
        raise InputError(
            f"holds a {kind} of another version", file="requests.parquet", remedy="run the scenario again"
        ) from None


def _histogram(stored: Mapping[str, Any]) -> Histogram:
    histogram = Histogram()
    histogram.counts[np.array(stored["bins"], dtype=np.int64)] = stored["counts"]
    for name in _MOMENTS:
        setattr(histogram, name, stored[name])
    return histogram
