"""The page of commands says what the command line declares."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

_DOCS = Path(__file__).resolve().parents[1] / "docs"


def writer() -> ModuleType:
    """Return the module that writes the page."""
    spec = importlib.util.spec_from_file_location("write_commands", _DOCS / "write_commands.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_option_is_on_the_page() -> None:
    """Written anew with: python docs/write_commands.py."""
    page = (_DOCS / "commands.md").read_text(encoding="utf-8")

    assert page == writer().page()
    assert "## simserve import manifest\n" in page
    assert "| `SCENARIO` | A scenario file" in page
    assert "| `--gpus [Nx]GPU` |" in page
