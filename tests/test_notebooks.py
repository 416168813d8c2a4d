"""Every notebook runs from its first cell to its last, and is kept without outputs."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib
import pytest

_FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
_NOTEBOOKS = sorted(_FOLDER.glob("*.ipynb"))


def cells(path: Path, kind: str) -> list[dict[str, Any]]:
    """Return the cells of a kind."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    return [cell for cell in notebook["cells"] if cell["cell_type"] == kind]


@pytest.mark.slow
@pytest.mark.parametrize("path", _NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In order, in a folder of its own, as a notebook would run them."""
    monkeypatch.chdir(tmp_path)
    matplotlib.use("agg")
    names: dict[str, Any] = {}

    for number, cell in enumerate(cells(path, "code")):
        exec(compile("".join(cell["source"]), f"{path.name}[{number}]", "exec"), names)

    assert "ss" in names
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("path", _NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_small_and_starts_with_its_question(path: Path) -> None:
    """No outputs, which go stale; a title first."""
    assert cells(path, "markdown")[0]["source"][0].startswith("# ")
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells(path, "code"))
    assert path.stat().st_size < 20_000


def test_the_list_of_notebooks_is_whole() -> None:
    """Each stands in the README of the folder, with its question, and no other."""
    listed = re.findall(r"^\| \[([a-z-]+)\]\(\1\.ipynb\) \| .+ \|$", (_FOLDER / "README.md").read_text(), re.M)

    assert sorted(listed) == [path.stem for path in _NOTEBOOKS]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("nbmake") is None, reason="needs nbmake and ipykernel")
def test_nbmake_runs_them_in_a_kernel(tmp_path: Path) -> None:
    """As a notebook is run, where every result also shows itself; one of them here, all of them in CI."""
    copied = tmp_path / "memory-wall.ipynb"
    copied.write_bytes((_FOLDER / copied.name).read_bytes())
    command = [sys.executable, "-m", "pytest", "--nbmake", "--overwrite", "-p", "no:cacheprovider", str(copied)]

    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout
    shown = [output for cell in cells(copied, "code") for output in cell["outputs"]]
    assert any("text/html" in output.get("data", {}) for output in shown)
    assert any("image/svg+xml" in output.get("data", {}) for output in shown)
