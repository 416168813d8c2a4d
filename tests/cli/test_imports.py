"""Start-up: each command imports what it needs, and none of the heavy packages that others need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import simserve as ss

HEAVY = ("duckdb", "jinja2", "joblib", "matplotlib", "pandas", "PIL", "scipy", "starlette", "torch")
"""Packages that take a tenth of a second and more to import."""

WITHOUT_FILES = f"""
import simserve
simserve.run(simserve.load("single-gpu-7b", ["workload.num_requests=50"]))
imported = {(*HEAVY, "rich", "typer")}
"""
WITH_FILES = f"""
from simserve.cli.main import main
main(["run", "single-gpu-7b", "--set", "workload.num_requests=50", "--out", "OUT", "--quiet"])
imported = {tuple(name for name in HEAVY if name not in ("duckdb", "jinja2"))}
"""
HELP = f"""
from simserve.cli.main import main
main(["--help"])
imported = {(*HEAVY, "numpy", "pydantic", "simpy", "yaml")}
"""
CHECK = f"""
from simserve.cli.main import main
main(["run", "single-gpu-7b", "--check", "--quiet"])
imported = {HEAVY}
"""
REPLICATIONS = f"""
import simserve
simserve.run(simserve.load("single-gpu-7b", ["workload.num_requests=50", "run.replications=2"]))
imported = {HEAVY}
"""


@pytest.mark.parametrize("program", [HELP, CHECK, WITHOUT_FILES, WITH_FILES, REPLICATIONS])
def test_a_command_imports_nothing_heavy_that_it_does_not_need(program: str, tmp_path: Path) -> None:
    """Start-up is most of what a short run takes: what files and figures need is not paid for without them."""
    code = (
        program.replace("OUT", str(tmp_path / "out")) + "import sys\nprint([n for n in imported if n in sys.modules])"
    )

    root = Path(ss.__file__).resolve().parents[1]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)

    assert done.stdout.splitlines()[-1] == "[]"


def test_docstrings_are_read_only_for_a_schema() -> None:
    """Reading the sources of all models would take a fifth of the start of every command."""
    code = (
        "from simserve.scenario.schema import Scenario, json_schema\n"
        "field = Scenario.model_fields['name']\n"
        "before = field.description\n"
        "print(before is None, json_schema()['properties']['name']['description'] == field.description)"
    )

    root = Path(ss.__file__).resolve().parents[1]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)

    assert done.stdout.split() == ["True", "True"]


RARE = (
    "simserve.planner.compare",
    "simserve.planner.sweep",
    "simserve.profiles.hf_config",
    "simserve.report.timeline",
    "simserve.sim.fleet_run",
    "simserve.workload.mixture",
    "simserve.workload.traces",
)
"""Modules of what a plain run has not got: a fleet that changes, traces, searches."""


@pytest.mark.parametrize("command", ["run single-gpu-7b --set workload.num_requests=50 --out OUT -q", "memory chatbot"])
def test_a_command_imports_no_other_command_and_nothing_rare(command: str, tmp_path: Path) -> None:
    """Half of simserve's modules are for what most runs do not use."""
    words = command.replace("OUT", str(tmp_path / "out")).split()
    others = tuple(f"simserve.cli.{name}" for name in ("apis", "compare", "cost", "plan", "run", "sweep", "trace"))
    code = (
        f"import sys\nfrom simserve.cli.main import main\nmain({words})\n"
        f"print([name for name in {(*RARE, *others)} if name in sys.modules])"
    )

    root = Path(ss.__file__).resolve().parents[1]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)

    assert done.stdout.splitlines()[-1] == str([f"simserve.cli.{words[0]}"] if words[0] == "run" else [])
