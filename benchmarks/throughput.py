"""Simulated requests and engine iterations per user CPU second, by load and by number of requests.

    python benchmarks/throughput.py                     the table, on stdout
    python benchmarks/throughput.py --write FILE.md     and into a file, with machine, versions and date
    python benchmarks/throughput.py --compare           the compiled kernel beside the interpreted one, run in turns
    python benchmarks/throughput.py --quick             small sizes, to see that it runs

Each row runs in a process of its own: traffic drawn, simulated, summarised. User CPU seconds are of these three,
start-up (importing, resolving, pricing) is shown once. Peak memory is of the whole process; rows with files write
result.json, the Parquet files, the resolved scenario and the report as `simserve run` does.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

RATE_AT_FULL_LOAD = 40.0
"""Requests/s at which the queue of the benchmark's deployment neither grows nor empties."""
LOADS = {"2 %": 0.02, "70 %": 0.70, "full": 1.05}
SCENARIO = {
    "name": "throughput",
    "model": "llama-3.1-8b",
    "deployment": {
        "hardware": "h100-sxm-80gb",
        "engine": {"name": "vllm", "version": "0.12", "max_num_seqs": 256, "max_model_len": 16384},
    },
    "workload": {
        "arrivals": {"process": "poisson", "rate": 1.0},
        "prompt_tokens": {"distribution": "lognormal", "mean": 512, "cv": 1.0, "max": 8000},
        "output_tokens": {"distribution": "lognormal", "mean": 211, "cv": 0.8, "max": 1000},
        "num_requests": 1000,
    },
    "run": {"warmup": "none"},
}


def main() -> None:
    """Run the rows and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", type=Path, help="also write the table to this Markdown file")
    parser.add_argument("--quick", action="store_true", help="small sizes, one repetition")
    parser.add_argument("--compare", action="store_true", help="compiled against interpreted, in the same run")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.row:
        print(json.dumps(run_row(**json.loads(arguments.row))))
        return
    if arguments.compare:
        lines = compare(20_000 if arguments.quick else 1_000_000, 1 if arguments.quick else 2)
        if arguments.write:
            arguments.write.write_text("\n".join([*lines, ""]), encoding="utf-8")
        return
    sizes = [2_000] if arguments.quick else [10_000, 100_000, 1_000_000]
    rows = [
        {"load": load, "num_requests": size, "replicas": 1, "writes_files": False} for size in sizes for load in LOADS
    ]
    rows += [
        {"load": "70 %", "num_requests": sizes[-1], "replicas": 1, "writes_files": True},
        {"load": "70 %", "num_requests": sizes[-1] // 10, "replicas": 16, "writes_files": False},
    ]
    repetitions = 1 if arguments.quick else 3
    lines = header()
    for row in rows:
        count = repetitions if row["num_requests"] <= 100_000 else min(repetitions, 2)
        results = [measure(row) for _ in range(count)]
        best = min(results, key=lambda result: result["seconds"])
        line = table_line(row, best)
        print(line, flush=True)
        lines.append(line)
    if arguments.write:
        arguments.write.write_text("\n".join([*preamble(), *lines, ""]), encoding="utf-8")


def measure(row: dict[str, object]) -> dict[str, float]:
    """Run one row in a process of its own."""
    command = [sys.executable, __file__, "--row", json.dumps(row)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def compare(num_requests: int, repetitions: int) -> list[str]:
    """Print and return a table: user CPU seconds of the compiled and of the interpreted kernel, and their ratio.

    The two run in turns, so that whatever else the machine does meets both; the best of the repetitions counts.
    Compiling is not in it: the first row sees to it that compiled code lies on disk.
    """
    lines = [
        "| requests | load | replicas | compiled requests / CPU s | interpreted requests / CPU s | ratio "
        "| compiled peak memory | interpreted peak memory | loading CPU s |",
        "|---:|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    print("\n".join(lines))
    rows = [(load, 1) for load in LOADS] + [("70 %", 16)]
    for load, replicas in rows:
        row = {"load": load, "num_requests": num_requests, "replicas": replicas, "writes_files": False}
        measure({**row, "num_requests": 100, "accelerate": "on"})
        results: dict[str, list[dict[str, float]]] = {"on": [], "off": []}
        for _ in range(repetitions):
            for accelerate, found in results.items():
                found.append(measure({**row, "accelerate": accelerate}))
        fast, slow = (min(found, key=lambda each: each["seconds"]) for found in results.values())
        line = (
            f"| {num_requests:,} | {load} | {replicas} | {num_requests / fast['seconds']:,.0f} "
            f"| {num_requests / slow['seconds']:,.0f} | {slow['seconds'] / fast['seconds']:.1f} "
            f"| {fast['peak_bytes'] / 1e6:,.0f} MB | {slow['peak_bytes'] / 1e6:,.0f} MB | {fast['loading']:.2f} |"
        )
        print(line, flush=True)
        lines.append(line)
    return lines


def run_row(
    load: str, num_requests: int, replicas: int, writes_files: bool, accelerate: str = "off"
) -> dict[str, float]:
    """Return user CPU seconds, steps and peak memory of one run."""
    import simserve
    from simserve.scenario.schema import Scenario

    scenario = json.loads(json.dumps(SCENARIO))
    scenario["deployment"]["replicas"] = replicas
    scenario["workload"]["arrivals"]["rate"] = LOADS[load] * RATE_AT_FULL_LOAD * replicas
    scenario["workload"]["num_requests"] = 100
    simserve.run(Scenario.model_validate(scenario))
    start_up = user_seconds()
    simserve.run(Scenario.model_validate(scenario), accelerate=accelerate)
    loading = user_seconds() - start_up
    scenario["workload"]["num_requests"] = num_requests
    begin = user_seconds()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out" if writes_files else None
        result = simserve.run(Scenario.model_validate(scenario), out=out, accelerate=accelerate)
    seconds = user_seconds() - begin
    return {
        "start_up": start_up,
        "loading": loading,
        "seconds": seconds,
        "steps": result.summary["simserve"]["steps"]["count"],
        "completed": result.summary["completed"],
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def user_seconds() -> float:
    """Return the user CPU seconds of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_utime


def header() -> list[str]:
    """Print and return the head of the table."""
    lines = [
        "| requests | load | replicas | files | requests / CPU s | iterations / CPU s | CPU s | peak memory "
        "| start-up CPU s |",
        "|---:|---|---:|---|---:|---:|---:|---:|---:|",
    ]
    print("\n".join(lines))
    return lines


def table_line(row: dict[str, object], result: dict[str, float]) -> str:
    """Return one row of the table."""
    seconds = result["seconds"]
    return (
        f"| {row['num_requests']:,} | {row['load']} | {row['replicas']} | {'yes' if row['writes_files'] else 'no'} "
        f"| {result['completed'] / seconds:,.0f} | {result['steps'] / seconds:,.0f} | {seconds:.2f} "
        f"| {result['peak_bytes'] / 1e6:,.0f} MB | {result['start_up']:.2f} |"
    )


def preamble() -> list[str]:
    """Return what the figures are, and of which machine."""
    import numpy

    return [
        "# Speed and memory",
        "",
        "Written by `make bench`. Simulated requests and engine iterations per user CPU second, one process, no",
        "compiled code; the best of three runs up to 100,000 requests, of two above. Llama-3.1-8B on one H100 under",
        "vLLM 0.12: prompts of 512 tokens, answers of 211 on average. For scale, as published or measured by others:",
        "Vidur about 400 requests a CPU second, BLIS about 5,000.",
        "",
        f"- {datetime.date.today().isoformat()}, {platform.system()} {platform.machine()}, "
        f"Python {platform.python_version()}, numpy {numpy.__version__}",
        "",
    ]


if __name__ == "__main__":
    main()
