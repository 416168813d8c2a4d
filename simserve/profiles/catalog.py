"""Finding profiles and scenarios: a bundled name, a name in the user's folders, or a path.

Knows folders and names, not what a profile holds.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache, wraps
from pathlib import Path
from typing import Literal, TypeVar

from simserve.errors import InputError, ProfileError, ScenarioError, nearest

Profile = TypeVar("Profile")
Kind = Literal["hardware", "model", "engine", "api", "scenario", "published", "unseen"]

PROFILE_PATH_VARIABLE = "SIMSERVE_PROFILE_PATH"
_FOLDERS: dict[Kind, str] = {
    "hardware": "hardware_profiles",
    "model": "model_profiles",
    "engine": "engine_profiles",
    "api": "api_profiles",
    "scenario": "scenarios",
    "published": "calibration/published",
    "unseen": "calibration/unseen",
}
_ENDING = ".yaml"
_MEASURED: tuple[Kind, ...] = ("published", "unseen")
"""Kinds of which only those that ship are looked for: `simserve validate FILE` takes a user's own measurements."""
_PACKAGE = Path(__file__).resolve().parent.parent


def folders(kind: Kind) -> list[Path]:
    """Return the folders searched for a kind, first match wins: the user's, then the bundled one.

    The user's are ``<entry>/hardware_profiles`` (or ``model_profiles`` ...) and ``<entry>`` itself for every
    entry of the environment variable ``SIMSERVE_PROFILE_PATH``. Measurements are those that ship.
    """
    if kind in _MEASURED:
        return [_bundled(kind)]
    entries = [Path(entry) for entry in os.environ.get(PROFILE_PATH_VARIABLE, "").split(os.pathsep) if entry]
    user = [folder for entry in entries for folder in (entry / _FOLDERS[kind], entry)]
    return [folder for folder in [*user, _bundled(kind)] if os.path.isdir(folder)]


@cache
def _bundled(kind: Kind) -> Path:
    installed = _PACKAGE / "_bundled" / _FOLDERS[kind]
    return installed if installed.is_dir() else _PACKAGE.parent / _FOLDERS[kind]


def bundled_file(path: str) -> Path:
    """Return where a file that ships with simserve lies: ``calibration/expected_errors.json``; it may be missing."""
    installed = _PACKAGE / "_bundled" / path
    return installed if installed.is_file() else _PACKAGE.parent / path


def remembered(read: Callable[[Path], Profile]) -> Callable[[Path], Profile]:
    """Return ``read`` with a memory: a file that has not changed since it was last read is not read again.

    What ``read`` returns is shared by all clients, so it must be frozen. A file counts as unchanged while its size and
    time of modification are the same. Failures are not remembered.
    """
    memory: dict[Path, tuple[tuple[int, int, int], Profile]] = {}

    @wraps(read)
    def read_once(path: Path) -> Profile:
        try:
            state = os.stat(path)
        except OSError:
            return read(path)
        stamp, place = (state.st_mtime_ns, state.st_size, state.st_ino), path.absolute()
        known = memory.get(place)
        if known is None or known[0] != stamp:
            known = memory[place] = (stamp, read(path))
        return known[1]

    return read_once


def files(kind: Kind) -> dict[str, Path]:
    """Return each name of a kind that can be asked for, sorted, and its file.

    An entry of ``SIMSERVE_PROFILE_PATH`` without the sub-folders offers its files under every kind; only the
    kind's own reader can tell whether a file fits.
    """
    found: dict[str, Path] = {}
    for folder in folders(kind):
        with suppress(PermissionError):  # what may not be listed offers nothing
            for file in os.listdir(folder):
                if file.endswith(_ENDING):
                    found.setdefault(file.removesuffix(_ENDING), folder / file)
    return dict(sorted(found.items()))


def names(kind: Kind) -> list[str]:
    """Return the names of a kind that can be asked for, sorted."""
    return list(files(kind))


def has(kind: Kind, name: str) -> bool:
    """Return whether a name is one of `names`, without listing them."""
    if os.path.basename(name) != name:
        return False
    return any(os.path.exists(os.path.join(folder, f"{name}{_ENDING}")) for folder in folders(kind))


def find(kind: Kind, name: str, relative_to: Path | None = None) -> Path:
    """Return the file of a profile or scenario.

    Args:
        kind: What is looked for.
        name: A catalogue name (``h100-sxm-80gb``) or a path; a text with a separator or a ``.yaml``, ``.yml``
            or ``.json`` ending is a path.
        relative_to: Folder that a relative path is tried against first, then the working folder.

    Raises:
        ProfileError: (``ScenarioError`` for a scenario) there is no such file or name; names the nearest.
    """
    error: type[InputError] = ScenarioError if kind == "scenario" else ProfileError
    if name.endswith((".yaml", ".yml", ".json")) or "/" in name or os.sep in name:
        path = Path(name).expanduser()
        candidates = [path] if path.is_absolute() or relative_to is None else [relative_to / path, path]
        for candidate in candidates:
            if os.path.exists(candidate) and not os.path.isdir(candidate):  # a file, or a pipe such as /dev/stdin
                return candidate
        is_folder = any(os.path.isdir(candidate) for candidate in candidates)
        raise error("is a folder, not a file" if is_folder else "no such file", file=name)
    for folder in folders(kind):
        path = folder / f"{name}.yaml"
        if os.path.isfile(path):  # False, not an error, also of a name that is too long for a file
            return path
    raise error(f"is not a known {kind}", value=name, remedy=nearest(name, names(kind)))
