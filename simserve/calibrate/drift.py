"""The drift gate: a profile against newly measured kernels or benchmarks, each comparison within a tolerance.

Kernels are compared by operator class: the median of measured over predicted across the calls of a class. Benchmarks
are compared figure by figure with the simulation of their requests. Faster than predicted fails as slower does, as the
profile no longer describes the hardware either way; with ``may_be_faster`` only slower benchmarks fail.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simserve.calibrate.kernel_prediction import PREDICTORS, Columns, predicted, without_cache
from simserve.calibrate.serving import gated_figures
from simserve.calibrate.simulated import ServingModel, replay_of
from simserve.errors import InputError
from simserve.perf.measured import COLUMNS, find_tables, read_columns
from simserve.profiles.hardware import HardwareProfile
from simserve.scenario.run import calibration_of
from simserve.scenario.schema import Scenario
from simserve.workload.benchmarks.result import BenchResult

CLASSES = {
    "gemm_perf": "products",
    "context_attention_perf": "prefill attention",
    "generation_attention_perf": "decode attention",
    "moe_perf": "routed experts",
    "custom_allreduce_perf": "all-reduce",
}
"""Table -> name of its operator class."""

COLD_RUN_FILE = "provenance.json"
"""Marks tables of ``simserve calibrate kernels``, where no call finds the data of the one before in a cache;
AIConfigurator repeats calls on the same data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One comparison."""

    name: str  # Operator class, or run and figure.
    expected: float  # The profile's value: seconds of the call with the median ratio, or tokens or requests a second.
    found: float  # The measured value, in the same unit.
    count: int  # Calls in the median; 1 for a figure.
    tolerance: float  # How far the ratio may be from 1, either way.
    unit: str  # ``s`` or ``/s``.
    ratio: float
    """Measured over predicted: for a class the median of its calls; of two middle ones the farther from 1."""
    may_be_faster: bool = False  # Whether any speed above the predicted one passes.

    @property
    def change(self) -> float:
        """Measured over predicted minus 1."""
        return self.ratio - 1.0

    @property
    def is_within(self) -> bool:
        """Whether it has not moved beyond the tolerance, either way or, where it may be faster, to the slower side."""
        return self.verdict == "ok" or (self.may_be_faster and self.verdict == "faster")

    @property
    def verdict(self) -> str:
        """``ok``, or which way it has moved."""
        if max(self.ratio, 1.0 / self.ratio) <= 1.0 + self.tolerance:
            return "ok"
        is_slower = (self.ratio > 1.0) == (self.unit == "s")
        return "slower" if is_slower else "faster"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """The result of a check."""

    profile: str  # What was checked.
    against: Sequence[str]  # What it was checked against.
    comparisons: Sequence[Comparison]  # All comparisons.
    left_out: Sequence[str]  # What could not be compared, and why.

    @property
    def passed(self) -> bool:
        """Whether nothing has moved."""
        return all(each.is_within for each in self.comparisons)

    @property
    def moved(self) -> list[Comparison]:
        """What has moved, furthest first."""
        return sorted(
            (each for each in self.comparisons if not each.is_within), key=lambda each: -abs(np.log(each.ratio))
        )

    def as_mapping(self) -> dict[str, Any]:
        """Return the check as plain values."""
        return {
            "profile": self.profile,
            "against": list(self.against),
            "passed": self.passed,
            "compared": [{name: getattr(each, name) for name in _SHOWN} for each in self.comparisons],
            "left_out": list(self.left_out),
        }


_SHOWN = ("name", "expected", "found", "ratio", "count", "unit", "tolerance", "verdict")


def check_kernels(hardware: HardwareProfile, folder: Path, engine: str, tolerance: float, name: str) -> Drift:
    """Return a hardware profile compared with the kernels of a run.

    Args:
        folder: Operator tables, as ``simserve calibrate kernels`` writes them, in AIConfigurator's layout, or as
            ``.csv`` files in one folder.
        engine: Whose kernels, where the profile or the folder has several.
        tolerance: Share.

    Raises:
        InputError: The folder holds no operator table, or none that the profile predicts.
    """
    comparisons, left_out = [], []
    tables = read_tables(folder, engine)
    if (folder / COLD_RUN_FILE).is_file():
        hardware = without_cache(hardware)
    for table, columns in tables.items():
        kinds, seconds = _kinds(table, columns), columns["seconds"]
        expected = predicted(table, columns, hardware, engine)
        for kind in dict.fromkeys(kinds):
            chosen = np.array([each == kind for each in kinds]) & np.isfinite(expected)
            if not chosen.any():
                left_out.append(f"{kind}: the profile says nothing of these calls")
                continue
            ratios = seconds[chosen] / expected[chosen]
            order = np.argsort(ratios, kind="stable")
            # Of two in the middle, the one that has moved more.
            middle = int(
                max(order[(len(order) - 1) // 2], order[len(order) // 2], key=lambda call: abs(ratios[call] - 1))
            )
            comparisons.append(
                Comparison(
                    name=kind,
                    expected=float(expected[chosen][middle]),
                    found=float(seconds[chosen][middle]),
                    count=int(chosen.sum()),
                    tolerance=tolerance,
                    unit="s",
                    ratio=float(ratios[middle]),
                )
            )
    others = sorted({path.stem for path in folder.rglob("*_perf.parquet")} - set(tables) - set(PREDICTORS))
    left_out += [f"{each.removesuffix('_perf')}: a profile says nothing of single calls of it" for each in others]
    if not comparisons:
        raise InputError("holds no call that the profile says anything of", file=folder, key="--against")
    return Drift(profile=name, against=[str(folder)], comparisons=comparisons, left_out=left_out)


def _kinds(table: str, columns: Columns) -> list[str]:
    """Return the operator class of every row: that of the table and, where formats differ, of the format."""
    name = CLASSES[table]
    if table in ("gemm_perf", "moe_perf"):
        formats = columns["gemm_dtype" if table == "gemm_perf" else "moe_dtype"]
        return [f"{name}, {each}" for each in formats.tolist()]
    if table.endswith("attention_perf"):
        return [f"{name}, {each} KV" for each in columns["kv_cache_dtype"].tolist()]
    return [name] * len(columns["seconds"])


def read_tables(folder: Path, engine: str) -> dict[str, Columns]:
    """Return the operator tables of a folder that a profile can predict.

    Raises:
        InputError: There is none, or one lacks a column.
    """
    files = {name: folder / f"{name}.csv" for name in PREDICTORS if (folder / f"{name}.csv").is_file()}
    if files:
        return {name: _read_csv(file, name) for name, file in files.items()}
    try:
        found = find_tables(folder, engine)
    except InputError as failure:
        remedy = failure.remedy
        raise InputError(failure.rule, key="--against", value=str(folder), remedy=remedy) from None
    columns = {name: read_columns(found, name) for name in found.files}
    return {name: each for name, each in columns.items() if each is not None and name in PREDICTORS}


def _read_csv(file: Path, table: str) -> Columns:
    with file.open(encoding="utf-8", newline="") as text:
        rows = list(csv.DictReader(text))
    wanted = (*COLUMNS[table], "latency")
    missing = [name for name in wanted if not rows or rows[0].get(name) is None]
    if missing:
        raise InputError(f"lacks the column {missing[0]}, or has no row", file=file)
    columns = {name: _column([row[name] for row in rows]) for name in wanted}
    latency = columns.pop("latency")
    if latency.dtype.kind != "f" or not np.all(latency > 0):
        raise InputError("must be above 0 ms in every row", file=file, key="latency")
    return columns | {"seconds": latency * 1e-3}


def _column(cells: Sequence[str]) -> np.ndarray[Any, Any]:
    try:
        return np.array([float(cell) for cell in cells], dtype=np.float64)
    except ValueError:
        return np.array(cells)


def check_serving(
    scenario: Scenario,
    results: Sequence[BenchResult],
    tolerance: float,
    name: str,
    against: Sequence[str],
    *,
    may_be_faster: bool = False,
) -> Drift:
    """Return a scenario's deployment compared with benchmarks of it.

    A calibrated profile states by how much it missed each figure at its own loads. A figure that is no farther off has
    not moved, so that this is its tolerance where it is the larger one. A promise (``may_be_faster``) has no such
    allowance.

    Args:
        scenario: With the profile to check.
        tolerance: Share.
        may_be_faster: Whether a server that is faster than predicted passes.

    Raises:
        InputError: The files hold no figure that can be compared.
        InfeasibleError: The deployment cannot serve their requests.
    """
    model = ServingModel(scenario)
    calibration = None if may_be_faster else calibration_of(model.resolved)
    own = {} if calibration is None else calibration.own_figures
    comparisons, notes = [], []
    for result in results:
        replay = replay_of(result, scenario)
        simulated = model.predict(replay)
        notes += [f"{result.label}: {note}" for note in (*result.notes, *replay.notes)]
        comparisons += [
            Comparison(
                name=f"{result.label}, {figure.replace('_', ' ')}",
                expected=simulated[figure],
                found=measured,
                count=1,
                tolerance=max(tolerance, own.get(figure, 0.0)),
                unit="/s" if figure.endswith("throughput") else "s",
                ratio=measured / simulated[figure],
                may_be_faster=may_be_faster,
            )
            for figure, measured in gated_figures(result).items()
            if figure in simulated
        ]
    if not comparisons:
        raise InputError("hold no mean, median or throughput", key="--against", value=", ".join(against))
    if any(each.tolerance > tolerance for each in comparisons):
        notes.append(
            f"tolerances above {tolerance:.3g}: as far off as the profile is at the loads it was calibrated on"
        )
    return Drift(profile=name, against=list(against), comparisons=comparisons, left_out=list(dict.fromkeys(notes)))


def markdown(drift: Drift) -> str:
    """Return the check as Markdown for a pull request: the verdict, what moved, then all comparisons."""
    verdict = "unchanged" if drift.passed else f"**{len(drift.moved)} of {len(drift.comparisons)} moved**"
    lines = [f"### Calibration of {drift.profile}: {verdict}", "", f"Against {', '.join(drift.against)}.", ""]
    if drift.moved:
        lines += [*_rows(drift.moved), ""]
    rest = [each for each in drift.comparisons if each.is_within]
    if rest:
        lines += [f"<details><summary>{len(rest)} within the tolerance</summary>", "", *_rows(rest), "", "</details>"]
    return "\n".join(lines) + "\n"


def _rows(comparisons: Sequence[Comparison]) -> list[str]:
    header = "| what | calls | profile | measured | change | tolerance | |"
    rows = [f"| {' | '.join(cells(each))} |" for each in comparisons]
    return [header, "|---|---:|---:|---:|---:|---:|---|", *rows]


def cells(comparison: Comparison) -> tuple[str, ...]:
    """Return a comparison as the cells of a table row."""
    return (
        comparison.name,
        str(comparison.count),
        _shown(comparison.expected, comparison.unit),
        _shown(comparison.found, comparison.unit),
        f"{round(comparison.change, 3) + 0.0:+.1%}",  # no sign on a zero
        f"{comparison.tolerance:.3g}" if comparison.tolerance < 1e-3 else f"{comparison.tolerance:.1%}",
        comparison.verdict,
    )


def _shown(value: float, unit: str) -> str:
    if unit == "/s":
        return f"{value:,.4g} /s"
    return f"{value * 1e3:.4g} ms" if value >= 1e-3 else f"{value * 1e6:.4g} us"
