"""Calls of agents' tasks replayed per user CPU second: a recorded trace of dependency graphs, compiled and interpreted.

    python benchmarks/agentic.py            50,000 calls on four replicas
    python benchmarks/agentic.py --quick    2,000 calls, to see that it runs

The trace is drawn from `workload.agents`, written in the format `agentic-mooncake` and read once before the clock
starts. The clock covers what follows: the graph of the calls, the simulation, the figures of requests and tasks.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.features import user_seconds

CALLS, QUICK_CALLS = 50_000, 2_000
RATE, REPLICAS, REPETITIONS = 200.0, 4, 3
BLOCK_TOKENS = 512
"""Tokens that one of the trace's hash_ids stands for."""
WORKLOAD: dict[str, Any] = {
    "arrivals": {"process": "poisson", "rate": RATE},
    "shared_prefix": {"num_groups": 4, "tokens": 1024},
    "prompt_tokens": {"distribution": "lognormal", "mean": 200, "cv": 1.0, "max": 2000},
    "output_tokens": {"distribution": "lognormal", "mean": 60, "cv": 1.0, "max": 400},
    "agents": {
        "calls": {"distribution": "geometric", "mean": 8, "max": 40},
        "tool_time": "2 s",
        "tool_time_cv": 1.0,
        "subagent_share": 0.1,
        "subagents": {"distribution": "uniform", "min": 1, "max": 3},
        "subagent_calls": {"distribution": "geometric", "mean": 3, "max": 10},
        "fork_share": 0.5,
    },
}


def main() -> None:
    """Print the calls per CPU second of each way."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few calls, one repetition")
    quick = parser.parse_args().quick
    num_calls = QUICK_CALLS if quick else CALLS
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tasks.jsonl"
        write_trace(path, num_calls)
        ways = ["off", "on"] if importlib.util.find_spec("numba") is not None else ["off"]
        for how in ways:
            rate = num_calls / replay_seconds(path, how, 1 if quick else REPETITIONS)
            print(f"{'compiled' if how == 'on' else 'interpreted'}: {rate:,.0f} calls a CPU second", flush=True)


def write_trace(path: Path, num_calls: int) -> None:
    """Write drawn tasks as a trace: what each call waits for, its pause, and the blocks that its prompt begins with."""
    from simserve.workload.generate import generate
    from simserve.workload.spec import WorkloadSpec

    specs = generate(WorkloadSpec.model_validate({**WORKLOAD, "num_requests": num_calls}), seed=1)
    graph, prefixes = specs.dependencies, specs.prefixes
    assert graph is not None
    assert prefixes is not None
    with path.open("w", encoding="utf-8") as file:
        for row in range(num_calls):
            entries = slice(int(prefixes.offsets[row]), int(prefixes.offsets[row + 1]))
            blocks = np.arange(0, int(specs.prompt_tokens[row]), BLOCK_TOKENS)
            held = np.searchsorted(prefixes.ends[entries], blocks, side="right")
            parents = graph.parents[graph.offsets[row] : graph.offsets[row + 1]].tolist()
            fields: dict[str, Any] = {
                "request_id": str(row),
                "input_length": int(specs.prompt_tokens[row]),
                "output_length": int(specs.output_tokens[row]),
                "hash_ids": (prefixes.segments[entries][held] * 1000 + blocks // BLOCK_TOKENS).tolist(),
            }
            if parents:
                fields |= {"wait_for": [str(each) for each in parents], "delay": 1000 * float(specs.think_time[row])}
            else:
                fields["timestamp"] = 1000 * float(specs.arrival_time[row])
            file.write(json.dumps(fields) + "\n")


def replay_seconds(path: Path, how: str, repetitions: int) -> float:
    """Return the user CPU seconds of the fastest of some replays."""
    from simserve.scenario.load import from_mapping
    from simserve.scenario.resolve import resolve
    from simserve.scenario.run import deploy, run

    scenario = from_mapping(
        {
            "name": "agentic",
            "model": "llama-3.1-8b",
            "deployment": {
                "hardware": "h100-sxm-80gb",
                "replicas": REPLICAS,
                "engine": {"name": "vllm", "version": "0.12", "max_model_len": 65536},
            },
            "workload": {"trace": {"path": str(path), "format": "agentic-mooncake"}, "agents": {}},
        }
    )
    deploy(resolve(scenario))
    options: dict[str, Any] = {"explain": False, "accelerate": how}
    run(scenario, **options)  # reads the trace, and compiles
    seconds = []
    for _ in range(repetitions):
        gc.collect()
        start = user_seconds()
        run(scenario, **options)
        seconds.append(user_seconds() - start)
    return min(seconds)


if __name__ == "__main__":
    main()
