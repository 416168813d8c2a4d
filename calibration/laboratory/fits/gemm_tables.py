"""Measured GEMM and MoE calls from operator tables in Parquet, as plain columns.

Reads the layout of NVIDIA's AIConfigurator (``SYSTEM/FAMILY/BACKEND/VERSION/*_perf.parquet``); fits nothing.
"""

from __future__ import annotations

from pathlib import Path

import duckdb
import pandas as pd

from simserve.errors import InputError

SYSTEMS = {
    "h200-sxm-141gb": "h200_sxm",
    "h100-sxm-80gb": "h100_sxm",
    "a100-sxm-80gb": "a100_sxm",
    "b200-sxm-180gb": "b200_sxm",
    "gb200-186gb": "gb200",
}
"""Folder of a hardware profile in the tables."""


def read_table(data: Path, hardware: str, family: str, framework: str, version: str = "*") -> pd.DataFrame:
    """Return every row of ``FAMILY_perf.parquet`` with its time in the column ``seconds``.

    Args:
        data: Folder that holds ``aiconfigurator/``.
        hardware: Hardware profile, a key of `SYSTEMS`.
        family: ``gemm`` or ``moe``.
        framework: ``vllm``, ``sglang`` or ``trtllm``.
        version: Version of the framework; a star: the newest.

    Raises:
        InputError: There is no such table.
    """
    folder = data / "aiconfigurator" / SYSTEMS[hardware] / family / framework
    files = sorted(folder.glob(f"{version}/{family}_perf.parquet"))
    if not files:
        raise InputError("has no such operator table", file=folder, key=family, remedy="give the folder kernels/")
    table: pd.DataFrame = duckdb.read_parquet(str(files[-1])).df()
    return table.assign(seconds=table["latency"] * 1e-3).drop(columns="latency")


def gemm_rows(data: Path, hardware: str, framework: str, dtype: str) -> pd.DataFrame:
    """Return ``m, n, k, seconds`` of one format, repeats replaced by their median."""
    table = read_table(data, hardware, "gemm", framework)
    chosen = table[table["gemm_dtype"] == dtype]
    medians = chosen.groupby(["m", "n", "k"])["seconds"].median()
    return medians.reset_index().astype("float64")
