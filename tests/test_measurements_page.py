"""The page of a user's own measurements: its files are read, and what it shows is what `validate` prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from simserve.cli.main import main
from simserve.planner.measured.reports import OWN, read_own

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "measurements.md").read_text(encoding="utf-8")
FILES = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.M | re.S)
ANSWER = re.search(r"^\$ simserve validate mine\.yaml\n(.*?)^```", PAGE, re.M | re.S)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Return the files that the page shows, written."""
    found = [tmp_path / "mine.yaml", tmp_path / "rooms.yaml"]
    for path, text in zip(found, FILES, strict=True):
        path.write_text(text, encoding="utf-8")
    return found


def test_the_files_of_the_page_are_read(files: list[Path]) -> None:
    """Two loads of one server, and one KV room."""
    points, rooms = read_own(files)

    assert [(point.source, point.label, point.load) for point in points] == [
        (OWN, "mine: vllm c32", 32.0),
        (OWN, "mine: vllm c64", 64.0),
    ]
    assert [room.label for room in rooms] == ["rooms: llama"]


def test_the_answer_of_the_page_is_what_is_printed(
    files: list[Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Line by line."""
    monkeypatch.setenv("COLUMNS", "120")

    code = main(["validate", str(files[0]), "--jobs", "1"])

    assert code == 0
    assert ANSWER is not None
    printed = capsys.readouterr().out.splitlines()
    assert [line.rstrip() for line in printed][: ANSWER[1].count("\n")] == ANSWER[1].splitlines()
