"""The laboratory is found in a checkout, and an install without one says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from simserve.cli.main import main
from simserve.errors import UsageError
from simserve.planner.validation.laboratory import load_laboratory
from simserve.profiles import catalog


def test_a_checkout_has_it() -> None:
    """With what `validate` asks of it."""
    laboratory = load_laboratory("--data", "folder")

    assert all(hasattr(laboratory, name) for name in laboratory.__all__)
    assert {"read_points", "read_memory_logs"} < set(laboratory.__all__)


def test_an_install_without_a_checkout_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The flag, its value, and the remedy."""
    monkeypatch.setattr(catalog, "bundled_file", lambda path: tmp_path / path)

    with pytest.raises(UsageError, match=r"--data: 'folder' needs a development install.*pip install -e"):
        load_laboratory("--data", "folder")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--data", "."],
        ["--source", "inferencex_agg"],
        ["--accuracy", "A.md", "--date", "2026-11-30"],
        ["--expected-errors", "E.json", "--date", "2026-11-30"],
    ],
)
def test_a_plain_install_refuses_before_anything_runs(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, one line, nothing on stdout."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(catalog, "bundled_file", lambda path: tmp_path / path)

    code = main(["validate", *arguments])

    captured = capsys.readouterr()
    assert code == 2
    assert captured.out == ""
    assert arguments[0] in captured.err
    assert "development install" in captured.err
    assert captured.err.count("\n") == 1
