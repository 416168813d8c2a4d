"""Turns the result of any benchmark tool with a reader into a scenario with its workload, and the measured figures."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from simserve.errors import TraceError
from simserve.planner.importers.draft import Draft, Imported, moved, scenario_name
from simserve.planner.importers.server import ASSUMED_HARDWARE, Reading, draft_of
from simserve.scenario.benchmark import Lengths, arrivals_of, lengths_of
from simserve.scenario.schema import Scenario
from simserve.workload.benchmarks.reading import read_results
from simserve.workload.benchmarks.result import BenchResult

_LATENCIES = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2el"}
"""Latencies of a benchmark -> their names in simserve's results."""
_TRAFFIC = ("arrivals", "prompt_tokens", "output_tokens", "num_requests")  # Keys of a workload that a benchmark gives.


def import_bench(
    path: Path,
    *,
    scenario: Scenario | None = None,
    run: int | None = None,
    hardware: str | None = None,
    model: str | None = None,
    version: str | None = None,
    name: str | None = None,
    folder: Path | None = None,
) -> Imported:
    """Return the scenario of a benchmark.

    Args:
        path: A result of `vllm bench serve`, SGLang's `bench_serving`, AIPerf, GuideLLM or inference-perf, a benchmark
            report of llm-d, a documented CSV, or the text that the first two print.
        scenario: Deployment that served it, and the lengths and load that the file does not give; None: the file's
            model on one GPU.
        run: Number of the run, from 1, in a file that holds several.
        hardware: GPU that served it; None: the scenario's, or `ASSUMED_HARDWARE`, with a note.
        model: Profile to use instead of the one closest to the result's model, or the scenario's.
        version: The engine's version; None: the scenario's, or the newest known, with a note.
        name: Prefix of the trace file's name; None: the scenario's name.
        folder: Folder that the scenario will be written to; paths in ``scenario`` become relative to it. None: the
            working folder.

    Raises:
        TraceError: The file is not such a result, or neither it nor a scenario gives the lengths of requests.
        ScenarioError: Its model has no profile.
    """
    result = _one_of(read_results([path]), path, run)
    notes: list[str] = []
    title = scenario_name(re.sub(r"\.(jsonl?|ya?ml|csv|txt|log)\b.*", "", path.name))
    if scenario is None:
        mapping = _served(result, path, hardware=hardware, model=model, version=version, notes=notes)
    else:
        mapping = _of_scenario(result, scenario, hardware=hardware, model=model, version=version, notes=notes)
        mapping = moved(mapping, scenario.folder or Path(), folder or Path())
    workload, files = _workload(result, scenario, name or title, notes)
    mapping = {"name": title, **mapping, "workload": workload}
    measured = _measured(result)
    notes += [_sentence(note) for note in result.notes]
    notes.append("Measured: " + ", ".join(f"{key} {value:.5g}" for key, value in measured.items()) + ".")
    draft = Draft(mapping, tuple(notes), f"Does the simulation match {result.label}?")
    return Imported(draft, files, measured)


def _one_of(results: list[BenchResult], path: Path, run: int | None) -> BenchResult:
    if run is None and len(results) == 1:
        return results[0]
    loads = ", ".join(f"{number}: {each.load or each.label}" for number, each in enumerate(results, 1))
    remedy = f"say which with --run ({loads[:200]})"
    if run is None:
        raise TraceError(f"holds {len(results)} runs", file=path, remedy=remedy)
    if not 1 <= run <= len(results):
        raise TraceError(f"must be a run of the file, 1 to {len(results)}", file=path, key="--run", value=run)
    return results[run - 1]


def _served(
    result: BenchResult, path: Path, *, hardware: str | None, model: str | None, version: str | None, notes: list[str]
) -> dict[str, Any]:
    """Return model and deployment from the file alone."""
    if not result.model and model is None:
        remedy = "say which with --model, or name what served it: --scenario FILE"
        label = None if result.label == path.name else result.label
        raise TraceError("does not say its model", file=path, key=label, remedy=remedy)
    engine = result.engine or "vllm"
    reading = Reading(engine, version, str(path), model=result.model or model)
    if hardware is None:
        reading.notes.append(f"The result does not say its GPU: {ASSUMED_HARDWARE} is assumed; --gpus names yours.")
    if not result.engine:
        reading.notes.append("The result does not say its engine: vllm is assumed; --scenario names what served it.")
    if version is None:
        reading.notes.append(
            f"The result does not say {engine}'s version: the newest known is assumed; --engine-version names yours."
        )
    draft = draft_of(reading, model, hardware=hardware, title="", workload={})
    notes += draft.notes
    notes.append("The server's settings are not in the result: set deployment as it ran, or name it with --scenario.")
    return {key: draft.mapping[key] for key in ("model", "deployment")}


def _of_scenario(
    result: BenchResult,
    scenario: Scenario,
    *,
    hardware: str | None,
    model: str | None,
    version: str | None,
    notes: list[str],
) -> dict[str, Any]:
    """Return a scenario without its workload; add a note where the file contradicts it."""
    mapping = scenario.model_dump(mode="json", exclude_unset=True, exclude={"name", "workload"})
    own = scenario.model_dump(mode="json", exclude_unset=True, include={"workload"}).get("workload", {})
    dropped = [key for key in own if key not in _TRAFFIC]
    if dropped:
        notes.append(f"Of the scenario's workload {', '.join(dropped)} is left out: the benchmark's requests are read.")
    deployment = dict(mapping["deployment"])
    engine = dict(deployment.get("engine", {}))
    if result.engine and result.engine != scenario.deployment.engine.name:
        notes.append(
            f"The file was measured on {result.engine}, and the scenario has {scenario.deployment.engine.name}."
        )
    if result.model and model is None:
        notes.append(f"The file names {result.model}; the scenario's {scenario.model} is simulated.")
    if hardware is not None:
        deployment["hardware"] = hardware
    if version is not None:
        deployment["engine"] = engine | {"version": version}
    return mapping | {"model": model or scenario.model, "deployment": deployment}


def _workload(
    result: BenchResult, scenario: Scenario | None, name: str, notes: list[str]
) -> tuple[dict[str, Any], dict[str, str]]:
    remarks: list[str] = []
    lengths = lengths_of(result, scenario, remarks)
    arrivals = arrivals_of(result, scenario, remarks)
    notes += [_sentence(note) for note in remarks]
    if arrivals["process"] == "all_at_once":  # sent to a server, one client per request; not an offline batch
        arrivals = {"process": "closed_loop", "concurrency": result.num_requests}
    sources = (lengths.prompt_source, lengths.output_source)
    blocks = {key: _block(key, result, scenario, lengths) for key in ("prompt_tokens", "output_tokens")}
    if "recorded" not in sources and result.arrival_time is None and None not in blocks.values():
        return {"arrivals": arrivals, **blocks, "num_requests": result.num_requests}, {}
    file = f"{name}.requests.csv"
    workload: dict[str, Any] = {"trace": {"path": file, "format": "csv"}}
    if result.arrival_time is None:
        notes.append("The file holds no start times: they are drawn, and the order is the list's.")
    if result.arrival_time is None or (result.arrivals and arrivals["process"] == "closed_loop"):
        workload = {"arrivals": arrivals, **workload}
    return workload, {file: _as_csv(result, lengths, notes)}


def _block(key: str, result: BenchResult, scenario: Scenario | None, lengths: Lengths) -> Any:
    """Return the lengths as a block of the workload: the scenario's, unchanged or scaled, a range or a fixed length."""
    source = lengths.prompt_source if key == "prompt_tokens" else lengths.output_source
    own = None if scenario is None else scenario.model_dump(mode="json", exclude_unset=True)["workload"].get(key)
    if source == "drawn" and own is not None:
        return own
    tokens = result.prompt_tokens if key == "prompt_tokens" else result.output_tokens
    mean = float(tokens.mean())
    if source == "uniform" and result.length_range is not None:
        low, high = (max(round(mean * each), 1) for each in result.length_range)
        return {"distribution": "uniform", "min": low, "max": high}
    if source == "scaled" and isinstance(own, Mapping):
        return _scaled(own, lengths.scale[key]) if "path" not in own else None
    return {"distribution": "fixed", "value": max(round(mean), 1)}


def _scaled(block: Mapping[str, Any], factor: float) -> dict[str, Any]:
    counts = {key: max(round(factor * block[key]), 1) for key in ("min", "max", "value") if block.get(key) is not None}
    sizes = {key: float(f"{factor * block[key]:.6g}") for key in ("mean", "std") if block.get(key) is not None}
    return {**block, **counts, **sizes}


def _as_csv(result: BenchResult, lengths: Lengths, notes: list[str]) -> str:
    times = np.zeros(result.num_requests) if result.arrival_time is None else result.arrival_time
    rows = list(zip(times, lengths.prompt_tokens, lengths.output_tokens, strict=True))
    served = [row for row in rows if row[1] >= 1 and row[2] >= 1]
    if len(served) < len(rows):
        notes.append(f"{len(rows) - len(served):,} requests without tokens are left out.")
    return "arrival_time,prompt_tokens,output_tokens\n" + "".join(
        f"{float(time):.6f},{prompt},{output}\n" for time, prompt, output in served
    )


def _measured(result: BenchResult) -> dict[str, float]:
    """Return the figures under the names of simserve's results, latencies in ms."""
    found: dict[str, float] = {}
    if result.duration is not None:
        found["duration"] = result.duration
    found["completed"] = float(result.num_requests)
    if result.num_failed is not None:
        found["failed"] = float(result.num_failed)
    figures = result.measured
    found |= {key: figures[key] for key in ("request_throughput", "output_throughput") if key in figures}
    if len(result.prompt_tokens) and len(result.output_tokens):
        prompt, output = float(result.prompt_tokens.mean()), float(result.output_tokens.mean())
        if "output_throughput" in figures and output > 0:
            found["total_token_throughput"] = figures["output_throughput"] * (prompt + output) / output
        elif result.duration:
            found["total_token_throughput"] = (prompt + output) * result.num_requests / result.duration
    for latency, name in _LATENCIES.items():
        for statistic in ("mean", "median", "p90", "p95", "p99"):
            if f"{statistic}_{latency}" in figures:
                found[f"{statistic}_{name}_ms"] = figures[f"{statistic}_{latency}"] * 1e3
    return found


def _sentence(note: str) -> str:
    return note[:1].upper() + note[1:] + "."
