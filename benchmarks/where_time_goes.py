"""Where the CPU seconds of a run go: by stage, and inside the simulation by part of the program.

    python benchmarks/where_time_goes.py [--quick]

Stages are user CPU seconds of the steps of `simserve run`, timed in the order in which it takes them, each table in a
process of its own. The parts of the simulation are shares of what `cProfile` sees, which makes calls look dearer than
they are: read them as an order, not as seconds. Compiled code is one call to it, so this table is of interpreted runs.
"""

from __future__ import annotations

import cProfile
import json
import pstats
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

PARTS: Mapping[str, str] = {
    "simserve/engine/prefix_cache": "prefix cache",
    "simserve/engine/routing": "routing",
    "simserve/engine/conversations": "clients",
    "simserve/engine/data_plane": "data plane",
    "simserve/engine/event_plane": "data plane",
    "simserve/engine/kernel": "kernel: plan and complete leaps",
    "simserve/engine/": "engine: chunks, decoding, admission, blocks",
    "simserve/sim/plane": "routing",
    "simserve/engine/clients": "clients",
    "simserve/sim/recorder": "recording",
    "simserve/sim/": "data plane",
    "simpy": "SimPy",
    "numpy": "numpy",
}
"""Part of a file's path -> part of the program; the first that fits."""


def main() -> None:
    """Print the tables."""
    from benchmarks.processes import asked

    arguments = asked(__doc__, "stages", int)
    if arguments.stages:
        print(json.dumps(_stages(arguments.stages)))
        return
    for line in lines(quick=arguments.quick):
        print(line, flush=True)


def lines(*, quick: bool) -> Iterable[str]:
    """Yield both tables with what they say."""
    sizes = (500, 1_000) if quick else (2_000, 300_000)
    tables = [_measured_stages(size) for size in sizes]
    yield "| stage | " + " | ".join(f"{size:,} requests, CPU s" for size in sizes) + " |"
    yield "|---|" + "---:|" * len(sizes)
    for stage in tables[0]:
        yield f"| {stage} | " + " | ".join(f"{table[stage]:.2f}" for table in tables) + " |"
    yield "| all | " + " | ".join(f"**{sum(table.values()):.2f}**" for table in tables) + " |"
    yield ""
    for size, table in zip(sizes, tables, strict=True):
        yield f"- {_next_limit(size, table)}"
    yield ""
    yield "Inside the simulation, interpreted, shares of the profiled time:"
    yield ""
    profiles = [_profiled(*each, quick=quick) for each in (("one replica, 70 % load", False), ("all features", True))]
    names = sorted({part for _, shares in profiles for part in shares}, key=lambda part: -profiles[1][1].get(part, 0.0))
    yield "| part | " + " | ".join(title for title, _ in profiles) + " |"
    yield "|---|" + "---:|" * len(profiles)
    for name in names:
        yield f"| {name} | " + " | ".join(f"{shares.get(name, 0.0):.0%}" for _, shares in profiles) + " |"


def _next_limit(size: int, table: Mapping[str, float]) -> str:
    total = sum(table.values())
    largest, second = sorted(table, key=lambda stage: -table[stage])[:2]
    return (
        f"{size:,} requests: most goes into {largest} ({table[largest] / total:.0%}), then {second} "
        f"({table[second] / total:.0%}); if {largest} took nothing, the run would be "
        f"{total / (total - table[largest]):.1f} times as fast"
    )


def _measured_stages(num_requests: int) -> dict[str, float]:
    from benchmarks.processes import as_installed

    command = [sys.executable, __file__, "--stages", str(num_requests)]
    with tempfile.TemporaryDirectory() as folder:
        environment = as_installed(Path(folder))
        for _ in range(2):  # the first writes the bytecode
            done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    stages: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return stages


def _stages(num_requests: int) -> dict[str, float]:
    """Return the user CPU seconds of each stage of a run of so many requests, in this fresh process."""
    from benchmarks.features import user_seconds

    seconds: dict[str, float] = {}
    last = 0.0

    def lap(stage: str) -> None:
        nonlocal last
        now = user_seconds()
        seconds[stage], last = now - last, now

    from simserve.cli.app import app_of

    app_of("run")
    lap("interpreter and command line")
    import simserve.api

    lap("importing simserve, numpy, pydantic")
    import duckdb  # noqa: F401
    import jinja2  # noqa: F401

    lap("importing jinja2, duckdb")
    from benchmarks.features import LOAD, scenario
    from benchmarks.throughput import RATE_AT_FULL_LOAD
    from simserve.metrics.files import write_result
    from simserve.metrics.summary import summarize
    from simserve.report.html import write_report
    from simserve.scenario.resolve import resolve
    from simserve.scenario.run import _facts, deploy
    from simserve.sim.simulate import simulate
    from simserve.workload.generate import generate

    case = scenario(LOAD * RATE_AT_FULL_LOAD, num_requests)
    lap("reading the scenario")
    resolved = resolve(case)
    deployment = deploy(resolved)
    lap("resolving and pricing the deployment")
    specs = generate(case.workload, seed=case.run.seed)
    lap("drawing the traffic")
    simulation = simulate(deployment, specs)
    lap("simulating")
    summary = summarize(simulation, _facts(resolved, deployment.priced, simulation, specs, explain=False))
    lap("percentiles and summary")
    summary["simserve"]["bottleneck"]["seats_curve"] = None
    result: Any = simserve.api.run(scenario(LOAD * RATE_AT_FULL_LOAD, 200))
    result = type(result)(
        summary={**result.summary, **summary, "simserve": {**result.summary["simserve"], **summary["simserve"]}},
        scenario=case.as_mapping(),
        simulation=simulation,
        slo=result.slo,
        background=result.background,
    )
    last = user_seconds()
    with tempfile.TemporaryDirectory() as folder:
        write_result(result, Path(folder))
        lap("writing Parquet and JSON")
        write_report(result, Path(folder))
        lap("drawing and writing the report")
    return seconds


def _profiled(title: str, has_features: bool, *, quick: bool) -> tuple[str, dict[str, float]]:
    """Return the share of each part of the program in a simulation."""
    from benchmarks.features import ALL_TOGETHER, FEATURES, LOAD, NUM_REPLICAS, scenario, ways
    from benchmarks.throughput import RATE_AT_FULL_LOAD
    from simserve.scenario.run import run

    replicas = NUM_REPLICAS if has_features else 1
    overrides = (f"deployment.replicas={replicas}", *(FEATURES[ALL_TOGETHER] if has_features else ()))
    case = scenario(LOAD * RATE_AT_FULL_LOAD * replicas, 1_000 if quick else 10_000, overrides)
    options: dict[str, Any] = {} if len(ways()) == 1 else {"accelerate": "off"}
    run(case, explain=False, **options)
    profile = cProfile.Profile()
    profile.runcall(run, case, explain=False, **options)
    seconds: Counter[str] = Counter()
    _attribute(pstats.Stats(profile), seconds)
    total = sum(seconds.values())
    return title, {part: spent / total for part, spent in seconds.items() if spent / total >= 0.005}


def _attribute(stats: pstats.Stats, seconds: Counter[str]) -> None:
    """Add each function's own time to its part; that of built-ins to the parts of those who call them."""
    for (file, _, _), (_, _, own, _, clients) in stats.stats.items():  # type: ignore[attr-defined]
        if file == "~":
            for (caller, _, _), (_, _, spent, _) in clients.items():
                seconds[_part_of(caller)] += spent
        else:
            seconds[_part_of(file)] += own


def _part_of(file: str) -> str:
    path = file.replace("\\", "/")
    return next((part for piece, part in PARTS.items() if piece in path), "the rest: traffic, summary, resolving")


if __name__ == "__main__":
    main()
