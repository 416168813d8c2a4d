"""Every notebook is kept small, without outputs and listed; CI runs them all in a kernel."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

_FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
_NOTEBOOKS = sorted(_FOLDER.glob("*.ipynb"))


def cells(path: Path, kind: str) -> list[dict[str, Any]]:
    """Return the cells of a kind."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    return [cell for cell in notebook["cells"] if cell["cell_type"] == kind]


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
