"""The table of errors to expect, from a validation: which points count, and in which class. Replays nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from simserve import __version__
from simserve.errors import SimserveError
from simserve.planner.measured.point import METRICS, MeasuredPoint
from simserve.planner.validation.held_out import was_fitted
from simserve.planner.validation.prediction import Prediction
from simserve.planner.validation.scoring import concurrency_band, relative_error
from simserve.planner.validation.validate import Validation
from simserve.profiles.expected_errors import (
    ANY_LOAD,
    CONCURRENCY_BANDS,
    FEWEST_POINTS,
    ErrorClass,
    ErrorShares,
    ExpectedErrors,
    band_of,
    generation_of,
)
from simserve.profiles.model import load_model

_UNSTATED = ("mlperf",)
"""Sources whose logs do not say how the model was laid out over the GPUs, or how many seats there were."""

_COPIES = ("published",)
"""Sources whose figures stand in another one too, where it counts whether a constant was fitted to them."""

_POOLED = ("inferencex_disagg",)
"""Sources of separate prefill and decode pools, which say nothing of servers that do both."""

_LEFT_OUT = (
    "figures that a constant was fitted to (calibration/ACCURACY.md, out of sample), unless the errors are larger with "
    "them; figures that their source says carry artefacts; MLPerf, whose logs do not state the layout"
)

_BANDS = (*(band_of(highest) for highest in CONCURRENCY_BANDS), band_of(float("inf")))


def expected_errors(validation: Validation, date: str) -> ExpectedErrors:
    """Return the table of a validation.

    Args:
        validation: Of every source that is there.
        date: When it was made.
    """
    members: dict[tuple[str, str, bool], list[Prediction]] = {}
    for each in validation.predictions:
        if each.is_covered and each.point.source not in (*_UNSTATED, *_COPIES, *_POOLED):
            members.setdefault(_class_of(each.point), []).append(each)
    classes = []
    for (engine, hardware, has_experts), group in sorted(members.items()):
        for band in (ANY_LOAD, *_BANDS):
            inside = [each for each in group if band in (ANY_LOAD, concurrency_band(each.point))]
            if errors := _errors(inside):
                classes.append(
                    ErrorClass(
                        engine=engine,
                        hardware=hardware,
                        has_experts=has_experts,
                        concurrency=band,
                        errors=errors,
                        sources=tuple(sorted({each.point.source for each in inside})),
                    )
                )
    return ExpectedErrors(
        made_by="simserve validate --data DIR --expected-errors FILE --date DATE",
        simserve=__version__,
        date=date,
        left_out=_LEFT_OUT,
        classes=tuple(classes),
    )


def write_expected_errors(validation: Validation, date: str, file: Path) -> None:
    """Write the table as JSON."""
    table = expected_errors(validation, date).model_dump(mode="json")
    file.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


def _class_of(point: MeasuredPoint) -> tuple[str, str, bool]:
    engine: dict[str, Any] = point.scenario["deployment"].get("engine", {})
    version = str(engine.get("version") or point.version)
    try:
        has_experts = load_model(point.model).moe is not None
    except SimserveError:
        has_experts = False
    return generation_of(point.engine, version), point.hardware, has_experts


def _errors(group: Sequence[Prediction]) -> dict[str, ErrorShares]:
    """Return the errors of the figures that nothing was fitted to; where all figures together are worse, theirs."""
    shares: dict[str, ErrorShares] = {}
    for metric in METRICS:
        scored = [each for each in group if metric in each.predicted and metric not in each.point.shown_only]
        errors = {id(each): abs(relative_error(each.predicted[metric], each.point.measured[metric])) for each in scored}
        unseen = [errors[id(each)] for each in scored if not was_fitted(each.point, metric)]
        if metric != "e2e" and len(unseen) >= FEWEST_POINTS:
            p50, p90 = (
                round(max(float(np.percentile(some, share)) for some in (unseen, list(errors.values()))), 4)
                for share in (50, 90)
            )
            shares[metric] = ErrorShares(p50=p50, p90=p90, points=len(unseen))
    return shares
