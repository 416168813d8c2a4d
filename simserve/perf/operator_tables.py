"""Reading a user's measured operator tables: the Parquet layout of NVIDIA AIConfigurator, checked column by column.

``<system>/<family>/<backend>/<version>/*_perf.parquet``, latency in milliseconds of one call on one rank. Knows files
and columns; what a call of a deployment takes by them is `simserve.perf.measured`'s.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from simserve.errors import InputError
from simserve.perf.efficiency import Array
from simserve.profiles.engine_blocks import version_key

BACKENDS: Mapping[str, str] = {"tensorrt-llm": "trtllm"}
"""Engine -> name of its folder, where it differs."""

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "gemm_perf": ("gemm_dtype", "m", "n", "k"),
    "context_attention_perf": (
        "batch_size",
        "isl",
        "num_heads",
        "num_key_value_heads",
        "head_dim",
        "window_size",
        "kv_cache_dtype",
    ),
    "generation_attention_perf": (
        "batch_size",
        "step",
        "num_heads",
        "num_key_value_heads",
        "head_dim",
        "window_size",
        "kv_cache_dtype",
    ),
    "moe_perf": (
        "moe_dtype",
        "num_tokens",
        "hidden_size",
        "inter_size",
        "topk",
        "num_experts",
        "moe_tp_size",
        "moe_ep_size",
        "distribution",
    ),
    "custom_allreduce_perf": ("allreduce_dtype", "num_gpus", "message_size"),
}
"""Operator tables that are read, and the columns each must have beside ``latency``."""

KEY = "deployment.operator_tables"


@dataclass(frozen=True, slots=True)
class TableFiles:
    """The operator tables of one engine on one GPU.

    Attributes:
        folder: What the user gave.
        files: Table -> its file.
    """

    folder: str
    files: Mapping[str, str]


def find_tables(folder: Path, engine: str) -> TableFiles:
    """Return the newest tables of an engine in a folder: of a system, a family, a backend or a version.

    Where a folder holds several backends, those of the engine; where it holds several versions, the newest.

    Raises:
        InputError: There is no such folder, no operator table in it, or none of the engine.
    """
    if not os.path.isdir(folder):
        raise InputError("is no folder", key=KEY, value=str(folder), remedy=_LAYOUT)
    found = {name: sorted(folder.rglob(f"{name}.parquet")) for name in COLUMNS}
    if not any(found.values()):
        rule = f"holds none of {', '.join(f'{name}.parquet' for name in COLUMNS)}"
        raise InputError(rule, key=KEY, value=str(folder), remedy=_LAYOUT)
    backend = BACKENDS.get(engine, engine)
    systems = {path.parents[3] for paths in found.values() for path in paths if len(path.parents) > 3}
    chosen = {name: _newest(paths, folder, backend) for name, paths in found.items()}
    if not any(chosen.values()):
        backends = sorted({path.parent.parent.name for paths in found.values() for path in paths})
        rule = f"holds tables of {', '.join(backends)}, and none of {backend}, which {engine} needs"
        raise InputError(rule, key=KEY, value=str(folder), remedy="give the folder of one backend and version")
    if len(systems) > 1 and all(folder in system.parents for system in systems):
        names = ", ".join(sorted(system.name for system in systems))
        raise InputError(f"holds several systems ({names})", key=KEY, value=str(folder), remedy="give one of them")
    return TableFiles(str(folder), {name: str(path) for name, path in chosen.items() if path is not None})


_LAYOUT = "give a folder laid out as SYSTEM/FAMILY/BACKEND/VERSION/*_perf.parquet, or part of one"


def _newest(paths: Sequence[Path], folder: Path, backend: str) -> Path | None:
    """Return the file of a backend's newest version; any file of a folder that is one version's."""
    if not paths:
        return None
    if all(path.parent == folder or path.parent.parent == folder for path in paths):
        own = list(paths)  # the user named the version, or the backend
    else:
        own = [path for path in paths if path.parent.parent.name == backend]
    return max(own, key=lambda path: _version(path.parent.name), default=None)


def _version(name: str) -> tuple[int, ...]:
    try:
        return version_key(name)
    except InputError:
        return ()


@lru_cache(maxsize=32)
def _read(path: str, modified: float, table: str) -> Mapping[str, Array]:
    """Return the columns of a table; ``modified`` keeps a changed file from being taken for the old one."""
    import duckdb

    del modified
    try:
        relation = duckdb.read_parquet(path)
        missing = [name for name in (*COLUMNS[table], "latency") if name not in relation.columns]
    except duckdb.Error as failure:
        raise InputError(f"is no Parquet table: {str(failure).splitlines()[0]}", file=path, key=KEY) from None
    if missing:
        rule = f"lacks the column{'s' if len(missing) > 1 else ''} {', '.join(missing)}"
        remedy = f"an operator table has {', '.join(COLUMNS[table])} and latency in ms"
        raise InputError(rule, file=path, key=KEY, remedy=remedy)
    extra = [name for name in ("backend", "kernel_source") if name in relation.columns]
    columns: dict[str, Array] = relation.select(*COLUMNS[table], "latency", *extra).fetchnumpy()
    latency = np.asarray(columns["latency"], dtype=np.float64)
    if not len(latency) or not np.all(np.isfinite(latency)) or np.any(latency <= 0):
        raise InputError("must have rows, each with a latency above 0 ms", file=path, key=f"{KEY}: latency")
    seconds = {"seconds": latency * 1e-3}
    return {name: np.asarray(values) for name, values in columns.items() if name != "latency"} | seconds


def read_columns(tables: TableFiles, table: str) -> Mapping[str, Array] | None:
    """Return the columns of one table, ``seconds`` in place of its latency; none where there is no such file.

    Raises:
        InputError: The file is no Parquet table, lacks a column, or has a latency that is none.
    """
    path = tables.files.get(table)
    return None if path is None else _read(path, Path(path).stat().st_mtime, table)
