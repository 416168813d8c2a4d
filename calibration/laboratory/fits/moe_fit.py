"""Fits curves of routed experts to measured layers: sorting, both GEMMs, activation and weighted sum together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from calibration.laboratory.fits.gemm_fit import fit_parameters
from calibration.laboratory.fits.gemm_tables import read_table
from simserve.perf.efficiency import Array
from simserve.perf.gemm import GemmDevice
from simserve.perf.moe import ExpertLoad, ExpertShape, expert_seconds
from simserve.profiles.kernel_curves import GroupedGemmCurve

SKEWS = {"balanced": 0.0, "power_law_1.01": 1.01, "power_law_1.2": 1.2}
"""Exponent of the density from which the benchmark draws the popularity of experts."""

GROUPED_HIDDEN, GROUPED_EXPERTS = 7168, 256
"""DeepSeek-V3, whose router first chooses 4 of 8 groups."""

NUM_DRAWS = 4
"""Routings drawn for the expectation; the benchmark itself timed one."""

ALL_PAIRS = 0.9
"""Share of the routed pairs above which a rank is assumed to compute all of them."""

NUM_FITTED_ROWS = 2000
"""Rows drawn for a fit."""

WEIGHT_BITS = {
    "bfloat16": 16.0,
    "fp8": 8.0,
    "fp8_block": 8.0,
    "int4_wo": 4.125,
    "w4a16_mxfp4": 4.25,
    "w4a8_mxfp4_mxfp8": 4.25,
    "nvfp4": 4.5,
}
"""Bits per weight with its scales: 16 bits per 128 weights in int4_wo, 8 per 32 in MXFP4, 8 per 16 in NVFP4."""

INPUT_BYTES = {"fp8": 1.0, "fp8_block": 1.0, "w4a8_mxfp4_mxfp8": 1.0, "nvfp4": 4.5 / 8}
"""Bytes per activation element that experts multiply; 2 otherwise."""

BOUNDS: Mapping[str, tuple[float, float]] = {
    "start_latency": (1e-6, 2e-4),
    "efficiency": (0.1, 1.0),
    "loop_overhead": (1.0, 5000.0),
    "overlap": (1.0, 8.0),
    "memory_efficiency": (0.1, 1.0),
    "expert_latency": (1e-10, 5e-6),
    "routed_passes": (1e-3, 30.0),
    "local_passes": (1e-3, 30.0),
}
"""Range of each parameter; its logarithm is fitted."""

START: Mapping[str, float] = {
    "start_latency": 25e-6,
    "efficiency": 0.6,
    "loop_overhead": 200.0,
    "overlap": 2.0,
    "memory_efficiency": 0.85,
    "expert_latency": 3e-8,
    "routed_passes": 0.3,
    "local_passes": 2.0,
}
"""Initial values of a fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertCalls:
    """Measured layers of routed experts on the busiest rank.

    Attributes:
        shape: Sizes of an expert on the rank.
        load: Pairs and experts of the rank.
        seconds: Measured time.
    """

    shape: ExpertShape
    load: ExpertLoad
    seconds: Array


def moe_rows(
    data: Path,
    hardware: str,
    framework: str,
    dtype: str,
    kernel: str,
    version: str = "*",
    *,
    most_ranks: int | None = None,
) -> pd.DataFrame:
    """Return the rows of one format and of the kernels whose name contains ``kernel``.

    ``most_ranks``: only rows in which at most this many ranks share the experts.
    """
    table = read_table(data, hardware, "moe", framework, version)
    is_chosen = (table["moe_dtype"] == dtype) & table["kernel_source"].str.contains(kernel)
    if most_ranks is not None:
        is_chosen &= table["moe_ep_size"] <= most_ranks
    if framework == "sglang":
        # Experts are chosen by groups there: 8 evenly spread ones of 64 tokens take less than reading all would.
        is_chosen &= (table["hidden_size"] != GROUPED_HIDDEN) | (table["num_experts"] != GROUPED_EXPERTS)
    return table[is_chosen].reset_index(drop=True)


def expert_calls(rows: pd.DataFrame, dtype: str) -> ExpertCalls:
    """Return the rows as calls, with the busiest rank's pairs and distinct experts as the benchmark drew them."""
    generator = np.random.default_rng(0)
    keys = ["num_tokens", "num_experts", "topk", "moe_ep_size", "distribution"]
    cases = rows[keys].drop_duplicates().reset_index(drop=True)
    loads = [
        busiest_rank(int(tokens), int(experts), int(topk), int(ranks), SKEWS[str(name)], generator)
        for tokens, experts, topk, ranks, name in cases.itertuples(index=False)
    ]
    cases[["pairs", "distinct"]] = np.array(loads)
    merged = rows.merge(cases, on=keys, how="left")
    column = {name: merged[name].to_numpy(dtype=np.float64) for name in merged.select_dtypes("number")}
    is_gated = ~merged["kernel_source"].str.contains("nongated").to_numpy()
    shape = ExpertShape(
        hidden_size=column["hidden_size"],
        intermediate_size=column["inter_size"] / column["moe_tp_size"],
        up_projections=np.where(is_gated, 2.0, 1.0),
        weight_bits=WEIGHT_BITS[dtype],
        input_bytes=INPUT_BYTES.get(dtype, 2.0),
    )
    load = ExpertLoad(
        pairs=column["pairs"],
        distinct=np.minimum(column["distinct"], column["pairs"]),
        routed=column["num_tokens"] * column["topk"],
        held=column["num_experts"] / column["moe_ep_size"],
        tokens=column["num_tokens"],
    )
    return ExpertCalls(shape=shape, load=load, seconds=column["seconds"])


def busiest_rank(
    tokens: int, num_experts: int, topk: int, ranks: int, exponent: float, generator: np.random.Generator
) -> tuple[float, float]:
    """Return the mean pairs and distinct experts of the rank with most pairs, as AIConfigurator draws routings.

    Popularity is drawn from ``x^-exponent`` on [1, 0.8 tokens] (on [0.01, 2] if there are fewer pairs than experts),
    scaled to ``tokens * topk`` pairs and rounded; pairs lost by rounding go to further experts, one each
    (collector/helper.py), equally on every rank. Exponent 0 is an even spread.
    """
    pairs = tokens * topk
    if exponent == 0:
        return max(pairs / ranks, 1.0), max(min(num_experts, pairs) / ranks, 1.0)
    low, high = (1.0, 0.8 * tokens) if pairs > num_experts else (0.01, 2.0)
    power = 1.0 - exponent
    uniform = generator.random((NUM_DRAWS, num_experts))
    drawn = ((high**power - low**power) * uniform + low**power) ** (1.0 / power)
    counts = np.round(np.minimum(drawn / drawn.sum(axis=1, keepdims=True) * pairs, tokens))
    by_rank = counts.reshape(NUM_DRAWS, ranks, num_experts // ranks)
    busiest = by_rank[np.arange(NUM_DRAWS), by_rank.sum(axis=2).argmax(axis=1)]
    lost = np.maximum(pairs - counts.sum(axis=1), 0.0) / ranks
    used = (busiest > 0).sum(axis=1)
    # Popular experts get the lost pairs first, then unused ones.
    further = np.clip(lost - used, 0.0, num_experts // ranks - used)
    return max(float((busiest.sum(axis=1) + lost).mean()), 1.0), max(float((used + further).mean()), 1.0)


def fit_moe(
    calls: ExpertCalls, device: GemmDevice, tile_rows: int, kept: Mapping[str, float] | None = None
) -> GroupedGemmCurve:
    """Return the curve with the least soft-L1 error of the logarithm of the time.

    Args:
        calls: Measured layers.
        device: The GPU.
        tile_rows: Rows of a tile.
        kept: Parameters that are given and not fitted.
    """
    drawn, kept = draw(calls, NUM_FITTED_ROWS), kept or {}
    if np.all(calls.load.pairs > ALL_PAIRS * np.asarray(calls.load.routed)):
        # Without expert parallelism the passes cannot be told apart; Triton's kernels move every routed pair.
        kept = {**kept, "local_passes": BOUNDS["local_passes"][0]}
    values = fit_parameters(
        lambda given: predict_experts(_curve({**given, **kept}, tile_rows), drawn, device),
        drawn.seconds,
        {name: value for name, value in START.items() if name not in kept},
        BOUNDS,
    )
    return _curve({**values, **kept}, tile_rows)


def joined(parts: Sequence[tuple[ExpertCalls, pd.DataFrame]]) -> ExpertCalls:
    """Return calls of one kernel in several formats, with their rows; every rank sorts all experts.

    With formats of 384 and 896 experts the start of a call and the time per expert can be told apart.
    """

    def column(values: Callable[[ExpertCalls], Array | float]) -> Array:
        return np.concatenate([np.broadcast_to(values(calls), len(calls.seconds)) for calls, _ in parts])

    shape = ExpertShape(
        hidden_size=column(lambda calls: calls.shape.hidden_size),
        intermediate_size=column(lambda calls: calls.shape.intermediate_size),
        up_projections=column(lambda calls: calls.shape.up_projections),
        weight_bits=column(lambda calls: calls.shape.weight_bits),
        input_bytes=parts[0][0].shape.input_bytes,
    )
    load = ExpertLoad(
        pairs=column(lambda calls: calls.load.pairs),
        distinct=column(lambda calls: calls.load.distinct),
        routed=column(lambda calls: calls.load.routed),
        held=np.concatenate([rows["num_experts"].to_numpy(dtype=np.float64) for _, rows in parts]),
        tokens=column(lambda calls: calls.load.tokens),
    )
    return ExpertCalls(shape=shape, load=load, seconds=column(lambda calls: calls.seconds))


def predict_experts(curve: GroupedGemmCurve, calls: ExpertCalls, device: GemmDevice) -> Array:
    """Return the seconds of the calls."""
    return expert_seconds(curve, device, calls.shape, calls.load).total


def draw(calls: ExpertCalls, count: int) -> ExpertCalls:
    """Return ``count`` calls drawn without replacement, or all of them if there are fewer."""
    return chosen_calls(calls, np.random.default_rng(0).permutation(len(calls.seconds))[:count])


def chosen_calls(calls: ExpertCalls, chosen: NDArray[Any]) -> ExpertCalls:
    """Return some calls, by index or by a mask."""
    size, shape, load = len(calls.seconds), calls.shape, calls.load
    return ExpertCalls(
        shape=ExpertShape(
            hidden_size=np.asarray(shape.hidden_size)[chosen],
            intermediate_size=np.asarray(shape.intermediate_size)[chosen],
            up_projections=np.asarray(shape.up_projections)[chosen],
            weight_bits=np.broadcast_to(shape.weight_bits, size)[chosen],
            input_bytes=shape.input_bytes,
        ),
        load=ExpertLoad(
            pairs=load.pairs[chosen],
            distinct=load.distinct[chosen],
            routed=load.routed[chosen],
            held=np.asarray(load.held)[chosen],
            tokens=load.tokens[chosen],
        ),
        seconds=calls.seconds[chosen],
    )


def _curve(values: Mapping[str, float], tile_rows: int) -> GroupedGemmCurve:
    parameters: dict[str, Any] = {**values, "tile_rows": tile_rows}
    return GroupedGemmCurve.model_construct(**parameters)
