"""How wrong the simulator was on measured servers like this one: the committed table, and looking a class up in it.

Knows classes and their errors; neither how they were measured nor what a run is.
"""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import Field

from simserve.documents import read_mapping
from simserve.errors import ProfileError
from simserve.profiles import catalog
from simserve.profiles.engine_profile import load_engine, version_key
from simserve.validation import FrozenModel, validate

UNVALIDATED = "unvalidated"
"""What a result says whose class no measurement covers."""

FILE = "calibration/expected_errors.json"

ANY_LOAD = "any"
"""The band of a class over every load."""

FEWEST_POINTS = 8
"""Points below which a class says nothing: a 90th percentile of fewer is one row."""

CONCURRENCY_BANDS = (4, 16, 64, 256)
"""Upper ends of the bands of concurrency, both ends included."""


class ErrorShares(FrozenModel):
    """Absolute relative errors of a metric, shares: 0.05 is 5 %."""

    p50: float = Field(ge=0)
    """Median."""
    p90: float = Field(ge=0)
    """90th percentile."""
    points: int = Field(ge=1)
    """Measured servers behind it."""


class ErrorClass(FrozenModel):
    """Errors on the measured servers of one class."""

    engine: str
    """Engine and generation: ``vllm from 0.8``."""
    hardware: str
    """GPU, as the catalogue names it."""
    has_experts: bool
    """Whether the models are mixtures of experts."""
    concurrency: str
    """Band of requests in flight, or ``any``."""
    errors: dict[str, ErrorShares]
    """Metric (``tpot``, ``ttft``, ``throughput``) -> errors."""
    sources: tuple[str, ...]
    """Where the points come from."""


class ExpectedErrors(FrozenModel):
    """The table that ships."""

    made_by: str
    """The command."""
    simserve: str
    """Version that was validated."""
    date: str
    """When."""
    left_out: str
    """Which measured points do not count, and why."""
    classes: tuple[ErrorClass, ...]
    """Every class with enough points."""


def band_of(concurrency: float) -> str:
    """Return the band of a number of requests in flight: ``5-16``, ``>256``."""
    lowest = 1
    for highest in CONCURRENCY_BANDS:
        if concurrency <= highest:
            return f"{lowest}-{highest}"
        lowest = highest + 1
    return f">{CONCURRENCY_BANDS[-1]}"


def generation_of(engine: str, version: str) -> str:
    """Return engine and generation: ``vllm from 0.8``, ``vllm before 0.8``, ``tgi``."""
    boundary = load_engine(engine).new_from
    if boundary is None:
        return engine
    side = "from" if version_key(version) >= version_key(boundary) else "before"
    return f"{engine} {side} {boundary}"


@cache
def load_expected_errors(file: Path | None = None) -> ExpectedErrors | None:
    """Return the table, or None where none was made.

    Raises:
        ProfileError: The file is invalid.
    """
    path = file or catalog.bundled_file(FILE)
    if not path.is_file():
        return None
    return validate(ExpectedErrors, read_mapping(path, ProfileError), file=path, error=ProfileError)


def expected_error(
    table: ExpectedErrors | None, *, engine: str, hardware: str, has_experts: bool, concurrency: float
) -> dict[str, Any] | str:
    """Return what to expect of a run: errors by metric and where they are from, or ``unvalidated``.

    The band of the load counts; for a metric without enough points there, every load of the class.

    Args:
        table: The table that ships.
        engine: Engine and generation.
        hardware: GPU, as the catalogue names it; another GPU's errors are never taken.
        has_experts: Whether the model is a mixture of experts.
        concurrency: Requests in flight a replica.
    """
    classes = table.classes if table is not None else ()
    here = {
        each.concurrency: each
        for each in classes
        if (each.engine, each.hardware, each.has_experts) == (engine, hardware, has_experts)
    }
    band = ANY_LOAD if math.isnan(concurrency) else band_of(concurrency)
    found: dict[str, Any] = {}
    for name in (ANY_LOAD, band):
        for metric, errors in here[name].errors.items() if name in here else ():
            found[metric] = {**errors.model_dump(), "concurrency": name}
    if table is None or not found:
        return UNVALIDATED
    models = "mixtures of experts" if has_experts else "dense models"
    return {
        **{metric: found[metric] for metric in ("tpot", "ttft", "throughput") if metric in found},
        "class": f"{models} on {hardware} under {engine}",
        "source": f"simserve validate, {table.date}: {', '.join(here[ANY_LOAD].sources)}",
    }
