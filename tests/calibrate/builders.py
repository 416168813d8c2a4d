"""Benchmark files that the simulator writes of itself, with engine constants that are known."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from simserve.calibrate.simulated import EngineParameters, Replay, ServingModel, replay_of
from simserve.scenario.load import from_mapping
from simserve.scenario.schema import Scenario
from simserve.workload.benchmarks.result import BenchResult

CHAT: dict[str, Any] = {
    "name": "chat",
    "model": "llama-3.1-8b",
    "deployment": {
        "hardware": "h100-sxm-80gb",
        "engine": {"name": "vllm", "version": "0.8.5", "enable_prefix_caching": False, "max_num_seqs": 256},
    },
    "workload": {
        "arrivals": {"process": "poisson", "rate": 2.0},
        "prompt_tokens": {"distribution": "uniform", "min": 200, "max": 1000},
        "output_tokens": {"distribution": "uniform", "min": 20, "max": 100},
        "num_requests": 60,
    },
}
"""A small server without anything asynchronous, whose host time therefore shows."""

LOADS: tuple[Mapping[str, Any], ...] = (
    {"request_rate": 2.0, "burstiness": 1.0, "max_concurrency": None},
    {"request_rate": "inf", "burstiness": 1.0, "max_concurrency": 1},
    {"request_rate": "inf", "burstiness": 1.0, "max_concurrency": 48},
)


def chat(**engine: Any) -> Scenario:
    """Return the scenario, with other engine knobs."""
    deployment = CHAT["deployment"]
    return from_mapping({**CHAT, "deployment": {**deployment, "engine": deployment["engine"] | engine}})


def write_benchmarks(folder: Path, truth: EngineParameters, scenario: Scenario | None = None) -> list[Path]:
    """Write one plain result of ``vllm bench serve`` a load, as a server with these constants would give it."""
    model = ServingModel(scenario or chat())
    files = []
    for number, load in enumerate(LOADS):
        document = dict(load) | {"model_id": "llama", "backend": "vllm", "num_prompts": 60}
        document |= simulated_document(model, document, truth)
        files.append(folder / f"run{number}.json")
        files[-1].write_text(json.dumps(document), encoding="utf-8")
    return files


def simulated_document(model: ServingModel, load: Mapping[str, Any], truth: EngineParameters) -> dict[str, Any]:
    """Return totals and figures of one load, as the simulator has them."""
    own = model.scenario.workload
    assert own.num_requests is not None
    closed = load["request_rate"] == "inf"
    arrivals = {"process": "closed_loop", "concurrency": load["max_concurrency"]}
    if not closed:
        arrivals = {"process": "poisson", "rate": load["request_rate"]}
    prompts, outputs = 600.0, 60.0
    import numpy as np

    asked = BenchResult(
        label="",
        file="",
        tool="",
        arrivals=arrivals,
        num_requests=own.num_requests,
        prompt_tokens=np.array([prompts]),
        output_tokens=np.array([outputs]),
        measured={},
    )
    replay: Replay = replay_of(asked, model.scenario)
    figures = model.predict(replay, truth)
    document: dict[str, Any] = {
        "completed": len(replay.specs),
        "duration": len(replay.specs) / figures["request_throughput"],
        "total_input_tokens": int(replay.specs.prompt_tokens.sum()),
        "total_output_tokens": int(replay.specs.output_tokens.sum()),
        "output_throughput": figures["output_throughput"],
        "request_throughput": figures["request_throughput"],
    }
    for latency in ("ttft", "tpot"):
        document |= {
            f"{statistic}_{latency}_ms": figures[f"{statistic}_{latency}"] * 1e3
            for statistic in ("mean", "median", "p99")
        }
    return document


def moved(parameters: EngineParameters, **changes: float) -> EngineParameters:
    """Return other constants."""
    return replace(parameters, **changes)
