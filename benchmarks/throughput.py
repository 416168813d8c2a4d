"""Simulated requests per user CPU second, by load, number of requests and replicas: compiled, and interpreted.

    python benchmarks/throughput.py                     the table, on stdout
    python benchmarks/throughput.py --write FILE.md     and into a file, with machine, versions and date
    python benchmarks/throughput.py --quick             small sizes, to see that it runs

Each row runs in processes of its own: traffic drawn, simulated, summarised with percentiles. User CPU seconds are of
these three; importing, resolving, pricing and loading compiled code are not counted. Compiled and interpreted runs take
turns, so that whatever else the machine does meets both. Peak memory is of the whole process; rows with files write
result.json, the Parquet files, the resolved scenario and the report as `simserve run` does.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import platform
import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

Row = dict[str, Any]
"""Load, number of requests and of replicas, whether files are written, how many times as long answers are."""

RATE_AT_FULL_LOAD = 40.0
"""Requests/s at which the queue of the benchmark's deployment neither grows nor empties."""
LOADS = {"2 %": 0.02, "70 %": 0.70, "full": 1.05}
LONG_ANSWERS = 5.0
"""Times as long answers, in the row that shows that a step costs nothing where nothing changes."""
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
    parser.add_argument("--row", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.row:
        print(json.dumps(run_row(**json.loads(arguments.row))))
        return
    lines = header()
    for row in rows(quick=arguments.quick):
        line = table_line(row, measure_both(row, quick=arguments.quick))
        print(line, flush=True)
        lines.append(line)
    if arguments.write:
        arguments.write.write_text("\n".join([*preamble(), *lines, ""]), encoding="utf-8")


def rows(*, quick: bool) -> list[Row]:
    """Return what is measured."""
    sizes = [2_000] if quick else [10_000, 100_000, 1_000_000]
    most = sizes[-1]
    plain: Row = {"replicas": 1, "writes_files": False, "answers": 1.0}
    found = [{**plain, "load": load, "num_requests": size} for size in sizes for load in LOADS]
    if quick:
        found = found[:1]
    found += [
        {**plain, "load": "2 %", "num_requests": most // 10, "answers": LONG_ANSWERS},
        {**plain, "load": "70 %", "num_requests": most, "writes_files": True},
        {**plain, "load": "70 %", "num_requests": most, "replicas": 16},
        {**plain, "load": "full", "num_requests": most, "replicas": 16},
    ]
    return found[:4] if quick else found


def measure_both(row: Row, *, quick: bool) -> dict[str, dict[str, float]]:
    """Return the best run of each kernel: of three, of two where it is long and interpreted."""
    repetitions = {"on": 1 if quick else 3, "off": 1 if quick else 2 if row["num_requests"] > 100_000 else 3}
    if importlib.util.find_spec("numba") is None:
        del repetitions["on"]
    else:
        measure({**row, "num_requests": 100, "accelerate": "on"})  # It may have to be compiled.
    results: dict[str, list[dict[str, float]]] = {how: [] for how in repetitions}
    for turn in range(max(repetitions.values())):
        for how, count in repetitions.items():
            if turn < count:
                results[how].append(measure({**row, "accelerate": how}))
    return {how: min(found, key=lambda each: each["seconds"]) for how, found in results.items()}


def measure(row: Row) -> dict[str, float]:
    """Run one row in a process of its own."""
    command = [sys.executable, __file__, "--row", json.dumps(row)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def run_row(
    load: str, num_requests: int, replicas: int, writes_files: bool, answers: float = 1.0, accelerate: str = "off"
) -> dict[str, float]:
    """Return user CPU seconds, steps and peak memory of one run."""
    import simserve
    from simserve.scenario.schema import Scenario

    scenario = json.loads(json.dumps(SCENARIO))
    scenario["deployment"]["replicas"] = replicas
    scenario["workload"]["arrivals"]["rate"] = LOADS[load] * RATE_AT_FULL_LOAD * replicas
    scenario["workload"]["num_requests"] = 100
    for key in ("mean", "max"):
        scenario["workload"]["output_tokens"][key] *= answers
    scenario["workload"]["output_tokens"]["max"] = int(scenario["workload"]["output_tokens"]["max"])
    scenario["workload"]["arrivals"]["rate"] /= answers
    simserve.run(Scenario.model_validate(scenario))
    simserve.run(Scenario.model_validate(scenario), accelerate=accelerate)
    scenario["workload"]["num_requests"] = num_requests
    begin = user_seconds()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out" if writes_files else None
        result = simserve.run(Scenario.model_validate(scenario), out=out, accelerate=accelerate)
    seconds = user_seconds() - begin
    return {
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
        "| requests | load | replicas | | compiled, requests / CPU s | interpreted, requests / CPU s | ratio "
        "| compiled, iterations / CPU s | compiled, peak memory | interpreted, peak memory |",
        "|---:|---|---:|---|---:|---:|---:|---:|---:|---:|",
    ]
    print("\n".join(lines))
    return lines


def table_line(row: Row, results: Mapping[str, Mapping[str, float]]) -> str:
    """Return one row of the table."""
    slow = results["off"]
    fast = results.get("on")
    special = "files and report" if row["writes_files"] else ""
    if row["answers"] != 1.0:
        special = f"answers {row['answers']:g} times as long"
    rate, iterations, ratio, peak = "", "", "", ""
    if fast is not None:
        rate = f"{fast['completed'] / fast['seconds']:,.0f}"
        iterations = f"{fast['steps'] / fast['seconds']:,.0f}"
        ratio = f"{slow['seconds'] / fast['seconds']:.1f}"
        peak = f"{fast['peak_bytes'] / 1e6:,.0f} MB"
    return (
        f"| {row['num_requests']:,} | {row['load']} | {row['replicas']} | {special} | {rate} "
        f"| {slow['completed'] / slow['seconds']:,.0f} | {ratio} | {iterations} | {peak} "
        f"| {slow['peak_bytes'] / 1e6:,.0f} MB |"
    )


def preamble() -> list[str]:
    """Return what the figures are, and of which machine."""
    import numpy

    return [
        "# Speed and memory",
        "",
        "Written by `make bench`. Simulated requests and engine iterations per user CPU second of one process, traffic",
        "and percentiles included: compiled (`simserve[fast]`, code on disk) and interpreted, the best of three runs;",
        "interpreted above 100,000 requests, of two. Llama-3.1-8B on H100s under vLLM 0.12: prompts of 512 tokens,",
        "answers of 211 on average. For scale, as published or measured by others: Vidur about 400 requests a CPU",
        "second, BLIS about 5,000.",
        "",
        f"- {datetime.date.today().isoformat()}, {platform.system()} {platform.machine()}, "
        f"Python {platform.python_version()}, numpy {numpy.__version__}",
        "",
    ]


if __name__ == "__main__":
    main()
