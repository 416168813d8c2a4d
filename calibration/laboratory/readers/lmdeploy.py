"""LMDeploy's tables: batches of fixed lengths, and ShareGPT queued at once, output tokens/s."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibration.laboratory.readers import blocks
from calibration.laboratory.readers.names import (
    engine_name,
    hardware_name,
    model_name,
    quantization_name,
    version_number,
)
from calibration.laboratory.readers.table import Row, read_rows
from simserve.planner.measured import build
from simserve.planner.measured.point import MeasuredPoint, Metric

ROUNDS = 6
"""Requests per client of a static batch: the tables are means over several rounds."""

SHAREGPT_CV = 1.0
"""Coefficient of variation of ShareGPT's prompts and answers; the rows give only the means."""

_SHAREGPT_LONGEST = 2048
_LLAMA_TOKENS = (247.0, 233.0)
_INTERNLM_TOKENS = (223.0, 200.0)
"""Mean prompt and answer of ShareGPT under two tokenizers: tokens/s over requests/s of the rows of version 0.2.0, for
rows that give only requests/s."""

_KV_VERSION = "0.4"
"""Release of the KV quantisation page, "0.4 era"."""


@dataclass(frozen=True, slots=True)
class _Lengths:
    prompt: float
    output: float


def read_lmdeploy(folder: Path) -> list[MeasuredPoint]:
    """Return the rows: static batches as closed loops, ShareGPT all at once; throughput in output tokens/s."""
    return [_point(row) for row in read_rows(folder / "lmdeploy_a100_4090.csv")]


def _point(row: Row) -> MeasuredPoint:
    engine, model = engine_name(row.text("framework")), model_name(row.text("model"))
    hardware = hardware_name(row.text("hardware"))
    version = version_number(row.text("version")) or _KV_VERSION
    seats = row.count("load_value", 1)
    is_fixed = row.number_of("isl") > 0 and row.number_of("osl") > 0
    lengths = _Lengths(row.number_of("isl"), row.number_of("osl")) if is_fixed else _sharegpt(row, model)
    deployed = blocks.deployment(
        hardware,
        engine={
            "name": engine,
            "version": version,
            "max_num_seqs": seats,
            "gpu_memory_utilization": 0.8,  # "cache_max_entry ratio 0.8"; 77 of 80 GB are used
            "max_model_len": round(lengths.prompt + lengths.output) + 64 if is_fixed else 2 * _SHAREGPT_LONGEST,
        },
        tensor_parallel_size=row.count("tp", 1),
        quantization="none" if "weights, KV" in row.text("precision") else quantization_name(row.text("precision")),
        kv_cache_dtype=_kv_cache(row.text("precision")),
    )
    return MeasuredPoint(
        source="lmdeploy",
        label=row.label,
        engine=engine,
        version=version,
        hardware=hardware,
        model=model,
        load_kind="concurrency" if is_fixed else "offline",
        load=seats,
        scenario=build.scenario(row.label, model, deployed, _workload(row, lengths, seats, is_fixed)),
        measured=_measured(row, lengths),
        reason="" if row.number_of("load_value") > 0 else "the row does not say batch or clients",
    )


def _kv_cache(precision: str) -> str:
    found = re.search(r"KV (int8|int4)", precision)
    return found.group(1) if found else "auto"


def _sharegpt(row: Row, model: str) -> _Lengths:
    """Return the mean lengths implied by a row's rates, else those of its tokenizer."""
    output_rate, request_rate = row.number_of("throughput_tok_s"), row.number_of("req_per_s")
    total = re.search(r"total tok/s ([\d.]+)", row.text("notes"))
    if total and output_rate > 0 and request_rate > 0:
        return _Lengths((float(total.group(1)) - output_rate) / request_rate, output_rate / request_rate)
    return _Lengths(*(_INTERNLM_TOKENS if model.startswith("internlm") else _LLAMA_TOKENS))


def _workload(row: Row, lengths: _Lengths, seats: int, is_fixed: bool) -> dict[str, Any]:
    if is_fixed:
        fixed = build.fixed(round(lengths.prompt)), build.fixed(round(lengths.output))
        return build.closed_loop(seats, *fixed, ROUNDS * seats)
    prompt, output = (
        build.around(mean, SHAREGPT_CV, _SHAREGPT_LONGEST // 2) for mean in (lengths.prompt, lengths.output)
    )
    return build.all_at_once(row.count("num_requests", 3000), prompt, output)


def _measured(row: Row, lengths: _Lengths) -> dict[Metric, float]:
    throughput = row.number_of("throughput_tok_s")
    if math.isnan(throughput):
        throughput = row.number_of("req_per_s") * lengths.output
    return {"throughput": throughput} if throughput > 0 else {}
