"""Fits the collective curves of the hardware profiles and states their errors, in and out of sample.

Rerun on tables in the layout of NVIDIA's AIConfigurator (``<system>/comm/<backend>/<version>/*.parquet``)::

    python -m calibration.laboratory.fits.collective_fit FOLDER            # error table, Markdown
    python -m calibration.laboratory.fits.collective_fit FOLDER b200_sxm   # the block of a profile, YAML
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np

from calibration.laboratory.fits.attention_tables import ENGINE_FOLDERS
from simserve.calibrate.curve_regressor import soft_fit
from simserve.perf.collectives import all_reduce_curve_seconds, transfer_curve_seconds
from simserve.perf.efficiency import Array
from simserve.profiles.kernel_curves import AllReduceCurve, TransferCurve

Curve = AllReduceCurve | TransferCurve
Ranges = Mapping[str, tuple[float, tuple[float, ...], float]]

LINKS = {"h100_sxm": 450e9, "h200_sxm": 450e9, "a100_sxm": 300e9, "b200_sxm": 900e9, "gb200": 900e9}
"""Folder of a table -> NVLink bandwidth per GPU, one direction."""

HAS_SWITCH_REDUCTION = {"h100_sxm": True, "h200_sxm": True, "a100_sxm": False, "b200_sxm": True, "gb200": True}
"""Whether NVSwitch reduces (from the third generation)."""

ALL_REDUCE_RANGES: Ranges = {
    "start": (0.0, (2e-6, 4e-6), 20e-6),
    "start_per_doubling": (0.0, (0.4e-6,), 20e-6),
    "one_shot": (0.05, (0.6,), 3.0),
    "two_shot_start_per_doubling": (0.0, (1e-6, 3e-6), 50e-6),
    "two_shot": (0.05, (0.6,), 3.0),
    "ring_start": (0.0, (30e-6, 60e-6), 300e-6),
    "ring": (0.1, (0.8,), 1.5),
    "switch": (0.1, (0.6,), 1.5),
}
"""Least, initial and greatest value of each constant; fits start from every combination of the initial ones."""

TRANSFER_RANGES: Ranges = {
    "start": (0.0, (4e-6,), 30e-6),
    "start_per_doubling": (0.0, (1e-6,), 30e-6),
    "small": (0.01, (0.2,), 3.0),
    "large_start": (0.0, (10e-6, 20e-6), 300e-6),
    "large": (0.1, (0.7,), 1.5),
}

NCCL_NAMES = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "all_to_all": "alltoall",
}
"""Kind of a curve -> operation in a table."""

NCCL = "nccl"
"""Replaces an engine: NCCL's own all-reduce, for engines without kernels of their own."""

SOFT_ERROR = 0.1
"""Relative error beyond which a row counts linearly: some rows are single outliers (38 us between two of 3)."""

FLOOR_SECONDS = 10e-6
"""Least time of calls counted in errors."""

HALF_BYTES = 2.0
"""Bytes per element; messages in the tables are in elements."""


@dataclass(frozen=True, slots=True)
class Calls:
    """Measured collectives: ranks, bytes and seconds, arrays over the calls."""

    num_ranks: Array
    num_bytes: Array
    seconds: Array


def read_all_reduce(root: Path, system: str, engine: str) -> Calls | None:
    """Return an engine's own all-reduce inside CUDA graphs, or NCCL's; None without a table."""
    if engine == NCCL:
        return read_transfer(root, system, "all_reduce")
    found = _by_version(root / system / "comm" / ENGINE_FOLDERS[engine], "custom_allreduce_perf.parquet")
    if not found:
        return None
    table = duckdb.connect().execute("select * from read_parquet(?)", [str(found[-1])]).df()
    if "backend" in table:
        table = table[table["backend"].str.endswith("graph")]
    columns = [table[name].to_numpy(dtype=np.float64) for name in ("num_gpus", "message_size", "latency")]
    return Calls(columns[0], columns[1] * HALF_BYTES, columns[2] * 1e-3)


def _by_version(folder: Path, table: str) -> list[Path]:
    """Return the tables of a framework, the newest version last."""
    return sorted(
        folder.glob(f"*/{table}"), key=lambda path: [int(each) for each in re.findall(r"\d+", path.parent.name)]
    )


def read_transfer(root: Path, system: str, kind: str) -> Calls | None:
    """Return a collective of NCCL with 16-bit elements; None without a table."""
    found = _by_version(root / system / "comm" / "nccl", "nccl_perf.parquet")
    if not found or kind not in NCCL_NAMES:
        return None
    query = "select * from read_parquet(?) where nccl_dtype = 'half' and op_name = ?"
    table = duckdb.connect().execute(query, [str(found[-1]), NCCL_NAMES[kind]]).df()
    columns = [table[name].to_numpy(dtype=np.float64) for name in ("num_gpus", "message_size", "latency")]
    return Calls(columns[0], columns[1] * HALF_BYTES, columns[2] * 1e-3)


def predict(curve: Curve, calls: Calls, bandwidth: float) -> Array:
    """Return the seconds that a curve gives for measured calls."""
    seconds = np.empty(len(calls.seconds))
    for ranks in np.unique(calls.num_ranks):
        rows = calls.num_ranks == ranks
        if isinstance(curve, AllReduceCurve):
            seconds[rows] = all_reduce_curve_seconds(curve, calls.num_bytes[rows], int(ranks), bandwidth)
        else:
            seconds[rows] = transfer_curve_seconds(curve, calls.num_bytes[rows], int(ranks), bandwidth)
    return seconds


def fit(curve_type: type[Curve], ranges: Ranges, calls: Calls, bandwidth: float, fixed: Mapping[str, object]) -> Curve:
    """Return the curve with the least soft-L1 relative error, the best from several starts."""
    free = [name for name in ranges if name not in fixed]
    low, high = (np.array([ranges[name][index] for name in free]) for index in (0, 2))
    unit = np.array([ranges[name][1][0] for name in free])

    def curve(values: Array) -> Curve:
        constants: dict[str, Any] = dict(zip(free, (values * unit).tolist(), strict=True)) | dict(fixed)
        return curve_type.model_construct(**constants)

    fits = [
        soft_fit(
            lambda values: predict(curve(values), calls, bandwidth),
            calls.seconds,
            first=np.array(first) / unit,
            low=low / unit,
            high=high / unit,
            soft_error=SOFT_ERROR,
        )
        for first in itertools.product(*(ranges[name][1] for name in free))
    ]
    return curve(min(fits, key=lambda each: each.cost).values)


def fit_all_reduce(root: Path, system: str, engine: str) -> AllReduceCurve | None:
    """Return the all-reduce curve of an engine; None without a table."""
    calls = read_all_reduce(root, system, engine)
    if calls is None:
        return None
    fixed: dict[str, object] = {"engine": engine}
    if not HAS_SWITCH_REDUCTION[system]:
        fixed["switch"] = None
    curve = fit(AllReduceCurve, ALL_REDUCE_RANGES, calls, LINKS[system], fixed)
    assert isinstance(curve, AllReduceCurve)
    return curve


def fit_transfer(root: Path, system: str, kind: str) -> TransferCurve | None:
    """Return the curve of another collective; None without a table."""
    calls = read_transfer(root, system, kind)
    if calls is None:
        return None
    curve = fit(TransferCurve, TRANSFER_RANGES, calls, LINKS[system], {"kind": kind})
    assert isinstance(curve, TransferCurve)
    return curve


def errors_of(curve: Curve, calls: Calls, bandwidth: float) -> Array:
    """Return predicted / measured - 1 of the calls above 10 us."""
    return np.asarray((predict(curve, calls, bandwidth) / calls.seconds - 1.0)[calls.seconds > FLOOR_SECONDS])


def error_table(root: Path) -> str:
    """Return the errors of curves fitted on H200 and tested on H100, of A100's in sample, and of B200's on GB200."""
    from calibration.laboratory.fits.attention_report import error_cells

    lines = ["| collective | what | median % | mean % | p90 % | bias % | calls |", "|---|---|---|---|---|---|---|"]
    tests = (
        ("h200_sxm", "h200_sxm", "H200, in sample"),
        ("h200_sxm", "h100_sxm", "H100, out of sample"),
        ("a100_sxm", "a100_sxm", "A100, in sample"),
        ("b200_sxm", "b200_sxm", "B200, in sample"),
        ("b200_sxm", "gb200", "GB200, out of sample"),
    )
    for fitted, tested, label in tests:
        for name, curve, calls in _pairs(root, fitted, tested):
            lines.append(f"| {name} | {label} | {error_cells(errors_of(curve, calls, LINKS[tested]))} |")
    return "\n".join(lines)


def _pairs(root: Path, fitted: str, tested: str) -> list[tuple[str, Curve, Calls]]:
    pairs: list[tuple[str, Curve, Calls]] = []
    for engine in (*ENGINE_FOLDERS, NCCL):
        curve, calls = fit_all_reduce(root, fitted, engine), read_all_reduce(root, tested, engine)
        if curve is not None and calls is not None:
            pairs.append((f"all-reduce, {engine}", curve, calls))
    for kind in [each for each in NCCL_NAMES if each != "all_reduce"]:
        transfer, moved = fit_transfer(root, fitted, kind), read_transfer(root, tested, kind)
        if transfer is not None and moved is not None:
            pairs.append((f"{kind}, NCCL", transfer, moved))
    return pairs


def profile_block(root: Path, system: str) -> str:
    """Return the ``collective_curves`` of a hardware profile as YAML."""
    lines: dict[str, list[str]] = {"all_reduce": [], "transfers": []}
    for _, curve, calls in _pairs(root, system, system):
        errors = np.abs(errors_of(curve, calls, LINKS[system]))
        fields = ", ".join(
            f"{name}: {_value(name, value)}"
            for name, value in (
                (name, getattr(curve, name, None)) for name in type(curve).model_fields if name != "fit"
            )
            if value is not None
        )
        reach = f"{calls.num_ranks.max():g} ranks, {calls.num_bytes.max() / 1e6:.0f} MB"
        fit_text = f'{{points: {len(calls.seconds)}, median_error: {np.median(errors):.3f}, valid_to: "{reach}"}}'
        group = "all_reduce" if isinstance(curve, AllReduceCurve) else "transfers"
        lines[group] += [f"    - {{{fields},", f"       fit: {fit_text}}}"]
    blocks = [line for group, rows in lines.items() for line in (f"  {group}:", *rows)]
    return "\n".join(["collective_curves:", *blocks])


def _value(name: str, value: object) -> str:
    if isinstance(value, str):
        return value
    assert isinstance(value, float)
    return f'"{value * 1e6:.4g} us"' if "start" in name else f"{value:.4g}"


def main(arguments: list[str]) -> None:
    """Print the error table, or the block of a profile."""
    root = Path(arguments[0])
    print(profile_block(root, arguments[1]) if len(arguments) > 1 else error_table(root))


if __name__ == "__main__":
    main(sys.argv[1:])
