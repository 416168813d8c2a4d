"""A kernel run as text and table rows: how it ended, what was measured, how far calls spread. Fits nothing."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simserve.calibrate.kernels import points
from simserve.calibrate.run_folder import KernelRun
from simserve.units import format_bandwidth, format_compute, format_seconds

ENDINGS = {
    "complete": "complete",
    "budget": "INCOMPLETE, its budget was spent",
    "interrupted": "INCOMPLETE, it was interrupted",
    "killed": "INCOMPLETE, it was killed or is still running",
    "out of memory": "INCOMPLETE, some calls ran out of memory",
    "device failed": "INCOMPLETE, the device failed",
}

KINDS = {
    points.PREFILL: "prefill attention",
    points.DECODE: "decode attention",
    points.MOE: "routed experts",
    points.COPY: "copies",
    points.LAUNCH: "launches, host",
    points.ALL_REDUCE: "all-reduce",
    points.POINT_TO_POINT: "point to point",
}


def ending_line(run: KernelRun) -> str:
    """Return whether a run is complete, and how much of it is done."""
    ended = str(run.provenance.get("ended"))
    how = ENDINGS.get(ended, f"INCOMPLETE ({ended})")
    return f"{how}: {run.num_points} of {run.provenance.get('planned_points')} calls"


MUCH_SPREAD = 0.25
"""Spread of the median call above which a measurement is not to be trusted; on a quiet GPU it is a few percent."""

THROTTLING = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
"""Bit of nvidia-smi's active reasons -> why the clock is reduced (NVML, nvmlClocksEventReasons)."""


def clock_lines(run: KernelRun) -> list[str]:
    """Return clocks, temperature and power during the measurement, and what reduced the clock; empty without data."""
    samples = [each for each in run.provenance.get("clocks") or [] if _number(each.get("clocks.sm")) is not None]
    if not samples:
        return []
    low, middle, high = np.quantile([_number(each["clocks.sm"]) or 0.0 for each in samples], (0.0, 0.5, 1.0))
    hottest = max(_number(each.get("temperature.gpu")) or 0.0 for each in samples)
    lines = [f"SM clock {middle:.0f} MHz ({low:.0f} to {high:.0f}) in {len(samples)} looks, at most {hottest:.0f} C"]
    for bit, reason in THROTTLING.items():
        count = sum(bool(_bits(each.get("reasons")) & bit) for each in samples)
        lines += [f"throttled by {reason} in {count} of {len(samples)} looks"] if count else []
    return lines


def _number(text: object) -> float | None:
    try:
        return float(str(text))
    except ValueError:
        return None


def _bits(text: object) -> int:
    try:
        return int(str(text), 0)
    except ValueError:
        return 0


def spread_line(run: KernelRun) -> str:
    """Return a warning if calls spread so much that something else must have been running, else an empty string."""
    spreads = [_spread(calls) for calls in run.tables.values()]
    middle = float(np.median(np.concatenate(spreads))) if spreads else 0.0
    if middle < MUCH_SPREAD:
        return ""
    return f"half of the calls spread by more than {middle:.0%}: was the device doing other work?"


def _spread(calls: pd.DataFrame) -> NDArray[np.float64]:
    """Return the distance from 10th to 90th percentile of each call, divided by its median."""
    return ((calls["latency_p90"] - calls["latency_p10"]) / calls["latency"]).to_numpy(dtype=np.float64)


def groups_of(run: KernelRun) -> dict[str, pd.DataFrame]:
    """Return the calls of a run by kind of kernel and number format."""
    groups: dict[str, pd.DataFrame] = {}
    for table, rows in run.tables.items():
        if table == points.GEMM:
            groups |= {f"products {name}": part for name, part in rows.groupby("gemm_dtype")}
        elif table == points.ELEMENTWISE:
            groups |= {str(name): part for name, part in rows.groupby("op_name")}
        elif table == points.LAYER:
            groups |= {f"layer, {mode}": part for mode, part in rows.groupby("mode")}
        else:
            groups[KINDS[table]] = rows
    return groups


def table_rows(run: KernelRun) -> list[tuple[str, ...]]:
    """Return one row per kind: calls, shortest and longest, spread, best rate."""
    rows: list[tuple[str, ...]] = []
    for name, calls in groups_of(run).items():
        seconds = calls["seconds"].to_numpy(dtype=np.float64)
        spread = float(np.median(_spread(calls)))
        shown = (format_seconds(seconds.min()), format_seconds(seconds.max()), f"{spread:.1%}", _best(calls))
        rows.append((name, str(len(calls)), *shown))
    return rows


def _best(calls: pd.DataFrame) -> str:
    """Return the best FLOP/s of products and prompts, or bytes/s of decode steps and copies."""
    seconds = calls["seconds"].to_numpy(dtype=np.float64)
    if "gemm_dtype" in calls:
        return format_compute(float((2.0 * calls["m"] * calls["n"] * calls["k"] / seconds).max()))
    if "isl" in calls:
        pairs = calls["batch_size"] * calls["isl"] * (calls["isl"] + 1) / 2.0
        return format_compute(float((4.0 * calls["num_heads"] * calls["head_dim"] * pairs / seconds).max()))
    if "step" in calls:
        keys = calls["batch_size"] * (calls["step"] + 1.0)
        return format_bandwidth(float((4.0 * calls["num_key_value_heads"] * calls["head_dim"] * keys / seconds).max()))
    return format_bandwidth(float((2.0 * calls["bytes"] / seconds).max())) if "bytes" in calls else ""
