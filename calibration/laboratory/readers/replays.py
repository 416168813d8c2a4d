"""Runs with a record of every request: APEX+ validation runs and LLMServingSim's vLLM runs."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibration.laboratory.protocol import Protocol
from calibration.laboratory.readers import blocks
from calibration.laboratory.readers.names import engine_name, hardware_name, model_name, version_number
from calibration.laboratory.readers.table import Row, read_rows
from simserve.planner.measured import build
from simserve.planner.measured.point import MeasuredPoint
from simserve.workload.requests import RequestSpecs

APEX_SHARE = 0.97
"""``gpu-memory-utilization`` of the APEX+ runs (their notes)."""

APEX_MODEL_LEN = 8192
"""Longest sequence of the APEX+ runs: an assumption that keeps chunked prefill off, as by default in vLLM 0.6; the
longest request has 4,733 tokens."""

_APEX_REQUESTS = "apex_plus_replay_requests.csv.gz"


def read_apex(folder: Path) -> list[MeasuredPoint]:
    """Return the APEX+ runs: server-side means, TPOT over generated tokens, corrected columns if filled."""
    recorded: dict[str, list[Row]] = defaultdict(list)
    for row in read_rows(folder / _APEX_REQUESTS):
        recorded[row.text("run_id")].append(row)
    rows = read_rows(folder / "apex_plus_vllm_sglang_h100.csv")
    return [_apex_point(row, recorded.get(row.text("run_id"), [])) for row in rows]


def _apex_point(row: Row, recorded: list[Row]) -> MeasuredPoint:
    arrivals = np.array([each.number_of("arrival_offset_s") for each in recorded])
    requests = _recorded(
        arrival_time=arrivals,
        prompt_tokens=np.array([each.count("input_tokens_actual", 1) for each in recorded], dtype=np.int64),
        output_tokens=np.array([each.count("output_tokens_actual", 1) for each in recorded], dtype=np.int64),
    )
    engine, version = engine_name(row.text("framework")), version_number(row.text("version"))
    settings = {
        "name": engine,
        "version": version,
        "enable_prefix_caching": False,
        "enable_chunked_prefill": False,
        "max_model_len": APEX_MODEL_LEN,
        "gpu_memory_utilization": APEX_SHARE,
    }
    return _replay(
        row,
        source="apex_plus",
        engine=engine,
        version=version,
        settings=settings,
        requests=requests,
        file=_APEX_REQUESTS,
        protocol=Protocol(is_server_side=True, is_token_weighted=True),
    )


def read_llmservingsim(folder: Path) -> list[MeasuredPoint]:
    """Return the LLMServingSim runs of vLLM: TTFT and E2E from the queue, as recorded by the engine."""
    points = []
    for row in read_rows(folder / "llmservingsim_vllm_summary.csv"):
        file = f"llmservingsim_vllm_requests_{row.text('hardware')}_{row.text('model').rpartition('/')[2]}.csv"
        points.append(_llmservingsim_point(row, file, read_rows(folder / file)))
    return points


def _llmservingsim_point(row: Row, file: str, recorded: list[Row]) -> MeasuredPoint:
    queued = np.array([each.number_of("queued_ts") for each in recorded])
    order = np.argsort(queued, kind="stable")
    requests = _recorded(
        arrival_time=queued[order] - queued[order[0]],
        prompt_tokens=np.array([recorded[i].count("input_toks", 1) for i in order], dtype=np.int64),
        output_tokens=np.array([recorded[i].count("output_toks", 1) for i in order], dtype=np.int64),
    )
    engine, version = engine_name(row.text("framework")), version_number(row.text("version"))
    length = row.note("max_model_len")
    settings = {
        "name": engine,
        "version": version,
        "max_num_seqs": int(row.note("max_num_seqs") or 256),
        "max_num_batched_tokens": int(row.note("max_num_batched_tokens") or 2048),
        "max_model_len": int(length) if length.isdecimal() else None,
    }
    return _replay(
        row,
        source="llmservingsim",
        engine=engine,
        version=version,
        settings=settings,
        requests=requests,
        file=file,
        protocol=Protocol(is_server_side=True),
    )


def _recorded(
    arrival_time: NDArray[np.float64], prompt_tokens: NDArray[np.int64], output_tokens: NDArray[np.int64]
) -> RequestSpecs:
    """Return requests that came at recorded times."""
    return RequestSpecs(
        arrival_time=arrival_time,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        max_tokens=output_tokens,
        think_time=np.empty(0),
        concurrency=None,
        is_stationary=False,
        offered_rate=float("nan"),
    )


def _replay(
    row: Row,
    *,
    source: str,
    engine: str,
    version: str,
    settings: dict[str, Any],
    requests: RequestSpecs,
    file: str,
    protocol: Protocol,
) -> MeasuredPoint:
    model, hardware = model_name(row.text("model")), hardware_name(row.text("hardware"))
    deployed = blocks.deployment(hardware, engine=settings, tensor_parallel_size=row.count("tp", 1))
    workload = {"trace": {"path": file, "format": "csv"}}
    throughput = row.number_of("throughput_tok_s")
    return MeasuredPoint(
        source=source,
        label=row.text("run_id") or row.label,
        engine=engine,
        version=version,
        hardware=hardware,
        model=model,
        load_kind="trace",
        load=float("nan"),
        scenario=build.scenario(row.label, model, deployed, workload),
        measured=row.latencies("tpot", "ttft", "e2e") | ({"throughput": throughput} if throughput > 0 else {}),
        protocol=protocol,
        requests=requests,
        reason="" if len(requests.arrival_time) else "its requests were not recorded",
    )
