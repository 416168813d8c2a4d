"""How long an answer takes: a real trace, a search for capacity, a plan, a sweep on one worker and on two.

    python benchmarks/answers.py [--quick]

Each in processes of its own, compiled kernel on disk. User CPU seconds are of the process and its workers; the wall
time beside them is that of this machine as it was, and of two runs in turns only their ratio says much.
"""

from __future__ import annotations

import json
import os
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

TRACE = (ROOT / "../shared/data/traces/azure2023/AzureLLMInferenceTrace_conv.csv.gz").resolve()
GRID = (
    *("--grid", "workload.arrivals.concurrency=8,12,16,20,24,28"),
    *("--grid", "deployment.engine.max_num_seqs=32,64,128,256"),
)
SHORT, LONG, LONGEST = 2_000, 100_000, 500_000
"""Requests of a point of the sweeps."""
PLANNED_QUICKLY = ("--hardware", "h100-sxm-80gb", "--trials", "0")
ONE_LINE = (
    "qwen3-32b",
    "--rate",
    "4",
    "--prompt-tokens",
    "2000",
    "--output-tokens",
    "300",
    "--slo",
    "ttft=2s,tpot=50ms",
)
"""A plan on all priced GPUs, with separate prefill and decode workers of two kinds of GPU among what is searched."""
MANY_GPUS = ("chatbot", "--set", "model=llama-3.3-70b", "--set", "workload.arrivals.rate=50")
"""A plan of a 70B model whose best fleet on the scenario's own GPU costs several times the cheapest."""


def main() -> None:
    """Print the tables."""
    from benchmarks.processes import asked

    arguments = asked(__doc__, "trace", str)
    if arguments.trace:
        print(json.dumps(_trace_seconds(arguments.trace)))
        return
    for line in lines(quick=arguments.quick):
        print(line, flush=True)


def lines(*, quick: bool) -> Iterable[str]:
    """Yield the tables."""
    yield from _trace_lines(repetitions=1 if quick else 3)
    yield ""
    yield from _command_lines(quick=quick)
    yield from _sweep_lines(quick=quick)


def _trace_lines(repetitions: int) -> Iterable[str]:
    if not TRACE.exists():
        yield "The Azure traces are not here; they are not part of the repository."
        return
    from benchmarks.features import ways

    names = {"off": "interpreted", "on": "compiled"}
    yield "| Azure conversation trace, 19,366 requests, one replica | reading | simulating | percentiles and summary |"
    yield "|---|---:|---:|---:|"
    for how in ways():
        command = [sys.executable, __file__, "--trace", how]
        runs = [json.loads(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(repetitions)]
        cells = (f"{min(run[stage] for run in runs):.3f}" for stage in ("reading", "simulating", "summary"))
        yield f"| {names[how]}, CPU s | " + " | ".join(cells) + " |"


def _trace_seconds(how: str) -> dict[str, float]:
    """Return user CPU seconds of the stages of a run of the trace; the second run counts, compiled code loaded."""
    from benchmarks.features import user_seconds
    from benchmarks.throughput import SCENARIO
    from simserve.metrics.summary import summarize
    from simserve.scenario.load import from_mapping
    from simserve.scenario.resolve import resolve
    from simserve.scenario.run import _facts, deploy
    from simserve.sim.simulate import simulate
    from simserve.workload.generate import generate

    case = from_mapping({**SCENARIO, "workload": {"trace": {"path": str(TRACE), "format": "azure"}}})
    resolved = resolve(case)
    deployment = deploy(resolved)
    start = user_seconds()
    specs = generate(case.workload, seed=case.run.seed)
    reading = user_seconds() - start
    for _ in range(2):
        begin = user_seconds()
        simulation = simulate(deployment, specs, accelerate=how)  # type: ignore[arg-type]
        middle = user_seconds()
        summarize(simulation, _facts(resolved, deployment.priced, simulation, specs, explain=False))
        end = user_seconds()
    return {"reading": reading, "simulating": middle - begin, "summary": end - middle}


def _command_lines(*, quick: bool) -> Iterable[str]:
    yield "| command | what was looked at | CPU s | wall s |"
    yield "|---|---|---:|---:|"
    workers = min(2, os.cpu_count() or 1)
    jobs = ("--json", "--jobs", str(workers))
    planned = ("-m", "simserve", "plan", "chatbot", *jobs)
    commands = {
        "simserve capacity chatbot": ("-m", "simserve", "capacity", "chatbot", "--json"),
        f"simserve plan chatbot --jobs {workers}": (*planned, *(PLANNED_QUICKLY if quick else ())),
    }
    if not quick:
        for asked in (ONE_LINE, MANY_GPUS):
            commands[f"simserve plan {shlex.join(asked)} --jobs {workers}"] = ("-m", "simserve", "plan", *asked, *jobs)
    for name, command in commands.items():
        runs = [_measured(command) for _ in range(1 if quick else 2)]
        cpu, wall = (min(run[each] for run in runs) for each in (0, 1))
        yield f"| `{name}` | {_looked_at(json.loads(runs[0][2]))} | {cpu:.2f} | {wall:.2f} |"


def _looked_at(answer: Mapping[str, Any]) -> str:
    """Return in words how much an answer looked at."""
    if "probes" in answer:
        return f"{len(answer['probes'])} loads"
    search = answer["search"]
    return (
        f"{search['looked_at']:,} deployments of {search['combinations']:,}, {search['simulations']:,} simulations, "
        f"{len(search['hardware'])} kinds of GPU"
    )


def _sweep_lines(*, quick: bool) -> Iterable[str]:
    """Yield sweeps of shorter and longer points by workers, in turns, and whether their tables are the same."""
    ways = {"one worker": ("1", "auto"), "two workers": ("2", "auto")}
    fresh = {"two fresh processes (loky)": ("2", "loky")}
    for num_requests, compared in ((SHORT, ways if quick else ways | fresh), (LONG, ways), (LONGEST, ways)):
        size = num_requests // 20 if quick else num_requests
        yield ""
        yield f"| `simserve sweep`, 24 points of {size:,} requests | CPU s | of one worker | wall s | of one worker |"
        yield "|---|---:|---:|---:|---:|"
        best, tables = _sweeps(compared, size, repetitions=1 if quick else 3)
        one = best["one worker"]
        for name, (cpu, wall) in best.items():
            yield f"| {name} | {cpu:.2f} | {cpu / one[0]:.2f} | {wall:.2f} | {wall / one[1]:.2f} |"
        yield ""
        yield f"The tables are {'the same' if len(tables) == 1 else 'NOT the same'}, byte by byte."


def _sweeps(
    ways: Mapping[str, tuple[str, str]], num_requests: int, repetitions: int
) -> tuple[dict[str, tuple[float, float]], set[bytes]]:
    """Return the least CPU and wall seconds of each way, in turns, and the different tables that were written."""
    best: dict[str, tuple[float, float]] = {}
    tables = set()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "x.parquet"
        size = ("--set", f"workload.num_requests={num_requests}")
        for _ in range(repetitions):
            for name, (workers, backend) in ways.items():
                flags = (*GRID, "--workers", workers, "--backend", backend, "--out", str(out), "--force", "--quiet")
                cpu, wall, _ = _measured(("-m", "simserve", "sweep", "single-gpu-7b", *flags, *size))
                known = best.get(name, (cpu, wall))
                best[name] = min(cpu, known[0]), min(wall, known[1])
                tables.add(out.read_bytes())
    return best, tables


def _measured(arguments: Sequence[str]) -> tuple[float, float, str]:
    """Return user CPU seconds of a command and its children, its wall time, and what it printed."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime, time.perf_counter()
    done = subprocess.run([sys.executable, *arguments], check=True, cwd=ROOT, capture_output=True, text=True)
    wall = time.perf_counter() - begin
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before, wall, done.stdout


if __name__ == "__main__":
    main()
