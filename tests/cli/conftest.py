"""What the command-line tests share: an empty working folder, and one command run in this process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from simserve.cli.main import main
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
