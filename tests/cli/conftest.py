"""What the command-line tests share: an empty working folder, and one command run in this process."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from simserve import api
from simserve.cli.main import main
from simserve.scenario.schema import Scenario
from tests.scenario.builders import scenario_mapping


@dataclass(frozen=True)
class Outcome:
    """What a command left behind.

    Attributes:
        code: Exit code.
        stdout: All it printed.
        stderr: All its complaints.
    """

    code: int
    stdout: str
    stderr: str

    @property
    def error_line(self) -> str:
        """The one line on stderr."""
        lines = self.stderr.splitlines()
        assert len(lines) == 1, self.stderr
        assert lines[0].startswith("simserve: error: "), self.stderr
        return lines[0].removeprefix("simserve: error: ")


Simserve = Callable[..., Outcome]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the empty folder that the command runs in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def simserve(capfd: pytest.CaptureFixture[str]) -> Simserve:
    """Return a function that runs `simserve` with arguments."""

    def run(*arguments: str) -> Outcome:
        capfd.readouterr()
        code = main(arguments)
        captured = capfd.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run


@pytest.fixture
def small(folder: Path) -> str:
    """Return the path of the small scenario, in the working folder."""
    (folder / "small.yaml").write_text(yaml.safe_dump(scenario_mapping()), encoding="utf-8")
    return "small.yaml"


@pytest.fixture(scope="module")
def known_answers() -> dict[str, Any]:
    """Return the answers of the API that tests of a module have asked for so far, by what they asked."""
    return {}


@pytest.fixture
def answered_once(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, known_answers: dict[str, Any]
) -> None:
    """Take what a test of the module has asked before from there; what a command prints of it is made anew.

    Not where a test replaces a part of the program, nor where a scenario names files.
    """
    if "monkeypatch" in inspect.signature(request.function).parameters:
        return
    patches = sorted({"best_alone", "headroom_alone", "run_alone"} & set(request.fixturenames))
    for name in ("capacity", "compare", "plan", "validate"):
        monkeypatch.setattr(api, name, partial(_answered, known_answers, getattr(api, name), patches))


_NO_PART = ("jobs", "progress")
"""Parameters that no answer depends on."""


def _answered(known: dict[str, Any], answer: Callable[..., Any], patches: list[str], *asked: Any, **how: Any) -> Any:
    """Return an answer from those that are known, or add it to them."""
    told = [each.as_mapping() if isinstance(each, Scenario) else each for each in asked]
    key = repr((answer.__name__, patches, told, {name: each for name, each in how.items() if name not in _NO_PART}))
    if "'path': " in key:
        return answer(*asked, **how)
    if key not in known:
        known[key] = answer(*asked, **how)
    return known[key]
