"""Fits curves of AMD's MI300X and MI355X to the times that its kernel library AITER ships with the kernels it tuned.

Products in block-scaled FP8 were timed on an MI300X (304 compute units), routed experts on an MI308X (80 of the same
units, the same memory), so that experts are scaled by the number of units. AITER's tables hold only the best kernel of
each size: no rounding of inputs, no sorting of tokens. Experts in MXFP4, which its Triton kernels unpack to 16 bits,
were timed for a pull request, each of their two products separately. So were those that engines run without AITER:
Triton's, for which shares of the two peaks are fitted and the rest is taken from AITER's. Experts in INT4 are Triton's
with and without AITER; their layers were timed on MI300X and MI355X. Products in block-scaled FP8 by AITER's Triton
kernel, which SGLang runs, were timed in a profile of a server and by developers who replace them. Products of 256
compute units, which MI350X and MI355X have, are taken as an MI355X's; experts in block-scaled FP8 were timed there too,
and later ones in MXFP4 with inputs in MXFP4 (`TUNED_MXFP4`).
How far arithmetic hides memory traffic is fitted alone to 16-bit products of an MI300X. ``python -m
calibration.laboratory.fits.aiter_fit FOLDER`` prints the constants, with the errors of whole weights left out; FOLDER
is ``aiter/configs`` of amd-aiter 0.1.7 (MIT).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from calibration.laboratory.fits.gemm_fit import BOUNDS, START, fit_parameters
from calibration.laboratory.fits.moe_fit import ExpertCalls, fit_moe, predict_experts
from simserve.calibrate.kernel_prediction import machine_of
from simserve.perf.efficiency import Array
from simserve.perf.gemm import GemmDevice, gemm_curve, gemm_seconds, grouped_gemm_seconds
from simserve.perf.moe import ExpertLoad, ExpertShape
from simserve.profiles.hardware import load_hardware
from simserve.profiles.kernel_curves import GemmClass, GemmCurve, GroupedGemmCurve

UNITS, MI308X_UNITS, CDNA4_UNITS = 304, 80, 256
PEAKS = {8.0: 2614.9e12, 16.0: 1307.4e12}
"""FLOP/s of an MI300X by bits (data sheet)."""
BANDWIDTH = 5.3e12
MI300X = GemmDevice(peak=PEAKS[8.0], bandwidth=BANDWIDTH, num_multiprocessors=UNITS)
"""In 8 bits."""
CDNA4 = {
    bits: GemmDevice(peak=peak, bandwidth=8e12, num_multiprocessors=CDNA4_UNITS)
    for bits, peak in (
        (8.0, 5033.2e12),
        (16.0, 2516.6e12),
    )
}
"""An MI355X by bits (data sheet)."""

FREE = (
    "start_latency",
    "efficiency",
    "loop_overhead",
    "wave_quantisation",
    "overlap",
    "memory_efficiency",
    "split_latency",
)
MAX_SPLITS, TILE_ROWS = 4, 64
"""The best of 1, 4 and 8 splits and tiles of 16 to 256 rows; the sustained rate fits that of short calls."""

FITTED_BOUNDS = {**BOUNDS, "efficiency": (0.05, 1.0), "memory_efficiency": (0.1, 1.0)}
SECONDS = 1e-6

MXFP4_EXPERTS, MXFP4_CHOSEN, MXFP4_HIDDEN, MXFP4_WIDTH = 896, 16, 3584, 384
MXFP4_CALLS = ((8, 66.0, 52.0), (32, 240.0, 108.0), (8192, 2346.0, 1463.0), (16384, 4022.0, 2551.0))
"""Tokens, and microseconds of gate with up and of down: the best of twelve tiles for Kimi-K3 on eight MI325X
(sgl-project/sglang pull request 35523)."""
MXFP4_BITS, MXFP4_NARROW, MXFP4_TILE = 4.25, 512, 64
"""Bits per weight with its scales, and tiles: of 16 rows up to about 512 tokens, of 64 beyond."""
MXFP4_DEVICE = GemmDevice(peak=PEAKS[16.0], bandwidth=6.0e12, num_multiprocessors=UNITS)
"""An MI325X."""
MXFP4_LOOP = 100.0
"""Columns for the start of a tile, as for each product separately; four calls of a layer determine three constants."""

TUNED_MXFP4 = (
    (
        "kimik2_fp4",
        7168,
        512,
        384,
        8,
        {
            1: 34.2,
            2: 37.5,
            4: 47.3,
            8: 75.5,
            16: 120.1,
            32: 206.5,
            64: 294.8,
            128: 363.0,
            256: 395.1,
            1024: 475.9,
            2048: 613.3,
            4096: 1066.8,
            8192: 1501.3,
            16384: 2692.6,
        },
    ),
    (
        "kimik2_fp4",
        7168,
        256,
        384,
        8,
        {
            1: 29.9,
            2: 33.4,
            4: 35.9,
            8: 45.8,
            16: 68.0,
            32: 108.7,
            64: 158.3,
            128: 194.8,
            256: 210.0,
            1024: 257.7,
            2048: 365.9,
            4096: 565.6,
            8192: 1045.1,
            16384: 1947.3,
        },
    ),
    (
        "qwen3_5_397b_fp4",
        4096,
        256,
        512,
        10,
        {1: 19.4, 2: 20.4, 4: 20.9, 8: 26.9, 16: 55.3, 32: 81.8, 64: 114.6, 128: 140.6, 256: 153.4, 512: 160.4},
    ),
    (
        "qwen3_5_397b_fp4",
        4096,
        512,
        512,
        10,
        {1: 21.3, 2: 21.7, 4: 26.0, 8: 53.9, 16: 75.4, 32: 129.4, 64: 190.3, 128: 239.6, 256: 278.2, 512: 288.0},
    ),
    (
        "glm5_fp4",
        6144,
        2048,
        257,
        9,
        {1: 37.0, 2: 67.0, 4: 118.3, 8: 197.6, 16: 438.0, 32: 520.8, 64: 768.0, 128: 781.8, 256: 787.0, 512: 801.5},
    ),
    (
        "glm5_fp4",
        6144,
        1024,
        257,
        9,
        {1: 29.2, 2: 36.3, 4: 70.7, 8: 101.4, 16: 176.0, 32: 271.7, 64: 358.1, 128: 389.5, 256: 411.0, 512: 415.3},
    ),
    (
        "glm5_fp4",
        6144,
        512,
        257,
        9,
        {1: 18.9, 2: 28.8, 4: 35.5, 8: 68.1, 16: 91.5, 32: 135.4, 64: 181.5, 128: 206.0, 256: 217.9, 512: 222.8},
    ),
)
"""Layers in MXFP4 with inputs in MXFP4 on 256 compute units: table, width of the model and of an expert, experts,
experts per token, tokens and microseconds. ROCm/aiter, aiter/configs/model_configs, files named so with _tuned_fmoe.csv
(MIT): kimik2 at 000fd078, from 1,024 tokens on its rows without FlyDSL; qwen3_5_397b at 14de07d8; glm5 at 01ff06ed.
Prompts of the other two, all by FlyDSL, take 0.6 to 0.8 of what these give and are left out: which a release runs is
not said, and with them first tokens of three more laboratories come too early."""
TUNED_MXFP4_TILE, SORTING = 32, 15e-6
"""Rows of a tile; seconds of the kernels that sort tokens and round inputs, which the tables leave out."""


TRITON_EXPERTS, TRITON_CHOSEN, TRITON_HIDDEN = 8, 2, 4096
TRITON_TABLES: Mapping[GemmClass, tuple[tuple[float, Mapping[int, Mapping[int, float]]], ...]] = {
    "bf16": (
        (
            80.2,
            {
                7168: {64: 270.2, 128: 279.3, 1024: 649.7, 4096: 1300.6},
                14336: {64: 422.6, 128: 425.7, 256: 483.2},
            },
        ),
    ),
    "fp8": (
        (
            91.0,
            {
                7168: {64: 236.3, 128: 239.2, 1024: 318.1, 4096: 702.5},
                14336: {64: 319.0, 128: 321.2, 256: 361.3, 512: 382.0, 1024: 512.3, 2048: 779.6, 4096: 1430.1},
            },
        ),
        (
            101.0,
            {
                7168: {64: 237.0, 128: 246.6, 1024: 367.4, 4096: 859.8},
                14336: {64: 316.0, 128: 325.8, 256: 366.2, 512: 419.6, 1024: 584.2},
            },
        ),
    ),
}
"""Tables of one product by Triton on an MI300X: microseconds of an almost empty call (64 tokens, 128 by 256), which is
all Python's time; then columns, tokens and microseconds. From ROCm/triton pull requests 685 (the wider up to 256
tokens), 693 (in TFLOP/s) and 702 (up to 1,024)."""

INT4_PROMPTS = (
    ("GEAK", 4096, 7168, 256, 384, 8, 4.27),
    ("GEAK", 8192, 7168, 256, 384, 8, 7.55),
    ("GEAK", 16384, 7168, 256, 384, 8, 14.87),
    ("blog", 16384, 7168, 512, 384, 8, 31.43),
    ("blog", 512, 2048, 512, 64, 4, 0.29),
    ("blog", 2048, 4096, 512, 64, 8, 1.90),
    ("blog", 4096, 7168, 512, 128, 8, 6.81),
)
"""Layers in INT4 by groups of 32 on an MI300X, with Triton's default tiles: source, tokens, width of the model and of
an expert, experts, experts per token, milliseconds. vLLM 0.21 (AMD-AGI/GEAK, perf_knowledge/case_studies/by_model,
kimi_k2.6_int4_moe_mi300x), and SGLang 0.5.8 with Triton 3.5.1 (AMD ROCm blog "Accelerating Kimi-K2.5 on AMD Instinct
MI300X", 2026-03-24)."""
INT4_DECODES = ((1, 0.212), (2, 0.241), (4, 0.298), (8, 0.415))
"""Tokens and milliseconds of a layer of Kimi-K2.5 over eight MI355X (SGLang pull request 22208, the default tiles)."""
INT4_PLATEAU = (("34460", 128, 9.1), ("34460", 512, 9.4), ("34460", 2048, 9.7), ("34460", 16384, 29.6))
"""Source, tokens and milliseconds of a layer of Kimi-K2.5 over four MI350X with the default tiles ("flat at 9.1 to 9.7
ms from M=128 to M=2048", and twice 14.8 ms a call in a profile of prompts, as chunks of 16,384, the default: SGLang
pull request 34460, Triton 3.6.0; a file named for 256 columns is one for 512 there, as pull request 20023 says)."""
INT4_TILES = {"tile_rows": 32, "narrow_tile_rows": 16, "narrow_tokens": 20}
"""Default tiles: of 16 rows up to 20 tokens, 32 up to 40, 64 beyond (vLLM 0.15.1 to 0.24.0 fused_moe.py,
get_default_config), or 16 up to as many tokens as experts (SGLang): 32 stand in for all but the first. With 64 rows
prompts of 16,384 tokens come out at +61 %."""
INT4_BITS = 4.5
INT4_PACES: Mapping[str, float] = {
    "mi300x-192gb": 1.0,
    "mi325x-256gb": 1.0,
    "mi350x-288gb": 256 * 2.2 / (304 * 2.1),
    "mi355x-288gb": 256 * 2.4 / (304 * 2.1),
}
"""Compute units times their clock (data sheets), relative to an MI300X: they unpack the weights, and so limit these
kernels."""
INT4_FREE = {"efficiency": 0.1, "memory_efficiency": 0.15, "step_latency": 2e-6}
INT4_BOUNDS = {
    **FITTED_BOUNDS,
    "efficiency": (0.01, 1.0),
    "memory_efficiency": (0.01, 1.0),
    "step_latency": (1e-8, 1e-5),
}

SHUFFLED_TABLES = (
    "a8w8_blockscale_bpreshuffle_tuned_gemm.csv",
    "model_configs/a8w8_blockscale_bpreshuffle_tuned_gemm_dsv3.csv",
)
"""Block-scaled FP8 of 256 compute units with shuffled weights; sizes that both hold count once, by the faster."""
BLOCK_EXPERTS = 256
"""Experts of DeepSeek's layer, which AITER's kernels for block scales were tuned for on an MI308X: with 128 experts of
4,096 by 384 they take three times as long."""
LONG_TOKENS = 512
"""Tokens from which those kernels take longer than those of scales by token: the second product adds up in memory."""
BLOCK_PASSES = (0.1, 30.0)

TRITON_PRODUCTS = (
    ("InferenceX", 64, 2112, 7168, 123.0, 6.0e12),
    ("InferenceX", 64, 4608, 7168, 122.0, 6.0e12),
    ("InferenceX", 64, 7168, 2304, 39.0, 6.0e12),
    ("InferenceX", 64, 7168, 2048, 34.0, 6.0e12),
    ("InferenceX", 64, 3072, 1536, 30.0, 6.0e12),
    ("GEAK", 1024, 34816, 5120, 805.0, BANDWIDTH),
    ("GEAK", 1024, 5120, 17408, 529.5, BANDWIDTH),
    ("GEAK", 1024, 5120, 5120, 166.1, BANDWIDTH),
    ("GEAK", 13645, 8704, 5120, 2600.0, BANDWIDTH),
)
"""Products in block-scaled FP8 by AITER's Triton kernel with its default tiles: source, rows, columns, reduction,
microseconds, bandwidth of the GPU. A profile of DeepSeek-R1 on eight MI325X under SGLang 0.5.9, 64 sequences
(SemiAnalysisAI/InferenceX issue 863, March 2026; its labels give columns of one rank and of all, corrected here by how
often each occurs: three per layer of 61, two in three dense layers), and Qwen3-14B on MI300X (AMD-AGI/GEAK,
e2e_workflow/knowledge/learned/fp8-a8w8-blockscale-overlay-gfx942.md; calls in a loop, timed by events)."""
TRITON_TILE_ROWS = 256
"""Tiles of 128 rows by 128 columns, expressed in tiles of 64 columns: the same work."""


def product_rows(folder: Path) -> pd.DataFrame:
    """Return the products in FP8 by blocks: ``m n k seconds``."""
    table = pd.read_csv(folder / "a8w8_blockscale_tuned_gemm.csv")
    chosen = table[table["cu_num"] == UNITS]
    return pd.DataFrame({"m": chosen["M"], "n": chosen["N"], "k": chosen["K"], "seconds": chosen["us"] * SECONDS})


def fit_products(rows: pd.DataFrame, device: GemmDevice = MI300X) -> GemmCurve:
    """Return the curve with the least soft-L1 error of the logarithm of the time."""
    values = fit_parameters(
        lambda given: predict_products(_curve(given), rows, device),
        rows["seconds"].to_numpy(dtype=np.float64),
        {**{name: START[name] for name in FREE}, "efficiency": 0.3, "overlap": 1.5},
        FITTED_BOUNDS,
    )
    return _curve(values)


def predict_products(curve: GemmCurve, rows: pd.DataFrame, device: GemmDevice = MI300X) -> Array:
    """Return the seconds of the products: weights and inputs in 8 bits, outputs in 16."""
    m, n, k = (rows[name].to_numpy(dtype=np.float64) for name in ("m", "n", "k"))
    num_bytes = n * k + m * (k + 2.0 * n)
    return gemm_seconds(curve, device, rows=m, out_features=n, in_features=k, num_bytes=num_bytes).total


def batched_rows(folder: Path) -> pd.DataFrame:
    """Return 16-bit products of 16 equal matrices at once on an MI300X, each as one that is 16 times as wide."""
    table = pd.read_csv(folder / "bf16_tuned_batched_gemm.csv", skipinitialspace=True)
    chosen = table[table["cu_num"] == UNITS]
    columns = chosen["B"] * chosen["N"]
    return pd.DataFrame({"m": chosen["M"], "n": columns, "k": chosen["K"], "seconds": chosen["us"] * SECONDS})


def class_curve(name: str, overlap: float, dtype: str = "bf16") -> GemmCurve:
    """Return the products of a GPU by its class efficiencies, with an exponent of the overlap of its own."""
    hardware = load_hardware(name)
    bare = hardware.model_copy(update={"gemm_curves": {}})
    machine = replace(machine_of(bare, "vllm"), gemm_overlap=overlap)
    return gemm_curve(machine, None, dtype)


def predict_batched(curve: GemmCurve, rows: pd.DataFrame) -> Array:
    """Return the seconds of 16-bit products on an MI300X."""
    m, n, k = (rows[name].to_numpy(dtype=np.float64) for name in ("m", "n", "k"))
    device = GemmDevice(peak=PEAKS[16.0], bandwidth=BANDWIDTH, num_multiprocessors=UNITS)
    num_bytes = 2.0 * (n * k + m * (k + n))
    return gemm_seconds(curve, device, rows=m, out_features=n, in_features=k, num_bytes=num_bytes).total


def fit_overlap(rows: pd.DataFrame) -> float:
    """Return the exponent with the least soft-L1 error of the logarithm, all else as the class has it."""
    curve = class_curve("mi300x-192gb", 1.0)
    values = fit_parameters(
        lambda given: predict_batched(curve.model_copy(update=given), rows),
        rows["seconds"].to_numpy(dtype=np.float64),
        {"overlap": 2.0},
        FITTED_BOUNDS,
    )
    return values["overlap"]


def shuffled_rows(folder: Path) -> pd.DataFrame:
    """Return the products in FP8 by blocks of 256 compute units: ``m n k seconds``."""
    tables = pd.concat([pd.read_csv(folder / name) for name in SHUFFLED_TABLES])
    chosen = tables[tables["cu_num"] == CDNA4_UNITS].rename(columns={"M": "m", "N": "n", "K": "k"})
    fastest = chosen.groupby(["m", "n", "k"], as_index=False)["us"].min()
    rows: pd.DataFrame = fastest.assign(seconds=fastest["us"] * SECONDS)[["m", "n", "k", "seconds"]]
    return rows


def token_rows(folder: Path) -> pd.DataFrame:
    """Return the products in FP8 by token of 256 compute units, to which nothing is fitted: ``m n k seconds``."""
    table = pd.read_csv(folder / "a8w8_bpreshuffle_tuned_gemm.csv")
    chosen = table[table["cu_num"] == CDNA4_UNITS].rename(columns={"M": "m", "N": "n", "K": "k"})
    return chosen.assign(seconds=chosen["us"] * SECONDS)[["m", "n", "k", "seconds"]]


def triton_products() -> pd.DataFrame:
    """Return products in FP8 by blocks by Triton: ``source m n k us bandwidth``."""
    return pd.DataFrame(TRITON_PRODUCTS, columns=["source", "m", "n", "k", "us", "bandwidth"])


def fit_triton_products(rows: pd.DataFrame) -> GemmCurve:
    """Return the curve of Triton's tiles with the fitted share of the peak: least soft-L1 error of the logarithm."""
    values = fit_parameters(
        lambda given: predict_triton_products(_triton_curve(given), rows),
        rows["us"].to_numpy(dtype=np.float64) * SECONDS,
        {"efficiency": 0.2},
        FITTED_BOUNDS,
    )
    return _triton_curve(values)


def predict_triton_products(curve: GemmCurve, rows: pd.DataFrame) -> Array:
    """Return the seconds of the products, each GPU with its own bandwidth."""
    seconds = np.empty(len(rows))
    for bandwidth, chosen in rows.groupby("bandwidth"):
        device = GemmDevice(peak=PEAKS[8.0], bandwidth=float(str(bandwidth)), num_multiprocessors=UNITS)
        m, n, k = (chosen[name].to_numpy(dtype=np.float64) for name in ("m", "n", "k"))
        num_bytes = n * k + m * (k + 2.0 * n)
        call = gemm_seconds(curve, device, rows=m, out_features=n, in_features=k, num_bytes=num_bytes)
        seconds[rows.index.get_indexer(chosen.index)] = call.total
    return seconds


def _triton_curve(values: Mapping[str, float]) -> GemmCurve:
    """Return tiles without splits or overlap: start-up as in AITER's products, memory as in the GPU's class."""
    constants: dict[str, Any] = {
        "start_latency": 1.86e-6,
        "loop_overhead": 0.0,
        "overlap": 8.0,
        "memory_efficiency": 0.75,
        "wave_quantisation": 1.0,
        "min_tile_rows": TRITON_TILE_ROWS,
        "max_tile_rows": TRITON_TILE_ROWS,
        **values,
        "sustained_efficiency": values["efficiency"],
    }
    return GemmCurve.model_construct(**constants)


def triton_product_errors(seen: pd.DataFrame, tested: pd.DataFrame) -> Array:
    """Return predicted / measured - 1 of products by Triton from a fit to others."""
    measured = tested["us"].to_numpy(dtype=np.float64) * SECONDS
    return np.asarray(predict_triton_products(fit_triton_products(seen), tested) / measured - 1.0)


def _curve(values: Mapping[str, float]) -> GemmCurve:
    constants: dict[str, Any] = {
        **values,
        "sustained_efficiency": values["efficiency"],
        "max_splits": MAX_SPLITS,
        "max_tile_rows": TILE_ROWS,
    }
    return GemmCurve.model_construct(**constants)


def expert_rows(folder: Path, *, rounding: str, bits: float, units: int = MI308X_UNITS) -> pd.DataFrame:
    """Return the fastest calls with 128 experts or more, rounded by ``rounding`` (AITER's ``q_type``), on an MI308X, or
    on the GPU with so many compute units."""
    table = pd.read_csv(folder / "tuned_fmoe.csv")
    dtype = "float8" if bits == 8.0 else "bfloat16"
    is_chosen = table["q_type"].str.endswith(rounding) & table["q_dtype_w"].str.contains(dtype)
    chosen = table[is_chosen & (table["cu_num"] == units) & (table["expert"] >= 128)]
    sizes = ["token", "model_dim", "inter_dim", "expert", "topk", "use_g1u1"]
    return chosen.sort_values("us").drop_duplicates(sizes).reset_index(drop=True)


def expert_calls(rows: pd.DataFrame, bits: float) -> ExpertCalls:
    """Return the rows as calls; the benchmark chooses experts evenly, each token its own."""
    experts, chosen, tokens = (rows[name].to_numpy(dtype=np.float64) for name in ("expert", "topk", "token"))
    shape = ExpertShape(
        hidden_size=rows["model_dim"].to_numpy(dtype=np.float64),
        intermediate_size=rows["inter_dim"].to_numpy(dtype=np.float64),
        up_projections=np.where(rows["use_g1u1"] == 1, 2.0, 1.0),
        weight_bits=bits,
        input_bytes=bits / 8,
    )
    load = ExpertLoad(
        pairs=tokens * chosen,
        distinct=experts * (1.0 - (1.0 - chosen / experts) ** tokens),
        routed=tokens * chosen,
        held=experts,
        tokens=tokens,
    )
    return ExpertCalls(shape=shape, load=load, seconds=rows["us"].to_numpy(dtype=np.float64) * SECONDS)


def expert_device(bits: float) -> GemmDevice:
    """Return the properties of an MI308X that matter to the calls."""
    return GemmDevice(peak=PEAKS[bits] * MI308X_UNITS / UNITS, bandwidth=BANDWIDTH, num_multiprocessors=MI308X_UNITS)


def held_out(rows: pd.DataFrame, weights: list[str], error: Callable[[pd.DataFrame, pd.DataFrame], Array]) -> float:
    """Return the median absolute error of calls whose weights no fit saw; ``error`` takes seen and unseen rows."""

    def unseen(chosen: pd.DataFrame) -> Array:
        return error(rows.drop(chosen.index).reset_index(drop=True), chosen.reset_index(drop=True))

    groups: list[tuple[Hashable, pd.DataFrame]] = list(rows.groupby(weights))
    return float(np.median(np.abs(np.concatenate([unseen(chosen) for _, chosen in groups]))))


def product_errors(seen: pd.DataFrame, tested: pd.DataFrame, device: GemmDevice = MI300X) -> Array:
    """Return predicted / measured - 1 of rows from a fit to others."""
    measured = tested["seconds"].to_numpy(dtype=np.float64)
    return np.asarray(predict_products(fit_products(seen, device), tested, device) / measured - 1.0)


def expert_errors(seen: pd.DataFrame, tested: pd.DataFrame, *, bits: float, tile_rows: int) -> Array:
    """Return the same of routed experts."""
    device, calls = expert_device(bits), expert_calls(tested, bits)
    curve = fit_moe(expert_calls(seen, bits), device, tile_rows)
    return np.asarray(predict_experts(curve, calls, device) / calls.seconds - 1.0)


def fit_block_experts(rows: pd.DataFrame) -> GroupedGemmCurve:
    """Return the curve of experts in block-scaled FP8 on an MI355X; all passes are of pairs that are computed."""
    return _of_computed_pairs(fit_moe(expert_calls(rows, 8.0), CDNA4[8.0], TILE_ROWS))


def _of_computed_pairs(curve: GroupedGemmCurve) -> GroupedGemmCurve:
    passes = curve.routed_passes + curve.local_passes
    return curve.model_copy(update={"routed_passes": 0.001, "local_passes": passes})


def block_expert_errors(seen: pd.DataFrame, tested: pd.DataFrame) -> Array:
    """Return predicted / measured - 1 of layers on an MI355X from a fit to others."""
    calls = expert_calls(tested, 8.0)
    return np.asarray(predict_experts(fit_block_experts(seen), calls, CDNA4[8.0]) / calls.seconds - 1.0)


def fit_block_passes(rows: pd.DataFrame, curve: GroupedGemmCurve) -> float:
    """Return the passes over its pairs that block scales add on an MI308X to a curve of scales by token.

    Fitted to the layers of `BLOCK_EXPERTS` with `LONG_TOKENS` and more, where the two kinds of kernels differ.
    """
    chosen = rows[(rows["expert"] >= BLOCK_EXPERTS) & (rows["token"] >= LONG_TOKENS)].reset_index(drop=True)
    calls, device = expert_calls(chosen, 8.0), expert_device(8.0)
    values = fit_parameters(
        lambda given: predict_experts(curve.model_copy(update=given), calls, device),
        calls.seconds,
        {"local_passes": 5.0},
        {"local_passes": BLOCK_PASSES},
    )
    return values["local_passes"]


def mxfp4_rows() -> pd.DataFrame:
    """Return layers of experts in MXFP4, both products together, as `expert_calls` takes them."""
    table = pd.DataFrame([(tokens, up + down) for tokens, up, down in MXFP4_CALLS], columns=["token", "us"])
    return table.assign(
        expert=MXFP4_EXPERTS, topk=MXFP4_CHOSEN, model_dim=MXFP4_HIDDEN, inter_dim=MXFP4_WIDTH, use_g1u1=1
    )


def mxfp4_calls(rows: pd.DataFrame) -> ExpertCalls:
    """Return the rows as calls: weights in 4 bits, inputs in 16."""
    calls = expert_calls(rows, 16.0)
    return replace(calls, shape=replace(calls.shape, weight_bits=MXFP4_BITS))


def fit_mxfp4(rows: pd.DataFrame) -> GroupedGemmCurve:
    """Return the curve with the least soft-L1 error of the logarithm of a layer's time."""
    calls = mxfp4_calls(rows)
    start = {"start_latency": 20e-6, "efficiency": 0.3, "memory_efficiency": 0.5}
    values = fit_parameters(
        lambda given: predict_experts(_mxfp4_curve(given), calls, MXFP4_DEVICE),
        calls.seconds,
        start,
        {"start_latency": (1e-6, 2e-4), "efficiency": (0.05, 1.0), "memory_efficiency": (0.1, 1.0)},
    )
    return _mxfp4_curve(values)


def _mxfp4_curve(values: Mapping[str, float]) -> GroupedGemmCurve:
    constants: dict[str, Any] = {
        **values,
        "loop_overhead": MXFP4_LOOP,
        "overlap": 8.0,
        "expert_latency": 0.0,
        "routed_passes": 0.0,
        "local_passes": 0.0,
        "tile_rows": MXFP4_TILE,
        "narrow_tile_rows": 16,
        "narrow_tokens": MXFP4_NARROW,
    }
    return GroupedGemmCurve.model_construct(**constants)


def mxfp4_errors(seen: pd.DataFrame, tested: pd.DataFrame) -> Array:
    """Return predicted / measured - 1 of layers from a fit to others."""
    calls = mxfp4_calls(tested)
    return np.asarray(predict_experts(fit_mxfp4(seen), calls, MXFP4_DEVICE) / calls.seconds - 1.0)


def tuned_mxfp4_rows() -> pd.DataFrame:
    """Return the layers of `TUNED_MXFP4` as `expert_calls` takes them."""
    names = ["source", "model_dim", "inter_dim", "expert", "topk", "token", "us"]
    rows = [(*layer, tokens, us) for *layer, times in TUNED_MXFP4 for tokens, us in times.items()]
    return pd.DataFrame(rows, columns=names).assign(use_g1u1=1)


def fit_tuned_mxfp4(rows: pd.DataFrame) -> GroupedGemmCurve:
    """Return the curve of experts in MXFP4 on an MI355X, by its FP8 peak, without `SORTING`."""
    return _of_computed_pairs(fit_moe(_tuned_mxfp4_calls(rows), CDNA4[8.0], TUNED_MXFP4_TILE))


def tuned_mxfp4_errors(seen: pd.DataFrame, tested: pd.DataFrame) -> Array:
    """Return predicted / measured - 1 of such layers from a fit to others."""
    calls = _tuned_mxfp4_calls(tested)
    return np.asarray(predict_experts(fit_tuned_mxfp4(seen), calls, CDNA4[8.0]) / calls.seconds - 1.0)


def _tuned_mxfp4_calls(rows: pd.DataFrame) -> ExpertCalls:
    calls = expert_calls(rows, 8.0)  # a GPU's inputs count in 8 bits, as `simserve.perf.quantization` has them
    return replace(calls, shape=replace(calls.shape, weight_bits=MXFP4_BITS))


def triton_rows(kernels: GemmClass) -> pd.DataFrame:
    """Return products of experts by Triton: ``token n us floor``."""
    calls = [
        (tokens, columns, us, floor)
        for floor, table in TRITON_TABLES[kernels]
        for columns, times in table.items()
        for tokens, us in times.items()
    ]
    return pd.DataFrame(calls, columns=["token", "n", "us", "floor"])


def fit_triton(rows: pd.DataFrame, kernels: GemmClass) -> GroupedGemmCurve:
    """Return AITER's curve with fitted shares of the two peaks: least soft-L1 error of the logarithm."""
    aiter = load_hardware("mi300x-192gb").grouped_gemm_curves_of("sglang")[kernels]
    values = fit_parameters(
        lambda given: predict_triton(aiter.model_copy(update=given), rows, kernels),
        rows["us"].to_numpy(dtype=np.float64) * SECONDS,
        {"efficiency": 0.3, "memory_efficiency": 0.5},
        FITTED_BOUNDS,
    )
    return aiter.model_copy(update={**values, "backend": "triton", "fit": None})


def predict_triton(curve: GroupedGemmCurve, rows: pd.DataFrame, kernels: GemmClass) -> Array:
    """Return the seconds of one product of all experts, each chosen by some token."""
    bits = 16.0 if kernels == "bf16" else 8.0
    tokens, columns, floor = (rows[name].to_numpy(dtype=np.float64) for name in ("token", "n", "floor"))
    pairs = tokens * TRITON_CHOSEN
    weights = TRITON_EXPERTS * columns * TRITON_HIDDEN * bits / 8
    call = grouped_gemm_seconds(
        curve,
        GemmDevice(peak=PEAKS[bits], bandwidth=BANDWIDTH, num_multiprocessors=UNITS),
        tile_rows=curve.tile_rows,
        rows=pairs,
        experts=np.full_like(pairs, TRITON_EXPERTS),
        out_features=columns,
        in_features=float(TRITON_HIDDEN),
        num_bytes=weights + pairs * (TRITON_HIDDEN * bits / 8 + 2.0 * columns),
    )
    return np.asarray(floor * SECONDS + call.total)


def triton_errors(seen: pd.DataFrame, tested: pd.DataFrame, *, kernels: GemmClass) -> Array:
    """Return predicted / measured - 1 of products from a fit to others."""
    measured = tested["us"].to_numpy(dtype=np.float64) * SECONDS
    return np.asarray(predict_triton(fit_triton(seen, kernels), tested, kernels) / measured - 1.0)


def int4_rows() -> pd.DataFrame:
    """Return layers of experts in INT4, as `expert_calls` takes them: with their ``source`` and ``gpu``."""
    names = ["source", "token", "model_dim", "inter_dim", "expert", "topk", "ms"]
    prompts = pd.DataFrame(INT4_PROMPTS, columns=names).assign(gpu="mi300x-192gb")
    decodes = [("22208", tokens, 7168, 256, 385, 8, ms) for tokens, ms in INT4_DECODES]
    rows = pd.concat([prompts, pd.DataFrame(decodes, columns=names).assign(gpu="mi355x-288gb")], ignore_index=True)
    return rows.assign(us=1000.0 * rows["ms"], use_g1u1=1)


def cdna4_rows() -> pd.DataFrame:
    """Return the layers of experts in INT4 that were timed on MI350X and MI355X, as `int4_rows`."""
    rows = int4_rows()
    names = ["source", "token", "model_dim", "inter_dim", "expert", "topk", "ms"]
    flat = [(source, tokens, 7168, 512, 384, 8, ms) for source, tokens, ms in INT4_PLATEAU]
    plateau = pd.DataFrame(flat, columns=names).assign(gpu="mi350x-288gb", use_g1u1=1)
    timed = [rows[rows["gpu"] != "mi300x-192gb"], plateau.assign(us=1000.0 * plateau["ms"])]
    return pd.concat(timed, ignore_index=True)


def fit_int4(rows: pd.DataFrame, tiles: Mapping[str, int] | None = None) -> GroupedGemmCurve:
    """Return Triton's curve in 16 bit with tiles of 16 rows, or ``tiles``, and an MI300X's shares of its peaks."""
    wide = load_hardware("mi300x-192gb").grouped_gemm_curves_of("vllm", "triton")["bf16"]
    wide = wide.model_copy(update={"tile_rows": 16, **(tiles or {}), "backend": None, "fit": None})
    values = fit_parameters(
        lambda given: predict_int4(wide.model_copy(update=given), rows),
        rows["us"].to_numpy(dtype=np.float64) * SECONDS,
        INT4_FREE,
        INT4_BOUNDS,
    )
    return wide.model_copy(update=values)


def predict_int4(curve: GroupedGemmCurve, rows: pd.DataFrame) -> Array:
    """Return the seconds of the layers, each GPU as an MI300X with its own units and clock."""
    seconds = np.empty(len(rows))
    for name, chosen in rows.groupby("gpu"):
        pace, units = INT4_PACES[str(name)], load_hardware(str(name)).compute.num_multiprocessors or 1
        device = GemmDevice(peak=PEAKS[16.0] * pace, bandwidth=BANDWIDTH * pace, num_multiprocessors=units)
        calls = expert_calls(chosen, 16.0)
        calls = replace(calls, shape=replace(calls.shape, weight_bits=INT4_BITS))
        seconds[chosen.index] = predict_experts(curve, calls, device)
    return seconds


def int4_errors(seen: pd.DataFrame, tested: pd.DataFrame) -> Array:
    """Return predicted / measured - 1 of layers from a fit to others."""
    measured = tested["us"].to_numpy(dtype=np.float64) * SECONDS
    return np.asarray(predict_int4(fit_int4(seen), tested) / measured - 1.0)


def int4_shares(curve: GroupedGemmCurve, name: str) -> tuple[float, float]:
    """Return the shares of its own FLOP/s and bandwidth that another GPU reaches at its pace."""
    hardware, pace = load_hardware(name), INT4_PACES[name]
    peak = hardware.peak_flops("bf16") or PEAKS[16.0]
    bandwidth = hardware.memory.bandwidth
    return curve.efficiency * PEAKS[16.0] * pace / peak, curve.memory_efficiency * BANDWIDTH * pace / bandwidth


def print_int4() -> None:
    """Print the constants of every GPU, with the errors of whole sources left out."""
    rows = int4_rows()
    curve = fit_int4(rows)
    print("experts, INT4", len(rows), curve)
    inside = np.median(np.abs(int4_errors(rows, rows)))
    print(f"  {inside:.3f}, whole sources left out {held_out(rows, ['source'], int4_errors):.3f}")
    own = cdna4_rows()
    cdna4 = fit_int4(own, INT4_TILES)
    errors = predict_int4(cdna4, own) / (own["us"].to_numpy(dtype=np.float64) * SECONDS) - 1.0
    print("experts, INT4, MI350X and MI355X", len(own), cdna4, np.round(errors, 2))
    for name in INT4_PACES:
        fitted = cdna4 if "mi35" in name else curve
        print("  {}: {:.4f} of the FLOP/s, {:.4f} of the bandwidth".format(name, *int4_shares(fitted, name)))


def print_triton() -> None:
    """Print the results for Triton's products and experts from the pull requests."""
    products = triton_products()
    print("products by Triton, FP8 by blocks", len(products), fit_triton_products(products))
    inside = np.median(np.abs(triton_product_errors(products, products)))
    print(f"  {inside:.3f}, whole sources left out {held_out(products, ['source'], triton_product_errors):.3f}")
    for kernels in TRITON_TABLES:
        rows = triton_rows(kernels)
        print("experts by Triton", kernels, len(rows), fit_triton(rows, kernels))
        inside = np.median(np.abs(triton_errors(rows, rows, kernels=kernels)))
        apart = held_out(rows, ["n"], partial(triton_errors, kernels=kernels))
        print(f"  {inside:.3f}, whole weights left out {apart:.3f}")


def print_overlaps(folder: Path) -> None:
    """Print how far arithmetic hides memory traffic: fitted on an MI300X, compared on 256 compute units."""
    rows = batched_rows(folder)
    print("16-bit products, 304 units", len(rows), f"overlap {fit_overlap(rows):.2f}")
    tokens = token_rows(folder)
    for overlap in (1.0, 3.0):
        wide = predict_batched(class_curve("mi300x-192gb", overlap), rows) / rows["seconds"] - 1.0
        narrow = predict_products(class_curve("mi355x-288gb", overlap, "fp8"), tokens, CDNA4[8.0]) / tokens["seconds"]
        errors = float(np.median(np.abs(wide))), float(np.median(np.abs(narrow - 1.0)))
        print("  overlap {}: {:.3f}, FP8 by token on 256 units {:.3f}".format(overlap, *errors))


def print_blocks(folder: Path) -> None:
    """Print the results for block-scaled FP8 on 256 compute units, and what experts add on an MI308X."""
    products = shuffled_rows(folder)
    errors = partial(product_errors, device=CDNA4[8.0])
    print("products, FP8 by blocks, 256 units", len(products), fit_products(products, CDNA4[8.0]))
    inside, apart = np.median(np.abs(errors(products, products))), held_out(products, ["n", "k"], errors)
    print(f"  {inside:.3f}, whole weights left out {apart:.3f}")
    rows = expert_rows(folder, rounding="per_1x128", bits=8.0, units=CDNA4_UNITS)
    print("experts, FP8 by blocks, 256 units", len(rows), fit_block_experts(rows))
    inside = np.median(np.abs(block_expert_errors(rows, rows)))
    apart = held_out(rows, ["model_dim", "inter_dim"], block_expert_errors)
    print(f"  {inside:.3f}, whole weights left out {apart:.3f}")
    smaller = expert_rows(folder, rounding="per_1x128", bits=8.0)
    by_token = fit_moe(
        expert_calls(expert_rows(folder, rounding="per_Token", bits=8.0), 8.0), expert_device(8.0), TILE_ROWS
    )
    print(f"  passes beyond those of scales by token, MI308X: {fit_block_passes(smaller, by_token):.1f}")


def main(folder: Path) -> None:
    """Print constants and errors."""
    print_overlaps(folder)
    print_blocks(folder)
    print_triton()
    print_int4()
    tuned = tuned_mxfp4_rows()
    print("experts, MXFP4, 256 units", len(tuned), fit_tuned_mxfp4(tuned))
    inside = np.median(np.abs(tuned_mxfp4_errors(tuned, tuned)))
    print(
        f"  {inside:.3f}, whole weights left out {held_out(tuned, ['model_dim', 'inter_dim'], tuned_mxfp4_errors):.3f}"
    )
    mxfp4 = mxfp4_rows()
    print("experts, MXFP4", len(mxfp4), fit_mxfp4(mxfp4))
    inside = np.median(np.abs(mxfp4_errors(mxfp4, mxfp4)))
    print(f"  {inside:.3f}, layers left out {held_out(mxfp4, ['token'], mxfp4_errors):.3f}")
    products = product_rows(folder)
    print("products, FP8 by blocks", len(products), fit_products(products))
    inside = np.median(np.abs(product_errors(products, products)))
    print(f"  {inside:.3f}, whole weights left out {held_out(products, ['n', 'k'], product_errors):.3f}")
    for name, rounding, bits, tile_rows in (("BF16", "No", 16.0, 32), ("FP8", "per_Token", 8.0, 64)):
        rows, device = expert_rows(folder, rounding=rounding, bits=bits), expert_device(bits)

        def errors(seen: pd.DataFrame, tested: pd.DataFrame, bits: float = bits, tile_rows: int = tile_rows) -> Array:
            return expert_errors(seen, tested, bits=bits, tile_rows=tile_rows)

        print(f"experts, {name}", len(rows), fit_moe(expert_calls(rows, bits), device, tile_rows))
        inside = np.median(np.abs(errors(rows, rows)))
        print(f"  {inside:.3f}, whole weights left out {held_out(rows, ['model_dim', 'inter_dim'], errors):.3f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
