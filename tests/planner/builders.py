"""Small measured points and files: rows written by hand in the documented columns."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simserve.planner.measured.point import MeasuredPoint, Metric
from simserve.planner.validation.prediction import Prediction
from tests.scenario.builders import scenario_mapping


def write_csv(folder: Path, name: str, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write rows whose columns are all of theirs together, and return the file."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    path = folder / name
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
    return path


def agg_row(**changes: Any) -> dict[str, Any]:
    """Return a closed-loop row of vLLM, with columns replaced."""
    return {
        "commit_or_date": "measured 2025-10-29; x",
        "hardware": "h100_sxm",
        "gpus": 2,
        "framework": "vllm",
        "version": "",
        "model": "meta-llama/Llama-3.1-70B",
        "precision": "fp8",
        "tp": 2,
        "pp": 1,
        "ep": "",
        "dp": 1,
        "isl": 100,
        "osl": 20,
        "load_type": "concurrency",
        "load_value": 4,
        "ttft_ms": 50.0,
        "tpot_ms": 20.0,
        "notes": "id=x; gemm=fp8",
        **changes,
    }


def make_point(**changes: Any) -> MeasuredPoint:
    """Return a point that runs in milliseconds, with fields replaced."""
    fields: dict[str, Any] = {
        "source": "made_up",
        "label": "made up",
        "engine": "vllm",
        "version": "0.12",
        "hardware": "h100-sxm-80gb",
        "model": "llama-3.2-1b",
        "load_kind": "concurrency",
        "load": 4.0,
        "scenario": scenario_mapping(),
        "measured": {"tpot": 0.01},
    }
    return MeasuredPoint(**{**fields, **changes})


def make_prediction(predicted: Mapping[Metric, float], reason: str = "", **changes: Any) -> Prediction:
    """Return a prediction of the small point."""
    return Prediction(point=make_point(**changes), predicted=predicted, reason=reason)
