"""The page that needs no Python: what it holds is what the server answers."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from simserve.errors import UsageError

pages = pytest.importorskip("simserve.explore.pages", reason="needs simserve[explore]")
testclient = pytest.importorskip("starlette.testclient", reason="needs simserve[explore]")

SMALL = {
    "memory-wall": {"model": ("llama-3.1-8b", "llama-3.1-405b"), "hardware": ("l4-24gb",), "batch": (16, 1)},
    "batching": {"lengths": ((5, 9, 2), (4, 4)), "slots": (2, 1)},
}


def data_of(folder: Path) -> dict[str, Any]:
    """Return what lies beside the page."""
    text = (folder / "answers.js").read_text()
    found: dict[str, Any] = json.loads(text[len("window.SIMSERVE=") : -2])
    return found


@cache
def answered(question: str, **values: Any) -> tuple[int, Any]:
    """Return what the server says."""
    from simserve.explore.app import create_app

    client = testclient.TestClient(create_app(), base_url="http://localhost")
    response = client.post(f"/api/{question}", json={key: json.loads(value) for key, value in values.items()})
    return response.status_code, response.json()


def test_answers_are_those_of_the_server(tmp_path: Path) -> None:
    """Every combination, what does not fit included."""
    assert pages.write_pages(tmp_path / "site", grids=SMALL)

    data = data_of(tmp_path / "site")
    assert {name: len(found) for name, found in data["answers"].items()} == {"memory-wall": 4, "batching": 4}
    for key, batch in (("0.0.0", 16), ("0.0.1", 1)):
        values = {"model": '"llama-3.1-8b"', "hardware": '"l4-24gb"', "batch": str(batch)}
        assert data["answers"]["memory-wall"][key] == answered("memory-wall", **values)[1]
    assert data["answers"]["batching"]["1.0"] == answered("batching", lengths="[4,4]", slots="2")[1]
    assert data["catalogue"]["offered"]["batching"]["lengths"] == [[5, 9, 2], [4, 4]]


def test_the_page_fetches_nothing(tmp_path: Path) -> None:
    """No address of a machine, no file but the answers; what is a module stands in it."""
    pages.write_pages(tmp_path / "site", grids={"batching": SMALL["batching"]})
    text = (tmp_path / "site" / "index.html").read_text()

    assert sorted(each.name for each in (tmp_path / "site").iterdir()) == ["answers.js", "index.html"]
    assert re.findall(r'(?:src|href)="([^"#]*)"', text) == ["data:,", "answers.js"]
    assert not re.search(r'from "\./', text)
    assert not re.search(r"https?://", text)


def test_the_same_version_writes_the_same_bytes(tmp_path: Path) -> None:
    """A second export over the first one, too."""
    found = []
    for folder in ("one", "two", "two"):
        pages.write_pages(tmp_path / folder, grids=SMALL)
        found.append((tmp_path / folder / "answers.js").read_bytes())

    assert found[0] == found[1] == found[2]


def test_every_input_offered_is_one_of_its_question() -> None:
    """And its first value is taken by the server: the page opens on an answer."""
    from simserve.explore.app import QUESTIONS

    for name, options in pages.GRIDS.items():
        assert set(options) <= set(QUESTIONS[name].query.model_fields)
        QUESTIONS[name].query(**{key: values[0] for key, values in options.items()})
    assert pages.count() < 1500


def test_what_was_computed_is_kept_when_stopped(tmp_path: Path) -> None:
    """Ctrl-C after the third answer."""

    def stop(done: int, _total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    assert not pages.write_pages(tmp_path / "site", grids=SMALL, tell=stop)
    assert len(data_of(tmp_path / "site")["answers"]["memory-wall"]) == 3


def test_a_folder_that_cannot_be_made_is_refused_before_anything_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answers of a whole page take minutes."""
    (tmp_path / "file").write_text("mine")
    computed: list[str] = []
    monkeypatch.setattr(pages, "answer", lambda name, _values: computed.append(name) or {})

    with pytest.raises(UsageError, match=r"--export: .*cannot be written"):
        pages.write_pages(tmp_path / "file" / "site", grids=SMALL)

    assert not computed


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    """Unless it is said that both may stay."""
    (tmp_path / "thesis.txt").write_text("mine")

    with pytest.raises(UsageError, match="holds other files"):
        pages.write_pages(tmp_path, grids=SMALL)
    with pytest.raises(UsageError, match="is a file"):
        pages.check_folder(tmp_path / "thesis.txt", force=True)
    pages.write_pages(tmp_path, force=True, grids={"batching": SMALL["batching"]})
    assert (tmp_path / "thesis.txt").read_text() == "mine"
