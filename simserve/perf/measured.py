"""A user's measured operator tables: their Parquet layout, and the times of products, attention and experts.

The layout is NVIDIA AIConfigurator's, checked column by column:
``<system>/<family>/<backend>/<version>/*_perf.parquet``, latency in milliseconds of one call on one rank.

Inside the measured sizes, tables are interpolated in logarithms. A call counts for no longer than any measured call
with more work, so that no operator gets faster with more work: measured outliers are slow ones. If a table gives the
spread of its repeats (``latency_p10``, ``latency_p90``, as `simserve calibrate kernels` does), a product that is slower
than one of more rows by more than this spread stays so: on some CPUs, oneDNN's product of two rows is. Outside the
measured sizes, and where tables have gaps, the fitted curve applies; beyond the end of a table it never falls below the
table's last value. The engine knows only sums of attention lengths, so attention calls are brought into the affine
forms of the fitted curves: a start, and times per token, request, attended pair and key. Knows calls; no step.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.errors import InputError
from simserve.perf.efficiency import Array
from simserve.perf.quantization import Precision
from simserve.profiles.engine_options import version_key
from simserve.profiles.model import ModelProfile
from simserve.profiles.model_blocks import AttentionLayers, Gemm, MixtureOfExperts

BACKENDS: Mapping[str, str] = {"tensorrt-llm": "trtllm"}  # Engine -> name of its folder, if it differs.
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
"""Operator tables that are read, and the columns that each must have besides ``latency``."""
KEY = "deployment.operator_tables"
SPREAD = ("latency_p10", "latency_p90")  # Columns with the spread of a call's repeats, if a table has them.
_LAYOUT = "give a folder laid out as SYSTEM/FAMILY/BACKEND/VERSION/*_perf.parquet, or part of one"
SKEWED = ("power_law_1.01", "power_law_1.2", "balanced")
"""Routings to look up, most similar to `simserve.perf.moe.ROUTING_SKEW` first."""
ALL_REDUCE_ELEMENT_BYTES = 2.0  # Bytes per element in the all-reduce tables: 16 bit.
NEAREST_HEADS = 2.0  # Largest ratio between measured and actual number of attention heads; the time is scaled by it.
COMMON_CONTEXTS = (128.0, 1024.0)
"""Contexts whose calls give the time of a decode step besides its keys, around the reference of the fitted curves."""


@dataclass(frozen=True, slots=True)
class TableFiles:
    """The operator tables of one engine on one GPU."""

    folder: str  # What the user gave.
    files: Mapping[str, str]  # Table -> its file.


def find_tables(folder: Path, engine: str) -> TableFiles:
    """Return the newest tables of an engine in the folder of a system, a family, a backend or a version.

    Of several backends, the engine's; of several versions, the newest.

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


def _newest(paths: Sequence[Path], folder: Path, backend: str) -> Path | None:
    """Return the file of a backend's newest version; any file if the folder is that of one version."""
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
    """Return the columns of a table; ``modified`` tells a changed file from the cached one."""
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
    extra = [name for name in ("backend", "kernel_source", *SPREAD) if name in relation.columns]
    columns: dict[str, Array] = relation.select(*COLUMNS[table], "latency", *extra).fetchnumpy()
    latency = np.asarray(columns["latency"], dtype=np.float64)
    if not len(latency) or not np.all(np.isfinite(latency)) or np.any(latency <= 0):
        raise InputError("must have rows, each with a latency above 0 ms", file=path, key=f"{KEY}: latency")
    seconds = {"seconds": latency * 1e-3}
    return {name: np.asarray(values) for name, values in columns.items() if name != "latency"} | seconds


def read_columns(tables: TableFiles, table: str) -> Mapping[str, Array] | None:
    """Return the columns of one table, ``seconds`` replacing its latency; None if there is no such file.

    Raises:
        InputError: The file is not a Parquet table, lacks a column, or has an invalid latency.
    """
    path = tables.files.get(table)
    return None if path is None else _read(path, Path(path).stat().st_mtime, table)


@dataclass(frozen=True, slots=True)
class TableFilesKey:
    """Tables as a cache key: files and times of their last change."""

    folder: str
    entries: tuple[tuple[str, str, float], ...]

    @property
    def files(self) -> TableFiles:
        """The files."""
        return TableFiles(self.folder, {name: path for name, path, _ in self.entries})


@dataclass(frozen=True, slots=True)
class Line:
    """Seconds over one size, both ascending."""

    size: Array  # Measured sizes.
    seconds: Array  # Their times, which fall only if a table's repeats say so.

    def scaled(self, size: Array, parts: Array) -> Array:
        """Return the parts of a curve scaled to the measured totals, unscaled outside the measured sizes.

        Above the largest size they are scaled if the curve would fall below the last measured time.

        Args:
            size: Sizes of the calls.
            parts: Seconds of the curve by part, ``[5, len(size)]``.
        """
        total = parts.sum(axis=0)
        within = (size >= self.size[0]) & (size <= self.size[-1])
        inside = np.exp(np.interp(np.log(np.maximum(size, 1e-9)), np.log(self.size), np.log(self.seconds)))
        beyond = np.where(size > self.size[-1], np.maximum(total, self.seconds[-1]), total)
        below = np.minimum(beyond, np.where(size < self.size[0], self.seconds[0], np.inf))
        return np.asarray(parts * np.where(within, inside, below) / total)


@dataclass(frozen=True, slots=True)
class Grid:
    """Seconds of matrix products by m, n and k; NaN where nothing was measured.

    ``has_dips``: whether fewer rows may take longer than more, according to their repeats.
    """

    rows: Array
    columns: Array
    reduction: Array
    seconds: Array
    has_dips: bool = False

    def line(self, out_features: float, in_features: float) -> Line | None:
        """Return the times over m for one n and k; None if they lie outside the measured sizes."""
        columns, reduction = _bracket(self.columns, out_features), _bracket(self.reduction, in_features)
        if columns is None or reduction is None:
            return None
        corners = sum(
            weight * other * np.log(self.seconds[:, column, row])
            for column, weight in columns
            for row, other in reduction
        )
        known = np.isfinite(corners)
        if np.count_nonzero(known) < 2:
            return None
        seconds = np.exp(np.asarray(corners)[known])
        return Line(self.rows[known], seconds if self.has_dips else np.maximum.accumulate(seconds))


def _bracket(sizes: Array, size: float) -> list[tuple[int, float]] | None:
    """Return the neighbouring measured sizes and their weights in logarithms; None outside."""
    if not sizes[0] <= size <= sizes[-1]:
        return None
    above = int(np.searchsorted(sizes, size))
    if sizes[above] == size:
        return [(above, 1.0)]
    share = float(np.log(size / sizes[above - 1]) / np.log(sizes[above] / sizes[above - 1]))
    return [(above - 1, 1.0 - share), (above, share)]


@lru_cache(maxsize=32)
def _gemm_grid(tables: TableFilesKey, dtype: str) -> Grid | None:
    columns = read_columns(tables.files, "gemm_perf")
    if columns is None:
        return None
    chosen = columns["gemm_dtype"] == dtype
    if not chosen.any():
        return None
    axes = [np.unique(columns[name][chosen], return_inverse=True) for name in ("m", "n", "k")]
    seconds = np.full([len(values) for values, _ in axes], np.nan)
    places = tuple(index for _, index in axes)
    np.fmin.at(seconds, places, columns["seconds"][chosen])
    has_spread = all(name in columns for name in SPREAD)
    slow = _slower_than_more_rows(seconds, [columns[name][chosen] for name in SPREAD], places) if has_spread else None
    for axis in range(3):
        least = np.flip(np.fmin.accumulate(np.flip(seconds, axis), axis=axis), axis)
        seconds = np.where(np.isnan(seconds), np.nan, least)
    if slow is not None:
        seconds = np.where(np.isnan(slow), seconds, slow)
    rows, widths, depths = (np.asarray(values, dtype=np.float64) for values, _ in axes)
    return Grid(rows, widths, depths, seconds, has_dips=slow is not None and bool(np.isfinite(slow).any()))


def _slower_than_more_rows(
    seconds: Array, spread: Sequence[NDArray[Any]], places: tuple[NDArray[np.intp], ...]
) -> Array:
    """Return the seconds of products that are slower than some with more rows beyond their repeats; otherwise NaN.

    Each of the two medians lies outside the range of 80 % of the other's repeats.

    Args:
        seconds: By m, n and k; NaN where nothing was measured.
        spread: 10th and 90th percentiles of the calls, ms.
        places: Indices of the calls by m, n and k.
    """
    low, high = np.full(seconds.shape, np.nan), np.full(seconds.shape, np.nan)
    np.fmin.at(low, places, np.asarray(spread[0], dtype=np.float64) * 1e-3)
    np.fmin.at(high, places, np.asarray(spread[1], dtype=np.float64) * 1e-3)
    is_slow = np.zeros(seconds.shape, dtype=bool)
    for row in range(len(seconds) - 1):
        is_slow[row] = np.any((low[row] > seconds[row + 1 :]) & (high[row + 1 :] < seconds[row]), axis=0)
    return np.where(is_slow, seconds, np.nan)


@dataclass(frozen=True, slots=True)
class Samples:
    """Measured calls of attention with the heads of one rank."""

    batch: Array  # Sequences of each call.
    tokens: Array  # Prompt tokens of each sequence, or keys that a decode step reads.
    seconds: Array  # Their times, scaled to the heads of the rank.


@dataclass(frozen=True, slots=True)
class MeasuredOperators:
    """The tables of one deployment."""

    key: TableFilesKey

    @property
    def has_dips(self) -> bool:
        """Whether some product takes longer than one with more rows, beyond its repeats."""
        columns = read_columns(self.key.files, "gemm_perf")
        dtypes = [] if columns is None else np.unique(columns["gemm_dtype"].astype(str)).tolist()
        grids = (_gemm_grid(self.key, dtype) for dtype in dtypes)
        return any(grid is not None and grid.has_dips for grid in grids)

    def gemm(self, precision: Precision, gemm: Gemm) -> Line | None:
        """Return the times of a projection over its tokens; in FP8 including the quantisation of its inputs."""
        return self._gemm(_gemm_dtype(precision), gemm)

    def wide_gemm(self, arithmetic: str, gemm: Gemm) -> Line | None:
        """Return the times of a projection that is not quantised, over its tokens."""
        return self._gemm("bfloat16" if arithmetic in ("bf16", "fp16") else "", gemm)

    def _gemm(self, dtype: str, gemm: Gemm) -> Line | None:
        grid = _gemm_grid(self.key, dtype) if dtype else None
        return grid.line(float(gemm.out_features), float(gemm.in_features)) if grid else None

    def experts(self, precision: Precision, model: ModelProfile, slices: int, groups: int) -> Line | None:
        """Return the times of a layer's routed experts over the tokens of a step."""
        moe, dtype = model.moe, _gemm_dtype(precision)
        if moe is None or not dtype:
            return None
        return _expert_line(self.key, dtype, _sizes(moe.latent_size or model.hidden_size, moe), slices, groups)

    def all_reduce(self, num_ranks: int) -> Line | None:
        """Return the times of an all-reduce over its bytes."""
        return _all_reduce_line(self.key, num_ranks)

    def attention(self, table: str, layers: AttentionLayers, num_ranks: int, is_narrow: bool) -> Samples | None:
        """Return the measured calls of prompt or decode attention with the heads of one rank."""
        if not layers.has_plain_heads or layers.head_dim != layers.v_head_dim:
            return None
        heads = layers.num_heads / num_ranks
        return _attention_samples(
            self.key, table, heads, max(layers.num_kv_heads / num_ranks, 1.0), layers.head_dim, is_narrow
        )


def measured_operators(folder: Path, engine: str) -> MeasuredOperators:
    """Return the operator tables of an engine in a folder.

    Raises:
        InputError: There are none, or a file is not an operator table.
    """
    tables = find_tables(folder, engine)
    for name in tables.files:
        read_columns(tables, name)
    entries = tuple((name, path, Path(path).stat().st_mtime) for name, path in sorted(tables.files.items()))
    return MeasuredOperators(TableFilesKey(tables.folder, entries))


def _gemm_dtype(precision: Precision) -> str:
    """Return the tables' name of a weight format; "" if they do not have it."""
    if precision.arithmetic == "fp8":
        return "fp8_block" if precision.is_block_scaled else "fp8"
    if precision.arithmetic == "int8":
        return "sq"
    if precision.weight_bits == 16.0:
        return "bfloat16"
    if precision.unpacked_from_rows is not None or precision.name in ("mxfp4", "nvfp4", "fp32"):
        return ""
    return "int8_wo" if precision.weight_bits == 8.0 else "int4_wo" if 4.0 <= precision.weight_bits <= 4.2 else ""


def _sizes(hidden_size: int, moe: MixtureOfExperts) -> tuple[int, int, int, int]:
    return hidden_size, moe.moe_intermediate_size, moe.num_experts_per_tok, moe.num_experts


@lru_cache(maxsize=64)
def _expert_line(
    key: TableFilesKey, dtype: str, sizes: tuple[int, int, int, int], slices: int, groups: int
) -> Line | None:
    columns = read_columns(key.files, "moe_perf")
    if columns is None:
        return None
    asked = dict(zip(("hidden_size", "inter_size", "topk", "num_experts"), sizes, strict=True))
    asked |= {"moe_tp_size": slices, "moe_ep_size": groups}
    chosen = columns["moe_dtype"] == dtype
    for name, value in asked.items():
        chosen &= columns[name] == value
    for distribution in SKEWED:
        these = chosen & (columns["distribution"] == distribution)
        if np.count_nonzero(these) > 1:
            return _line(columns["num_tokens"][these], columns["seconds"][these])
    return None


@lru_cache(maxsize=64)
def _all_reduce_line(key: TableFilesKey, num_ranks: int) -> Line | None:
    columns = read_columns(key.files, "custom_allreduce_perf")
    if columns is None:
        return None
    chosen = columns["num_gpus"] == num_ranks
    captured = np.array(["eager" not in str(name) for name in columns.get("backend", np.array([]))], dtype=bool)
    if len(captured) and (chosen & captured).any():
        chosen &= captured
    if np.count_nonzero(chosen) < 2:
        return None
    return _line(columns["message_size"][chosen] * ALL_REDUCE_ELEMENT_BYTES, columns["seconds"][chosen])


def _line(size: NDArray[np.generic], seconds: Array) -> Line:
    """Return for each size the least time of it or any larger size."""
    sizes, index = np.unique(np.asarray(size, dtype=np.float64), return_inverse=True)
    least = np.full(len(sizes), np.inf)
    np.minimum.at(least, index, seconds)
    return Line(sizes, np.minimum.accumulate(least[::-1])[::-1])


@lru_cache(maxsize=64)
def _attention_samples(
    key: TableFilesKey, table: str, heads: float, kv_heads: float, width: int, is_narrow: bool
) -> Samples | None:
    columns = read_columns(key.files, table)
    if columns is None:
        return None
    chosen = (columns["head_dim"] == width) & (columns["window_size"] == 0)
    chosen &= (columns["kv_cache_dtype"] == "fp8") == is_narrow
    group = columns["num_heads"] / columns["num_key_value_heads"]
    chosen &= np.isclose(group, heads / kv_heads)
    distance = np.where(chosen, np.abs(np.log(columns["num_heads"] / heads)), np.inf)
    if not len(distance) or distance.min() > np.log(NEAREST_HEADS):
        return None
    chosen &= np.isclose(distance, distance.min())
    scale = heads / float(columns["num_heads"][chosen][0])
    is_decode = table == "generation_attention_perf"
    tokens = columns["step"] + 1.0 if is_decode else columns["isl"]
    return Samples(
        np.asarray(columns["batch_size"][chosen], dtype=np.float64),
        np.asarray(tokens[chosen], dtype=np.float64),
        columns["seconds"][chosen] * scale,
    )


def _non_negative_fit(terms: Array, seconds: Array) -> Array:
    """Return the non-negative coefficients of ``terms @ x ~ seconds`` with the least squared relative errors.

    Terms with a negative coefficient are dropped and the others fitted again.
    """
    kept = list(range(terms.shape[1]))
    solution = np.zeros(terms.shape[1])
    while kept:
        weighted = terms[:, kept] / seconds[:, None]
        scale = np.maximum(np.abs(weighted).max(axis=0), np.finfo(float).tiny)
        found = np.linalg.lstsq(weighted / scale, np.ones(len(seconds)), rcond=None)[0] / scale
        if np.all(found >= 0):
            solution[kept] = found
            break
        kept = [index for index, value in zip(kept, found, strict=True) if value > 0]
    return solution


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredAttention:
    """One layer on one rank, like `simserve.perf.attention_curve.FittedAttention`."""

    batches: Array  # Batches of the measured decode steps, ascending.
    bases: Array  # Context-independent seconds of such a step, never falling.
    decode_key_seconds: float  # Seconds per additional key in the contexts of a decode step.
    start: float  # Least seconds of a step of prompts.
    token_seconds: float  # Seconds per token of such a step.
    request_seconds: float  # Seconds per additional prompt in it.
    pair_seconds: float  # Seconds per attended query-key pair.
    prompt_key_seconds: float = 0.0  # Seconds per key that a prompt reads; part of the token here.

    def decode_base_seconds(self, sequences: Array) -> Array:
        """Return the context-independent seconds of a decode step."""
        grown = np.maximum(sequences / self.batches[-1], 1.0)
        return np.asarray(np.interp(sequences, self.batches, self.bases) * grown)

    def prompt_seconds(self, tokens: Array) -> Array:
        """Return the seconds of a step of prompts with ``tokens`` in all, without pairs."""
        return np.asarray(self.start + tokens * self.token_seconds)


def measured_attention(decode: Samples, prompts: Samples) -> MeasuredAttention:
    """Return the affine forms of measured calls, fitted by least squares of relative errors."""
    batches = np.unique(decode.batch)
    key, bases = _decode(decode, batches)
    total = prompts.batch * prompts.tokens
    pairs = prompts.batch * prompts.tokens * (prompts.tokens + 1.0) / 2.0
    terms = np.stack((np.ones_like(total), total, prompts.batch, pairs), axis=1)
    start, token, request, pair = _non_negative_fit(terms, prompts.seconds)
    return MeasuredAttention(
        batches=batches,
        bases=np.maximum.accumulate(bases),
        decode_key_seconds=key,
        start=float(start),
        token_seconds=float(token),
        request_seconds=float(request),
        pair_seconds=float(pair),
    )


def _decode(decode: Samples, batches: Array) -> tuple[float, Array]:
    """Return the seconds per key at full occupancy, and the rest of a step by batch.

    The time per key is the least-squares fit over the larger half of the numbers of keys, where keys take most of the
    time. The rest of each batch is the median excess of its calls with common contexts: starts grow with the logarithm
    of the context, and the longest would be charged to every step.
    """
    keys = decode.batch * decode.tokens
    long = keys >= np.median(keys)
    terms = np.stack((np.ones(np.count_nonzero(long)), keys[long]), axis=1)
    key = float(_non_negative_fit(terms, decode.seconds[long])[1])
    rest = np.maximum(decode.seconds - key * keys, 0.0)
    floor = float(decode.seconds.min())
    bases = []
    for batch in batches:
        own = decode.batch == batch
        common = own & (decode.tokens >= COMMON_CONTEXTS[0]) & (decode.tokens <= COMMON_CONTEXTS[1])
        bases.append(max(float(np.median(rest[common if common.any() else own])), floor))
    return key, np.array(bases)
