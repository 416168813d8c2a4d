"""One result of a benchmark of a server: the JSON that vLLM's and SGLang's tools save, or the table that they print.

Both tools print the same table with a few other labels; what stands around it (the command, its options) says the model
and how requests were sent. Knows the names, not what becomes of a result: every result leaves with vLLM's keys.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simserve.errors import TraceError
from simserve.workload.traces.records import read_records
from simserve.workload.traces.table import read_text

TITLE = "Serving Benchmark Result"
_NUMBER = r"(\d[\d.eE+-]*)"
_FIGURES = {
    "completed": r"Successful requests",
    "failed": r"Failed requests",
    "duration": r"Benchmark duration \(s\)",
    "total_input_tokens": r"Total input tokens",
    "total_output_tokens": r"Total generated tokens",
    "request_throughput": r"Request throughput \(req/s\)",
    "output_throughput": r"Output token throughput \(tok/s\)",
    "total_token_throughput": r"Total [Tt]oken throughput \(tok/s\)",
} | {
    f"{kind}_{metric}_ms": rf"{kind.title()} {label} \(ms\)"
    for kind in ("mean", "median", "p99")
    for metric, label in (("ttft", "TTFT"), ("tpot", "TPOT"), ("itl", "ITL"), ("e2el", r"(?:E2EL|E2E Latency)"))
}
_OPTIONS = {
    "request_rate": (r"(?:Traffic request rate|Request rate configured \(RPS\)):\s+", r"\brequest_rate="),
    "max_concurrency": (r"Max(?:imum)? req\w+ concurrency:\s+", r"\bmax_concurrency="),
    "burstiness": (r"Burstiness factor:\s+", r"\bburstiness="),
    "model_id": (r"\bmodel(?:_path|_id)?=", r"--model(?:-path)?[= ]\s*"),
    "backend": (r"Backend:\s+", r"\bbackend="),
}
_UNSET = ("None", "not", "")
_ENGINES = {"sglang": "sglang", "tensorrt": "tensorrt-llm", "trt": "tensorrt-llm", "lmdeploy": "lmdeploy", "tgi": "tgi"}


def read_result(path: Path) -> Mapping[str, Any]:
    """Return the one result of a file, JSON or text, by the keys of `vllm bench serve`.

    Raises:
        TraceError: The file holds no result, or several.
    """
    text = read_text(path)
    if TITLE in text:
        return _of_text(text, path)
    records = read_records(path)
    if len(records.rows) > 1:
        rule = f"holds {len(records.rows)} results, one a line"
        raise TraceError(rule, file=path, remedy="keep the line of one run")
    return {key.replace("_e2e_latency_ms", "_e2el_ms"): value for key, value in records.rows[0].items()}


def engine_of(result: Mapping[str, Any]) -> str:
    """Return the engine that the client spoke to; a client of the OpenAI protocol is taken to speak to vLLM."""
    backend = str(result.get("backend") or "")
    return next((engine for start, engine in _ENGINES.items() if backend.startswith(start)), "vllm")


def _of_text(text: str, path: Path) -> dict[str, Any]:
    before, *tables = text.split(TITLE)
    if len(tables) > 1:
        raise TraceError(f"holds {len(tables)} results", file=path, remedy="keep the text of one run")
    result: dict[str, Any] = {}
    for key, label in _FIGURES.items():
        if found := re.search(rf"\b{label}:\s+{_NUMBER}", tables[0]):
            result[key] = _value(found[1])
    for key, beginnings in _OPTIONS.items():
        value = next(filter(None, (_option(begin, tables[0], before) for begin in beginnings)), None)
        if value is not None:
            result[key] = value if key in ("model_id", "backend") else _value(value)
    return result


def _option(begin: str, table: str, before: str) -> str | None:
    """Return what follows a beginning: in the table, else before it, where the last one is the benchmark's own."""
    for text in (table, before):
        values: list[str] = [value.rstrip("/") for value in re.findall(begin + r"""["']?([^\s"',)]+)""", text)]
        values = [value for value in values if value not in _UNSET and not value.startswith("$")]
        if values:
            return values[-1]
    return None


def _value(text: str) -> float | str:
    """Return a number; what is none stays the text, to be refused by its name where a number is needed."""
    try:
        return "inf" if text == "inf" else float(text)
    except ValueError:
        return text
