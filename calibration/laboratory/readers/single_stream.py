"""Single streams and small batches: number formats, llama.cpp on many GPUs, ITL versus context."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from calibration.laboratory.protocol import Protocol
from calibration.laboratory.readers import blocks
from calibration.laboratory.readers.names import (
    engine_name,
    hardware_name,
    model_name,
    quantization_name,
    version_number,
)
from calibration.laboratory.readers.table import MS, Row, read_rows
from simserve.planner.measured import build
from simserve.planner.measured.point import LoadKind, MeasuredPoint, Metric

SHORT_PROMPT = 32
"""Prompt of the sources that call theirs short, tokens: an assumption, on which a single stream's decode hardly
depends."""

USUAL_ANSWER = 256
"""Answer if a source does not state its length, tokens: an assumption, like the prompt's."""

TEXT_PROMPT = 300
"""Tokens of the prompt of the llama.cpp tables' decode runs ("text about 300 tokens")."""

LLAMA_CPP_BUILD = "b2700"
"""Approximate build of the llama.cpp tables (May 2024)."""

VLLM_OF_2023 = "0.2.1"
"""The release at the time of MLC's comparison (October 2023)."""

ITL_CONTEXTS = (1024, 16384, 65536)
"""Contexts at which a published line of ITL is compared, tokens."""

_ITL_VERSION = "0.19.1"
_ITL_ANSWER = 65
_DECODE = "decode tok/s"

_SUSPICIOUS = {("a100-sxm-80gb", "F16", 1), ("a100-sxm-80gb", "F16", 4), ("l40s-48gb", "F16", 1)}
"""Prompt rates that the page's other rows contradict, according to the notes of the file."""


def read_single_stream(folder: Path) -> list[MeasuredPoint]:
    """Return the tables of number formats: output tokens/s of a batch, or the time per token of one stream.

    llama.cpp of 2023 also splits matrices over its GPUs, by rows; since January 2024 it distributes layers.
    """
    return [_format_point(row) for row in read_rows(folder / "quantization_and_single_stream_tables.csv")]


def read_llama_cpp(folder: Path) -> list[MeasuredPoint]:
    """Return llama.cpp's tables: time per token of one stream, and of a prompt of 1,024 tokens.

    Layers are distributed over the GPUs (``-sm layer``): stages of a pipeline.
    """
    return [_llama_cpp_point(row) for row in read_rows(folder / "llamacpp_xiongjiedai_llama3.csv")]


def read_itl_fits(folder: Path) -> list[MeasuredPoint]:
    """Return the published lines of ITL versus context, each at `ITL_CONTEXTS`."""
    rows = read_rows(folder / "vllm_itl_linear_fits.csv")
    return [_itl_point(row, context) for row in rows for context in ITL_CONTEXTS]


def _format_point(row: Row) -> MeasuredPoint:
    is_decode = row.text("throughput_kind").startswith(_DECODE)
    prompt, output = row.count("isl", SHORT_PROMPT), row.count("osl", USUAL_ANSWER)
    engine = engine_name(row.text("framework"))
    batch, throughput = row.count("load_value", 1), row.number_of("throughput_tok_s")
    precision = row.text("precision").partition(" (")[0]
    measured: dict[Metric, float] = {"tpot": 1.0 / throughput} if is_decode else {"throughput": throughput}
    gpus = row.count("tp", row.count("gpus", 1))
    return _point(
        row,
        source="single_stream",
        engine=engine,
        version=version_number(row.text("version")) or _OF_2023.get(engine, ""),
        quantization=_FOUR_BIT.get(engine, "awq-int4") if precision == "INT4" else quantization_name(precision),
        sizes={"tensor_parallel_size": gpus},
        load=("batch", batch),
        lengths=(prompt, output),
        measured=measured,
    )


_OF_2023 = {"vllm": VLLM_OF_2023, "llama.cpp": LLAMA_CPP_BUILD}
"""Version by engine of rows that name none: one of the years in which they were measured."""
_FOUR_BIT = {"llama.cpp": "gguf-q4_k_m"}
"""Meaning of "INT4" by engine, if not AWQ."""


def _llama_cpp_point(row: Row) -> MeasuredPoint:
    is_decode = row.text("throughput_kind").startswith(_DECODE)
    rate, prompt = row.number_of("throughput_tok_s"), TEXT_PROMPT if is_decode else row.count("isl", 1024)
    measured: dict[Metric, float] = {}
    if rate > 0:
        measured = {"tpot": 1.0 / rate} if is_decode else {"ttft": prompt / rate}
    key = (hardware_name(row.text("hardware")), row.text("precision"), row.count("gpus", 1))
    return _point(
        row,
        source="llama_cpp",
        engine="llama.cpp",
        version=LLAMA_CPP_BUILD,
        quantization=quantization_name(row.text("precision")),
        sizes={"pipeline_parallel_size": row.count("gpus", 1)},
        load=("batch", 1),
        lengths=(prompt, row.count("osl", 1024) if is_decode else 2),
        measured=measured,
        shown_only=frozenset({"ttft"}) if key in _SUSPICIOUS and not is_decode else frozenset(),
    )


def _itl_point(row: Row, context: int) -> MeasuredPoint:
    """Return one stream whose mean context during decode is ``context``."""
    precision, intercept = row.text("precision"), _middle(row.text("itl_intercept_ms"))
    seconds = (intercept + row.number_of("itl_slope_ms_per_context_token") * context) * MS
    skips_window = "skip-SW" in precision
    return _point(
        row,
        source="vllm_itl",
        engine="vllm",
        version=_ITL_VERSION,
        quantization=quantization_name(precision.partition(" weights")[0]),
        sizes={"tensor_parallel_size": row.count("tp", 1)},
        load=("batch", 1),
        lengths=(context - _ITL_ANSWER // 2, _ITL_ANSWER),
        measured={} if math.isnan(seconds) else {"tpot": seconds},
        kv_cache_dtype="fp8" if "FP8 KV" in precision else "auto",
        reason=_itl_reason(intercept, skips_window),
    )


def _itl_reason(intercept: float, skips_window: bool) -> str:
    if math.isnan(intercept):
        return "the source gives a slope without the time at no context"
    return "8-bit KV of some layers alone, which a scenario cannot ask for" if skips_window else ""


def _middle(text: str) -> float:
    """Return the middle of ``4.03..4.07``, or the number itself; NaN if there is none."""
    ends = [float(end) for end in text.split("..") if end]
    return sum(ends) / len(ends) if ends else math.nan


def _point(
    row: Row,
    *,
    source: str,
    engine: str,
    version: str,
    quantization: str,
    sizes: Mapping[str, int],
    load: tuple[LoadKind, int],
    lengths: tuple[int, int],
    measured: dict[Metric, float],
    kv_cache_dtype: str = "auto",
    shown_only: frozenset[Metric] = frozenset(),
    reason: str = "",
) -> MeasuredPoint:
    hardware, model = hardware_name(row.text("hardware")), model_name(row.text("model"))
    settings: dict[str, Any] = {
        "name": engine,
        "version": version,
        "max_num_seqs": load[1],
        "max_model_len": sum(lengths) + blocks.LENGTH_SLACK,
        "enable_prefix_caching": False,
        "frontend_latency": "0 ms",  # in process
    }
    deployed = blocks.deployment(
        hardware, engine=settings, quantization=quantization, kv_cache_dtype=kv_cache_dtype, **sizes
    )
    workload = build.all_at_once(load[1], build.fixed(lengths[0]), build.fixed(lengths[1]))
    filled = {metric: value for metric, value in measured.items() if value > 0 and math.isfinite(value)}
    return MeasuredPoint(
        source=source,
        label=row.label,
        engine=engine,
        version=version,
        hardware=hardware,
        model=model,
        load_kind=load[0],
        load=load[1],
        scenario=build.scenario(row.label, model, deployed, workload),
        measured=filled,
        shown_only=shown_only,
        protocol=Protocol(),
        reason=reason or ("" if filled else "the row holds no figure to compare"),
    )
