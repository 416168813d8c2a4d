"""The result folder: all files or none, never over somebody else's result."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from simserve.api import run
from simserve.errors import SimserveError, UsageError
from simserve.scenario.folder import RESULT_FILES, default_folder, staged_folder
from tests.scenario.builders import make_scenario


def hold_result(folder: Path, scenario_hash: str) -> None:
    """Put a result of a scenario into ``folder``."""
    folder.mkdir()
    (folder / "result.json").write_text(json.dumps({"simserve": {"scenario_hash": scenario_hash}}))


def test_default_folder_is_name_and_hash() -> None:
    """Two scenarios never share a folder by default."""
    scenario = make_scenario()

    assert default_folder(scenario) == Path("results") / f"small-{scenario.hash}"


def test_files_appear_together(tmp_path: Path) -> None:
    """Nothing is in the folder until all is."""
    folder = tmp_path / "new" / "deep"

    with staged_folder(folder, make_scenario()) as staging:
        (staging / "result.json").write_text("{}")
        assert not folder.exists()

    assert [path.name for path in folder.iterdir()] == ["result.json"]
    assert [path.name for path in folder.parent.iterdir()] == ["deep"]


@pytest.mark.parametrize("force", [False, True])
def test_a_result_that_came_meanwhile_is_kept(tmp_path: Path, force: bool) -> None:
    """Two runs of different seeds into one folder, started at once: the later one does not replace the other."""
    folder = tmp_path / "shared"

    def write_beside_another() -> None:
        with staged_folder(folder, make_scenario(), force=force) as staging:
            (staging / "result.json").write_text("{}")
            hold_result(folder, "anothers")

    if force:
        write_beside_another()
    else:
        with pytest.raises(UsageError, match="holds the result of another scenario or seed"):
            write_beside_another()

    assert ("anothers" in (folder / "result.json").read_text()) is not force
    assert [path.name for path in tmp_path.iterdir()] == ["shared"]


def test_an_error_leaves_nothing_behind(tmp_path: Path) -> None:
    """Not even the folders that were made on the way."""

    def write_half_of_it() -> None:
        with staged_folder(tmp_path / "a" / "b", make_scenario()) as staging:
            (staging / "result.json").write_text("{")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half_of_it()

    assert list(tmp_path.iterdir()) == []


def test_other_files_in_the_folder_stay(tmp_path: Path) -> None:
    """A folder may hold a reader's notes."""
    (tmp_path / "notes.txt").write_text("mine")

    with staged_folder(tmp_path, make_scenario()) as staging:
        (staging / "result.json").write_text("{}")

    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt", "result.json"]


def test_the_result_of_another_scenario_or_seed_is_refused(tmp_path: Path) -> None:
    """A result is replaced only by its own scenario, or by force."""
    folder = tmp_path / "held"
    hold_result(folder, make_scenario(["run.seed=2"]).hash)

    with pytest.raises(UsageError, match="holds the result of another scenario or seed") as caught:
        staged_folder(folder, make_scenario()).__enter__()

    assert "--force" in str(caught.value)


@pytest.mark.parametrize(("seed", "force"), [(1, False), (2, True)])
def test_the_same_scenario_or_force_overwrites(tmp_path: Path, seed: int, force: bool) -> None:
    """Running again is not an error."""
    folder = tmp_path / "held"
    hold_result(folder, make_scenario([f"run.seed={seed}"]).hash)

    with staged_folder(folder, make_scenario(), force=force) as staging:
        (staging / "result.json").write_text("new")

    assert (folder / "result.json").read_text() == "new"


def test_a_foreign_result_file_is_refused(tmp_path: Path) -> None:
    """A result.json of another tool is not ours to replace."""
    (tmp_path / "result.json").write_text("[]")

    with pytest.raises(UsageError, match="is no result of simserve"):
        staged_folder(tmp_path, make_scenario()).__enter__()


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_a_file_in_the_way_is_refused(tmp_path: Path, name: str) -> None:
    """Known before anything is simulated."""
    (tmp_path / "file").write_text("")

    with pytest.raises(UsageError, match="--out"):
        staged_folder(tmp_path / name, make_scenario()).__enter__()

    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_dangling_link_is_refused(tmp_path: Path) -> None:
    """It is neither a folder nor a place where one can be made."""
    (tmp_path / "out").symlink_to(tmp_path / "nowhere")

    with pytest.raises(UsageError, match="--out: is a link to something that does not exist"):
        staged_folder(tmp_path / "out", make_scenario()).__enter__()

    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_name_that_is_no_utf_8_is_refused(tmp_path: Path) -> None:
    """DuckDB cannot write a table there; a run would end in its error."""
    with pytest.raises(UsageError, match="--out: is not a UTF-8 name; choose another folder"):
        staged_folder(tmp_path / os.fsdecode(b"caf\xe9"), make_scenario()).__enter__()

    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["report.html", "requests.parquet", "timeseries.parquet", "scenario.resolved.yaml"])
def test_somebody_else_s_file_is_refused(tmp_path: Path, name: str) -> None:
    """A file that would be overwritten belongs to nobody known where no result.json stands beside it."""
    (tmp_path / name).write_text("mine")

    with pytest.raises(UsageError, match=f"--out: holds a {name} that belongs to no result") as caught:
        staged_folder(tmp_path, make_scenario()).__enter__()

    assert "--force" in str(caught.value)
    with staged_folder(tmp_path, make_scenario(), force=True) as staging:
        (staging / name).write_text("new")
    assert (tmp_path / name).read_text() == "new"


def test_a_folder_in_the_place_of_a_file_is_refused_even_with_force(tmp_path: Path) -> None:
    """It cannot be replaced by a file, and that is known before anything is simulated."""
    (tmp_path / "report.html").mkdir()

    with pytest.raises(UsageError, match=r"holds a folder report\.html"):
        staged_folder(tmp_path, make_scenario(), force=True).__enter__()


def test_every_file_of_a_result_is_guarded(tmp_path: Path) -> None:
    """The names are those that a run writes."""
    run(make_scenario(), out=tmp_path / "out", timeline=True, film=True, prometheus=True)

    assert {path.name for path in (tmp_path / "out").iterdir()} == {*RESULT_FILES} - {"timeline.json.gz"}


def test_a_disk_that_fills_up_is_no_defect(tmp_path: Path) -> None:
    """The folder is named, and nothing is left of it."""

    def write_too_much() -> None:
        with staged_folder(tmp_path / "out", make_scenario()):
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(SimserveError, match=r"out: --out: cannot be written: No space left on device") as caught:
        write_too_much()

    assert caught.value.exit_code == 1
    assert list(tmp_path.iterdir()) == []
