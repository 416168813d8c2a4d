"""From a benchmark's result, vLLM's or SGLang's, to a scenario with its workload, and what was measured."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simserve.errors import ScenarioError, TraceError
from simserve.planner.importers.bench_result import engine_of, read_result
from simserve.planner.importers.draft import Draft, scenario_name
from simserve.planner.importers.model_names import find_model
from simserve.workload.traces.trace import Trace
from simserve.workload.traces.vllm_bench import requests_of

ASSUMED_HARDWARE = "h100-sxm-80gb"
_MEASURED = (
    "duration",
    "completed",
    "failed",
    "request_throughput",
    "output_throughput",
    "total_token_throughput",
    *(f"{kind}_{metric}_ms" for metric in ("ttft", "tpot", "itl", "e2el") for kind in ("mean", "median", "p99")),
)
"""Keys of a result, vLLM's and simserve's alike; later versions of vLLM have more of them."""


@dataclass(frozen=True, slots=True)
class BenchImport:
    """What a benchmark result gives.

    Attributes:
        draft: The scenario.
        measured: The figures, by the names that simserve's results have too.
        files: Name -> text of the trace that the scenario reads; empty for a result without details.
    """

    draft: Draft
    measured: Mapping[str, float]
    files: Mapping[str, str]


def import_bench(
    path: Path,
    *,
    hardware: str | None = None,
    model: str | None = None,
    version: str | None = None,
    name: str | None = None,
) -> BenchImport:
    """Return the scenario of a benchmark.

    Args:
        path: JSON of `vllm bench serve`, plain or with ``--save-detailed``, of SGLang's `bench_serving`, or the text
            that either printed.
        hardware: GPU that served; None: `ASSUMED_HARDWARE`, with a note.
        model: Profile to use instead of what the result's model is near to.
        version: The engine's version; None: the newest known, with a note.
        name: Begins the name of the trace file; None: as the scenario.

    Raises:
        TraceError: The file is no such result.
        ScenarioError: Its model has no profile.
    """
    result = read_result(path)
    completed = _number(result, "completed", path)
    if completed < 1:
        raise TraceError("must be >= 1: nothing was served", file=path, key="completed", value=completed)
    served = str(result.get("model_id") or "")
    if not served and model is None:
        raise TraceError("is missing", file=path, key="model_id", remedy="say which with --model")
    found = find_model(served, path) if model is None else None
    engine = engine_of(result)
    notes = _notes(served, found.model if found and not found.is_exact else None, hardware, engine, version)
    scenario = scenario_name(re.sub(r"\.(jsonl?|txt|log)\b.*", "", path.name))
    workload, files = _workload(result, path, name or scenario, notes)
    deployment: dict[str, Any] = {"hardware": hardware or ASSUMED_HARDWARE}
    if found is not None and found.quantization is not None:
        deployment["quantization"] = found.quantization
    if found is not None and found.quantization is not None and not found.is_exact:
        notes.append(f"Weights are {found.quantization}, by the name of {served}.")
    deployment["engine"] = {"name": engine} | ({"version": version} if version else {})
    mapping = {
        "name": scenario,
        "model": model or (found.model if found else ""),
        "deployment": deployment,
        "workload": workload,
    }
    measured = {key: float(result[key]) for key in _MEASURED if _is_number(result.get(key))}
    notes.append("Measured: " + ", ".join(f"{key} {value:.5g}" for key, value in measured.items()) + ".")
    return BenchImport(Draft(mapping, tuple(notes), f"Does the simulation match {path.name}?"), measured, files)


def _notes(served: str, near: str | None, hardware: str | None, engine: str, version: str | None) -> list[str]:
    notes = []
    if hardware is None:
        notes.append(f"The result does not say its GPU: {ASSUMED_HARDWARE} is assumed; --hardware names yours.")
    if version is None:
        notes.append(
            f"The result does not say {engine}'s version: the newest known is assumed; --engine-version names yours."
        )
    if near is not None:
        notes.append(f"{served} is taken to have the architecture of {near}, by its name; --model says another.")
    notes.append("The server's settings are not in the result: set deployment as it ran.")
    return notes


def _workload(
    result: Mapping[str, Any], path: Path, name: str, notes: list[str]
) -> tuple[dict[str, Any], dict[str, str]]:
    arrivals = _arrivals(result, path, notes)
    if result.get("input_lens") is None:
        completed = _number(result, "completed", path)
        lengths = {
            key: max(round(_number(result, total, path) / completed), 1)
            for key, total in (("prompt_tokens", "total_input_tokens"), ("output_tokens", "total_output_tokens"))
        }
        notes.append("The result holds no lengths of requests: every one has the mean (--save-detailed holds them).")
        blocks = {key: {"distribution": "fixed", "value": value} for key, value in lengths.items()}
        return {"arrivals": arrivals, **blocks, "num_requests": int(completed)}, {}
    trace = requests_of(result, path)
    file = f"{name}.requests.csv"
    workload: dict[str, Any] = {"trace": {"path": file, "format": "csv"}}
    if arrivals["process"] == "closed_loop" or not trace.has_arrival_times:
        workload = {"arrivals": arrivals, **workload}
    if not trace.has_arrival_times:
        notes.append("The result holds no start times (vLLM before 0.17): they are drawn, and the order is the list's.")
    return workload, {file: _as_csv(trace)}


def _as_csv(trace: Trace) -> str:
    times = trace.arrival_time if trace.has_arrival_times else [0.0] * len(trace.prompt_tokens)
    rows = zip(times, trace.prompt_tokens, trace.output_tokens, strict=True)
    return "arrival_time,prompt_tokens,output_tokens\n" + "".join(
        f"{float(time):.6f},{prompt},{output}\n" for time, prompt, output in rows
    )


def _arrivals(result: Mapping[str, Any], path: Path, notes: list[str]) -> dict[str, Any]:
    """Return how requests were sent: at a rate, or by a number of clients; all at once is a client each."""
    rate, concurrency = result.get("request_rate", "inf"), result.get("max_concurrency")
    if rate in ("inf", None) or rate == float("inf"):
        if concurrency is None:
            if "request_rate" not in result:
                notes.append("The result does not say how requests were sent: all at once is assumed.")
            return {"process": "closed_loop", "concurrency": _sent(result, path)}  # a server, to which all went at once
        return {"process": "closed_loop", "concurrency": int(_number(result, "max_concurrency", path))}
    rate = _number(result, "request_rate", path)
    if concurrency is not None:
        notes.append(
            f"At most {concurrency} requests were in flight; the simulation sends at the rate without that bound."
        )
    burstiness = _number(result, "burstiness", path) if result.get("burstiness") is not None else 1.0
    if burstiness <= 0:
        raise ScenarioError("must be > 0", file=path, key="burstiness", value=burstiness)
    if burstiness == 1.0:
        return {"process": "poisson", "rate": rate}
    return {"process": "gamma", "rate": rate, "cv": float(f"{burstiness**-0.5:.6g}")}


def _sent(result: Mapping[str, Any], path: Path) -> int:
    """Return how many requests were sent; results that do not say how many are those that were answered."""
    return max(int(_number(result, "completed", path)), 1)


def _number(result: Mapping[str, Any], key: str, path: Path) -> float:
    value = result.get(key)
    if not _is_number(value):
        rule = (
            "is missing: this is no result of vllm bench serve or sglang.bench_serving"
            if value is None
            else "is not a number"
        )
        raise TraceError(rule, file=path, key=key, value=value)
    return float(value or 0)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
