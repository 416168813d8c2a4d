"""Finding profiles and scenarios: bundled names, a user's folders, paths, errors with the nearest name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from simserve.errors import ProfileError, ScenarioError
from simserve.profiles import catalog


def make_file(path: Path) -> Path:
    """Create an empty file and its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def set_profile_path(monkeypatch: pytest.MonkeyPatch, *entries: Path) -> None:
    """Set ``SIMSERVE_PROFILE_PATH`` to the entries."""
    monkeypatch.setenv(catalog.PROFILE_PATH_VARIABLE, os.pathsep.join(str(entry) for entry in entries))


@pytest.fixture(autouse=True)
def _no_user_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(catalog.PROFILE_PATH_VARIABLE, raising=False)


def test_names_are_sorted_stems() -> None:
    """A name is a file name without its ending."""
    names = catalog.names("hardware")

    assert "h100-sxm-80gb" in names
    assert names == sorted(set(names))


@pytest.mark.parametrize("ending", ["", ".yaml"])
def test_a_name_that_no_file_can_have_is_not_known(ending: str) -> None:
    """Longer than file systems allow: an unknown name like any other."""
    with pytest.raises(ProfileError):
        catalog.find("hardware", "h" * 300 + ending)


def test_a_name_is_there_where_it_is_listed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Bundled or a user's; a path is no name, even of a file that is there."""
    make_file(tmp_path / "hardware_profiles" / "mine.yaml")
    make_file(tmp_path / "hardware_profiles" / "folder" / "deep.yaml")
    set_profile_path(monkeypatch, tmp_path)

    assert "mine" in catalog.names("hardware")
    assert all(catalog.has("hardware", name) for name in catalog.names("hardware"))
    assert not any(
        catalog.has("hardware", name) for name in ("folder/deep", "mine.yaml", "../hardware_profiles/mine", "")
    )


def test_a_bundled_name_is_found() -> None:
    """The file of a bundled name carries that name."""
    path = catalog.find("hardware", "h100-sxm-80gb")

    assert path.is_file()
    assert path.name == "h100-sxm-80gb.yaml"


def test_an_unknown_name_is_an_error_with_the_nearest() -> None:
    """A typing error costs one look at the message."""
    with pytest.raises(ProfileError) as caught:
        catalog.find("hardware", "h100-sxm-80bg")

    message = str(caught.value)
    assert message.startswith("'h100-sxm-80bg' is not a known hardware; did you mean 'h100-sxm-80gb'")
    assert caught.value.exit_code == 104


def test_a_name_like_no_other_lists_the_choices() -> None:
    """Where nothing is near: all of a short list, of a long one how many there are."""
    with pytest.raises(ProfileError, match=r"choose from .*vllm"):
        catalog.find("engine", "zzzz")
    with pytest.raises(ProfileError, match=r"there are \d+, none like it"):
        catalog.find("hardware", "zzzz")


def test_an_unknown_scenario_is_a_scenario_error() -> None:
    """The error says which kind of file was asked for."""
    with pytest.raises(ScenarioError, match="'zzzz' is not a known scenario"):
        catalog.find("scenario", "zzzz")


def test_the_users_kind_folder_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's profile replaces the bundled one of the same name."""
    mine = make_file(tmp_path / "hardware_profiles" / "h100-sxm-80gb.yaml")
    set_profile_path(monkeypatch, tmp_path)

    assert catalog.find("hardware", "h100-sxm-80gb") == mine


def test_the_entry_itself_is_a_folder_of_profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Profiles may lie directly in the entry; the kind's sub-folder wins over it."""
    direct = make_file(tmp_path / "my-gpu.yaml")
    set_profile_path(monkeypatch, tmp_path)
    assert catalog.find("hardware", "my-gpu") == direct

    nested = make_file(tmp_path / "hardware_profiles" / "my-gpu.yaml")

    assert catalog.find("hardware", "my-gpu") == nested


def test_entries_are_searched_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several entries are separated as in PATH, and the first match wins."""
    first = make_file(tmp_path / "a" / "my-gpu.yaml")
    make_file(tmp_path / "b" / "my-gpu.yaml")
    second = make_file(tmp_path / "b" / "other-gpu.yaml")
    set_profile_path(monkeypatch, tmp_path / "a", tmp_path / "missing", tmp_path / "b")

    assert catalog.find("hardware", "my-gpu") == first
    assert catalog.find("hardware", "other-gpu") == second
    assert {"my-gpu", "other-gpu", "h100-sxm-80gb"} <= set(catalog.names("hardware"))


def test_a_kind_folder_serves_its_own_kind_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model profile is not offered as hardware."""
    make_file(tmp_path / "model_profiles" / "my-model.yaml")
    set_profile_path(monkeypatch, tmp_path)

    assert "my-model" in catalog.names("model")
    assert "my-model" not in catalog.names("hardware")


def test_a_relative_path_is_tried_against_the_folder_given_then_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scenario can name a file beside itself."""
    here = make_file(tmp_path / "work" / "gpu.yaml")
    monkeypatch.chdir(tmp_path / "work")
    assert catalog.find("hardware", "gpu.yaml", tmp_path / "scenarios").resolve() == here

    beside = make_file(tmp_path / "scenarios" / "gpu.yaml")

    assert catalog.find("hardware", "gpu.yaml", tmp_path / "scenarios") == beside


def test_an_absolute_path_ignores_the_folder_given(tmp_path: Path) -> None:
    """What is absolute stays so."""
    path = make_file(tmp_path / "a" / "gpu.yaml")

    assert catalog.find("hardware", str(path), tmp_path / "b") == path


@pytest.mark.parametrize("name", ["missing.yaml", "folder/missing", "missing.json", "missing.yml"])
def test_a_path_that_does_not_exist_is_an_error(name: str, tmp_path: Path) -> None:
    """A text with a separator or an ending is a path, never a catalogue name."""
    with pytest.raises(ProfileError) as caught:
        catalog.find("hardware", name, tmp_path)

    assert str(caught.value) == f"{name}: no such file"


def test_a_file_is_read_again_only_when_it_changed(tmp_path: Path) -> None:
    """What was read is handed out again, the same object; a new text is a new profile; an error stays an error."""
    file = tmp_path / "a.yaml"
    reads: list[str] = []

    @catalog.remembered
    def read(path: Path) -> str:
        reads.append(path.read_text(encoding="utf-8"))
        return reads[-1]

    with pytest.raises(FileNotFoundError):
        read(file)
    file.write_text("one", encoding="utf-8")
    assert [read(file), read(file)] == ["one", "one"]
    assert reads == ["one"]

    file.write_text("three", encoding="utf-8")
    assert read(file) == "three"


def test_a_profile_is_a_key_that_equals_none_of_the_same_values() -> None:
    """Two that were read of two files may hold the same text today."""
    one, other = [1], [1]

    keys = {catalog.Itself(one): "one", catalog.Itself(other): "other"}

    assert keys[catalog.Itself(one)] == "one"
    assert keys[catalog.Itself(other)] == "other"


@pytest.mark.parametrize("kind", ["published", "unseen"])
def test_measurements_are_those_that_ship(kind: catalog.Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU of one's own on the path is no measured server."""
    shipped = catalog.names(kind)
    make_file(tmp_path / "my-gpu.yaml")
    set_profile_path(monkeypatch, tmp_path)

    assert catalog.names(kind) == shipped != []
