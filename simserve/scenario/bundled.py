"""The scenarios that can be asked for by name: their names, their text, the question each one opens with."""

from __future__ import annotations

from simserve.documents import read_text
from simserve.errors import ScenarioError
from simserve.profiles import catalog


def scenario_names() -> list[str]:
    """Return the names that `simserve run NAME` accepts, sorted."""
    return catalog.names("scenario")


def text(name: str) -> str:
    """Return the file of a scenario as it is written.

    Raises:
        ScenarioError: There is no such scenario; names the nearest.
    """
    return read_text(catalog.find("scenario", name), ScenarioError)


def question(name: str) -> str:
    """Return the question a scenario answers: the first sentence of its opening comment, "" without one.

    Raises:
        ScenarioError: There is no such scenario; names the nearest.
    """
    comment: list[str] = []
    for line in text(name).splitlines():
        if not line.startswith("#"):
            break
        comment.append(line.lstrip("# ").rstrip())
    return " ".join(comment).partition("?")[0] + "?" if any("?" in line for line in comment) else " ".join(comment[:1])
