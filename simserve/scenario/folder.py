"""The folder of a result: where it is, whether it may be written, and filling it all at once or not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from simserve.documents import read_text
from simserve.errors import InputError, SimserveError, UsageError
from simserve.metrics.files import REQUESTS_FILE, RESULT_FILE, SCENARIO_FILE, TIMESERIES_FILE
from simserve.scenario.schema import Scenario
from simserve.unfinished import remove_abandoned, unfinished

RESULTS_FOLDER = Path("results")
OPTIONAL_FILES = ("timeline.json", "timeline.json.gz", "metrics.prom", "film.html")
"""Files that a run writes only on request."""
RESULT_FILES = (RESULT_FILE, REQUESTS_FILE, TIMESERIES_FILE, SCENARIO_FILE, "report.html", *OPTIONAL_FILES)
"""Files that a run writes, and therefore may overwrite."""

_REMEDY = "choose another folder, or --force to replace it"


def default_folder(scenario: Scenario) -> Path:
    """Return ``results/NAME-HASH`` below the working folder."""
    return RESULTS_FOLDER / f"{scenario.name}-{scenario.hash}"


@contextmanager
def staged_folder(folder: Path, scenario: Scenario, *, force: bool = False) -> Iterator[Path]:
    """Yield an empty folder beside ``folder``; its files are moved in when the block ends without an error.

    Whether ``folder`` can be written is checked before the block begins; after an error nothing is left of it.

    Args:
        folder: Where the result goes; created if needed.
        force: Whether the result of another scenario or seed, or other files, may be replaced.

    Raises:
        UsageError: ``folder`` cannot be created or written, or holds another result, or files named like those of a
            result but without one, and ``force`` is false.
        SimserveError: Writing failed on the way: the disk is full, or the folder was removed.
    """
    _check_content(folder, scenario, force)
    remove_abandoned(folder.parent)
    staging = unfinished(folder)
    made = _make(staging, folder)
    try:
        yield staging
        _check_content(folder, scenario, force)  # another process may have filled it meanwhile
        _move(staging, folder)
    except OSError as failure:
        _remove(made)
        raise SimserveError(f"cannot be written: {failure.strerror or failure}", file=folder, key="--out") from failure
    except BaseException:
        _remove(made)
        raise


def check_name(out: Path) -> None:
    """Refuse a path that is not UTF-8, which is all that DuckDB takes for its tables.

    Raises:
        UsageError: It is not.
    """
    try:
        str(out).encode()
    except UnicodeEncodeError:
        raise UsageError("is not a UTF-8 name", file=out, key="--out", remedy="choose another folder") from None


def _check_content(folder: Path, scenario: Scenario, force: bool) -> None:
    check_name(folder)
    if folder.is_symlink() and not folder.exists():
        raise UsageError("is a link to something that does not exist", file=folder, key="--out")
    if folder.exists() and not folder.is_dir():
        raise UsageError("is a file, not a folder", file=folder, key="--out")
    held = [name for name in RESULT_FILES if (folder / name).exists() or (folder / name).is_symlink()]
    for name in held:
        if (folder / name).is_dir():
            raise UsageError(f"holds a folder {name}", file=folder, key="--out", remedy="choose another folder")
    if force or not held:
        return
    if RESULT_FILE not in held:
        raise UsageError(f"holds a {held[0]} that belongs to no result", file=folder, key="--out", remedy=_REMEDY)
    owner = _owner(folder)
    if owner is None:
        rule = f"holds a {RESULT_FILE} that is no result of simserve"
        raise UsageError(rule, file=folder, key="--out", remedy=_REMEDY)
    if owner != scenario.hash:
        rule = f"holds the result of another scenario or seed ({owner}, this is {scenario.hash})"
        raise UsageError(rule, file=folder, key="--out", remedy=_REMEDY)


def _owner(folder: Path) -> object:
    """Return the hash of the scenario whose result a folder holds; None: it holds none."""
    try:
        return json.loads(read_text(folder / RESULT_FILE))["simserve"]["scenario_hash"]
    except (InputError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _make(staging: Path, folder: Path) -> list[Path]:
    """Create the folders that are missing and return them, outermost first; ``staging`` is the last."""
    missing = [staging, *(parent for parent in staging.parents if not parent.exists())]
    made: list[Path] = []
    try:
        for each in reversed(missing):
            each.mkdir()
            made.append(each)
        if folder.is_dir():
            probe = folder / f".{os.getpid()}.probe"  # permissions alone are not conclusive
            probe.touch()
            probe.unlink()
    except OSError as failure:
        _remove(made)
        reason = failure.strerror or str(failure)
        raise UsageError(f"cannot be written: {reason}", file=folder, key="--out") from None
    return made


def _move(staging: Path, folder: Path) -> None:
    if not folder.exists():
        staging.rename(folder)
        return
    if _owner(folder) != _owner(staging):
        for name in OPTIONAL_FILES:  # of the replaced result
            (folder / name).unlink(missing_ok=True)
    # The result names its scenario: it is moved last, so that a folder never claims files it does not have.
    for file in sorted(staging.iterdir(), key=lambda each: each.name == RESULT_FILE):
        file.replace(folder / file.name)
    staging.rmdir()


def _remove(made: list[Path]) -> None:
    if made:
        shutil.rmtree(made[-1], ignore_errors=True)
    for folder in reversed(made[:-1]):
        with suppress(OSError):  # another process put a file there meanwhile
            folder.rmdir()
