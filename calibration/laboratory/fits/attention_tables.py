"""Reads attention kernel tables (AIConfigurator layout, Parquet) into sizes and seconds. Fits nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simserve.perf.attention_curve import Gpu, Heads
from simserve.perf.efficiency import Array

ENGINE_FOLDERS = {"vllm": "vllm", "sglang": "sglang", "tensorrt-llm": "trtllm"}
"""Engine of a profile -> folder of a table."""

GPUS = {
    "h100_sxm": Gpu(peak=989.4e12, bandwidth=3.35e12, num_multiprocessors=132, l2_cache=50e6),
    "h200_sxm": Gpu(peak=989.4e12, bandwidth=4.8e12, num_multiprocessors=132, l2_cache=50e6),
    "a100_sxm": Gpu(peak=312e12, bandwidth=2.039e12, num_multiprocessors=108, l2_cache=40e6),
    "b200_sxm": Gpu(peak=2250e12, bandwidth=7.7e12, num_multiprocessors=148, l2_cache=126e6),
}
"""Folder of a table -> data sheet (the tables of A100 are of the 80 GB board). L2: NVIDIA's whitepapers."""

MAX_WIDTH = 256
"""Widest head of the curves: for 512 the tables have other kernels (FlashAttention-4, Triton), see `widest_share`."""

LATENT_RANK, ROTARY, VALUE_WIDTH, NOPE_WIDTH = 512, 64, 128, 128
"""DeepSeek-V3's latent attention, measured in the MLA tables."""


@dataclass(frozen=True, slots=True)
class Calls:
    """Measured calls of one kernel.

    Attributes:
        heads: Sizes, arrays over the calls.
        batch: Sequences.
        length: Context of a decode step, or tokens of a prompt.
        window: Sliding window, infinite without one.
        seconds: Measured time.
    """

    heads: Heads
    batch: Array
    length: Array
    window: Array
    seconds: Array

    def where(self, mask: NDArray[Any]) -> Calls:
        """Return the calls selected by a mask or an index."""
        sizes = (self.heads.num_heads, self.heads.num_kv_heads, self.heads.width, self.heads.kv_bytes)
        picked = [np.broadcast_to(size, self.batch.shape)[mask] for size in sizes]
        heads = Heads(num_heads=picked[0], num_kv_heads=picked[1], width=picked[2], kv_bytes=picked[3])
        rest = (self.batch, self.length, self.window, self.seconds)
        return Calls(heads, *(column[mask] for column in rest))


def find_table(root: Path, system: str, family: str, engine: str, name: str) -> Path | None:
    """Return the Parquet file of the newest version of a table; None if there is none."""
    folder = root / system / family / ENGINE_FOLDERS[engine]
    found = sorted(folder.glob(f"*/{name}.parquet"))
    return found[-1] if found else None


def read_calls(
    root: Path,
    system: str,
    engine: str,
    *,
    kind: str,
    phase: str,
    kv_bits: int,
    is_windowed: bool = False,
    is_widest: bool = False,
) -> Calls | None:
    """Return the calls of one kernel; None if the engine has no such table.

    Args:
        root: Folder of the systems.
        system: ``h100_sxm`` ...
        engine: Engine of the profile.
        kind: ``heads`` or ``latent``.
        phase: ``decode`` or ``prefill``.
        kv_bits: 16 or 8.
        is_windowed: Whether to return the sliding-window calls instead of the others.
        is_widest: Whether to return the calls of heads wider than `MAX_WIDTH` instead of the others.
    """
    family = "attention" if kind == "heads" else "mla"
    name = f"{'generation' if phase == 'decode' else 'context'}_{'attention' if kind == 'heads' else 'mla'}_perf"
    path = find_table(root, system, family, engine, name)
    if path is None:
        return None
    table = duckdb.connect().execute("select * from read_parquet(?)", [str(path)]).df()
    table = table[table["kv_cache_dtype"] == ("fp8" if kv_bits == 8 else "bfloat16")]
    if kind == "heads":
        if is_widest:
            table = table[table["head_dim"] > MAX_WIDTH]
        else:
            table = table[(table["head_dim"] <= MAX_WIDTH) & (table["kernel_source"] != "triton")]
        windows = table["window_size"] if "window_size" in table else pd.Series(0, index=table.index)
        table = table[(windows > 0) == is_windowed]
    if "attn_dtype" in table and kv_bits == 8:
        table = table[table["attn_dtype"] == _arithmetic(table)]
    return _calls(table, kind, phase, kv_bits) if len(table) else None


def _arithmetic(table: pd.DataFrame) -> str:
    """Return the arithmetic that an engine pairs with FP8 KV: 16 bit if the table has it."""
    return "bfloat16" if (table["attn_dtype"] == "bfloat16").any() else "fp8"


def _calls(table: pd.DataFrame, kind: str, phase: str, kv_bits: int) -> Calls:
    column = {name: table[name].to_numpy(dtype=np.float64) for name in ("batch_size", "isl", "step", "num_heads")}
    element = kv_bits / 8.0
    if kind == "heads":
        kv_heads = table["num_key_value_heads"].to_numpy(dtype=np.float64)
        width = table["head_dim"].to_numpy(dtype=np.float64)
        kv_bytes = 2.0 * kv_heads * width * element
    else:
        kv_heads = np.ones(len(table)) if phase == "decode" else column["num_heads"]
        width = np.full(len(table), latent_width(phase))
        kv_bytes = np.full(len(table), (LATENT_RANK + ROTARY) * element)
    heads = Heads(num_heads=column["num_heads"], num_kv_heads=kv_heads, width=width, kv_bytes=kv_bytes)
    windows = table["window_size"] if "window_size" in table else pd.Series(0, index=table.index)
    window = np.where(windows.to_numpy() > 0, windows.to_numpy(dtype=np.float64), np.inf)
    length = column["step"] + 1.0 if phase == "decode" else column["isl"]
    seconds = table["latency"].to_numpy(dtype=np.float64) * 1e-3
    return Calls(heads, column["batch_size"], length, window, seconds)


def latent_width(phase: str) -> float:
    """Return the mean of key and value width: absorbed in decode, expanded in prefill."""
    if phase == "decode":
        return (LATENT_RANK + ROTARY + LATENT_RANK) / 2.0
    return (NOPE_WIDTH + ROTARY + VALUE_WIDTH) / 2.0
