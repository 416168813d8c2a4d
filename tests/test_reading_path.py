"""How much a reader passes from arrival to record, and from a scenario to its result: counted on a run."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from benchmarks.reading_path import called_by, lines_of, modules_of
from simserve import api
from simserve.scenario.replication import replicate
from simserve.scenario.resolve import resolve
from simserve.scenario.run import deploy, run
from simserve.sim.simulate import simulate

MOST_LINES = 3000
"""Of the functions that run from arrival to record in a plain scenario, docstrings included."""
MOST_MODULES = 39
"""In which any function runs, from a plain scenario to its result."""

CONTRIBUTING = Path(__file__).parent.parent / "CONTRIBUTING.md"
"""States both counts, which may be 3 % old."""

IS_WATCHED = sys.getprofile() is not None or sys.gettrace() is not None


@pytest.mark.skipif(IS_WATCHED, reason="somebody else is watching")
def test_a_plain_request_passes_few_lines() -> None:
    """Interpreted, from the first arrival to the records; the loop, the kernel and the recorder are among them."""
    scenario = api.load("chatbot", ["workload.num_requests=50"])
    deployment = deploy(resolve(scenario))
    specs, _ = replicate(deployment, scenario, 0, accelerate="off")

    called = called_by(lambda: simulate(deployment, specs, accelerate="off"))

    assert {"engine/event_plane.py", "engine/kernel.py", "sim/recorder.py"} <= set(modules_of(called))
    assert 0 < lines_of(called) <= MOST_LINES
    stated = re.search(r"you read (\d+) functions with ([\d,]+) lines", CONTRIBUTING.read_text(encoding="utf-8"))
    assert stated is not None
    functions, lines = (int(each.replace(",", "")) for each in stated.groups())
    assert (len(called), lines_of(called)) == (pytest.approx(functions, rel=0.03), pytest.approx(lines, rel=0.03))


@pytest.mark.skipif(IS_WATCHED, reason="somebody else is watching")
def test_a_plain_run_passes_few_modules() -> None:
    """What it does not have, none of its modules is asked for; profiles are read once, and have been read before."""
    scenario = api.load("chatbot", ["workload.num_requests=50"])
    run(scenario, explain=False, accelerate="off", finishable=None)

    passed = modules_of(called_by(lambda: run(scenario, explain=False, accelerate="off", finishable=None)))

    assert {"scenario/resolve.py", "sim/simulate.py", "engine/kernel.py", "metrics/summary.py"} <= set(passed)
    assert len(passed) <= MOST_MODULES, passed


def test_lines_are_counted_once() -> None:
    """A function that is called twice, and one that calls another of the same module."""

    def both() -> None:
        api.load("chatbot")
        api.load("chatbot")

    once, twice = called_by(lambda: api.load("chatbot")), called_by(both)

    assert lines_of(once) == lines_of(once | twice) > 0
