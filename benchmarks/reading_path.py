"""What a reader passes: functions from a request's arrival to its record, modules from a scenario to its result.

    python -m benchmarks.reading_path [SCENARIO]

Counted by running it, interpreted: the lines of every function that was called, docstrings and comments included, each
function once. It measures code, no speed, and is the same on any machine.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import simserve as ss
from simserve.scenario.replication import replicate
from simserve.scenario.resolve import resolve
from simserve.scenario.run import deploy, run
from simserve.sim.simulate import simulate

NUM_REQUESTS = 200
CONSTRUCTION = ("<module>", "<lambda>", "<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>")
"""What stands inside a function and is counted with it, or is run once as a module is read."""


def called_by(action: Callable[[], Any]) -> set[CodeType]:
    """Return the functions of simserve that something calls."""
    called: set[CodeType] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        module = frame.f_globals.get("__name__", "")
        code = frame.f_code
        is_written = code.co_filename.endswith(".py") and code.co_name not in CONSTRUCTION
        if event == "call" and module.startswith("simserve.") and is_written:
            called.add(code)

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return called


def lines_of(functions: set[CodeType]) -> int:
    """Return the lines of functions, those inside others counted with them."""
    spans: dict[str, set[int]] = {}
    for each in functions:
        source, first = inspect.getsourcelines(each)
        spans.setdefault(each.co_filename, set()).update(range(first, first + len(source)))
    return sum(len(lines) for lines in spans.values())


def modules_of(functions: set[CodeType]) -> list[str]:
    """Return the files of functions, without the folder of the package."""
    return sorted({each.co_filename.rpartition("/simserve/")[2] for each in functions})


def report(scenario: str) -> list[str]:
    """Return what a reader passes, a row of a table each."""
    loaded = ss.load(scenario, [f"workload.num_requests={NUM_REQUESTS}"])
    resolved = resolve(loaded)
    deployment = deploy(resolved)
    # What is read once and kept, profiles and prices, is read before; requests are drawn before the first arrives.
    run(loaded, explain=False, accelerate="off", finishable=None)
    specs, _ = replicate(deployment, loaded, 0, accelerate="off")
    simulated = called_by(lambda: simulate(deployment, specs, accelerate="off"))
    whole = called_by(lambda: run(loaded, explain=False, accelerate="off", finishable=None))
    rows = [("arrival to record", simulated), ("scenario to result", whole)]
    return [
        "| path | functions | their lines | modules |",
        "|---|---|---|---|",
        *(f"| {name} | {len(each)} | {lines_of(each):,} | {len(modules_of(each))} |" for name, each in rows),
        "",
        *(f"{name}: {', '.join(modules_of(each))}" for name, each in rows),
    ]


if __name__ == "__main__":
    print("\n".join(report(sys.argv[1] if len(sys.argv) > 1 else "chatbot")))
