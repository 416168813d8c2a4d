"""`validate`: replay measured points through the simulator and say how far off it is. Prints nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import duckdb
import numpy as np
import pandas as pd

from simserve.errors import InvariantError, UsageError
from simserve.planner.measured.point import METRICS, MeasuredMemory, MeasuredPoint
from simserve.planner.measured.reports import read_own
from simserve.planner.measured.shipped import SHIPPED, read_shipped, read_shipped_memory
from simserve.planner.validation.prediction import Prediction, Pricer, predict, replay_key
from simserve.planner.validation.scoring import (
    SCORED,
    MemoryComparison,
    compare_memory,
    concurrency_band,
    coverage,
    coverage_rows,
    grouped,
    in_order_of_load,
    not_covered,
    overall,
    source_of,
)
from simserve.planner.workers import results_of
from simserve.profiles import catalog
from simserve.profiles.expected_errors import ErrorModel, MetricExpectation, expect, load_error_model

Progress = Callable[[int, int], None]  # Called with the number of points done and of all points.
BATCH_POINTS = 16  # Points of one task: enough for starting a task to cost nothing, few enough for progress to show.
HOME = "calibration/laboratory/command.py"
"""The laboratory's part of `simserve validate`, relative to the root of a checkout."""
REMEDY = "clone the repository and run `pip install -e .` in it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """Every point and its simulation.

    Attributes:
        predictions: In the order of the sources; if interrupted, only those that were finished.
        memory: Measured KV rooms, compared with the memory plan's, or why that was not possible.
        was_interrupted: The user stopped it.
    """

    predictions: tuple[Prediction, ...]
    memory: tuple[MemoryComparison, ...] = ()
    was_interrupted: bool = False

    @property
    def summary(self) -> dict[str, Any]:
        """Errors overall and by group; how well the intervals hold that were made without the row's own source."""
        covered = sum(each.is_covered for each in self.predictions)
        return {
            "points": len(self.predictions),
            "covered": covered,
            "fitted": sum(bool(each.point.fitted) for each in self.predictions),
            "coverage": coverage(self.predictions),
            "overall": overall(self.predictions),
            "memory": [each.summary for each in self.memory if not each.reason],
            "groups": grouped(self.predictions, "source", "engine", "hardware", "model"),
            "bands": in_order_of_load(grouped(self.predictions, "source", "engine", "concurrency")),
            "sources": grouped(self.predictions, "source"),
            "intervals": [each.model_dump() for each in coverage_rows(self.predictions, load_error_model())],
            "not_covered": not_covered(self.predictions, self.memory),
        }

    @property
    def points(self) -> pd.DataFrame:
        """One row a point: what it is, measured and predicted figures in ms and tokens/s, why it was not run.

        ``low_`` and ``high_`` hold 90 % of what servers show that have no fit of their own, ``low_50_`` and
        ``high_50_`` half of it; they are made without the row's own source.
        """
        model = load_error_model()
        return pd.DataFrame([_columns(each, model) for each in self.predictions])


def validate(
    data: str | Path | None = None,
    sources: Sequence[str] = (),
    *,
    files: Sequence[str | Path] = (),
    jobs: int = 1,
    progress: Progress | None = None,
) -> Validation:
    """Return measured points compared with the simulator's predictions.

    Ctrl-C ends it early; what was finished is in the result. See `simserve.api.validate` for the arguments and errors.
    """
    folder = None if data is None else Path(data)
    points, logs = read_own([Path(file) for file in files])
    if folder is not None or sources or not files:
        others = _measurements(folder, sources)
        points, logs = [*points, *others[0]], [*logs, *others[1]]
    memory = compare_memory(logs)
    return replace(replay(points, jobs=jobs, progress=progress), memory=memory)


def _measurements(data: Path | None, sources: Sequence[str]) -> tuple[list[MeasuredPoint], list[MeasuredMemory]]:
    """Return the points and the logged KV rooms of some sources; the laboratory reads those that do not ship."""
    others = [name for name in sources if name not in SHIPPED]
    if data is None and not others:
        return read_shipped(sources), read_shipped_memory(sources)
    flag, value = ("--source", others[0]) if data is None else ("--data", str(data))
    laboratory = load_laboratory(flag, value)
    return laboratory.read_points(data, sources), laboratory.read_memory_logs(data, sources)


def replay(points: Sequence[MeasuredPoint], *, jobs: int = 1, progress: Progress | None = None) -> Validation:
    """Return points compared with the simulator's predictions, in their order."""
    done: dict[int, Prediction] = {}
    was_interrupted = False
    try:
        for index, prediction in _predictions(points, jobs):
            done[index] = prediction
            if progress is not None:
                progress(len(done), len(points))
    except KeyboardInterrupt:
        was_interrupted = True
    if not was_interrupted and len(done) != len(points):
        raise InvariantError(f"{len(done)} predictions of {len(points)} points")
    return Validation(predictions=tuple(done[i] for i in sorted(done)), was_interrupted=was_interrupted)


def _predictions(points: Sequence[MeasuredPoint], jobs: int) -> Iterator[tuple[int, Prediction]]:
    """Yield the index of every point and its prediction, in any order."""
    if jobs <= 1:
        pricer = Pricer()
        for index, point in enumerate(points):
            yield index, predict(point, pricer)
        return
    indexed = sorted(enumerate(points), key=lambda each: replay_key(each[1]))  # equal replays in one task
    batches = [(indexed[start : start + BATCH_POINTS],) for start in range(0, len(indexed), BATCH_POINTS)]
    for _, results in results_of(_predict_batch, batches, jobs):
        yield from results


def _predict_batch(batch: Sequence[tuple[int, MeasuredPoint]]) -> list[tuple[int, Prediction]]:
    pricer = Pricer()
    return [(index, predict(point, pricer)) for index, point in batch]


def _columns(prediction: Prediction, model: ErrorModel) -> dict[str, Any]:
    point = prediction.point
    expected = None if prediction.server is None else expect(model, prediction.server, source_of(point))
    columns: dict[str, Any] = {
        **{name: getattr(point, name) for name in _POINT},
        "concurrency": concurrency_band(point),
        "shown_only": " ".join(sorted(point.shown_only)),
        "reason": prediction.reason,
    }
    for metric in METRICS:
        unit, scale = ("tok_s", 1.0) if metric == "throughput" else ("ms", 1e3)
        columns[f"measured_{metric}_{unit}"] = point.measured.get(metric, float("nan")) * scale
        predicted = prediction.predicted.get(metric, float("nan")) * scale
        columns[f"predicted_{metric}_{unit}"] = predicted
        if metric in SCORED:
            columns |= _ends(f"{metric}_{unit}", predicted, expected.metrics[metric] if expected else None)
    columns["interval_group"] = expected.group if expected else ""
    return columns


_POINT = ("source", "label", "engine", "version", "hardware", "model", "load_kind", "load")


def _ends(name: str, predicted: float, expected: MetricExpectation | None) -> dict[str, float]:
    """Return the ends of the 90 % and the 50 % interval around a figure."""
    center, halves = (
        (expected.center, {"": expected.half_90, "50_": expected.half_50})
        if expected
        else (np.nan, {"": np.nan, "50_": np.nan})
    )
    return {
        f"{end}_{level}{name}": predicted * float(np.exp(sign * half - center))
        for level, half in halves.items()
        for end, sign in (("low", -1), ("high", 1))
    }


def write_parquet(validation: Validation, file: Path) -> None:
    """Write one row a point as Parquet."""
    with duckdb.connect() as connection:
        connection.register("points_of_table", validation.points)
        target = str(file).replace("'", "''")
        connection.execute(f"COPY points_of_table TO '{target}' (FORMAT parquet, COMPRESSION zstd)")


def load_laboratory(key: str, value: object) -> ModuleType:
    """Return `calibration.laboratory.command`: ``read_points read_memory_logs write_error_model write_accuracy``.

    Raises:
        UsageError: The package was installed without a checkout.
    """
    if not catalog.bundled_file(HOME).is_file():
        raise UsageError("needs a development install of simserve", key=key, value=value, remedy=REMEDY)
    return import_module("calibration.laboratory.command")
