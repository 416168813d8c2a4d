"""Start-up: each command imports what it needs, and none of the heavy packages that others need."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import simserve as ss

HEAVY = ("duckdb", "jinja2", "joblib", "matplotlib", "pandas", "PIL", "scipy", "starlette", "torch")
"""Packages that take a tenth of a second and more to import."""
RARE = (
    "simserve.planner.compare",
    "simserve.planner.sweep",
    "simserve.profiles.hf_config",
    "simserve.report.timeline",
    "simserve.sim.fleet_run",
    "simserve.workload.mixture",
    "simserve.workload.traces",
)
"""Modules of what a plain run has not got: a fleet that changes, traces, searches. Half of simserve's modules are for
what most runs do not use."""
OTHERS = tuple(f"simserve.cli.{name}" for name in ("apis", "compare", "cost", "plan", "sweep", "trace"))
"""Commands that are neither `run` nor `memory`."""
HELP = {
    "--help": (*HEAVY, "numpy", "pydantic", "simpy", "yaml"),
    "run single-gpu-7b --check --quiet": HEAVY,
}
"""Command -> what it does without; the help imports all commands, and a check some."""
ABSENT = {
    "memory chatbot": (*HEAVY, *RARE, *OTHERS, "simserve.cli.run"),
    "run single-gpu-7b --set workload.num_requests=50 --out OUT --quiet": (
        *(name for name in HEAVY if name not in ("duckdb", "jinja2")),
        *RARE,
        *OTHERS,
    ),
}
"""Likewise. What one needs not, none before it has needed: each group runs in one process."""
COMMANDS = """
import json, sys
from simserve.cli.main import main

found = {}
for line, absent in json.loads(sys.argv[1]).items():
    words = line.replace("OUT", sys.argv[2]).split()
    code = main(words)
    found[line] = [code, words[0], [name for name in absent if name in sys.modules]]
    if words[0] == "run":
        assert "simserve.cli.run" in sys.modules
print("\\n" + json.dumps(found))
"""
IN_PYTHON = """
import sys
import simserve

def run(*more):
    simserve.run(simserve.load("single-gpu-7b", ["workload.num_requests=50", *more]))

run()
without = [name for name in {without} if name in sys.modules]
run("run.replications=2")
replicated = [name for name in {heavy} if name in sys.modules]

from simserve.scenario.schema import Scenario, json_schema
field = Scenario.model_fields["name"]
before = field.description
described = json_schema()["properties"]["name"]["description"] == field.description
print(without, replicated, before is None, described, sep="\\n")
"""


def printed(code: str, *arguments: str) -> list[str]:
    """Return the lines that a fresh process prints."""
    root = Path(ss.__file__).resolve().parents[1]
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=root).stdout.splitlines()


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that the run writes into."""
    return tmp_path_factory.mktemp("imports") / "out"


@pytest.fixture(scope="module")
def imported(out: Path) -> dict[str, list[object]]:
    """Return the exit code, the command, and what is there of what should be absent, of each line."""
    found: dict[str, list[object]] = {}
    for lines in (HELP, ABSENT):
        found |= json.loads(printed(COMMANDS, json.dumps(lines), str(out))[-1])
    return found


@pytest.fixture(scope="module")
def in_python() -> list[str]:
    """Return what is there after runs from Python, and whether docstrings were read before a schema and by it."""
    return printed(IN_PYTHON.format(without=(*HEAVY, "rich", "typer"), heavy=HEAVY))


@pytest.mark.parametrize("line", [*HELP, *ABSENT])
def test_a_command_imports_nothing_that_it_does_not_need(imported: dict[str, list[object]], line: str) -> None:
    """Start-up is most of what a short run takes: neither heavy packages, other commands nor anything rare."""
    assert imported[line] == [0, line.split()[0], []]


def test_a_report_needs_no_matplotlib(imported: dict[str, list[object]], out: Path) -> None:
    """It would be a third of what a short run takes; the pictures are there."""
    assert "matplotlib" in ABSENT[list(imported)[-1]]
    assert (out / "report.html").read_text(encoding="utf-8").count("<svg") >= 7


def test_runs_from_python_import_nothing_heavy(in_python: list[str]) -> None:
    """Neither what files need, nor what prints; of several replications as of one."""
    assert in_python[-4:-2] == ["[]", "[]"]


def test_docstrings_are_read_only_for_a_schema(in_python: list[str]) -> None:
    """Reading the sources of all models would take a fifth of the start of every command."""
    assert in_python[-2:] == ["True", "True"]
