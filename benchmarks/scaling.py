"""CPU seconds and peak memory by the number of requests, beside a walker that takes every step of every request.

    python benchmarks/scaling.py [--quick] [--svg FILE.svg]

Each row runs in a process of its own, as `throughput.py` does; the walker is the specification that the tests hold the
kernel to (`simserve.reference`), on the same requests at 70 % load.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.features import LOAD, scenario, user_seconds, ways
from benchmarks.throughput import RATE_AT_FULL_LOAD

NAMES = {"walker": "every step walked", "off": "interpreted", "on": "compiled"}
SIZES = (10_000, 30_000, 100_000, 300_000, 1_000_000)
LARGEST = 10_000_000
"""Compiled only: it shows that memory goes on growing evenly."""
WALKED = (100, 300, 1_000)
COLORS = {"walker": "#d55e00", "off": "#0072b2", "on": "#009e73"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One run: how, requests, user CPU seconds of drawing, simulating and summarising, peak bytes of the process."""

    how: str
    num_requests: int
    seconds: float
    peak_bytes: float


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--svg", type=Path, help="draw the points into this file")
    parser.add_argument("--point", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.point:
        how, num_requests = json.loads(arguments.point)
        print(json.dumps(asdict(_run(how, num_requests))))
        return
    points = measure(quick=arguments.quick)
    for line in table(points):
        print(line)
    if arguments.svg:
        arguments.svg.write_text(drawing(points), encoding="utf-8")


def measure(*, quick: bool) -> list[Point]:
    """Return every point, each measured in a process of its own."""
    asked = [("walker", size) for size in (WALKED[:1] if quick else WALKED)]
    asked += [(how, size) for how in ways() for size in ((1_000, 3_000) if quick else SIZES)]
    if not quick and "on" in ways():
        asked.append(("on", LARGEST))
    return [_measured(*each) for each in asked]


def _measured(how: str, num_requests: int) -> Point:
    command = [sys.executable, __file__, "--point", json.dumps([how, num_requests])]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return Point(**json.loads(done.stdout.splitlines()[-1]))


def _run(how: str, num_requests: int) -> Point:
    from simserve.scenario.resolve import resolve
    from simserve.scenario.run import deploy, run
    from simserve.workload.generate import generate

    rate = LOAD * RATE_AT_FULL_LOAD
    case = scenario(rate, num_requests)
    options: dict[str, Any] = {} if len(ways()) == 1 else {"accelerate": "off" if how == "walker" else how}
    run(scenario(rate, 1_000), explain=False, **options)
    start = user_seconds()
    if how == "walker":
        from tests.walker import walk

        deployment = deploy(resolve(case))
        walk(deployment.engine, deployment.priced.step_times, generate(case.workload, seed=case.run.seed))
    else:
        run(case, explain=False, **options)
    seconds = user_seconds() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return Point(how=how, num_requests=num_requests, seconds=seconds, peak_bytes=peak)


def table(points: Sequence[Point]) -> Iterable[str]:
    """Yield the lines of the table."""
    yield "| how | requests | CPU s | requests / CPU s | peak memory |"
    yield "|---|---:|---:|---:|---:|"
    for point in points:
        yield (
            f"| {NAMES[point.how]} | {point.num_requests:,} | {point.seconds:.2f} "
            f"| {point.num_requests / point.seconds:,.0f} | {point.peak_bytes / 1e6:,.0f} MB |"
        )


def summary(points: Sequence[Point]) -> str:
    """Return in a sentence how the kernel compares with the walker, and how both grow."""
    best = {
        how: max(point.num_requests / point.seconds for point in points if point.how == how)
        for how in NAMES
        if any(point.how == how for point in points)
    }
    words = [
        f"{NAMES[how]} {rate / best['walker']:,.0f} times as fast as walking every step"
        for how, rate in best.items()
        if how != "walker"
    ]
    sentences = [f"The kernel is {' and '.join(words)}."]
    for how in NAMES:
        mine = [point for point in points if point.how == how]
        if how == "walker" or not mine:
            continue
        size = mine[-1].num_requests / mine[0].num_requests
        growth = mine[-1].seconds / mine[0].seconds
        # Below the peak that importing and pricing reach, requests show nothing.
        large = [point for point in mine if point.num_requests >= mine[-1].num_requests / 10]
        memory = (large[-1].peak_bytes - large[0].peak_bytes) / (large[-1].num_requests - large[0].num_requests)
        name = NAMES[how].capitalize()
        sentences.append(
            f"{name}, {size:,.0f} times the requests take {growth:,.0f} times the CPU seconds; "
            f"a request takes {memory:,.0f} bytes."
        )
    return " ".join(sentences)


def drawing(points: Sequence[Point]) -> str:
    """Return the points as SVG, both axes logarithmic; the same points give the same bytes."""
    import io

    import matplotlib

    matplotlib.use("svg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 3.2))
    for place, (name, label) in enumerate((("seconds", "user CPU seconds"), ("peak_bytes", "peak memory, MB"))):
        axes = figure.add_subplot(1, 2, place + 1)
        for how in NAMES:
            mine = [point for point in points if point.how == how]
            values = [getattr(point, name) / (1 if name == "seconds" else 1e6) for point in mine]
            if mine:
                sizes = [point.num_requests for point in mine]
                axes.plot(sizes, values, marker="o", markersize=3.5, color=COLORS[how], label=NAMES[how])
        axes.set(xscale="log", yscale="log", xlabel="requests", ylabel=label)
        axes.grid(True, color="#d9dde3", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        if not place:
            axes.legend(frameon=False, fontsize=8)
    figure.subplots_adjust(left=0.09, right=0.98, bottom=0.16, top=0.96, wspace=0.28)
    drawn = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "simserve", "svg.fonttype": "none"}):
        figure.savefig(drawn, format="svg", facecolor="white", metadata={"Date": None})
    return "\n".join(line.rstrip() for line in drawn.getvalue().splitlines()) + "\n"


if __name__ == "__main__":
    main()
